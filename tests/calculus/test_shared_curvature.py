"""Curvature that every record's loss has, whatever the record, is public when one record takes another's place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.core.evaluate import evaluate
from dpconvex.release.verify import analyse

SIZE = 7


def mean(d: int, weight: float = 0.0, loss: Callable[..., Any] | None = None, bounded: bool = True) -> dp.Template:
    m = cp.Variable(d, name="m")
    squares = lambda m, x: cp.sum_squares(m - x) / 2  # noqa: E731
    return dp.Template(
        record=dp.Record(x=dp.Ball(d)),
        loss=lambda x: (loss or squares)(m, x),
        regularizer=weight * cp.sum_squares(m),
        constraints=[cp.norm(m) <= 1] if bounded else [],
    )


def constants(analysis: Analysis) -> list[float]:
    return [analysis.gradient_bound, analysis.replacement_bound, analysis.modulus, analysis.hessian_bound]


@pytest.mark.parametrize("d", [1, 2, 10])
def test_a_mean_has_its_own_sensitivity_in_every_dimension(d: int) -> None:
    analysis = analyse(mean(d))
    replaced = analysis.under("replace-one")
    assert analysis.gradient_bound == pytest.approx(2)
    assert replaced.replacement_bound == pytest.approx(2)
    assert replaced.modulus == pytest.approx(1)
    assert replaced.log_det(replaced.moduli(SIZE, 0.0))[0] == 0
    assert analysis.under("add-remove") is analysis


WAYS = {
    "squares": lambda m, x: cp.sum(cp.square(m - x)) / 2,
    "norm": lambda m, x: cp.norm(m - x) ** 2 / 2,
    "halves": lambda m, x: cp.sum_squares(m - x) / 4 + cp.sum_squares(x - m) / 4,
    "doubled": lambda m, x: cp.sum_squares(2 * m - 2 * x) / 8,
    "expanded": lambda m, x: cp.sum_squares(m) / 2 - m @ x,
    "quadratic form": lambda m, x: cp.quad_form(m - x, np.eye(3)) / 2,
}


@pytest.mark.parametrize("way", WAYS)
def test_how_squares_are_written_does_not_matter(way: str) -> None:
    known, other = (analyse(mean(3, loss=loss)).under("replace-one") for loss in (None, WAYS[way]))
    assert constants(other) == pytest.approx(constants(known), rel=1e-9)
    if way != "expanded":  # which has lost a square of the record
        assert analyse(mean(3, loss=WAYS[way])).gradient_bound == pytest.approx(2)


def mixture(labels: tuple[float, ...]) -> dp.Template:
    w = cp.Variable(2, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1])),
        loss=lambda x, y: (
            cp.logistic(-y * (x @ w)) + labels[(y + 1) // 2] * cp.sum_squares(w - y * x) + cp.square(x @ w - y)
        ),
        regularizer=0.1 * cp.sum_squares(w),
        constraints=[cp.norm(w) <= 1],
    )


def test_what_is_left_differs_by_one_public_quadratic_and_a_function_of_the_record() -> None:
    analysis = analyse(mixture((0.5, 0.5)))
    replaced = analysis.under("replace-one")
    assert replaced.public is not None
    assert replaced.modulus == pytest.approx(0.2 + 1.0)
    rng = np.random.default_rng(0)
    for before, after in zip(analysis.form.template.losses, replaced.form.template.losses, strict=True):
        x = rng.normal(size=2) / 3
        first, second = ({"w": rng.normal(size=2), "x": x} for _ in range(2))
        rise = float(evaluate(before, second) - evaluate(before, first))
        left = float(evaluate(after, second) - evaluate(after, first))
        public = [point["w"] @ replaced.public.toarray() @ point["w"] / 2 for point in (first, second)]
        assert rise == pytest.approx(left + public[1] - public[0], rel=1e-9)


def test_curvature_that_depends_on_the_label_or_on_the_record_is_nobody_elses() -> None:
    apart = analyse(mixture((0.5, 0.25)))
    assert apart.under("replace-one") is apart
    w = cp.Variable(2, name="w")
    for loss in (lambda x, s: s * cp.sum_squares(w - x), lambda x, s: cp.square(w @ x - s)):
        template = dp.Template(dp.Record(x=dp.Ball(2), s=dp.Box(0.5, 1.0)), loss, 0.0, [cp.norm(w) <= 1])
        assert analyse(template).under("replace-one") is analyse(template)


def test_the_whole_promise_is_spent_on_the_mean_of_opposite_records() -> None:
    # The answer is (sum x - b)/(n (1 + 2 weight)), inside of K: one record moves it as b would be moved by x - x'.
    for epsilon in (0.5, 2.0):
        certificate = dp.verify(mean(1, 0.3), dp.Privacy(epsilon), SIZE, dp.ObjectivePerturbation(added=0.0))
        assert certificate.strong_convexity == pytest.approx(SIZE * 1.6)
        spent = 2.0 / certificate.noise_scale
        assert 0.985 * epsilon <= spent <= epsilon
    # When a record appears, nothing is taken off: its curvature is not there without it.
    added = dp.verify(mean(1, 0.3), dp.Privacy(1.0, adjacency="add-remove"), SIZE, dp.ObjectivePerturbation(added=0.0))
    assert added.strong_convexity == pytest.approx(SIZE * 0.6)
    assert added.jacobian_epsilon == pytest.approx(math.log1p(1 / (SIZE * 0.6)), rel=1e-2)


@pytest.mark.parametrize("mechanism", [dp.ObjectivePerturbation(), dp.OutputPerturbation()])
def test_attacks_find_the_constants_of_what_is_left(mechanism: Any) -> None:
    template, privacy = mean(2, 0.1), dp.Privacy(1.0)
    certificate = dp.verify(template, privacy, SIZE, mechanism)
    found = dp.falsify(template, certificate, starts=8, steps=40, seed=0)
    for name in ("gradient_bound", "sensitivity", "strong_convexity"):
        assert found[name].ratio == pytest.approx(1, abs=0.015)


def test_a_fit_uses_all_of_its_strong_convexity() -> None:
    x = np.array([[0.5, 0.1], [-0.2, 0.3], [0.9, 0.0], [0.0, -0.6], [0.1, 0.1], [0.3, 0.3], [0.2, 0.4]])
    release = dp.solve(mean(2), {"x": x}, dp.Privacy(1e4), dp.ObjectivePerturbation(), seed=0)
    assert release.parameters["m"] == pytest.approx(x.mean(axis=0), abs=2e-3)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_need_be_bounded_where_only_the_shared_quadratic_is_not(way: str) -> None:
    free = analyse(mean(3, 0.2, WAYS[way], bounded=False))
    assert free.replacement_bound == pytest.approx(2)
    assert free.modulus == pytest.approx(1.4)
    assert free.log_det(free.moduli(SIZE, 0.0))[0] == 0
    for mechanism in (dp.ObjectivePerturbation(), dp.ObjectivePerturbation("gaussian"), dp.OutputPerturbation()):
        with pytest.raises(dp.NotPrivate, match="only on bounded sets"):
            dp.verify(mean(3, 0.2, WAYS[way], bounded=False), dp.Privacy(1.0, 1e-6, "add-remove"), SIZE, mechanism)


def test_the_whole_promise_is_spent_without_a_bound_on_the_mean() -> None:
    # The answer is (sum x - b)/(n (1 + 2 weight)) wherever it lies: the ratio of its densities is that of b's, moved by x - x'.
    template, privacy = mean(1, 0.3, bounded=False), dp.Privacy(1.0)
    certificate = dp.verify(template, privacy, SIZE, dp.ObjectivePerturbation(added=0.0))
    assert certificate.strong_convexity == pytest.approx(SIZE * 1.6)
    assert 0.985 <= 2.0 / certificate.noise_scale <= 1.0
    found = dp.audit(template, privacy, dp.ObjectivePerturbation(), size=SIZE, effort=0.1, seed=0)
    assert found.holds
    assert found["exact answer"].ratio > 0.98
    x = np.array([[0.5], [-0.2], [0.9], [0.0], [0.1], [0.3], [0.2]])
    release = dp.solve(template, {"x": x}, dp.Privacy(1e5), dp.ObjectivePerturbation(), seed=0)
    assert release.parameters["m"] == pytest.approx(x.mean(axis=0) / 1.6, abs=1e-3)


def test_curvature_that_only_some_directions_share_is_left_where_it_is() -> None:
    m = cp.Variable(2, name="m")
    template = dp.Template(dp.Record(x=dp.Ball(1)), lambda x: cp.square(m[0] + m[1] - x[0]) / 2, cp.sum_squares(m))
    with pytest.raises(dp.NotPrivate, match="only on bounded sets"):
        dp.verify(template, dp.Privacy(1.0), SIZE, dp.ObjectivePerturbation())


@pytest.mark.parametrize("unit", [1.0, 1e-14])
def test_each_variable_has_units_of_its_own(unit: float) -> None:
    a, b = cp.Variable(name="a"), cp.Variable(2, name="b")
    fields = dp.Record(x=dp.Box(-1, 1), z=dp.Box(-np.ones(2), np.ones(2)))

    def template(*weights: float) -> dp.Template:
        squares = lambda z: sum(unit * weight * cp.square(b[k] - z[k]) for k, weight in enumerate(weights))  # noqa: E731
        return dp.Template(fields, lambda x, z: cp.square(a - x) + squares(z), cp.square(a) + unit * cp.sum_squares(b))

    assert analyse(template(1.0, 1.0)).replaced_only is not None
    with pytest.raises(dp.NotPrivate, match="only on bounded sets"):
        analyse(template(10.0, 1.0))
