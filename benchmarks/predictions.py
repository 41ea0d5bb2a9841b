"""How well probabilities and intervals of predictions hold (docs/predictions.md): ``python -m benchmarks predictions``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import dpconvex as dp
from benchmarks import chosen

__all__ = ["main"]

Array = NDArray[np.float64]
SLOPES, LEVELS, REACH = np.array([6.0, -8.0, 3.0, 2.0, 0.0]), (0.8, 0.9, 0.95), 4.0


def calibration() -> dp.Template:
    """Return the learner that stretches and shifts scores, as docs/predictions.md declares it."""
    stretch, shift = cp.Variable(name="stretch"), cp.Variable(name="shift")
    return dp.Template(
        record=dp.Record(score=dp.Box(-REACH, REACH), y=dp.Choice([-1, 1])),
        loss=lambda score, y: cp.logistic(-y * (score + stretch * score + shift)),
        regularizer=5e-4 * (cp.square(stretch) + cp.square(shift)),
    )


def calibration_error(probabilities: Array, true: Array) -> float:
    """Mean over records of the distance in each tenth between what was said and what came true."""
    places = np.minimum((10 * probabilities).astype(int), 9)
    sums = [abs(float((probabilities - true)[places == k].sum())) for k in range(10)]
    return sum(sums) / len(true)


def drawn(size: int, epsilon: float, seed: int) -> list[float]:
    """Errors of calibration before and after, and without privacy, and coverage at the levels; on new records."""
    rng, privacy = np.random.default_rng(seed), dp.Privacy(epsilon, 1e-6)
    x = rng.normal(size=(3 * size, 5)) / 4
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    y = np.where(rng.random(3 * size) < expit(x @ SLOPES), 1, -1)
    z = np.clip(x @ SLOPES / 12 + 0.1 * rng.standard_t(4, size=3 * size), -1, 1)
    first, second, new = (slice(k * size, (k + 1) * size) for k in range(3))
    fit = dp.solve(dp.load("logistic_regression", features=5), {"x": x[first], "y": y[first]}, privacy, seed=seed)
    score = np.clip(x @ fit["w"], -REACH, REACH)
    found = dp.solve(calibration(), {"score": score[second], "y": y[second]}, privacy, seed=seed)
    better = score + found["stretch"] * score + found["shift"]
    errors = [calibration_error(expit(scores[new]), y[new] > 0) for scores in (score, better, x @ SLOPES)]
    line = dp.solve(dp.load("ridge_regression", features=5), {"x": x[first], "y": z[first]}, privacy, seed=seed)
    away = np.abs(z - x @ line["w"])
    for level in LEVELS:
        quantile = dp.load("quantile_regression", features=1, quantile=level, width=0.02)
        data = {"x": np.ones((size, 1)), "y": np.clip(away[second], 0, 1)}
        half = dp.solve(quantile, data, privacy, seed=seed)["w"][0]
        errors.append(float(np.mean(away[new] <= half)))
    return errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks predictions", description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 5000, 20_000])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.3, 1.0, 3.0])
    given = chosen(parser, arguments, runs=1, sizes=[1000], epsilons=[3.0])
    print(
        "| records | ε | calibration error | recalibrated | without privacy | 80 % | 90 % | 95 % |\n" + "|---" * 8 + "|"
    )
    for size, epsilon in product(given.sizes, given.epsilons):
        values = np.array([drawn(size, epsilon, seed) for seed in range(given.runs)])
        means, spread = values.mean(axis=0), values.std(axis=0)
        cells = [f"{value:.3f}" for value in means[:3]]
        cells += [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in zip(means[3:], spread[3:], strict=True)]
        print(f"| {size:,} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
