"""One default fit, its proof included, against a hundred steps of clipped gradient descent in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sp

import dpconvex as dp
from benchmarks import Run, fewer
from benchmarks.data import clouds
from benchmarks.timing import Row, compare
from benchmarks.utility.competitors import clipped_descent
from benchmarks.utility.tables import Split

__all__ = ["one_fit"]

PRIVACY, STEPS, CLIP = dp.Privacy(1.0, 1e-5, "add-remove"), 100, 0.25
# Levels of the columns of a table like Adult's, beside six numbers.
LEVELS = 7, 16, 7, 14, 6, 5, 2, 41


def categories(n: int, seed: int = 0) -> dict[str, Any]:
    """Records like Adult's: six numbers and 98 indicators of levels, rows of length 1, y in {-1, 1}."""
    n = fewer(n)
    rng = np.random.default_rng(seed)
    columns = [rng.uniform(size=(n, 6))]
    columns += [np.eye(levels)[rng.choice(levels, n, p=rng.dirichlet(np.full(levels, 0.5)))] for levels in LEVELS]
    x = np.concatenate(columns, axis=1)
    x /= (1 + 1e-12) * np.linalg.norm(x, axis=1)[:, None]
    return {"x": x, "y": np.where(3 * x @ rng.normal(size=x.shape[1]) + rng.logistic(size=n) > 0, 1, -1)}


def problems() -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield a name, records and the number of classes."""
    table = categories(20_000)
    yield "logistic, 20,000 x 104, dense", table, 2
    yield "logistic, 20,000 x 104, CSR", {**table, "x": sp.csr_array(table["x"])}, 2
    two = clouds(5000, 64, 2)
    yield "logistic, 5,000 x 64", {**two, "y": 2 * two["y"] - 1}, 2
    for classes in (10, 26):
        for n, d in ((5000, 64), (16_000, 17)):
            yield f"softmax of {classes}, {n:,} x {d}", clouds(n, d, classes), classes


def descent(split: Split) -> None:
    """Fit with plain NumPy."""
    clipped_descent(split, PRIVACY.epsilon, PRIVACY.delta, np.random.default_rng(0), clip=CLIP, steps=STEPS, rate=1.0)


def anew(learner: str, options: dict[str, Any], data: dict[str, Any], size: int) -> None:
    """Read a template, and fit it."""
    dp.solve(dp.load(learner, **options), data, PRIVACY, size=size)


def one_fit(repetitions: int) -> Iterator[Row]:
    """Compare `solve` with all defaults, of a template that is known and of a new one."""
    for name, data, classes in islice(problems(), 1 if Run.small else None):
        n, d = data["x"].shape
        learner = "logistic_regression" if classes == 2 else "softmax_regression"
        options = {"features": d} if classes == 2 else {"features": d, "classes": classes}
        template = dp.load(learner, **options)
        dense = data["x"].toarray() if sp.issparse(data["x"]) else data["x"]
        labels = np.maximum(data["y"], 0)
        split = Split(name, dense, labels, dense[:1], labels[:1], classes)
        times = compare(
            {
                "descent": partial(descent, split),
                "fit": partial(dp.solve, template, data, PRIVACY, size=n),
                "new": partial(anew, learner, options, data, n),
            },
            repetitions,
        )
        for measured, value in (("fit and proof", times["fit"]), ("the same, template read anew", times["new"])):
            known, reference = measured == "fit and proof", times["descent"]
            goal = "ratio <= 3" if known else ""
            yield Row(name, measured, value, reference, "s", goal, not known or value <= 3 * reference)
