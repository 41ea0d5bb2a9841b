"""Two records see one theta: differences of gradients where K is bounded, against all pairs of records in the plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus import margin_width
from dpconvex.release.verify import analyse

SIGNS, NUMBERS = dp.Choice([-1, 1]), dp.Box(-1.0, 1.0)


def sigmoid(m: Any) -> Any:
    return 1 / (1 + np.exp(-m))


def template(loss: Callable[..., Any], label: Any, radius: float, center: float = 0.0, d: int = 2) -> dp.Template:
    w = cp.Variable(d, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(d), y=label),
        loss=lambda x, y: loss(x @ w - center * cp.sum(x), y),
        regularizer=0.1 * cp.sum_squares(w),
        constraints=[cp.norm(w - center) <= radius],
    )


CASES: dict[str, tuple[Callable[..., Any], Any, Callable[..., Any], tuple[float, ...]]] = {
    "logistic": (lambda m, y: cp.logistic(-y * m), SIGNS, lambda m, y: -y * sigmoid(-y * m), (-1, 1)),
    "ridge": (lambda m, y: cp.square(m - y) / 2, NUMBERS, lambda m, y: m - y, (-1, 0, 1)),
    "exponential": (lambda m, y: cp.exp(m), SIGNS, lambda m, y: np.exp(m), (1,)),
    "two terms": (
        lambda m, y: cp.logistic(m) + cp.square(m - y) / 4,
        NUMBERS,
        lambda m, y: sigmoid(m) + (m - y) / 2,
        (-1, 0, 1),
    ),
}


def worst_difference(slope: Callable[..., Any], labels: tuple[float, ...], radius: float) -> float:
    angle = np.linspace(0, 2 * np.pi, 361)
    points = [
        slope(length * np.cos(angle), y) * np.stack([np.cos(angle), np.sin(angle)])
        for length in (radius,)
        for y in labels
    ]
    cloud = np.concatenate(points, axis=1).T
    return float(np.sqrt(((cloud[:, None] - cloud[None]) ** 2).sum(axis=2).max()))


@pytest.mark.parametrize("radius", [0.5, 2.0])
@pytest.mark.parametrize("case", CASES)
def test_the_bound_is_attained_to_a_per_cent(case: str, radius: float) -> None:
    loss, label, slope, labels = CASES[case]
    observed = worst_difference(slope, labels, radius)
    certified = analyse(template(loss, label, radius)).replacement_bound
    assert 0.985 * certified <= observed <= certified
    moved = analyse(template(loss, label, radius, center=3.0)).replacement_bound
    assert moved == pytest.approx(certified, rel=1e-6)


@pytest.mark.parametrize(("radius", "less"), [(0.5, 0.17), (1.0, 0.25), (2.0, 0.28), (5.0, 0.19), (10.0, 0.09)])
def test_logistic_regression_in_a_ball(radius: float, less: float) -> None:
    analysis = analyse(template(CASES["logistic"][0], SIGNS, radius, d=3))
    assert 1 - analysis.replacement_bound / (2 * analysis.gradient_bound) == pytest.approx(less, abs=0.01)


def test_without_a_bound_on_theta_or_with_two_rows_nothing_is_gained() -> None:
    w = cp.Variable(2, name="w")
    free = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w), cp.sum_squares(w))
    assert analyse(free).replacement_bound == pytest.approx(2)
    two = dp.Template(
        dp.Record(x=dp.Ball(2), z=dp.Ball(2)),
        lambda x, z: cp.logistic(x @ w) + cp.logistic(z @ w),
        cp.sum_squares(w),
        [cp.norm(w) <= 1],
    )
    assert analyse(two).replacement_bound == pytest.approx(2 * analyse(two).gradient_bound)


def test_noise_falls_with_the_bound_for_every_mechanism() -> None:
    learner, privacy = template(CASES["logistic"][0], SIGNS, 2.0), dp.Privacy(1.0, 1e-6)
    exact = worst_difference(CASES["logistic"][2], (-1, 1), 2.0)
    for mechanism in (dp.OutputPerturbation("gaussian"), dp.NoisyGradientDescent(steps=10)):
        certificate = dp.verify(learner, privacy, 100, mechanism)
        assert exact <= certificate.sensitivity <= 1.015 * exact


@pytest.mark.parametrize("case", ["logistic", "hinge"])
def test_straight_stretches_need_no_walk_of_their_own(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"hinge": (lambda m, y: cp.pos(1 - y * m), SIGNS), **{k: v[:2] for k, v in CASES.items()}}
    found = []
    for straight in (margin_width.STRAIGHT, -1.0):
        monkeypatch.setattr(margin_width, "STRAIGHT", straight)
        found.append(margin_width.largest_margin_difference(analyse(template(*losses[case], radius=2.0))))
    assert found[0] == pytest.approx(found[1], rel=1e-11)


@pytest.mark.parametrize("unit", [1.0, 1e-13, 1e-100])
def test_labels_are_told_apart_in_any_unit(unit: float) -> None:
    w = cp.Variable(2, name="w")
    learner = dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1])),
        lambda x, y: unit * (1e-5, 1.0)[y] * cp.logistic(x @ w),
        unit * cp.sum_squares(w),
        [cp.norm(w) <= 1],
    )
    # Both records have the second label: the difference of two gradients at theta = (0, 1), rows (1, 0) and (-1, 0), is 1.
    assert 1.0 <= analyse(learner).replacement_bound / unit == pytest.approx(1.10398, rel=1e-4)


def test_slopes_that_agree_but_for_rounding_are_widened() -> None:
    edges, low, high = np.linspace(-1.0, 1.0, 3), np.array([-1e-20, 0.0]), np.array([0.0, 1e-20])
    kinds: list[margin_width.Slopes] = []
    for factor in (1.0, 1 + 2.0**-50, 1 + 1e-9):
        margin_width.merge(kinds, margin_width.Slopes(1.0, 1.0, edges, factor * low, factor * high))
    assert [kind.high[1] for kind in kinds] == [1e-20 * (1 + 2.0**-50), 1e-20 * (1 + 1e-9)]
    assert kinds[0].low[0] == -1e-20 * (1 + 2.0**-50)
