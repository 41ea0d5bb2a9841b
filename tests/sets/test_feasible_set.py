"""The feasible set: what is recognised, points of it and their certificates against a solver, bounds, and what is refused."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import calls_of
from refused import refused
from sample_problems import build

import dpconvex as dp
from dpconvex.expressions.from_cvxpy import Reader, variable_of
from dpconvex.expressions.parameter_space import Space
from dpconvex.optim.certify import closest_point
from dpconvex.sets import barrier
from dpconvex.sets.certified_distance import certified_distance
from dpconvex.sets.certified_minimum import axis_bounds, minimum
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.projections import AxisHull
from dpconvex.sets.region import Region

RNG = np.random.default_rng(7)
X, W, T = cp.Variable(4, name="x"), cp.Variable(6, name="w"), cp.Variable(name="t")
M, S = cp.Variable((3, 4), name="M"), cp.Variable((3, 3), symmetric=True, name="S")
P, Q = cp.Variable((3, 3), PSD=True, name="P"), cp.Variable((3, 3), PSD=True, name="Q")
TALL, SKEW = RNG.normal(size=(8, 6)), RNG.normal(size=(3, 6))
SHIFT = RNG.normal(size=(3, 4)) / 3
CONE = np.array([[1.0, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 0.3]])
PRICES = np.array([1.0, 2.0, 0.5, 1.5, 3.0, 1.0])

CLOSED = {
    "semidefinite": ([P], []),
    "eigenvalues": ([P, S], [P << 0.5 * np.eye(3), cp.lambda_max(S) <= 0.2, S >> -0.2 * np.eye(3)]),
    "slab": ([X], [cp.sum(X) <= 1, -2 * X[0] - 2 * cp.sum(X[1:]) <= 2]),
    "bounds": ([X], [cp.abs(X) <= 1, X[0] == 0.5, cp.maximum(X[1], X[2] + 0.25) <= 0.5, cp.min(X) >= -0.25]),
    "equations": ([S, X], [cp.trace(S) == 1, X[0] + X[1] == 1, X[1] - X[2] == 0.5]),
    "squares": ([X, S], [cp.sum(cp.square(X - 0.5)) <= 0.4, cp.sum_squares(S) <= 0.09]),
    "l1 ball": ([X], [cp.sum(cp.multiply([1, 2, 0.5, 1], cp.abs(X - 1))) + 0.5 <= 1.5]),
    "simplex": ([X], [cp.sum(X) == 1, X >= 0, X <= 1]),
    "simplex elsewhere": ([X], [np.array([1, -2, 3, -0.5]) @ X <= 4, X[::2] >= 0.5, X[1::2] <= -0.25]),
    "nuclear ball": ([M], [cp.normNuc(2 * (M - SHIFT).T) <= 1]),
    "condition and trace": ([P], [P >> 0.1 * np.eye(3), P << 0.9 * np.eye(3), cp.trace(P) <= 1]),
}
CONIC = {
    "spectral ball": ([M], [cp.sigma_max(M - SHIFT) <= 0.5]),
    "semidefinite in a ball": ([P], [cp.norm(P, "fro") <= 0.8]),
    "portfolio with a cap": ([W], [W >= 0, W <= 0.3, cp.sum(W) == 1]),
    "ball, box and budget": ([W], [cp.norm(W) <= 0.7, W >= -0.1, PRICES @ W == 0.5]),
    "l1 ball and half-space": ([W], [cp.norm1(W) <= 1, PRICES @ W >= 0.2]),
    "second-order cone": ([W, T], [cp.SOC(1 - 0.5 * T, 3 * W), cp.norm(W - 0.3) <= 2 * T + 0.5]),
    "increasing": ([W], [W[1:] >= W[:-1] + 0.1, W[0] >= 0, W[5] <= 2]),
    "redundant rows at a vertex": ([X], [X[1:] >= X[:-1], X >= 0, X[0] + X[1] >= 0, cp.sum(X) >= 0]),
    "ellipsoids": ([W], [cp.norm(TALL @ W) <= 0.8, cp.sum_squares(SKEW @ W - 0.2) <= 0.25]),
    "parabola": ([W], [cp.sum_squares(SKEW @ W + 0.2) <= 0.5 + W[0]]),
    "correlations": ([P], [cp.diag(P) == 1]),
    "between two matrices": ([S], [S >> -0.1 * CONE, S << CONE]),
    "one matrix for all, in bounds": ([P, Q], [P == Q, P << 0.7 * np.eye(3), cp.trace(Q) <= 1]),
    "sum of norms": ([X], [cp.norm(X, 2) + cp.norm(X[1:], 2) <= 1]),
    "square of a norm": ([X], [cp.square(cp.norm1(X)) + cp.exp(X[0]) <= 2]),
    "log_sum_exp": ([X], [cp.log_sum_exp(X) <= 1]),
    "entropy on a simplex": ([X], [cp.sum(X) == 1, cp.sum(cp.entr(X)) >= 1.2]),
    "logarithms": ([X], [cp.sum(cp.log(X)) >= -4, cp.sum(X) <= 3]),
    "two curved ones": ([X], [cp.quad_form(X, np.diag([1.0, 2, 3, 4])) <= 1, cp.exp(X[0]) + cp.square(X[1]) <= 1.5]),
    "a maximum": ([X], [cp.maximum(cp.sum_squares(X), cp.exp(X[0])) <= 1.2]),
    "largest eigenvalue": ([P], [cp.lambda_max(P) <= P[0, 0] + 0.2, cp.trace(P) <= 2]),
    "log_det": ([P], [cp.log_det(P) >= -3, cp.trace(P) <= 2]),
}


class SquaredDistance:
    """Half the squared distance from a point, whose minimum over K is a projection."""

    modulus, costs = 1.0, np.zeros(0)

    def __init__(self, center):
        self.center = center

    def value_and_gradient(self, x):
        return 0.5 * float(np.sum((x - self.center) ** 2)), x - self.center

    def hessian(self, x):
        return np.eye(len(x))

    def gradient_error(self, x, gradient):
        return float(np.finfo(float).eps * (np.linalg.norm(gradient) + np.linalg.norm(x)))

    def lowered(self, x):
        return x


def tolerance(region, x):
    """Rounding allows curved sets no more than 1e-8, and everything is tried before that is said."""
    return 1e-7 * (1 + float(np.linalg.norm(x))) if region.curved else 1e-12


def set_of(case):
    variables, constraints = case
    reader = Reader([parameter for constraint in constraints for parameter in constraint.parameters()])
    return FeasibleSet(Space([variable_of(v) for v in variables]), [reader.constraint(c) for c in constraints])


def reference(feasible, case, x):
    values = feasible.space.unpack(x)
    distance = cp.norm(cp.hstack([cp.vec(v - values[v.name()], order="F") for v in case[0]]))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    cp.Problem(cp.Minimize(distance), case[1]).solve(solver="CLARABEL", **tight)
    return feasible.space.pack({v.name(): v.value for v in case[0]})


def violation(feasible, case, point):
    for v in case[0]:
        v.save_value(feasible.space.unpack(point)[v.name()])
    with np.errstate(all="ignore"):
        return max([0.0, *(float(np.max(c.violation())) for c in case[1])])


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", [*CLOSED, *CONIC])
def test_projections(name):
    """Near a solver's answer, feasible, as exact as certified, and nearest by the variational inequality."""
    case = CLOSED.get(name) or CONIC[name]
    feasible = set_of(case)
    assert feasible.has_projection == (name in CLOSED), feasible.reason
    assert not feasible.is_space
    rng, found = np.random.default_rng(1), []
    for scale in (0.1, 1.0, 10.0):
        x = scale * rng.normal(size=feasible.space.dim)
        size = 1 + float(np.linalg.norm(x))
        if feasible.has_projection:
            p, error = feasible.project(x), feasible.error(float(np.linalg.norm(x)))
            assert error <= 1e-12 * size
            assert np.linalg.norm(feasible.project(p) - p) <= 2 * error + 1e-14
        else:
            answer = minimum(SquaredDistance(x), feasible.region, x, tolerance(feasible.region, x))
            p, error = answer.point, answer.distance
            assert error <= 1e-6 * size
            assert max(feasible.region.excess(p).max(), feasible.region.off_hull(p)) <= 1e-12
            assert np.linalg.norm(feasible.project(x) - p) <= 1e-5 * size
            for point in (feasible.project(x), feasible.project(1e10 * x)):
                assert violation(feasible, case, point) <= 1e-9 * max(1.0, float(np.linalg.norm(point)))
        assert np.linalg.norm(p - reference(feasible, case, x)) <= 2e-4 * size
        assert violation(feasible, case, p) <= 1e-9
        assert ((feasible.lower - 1e-12 <= p) & (p <= feasible.upper + 1e-12)).all()
        assert np.linalg.norm(p) <= feasible.norm_bound + 1e-12
        found.append((x, p, error))
    for x, p, error in found:  # <x - p, y - p> <= 0 for all y in K, and p is known to within the error
        for _, y, _ in found:
            assert (x - p) @ (y - p) <= error * (np.linalg.norm(x - p) + np.linalg.norm(y - p)) + 1e-13 * (1 + x @ x)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CONIC)
def test_bounds_hold_whatever_the_multipliers_are(name):
    """At points that are far off, for a function and for half-spaces that contain K."""
    region, rng = set_of(CONIC[name]).region, np.random.default_rng(4)
    center = 2 * rng.normal(size=region.dim)
    function = SquaredDistance(center)
    exact = minimum(function, region, center, tolerance(region, center))
    members = [region.bring_in(rng.normal(size=region.dim)).astype(float) for _ in range(12)]
    for share in (0.0, 0.3, 0.9):
        point = region.bring_in((1 - share) * exact.point + share * region.inside)
        blocks = [*region.blocks, *region.cuts(point)]
        for draw in (np.zeros, lambda n: rng.exponential(size=n), lambda n: rng.normal(size=n)):
            multipliers = [draw(len(block.offset)) for block in blocks]
            bound = certified_distance(function, region, point, (point - center).astype(float), blocks, multipliers)
            assert np.linalg.norm(point.astype(float) - exact.point) <= bound + exact.distance
            for block, z in zip(blocks, multipliers, strict=True):
                half = block.half_space(z, point)
                assert all(half.row @ (y - point) <= half.gap + 1e-12 * (1 + np.abs(half.row).sum()) for y in members)


ATTRIBUTES = [
    ({"nonneg": True}, [-1.0, 2.0], [0, 2]),
    ({"neg": True}, [-1.0, 2.0], [-1, 0]),
    ({"bounds": [-1.0, np.array([1.0, 2.0])]}, [-3.0, 3.0], [-1, 2]),
    ({"NSD": True}, [[1.0, 0.0], [0.0, -2.0]], [[0, 0], [0, -2]]),
    ({"PSD": True}, [[-1.0]], [[0]]),
]


@pytest.mark.parametrize(("attributes", "given", "expected"), ATTRIBUTES, ids=str)
def test_attributes(attributes, given, expected):
    feasible = set_of(([cp.Variable(np.shape(given), name="a", **attributes)], []))
    found = feasible.space.unpack(feasible.project(feasible.space.pack({"a": given})))["a"]
    np.testing.assert_allclose(found, expected, atol=1e-15)


COST = np.array([1.0, 2.0, 0.5, 1.0])
WITHOUT_A_POINT = [
    [X[0] >= 1, X[0] <= 0],
    [X[0] + X[1] == 1, 2 * X[0] + 2 * X[1] == 3],
    [cp.norm(X, 2) <= -1],
    [cp.sum_squares(X) <= -1],
    [0 * X >= 1],
    [X >= 0, cp.sum(X) == 1, COST @ X >= 10],
    [X >= 0, X <= 0.1, cp.sum(X) == 1],
    [cp.norm1(X) <= 1, COST @ X >= 10],
    [cp.norm(X) <= 1, X >= 1],
    [cp.norm(X) <= 1, cp.norm(X - 3) <= 1],
    [cp.norm(X, 3) <= 1, X >= 1],
    [cp.log_sum_exp(X) <= 1, X >= 3],
    [X[0] - X[1] >= 1, X[1] - X[2] >= 1, X[2] - X[0] >= 1],
    [X[0] + X[1] == 1e-8, X[0] + X[1] == 1.1e-8, X >= 0],
    [X[0] + X[1] == 1e-8, X[1] + X[2] == 1e-8, X[0] - X[2] == 5e-10, X >= 0],
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("constraints", WITHOUT_A_POINT)
def test_constraints_without_a_common_point_are_refused_before_payment(constraints):
    template = dp.Template(dp.Record(x=dp.Ball(4)), lambda x: cp.logistic(x @ X), cp.sum_squares(X), constraints)
    budget = dp.Budget(dp.Privacy(1.0))
    refused(dp.TemplateError, "no point satisfies", dp.verify, template, dp.Privacy(1.0), size=50)
    with pytest.raises(dp.TemplateError, match="no point satisfies"):
        dp.solve(template, {"x": np.zeros((3, 4))}, dp.Privacy(1.0), budget=budget)
    assert not budget.entries


@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e9])
@pytest.mark.parametrize(("apart", "bounded"), [(1e-4, False), (1e-8, False), (1e-12, False), (1e-4, True)])
def test_distances_hold_where_equations_are_nearly_parallel_or_of_other_units(apart, bounded, scale):
    constraints = [X[0] + X[1] == 1, scale * (X[0] + X[1] + apart * X[2]) == scale * (1 + 2 * apart)]
    inside, squares = [*constraints, X >= -9] if bounded else constraints, 0.05 * cp.sum_squares(X)
    template = dp.Template(dp.Record(x=dp.Ball(4)), lambda x: 0.5 * cp.square(x @ X), squares, inside)
    problem = build(template, 0.1, gradient_bound=20.0, hessian_bound=1.0, noise=10.0)
    found, _ = closest_point(problem, np.zeros(4), 1e-250)
    row, level = (float(np.float64(scale) * c) for c in (apart, 1 + 2 * apart))
    second = (Fraction(level) - Fraction(scale)) / Fraction(row)  # X[2], as the numbers are read
    hessian = problem.batch.fields["x"].T @ problem.batch.fields["x"] + 0.1 * problem.size * np.eye(4)
    start, basis = np.array([1.0, 0.0, float(second), 0.0]), np.array([[1.0, -1, 0, 0], [0, 0, 0, 1]]).T
    exact = start - basis @ np.linalg.solve(basis.T @ hessian @ basis, basis.T @ (hessian @ start + problem.linear))
    assert np.linalg.norm(found.theta - exact) <= found.distance_bound + 1e-14
    assert found.distance_bound < 1e-11 / apart


def test_equations_that_only_rounding_makes_the_same_are_refused():
    for more in (1e-17 * X[2], 1e-17 * X[2] - 1e-17 * X[3]):
        for bounds in ([], [X >= -9]):
            constraints = [X[0] + X[1] == 1, X[0] + X[1] + more == 1, *bounds]
            held = dp.Template(dp.Record(x=dp.Ball(4)), lambda x: cp.logistic(x @ X), cp.sum_squares(X), constraints)
            refused(dp.TemplateError, "only up to rounding", dp.verify, held, dp.Privacy(1.0), size=50)
    doubled = set_of(
        ([S], [S[0, 1] == S[1, 2], 2 * S[1, 2] - 2 * S[0, 1] == 0, cp.trace(S) == 1, S[0, 0] == 1 - S[1, 1] - S[2, 2]])
    )
    assert doubled.has_projection


def test_points_from_which_a_simplex_is_less_than_rounding_are_projected():
    for k in range(1, 300):
        for low in (0.0, 1.0):
            reach = 1 / np.array([k, 1.0, 1.0])
            piece = AxisHull(np.arange(3), np.zeros(3), low * reach, reach)
            np.testing.assert_allclose(piece.project(np.array([1e20 / k, -1e20, -1e21])), [1 / k, 0, 0], atol=1e6)


@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-4, 1.0, 1e8])
def test_points_are_found_in_units_of_their_size(size):
    """Points of K of size 1e-5, as weights of dollars are, were moved by a tenth, and those of size 1e-6 by their length."""
    inside = size * np.array([0.9, 0.5, 0.3, 0.1])
    monotone = set_of(([X], [X[:-1] >= X[1:], X >= 0, cp.sum(X) <= 2 * size]))
    assert not monotone.has_projection
    np.testing.assert_allclose(monotone.project(inside), inside, rtol=1e-12)
    outside = monotone.project(size * np.array([1, 2, 3, -6.0]))
    np.testing.assert_allclose(outside / size, [2 / 3] * 3 + [0.0], atol=1e-5)
    with np.errstate(over="ignore"):  # as within a fit
        assert np.isfinite(monotone.project(np.array([1e200, 0.0, 0.0, -1e300]))).all()


def test_without_a_point_inside_nothing_is_certified():
    stretch, apart = [1.0, 2.0, 3.0, 4.0], [2.0, 0.0, 0.0, 0.0]  # the two ellipsoids have one point in common
    touching = [cp.norm(cp.multiply(stretch, X)) <= 1, cp.norm(cp.multiply(stretch, X - apart)) <= 1]
    for constraints in (touching, [cp.exp(X[0]) <= 1, X[0] >= 0]):
        assert "hold strictly" in str(set_of(([X], constraints)).obstacle)


# The largest Frobenius norm that constraints allow, if that is known and found.
BOUNDED = {
    "l1 ball": (X, [cp.norm1(X) <= 2], 2.0),
    "simplex": (X, [X >= 0, cp.sum(X) == 1], 1.0),
    "one free coordinate": (X, [X[:3] >= -1, X >= -4, X[0] + X[1] + X[2] + 2 * X[3] <= 3], None),
    "bounds that follow from others": (
        X,
        [X[0] >= 0, X[0] + X[1] <= 1, X[1:] >= -1, X[1] + X[2] == 0, X[3] <= X[2]],
        None,
    ),
    "ellipsoid": (W, [cp.norm(TALL @ W - 1) <= 2], None),
    "p-norm above 2": (X, [cp.norm(X, 4) <= 1], 2.0),
    "p-norm below 2": (X, [cp.norm(X, 1.5) <= 1], 2.0),
    "l1 norm of differences": (X, [cp.norm1(cp.diff(X)) <= 1, cp.abs(X[0]) <= 1], None),
    "trace with a matrix": (P, [cp.trace(CONE @ P) <= 2], None),
    "correlations": (P, [cp.diag(P) == 1], 3.0),
    "spectral ball": (M, [cp.sigma_max(2 * M - 1) <= 2], None),
    "nuclear ball": (M, [cp.normNuc(M) <= 2], 2.0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_wherever_a_linear_function_is_largest(name):
    variable, constraints, norm = BOUNDED[name]
    feasible = set_of(([variable], constraints))
    assert feasible.bounded
    if norm is not None:
        assert feasible.norm_bound == pytest.approx(norm, rel=1e-6)
    rng, everything = np.random.default_rng(0), np.arange(feasible.space.dim)
    nothing = np.full(feasible.space.dim, np.inf)
    low, high = (
        (-nothing, nothing) if name == "nuclear ball" else axis_bounds(feasible.region, everything, (-nothing, nothing))
    )
    assert np.isfinite(high).all() or name == "nuclear ball"
    for _ in range(8):
        slope = rng.normal(size=variable.shape) * rng.integers(0, 2, size=variable.shape)
        cp.Problem(cp.Maximize(cp.sum(cp.multiply(slope, variable))), constraints).solve(solver="CLARABEL")
        theta = feasible.space.pack({variable.name(): variable.value})
        for below, above in ((feasible.lower, feasible.upper), (low, high)):
            assert ((below - 1e-6 <= theta) & (theta <= above + 1e-6)).all()
        assert np.linalg.norm(theta) <= feasible.norm_bound + 1e-6
        whole = feasible.space.pack({variable.name(): slope})
        for hull in feasible.hulls:
            here, place = whole[hull.coordinates], np.arange(len(hull.coordinates))
            least, most = hull.linear_range(np.zeros(len(here), dtype=np.int64), place, here, here, 1)
            assert least[0] - 1e-6 <= float(here @ theta[hull.coordinates]) <= most[0] + 1e-6


def test_conditions_that_were_read_wrongly_are_noticed(monkeypatch):
    def template():
        record = dp.Record(x=dp.Ball(6))
        return dp.Template(record, lambda x: cp.logistic(x @ W), cp.sum_squares(W), [cp.norm(TALL @ W) <= 0.8])

    dp.verify(template(), dp.Privacy(1.0), size=50)
    read_rightly = Region._norm

    def wider(self, kind, level, inner):
        read_rightly(self, kind, (level[0], 1.5 * level[1]), inner)

    monkeypatch.setattr(Region, "_norm", wider)
    refused(dp.TemplateError, "misread the constraint", dp.verify, template(), dp.Privacy(1.0), size=50)


def test_the_central_path_ends_where_rounding_decides(monkeypatch):
    """Each of its last steps halved a step eighty times, thirty times over: 17,000 evaluations of the barrier."""
    matrix, counted = cp.Variable((4, 4), PSD=True, name="M"), calls_of(monkeypatch, barrier, "height")
    regularizer = -cp.log_det(matrix) + 0.005 * cp.norm1(matrix) + 1e-6 * cp.sum_squares(matrix)
    learner = dp.Template(
        dp.Record(x=dp.Ball(4)), lambda x: x @ matrix @ x, regularizer, [cp.lambda_max(matrix) <= 200]
    )
    x = dp.Ball(4).project(np.random.default_rng(0).normal(size=(500, 4)) / 6)
    assert dp.solve_without_privacy(learner, {"x": x}).distance < 0.01
    assert len(counted) < 3000


@pytest.mark.parametrize("inequality", [False, True])
def test_the_largest_of_many_entries_are_certified_where_they_tie(inequality):
    """There are 8,008 sums of six entries of sixteen: the set is no polyhedron of few rows, and has kinks."""
    w, record = cp.Variable(16, name="w"), dp.Record(x=dp.Ball(16), y=dp.Choice([-1, 1]))
    size = cp.sum_largest(cp.abs(w), 6)
    regularizer = 0.01 * cp.sum_squares(w) + (0.0 if inequality else 0.05 * size)
    template = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), regularizer, [size <= 0.5] * inequality)
    batch = record.sample(100, np.random.default_rng(0))
    data = {"x": batch.fields["x"], "y": np.array([-1, 1])[batch.group]}
    assert dp.solve(template, data, dp.Privacy(1.0), dp.OutputPerturbation())["w"].shape == (16,)
