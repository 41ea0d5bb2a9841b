"""Released statistics, coefficients, whitened releases: what they cost, what is fitted from them; nothing else leaves."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.certificates.integer_noise import LEVELS
from dpconvex.fitting.whitening import Whitening, second_moment
from dpconvex.mechanisms.private_whitening import calibrated
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, summation_error
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.moment_sums import moment_sums

PROMISE = dp.Privacy(1.0, 1e-6)
WEAK = dp.Privacy(1e7, 0.4)  # hardly any noise: what is fitted is what would be without privacy


def table(size=400, features=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.5, 0.5, size=(size, features))
    return {"x": x, "y": np.clip(x @ np.linspace(1, -1, features) + 0.1 * rng.standard_normal(size), -1, 1)}


def free(features=3):
    """Return least squares in the names of the shipped ridge regression, without its ball."""
    w = cp.Variable(features, name="w")
    record = dp.Record(x=dp.Ball(features), y=dp.Box(-1.0, 1.0))
    return dp.Template(record, lambda x, y: cp.square(x @ w - y) / 2, predict=lambda p, x: x @ p["w"])


def test_without_noise_fits_are_those_of_least_squares_with_any_regularizer_and_any_set():
    data = table()
    found = dp.statistics(free(), data, WEAK)
    x, y, n = data["x"], data["y"], len(data["y"])
    exact = np.linalg.solve(x.T @ x, x.T @ y)
    assert found.fit(ridge=0.0)["w"] == pytest.approx(exact, abs=1e-3)
    ridge = dp.load("ridge_regression", features=3, regularization=0.5, bound=10.0)
    assert found.fit(ridge)["w"] == pytest.approx(np.linalg.solve(x.T @ x + 0.5 * n * np.eye(3), x.T @ y), abs=1e-3)
    w = cp.Variable(3, name="v")
    picky = dp.Template(
        ridge.record, lambda x, y: 3 * cp.square(y - x @ w), 0.03 * cp.norm1(w), [w >= 0, cp.sum(w) <= 0.7]
    )
    goal = 3 * cp.sum_squares(y - x @ w) + n * 0.03 * cp.norm1(w)
    cp.Problem(cp.Minimize(goal), [w >= 0, cp.sum(w) <= 0.7]).solve()
    assert found.fit(picky)["v"] == pytest.approx(w.value, abs=1e-3)


def test_releases_are_noisy_sums_on_a_grid():
    data, template, mechanism = table(), free(), SufficientStatistics(weight=1.0)
    moments = mechanism.moments(LossForm(template), "replace-one")
    exact = moment_sums(moments, template.record.validate(data))
    certificate = dp.verify(template, PROMISE, 400, mechanism)
    steps = dp.statistics(template, data, PROMISE, mechanism).values / certificate.cover.step
    assert (steps == np.rint(steps)).all()
    draws = np.array([dp.statistics(template, data, PROMISE, mechanism, seed=k).values - exact for k in range(60)])
    assert np.sqrt(np.mean(draws**2)) == pytest.approx(certificate.noise_scale, rel=0.2)
    assert np.abs(draws.mean(axis=0)).max() < 5 * certificate.noise_scale / np.sqrt(60)


def test_computed_sums_are_as_near_to_the_exact_ones_as_is_covered():
    rng = np.random.default_rng(3)
    template = free(2)
    moments = SufficientStatistics(weight=1.0).moments(LossForm(template), "replace-one")
    for x in (np.full((10**4, 2), 0.1), rng.uniform(-0.7, 0.7, (10**4, 2))):
        y = np.resize([1 / 3, -0.7], 10**4)
        found = moment_sums(moments, template.record.validate({"x": x, "y": y}))
        a, b, t = (column.astype(np.longdouble) for column in (x[:, 0], x[:, 1], y))
        exact = np.array(
            [(a * a).sum(), np.sqrt(np.longdouble(2)) * (a * b).sum(), (b * b).sum(), (a * t).sum(), (b * t).sum()]
        )
        assert np.linalg.norm((found - exact).astype(float)) <= summation_error(moments, np.sqrt(2), 10**4)


def test_saved_statistics_are_fitted_like_the_originals_to_templates_that_need_no_others(tmp_path):
    found = dp.statistics(free(), table(), PROMISE)
    found.save(tmp_path / "sums.npz")
    back = dp.Statistics.load(tmp_path / "sums.npz", free())
    assert repr(back) == repr(found) == "Statistics(9 sums; spent: epsilon = 1, delta = 1e-06, replace-one)"
    assert (back.fit()["w"] == found.fit()["w"]).all()
    assert back.certificate == found.certificate
    with pytest.raises(dp.TemplateError, match="template must be a Template"):
        dp.Statistics.load(tmp_path / "sums.npz").fit()
    with pytest.raises(dp.DPConvexError, match="damaged, or is not a statistics"):
        dp.Statistics.from_bytes(found.fit().to_bytes())
    w, b = cp.Variable(3, name="w"), cp.Variable(name="b")
    with pytest.raises(dp.TemplateError, match=r"the sum over the records of (x|y)\[0\]"):
        found.fit(dp.Template(free().record, lambda x, y: cp.square(x @ w + b - y)))
    with pytest.raises(dp.TemplateError, match="the template declares"):
        found.fit(free(4))
    # Noise alone leaves two directions without curvature, for this seed.
    with pytest.raises(dp.NotConverged, match="no single minimiser"):
        dp.statistics(free(), table(4), dp.Privacy(0.01, 1e-6), seed=3).fit(ridge=0.0)


@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
def test_ledgers_know_how_statistics_are_told_apart(noise):
    budget = dp.Budget(dp.Privacy(2.0, 1e-5), accounting="gaussian" if noise == "gaussian" else "renyi")
    found = dp.statistics(free(), table(), dp.Privacy(0.5, 1e-6), dp.SufficientStatistics(noise), budget=budget)
    (spend,) = budget.entries
    assert spend.event == found.certificate.event
    own = next(iter(spend.known.leaves()))
    if noise == "gaussian":
        # One record's statistics are that many deviations from another's, which is what was calibrated.
        assert own.level()[0] == pytest.approx(found.certificate.sensitivity / found.certificate.noise_scale)
    else:
        assert 0.98 * 0.5 <= own.renyi(1e9)[0] <= 0.5


# Whitened records
DESCENT = dp.NoisyGradientDescent(clip=0.3)


def flat(count):
    """Records with one long direction that says nothing, and a short one that says all."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=count) * 2 - 1
    x = np.column_stack([np.ones(count), 0.02 * y, 0.02 * rng.normal(size=count)])
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


def template():
    return dp.load("logistic_regression", features=3, regularization=0)


def test_one_record_moves_exact_sums_by_its_squared_length():
    rng = np.random.default_rng(0)
    x = dp.Ball(5, radius=2.0).sample(50, rng)
    whole = second_moment(x, 5, 2.0)
    assert (whole == second_moment(sp.csr_array(x), 5, 2.0)).all()
    assert whole / LEVELS**2 == pytest.approx(x.T @ x / 4, abs=50 * 3 / LEVELS)
    longest = apart = 0.0
    for k in range(50):
        fewer = second_moment(np.delete(x, k, axis=0), 5, 2.0)
        longest = max(longest, float(np.linalg.norm((whole - fewer).astype(float))) / LEVELS**2)
        changed = x.copy()
        changed[k] = 2.0 * np.eye(5)[k % 5]
        apart = max(apart, float(np.linalg.norm((whole - second_moment(changed, 5, 2.0)).astype(float))) / LEVELS**2)
    bounds = [
        calibrated("x", dp.Ball(5), dp.Privacy(1.0, adjacency=adjacency), 1.0).sensitivity
        for adjacency in ("add-remove", "replace-one")
    ]
    assert 0.99 * bounds[0] <= longest <= bounds[0]
    assert 0.99 * bounds[1] <= apart <= bounds[1]
    assert (second_moment(np.zeros((0, 5)), 5, 2.0) == 0).all()


def test_a_record_is_whitened_by_itself():
    rng = np.random.default_rng(1)
    x = np.vstack([dp.Ball(40).sample(500, rng), np.zeros((1, 40))])
    whitening = Whitening("x", 3.0, rng.normal(size=(40, 40)))
    found = whitening(x)
    assert (np.linalg.norm(found, axis=1) <= 3.0).all()
    assert np.linalg.norm(found[:500], axis=1) == pytest.approx(3.0, rel=2e-5)  # but for their grid
    assert (found * 2.0**18 == np.rint(found * 2.0**18)).all()
    assert (found[500] == 0).all()
    assert (whitening(sp.csr_array(x)) == found).all()
    for k in range(0, 500, 97):  # to the last bit, whatever stands beside it
        assert (whitening(x[k : k + 1])[0] == found[k]).all()
        assert (whitening(x[k:])[0] == found[k]).all()
    straight = x[:500] @ whitening.matrix.T
    turned = 3.0 * straight / np.linalg.norm(straight, axis=1, keepdims=True)
    assert found[:500] == pytest.approx(turned, abs=1e-3)
    # With a least length, those that are shorter are no longer shortened, and the others weigh less.
    least = float(np.median(np.linalg.norm(straight, axis=1)))
    weighed = Whitening("x", 3.0, whitening.matrix, least)
    shorter, weights = weighed(x), weighed.weights(x)
    assert (np.linalg.norm(shorter, axis=1) <= 3.0).all()
    assert weights[:500] == pytest.approx(least / np.maximum(least, np.linalg.norm(straight, axis=1)), abs=1e-3)
    assert shorter == pytest.approx(found * np.minimum(1.0, np.linalg.norm(shorter, axis=1) / 3.0)[:, None], abs=2e-5)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_both_stages_are_paid_once_and_predictions_are_linear_in_original_features(adjacency):
    x, y = flat(200)
    promise, size = dp.Privacy(2.0, 1e-5, adjacency), None if adjacency == "replace-one" else 200
    budget, whitening = dp.Budget(promise), dp.PrivateWhitening()
    fit = dp.solve(template(), {"x": x, "y": y}, promise, DESCENT, size=size, whitening=whitening, budget=budget)
    assert fit.spent == promise
    assert [entry.privacy for entry in budget.entries] == [promise]
    again = dp.Release.from_bytes(fit.to_bytes(), template())
    assert again.certificate == fit.certificate
    assert (again.predict(x) == fit.predict(x)).all()
    turned = x @ fit.whitening.matrix.T
    scores = turned @ fit["w"] / np.linalg.norm(turned, axis=1) / np.linalg.norm(fit["w"])
    clear = np.abs(scores) > 2e-3  # directions of whitened records are rounded
    assert (np.sign(scores[clear]) == fit.predict(x)[clear]).all()
    with pytest.raises(dp.TemplateError, match="shape"):
        again.predict(x[:, :2])


# Statistics of whitened records
ADDED = dp.Privacy(1.0, 1e-5, "add-remove")
LITTLE = dp.Privacy(50.0, 0.4)  # hardly any noise
FIRST = {"mechanism": dp.SufficientStatistics(), "whitening": True}
SPREAD = np.array([1.0, 0.1, 0.1, 0.02])
TRUTH = np.array([0.3, 1.0, -1.0, 4.0])


def linear_table(size, spread=0.05):
    """Return records that vary much in one direction and little in others."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (size, 4)) * SPREAD
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    return {"x": x, "y": np.clip(x @ TRUTH + 0.1 + spread * rng.uniform(-1, 1, size), -1, 1)}


def linear():
    return dp.load("linear_regression", features=4, regularization=0.0)


def test_regularizer_and_constraints_speak_of_the_original_parameters():
    data = linear_table(100_000, spread=0.0)
    w, b = cp.Variable(4, name="w"), cp.Variable(name="b")
    picky = dp.Template(linear().record, lambda x, y: cp.square(x @ w + b - y) / 2, 0.0, [w <= 0.5, cp.norm(w) <= 2])
    found = dp.statistics(picky, data, LITTLE, whitening=True)
    weights = np.minimum(1.0, found.whitening.weights(data["x"]))
    goal = cp.sum_squares(cp.multiply(weights, data["x"] @ w + b - data["y"]))
    cp.Problem(cp.Minimize(goal), [w <= 0.5, cp.norm(w) <= 2]).solve(solver="CLARABEL")
    assert found.fit()["w"] == pytest.approx(w.value, abs=0.02)


def test_the_same_sums_from_memory_partitions_and_sparse_matrices():
    data, options = linear_table(900), {"size": 900, "seed": 3, **FIRST}
    exact = dp.statistics(linear(), data, ADDED, **options).values
    cut = [{name: column[k::1][:300] for name, column in data.items()} for k in (0, 300, 600)]
    for kind in (dp.Partitions(cut), {**data, "x": sp.csr_array(data["x"])}):
        assert dp.statistics(linear(), kind, ADDED, **options).values == pytest.approx(exact, abs=1e-9)


# Coefficients from noisy statistics: intervals hold as often as they say
RESIDUALS = dp.SufficientStatistics(residuals=True)


def linear_sums(truth, size, rng, spread=0.2):
    x = rng.standard_normal((size, len(truth) - 1))
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    return {"x": x, "y": np.clip(x @ truth[:-1] + truth[-1] + spread * rng.uniform(-1, 1, size), -1, 1)}


@pytest.mark.parametrize(
    ("size", "privacy", "noisy"),
    [
        (3000, PROMISE, True),
        (300, dp.Privacy(1e4, 1e-6), False),
        pytest.param(20000, dp.Privacy(0.5, 1e-6, "add-remove"), True, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover_the_truth_as_often_as_they_say(size, privacy, noisy):
    """With 400 intervals that hold independently with probability .95, fewer than .92 or more than .98 do once in a hundred."""
    truth, rng = np.array([0.5, -0.3, 0.2, 0.1]), np.random.default_rng(1)
    learner = dp.load("linear_regression", features=3)
    held, without, moved = [], [], []
    for seed in range(100):
        data = linear_sums(truth, size, rng)
        found = dp.coefficients(dp.statistics(learner, data, privacy, RESIDUALS, size=size, seed=seed))
        held.append((found.lower < truth) & (truth < found.upper))
        sampling = np.sqrt(found.standard_errors**2 - found.noise_errors**2)
        without.append(np.abs(found.estimates - truth) < 1.96 * sampling)
        moved.append((found.estimates - truth) / found.standard_errors)
    assert 0.92 <= np.mean(held) <= 0.98
    assert np.abs(np.mean(moved, axis=0)).max() < 0.4
    assert (float(np.mean(without)) < 0.7) is noisy  # errors that do not count the noise are far too small


def test_without_noise_it_is_ordinary_least_squares():
    truth, rng = np.array([0.4, 0.4, 0.0]), np.random.default_rng(2)
    data = linear_sums(truth, 500, rng)
    learner = dp.load("linear_regression", features=2, regularization=5.0)  # a penalty plays no part
    found = dp.coefficients(dp.statistics(learner, data, dp.Privacy(1e6, 0.4), RESIDUALS))
    design = np.column_stack([data["x"], np.ones(500)])
    exact, squares, *_ = np.linalg.lstsq(design, data["y"], rcond=None)
    variance = squares[0] / (500 - 3)
    assert found.estimates == pytest.approx(exact, abs=1e-3)
    assert found.residual_deviation == pytest.approx(np.sqrt(variance), rel=1e-2)
    errors = np.sqrt(np.diag(variance * np.linalg.inv(design.T @ design)))
    assert found.standard_errors == pytest.approx(errors, rel=1e-2)
    assert found.names == ("w[0]", "w[1]", "b")
    assert "95 % intervals" in str(found)


def test_what_cannot_be_known_is_refused():
    rng = np.random.default_rng(3)
    data = linear_sums(np.array([0.4, 0.4, 0.0]), 500, rng)
    learner = dp.load("linear_regression", features=2)
    with pytest.raises(dp.TemplateError, match="residuals=True"):
        dp.coefficients(dp.statistics(learner, data, PROMISE))
    with pytest.raises(dp.NotConverged, match=r"noise alone.*whitening=True"):
        dp.coefficients(dp.statistics(learner, data, dp.Privacy(0.01, 1e-6), RESIDUALS))
    with pytest.raises(
        dp.NotConverged, match=r"no standard errors hold\. About .* times the records, or the epsilon, help"
    ):
        dp.coefficients(dp.statistics(learner, data, dp.Privacy(0.01, 1e-6), RESIDUALS, whitening=True))
    classes = dp.load("least_squares_classifier", features=2)
    sums = dp.statistics(classes, {"x": data["x"], "y": (data["y"] > 0).astype(int)}, PROMISE, RESIDUALS)
    with pytest.raises(dp.TemplateError, match=r"not released|several"):
        dp.coefficients(sums)
