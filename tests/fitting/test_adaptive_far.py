"""Steps whose answer lies where public terms, penalties and sets say, or far from the middle of the declared domain."""

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import ADD, STEPS, rng, scored, small
from sample_problems import objective

import dpconvex as dp

SIZE = 4000
X = dp.Ball(3).project(rng.normal(size=(SIZE, 3)) / 4 + [0.4, 0.2, 0.0])
SIGNS = np.where(X @ [3, -2, 1] + rng.logistic(size=SIZE) > 0.8, 1, -1)


def ridge(place):
    w = cp.Variable(3, name="w")
    own, record = 0.3 * cp.sum_squares(w), dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    extra, public = (own, 0.0) if place == "loss" else (0.0, own)
    return dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)) + extra, 1e-9 * cp.sum_squares(w) + public)


def outliers(place):
    w, rho = cp.Variable(3, name="w"), cp.Variable(name="rho")
    extra = 0.3 * rho if place == "loss" else 0.0
    public = 0.02 * cp.sum_squares(w) + 1e-4 * cp.square(rho) - (0.3 * rho - extra)
    return dp.Template(dp.Record(x=dp.Ball(3)), lambda x: 2 * (dp.huber_hinge(rho - x @ w, 0.1) - extra) / 2, public)


def tail(place):
    """Weights of assets, and the level that a tenth of the losses exceed: slopes are rare and long, or short."""
    w, t = cp.Variable(3, nonneg=True, name="w"), cp.Variable(name="t")
    extra = t if place == "loss" else 0.0
    loss = lambda x: extra + dp.huber_hinge(-(x @ w) - t, 0.02) / 0.1 - 5 * (x @ w)  # noqa: E731
    public, bounds = t - extra + 1e-5 * (cp.sum_squares(w) + cp.square(t)), [cp.sum(w) == 1, t >= -1, t <= 1]
    return dp.Template(dp.Record(x=dp.Ball(3)), loss, public, bounds)


def prior(place):
    w = cp.Variable(3, name="w")
    far = 0.1 * cp.sum_squares(w - np.array([-3.0, 3.0, 0.0]))
    extra, record = far if place == "loss" else 0.0, dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: cp.huber(y - x @ w, 0.2) + extra, far if place != "loss" else 0.0)


@pytest.mark.parametrize(("place", "privacy"), [("loss", dp.Privacy(1.0, 1e-6)), ("regularizer", ADD)])
@pytest.mark.parametrize("kind", [ridge, outliers, pytest.param(tail, marks=pytest.mark.slow), prior])
def test_steps_learn_where_public_terms_say_where_the_answer_is(kind, place, privacy):
    template = kind(place)
    data = {"x": X} | ({"y": SIGNS} if "y" in template.record.fields else {})
    least = objective(template, data, dp.solve_without_privacy(template, data))
    nothing = {v.name: np.full(v.shape, 1 / 3 if kind is tail and v.name == "w" else 0.0) for v in template.variables}
    found = dp.solve(template, data, privacy, STEPS, size=SIZE, seed=2)
    assert objective(template, data, found) - least < 0.1 * (objective(template, data, nothing) - least)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_quantiles_in_two_terms_are_those_of_one_loss_whatever_the_declared_size(scale):
    """Of ``pos(y - b) + .3 b`` no record enters the second term: its weight is that of all records, as many as there are."""
    y, b = np.random.default_rng(0).uniform(0, 1, 8000), cp.Variable(name="b")
    for loss in (lambda y: cp.pos(y - b) + 0.3 * b, lambda y: (2 * cp.pos(y - b) + 0.6 * b) / 2):
        template = dp.Template(dp.Record(y=dp.Box(0, 1)), loss, 1e-9 * cp.square(b), [b >= 0, b <= 1])
        privacy = dp.Privacy(3.0, 1e-5, "add-remove")
        found = dp.solve(template, {"y": y}, privacy, STEPS, size=round(8000 / scale), seed=0)
        assert abs(np.mean(y > found["b"]) - 0.3) < 0.05


@pytest.mark.parametrize("privacy", [dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)])
def test_a_covariance_is_learnt_by_its_likelihood(privacy):
    P, record = cp.Variable((3, 3), symmetric=True, name="P"), dp.Record(x=dp.Ball(3))
    bounds = [P >> np.eye(3), P << 50 * np.eye(3)]
    template = dp.Template(record, lambda x: (x @ P @ x - cp.log_det(P)) / 2, 1e-6 * cp.sum_squares(P), bounds)
    found, moment = dp.solve(template, {"x": X}, privacy), X.T @ X / SIZE
    likelihood = lambda P: (np.trace(P @ moment) - np.linalg.slogdet(P)[1]) / 2  # noqa: E731
    least = likelihood(np.asarray(dp.solve_without_privacy(template, {"x": X})["P"]))
    assert likelihood(np.asarray(found["P"])) - least < 0.05 * (likelihood(np.eye(3)) - least)
    assert any("no record enters" in line for line in found.certificate.advice)
    assert not found.certificate.check().unreplayed


@pytest.mark.parametrize("privacy", [dp.Privacy(1.0, 1e-6), ADD])
def test_a_likelihood_with_its_determinant_in_the_loss_is_fitted_by_statistics(privacy):
    found = []
    for inside in (False, True):
        P = cp.Variable((3, 3), PSD=True, name="P")
        parts = (0.0, -cp.log_det(P)) if inside else (-cp.log_det(P), 0.0)
        public = 1e-3 * cp.sum_squares(P) + parts[0]
        template = dp.Template(dp.Record(x=dp.Ball(3)), lambda x, P=P, parts=parts: x @ P @ x + parts[1], public)
        release = dp.solve(template, {"x": X}, privacy, seed=1, size=SIZE)
        assert not release.certificate.check().unreplayed
        assert "statistics" in release.certificate.mechanism
        found.append(release.parameters["P"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


LOSSES = {
    "logistic": (lambda m: cp.logistic(-m), lambda m: np.logaddexp(0, -m)),
    "hinge": (lambda m: cp.pos(1 - m), lambda m: np.maximum(1 - m, 0)),
}
HELD = {
    "absolute values": (lambda w: 0.02 * cp.norm1(w), lambda w: []),
    "a norm": (lambda w: 0.03 * cp.norm(w), lambda w: []),
    "differences": (lambda w: 0.1 * cp.sum_squares(cp.diff(w)), lambda w: []),
    "absolute differences": (lambda w: 0.02 * cp.norm1(cp.diff(w)), lambda w: []),
    "a ball": (lambda w: 1e-3 * cp.sum_squares(w), lambda w: [cp.norm(w) <= 2]),
    "an order": (lambda w: 1e-3 * cp.sum_squares(w), lambda w: [cp.diff(w) <= 0]),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("held", HELD)
def test_steps_of_classes_follow_penalties_and_sets(kind, held):
    """Once these entered at the end alone, with a model about a point far away: a fifth to twice of what is gained was lost."""
    loss, value = LOSSES[kind]
    template = scored(lambda s, y: loss(y * s), (), *HELD[held], x=dp.Ball(3), y=dp.Choice([-1, 1]))
    data = {"x": X, "y": SIGNS}
    least = objective(template, data, dp.solve_without_privacy(template, data))
    constant = min(value(SIGNS * level).mean() for level in np.linspace(-2, 2, 81))
    found = [dp.solve(template, data, dp.Privacy(3.0, 1e-5), seed=seed) for seed in (1, 2)]
    assert all(release.certificate.perturbed == "queries" for release in found)
    assert np.mean([objective(template, data, release) - least for release in found]) < 0.04 * (constant - least)


@pytest.mark.parametrize(("held", "times"), [("absolute values", 5), ("a norm", 4), ("differences", 1)])
def test_steps_of_counts_follow_penalties(held, times):
    penalty = lambda w: times * HELD[held][0](w)  # noqa: E731
    template = scored(lambda s, y: cp.exp(s) - y * s, (), penalty, x=dp.Ball(3), y=dp.Box(0, 20))
    data = {"x": X, "y": np.random.default_rng(0).poisson(np.exp(X @ [3, -3, 0])).clip(0, 20)}
    least = objective(template, data, dp.solve_without_privacy(template, data))
    mean = data["y"].mean()
    found = [dp.solve(template, data, dp.Privacy(3.0, 1e-5), seed=seed) for seed in (1, 2)]
    lost = np.mean([objective(template, data, release) - least for release in found])
    assert lost < 0.02 * (mean - mean * np.log(mean) - least)


SCALE = np.array([1e-4, 1.0, 1e6])  # Of features, which weights undo
IN_UNITS = {
    "absolute values": lambda w, t: (0.01 * cp.norm1(w), []),
    "weights of one sign": lambda w, t: (0.01 * cp.sum(cp.multiply([1, -1, 1], w)), [w[0] >= 0, w[1] <= 0, w[2] >= 0]),
    "a height that no loss reads": lambda w, t: (0.01 * t, [cp.norm1(w) <= t]),
    "a ball": lambda w, t: (0.001 * cp.norm1(w), [cp.norm(w) <= 1]),
    "a ball far from 0": lambda w, t: (0.001 * cp.norm1(w), [cp.norm(w - np.array([3, 3, 3])) <= 4]),
}


@pytest.mark.parametrize("held", IN_UNITS)
def test_steps_of_classes_are_held_whatever_the_units_and_the_set(held):
    w, b, t = cp.Variable(3, name="w"), cp.Variable(name="b"), cp.Variable(name="t")
    public, constraints = IN_UNITS[held](cp.multiply(SCALE, w), t)
    record = dp.Record(x=dp.Box(-SCALE, SCALE), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w + b)), public, constraints)
    data = {"x": X * SCALE, "y": SIGNS}
    least = objective(template, data, dp.solve_without_privacy(template, data))
    constant = np.logaddexp(0, -SIGNS * np.log((SIGNS > 0).mean() / (SIGNS < 0).mean())).mean()
    found = [dp.solve(template, data, dp.Privacy(3.0, 1e-5), seed=seed) for seed in (1, 2)]
    assert np.mean([objective(template, data, release) - least for release in found]) < 0.03 * (constant - least)


def test_a_small_set_that_holds_all_weights_holds_steps():
    """Whether it does was asked at a point inside of it, and rows were cut: a corner came out for (4.5, .5), at any epsilon."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 6)) * np.where(np.arange(6) % 3 == 0, 1, 0.3)
    x /= np.maximum(1, 1.2 * np.linalg.norm(x, axis=1, keepdims=True))
    data = {"x": x, "y": np.where(x @ [6, -5, 0, 0, 0, 0] + 0.3 + rng.logistic(size=5000) > 0, 1, -1)}
    template = dp.load("sparse_logistic", features=6)
    least = objective(template, data, dp.solve_without_privacy(template, data))
    found = [dp.solve(template, data, dp.Privacy(3.0, 1e-5), dp.AdaptiveSteps(), seed=seed) for seed in (1, 2)]
    assert np.mean([objective(template, data, release) - least for release in found]) < 1e-3


# Ends where slopes and curvatures are unlike those that the declared domain shows in its middle
MANY, PRIVACY = 5000, dp.Privacy(3.0, 1e-5)


def ratios():
    """Ratios of two densities by least squares: slopes at the end are ten times those near scores of 0."""
    rng = np.random.default_rng(0)
    known = rng.integers(0, 2, MANY)
    x = dp.Ball(3).project(rng.normal(size=(MANY, 3)) / 4 + np.outer(1 - known, [0.4, -0.3, 0.2]))
    loss, ridge = lambda s, known: cp.square(s) if known else -2 * s, lambda w: 1e-3 * cp.sum_squares(w)
    return scored(loss, regularizer=ridge, x=dp.Ball(3), known=dp.Choice([0, 1])), {"x": x, "known": known}


def lifetimes():
    """Weibull lifetimes with censoring: exponentials of the declared domain bend a hundred times as much as those of records."""
    w, b, s = cp.Variable(3, name="w"), cp.Variable(name="b"), cp.Variable(name="s", nonneg=True)

    def loss(x, log_time, seen):
        u = s * log_time - x @ w - b
        return cp.exp(u) - seen * u - seen * cp.log(s)

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(MANY, 3))
    time, end = 1.5 + x @ [0.6, -0.6, 0.3] + 0.7 * np.log(rng.exponential(size=MANY)), rng.uniform(0, 4.5, MANY)
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
    x, s = rng.uniform(-1, 1, (MANY, 3)), rng.uniform(-1, 1, (MANY, 4))
    km = rng.gamma(2, 7, MANY).clip(0.1, 60)
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
    x = rng.uniform(-1, 1, (MANY, 3))
    ends = [rng.exponential(np.exp(6.5 - x @ way)) for way in ([1, 1.5, -1], [-1, 0.5, 1])] + [np.full(MANY, 3000.0)]
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
    data = {"d": np.random.default_rng(0).gamma(3, np.array([7, 13, 20, 3, 7, 27, 13, 17]), (MANY, 8)).clip(0, 300)}
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
