"""Sums over records whose rounding is bounded for every input, not only on average.

A sum of m numbers in any order errs by at most m - 1 units in the last place of its terms' absolute values (N. Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd edition, section 4.2).  Records are added in pieces of at most 128, in any
order, and pieces in pairs: each record goes through 128 + 2 log2(n) additions at most.  Inner products over a record's scalars
are added in pieces of 32 terms, and these in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Unit roundoff of double precision.
ROUNDOFF = 2.0**-53
# So many records at most are in a block, and so many of them are added in any order.
BLOCK, PIECE = 2**17, 128
# So many terms of an inner product are added in any order; of several inner products of records that lie in memory one after the
# other, so many records are multiplied at a time: each is fetched once, not once for each piece.
TERMS, TOGETHER = 32, 1024
# Operations on one number around a sum over the records.
AROUND = 8
# What is assumed of one record besides its sums: that its gradient errs by at most so many units of ``G + H ||theta||``.
RECORD = 16


def product_error(terms: int) -> float:
    """Bound the error of an inner product in pieces, in units of the product of the norms: its products, and all additions."""
    return min(terms, TERMS) + math.ceil(math.log2(max(terms / TERMS, 1.0)))


def pairwise(parts: Any, xp: Any = np) -> Any:
    """Sum over the first axis: neighbours first, then their sums, and so on."""
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        sums = parts[0:even:2] + parts[1:even:2]
        parts = sums if even == len(parts) else xp.concatenate([sums, parts[even:]])
    return parts[0]


class Pairwise:
    """A sum of arrays that come one by one, each added to a sum of as many others.

    Examples
    --------
    >>> total = Pairwise(0.0)
    >>> for number in (1.0, 2.0, 3.0):
    ...     total.add(number)
    >>> total.value
    6.0
    """

    def __init__(self, zero: Any) -> None:
        self.zero = zero
        self.count = 0
        self.waiting: list[Any] = []  # sums of falling powers of two of terms

    def add(self, term: Any) -> None:
        self.count += 1
        left = self.count
        while left % 2 == 0:
            term = self.waiting.pop() + term
            left //= 2
        self.waiting.append(term)

    @property
    def value(self) -> Any:
        """The sum so far."""
        if not self.waiting:
            return self.zero
        total = self.waiting[-1]
        for part in self.waiting[-2::-1]:
            total = part + total
        return total


class Tree:
    """A sum of one term for each of several partitions: neighbours in pairs, and their sums in pairs, whoever comes first.

    Parameters
    ----------
    sizes : sequence of int
        Number of records of each partition; those without records are left out.

    Examples
    --------
    >>> total = Tree([100, 1, 100])
    >>> for number in (2, 0, 1):  # whatever the order, the first two are added first
    ...     total.add(number, [0.5, 2.0, 4.0][number])
    >>> total.value
    6.5
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.pairs: dict[int, tuple[int, int]] = {}  # of a node: the other of its pair, and the node of their sum
        self.waiting: dict[int, Any] = {}
        nodes, count = [number for number, size in enumerate(sizes) if size], len(sizes)
        while len(nodes) > 1:
            sums = []
            for left, right in zip(nodes[::2], nodes[1::2], strict=False):
                self.pairs[left], self.pairs[right] = (right, count), (left, count)
                sums.append(count)
                count += 1
            nodes = [*sums, *nodes[2 * len(sums) :]]
        self.root = nodes[0] if nodes else None

    def below(self, numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the additions that need the terms of some partitions alone; see `of`."""
        found, known, left = dict[int, tuple[int, int]](), set(numbers), list(numbers)
        while left:
            number = left.pop()
            other, both = self.pairs.get(number, (number, number))
            if other != number and other in known and both not in known:
                found[number], found[other] = self.pairs[number], self.pairs[other]
                known.add(both)
                left.append(both)
        return found

    @classmethod
    def of(cls, pairs: dict[int, tuple[int, int]]) -> Tree:
        """Return a sum that makes some additions of another one: what is `waiting` in the end are terms for that one."""
        some = cls(())
        some.pairs = pairs
        return some

    def add(self, number: int, term: Any) -> None:
        """Add the term of a partition, or a sum of several; it is added to its neighbour as soon as that is there."""
        while number in self.pairs:
            other, both = self.pairs[number]
            if other not in self.waiting:
                break
            found = self.waiting.pop(other)
            term = term + found if number < other else found + term
            number = both
        self.waiting[number] = term

    @property
    def value(self) -> Any:
        """The sum, when all terms are there; None without records."""
        return None if self.root is None else self.waiting[self.root]


class Compensated:
    """A sum of any number of arrays, one by one, that errs by about one unit in all: what rounding takes is kept (D. Knuth).

    Examples
    --------
    >>> total = Compensated(0.0)
    >>> for number in (1.0, 2.0**-60, 2.0**-60, -1.0):
    ...     total.add(number)
    >>> float(total.value) == 2.0**-59
    True
    """

    def __init__(self, zero: Any) -> None:
        self.total = zero
        self.lost = 0.0 * zero

    def add(self, term: Any) -> None:
        with np.errstate(invalid="ignore"):
            total = self.total + term
            back = total - self.total
            self.lost = self.lost + ((self.total - (total - back)) + (term - back))
        self.total = total

    @property
    def value(self) -> Any:
        """The sum so far."""
        return np.where(np.isfinite(self.total), self.total + self.lost, self.total)


# Whether what is computed for a record must not depend, to the last bit, on how many others there are, nor on its place.
_APART: ContextVar[bool] = ContextVar("apart", default=False)
# Records are then a multiple of so many, of which the last ones may be there for the number alone: whatever a processor computes
# at once, no record is one of few that are left over.
LANES = 64
# So many records are multiplied at a time where their scalars lie side by side, and fewer forms one by one.
TURNED, FEW_FORMS = 1024, 4


def apart() -> bool:
    """Say whether each record is to be computed as if there were no others."""
    return _APART.get()


@contextmanager
def each_apart() -> Iterator[None]:
    """Context in which no record's bits depend on others: matrix products of libraries add in another order for each shape."""
    token = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(token)


def filled(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Repeat the last of some records until they are a multiple of `LANES`."""
    return np.concatenate([rows, np.full(-len(rows) % LANES, rows[-1])]) if len(rows) % LANES else rows


def inner_products(weights: Array, columns: Array) -> Array:
    """Return ``weights @ columns``, shape (forms, records), each inner product in pieces, and these in pairs."""
    if apart():  # one term of a piece after the other, for all records
        return _in_pieces(partial(np.einsum, "fj,jn->fn"), weights, np.ascontiguousarray(columns))
    if weights.shape[1] <= TERMS or not columns.flags.f_contiguous:
        return _in_pieces(np.matmul, weights, columns)
    if len(weights) == 1:
        return _single(weights[0], columns.T)[None]
    result, whole = np.empty((len(weights), columns.shape[1])), weights.shape[1] // TERMS * TERMS
    parts = np.ascontiguousarray(weights[:, :whole].reshape(len(weights), -1, TERMS).transpose(1, 2, 0))
    for start in range(0, columns.shape[1], TOGETHER):
        rows = columns[:, start : start + TOGETHER].T
        pieces = rows[:, :whole].reshape(len(rows), -1, TERMS).transpose(1, 0, 2) @ parts
        if whole < weights.shape[1]:
            pieces = np.concatenate([pieces, (rows[:, whole:] @ weights[:, whole:].T)[None]])
        result[:, start : start + TOGETHER] = pairwise(pieces).T
    return result


def products_apart(weights: Array, rows: Array) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each record by the same operations in the same order."""
    if len(weights) < FEW_FORMS:
        rows = np.ascontiguousarray(rows)
        return np.stack([_single(weight, rows) for weight in weights])
    result = np.empty((len(weights), len(rows)))
    for start in range(0, len(rows), TURNED):
        result[:, start : start + TURNED] = inner_products(weights, rows[start : start + TURNED].T)
    return result


def _single(weight: Array, rows: Array) -> Array:
    """Return ``rows @ weight`` of records that lie in memory one after the other."""
    count = max(-(-len(weight) // TERMS), 1)
    size = max(-(-len(weight) // count), 1)
    whole = len(weight) // size * size
    multiply = partial(np.einsum, "ij,j->i") if apart() else np.matmul
    if count == 1:
        return np.asarray(multiply(rows, weight))
    pieces = np.einsum("nkj,kj->nk", rows[:, :whole].reshape(len(rows), -1, size), weight[:whole].reshape(-1, size)).T
    if whole < len(weight):
        pieces = np.concatenate([pieces, multiply(rows[:, whole:], weight[whole:])[None]])
    return np.asarray(pairwise(pieces))


def _in_pieces(multiply: Callable[[Array, Array], Array], weights: Array, columns: Array) -> Array:
    if len(columns) <= TERMS:
        return np.asarray(multiply(weights, columns))
    total = Pairwise(0.0)
    for start in range(0, len(columns), TERMS):
        total.add(multiply(weights[..., start : start + TERMS], columns[start : start + TERMS]))
    return np.asarray(total.value)


def public_norms(data: float, noise: float, quadratic: float, whole: float, regularizer: float) -> float:
    """Bound the sum of the norms of the objective's gradient's parts besides those of single records."""
    return 2 * (data + noise + quadratic) + whole + regularizer


@dataclass(frozen=True)
class Lengths:
    """How long the sums are that make a gradient, of public numbers alone.

    Attributes
    ----------
    scalars : int
        Terms of the longest inner product: scalars of one record, or monomials of these.
    entries : int
        Entries of the leaves of one record's loss.
    row : int
        Terms in the inner products of the regularizer's gradient.
    projected : float
        Where parameters and gradients are projected on a subspace: the largest product, over the rows of the projection, of the
        number of their entries and the sum of their absolute values.
    terms : int
        Terms that one record's loss adds up in one place, at most, besides inner products.
    """

    scalars: int
    entries: int
    row: int
    projected: float = 0.0
    terms: int = 0

    def gradient_error(
        self, records: float, gradient_bound: float, hessian_bound: float, radius: float, public: float
    ) -> float:
        """Bound the error of a computed gradient of the objective (docs/release.md, section 5)."""
        summed = min(records, PIECE) + 2 * math.log2(1 + records) + AROUND
        # With several leaves, sums are those of forms' gradients, whose norms can be larger than that of their sum.
        spread = math.sqrt(2 * (self.entries + 1)) if self.entries > 1 else 1.0
        leaves = self.entries if self.entries > 1 else 0  # sums of as many forms
        each = RECORD + product_error(self.scalars) + leaves + self.projected + self.terms
        data = records * (spread * summed * gradient_bound + each * (gradient_bound + hessian_bound * radius))
        return ROUNDOFF * (data + (self.row + AROUND) * public)
