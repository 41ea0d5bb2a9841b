"""What second moments of the records say about the Hessian of their losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["Gram", "passes_of"]

Array = NDArray[np.float64]

# So many numbers are multiplied for second moments while one is for an evaluation.
PRODUCTS = 25


def passes_of(monomials: float, forms: int) -> float:
    """Return how many evaluations second moments take as long as, about, with so many products for each number that is read."""
    return 2 + monomials / (PRODUCTS * forms)


@dataclass(frozen=True, eq=False)
class Gram:
    """A Hessian modelled as ``map' (bend (x) moments) map``.

    Of a single form the Hessian is just that, with moments weighted by the curvature of the records' losses.  Of several forms,
    whose losses bend each in its own way, it is the model that takes the mean for all.

    Attributes
    ----------
    bend : ndarray, shape (forms, forms)
        Mean of the Hessians of the losses by the forms.
    moments : ndarray, shape (monomials, monomials)
        Sum of the second moments of the monomials.
    map : csr_array, shape (forms * monomials, dim)
        From theta to the coefficients of the forms, form by form.
    exact : bool
        Whether this is the Hessian itself, but for rounding.
    """

    bend: Array
    moments: Array
    map: sp.csr_array
    exact: bool

    def matrix(self) -> Array:
        """Return the Hessian, shape (dim, dim)."""
        half = self.map.T @ np.kron(self.bend, self.moments)
        return np.asarray(self.map.T @ half.T)

    def grid(self) -> tuple[NDArray[np.int64], Array] | None:
        """Return where each coordinate lies in a table with a row for each monomial, and the bend by columns; None if nowhere.

        The coefficients of a monomial are combinations of coordinates that no other monomial has, the same ones for all: the
        weights of a class, one for each feature.  The Hessian is then a product of one matrix for rows and one for columns.
        """
        count = len(self.moments)
        table = sp.csc_array(self.map)
        form, monomial = np.divmod(table.indices, count)
        lengths = np.diff(table.indptr)
        moving = np.flatnonzero(lengths)
        row = np.full(table.shape[1], -1, dtype=np.int64)
        row[moving] = monomial[table.indptr[moving]]
        owner = np.repeat(np.arange(table.shape[1]), lengths)
        if (monomial != row[owner]).any() or len(moving) < table.shape[1]:
            return None
        weights = np.zeros((table.shape[1], len(self.bend)))
        weights[owner, form] = table.data
        kinds, column = np.unique(weights, axis=0, return_inverse=True)
        used = np.unique(row)
        places = np.full((count, len(kinds)), -1, dtype=np.int64)
        places[row, column.ravel()] = np.arange(table.shape[1])
        if (places[used] < 0).any() or (places >= 0).sum() != table.shape[1]:
            return None
        return places, kinds @ self.bend @ kinds.T
