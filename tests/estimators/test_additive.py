"""Additive models: curves add up, shapes are exact, and what is guaranteed is proved, paid, audited and replayed."""

import pickle
from fractions import Fraction
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from refused import refused
from sklearn.base import clone

import dpconvex as dp
from dpconvex import plots
from dpconvex.estimators.shapes import round_to_shape
from dpconvex.features.splines import GRID, default_knots

BOTH = {"age": dp.Numeric(0, 100), "dose": dp.Numeric(0, 100, missing="indicator"), "ward": dp.Categorical(["a", "b"])}
SCHEMA = dp.Schema(BOTH, "sick", ["no", "yes"])
PAIN = dp.Schema(BOTH, "pain", label_bounds=(0, 10))
TOLD = {"epsilon": 3.0, "delta": 1e-5, "seed": 0}
SHAPES = {"monotone": {"age": "increasing"}, "curvature": {"dose": "convex"}}


def drawn(size=4000, seed=1):
    rng = np.random.default_rng(seed)
    dose = rng.exponential(3, size).clip(0, 100).astype(object)
    dose[rng.random(size) < 0.1] = None
    table = {"age": rng.uniform(0, 100, size), "dose": dose, "ward": rng.choice(["a", "b"], size)}
    score = 3 * np.tanh((table["age"] - 50) / 15) + np.where(table["ward"] == "a", 1.0, -1.0)
    sick = np.where(score + rng.logistic(size=size) > 0, "yes", "no")
    return table, sick, np.clip(5 + score + rng.normal(size=size), 0, 10)


TABLE, SICK, PAINS = drawn()


def classifier(**options):
    return dp.AdditiveClassifier(SCHEMA, **TOLD | options)


def regressor(**options):
    return dp.AdditiveRegressor(PAIN, bounds=(0, 10), **TOLD | options)


@pytest.fixture(scope="module")
def shaped():
    return classifier(**SHAPES).fit(TABLE, SICK)


def rises(values, knots):
    """Return the exact slopes between knots."""
    steps = zip(values, values[1:], np.diff(knots), strict=False)
    return [(Fraction(b) - Fraction(a)) / Fraction(gap) for a, b, gap in steps]


def slopes(shape):
    knots = shape.block.axes[0].knots
    return rises(shape.values[: len(knots)], knots)


# Shapes
@given(st.lists(st.floats(-50, 50), min_size=5, max_size=5), st.sampled_from([-1, 0, 1]), st.sampled_from([-1, 0, 1]))
def test_shapes_are_exact_and_what_has_one_is_hardly_moved(values, monotone, curvature):
    knots = np.round(np.array([0, 0.001, 0.3, 0.7, 1]) / GRID) * GRID
    found = round_to_shape(np.array(values), knots, monotone, curvature)
    exact = rises(found, knots)
    assert all(monotone * slope >= 0 for slope in exact)
    assert all(curvature * (b - a) >= 0 for a, b in pairwise(exact))
    np.testing.assert_allclose(round_to_shape(found, knots, monotone, curvature), found, rtol=0, atol=1e-6)


FLOATS = st.floats(0, 100)
AT_KNOTS = [np.nextafter(100 * knot, end) for knot in default_knots(BOTH["age"])[1:-1] for end in (-1, 100 * knot, 200)]


@settings(max_examples=300, deadline=None)
@given(age=FLOATS | st.sampled_from(AT_KNOTS), more=FLOATS, dose=st.none() | FLOATS, ward=st.sampled_from("ab"))
def test_scores_never_fall_to_the_last_bit(shaped, age, more, dose, ward):
    ages = np.unique(np.clip([age, np.nextafter(age, 200), age + 1e-9, age + more], 0, 100))
    found = shaped.decision_function({"age": ages, "dose": [dose] * len(ages), "ward": [ward] * len(ages)})
    assert (np.diff(found) >= 0).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{}, {"delta": 0.0}, {"epsilon": 0.2}])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_declared_shapes_hold_in_every_release(make, options):
    model = make(**SHAPES | options).fit(TABLE, SICK if make is classifier else PAINS)
    assert all(slope >= 0 for slope in slopes(model.shapes_["age"]))
    bends = slopes(model.shapes_["dose"])
    assert all(b >= a for a, b in pairwise(bends))
    free = make(**options).fit(TABLE, SICK if make is classifier else PAINS)
    assert min(slopes(free.shapes_["age"])) < 0


# What is learnt
def test_regressions_are_in_the_units_of_the_target():
    model, (table, _, pain) = regressor().fit(TABLE, PAINS), drawn(seed=2)
    assert model.score(table, pain) > 0.8
    shape = model.shapes_["age"]
    at = dict(zip(shape.nodes[0], shape.values, strict=True))
    assert 4 < at[75.0] - at[25.0] < 7  # 5.6 by what was drawn from
    free = regressor(delta=0.0, epsilon=100.0).fit(TABLE, PAINS)
    assert free.release_.certificate.privacy == dp.Privacy(100.0)
    assert free.score(table, pain) > 0.85


# What is promised
@pytest.mark.parametrize("make", [classifier, regressor])
def test_fits_are_certified_replayed_and_paid_once(make):
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    y = SICK if make is classifier else PAINS
    model = make(budget=budget, **SHAPES).fit(TABLE, y)
    assert [entry.privacy.epsilon for entry in budget.entries] == [3.0]
    certificate = model.release_.certificate
    assert certificate == model.certificate(3, 4000)
    assert not certificate.check().unreplayed
    refused(dp.BudgetExceeded, None, make(budget=budget).fit, TABLE, y)
    found = dp.evaluate(model.template(3), model.release_, model.records(TABLE, y), dp.Privacy(9.0))
    assert float(found.error) < 0.5 * float(found.constant)


@pytest.mark.parametrize("delta", [0.0, pytest.param(1e-5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [classifier, pytest.param(regressor, marks=pytest.mark.slow)])
def test_no_claim_is_broken(make, delta):
    model = make(delta=delta, knots={"age": [50], "dose": [50]}, monotone={"age": "increasing"})
    ways = model._ways()
    if delta == 0 and make is classifier:
        ways = {"mechanism": dp.ObjectivePerturbation()}
        model.monotone = None  # attacks are on answers without constraints
    assert dp.audit(model.template(3), model.privacy(), size=500, effort=0.1, seed=0, **ways).holds


def test_copies_pickles_and_pictures(shaped, tmp_path):
    for again in (pickle.loads(pickle.dumps(shaped)), clone(shaped).fit(TABLE, SICK)):
        np.testing.assert_array_equal(again.decision_function(TABLE), shaped.decision_function(TABLE))
    pair = classifier(pairs=[("age", "ward")]).fit(TABLE, SICK)
    plots.shapes(pair).savefig(tmp_path / "shapes.png", dpi=40)
    assert (tmp_path / "shapes.png").stat().st_size > 1000
    refused(dp.errors.TemplateError, "no curve", plots.shapes, {})


@pytest.mark.parametrize("seed", range(3))
def test_a_pure_fit_against_both_shapes_of_a_column_is_released(seed):
    table, schema = {"b": np.linspace(-3, 3, 1500)}, dp.Schema({"b": (-3, 3)}, "y", ["n", "p"])
    shapes = {"monotone": {"b": "decreasing"}, "curvature": {"b": "convex"}}
    model = dp.AdditiveClassifier(schema, epsilon=1.0, classes=("n", "p"), seed=seed, **shapes)
    curve = model.fit(table, np.where(table["b"] > 0, "p", "n")).shapes_["b"]
    assert (np.diff(curve.values) <= 0).all()


def test_what_is_refused_besides(shaped):
    refused(dp.errors.TemplateError, "pass bounds=schema", regressor().set_params(bounds=(0, 5)).fit, TABLE, PAINS)
    refused(dp.errors.TemplateError, "3 columns", shaped.template, 5)
    refused(dp.errors.DPConvexError, None, shaped.fit, dp.Partitions([{"x": np.zeros((5, 3)), "y": np.zeros(5)}]))


# Splines of columns: their rows fit the ball, depend on their record alone, and cover the declared bounds
GRADES = ["low", "middle", "high"]
MANY = {"age": dp.Numeric(0, 100, missing="indicator"), "gain": (0, 1000), "grade": dp.Ordered(GRADES)}
MANY |= {"ward": dp.Categorical(["a", "b", "c"], missing="indicator"), "day": dp.Date("2020-01-01", "2020-12-31")}
SPLINED = dp.Schema(MANY, "sick", ["no", "yes"])


def people(size, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, size).round(1).astype(object)
    age[rng.random(size) < 0.1] = None
    days = np.datetime64("2020-01-01") + rng.integers(0, 365, size)
    ward = rng.choice(np.array(["a", "b", "c", None], dtype=object), size)
    gain = np.where(rng.random(size) < 0.5, 0.0, rng.uniform(0, 1000, size))
    return {"age": age, "gain": gain, "grade": rng.choice(GRADES, size), "ward": ward, "day": days.astype(str)}


@pytest.mark.parametrize("pairs", [(), [("age", "gain"), ("grade", "ward")]])
def test_rows_are_no_longer_than_1_and_depend_on_their_record_alone(pairs):
    table, encoder = people(500), dp.SplineEncoder(SPLINED, pairs=pairs)
    found = encoder.fit_transform(table)
    lengths = np.linalg.norm(found, axis=1)
    assert 0.7 < lengths.min() <= lengths.max() <= 1
    assert found.shape[1] == len(encoder.get_feature_names_out())
    for k in (0, 7, 499):
        one = encoder.transform({name: column[k : k + 1] for name, column in table.items()})
        np.testing.assert_array_equal(one[0], found[k])
    assert encoder.transform({name: column[:0] for name, column in table.items()}).shape == (0, found.shape[1])


def test_hats_interpolate_levels_and_missing_values_have_nodes_of_their_own():
    encoder = dp.SplineEncoder(SPLINED, knots={"age": [20, 50]})
    encoded = encoder.encoded({name: column[:3] for name, column in people(3).items()} | {"age": [0, 35, None]})
    blocks = {block.name: block for block in encoder.blocks()}
    np.testing.assert_allclose(blocks["age"].axes[0].knots, [0, 0.2, 0.5, 1], atol=GRID)
    hats = blocks["age"].hats(encoded).toarray()
    np.testing.assert_allclose(hats, [[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 1]], atol=1e-5)
    assert blocks["age"].axes[0].names.tolist() == pytest.approx([0, 20, 50, 100, "missing"], abs=1e-4)
    assert blocks["ward"].axes[0].names.tolist() == ["a", "b", "c", "missing"]
    assert blocks["grade"].axes[0].names.tolist() == GRADES
    for block in encoder.blocks():
        np.testing.assert_allclose(block.hats(encoded).sum(axis=1), 1)


def test_curves_with_a_delta_have_a_constant_of_their_own_that_a_file_keeps(tmp_path):
    schema = dp.Schema({"age": (0, 100)}, "cost", label_bounds=(0, 1000))
    table = {"age": np.arange(2000) % 100}
    cost = 40 + 0.2 * table["age"]
    model = dp.AdditiveRegressor(schema, epsilon=3.0, delta=1e-5, bounds=(0, 1000), seed=0).fit(table, cost)
    assert np.square(model.predict(table) - cost).mean() < np.var(cost)
    model.save(tmp_path / "model.npz")
    again = dp.AdditiveRegressor.read(dp.Release.load(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
