"""Steps of losses and regularizers with terms that no record enters, and that pull away from where the loss is least."""

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import ADD, STEPS, rng, scored
from sample_problems import objective

import dpconvex as dp

SIZE = 4000
X = dp.Ball(3).project(rng.normal(size=(SIZE, 3)) / 4 + [0.4, 0.2, 0.0])
SIGNS = np.where(X @ [3, -2, 1] + rng.logistic(size=SIZE) > 0.8, 1, -1)


def ridge(place):
    w = cp.Variable(3, name="w")
    own = 0.3 * cp.sum_squares(w)
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
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
    extra = far if place == "loss" else 0.0
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
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
    y = np.random.default_rng(0).uniform(0, 1, 8000)
    b = cp.Variable(name="b")
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

    def likelihood(P):
        return (np.trace(P @ moment) - np.linalg.slogdet(P)[1]) / 2

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
