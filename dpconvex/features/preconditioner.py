"""Records made round by what public records of the same kind look like, before any private one is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.validation import numbers
from dpconvex.errors import DomainError, TemplateError
from dpconvex.features.transformers import LearnsNothing, finite_rows
from dpconvex.fitting.whitening import Whitening
from dpconvex.util.arrays import Array
from dpconvex.util.plain_data import is_real


@dataclass(eq=False, repr=False)
class PublicPreconditioner(LearnsNothing):
    """Rotate and scale records by the second moment of public records, ``(C + ridge)^(-power) x``, to length 1.

    Directions in which public records hardly differ are enlarged, so that a private whitening finds them above its noise.
    Nothing is learnt from private records: C is computed from `records`, which must be public or synthetic.

    Parameters
    ----------
    records : array_like, shape (m, d)
        Public records with the same features, such as those of `dp.datasets.drawn_shapes`.
    power : float
        Between 0, which changes no direction, and 1/2, which makes public records round.
    ridge : float
        Added to the eigenvalues of C, whose sum is the mean squared length of a public record; positive.

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
        rows = self._read(X)
        return self._map()(rows, rows.dtype)  # multiples of 2^-20, which single precision holds

    def _map(self) -> Whitening:
        """Return the map, made once for the same options and values of the records."""
        public, made = self._public(), vars(self).get("_made")
        if made is None or made[0] != (self.power, self.ridge) or not np.array_equal(made[1], public):
            values, vectors = np.linalg.eigh(public.T @ public / len(public))  # of the second moment
            matrix = (vectors * (np.maximum(values, 0.0) + self.ridge) ** -self.power) @ vectors.T
            made = self._made = (self.power, self.ridge), public.copy(), Whitening("x", 1.0, matrix)
        return made[2]

    def _public(self) -> Array:
        public = numbers("PublicPreconditioner: records", self.records)
        known = is_real(self.power) and 0 <= self.power <= 0.5 and is_real(self.ridge) and 0 < self.ridge < np.inf
        if public.ndim != 2 or not len(public) or not np.isfinite(public).all() or not known:
            said = "records must be a table of finite numbers, power between 0 and 1/2, and ridge positive and finite"
            raise TemplateError(f"PublicPreconditioner: {said}.")
        return public

    def _read(self, X: Any, reset: bool = False) -> NDArray[Any]:
        rows, count = finite_rows(self, X, reset), self._public().shape[1]
        if rows.shape[1] != count:
            raise DomainError(f"PublicPreconditioner: {rows.shape[1]} features, and public records have {count}.")
        return rows
