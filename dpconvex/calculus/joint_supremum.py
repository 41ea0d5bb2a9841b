"""The joint supremum: one record's gradient and curvature are not extreme at the same parameters.

Objective perturbation costs ``sup [beta ||g - g'|| + log det(I + H/mu)]``, with g, H of one record at one theta.  Bounding the
two parts apart is always valid.  Where the loss has a known shape the sum is bounded directly, which can make curvature free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from dpconvex.calculus.curvature import hull, rank_bound, trace_bound
from dpconvex.calculus.gradient_norms import gradient_bound
from dpconvex.calculus.gram import Gram
from dpconvex.core.abstract_values import Piece, Scalar, Term, covariance_of_gradient
from dpconvex.core.intervals import Interval

Array = NDArray[np.float64]

# Relative slack for rounding, as for every constant of an analysis.
SLACK = 1 + 1e-11
# Stretches of the angle between the entries of a norm and those that do not move.
ANGLES = 400
# Halvings of the interval that holds a maximum; what is left of it is bounded by a tangent.
HALVINGS = 60


@dataclass(frozen=True, eq=False)
class Joint:
    """A loss whose gradient and curvature are bounded together.

    Attributes
    ----------
    name : str
        Which rule applies.
    """

    name: str

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Bound ``sup [beta ||g|| + log det(I + H/mu)]`` over one record and all theta."""
        raise TypeError("Joint is abstract")


@dataclass(frozen=True, eq=False)
class LogisticJoint(Joint):
    """``scale * log(1 + exp(m))`` of one affine leaf with rows no longer than `radius`.

    With slope s in [low, high] the gradient has norm ``scale s R`` and the only eigenvalue is ``scale s (1-s) R^2``.  The sum
    is concave in s (a logarithm of a positive concave function), so the largest value on [low, high] is where its derivative
    ``beta c R + c q (1 - 2s)/(1 + c q s(1-s))``, q = R^2/mu, changes sign: at a root of a quadratic, or at an end.
    If R^2/mu <= beta R it is at s = 1: curvature is free.
    """

    radius: float
    scale: float
    low: float
    high: float

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Evaluate at the ends and at the root of the derivative."""
        a, q = beta * self.scale * self.radius, self.scale * self.radius**2 / mu
        points = [self.low, self.high]
        if q > 0:
            # a (1 + q s - q s^2) + q (1 - 2 s) = 0
            roots = np.roots([-a * q, a * q - 2 * q, a + q])
            points += [float(r.real) for r in roots if abs(r.imag) == 0 and self.low < r.real < self.high]
        return max(a * s + float(np.log1p(q * s * (1 - s))) for s in points)


@dataclass(frozen=True, eq=False)
class SoftmaxJoint(Joint):
    """``scale * log-sum-exp`` of affine leaves, up to an affine term.

    With softmax weights p over vertices v_j, the gradient is ``scale * E v`` and the Hessian ``scale * Cov(v)``.  For any m > 0,
    ``||Ev|| <= m/2 + ||Ev||^2/(2m)`` and ``log det(I + H/mu) <= tr(H)/mu``, so the sum is at most

        beta scale m/2 + max_p [(scale/mu) E||v||^2 - (scale/mu - beta scale/(2m)) ||Ev||^2],

    a concave maximisation.  With m the longest vertex M it equals ``beta scale M`` once ``beta mu >= 2 M``: curvature is free
    (for a softmax on the ball of radius R, M = sqrt(2) R).
    """

    term: Term
    scale: float
    gram: Gram

    @property
    def vertices(self) -> Array:
        """The points v_j, shape (k, generators)."""
        return self.term.rows

    @cached_property
    def longest(self) -> float:
        """Bound M on the length of every vertex."""
        return float(np.sqrt(self.gram.squared_norms(self.vertices).max())) + self.gram.term_slack([self.term])

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Minimise the bound over m, down to `enough`."""
        longest, term = self.longest, self.term

        def bound(m: float) -> float:
            piece = Piece((term,), beta * self.scale / (2 * m), self.scale / mu)
            return beta * self.scale * m / 2 + trace_bound(piece, self.gram, longest)

        if beta * mu >= 2 * longest:
            return beta * self.scale * longest
        first = bound(longest)
        if first <= enough:
            return first
        found = minimize_scalar(bound, bounds=(0.2 * longest, longest), method="bounded", options={"maxiter": 8})
        return float(min(first, found.fun))


@dataclass(frozen=True, eq=False)
class HingeJoint(Joint):
    """A smooth function of one variable, of slope at most `lead`, of a log-sum-exp of affine leaves.

    The gradient is at most `lead` times the mean g of points a, and the Hessian at most ``outer g g' + spread Cov(a)`` with the
    same weights: where the points spread, their mean is short.

    Attributes
    ----------
    lead, outer, spread : float
    longest : float
        Bound M on the norm of the points.
    variance : float
        Bound on the trace of the covariance.
    rank : int
        Bound r on its rank.
    """

    lead: float
    outer: float
    spread: float
    longest: float
    variance: float
    rank: int

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Maximise over the trace of the covariance, of which this is a concave function; end with a tangent."""
        weight, square, r = beta * self.lead, self.longest**2, self.rank
        o, s = self.outer * SLACK, self.spread * SLACK

        def value(v: float) -> float:
            left = max(square - v, 0.0)
            return weight * math.sqrt(left) + r * math.log1p(s * v / (r * mu)) + math.log1p(o * left / mu)

        def slope(v: float) -> float:
            left = max(square - v, 0.0)
            steep = 0.0 if weight == 0 else -math.inf if left == 0 else -weight / (2 * math.sqrt(left))
            return steep + s / (mu + s * v / r) - o / (mu + o * left)

        low, high = 0.0, min(self.variance, square)
        if slope(low) <= 0:
            return value(low)
        if slope(high) >= 0:
            return value(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) > 0 else (low, middle)
        return value(low) + slope(low) * (high - low)


@dataclass(frozen=True, eq=False)
class NormJoint(Joint):
    """``scale`` times the norm of affine entries m, of `entries` independent directions, and of others that do not move.

    With the angle a of ``(m, c')`` to the entries that do not move, of norm c or more, the gradient has norm ``scale R sin a`` at
    most, and the Hessian the eigenvalues ``scale R^2 / c`` times ``cos a`` and, along the gradient, ``cos^3 a``.

    Attributes
    ----------
    radius : float
        Largest singular value R of the rows.
    scale, floor : float
    across, along : int
        How many eigenvalues there are of the first kind, and of the second.
    """

    radius: float
    scale: float
    floor: float
    across: int
    along: int

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Take the larger gradient and the larger curvature of each stretch of angles."""
        ratio, (sine, cosine) = self.scale * self.radius / mu * self.radius / self.floor, stretches()
        curvature = self.across * np.log1p(ratio * cosine) + self.along * np.log1p(ratio * cosine**3)
        return float((beta * self.scale * self.radius * sine + curvature).max())


@lru_cache(maxsize=1)
def stretches() -> tuple[Array, Array]:
    """Return the largest sine and the largest cosine of each stretch of angles from 0 to a right angle."""
    ends = np.linspace(0.0, np.pi / 2, ANGLES + 1)
    return np.append(np.sin(ends[1:-1]) * (1 + 1e-15), 1.0), np.cos(ends[:-1]) * (1 + 1e-15)


def joint_form(scalar: Scalar, gram: Gram, dimension: int) -> Joint | None:
    """Recognise a loss whose gradient and curvature can be bounded together; one record's rows span so many dimensions."""
    if scalar.kink is not None:
        return None
    if scalar.floor is not None and len(scalar.terms) == 1:
        return norm_form(scalar.terms[0], *scalar.floor, gram, dimension)
    if scalar.logit is not None:
        row, scale, low, high = scalar.logit
        radius = float(np.sqrt(gram.squared_norms(row[None, :])[0]) + gram.slack(np.abs(row)))
        return LogisticJoint("joint supremum of slope and curvature (logistic)", radius, scale, low, high)
    if scalar.lead is not None and len(scalar.pieces) == 1:
        piece = scalar.pieces[0]
        covariance = Piece(piece.terms, 0.0, 1.0)
        rank = min(rank_bound(covariance), dimension)
        if hull(piece) is not None and piece.outer > 0 and piece.spread > 0 and rank > 0:
            longest = gradient_bound(piece.terms, gram)
            name, variance = "hinge of a softmax", trace_bound(covariance, gram, longest)
            name = f"joint supremum of gradient and curvature ({name})"
            return HingeJoint(name, scalar.lead, piece.outer, piece.spread, longest, variance, rank)
    return softmax_form(scalar, gram)


def norm_form(term: Term, scale: float, floor: float, gram: Gram, dimension: int) -> NormJoint | None:
    """Recognise the norm of affine entries and of entries that do not move.  A factor of the record counts at its largest."""
    moving = term.rows[np.any(term.rows != 0, axis=1)] / scale if scale > 0 else term.rows[:0]
    if not len(moving):
        return None
    radius = gram.steepest(moving) + gram.term_slack(
        [Term(moving, True, None if term.mass is None else term.mass / scale)]
    )
    across, along = (len(moving) - 1, 1) if len(moving) <= dimension else (dimension, 0)
    return NormJoint("joint supremum of gradient and curvature (norm)", radius * SLACK, scale, floor, across, along)


def softmax_form(scalar: Scalar, gram: Gram) -> SoftmaxJoint | None:
    """Recognise a scaled log-sum-exp of affine leaves, plus affine terms."""
    own = covariance_of_gradient(scalar)
    if own is None:
        return None
    # Points v' with gradient E v' and Hessian Cov(v')/s are s times points v with gradient s E v and Hessian s Cov(v).
    scale = 1.0 / own.spread
    term = own.terms[0].scaled(Interval(1.0 / scale, 1.0 / scale))
    return SoftmaxJoint("joint supremum of gradient and curvature (softmax)", term, scale, gram)
