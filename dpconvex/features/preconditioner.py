"""Preconditioning of records by the second moment of public records, before any private record is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.encoded import with_origin
from dpconvex.data.validation import real_array
from dpconvex.errors import DomainError
from dpconvex.features.transformers import LearnsNothing, finite_rows
from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array, squared_lengths
from dpconvex.util.plain_data import is_real

# Entries of the matrix have FINE levels, those of a record RECORD_LEVELS relative to its largest, unless below SMALLEST_ENTRY.
# Rows of the matrix add up to at most FINE * WIDEST, so that sums stay below 2^53.
FINE, WIDEST, RECORD_LEVELS, SMALLEST_ENTRY = 2**22, 2**12, 2**18, 1e-250
BLOCK = 2**22  # Number of entries of a block of records
# Results have length at most ROW_LENGTH, and entries that are multiples of GRID.
ROW_LENGTH, GRID = 1 - 1e-12, 2.0**-20


@dataclass(eq=False, repr=False)
class PublicPreconditioner(LearnsNothing):
    """Rotate and scale records by the second moment of public records, ``(C + ridge)^(-power) x``, to length 1.

    Directions in which public records hardly differ are enlarged, so that they exceed the noise of a noisy second moment.
    Nothing is learnt from private records: C is computed from `records`, which must be public or synthetic.

    Parameters
    ----------
    records : array_like, shape (m, d)
        Public records with the same features, such as those of `dp.datasets.drawn_shapes`.
    power : float
        Between 0, which changes no direction, and 1/2, which whitens public records.
    ridge : float
        Positive number added to the eigenvalues of C, which add up to the mean squared length of a public record.

    Examples
    --------
    >>> public = [[1.0, 0.0], [0.8, 0.1], [0.9, -0.1]]
    >>> PublicPreconditioner(public).transform([[0.8, 0.1]]).round(2)
    array([[0.92, 0.39]])
    """

    records: Any
    power: float = 0.25
    ridge: float = 1e-4

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return records of length 1, shape (n, d), in the precision of X; zero records stay 0."""
        rows, matrix = self._read(X), self._matrix()
        result = np.empty_like(rows)
        for start in range(0, len(rows), step := max(BLOCK // max(len(matrix), 1), 1)):
            result[start : start + step] = turned(rows[start : start + step].astype(float), matrix)
        return with_origin(result, X)  # multiples of 2^-20, which single precision holds

    def _matrix(self) -> Array:
        """Return the matrix in whole numbers; it is computed again if options or public records have changed."""
        public, made = self._public(), vars(self).get("_made")
        if made is None or made[0] != (self.power, self.ridge) or not np.array_equal(made[1], public):
            values, vectors = np.linalg.eigh(public.T @ public / len(public))  # of the second moment
            matrix = (vectors * (np.maximum(values, 0.0) + self.ridge) ** -self.power) @ vectors.T
            made = self._made = (self.power, self.ridge), public.copy(), in_whole_numbers(matrix)
        return made[2]

    def _public(self) -> Array:
        public = real_array("PublicPreconditioner: records", self.records)
        known = is_real(self.power) and 0 <= self.power <= 0.5 and is_real(self.ridge) and 0 < self.ridge < np.inf
        fits = public.ndim == 2 and len(public) and np.isfinite(public).all() and known
        said = "records must be a table of finite numbers, power between 0 and 1/2, and ridge positive and finite"
        require(fits, f"PublicPreconditioner: {said}.")
        return public

    def _read(self, X: Any, reset: bool = False) -> NDArray[Any]:
        rows, count = finite_rows(self, X, reset), self._public().shape[1]
        if rows.shape[1] != count:
            raise DomainError(f"PublicPreconditioner: {rows.shape[1]} features, but public records have {count}.")
        return rows


def in_whole_numbers(matrix: Array) -> Array:
    """Return a multiple of a matrix, rounded to integers of which `turned` forms exact sums."""
    sizes = np.abs(matrix)
    return np.asarray(np.rint(matrix / max(sizes.max(), sizes.sum(axis=1).max() / WIDEST) * FINE))


def turned(rows: Array, matrix: Array) -> Array:
    """Return records times a matrix of integers, scaled to length 1; sums of integers below 2^53 are exact in any order."""
    largest = np.abs(rows).max(axis=1)
    scale = np.where(largest > SMALLEST_ENTRY, RECORD_LEVELS / np.maximum(largest, SMALLEST_ENTRY), 0.0)
    found = np.trunc(rows * scale[:, None]) @ matrix.T
    lengths = np.sqrt(squared_lengths(found))
    lengths[lengths == 0] = 1.0
    return np.asarray(np.trunc(found * (ROW_LENGTH / lengths)[:, None] / GRID) * GRID)
