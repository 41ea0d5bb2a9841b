"""How near the added quadratic is to the best of a grid: ``python -m benchmarks.utility.margins [--full]``.

Objective perturbation, Gaussian noise, (epsilon, 1e-5), add-remove: test error with the quadratic that is chosen without data,
over the smallest test error of a grid around it.  What `dpconvex.mechanisms.added_quadratic` assumes was set by this.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks.utility.tables import Split, find

__all__ = ["LEARNERS", "excess"]

DELTA = 1e-5
BINARY = ("wisconsin", "diagnostic", "vowels", "adult", "kdd")
SEVERAL = ("iris", "wine", "digits", "landsat", "letter")
TARGETS = ("diabetes", "infrared", "hours", "heavy tails")
LEARNERS = {
    "logistic_regression": BINARY,
    "huber_svm": BINARY,
    "softmax_regression": SEVERAL,
    "large_margin_gaussian": ("wisconsin", "iris", "wine", "landsat"),
    "huber_regression": TARGETS,
    "ridge_regression": TARGETS,
}
QUICK = {"wisconsin", "digits", "wine", "diabetes", "heavy tails"}
# Factors on the quadratic, and weights that smooth the errors of neighbours, which are noisy.
GRID = 10.0 ** np.arange(-1.25, 1.3, 0.25)
SMOOTH = np.array([0.25, 0.5, 0.25])


def declared(problem: str, split: Split) -> dp.Template:
    """Load a problem for a data set, with its own defaults."""
    labels: dict[str, Any] = {"classes": split.classes, "labels": tuple(range(split.classes))} if split.classes else {}
    return dp.load(problem, features=split.x.shape[1], **labels)


def excess(problem: str, split: Split, epsilon: float, seeds: int) -> float:
    """Return the error of the quadratic that is chosen, over the smallest of the grid."""
    template, privacy, size = declared(problem, split), dp.Privacy(epsilon, DELTA, "add-remove"), len(split.y)
    chosen = dp.verify(template, privacy, size, dp.ObjectivePerturbation("gaussian")).added
    errors = np.full(len(GRID), np.nan)
    for k, factor in enumerate(GRID):
        mechanism = dp.ObjectivePerturbation("gaussian", added=chosen * float(factor))
        if dp.is_private(template, privacy, size, mechanism):
            fits = [dp.solve(template, split.data, privacy, mechanism, size=size, seed=s) for s in range(seeds)]
            errors[k] = np.mean([split.error(fit.predict(split.x_test)) for fit in fits])
    known = errors[~np.isnan(errors)]
    smooth = np.convolve(np.pad(known, 1, mode="edge"), SMOOTH, "valid")
    middle = int(np.argmin(np.abs(np.log(GRID[~np.isnan(errors)]))))
    return float(smooth[middle] / smooth.min())


def outcomes(full: bool) -> Iterator[tuple[str, str, float, float]]:
    """Yield problem, data set, epsilon and excess."""
    for problem, names in LEARNERS.items():
        for name in names if full else QUICK.intersection(names):
            most = 2000 if not full or problem == "large_margin_gaussian" else 12_000
            split = find(name, most=most)
            if split is None:
                continue
            for epsilon in (0.1, 0.3, 1.0, 3.0, 8.0) if full else (0.3, 3.0):
                yield problem, name, epsilon, excess(problem, split, epsilon, 4 if full and len(split.y) < 5000 else 2)


def main(arguments: Any = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.margins", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all data sets (a quarter of an hour)")
    options = parser.parse_args(arguments)
    found: dict[str, list[tuple[float, str]]] = {}
    for problem, name, epsilon, value in outcomes(options.full):
        found.setdefault(problem, []).append((value, f"{name}, epsilon {epsilon:g}"))
    print("| learner | settings | error over the best of the grid | worst | where |\n|---|---|---|---|---|")
    for problem, values in found.items():
        mean = float(np.exp(np.mean([np.log(value) for value, _ in values])))
        worst, where = max(values)
        print(f"| {problem} | {len(values)} | {mean:.3f} | {worst:.2f} | {where} |")


if __name__ == "__main__":
    main()
