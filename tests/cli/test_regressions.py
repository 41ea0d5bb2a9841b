"""The command line: a model of numbers, from the fit to its evaluation."""

import numpy as np
import pandas as pd

import dpconvex as dp


def test_a_regression_is_fitted_and_predicts_in_its_own_units(run):
    area = np.random.default_rng(5).integers(0, 100, 500)
    pd.DataFrame({"area": area, "rent": 500 + 20 * area}).to_csv("rents.csv", index=False)
    fit = "rents.csv --features area --bounds 0,100 --label rent --label-bounds 0,3000 --epsilon 20 --out model.npz"
    run(f"fit huber_regression {fit}", ends=0)
    told = run("predict model.npz rents.csv --json").json
    assert np.corrcoef(told["predictions"], area)[0, 1] > 0.99
    assert 0 < np.mean(told["predictions"]) < 3000
    found = run("evaluate model.npz rents.csv --epsilon 5 --json").json
    assert found["measure"] == "mean squared error of rent between 0 and 3,000"
    assert found["root_mean_square"] == found["error"] ** 0.5 < 1000
    pd.DataFrame({"area": area, "rent": 1500}).to_csv("equal.csv", index=False)
    told = run("evaluate model.npz equal.csv --epsilon 1 --seed 1 --json").json["numbers"]
    assert told["r2"]["interval"][0] is None  # a constant may have no error, and R² no lower end
    run(f"fit quantile_regression {fit} --epsilon 2 --size 500", ends=0)
    usual = dp.QuantileRegressor(epsilon=2.0, size=500, bounds=(0, 3000)).template(1).source[1]
    assert dp.Release.load("model.npz").source[1]["width"] == usual["width"]
    assert "the schema declares label_bounds; declare labels" in run(f"fit logistic_regression {fit}").err
    assert "targets to between -1 and 1; fit it in Python" in run(f"fit negative_binomial_regression {fit}").err
