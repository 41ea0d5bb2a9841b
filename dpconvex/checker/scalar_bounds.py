"""Bounds on a scalar expression: its range, its gradients in a sum of hulls of rows, and its curvature."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from dpconvex.checker.exact import ONE, ZERO, Range, outward, plus
from dpconvex.checker.reading import Unreplayed, effort, require, spend
from dpconvex.checker.rows import Vector, added, multiple

Hull = tuple[Vector, ...]
Turn = tuple[Fraction, Fraction, Fraction, int]
MOST_VERTICES = 4096
FAR = Fraction(2) ** 1000  # Infinity in ranges


@dataclass(frozen=True)
class HessianPart:
    """An upper bound on a part of a Hessian, ``outer g g' + spread Cov(a)``, for points a of a hull with mean g."""

    hull: Hull
    outer: Fraction
    spread: Fraction = ZERO

    @property
    def rank(self) -> int:
        return (max(len(self.hull) - 1, 0) if self.spread else 0) + (1 if self.outer else 0)


@dataclass(frozen=True)
class ScalarBound:
    """A scalar subexpression: its range, its gradients in a sum of hulls, and its Hessian bounded by a sum of pieces.

    `behind` is the m of max(m, 0).  With a `lead`, gradients are at most `lead` times the mean g of the only piece's points,
    and equal to it if the piece is a covariance alone.  A norm's gradients are in a ball of radius `ball`, added to the hulls.
    `turn` describes a norm with constant and moving entries: its factor, the largest gradient of the moving entries, a lower
    bound on the constant ones' norm, and the number of moving entries.  `slopes` are the weights of the second of two points.
    """

    value: Range
    hulls: tuple[Hull, ...] = ()
    pieces: tuple[HessianPart, ...] = ()
    kink: bool = False
    behind: ScalarBound | None = None
    lead: Fraction | None = None
    ball: Fraction = ZERO
    turn: Turn | None = None
    slopes: Range | None = None
    shorter: bool = False  # whether gradients may be shorter than `lead` times g

    def __post_init__(self) -> None:
        low, high = self.value
        require(low < FAR and high > -FAR, "a number is too large")
        object.__setattr__(self, "value", (max(low, -FAR), min(high, FAR)))

    @property
    def is_affine(self) -> bool:
        return not self.pieces and not self.kink

    @property
    def is_constant(self) -> bool:
        """Whether the scalar is a number of the record: it moves with no parameter."""
        return self.is_affine and not self.hulls

    @property
    def vertices(self) -> Hull:
        if self.ball:
            raise Unreplayed("there is no rule for functions of norms")
        return hull_sum(self.hulls)

    def plus(self, other: ScalarBound) -> ScalarBound:
        spend(4 + (len(self.hulls) + len(self.pieces)) // 8)
        first, second = (other, self) if self.is_affine else (self, other)
        if not second.is_affine:
            first, second = first.bent, second.bent
        pieces, lead = first.pieces + second.pieces, first.lead if second.is_affine else None
        if lead is not None and second.hulls:
            (piece,), moved = pieces, hull_sum(second.hulls)
            if piece.outer or first.shorter or len(moved) > 1:
                lead = None
            else:  # a covariance does not change if all points move
                pieces = (HessianPart(tuple(added(v, moved[0], 1 / lead) for v in piece.hull), ZERO, piece.spread),)
        low, high = plus(self.value, other.value)
        low = -FAR if -FAR in (self.value[0], other.value[0]) else low
        high = FAR if FAR in (self.value[1], other.value[1]) else high
        hulls = self.hulls + other.hulls
        turn, slopes = (first.turn, first.slopes) if second.is_affine and not second.hulls else (None, None)
        kink, ball = self.kink or other.kink, self.ball + other.ball
        return ScalarBound((low, high), hulls, pieces, kink, None, lead, ball, turn, slopes, first.shorter)

    @property
    def bent(self) -> ScalarBound:
        """The same scalar with the largest curvature of a logistic term within its slopes, so that other terms can be added."""
        if self.slopes is None:
            return self
        (piece,), (low, high) = self.pieces, self.slopes
        s = min(max(Fraction(1, 2), low), high)
        rows = tuple(v for v in piece.hull if v)
        return replace(self, pieces=(HessianPart(rows, piece.spread * s * (1 - s)),), lead=None, slopes=None)

    def times(self, factor: Range) -> ScalarBound:
        low, high = factor
        spend(5 + 2 * effort(self.value) + 2 * len(self.pieces))
        require(self.is_affine or low >= 0, "a curved term is multiplied by a factor that may be negative")
        require(max(map(abs, factor)) < FAR, "a factor is unbounded")
        # An infinite end stays infinite, unless the factor is 0.
        ends = [
            (FAR if (end > 0) == (by > 0) else -FAR) if abs(end) == FAR and by else end * by
            for end in self.value
            for by in factor
        ]
        value = outward(min(ends), max(ends))
        pieces = tuple(HessianPart(p.hull, p.outer * high, p.spread * high) for p in self.pieces if high)
        lead = self.lead * high if self.lead and high > 0 else None
        turn = (self.turn[0] * high, *self.turn[1:]) if self.turn and high > 0 else None
        ball = self.ball * max(abs(low), abs(high))
        slopes = self.slopes if lead else None
        shorter = self.shorter or low < high
        return ScalarBound(value, self.stretched(factor), pieces, self.kink, None, lead, ball, turn, slopes, shorter)

    def stretched(self, factor: Range) -> tuple[Hull, ...]:
        ends = sorted(set(factor))
        hulls = [dict.fromkeys(multiple(v, end) for end in ends for v in hull) for hull in self.hulls]
        return tuple(tuple(hull) for hull in hulls if any(hull))

    def through(self, value: Range, slope: Range, curvature: Fraction, kink: bool = False) -> ScalarBound:
        """Return bounds on a convex function of this scalar: its slope scales gradients, its curvature adds a square."""
        if self.slopes is not None:
            return self.bent.through(value, slope, curvature, kink)
        spend(5 + 2 * len(self.pieces))
        require(self.is_affine or slope[0] >= 0, "a curved term is the argument of a decreasing function")
        pieces = [HessianPart(p.hull, p.outer * slope[1], p.spread * slope[1]) for p in self.pieces if slope[1]]
        lead = self.lead * slope[1] if self.lead and curvature and pieces and not pieces[0].outer else None
        if lead is not None and self.lead is not None:
            pieces = [replace(pieces[0], outer=curvature * self.lead**2)]
        elif curvature:
            pieces.append(HessianPart(self.vertices, curvature))
        ball = self.ball * max(map(abs, slope))
        kink, shorter = self.kink or (kink and not self.is_constant), self.shorter
        return ScalarBound(value, self.stretched(slope), tuple(pieces), kink, None, lead, ball, None, None, shorter)


def merge_segments(hulls: tuple[Hull, ...]) -> tuple[Hull, ...]:
    """Merge hulls of two points in the same direction, as their sum also has two vertices."""
    found, lines = [hull for hull in hulls if len(hull) != 2], dict[Vector, Hull]()
    for one, two in (hull for hull in hulls if len(hull) == 2):
        way = added(two, one, -ONE)
        line, ends = multiple(way, 1 / way[0][1]), (one, two) if way[0][1] > 0 else (two, one)
        old = lines.get(line, ((), ()))
        lines[line] = added(old[0], ends[0]), added(old[1], ends[1])
    return (*found, *lines.values())


def hull_sum(hulls: tuple[Hull, ...]) -> Hull:
    """Return the candidate vertices of a sum of hulls: all sums of one vertex from each hull."""
    hulls = merge_segments(hulls)
    require(prod(map(len, hulls)) <= MOST_VERTICES, "gradients form a polytope with too many vertices")
    found: dict[Vector, None] = {(): None}
    for hull in hulls:
        found = dict.fromkeys(added(u, v) for u in found for v in hull)
    return ends_of(tuple(found))


def ends_of(points: Hull) -> Hull:
    """Return the two end points if all points lie on a line through 0; otherwise return all points."""
    points = tuple(dict.fromkeys(points))
    line = next((v for v in points if v), None)
    if line is None or len(points) < 3:
        return points
    along = {v[0][1] / line[0][1] if v else ZERO: v for v in points}
    straight = all(v == multiple(line, slope) for slope, v in along.items())
    return (along[min(along)], along[max(along)]) if straight and len(along) == len(points) else points


def span_dimension(vectors: Iterable[Vector]) -> int:
    """Return the dimension of the span of vectors, by elimination."""
    basis: dict[int, Vector] = {}
    for left in sorted(set(vectors), key=len):
        while left and left[0][0] in basis:
            left = added(left, basis[left[0][0]], -left[0][1])
        if left:
            basis[left[0][0]] = multiple(left, 1 / left[0][1])
    return len(basis)
