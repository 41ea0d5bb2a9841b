"""The joint supremum: one record's gradient and curvature are not extreme at the same parameters (docs/theory.md, section 6).

`loss` of a shape bounds ``sup [beta ||g|| + log det(I + H/mu)]`` over one record and theta, which can make curvature free.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dpconvex.calculus.curvature import rank_bound, trace_bound, widest
from dpconvex.calculus.gradient_norms import Gradients
from dpconvex.calculus.gram import Gram
from dpconvex.core.abstract_values import Interval, Mean, Piece, Scalar, Term

SLACK = 1 + 1e-11  # Relative slack for rounding, as for every constant of an analysis
STRETCHES = 400  # Stretches of the angle between the entries of a norm and those that do not move
# Rounds of touching again, and the least square of a mean there, of that of the longest point.
ROUNDS, TINY = 2, 1e-12
# Where tangents touch: at a length of gradients, an eigenvalue of a covariance and a square, both over mu.
Touch = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class MeanJoint:
    """Gradients of `lead` times the mean g of points a, or shorter, with Hessians below ``outer g g' + spread Cov(a)``.

    Norm and logarithms are below their tangents, wherever these touch, and what is left is the trace of a piece.
    """

    mean: Mean
    gram: Gram
    longest: float
    variance: float
    rank: int

    def loss(self, beta: float, mu: float) -> float:
        return self.touching(beta, mu)[0]

    def touch(self, mu: float, square: float, variance: float) -> Touch:
        """Touch at a mean of that square, and at a covariance of that trace that is alike in all directions."""
        piece = self.mean.piece
        return math.sqrt(square), piece.spread * variance / (self.rank * mu), piece.outer * square / mu

    def left(self, beta: float, mu: float, touch: Touch) -> Piece:
        """Return what the tangents leave."""
        piece, (m, t, u) = self.mean.piece, touch
        outer = beta * self.mean.lead / (2 * m) + piece.outer / (mu * (1 + u))
        return Piece(piece.terms, outer, piece.spread / (mu * (1 + t)))

    def bound(self, beta: float, mu: float, touch: Touch) -> tuple[float, Touch]:
        m, t, u = touch
        fixed = beta * self.mean.lead * m / 2 + self.rank * (math.log1p(t) - t / (1 + t)) + math.log1p(u) - u / (1 + u)
        return fixed + trace_bound(self.left(beta, mu, touch), self.gram, self.longest), touch

    def touching(self, beta: float, mu: float) -> tuple[float, Touch]:
        """Return a sharp bound, and where its tangents touch.

        If all points were longest, the bound would be a concave function of the covariance's trace: it is maximised.  Where what
        is left still grows with that trace, tangents touch again for the weights of the points that it is largest for.
        """
        if self.mean.slopes is not None:
            return self.logistic(beta, mu, self.mean.slopes)

        def even(variance: float) -> Touch:
            return self.touch(mu, self.longest**2 - variance, variance)

        def slope(variance: float) -> float:
            left = self.left(beta, mu, even(variance))
            return left.spread - left.outer

        most = min(self.variance, self.longest**2 * (1 - 1e-6))
        if slope(0.0) <= 0:
            return self.bound(beta, mu, even(0.0))
        if slope(most) < 0:
            return self.bound(beta, mu, even(brentq(slope, 0.0, most, xtol=1e-13 * most) * (1 + 1e-12)))
        best, rows = self.bound(beta, mu, even(most)), self.mean.piece.terms[0].rows
        for _ in range(ROUNDS):
            weights = widest(self.left(beta, mu, best[1]), rows, self.gram)[1]
            *squares, square = self.gram.squared_norms(np.vstack([rows, weights @ rows]))
            again = self.touch(mu, max(square, TINY * self.longest**2), max(weights @ squares - square, 0.0))
            best = min(best, self.bound(beta, mu, again))
        return best

    def logistic(self, beta: float, mu: float, slopes: Interval) -> tuple[float, Touch]:
        """Touch at the slope s where the concave ``a s + log(1 + q s (1 - s))`` is largest."""
        a, q = beta * self.mean.lead * self.longest, self.mean.lead * self.longest**2 / mu
        k = 1 / max(q, 1e-300) + 0.25
        s = min(max(0.5 + a * k / (1 + math.hypot(1.0, a * math.sqrt(k))), slopes.low), slopes.high)
        t = q * s * (1 - s)
        return a * s + math.log1p(t), (s * self.longest or 1.0, t, 0.0)


@dataclass(frozen=True, eq=False)
class NormJoint:
    """``scale`` times the norm of affine entries m, of `entries` independent directions, and of others that do not move.

    With R the largest singular value of the rows, and the angle a of ``(m, c')`` to the entries that do not move, of norm c
    (`floor`) or more, the gradient has norm ``scale R sin a`` at most, and the Hessian eigenvalues ``scale R^2 / c`` times
    ``cos a``, `across` times, and ``cos^3 a``, `along` the gradient.
    """

    radius: float
    scale: float
    floor: float
    across: int
    along: int

    def loss(self, beta: float, mu: float) -> float:
        """Take the larger gradient and the larger curvature of each stretch of angles."""
        ends = np.linspace(0.0, np.pi / 2, STRETCHES + 1)
        sine, cosine = np.append(np.sin(ends[1:-1]) * (1 + 1e-15), 1.0), np.cos(ends[:-1]) * (1 + 1e-15)
        ratio = self.scale * self.radius / mu * self.radius / self.floor
        curvature = self.across * np.log1p(ratio * cosine) + self.along * np.log1p(ratio * cosine**3)
        return float((beta * self.scale * self.radius * sine + curvature).max())


Joint = MeanJoint | NormJoint


def joint_form(scalar: Scalar, gram: Gram, dimension: int) -> Joint | None:
    """Recognise a loss whose gradient and curvature can be bounded together; one record's rows span so many dimensions."""
    if scalar.kink is not None:
        return None
    if scalar.turn is not None:
        return norm_form(scalar.terms[0], *scalar.turn, gram, dimension)
    if scalar.mean is None:
        return None
    covariance = Piece(scalar.mean.piece.terms, 0.0, 1.0)
    longest, rank = Gradients(covariance.terms, gram).bound, min(rank_bound(covariance), dimension)
    variance = trace_bound(covariance, gram, longest)
    return MeanJoint(scalar.mean, gram, longest, variance, rank) if rank and longest > 0 else None


def norm_form(term: Term, scale: float, floor: float, gram: Gram, dimension: int) -> NormJoint | None:
    """Recognise the norm of affine entries and of entries that do not move.  A factor of the record counts at its largest."""
    moving = term.rows[np.any(term.rows != 0, axis=1)] / scale if scale > 0 else term.rows[:0]
    if not len(moving):
        return None
    mass = None if term.mass is None else term.mass / scale
    radius = gram.steepest(moving) + gram.term_slack([Term(moving, True, mass)])
    across, along = (len(moving) - 1, 1) if len(moving) <= dimension else (dimension, 0)
    return NormJoint(radius * SLACK, scale, floor, across, along)
