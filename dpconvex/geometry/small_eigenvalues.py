"""Eigenvalues near zero: bounds in extended precision, and how they bend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.semidefinite import smat, svec

Array = NDArray[Any]


def least_eigenvalue(matrix: Array, vectors: Array) -> float:
    """Bound the least eigenvalue of a matrix, whose eigenvectors are nearly `vectors`, from below if it is near 0.

    In their basis, let A be the block of what is small, B the rest of its rows and C the other block; then the matrix is positive
    semidefinite if ``A - B C^-1 B'`` is, and A is known to a small relative error.
    """
    turned = vectors.T @ matrix @ vectors
    size = np.diag(turned).astype(float)
    small = np.abs(size) <= 1e-6 * max(float(np.abs(size).max()), 1e-300)
    if not small.any() or size.min() < -1e-6 * np.abs(size).max():
        return float(np.linalg.eigvalsh(matrix.astype(float))[0]) * (1 - 1e-9) - 8 * len(matrix) * UNIT * float(
            np.abs(size).max()
        )
    corner = turned[np.ix_(small, small)].astype(float)
    rest = 0.0
    if not small.all():
        others = float(np.linalg.eigvalsh(turned[np.ix_(~small, ~small)].astype(float))[0])
        rest = 2 * float(np.linalg.norm(turned[np.ix_(small, ~small)].astype(float))) ** 2 / others
    found = float(np.linalg.eigvalsh(corner)[0])
    return found - 1e-14 * len(corner) * float(np.linalg.norm(corner)) - rest


def spectral_curvature(matrix: Array, multiplier: Array) -> Array:
    """How much the least eigenvalues of a matrix bend, with a multiplier: ``2 tr(Y dX X^+ dX)`` in svec coordinates."""
    value, vector = np.linalg.eigh(matrix)
    inverse = np.where(value > 1e-6 * max(float(np.abs(value).max()), 1e-300), 1 / np.where(value > 0, value, 1.0), 0.0)
    inverted = (vector * inverse) @ vector.T
    basis = np.stack([smat(e) for e in np.eye(len(matrix) * (len(matrix) + 1) // 2)])
    return np.asarray(svec(inverted @ basis @ multiplier + multiplier @ basis @ inverted))
