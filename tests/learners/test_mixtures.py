"""Mixtures with private component labels: one promise for both stages, and labels that are worth their share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.derivation import Derivation
from dpconvex.learners.clustering import Grouping, Records
from dpconvex.learners.mixtures import Labelling, Plan
from dpconvex.release.release import Release

PROMISE = dp.Privacy(2.0, 1e-6)


def moons(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return two interleaved half circles in the unit ball: no quadratic separates them, two for each class do."""
    y, angle = rng.integers(0, 2, size), rng.uniform(0, np.pi, size)
    first = np.column_stack([np.cos(angle), np.sin(angle)])
    x = np.where(y[:, None] == 0, first, [1.0, 0.5] - first) - [0.5, 0.25]
    x = (x + 0.08 * rng.normal(size=x.shape)) / 1.9
    return x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), y


@cache
def learner(components: int = 2) -> dp.Template:
    return dp.load("large_margin_gaussian_mixture", features=2, components=components, regularization=3e-4, trace=0.0)


X, Y = moons(4000, np.random.default_rng(0))
DATA = {"x": X, "y": Y}
SMALL = {"x": X[:300], "y": Y[:300]}


def steps(root: Derivation) -> list[str]:
    return [root.rule, *(rule for child in root.children for rule in steps(child))]


# What they are for


def test_two_components_learnt_privately_beat_one() -> None:
    x, y = moons(4000, np.random.default_rng(1))
    errors = {}
    for components in (1, 2):
        mixtures = [dp.solve_mixture(learner(components), DATA, PROMISE, seed=seed) for seed in range(2)]
        errors[components] = [np.mean(mixture.predict(x) != y) for mixture in mixtures]
        certificate = mixtures[0].release.certificate
        assert certificate is not None
        assert certificate.privacy == PROMISE
        assert (certificate.clustering is not None) == (components == 2)
    assert min(errors[1]) > 0.1
    assert max(errors[2]) < 0.09


# One promise


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_parts_add_up_to_the_promise(delta: float, adjacency: str) -> None:
    privacy = dp.Privacy(1.0, delta, adjacency)
    certificate = dp.verify_mixture(learner(), privacy, 4000, share=0.3)
    noise, cover = certificate.clustering, certificate.cover
    assert noise is not None
    assert cover is not None
    assert certificate.privacy == privacy
    assert noise.epsilon == 0.3
    assert noise.delta == pytest.approx(0.3 * delta, rel=1e-12)
    assert (cover.counting > 0) == (adjacency == "add-remove")
    parts = certificate.noise_epsilon + certificate.jacobian_epsilon + cover.epsilon + cover.counting + noise.epsilon
    assert parts == pytest.approx(1.0, rel=1e-9)
    # Each part by itself is what was proved for its share.
    fit = dp.verify(learner(), dp.Privacy(0.7, 0.7 * delta, adjacency), 4000)
    assert certificate.noise_scale == pytest.approx(fit.noise_scale, rel=1e-9)
    alone = dp.NoisyKMeans().calibrate(
        dp.Privacy(0.3, 0.3 * delta, adjacency), classes=2, components=2, features=2, radius=1.0
    )
    assert noise.scale == pytest.approx(alone.scale, rel=1e-9)


@pytest.mark.parametrize("share", [0.01, 0.1, 1 / 3, 0.9])
def test_rounding_never_spends_more_than_the_promise(share: float) -> None:
    from fractions import Fraction

    for epsilon in (0.1, 1.0, 3.3, 1e-3):
        plan = Plan(learner(), dp.Privacy(epsilon, 1e-5), Labelling(None, share, "x", "y", "m"))
        for name in ("epsilon", "delta"):
            spent = Fraction(getattr(plan.part, name)) + Fraction(getattr(plan.rest, name))
            whole = Fraction(getattr(plan.privacy, name))
            assert whole * (1 - Fraction(1, 2**50)) <= spent <= whole


def test_the_release_says_what_was_spent_and_on_what(tmp_path: Path) -> None:
    budget = dp.Budget(dp.Privacy(2.0, 1e-6))
    mixture = dp.solve_mixture(learner(), SMALL, PROMISE, share=0.25, budget=budget, label="moons")
    assert [(e.label, e.privacy) for e in budget.entries] == [("moons", PROMISE)]
    assert budget.remaining == (0.0, 0.0)
    assert mixture.spent == mixture.release.spent == PROMISE
    assert mixture.components.spent == dp.Privacy(0.5, 0.25e-6)
    certificate = mixture.release.certificate
    assert certificate is not None
    assert {"component labels, then the fit", "noisy k-means", "composition of all rounds", "covered release"} <= set(
        steps(certificate.derivation)
    )
    text = str(certificate)
    assert "the component labels: noisy k-means" in text
    assert "( 25 %)" in text
    assert "clustering noise sigma" in text
    assert "5 rounds of 2 x 2 counts and sums" in text
    assert "component labels: noisy k-means" in certificate._repr_html_()
    # The certificate is made from the one that the fit was run with, and is what was proved without data.
    assert certificate == dp.verify_mixture(learner(), PROMISE, 300, share=0.25)
    assert any("clustering's noise" in line for line in certificate.assumptions)
    assert dp.Certificate.from_dict(certificate.to_dict()) == certificate
    assert certificate.to_dict()["clustering"]["sensitivity"] == pytest.approx(2.0)
    mixture.release.save(tmp_path / "moons.npz")
    again = Release.load(tmp_path / "moons.npz", template=dp.load)
    assert again.spent == PROMISE
    assert again.certificate == certificate
    np.testing.assert_array_equal(again.predict(X), mixture.predict(X))


def test_nothing_is_paid_without_a_proof_and_all_of_it_before_the_data() -> None:
    budget = dp.Budget(dp.Privacy(2.0, 1e-6))
    with pytest.raises(dp.NotPrivate, match="add-remove"):
        dp.solve_mixture(learner(), SMALL, dp.Privacy(1.0, adjacency="add-remove"), budget=budget)
    with pytest.raises(dp.NotPrivate, match="larger share"):
        dp.solve_mixture(learner(), SMALL, dp.Privacy(1.0), share=1e-9, budget=budget)
    with pytest.raises(dp.TemplateError):
        dp.solve_mixture(learner(), SMALL, PROMISE, backend="none", budget=budget)
    assert budget.entries == ()
    with pytest.raises(dp.DomainError, match="not declared"):
        dp.solve_mixture(learner(), {"x": X[:5], "y": [0, 1, 2, 0, 1]}, PROMISE, budget=budget)
    assert len(budget.entries) == 1


def test_under_add_remove_the_number_of_records_stays_private() -> None:
    privacy = dp.Privacy(2.0, 1e-6, "add-remove")
    mixture = dp.solve_mixture(learner(), SMALL, privacy, size=500)
    certificate = mixture.release.certificate
    assert mixture.spent == privacy
    assert certificate == dp.verify_mixture(learner(), privacy, 500)
    assert "300" not in str(certificate)


def test_a_seed_makes_both_stages_repeatable_and_not_private() -> None:
    first, second = (dp.solve_mixture(learner(), SMALL, PROMISE, seed=5) for _ in range(2))
    for mixture in (first, second):
        assert mixture.spent is None
        assert not mixture.release.private
        assert mixture.release.not_private_because == "the noise was drawn with the seed 5"
        assert mixture.components.not_private_because == "the noise was drawn with the seed 5"
    np.testing.assert_array_equal(first.components.centers, second.components.centers)
    np.testing.assert_array_equal(first.release["Phi_0_0"], second.release["Phi_0_0"])
    # With so large a promise no cell is drowned by noise, so centres move.
    fresh = [dp.solve_mixture(learner(), SMALL, dp.Privacy(50.0, 1e-6)) for _ in range(2)]
    assert not np.array_equal(fresh[0].components.centers, fresh[1].components.centers)
    assert not np.array_equal(fresh[0].release["Phi_0_0"], fresh[1].release["Phi_0_0"])


@pytest.mark.slow
def test_every_constant_of_the_whole_survives_an_attack() -> None:
    certificate = dp.verify_mixture(learner(), dp.Privacy(2.0), 4000, dp.ObjectivePerturbation())
    findings = dp.falsify(learner(), certificate, starts=4, steps=10, seed=0)  # raises if it breaks one
    assert {"sensitivity", "noise_dimension", "epsilon"} <= set(findings)
    assert findings["epsilon"].certified < 0.8 * certificate.epsilon


# Labels that cost nothing


def test_one_component_needs_no_labels_and_pays_for_none() -> None:
    mixture = dp.solve_mixture(learner(1), SMALL, PROMISE, seed=1)
    assert mixture.components.declared
    assert mixture.release.certificate == dp.verify(learner(1), PROMISE, 300)


def test_declared_centres_leave_all_of_the_promise_to_the_fit() -> None:
    centers = [[[-0.5, 0.0], [0.1, 0.0]], [[-0.1, 0.0], [0.5, 0.0]]]
    declared = dp.Components(centers, classes=(0, 1))
    mixture = dp.solve_mixture(learner(), SMALL, PROMISE, clustering=declared)
    certificate = mixture.release.certificate
    assert certificate == dp.verify(learner(), PROMISE, 300)
    assert certificate == dp.verify_mixture(learner(), PROMISE, 300, clustering=declared)
    seeded = dp.solve_mixture(learner(), SMALL, PROMISE, clustering=declared, seed=2)
    assert seeded.spent is None
    np.testing.assert_array_equal(mixture.components.assign(X, Y), declared.assign(X, Y))


def test_the_size_chooses_what_fits_a_mixture_and_both_stages_are_one_promise() -> None:
    few = dp.verify_mixture(learner(), PROMISE, 300)
    assert few.mechanism == "noisy gradient descent, clipped"
    assert few == dp.solve_mixture(learner(), SMALL, PROMISE).release.certificate
    assert (few.privacy, few.clustering is not None) == (PROMISE, True)
    assert few.noise_epsilon < 0.8 * PROMISE.epsilon  # a fifth is the clustering's, and a part of the rest the cover's
    near = dp.verify_mixture(learner(), PROMISE, 300, whitening=False)
    assert near.perturbed == "objective"
    assert near == dp.solve_mixture(learner(), SMALL, PROMISE, whitening=False).release.certificate
    many = dp.verify_mixture(learner(), PROMISE, 10**6)
    assert many.mechanism != few.mechanism
    found = dp.audit(learner(), PROMISE, size=300, share=0.2, effort=0.2, seed=0)
    assert found.holds
    assert found.mechanism == few.mechanism


def test_centres_that_were_paid_for_apart_are_not_counted_twice() -> None:
    learnt = dp.cluster(learner(), SMALL, dp.Privacy(1.0))
    with pytest.raises(dp.TemplateError, match="paid for apart"):
        dp.solve_mixture(learner(), SMALL, PROMISE, clustering=learnt)
    release = dp.solve(learner(), {**SMALL, "m": learnt.assign(**SMALL)}, PROMISE)
    assert release.spent == PROMISE


# What the proof of composition uses: given the centres, a record's component is its own affair.


def test_given_the_centres_a_neighbour_has_one_other_label() -> None:
    places = dp.cluster(learner(), SMALL, PROMISE, seed=0)
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1]))
    before = Records(Grouping(record, "x", "y"), record.validate(SMALL), places.step).assigned(places)
    rng = np.random.default_rng(0)
    for row, value in zip(rng.integers(0, 300, 20), dp.Ball(2).sample(20, rng), strict=True):
        x, y = SMALL["x"].copy(), SMALL["y"].copy()
        x[row], y[row] = value, 1 - y[row]
        after = Records(Grouping(record, "x", "y"), record.validate({"x": x, "y": y}), places.step).assigned(places)
        assert set(np.flatnonzero(before != after)) <= {row}
        fewer = {"x": np.delete(x, row, axis=0), "y": np.delete(y, row)}
        without = Records(Grouping(record, "x", "y"), record.validate(fewer), places.step).assigned(places)
        np.testing.assert_array_equal(without, np.delete(before, row))
    np.testing.assert_array_equal(before, places.assign(**SMALL))


# Templates of a user's own


def test_any_template_with_a_field_for_the_component_will_do() -> None:
    # Two regression lines, one for each part of the records, with a field that the clustering does not look at.
    record = dp.Record(side=dp.Choice(["left", "right"]), x=dp.Box(-1.0, 1.0), t=dp.Box(-1.0, 1.0))
    w = {side: cp.Variable(2, name=f"w_{side}") for side in ("left", "right")}

    def loss(side: str, x: cp.Parameter, t: cp.Parameter) -> cp.Expression:
        return cp.huber(w[side] @ cp.hstack([x, 1.0]) - t, 0.5)

    template = dp.Template(record, loss, sum(0.01 * cp.sum_squares(v) for v in w.values()))
    rng = np.random.default_rng(0)
    x = rng.choice([-0.7, 0.7], 2000) + rng.uniform(-0.2, 0.2, 2000)
    mixture = dp.solve_mixture(
        template, {"x": x, "t": np.abs(x) - 0.5}, dp.Privacy(20.0), group=None, component="side", seed=0
    )
    slopes = sorted(mixture.release[name][0] for name in ("w_left", "w_right"))
    assert slopes[0] < -0.3
    assert slopes[1] > 0.3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"share": 0.0}, dp.TemplateError, "share"),
        ({"share": 1.0}, dp.TemplateError, "share"),
        ({"share": True}, dp.TemplateError, "share"),
        ({"template": 3}, dp.TemplateError, "expected a Template"),
        ({"privacy": 1.0}, dp.TemplateError, "must be a Privacy"),
        ({"component": "k"}, dp.TemplateError, "no Choice 'k'"),
        ({"component": "x"}, dp.TemplateError, "no Choice 'x'"),
        ({"clustering": 3}, dp.TemplateError, "NoisyKMeans"),
        ({"clustering": dp.Components([[[0.0, 0.0]]])}, dp.TemplateError, "the centres have the shape"),
        ({"group": "m"}, dp.TemplateError, "no Choice 'm'"),
        ({"data": {**SMALL, "m": np.zeros(300)}}, dp.DomainError, "fills in"),
        ({"data": {"x": X[:300]}}, dp.DomainError, "missing"),
        ({"data": 3}, dp.DomainError, "be a int"),
        ({"size": 20}, dp.TemplateError, "size is 20"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    budget = dp.Budget(dp.Privacy(2.0, 1e-6))
    with pytest.raises(error, match=message):
        dp.solve_mixture(**{"template": learner(), "data": SMALL, "privacy": PROMISE, "budget": budget, **change})


def test_an_interrupted_fit_releases_nothing_and_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = dp.Budget(dp.Privacy(2.0, 1e-6))
    loose = replace(dp.Cover(), tolerance=1e-2)
    with pytest.raises(dp.NotConverged):
        dp.solve_mixture(
            learner(), SMALL, PROMISE, dp.ObjectivePerturbation(), backend=Lazy(), budget=budget, cover=loose
        )
    assert len(budget.entries) == 1


class Lazy:
    """A backend that gives up at once."""

    def solve(self, problem: Any, tolerance: float) -> Any:
        from dpconvex.solvers.problem import Solution

        return Solution(theta=np.zeros(problem.space.dim), distance_bound=np.inf)


@pytest.mark.parametrize(
    "changes", [{"clip": 3}, {"data": {"x": np.array(1.0), "y": [0, 1]}}, {"data": {"x": 1.0, "y": [0, 1]}}], ids=str
)
def test_a_mistake_in_the_call_costs_nothing(changes: dict[str, Any]) -> None:
    budget = dp.Budget(dp.Privacy(9.0))
    learner = dp.load("large_margin_gaussian_mixture", features=1, components=2)
    arguments = {"data": {"x": [[0.5], [-0.5]], "y": [0, 1]}, "privacy": dp.Privacy(1.0)} | changes
    with pytest.raises((dp.TemplateError, dp.DomainError)):
        dp.solve_mixture(learner, **arguments, budget=budget)
    assert budget.spent.epsilon == 0
