"""Bounds on one record's Hessian, a sum of pieces, and on ``beta ||g|| + log det(I + H/mu)`` (docs/theory.md, section 6)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from scipy.optimize import brentq

from dpconvex.expressions.abstract_values import AbstractValue, GradientSet, HessianTerm, Mean
from dpconvex.numerics import EIGENVALUE_ROUNDING, NORM_SLACK, ROUNDED_UP, SUM_SLACK, Interval
from dpconvex.sensitivity.gradient_norms import Gradients
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.util.arrays import Array

# Steps and relative accuracy of the concave maximisation in `maximise_trace`; its result is an upper bound at every step.
FRANK_WOLFE_STEPS, FRANK_WOLFE_GAP = 500, 1e-12


@dataclass(frozen=True)
class Curvature:
    """Bounds on the Hessian of one record's loss: eigenvalue, trace and rank, and trace and rank of each piece."""

    eigenvalue: float
    trace: float
    rank: int
    parts: tuple[tuple[float, int], ...] = ()

    def log_det(self, strong_convexity: float) -> float:
        """Return a bound on ``log det(I + H/mu)``: the smaller of the bounds from the whole Hessian and from the pieces."""
        if self.trace == 0:
            return 0.0
        bounds = []
        for parts in (((self.trace, self.rank),), self.parts):
            traces, ranks = np.array(parts, dtype=float).T
            bounds.append(float((ranks * np.log1p(traces / (np.maximum(ranks, 1.0) * strong_convexity))).sum()))
        return min((bound for bound in bounds if not np.isnan(bound)), default=np.inf)


def curvature_bound(pieces: Sequence[HessianTerm], gram: GradientGram, dimension: int) -> Curvature:
    """Return bounds on the sum of `pieces`, for every record; one record's gradients span at most `dimension` dimensions."""
    pieces = [piece for piece in pieces if piece.outer > 0 or piece.spread > 0]
    traces = [trace_bound(piece, gram) * (1 + SUM_SLACK) for piece in pieces]
    ranks = [min(rank_bound(piece), dimension) for piece in pieces]
    apart = [eigenvalue_bound(piece, gram, trace) for piece, trace in zip(pieces, traces, strict=True)]
    eigenvalue, parts = float(sum(apart)), tuple(zip(traces, ranks, strict=True))
    spectrum = dominating_spectrum(pieces, gram) if len(pieces) > 1 else ()
    if spectrum:  # by Hadamard's inequality, it bounds the determinant at least as well
        eigenvalue, parts = min(eigenvalue, spectrum[0]), tuple((value, 1) for value in spectrum)
    return Curvature(eigenvalue, float(sum(traces)), min(sum(ranks), dimension), parts)


def dominating_spectrum(pieces: Sequence[HessianTerm], gram: GradientGram) -> tuple[float, ...]:
    """Return bounds on the eigenvalues of the sum of pieces if each is a fixed rank-one matrix; () otherwise."""
    hulls = [hull_rows(piece) for piece in pieces]
    if any(rows is None or len(rows) + p.terms[0].merged != 1 for rows, p in zip(hulls, pieces, strict=True)):
        return ()
    roots = [np.sqrt(p.outer) * rows[0] for rows, p in zip(hulls, pieces, strict=True) if rows is not None]
    inner, error = gram.inner(np.stack(roots))
    values = np.maximum(np.linalg.eigvalsh(inner)[::-1], 0.0)
    # The distance of the rows from their generator coordinates adds to the square root.
    more = sum(piece.outer * (2 * gram.term_slack(piece.terms)) ** 2 for piece in pieces)
    rounded = values + len(values) * (EIGENVALUE_ROUNDING * values[0] + error)
    return tuple(((np.sqrt(rounded) + np.sqrt(more)) ** 2 * (1 + SUM_SLACK)).tolist())


def hull_rows(piece: HessianTerm) -> Array | None:
    return piece.terms[0].rows if len(piece.terms) == 1 and not piece.terms[0].ball else None


def trace_bound(
    piece: HessianTerm, gram: GradientGram, longest: float | None = None, start: Array | None = None, enough: float = 0
) -> float:
    """Return a bound on the trace of ``outer g g' + spread Cov(a)`` over all weights; below `enough` it need not be sharp."""
    largest = (Gradients(piece.terms, gram).bound if longest is None else longest) ** 2
    rows = hull_rows(piece)
    if piece.spread <= piece.outer or rows is None:
        return piece.outer * largest
    bound, _ = maximise_trace(piece, rows, gram, start, enough)
    return float(min(add_errors(bound, piece, gram), piece.spread * largest))


def maximise_trace(
    piece: HessianTerm, rows: Array, gram: GradientGram, start: Array | None = None, enough: float = 0.0
) -> tuple[float, Array]:
    """Return a bound on the trace for spread > outer, concave in the weights, and near-maximal weights, by Frank-Wolfe steps."""
    # A covariance does not depend on the origin, and differences have smaller errors.
    inner, error = gram.inner(rows if piece.outer else rows - rows[0])
    key = piece.outer, piece.spread, error, sha256(inner.tobytes()).digest()  # equal labels share it
    if key in gram.widest:
        return gram.widest[key]
    squares, excess = np.diag(inner), piece.spread - piece.outer
    weights = np.full(len(inner), 1.0 / len(inner)) if start is None else start
    best, found = np.inf, weights
    for _ in range(FRANK_WOLFE_STEPS):
        image = inner @ weights
        value = float(piece.spread * squares @ weights - excess * weights @ image)
        slope = piece.spread * squares - 2 * excess * image
        bound = value + float(slope.max() - slope @ weights)
        if bound < best:
            best, found = bound, weights
        if best - value <= FRANK_WOLFE_GAP * max(best, 1e-300):
            break
        if add_errors(best + 4 * piece.spread * error, piece, gram) <= enough:
            return float(best + 4 * piece.spread * error), found
        weights = pairwise_step(weights, slope, inner, excess)
    gram.widest[key] = float(best + 4 * piece.spread * error), found
    return gram.widest[key]


def add_errors(bound: float, piece: HessianTerm, gram: GradientGram) -> float:
    """Return a bound, the square of a seminorm of the points, increased by the points' distance from generator coordinates."""
    more = max(piece.outer, piece.spread) * (2 * gram.term_slack(piece.terms)) ** 2
    return float((np.sqrt(max(bound, 0.0)) + np.sqrt(more)) ** 2)


def pairwise_step(weights: Array, slope: Array, inner: Array, excess: float) -> Array:
    """Return weights with mass moved from the worst used vertex to the best vertex, by exact line search."""
    to, source = int(np.argmax(slope)), int(np.argmin(np.where(weights > 0, slope, np.inf)))
    if to == source:
        return weights
    bend = 2 * excess * (inner[to, to] - 2 * inner[to, source] + inner[source, source])
    step = weights[source] if bend <= 0 else min(weights[source], (slope[to] - slope[source]) / bend)
    moved = weights.copy()
    moved[to] += step
    moved[source] -= step
    return moved


def rank_bound(piece: HessianTerm) -> int:
    """Return a bound on the rank: 1 for ``g g'``, and the number of vertices minus 1 for a covariance."""
    rows, merged = hull_rows(piece), piece.terms[0].merged if piece.terms else 0
    if piece.spread == 0 or rows is None:
        return 1 + merged
    return len(rows) + merged - 1 + (1 if piece.outer > 0 else 0)


def eigenvalue_bound(piece: HessianTerm, gram: GradientGram, trace: float) -> float:
    """Return a bound on the largest eigenvalue; for the covariance of points of diameter D, D^2/4 (Popoviciu's inequality)."""
    rows = hull_rows(piece)
    if piece.outer > 0 or rows is None:
        return trace
    inner, error = gram.inner(rows - rows[0])
    squares = np.diag(inner)
    distances = squares[:, None] + squares[None, :] - 2 * inner + 4 * error
    return min(trace, add_errors(piece.spread * float(distances.max()) / 4, piece, gram) * (1 + SUM_SLACK))


STRETCHES = 400  # Intervals of the angle in `NormJoint`
# Points of tangency: the length of a mean, and over mu, an eigenvalue of a covariance and the square of a mean.
Touch = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class MeanJoint:
    """A joint bound: gradients are `lead` times the mean g of points a, or shorter; Hessians <= ``outer g g' + spread Cov(a)``.

    Tangents bound the norm (as a root of its square) and the logarithms; their linear parts add up to the trace of a piece.
    """

    mean: Mean
    gram: GradientGram
    longest: float
    variance: float
    rank: int
    start: Array | None  # Weights of the largest variance, to start from

    def loss(self, beta: float, mu: float, enough: float = 0.0) -> float:
        return self.touching(beta, mu, enough)[0]

    def left(self, beta: float, mu: float, touch: Touch) -> HessianTerm:
        """Return the piece with a trace equal to the sum of the tangents' linear parts."""
        piece, (m, t, u) = self.mean.piece, touch
        outer = beta * self.mean.lead / (2 * m) + piece.outer / (mu * (1 + u))
        return HessianTerm(piece.terms, outer, piece.spread / (mu * (1 + t)))

    def bound(self, beta: float, mu: float, touch: Touch, enough: float = 0.0) -> tuple[float, Touch]:
        m, t, u = touch
        fixed = beta * self.mean.lead * m / 2 + self.rank * (math.log1p(t) - t / (1 + t)) + math.log1p(u) - u / (1 + u)
        left = self.left(beta, mu, touch)
        return fixed + trace_bound(left, self.gram, self.longest, self.start, enough - fixed), touch

    def touching(self, beta: float, mu: float, enough: float = 0.0) -> tuple[float, Touch]:
        """Return a sharp bound and its points of tangency, which are optimal for points of equal length."""
        if self.mean.slopes is not None:
            return self.logistic(beta, mu, self.mean.slopes)

        def even(variance: float) -> Touch:
            """Return the points of tangency for an isotropic covariance of this trace, and for the mean that it leaves."""
            piece, square = self.mean.piece, self.longest**2 - variance
            return math.sqrt(square), piece.spread * variance / (self.rank * mu), piece.outer * square / mu

        def slope(variance: float) -> float:
            left = self.left(beta, mu, even(variance))
            return left.spread - left.outer

        most = min(self.variance, self.longest**2 * (1 - 1e-6))
        if slope(0.0) <= 0:
            return self.bound(beta, mu, even(0.0), enough)
        if slope(most) < 0:
            most = brentq(slope, 0.0, most, xtol=1e-13 * most) * (1 + NORM_SLACK)
        return self.bound(beta, mu, even(most), enough)

    def logistic(self, beta: float, mu: float, slopes: Interval) -> tuple[float, Touch]:
        """Return the bound with tangents at the slope s that maximises the concave ``a s + log(1 + q s (1 - s))``."""
        a, q = beta * self.mean.lead * self.longest, self.mean.lead * self.longest**2 / mu
        k = 1 / max(q, 1e-300) + 0.25
        s = min(max(0.5 + a * k / (1 + math.hypot(1.0, a * math.sqrt(k))), slopes.low), slopes.high)
        t = q * s * (1 - s)
        return a * s + math.log1p(t), (s * self.longest or 1.0, t, 0.0)


@dataclass(frozen=True, eq=False)
class NormJoint:
    """A joint bound for ``scale ||(m, c')||``, with affine m and constant c' of norm at least c (`floor`).

    R (`radius`) is the largest singular value of the rows, and a the angle of ``(m, c')`` to ``(0, c')``.  The gradient norm is
    at most ``scale R sin a``.  Hessian eigenvalues are at most ``scale R^2 / c`` times ``cos a`` (`across` eigenvalues) and times
    ``cos^3 a`` (`along` eigenvalues, for the direction of the gradient).
    """

    radius: float
    scale: float
    floor: float
    across: int
    along: int

    def loss(self, beta: float, mu: float, enough: float = 0.0) -> float:
        """Return the largest sum, over intervals of the angle, of the largest gradient and the largest curvature."""
        ends = np.linspace(0.0, np.pi / 2, STRETCHES + 1)
        sine, cosine = np.append(np.sin(ends[1:-1]) * ROUNDED_UP, 1.0), np.cos(ends[:-1]) * ROUNDED_UP
        ratio = self.scale * self.radius / mu * self.radius / self.floor
        curvature = self.across * np.log1p(ratio * cosine) + self.along * np.log1p(ratio * cosine**3)
        return float((beta * self.scale * self.radius * sine + curvature).max())


Joint = MeanJoint | NormJoint


def joint_form(scalar: AbstractValue, gram: GradientGram, dimension: int) -> Joint | None:
    """Return a joint bound on gradient and curvature, or None; one record's rows span at most `dimension` dimensions."""
    if scalar.kink is not None:
        return None
    if scalar.turn is not None:
        return norm_form(scalar.terms[0], *scalar.turn, gram, dimension)
    if scalar.mean is None:
        return None
    covariance = HessianTerm(scalar.mean.piece.terms, 0.0, 1.0)
    longest, rank = Gradients(covariance.terms, gram).bound, min(rank_bound(covariance), dimension)
    variance = trace_bound(covariance, gram, longest)
    start = None if (rows := hull_rows(covariance)) is None else maximise_trace(covariance, rows, gram)[1]
    return MeanJoint(scalar.mean, gram, longest, variance, rank, start) if rank and longest > 0 else None


def norm_form(term: GradientSet, scale: float, floor: float, gram: GradientGram, dimension: int) -> NormJoint | None:
    """Return a joint bound for a norm of affine and constant entries, or None.  Factors of the record count at their largest."""
    moving = term.rows[np.any(term.rows != 0, axis=1)] / scale if scale > 0 else term.rows[:0]
    if not len(moving):
        return None
    mass = None if term.mass is None else term.mass / scale
    radius = gram.steepest(moving) + gram.term_slack([GradientSet(moving, True, mass)])
    across, along = (len(moving) - 1, 1) if len(moving) <= dimension else (dimension, 0)
    return NormJoint(radius * (1 + SUM_SLACK), scale, floor, across, along)
