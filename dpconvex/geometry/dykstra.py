"""Intersections of sets with a projection each: Dykstra's method with extrapolation, certified by its own corrections."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotConverged
from dpconvex.geometry.convex_sets import UNIT, Piece
from dpconvex.geometry.cuts import places

__all__ = ["Intersection", "intersection"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# The certificate of an intersection is a square root of rounding.
PLANNED = 2e-7
SWEEPS, MEMORY = 4000, 8
SAMPLES = 24


@dataclass(frozen=True, eq=False)
class Intersection(Piece):
    """Sets of which each has a projection; `inner` is a point of the last one with a ball about it in each of the others.

    Dykstra's method (J. Boyle & R. Dykstra 1986) keeps a correction for each set: ``x - sum(corrections)`` tends to the projection,
    and every correction is normal to its set at the point where it was made, which bounds the distance (docs/theory.md, section 16).
    """

    pieces: tuple[Piece, ...]
    inner: Array
    ball: float
    # The corrections of the last projection, where the next one begins: they change how fast an answer is found.
    _last: dict[str, Array] = field(default_factory=dict, repr=False)

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
        """Return the projection and the corrections, by extrapolation (D. Anderson, J. ACM 1965) of sweeps."""
        scale = float(np.linalg.norm(x) + np.linalg.norm(self.inner) + 1e-290)
        now = self._last.get("corrections", np.zeros((len(self.parts), len(x))))
        past: list[tuple[Array, Array]] = []
        best, smallest = now, np.inf
        for _ in range(SWEEPS):
            z, fresh = self.sweep(x, now)
            move = fresh - now
            size = float(np.linalg.norm(move))
            if size <= 8 * UNIT * scale:
                break
            if size > 2 * smallest:  # the extrapolation went astray
                past, now, smallest = [], best, np.inf
                continue
            best, smallest = fresh, min(size, smallest)
            past = [*past[-MEMORY:], (now.ravel(), move.ravel())]
            now = fresh if len(past) < 2 else extrapolated(past).reshape(now.shape)
        else:
            if smallest > 1e-10 * scale:
                raise NotConverged(f"the projection on {self.text} was not found in {SWEEPS} sweeps.")
        self._last["corrections"] = fresh
        return z, fresh

    def project(self, x: Array) -> Array:
        """Sweep until nothing moves; a point of all sets comes back unchanged."""
        if all(np.array_equal(piece.project(x[place]), x[place]) for piece, place in self.parts):
            return x
        return self.solve(x)[0]

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
        """Bound by the corrections: each is normal to its set at a known point."""
        _, corrections = self.solve(x)
        p, fresh = self.sweep(x, corrections)
        z = x - corrections.sum(axis=0)
        gap, own, outside = 0.0, 0.0, 0.0
        for k, (piece, place) in enumerate(self.parts):
            before = z[place] + corrections[k, place]
            point = piece.project(before)
            z = z + corrections[k]
            z[place] = point
            eta = piece.error(before) + 4 * UNIT * float(np.linalg.norm(before))
            apart, length = point - p[place], float(np.linalg.norm(fresh[k]))
            gap += float(fresh[k, place] @ apart) + eta * (length + float(np.linalg.norm(apart)) + eta)
            gap += (len(place) + 4) * UNIT * length * float(np.linalg.norm(apart))
            own += eta
            if k < len(self.parts) - 1:
                outside = max(outside, float(np.linalg.norm(piece.project(p[place]) - p[place])) + piece.error(p[place]))
        missed = outside + own
        share = missed / (missed + self.ball)
        away = own + share * (float(np.linalg.norm(p - self.inner)) + own)
        room = 8 * len(self.parts) * UNIT * float(np.linalg.norm(x) + np.abs(fresh).sum(axis=0).max() + np.linalg.norm(p))
        g = float(np.linalg.norm(p - x + fresh.sum(axis=0))) + own + room
        gamma = max(gap, 0.0) + (float(np.linalg.norm(x - p)) + away) * away
        # One sweep more than `project` makes moves by as much as it says.
        moved = float(np.linalg.norm(p - self.project(x)))
        return (g + math.sqrt(g * g + 4 * gamma)) / 2 + away + moved

    def largest_error(self, norm: float) -> float:
        """What the certificate reaches where the sets have a common interior."""
        return PLANNED * (norm + float(np.linalg.norm(self.inner)))


def extrapolated(past: list[tuple[Array, Array]]) -> Array:
    """Combine points so that their moves come closest to 0."""
    points, moves = (np.array(part) for part in zip(*past, strict=True))
    share = np.linalg.lstsq((moves[1:] - moves[:-1]).T, moves[-1], rcond=1e-12)[0]
    return np.asarray(points[-1] + moves[-1] - share @ (points[1:] - points[:-1] + moves[1:] - moves[:-1]))


def intersection(coordinates: Indices, text: str, pieces: tuple[Piece, ...]) -> Intersection | None:
    """Make an intersection, with a point inside of it as the mean of projections; None if none is found."""
    n = len(coordinates)
    rng = np.random.default_rng(0)
    rough = Intersection(coordinates, text, pieces, np.zeros(n), 0.0)
    start = rough.sweep(np.zeros(n), np.zeros((len(pieces), n)))[0]
    scale = 1.0 + float(np.abs(start).max(initial=0.0))
    try:
        found = [rough.solve(start + scale * 4.0 ** (k % 4 - 1) * rng.normal(size=n))[0] for k in range(SAMPLES)]
    except NotConverged:
        return None
    inner = np.mean(found, axis=0)
    *others, (last, place) = rough.parts
    inner[place] = last.project(inner[place])
    ball = min((piece.depth(inner[where]) for piece, where in others), default=0.0)
    ball = min(ball, 1.0) * (1 - 1e-9) - last.error(inner[place]) - 1e-14 * scale
    if ball <= 1e-9 * scale:
        return None
    return Intersection(coordinates, text, pieces, inner, ball)
