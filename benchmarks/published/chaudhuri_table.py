"""Table 1 of Chaudhuri, Monteleoni & Sarwate (2011): ``python -m benchmarks.published.chaudhuri_table [--folds 10]``.

Prints the paper's errors on Adult at epsilon = 0.1 beside those of its algorithms, calibrated to the letter, and of certified
objective perturbation.  Columns are divided by their maxima, which looks at the data as the paper did, and rows by their norms.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import dpconvex as dp
from benchmarks import chosen, heading, row
from benchmarks.public_data import adult
from benchmarks.published.reproduce import repeat_chaudhuri

EPSILON, DELTA = 0.1, 1e-6
LEARNERS = {"logistic": "logistic_regression", "Huber": "huber_svm"}
# Logarithms of Lambda, and the errors that table 1 prints for them.
GRID = (-10.0, -7.0, -4.0, -3.5, -3.0, -2.5, -2.0, -1.5)
PRINTED = {
    ("logistic", "no privacy"): (0.1540, 0.1533, 0.1654, 0.1694, 0.1758, 0.1895, 0.2322, 0.2478),
    ("logistic", "Algorithm 1"): (0.5318, 0.5318, 0.5175, 0.4928, 0.4310, 0.3163, 0.2395, 0.2456),
    ("logistic", "Algorithm 2"): (0.8248, 0.8248, 0.8248, 0.2694, 0.2369, 0.2161, 0.2305, 0.2475),
    ("Huber", "no privacy"): (0.1527, 0.1521, 0.1632, 0.1669, 0.1719, 0.1793, 0.2454, 0.2478),
    ("Huber", "Algorithm 1"): (0.5318, 0.5318, 0.5211, 0.5011, 0.4464, 0.3352, 0.2376, 0.2476),
    ("Huber", "Algorithm 2"): (0.2585, 0.2585, 0.2585, 0.2582, 0.2559, 0.2046, 0.2319, 0.2478),
}
OURS = {
    "ours, pure": dp.Privacy(EPSILON),
    "ours, delta=1e-6": dp.Privacy(EPSILON, DELTA),
    "ours, delta=1e-6, add-remove": dp.Privacy(EPSILON, DELTA, "add-remove"),
}
# What certified releases pay for the residual; the default is a hundredth.
COVER = dp.ResidualNoise(share=1e-3)


def projection(features: int, groups: Sequence[int]) -> NDArray[np.float64]:
    """Project on the vectors in which the columns of each group have the same sum; the groups are the last columns."""
    sums, start = np.zeros((len(groups), features)), features - sum(groups)
    for own, size in zip(sums, groups, strict=True):
        own[start : start + size] = 1
        start += size
    equal = np.diff(sums, axis=0)
    return np.eye(features) - np.linalg.pinv(equal) @ equal


def one_hot_learner(name: str, level: float, matrix: NDArray[np.float64]) -> dp.Template:
    """Return the same classifier, with what is public about one-hot columns.

    A record has one level in each categorical column, so the columns of any two of them have equal sums: x = P x for a public
    projection P.  Written as x'(P w) the loss of every record is what it was, and no noise is needed elsewhere.
    """
    features = len(matrix)
    w = cp.Variable(features, name="w")

    def loss(x: cp.Expression, y: int) -> cp.Expression:
        margin = y * (x @ (matrix @ w))
        return cp.logistic(-margin) if name == "logistic" else dp.huber_hinge(1 - margin, width=0.5)

    return dp.Template(dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])), loss, level / 2 * cp.sum_squares(w))


def releases(
    name: str, way: str, level: float, groups: Sequence[int], data: dict[str, NDArray[np.float64]], draws: int
) -> Iterator[dp.Release]:
    """Yield fits; none if there is no proof."""
    features = data["x"].shape[1]
    if way in OURS:
        template, privacy = one_hot_learner(name, level, projection(features, groups)), OURS[way]
        mechanism = dp.ObjectivePerturbation("gamma" if privacy.pure else "gaussian", added=0.0)
        if dp.is_private(template, privacy, len(data["y"]), mechanism):
            how: dict[str, Any] = {
                "mechanism": mechanism,
                "draws": draws,
                "size": len(data["y"]),
                "residual_noise": COVER,
            }
            yield from dp.sweep(template, data, privacy, **how)
        return
    template = dp.load(LEARNERS[name], features=features, regularization=level)
    tolerance = (1e-6 if level >= 1e-6 else 1e-4) / level
    if way == "no privacy":
        yield dp.solve_without_privacy(template, data, tolerance=tolerance)
        return
    algorithm = int(way[-1])
    within = tolerance if algorithm == 1 else min(tolerance, 1e-3)  # Algorithm 2 adds to a small regularization
    yield from repeat_chaudhuri(template, data, EPSILON, algorithm, draws=draws, tolerance=within)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    known = {"--grid": ([*GRID], "logarithms of Lambda"), "--folds": (10, "how many of the ten folds to run")}
    known |= {"--draws": (5, "draws of the noise for each fit")}
    options = chosen(__doc__, arguments, known, grid=[-3.0], folds=1, draws=1)
    table = adult()
    x, groups = sp.csr_matrix(table.design(maxima=True, unit=True)), [len(levels) for levels in table.levels]
    parts = np.array_split(np.random.default_rng(0).permutation(len(table.y)), 10)
    heading("learner", "way", *(f"{power:g}" for power in options.grid))
    for name in LEARNERS:
        for way in ("no privacy", "Algorithm 1", "Algorithm 2", *OURS):
            printed = dict(zip(GRID, PRINTED.get((name, way), ()), strict=False))
            if printed:
                row(name, f"{way}, paper", *(f"{printed.get(p, np.nan):.4f}" for p in options.grid))
            means = []
            for power in options.grid:
                errors = []
                for part in parts[: options.folds]:
                    rest = np.setdiff1d(np.arange(len(table.y)), part)
                    data = {"x": x[rest], "y": table.y[rest]}
                    for release in releases(name, way, 10.0**power, groups, data, options.draws):
                        errors.append(np.mean((x[part] @ release["w"] > 0) != (table.y[part] > 0)))
                means.append(f"{np.mean(errors):.4f}" if errors else "–")
            row(name, way, *means)


if __name__ == "__main__":
    main()
