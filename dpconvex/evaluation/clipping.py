"""Sums of clipped gradients, of which each is computed to the same bits whatever records are beside it.

Such a sum moves by no more than the clip with one record, also where rounding decides what a gradient is, as at nonsmooth points.
Nothing here depends on the number of records, on which labels occur among them, or on a record's place: products are added one
term after the other (`product_apart`), and every block, and every part of it with one outer function, is filled up to a multiple
of `LANES` with copies of its last record: whatever a processor computes at once, no record is one of few that are left over.

No record's gradient is ever written down: it is ``map' (g (x) m)``, with g its gradient by the forms and m its monomials.  So its
squared norm is ``(g (x) m)' N (g (x) m)``, ``N = map map'``, and N is a sum of few Kronecker products ``G (x) M``: the norm is a
sum of ``(g' G g) (m' M m)``, of which the second factor does not depend on the parameters, and is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.evaluation.derivatives import LANES
from dpconvex.evaluation.design import TABLE
from dpconvex.evaluation.engine import Engine, Records, Share
from dpconvex.evaluation.forms import Label, LeafForm
from dpconvex.language.batch import Batch
from dpconvex.language.columns import itself

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Chosen = NDArray[np.bool_]

# Parts of a scaled matrix that pass for rounding.
LEFT = 1e-13
# More products, or more monomials where M is not diagonal, are left to losses as functions of all parameters.
MOST_PRODUCTS, MOST_MONOMIALS, MOST_NUMBERS = 16, 1000, 2**26
# What rounding can take off a squared norm is added to it, so much for each term of its sums, of a bound on their sizes: a
# norm may be a little too large, never too small.
SLACK = 2.0**-50
# So many records are turned at a time where their scalars lie side by side, and fewer forms one by one.
TURNED, FEW_FORMS = 1024, 4


def product_apart(weights: Array, rows: Any) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each record by the same operations in the same order.

    Libraries of linear algebra add in another order for each shape.
    """
    if sp.issparse(rows):
        return np.stack([rows @ weight for weight in weights])
    if len(weights) < FEW_FORMS:
        return np.asarray(np.einsum("fj,nj->fn", weights, np.ascontiguousarray(rows)))
    result = np.empty((len(weights), len(rows)))
    for start in range(0, len(rows), TURNED):
        columns = np.ascontiguousarray(rows[start : start + TURNED].T)
        result[:, start : start + TURNED] = np.einsum("fj,jn->fn", weights, columns)
    return result


def filled(rows: Indices) -> Indices:
    """Repeat the last of some records until they are a multiple of `LANES`."""
    return np.concatenate([rows, np.full(-len(rows) % LANES, rows[-1])])


class ClippedEngine(Engine):
    """Sums of clipped gradients over blocks of records."""

    def __init__(self, form: LeafForm, batch: Batch, norms: GradientNorms) -> None:
        super().__init__(form, batch)
        self.norms = norms
        self._last: Records | None = None  # the last block, filled
        self._lengths: dict[int, Array] = {}  # by block: what does not change in the norms of gradients

    def clipped_gradient(self, theta: Array, clip: float, chosen: Chosen | None) -> Array:
        """Sum of the records' gradients, each scaled to a norm of at most `clip`, shape (dim,); of the chosen records only."""
        coefficients = self.coefficients(theta)

        def one(number: int, block: Records, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            start = number * self.step
            count = min(self.batch.size - start, self.step)
            if number not in self._lengths:
                self._lengths[number] = self.norms.lengths(self, block, len(group))
            lengths = self._lengths[number]
            if chosen is not None:
                rows = np.flatnonzero(chosen[start : start + count])
                count = len(rows)
                if not count:
                    return 0.0, np.zeros((self.form.forms, len(self.form.monomials)))
                rows = filled(rows)
                block, group, lengths = {name: c[rows] for name, c in block.items()}, group[rows], lengths[:, rows]
                shares = self.shares(group)
            with np.errstate(all="ignore"):
                _, gradient = self.slopes(coefficients, block, len(group), shares, product_apart)
                gradient = clipped(gradient, self.norms.squares(gradient, lengths), clip)
            gradient[:, count:] = 0.0
            return 0.0, self.design.backward(block, gradient)

        return self.summed(one)[1]

    def tables(self, label: Label) -> tuple[Any, Any]:
        """See `Engine`: sparse tables are multiplied entry by entry."""
        return label.tables

    def shares(self, group: Indices) -> list[Share]:
        """See `Engine`, with the last records repeated."""
        found = []
        for share in super().shares(group[filled(np.arange(len(group)))]):
            if share.rows is not None:
                rows = filled(share.rows)
                ends = tuple(len(rows) if end == len(share.rows) else end for end in share.ends)
                share = replace(share, rows=rows, ends=ends)
            found.append(share)
        return found

    def blocks(self) -> Iterator[tuple[Callable[[], Records], Indices, list[Share]]]:
        """See `Engine`, with the last records repeated."""
        for read, group, shares in super().blocks():
            if not len(group) % LANES:
                yield read, group, shares
                continue
            rows = filled(np.arange(len(group)))
            if self._last is None or not self._plain:
                self._last = {name: column[rows] for name, column in read().items()}
            yield partial(itself, self._last), group[rows], shares


@dataclass(frozen=True, eq=False)
class GradientNorms:
    """Squared norms of gradients, rounded up, from gradients by the forms."""

    forms: tuple[Any, ...]  # the matrices G
    diagonals: Array  # of the matrices M, shape (products, monomials); 0 where these are not diagonal
    factors: tuple[tuple[Array, Array] | None, ...]  # the others: M = factor' sign factor
    added: Array  # what covers rounding, for each monomial's square

    def lengths(self, engine: Engine, block: Records, size: int) -> Array:
        """Return ``m' M m`` for each product and record, and below them what covers rounding, shape (products + 1, records)."""
        fields = {
            name: values for name, values in block.items() if name != TABLE
        }  # which is there for few records only
        squared = {name: values.power(2) if sp.issparse(values) else values**2 for name, values in fields.items()}
        rows = np.concatenate([self.diagonals, self.added[None]])
        found = np.array(np.broadcast_to(engine.design.forward(squared, rows, size, product_apart), (len(rows), size)))
        for k, factor in enumerate(self.factors):
            if factor is not None:
                values = engine.design.forward(fields, factor[0], size, product_apart) ** 2
                found[k] += np.einsum("j,jn->n", factor[1], values)
        return found

    def squares(self, gradient: Array, lengths: Array) -> Array:
        total = lengths[-1] * np.einsum("fn,fn->n", gradient, gradient)
        for forms, length in zip(self.forms, lengths, strict=False):
            if sp.issparse(forms):
                total += length * np.einsum("fn,fn->n", forms @ gradient, gradient)
            else:  # all forms are alike, as those of competing classes are: a multiple of 1, and one of all ones
                own = forms[0] * np.einsum("fn,fn->n", gradient, gradient)
                total += length * (own + forms[1] * gradient.sum(axis=0) ** 2 if forms[1] else own)
        return np.asarray(total)


def clipped(gradient: Array, squares: Array, clip: float) -> Array:
    """Scale gradients, records last, to norms of at most `clip`; one that is no number counts as 0, whatever the others are."""
    finite = np.isfinite(squares)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weight = np.where(finite, np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 0.0))), 0.0)
    return (gradient if finite.all() else np.where(finite, gradient, 0.0)) * weight


def gradient_norms(form: LeafForm) -> GradientNorms | None:
    """Write N as a sum of Kronecker products; None if it takes too many.

    With s_j the norm of the longest row of the map for monomial j, no entry of N for monomials j and k is larger than s_j s_k.
    So a table of N / (s_j s_k), a row for each pair of monomials, is taken apart, largest row first; what is left, and what
    rounding does to sums of at most ``products * forms^2`` terms for each pair, is covered.
    """
    forms, count = form.forms, len(form.monomials)
    if count == 1:
        whole = sp.csr_array(form.map @ form.map.T)
        added = SLACK * (forms + 64) * float(abs(whole).sum(axis=1).max(initial=0.0))
        return GradientNorms((whole,), np.ones((1, 1)), (None,), np.array([added]))
    lengths = np.sqrt(np.asarray((form.map * form.map).sum(axis=1)).reshape(forms, count).max(axis=0))
    table = sp.coo_array(form.map @ form.map.T)
    table.sum_duplicates()
    (f, j), (g, k) = (np.divmod(index, count) for index in table.coords)
    pairs, place = np.unique(j * count + k, return_inverse=True)
    if not len(pairs) or len(pairs) * forms**2 > MOST_NUMBERS:
        return None
    row, column = np.divmod(pairs, count)
    rest = np.zeros((len(pairs), forms**2))
    np.add.at(rest, (place.ravel(), f * forms + g), table.data / (lengths[j] * lengths[k]))
    found: list[tuple[Array, Array]] = []
    while True:
        sizes = np.linalg.norm(rest, axis=1)
        largest = int(np.argmax(sizes))
        if sizes[largest] <= LEFT:
            break
        if len(found) == MOST_PRODUCTS:
            return None
        unit = rest[largest] / sizes[largest]
        weights = rest @ unit
        rest -= weights[:, None] * unit
        found.append((unit, weights))
    matrices: list[Any] = []
    factors: list[tuple[Array, Array] | None] = []
    diagonals = np.zeros((len(found), count))
    for number, (unit, weights) in enumerate(found):
        own = unit.reshape(forms, forms)
        other = own[0, -1] if forms > 1 else 0.0
        alike = np.abs(own - other - (own[0, 0] - other) * np.eye(forms)).max() <= LEFT
        matrices.append((own[0, 0] - other, other) if alike else sp.csr_array(np.where(np.abs(own) > LEFT, own, 0.0)))
        kept = np.abs(weights) > LEFT
        if (row[kept] == column[kept]).all():
            diagonals[number][row[kept]] = weights[kept] * lengths[row[kept]] ** 2
            factors.append(None)
            continue
        if count > MOST_MONOMIALS:
            return None
        matrix = sp.coo_array((weights, (row, column)), shape=(count, count)).toarray()
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        factors.append((np.sqrt(np.abs(values))[:, None] * vectors.T * lengths, np.sign(values)))
    added = SLACK * (count + forms + 64) * len(found) * forms**2 * np.bincount(row).max() * lengths**2
    return GradientNorms(tuple(matrices), diagonals, tuple(factors), added)
