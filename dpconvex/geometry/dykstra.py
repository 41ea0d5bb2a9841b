"""Intersections of sets with a projection each: Dykstra's method with extrapolation, certified by its own corrections."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotConverged
from dpconvex.geometry.convex_sets import UNIT, Piece, Slack, Warm
from dpconvex.geometry.cuts import places

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# What rounding may move a point of an intersection, relative to its size and the root of its dimension.
PLANNED = 4e-14
QUICK, SWEEPS, MEMORY, PATIENCE = 120, 6000, 8, 12
SAMPLES = 10
# Above so many coordinates a sweep takes milliseconds, and multipliers of the constraints are found sooner.
MOST = 400
# Corrections that are so many times as long as the set is wide take more sweeps than there are.
FAR = 1e6


@dataclass(frozen=True, eq=False)
class Intersection(Piece):
    """Sets of which each has a projection.

    `inner` is a point of the last one with a ball about it in each of the others, and no point has a norm above `size`.
    Dykstra's method (J. Boyle & R. Dykstra 1986) keeps a correction for each set: ``x - sum(corrections)`` tends to the
    projection, and every correction is normal to its set at the point where it was made, which bounds the distance
    (docs/theory.md, section 17).
    """

    pieces: tuple[Piece, ...]
    inner: Array
    ball: float
    size: float
    # The corrections of the last projection, where the next one begins: they change how fast an answer is found.
    _last: Warm = field(default_factory=Warm, repr=False)

    @property
    def iterates(self) -> bool:
        """It does."""
        return True

    @cached_property
    def parts(self) -> list[tuple[Piece, Indices]]:
        """Each piece and where its coordinates stand."""
        return [(piece, places(piece.coordinates, self.coordinates)) for piece in self.pieces]

    def sweep(self, x: Array, corrections: Array) -> tuple[Array, Array]:
        """Project on every set in turn: the last point, and new corrections, shape (k, dim)."""
        z, fresh = x - corrections.sum(axis=0), np.zeros_like(corrections)
        for k, (piece, place) in enumerate(self.parts):
            before = z[place] + corrections[k, place]
            z = z + corrections[k]
            z[place] = piece.project(before)
            fresh[k, place] = before - z[place]
        return z, fresh

    def solve(self, x: Array) -> tuple[Array, Array]:
        """Return the projection and the corrections: by Anderson's extrapolation, and where that goes astray, by Nesterov's."""
        scale = float(np.linalg.norm(x) + np.linalg.norm(self.inner) + 1e-290)
        if scale > FAR * self.norm_bound():
            raise NotConverged(f"the projection on {self.text} is not searched for from {scale:.3g} away.")
        cold = np.zeros((len(self.parts), len(x)))
        warm = self._last.get("corrections", cold)
        for method, start, sweeps in (
            (self.anderson, warm, QUICK),
            (self.nesterov, warm, SWEEPS // 4),
            (self.nesterov, cold, SWEEPS),
        ):
            found, left = method(x, start, sweeps, 32 * UNIT * scale)
            if left <= 1e-11 * scale:
                self._last["corrections"] = found
                return self.sweep(x, found)[0], found
        raise NotConverged(f"the projection on {self.text} was not found in {SWEEPS} sweeps.")

    def nearby(self, x: Array) -> Array:
        """Return a point near the projection."""
        cold = np.zeros((len(self.parts), len(x)))
        return self.sweep(x, self.anderson(x, cold, QUICK, 1e-4 * float(np.linalg.norm(x)))[0])[0]

    def anderson(self, x: Array, now: Array, sweeps: int, enough: float) -> tuple[Array, float]:
        """Combine sweeps so that what they move would cancel (D. Anderson, J. ACM 1965); the best corrections, and their move."""
        past: list[tuple[Array, Array]] = []
        best, least, stalled = now, np.inf, 0
        for _ in range(sweeps):
            fresh = self.sweep(x, now)[1]
            size = float(np.linalg.norm(fresh - now))
            stalled = 0 if size < 0.9 * least else stalled + 1
            if size < least:
                best, least = fresh, size
            if size <= enough or stalled > PATIENCE:
                break
            past = [*past[-MEMORY:], (now.ravel(), (fresh - now).ravel())]
            now = fresh if len(past) < 2 else extrapolated(past).reshape(now.shape)
        return best, least

    def nesterov(self, x: Array, now: Array, sweeps: int, enough: float) -> tuple[Array, float]:
        """Extrapolate with momentum, begun anew whenever it points against the move (B. O'Donoghue & E. Candes 2015)."""
        best, least, stalled, before, momentum = now, np.inf, 0, now, 1.0
        for _ in range(sweeps):
            fresh = self.sweep(x, now)[1]
            size = float(np.linalg.norm(fresh - now))
            stalled = 0 if size < 0.99 * least else stalled + 1
            if size < least:
                best, least = fresh, size
            if size <= enough or (stalled > 10 * PATIENCE and least <= 1e-11 * enough / (32 * UNIT)):
                break
            following = (1.0 + math.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            if float(np.sum((now - fresh) * (fresh - before))) > 0:
                now, momentum = fresh, 1.0
            else:
                now, momentum = fresh + (momentum - 1.0) / following * (fresh - before), following
            before = fresh
        return best, least

    def project(self, x: Array) -> Array:
        """Sweep until nothing moves; a point of all sets comes back unchanged."""
        if all(np.array_equal(piece.project(x[place]), x[place]) for piece, place in self.parts):
            return x
        return self.solve(x)[0]

    def norm_bound(self) -> float:
        """Return the size."""
        return self.size

    def depth(self, x: Array) -> float:
        """Return that in the set that is nearest."""
        return min(piece.depth(x[place]) for piece, place in self.parts)

    def bounds(self) -> tuple[Array, Array]:
        """Intersect those of the pieces."""
        lower, upper = super().bounds()
        for piece, place in self.parts:
            below, above = piece.bounds()
            lower[place], upper[place] = np.maximum(lower[place], below), np.minimum(upper[place], above)
        return lower, upper

    def error(self, x: Array) -> float:
        """Bound the distance from the exact projection by what the variational inequality misses."""
        slack, p = self.inequality(x), self.project(x)
        gamma = slack.gap + (float(np.linalg.norm(x - p)) + slack.away) * slack.away
        return (slack.slope + math.sqrt(slack.slope**2 + 4 * gamma)) / 2 + slack.away

    def inequality(self, x: Array) -> Slack:
        """Add up the corrections, each of which is normal to its set at a known point."""
        p, corrections = self.project(x), self.solve(x)[1]
        z, total = x - corrections.sum(axis=0), np.zeros(len(x))
        gap, own, outside = 0.0, 0.0, 0.0
        for k, (piece, place) in enumerate(self.parts):
            before = z[place] + corrections[k, place]
            z = z + corrections[k]
            z[place] = piece.project(before)
            normal, apart = before - z[place], z[place] - p[place]
            total[place] += normal
            eta = piece.error(before) + 4 * UNIT * float(np.linalg.norm(before))
            length, distance = float(np.linalg.norm(normal)), float(np.linalg.norm(apart))
            gap += max(float(normal @ apart), 0.0) + eta * (length + distance + eta)
            gap += (len(place) + 4) * UNIT * length * distance
            own += eta
            # A point of the other sets is as near as the ball in them lets it be.
            outside = max(outside, float(np.linalg.norm(piece.project(p[place]) - p[place])) + piece.error(p[place]))
        missed = outside + own
        away = own + missed / (missed + self.ball) * (float(np.linalg.norm(p - self.inner)) + missed) + missed
        size = float(np.linalg.norm(x) + np.linalg.norm(p) + np.abs(total).max())
        slope = float(np.linalg.norm(p - x + total)) + own + 8 * len(self.parts) * UNIT * size
        return Slack(gap, slope, away)

    def largest_error(self, norm: float) -> float:
        """What the certificate reaches where the sets have a common interior: a share of the move and of the size of the set."""
        return math.sqrt(self.planned(norm) * (norm + float(np.linalg.norm(self.inner)))) + self.planned(norm)

    def largest_inequality(self, norm: float, move: float) -> Slack:
        """Bound the same as planned: a share of the size of the set, for each unit of the move."""
        planned = self.planned(norm)
        return Slack(planned * move, planned, planned)

    def planned(self, norm: float) -> float:
        """Return what a point may be outside of a set by rounding, generously."""
        size = min(norm, self.norm_bound()) + float(np.linalg.norm(self.inner))
        return math.sqrt(len(self.coordinates)) * (PLANNED * size * (1 + size / self.ball) + 512 * UNIT * norm)


def extrapolated(past: list[tuple[Array, Array]]) -> Array:
    """Combine points so that their moves come closest to 0."""
    points, moves = (np.array(part) for part in zip(*past, strict=True))
    share = np.linalg.lstsq((moves[1:] - moves[:-1]).T, moves[-1], rcond=1e-12)[0]
    return np.asarray(points[-1] + moves[-1] - share @ (points[1:] - points[:-1] + moves[1:] - moves[:-1]))


def intersection(coordinates: Indices, text: str, pieces: tuple[Piece, ...], size: float) -> Intersection | None:
    """Make an intersection, with a point inside of it as the mean of projections; None if none is found."""
    n = len(coordinates)
    if n > MOST:
        return None
    rng = np.random.default_rng(0)
    rough = Intersection(coordinates, text, pieces, np.zeros(n), 0.0, size)
    start = rough.sweep(np.zeros(n), np.zeros((len(pieces), n)))[0]
    scale = 1.0 + float(np.abs(start).max(initial=0.0))
    points = [start + scale * 4.0 ** (k % 4 - 1) * rng.normal(size=n) for k in range(SAMPLES)]
    for exact in (False, True):  # points near the projections serve as well, where there is room
        try:
            found = [rough.solve(x)[0] if exact else rough.nearby(x) for x in points]
        except NotConverged:
            return None
        inner = np.mean(found, axis=0)
        *others, (last, place) = rough.parts
        inner[place] = last.project(inner[place])
        ball = min((piece.depth(inner[where]) for piece, where in others), default=0.0)
        ball = min(ball, 1.0) * (1 - 1e-9) - last.error(inner[place]) - 1e-14 * scale
        if ball > (1e-9 if exact else 1e-5) * scale:
            return Intersection(coordinates, text, pieces, inner, ball, size)
    return None
