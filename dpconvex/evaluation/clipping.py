"""Sums of clipped gradients, of which each is computed to the same bits whatever records are beside it.

Such a sum moves by no more than the clip with one record, also where rounding decides what a gradient is, as at nonsmooth points.
Nothing here depends on the number of records, on which labels occur among them, or on a record's place: products are added one
term after the other (`product_apart`), and every block, like every `Share` of it, is filled up to a multiple of `LANES` with
copies of its last record: whatever a processor computes at once, no record is one of few that are left over.

A record's gradient is ``map' (g (x) m)``, with g its gradient by the forms and m its monomials, and its squared norm is
``(g (x) m)' map map' (g (x) m)``.  Where ``map map'`` is a Kronecker product of a matrix G and a diagonal D, as for competing
classes, that is ``(g' G g) (m' D m)``, and no gradient is ever written down; else all of them are, some records at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.arrays import Array, Indices
from dpconvex.core.summation import Pairwise
from dpconvex.evaluation.design import Design
from dpconvex.evaluation.engine import Engine, Plan, Records, filled
from dpconvex.evaluation.forms import LeafForm
from dpconvex.evaluation.programs import LANES
from dpconvex.language.batch import Batch

Chosen = NDArray[np.bool_]
Part = tuple[Records, Plan, Array | None]

# How far a table may be from a Kronecker product, in units of its diagonal's roots; with more entries none is looked for.
LEFT, MOST_NUMBERS = 1e-14, 2**24
# What rounding can take off a squared norm is added to it, so much for each term of its sums: a norm may be a little too large,
# never too small.
SLACK = 2.0**-50
# So many numbers of gradients are written down at a time.
WRITTEN = 2**21


def product_apart(weights: Array, rows: Any) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each record by the same operations in the same order.

    Libraries of linear algebra add in another order for each shape.
    """
    if sp.issparse(rows):
        return np.stack([rows @ weight for weight in weights])
    return np.asarray(np.einsum("fj,nj->fn", weights, np.ascontiguousarray(rows, dtype=float)))


def clipped(gradient: Array, squares: Array, clip: float) -> Array:
    """Scale gradients, records last, to norms of at most `clip`; one that is no number counts as 0, whatever the others are."""
    finite = np.isfinite(squares)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weight = np.where(finite, np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 0.0))), 0.0)
    return (gradient if finite.all() else np.where(finite, gradient, 0.0)) * weight


@dataclass(frozen=True, eq=False)
class Norms:
    """Squared norms of gradients, rounded up, from gradients by the forms: G and D."""

    forms: sp.csr_array
    monomials: Array
    slack: float  # what covers rounding, in units of ``|g|^2 m' D m``

    @classmethod
    def of(cls, form: LeafForm) -> Norms | None:
        """Write ``map map'`` as a Kronecker product of G and a diagonal D; None if it is none."""
        table, monomials = sp.csr_array(form.map @ form.map.T), len(form.monomials)
        size = np.sqrt(table.diagonal())
        first, largest = divmod(int(np.argmax(size)), monomials)
        every = np.arange(form.forms) * monomials + largest
        forms = sp.csr_array(table[every][:, every])
        if max(table.nnz, forms.nnz * monomials) > MOST_NUMBERS or not size.any():
            return None
        diagonal = (size[first * monomials :][:monomials] / size[first * monomials + largest]) ** 2
        product = sp.csr_array(sp.kron(forms, sp.diags_array(diagonal)))
        size = np.maximum(size, np.sqrt(product.diagonal()))
        unit = sp.diags_array(np.divide(1.0, size, out=np.zeros_like(size), where=size > 0))
        if abs(unit @ (table - product) @ unit).max() > LEFT:
            return None
        terms = SLACK * (monomials + form.forms + 64) + LEFT * form.forms * monomials
        return cls(forms, diagonal, terms * float(abs(forms).sum(axis=1).max()))

    def lengths(self, design: Design, block: Records, size: int) -> Array:
        """Return ``m' D m`` for each record."""
        squared = {name: values.power(2) if sp.issparse(values) else values**2 for name, values in block.items()}
        found = design.forward(squared, self.monomials[None], size, product_apart)[0]
        return np.array(np.broadcast_to(found, size))

    def squares(self, gradient: Array, lengths: Array | None) -> Array:
        plain = np.einsum("fn,fn->n", gradient, gradient)
        return np.asarray(lengths * (np.einsum("fn,fn->n", self.forms @ gradient, gradient) + self.slack * plain))


class ClippedEngine(Engine):
    """Sums over blocks of records, of clipped gradients too."""

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        super().__init__(form, batch)
        self._parts: dict[int, Part] = {}

    @cached_property
    def norms(self) -> Norms | None:
        return Norms.of(self.form)

    def clipped_gradient(self, theta: Array, clip: float, chosen: Chosen | None = None) -> Array:
        """Sum of the records' gradients, each scaled to a norm of at most `clip`, shape (dim,); of the chosen records only."""
        coefficients, norms, total = self.coefficients(theta), self.norms, Pairwise(np.zeros(len(theta)))

        def one(number: int, block: Records, plan: Plan) -> Array:
            own = slice(number * self.step, number * self.step + plan.size)
            some = np.arange(plan.size) if chosen is None else np.flatnonzero(chosen[own])
            if not len(some):
                return np.zeros(len(theta))
            part = self._parts.get(number) if chosen is None else None
            block, plan, lengths = part or self._part(block, plan, some, self.batch.group[own])
            if self.keeps and chosen is None:
                self._parts[number] = block, plan, lengths
            with np.errstate(all="ignore"):
                _, gradient = self.slopes(coefficients, block, plan, product_apart)
                if norms is None:
                    return self._one_by_one(gradient, self.design.table(block, plan.size), clip, len(some))
                gradient = clipped(gradient, norms.squares(gradient, lengths), clip)
            gradient[:, len(some) :] = 0.0
            return np.asarray(self.form.map.T @ self.design.backward(block, gradient).ravel())

        for summand in self.each(one):
            total.add(summand)
        return np.asarray(total.value)

    def _part(self, block: Records, plan: Plan, some: Indices, group: Indices) -> Part:
        """Take some of a block's records, filled up, with what does not change in the norms of their gradients."""
        if len(some) < plan.size or plan.size % LANES:
            rows = filled(some)
            block, plan = {name: column[rows] for name, column in block.items()}, self.dealt(group[rows])
        return block, plan, None if self.norms is None else self.norms.lengths(self.design, block, plan.size)

    def _one_by_one(self, slopes: Array, table: Array, clip: float, size: int) -> Array:
        """Write gradients down, and sum those of so many records, clipped."""
        total = Pairwise(np.zeros(self.form.map.shape[1]))
        step = max(WRITTEN // (slopes.shape[0] * table.shape[1]) // LANES, 1) * LANES
        for some in (slice(start, start + step) for start in range(0, size, step)):
            each = self.written_down(slopes[:, some], table[some])
            squares = (1 + SLACK * (len(each) + 64)) * np.einsum("dn,dn->n", each, each)
            total.add(np.ascontiguousarray(clipped(each, squares, clip)[:, : size - some.start]).sum(axis=1))
        return np.asarray(total.value)
