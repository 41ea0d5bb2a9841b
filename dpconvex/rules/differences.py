"""What one record changes: the differences of gradients between neighbours, as vertices, lengths and dimensions.

Gaussian noise is calibrated to more than the longest difference.  The difference depends on the parameters, hence on the
noise, but for given records it lies in a fixed polytope and in a fixed subspace: conv{0, v_1, ..., v_N} with bounds on the
lengths of the vertices, and the span of the rows of the two records.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpconvex.ranks import numerical_rank
from dpconvex.rules.abstract import Piece, Term
from dpconvex.rules.analysis import Analysis, LossBounds
from dpconvex.rules.curvature import rank_bound, trace_bound
from dpconvex.rules.gram import Gram
from dpconvex.rules.joint import LogisticJoint, SoftmaxJoint
from dpconvex.rules.symmetry import Symmetry

__all__ = ["Difference", "Spread", "differences", "row_dimension"]

Array = NDArray[np.float64]

# Relative slack for rounding, as for every constant of an analysis.
SLACK = 1 + 1e-11
# Lengths of vertices are rounded up to this relative grid, so that equal ones are counted together.
GRID = 1e-7

_KNOWN: WeakKeyDictionary[Analysis, dict[str, tuple[Difference, ...]]] = WeakKeyDictionary()
_DIMENSIONS: WeakKeyDictionary[Analysis, int] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Spread:
    """A loss whose gradient shrinks where it curves: ``scale`` times a log-sum-exp with vertices of bounded spread.

    For a convex combination ``g = scale E v`` and any w, ``||g - w||^2 = E ||scale v - w||^2 - scale^2 Var``, and the Hessian is
    ``scale Cov(v)`` with trace ``scale Var``.

    Attributes
    ----------
    scale : float
    variance : float
        Largest trace of the covariance.
    rank : int
        Largest rank of the covariance.
    """

    scale: float
    variance: float
    rank: int

    def excess(self, mu: float, sigma: float) -> float:
        """Bound ``log det(I + H/mu) - scale^2 Var / (2 sigma^2)`` over all parameters: curvature less what it takes away.

        Never negative.  It is 0, and curvature is free, if ``scale mu >= 2 sigma^2``.
        """
        gain, loss = self.scale / mu, (self.scale / sigma) ** 2 / 2
        if loss >= gain:
            return 0.0
        best = self.variance
        if loss > 0:
            best = min(best, self.rank * (1 / loss - 1 / gain))
        return float(self.rank * np.log1p(gain * best / self.rank) - loss * best) * SLACK


@dataclass(frozen=True, eq=False)
class Difference:
    """Differences ``g_z - g_z'`` of two records, or one record's gradient if z' is none.

    Attributes
    ----------
    length : float
        Bound on the norm of every difference.
    dimension : int
        Bound on the dimension of the subspace that all differences of two given records lie in.
    lengths, counts : ndarray or None
        Lengths of the vertices other than 0, and how many have each; None if there are too many, or no polytope.
    spreads : tuple of Spread or None
        For each of the two losses, if gradient and curvature are known to be opposed for both; else None.
    logistic : tuple of (float, float) or None
        (radius, scale) if the first record's loss is logistic.  Its own vertex is then not among the `lengths`: it is to be
        treated apart (`dpconvex.mechanisms.gaussian.logistic_delta`).
    """

    length: float
    dimension: int
    lengths: Array | None
    counts: Array | None
    spreads: tuple[Spread, ...] | None
    logistic: tuple[float, float] | None = None

    @property
    def signature(self) -> object:
        """A key that differences with equal bounds share, up to rounding."""
        spreads = (
            None
            if self.spreads is None
            else tuple(sorted((f"{s.scale:.9e} {s.variance:.9e} {s.rank}") for s in self.spreads))
        )
        vertices = None
        if self.lengths is not None and self.counts is not None:
            vertices = (self.lengths.tobytes(), self.counts.tobytes())
        return f"{self.length:.9e}", self.dimension, vertices, spreads, self.logistic


class Facts:
    """What is needed of one loss, computed once."""

    def __init__(self, loss: LossBounds, gram: Gram) -> None:
        self.gradients = loss.gradients
        self.squares = loss.gradients.squares
        self.dimension = dimension_of(loss.scalar.terms, gram)
        self.length = loss.gradients.bound
        self.spread = spread_of(loss, gram)
        self.logistic = logistic_of(loss)


def differences(analysis: Analysis, adjacency: str) -> tuple[Difference, ...]:
    """Return all kinds of differences between neighbours, each once.

    Parameters
    ----------
    analysis : Analysis
    adjacency : {"replace-one", "add-remove"}
    """
    known = _KNOWN.setdefault(analysis, {})
    if adjacency not in known:
        gram, p = analysis.gram, analysis.form.noise_dimension
        facts = [Facts(loss, gram) for loss in analysis.losses]
        found: dict[object, Difference] = {}
        if adjacency == "add-remove":
            items = [alone(fact, p) for fact in facts]
        else:
            alike: dict[Hashable, Vertices] = {}
            items = [
                pair(first, second, p, analysis.symmetry, alike)
                for k, first in enumerate(facts)
                for j, second in enumerate(facts)
                # The other order has the same vertices, unless the first record is to be treated apart.
                if k <= j or first.logistic is not None
            ]
        for item in items:
            found.setdefault(item.signature, item)
        known[adjacency] = tuple(found.values())
    return known[adjacency]


def alone(fact: Facts, p: int) -> Difference:
    """One record appears."""
    lengths = counts = None
    if fact.squares is not None:
        lengths, counts = tally(fact.squares[:0] if fact.logistic is not None else fact.squares)
    spreads = None if fact.spread is None else (fact.spread,)
    return Difference(fact.length * SLACK, min(fact.dimension, p), lengths, counts, spreads, fact.logistic)


def pair(first: Facts, second: Facts, p: int, symmetry: Symmetry, known: dict[Hashable, Vertices]) -> Difference:
    """One record takes another's place."""
    lengths = counts = None
    length = first.length + second.length
    found = vertex_pairs(first, second, symmetry, known)
    if found is not None:
        longest, lengths, counts = found
        length = min(length, longest)
    else:
        length = min(length, first.gradients.difference_bound(second.gradients))
    spreads = None
    if first.spread is not None and second.spread is not None:
        spreads = (first.spread, second.spread)
    dimension = min(first.dimension + second.dimension, p)
    return Difference(length * SLACK, dimension, lengths, counts, spreads, first.logistic)


Vertices = tuple[float, Array, Array]


def vertex_pairs(first: Facts, second: Facts, symmetry: Symmetry, known: dict[Hashable, Vertices]) -> Vertices | None:
    """Return the longest difference of two vertices, and all lengths with their counts, once for pairs that are alike."""
    both = first.gradients.enumerated(second.gradients)
    if both is None:
        return None
    key = (
        symmetry.key(*both),
        first.gradients.rounding,
        second.gradients.rounding,
        first.logistic is not None,
    )
    if key not in known:
        squares = first.gradients.squared_distances(second.gradients)
        assert squares is not None
        longest = float(np.sqrt(max(float(squares.max()), 0.0)))
        if first.logistic is not None:
            # Where the second record's vertex is 0, what is left is the first record alone.
            squares = squares[:, np.any(both[1] != 0, axis=1)]
        known[key] = (longest, *tally(squares.ravel()))
    return known[key]


def tally(squares: Array) -> tuple[Array, Array]:
    """Return distinct lengths, rounded up, and how often each occurs; zeros are left out.

    >>> lengths, counts = tally(np.array([0.0, 2.0, 2.0, 6.0]))
    >>> lengths.round(5).tolist(), counts.tolist()
    ([1.41421, 2.44949], [2.0, 1.0])
    """
    lengths = np.sqrt(np.maximum(squares, 0.0))
    lengths = lengths[lengths > 0]
    if len(lengths) == 0:
        return np.empty(0), np.empty(0)
    steps, counts = np.unique(np.ceil(np.log(lengths) / GRID - 1e-3), return_counts=True)
    # Lengths that agree but for rounding fall on one step: the slack covers what the rounding down left out.
    return np.exp(steps * GRID) * (1 + 2e-3 * GRID) * SLACK, counts.astype(float)


def dimension_of(terms: Sequence[Term], gram: Gram) -> int:
    """Bound the dimension of the span of all gradients of one record: the rank of its rows in generator coordinates."""
    if not terms:
        return 0
    return numerical_rank(np.concatenate([term.rows for term in terms]))


def row_dimension(analysis: Analysis) -> int:
    """Bound the dimension r_V of the subspace that all gradients of one given record lie in."""
    if analysis not in _DIMENSIONS:
        most = max(dimension_of(loss.scalar.terms, analysis.gram) for loss in analysis.losses)
        _DIMENSIONS[analysis] = min(most, analysis.form.noise_dimension)
    return _DIMENSIONS[analysis]


def spread_of(loss: LossBounds, gram: Gram) -> Spread | None:
    """Return the spread of a logistic or softmax loss."""
    if isinstance(loss.joint, LogisticJoint):
        return Spread(loss.joint.scale, loss.joint.radius**2 / 4 * SLACK, 1)
    if isinstance(loss.joint, SoftmaxJoint):
        piece = Piece((loss.joint.term,), 0.0, 1.0)
        return Spread(loss.joint.scale, trace_bound(piece, gram) * SLACK, max(rank_bound(piece, gram), 1))
    return None


def logistic_of(loss: LossBounds) -> tuple[float, float] | None:
    """Return (radius, scale) of a logistic loss whose slopes reach down to 0."""
    joint = loss.joint
    if isinstance(joint, LogisticJoint) and joint.low == 0:
        return joint.radius * SLACK, joint.scale
    return None
