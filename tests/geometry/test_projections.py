"""Projections on everything that is recognised: against a solver, with their certificates, in time."""

from __future__ import annotations

import time
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

from dpconvex.core.from_cvxpy import Reader, variable_of
from dpconvex.core.parameter_space import Space
from dpconvex.errors import NotConverged, TemplateError
from dpconvex.geometry.cones import Ordered, SecondOrderCone
from dpconvex.geometry.convex_sets import Interval, NormBall, Piece, Slab
from dpconvex.geometry.cuts import Cut, Ellipsoid
from dpconvex.geometry.dykstra import Intersection
from dpconvex.geometry.feasible_set import FeasibleSet, feasible_set
from dpconvex.geometry.polyhedron import Polyhedron, exact_residuals, polyhedron
from dpconvex.geometry.semidefinite import Spectral
from dpconvex.geometry.tied import Tied

RNG = np.random.default_rng(7)
W, T = cp.Variable(6, name="w"), cp.Variable(name="t")
M, S = cp.Variable((3, 4), name="M"), cp.Variable((3, 3), symmetric=True, name="S")
P, Q = cp.Variable((3, 3), PSD=True, name="P"), cp.Variable((3, 3), PSD=True, name="Q")
TALL, SKEW = RNG.normal(size=(8, 6)), RNG.normal(size=(3, 6))
SHIFT, CENTER = RNG.normal(size=(3, 4)) / 3, np.array([[1.0, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 0.3]])
PRICES = np.array([1.0, 2.0, 0.5, 1.5, 3.0, 1.0])

CASES: dict[str, tuple[type, list[cp.Variable], list[cp.Constraint]]] = {
    "portfolio with a cap": (Cut, [W], [W >= 0, W <= 0.3, cp.sum(W) == 1]),
    "budget in a box": (Cut, [W], [W >= -0.2, W <= 0.4, PRICES @ W <= 0.5]),
    "two-sided budget in a box": (Cut, [W], [cp.abs(W) <= 0.4, PRICES @ W <= 0.5, PRICES @ W >= 0.1]),
    "ball and half-space": (Cut, [W], [cp.norm(W) <= 1, PRICES @ W <= 0.3]),
    "ball and box": (Cut, [W], [cp.norm(W - 0.2) <= 0.7, W >= 0.1]),
    "ball, box and budget": (Cut, [W], [cp.norm(W) <= 0.7, W >= -0.1, PRICES @ W == 0.5]),
    "two balls": (Cut, [W], [cp.norm(W) <= 1, cp.norm(W - 0.4) <= 1]),
    "l1 ball and half-space": (Cut, [W], [cp.norm1(W) <= 1, PRICES @ W >= 0.2]),
    "second-order cone": (SecondOrderCone, [W, T], [cp.norm(W - 0.3) <= 2 * T + 0.5]),
    "second-order cone of SOC": (SecondOrderCone, [W, T], [cp.SOC(1 - 0.5 * T, 3 * W)]),
    "slanted cone": (SecondOrderCone, [W], [cp.norm(W[:4]) <= W[4] - 2 * W[5]]),
    "cone cut off": (Cut, [W, T], [cp.norm(W) <= T, T <= 0.4]),
    "absolute value under a slope": (Polyhedron, [W], [cp.abs(W[0]) <= W[1] + 0.5]),
    "increasing": (Ordered, [W], [cp.diff(W) >= 0]),
    "increasing by steps, in bounds": (Ordered, [W], [W[1:] >= W[:-1] + 0.1, W[0] >= 0, W[5] <= 2]),
    "decreasing": (Ordered, [W], [W[1:] <= W[:-1], W >= 0]),
    "increasing between uneven bounds": (Polyhedron, [W], [cp.diff(W) >= 0, W[2] <= 0.3]),
    "ordered pairs": (Polyhedron, [W], [W[0] <= W[1], W[0] <= W[2], W[3] <= W[4]]),
    "convex sequence": (Polyhedron, [W], [cp.diff(W, k=2) >= 0]),
    "half-spaces": (Polyhedron, [W], [SKEW @ W <= 0.2]),
    "half-spaces, a box and an equation": (Polyhedron, [W], [SKEW[:2] @ W <= 0.2, cp.abs(W) <= 1, cp.sum(W) == 0.5]),
    "nothing but a vertex": (Polyhedron, [W], [W >= 0, cp.sum(W) <= 0, W[0] + W[1] <= 3]),
    "ellipsoid": (Ellipsoid, [W], [cp.norm(TALL @ W - 0.1) <= 0.8]),
    "flat ellipsoid": (Ellipsoid, [W], [cp.sum_squares(SKEW @ W + 0.2) <= 0.5]),
    "ellipsoid and box": (Intersection, [W], [cp.norm(TALL @ W) <= 0.8, W >= -0.05, W <= 0.2]),
    "two ellipsoids": (Intersection, [W], [cp.norm(TALL @ W) <= 0.8, cp.norm(SKEW @ W - 0.2) <= 0.5]),
    "nuclear ball": (Spectral, [M], [cp.normNuc(M) <= 1]),
    "nuclear ball elsewhere": (Spectral, [M], [cp.normNuc(2 * (M - SHIFT).T) <= 1]),
    "spectral ball": (Spectral, [M], [cp.sigma_max(M - SHIFT) <= 0.5]),
    "symmetric nuclear ball": (Spectral, [S], [cp.normNuc(S) <= 1]),
    "spectrahedron": (Spectral, [P], [cp.trace(P) == 1]),
    "bounded trace": (Spectral, [P], [cp.trace(P) <= 0.5]),
    "condition and trace": (Spectral, [P], [P >> 0.1 * np.eye(3), P << 0.9 * np.eye(3), cp.trace(P) <= 1]),
    "shifted cone and trace": (Spectral, [S], [S >> CENTER, cp.trace(S) <= 3]),
    "entries of a cone": (Cut, [P], [P[0, 0] <= 0.2]),
    "correlations": (Intersection, [P], [cp.diag(P) == 1]),
    "between two matrices": (Intersection, [S], [S >> -0.1 * CENTER, S << CENTER]),
    "one matrix for all": (Tied, [P, Q], [P == Q]),
    "one matrix for all, in bounds": (Tied, [P, Q], [P == Q, P << 0.7 * np.eye(3), cp.trace(Q) <= 1]),
    "tied numbers": (Tied, [W], [W[0] == W[3], W[1] == W[4], cp.norm(W[:2]) <= 0.5]),
}


def read(variables: list[cp.Variable], constraints: list[cp.Constraint]) -> FeasibleSet:
    reader = Reader([])
    space = Space([variable_of(variable) for variable in variables])
    return feasible_set(space, [reader.constraint(constraint) for constraint in constraints])


def reference(
    feasible: FeasibleSet, variables: list[cp.Variable], constraints: list[cp.Constraint], x: np.ndarray
) -> np.ndarray:
    values = feasible.space.unpack(x)
    distance = cp.norm(cp.hstack([cp.vec(v - values[v.name()], order="F") for v in variables]))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    cp.Problem(cp.Minimize(distance), constraints).solve(solver="CLARABEL", **tight)
    return feasible.space.pack({v.name(): v.value for v in variables})


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", CASES)
def test_projections(name: str) -> None:
    """Near a solver's answer, certified within what was planned for, feasible, and nearest by the variational inequality."""
    kind, variables, constraints = CASES[name]
    feasible = read(variables, constraints)
    assert feasible.has_projection, feasible.reason
    assert any(type(piece) is kind for piece in feasible.pieces)
    rng = np.random.default_rng(1)
    found = []
    for scale in (0.1, 1.0, 1.0, 10.0):
        x = scale * rng.normal(size=feasible.space.dim)
        p = feasible.project(x)
        planned = np.linalg.norm([piece.largest_error(float(np.linalg.norm(x))) for piece in feasible.pieces])
        assert feasible.error(x) <= planned
        assert np.linalg.norm(p - reference(feasible, variables, constraints, x)) <= 1e-4 * (1 + scale)
        for variable, value in feasible.space.unpack(p).items():
            next(v for v in variables if v.name() == variable).project_and_assign(value)
        assert all(float(np.max(c.violation())) <= 1e-9 * (1 + scale) for c in constraints)
        assert (p >= feasible.lower - 1e-9).all()
        assert (p <= feasible.upper + 1e-9).all()
        assert np.linalg.norm(feasible.project(p) - p) <= 2 * planned
        found.append((x, p, planned))
    for x, p, planned in found:
        # <x - p, y - p> <= 0 for all y in K, and p is known to within the error
        room = [planned * (np.linalg.norm(x - p) + np.linalg.norm(y - p)) for _, y, _ in found]
        assert all((x - p) @ (y - p) <= slack + 1e-14 for slack, (_, y, _) in zip(room, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_points_of_a_set_stay_where_they_are(name: str) -> None:
    feasible = read(*CASES[name][1:])
    rng = np.random.default_rng(2)
    points = [feasible.project(rng.normal(size=feasible.space.dim)) for _ in range(12)]
    middle = np.mean(points, axis=0)
    assert np.linalg.norm(feasible.project(middle) - middle) <= 1e-9


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0] in (Polyhedron, Intersection)])
@pytest.mark.parametrize("scale", [1e-8, 100.0, 1e10])
def test_extreme_points_have_projections_too(name: str, scale: float) -> None:
    """Where a search fails, far away, a point of the set serves, and no certificate is claimed for it."""
    _, variables, constraints = CASES[name]
    feasible = read(variables, constraints)
    x = scale * np.random.default_rng(9).normal(size=feasible.space.dim)
    p = feasible.project(x)
    for variable, value in feasible.space.unpack(p).items():
        next(v for v in variables if v.name() == variable).value = value
    assert all(float(np.max(c.violation())) <= 1e-9 * max(1.0, float(np.linalg.norm(p))) for c in constraints)
    try:
        assert feasible.apart().error(x) <= 10 * feasible.largest_error(float(np.linalg.norm(x)))
    except NotConverged:
        assert scale == 1e10


def test_fixed_coordinates_are_exact() -> None:
    feasible = read([W], [W[0] == 0.5, SKEW @ W <= 0.2, W[2] == W[3]])
    p = feasible.project(np.random.default_rng(3).normal(size=6))
    assert p[0] == 0.5


def test_certificates_hold_where_the_answer_is_known() -> None:
    """Far more digits than the computation has: at points of which the exact projection is known."""
    n = 40
    rng = np.random.default_rng(4)
    coordinates = np.arange(n)
    rows = rng.normal(size=(6, n))
    wall = polyhedron(coordinates, "", (np.full(n, -1.0), np.full(n, np.inf)), (rows, np.full(6, -np.inf), np.ones(6)))
    p = wall.inner.copy()
    p[:3] = -1.0
    inside = wall.matrix @ p < wall.most
    assert inside.all()
    x = p.copy()
    x[:3] -= rng.random(3)
    assert np.linalg.norm(wall.project(x) - p) <= wall.error(x) <= wall.largest_error(float(np.linalg.norm(x)))


def test_residuals_are_exact() -> None:
    from fractions import Fraction

    rng = np.random.default_rng(5)
    matrix, point, rest = rng.normal(size=(4, 9)), rng.normal(size=9), 1e-17 * rng.normal(size=9)
    value = matrix @ point
    exact = [
        Fraction(b) - sum(Fraction(a) * (Fraction(u) + Fraction(v)) for a, u, v in zip(row, point, rest, strict=True))
        for b, row in zip(value.tolist(), matrix.tolist(), strict=True)
    ]
    found = exact_residuals(matrix, (point, rest), value)
    assert np.allclose(found, [float(e) for e in exact], rtol=1e-14, atol=1e-45)


@pytest.mark.parametrize(
    "constraints",
    [
        [cp.norm(W) <= 1, PRICES @ W >= 100],
        [W >= 0, W <= 0.1, cp.sum(W) == 1],
        [SKEW[0] @ W <= 0, SKEW[0] @ W + W[1] >= 1, W[1] <= 0.5],
        [cp.norm(W) <= 1, cp.norm(W - 3) <= 1],
    ],
)
def test_nothing_satisfies_these(constraints: list[cp.Constraint]) -> None:
    with pytest.raises(TemplateError, match="contradict"):
        read([W], constraints)


BIG = 1000
PIECES: dict[str, Callable[[], Piece]] = {
    "box and budget": lambda: Cut(
        np.arange(BIG),
        "",
        Interval(np.arange(BIG), "", np.zeros(BIG), np.full(BIG, 0.01)),
        Slab(np.arange(BIG), "", np.linspace(1, 2, BIG), 1.0, 1.0),
    ),
    "box and ball": lambda: Cut(
        np.arange(BIG),
        "",
        Interval(np.arange(BIG), "", np.zeros(BIG), np.full(BIG, 0.01)),
        NormBall(np.arange(BIG), "", np.full(BIG, 0.003), 0.1),
    ),
    "order": lambda: Ordered(np.arange(BIG), "", np.zeros(BIG), -np.inf, np.inf),
    "cone": lambda: SecondOrderCone(np.arange(BIG), "", np.zeros(BIG - 1), np.ones(1), 0.0, 1.0),
}


def quickest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("name", PIECES)
def test_closed_forms_take_no_longer_than_a_pass(name: str) -> None:
    rng = np.random.default_rng(6)
    data, x = rng.normal(size=(2 * BIG, BIG)), rng.normal(size=BIG)
    piece = PIECES[name]()
    assert piece.error(x) <= piece.largest_error(float(np.linalg.norm(x)))
    assert quickest(lambda: piece.project(x)) <= 3 * quickest(lambda: data.T @ (data @ x))


def test_the_second_projection_begins_where_the_first_ended() -> None:
    rng = np.random.default_rng(8)
    n = 200
    wall = polyhedron(
        np.arange(n),
        "",
        (np.full(n, -0.5), np.full(n, 0.5)),
        (rng.normal(size=(80, n)), np.full(80, -np.inf), np.ones(80)),
    )
    x = rng.normal(size=n)
    start = time.perf_counter()
    wall.project(x)
    first = time.perf_counter() - start
    assert quickest(lambda: wall.project(x + 1e-6 * rng.normal(size=n))) <= first / 5
