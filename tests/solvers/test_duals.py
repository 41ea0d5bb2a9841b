"""Fits without a projection on the constraints: the proved distance holds, and the answer is feasible."""

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from sample_problems import logistic

import dpconvex as dp
from dpconvex.core.from_cvxpy import Reader, variable_of
from dpconvex.core.parameter_space import Space
from dpconvex.errors import NotConverged, TemplateError
from dpconvex.geometry.certified_distance import SquaredDistance, certified_distance
from dpconvex.geometry.certified_minimum import minimum
from dpconvex.geometry.region import Region
from dpconvex.solvers.backend import solve

X = cp.Variable(4, name="x")
P = cp.Variable((3, 3), PSD=True, name="P")
Constraints = Sequence[cp.Constraint]

SETS: dict[str, tuple[cp.Variable, list[cp.Constraint]]] = {
    "log_sum_exp": (X, [cp.log_sum_exp(X) <= 1]),
    "p-norm and bounds": (X, [cp.norm(X, 3) <= 1, X >= 0]),
    "entropy on a simplex": (X, [cp.sum(X) == 1, cp.sum(cp.entr(X)) >= 1.2]),
    "logarithms": (X, [cp.sum(cp.log(X)) >= -4, cp.sum(X) <= 3]),
    "two curved ones": (X, [cp.quad_form(X, np.diag([1.0, 2, 3, 4])) <= 1, cp.exp(X[0]) + cp.square(X[1]) <= 1.5]),
    "a cone": (X, [cp.SOC(X[0] + 2 * X[1], X[1:]), cp.norm(X, 4) <= 1]),
    "a maximum": (X, [cp.maximum(cp.sum_squares(X), cp.exp(X[0])) <= 1.2]),
    "exponential cone": (X, [cp.ExpCone(X[0], cp.Constant(1.0), X[1] + 2), cp.norm(X, 2) <= 2]),
    "spectrum": (P, [cp.trace(P) == 1, P << 0.6 * np.eye(3), P[0, 0] >= P[1, 1]]),
    "largest eigenvalue": (P, [cp.lambda_max(P) <= P[0, 0] + 0.2, cp.trace(P) <= 2]),
    "log_det": (P, [cp.log_det(P) >= -3, cp.trace(P) <= 2]),
}


def region_of(name: str) -> Region:
    variable, constraints = SETS[name]
    reader = Reader([])
    return Region(Space([variable_of(variable)]), [reader.constraint(c) for c in constraints])


def test_matrices_with_wide_kernels_that_share_a_block_are_certified() -> None:
    """Eight eigenvalues and more of each matrix vanish, and multipliers are not unique."""
    parts = [cp.Variable((12, 12), PSD=True, name=f"Q{k}") for k in range(2)]
    reader, rng = Reader([]), np.random.default_rng(5)
    constraints = [parts[0][:11, :11] == parts[1][:11, :11], parts[0] << 2 * np.eye(12)]
    region = Region(Space([variable_of(part) for part in parts]), [reader.constraint(c) for c in constraints])
    center = rng.normal(size=region.dim) + region.on_hull(np.zeros(region.dim)).astype(float)
    center -= 0.8 * np.concatenate([np.eye(12)[np.triu_indices(12)]] * 2)
    found = minimum(SquaredDistance(center), region, center, 1e-6 * float(np.linalg.norm(center)))
    values = region.leaves(found.point).values()
    assert sum(int((np.linalg.eigvalsh(value.astype(float)) < 1e-6).sum()) for value in values) >= 14
    assert found.distance <= 1e-6 * np.linalg.norm(center)
    assert region.excess(found.point).max() <= 1e-12


@pytest.mark.parametrize("name", SETS)
def test_projections_are_feasible_and_as_near_as_is_proved(name: str) -> None:
    region = region_of(name)
    rng = np.random.default_rng(3)
    for size in (0.3, 1.0, 3.0):
        center = size * rng.normal(size=region.dim)
        found = minimum(SquaredDistance(center), region, center, 1e-12)
        assert found.distance <= 1e-6 * (1 + np.linalg.norm(center))
        assert region.excess(found.point).max() <= 1e-12
        assert region.off_hull(found.point) <= 1e-12
        # <center - p, q - p> <= 0 for the exact projection p and all q of K: so of another point, up to the distance.
        away = center - found.point
        for _ in range(20):
            other = region.bring_in(rng.normal(size=region.dim)).astype(float)
            reach = np.linalg.norm(other - found.point) + np.linalg.norm(away)
            assert away @ (other - found.point) <= found.distance * (reach + found.distance) + 1e-12


@pytest.mark.parametrize("name", SETS)
def test_bounds_hold_whatever_the_multipliers_are(name: str) -> None:
    """At points that are far off, for a function and for half-spaces that contain K."""
    region = region_of(name)
    rng = np.random.default_rng(4)
    center = 2 * rng.normal(size=region.dim)
    function = SquaredDistance(center)
    exact = minimum(function, region, center, 1e-12)
    members = [region.bring_in(rng.normal(size=region.dim)).astype(float) for _ in range(12)]
    for share in (0.0, 0.3, 0.9):
        point = region.bring_in((1 - share) * exact.point + share * region.inside)
        blocks = [*region.blocks, *region.cuts(point)]
        for draw in (np.zeros, lambda n: rng.exponential(size=n), lambda n: rng.normal(size=n)):
            multipliers = [draw(len(block.offset)) for block in blocks]
            gradient = (point - center).astype(float)
            bound = certified_distance(function, region, point, gradient, blocks, multipliers)
            assert np.linalg.norm(point.astype(float) - exact.point) <= bound + exact.distance
            for block, z in zip(blocks, multipliers, strict=True):
                half = block.half_space(z, point)
                assert all(half.row @ (y - point) <= half.gap + 1e-12 * (1 + np.abs(half.row).sum()) for y in members)


@pytest.mark.parametrize(
    ("constraints", "error", "message"),
    [
        ([cp.log_sum_exp(X) <= 1, X >= 3], TemplateError, "no point satisfies all constraints"),
        ([cp.norm(X, 3) <= 1, X >= 1], TemplateError, "no point satisfies all constraints"),
        ([cp.exp(X[0]) <= 1, X[0] >= 0], NotConverged, "hold strictly"),
    ],
)
def test_a_set_without_a_point_inside_is_refused(constraints: Any, error: type[Exception], message: str) -> None:
    reader = Reader([])
    region = Region(Space([variable_of(X)]), [reader.constraint(c) for c in constraints])
    with pytest.raises(error, match=message):
        region.check()


CASES: dict[str, Callable[[Any], Constraints]] = {
    "log_sum_exp": lambda w: [cp.log_sum_exp(w) <= 1.5],
    "p-norm": lambda w: [cp.norm(w, 3) <= 0.5, w >= -0.1],
    "exponentials": lambda w: [cp.exp(w[0]) + cp.exp(w[1]) <= 2.1 + w[2]],
}


@pytest.mark.parametrize("backend", ["first-order", "conic"])
@pytest.mark.parametrize("name", CASES)
def test_perturbed_fits_agree_with_another_solver(name: str, backend: str) -> None:
    problem = logistic(CASES[name], noise=5.0)
    found = solve(problem, backend, 1e-6)
    w = cp.Variable(4)
    x, y = problem.batch.fields["x"], np.zeros(problem.batch.size)
    for group, values in enumerate(problem.template.record.combinations):
        y[problem.batch.rows(group)] = values["y"]
    goal = cp.sum(cp.logistic(-cp.multiply(y, x @ w))) + problem.size * 0.05 * cp.sum_squares(w) + problem.linear @ w
    cp.Problem(cp.Minimize(goal), list(CASES[name](w))).solve(solver=cp.SCS, eps=1e-9, max_iters=100000)
    assert np.linalg.norm(found.theta - w.value) <= found.distance_bound + 1e-5
    assert found.distance_bound <= 1e-6


@pytest.mark.parametrize("kind", ["equal", "zero", "tiny", "opposite"])
@pytest.mark.parametrize("name", CASES)
def test_no_fit_fails(name: str, kind: str) -> None:
    w = cp.Variable(4, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(4), y=dp.Choice([-1, 1])),
        lambda x, y: cp.logistic(-y * (x @ w)),
        0.001 * cp.sum_squares(w),
        list(CASES[name](w)),
    )
    x = np.tile(np.full(4, 0.5), (200, 1)) * {"zero": 0.0, "tiny": 1e-9}.get(kind, 1.0)
    y = np.where(np.arange(200) % 2, 1, -1) if kind == "opposite" else np.ones(200, dtype=int)
    for epsilon in (0.1, 10.0):
        release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(epsilon))
        w.value = release["w"]
        assert all(constraint.violation().max() <= 1e-9 for constraint in CASES[name](w))
    assert any("no projection" in line for line in release.certificate.advice)


def test_flat_objectives_whose_minimum_lies_on_a_bound_are_certified() -> None:
    """One feature and hardly any regularization: the first step of a local model once went far beyond its bounds."""
    template = dp.load("gaussian_precision", features=1, regularization=1e-4)
    for seed, x in enumerate(([[0.0]] * 3, [[1.0]] * 3, [[0.3], [-0.2], [0.1]], [[0.0], [0.0], [1.0]])):
        release = dp.solve(template, {"x": x}, dp.Privacy(36.0, 1e-6), dp.ObjectivePerturbation("gamma"), seed=seed)
        assert 0.1 <= release["P"].item() <= 10
    w = cp.Variable(name="w")
    terms = 1e-4 * cp.square(w) - cp.log(w)
    free = dp.Template(dp.Record(x=dp.Ball(1)), lambda x: x[0] * w, terms, [w <= 10, cp.exp(w) <= 1e5])
    for seed in range(4):
        assert dp.solve(free, {"x": [[0.0]] * 3}, dp.Privacy(36.0, 1e-6), seed=seed)["w"] <= 10


def fused(factor: float) -> Callable[[cp.Variable], Any]:
    return lambda w: factor * cp.norm(cp.diff(w), 1)


# Kinks that cost from a millionth of what records add up to, to a billion times as much: radius of records, ridge, kinks, K.
BESIDE = {
    "kinks above all": (1e-6, 1e-8, fused(0.1), lambda w: [cp.norm(w, 1) <= 1e-3]),
    "kinks above all, no constraints": (1.0, 1e-8, fused(3e3), lambda w: []),
    "kinks in a box": (1e-6, 1e-8, fused(0.1), lambda w: [w >= -1e-3, w <= 1e-3]),
    "kinks in a thin slab": (1e-6, 1e-8, fused(0.1), lambda w: [cp.abs(w[0] + w[1]) <= 1e-6]),
    "records above all": (1e5, 1e-2, lambda w: 1e-2 * cp.norm(w, 1), lambda w: [w[0] + w[1] <= 1, w[0] - 2 * w[1] <= 0.5]),
    "records above all, on a simplex": (1e6, 1.0, fused(0.1), lambda w: [w >= 0, cp.sum(w) == 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", BESIDE)
def test_no_fit_fails_for_the_size_of_kinks_beside_that_of_records(case: str) -> None:
    radius, ridge, kinks, constraints = BESIDE[case]
    w = cp.Variable(3, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(3, radius), y=dp.Choice([-1, 1])),
        lambda x, y: dp.huber_hinge(1 - y * (x @ w), 0.5),
        ridge * cp.sum_squares(w) + kinks(w),
        constraints(w),
    )
    rng, n = np.random.default_rng(0), 500
    y = rng.choice([-1, 1], size=n)
    apart, corner = rng.normal(size=(n, 3)), np.zeros((n, 3))
    apart *= 0.99 * radius / np.linalg.norm(apart, axis=1, keepdims=True)
    corner[:, 0] = radius
    for x in (apart, corner, 0 * corner):
        for mechanism in (dp.ObjectivePerturbation("gamma"), dp.ObjectivePerturbation("gaussian")):
            dp.solve(template, {"x": x, "y": y}, dp.Privacy(10.0, 1e-3), mechanism)
