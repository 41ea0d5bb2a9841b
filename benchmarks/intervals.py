"""How often intervals cover what is true: ``python -m benchmarks intervals [--runs 1000]``; docs/intervals.md has its table.

One call spends (epsilon, 1e-5), for add-remove neighbours by default, on adaptive steps and a Newton step.  Of 100,000 records
there is a tenth of the runs, and a setting ends where the first ones are all refused.  Coverage is a mean over determined
coefficients.  Widths are divided by those of a call at an epsilon at which noise does not count; the median over the runs is
printed.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from scipy.stats import norm

import dpconvex as dp
from benchmarks import chosen, heading, row
from dpconvex.util.arrays import Array

MANY, FIRST, DELTA, NO_NOISE, CLASSES, TARGET = 100_000, 20, 1e-5, 100.0, 3, 50.0
SLOPES = np.array([2.0, -3.0, 1.0, 0.5])
DESIGNS = ("round", "steep", "rare", "skew", "collinear", "wrong", "clusters")
TABLE = {  # The designs of each kind by default
    "logistic_regression": ("rare", "skew", "collinear", "wrong"),
    "softmax_regression": ("skew",),
    "poisson_regression": ("wrong",),
    "huber_regression": ("rare",),
    "ridge_regression": ("wrong",),
    "quantile_regression": ("clusters",),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "softmax_regression": {"classes": CLASSES},
    "poisson_regression": {"target": TARGET},
}


def features(design: str, size: int, rng: np.random.Generator) -> Array:
    """Draw features in the unit ball: even, of a steep spectrum, with a rare level, skewed, or nearly collinear."""
    x = rng.normal(size=(size, 4)) / 3
    if design == "steep":
        x *= np.linspace(1.0, 0.1, 4)
    if design == "rare":
        x[:, 3] = 0.7 * (rng.random(size) < 0.03)
    if design == "skew":
        x = np.exp(0.8 * rng.normal(size=(size, 4))) / 6 - 0.2
    if design == "collinear":
        x[:, 1] = 0.95 * x[:, 0] + 0.31 * x[:, 1]
    return np.asarray(x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None])


def drawn(kind: str, design: str, size: int, rng: np.random.Generator) -> tuple[dict[str, Any], Array]:
    """Draw records, and return what is true, or what a wrong link has in place of it."""
    x, true = features(design, size, rng), SLOPES
    if kind == "logistic_regression":
        chance = norm.cdf(np.sinh(x @ SLOPES / 2)) if design == "wrong" else expit(x @ SLOPES)
        return {"x": x, "y": np.where(rng.random(size) < chance, 1, -1)}, true
    if kind == "softmax_regression":
        slopes = np.outer(SLOPES, [1.0, 0.0, -1.0])
        sums = softmax(x @ slopes, axis=1).cumsum(axis=1)
        return {"x": x, "y": (rng.random(size)[:, None] > sums).sum(axis=1)}, slopes.ravel("F")
    if kind == "poisson_regression":
        mean = np.exp(x @ SLOPES / 3)
        if design == "wrong":  # the link is right, but there is more variance than counts have
            mean *= rng.gamma(2.0, 0.5, size)
        return {"x": x, "y": np.minimum(rng.poisson(mean), TARGET)}, SLOPES / 3
    noise = 0.1 * rng.normal(size=size) + (rng.choice([-0.15, 0.15], size) if design == "clusters" else 0.0)
    noise = noise * (1 + x[:, 0]) if design == "wrong" else noise
    return {"x": x, "y": np.clip(x @ SLOPES / 8 + noise, -1, 1)}, SLOPES / 8


def limit(design: str) -> Array:
    """Return where a logistic fit of very many records ends."""
    data, theta = drawn("logistic_regression", design, 2_000_000, np.random.default_rng(99))
    for _ in range(8):
        right = expit(data["x"] @ theta)
        bent = (data["x"].T * (right * (1 - right))) @ data["x"]
        theta = theta - np.linalg.solve(bent, data["x"].T @ (right - (data["y"] > 0)))
    return np.asarray(theta)


@lru_cache
def loaded(kind: str) -> dp.Template:
    return dp.load(kind, features=4, **OPTIONS.get(kind, {}))


@lru_cache
def without_noise(kind: str, design: str) -> Array:
    """Return standard errors times the root of the number of records, where noise does not count."""
    data, _ = drawn(kind, design, MANY, np.random.default_rng(1))
    privacy = dp.Privacy(NO_NOISE, DELTA, "add-remove")
    return dp.intervals(loaded(kind), None, data, privacy, size=MANY, seed=0).standard_errors * np.sqrt(MANY)


@lru_cache
def target(kind: str, design: str) -> Array | None:
    """Return what a fit with a wrong link estimates, or None where the slopes are true."""
    return limit(design) if (kind, design) == ("logistic_regression", "wrong") else None


def once(
    kind: str, design: str, size: int, epsilon: float, adjacency: str, seed: int
) -> tuple[float, float, float] | None:
    """Return the shares of covered and of undetermined coefficients and the mean width; None if refused.

    Records are drawn from the seed and the size alone, so that runs can be divided among processes.
    """
    data, slopes = drawn(kind, design, size, np.random.default_rng([seed, size]))
    true = slopes if target(kind, design) is None else target(kind, design)
    usual = without_noise(kind, design) / np.sqrt(size)
    try:
        privacy = dp.Privacy(epsilon, DELTA, adjacency)
        nominal = size if adjacency == "add-remove" else None
        found = dp.intervals(loaded(kind), None, data, privacy, size=nominal, seed=seed)
    except dp.NotConverged:
        return None
    known = np.isfinite(found.estimates)
    covered = ((found.lower <= true) & (true <= found.upper))[known]
    return float(np.mean(covered)), float(1 - np.mean(known)), float(np.mean((found.standard_errors / usual)[known]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    known = {"--runs": 100, "--sizes": [1000, 10_000], "--epsilons": [0.3, 1.0, 3.0, 8.0], "--adjacency": "add-remove"}
    known |= {"--kinds": {"nargs": "*", "choices": TABLE, "default": list(TABLE)}}
    known |= {"--designs": {"nargs": "*", "choices": DESIGNS, "help": "by default a few of each kind"}}
    known |= {"--workers": (1, "processes, each with a thread")}
    small = {"sizes": [2000], "epsilons": [3.0], "designs": ["round"], "kinds": ["logistic_regression"]}
    given = chosen(__doc__, arguments, known, runs=1, **small)
    heading("loss, design", "records", "ε", "runs", "covered", "refused", "not determined", "width")
    with ExitStack() as stack:
        each: Any = map
        if given.workers > 1:
            each = stack.enter_context(ProcessPoolExecutor(given.workers, get_context("spawn"))).map
        pairs = [(kind, design) for kind in given.kinds for design in given.designs or TABLE[kind]]
        for (kind, design), size, epsilon in product(pairs, given.sizes, given.epsilons):
            cell = partial(once, kind, design, size, epsilon, given.adjacency)
            runs = given.runs if size < MANY else -(-given.runs // 10)
            found = list(each(cell, range(min(FIRST, runs))))
            if any(found):
                found += each(cell, range(FIRST, runs))
            kept = [numbers for numbers in found if numbers]
            refused = 1 - len(kept) / len(found)
            cells = "—", f"{refused:.2f}", "—", "—"
            if refused < 0.9:
                covered, hidden, widths = np.array(kept).T
                cells = f"{np.mean(covered):.3f}", cells[1], f"{np.mean(hidden):.2f}", f"{np.median(widths):.2f}"
            row(f"{kind.removesuffix('_regression')}, {design}", f"{size:,}", f"{epsilon:g}", len(found), *cells)


if __name__ == "__main__":
    main()
