"""Bounds on the norms of one record's gradients, and of differences between two records' gradients."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dpconvex.expressions.abstract_values import GradientSet, combinations
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.util.arrays import Array

LARGEST_ENUMERATION, LARGEST_PAIR_ENUMERATION = 4096, 1 << 18


class Gradients:
    """The set of gradients of one loss, the Minkowski sum of `terms`, with cached bounds."""

    def __init__(self, terms: Sequence[GradientSet], gram: GradientGram) -> None:
        self.terms, self.gram = terms, gram
        count = np.prod([float(len(term.rows)) for term in terms])
        self._few = bool(count <= LARGEST_ENUMERATION) and not any(term.ball for term in terms)

    @cached_property
    def vertices(self) -> Array | None:
        """Return all sums of one vertex per term, shape (vertices, generators); None if too many, or if a term is a ball."""
        return combinations([term.rows for term in self.terms], len(self.gram.upper)) if self._few else None

    @cached_property
    def slacks(self) -> Array:
        """Return bounds on the distance of each vertex from its generator coordinates; a single bound if `vertices` is None."""
        grown = 1 + len(self.terms) / 256  # a sum of many terms is rounded more often
        if not self._few:
            return np.array([grown * self.gram.term_slack(self.terms)])
        slack = grown * self.gram.slack(combinations([term.masses for term in self.terms], len(self.gram.upper)))
        # Round the largest up to few digits, so that losses with generators in another order have the same bound.
        mantissa, exponent = np.frexp(slack.max())
        return np.where(slack > 0, np.ldexp(np.ceil(16 * mantissa) / 16, exponent), 0.0)

    @cached_property
    def squares(self) -> Array | None:
        """Return bounds on the squared norms of the vertices; None if `vertices` is None."""
        if self.vertices is None:
            return None
        return np.asarray((np.sqrt(self.gram.squared_norms(self.vertices)) + self.slacks) ** 2)

    @cached_property
    def norms(self) -> Array:
        """Return bounds on the norm of each term, shape (terms,)."""
        return np.array([term_norm(term, self.gram) for term in self.terms])

    @cached_property
    def bound(self) -> float:
        """Return a bound on the norm of every gradient, for every record."""
        if not self.terms:
            return 0.0
        if self.squares is not None:
            return float(np.sqrt(self.squares.max()))
        total = float((self.norms**2).sum() + 2 * np.triu(largest_products(self, self, cross=False), 1).sum())
        return float(min(np.sqrt(max(total, 0.0)) + self.slacks[0], self.norms.sum()))

    def squared_distances(self, other: "Gradients") -> Array | None:
        """Return bounds on squared distances between the vertices of two losses at two records; None if there are too many."""
        left, right, mine, others = self.vertices, other.vertices, self.squares, other.squares
        if left is None or right is None or mine is None or others is None:
            return None
        if len(left) * len(right) > LARGEST_PAIR_ENUMERATION:
            return None
        squares = mine[:, None] + others[None, :] + 2 * self.gram.products(left, right, cross=True, sign=-1.0)
        return np.asarray((np.sqrt(np.maximum(squares, 0.0)) + self.slacks[:, None] + other.slacks[None, :]) ** 2)

    def difference_bound(self, other: "Gradients") -> float:
        """Return a bound on ``||g - g'||`` for gradients g of this loss and g' of another, at two records."""
        apart = self.bound + other.bound
        if not self.terms or not other.terms:
            return apart
        squares = self.squared_distances(other)
        if squares is not None:
            return float(min(apart, np.sqrt(max(float(squares.max()), 0.0))))
        total = self.bound**2 + other.bound**2
        total += 2 * float(largest_products(self, other, cross=True, sign=-1.0).sum())
        return float(min(apart, np.sqrt(max(total, 0.0)) + self.slacks.max() + other.slacks.max()))


def largest_products(first: Gradients, second: Gradients, cross: bool, sign: float = 1.0) -> Array:
    """Return bounds on ``sign * <u, v>`` for u in a term of `first` and v in a term of `second`, for all pairs of terms."""
    result = np.outer(first.norms, second.norms)
    hulls = [[k for k, term in enumerate(item.terms) if not term.ball] for item in (first, second)]
    if not all(hulls):
        return result
    tables = [[item.terms[k].rows for k in own] for item, own in zip((first, second), hulls, strict=True)]
    table = first.gram.products(np.concatenate(tables[0]), np.concatenate(tables[1]), cross, sign)
    for axis, rows in enumerate(tables):
        table = np.maximum.reduceat(table, np.cumsum([0, *map(len, rows[:-1])]), axis=axis)
    result[np.ix_(*hulls)] = table if cross else np.minimum(table, result[np.ix_(*hulls)])
    return result


def term_norm(term: GradientSet, gram: GradientGram) -> float:
    if not term.ball:
        return float((np.sqrt(gram.squared_norms(term.rows)) + gram.slack(term.masses)).max())
    return gram.steepest(term.rows) + gram.term_slack([term])
