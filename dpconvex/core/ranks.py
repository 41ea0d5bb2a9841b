"""Ranks of matrices whose rows and columns come in any units.

A rank that is too large only adds noise; one that is too small drops a direction that the data can see.  So rows and columns
are brought to one size first, and only what is smaller than rounding is dropped.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPSILON = float(np.finfo(float).eps)
# Rounds of scaling; each takes the root of what is left of the spread of the logarithms.
ROUNDS = 8
# Larger matrices are taken apart before they are decomposed.
LARGE = 64


def rank_tolerance(shape: tuple[int, ...]) -> float:
    """Return the fraction of the largest singular value that is rounding, for a matrix with entries right to the last digit."""
    return 4 * EPSILON * max(shape)


def numerical_rank(matrix: Array) -> int:
    """Return the rank of a matrix, whatever the units of its rows and columns.

    >>> numerical_rank(np.array([[1.0, 1e-17], [1.0, 0.0]]))
    2
    >>> numerical_rank(np.array([[0.1, 0.3], [0.2, 0.6]]))
    1
    """
    rank = 0
    while min(matrix.shape) > LARGE:
        # A row with a column of its own is independent of all others.
        occupied = matrix != 0
        alone = occupied[:, occupied.sum(axis=0) == 1].any(axis=1)
        if not alone.any():
            break
        rank, matrix = rank + int(alone.sum()), matrix[~alone]
    matrix = balanced(matrix)
    if not matrix.size:
        return rank
    values = np.linalg.svd(matrix, compute_uv=False)
    return rank + int((values > rank_tolerance(matrix.shape) * values[0]).sum())


def balanced(matrix: Array) -> Array:
    """Divide rows and columns by powers of two until the largest entry of each is about 1; those of zeros are left out."""
    matrix = matrix[matrix.any(axis=1)]
    matrix = matrix[:, matrix.any(axis=0)]
    if not matrix.size:
        return matrix
    for _ in range(ROUNDS):
        for axis in (1, 0):
            largest = np.abs(matrix).max(axis=axis, keepdims=True)
            matrix = np.ldexp(matrix, -np.frexp(largest)[1])
    return matrix
