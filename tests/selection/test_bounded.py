"""Private bounds: wrong signs refused, answers that keep the true bounds, and a cost that is paid before values are read."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from refused import refused

import dpconvex as dp

PROMISE = dp.Privacy(epsilon=1.0, delta=1e-3)


def bound(**changes):
    return dp.PrivateBound("b", **{"shape": 2, "sensitivity": 1.0, "minimum": 1.0, **changes})


SAFE = {
    "upper limit": lambda x, b: x <= b,
    "turned round": lambda x, b: b >= x,
    "convex": lambda x, b: cp.norm(x) <= cp.sum(b),
    "concave": lambda x, b: cp.sqrt(b) >= x,
    "negated lower limit": lambda x, b: -x >= -b,
    "scaled": lambda x, b: x <= np.array([[2.0, 1.0], [0.0, 3.0]]) @ b,
    "smallest": lambda x, b: cp.sum(x) <= cp.min(b),
    "priced": lambda x, b: cp.quad_over_lin(x, cp.sum(b)) <= 1,
    "times a sign": lambda x, b: x <= cp.multiply(b, 1 + cp.Parameter(2, nonneg=True, value=[0.0, 1.0])),
    "twice": lambda x, b: x - b <= 2 * b,
}
UNSAFE = {
    "lower limit": lambda x, b: x >= b,
    "equality": lambda x, b: x == b,
    "subtracted": lambda x, b: x <= 5 - b,
    "of mixed signs": lambda x, b: x <= np.array([[2.0, -1.0], [0.0, 3.0]]) @ b,
    "difference": lambda x, b: x <= 3 * b - b,
    "square of unknown sign": lambda x, b: x <= 9 - cp.square(b - 2),
    "matrix order": lambda x, b: cp.diag(b) - cp.diag(x) >> 0,
    "product of unknown sign": lambda x, b: cp.multiply(b, x - 1) <= 1,
    "spread": lambda x, b: cp.sum(x) <= 10 - cp.max(b),
}


def problem_of(constraint, x):
    return cp.Problem(cp.Minimize(cp.sum_squares(x - 20)), [constraint, x <= 30])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", SAFE)
def test_answers_keep_the_true_bounds(kind):
    b, x = bound(), cp.Variable(2, nonneg=True, name="x")
    problem = problem_of(SAFE[kind](x, b.parameter), x)
    for seed, values in enumerate([[1.0, 1.0], [8.0, 9.0], [1.0, 14.0]]):
        release = dp.solve_bounded(problem, {b: values}, PROMISE, seed=seed)
        assert (release["b"] <= values).all()
        assert (release["b"] >= 1).all()
        b.parameter.value, x.value = np.array(values), release["x"]
        (excess,) = (np.max(c.args[0].value - c.args[1].value) for c in problem.constraints[:1])
        assert excess <= 0


@pytest.mark.parametrize("kind", UNSAFE)
def test_a_bound_on_the_wrong_side_is_refused(kind, tmp_path):
    b, x = bound(minimum=0.0), cp.Variable(2, nonneg=True, name="x")
    budget = dp.Budget(dp.Privacy(1.0, 0.5), tmp_path / "ledger")
    with pytest.raises(dp.NotPrivate, match="private bound 'b' stands") as refusal:
        dp.solve_bounded(problem_of(UNSAFE[kind](x, b.parameter), x), {b: [3.0, 4.0]}, PROMISE, budget=budget)
    assert "b" in str(refusal.value.expression)
    assert budget.entries == ()


class Unread:
    shape = (2,)

    def __array__(self, *args, **options):
        raise AssertionError("read")


def test_it_is_paid_before_values_are_read_and_types_that_are_no_numbers_are_refused_before(tmp_path):
    b, x = bound(), cp.Variable(2, nonneg=True, name="x")
    problem = problem_of(x <= b.parameter, x)
    budget = dp.Budget(dp.Privacy(2.0, 2e-3), tmp_path / "ledger")
    durations = np.array([np.timedelta64(5, "ns"), np.timedelta64(6, "ns")], dtype=object)
    for values in (3.0, np.ma.masked_array([5.0, 6.0], mask=[1, 0]), durations, list(durations)):
        refused(dp.TemplateError, "shape|be numbers", dp.solve_bounded, problem, {b: values}, PROMISE, budget=budget)
    refused(dp.NotPrivate, "delta", dp.solve_bounded, problem, {b: Unread()}, dp.Privacy(1.0), budget=budget)
    assert not budget.entries
    for bad, words in (([3.0, 0.5], r"at \[1\] lies below"), ([10**400, 1], "number")):
        refused(dp.DomainError, words, dp.solve_bounded, problem, {b: bad}, PROMISE, budget=budget)
    assert len(budget.entries) == 2
    refused(dp.BudgetExceeded, None, dp.solve_bounded, problem, {b: Unread()}, PROMISE, budget=budget)


def test_a_release_is_saved_with_its_certificate():
    b, c, x = bound(), dp.PrivateBound("c", sensitivity=2.0, minimum=0.0), cp.Variable(2, nonneg=True, name="x")
    problem = cp.Problem(cp.Maximize(cp.sum(x)), [x <= b.parameter, cp.norm(x, 1) <= c.parameter + 1])
    release = dp.solve_bounded(problem, {b: [4.0, 50.0], c: 70.0}, PROMISE)
    assert release.private
    read = dp.Release.from_bytes(release.to_bytes())
    assert read.to_bytes() == release.to_bytes()
    for change in ({"epsilon": 0.9}, {"delta": PROMISE.delta / 2}):
        better = replace(release.certificate.privacy, **change)
        refused(dp.TemplateError, "does not keep", replace, release.certificate, privacy=better)
    shares = [noise.epsilon for noise in read.certificate.noises.values()]
    assert 0.999 < sum(shares) <= 1
    assert "NOT PRIVATE" in repr(dp.solve_bounded(problem, {b: [4.0, 5.0], c: 7.0}, PROMISE, seed=0))
