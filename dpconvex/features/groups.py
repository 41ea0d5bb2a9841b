"""Normalisation of groups of features, each record by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.columns import per_block
from dpconvex.data.encoded import with_origin
from dpconvex.errors import DomainError
from dpconvex.features.transformers import LearnsNothing, finite_rows, raise_unusable
from dpconvex.util.arguments import COUNT, POSITIVE, check_fields, require

# Smaller entries count as 0.  Rows have length ROW_LENGTH, so that no rounding to single precision makes them longer than 1.
SMALLEST_ENTRY, ROW_LENGTH = 1e-300, 1 - 1e-6


@dataclass(eq=False, repr=False)
class GroupNormalizer(LearnsNothing):
    """Centre and scale groups of features by their own mean and deviation in each record, to a length of at most 1.

    Each record is treated alone, so this costs no privacy.  A record whose groups are all constant becomes 0.

    Parameters
    ----------
    groups : int
        Number of groups of equally many consecutive features.  For the 3,969 scattering coefficients of 28 x 28 pixels, 27
        groups have three paths each.
    floor : float
        Added to the variance of each group, so that a group that is constant up to rounding stays near 0; positive.

    Notes
    -----
    Wu & He, "Group normalization" (2018), with their floor; Tramèr & Boneh (2021) apply it to scattering coefficients.

    Examples
    --------
    >>> GroupNormalizer(groups=2).fit_transform([[0.0, 2.0, 5.0, 5.0], [1.0, 3.0, -10.0, 10.0]]).round(2)
    array([[-0.71,  0.71,  0.  ,  0.  ],
           [-0.5 ,  0.5 , -0.5 ,  0.5 ]])
    """

    groups: int = 1
    floor: float = 1e-5

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return normalised records, shape (n, features), in the precision of X."""
        rows = self._read(X)
        result = np.empty(rows.shape, dtype=rows.dtype)
        shape, step = (-1, self.groups, rows.shape[1] // self.groups), per_block(rows.shape[1:])
        for start in range(0, len(rows), step):
            # In C order: sums in another order round differently.
            parts = np.array(rows[start : start + step], dtype=float, order="C").reshape(shape)
            with np.errstate(all="ignore"):  # refused below if not finite
                parts -= parts.mean(axis=2, keepdims=True)
                spread = np.sqrt(np.square(parts).mean(axis=2, keepdims=True) + self.floor)
                parts /= spread
            for row in start + np.flatnonzero(~np.isfinite(spread).all(axis=(1, 2))):
                raise_unusable("GroupNormalizer: row", int(row), rows[row])
            largest = np.abs(parts).max(axis=(1, 2), keepdims=True)  # its square may overflow
            parts /= np.where(largest > SMALLEST_ENTRY, largest, np.inf)
            lengths = np.sqrt(np.square(parts).sum(axis=(1, 2), keepdims=True))
            parts *= ROW_LENGTH / np.where(lengths > 0, lengths, 1.0)
            result[start : start + step] = parts.reshape(-1, rows.shape[1])
        return with_origin(result, X)

    def _read(self, X: Any, reset: bool = False) -> NDArray[Any]:
        check_fields(self, groups=COUNT, floor=POSITIVE)
        rows = finite_rows(self, X, reset)
        count = rows.shape[1]
        why = f"{count} feature(s) cannot form {self.groups} groups of one size, two or more"
        require(not count % self.groups and count != self.groups, f"GroupNormalizer: {why}.", DomainError)
        return rows
