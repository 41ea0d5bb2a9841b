"""How often intervals cover what is true: ``python -m benchmarks intervals [--runs 1000]``; docs/intervals.md prints its table.

Fits are by objective perturbation, with half of (epsilon, 1e-6); intervals have the other half.  Of 100,000 records there is a
quarter of the runs, and a setting ends where the first fifty are refused.  Widths are compared with those of the sandwich
without privacy, and with the spread of private fits to ten parts of the data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import t as student

import dpconvex as dp
from benchmarks import chosen

__all__ = ["main"]

Array = NDArray[np.float64]
MANY, FIRST = 100_000, 50
SLOPES, DELTA, PARTS = np.array([2.0, -3.0, 1.0, 0.5]), 1e-6, 10
KINDS = ("logistic_regression", "softmax_regression", "huber_regression", "quantile_regression")
DESIGNS = {"round": (1.0, 1.0), "steep": (0.1, 1.0), "near-separable": (1.0, 3.0)}


def drawn(kind: str, design: str, size: int, rng: np.random.Generator) -> tuple[dict[str, Any], Array]:
    """Draw records, and return what is true: features of even or steep spectra, slopes that are usual or long."""
    least, longer = DESIGNS[design]
    x = rng.normal(size=(size, 4)) * np.linspace(1.0, least, 4) / 3
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    true = longer * SLOPES
    if kind == "logistic_regression":
        return {"x": x, "y": np.where(rng.random(size) < expit(x @ true), 1, -1)}, true
    if kind == "softmax_regression":
        slopes = np.outer(true, [1.0, 0.0, -1.0])
        sums = softmax(x @ slopes, axis=1).cumsum(axis=1)
        return {"x": x, "y": (rng.random(size)[:, None] > sums).sum(axis=1)}, slopes.ravel("F")
    noise = 0.1 * rng.normal(size=size)
    return {"x": x, "y": np.clip(x @ SLOPES / 8 + noise, -1, 1)}, SLOPES / 8


def apart(learner: dp.Template, data: dict[str, Any], privacy: dp.Privacy, seed: int) -> float:
    """Mean half-width of intervals from private fits to parts of the data, each with the whole guarantee."""
    order = np.random.default_rng(seed).permutation(len(data["x"]))
    fits = [
        dp.solve(learner, {name: column[part] for name, column in data.items()}, privacy, seed=seed * PARTS + k)
        for k, part in enumerate(np.array_split(order, PARTS))
    ]
    name = learner.variables[0].name
    spread = np.std([fit[name].ravel("F") for fit in fits], axis=0, ddof=1)
    return float(student.isf(0.025, PARTS - 1) / np.sqrt(PARTS) * spread.mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks intervals", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.3, 1.0, 3.0, 8.0])
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--designs", nargs="*", default=list(DESIGNS), choices=list(DESIGNS))
    given = chosen(parser, arguments, runs=1, sizes=[1000], epsilons=[3.0], designs=["round"], kinds=KINDS[:1])
    print(
        "| loss, design | records | ε | covered | refused | half-width | without privacy | of ten parts |\n|"
        + "---|" * 8
    )
    for kind, design, size, epsilon in product(given.kinds, given.designs, given.sizes, given.epsilons):
        if design == "near-separable" and kind in KINDS[2:]:
            continue
        learner = dp.load(kind, features=4, **({"classes": 3} if kind == "softmax_regression" else {}))
        half, rng = dp.Privacy(epsilon / 2, DELTA / 2), np.random.default_rng(0)
        covered, widths, plain = [], [], []
        parts, runs = float("nan"), given.runs if size < MANY else -(-given.runs // 4)
        for seed in range(runs):
            data, true = drawn(kind, design, size, rng)
            try:
                fit = dp.solve(
                    learner, data, half, dp.ObjectivePerturbation("gaussian"), whitening=False, seed=2 * seed
                )
                found = dp.intervals(learner, fit, data, half, seed=2 * seed + 1)
            except dp.NotConverged:
                if seed >= FIRST and not covered:
                    break
                continue
            covered.append(np.mean((found.lower <= true) & (true <= found.upper)))
            widths.append(np.mean(found.upper - found.lower) / 2)
            plain.append(1.96 * np.sqrt(np.mean(found.standard_errors**2 - found.noise_errors**2)))
            if len(covered) == 1:
                parts = apart(learner, data, dp.Privacy(epsilon, DELTA), seed)
        refused = 1 - len(covered) / runs
        numbers = (np.mean(covered), np.mean(widths), np.mean(plain)) if refused < 0.9 else (np.nan,) * 3
        share, *lengths = numbers
        cells = [
            f"{share:.3f}",
            f"{refused:.2f}",
            *(f"{v:.3g}" for v in (*lengths, parts if refused < 0.9 else np.nan)),
        ]
        print(
            f"| {kind.removesuffix('_regression')}, {design} | {size:,} | {epsilon:g} | {' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
