"""How close private evaluations come, and how often intervals cover: ``python -m benchmarks evaluation [--runs 250]``.

A model is fitted once. Each run draws test records anew and evaluates it on them; what is true is computed from many records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlogy
from scipy.stats import rankdata

import dpconvex as dp
from benchmarks import chosen

__all__ = ["main"]

Array = NDArray[np.float64]
MANY = 400_000
SLOPES = np.array([4.0, -3.0, 1.0])


def drawn(kind: str, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draw records: of a balanced or a rare label, of a number, skewed or far inside its bounds, of counts, or of survival."""
    x = rng.normal(size=(size, 3)) / 3
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    if kind in ("number", "skewed", "wide bounds"):
        noise = np.exp(0.9 * rng.normal(size=size)) - np.exp(0.405) if kind == "skewed" else rng.normal(size=size)
        y = np.clip(x @ SLOPES / 8 + 0.15 * noise / (1.68 if kind == "skewed" else 1.0), -1, 1)
        return {"x": x, "y": y / (10 if kind == "wide bounds" else 1)}
    if kind == "counts":
        return {"x": x, "y": np.minimum(rng.poisson(np.exp(1.0 + x @ SLOPES / 3)), 30.0)}
    if kind == "survival":
        death, end = rng.exponential(8 * np.exp(-(x @ SLOPES) / 2)), rng.uniform(2, 15, size)
        starts, time = np.arange(0.0, 12.0, 2.0), np.minimum(death, end)
        died = (death < end)[:, None] & (time[:, None] >= starts) & (time[:, None] < starts + 2)
        return {"x": x, "y": np.where(died, 1.0, -np.clip((time[:, None] - starts) / 2, 0.0, 1.0))}
    score = x @ SLOPES - (1.8 if kind == "rare" else 0.0)
    return {"x": x, "y": np.where(rng.random(size) < expit(score), 1, -1)}


def exact(release: dp.Release, data: dict[str, Any], kind: str) -> dict[str, float]:
    """Compute the same numbers without privacy."""
    y = data["y"]
    if kind == "counts":
        said = np.clip(release.predict(data["x"]), 30 / 1024, 30)
        found = [2 * float(np.mean(xlogy(y, y / mu) - y + mu)) for mu in (said, np.full(len(y), y.mean()))]
        return {"deviance": found[0], "deviance_gain": 1 - found[0] / found[1]}
    if kind == "survival":
        return {"concordance": concordance(y, release.predict(data["x"]).mean(axis=1))}
    if LEARNERS.get(kind, [""])[0] == "huber_regression":
        apart = y - np.clip(release.predict(data["x"]), -1, 1)
        error, constant = float(np.mean(apart**2)), float(np.var(y))
        found = {"error": error, "constant": constant, "r2": 1 - error / constant}
        return found | {"absolute_error": float(np.mean(np.abs(apart)))}
    p, yes = release.predict_proba(data["x"])[:, 1], y == 1
    ranks = rankdata(p)[yes].sum() - yes.sum() * (yes.sum() + 1) / 2
    bins = np.minimum((10 * rankdata(p, method="min") / len(p)).astype(int), 9)
    off = [abs(float(np.sum(yes[bins == k] - p[bins == k]))) for k in range(10)]
    return {
        "error": float(np.mean((p > 0.5) != yes)),
        "constant": float(min(yes.mean(), 1 - yes.mean())),
        "auc": float(ranks / (yes.sum() * (~yes).sum())),
        "log_loss": float(-np.mean(np.log(np.where(yes, p, 1 - p)))),
        "brier": float(np.mean((yes - p) ** 2)),
        "calibration_error": sum(off) / len(p),
    }


def concordance(y: Array, alive: Array) -> float:
    """Return Harrell's concordance in intervals: an event, against each who lived through its interval."""
    agreed = pairs = 0.0
    for k in range(y.shape[1]):
        died, later = alive[y[:, k] > 0], np.sort(alive[y[:, k] <= -1])
        agreed += float(len(died) * len(later) - np.searchsorted(later, died).sum())
        pairs += len(died) * len(later)
    return agreed / pairs


LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("number", "skewed", "wide bounds"), ("huber_regression", {})),
    "counts": ("poisson_regression", {"target": 30.0, "bound": None, "constant": 1.0}),
    "survival": ("discrete_hazards", {"intervals": 6}),
}
MEASURES = {"counts": ("deviance",)}  # which are asked for alone


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks evaluation", description=__doc__)
    parser.add_argument("--runs", type=int, default=250)
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--kinds", nargs="*", default=["balanced", "rare", *LEARNERS])
    given = chosen(parser, arguments, runs=2, size=300, kinds=["balanced", "number", "survival"])
    head = "labels", "number", "true", "mean off by", "off by at most, 19 of 20", "covered", "half-width"
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for kind in given.kinds:
        name, options = LEARNERS.get(kind, ("logistic_regression", {"constant": 1.0}))
        learner = dp.load(name, features=3, **options)
        rng = np.random.default_rng(0)
        release = dp.solve_without_privacy(learner, drawn(kind, 20_000, rng))
        true = exact(release, drawn(kind, MANY, rng), kind)
        off: dict[str, list[float]] = {name: [] for name in true}
        covered: dict[str, list[bool]] = {name: [] for name in true}
        wide: dict[str, list[float]] = {name: [] for name in true}
        for seed in range(given.runs):
            data = drawn(kind, given.size, rng)
            found = dp.evaluate(
                learner, release, data, dp.Privacy(given.epsilon), measures=MEASURES.get(kind), seed=seed
            )
            here = exact(release, data, kind)
            for name, value in true.items():
                measured = getattr(found, name)
                low, high = measured.interval
                off[name].append(measured - here[name])
                covered[name].append(low <= value <= high)
                wide[name].append((high - low) / 2)
        for name, value in true.items():
            most = np.quantile(np.abs(off[name]), 0.95)
            numbers = f"{np.mean(np.abs(off[name])):.2g} | {most:.2g} | {np.mean(covered[name]):.3f}"
            print(
                f"| {kind} | {name.replace('_', ' ')} | {value:.3g} | {numbers} | {np.mean(wide[name]):.2g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
