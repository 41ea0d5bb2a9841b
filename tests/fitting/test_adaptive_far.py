"""Adaptive steps that end where slopes or curvatures are unlike those that the declared domain shows in its middle."""

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import scored, small
from sample_problems import objective

import dpconvex as dp

SIZE, PRIVACY = 5000, dp.Privacy(3.0, 1e-5)


def ratios():
    """Ratios of two densities by least squares: slopes at the end are ten times those near scores of 0."""
    rng = np.random.default_rng(0)
    known = rng.integers(0, 2, SIZE)
    x = dp.Ball(3).project(rng.normal(size=(SIZE, 3)) / 4 + np.outer(1 - known, [0.4, -0.3, 0.2]))
    loss, ridge = lambda s, known: cp.square(s) if known else -2 * s, lambda w: 1e-3 * cp.sum_squares(w)
    return scored(loss, regularizer=ridge, x=dp.Ball(3), known=dp.Choice([0, 1])), {"x": x, "known": known}


def lifetimes():
    """Weibull lifetimes with censoring: exponentials of the declared domain bend a hundred times as much as those of records."""
    w, b, s = cp.Variable(3, name="w"), cp.Variable(name="b"), cp.Variable(name="s", nonneg=True)

    def loss(x, log_time, seen):
        u = s * log_time - x @ w - b
        return cp.exp(u) - seen * u - seen * cp.log(s)

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(SIZE, 3))
    time, end = 1.5 + x @ [0.6, -0.6, 0.3] + 0.7 * np.log(rng.exponential(size=SIZE)), rng.uniform(0, 4.5, SIZE)
    record = dp.Record(x=dp.Box(-np.ones(3), np.ones(3)), log_time=dp.Box(-3, 6), seen=dp.Box(0, 1))
    data = {"x": x, "log_time": np.clip(np.minimum(time, end), -3, 6), "seen": (time < end).astype(float)}
    return dp.Template(record, loss, 1e-6 * cp.sum_squares(w)), data


def trips():
    """Counts over exposures, of two fields: nine in ten slopes had one sign, and unseen ones were taken to balance them."""
    w, v, b = cp.Variable(3, name="w"), cp.Variable(4, name="v"), cp.Variable(name="b")

    def loss(x, s, km, y):
        score = x @ w + s @ v + b
        return km * cp.exp(score) - y * score

    rng = np.random.default_rng(0)
    x, s = rng.uniform(-1, 1, (SIZE, 3)), rng.uniform(-1, 1, (SIZE, 4))
    km = rng.gamma(2, 7, SIZE).clip(0.1, 60)
    y = rng.poisson(km * np.exp(x @ [-0.5, 0.6, 0.3] + s @ [0.5, 0, 0, -0.3] - 2.8)).clip(0, 20)
    fields = {"x": dp.Box(-np.ones(3), np.ones(3)), "s": dp.Box(-np.ones(4), np.ones(4))}
    record = dp.Record(**fields, km=dp.Box(0, 60), y=dp.Box(0, 20))
    return dp.Template(record, loss, 1e-6 * cp.sum_squares(w)), {"x": x, "s": s, "km": km, "y": y.astype(float)}


def risks():
    """Days until one of two ends: both constants are far from 0, where slopes are 3,650 times as long on one side."""
    w, b, v, c = cp.Variable(3, name="w"), cp.Variable(name="b"), cp.Variable(3, name="v"), cp.Variable(name="c")

    def loss(x, days, one, two):
        first, second = x @ w + b, x @ v + c
        return days * cp.exp(first) - one * first + days * cp.exp(second) - two * second

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (SIZE, 3))
    ends = [rng.exponential(np.exp(6.5 - x @ way)) for way in ([1, 1.5, -1], [-1, 0.5, 1])] + [np.full(SIZE, 3000.0)]
    days, which = np.min(ends, axis=0), np.argmin(ends, axis=0)
    record = dp.Record(x=dp.Box(-np.ones(3), np.ones(3)), days=dp.Box(0, 3650), one=dp.Box(0, 1), two=dp.Box(0, 1))
    data = {"x": x, "days": days, "one": (which == 0).astype(float), "two": (which == 1).astype(float)}
    return dp.Template(record, loss, 1e-6 * (cp.sum_squares(w) + cp.sum_squares(v))), data


@pytest.mark.parametrize(("kind", "lost"), [(ratios, 0.5), (lifetimes, 0.3), (trips, 0.1), (risks, 0.1)])
def test_steps_end_near_the_minimum(kind, lost):
    """They lost more than a constant does, with any epsilon."""
    template, data = kind()
    flat = {"x": 0 * data["x"], **({"s": 0 * data["s"]} if "s" in data else {})}
    least = objective(template, data, dp.solve_without_privacy(template, data))
    constant = objective(template, data, dp.solve_without_privacy(template, data | flat))
    ends = [objective(template, data, dp.solve(template, data, PRIVACY, seed=seed)) for seed in range(4)]
    assert np.median(ends) - least < lost * (constant - least)


def test_noise_does_not_stop_steps_that_a_public_price_pulls():
    """Beside a price that no record enters, gradients are noise where all demands are met; it took turns, and steps shrank."""
    q, cost = cp.Variable(8, name="q", nonneg=True), np.array([1.0, 5, 2, 8, 3, 1, 4, 2])
    loss = lambda d: cost @ cp.pos(d - q) + 0.2 * cp.sum(q)  # noqa: E731
    record = dp.Record(d=dp.Box(np.zeros(8), 300 * np.ones(8)))
    template = dp.Template(record, loss, 1e-6 * cp.sum_squares(q), [cp.sum(q) <= 400])
    data = {"d": np.random.default_rng(0).gamma(3, np.array([7, 13, 20, 3, 7, 27, 13, 17]), (SIZE, 8)).clip(0, 300)}
    least = objective(template, data, dp.solve_without_privacy(template, data))
    ends = [objective(template, data, dp.solve(template, data, PRIVACY, seed=seed)) for seed in range(4)]
    assert np.median(ends) - least < 0.05 * (objective(template, data, {"q": np.full(8, 50.0)}) - least)


def weighted(rng, x, y):
    """A high quantile with weights a tenth of their bound: the constant went to the end of the targets, for 88 times the gain."""
    fields = {"x": dp.Ball(3), "y": dp.Box(-3, 3), "weight": dp.Box(0, 10)}
    loss = lambda s, y, weight: weight * cp.maximum(0.9 * (y - s), -0.1 * (y - s))  # noqa: E731
    template = scored(loss, regularizer=small, **fields)
    data = {"x": x, "y": y.clip(-3, 3), "weight": rng.lognormal(0, 1, len(y)).clip(0, 14) * 0.7}
    return template, data, {"w": np.zeros(3), "b": np.quantile(y, 0.9)}


def signs(rng, x, y):
    """Signs of forms by correlations: steps left the set of these, ever farther."""
    P, u = cp.Variable((3, 3), PSD=True, name="P"), rng.permutation(x)
    truth = np.array([[1, 0.8, -0.5], [0.8, 1, 0], [-0.5, 0, 1]])
    loss = lambda u, x, y: dp.huber_hinge(1 - 4 * y * (u @ P @ x), 0.5)  # noqa: E731
    record, ridge = dp.Record(u=dp.Ball(3), x=dp.Ball(3), y=dp.Choice([-1, 1])), 1e-5 * cp.sum_squares(P)
    told = np.where(np.einsum("ni,ij,nj->n", u, truth, x) > 0, 1, -1)
    return dp.Template(record, loss, ridge, [cp.diag(P) == 1]), {"u": u, "x": x, "y": told}, {"P": np.eye(3)}


@pytest.mark.parametrize(("make", "most"), [(weighted, 0.5), (signs, 0.01)])
def test_steps_keep_the_gain_over_a_constant(make, most) -> None:
    lost = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = dp.Ball(3).project(rng.normal(size=(2000, 3)))
        template, data, plain = make(rng, x, x @ [1.0, -0.5, 0.5] + 0.4 * rng.normal(size=2000))
        found = dp.solve(template, data, dp.Privacy(8.0, 1e-5), seed=seed).parameters
        fits = found, dp.solve_without_privacy(template, data).parameters, plain
        released, best, constant = (objective(template, data, fit) for fit in fits)
        lost.append((released - best) / (constant - best))
    assert np.mean(lost) < most


def test_wide_bounds_of_targets_are_no_weights():
    """Squares of targets of 1e9 were taken to have unknown weights, and lost 1.2 times as much as those of 1."""
    rng = np.random.default_rng(1)
    x = dp.Ball(5).project(rng.normal(size=(600, 5)) / 2)
    y, losses = (0.3 + x.sum(axis=1) / 10 + rng.normal(size=600) / 20).clip(-1, 1), list[float]()
    for unit in (1.0, 1e9):
        template = scored(lambda s, y: cp.square(s - y), x=dp.Ball(5), y=dp.Box(-unit, unit))
        fits = [dp.solve(template, {"x": x, "y": unit * y}, dp.Privacy(1.0, 1e-6), seed=seed) for seed in range(1, 6)]
        losses.append(float(np.median([np.square((x @ fit["w"] + fit["b"]) / unit - y).mean() for fit in fits])))
    assert losses[1] < 1.1 * losses[0]
