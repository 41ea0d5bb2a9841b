"""The command line: models of one number and of several, from the fit to its evaluation."""

from pathlib import Path

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


def test_models_of_several_numbers_can_be_read(run):
    """Intervals of a softmax regression were paid for, and neither printed nor saved."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(0, 100, 20_000), "y": rng.choice(["p", "q", "r"], 20_000)})
    table.assign(load=table["a"] / 100).to_csv("several.csv", index=False)
    Path("class.toml").write_text(
        'label = "y"\nlabels = ["p", "q", "r"]\nignore = ["load"]\n[features]\na = [0, 100]\n'
    )
    Path("load.toml").write_text('label = "load"\nlabel_bounds = [0, 10]\nignore = ["y"]\n[features]\na = [0, 100]\n')
    promise = "--epsilon 9 --delta 1e-6 --seed 1"
    run(f"fit softmax_regression several.csv --schema class.toml {promise} --out model.npz")
    assert "Pass --table" in run("coefficients model.npz", ends=2).err
    found = run(f"coefficients model.npz --table several.csv {promise} --json --out found.json", ends=0).json
    assert [row["name"] for row in found["parameters"]] == list(dp.Coefficients.load("found.json").names)
    run(f"fit quantile_fan several.csv --schema load.toml {promise} --out model.npz")
    assert run("predict model.npz several.csv").out.startswith("load[0],load[1],load[2]\n")
    assert "of load[1] between" in run("evaluate model.npz several.csv --epsilon 9 --target 1").out
