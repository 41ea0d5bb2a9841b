"""Splines of columns: their rows fit the ball, depend on their record alone, and cover the declared bounds."""

import warnings

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

import dpconvex as dp
from dpconvex.features.splines import GRID, Axis, usual_knots

GRADES = ["low", "middle", "high"]
SCHEMA = dp.Schema(
    {
        "age": dp.Numeric(0, 100, missing="indicator"),
        "gain": (0, 1000),
        "grade": dp.Ordered(GRADES),
        "ward": dp.Categorical(["a", "b", "c"], missing="indicator"),
        "day": dp.Date("2020-01-01", "2020-12-31"),
    },
    "sick",
    ["no", "yes"],
)


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
    table, encoder = people(500), dp.SplineEncoder(SCHEMA, pairs=pairs)
    found = encoder.fit_transform(table)
    lengths = np.linalg.norm(found, axis=1)
    assert 0.7 < lengths.min() <= lengths.max() <= 1
    assert found.shape[1] == len(encoder.get_feature_names_out())
    for k in (0, 7, 499):
        one = encoder.transform({name: column[k : k + 1] for name, column in table.items()})
        np.testing.assert_array_equal(one[0], found[k])
    assert encoder.transform({name: column[:0] for name, column in table.items()}).shape == (0, found.shape[1])


def test_the_longest_rows_are_at_knots_and_of_length_1():
    schema = dp.Schema({"age": (0, 1)}, "sick", ["no", "yes"])
    rows = dp.SplineEncoder(schema).transform({"age": np.linspace(0, 1, 2**12 + 1)})
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1, abs=1e-11)


def test_values_at_knots_have_the_prior_covariance():
    axis = Axis("age", dp.Numeric(0, 1), usual_knots(dp.Numeric(0, 1)))
    prior = axis.root @ axis.root.T
    assert np.ptp(np.diag(prior)) < 0.6 * np.diag(prior).max()
    assert (np.diff(prior[0]) < 0.02).all()  # the farther apart, the less alike
    assert axis.root.shape[1] < len(axis.knots) / 2


def test_hats_interpolate_levels_and_missing_values_have_nodes_of_their_own():
    encoder = dp.SplineEncoder(SCHEMA, knots={"age": [20, 50]})
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


def test_any_linear_learner_is_additive_behind_it_and_nobody_is_warned():
    table = people(3000)
    y = np.where((table["gain"] > 0) & (table["gain"] < 500), "yes", "no")
    model = make_pipeline(
        dp.SplineEncoder(SCHEMA), dp.LogisticRegression(epsilon=5, delta=1e-5, classes=("no", "yes"), seed=0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", dp.PrivacyWarning)
        assert model.fit(table, y).score(table, y) > 0.9


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "schema must be a Schema"),
        ({"schema": SCHEMA, "knots": {"weight": [1]}}, "none of the columns"),
        ({"schema": SCHEMA, "knots": {"age": [50, 20]}}, "rising order"),
        ({"schema": SCHEMA, "knots": {"age": [50, 200]}}, "rising order"),
        ({"schema": SCHEMA, "knots": {"age": [[1.0], [2.0]]}}, "rising order"),
        ({"schema": SCHEMA, "knots": {"age": ["old"]}}, "rising order"),
        ({"schema": SCHEMA, "knots": {"ward": [0.5]}}, "no category"),
        ({"schema": SCHEMA, "kept": 1.0}, "kept must be"),
        ({"schema": SCHEMA, "kept": "all"}, "kept must be"),
        ({"schema": SCHEMA, "pairs": [("age", "age")]}, "pairs of two"),
        ({"schema": SCHEMA, "pairs": [("age", "weight")]}, "pairs of two"),
        ({"schema": SCHEMA, "pairs": ["age"]}, "pairs of two"),
    ],
)
def test_what_is_refused(options, said):
    with pytest.raises(dp.errors.TemplateError, match=said):
        dp.SplineEncoder(**options).fit({})
