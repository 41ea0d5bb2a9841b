"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials of degree one are the data themselves, dense or sparse.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import PIECE, TERMS, Pairwise, pairwise
from dpconvex.language.columns import flattened

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]
Product = Callable[[Array, Any], Array]

# So many monomials of degree two are made at a time.
TOGETHER = 2**20
# So many records are multiplied at a time: each is fetched once, not once for each piece.
AT_ONCE = 1024
# Where a block keeps its monomials, and sparse records their pieces.
TABLE, KEPT_PARTS, KEPT_BESIDE = " monomials", "_parts", "_beside"


def product(weights: Array, rows: Any) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each inner product in pieces, and these in pairs."""
    if sp.issparse(rows):
        found = pairwise(np.stack([part @ (weights[0] if len(weights) == 1 else weights.T) for part in parts_of(rows)]))
        return np.asarray(found[None] if len(weights) == 1 else np.ascontiguousarray(found.T))
    count, width = divmod(weights.shape[1], TERMS)
    if count == 0 or (count == 1 and not width):
        return np.asarray(weights @ rows.T)
    if not rows.flags.c_contiguous:
        total = Pairwise(None)
        for some in (slice(start, start + TERMS) for start in range(0, weights.shape[1], TERMS)):
            total.add(weights[:, some] @ rows[:, some].T)
        return np.asarray(total.value)
    result, whole = np.empty((len(weights), len(rows))), count * TERMS
    parts = np.ascontiguousarray(weights[:, :whole].reshape(len(weights), count, TERMS).transpose(1, 2, 0))
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        pieces = some[:, :whole].reshape(len(some), count, TERMS).transpose(1, 0, 2) @ parts
        if width:
            pieces = np.concatenate([pieces, (some[:, whole:] @ weights[:, whole:].T)[None]])
        result[:, start : start + AT_ONCE] = pairwise(pieces).T
    return result


def transposed(gradient: Array, rows: Any) -> Array:
    """Return ``gradient @ rows``, shape (forms, scalars), summed over the records in pieces, and these in pairs."""
    forms, size = gradient.shape
    if sp.issparse(rows):
        found = beside(rows) @ (gradient[0] if forms == 1 else gradient.T)
        return np.asarray(pairwise(np.asarray(found).reshape(-1, rows.shape[1], forms)).T)
    whole = size // PIECE * PIECE
    rest = gradient[:, whole:] @ rows[whole:]
    if not whole:
        return np.asarray(rest)
    pieces = gradient[:, :whole].reshape(forms, -1, PIECE).transpose(1, 0, 2)
    sides = (
        rows[:whole].T.reshape(-1, len(pieces), PIECE).transpose(1, 2, 0)
    )  # of columns that lie side by side, without a copy
    others = rows[:whole].reshape(-1, PIECE, rows.shape[1]) if rows.flags.c_contiguous else sides
    return np.asarray(pairwise(pieces @ others) + rest)


def parts_of(rows: Any) -> list[Any]:
    """Return sparse records as a sum of ones with few terms each; they are kept."""
    if KEPT_PARTS not in rows.__dict__:
        counts = np.diff(rows.indptr)
        piece = (np.arange(len(rows.data)) - np.repeat(rows.indptr[:-1], counts)) // TERMS
        parts = []
        for number in range(int(piece.max(initial=0)) + 1):
            ends = np.concatenate([[0], np.cumsum(np.clip(counts - number * TERMS, 0, TERMS))])
            own = piece == number
            parts.append(sp.csr_array((rows.data[own], rows.indices[own], ends), shape=rows.shape))
        rows.__dict__[KEPT_PARTS] = parts if len(parts) > 1 else []  # no circle
    return rows.__dict__[KEPT_PARTS] or [rows]


def beside(rows: Any) -> Any:
    """Return sparse records, transposed, with the columns of each piece beside those of the last; they are kept."""
    if KEPT_BESIDE not in rows.__dict__:
        count, scalars = rows.shape
        width = -(-count // PIECE) * scalars
        kind = np.int32 if max(width, len(rows.data)) < 2**31 else np.int64
        column = rows.indices + np.repeat((np.arange(count) // PIECE * scalars).astype(kind), np.diff(rows.indptr))
        rows.__dict__[KEPT_BESIDE] = sp.csr_array((rows.data, column, rows.indptr), shape=(count, width)).T
    return rows.__dict__[KEPT_BESIDE]


class Design(Protocol):
    """Monomials of a block of records, times matrices."""

    count: int

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        """Return forms, shape (forms, size), from coefficients, shape (forms, monomials)."""
        ...

    def backward(self, block: Block, gradient: Array) -> Array:
        """Return the gradient with respect to the coefficients from that with respect to the forms."""
        ...

    def table(self, block: Block, size: int) -> Array:
        """Return the monomials themselves, shape (size, monomials)."""
        ...


def design_of(monomials: Indices, fields: Mapping[str, slice]) -> Design:
    """Return the design of monomials, shape (count, degree), the constant one last."""
    return LinearDesign(monomials, fields) if monomials.shape[1] <= 1 else QuadraticDesign(monomials, fields)


class LinearDesign:
    """Monomials of degree one: columns of the fields, and a constant."""

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        scalars = monomials[:-1, 0] if monomials.shape[1] else np.zeros(0, dtype=np.int64)
        self.places: dict[str, tuple[Indices, Indices, int]] = {}
        for name, span in fields.items():
            place = np.flatnonzero((scalars >= span.start) & (scalars < span.stop))
            if len(place):
                self.places[name] = (place, scalars[place] - span.start, span.stop - span.start)

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        """See `Design`; one column, which all records share, if nothing is read of them."""
        constant, total = coefficients[:, -1:], Pairwise(None)
        for name, (place, column, width) in self.places.items():
            weights = np.zeros((len(coefficients), width))
            weights[:, column] = coefficients[:, place]
            if weights.any():
                total.add(product(weights, flattened(block[name])))
        if total.value is None:
            return np.broadcast_to(constant, (len(constant), size)) if self.places else constant
        return np.asarray(total.value + constant if constant.any() else total.value)

    def backward(self, block: Block, gradient: Array) -> Array:
        result = np.zeros((len(gradient), self.count))
        for name, (place, column, _) in self.places.items():
            result[:, place] = transposed(gradient, flattened(block[name]))[:, column]
        result[:, -1] = gradient.sum(axis=1)
        return result

    def table(self, block: Block, size: int) -> Array:
        result = np.ones((size, self.count))
        for name, (place, column, _) in self.places.items():
            rows = flattened(block[name])
            rows = rows.toarray() if sp.issparse(rows) else rows
            whole = len(column) == rows.shape[1] == place[-1] + 1 - place[0]  # and need not be gathered
            result[:, slice(place[0], place[-1] + 1) if whole else place] = rows if whole else rows[:, column]
        return result


class QuadraticDesign:
    """Monomials of degree two and less, made from few records at a time, or kept with a block by those who have room for them."""

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        used = np.unique(monomials[monomials >= 0])
        number = np.full(int(monomials.max(initial=-1)) + 2, len(used))  # -1 stands for 1, which comes last
        number[used] = np.arange(len(used))
        self.first, self.second = number[monomials].T
        inside = {name: used[(used >= span.start) & (used < span.stop)] - span.start for name, span in fields.items()}
        self.fields = {name: columns for name, columns in inside.items() if len(columns)}

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        result = np.empty((len(coefficients), size))
        for some, rows in self._tables(block, size):
            result[:, some] = product(coefficients, rows)
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        total = Pairwise(np.zeros((len(gradient), self.count)))
        for some, rows in self._tables(block, gradient.shape[1]):
            total.add(transposed(gradient[:, some], rows))
        return np.asarray(total.value)

    def table(self, block: Block, size: int) -> Array:
        return block[TABLE] if TABLE in block else self._rows(block, slice(0, size))

    def _tables(self, block: Block, size: int) -> Iterator[tuple[slice, Array]]:
        """Yield the monomials of few records at a time."""
        step = size if TABLE in block else max(TOGETHER // self.count // 256, 1) * 256
        for start in range(0, size, step):
            some = slice(start, min(start + step, size))
            yield some, block[TABLE] if TABLE in block else self._rows(block, some)

    def _rows(self, block: Block, some: slice) -> Array:
        scalars = [np.ones((1, some.stop - some.start))]
        for name, columns in reversed(self.fields.items()):
            rows = flattened(block[name][some])
            scalars.insert(0, (rows.toarray() if sp.issparse(rows) else rows)[:, columns].T)
        table = np.concatenate(scalars)
        return np.asarray((table[self.first] * table[self.second]).T)
