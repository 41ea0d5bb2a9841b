"""What the calculus knows about one scalar subexpression of a loss: its range, its gradients and its curvature.

Each is a superset of what can happen over the record's domain and all parameters in K.  Gradients are sets in generator
coordinates (see `gram`), so that sums of terms that share rows of `A_z` keep their exact geometry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpconvex.core.arrays import Array
from dpconvex.core.expression import Expression
from dpconvex.errors import MissingRule

LARGEST_HULL = 4096
EPSILON = 2.0**-52
# Bounds of one number may miss each other by this fraction of the size of its terms, for rounding: there may be millions of them.
APART = 1e-9


@dataclass(frozen=True)
class Interval:
    """A closed interval; sums, products and powers are rounded outward, unless they are exact.

    An end that is not a number, after an overflow, is infinite: nothing is known.

    >>> Interval(1e16, 1e16) + Interval(1.0, 1.0)
    Interval(low=9999999999999998.0, high=1.0000000000000002e+16)
    >>> Interval(-1.0, 2.0) * Interval(3.0, 3.0)
    Interval(low=-3.0, high=6.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if math.isnan(self.low) or math.isnan(self.high):
            object.__setattr__(self, "low", -math.inf)
            object.__setattr__(self, "high", math.inf)

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))

    def __add__(self, other: Interval) -> Interval:
        return Interval(plus(self.low, other.low)[0], plus(self.high, other.high)[1])

    def __mul__(self, other: Interval) -> Interval:
        corners = [times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(low for low, _ in corners), max(high for _, high in corners))

    def rounded(self, magnitude: float = 0.0, count: int = 8) -> Interval:
        """Move the ends outward by a few roundings of themselves, or of the size of what they are sums of."""
        low, high = (count * EPSILON * max(abs(end), magnitude) for end in (self.low, self.high))
        return Interval(self.low - low, self.high + high)

    def meet(self, other: Interval, magnitude: float = 0.0) -> Interval:
        """Intersect two intervals that contain one number, both computed with rounding."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low <= high:
            return Interval(low, high)
        ends = (self.low, self.high, other.low, other.high)
        if not low - high <= APART * max([magnitude, *(abs(end) for end in ends if math.isfinite(end))]):
            raise AssertionError(f"bounds of one number contradict each other: {self} and {other}.")
        return Interval(high, low)

    def power(self, exponent: int) -> Interval:
        even = exponent % 2 == 0 and self.low < 0
        base = Interval(0.0 if self.high > 0 else -self.high, max(-self.low, self.high)) if even else self
        result = base
        for _ in range(exponent - 1):
            result = result * base
        return result


def outward(value: float, exact: bool) -> tuple[float, float]:
    """Bound a number by its rounded value from below and above; by itself, if it is exact."""
    if exact or not math.isfinite(value):
        return value, value
    return math.nextafter(value, -math.inf), math.nextafter(value, math.inf)


def plus(a: float, b: float) -> tuple[float, float]:
    total = a + b
    other = total - a
    return outward(total, other == b and total - other == a)  # Knuth's error is 0


def times(a: float, b: float) -> tuple[float, float]:
    """Bound a product, where zero times an infinite end is zero."""
    if a == 0 or b == 0:
        return 0.0, 0.0
    whole = abs(a * b) < 1 / EPSILON and a % 1 == 0 and b % 1 == 0
    low, high = outward(a * b, whole or abs(a) == 1 or abs(b) == 1)
    return (max(low, 0.0), high) if (a > 0) == (b > 0) else (low, min(high, 0.0))


def intervals(low: Array, high: Array) -> list[Interval]:
    return [Interval(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Term:
    """A set of gradients: the convex hull of rows, or (a ball) all ``sum_j u_j rows_j`` with ``||u|| <= 1``."""

    rows: Array  # (k, generators)
    ball: bool = False
    # (generators,) if rows are sums, in which terms may have cancelled: bounds the absolute terms.
    mass: Array | None = None
    # Vertices left out because a row has the same coordinates: they may differ by less than a last digit.
    merged: int = 0

    @property
    def masses(self) -> Array:
        """Bounds on the absolute terms that each row is a sum of, shape (k, generators); one row for a ball."""
        size = np.abs(self.rows)
        if self.mass is not None:
            size = np.maximum(size, self.mass)
        # A ball's axes are weighted with a unit vector.
        return np.sqrt((size**2).sum(axis=0, keepdims=True)) if self.ball else size

    def scaled(self, factor: Interval) -> Term:
        """Multiply by any number of an interval."""
        mass = None if self.mass is None else self.mass * factor.size
        if self.ball:
            return Term(self.rows * factor.size, True, mass)
        if factor.low == factor.high:
            return Term(self.rows * factor.low, mass=mass, merged=self.merged)
        return merged_hull(np.concatenate([self.rows * factor.low, self.rows * factor.high]), mass, 2 * self.merged)


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a Hessian: ``outer * g g' + spread * Cov(a)``.

    Here g is in the Minkowski sum of `terms`; with ``spread > 0`` there is one term, a hull, g is a convex combination of its
    vertices a and Cov(a) their covariance under the same weights.
    """

    terms: tuple[Term, ...]
    outer: float
    spread: float = 0.0

    def scaled(self, factor: float) -> Piece:
        return Piece(self.terms, factor * self.outer, factor * self.spread)


@dataclass(frozen=True, eq=False)
class Kink:
    """Why a subexpression has no Lipschitz gradient."""

    reason: str
    place: Expression
    remedy: str

    @property
    def expression(self) -> str:
        return str(self.place)


@dataclass(frozen=True, eq=False)
class Scalar:
    """A scalar subexpression: gradients in the sum of `terms`, and, without a kink, Hessians times `sign` below `pieces`."""

    value: Interval
    terms: tuple[Term, ...] = ()
    pieces: tuple[Piece, ...] = ()
    sign: int = 1  # 1 if it is convex, -1 if concave
    kink: Kink | None = None
    # (row, scale, low, high) of ``scale * log(1 + exp(m))``, up to a constant, for one affine m, with slopes from low to high.
    logit: tuple[Array, float, float, float] | None = None
    # If the gradient is a multiple of the mean of the only piece's points, under the weights in that piece: bounds the multiple.
    lead: float | None = None
    # (scale, c) of ``scale * ||(c', m)||``, up to a constant, with m affine and c' of norm c > 0 at least without parameters.
    floor: tuple[float, float] | None = None
    behind: Scalar | None = None  # the m of pos(m), whose kink vanishes under an outer function of slope 0 at 0
    # Of an entry of an array: what bounds the Euclidean norm of the array's entries at some places, and its own place.
    together: tuple[Callable[[list[int]], float], int] | None = None

    def __post_init__(self) -> None:
        # A hull of constants has no generators to speak of.
        object.__setattr__(self, "terms", tuple(term for term in self.terms if term.rows.shape[1]))

    @property
    def is_affine(self) -> bool:
        return not self.pieces and self.kink is None

    def __add__(self, other: Scalar) -> Scalar:
        sign = other.sign if self.is_affine else self.sign
        if not self.is_affine and not other.is_affine and self.sign != other.sign:
            raise MissingRule("a convex and a concave term are added", None, "keep every term of a loss convex")
        terms, pieces = self.terms + other.terms, self.pieces + other.pieces
        kept = self if not other.terms else other if not self.terms else Scalar(self.value)
        return Scalar(
            self.value + other.value, terms, pieces, sign, self.kink or other.kink, kept.logit, kept.lead, kept.floor
        )

    def scaled(self, factor: Interval) -> Scalar:
        """Multiply by a number in an interval: a constant, or a function of the record."""
        if factor.low < 0 < factor.high and not self.is_affine:
            raise MissingRule(
                "a factor that can change sign multiplies a curved term",
                None,
                "declare the factor's field non-negative",
            )
        size = factor.size
        if not size:
            return Scalar(self.value * factor)
        keeps = factor.low >= 0
        return Scalar(
            self.value * factor,
            tuple(term.scaled(factor) for term in self.terms),
            tuple(piece.scaled(size) for piece in self.pieces),
            self.sign if factor.high > 0 else -self.sign,
            self.kink,
            (self.logit[0], size * self.logit[1], *self.logit[2:]) if self.logit and keeps else None,
            None if self.lead is None else size * self.lead,
            (size * self.floor[0], self.floor[1]) if self.floor and keeps else None,
        )

    def through(
        self, value: Interval, slope: Interval, curvature: float, sign: int = 1, kink: Kink | None = None
    ) -> Scalar:
        """Compose with an outer function of one variable (theory: gradients scale by its slope, curvature adds)."""
        if (slope.low if self.sign == sign else -slope.high) < 0 and not self.is_affine:
            raise MissingRule(
                "a curved term goes through a function that is not monotone on its range "
                f"[{self.value.low:.4g}, {self.value.high:.4g}]",
                None,
                "apply the function to an affine expression, or to a term whose sign follows from its parts",
            )
        pieces = tuple(piece.scaled(slope.size) for piece in self.pieces)
        own = covariance_of_gradient(self) if curvature > 0 else None
        if own is not None:
            pieces = (Piece(own.terms, curvature, slope.size * own.spread),)
        elif curvature > 0:
            pieces = (*pieces, Piece(self.terms, curvature))
        scaled = tuple(term.scaled(slope) for term in self.terms)
        return Scalar(value, scaled, pieces, sign, self.kink or kink, lead=None if own is None else slope.size)

    def with_value(self, value: Interval) -> Scalar:
        return replace(self, value=value, behind=None, together=None)


def covariance_of_gradient(scalar: Scalar) -> Piece | None:
    """Write a Hessian as the covariance of the very points whose mean is the gradient, if it is one.

    A scaled log-sum-exp plus affine terms has gradient ``shift + s E v`` and Hessian ``s Cov(v)``.  In terms of
    ``v' = shift + s v`` these are ``E v'`` and ``Cov(v')/s``: one hull for both.
    """
    if len(scalar.pieces) != 1 or any(term.ball for term in scalar.terms):
        return None
    (piece,) = scalar.pieces
    if piece.outer != 0 or piece.spread <= 0 or len(piece.terms) != 1 or piece.terms[0].ball:
        return None
    vertices = piece.terms[0].rows
    fixed = [term.rows[0] for term in scalar.terms if len(term.rows) == 1]
    moving = [term.rows for term in scalar.terms if len(term.rows) > 1]
    if len(moving) != 1 or not np.array_equal(moving[0], piece.spread * vertices):
        return None
    shift = np.sum(fixed, axis=0) if fixed else np.zeros(vertices.shape[1])
    mass = np.sum([term.masses.max(axis=0) for term in scalar.terms], axis=0) if fixed else scalar.terms[0].mass
    return Piece((Term(shift + moving[0], mass=mass, merged=piece.terms[0].merged),), 0.0, 1.0 / piece.spread)


def hull_of(scalars: Sequence[Scalar]) -> Term:
    """Return one hull that contains every convex combination of the scalars' gradients."""
    vertices, masses, merged = [], [], 0
    for scalar in {tuple(map(id, scalar.terms)): scalar for scalar in scalars}.values():  # the same ones once
        if len(scalar.terms) > 1 or any(term.mass is not None for term in scalar.terms):
            masses.append(np.sum([term.masses.max(axis=0) for term in scalar.terms], axis=0))
        sums = np.zeros((1, scalar.terms[0].rows.shape[1])) if scalar.terms else None
        for term in scalar.terms:
            if term.ball or sums is None or len(sums) * len(term.rows) > LARGEST_HULL:
                raise MissingRule(
                    "a maximum or log-sum-exp over terms whose gradients are not a small polytope",
                    None,
                    "take it over affine expressions, or over sums of few simple terms",
                )
            sums = (sums[:, None, :] + term.rows[None, :, :]).reshape(-1, term.rows.shape[1])
        if sums is not None:
            vertices.append(sums)
            merged += math.prod(len(term.rows) + term.merged for term in scalar.terms) - len(sums)
        else:
            vertices.append(np.zeros((1, 0)))
    width = max(v.shape[1] for v in vertices)
    rows = np.concatenate([v if v.shape[1] == width else np.zeros((1, width)) for v in vertices])
    return merged_hull(rows, np.max(masses, axis=0) if masses else None, merged)


def pieces_of(scalars: Sequence[Scalar]) -> tuple[Piece, ...]:
    """Return pieces whose bounds hold for every convex combination of the scalars' Hessians: all of them."""
    return tuple(piece for scalar in scalars for piece in scalar.pieces)


def merged_hull(rows: Array, mass: Array | None, merged: int) -> Term:
    """Leave out repeated rows, keeping the order of first appearance, and count them; 0 is exact if nothing was added up."""
    seen: dict[bytes, int] = {}
    for k, row in enumerate(rows + 0.0):  # -0 is 0
        seen.setdefault(row.tobytes(), k)
    exact = np.count_nonzero(~rows.any(axis=1)) - 1 if mass is None else 0
    return Term(rows[list(seen.values())], mass=mass, merged=merged + len(rows) - len(seen) - max(int(exact), 0))
