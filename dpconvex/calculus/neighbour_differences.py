"""What one record changes: the differences of gradients between neighbours, as vertices, lengths and dimensions.

Gaussian noise is calibrated to more than the longest difference.  The difference depends on the parameters, hence on the
noise, but for given records it lies in a fixed polytope and in a fixed subspace: conv{0, v_1, ..., v_N} with bounds on the
lengths of the vertices, and the span of the rows of the two records.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.analysis import Analysis, LossBounds
from dpconvex.calculus.curvature import piece_bounds
from dpconvex.calculus.gradient_norms import Gradients
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.joint_supremum import LogisticJoint, NormJoint, SoftmaxJoint
from dpconvex.calculus.opposed_slopes import Opposed, Segment, Spread
from dpconvex.calculus.symmetry import Symmetry
from dpconvex.core.abstract_values import Piece, Term

Array = NDArray[np.float64]

# Relative slack for rounding, as for every constant of an analysis.
SLACK = 1 + 1e-11
# Lengths of vertices are rounded up to this relative grid, so that equal ones are counted together.
GRID = 1e-7
# Vertices of a record behind that are gone through one by one.
MOST_BEHIND = 64

_KNOWN: WeakKeyDictionary[Analysis, dict[str, tuple[Difference, ...]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Ray:
    """The gradients of one logistic record: ``scale s a`` with ``||a|| <= radius`` and ``0 <= s <= high``.

    They are treated together, with the curvature at each s (`dpconvex.noise.gaussian_profiles.logistic_delta`).
    """

    radius: float
    scale: float
    high: float


@dataclass(frozen=True)
class OneMargin:
    """The gradients of a record that sees theta through one row: between `low` and `high` times a vector of length 1 at most.

    Along the noise on the row they fall, and the record's curvature is how fast.
    """

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Hull:
    """A polytope that holds the differences of two given records, and what is known along it.

    Attributes
    ----------
    length : float
        Bound on the norm of every vertex.
    lengths, counts : ndarray or None
        Lengths of the vertices other than 0, and how many have each; None if there are too many, or no polytope.
    opposed : Opposed or None
        If the first record's gradient and curvature are known to be opposed along it.
    ray : Ray or None
        The first record's own gradients, if they are to be treated apart: they are not among the `lengths` then.
    margin : OneMargin or None
        The same of a first record of one margin; another way to bound all differences.
    behind : ndarray or None
        Lengths of the vertices of the second record's gradients, if there is one and they are not too many.
    cap : tuple of float, or None
        For a first record whose loss is a norm: largest gradient, least norm, largest singular value of the rows, eigenvalues
        across and along the gradient, and the second record's largest gradient.
    """

    length: float
    lengths: Array | None
    counts: Array | None
    opposed: Opposed | None
    ray: Ray | None = None
    margin: OneMargin | None = None
    behind: Array | None = None
    cap: tuple[float, float, float, float, float, float] | None = None

    @property
    def signature(self) -> tuple[Hashable, ...]:
        """A key that hulls with equal bounds share, up to rounding."""
        vertices = None
        if self.lengths is not None and self.counts is not None:
            vertices = (self.lengths.tobytes(), self.counts.tobytes())
        opposed = None if self.opposed is None else self.opposed.signature
        behind = None if self.behind is None else self.behind.tobytes()
        return f"{self.length:.9e}", vertices, opposed, self.ray, self.margin, behind, self.cap

    def merged(self, other: Hull) -> Hull:
        """Return what holds for this and for another of the same signature."""
        opposed = self.opposed
        if opposed is not None and other.opposed is not None:
            opposed = opposed.merged(other.opposed)
        return replace(self, length=max(self.length, other.length), opposed=opposed)


@dataclass(frozen=True, eq=False)
class Difference:
    """Differences ``g_z - g_z'`` of two records, in this order, or one record's gradient if z' is none.

    The first record's curvature counts, the second's does not.

    Attributes
    ----------
    dimension : int
        Bound on the dimension of the subspace that all differences of two given records lie in.
    hulls : tuple of Hull
        Each holds all of them; whichever gives the smallest bound counts.
    firsts : tuple of int
        The losses that the first record may have.
    """

    dimension: int
    hulls: tuple[Hull, ...]
    firsts: tuple[int, ...]

    @property
    def length(self) -> float:
        """Bound on the norm of every difference."""
        return min(hull.length for hull in self.hulls)

    @property
    def signature(self) -> tuple[Hashable, ...]:
        """A key that differences with equal bounds share, up to rounding."""
        return self.dimension, tuple(hull.signature for hull in self.hulls)

    def merged(self, other: Difference) -> Difference:
        """Return what holds for this and for another of the same signature."""
        hulls = tuple(a.merged(b) for a, b in zip(self.hulls, other.hulls, strict=True))
        return Difference(self.dimension, hulls, tuple(sorted({*self.firsts, *other.firsts})))


class Facts:
    """What is needed of one loss, computed once.

    Attributes
    ----------
    gradients : Gradients
        In the hull of their vertices.
    outward : Gradients
        In a larger hull for logistic losses: of 0 and the steepest gradient.
    narrow : bool
        Whether that one really is larger.
    cap : NormJoint or None
        If it is a norm.
    margin : OneMargin or None
        If it has one margin.
    """

    def __init__(
        self,
        number: int,
        loss: LossBounds,
        gram: Gram,
        symmetry: Symmetry | None = None,
        margin: OneMargin | None = None,
    ) -> None:
        self.number, self.margin = number, margin
        self.dimension = loss.dimension
        self.gradients = self.outward = loss.gradients
        self.opposed = self.opposed_outward = spread_of(loss, gram, symmetry)
        self.ray: Ray | None = None
        self.narrow = False
        self.cap = loss.joint if isinstance(loss.joint, NormJoint) else None
        segment = segment_of(loss)
        if segment is not None and loss.scalar.logit is not None:
            self.opposed, self.narrow = segment, segment.low > 0
            self.opposed_outward = replace(segment, low=0.0)
            self.ray = Ray(segment.radius * SLACK, segment.scale, segment.high)
            if self.narrow:
                top = segment.scale * segment.high * loss.scalar.logit[0]
                self.outward = Gradients((Term(np.stack([0 * top, top])),), gram)


def differences(analysis: Analysis, adjacency: str) -> tuple[Difference, ...]:
    """Return all kinds of differences between neighbours, each once: for replacements, in both orders."""
    known = _KNOWN.setdefault(analysis, {})
    if adjacency not in known:
        gram, p = analysis.gram, analysis.form.noise_dimension
        symmetry = analysis.symmetry
        facts = [Facts(k, loss, gram, symmetry, margin_of(analysis, k)) for k, loss in enumerate(analysis.losses)]
        found: dict[Hashable, Difference] = {}
        if adjacency == "add-remove":
            items = [alone(fact, p) for fact in facts]
        else:
            tallies = Tallies(symmetry)
            items = [pair(first, second, p, tallies) for first in facts for second in facts]
        for item in items:
            key = item.signature
            found[key] = found[key].merged(item) if key in found else item
        # The order does not depend on that of the labels.
        known[adjacency] = tuple(found[key] for key in sorted(found, key=repr))
    return known[adjacency]


def margin_of(analysis: Analysis, number: int) -> OneMargin | None:
    """Return the gradients of a loss of one margin."""
    if analysis.losses[number].dimension != 1:
        return None
    rows = np.concatenate([analysis.rows[leaf] for leaf in analysis.form.leaves[number]])
    row = rows[rows.any(axis=1)][0]
    column, low, high = int(np.argmax(np.abs(row))), 0.0, 0.0
    for term in analysis.losses[number].scalar.terms:
        factors = term.rows[:, column] / row[column]
        size = float(np.linalg.norm(factors))
        ends = (-size, size) if term.ball else (float(factors.min()), float(factors.max()))
        low, high = low + ends[0], high + ends[1]
    # In one sign for all labels, and with the digits that do not depend on how a loss is written.
    if high < -low:
        low, high = -high, -low
    radius = float(np.sqrt(analysis.gram.squared_norms(row[None, :])[0]) + analysis.gram.slack(np.abs(row)[None, :])[0])
    return OneMargin(*(float(f"{radius * end:.12g}") for end in (low, high)))


def alone(fact: Facts, p: int) -> Difference:
    """One record appears.  In the other order, where it disappears, its curvature helps, and lengths are the same."""
    hulls = []
    if fact.ray is not None:
        hulls.append(Hull(fact.outward.bound * SLACK, np.empty(0), np.empty(0), fact.opposed_outward, fact.ray))
    if fact.ray is None or fact.narrow:
        squares = fact.gradients.squares
        lengths, counts = (None, None) if squares is None else tally(squares)
        hulls.append(Hull(fact.gradients.bound * SLACK, lengths, counts, fact.opposed, cap=cap_of(fact, 0.0)))
    hulls[0] = replace(hulls[0], margin=fact.margin)
    return Difference(min(fact.dimension, p), tuple(hulls), (fact.number,))


def pair(first: Facts, second: Facts, p: int, tallies: Tallies) -> Difference:
    """One record takes another's place, whose loss is the second."""
    hulls = []
    narrow = first.narrow or second.narrow
    if narrow or first.ray is not None:
        # Where the second record's vertex is 0, what is left is the first record alone.
        apart = first.ray is not None and tallies.reaches_zero(second)
        ray = first.ray if apart else None
        found = tallies(first, second, outward=True, apart=apart)
        longest = first.outward.bound + second.outward.bound
        if found is not None:
            behind = lengths_of(second.outward) if apart else None
            hulls.append(Hull(min(longest, found[0]) * SLACK, *found[1:], first.opposed_outward, ray, behind=behind))
    if narrow or not hulls:
        found = tallies(first, second)
        longest = first.gradients.bound + second.gradients.bound
        longest = min(longest, first.gradients.difference_bound(second.gradients) if found is None else found[0])
        lengths, counts = (None, None) if found is None else found[1:]
        behind = None if found is None or first.margin is None else lengths_of(second.gradients)
        margin = None if behind is None else first.margin
        hulls.append(Hull(longest * SLACK, lengths, counts, first.opposed, margin=margin, behind=behind))
        hulls[-1] = replace(hulls[-1], cap=cap_of(first, second.gradients.bound * SLACK))
    return Difference(min(first.dimension + second.dimension, p), tuple(hulls), (first.number,))


def cap_of(fact: Facts, behind: float) -> tuple[float, float, float, float, float, float] | None:
    """Return what is known of a norm, beside another record's gradient; with the digits that do not depend on rounding."""
    cap = fact.cap
    if cap is None:
        return None
    steepest, radius, behind = (float(f"{size * SLACK:.12g}") for size in (cap.scale * cap.radius, cap.radius, behind))
    return steepest, cap.floor, radius, float(cap.across), float(cap.along), behind


def lengths_of(gradients: Gradients) -> Array | None:
    """Return the lengths of the vertices of one record's gradients, rounded up; None if they are too many."""
    squares = gradients.squares
    if squares is None or len(squares) > MOST_BEHIND:
        return None
    lengths, counts = tally(squares)
    still = np.zeros(int((squares <= 0).sum()))
    return np.concatenate([still, np.repeat(lengths, counts.astype(int))])


Vertices = tuple[float, Array, Array]


class Tallies:
    """The lengths of all differences of two losses' vertices, counted once for pairs that are alike."""

    def __init__(self, symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self._pairs: dict[tuple[int, int, bool, bool], Vertices | None] = {}
        self._kinds: dict[Hashable, Vertices] = {}

    def reaches_zero(self, fact: Facts) -> bool:
        """Say whether 0 is a vertex of the larger hull."""
        vertices = fact.outward.vertices
        return vertices is None or not np.any(vertices != 0, axis=1).all()

    def __call__(self, first: Facts, second: Facts, outward: bool = False, apart: bool = False) -> Vertices | None:
        """Return the longest difference, and all lengths with their counts; None if they are too many."""
        if not apart and first.number > second.number:
            first, second = second, first  # the other order has the same lengths
        key = first.number, second.number, outward, apart
        if key not in self._pairs:
            sets = (first.outward, second.outward) if outward else (first.gradients, second.gradients)
            self._pairs[key] = self._found(*sets, apart)
        return self._pairs[key]

    def _found(self, left: Gradients, right: Gradients, apart: bool) -> Vertices | None:
        both = left.enumerated(right)
        if both is None:
            return None
        kind = (self.symmetry.key(*both), left.rounding, right.rounding, apart)
        if kind not in self._kinds:
            squares = left.squared_distances(right)
            assert squares is not None
            longest = float(np.sqrt(max(float(squares.max()), 0.0)))
            if apart:
                squares = squares[:, np.any(both[1] != 0, axis=1)]
            self._kinds[kind] = (longest, *tally(squares.ravel()))
        return self._kinds[kind]


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


def spread_of(loss: LossBounds, gram: Gram, symmetry: Symmetry | None) -> Opposed | None:
    if isinstance(loss.joint, SoftmaxJoint):
        piece = Piece((loss.joint.term,), 0.0, 1.0)
        bounds = piece_bounds(piece, gram, loss.dimension, symmetry)
        return Spread(loss.joint.scale, bounds.trace * SLACK, max(bounds.rank, 1))
    return None


def segment_of(loss: LossBounds) -> Segment | None:
    """Return the gradients of a logistic loss, between the vertices that they are bounded by."""
    joint, logit = loss.joint, loss.scalar.logit
    if not isinstance(joint, LogisticJoint) or logit is None or joint.scale * joint.radius == 0:
        return None
    (term,), largest = loss.scalar.terms, int(np.argmax(np.abs(logit[0])))
    # A factor that a field of the record multiplies makes the flattest gradient flatter than the slopes alone tell.
    flattest = float((term.rows[:, largest] / logit[0][largest]).min()) / joint.scale
    low = min(max(flattest, 0.0), joint.low)
    return Segment(joint.scale, joint.radius * SLACK, low, joint.high, low)
