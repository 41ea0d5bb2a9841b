"""How close private evaluations come, and how often intervals cover: ``python -m benchmarks evaluation [--runs 250]``.

A model is fitted once. Each run draws test records anew and evaluates it on them; what is true is computed from many records.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata
from sklearn.metrics import brier_score_loss, log_loss, mean_poisson_deviance, roc_auc_score

import dpconvex as dp
from benchmarks import chosen, heading, row
from dpconvex.util.arrays import Array

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
        found = [mean_poisson_deviance(y, mu) for mu in (said, np.full(len(y), y.mean()))]
        return {"deviance": found[0], "deviance_gain": 1 - found[0] / found[1]}
    if kind == "survival":
        return {"concordance": concordance(y, release.predict(data["x"]).mean(axis=1))}
    if LEARNERS.get(kind, [""])[0] == "huber_regression":
        apart = y - np.clip(release.predict(data["x"]), -1, 1)
        error, constant = float(np.mean(apart**2)), float(np.var(y))
        found = {"error": error, "constant": constant, "r2": 1 - error / constant}
        return found | {"absolute_error": float(np.mean(np.abs(apart)))}
    p, yes = release.predict_proba(data["x"])[:, 1], y == 1
    bins = np.minimum((10 * rankdata(p, method="min") / len(p)).astype(int), 9)
    off = [abs(float(np.sum(yes[bins == k] - p[bins == k]))) for k in range(10)]
    return {
        "error": float(np.mean((p > 0.5) != yes)),
        "constant": float(min(yes.mean(), 1 - yes.mean())),
        "auc": float(roc_auc_score(yes, p)),
        "log_loss": float(log_loss(yes, p)),
        "brier": float(brier_score_loss(yes, p)),
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
    "counts": ("poisson_regression", {"target": 30.0, "constant": 1.0}),
    "survival": ("discrete_hazards", {"intervals": 6}),
}
MEASURES = {"counts": ("deviance",)}  # which are asked for alone


def differences(kind: str, learner: dp.Template, release: dp.Release, given: Any, rng: np.random.Generator) -> None:
    """Print how often differences of groups with 40 and 60 % of the records are covered."""
    many = drawn(kind, MANY, rng)
    parts = [
        {name: part[(many["x"][:, 0] > 0.084) == second] for name, part in many.items()} for second in (True, False)
    ]
    one, other = (exact(release, part, kind) for part in parts)
    covered: dict[str, list[Array]] = {name: [] for name in ("error", "auc") if name in one}
    for seed in range(given.runs):
        data = drawn(kind, given.size, rng)
        options: Any = {"group": "g", "groups": ["a", "b"], "seed": seed}
        data["g"] = np.where(data["x"][:, 0] > 0.084, "a", "b")
        found = dp.evaluate(learner, release, data, dp.Privacy(given.epsilon), **options)
        for name, hits in covered.items():
            first, second = (getattr(found.group(group), name) for group in "ab")
            halves = np.array([np.ptp(first.interval), np.ptp(second.interval)]) / 2
            hits.append(abs(first - second - one[name] + other[name]) <= np.array([halves.sum(), np.hypot(*halves)]))
    for name, hits in covered.items():
        row(kind, name, given.size, given.epsilon, *(f"{share:.3f}" for share in np.mean(hits, axis=0)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    options = {"--runs": 250, "--size": 2000, "--epsilon": 0.5, "--kinds": ["balanced", "rare", *LEARNERS]}
    options["--groups"] = (False, "cover differences of two groups, of balanced and rare labels")
    given = chosen(__doc__, arguments, options, runs=2, size=300, kinds=["balanced", "number", "survival"])
    names = "number", "true", "mean off by", "off by at most, 19 of 20", "covered", "half-width"
    beside = "difference of", "records", "ε", "covered by the sum of half-widths", "by the root of their squares"
    heading("labels", *(beside if given.groups else names))
    for kind in given.kinds:
        name, options = LEARNERS.get(kind, ("logistic_regression", {"constant": 1.0}))
        learner = dp.load(name, features=3, **options)
        rng = np.random.default_rng(0)
        release = dp.solve_without_privacy(learner, drawn(kind, 20_000, rng))
        if given.groups:
            differences(kind, learner, release, given, rng)
            continue
        true = exact(release, drawn(kind, MANY, rng), kind)
        runs: dict[str, list[tuple[float, bool, float]]] = {name: [] for name in true}
        for seed in range(given.runs):
            data = drawn(kind, given.size, rng)
            found = dp.evaluate(
                learner, release, data, dp.Privacy(given.epsilon), measures=MEASURES.get(kind), seed=seed
            )
            here = exact(release, data, kind)
            for name, value in true.items():
                measured = getattr(found, name)
                low, high = measured.interval
                runs[name].append((abs(measured - here[name]), low <= value <= high, (high - low) / 2))
        for name, value in true.items():
            off, covered, wide = np.array(runs[name], dtype=float).T
            offs = f"{off.mean():.2g}", f"{np.quantile(off, 0.95):.2g}"
            row(kind, name.replace("_", " "), f"{value:.3g}", *offs, f"{covered.mean():.3f}", f"{wide.mean():.2g}")


if __name__ == "__main__":
    main()
