"""A model of the Hessian of summed losses from second moments of the records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gram:
    """A Hessian modelled as ``map' (sum_g mean bend_g (x) moments_g) map``, over groups of records that bend alike.

    All but the map are sums over the records: Hessians by the forms, second moments of the monomials, numbers of records.
    """

    bends: Array  # shape (groups, forms, forms)
    moments: Array  # shape (groups, monomials, monomials)
    counts: Array  # shape (groups,)
    map: sp.csr_array  # from theta to the coefficients of the forms, form by form

    def sums(self) -> Array:
        """Return all of it that is a sum, as one vector."""
        return np.concatenate([self.bends.ravel(), self.moments.ravel(), self.counts])

    @classmethod
    def of(cls, sums: Array, groups: int, forms: int, place: sp.csr_array) -> Gram:
        """Return the model with such sums."""
        bends, moments, counts = np.split(sums, [groups * forms**2, len(sums) - groups])
        size = place.shape[0] // forms
        return cls(bends.reshape(groups, forms, forms), moments.reshape(groups, size, size), counts, place)

    def product(self, direction: Array) -> Array:
        """Return the Hessian times a direction, shape (dim,)."""
        moves = (self.map @ direction).reshape(self.bends.shape[1], -1)
        bends = self.bends / np.maximum(self.counts, 1.0)[:, None, None]
        return np.asarray(self.map.T @ (bends @ (moves @ self.moments)).sum(axis=0).ravel())

    def grid(self) -> tuple[NDArray[np.int64], Array, Array] | None:
        """Return where each coordinate lies in a table with a row for each monomial, and matrices for columns and rows, or None.

        The coefficients of a monomial are combinations of coordinates that no other monomial has, the same ones for all: the
        weights of a class, one for each feature.  The Hessian is then a product of one matrix for rows and one for columns.
        """
        bend = self.bends.sum(axis=0) / max(self.counts.sum(), 1.0)
        count, table = self.moments.shape[1], sp.csc_array(self.map)
        form, monomial = np.divmod(table.indices, count)
        lengths = np.diff(table.indptr)
        row = monomial[np.minimum(table.indptr[:-1], len(monomial) - 1)]
        owner = np.repeat(np.arange(table.shape[1]), lengths)
        if (lengths == 0).any() or (monomial != row[owner]).any():
            return None
        weights = np.zeros((table.shape[1], len(bend)))
        weights[owner, form] = table.data
        kinds, column = np.unique(weights, axis=0, return_inverse=True)
        places = np.full((count, len(kinds)), -1, dtype=np.int64)
        places[row, column.ravel()] = np.arange(table.shape[1])
        used = np.unique(row)
        if (places[used] < 0).any() or (places >= 0).sum() != table.shape[1]:
            return None
        return places[used], kinds @ bend @ kinds.T, self.moments.sum(axis=0)[used][:, used]
