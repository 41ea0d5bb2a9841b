"""The feasible set: what is recognised, its projections against a solver, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

from dpconvex.core.from_cvxpy import Reader, read, variable_of
from dpconvex.core.parameter_space import Space
from dpconvex.errors import NotConverged, TemplateError
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.convex_sets import AffineSubspace, ConesInBall, Interval, NormBall, Slab
from dpconvex.geometry.feasible_set import FeasibleSet, feasible_set as read_set
from dpconvex.geometry.linear_maps import affine_map
from dpconvex.geometry.semidefinite import Spectrum, smat, svec


def variables() -> tuple[cp.Variable, cp.Variable, cp.Variable]:
    symmetric = cp.Variable((2, 2), symmetric=True, name="S")
    return cp.Variable((3, 3), PSD=True, name="P"), cp.Variable(4, name="x"), symmetric


def space_of(variables: list[cp.Variable]) -> Space:
    return Space([variable_of(variable) for variable in variables])


def feasible_set(space: Space, constraints: list[cp.Constraint] | tuple[()] = ()) -> FeasibleSet:
    parameters = {parameter.id: parameter for constraint in constraints for parameter in constraint.parameters()}
    reader = Reader(parameters.values())
    return read_set(space, [reader.constraint(constraint) for constraint in constraints])


P, X, S = variables()
CONES = np.array([[1.0, 0.5], [0.5, 2.0]])

PROJECTABLE: dict[str, list[cp.Constraint]] = {
    "psd alone": [],
    "orthant and ball": [cp.norm(X, 2) <= 0.7, X >= 0],
    "psd and ball": [cp.norm(P, "fro") <= 0.8, cp.sum_squares(X - 1) <= 4],
    "joint ball over cones": [cp.norm(cp.hstack([cp.vec(P, order="F"), X]), 2) <= 1.2, X <= 0],
    "spectral interval": [P << 0.5 * np.eye(3), S >> -0.2 * np.eye(2), S << 0.3 * np.eye(2)],
    "shifted cone and hyperplane": [S >> CONES, cp.sum(X) == 1],
    "shifted cone and ball": [S >> CONES, cp.norm(S - CONES, "fro") <= 0.4],
    "cone from above": [CONES - 2 * S >> 0],
    "slab": [cp.sum(X) <= 1, -2 * X[0] - 2 * cp.sum(X[1:]) <= 2],
    "halfspace": [X[0] - 3 * X[2] <= -1],
    "bounds and fixed": [cp.abs(X) <= 1, X[0] == 0.5],
    "shifted bounds": [cp.norm_inf(X - 2) <= 1, cp.max(S) <= 0.1, cp.maximum(X[1], X[2] + 0.25) <= 1.5],
    "equations": [cp.trace(S) == 1, X[0] + X[1] == 1, X[1] - X[2] == 0.5, cp.norm(P, "fro") <= 2],
    "sum of squares": [cp.sum(cp.square(X - 0.5)) <= 0.4, cp.square(cp.norm(S, "fro")) <= 0.09],
    "scaled": [2 * cp.norm(X, 2) - 3 <= -1, 3 * S[0, 0] / 2 <= 0.3],
    "subspace and ball": [cp.sum(X) == 0, cp.norm(X, 2) <= 0.5],
    "soc": [cp.SOC(cp.Constant(0.5), X)],
    "l1 ball": [cp.norm(X, 1) <= 1.5, cp.norm(P, "fro") <= 1],
    "l1 ball elsewhere": [cp.sum(cp.multiply([1, 2, 0.5, 1], cp.abs(X - 1))) + 0.5 <= 1.5],
    "quarter of an l1 ball": [cp.norm(X, 1) <= 1, X >= 0],
    "half of an l1 ball": [cp.norm(X, 1) <= 1, X[:2] <= 0],
    "simplex": [cp.sum(X) == 1, X >= 0],
    "simplex below a level": [cp.sum(X) <= 0.3, X >= 0],
    "simplex with bounds that it implies": [cp.sum(X) == 1, X >= 0, X <= 1],
    "weighted simplex elsewhere": [np.array([1, -2, 3, -0.5]) @ X <= 4, X[::2] >= 0.5, X[1::2] <= -0.25],
    "simplex of some coordinates": [X[1] + X[2] == 2, X >= 0],
    "largest entries": [cp.max(S, axis=0) <= np.array([0.2, -0.1]), cp.hstack([cp.norm(X), S[0, 0]]) <= 0.3],
    "eigenvalues": [cp.lambda_max(S) <= 0.2, cp.sigma_max(P) <= 0.5],
    "minimum": [cp.min(X) >= -0.25, cp.minimum(S[0, 1], 3) >= 0],
}


@pytest.mark.parametrize("name", PROJECTABLE)
def test_projection_agrees_with_a_solver(name: str) -> None:
    space = space_of([P, X, S])
    feasible = feasible_set(space, PROJECTABLE[name])
    assert feasible.has_projection
    assert not feasible.is_space
    rng = np.random.default_rng(3)
    for _ in range(3):
        point = rng.normal(size=space.dim)
        values = space.unpack(point)
        distance = sum(cp.sum_squares(v - values[v.name()]) for v in (P, X, S))
        cp.Problem(cp.Minimize(distance), PROJECTABLE[name]).solve(solver="CLARABEL")
        expected = space.pack({v.name(): v.value for v in (P, X, S)})
        found = feasible.project(point)
        assert np.linalg.norm(found - expected) < 2e-4  # what the solver attains
        again = feasible.project(found)
        assert np.linalg.norm(again - found) <= feasible.error(found) + 1e-14 * np.linalg.norm(found)
        assert (found >= feasible.lower - 1e-12).all()
        assert (found <= feasible.upper + 1e-12).all()
        assert np.linalg.norm(found) <= feasible.norm_bound + 1e-12
        for variable, bound in feasible.radius.items():
            assert np.linalg.norm(space.unpack(found)[variable]) <= bound + 1e-12


@pytest.mark.parametrize("name", PROJECTABLE)
def test_projection_satisfies_the_variational_inequality(name: str) -> None:
    """<x - P(x), y - P(x)> <= 0 for every y in K characterises the projection."""
    space = space_of([P, X, S])
    feasible = feasible_set(space, PROJECTABLE[name])
    rng = np.random.default_rng(5)
    members = [feasible.project(rng.normal(size=space.dim) * 3) for _ in range(20)]
    for _ in range(20):
        x = rng.normal(size=space.dim) * 2
        p = feasible.project(x)
        assert max(float((x - p) @ (y - p)) for y in members) <= 1e-11


KINDS: list[tuple[type, Callable[[], list[cp.Constraint]]]] = [
    (Interval, lambda: [X >= 1]),
    (NormBall, lambda: [cp.norm(X, 2) <= 1]),
    (Slab, lambda: [cp.sum(X) <= 1]),
    (AffineSubspace, lambda: [cp.sum(X) == 1]),
    (AxisHull, lambda: [cp.norm(X, 1) <= 1]),
    (AxisHull, lambda: [cp.sum(X) == 1, X >= 0]),
    (ConesInBall, lambda: [cp.norm(X, 2) <= 1, X[:2] >= 0]),
]


@pytest.mark.parametrize(("kind", "build"), KINDS)
def test_kinds(kind: type, build: Callable[[], list[cp.Constraint]]) -> None:
    feasible = feasible_set(space_of([P, X]), build())
    assert [type(piece) for piece in feasible.pieces] == [Spectrum, kind]


def test_all_of_space() -> None:
    feasible = feasible_set(space_of([X, S]))
    theta = np.arange(7.0)
    assert feasible.is_space
    assert feasible.has_projection
    assert not feasible.bounded
    assert (feasible.project(theta) == theta).all()
    assert feasible.error(theta) == 0.0
    assert feasible.describe() == "all of space"


def test_attributes() -> None:
    built = [
        cp.Variable(2, nonneg=True, name="a"),
        cp.Variable(2, neg=True, name="b"),
        cp.Variable(2, bounds=[-1.0, np.array([1.0, 2.0])], name="c"),
        cp.Variable((2, 2), NSD=True, name="d"),
        cp.Variable((1, 1), PSD=True, name="e"),
    ]
    feasible = feasible_set(space_of(built))
    values = feasible.space.unpack(
        feasible.project(
            feasible.space.pack(
                {
                    "a": [-1.0, 2.0],
                    "b": [-1.0, 2.0],
                    "c": [-3.0, 3.0],
                    "d": [[1.0, 0.0], [0.0, -2.0]],
                    "e": [[-1.0]],
                }
            )
        )
    )
    assert values["a"].tolist() == [0.0, 2.0]
    assert values["b"].tolist() == [-1.0, 0.0]
    assert values["c"].tolist() == [-1.0, 2.0]
    assert values["e"].tolist() == [[0.0]]
    assert np.allclose(values["d"], [[0.0, 0.0], [0.0, -2.0]], atol=1e-15)
    assert feasible.radius == {"c": pytest.approx(np.sqrt(5))}


def test_bounds_of_symmetric_entries_use_frobenius_coordinates() -> None:
    feasible = feasible_set(space_of([S]), [S[0, 1] <= 1])
    assert feasible.upper.tolist() == [np.inf, pytest.approx(np.sqrt(2)), np.inf]
    projected = feasible.space.unpack(feasible.project(feasible.space.pack({"S": [[3.0, 5.0], [5.0, 3.0]]})))
    assert np.allclose(projected["S"], [[3.0, 1.0], [1.0, 3.0]])


def test_principal_submatrix() -> None:
    T = cp.Variable((3, 3), symmetric=True, name="T")
    feasible = feasible_set(space_of([T]), [T[:2, :2] >> 0])
    point = np.array([[-1.0, 0.0, 5.0], [0.0, 2.0, 6.0], [5.0, 6.0, -7.0]])
    projected = feasible.space.unpack(feasible.project(feasible.space.pack({"T": point})))["T"]
    point[0, 0] = 0.0
    assert np.allclose(projected, point)


def test_merging_bounds_what_no_declaration_bounds() -> None:
    feasible = feasible_set(space_of([P]), [P << 2 * np.eye(3)])
    assert feasible.bounded
    assert feasible.radius["P"] == pytest.approx(np.sqrt(12))


@pytest.mark.parametrize(
    "constraints",
    [
        [S >> CONES, S << CONES + np.diag([1.0, 0.0])],
        [cp.norm(cp.multiply([1, 2, 3, 4], X), 2) <= 1, cp.norm(cp.multiply([1, 2, 3, 4], X - [2, 0, 0, 0]), 2) <= 1],
    ],
)
def test_clashes_are_named(constraints: list[cp.Constraint]) -> None:
    feasible = feasible_set(space_of([P, X, S]), constraints)
    assert not feasible.has_projection
    assert feasible.reason is not None
    assert "no projection on the intersection" in feasible.reason
    with pytest.raises(NotConverged, match="drop one of them"):
        feasible.project(np.zeros(feasible.space.dim))
    assert "no projection" in feasible.describe()


@pytest.mark.parametrize(
    "constraint",
    [cp.norm(X, 3) <= 1, cp.exp(X[0]) <= 1, cp.norm(X, 2) + X[0] <= 1],
)
def test_unrecognised_constraints_are_named(constraint: cp.Constraint) -> None:
    feasible = feasible_set(space_of([P, X]), [constraint])
    assert not feasible.has_projection
    assert feasible.reason is not None
    assert "not of a form" in feasible.reason


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([X[0] >= 1, X[0] <= 0], "contradict"),
        ([X[0] + X[1] == 1, 2 * X[0] + 2 * X[1] == 3], "contradict"),
        ([cp.norm(X, 2) <= -1], "cannot be satisfied"),
        ([cp.sum_squares(X) <= -1], "cannot be satisfied"),
        ([0 * X >= 1], "cannot be satisfied"),
        ([S >> np.eye(2), S << -np.eye(2)], "contradict"),
        ([cp.sum(X) <= 1, cp.sum(X) >= 2], "contradict"),
        ([cp.norm(X, 2) >= 1], "not convex"),
        ([cp.Parameter(4, name="limit") >= X], "limit"),
        ([cp.Variable(name="stranger") <= 1], "stranger"),
    ],
)
def test_bad_constraints_are_refused(constraints: list[cp.Constraint], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        feasible_set(space_of([P, X, S]), constraints)


def test_affine_map_reads_a_mixed_expression() -> None:
    space = space_of([P, X, S])
    expression = cp.hstack([2 * X[1:], cp.trace(P), S[0, 1] - 3])
    matrix, offset = affine_map(read(expression), space)
    theta = np.random.default_rng(0).normal(size=space.dim)
    values = space.unpack(theta)
    expected = np.hstack([2 * values["x"][1:], np.trace(values["P"]), values["S"][0, 1] - 3])
    assert np.allclose(matrix @ theta + offset, expected)
    assert all(v.value is None for v in variables())


def test_svec_is_an_isometry() -> None:
    matrix = np.random.default_rng(1).normal(size=(5, 4, 4))
    matrix = matrix + np.swapaxes(matrix, 1, 2)
    assert np.allclose(smat(svec(matrix)), matrix)
    assert np.allclose(np.linalg.norm(svec(matrix), axis=1), np.linalg.norm(matrix, axis=(1, 2)))
