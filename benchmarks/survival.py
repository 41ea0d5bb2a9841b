"""Survival tables of the package `survset`, untuned: ``python -m benchmarks survival [table ...] [--small] [--seeds 12]``.

Numbers are C-indices of test records, means over splits and draws, of `SurvivalRegressor` with its usual options at (epsilon,
1e-5), and of Cox without privacy.  A constant has 0.5.

Bounds of columns are those of the table, rounded outward by up to a tenth of their range, and levels are its levels: they stand
for what is known of a measurement.  Columns that tell the outcome are left out.
"""

import math
import time
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen, fewer, heading, heads, row, some_of
from benchmarks.glm import cells, encoded
from dpconvex.util.arrays import Array

DELTA, EPSILONS = 1e-5, (0.3, 1.0, 3.0)
SHARE = 0.7
# Tables with the columns that tell the outcome, or are scores of other models.
TABLES: dict[str, tuple[str, ...]] = {
    "flchain": ("fac_chapter",),
    "prostateSurvival": (),
    "support2": ("num_sps", "num_surv2m", "num_surv6m", "fac_sfdm2", "fac_dnr"),
    "Dialysis": (),
    "dataDIVAT1": (),
    "rhc": ("num_surv2md1", "num_aps1"),
    "dataDIVAT3": (),
    "nwtco": (),
    "smarto": (),
    "Aids2": (),
}


def outward(low: float, high: float) -> tuple[float, float]:
    """Round bounds outward to multiples of 1, 2 or 5 times a power of ten: of the first that is a tenth of the range or more."""
    tenth = (high - low) / 10 or 1.0
    power = 10.0 ** math.floor(math.log10(tenth))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= tenth * (1 - 1e-12))
    return math.floor(low / step) * step, math.ceil(high / step) * step


@lru_cache
def read(name: str) -> tuple[Array, Any, float]:
    """Return features in the unit ball, structured targets, and the largest time, from a table of `survset`."""
    from SurvSet.data import SurvLoader

    table = SurvLoader().load_dataset(ds_name=name)["df"].sample(frac=1.0, random_state=0)
    known: dict[str, Any] = {}
    for column in table.columns.drop(["pid", "event", "time", *TABLES[name]], errors="ignore"):
        if column.startswith("fac"):
            known[column] = np.unique(table[column].astype(str))[:50]
        else:
            known[column] = outward(float(table[column].min()), float(table[column].max()))
    event, end = table["event"].to_numpy() > 0, table["time"].to_numpy(dtype=float)
    y = np.array(list(zip(event, end, strict=True)), dtype=[("event", bool), ("time", float)])
    return encoded(table, known), y, outward(0.0, float(end.max()))[1]


def parts(name: str, seed: int) -> tuple[Array, Any, Array, Any, float]:
    """Return training and test records in an order of the seed, and the largest time."""
    x, y, largest = read(name)
    order = np.random.default_rng(seed).permutation(len(x))
    cut = round(SHARE * len(x))
    train, test = order[:cut][: fewer(cut)], order[cut:][: fewer(len(x))]
    return x[train], y[train], x[test], y[test], largest


def cox(x: Array, y: Any) -> Array:
    """Return coefficients of a Cox fit without privacy."""
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    y = np.array(list(zip(y["event"], np.maximum(y["time"], 1e-9), strict=True)), dtype=y.dtype)
    return np.asarray(CoxPHSurvivalAnalysis(alpha=1e-2).fit(x, y).coef_)


def measured(name: str, epsilons: Sequence[float], seed: int, others: bool) -> dict[str, list[float]]:
    """Return the C-index of each method at each epsilon."""
    x, y, x_test, y_test, largest = parts(name, seed)
    model = dp.SurvivalRegressor(bounds=(0.0, largest), delta=DELTA, adjacency="add-remove", size=len(x), seed=seed)
    rows: dict[str, list[Any]] = {"SurvivalRegressor": []}
    for epsilon in epsilons:
        fit = model.set_params(epsilon=epsilon).fit(x, y)
        rows["SurvivalRegressor"].append(fit.score(x_test, y_test))
    if others:
        rows["Cox, without privacy"] = [concordance(cox(x, y), x_test, y_test)] * len(epsilons)
    return rows


def concordance(coefficients: Array, x: Array, y: Any) -> float:
    from sksurv.metrics import concordance_index_censored

    return float(concordance_index_censored(y["event"], y["time"], x @ coefficients)[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    known = {"tables": some_of(TABLES), "--seeds": 12, "--alone": (False, "leave other methods out")}
    options = chosen(__doc__, arguments, known, seeds=1)
    epsilons = EPSILONS[1:2] if options.small else EPSILONS
    heading("table", "records", "method", *heads(epsilons))
    warnings.simplefilter("ignore")
    for name in options.tables or list(TABLES)[: 2 if options.small else None]:
        start = time.perf_counter()
        try:
            draws = [measured(name, epsilons, seed, not options.alone) for seed in range(options.seeds)]
        except ModuleNotFoundError as error:
            row(name, f"skipped: the package {error.name} is not found")
            continue
        size = fewer(round(SHARE * len(read(name)[0])))
        for method in draws[0]:
            values = np.array([draw[method] for draw in draws])
            row(name, f"{size:,}", method, cells(values.mean(axis=0)))
            if method == "SurvivalRegressor" and len(draws) > 1:
                row(name, f"{size:,}", f"{method}, worst", cells(values.min(axis=0)))
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
