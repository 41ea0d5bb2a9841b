"""Norms of gradients, and clipped gradients; their bits do not depend on the other records of the batch (docs/release.md)."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.sparse as sp

from dpconvex.numerics import CLIP_ROUNDING
from dpconvex.sums.design import Block, Design, product_apart
from dpconvex.sums.forms import LeafForm
from dpconvex.sums.programs import LANES
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.summation import Pairwise

# Relative error up to which a matrix counts as a Kronecker product, and the most entries of a matrix that is tested.
LEFT, MOST_NUMBERS = 1e-12, 2**24
UNDERFLOW = 1e-300  # More than squared monomials lose to underflow; negligible next to any squared clip
WRITTEN = 2**21  # Numbers of gradients that are stored at a time


def clip_gradients(gradient: Array, squares: Array, clip: float) -> Array:
    """Scale gradients, records last, to norms of at most `clip`; a gradient that is not finite counts as 0."""
    finite = np.isfinite(squares)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weight = np.where(finite, np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 0.0))), 0.0)
    return (gradient if finite.all() else np.where(finite, gradient, 0.0)) * weight


def sum_one_by_one(form: LeafForm, slopes: Array, table: Array, clip: float, size: int) -> Array:
    """Return the sum of the first `size` records' clipped gradients, shape (dim,), from gradients by the forms and monomials."""
    total = Pairwise(np.zeros(form.map.shape[1]))
    step = max(WRITTEN // (slopes.shape[0] * table.shape[1]) // LANES, 1) * LANES
    for some in (slice(start, start + step) for start in range(0, size, step)):
        each = np.asarray(form.map.T @ (slopes[:, None, some] * table[some].T[None]).reshape(form.map.shape[0], -1))
        squares = (1 + CLIP_ROUNDING * (len(each) + 64)) * np.einsum("dn,dn->n", each, each)
        total.add(np.ascontiguousarray(clip_gradients(each, squares, clip)[:, : size - some.start]).sum(axis=1))
    return np.asarray(total.value)


def sum_by_person(form: LeafForm, slopes: Array, table: Array, clip: float, people: Indices) -> Array:
    """Return the sum of each person's clipped gradient sum, shape (dim,). The records of one person are consecutive."""
    each = np.asarray(form.map.T @ (slopes[:, None] * table.T[None]).reshape(form.map.shape[0], -1))
    first = np.flatnonzero(np.diff(people, prepend=-1))
    counts = np.diff(first, append=len(people))
    sums = np.zeros((len(each), -(-len(first) // LANES) * LANES))
    for turn in range(counts.max()):
        who = np.flatnonzero(counts > turn)
        sums[:, who] += each[:, first[who] + turn]
    squares = (1 + CLIP_ROUNDING * (len(sums) + 64)) * np.einsum("dn,dn->n", sums, sums)
    return np.asarray(np.ascontiguousarray(clip_gradients(sums, squares, clip)).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Norms:
    """Squared norms of gradients ``map' (g (x) m)`` by ``(g' G g) (m' D m)``, rounded up, where ``map map'`` is ``G (x) D``."""

    forms: sp.csr_array
    monomials: Array
    slack: float  # a bound on rounding errors, in units of ``|g|^2 m' D m``

    @classmethod
    def of(cls, form: LeafForm) -> Self | None:
        """Factor ``map map'`` into a Kronecker product of G and a diagonal D; return None if it has no small factors."""
        table, monomials = sp.csr_array(form.map @ form.map.T), form.design.count
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
        longest = int(np.diff(form.map.indptr).max(initial=0))  # the most terms of an entry
        terms = CLIP_ROUNDING * (monomials + form.forms + longest + 64) + LEFT * form.forms * monomials
        return cls(forms, diagonal, terms * float(abs(forms).sum(axis=1).max()))

    def lengths(self, design: Design, block: Block) -> Array:
        """Return ``m' D m`` for each record, or one number if all records share it."""
        squared = {name: values.power(2) if sp.issparse(values) else values**2 for name, values in block.items()}
        return design.forward(squared, self.monomials[None], product_apart)[0] + UNDERFLOW

    def squares(self, gradient: Array, lengths: Array | None) -> Array:
        plain = np.einsum("fn,fn->n", gradient, gradient)
        return np.asarray(lengths * (np.einsum("fn,fn->n", self.forms @ gradient, gradient) + self.slack * plain))
