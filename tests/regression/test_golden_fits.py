"""Fits on canonical data sets, private and not: objectives, certificates and errors are where they were."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_cases import CASES, Case
from golden_files import ORACLE, compare, load
from golden_measures import Measured, draws

from dpconvex.noise import samplers

REMEDY = "\n`make golden` shows all that moved; CONTRIBUTING.md says what to do about it."
OTHER_DRAWS = "this version of NumPy draws other numbers from a seed than the one that the golden files were made with"
QUICK = "logistic, virginica"  # on iris


def marked(case: Case) -> Any:
    """Give a case the marks of its cost and of its data."""
    marks = [pytest.mark.slow] * case.slow + [pytest.mark.shared] * case.shared
    return pytest.param(case, id=case.id, marks=marks)


def moved(old: Any, new: Any) -> str:
    return "\n".join(str(change) for change in compare(old, new))


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_fits_are_where_they_were(case: Case, shared_data: Callable[[str], Path]) -> None:
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


def test_noise_of_the_wrong_sign_is_found(shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    if moved(load("draws"), draws()):
        pytest.skip(OTHER_DRAWS)
    case = next(case for case in CASES if case.golden == "iris" and case.name == QUICK)
    right = samplers.gamma_direction
    monkeypatch.setattr(samplers, "gamma_direction", lambda *arguments: -right(*arguments))
    golden = load(case.golden)[case.name][case.fits[0].name]
    found = Measured(case, case.data(shared_data)).fit(case.fits[0])
    assert not moved(golden["certificate"], found["certificate"])
    assert "probes 0" in moved(golden, found)
