"""Bounds on one record's Hessian: its largest eigenvalue, its trace, its rank, and log det(I + H/mu).

A Hessian is a sum of pieces (see `abstract`).  In the Loewner order it grows with the Gram matrix of the rows of `A_z`, so it
is bounded where that matrix is largest, and there it is an ordinary finite-dimensional matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.gradient_norms import gradient_bound
from dpconvex.calculus.gram import Gram
from dpconvex.core.abstract_values import Piece

Array = NDArray[np.float64]

# Steps and relative accuracy of the concave maximisation in `trace_bound`; its result is an upper bound at every step.
FRANK_WOLFE_STEPS = 500
FRANK_WOLFE_GAP = 1e-10
# Error of a computed eigenvalue, relative to the largest one and to the side of the matrix.
ROUNDING = 1e-15

# So many points have the distances of all pairs of them bounded one by one.
LARGEST_PAIRED = 12


@dataclass(frozen=True)
class Curvature:
    """Bounds on the Hessian of one record's loss.

    Attributes
    ----------
    eigenvalue : float
        Largest eigenvalue.
    trace : float
    rank : int
    parts : tuple of (float, int)
        Trace and rank of each piece.
    spectrum : tuple of float or None
        A spectrum that dominates the Hessian's, largest first, where one matrix dominates all Hessians.
    """

    eigenvalue: float
    trace: float
    rank: int
    parts: tuple[tuple[float, int], ...] = ()
    spectrum: tuple[float, ...] | None = None

    def padded(self, factor: float) -> Curvature:
        """Return the same bounds, all multiplied by a factor that covers rounding."""
        return Curvature(
            self.eigenvalue * factor,
            self.trace * factor,
            self.rank,
            tuple((trace * factor, rank) for trace, rank in self.parts),
            None if self.spectrum is None else tuple(value * factor for value in self.spectrum),
        )

    def log_det(self, strong_convexity: float) -> float:
        """Bound ``log det(I + H/mu)``: the smallest of the bounds that hold."""
        return float(LogDeterminants([self])(strong_convexity)[0])


class LogDeterminants:
    """Bounds of ``log det(I + H/mu)`` for many Hessians, as functions of mu: see `Curvature.log_det`."""

    def __init__(self, curvatures: Sequence[Curvature]) -> None:
        # Traces and ranks of the whole, of its parts, and of its spectrum; what adds nothing has rank 0.
        self._whole = table([[(c.trace, c.rank)] for c in curvatures])
        self._parts = table([list(c.parts) for c in curvatures])
        self._spectrum = table([[(value, 1) for value in c.spectrum or ()] for c in curvatures])
        self._has_parts = np.array([bool(c.parts) for c in curvatures])
        self._has_spectrum = np.array([c.spectrum is not None for c in curvatures])
        self._flat = np.array([c.trace == 0 for c in curvatures])

    def __call__(self, strong_convexity: float) -> Array:
        """Return the smallest of the bounds that hold, for each Hessian."""
        whole, parts, spectrum = (
            ranks * np.log1p(traces / (np.maximum(ranks, 1.0) * strong_convexity))
            for traces, ranks in (self._whole, self._parts, self._spectrum)
        )
        bounds = [
            whole.sum(axis=1),
            np.where(self._has_parts, parts.sum(axis=1), np.inf),
            np.where(self._has_spectrum, spectrum.sum(axis=1), np.inf),
        ]
        least = np.min(np.where(np.isnan(bounds), np.inf, bounds), axis=0)
        return np.where(self._flat, 0.0, least)


def table(rows: list[list[tuple[float, int]]]) -> tuple[Array, Array]:
    """Put lists of traces and ranks of different lengths into two arrays, filled up with zeros."""
    result = np.zeros((2, len(rows), max(map(len, rows), default=0)))
    for k, row in enumerate(rows):
        result[:, k, : len(row)] = np.array(row, dtype=float).reshape(-1, 2).T
    return result[0], result[1]


def curvature_bound(pieces: Sequence[Piece], gram: Gram, dimension: int) -> Curvature:
    """Bound the Hessian that is the sum of `pieces`, for every record, whose gradients span so many dimensions at most."""
    pieces = [piece for piece in pieces if piece.outer > 0 or piece.spread > 0]
    if not pieces:
        return Curvature(0.0, 0.0, 0)
    traces = [trace_bound(piece, gram) for piece in pieces]
    ranks = [min(rank_bound(piece), dimension) for piece in pieces]
    apart = [eigenvalue_bound(piece, gram, trace) for piece, trace in zip(pieces, traces, strict=True)]
    eigenvalue = min(sum(apart), sum(traces))
    spectrum = dominating_spectrum(pieces, gram)
    if spectrum is not None:
        eigenvalue = min(eigenvalue, spectrum[0])
    return Curvature(
        eigenvalue=float(eigenvalue),
        trace=float(sum(traces)),
        rank=int(min(sum(ranks), dimension)),
        parts=tuple(zip([float(t) for t in traces], ranks, strict=True)),
        spectrum=spectrum,
    )


def hull(piece: Piece) -> Array | None:
    if len(piece.terms) == 1 and not piece.terms[0].ball:
        return piece.terms[0].rows
    return None


def trace_bound(piece: Piece, gram: Gram, longest: float | None = None) -> float:
    """Bound the trace of ``outer g g' + spread Cov(a)``; `longest` is a bound on ``||g||``, found if not given.

    With weights p the trace is ``spread E|a|^2 + (outer - spread) |E a|^2``.  If outer >= spread this is at most
    ``outer max |a|^2``, reached at a vertex; otherwise it is concave in p, and is maximised over the simplex by Frank-Wolfe
    steps, whose linearisation is an upper bound wherever one stops.
    """
    largest = (gradient_bound(piece.terms, gram) if longest is None else longest) ** 2
    rows = hull(piece)
    if piece.spread <= piece.outer or rows is None:
        return piece.outer * largest
    if piece.outer == 0:  # a covariance does not change with the origin, and differences carry smaller errors
        rows = rows - rows[0]
    inner, error = gram.inner(rows)
    squares = np.diag(inner)
    excess = piece.spread - piece.outer
    weights = np.full(len(rows), 1.0 / len(rows))
    best = np.inf
    for _ in range(FRANK_WOLFE_STEPS):
        image = inner @ weights
        value = piece.spread * squares @ weights - excess * weights @ image
        slope = piece.spread * squares - 2 * excess * image
        best = min(best, value + float(slope.max() - slope @ weights))
        if best - value <= FRANK_WOLFE_GAP * max(best, 1e-300):
            break
        weights = pairwise_step(weights, slope, inner, excess)
    return float(min(swollen(best + 4 * piece.spread * error, [piece], gram), piece.spread * largest))


def swollen(bound: float, pieces: Sequence[Piece], gram: Gram) -> float:
    """Add what separates the points from their generator coordinates to a bound on a trace or an eigenvalue.

    Roots of both are seminorms of the points, and points no longer than e have traces of at most ``max(outer, spread) e^2``.
    """
    more = sum(max(piece.outer, piece.spread) * (2 * gram.term_slack(piece.terms)) ** 2 for piece in pieces)
    return float((np.sqrt(max(bound, 0.0)) + np.sqrt(more)) ** 2)


def pairwise_step(weights: Array, slope: Array, inner: Array, excess: float) -> Array:
    """Move weight from the worst used vertex to the best one, by exact line search."""
    to = int(np.argmax(slope))
    used = np.where(weights > 0, slope, np.inf)
    source = int(np.argmin(used))
    if to == source:
        return weights
    bend = 2 * excess * (inner[to, to] - 2 * inner[to, source] + inner[source, source])
    step = weights[source] if bend <= 0 else min(weights[source], (slope[to] - slope[source]) / bend)
    moved = weights.copy()
    moved[to] += step
    moved[source] -= step
    return moved


def rank_bound(piece: Piece) -> int:
    """Bound the rank: one for a rank-one part, one less than there are vertices for a covariance."""
    rows, merged = hull(piece), piece.terms[0].merged if piece.terms else 0
    if piece.spread == 0 or rows is None:
        return 1 + merged
    return len(rows) + merged - 1 + (1 if piece.outer > 0 else 0)


def eigenvalue_bound(piece: Piece, gram: Gram, trace: float) -> float:
    """Bound the largest eigenvalue of one piece.

    A covariance of points in a set of diameter D has eigenvalues at most D^2/4 (Popoviciu's inequality, in each direction).
    """
    rows = hull(piece)
    if piece.spread == 0 or rows is None:
        return trace
    inner, error = gram.inner(rows - rows[0])
    squares = np.diag(inner)
    distances = squares[:, None] + squares[None, :] - 2 * inner + 4 * error
    if 1 < len(rows) <= LARGEST_PAIRED:
        first, second = np.triu_indices(len(rows), 1)
        distances = np.minimum(distances.max(), gram.squared_norms(rows[first] - rows[second]))
    largest = float(gram.squared_norms(rows).max()) if piece.outer > 0 else 0.0
    common = min(piece.outer, piece.spread)
    rest = max(piece.spread - common, 0.0) * float(distances.max()) / 4 + max(piece.outer - common, 0.0) * largest
    return min(trace, swollen(common * largest + rest, [piece], gram))


def dominating_spectrum(pieces: Sequence[Piece], gram: Gram) -> tuple[float, ...] | None:
    """Return the spectrum of the sum of pieces if every one is a fixed rank-one matrix, else None."""
    rows = []
    for piece in pieces:
        vertices = hull(piece)
        if vertices is None or len(vertices) + piece.terms[0].merged != 1:
            return None
        rows.append(np.sqrt(piece.outer) * vertices[0])
    inner, error = gram.inner(np.stack(rows))
    values = np.linalg.eigvalsh(inner)[::-1]
    # Small eigenvalues carry rounding errors relative to the largest one.
    rounding = len(values) * (ROUNDING * values[0] + error) if len(values) > 1 else error
    return tuple(swollen(float(max(value, 0.0) + rounding), pieces, gram) for value in values)
