"""Sums over records, with bounds on their rounding for every input.

A sum of m numbers in any order errs by at most m - 1 units in the last place of its terms' absolute values (Higham, *Accuracy and
Stability of Numerical Algorithms*, 4.2).  Each record goes through 128 + 2 log2(n) additions at most: in pieces, then in pairs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dpconvex.numerics import UNIT_ROUNDOFF

# Number of records of a block, for second moments that are added in any order; the bound on their rounding counts these.
MOMENT_BLOCK = 4096
# Largest number of records in a block, and of records that are added in any order.
BLOCK, PIECE = 2**16, 128
AROUND = 8  # Operations on one number around a sum over the records
# Assumed rounding error of the gradient of one record, besides its sums, in roundings of ``G + H ||theta||``.
RECORD = 16


def pairwise(parts: Any) -> Any:
    while len(parts) > 1:
        sums = parts[: len(parts) // 2 * 2 : 2] + parts[1::2]
        parts = sums if len(parts) % 2 == 0 else np.concatenate([sums, parts[-1:]])
    return parts[0]


class Pairwise:
    """A pairwise sum of arrays that come one by one: sums of equally many terms are added."""

    def __init__(self, zero: Any) -> None:
        self.zero = zero
        self.count = 0
        self.waiting: list[Any] = []  # sums of decreasing powers of two of terms

    def add(self, term: Any) -> None:
        self.count += 1
        for _ in range((self.count & -self.count).bit_length() - 1):  # as often as two divides the count
            term = self.waiting.pop() + term
        self.waiting.append(term)

    @property
    def value(self) -> Any:
        return reduce(lambda total, part: part + total, reversed(self.waiting)) if self.waiting else self.zero


def pairwise_sum(terms: Iterable[Any]) -> Any:
    """Return the pairwise sum of terms; None if a term is None."""
    total, missing = Pairwise(0.0), False
    for term in terms:
        missing = missing or term is None
        if not missing:
            total.add(term)
    return None if missing else total.value


def public_norms(data: float, noise: float, quadratic: float, whole: float, regularizer: float) -> float:
    """Bound the sum of the norms of the parts of the objective's gradient, apart from the parts of single records."""
    return 2 * (data + noise + quadratic) + whole + regularizer


@dataclass(frozen=True)
class SumLengths:
    """Lengths of the sums in the computation of a gradient, from public numbers."""

    scalars: int  # Terms of the longest inner product: scalars of one record, or monomials of these
    entries: int  # Entries of the leaves of one record's loss
    row: int  # Terms in the inner products of the regularizer's gradient
    # Where parameters and gradients are projected on a subspace: the largest product, over the rows of the
    # projection, of the number of their entries and the sum of their absolute values
    projected: float = 0.0
    terms: int = 0  # Largest number of terms that the loss of a record adds in one place, besides inner products
    # Largest ratio of a leaf's slopes, with all of their terms of one sign, to the slopes themselves
    cancelled: float = 1.0
    still: float = 0.0  # Size of a leaf's terms without parameters, as they are written, over the length of its slope

    def gradient_error(
        self, records: float, gradient_bound: float, hessian_bound: float, radius: float, public: float
    ) -> float:
        """Bound the error of a computed gradient of the objective (docs/release.md, section 5)."""
        summed = min(records, PIECE) + 2 * math.log2(1 + records) + AROUND
        # With several leaves, gradients of forms are summed; their norms can be larger than the norm of their sum.
        spread = math.sqrt(2 * (self.entries + 1)) if self.entries > 1 else 1.0
        leaves = self.entries if self.entries > 1 else 0  # sums of as many forms
        # Terms of slopes are summed over the records separately, and cancel in the sums.
        gradients, one = self.cancelled * gradient_bound, self.cancelled * (gradient_bound + hessian_bound * radius)
        each = RECORD + self.scalars + leaves + self.projected + self.terms
        data = records * (spread * summed * gradients + each * (one + hessian_bound * self.still))
        return UNIT_ROUNDOFF * (data + (self.row + AROUND) * public)
