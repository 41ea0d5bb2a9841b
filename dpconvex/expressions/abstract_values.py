"""Bounds on the range, the gradients (in generator coordinates) and the Hessian of a scalar subexpression of a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpconvex.errors import MissingRule
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import Ends, Interval
from dpconvex.util.arrays import Array

LARGEST_HULL = 4096


@dataclass(frozen=True, eq=False)
class GradientSet:
    """A set of gradients: the convex hull of the rows or, if `ball`, all ``sum_j u_j rows_j`` with ``||u|| <= 1``."""

    rows: Array  # (k, generators)
    ball: bool = False
    # Shape (generators,), if rows are sums and terms may have cancelled: bounds the sums of the absolute terms.
    mass: Array | None = None
    # Number of dropped vertices that equal a row in floating point; in exact arithmetic they may differ.
    merged: int = 0

    @property
    def masses(self) -> Array:
        """Return bounds on the sum of the absolute terms of each row, shape (k, generators); one row for a ball."""
        size = np.abs(self.rows)
        if self.mass is not None:
            size = np.maximum(size, self.mass)
        # Cauchy-Schwarz: the weights of a ball's rows have norm at most 1.
        return np.sqrt((size**2).sum(axis=0, keepdims=True)) if self.ball else size

    def scaled(self, factor: Interval) -> GradientSet:
        mass = None if self.mass is None else self.mass * factor.size
        if self.ball:
            return GradientSet(self.rows * factor.size, True, mass)
        if factor.low == factor.high:
            return GradientSet(self.rows * factor.low, mass=mass, merged=self.merged)
        return merged_hull(np.concatenate([self.rows * factor.low, self.rows * factor.high]), mass, 2 * self.merged)


@dataclass(frozen=True, eq=False)
class HessianTerm:
    """A term ``outer * g g' + spread * Cov(a)`` of a Hessian, with g in the Minkowski sum of `terms`.

    If ``spread > 0``, `terms` is one hull with vertices a. Then g is the mean and Cov(a) the covariance, with the same weights.
    """

    terms: tuple[GradientSet, ...]
    outer: float
    spread: float = 0.0

    def scaled(self, factor: float) -> HessianTerm:
        return HessianTerm(self.terms, factor * self.outer, factor * self.spread)


class Mean(NamedTuple):
    """A joint bound: for the same weights, gradients are `lead` times the mean of `piece` or shorter, and Hessians <= `piece`."""

    lead: float
    piece: HessianTerm
    slopes: Interval | None = None

    @property
    def is_exact(self) -> bool:
        """Return whether gradients and Hessians are exactly `lead` times the mean, and the covariance of `piece`."""
        return self.slopes is None and not self.piece.outer

    def scaled(self, factor: Interval) -> Mean | None:
        if factor.low < 0 or factor.high == 0 or (self.is_exact and factor.low < factor.high):
            return None
        return Mean(factor.high * self.lead, self.piece.scaled(factor.high), self.slopes)

    def moved(self, terms: tuple[GradientSet, ...]) -> Mean | None:
        """Return the bound after affine terms are added: their gradients shift the points; None if no such bound is known."""
        if not terms:
            return self
        if not self.is_exact or any(term.ball or len(term.rows) > 1 for term in terms):
            return None
        rows = self.piece.terms[0].rows + np.sum([term.rows[0] for term in terms], axis=0) / self.lead
        mass = self.piece.terms[0].masses.max(axis=0) + np.sum([term.masses[0] for term in terms], axis=0) / self.lead
        points = GradientSet(rows, mass=mass, merged=self.piece.terms[0].merged)
        return Mean(self.lead, HessianTerm((points,), 0.0, self.piece.spread))


class NonsmoothPoint(NamedTuple):
    """The reason why a subexpression has no Lipschitz gradient, and a remedy."""

    reason: str
    expression: Expression
    remedy: str


@dataclass(frozen=True, eq=False)
class AbstractValue:
    """Bounds on a scalar subexpression: gradients are in the sum of `terms`; `sign` * Hessian <= sum(`pieces`) without a kink."""

    value: Interval
    terms: tuple[GradientSet, ...] = ()
    pieces: tuple[HessianTerm, ...] = ()
    sign: int = 1  # 1 if it is convex, -1 if concave
    kink: NonsmoothPoint | None = None
    mean: Mean | None = None
    # (s, c) if the expression is s ||(c', m)|| plus a constant: m is affine, c' has no parameters and norm at least c > 0.
    turn: tuple[float, float] | None = None
    behind: AbstractValue | None = None  # m of pos(m): an outer function of slope 0 at 0 removes the kink
    # For an entry of an array: a function that bounds the norm of the array's entries at given places, and this entry's place.
    array_norm: tuple[Callable[[list[int]], float], int] | None = None

    def __post_init__(self) -> None:
        # Drop hulls of constants: they have no generators. New ones come first.
        if self.terms and not self.terms[0].rows.shape[1]:
            object.__setattr__(self, "terms", tuple(term for term in self.terms if term.rows.shape[1]))

    @property
    def is_affine(self) -> bool:
        return not self.pieces and self.kink is None

    def __add__(self, other: AbstractValue) -> AbstractValue:
        sign = other.sign if self.is_affine else self.sign
        if not self.is_affine and not other.is_affine and self.sign != other.sign:
            raise MissingRule("a convex and a concave term are added", None, "keep every term of a loss convex")
        first, second = (other, self) if self.is_affine else (self, other)
        mean = first.mean.moved(second.terms) if first.mean and second.is_affine else None
        terms, pieces, kink = self.terms + other.terms, self.pieces + other.pieces, self.kink or other.kink
        turn = None if second.terms else first.turn
        return AbstractValue(self.value + other.value, terms, pieces, sign, kink, mean, turn)

    def scaled(self, factor: Interval) -> AbstractValue:
        size, value = factor.size, self.value * factor
        if factor.low < 0 < factor.high and not self.is_affine:
            remedy = "declare the factor's field non-negative"
            raise MissingRule("a factor that can change sign multiplies a curved term", None, remedy)
        if not size:
            return AbstractValue(value)
        terms, pieces = tuple(term.scaled(factor) for term in self.terms), tuple(p.scaled(size) for p in self.pieces)
        mean = self.mean.scaled(factor) if self.mean else None
        turn = (size * self.turn[0], self.turn[1]) if self.turn and factor.low >= 0 else None
        return AbstractValue(value, terms, pieces, self.sign if factor.high > 0 else -self.sign, self.kink, mean, turn)

    def through(
        self, value: Interval, slope: Interval, curvature: float, sign: int = 1, kink: NonsmoothPoint | None = None
    ) -> AbstractValue:
        """Compose with an outer function of one variable: the chain rule scales gradients by `slope` and adds `curvature`."""
        if (slope.low if self.sign == sign else -slope.high) < 0 and not self.is_affine:
            ends = f"[{self.value.low:.4g}, {self.value.high:.4g}]"
            remedy = "apply the function to an affine expression, or to a term of known sign"
            why = f"a curved term goes through a function that is not monotone on its range {ends}"
            raise MissingRule(why, None, remedy)
        terms, pieces = tuple(t.scaled(slope) for t in self.terms), tuple(p.scaled(slope.size) for p in self.pieces)
        own = self.mean
        if curvature == 0:
            mean = own.scaled(slope) if own else None
        elif own and own.is_exact:
            piece = HessianTerm(own.piece.terms, curvature * own.lead**2, slope.size * own.piece.spread)
            pieces, mean = (piece,), Mean(slope.size * own.lead, piece)
        else:
            pieces, mean = (*pieces, HessianTerm(self.terms, curvature)), None
        return AbstractValue(value, terms, pieces, sign, self.kink or kink, mean)


class AffineEntries(Sequence[AbstractValue]):
    """Entries of an affine leaf, created on access: a loss with many labels has very many entries."""

    def __init__(self, ends: Ends, rows: Array, length: Callable[[list[int]], float] | None) -> None:
        self.ends, self.rows, self.length = ends, rows, length
        self.made: dict[int, AbstractValue] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: Any) -> Any:
        if k not in self.made:
            array_norm = None if self.length is None else (self.length, k)
            value = Interval(*(float(end[k]) for end in self.ends))
            self.made[k] = AbstractValue(value, (GradientSet(self.rows[k][None, :]),), array_norm=array_norm)
        return self.made[k]


def hull_of(scalars: Sequence[AbstractValue]) -> GradientSet:
    """Return a hull that contains every convex combination of the scalars' gradients."""
    if isinstance(scalars, AffineEntries):
        return merged_hull(scalars.rows, None, 0)
    width = max((term.rows.shape[1] for scalar in scalars for term in scalar.terms), default=0)
    vertices, masses, merged = [], [], 0
    for scalar in {tuple(map(id, scalar.terms)): scalar for scalar in scalars}.values():  # equal terms once
        if len(scalar.terms) > 1 or any(term.mass is not None for term in scalar.terms):
            masses.append(np.sum([term.masses.max(axis=0) for term in scalar.terms], axis=0))
        count = math.prod(len(term.rows) for term in scalar.terms)
        if count > LARGEST_HULL or any(term.ball for term in scalar.terms):
            remedy = "take it over affine expressions, or over sums of few simple terms"
            why = "the gradients of the terms of a maximum or log-sum-exp are not a small polytope"
            raise MissingRule(why, None, remedy)
        vertices.append(combinations([term.rows for term in scalar.terms], width))
        merged += math.prod(len(term.rows) + term.merged for term in scalar.terms) - count
    return merged_hull(np.concatenate(vertices), np.max(masses, axis=0) if masses else None, merged)


def combinations(points: Sequence[Array], width: int) -> Array:
    """Return all sums of rows with one row from each table."""
    sums = points[0] + 0.0 if points else np.zeros((1, width))  # -0 is 0
    for rows in points[1:]:
        sums = (sums[:, None, :] + rows[None, :, :]).reshape(-1, width)
    return sums


def merged_hull(rows: Array, mass: Array | None, merged: int) -> GradientSet:
    """Return the hull of the distinct rows, in order of first appearance; `merged` counts dropped rows, except exact zeros."""
    seen: dict[bytes, int] = {}
    for k, row in enumerate(rows + 0.0):  # -0 is 0
        seen.setdefault(row.tobytes(), k)
    exact = np.count_nonzero(~rows.any(axis=1)) - 1 if mass is None else 0
    return GradientSet(rows[list(seen.values())], mass=mass, merged=merged + len(rows) - len(seen) - max(int(exact), 0))
