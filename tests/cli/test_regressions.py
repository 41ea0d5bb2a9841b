"""The command line: models of one number and of several, from the fit to its evaluation."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

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


@pytest.mark.parametrize("problem", ["poisson_regression", "negative_binomial_regression", "gamma_regression"])
def test_counts_over_an_exposure_are_fitted_and_predicted(run, problem):
    """Exposures could not be fitted from a shell."""
    rng = np.random.default_rng(1)
    age, years = rng.uniform(0, 10, 4000), rng.uniform(0.2, 3, 4000)
    table = pd.DataFrame({"age": age, "years": years, "visits": rng.poisson(years * np.exp(0.2 * age)).clip(0, 60)})
    table.to_csv("visits.csv", index=False)
    Path("visits").mkdir()
    table[:1500].to_parquet("visits/a.parquet")
    table[1500:].to_parquet("visits/b.parquet")
    words = "--features age --bounds 0,10 --label visits --label-bounds 0,60 --epsilon 20 --delta 1e-6 --seed 1"
    for data in ("visits.csv", "visits"):
        run(f"fit {problem} {data} {words} --exposure years=0.2,3 --out {data}.npz", ends=0)
    name, rates = run("predict visits.csv.npz visits.csv --rate", ends=0).out.split("\n", 1)
    assert name == "visits per 1 of years"
    rates = np.array(rates.split(), float)
    np.testing.assert_allclose(np.log(rates), 0.2 * age, atol=0.25)
    totals = run("predict visits.csv.npz visits.csv --json", ends=0).json["predictions"]
    np.testing.assert_allclose(totals, years * rates)
    table.assign(years=50 * years).to_csv("long.csv", index=False)  # expected totals beyond the declared bounds
    far = run("predict visits.csv.npz long.csv --clip --json", ends=0).json["predictions"]
    np.testing.assert_allclose(far, 50 * years * rates)
    np.testing.assert_allclose(run("predict visits.npz visits.csv --json", ends=0).json["predictions"], totals)
    assert run("evaluate visits.csv.npz visits.csv --epsilon 9 --seed 1 --json").json["numbers"]["r2"]["value"] > 0.4
    paid = "--table visits.csv --epsilon 9 --delta 1e-6 --seed 1 --json"
    (low, high) = run(f"coefficients visits.csv.npz {paid}", ends=0).json["effects"][0]["interval"]
    assert low < 2 < high < 2.3
    beside = "--exposure years=3 --set exposure=5 --out m.npz"
    assert "leave exposure out" in run(f"fit poisson_regression visits.csv {words} {beside}").err
    assert "takes no exposure" in run(f"fit ridge_regression visits.csv {words} --exposure years=3 --out m.npz").err
    table.drop(columns="years").to_csv("new.csv", index=False)
    assert "no column 'years'" in run("predict visits.csv.npz new.csv", ends=2).err


def test_survival_is_fitted_as_in_python(run):
    """Times and events could not be fitted from a shell."""
    rng = np.random.default_rng(1)
    age, end = rng.uniform(0, 10, 3000), rng.uniform(0, 30, 3000)
    death = rng.exponential(20 * np.exp(-0.2 * age)).round()  # some at the ends of intervals
    table = pd.DataFrame({"age": age, "months": np.minimum(death, end), "died": np.where(death < end, 2, 1)})
    table.to_csv("deaths.csv", index=False)
    Path("deaths.toml").write_text(
        'label = "months"\nlabel_bounds = [0, 24]\n[features]\nage = [0, 10]\ndied = [1, 2]\n'
    )
    words = "fit discrete_hazards deaths.csv --schema deaths.toml --epsilon 4 --delta 1e-6 --seed 3 --out model.npz"
    assert "--event" in run(words, ends=2).err
    run(f"{words} --event died=1,2 --set intervals=[2,6,12]", ends=0)
    release = dp.Release.load("model.npz")
    options = {"epsilon": 4.0, "delta": 1e-6, "seed": 3, "bounds": (0, 24), "intervals": (2, 6, 12)}
    y = np.array(list(zip(death < end, table["months"], strict=True)), dtype=[("dead", bool), ("months", float)])
    model = dp.SurvivalRegressor(**options).fit(release.schema.records(table)["x"], y)
    np.testing.assert_allclose(model.release_["w"], release["w"])
    found = run("predict model.npz deaths.csv --json", ends=0).json["predictions"]
    curves = model.predict_survival_function((age / 5 - 1)[:, None], return_array=True)
    np.testing.assert_allclose(found, curves, rtol=1e-6)
    model.save("saved.npz", release.schema)
    with pytest.raises(dp.TemplateError, match="'time': 99"):
        model.save("other.npz", release.schema.with_label("months", label_bounds=(0, 99)))
    head = [f"probability of months > {end}" for end in (2, 6, 12, 24)]
    assert run("predict saved.npz deaths.csv", ends=0).out.split("\n")[0].split(",") == head
    assert "concordance" in run("evaluate saved.npz deaths.csv --epsilon 4").out
    assert "--rate is for" in run("predict saved.npz deaths.csv --rate", ends=2).err
    table.loc[5, "months"] = -1
    table.to_csv("wrong.csv", index=False)
    assert (
        "wrong.csv, line 7, column 'months'" in run(f"{words} --event died=1,2".replace("deaths.csv", "wrong.csv")).err
    )


def test_a_german_table_is_read_from_a_split_to_predictions(run):
    """Semicolons, decimal commas and days before months needed Python."""
    rng = np.random.default_rng(1)
    rooms, since = (
        rng.uniform(0, 9.99, 400).round(2),
        pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, 400), "D"),
    )
    table = pd.DataFrame({"id": np.arange(400) // 2, "rooms": rooms, "since": since, "rent": 1000 + 100 * rooms})
    table["since"] = table["since"].dt.strftime("%d.%m.%Y")
    table["rent"] = [f"{rent:,.2f}".translate(str.maketrans(",.", ".,")) for rent in table["rent"]]  # as 1.234,5
    table.to_csv("all.csv", sep=";", decimal=",", index=False)
    Path("s.toml").write_text(
        'label = "rent"\nlabel_bounds = [0, 4000]\nprivacy_unit = "id"\n[features]\nrooms = [0, 10]\n'
        'since = {dates = ["2020-01-01", "2023-12-31"]}\n'
    )
    run("split all.csv --unit id --out a.csv --test b.csv", ends=0)
    assert "--decimal-comma" in run("check-table s.toml a.csv", ends=2).out
    assert "0 break" in run("check-table s.toml a.csv --decimal-comma", ends=0).out
    run(
        "fit ridge_regression a.csv --schema s.toml --decimal-comma --most 2 --epsilon 90 --delta 1e-6 --out m.npz",
        ends=0,
    )
    lines = run("predict m.npz b.csv --decimal-comma --id id", ends=0).out.splitlines()
    found = np.array([line.split(",") for line in lines[1:]], dtype=float)
    rent = 1000 + 100 * rooms[np.isin(table["id"], found[:, 0])]
    assert abs(found[:, 1] - rent).max() < 100
    assert 'since = {dates = ["2020' in run("schema draft all.csv --label rent --decimal-comma", ends=0).out.replace(
        '"since"', "since"
    )


def test_pictures_that_an_evaluation_lacks_are_refused_before_it_pays(run):
    """An evaluation of a survival model was paid for, and its counts were lost to --roc."""
    run(
        "fit ridge_regression data.csv --features a --bounds 0,10 --label b --label-bounds 0,10 --epsilon 9 --out m.npz",
        ends=0,
    )
    paid = "evaluate m.npz data.csv --epsilon 1 --ledger l.jsonl --budget 1"
    assert "--roc is for two labels" in run(f"{paid} --roc r.png", ends=2).err
    assert "--residuals" in run(f"{paid} --measures error --residuals r.png", ends=2).err
    assert "--residuals r.xyz" in run(f"{paid} --residuals r.xyz", ends=2).err
    assert "the evaluation" in run(f"{paid} --out r.png --residuals r.png", ends=2).err
    assert not Path("l.jsonl").exists()
