"""What second moments of the records say about the Hessian of their losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]

# So many numbers are multiplied for second moments while one is for an evaluation.
PRODUCTS = 25
# Second moments of each label are told apart if they are so many numbers at most: eight megabytes.
APART = 2**20


def passes_of(monomials: float, forms: int) -> float:
    """Return how many evaluations second moments take as long as, about, with so many products for each number that is read."""
    return 2 + monomials / (PRODUCTS * forms)


def groups_of(labels: int, monomials: int, forms: int, by_label: bool) -> int:
    """Return how many groups of records a model tells apart: those with different labels, if that is asked for and helps."""
    return labels if by_label and forms > 1 and labels * monomials**2 <= APART else 1


@dataclass(frozen=True, eq=False)
class Gram:
    """A Hessian modelled as ``map' (sum_g bend_g (x) moments_g) map``.

    Of a single form the Hessian is just that, with moments weighted by the curvature of the records' losses.  Of several forms,
    whose losses bend each in its own way, it is the model that takes the mean for all of a group: all records, or those with one
    label.

    Attributes
    ----------
    bend : ndarray, shape (groups, forms, forms)
        Mean of the Hessians of a group's losses by the forms.
    moments : ndarray, shape (groups, monomials, monomials)
        Sum of the second moments of the monomials.
    counts : ndarray, shape (groups,)
        Number of records.
    map : csr_array, shape (forms * monomials, dim)
        From theta to the coefficients of the forms, form by form.
    exact : bool
        Whether this is the Hessian itself, but for rounding.
    """

    bend: Array
    moments: Array
    counts: Array
    map: sp.csr_array
    exact: bool

    @property
    def forms(self) -> int:
        return self.bend.shape[1]

    def sums(self) -> Array:
        """Return all of it that is a sum over the records, as one vector."""
        return np.concatenate([(self.bend * self.counts[:, None, None]).ravel(), self.moments.ravel(), self.counts])

    @classmethod
    def of(cls, sums: Array, groups: int, forms: int, place: sp.csr_array) -> Gram:
        """Return the model with such sums."""
        bend, moments, counts = np.split(sums, [groups * forms**2, len(sums) - groups])
        bend = bend.reshape(groups, forms, forms) / np.maximum(counts, 1.0)[:, None, None]
        size = place.shape[0] // forms
        return cls(bend, moments.reshape(groups, size, size), counts, place, exact=forms == 1)

    def matrix(self) -> Array:
        """Return the Hessian, shape (dim, dim)."""
        half = self.map.T @ sum(np.kron(bend, moments) for bend, moments in zip(self.bend, self.moments, strict=True))
        return np.asarray(self.map.T @ half.T)

    def product(self, direction: Array) -> Array:
        """Return the Hessian times a direction, shape (dim,)."""
        moves = (self.map @ direction).reshape(self.forms, -1)
        return np.asarray(self.map.T @ (self.bend @ (moves @ self.moments)).sum(axis=0).ravel())

    def mean(self) -> tuple[Array, Array]:
        """Return the mean bend of all records, and the sum of all second moments."""
        weights = self.counts / max(self.counts.sum(), 1.0)
        return np.tensordot(weights, self.bend, 1), self.moments.sum(axis=0)

    def grid(self) -> tuple[NDArray[np.int64], Array] | None:
        """Return where each coordinate lies in a table with a row for each monomial, and the mean bend by columns, or None.

        The coefficients of a monomial are combinations of coordinates that no other monomial has, the same ones for all: the
        weights of a class, one for each feature.  The Hessian is then a product of one matrix for rows and one for columns.
        """
        bend, count = self.mean()[0], self.moments.shape[1]
        table = sp.csc_array(self.map)
        form, monomial = np.divmod(table.indices, count)
        lengths = np.diff(table.indptr)
        moving = np.flatnonzero(lengths)
        row = np.full(table.shape[1], -1, dtype=np.int64)
        row[moving] = monomial[table.indptr[moving]]
        owner = np.repeat(np.arange(table.shape[1]), lengths)
        if (monomial != row[owner]).any() or len(moving) < table.shape[1]:
            return None
        weights = np.zeros((table.shape[1], len(bend)))
        weights[owner, form] = table.data
        kinds, column = np.unique(weights, axis=0, return_inverse=True)
        used = np.unique(row)
        places = np.full((count, len(kinds)), -1, dtype=np.int64)
        places[row, column.ravel()] = np.arange(table.shape[1])
        if (places[used] < 0).any() or (places >= 0).sum() != table.shape[1]:
            return None
        return places, kinds @ bend @ kinds.T
