"""Sums over records whose rounding is bounded for every input, not only on average.

A sum of n numbers, added one to the next, errs by up to n units in the last place of its terms' absolute values; equal
records come near to that.  Added in pieces of 128, and the pieces in pairs, it errs by 128 + log2(n/128) at most, in whatever
order a library adds the numbers of a piece (N. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition,
sections 3.1 and 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Unit roundoff of double precision.
ROUNDOFF = 2.0**-53
# So many records are added in any order.
PIECE = 128
# So many terms of an inner product are added in any order: of one at a time, which libraries split among the lanes of a
# register, and of several, whose terms they add one to the next.
SINGLE, SEVERAL = 128, 32
# So many records are multiplied with several forms at a time.
TOGETHER = 1024
# Of those that NumPy adds.
STREAMED = 112
# A piece of sparse records makes a dense vector; so many of its numbers for each record at most.
DENSE = 16
# Operations on one number around a sum over the records, and one more where these are in partitions (`Tree`).
AROUND, SPLIT = 8, 1
# What is assumed of one record: that its gradient errs by at most so many units of ``G + H ||theta||``.
RECORD = 16


def piece(scalars: int) -> int:
    return max(PIECE, -(-scalars // DENSE))


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
    """A sum of one term for each of several partitions, in an order that only their numbers of records decide.

    A term for n_k of n records is added to others at most ``ceil(log2(n / n_k))`` times: these are the lengths of a prefix code
    (Kraft's inequality).  Its own sum took up to ``log2(n_k / 128)`` additions of sums of 128, so that partitions, however
    unequal, cost one addition more than all records at once.

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
        whole, leaves = sum(sizes), dict[int, list[int]]()
        for number, size in enumerate(sizes):
            if size:
                leaves.setdefault((-(-whole // size) - 1).bit_length(), []).append(number)
        nodes: list[int] = []
        count = len(sizes)
        for depth in range(max(leaves, default=0), -1, -1):
            nodes = sorted([*nodes, *leaves.get(depth, [])])
            if depth:
                paired = range(count, count := count + len(nodes) // 2)
                for left, right, both in zip(nodes[::2], nodes[1::2], paired, strict=False):
                    self.pairs[left], self.pairs[right] = (right, both), (left, both)
                nodes = [*paired, *nodes[2 * len(paired) :]]
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


def inner_products(weights: Array, columns: Array) -> Array:
    """Return ``weights @ columns``, shape (forms, records), with the terms of each inner product summed in pieces."""
    size = SINGLE if len(weights) == 1 and not apart() else SEVERAL
    multiply = entry_by_entry if apart() else np.matmul
    if weights.shape[1] <= size:
        return np.asarray(multiply(weights, columns))
    if len(weights) > 1 and columns.flags.f_contiguous and not apart():
        return products_of_rows(weights, columns.T)
    total = Pairwise(0.0)
    for start in range(0, weights.shape[1], size):
        total.add(multiply(weights[:, start : start + size], columns[start : start + size]))
    return np.asarray(total.value)


def products_of_rows(weights: Array, rows: Array) -> Array:
    """Return the same for records as they lie in memory, some at a time: each is fetched once, not once for each piece."""
    forms, scalars = weights.shape
    whole = scalars // SEVERAL * SEVERAL
    parts = np.ascontiguousarray(weights[:, :whole].reshape(forms, -1, SEVERAL).transpose(1, 2, 0))
    result = np.empty((forms, len(rows)))
    for start in range(0, len(rows), TOGETHER):
        some = rows[start : start + TOGETHER]
        pieces = some[:, :whole].reshape(len(some), -1, SEVERAL).transpose(1, 0, 2)
        result[:, start : start + TOGETHER] = pairwise(np.matmul(pieces, parts)).T
        if whole < scalars:
            result[:, start : start + TOGETHER] += weights[:, whole:] @ some[:, whole:].T
    return result


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


def entry_by_entry(weights: Array, columns: Array) -> Array:
    """Return ``weights @ columns``, one term after the other, each for all records at once."""
    return np.einsum("fj,jn->fn", weights, np.ascontiguousarray(columns))


def products_apart(weights: Array, rows: Array) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each record by the same operations in the same order."""
    result, width = np.empty((len(weights), len(rows))), rows.shape[1]
    step = len(rows) if len(weights) < FEW_FORMS and width <= STREAMED else TURNED
    for start in range(0, len(rows), max(step, 1)):
        some, found = rows[start : start + step], result[:, start : start + step]
        if len(weights) >= FEW_FORMS:
            found[...] = inner_products(weights, some.T)
            continue
        some = np.ascontiguousarray(some)
        for form, weight in enumerate(weights):
            total = Pairwise(0.0)
            for first in range(0, width, STREAMED):
                total.add(np.einsum("ij,j->i", some[:, first : first + STREAMED], weight[first : first + STREAMED]))
            found[form] = total.value
    return result


def in_pieces(left: Array, right: Array, size: int = PIECE) -> Array:
    """Return ``left @ right.T``, shape (a, b), of arrays of shape (a, n) and (b, n), summed in pieces.

    It is often faster than the plain product too, which libraries are not made for when a and b are small and n is large.
    """
    count = left.shape[1] // size
    whole = count * size
    rest = left[:, whole:] @ right[:, whole:].T
    if not count:
        return rest
    pieces = left[:, :whole].reshape(len(left), count, size).transpose(1, 0, 2)
    others = right[:, :whole].reshape(len(right), count, size).transpose(1, 2, 0)
    return np.asarray(pairwise(np.matmul(pieces, others)) + rest)


class SparseRows(sp.csr_array):
    """A block of sparse records that remembers how it is cut into pieces."""

    _cut: tuple[int, sp.csr_array] | None = None
    _split: tuple[sp.csr_array, NDArray[np.int64]] | None = None

    def split(self) -> tuple[sp.csr_array, NDArray[np.int64]]:
        """Return the block with long records split into several rows, and which is the first row of each record."""
        if self._split is None:
            lengths = np.diff(self.indptr)
            parts = np.maximum(-(-lengths // SEVERAL), 1)
            first = np.cumsum(parts) - parts
            total = int(parts.sum())
            within = np.arange(total) - np.repeat(first, parts)
            start = np.append(np.repeat(self.indptr[:-1], parts) + SEVERAL * within, self.indptr[-1])
            index = (self.data, self.indices, start.astype(self.indptr.dtype))
            self._split = sp.csr_array(index, shape=(total, self.shape[1])), first
        return self._split

    def product(self, weights: Array) -> Array:
        """Return ``weights @ rows.T``, shape (forms, records), with the terms of each inner product summed in pieces."""
        rows, first = self.split()
        # For one form a product with a vector, which is faster than one with a column.
        found = (rows @ weights[0])[:, None] if len(weights) == 1 else rows @ weights.T
        if len(found) > self.shape[0]:
            found = np.add.reduceat(found, first, axis=0)
        return np.ascontiguousarray(found.T)

    def cut(self, size: int) -> sp.csr_array:
        """Return the block with the columns of each piece beside those of the last: shape (records, pieces * scalars)."""
        if self._cut is None or self._cut[0] != size:
            records, scalars = self.shape
            count = -(-records // size)
            kind = np.int32 if count * scalars < 2**31 else np.int64
            first = np.repeat(np.arange(records) // size * scalars, np.diff(self.indptr))
            index = (self.data, (self.indices + first).astype(kind), self.indptr.astype(kind))
            self._cut = size, sp.csr_array(index, shape=(records, count * scalars))
        return self._cut[1]


def sparse_rows(rows: Any) -> SparseRows:
    """Return sparse records as a block that can be cut."""
    return rows if isinstance(rows, SparseRows) else SparseRows(rows)


def transposed_product(rows: Any, gradient: Array) -> Array:
    """Return ``gradient @ rows``, shape (forms, scalars), summed over the records in pieces."""
    forms, (records, scalars) = len(gradient), rows.shape
    if not sp.issparse(rows):
        return in_pieces(gradient, rows.T)
    size = piece(scalars)
    if records <= size:
        parts = np.asarray(rows.T @ gradient.T)[None]
    else:
        cut = sparse_rows(rows).cut(size)
        product = cut.T @ gradient[0] if forms == 1 else cut.T @ gradient.T
        parts = np.asarray(product).reshape(-1, scalars, forms)
    return np.asarray(pairwise(parts)).T


def public_norms(data: float, noise: float, quadratic: float, whole: float, regularizer: float) -> float:
    """Bound the sum of the norms of the objective's gradient's parts besides those of single records."""
    return 2 * (data + noise + quadratic) + whole + regularizer


@dataclass(frozen=True)
class Lengths:
    """How long the sums are that make a gradient, of public numbers alone.

    Attributes
    ----------
    scalars : int
        Scalars of one record.
    entries : int
        Entries of the leaves of one record's loss.
    row : int
        Terms in the inner products of the regularizer's gradient.
    projected : float
        Where parameters and gradients are projected on a subspace: the largest product, over the rows of the projection, of the
        number of their entries and the sum of their absolute values.
    terms : int
        Terms that one record's loss adds up one to the next, at most; fewer than `SEVERAL` are part of what is assumed.
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
        size = piece(self.scalars)
        summed = size + math.log2(1 + records / size) + AROUND + SPLIT
        # With several leaves, sums are those of forms' gradients, whose norms can be larger than that of their sum.
        spread = math.sqrt(2 * (self.entries + 1)) if self.entries > 1 else 1.0
        each = RECORD + self.projected + max(self.terms - SEVERAL, 0)
        data = records * (spread * summed * gradient_bound + each * (gradient_bound + hessian_bound * radius))
        return ROUNDOFF * (data + (self.row + AROUND) * public)
