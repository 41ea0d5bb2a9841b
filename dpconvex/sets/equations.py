"""Equations among constraints: scaling, numerical rank, and a check for rows that only rounding makes dependent."""

import numpy as np

from dpconvex.errors import TemplateError
from dpconvex.numerics import EPSILON
from dpconvex.util.arrays import Array

PRIME = 2**61 - 1  # Products of two remainders are exact in Python's integers


def in_units(matrix: Array, value: Array) -> tuple[Array, Array]:
    """Return equations with rows scaled to similar sizes by powers of two, which is exact."""
    unit = -np.frexp(np.abs(matrix).max(axis=1, initial=0.0))[1]
    return np.ldexp(matrix, unit[:, None]), np.ldexp(value, unit)


def ranked_svd(matrix: Array, full: bool = False) -> tuple[Array, Array, Array, int]:
    """Return the singular vectors and values of rows, and their rank. Raise if only rounding makes rows dependent.

    The rank modulo a prime shows this: it is never above the exact rank.
    """
    left, singular, right = np.linalg.svd(matrix, full_matrices=full)
    rank = int((singular > 8 * max(matrix.shape) * EPSILON * singular.max(initial=0.0)).sum())
    if rank < len(matrix) and modular_rank(matrix) > rank:
        why = "some equations among the constraints are linearly dependent, but only up to rounding"
        raise TemplateError(
            f"{why}. Leave out equations that follow from others, or use units in which coefficients are similar."
        )
    return left, singular, right, rank


def modular_rank(matrix: Array) -> int:
    rows, rank = np.zeros(matrix.shape, dtype=object), 0
    for place in zip(*np.nonzero(matrix), strict=True):
        over, under = float(matrix[place]).as_integer_ratio()
        rows[place] = over * pow(under, -1, PRIME) % PRIME
    for column in range(matrix.shape[1]):
        first, *others = [*np.flatnonzero(rows[rank:, column]) + rank, -1]
        if first < 0:
            continue
        pivot = rows[first] * pow(int(rows[first, column]), -1, PRIME) % PRIME
        rows[others[:-1]] = (rows[others[:-1]] - np.outer(rows[others[:-1], column], pivot)) % PRIME
        rows[first], rank = rows[rank], rank + 1
    return rank
