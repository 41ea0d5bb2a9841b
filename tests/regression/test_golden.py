"""Certificates of the gallery, fits on canonical data sets, private and not, and passes over the records are what they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import CASES, GALLERY, Case
from golden_measures import Measured, certificates, draws
from refresh import CALIBRATED, CERTIFICATES, ORACLE, compare, expected, load

import dpconvex as dp
from dpconvex.calculus import analysis
from dpconvex.noise import samplers
from dpconvex.solvers import backend as backends

REMEDY = "\n`make golden` shows all that moved; CONTRIBUTING.md says what to do about it."
OTHER_DRAWS = "this version of NumPy draws other numbers from a seed than the one that the golden files were made with"
Find = Callable[[str], Path]


def moved(old: Any, new: Any) -> str:
    return "\n".join(str(change) for change in compare(old, new))


@pytest.mark.parametrize("name", GALLERY)
def test_no_certificate_has_moved(name: str) -> None:
    change = moved(load(CERTIFICATES + name), certificates(name))
    assert not change, change + REMEDY


def test_a_looser_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "ROUNDING_SLACK", 1e-6)
    changes = compare(load(CERTIFICATES + "huber_svm"), certificates("huber_svm"))
    found = {change.place.split(": ")[-1] for change in changes}
    assert {"gradient_bound", "sensitivity", "noise_scale", "derivation_logarithms"} <= found


@pytest.mark.parametrize("name", sorted({case.golden for case in CASES}))
def test_a_file_holds_its_cases(name: str) -> None:
    golden = load(name)
    assert list(golden) == expected(name)
    for case in CASES:
        if case.golden == name:
            assert set(golden[case.name]) == {"minimum", *(fit.name for fit in case.fits)}


def test_a_constant_that_moves_by_a_millionth_is_found() -> None:
    golden: dict[str, Any] = load(CERTIFICATES + "large_margin_gaussian")
    checked = 0
    for group in golden.values():
        given = group.get("given", False) or not group.get("added")
        for constant, value in group.items():
            if isinstance(value, float) and abs(value) > 0.1 and (given or constant not in {"added", *CALIBRATED}):
                found = list(compare({"": group}, {"": group | {constant: value * (1 + 1e-6)}}))
                assert [change.new for change in found] == [value * (1 + 1e-6)], f"{constant} = {value}"
                checked += 1
    assert checked > 50


def marked(case: Case) -> Any:
    marks = [pytest.mark.slow] * case.slow + [pytest.mark.shared] * case.shared
    return pytest.param(case, id=f"{case.golden}-{case.name}".replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_fits_are_where_they_were(case: Case, shared_data: Find) -> None:
    golden, case_now = load(case.golden)[case.name], Measured(case, case.data(shared_data))
    change = moved(golden["minimum"], case_now.minimum())
    assert not change, change + REMEDY
    if case.oracle and not case_now.kinked:
        assert case_now.oracle() == pytest.approx(golden["minimum"]["objective"], rel=ORACLE)
    same = not moved(load("draws"), draws())
    for fit in case.fits:
        old, now = golden[fit.name], case_now.fit(fit)
        change = moved(old, now) if same else moved(old["certificate"], now["certificate"])
        assert not change, f"{fit.name}\n{change}{REMEDY}"
    if not same:
        pytest.skip(OTHER_DRAWS)


def test_noise_of_the_wrong_sign_is_found(shared_data: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    if moved(load("draws"), draws()):
        pytest.skip(OTHER_DRAWS)
    case = next(case for case in CASES if case.name == "logistic, virginica")
    right = samplers.gamma_direction
    monkeypatch.setattr(samplers, "gamma_direction", lambda *arguments: -right(*arguments))
    golden = load(case.golden)[case.name][case.fits[0].name]
    found = Measured(case, case.data(shared_data)).fit(case.fits[0])
    assert not moved(golden["certificate"], found["certificate"])
    assert "probes 0" in moved(golden, found)


# Passes over the records of `dp.minimize`, and of `dp.solve` (epsilon 1, delta 1e-6, seed 0): a change may lower these numbers,
# and raises one only with a reason.
PASSES: dict[str, tuple[dict[str, Any], int, int]] = {
    "logistic_regression": ({"features": 20, "regularization": 1e-4}, 12, 13),
    "softmax_regression": ({"features": 12, "classes": 5, "regularization": 1e-3}, 15, 12),
    "huber_svm": ({"features": 20, "regularization": 1e-3}, 15, 15),
    "elastic_net_logistic": ({"features": 20}, 19, 17),
    "large_margin_gaussian": ({"features": 10, "classes": 4}, 135, 22),
    "fair_logistic_regression": ({"features": 6, "covariance": [0.1, 0.2, 0, 0, 0, 0.1], "tolerance": 0.01}, 23, 19),
}


def records(features: int, classes: int, size: int = 2000) -> dict[str, Any]:
    """Return records of unit length, whose classes a noisy linear rule gives, and whose features differ in size."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, features)) * np.geomspace(1, 0.05, features)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.argmax(x @ rng.normal(size=(features, classes)) + 0.3 * rng.normal(size=(size, classes)), axis=1)
    return {"x": x, "y": 2 * y - 1 if classes == 2 else y}


@pytest.mark.parametrize("name", PASSES)
def test_fits_take_no_more_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, most, private = PASSES[name]
    passes, solve = [], backends.solve

    def counted(*arguments: Any) -> Any:
        found = solve(*arguments)
        passes.append(found.evaluations)
        return found

    monkeypatch.setattr(backends, "solve", counted)
    learner, data = dp.load(name, **options), records(options["features"], options.get("classes", 2))
    dp.minimize(learner, data)
    dp.solve(learner, data, dp.Privacy(1.0, 1e-6), dp.ObjectivePerturbation("gaussian"), seed=0)
    assert passes[0] <= most, f"{passes[0]} passes without privacy"
    assert passes[1] <= private, f"{passes[1]} passes with privacy"
