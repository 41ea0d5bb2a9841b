"""Regressors with a log link: against scikit-learn's, with exposures and weights, and refused before payment."""

import numpy as np
import pytest
from learners_of_tests import pieces
from sklearn import linear_model

import dpconvex as dp

RNG = np.random.default_rng(0)
SIZE = 4000
X = dp.Ball(3).project(RNG.normal(size=(SIZE, 3)) * 0.4)
YEARS, WEIGHTS = RNG.uniform(0.1, 3, SIZE), RNG.uniform(0.5, 2, SIZE)
MEAN = YEARS * np.exp(X @ [1.5, -1.0, 0.0] + 0.3)
COUNTS, AMOUNTS = RNG.poisson(MEAN).clip(0, 60).astype(float), (MEAN * RNG.gamma(2, 0.5, SIZE)).clip(1e-3, 60)
KINDS = {dp.PoissonRegressor: (COUNTS, 1.0), dp.GammaRegressor: (AMOUNTS, 2.0), dp.TweedieRegressor: (COUNTS, 1.5)}
PUBLIC = {"bounds": (0, 60), "exposure": 3.0, "weight": 2.0}
EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def known(kind, y, weight, **options):
    options = {"alpha": 1e-6, "max_iter": 10_000, "tol": 1e-9, "link": "log"} | options
    return linear_model.TweedieRegressor(power=KINDS[kind][1], **options).fit(X, y, sample_weight=weight)


@EVERY
def test_a_private_fit_is_near_that_of_scikit_learn(kind):
    y = KINDS[kind][0]
    model = kind(epsilon=20.0, delta=1e-5, seed=1, **PUBLIC).fit(X, y, sample_weight=WEIGHTS, exposure=YEARS)
    other = known(kind, y / YEARS, WEIGHTS * YEARS)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=0.1)
    assert model.intercept_ == pytest.approx(other.intercept_, abs=0.1)
    np.testing.assert_allclose(model.predict(X), np.exp(X @ model.coef_ + model.intercept_), rtol=1e-12)
    best = other.score(X, y / YEARS, sample_weight=WEIGHTS * YEARS)
    assert best - 0.01 < model.score(X, y, sample_weight=WEIGHTS, exposure=YEARS) < best + 1e-6
    assert model.release_.certificate.check().unreplayed == ()


@pytest.mark.sampled(3)
@EVERY
@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_alpha_is_that_of_scikit_learn(kind, alpha):
    y = AMOUNTS  # of one unit of exposure
    model = kind(alpha=alpha, bounds=(0, 60), bound=50.0, fit_intercept=True, intercept_scaling=1.0)
    target = (y / 30 - 1).clip(-1, 1)
    fit = dp.solve_without_privacy(model.template(3), {"x": X, "y": target}, tolerance=1e-6)
    np.testing.assert_allclose(fit["w"], known(kind, y, None, alpha=alpha).coef_, atol=2e-4)


@EVERY
def test_without_a_delta_parameters_are_bounded_and_units_do_not_matter(kind):
    y = KINDS[kind][0]
    models = (kind(epsilon=8.0, bounds=(0, 60 * unit), exposure=3.0, seed=1) for unit in (1, 100))
    fits = [model.fit(X, y * unit, exposure=YEARS) for model, unit in zip(models, (1, 100), strict=True)]
    np.testing.assert_allclose(fits[1].predict(X), 100 * fits[0].predict(X), rtol=1e-3)
    assert np.linalg.norm(fits[0].coef_) <= 1 + 1e-9
    assert fits[0].score(X, y, exposure=YEARS) > 0.1
    assert fits[0].release_.certificate.check().unreplayed == ()
    far = kind(epsilon=8.0, bounds=(0, 60), exposure=3.0, radius=1000.0, seed=1).fit(1000 * X, y, exposure=YEARS)
    np.testing.assert_allclose(far.predict(1000 * X), fits[0].predict(X), rtol=1e-3)  # a bound of 1 was refused


def test_partitions_people_and_copies_are_fitted_alike(tmp_path):
    options = {"epsilon": 5.0, "delta": 1e-5, "seed": 3, "adjacency": "add-remove", "size": SIZE, **PUBLIC}
    model = dp.PoissonRegressor(**options).fit(X, COUNTS, sample_weight=WEIGHTS, exposure=YEARS)
    columns = {"x": X, "y": COUNTS, "exposure": YEARS, "weight": WEIGHTS}
    parts = dp.Partitions(pieces(columns, range(0, SIZE + 1, 1000)))
    apart = dp.PoissonRegressor(**options).fit(parts)
    np.testing.assert_allclose(apart.coef_, model.coef_, atol=1e-9)
    with pytest.raises(dp.TemplateError, match="of partitions as"):
        dp.PoissonRegressor(**options).fit(parts, exposure=YEARS)
    with pytest.raises(dp.DomainError, match=r"missing: .'exposure', 'weight'"):
        dp.PoissonRegressor(**options).fit(dp.Partitions([{"x": X, "y": COUNTS}]))
    ones = dp.PoissonRegressor(**options).fit(X, COUNTS, exposure=np.ones(SIZE))
    given = dp.PoissonRegressor(**options).fit(X, COUNTS, np.ones(SIZE), np.ones(SIZE))
    np.testing.assert_array_equal(given.coef_, ones.coef_)
    person = dp.PoissonRegressor(**options, unit="person", most=4)
    person.fit(X, COUNTS, exposure=YEARS, unit=np.arange(SIZE) // 4)
    assert person.score(X, COUNTS, exposure=YEARS) > 0.3
    records, promise = model.records(X, COUNTS, exposure=YEARS, sample_weight=WEIGHTS), dp.Privacy(90.0, 1e-6)
    np.testing.assert_allclose(records["y"][:], COUNTS / 30 - 1)
    ratios = dp.intervals(model.template(3), model.release_, records, promise, seed=1).ratios()
    assert ratios.names == ("w[0]", "w[1]", "w[2]")  # exp of b is in units of the scaled target, and no ratio
    np.testing.assert_allclose(ratios.estimates, np.exp(model.coef_), rtol=0.2)
    with pytest.raises(dp.TemplateError, match="takes no exposure"):
        dp.LogisticRegression(seed=0).fit(X, COUNTS > 9).records(X, COUNTS > 9, exposure=YEARS)
    for call in (model.fit, model.score):  # exposures of 1 were taken in silence
        with pytest.raises(dp.TemplateError, match="pass exposure, because exposure=3 is declared"):
            call(X, COUNTS)
    columns, beside = dict.fromkeys("abc", (0, 1)), {"exposure": {"years": (0, 3)}, "weight": {"w": (0, 2)}}
    schema = dp.Schema(columns, "y", label_bounds=(0, 60), **beside)
    model.save(tmp_path / "model.npz", schema)
    loaded = dp.Release.load(tmp_path / "model.npz", template=dp.load)
    table = {**{name: X[:, k] + 0.5 for k, name in enumerate("abc")}, "y": COUNTS, "years": YEARS, "w": WEIGHTS}
    table = {name: np.clip(column, 0, 60 if name in ("y", "years", "w") else 1) for name, column in table.items()}
    with pytest.raises(dp.TemplateError, match="pass the exposures"):  # these would be totals for the largest exposure
        loaded.predict(schema.encode(table)[0])
    found = loaded.predict(**schema.records(table, fields=["exposure"]))
    expected = YEARS * model.predict(schema.encode(table)[0])
    np.testing.assert_allclose(30 * (found + 1), expected, rtol=1e-9)
    encoded = dp.PoissonRegressor(**options).fit(schema.encode(table)[0], COUNTS, sample_weight=WEIGHTS, exposure=YEARS)
    np.testing.assert_allclose(encoded.predict(schema.encode(table)[0]) * YEARS, 30 * (found + 1), rtol=0.3)
    bare = dp.Schema(columns, "y", label_bounds=(0, 60))
    named = dp.PoissonRegressor(**options).fit(bare.encode(table)[0], COUNTS, sample_weight=WEIGHTS, exposure=YEARS)
    assert named.release_.schema == bare  # reports name its columns
    with pytest.raises(dp.TemplateError, match="exposure"):
        model.save(tmp_path / "model.npz", dp.Schema(columns, "y", label_bounds=(0, 60)))


@EVERY
def test_targets_count_from_the_lower_bound_as_on_the_command_line(kind):
    table = {"a": X[:, 0] + 0.5, "cost": AMOUNTS + 20}
    schema = dp.learn_schema(table, dp.Privacy(2.0, 1e-6), label="cost", known={"cost": "number", "a": (-1, 2)}, seed=0)
    (low, high), (x, y) = schema.label_bounds, schema.encode(table)
    assert low > 1
    model = kind(epsilon=20.0, delta=1e-5, bounds=schema, seed=1).fit(x, y)
    template = dp.load(kind.problem, features=1, scaled=True, target=np.exp(3.0), constant=0.5)
    release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(20.0, 1e-5), seed=1)
    np.testing.assert_allclose(model.predict(x), schema.decode_target(release.predict(x)), rtol=0.02)
    np.testing.assert_allclose(model.predict(x), low + np.exp(x @ model.coef_ + model.intercept_), rtol=1e-9)
    inside = table["cost"].clip(low, high)
    assert kind(epsilon=20.0, delta=1e-5, bounds=(low, high), seed=1).fit(x, inside).score(x, inside) > 0.1
    assert model.score(x, inside) > 0.1
    with pytest.raises(dp.errors.TemplateError, match=r"bounds=\(0, 99\)"):  # the model would be one of amounts plus 1
        kind(epsilon=20.0, delta=1e-5, bounds=(-1, 99), seed=1).fit(x, AMOUNTS)


def test_totals_of_rare_counts_are_near_where_bounds_are_wide():
    rng, apart = np.random.default_rng(2), []
    x, years = dp.Ball(3).project(rng.uniform(-0.6, 0.6, (1000, 3))), rng.uniform(0.1, 1.0, 1000)
    y = rng.poisson(years * np.exp(x @ [1.4, -0.9, 0.5] - 1.0)).clip(0, 100).astype(float)
    for seed in range(6):
        promise = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove", "size": 1000}
        model = dp.PoissonRegressor(**promise, bounds=(0, 100), exposure=1.0, seed=seed)
        apart.append(abs(np.log((years * model.fit(x, y, exposure=years).predict(x)).sum() / y.sum())))
    assert np.mean(apart) < 0.15


def test_costs_within_bounds_forty_times_too_wide_are_not_far_from_a_constant():
    rng, explained = np.random.default_rng(2), []
    x = dp.Ball(3).project(rng.uniform(-0.6, 0.6, (3000, 3)))
    y = np.exp(x @ [1.4, -0.9, 0.5] + 1.3 * rng.normal(size=3000)) * (rng.random(3000) < 0.9)
    for seed in range(4):
        model = dp.TweedieRegressor(epsilon=0.3, delta=1e-5, bounds=(0, 40 * y.max()), seed=seed).fit(x, y)
        explained.append(model.score(x, y))
    assert np.mean(explained) > -0.35
