"""Ranks of matrices whose rows and columns come in any units.

A rank that is too large only adds noise; one that is too small drops a direction that the data can see.
"""

import numpy as np

from dpconvex.core.arrays import Array

# Rounds of scaling; each takes the root of what is left of the spread of the logarithms.
ROUNDS = 8


def rank_tolerance(shape: tuple[int, ...]) -> float:
    """Return the fraction of the largest singular value that is rounding, for a matrix with entries right to the last digit."""
    return 4 * float(np.finfo(float).eps) * max(shape)


def numerical_rank(matrix: Array) -> int:
    """Return the rank of a matrix, whatever the units of its rows and columns.

    >>> numerical_rank(np.array([[1.0, 1e-17], [1.0, 0.0]])), numerical_rank(np.array([[0.1, 0.3], [0.2, 0.6]]))
    (2, 1)
    """
    matrix = matrix[matrix.any(axis=1)]
    matrix = matrix[:, matrix.any(axis=0)]
    if not matrix.size:
        return 0
    for _ in range(ROUNDS):  # by powers of two, until the largest entry of each row and column is about 1
        for axis in (1, 0):
            matrix = np.ldexp(matrix, -np.frexp(np.abs(matrix).max(axis=axis, keepdims=True))[1])
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > rank_tolerance(matrix.shape) * values[0]).sum())
