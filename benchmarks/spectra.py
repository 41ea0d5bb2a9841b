"""Passes over the records of learners with semidefinite matrices, those of models counted, and processor time.

prints the most passes over three numbers of records and three regularizations, without privacy and by objective perturbation.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import MOST, Run, chosen
from dpconvex.optim import certify

LEVELS = (None, 1e-4, 1e-2)  # regularizations; None is the default one
PRIVACIES = {"none": None, "pure": dp.Privacy(1.0), "with delta": dp.Privacy(1.0, 1e-5)}


def separated(size: int, features: int, classes: int) -> tuple[Any, Any]:
    """Return records of a Gaussian cloud for each class in the unit ball, and the classes."""
    rng = np.random.default_rng(5)
    centres, own = rng.normal(size=(classes, features)), rng.integers(classes, size=size)
    x = centres[own] + rng.normal(size=(size, features))
    return x / (np.linalg.norm(x, axis=1).max() * (1 + 1e-9)), own


def gaussians(features: int, classes: int) -> tuple[str, dict[str, int], Callable[[int], dict[str, Any]]]:
    options = {"features": features, "classes": classes}
    return "large_margin_gaussian", options, lambda n: dict(zip("xy", separated(n, features, classes), strict=True))


def mixture(n: int) -> dict[str, Any]:
    x, own = separated(n, 10, 8)
    return {"x": x, "y": own // 2, "m": own % 2}


def pairs(n: int) -> dict[str, Any]:
    x, own = separated(2 * n, 10, 4)
    return {"x": (x[:n] - x[n:]) / 2, "y": np.where(own[:n] == own[n:], "alike", "different")}


LEARNERS = {
    "d=10, C=4": gaussians(10, 4),
    "d=16, C=10": gaussians(16, 10),
    "d=30, C=4": gaussians(30, 4),
    "d=16, C=26": gaussians(16, 26),
    "mixture": ("large_margin_gaussian_mixture", {"features": 10, "classes": 4, "components": 2}, mixture),
    "metric": ("metric_learning", {"features": 10}, pairs),
}


def fitted(learner: dp.Template, data: dict[str, Any], privacy: dp.Privacy | None) -> tuple[float, float]:
    """Return the passes of a fit, and its processor time."""
    counts, closest = [], certify.closest

    def counted(*arguments: Any) -> Any:
        found = closest(*arguments)
        counts.append(found[0].evaluations)
        return found

    certify.closest = counted
    start = time.process_time()
    try:
        if privacy is None:
            dp.solve_without_privacy(learner, data)
        else:
            noise = "gaussian" if privacy.delta else "gamma"
            dp.solve(learner, data, privacy, dp.ObjectivePerturbation(noise))
    finally:
        certify.closest = closest
    return counts[-1], time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> int:
    chosen(argparse.ArgumentParser(prog="python -m benchmarks.spectra", description=__doc__), arguments)
    warnings.simplefilter("ignore", dp.PrivacyWarning)
    sizes = (MOST,) if Run.small else (2000, 20000, 60000)
    learners = {name: LEARNERS[name] for name in (["d=10, C=4", "metric"] if Run.small else LEARNERS)}
    print("| learner | privacy | records | " + " | ".join(f"λ {level or 'default'}" for level in LEVELS) + " | most |")
    for name, (problem, options, make) in learners.items():
        for what, privacy in PRIVACIES.items():
            for size in sizes:
                data, cells = make(size), []
                for level in LEVELS:
                    learner = dp.load(problem, **options, **({} if level is None else {"regularization": level}))
                    cells.append(fitted(learner, data, privacy))
                told = " | ".join(f"{passes:.0f}, {seconds:.2f} s" for passes, seconds in cells)
                print(f"| {name} | {what} | {size} | {told} | {max(cells)[0]:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
