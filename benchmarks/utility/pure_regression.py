"""Least squares under pure guarantees: released sums against `dp.Ridge`, by how far squares can stand out of their noise.

``python -m benchmarks.utility.pure_regression`` fits both to synthetic tables; `dpconvex.estimators.regressors.FAR` was set by
the table of docs/estimators.md that it prints.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

import dpconvex as dp

# Records, numbers, and levels of each category.
SHAPES: list[tuple[int, int, tuple[int, ...]]] = [
    *((1000, 3, ()), (5000, 3, (3,)), (5000, 4, (4, 5)), (5000, 6, (2,))),
    *((20000, 5, (6, 7)), (20000, 10, (3,)), (3000, 8, (8, 8)), (50000, 8, (10,))),
]
EPSILONS, DRAWS = (0.1, 0.3, 1.0, 3.0), 12
EDGES = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, np.inf)


def table(size: int, numbers: int, levels: tuple[int, ...], seed: int) -> tuple[Any, Any, dp.Schema]:
    """Return features, target and schema of numbers of many laws and categories of uneven frequencies, with noise."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"n{k}": rng.beta(*rng.uniform(1, 4, 2), size=size) for k in range(numbers)}
    features: dict[str, Any] = dict.fromkeys(columns, (0, 1))
    y = sum(rng.normal() * column for column in columns.values())
    for k, count in enumerate(levels):
        places = rng.choice(count, size, p=rng.dirichlet(np.full(count, 2.0)))
        columns[f"c{k}"], y = [f"l{place}" for place in places], y + 0.7 * rng.normal(size=count)[places]
        features[f"c{k}"] = dp.Categorical([f"l{place}" for place in range(count)], reference="l0")
    y = y + 0.4 * np.std(y) * rng.normal(size=size)
    low, high = np.quantile(y, [0.001, 0.999])
    bounds = (low - 0.2 * (high - low), high + 0.2 * (high - low))
    schema = dp.Schema(features, "y", label_bounds=bounds)
    return schema.encode(columns, labelled=False)[0], y.clip(*bounds), schema


def measured(shape: tuple[int, int, tuple[int, ...]], epsilon: float, intercept: bool, seed: int) -> list[float]:
    """Return the largest mean eigenvalue over the noise's, R squared of sums and of `Ridge`, and whether errors hold."""
    x, y, schema = table(*shape, seed)
    given: dict[str, Any] = {"epsilon": epsilon, "bounds": schema.label_bounds, "fit_intercept": intercept}
    sums = dp.LinearRegression(**given, mechanism=dp.SufficientStatistics("gamma", residuals=True)).fit(x, y)
    count, holds = x.shape[1] + intercept, 0.0
    with suppress(dp.NotConverged):
        holds = float(len(sums.coef_std_) > 0)
    ratio = len(x) * (1 + intercept) / count / sums.statistics_.quadratic().edge(np.arange(count))
    ridge = dp.Ridge(**given).fit(x, y)
    errors = (float(np.mean((y - model.predict(x)) ** 2)) for model in (sums, ridge))
    return [ratio, *(1 - error / float(np.var(y)) for error in errors), holds]


def main() -> None:
    print("| largest mean eigenvalue over the noise's | intercept | fits | sums | `Ridge` | standard errors hold |")
    print("|---|---|---|---|---|---|")
    for intercept in (False, True):
        cases = [(shape, epsilon, intercept, seed) for shape in SHAPES for epsilon in EPSILONS for seed in range(DRAWS)]
        found = np.array([measured(*case) for case in cases])
        for low, high in pairwise(EDGES):
            rows = found[(found[:, 0] > low) & (found[:, 0] <= high)]
            if len(rows):
                sums, ridge, holds = rows[:, 1:].mean(axis=0)
                cells = f"{'yes' if intercept else 'no'} | {len(rows)} | {sums:.2f} | {ridge:.2f} | {100 * holds:.0f} %"
                print(f"| {low:g} to {high:g} | {cells} |")


if __name__ == "__main__":
    main()
