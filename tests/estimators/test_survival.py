"""Survival with structured targets, choices and comparisons: against likelihoods by hand and scikit-survival's measures."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import dpconvex as dp

RNG = np.random.default_rng(0)
SIZE = 2000
X = dp.Ball(2).project(RNG.uniform(-1, 1, (SIZE, 2)))
DEATH, END = RNG.exponential(5 * np.exp(-2 * X[:, 0])), RNG.uniform(0, 20, SIZE)
Y = np.array(list(zip(DEATH < END, np.minimum(DEATH, END), strict=True)), dtype=[("dead", bool), ("years", float)])
STEPS = {"epsilon": 4.0, "delta": 1e-6, "bounds": (0, 10), "seed": 0}


def of(*pairs):
    return np.array(list(pairs), dtype=[("event", bool), ("time", float)])


def fitted(**options):
    return dp.SurvivalRegressor(**STEPS | options).fit(X, Y)


def test_each_interval_says_who_dies_who_lives_through_it_and_who_is_not_seen():
    model = dp.SurvivalRegressor(bounds=(0, 10), intervals=(2, 5))
    np.testing.assert_array_equal(model.unique_times_, [2, 5, 10])
    y = of((True, 0), (True, 2), (True, 2.5), (False, 1), (False, 2), (False, 6), (True, 10), (True, 11), (False, 50))
    expected = [[1, 0, 0], [1, 0, 0], [-1, 1, 0], [-0.5, 0, 0], [-1, 0, 0], [-1, -1, -0.2], [-1, -1, 1]]
    expected += [[-1] * 3] * 2
    np.testing.assert_array_equal(model._lived_and_died(y), expected)
    np.testing.assert_allclose(dp.SurvivalRegressor(bounds=(0, 9), intervals=3).unique_times_, [3, 6, 9])


def test_a_time_whose_share_of_an_interval_overflows_leaves_no_warning():
    late = Y.copy()
    late[3] = (False, 1e308)
    dp.SurvivalRegressor(**STEPS, intervals=(0.5, 10)).fit(X, late)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"delta": 0.0}, {"adjacency": "add-remove", "size": SIZE}, {"intervals": 12}])
def test_a_private_fit_learns_and_its_proof_is_replayed(options):
    model = fitted(**options)
    assert model.release_.certificate.check().unreplayed == ()
    assert model.score(X, Y) > 0.69
    assert abs(model.coef_ - [2.2, 0.0]).max() < 1.2
    curves = model.predict_survival_function(X, return_array=True)
    assert curves.shape == (SIZE, len(model.unique_times_))
    assert (np.diff(curves, axis=1) <= 0).all()
    assert ((curves > 0) & (curves < 1)).all()
    first, end = model.predict_survival_function(X[:3])[0], model.unique_times_[0]
    np.testing.assert_allclose(first([0, end / 2, end]), [1, curves[0, 0] ** 0.5, curves[0, 0]], rtol=1e-12)
    assert model.predict_cumulative_hazard_function(X[:3])[0](10) == pytest.approx(-np.log(curves[0, -1]))
    with pytest.raises(dp.DomainError, match="from 0 to 10"):
        first(11)


def test_curves_at_the_median_time_beat_a_constant_where_most_events_are_in_the_first_interval():
    rng = np.random.default_rng(1)
    x = rng.uniform(-0.7, 0.7, (4000, 2))
    death = rng.exponential(np.exp(-3 * x[:, 0]))
    model = dp.SurvivalRegressor(**STEPS).fit(x, of(*zip(np.ones(4000, bool), np.minimum(death, 10), strict=True)))
    time = np.median(death)
    assert time < model.unique_times_[0] / 2
    alive, found = death > time, [curve(time) for curve in model.predict_survival_function(x)]
    assert np.mean((found - alive) ** 2) < 0.92 * 0.25  # 0.25: of the constant 1/2
    hazards = [curve(time) for curve in model.predict_cumulative_hazard_function(x)]
    np.testing.assert_allclose(np.exp(-np.array(hazards)), found, rtol=1e-12)


def test_frames_partitions_people_copies_and_searches_take_the_same_targets():
    model = fitted()
    frame = pd.DataFrame({"dead": Y["dead"], "years": Y["years"]})
    table = pd.DataFrame(X, columns=["a", "b"])
    for target in (pl.from_pandas(frame), pa.Table.from_pandas(frame), frame):
        framed = dp.SurvivalRegressor(**STEPS).fit(table, target)
        np.testing.assert_array_equal(framed.coef_, model.coef_)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(framed)).predict(table), model.predict(X), rtol=1e-12)
    added = {"adjacency": "add-remove", "size": SIZE}
    parts = dp.Partitions([{"x": X[part], "y": Y[part]} for part in (slice(0, 700), slice(700, None))])
    whole = fitted(**added)
    np.testing.assert_array_equal(dp.SurvivalRegressor(**STEPS | added).fit(parts).coef_, whole.coef_)
    people = dp.SurvivalRegressor(**STEPS | {"unit": "patient", "most": 2}).fit(X, Y, unit=np.arange(SIZE) // 2)
    assert people.score(X, Y) > 0.69
    with pytest.warns(dp.PrivacyWarning):
        assert (cross_val_score(clone(dp.SurvivalRegressor(**STEPS | {"seed": None})), X, Y, cv=2) > 0.6).all()
