"""Bounds of sets without a projection, and of what several constraints make together: they hold, and are tight if they can be."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.from_cvxpy import Reader, variable_of
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.feasible_set import FeasibleSet, feasible_set
from dpconvex.release.verify import analyse

X = cp.Variable(3, name="x")
P = cp.Variable((3, 3), PSD=True, name="P")
M = cp.Variable((3, 2), name="M")
VARIABLES = (X, P, M)
SKEW = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]])

# Constraints that bound one variable, and the largest Frobenius norm of it that they allow, if that is known and found.
BOUNDED: dict[str, tuple[cp.Variable, list[cp.Constraint], float | None]] = {
    "l1 ball": (X, [cp.norm1(X) <= 2], 2.0),
    "l1 ball elsewhere": (X, [cp.norm1(X - 1) <= 2], None),
    "simplex": (X, [X >= 0, cp.sum(X) == 1], 1.0),
    "simplex with an upper bound": (X, [X >= 0, X <= 0.5, cp.sum(X) == 1], None),
    "one free coordinate": (X, [X[:2] >= -1, X >= -4, X[0] + X[1] + 2 * X[2] <= 3], None),
    "bounds that follow from others": (X, [X[0] >= 0, X[0] + X[1] <= 1, X[1] >= -1, X[1] + X[2] == 0], None),
    "ellipsoid": (X, [cp.norm(SKEW @ X - 1) <= 2], None),
    "quadratic form": (X, [cp.quad_form(X, SKEW) <= 1], 1 / np.sqrt(np.linalg.eigvalsh(SKEW)[0])),
    "ellipsoid over a number": (X, [cp.quad_over_lin(SKEW @ X, 3.0) <= 2], None),
    "p-norm above 2": (X, [cp.norm(X, 4) <= 1], 3.0**0.25),
    "p-norm below 2": (X, [cp.norm(X, 1.5) <= 1], 1.0),
    "l1 norm of differences": (X, [cp.norm1(cp.diff(X)) <= 1, cp.abs(X[0]) <= 1], None),
    "weighted squares": (X, [np.array([1.0, 4.0, 9.0]) @ cp.square(X) <= 4], 2.0),
    "trace": (P, [cp.trace(P) <= 2], 2.0),
    "trace is known": (P, [cp.trace(P) == 2], 2.0),
    "trace with a matrix": (P, [cp.trace(SKEW @ P) <= 2], None),
    "trace of a shifted cone": (P, [P >> SKEW, cp.trace(P) <= 5], None),
    "spectral ball": (M, [cp.sigma_max(M) <= 2], 2 * np.sqrt(2)),
    "spectral ball elsewhere": (M, [cp.sigma_max(2 * M - 1) <= 2], None),
    "nuclear ball": (M, [cp.normNuc(M) <= 2], 2.0),
    "columns": (M, [cp.norm(M, 2, axis=0) <= np.array([1.0, 2.0])], np.sqrt(5)),
}


def of(name: str) -> tuple[cp.Variable, list[cp.Constraint], FeasibleSet]:
    variable, constraints, _ = BOUNDED[name]
    reader = Reader([])
    return (
        variable,
        constraints,
        feasible_set(Space([variable_of(variable)]), [reader.constraint(c) for c in constraints]),
    )


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_wherever_a_linear_function_is_largest(name: str) -> None:
    variable, constraints, feasible = of(name)
    assert feasible.bounded
    rng = np.random.default_rng(0)
    everything = np.arange(feasible.space.dim)
    for k in range(12):
        slope = rng.normal(size=variable.shape) * rng.integers(0, 2, size=variable.shape)
        slope = slope if slope.any() else np.eye(variable.size)[k % variable.size].reshape(variable.shape)
        cp.Problem(cp.Maximize(cp.sum(cp.multiply(slope, variable))), constraints).solve(solver="CLARABEL")
        theta = feasible.space.pack({variable.name(): variable.value})
        assert (theta >= feasible.lower - 1e-6).all()
        assert (theta <= feasible.upper + 1e-6).all()
        assert np.linalg.norm(theta) <= feasible.norm_bound + 1e-6
        for center in (*feasible.centers, rng.normal(size=feasible.space.dim)):
            assert np.linalg.norm(theta - center) <= feasible.reach_on(everything, center) + 1e-6
        for hull in feasible.hulls:
            low, high = hull_range(hull, feasible.space.pack({variable.name(): slope}))
            assert (
                low - 1e-6
                <= float(feasible.space.pack({variable.name(): slope})[hull.coordinates] @ theta[hull.coordinates])
                <= high + 1e-6
            )


def hull_range(hull: AxisHull, slope: np.ndarray) -> tuple[float, float]:
    here, place = slope[hull.coordinates], np.arange(len(hull.coordinates))
    low, high = hull.linear_range(np.zeros(len(here), dtype=np.int64), place, here, here, 1)
    return float(low[0]), float(high[0])


@pytest.mark.parametrize("name", [name for name, (_, _, norm) in BOUNDED.items() if norm is not None])
def test_norms_are_tight(name: str) -> None:
    _, _, feasible = of(name)
    assert feasible.norm_bound == pytest.approx(BOUNDED[name][2], rel=1e-9)


def test_free_coordinates_stay_unbounded() -> None:
    reader, space = Reader([]), Space([variable_of(X)])
    for constraints in (
        [cp.norm1(X[:2]) <= 1],
        [X >= 0, X[0] + X[1] <= 1],
        [cp.norm(SKEW[:2] @ X) <= 1],
        [cp.sum(X) == 0],
    ):
        feasible = feasible_set(space, [reader.constraint(constraint) for constraint in constraints])
        assert not feasible.bounded
        assert not feasible.limited[2]


def test_what_multiplies_a_hull_is_bounded_at_its_vertices() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        anchor, ends = rng.normal(size=4), rng.normal(size=(2, 4))
        hull = AxisHull(np.arange(4), "", anchor, ends.min(axis=0), ends.max(axis=0))
        used = np.flatnonzero(rng.integers(0, 2, size=4))
        low = rng.normal(size=len(used))
        high = low + rng.exponential(size=len(used)) * rng.integers(0, 2)
        found = hull.linear_range(np.zeros(len(used), dtype=np.int64), used, low, high, 1)
        values = []
        for i in range(4):
            for end in (hull.low[i], hull.high[i]):
                point = anchor + end * np.eye(4)[i]
                corners = np.stack([low * point[used], high * point[used]])
                values += [corners.min(axis=0).sum(), corners.max(axis=0).sum()]
        assert found[0][0] == pytest.approx(min(values), abs=1e-12)
        assert found[1][0] == pytest.approx(max(values), abs=1e-12)


# Losses that need bounded leaves, and their exact gradient bounds.
SIGNS = dp.Record(x=dp.Box(-np.ones(3), np.ones(3)))
LOSSES: dict[str, tuple[dp.Record, Callable[..., cp.Expression], list[cp.Constraint], cp.Variable, float]] = {
    "squares in an l1 ball": (SIGNS, lambda x: cp.square(x @ X), [cp.norm1(X) <= 2], X, 4 * np.sqrt(3)),
    "squares on a simplex": (SIGNS, lambda x: cp.square(x @ X), [X >= 0, cp.sum(X) == 1], X, 2 * np.sqrt(3)),
    "logarithms on a simplex": (
        dp.Record(x=dp.Box(np.full(3, 0.5), np.full(3, 2.0))),
        lambda x: -cp.log(x @ X),
        [X >= 0, cp.sum(X) == 1],
        X,
        np.sqrt(12) / 0.5,
    ),
    "squares of matrices of bounded trace": (
        dp.Record(x=dp.Ball(3)),
        lambda x: cp.square(x @ P @ x),
        [cp.trace(P) <= 2],
        P,
        4.0,
    ),
    "squares in an ellipsoid": (
        dp.Record(x=dp.Ball(3)),
        lambda x: cp.square(x @ X),
        [cp.norm(SKEW @ X) <= 1],
        X,
        2 / np.linalg.eigvalsh(SKEW)[0],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_bounded_over_bounded_sets(name: str) -> None:
    record, loss, constraints, variable, bound = LOSSES[name]
    analysis = analyse(dp.Template(record, loss, cp.sum_squares(variable), constraints))
    assert analysis.gradient_bound >= bound * (1 - 1e-12) if name != "logarithms on a simplex" else True
    assert analysis.gradient_bound <= bound * (1 + 1e-9)
