"""Moments: sums of quadratic losses exactly, refusals by name, and sensitivities that no records exceed, weighted or not."""

import cvxpy as cp
import numpy as np
import pytest
from refused import refused

import dpconvex as dp
from dpconvex.auditing.parts import StatisticsSearch
from dpconvex.expressions.evaluate import evaluate
from dpconvex.fitting.verify import form_of
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, summation_error
from dpconvex.noise.gaussian import gaussian_level
from dpconvex.optim.noisy_quadratic import NoisyQuadratic
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.moments import difference_bound, length_bound, quadratic_loss
from dpconvex.sums.moment_sums import moment_sums, record_moments


def random_template(rng):
    """Return a template of squares of random affine expressions, some of them weighted with fields."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    W, s = cp.Variable((d, k), name="W"), cp.Variable((2, 2), name="S", symmetric=True)
    domains = [dp.Ball(d, radius=float(rng.uniform(0.5, 3))), dp.Box(-np.ones(d), rng.uniform(1, 2, d))]
    domain, height = domains[int(rng.integers(2))], float(rng.uniform(0.5, 2))
    record = dp.Record(x=domain, t=dp.Box(0.0, height), y=dp.Choice(["a", "b", "c"]))
    table, offset = rng.normal(size=(3, k)), float(rng.integers(0, 2))
    curved = [
        lambda x, t, y: cp.sum_squares(x @ W - table["abc".index(y)] - offset),
        lambda x, t, y: t * cp.square(cp.sum(x @ W) + s[0, 1] * x[0] - t),
        lambda x, t, y: cp.square(cp.pnorm(x @ W, 2)) / 3 + (y == "b") * cp.square(cp.trace(s)),
        lambda x, t, y: cp.quad_form(W[0], np.eye(k) + 1) * t - cp.sum(W) * x[0],
    ]
    kept = [term for term in curved if rng.random() < 0.6] or curved[:1]
    return dp.Template(record, lambda x, t, y: sum(term(x, t, y) for term in kept))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_sums_of_losses_are_recovered_from_sums_of_moments(seed):
    rng = np.random.default_rng(seed)
    template = random_template(rng)
    form = LossForm(template)
    for counted in (True, False):
        moments = quadratic_loss(form).moments(1.5, True, counted)
        batch = template.record.sample(50, rng)
        values = np.append(moment_sums(moments, batch), batch.size)
        assert values[:-1] == pytest.approx(record_moments(moments, batch).sum(axis=0), rel=1e-9, abs=1e-9)
        noisy = NoisyQuadratic(quadratic_loss(form), moments, values, 1.0)
        for theta in rng.normal(size=(3, form.space.dim)):
            expected = 0.0
            for i in range(batch.size):
                fields = {name: np.asarray(column[i]) for name, column in batch.fields.items()}
                expected += float(evaluate(template.losses[batch.group[i]], {**form.space.unpack(theta), **fields}))
            found = theta @ (noisy.hessian @ theta) / 2 - noisy.slope @ theta + noisy.constant
            assert found == pytest.approx(expected, rel=1e-9)
            # The linear maps that noise goes through are those of the value and the gradient.
            if not counted:
                assert values[:-1] @ noisy.value_map(theta) == pytest.approx(expected, rel=1e-9)
                slope = noisy.gradient_map(theta) @ values[:-1]
                assert slope == pytest.approx(noisy.hessian @ theta - noisy.slope, rel=1e-8, abs=1e-8)


# How far records are apart.
def bounds_of(template, weight, residuals=False):
    loss = quadratic_loss(LossForm(template))
    moments = loss.moments(weight, residuals, True)
    return moments, length_bound(moments, loss.bases), difference_bound(moments, loss.bases)


w, u, b = cp.Variable(2, name="w"), cp.Variable(name="u"), cp.Variable(name="b")


def of(loss, **fields):
    return dp.Template(dp.Record(**fields), loss)


UNIT, THREE = dp.Box(-1.0, 1.0), dp.Choice([0, 1, 2])
TEMPLATES = {
    "offset": dp.load("linear_regression", features=2),
    "no target below 0": of(lambda x, y: cp.square(x @ w + b - y), x=dp.Ball(2), y=dp.Box(0.0, 1.0)),
    "scalars": of(lambda x, y: cp.square(x * u + b - y), x=dp.Box(-1.0, 2.0), y=UNIT),
    "weights": of(lambda x, t: t * cp.square(x @ w - 1), x=dp.Ball(2, norm=1), t=dp.Box(0.0, 1.0)),
    "labels": of(
        lambda x, t, y: (y + 1) * cp.square(x @ w - t) + cp.square(u - y),
        **{"x": dp.Box([0.0, -1.0], [1.0, 1.0]), "t": dp.Box(-0.5, 2.0), "y": THREE},
    ),
    "degree four": of(lambda x, y: cp.square(x * u + x**2 * b - y), x=UNIT, y=dp.Choice([-1, 1])),
    "location": of(lambda x: cp.sum_squares(w - x) / 2, x=dp.Ball(2)),
    "choices alone": of(lambda y: cp.square(u - y) + y * cp.sum_squares(w - np.eye(3)[y, :2]), y=THREE),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_no_two_records_are_farther_apart_and_some_nearly_are(name, residuals):
    template = TEMPLATES[name]
    moments, length, apart = bounds_of(template, 1.2, residuals)
    search = StatisticsSearch(form_of(template), moments, np.random.default_rng(5))
    alone, found = (search.farthest(adjacency)[1] for adjacency in ("add-remove", "replace-one"))
    assert alone <= length * (1 + 1e-12)
    assert found <= apart * (1 + 1e-12)
    assert alone >= 0.97 * length or name in ("weights", "labels")  # an l1 ball has fewer corners than its hull
    assert found >= 0.7 * apart


def test_records_that_hardly_differ_keep_a_sensitivity():
    _, _, apart = bounds_of(of(lambda x: cp.square(u - x), x=dp.Box(1e6, 1e6 + 1e-3)), 1.0)
    assert 1e-9 <= apart <= 1e-5


# Released statistics and coefficients: what they cost, what is fitted from them; nothing else leaves
PROMISE = dp.Privacy(1.0, 1e-6)


def table(size=400, features=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.5, 0.5, size=(size, features))
    return {"x": x, "y": np.clip(x @ np.linspace(1, -1, features) + 0.1 * rng.standard_normal(size), -1, 1)}


def free(features=3):
    """Return least squares in the names of the shipped ridge regression, without its ball."""
    w = cp.Variable(features, name="w")
    record = dp.Record(x=dp.Ball(features), y=dp.Box(-1.0, 1.0))
    return dp.Template(record, lambda x, y: cp.square(x @ w - y) / 2, predict=lambda p, x: x @ p["w"])


def test_releases_are_noisy_sums_on_a_grid():
    data, template, mechanism = table(), free(), SufficientStatistics(weight=1.0)
    exact = moment_sums(mechanism.moments(LossForm(template), "replace-one"), template.record.validate(data))
    certificate = dp.verify(template, PROMISE, 400, mechanism)
    steps = dp.statistics(template, data, PROMISE, mechanism).values / certificate.cover.step
    assert (steps == np.rint(steps)).all()
    draws = np.array([dp.statistics(template, data, PROMISE, mechanism, seed=k).values - exact for k in range(60)])
    assert np.sqrt(np.mean(draws**2)) == pytest.approx(certificate.noise_scale, rel=0.2)
    assert np.abs(draws.mean(axis=0)).max() < 5 * certificate.noise_scale / np.sqrt(60)


def test_computed_sums_are_as_near_to_the_exact_ones_as_is_covered():
    rng, template = np.random.default_rng(3), free(2)
    moments = SufficientStatistics(weight=1.0).moments(LossForm(template), "replace-one")
    for x in (np.full((10**4, 2), 0.1), rng.uniform(-0.7, 0.7, (10**4, 2))):
        y = np.resize([1 / 3, -0.7], 10**4)
        found = moment_sums(moments, template.record.validate({"x": x, "y": y}))
        a, b, t = (column.astype(np.longdouble) for column in (x[:, 0], x[:, 1], y))
        exact = np.array([a @ a, np.sqrt(np.longdouble(2)) * (a @ b), b @ b, a @ t, b @ t])
        assert np.linalg.norm((found - exact).astype(float)) <= summation_error(moments, np.sqrt(2), 10**4)


def test_saved_statistics_are_fitted_like_the_originals_to_templates_that_need_no_others(tmp_path):
    found = dp.statistics(free(), table(), PROMISE)
    found.save(tmp_path / "sums.npz")
    back = dp.Statistics.load(tmp_path / "sums.npz", free())
    assert repr(back) == repr(found) == "Statistics(9 sums; spent: epsilon = 1, delta = 1e-06, replace-one)"
    assert (back.fit()["w"] == found.fit()["w"]).all()
    assert back.certificate == found.certificate
    refused(dp.TemplateError, "template must be a Template", dp.Statistics.load(tmp_path / "sums.npz").fit)
    refused(dp.DPConvexError, "damaged, or is not a statistics", dp.Statistics.from_bytes, found.fit().to_bytes())
    w, b = cp.Variable(3, name="w"), cp.Variable(name="b")
    with pytest.raises(dp.TemplateError, match=r"the sum over the records of (x|y)\[0\]"):
        found.fit(dp.Template(free().record, lambda x, y: cp.square(x @ w + b - y)))
    refused(dp.TemplateError, "the template declares", found.fit, free(4))
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


# Coefficients from noisy statistics: intervals hold as often as they say
RESIDUALS = dp.SufficientStatistics(residuals=True)


def linear_sums(truth, size, rng, spread=0.2):
    x = dp.Ball(len(truth) - 1).project(rng.standard_normal((size, len(truth) - 1)))
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


def test_records_of_a_person_may_be_alike():
    """A person with two equal records tells no more than one of them; errors were a root of 2 too small."""
    learner = dp.load("linear_regression", features=3)
    data = linear_sums(np.array([0.5, -0.3, 0.2, 0.1]), 3000, np.random.default_rng(0))
    strong, of = dp.Privacy(1e4, 1e-6), np.repeat(np.arange(3000), 2)
    alone = dp.coefficients(dp.statistics(learner, data, strong, RESIDUALS, seed=0))
    twice, people = {name: field[of] for name, field in data.items()}, dp.Privacy(1e4, 1e-6, unit="person", most=2)
    both = dp.coefficients(dp.statistics(learner, twice, people, RESIDUALS, seed=0, unit=of))
    assert both.standard_errors == pytest.approx(alone.standard_errors, rel=0.02)


def test_saved_statistics_of_weighted_records_take_the_template_without_weights(tmp_path):
    learner = dp.load("linear_regression", features=3)
    data = linear_sums(np.full(4, 0.1), 300, np.random.default_rng(0))
    privacy = dp.Privacy(1e3, 1e-6, unit="person", most=2, keep="weights")
    found = dp.statistics(learner, data, privacy, RESIDUALS, unit=np.arange(300) // 2)
    found.save(tmp_path / "sums.json")
    assert dict(dp.Statistics.load(tmp_path / "sums.json", template=learner).fit()).keys() == found.fit(learner).keys()
    np.testing.assert_array_equal(dp.coefficients(found, learner).estimates, dp.coefficients(found).estimates)


@pytest.mark.parametrize("privacy", [dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)])
def test_noise_of_counts_is_told_before_payment(privacy):
    groups, count = ["a", "b", "c"], cp.Variable(3, name="count")
    learner = dp.Template(dp.Record(g=dp.Choice(groups)), lambda g: cp.square(count[groups.index(g)] - 1))
    told = dp.verify(learner, privacy, 300, dp.SufficientStatistics.usual(privacy)).deviation
    data = {"g": np.repeat(groups, 100)}
    off = [dp.statistics(learner, data, privacy, seed=seed).values - 100 for seed in range(60)]
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(told, rel=0.25)
    assert told == pytest.approx(np.sqrt(2) / gaussian_level(1.0, 1e-6) if privacy.delta else np.sqrt(8), rel=0.02)
