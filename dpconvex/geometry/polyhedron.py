"""Polyhedra: projections by an active-set method, certified by their multipliers (docs/theory.md, section 17)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular
from scipy.optimize import linprog

from dpconvex.errors import NotConverged, TemplateError
from dpconvex.geometry.convex_sets import UNIT, Piece, Warm

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]

PLANNED = 1e-12
# Signs of multipliers and distances from sides that rounding may have changed, relative to the numbers that they come from.
ROUNDED = 1e-12
CHANGES = 50


def exact_residuals(matrix: Array, point: tuple[Array, ...], value: Array) -> Array:
    """Return ``value - matrix @ sum(point)``, every entry exact but for one rounding (and underflow).

    Products are split into two numbers each (T. Dekker, Numer. Math. 1971), whose sum is rounded once.
    """
    found = np.empty(len(value))
    high = split(matrix)
    low = matrix - high
    terms = [value[:, None]]
    for part in point:
        top = split(part)
        rest = part - top
        product = matrix * part
        terms += [-product, -(low * rest - (((product - high * top) - low * top) - high * rest))]
    for k, row in enumerate(np.concatenate(terms, axis=1)):
        found[k] = math.fsum(row)
    return found


def split(numbers: Array) -> Array:
    """Return the leading half of the bits of each number."""
    scaled = numbers * 134217729.0
    return np.asarray(scaled - (scaled - numbers))


@dataclass(frozen=True, eq=False)
class Face:
    """A guess of what holds with equality at a projection: coordinates at a bound, and rows at one of their ends."""

    fixed: NDArray[np.int8]
    rows: NDArray[np.int8]

    def changed(self, worst: int, above: Bools) -> Face:
        """Let one equation go, or add one that is violated (counted after those that hold), from above or from below."""
        sides = np.concatenate([self.fixed, self.rows])
        place = worst % len(sides)
        sides[place] = 0 if worst < len(sides) else (1 if above[place] else -1)
        return Face(sides[: len(self.fixed)], sides[len(self.fixed) :])


@dataclass(frozen=True, eq=False)
class Polyhedron(Piece):
    """Points with ``lower <= x <= upper`` and ``least <= matrix @ x <= most``; rows have length 1.

    `inner` is a public point, and a ball of radius `ball` about it satisfies all inequalities that are no equations.
    """

    lower: Array
    upper: Array
    matrix: Array
    least: Array
    most: Array
    inner: Array
    ball: float
    # The face of the last projection, where the next one begins: it changes how fast an answer is found, and is certified.
    _last: Warm = field(default_factory=Warm, repr=False)

    @property
    def iterates(self) -> bool:
        """It does."""
        return True

    @cached_property
    def equal(self) -> Bools:
        return self.least == self.most

    def _model(self) -> Any:
        """Return the active-set method's workspace."""
        if "model" in self._last:
            return self._last["model"]
        import daqp

        model = daqp.Model()
        n = len(self.coordinates)
        ends = [np.concatenate(pair) for pair in ((self.upper, self.most), (self.lower, self.least))]
        sense = np.where(ends[0] == ends[1], 5, 0).astype(np.int32)
        limits = [np.clip(end, -1e30, 1e30) for end in ends]
        model.setup(np.eye(n), np.zeros(n), np.ascontiguousarray(self.matrix), limits[0], limits[1], sense)
        model.settings = {"primal_tol": 1e-10, "dual_tol": 1e-12, "iter_limit": 100000}
        self._last["model"] = model
        return model

    def project(self, x: Array) -> Array:
        """Try the face of the last answer, else ask the active-set method; then correct the face by the signs of multipliers."""
        return self.solve(x)[0]

    def solve(self, x: Array) -> tuple[Array, Face, Array]:
        """Return the projection, its face, and the multipliers of the rows on it."""
        if "face" in self._last:
            found = self.corrected(x, self._last["face"], 2)
            if found is not None:
                return found
        model = self._model()
        model.update(f=-x)
        _, _, status, info = model.solve()
        sides = np.sign(np.asarray(info["lam"])).astype(np.int8)
        found = self.corrected(x, Face(sides[: len(x)], sides[len(x) :]), CHANGES) if status > 0 else None
        if found is None:
            self._last.clear()  # the workspace may be of no more use
            raise NotConverged(f"the projection on {self.text} was not found (status {status}).")
        return found

    def corrected(self, x: Array, face: Face, changes: int) -> tuple[Array, Face, Array] | None:
        """Change a face until multipliers and sides have their signs; None if that takes too many changes."""
        scale = ROUNDED * float(np.linalg.norm(x) + np.linalg.norm(self.inner) + 1e-290)
        for _ in range(changes):
            p, duals, pulls = self.on_face(x, face)
            level = self.matrix @ p
            held = np.where(face.rows < 0, self.least, self.most) - level
            if np.abs(held[(face.rows != 0) | self.equal]).max(initial=0.0) > 1e3 * scale:
                return None  # no point has all these equations
            # What pulls the wrong way is let go; what is violated is added.
            wrong = np.concatenate(
                [
                    np.where(self.lower < self.upper, -pulls * face.fixed, 0.0),
                    np.where(self.equal, 0.0, -duals * face.rows),
                    np.where(face.fixed == 0, np.maximum(p - self.upper, self.lower - p), 0.0),
                    np.where(face.rows == 0, np.maximum(level - self.most, self.least - level), 0.0),
                ]
            )
            worst = int(np.argmax(wrong))
            if wrong[worst] <= scale:
                self._last["face"] = face
                return np.clip(p, self.lower, self.upper), face, duals
            face = face.changed(worst, np.concatenate([p > self.upper, level > self.most]))
        return None

    def on_face(self, x: Array, face: Face) -> tuple[Array, Array, Array]:
        """Project on the equations of a face: the point, multipliers of the rows, and of the fixed coordinates."""
        fixed = (face.fixed != 0) | (self.lower == self.upper)
        used = np.flatnonzero((face.rows != 0) | self.equal)
        p = np.where(fixed, np.where(face.fixed < 0, self.lower, self.upper), x)
        aim = np.where(face.rows < 0, self.least, self.most)[used]
        duals = np.zeros(len(self.matrix))
        if len(used) and not fixed.all():
            rows, factors = self.matrix[used], self.factors(used, ~fixed)
            correction, duals[used] = factors.change(aim - rows @ p)
            p[~fixed] += correction
            p[~fixed] += factors.change(aim - rows @ p)[0]  # what cancellation left, if x is far away
        return p, duals, np.where(fixed, x - p - self.matrix.T @ duals, 0.0)

    def factors(self, used: Indices, free: Bools) -> Factors:
        """Decompose rows on coordinates, or take the last decomposition, if it is of the same."""
        key = used.tobytes(), free.tobytes()
        if self._last.get("decomposed") != key:
            self._last["factors"] = Factors.of(self.matrix[np.ix_(used, np.flatnonzero(free))])
            self._last["decomposed"] = key
        found: Factors = self._last["factors"]
        return found

    def depth(self, x: Array) -> float:
        """Distance from the nearest side."""
        level = self.matrix @ x
        inside = [x - self.lower, self.upper - x, level - self.least, self.most - level]
        return max(float(np.min(np.concatenate(inside))), 0.0)

    def bounds(self) -> tuple[Array, Array]:
        return self.lower, self.upper

    def error(self, x: Array) -> float:
        """Bound by the multipliers, at a point that is computed with twice the digits."""
        p, face, duals = self.solve(x)
        level, scale = self.matrix @ p, float(np.linalg.norm(x) + np.linalg.norm(self.inner))
        near = 1e-11 * (scale + 1e-290)
        sides = np.where(level >= self.most - near, 1, np.where(level <= self.least + near, -1, 0))
        used = np.flatnonzero((sides != 0) | self.equal | (face.rows != 0))
        sides = np.where(sides == 0, face.rows, sides)
        free = (face.fixed == 0) & (self.lower < self.upper)
        aim = np.where(sides < 0, self.least, self.most)[used]
        rows = self.matrix[used]
        rest = np.zeros(len(p))
        if len(used) and free.any():
            rest[free] = self.factors(used, free).change(exact_residuals(rows, (p,), aim))[0]
        left = exact_residuals(rows, (p, rest), aim) if len(used) else np.zeros(0)
        # The face may have a row too many; multipliers of the wrong sign are left out.
        signed = np.where(self.equal | (duals * sides >= 0), duals, 0.0)
        pull = x - p - rest - self.matrix.T @ signed
        pull[np.where(free, False, pull * np.where(p >= self.upper, 1, -1) >= 0) | (self.lower == self.upper)] = 0.0
        room = (sum(self.matrix.shape) + 16) * UNIT
        g = float(np.linalg.norm(pull)) + room * (scale + float(np.abs(signed).sum()) + float(np.linalg.norm(p)))
        # How far the point may be from the set: its rows, and bounds that the correction passes.
        beyond = np.maximum(rest + (p - self.upper), self.lower - p - rest)
        outside = np.append(np.where(self.equal[used], np.abs(left), -left * sides[used]), beyond[free])
        missed = max(float(outside.max(initial=0.0)), 0.0) * (1 + 1e-9)
        share = missed / (missed + self.ball) if missed else 0.0
        away = missed * self.lever + 2 * share * float(np.linalg.norm(p - self.inner) + missed * self.lever)
        gap = float(np.abs(signed[used]) @ np.abs(left)) * (1 + 1e-9)
        gamma = gap + (float(np.linalg.norm(x - p)) + away) * away
        return (g + math.sqrt(g * g + 4 * gamma)) / 2 + float(np.linalg.norm(rest)) + away

    @cached_property
    def lever(self) -> float:
        """How far a point may have to move to satisfy equations that it misses by 1 each."""
        rows = self.matrix[self.equal][:, self.lower < self.upper]
        if not rows.size:
            return 1.0
        values = np.linalg.svd(rows, compute_uv=False)
        kept = values[values > 1e-10 * values[0]]
        return 1.0 + float(np.sqrt(len(rows)) / kept[-1]) * 1.001

    def largest_error(self, norm: float) -> float:
        """What the certificate reaches: rounding, and the root of what a residual that is rounded twice may hide, far from K."""
        size = norm + float(np.linalg.norm(self.inner))
        steep = self.lever + (2 * size / self.ball if self.ball else 0.0)
        return (PLANNED + 4 * UNIT * math.sqrt(steep)) * size


@dataclass(frozen=True, eq=False)
class Factors:
    """Rows in triangular form: the shortest z with ``rows @ z = aim``, and multipliers y with ``z = -rows.T @ y``."""

    q: Array
    r: Array
    order: Indices
    count: int

    @classmethod
    def of(cls, rows: Array) -> Factors:
        """Decompose rows; dependent ones get the multiplier 0."""
        q, r, order = qr(rows.T, mode="economic", pivoting=True)
        size = np.abs(np.diag(r))
        rank = int((size > 1e-10 * size[0]).sum()) if len(size) and size[0] > 0 else 0
        return cls(np.ascontiguousarray(q[:, :rank]), np.asfortranarray(r[:rank, :rank]), order[:rank], len(rows))

    def change(self, aim: Array) -> tuple[Array, Array]:
        y = np.zeros(self.count)
        if not len(self.order):
            return np.zeros(len(self.q)), y
        z = solve_triangular(self.r, aim[self.order], trans="T", check_finite=False)
        y[self.order] = -solve_triangular(self.r, z, check_finite=False)
        return self.q @ z, y


def polyhedron(
    coordinates: Indices, text: str, box: tuple[Array, Array], rows: tuple[Array, Array, Array]
) -> Polyhedron:
    """Make a polyhedron of bounds and rows (a matrix, and the least and the most of each row)."""
    matrix, least, most = rows
    length = np.linalg.norm(matrix, axis=1)
    matrix, least, most = matrix / length[:, None], least / length, most / length
    (lower, upper), (least, most) = implied((box[0], box[1]), (matrix, least, most), text)
    inner, ball = center((lower, upper), (matrix, least, most), text)
    return Polyhedron(coordinates, text, lower, upper, matrix, least, most, inner, ball)


Ends = tuple[Array, Array]


def inequalities(box: Ends, rows: tuple[Array, Array, Array]) -> tuple[Array, Array, Array, Array, Indices, Indices]:
    """Return ``A x <= b`` for all ends that are no equations, ``E x = e`` for those that are, and where they come from."""
    matrix = np.vstack([np.eye(len(box[0])), rows[0]])
    least, most = np.concatenate([box[0], rows[1]]), np.concatenate([box[1], rows[2]])
    same = least == most
    up, down = (np.flatnonzero(np.isfinite(end) & ~same).astype(np.int64) for end in (most, least))
    return (
        np.vstack([matrix[up], -matrix[down]]),
        np.concatenate([most[up], -least[down]]),
        matrix[same],
        most[same],
        up,
        down,
    )


def implied(box: Ends, rows: tuple[Array, Array, Array], text: str) -> tuple[Ends, Ends]:
    """Make equations of inequalities that hold with equality everywhere.

    R. Freund, R. Roundy & M. Todd 1985: one linear program finds all of them.
    """
    a, b, e, f, up, down = inequalities(box, rows)
    n, m = a.shape[1], len(b)
    least, most = np.concatenate([box[0], rows[1]]), np.concatenate([box[1], rows[2]])
    if m:
        # Points x, shares s of room in each inequality, and a scale.
        cost = np.concatenate([np.zeros(n), -np.ones(m), [0.0]])
        found = linprog(
            cost,
            A_ub=np.hstack([a, np.eye(m), -b[:, None]]),
            b_ub=np.zeros(m),
            A_eq=np.hstack([e, np.zeros((len(f), m)), -f[:, None]]) if len(f) else None,
            b_eq=np.zeros(len(f)) if len(f) else None,
            bounds=[(None, None)] * n + [(0, 1)] * m + [(1, None)],
        )
        if found.status == 2:
            raise TemplateError(f"the constraints {text} contradict each other: nothing satisfies them.")
        if found.status == 0:
            tight = found.x[n:-1] < 0.5
            for where, source, target in ((up, most, least), (down, least, most)):
                part = tight[: len(up)] if where is up else tight[len(up) :]
                target[where[part]] = source[where[part]]
    size = len(box[0])
    return (least[:size], most[:size]), (least[size:], most[size:])


def center(box: Ends, rows: tuple[Array, Array, Array], text: str) -> tuple[Array, float]:
    """Return a point with the most room to all inequalities, and the room (at most 1)."""
    a, b, e, f, _, _ = inequalities(box, rows)
    n = a.shape[1]
    cost = np.append(np.zeros(n), -1.0)
    found = linprog(
        cost,
        A_ub=np.hstack([a, np.ones((len(b), 1))]),
        b_ub=b,
        A_eq=np.hstack([e, np.zeros((len(f), 1))]) if len(f) else None,
        b_eq=f if len(f) else None,
        bounds=[(None, None)] * n + [(None, 1.0)],
    )
    if found.status != 0:
        raise TemplateError(f"the constraints {text} contradict each other: nothing satisfies them.")
    point = found.x[:n]
    if len(f):
        point = point + np.linalg.lstsq(e, f - e @ point, rcond=None)[0]
    room = float(np.min(b - a @ point, initial=1.0))
    return point, max(room, 0.0) * (1 - 1e-9)
