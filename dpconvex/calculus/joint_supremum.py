"""The joint supremum: one record's gradient and curvature are not extreme at the same parameters (docs/theory.md, section 6).

`loss` of a shape bounds ``sup [beta ||g|| + log det(I + H/mu)]`` over one record and theta, which can make curvature free.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize_scalar

from dpconvex.calculus.curvature import hull, rank_bound, trace_bound
from dpconvex.calculus.gradient_norms import gradient_bound
from dpconvex.calculus.gram import Gram
from dpconvex.core.abstract_values import Interval, Piece, Scalar, Term, covariance_of_gradient
from dpconvex.core.arrays import Array

# Relative slack for rounding, as for every constant of an analysis.
SLACK = 1 + 1e-11
# Stretches of the angle between the entries of a norm and those that do not move, and of the trace of a covariance.
STRETCHES, TRACES = 400, 8000


@dataclass(frozen=True, eq=False)
class LogisticJoint:
    """``scale * log(1 + exp(m))`` of one affine leaf with rows no longer than `radius`.

    With slope s in [low, high] the gradient has norm ``scale s R`` and the only eigenvalue is ``scale s (1-s) R^2``.  The sum
    is concave in s, so the largest value on [low, high] is at a root of its derivative, or at an end.
    """

    shape: ClassVar[str] = "logistic"
    row: Array
    radius: float
    scale: float
    low: float
    high: float

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        a, q = beta * self.scale * self.radius, self.scale * self.radius**2 / mu
        points = [self.low, self.high]
        if q > 0:  # a (1 + q s - q s^2) + q (1 - 2 s) = 0
            roots = np.roots([-a * q, a * q - 2 * q, a + q])
            points += [float(r.real) for r in roots if abs(r.imag) == 0 and self.low < r.real < self.high]
        return max(a * s + float(np.log1p(q * s * (1 - s))) for s in points)


@dataclass(frozen=True, eq=False)
class SoftmaxJoint:
    """``scale * log-sum-exp`` of affine leaves, up to an affine term.

    With softmax weights p over vertices v_j, the gradient is ``scale * E v`` and the Hessian ``scale * Cov(v)``.  For any m > 0,
    ``||Ev|| <= m/2 + ||Ev||^2/(2m)`` and ``log det(I + H/mu) <= tr(H)/mu``, so the sum is at most

        beta scale m/2 + max_p [(scale/mu) E||v||^2 - (scale/mu - beta scale/(2m)) ||Ev||^2],

    a concave maximisation.  With m the longest vertex M it equals ``beta scale M`` once ``beta mu >= 2 M``: curvature is free.
    """

    shape: ClassVar[str] = "softmax"
    term: Term
    scale: float
    gram: Gram

    @cached_property
    def longest(self) -> float:
        """Bound M on the length of every vertex."""
        return float(np.sqrt(self.gram.squared_norms(self.term.rows).max())) + self.gram.term_slack([self.term])

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        return self.shortest(beta, mu, enough)[1]

    def piece(self, beta: float, mu: float, m: float) -> Piece:
        return Piece((self.term,), beta * self.scale / (2 * m), self.scale / mu)

    def shortest(self, beta: float, mu: float, enough: float = -np.inf) -> tuple[float, float]:
        """Minimise the bound over m, down to `enough`; return that m, and the bound."""
        longest = self.longest

        def bound(m: float) -> float:
            return beta * self.scale * m / 2 + trace_bound(self.piece(beta, mu, m), self.gram, longest)

        if beta * mu >= 2 * longest:
            return longest, beta * self.scale * longest
        first = bound(longest)
        if first <= enough:
            return longest, first
        found = minimize_scalar(bound, bounds=(0.2 * longest, longest), method="bounded", options={"maxiter": 8})
        return (float(found.x), float(found.fun)) if found.fun < first else (longest, first)


@dataclass(frozen=True, eq=False)
class HingeJoint:
    """A smooth function of one variable, of slope at most `lead`, of a log-sum-exp of affine leaves.

    The gradient is at most `lead` times the mean g of points a no longer than `longest`, and the Hessian at most
    ``outer g g' + spread Cov(a)`` with the same weights, the covariance of trace at most `variance` and of rank at most `rank`:
    where the points spread, their mean is short.
    """

    shape: ClassVar[str] = "hinge of a softmax"
    lead: float
    outer: float
    spread: float
    longest: float
    variance: float
    rank: int

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Follow the tangent at the lower end of each stretch of the covariance's trace, of which this is a concave function."""
        square, r = self.longest**2, self.rank
        v, step = np.linspace(0.0, min(self.variance, square), TRACES, endpoint=False, retstep=True)
        left = np.maximum(square - v, np.finfo(float).tiny)
        value = beta * self.lead * np.sqrt(left) + r * np.log1p(self.spread * v / (r * mu))
        value += np.log1p(self.outer * left / mu)
        slope = self.spread / (mu + self.spread * v / r) - self.outer / (mu + self.outer * left)
        slope -= beta * self.lead / (2 * np.sqrt(left))
        return float((value + np.maximum(slope, 0.0) * step).max())


@dataclass(frozen=True, eq=False)
class NormJoint:
    """``scale`` times the norm of affine entries m, of `entries` independent directions, and of others that do not move.

    With R the largest singular value of the rows, and the angle a of ``(m, c')`` to the entries that do not move, of norm c
    (`floor`) or more, the gradient has norm ``scale R sin a`` at most, and the Hessian eigenvalues ``scale R^2 / c`` times
    ``cos a``, `across` times, and ``cos^3 a``, `along` the gradient.
    """

    shape: ClassVar[str] = "norm"
    radius: float
    scale: float
    floor: float
    across: int
    along: int

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Take the larger gradient and the larger curvature of each stretch of angles."""
        ends = np.linspace(0.0, np.pi / 2, STRETCHES + 1)
        sine, cosine = np.append(np.sin(ends[1:-1]) * (1 + 1e-15), 1.0), np.cos(ends[:-1]) * (1 + 1e-15)
        ratio = self.scale * self.radius / mu * self.radius / self.floor
        curvature = self.across * np.log1p(ratio * cosine) + self.along * np.log1p(ratio * cosine**3)
        return float((beta * self.scale * self.radius * sine + curvature).max())


Joint = LogisticJoint | SoftmaxJoint | HingeJoint | NormJoint


def joint_form(scalar: Scalar, gram: Gram, dimension: int) -> Joint | None:
    """Recognise a loss whose gradient and curvature can be bounded together; one record's rows span so many dimensions."""
    if scalar.kink is not None:
        return None
    name, *known = scalar.shape or ("",)
    if name == "norm" and len(scalar.terms) == 1:
        return norm_form(scalar.terms[0], known[0], known[1], gram, dimension)
    if name == "logistic":
        scale, row, low, high = known
        radius = math.sqrt(gram.squared_norms(row[None, :])[0]) + float(gram.slack(np.abs(row)))
        return LogisticJoint(row, radius, scale, low, high)
    if name == "hinge" and len(scalar.pieces) == 1:
        piece = scalar.pieces[0]
        covariance = Piece(piece.terms, 0.0, 1.0)
        rank = min(rank_bound(covariance), dimension)
        if hull(piece) is not None and piece.outer > 0 and piece.spread > 0 and rank > 0:
            longest = gradient_bound(piece.terms, gram)
            bends = piece.outer * SLACK, piece.spread * SLACK
            return HingeJoint(known[0], *bends, longest, trace_bound(covariance, gram, longest), rank)
    own = covariance_of_gradient(scalar)
    if own is None:
        return None
    # Points v' with gradient E v' and Hessian Cov(v')/s are s times points v with gradient s E v and Hessian s Cov(v).
    return SoftmaxJoint(own.terms[0].scaled(Interval(own.spread, own.spread)), 1.0 / own.spread, gram)


def norm_form(term: Term, scale: float, floor: float, gram: Gram, dimension: int) -> NormJoint | None:
    """Recognise the norm of affine entries and of entries that do not move.  A factor of the record counts at its largest."""
    moving = term.rows[np.any(term.rows != 0, axis=1)] / scale if scale > 0 else term.rows[:0]
    if not len(moving):
        return None
    mass = None if term.mass is None else term.mass / scale
    radius = gram.steepest(moving) + gram.term_slack([Term(moving, True, mass)])
    across, along = (len(moving) - 1, 1) if len(moving) <= dimension else (dimension, 0)
    return NormJoint(radius * SLACK, scale, floor, across, along)
