"""Convex functions of vectors with a proximal map in closed form, on many rows at once.

The proximal map of ``t f`` takes v to the minimiser of ``t f(x) + ||x - v||^2 / 2``; that of a norm, of the largest entry, and
of any other support function is ``v - P(v)`` with P the projection on t times the set that it supports (Moreau 1965).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import wrightomega, xlogy

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VectorFunction:
    """A symmetric convex function of each row of an array.

    Attributes
    ----------
    name : str
    value : callable
        ``value(rows)``, shape (k, m) to (k,).
    proximal : callable
        ``proximal(rows, t)`` with t of shape (k, m), equal numbers in a row unless `separable`.
    separable : bool
        A sum of functions of single entries, so that bounds on the entries are clipped to afterwards.
    even : bool
        Signs of entries do not matter: it makes a function of singular values.
    curved : bool
        It bends without bound, and its own curvature may be all that there is.
    """

    name: str
    value: Callable[[Array], Array]
    proximal: Callable[[Array, Array], Array]
    separable: bool = False
    even: bool = True
    curved: bool = False


def shrink_rows(rows: Array, t: Array) -> Array:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    kept = np.maximum(length - t[:, :1], 0.0)
    return np.asarray(rows * (kept / np.where(length > 0, length, 1.0)))


def shrink_entries(rows: Array, t: Array) -> Array:
    return np.asarray(np.sign(rows) * np.maximum(np.abs(rows) - t, 0.0))


def shrink_positive(rows: Array, t: Array) -> Array:
    """Shorten positive entries by t."""
    return np.asarray(np.where(rows > 0, np.maximum(rows - t, 0.0), rows))


def level(rows: Array, t: Array) -> Array:
    """Return the number a for which ``sum(max(row - a, 0)) = t``, by sorting: M. Held, P. Wolfe & H. Crowder 1974."""
    ordered = -np.sort(-rows, axis=1)
    amounts = (np.cumsum(ordered, axis=1) - t[:, :1]) / np.arange(1, rows.shape[1] + 1)
    last = np.sum(ordered > amounts, axis=1, keepdims=True) - 1
    return np.take_along_axis(amounts, np.maximum(last, 0), axis=1)


def cut_largest(rows: Array, t: Array) -> Array:
    """Cut off what rises above a level, t in all."""
    return np.minimum(rows, level(rows, t))


def cut_sizes(rows: Array, t: Array) -> Array:
    """Cut off of sizes what rises above a level, t in all; nothing is left where that is more than all of it."""
    return np.clip(rows, *(sign * np.maximum(level(np.abs(rows), t), 0.0) for sign in (-1.0, 1.0)))


def above_zero(rows: Array, t: Array) -> Array:
    """Solve ``x - t/x = row`` for x > 0, without cancellation."""
    root = np.sqrt(rows**2 + 4 * t)
    return np.asarray(np.where(rows > 0, (rows + root) / 2, 2 * t / np.where(rows > 0, 1.0, root - rows)))


def entropic(rows: Array, t: Array) -> Array:
    """Solve ``x + t (log x + 1) = row``: ``x/t + log(x/t) = row/t - 1 - log t``."""
    return np.asarray(t * np.real(wrightomega(rows / t - 1 - np.log(t))))


EUCLIDEAN = VectorFunction("the Euclidean norm", lambda rows: np.linalg.norm(rows, axis=1), shrink_rows)
SIZES = VectorFunction("the sum of sizes", lambda rows: np.abs(rows).sum(axis=1), shrink_entries, separable=True)
POSITIVE = VectorFunction(
    "the sum of positive parts",
    lambda rows: np.maximum(rows, 0.0).sum(axis=1),
    shrink_positive,
    separable=True,
    even=False,
)
LARGEST = VectorFunction("the largest entry", lambda rows: rows.max(axis=1), cut_largest, even=False)
LARGEST_SIZE = VectorFunction("the largest size", lambda rows: np.abs(rows).max(axis=1), cut_sizes)


def minus_logarithms(rows: Array) -> Array:
    """Add up -log(x), infinite at 0."""
    inside = (rows > 0).all(axis=1)
    return np.where(inside, -np.log(np.where(rows > 0, rows, 1.0)).sum(axis=1), np.inf)


def entropies(rows: Array) -> Array:
    """Add up x log(x), 0 at 0 and infinite below."""
    inside = (rows >= 0).all(axis=1)
    return np.where(inside, xlogy(np.maximum(rows, 0.0), np.maximum(rows, 0.0)).sum(axis=1), np.inf)


LOGARITHM = VectorFunction("minus the logarithm", minus_logarithms, above_zero, separable=True, even=False, curved=True)
ENTROPY = VectorFunction("minus the entropy", entropies, entropic, separable=True, even=False, curved=True)
