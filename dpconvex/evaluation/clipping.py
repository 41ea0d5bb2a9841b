"""Norms of the gradients of single records, from those by the forms: no record's gradient is ever written down.

A record's gradient is ``map' (g (x) m)``, with g its gradient by the forms and m its monomials, so its squared norm is
``(g (x) m)' N (g (x) m)``, ``N = map map'``.  The block of N that belongs to two monomials is, for nearly every loss, a
multiple of one small matrix G (or of one of few), so the squared norm is a sum of few products ``(g' G g) (m' M m)``: the second
factor does not depend on the parameters, and is computed once.

All of this is done for ``Q g``, ``T m`` and ``S N S``, ``S = (Q (x) T)^(-1)``, with diagonal Q and T of powers of two for which
no row of ``S map`` is longer than 4.  So what rounding does is small next to each monomial's own part, whatever its units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import inner_products
from dpconvex.evaluation.design import Design
from dpconvex.evaluation.shared_forms import LeafForm

Array = NDArray[np.float64]

# More matrices G than this, or more monomials where a matrix M is not diagonal, are left to losses as they are.
MOST_PATTERNS, MOST_MONOMIALS = 16, 1000
# Blocks that agree to so many digits are multiples of one matrix.  What that and rounding can take off a squared norm is added
# to it, as this fraction of a bound on the sum of its absolute terms, which are those of scaled gradients and monomials: a norm
# may be a little too large, never too small.
DIGITS, SLACK = 12, 2.0**-36
# So many rows of a factor of M are multiplied with monomials at a time.
TOGETHER = 64


@dataclass(frozen=True, eq=False)
class Pattern:
    """One matrix G, and M as its diagonal, or as factors with their signs."""

    forms: Array
    diagonal: Array | None
    factor: Array | None = None
    signs: Array | None = None

    def quadratic(self, gradient: Array) -> Array:
        """Return ``g' G g`` for each record; quickly where all forms are alike, as those of competing classes are."""
        first = self.forms[0, 0]
        other = self.forms[0, -1] if len(self.forms) > 1 else 0.0
        alike = other * np.ones_like(self.forms) + (first - other) * np.eye(len(self.forms))
        if (self.forms == alike).all():
            own = (first - other) * np.einsum("ij,ij->j", gradient, gradient)
            return np.asarray(own + other * gradient.sum(axis=0) ** 2 if other else own)
        return np.einsum("ij,ij->j", inner_products(self.forms, gradient), gradient)


class GradientNorms:
    """Squared norms of gradients, rounded up, from gradients by the forms."""

    def __init__(self, patterns: list[Pattern], bound: float, forms: Array, monomials: Array) -> None:
        self.patterns = patterns
        self.forms = None if (forms == 1).all() else forms[:, None]
        self.added = bound * (SLACK + len(forms) * 10.0**-DIGITS) * monomials**2
        self.single = len(forms) == 1

    def lengths(self, design: Design, block: Mapping[str, Any], size: int) -> Array:
        """Return ``m' M m`` for each pattern and record, and below them what covers rounding, shape (patterns + 1, records).

        For a single form, their sum, shape (1, records).
        """
        squared = {name: values.power(2) if sp.issparse(values) else values**2 for name, values in block.items()}
        count = next(len(p.diagonal) if p.diagonal is not None else p.factor.shape[1] for p in self.patterns)  # type: ignore[union-attr]
        rows = [np.zeros(count) if p.diagonal is None else p.diagonal for p in self.patterns]
        found = design.forward(squared, np.array([*rows, self.added]), size)
        for k, pattern in enumerate(self.patterns):
            if pattern.factor is None or pattern.signs is None:
                continue
            for start in range(0, len(pattern.factor), TOGETHER):
                some = slice(start, start + TOGETHER)
                squares = design.forward(block, pattern.factor[some], size) ** 2
                found[k] += inner_products(pattern.signs[None, some], squares)[0]
        if self.single:
            return inner_products(np.array([[*(p.forms[0, 0] for p in self.patterns), 1.0]]), found)
        return found

    def squares(self, gradient: Array, lengths: Array) -> Array:
        if self.single:
            return np.asarray(lengths[0] * gradient[0] ** 2)
        gradient = gradient if self.forms is None else gradient * self.forms
        total = lengths[-1] * np.einsum("ij,ij->j", gradient, gradient)
        for pattern, length in zip(self.patterns, lengths, strict=False):
            total += length * pattern.quadratic(gradient)
        return np.asarray(total)


def clipped(gradient: Array, squares: Array, clip: float) -> Array:
    """Scale gradients, records last, to norms of at most `clip`; one that is no number counts as 0, whatever the others are."""
    finite = np.isfinite(squares)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weight = np.where(finite, np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 0.0))), 0.0)
    if not finite.all():
        gradient = np.where(finite, gradient, 0.0)
    return gradient * weight


def gradient_norms(form: LeafForm) -> GradientNorms | None:
    """Find the patterns of a template's forms; None if there are too many."""
    forms, count = form.forms, len(form.monomials)
    scale_of_forms, scale_of_monomials = scales(form.map, forms, count)
    both = np.outer(scale_of_forms, scale_of_monomials).ravel()
    scaled = sp.diags_array(1 / np.where(both > 0, both, 1.0)) @ form.map
    table = sp.coo_array(scaled @ scaled.T)
    table.sum_duplicates()
    (f, j), (g, k) = (np.divmod(index, count) for index in table.coords)
    upper = j <= k
    f, j, g, k, data = f[upper], j[upper], g[upper], k[upper], table.data[upper]
    pairs, place = np.unique(j * count + k, return_inverse=True)
    if len(pairs) * forms * forms > 2**26:
        return None
    blocks = np.zeros((len(pairs), forms, forms))
    np.add.at(blocks, (place.ravel(), f, g), data)
    blocks = (blocks + blocks.transpose(0, 2, 1)) / 2
    flat = blocks.reshape(len(pairs), -1)
    largest = np.abs(flat).max(axis=1, keepdims=True)
    kept = largest.ravel() > 0
    first = np.argmax(np.abs(flat) >= largest * (1 - 1e-9), axis=1)
    scale = flat[np.arange(len(flat)), first]
    unit = np.round(flat[kept] / scale[kept, None], DIGITS) + 0.0
    distinct, number = np.unique(unit, axis=0, return_inverse=True)
    if len(distinct) > MOST_PATTERNS:
        return None
    row, column = np.divmod(pairs[kept], count)
    found, bound = [], 0.0
    for index, pattern in enumerate(distinct):
        mine = number.ravel() == index
        weights = scale[kept][mine] * np.where(row[mine] == column[mine], 1.0, 2.0)
        entries = sp.coo_array((weights / 2, (row[mine], column[mine])), shape=(count, count))
        matrix = sp.csr_array(entries + entries.T)
        bound += float(np.abs(pattern.reshape(forms, forms)).sum(axis=1).max() * abs(matrix).sum(axis=1).max())
        found.append(pattern_of(pattern.reshape(forms, forms), matrix, scale_of_monomials))
    if any(p is None for p in found):
        return None
    return GradientNorms([p for p in found if p is not None], bound, scale_of_forms, scale_of_monomials)


def scales(table: sp.csr_array, forms: int, count: int) -> tuple[Array, Array]:
    """Return powers of two, for each form and for each monomial, whose products are no less than a quarter of the rows' norms.

    And 0 for what no parameter multiplies, which adds nothing to a norm.
    """
    norms = np.sqrt(np.asarray((table * table).sum(axis=1)).ravel()).reshape(forms, count)
    largest = norms.max(axis=0)
    parts = norms / np.where(largest > 0, largest, 1.0)
    return power_of_two(parts.max(axis=1)), power_of_two(largest)


def power_of_two(values: Array) -> Array:
    """Return the power of two next below each value, 0 for 0; it rounds nothing, and dividing by it overflows nowhere."""
    return np.asarray(np.where(values > 0, np.exp2(np.maximum(np.frexp(values)[1] - 1.0, -400.0)), 0.0))


def pattern_of(forms: Array, matrix: sp.csr_array, scale: Array) -> Pattern | None:
    """Write a symmetric matrix of scaled monomials as its diagonal, or in factors, for monomials as they are."""
    diagonal = matrix.diagonal()
    if matrix.nnz == np.count_nonzero(diagonal):
        return Pattern(forms, diagonal * scale**2)
    if matrix.shape[0] > MOST_MONOMIALS:
        return None
    values, vectors = np.linalg.eigh(matrix.toarray())
    kept = np.abs(values) > 1e-14 * np.abs(values).max()
    factor = np.sqrt(np.abs(values[kept]))[:, None] * vectors[:, kept].T * scale
    return Pattern(forms, None, factor, np.sign(values[kept]))
