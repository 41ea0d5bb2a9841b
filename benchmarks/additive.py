"""Additive models against linear ones on Adult, from the same table and for the same promise.

``python -m benchmarks additive [--seeds 5] [--adjacency add-remove]`` prints test error, AUC and log loss, means over splits.
The knots, the prior and all else of the additive model were chosen on other tables, before this one was looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline

import dpconvex as dp
from benchmarks import public_data
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC

__all__ = ["main", "schema", "table"]

CLASSES = ("no", "yes")
SIZES, EPSILONS, DELTA, TRAINING, TEST = (3000, 20_000), (0.3, 1.0, 3.0, 8.0), 1e-5, 30_162, 10_000
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


def models(size: int, epsilon: float, adjacency: str, seed: int) -> dict[str, Any]:
    """Return the models that are compared."""
    options: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "adjacency": adjacency, "classes": CLASSES}
    options |= {"size": size, "seed": seed}
    linear = make_pipeline(dp.SchemaEncoder(schema()), dp.LogisticRegression(**options))
    return {"linear": linear, "additive": dp.AdditiveClassifier(schema(), **options)}


def measured(size: int, epsilon: float, adjacency: str, seed: int) -> dict[str, tuple[float, float, float]]:
    """Fit to one split; return error, AUC and log loss of each model."""
    columns, y = table()
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:TRAINING][:size], order[TRAINING:][:TEST]
    found = {}
    for name, model in models(size, epsilon, adjacency, seed).items():
        rows = {key: column[test] for key, column in columns.items()}
        model.fit({key: column[train] for key, column in columns.items()}, y[train])
        chance, truth = model.predict_proba(rows)[:, 1], y[test] == "yes"
        wrong = float(np.mean(model.predict(rows) != y[test]))
        score = model.decision_function(rows)
        found[name] = wrong, float(roc_auc_score(truth, score)), float(log_loss(truth, chance))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks additive", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="number of splits")
    parser.add_argument("--adjacency", default="add-remove", choices=["add-remove", "replace-one"])
    options = parser.parse_args(arguments)
    print(
        f"| records | measure | model | {' | '.join(f'ε = {e:g}' for e in EPSILONS)} |\n|---|---|---|{'---|' * len(EPSILONS)}"
    )
    for size in SIZES:
        means: dict[str, list[Any]] = {}
        for epsilon in EPSILONS:
            draws = [measured(size, epsilon, options.adjacency, seed) for seed in range(options.seeds)]
            for name in draws[0]:
                means.setdefault(name, []).append(np.mean([draw[name] for draw in draws], axis=0))
        for k, measure in enumerate(MEASURES):
            for name, values in means.items():
                cells = " | ".join(f"{value[k]:.3f}" for value in values)
                print(f"| {size:,} | {measure} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
