"""Norm bounds for sets of gradients: of one record, and of the difference that replacing a record makes.

A gradient is a sum of terms, each in a convex hull (or an ellipsoid).  Its squared norm is a sum of inner products of terms,
and a convex function of each term's weights, so its largest value is at vertices.  With few vertices all combinations are
tried, which is exact; otherwise the inner products are bounded pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpconvex.rules.abstract import Term
from dpconvex.rules.gram import Gram

__all__ = ["gradient_bound", "replacement_bound"]

Array = NDArray[np.float64]

LARGEST_ENUMERATION = 4096
LARGEST_PAIR_ENUMERATION = 1 << 18


def gradient_bound(terms: Sequence[Term], gram: Gram) -> float:
    """Bound the norm of every gradient in the Minkowski sum of `terms`, for every record.

    Parameters
    ----------
    terms : sequence of Term
    gram : Gram

    Returns
    -------
    float
        In units of the loss per unit of the parameters.

    Notes
    -----
    Pairwise: ``||sum_t u_t||^2 <= sum_{t,t'} max <u_t, u_t'>``.  For margins that share a row, such as those of a large-margin
    Gaussian classifier, this is tight: sqrt(C(C-1)) for C classes.
    """
    if not terms:
        return 0.0
    vertices = combinations(terms, LARGEST_ENUMERATION)
    if vertices is not None:
        return float(np.sqrt(gram.squared_norms(vertices).max()))
    norms = np.array([term_norm(term, gram) for term in terms])
    pairs = np.minimum(largest_products(terms, terms, norms, norms, gram, cross=False), np.outer(norms, norms))
    total = float((norms**2).sum() + 2 * np.triu(pairs, 1).sum())
    return float(min(np.sqrt(max(total, 0.0)), norms.sum()))


def replacement_bound(first: Sequence[Term], second: Sequence[Term], gram: Gram) -> float:
    """Bound ``||g - g'||`` for gradients g in the sum of `first` and g' in the sum of `second`, of two records.

    This is the replace-one sensitivity of a pair of labels; it never exceeds the sum of the two gradient bounds.
    """
    apart = gradient_bound(first, gram) + gradient_bound(second, gram)
    if not first or not second:
        return apart
    left, right = (combinations(terms, LARGEST_ENUMERATION) for terms in (first, second))
    if left is not None and right is not None and len(left) * len(right) <= LARGEST_PAIR_ENUMERATION:
        squares = gram.squared_norms(left)[:, None] + gram.squared_norms(right)[None, :]
        squares = squares + 2 * gram.products(left, right, cross=True, sign=-1.0)
        return float(min(apart, np.sqrt(max(float(squares.max()), 0.0))))
    total = gradient_bound(first, gram) ** 2 + gradient_bound(second, gram) ** 2
    norms, others = (np.array([term_norm(term, gram) for term in terms]) for terms in (first, second))
    total += 2 * float(largest_products(first, second, norms, others, gram, cross=True, sign=-1.0).sum())
    return float(min(apart, np.sqrt(max(total, 0.0))))


def largest_products(
    first: Sequence[Term],
    second: Sequence[Term],
    norms: Array,
    others: Array,
    gram: Gram,
    cross: bool,
    sign: float = 1.0,
) -> Array:
    """Bound ``sign * <u, v>`` for u in each of the first terms and v in each of the second, given bounds of their norms.

    All vertices are multiplied at once: with many classes there are very many pairs of terms, each small.
    """
    result = np.outer(norms, others)
    left, right = ([k for k, term in enumerate(terms) if not term.ball] for terms in (first, second))
    if not left or not right:
        return result
    table = gram.products(
        np.concatenate([first[k].rows for k in left]), np.concatenate([second[k].rows for k in right]), cross, sign
    )
    starts = [
        np.cumsum([0, *(len(terms[k].rows) for k in chosen[:-1])]) for terms, chosen in ((first, left), (second, right))
    ]
    result[np.ix_(left, right)] = np.maximum.reduceat(np.maximum.reduceat(table, starts[0], axis=0), starts[1], axis=1)
    return result


def term_norm(term: Term, gram: Gram) -> float:
    """Bound the norm of every gradient of one term."""
    if not term.ball:
        return float(np.sqrt(gram.squared_norms(term.rows).max()))
    return float(np.sqrt(max(np.linalg.eigvalsh(term.rows @ gram.upper @ term.rows.T)[-1], 0.0)))


def combinations(terms: Sequence[Term], limit: int) -> Array | None:
    """Return all sums of one vertex from each term, or None if there are too many or a term is not a hull."""
    if any(term.ball for term in terms) or np.prod([float(len(term.rows)) for term in terms]) > limit:
        return None
    sums = np.zeros((1, terms[0].rows.shape[1]))
    for term in terms:
        sums = (sums[:, None, :] + term.rows[None, :, :]).reshape(-1, sums.shape[1])
    return sums
