"""Learners, records and partitions that tests in several folders take."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

import dpconvex as dp

# Where 700 records are cut: partitions of very different sizes, and one without records.
CUTS = [0, 1, 300, 300, 305, 700]
RNG = np.random.default_rng(5)
X: NDArray[np.float64] = RNG.normal(size=(700, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True) * RNG.uniform(1, 2, size=(700, 1))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=700) > 0, 1, -1)


def pieces(data: Any, cuts: list[int] = CUTS) -> list[Any]:
    """Cut columns, or a table, into partitions."""
    if isinstance(data, dict):
        return [{name: column[a:b] for name, column in data.items()} for a, b in pairwise(cuts)]
    return [data[a:b] for a, b in pairwise(cuts)]


def ridge(w: cp.Variable) -> cp.Expression:
    return 0.05 * cp.sum_squares(w)


def free(w: cp.Variable) -> list[Any]:
    return []


def linear(w: cp.Variable, x: Any) -> cp.Expression:
    return x @ w


def logistic(
    shape: Any = 3,
    regularizer: Callable[[Any], Any] = ridge,
    constraints: Callable[[Any], list[Any]] = free,
    score: Callable[[Any, Any], Any] = linear,
    **attributes: Any,
) -> dp.Template:
    """Return a template of a variable w for the signs of scores of records in a ball."""
    w = cp.Variable(shape, name="w", **attributes)
    record = dp.Record(x=dp.Ball(w.shape[0]), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: cp.logistic(-y * score(w, x)), regularizer(w), constraints(w))


def records_of(template: dp.Template, size: int = 60, seed: int = 0) -> dict[str, Any]:
    """Draw records from the domain of a template."""
    batch = template.record.sample(size, np.random.default_rng(seed))
    return {**batch.fields, **{name: template.record.values(batch, name) for name in template.record.discrete}}
