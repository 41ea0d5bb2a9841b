"""A learner as an attack sees it: one record's loss on a few coordinates, and everything else as one public convex function.

All other records are a convex function that the changed record does not touch.  Here it is a linear term and a quadratic one, the
`Rest`: the proof must hold for every convex function, and these two suffice to put the answer, and its curvature, anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.feasible_region import Region
from dpconvex.auditing.record_programs import Kind, programs_of
from dpconvex.calculus.analysis import Analysis
from dpconvex.core.double_precision import double_precision
from dpconvex.errors import TemplateError
from dpconvex.evaluation.compiled import lower
from dpconvex.geometry.quadratics import quadratic

Array = NDArray[np.float64]

# Singular values below this fraction of the largest are rounding.
RANK = 1e-9
# Rounds of alternating projections, and the distance at which a point counts as reached.
ROUNDS, CLOSE = 60, 1e-6
# Candidates, and points for one candidate, that are evaluated at once.
BATCH, CHUNK = 256, 2500

_COMPILED: WeakKeyDictionary[Kind, Callable[..., Any]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Records:
    """A batch of records whose losses are one program.

    Attributes
    ----------
    kind : Kind or None
        None stands for no record at all, under add-remove.
    group : ndarray of int, shape (B,)
        Index of the discrete fields among ``kind.groups``.
    fields : dict of str to ndarray, shape (B, *shape)
    """

    kind: Kind | None
    group: NDArray[np.int64]
    fields: dict[str, Array]

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: Any) -> Records:
        """Return some of them."""
        return Records(self.kind, self.group[index], {name: v[index] for name, v in self.fields.items()})

    def slopes(self, points: Array, frame: Array) -> tuple[Array, Array]:
        """Return gradients (B, m, d) and Hessians (B, m, d, d) at ``frame @ t``, for t of shape (B, m, d).

        `frame` has the shape (B, dim, d); derivatives are with respect to t.
        """
        count, m, d = points.shape
        if self.kind is None:
            return np.zeros((count, m, d)), np.zeros((count, m, d, d))
        program = derivatives(self.kind)
        parts = []
        with double_precision():
            if count == 1 and m > 1:  # many points, one record
                for block in padded(points[0], CHUNK):
                    parts.append([np.asarray(part)[0] for part in program(block[None], frame, self.group, self.fields)])
            else:
                names = list(self.fields)
                columns = [points, frame, self.group, *(self.fields[name] for name in names)]
                for some in zip(*(padded(np.asarray(column), BATCH) for column in columns), strict=True):
                    fields = dict(zip(names, some[3:], strict=True))
                    parts.append([np.asarray(part) for part in program(*some[:3], fields)])
        gradient, hessian = (np.concatenate([part[k] for part in parts]) for k in range(2))
        if count == 1 and m > 1:
            gradient, hessian = gradient[None, :m], hessian[None, :m]
        return np.nan_to_num(gradient[:count]), np.nan_to_num(hessian[:count])


def padded(array: Array, length: int) -> list[Array]:
    """Cut an array into pieces of one length, the last filled up with copies: each shape is compiled anew."""
    missing = -len(array) % length
    if missing:
        array = np.concatenate([array, np.broadcast_to(array[-1:], (missing, *array.shape[1:]))])
    return [array[k : k + length] for k in range(0, len(array), length)]


def derivatives(kind: Kind) -> Callable[..., Any]:
    """Return the compiled gradient and Hessian of one record's loss, for batches of records and of points each."""
    import jax

    if kind not in _COMPILED:
        loss = kind.loss

        def one(point: Any, frame: Any, group: Any, fields: Any) -> Any:
            def restricted(t: Any) -> Any:
                return loss(frame @ t, group, fields)

            return jax.grad(restricted)(point), jax.hessian(restricted)(point)

        each = jax.vmap(one, in_axes=(0, None, None, None))
        _COMPILED[kind] = jax.jit(jax.vmap(each, in_axes=(0, 0, 0, 0)))
    return _COMPILED[kind]


class Learner:
    """Objective, noise and feasible set of a certified learner, in coordinates.

    Attributes
    ----------
    frame : ndarray, shape (dim, p)
        Orthonormal coordinates u in which the learner is studied: the sensitive subspace, or all of space.
    public : callable
        Gradient (m, p) and Hessian (m, p, p) of the public part at u, shape (m, p), in sum form.
    matrix : ndarray, shape (p, p), or None
        The Hessian of the public part, if that is one quadratic.
    exact : bool
        Whether the public part is the learner's own.  If not, it is a quadratic with the certified modulus; the proof allows it.
    """

    def __init__(self, analysis: Analysis, size: int, added: float, rng: np.random.Generator) -> None:
        self.form = form = analysis.form
        if not form.feasible.has_projection:
            raise TemplateError(
                f"audit: it cannot be said which points lie in the feasible set: {form.feasible.reason}"
            )
        self.analysis, self.size, self.added = analysis, size, added
        self.kinds = programs_of(form).kinds
        self.region = Region(form, rng)
        self.everything = form.noise_dimension == form.space.dim
        self.frame = np.eye(form.space.dim) if self.everything else form.basis.toarray()
        self.matrix: Array | None = None
        self.linear = np.zeros(self.frame.shape[1])
        self.exact = True
        self.shared = analysis.public  # of the losses, which are taken without it
        known = quadratic(form.template.regularizer, form.space)
        if known is not None and (self.everything or form.feasible.is_space):
            hessian = known.hessian if self.shared is None else known.hessian + self.shared
            self._reduce(size * hessian.toarray() + added * np.eye(form.space.dim), size * known.slope)
        elif not self.everything:
            self.exact = False
            self.matrix = analysis.moduli(size, added).least * np.eye(self.frame.shape[1])

    def _reduce(self, hessian: Array, slope: Array) -> None:
        """Minimise a quadratic over what is orthogonal to the frame."""
        basis = self.frame
        self.matrix, self.linear = basis.T @ hessian @ basis, basis.T @ slope
        if not self.everything:
            rest = np.linalg.svd(basis, full_matrices=True)[0][:, basis.shape[1] :]
            across = np.linalg.solve(rest.T @ hessian @ rest, rest.T @ np.column_stack([hessian @ basis, slope]))
            self.matrix = self.matrix - basis.T @ hessian @ rest @ across[:, :-1]
            self.linear = self.linear - basis.T @ hessian @ rest @ across[:, -1]
        self.matrix = (self.matrix + self.matrix.T) / 2

    @property
    def dimension(self) -> int:
        """Number p of coordinates."""
        return int(self.frame.shape[1])

    @property
    def free(self) -> bool:
        """Whether every point can be an answer."""
        return self.form.feasible.is_space

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        import jax

        function = lower(self.form.template.regularizer, self.form.space)

        def one(theta: Any) -> Any:
            return jax.grad(lambda t: function(t, {}))(theta), jax.hessian(lambda t: function(t, {}))(theta)

        return jax.jit(jax.vmap(one))

    def public(self, points: Array) -> tuple[Array, Array]:
        """Return gradient and Hessian of the public part at points u, shape (m, p)."""
        if self.matrix is not None:
            return points @ self.matrix + self.linear, np.broadcast_to(self.matrix, (len(points), *self.matrix.shape))
        with double_precision():
            gradient, hessian = (np.asarray(part) for part in self._compiled(points))
        if self.shared is not None:
            gradient, hessian = gradient + points @ self.shared, hessian + self.shared.toarray()
        return self.size * gradient + self.added * points, self.size * hessian + self.added * np.eye(self.dimension)

    def inside(self, points: Array) -> NDArray[np.bool_]:
        """Whether points u, shape (m, p), are answers at which no face of K is active (for a part of K: can be answers)."""
        if self.free:
            return np.ones(len(points), dtype=bool)
        theta = points @ self.frame.T
        size = np.maximum(np.linalg.norm(theta, axis=1), 1.0)
        if self.everything:
            away = self.region.project(theta * (1 + 1e-9)) - theta * (1 + 1e-9)
            return np.asarray(np.linalg.norm(away, axis=1) == 0)
        trial = theta.copy()
        for _ in range(ROUNDS):  # is there a point of K with these coordinates?
            gap = (theta - self.region.project(trial)) @ self.frame
            trial = self.region.project(trial) + gap @ self.frame.T
            if (np.linalg.norm(gap, axis=1) <= CLOSE * size).all():
                break
        return np.asarray(np.linalg.norm(gap, axis=1) <= CLOSE * size)

    def rows(self, records: Records) -> tuple[Array, Array]:
        """Return the leaves' rows in coordinates u, shape (B, k, p), and their offsets, shape (B, k)."""
        if records.kind is None:
            return np.zeros((len(records), 0, self.dimension)), np.zeros((len(records), 0))
        with double_precision():
            read = programs_of(self.form).rows(records.kind)
            names, count = list(records.fields), len(records)
            columns = [records.group, *(records.fields[name] for name in names)]
            parts = [
                read(np.zeros(self.form.space.dim), some[0], dict(zip(names, some[1:], strict=True)))
                for some in zip(*(padded(np.asarray(column), BATCH) for column in columns), strict=True)
            ]
        rows, offsets = (np.concatenate([np.asarray(part[k]) for part in parts])[:count] for k in range(2))
        return rows @ self.frame, offsets

    def named(self, records: Records, index: int) -> dict[str, Any] | None:
        if records.kind is None:
            return None
        chosen = self.form.template.record.combinations[int(records.kind.groups[records.group[index]])]
        return {**chosen, **{name: value[index] for name, value in records.fields.items()}}


def orthonormal(rows: Array) -> Array:
    """Return an orthonormal basis of the span of rows, shape (p, rank)."""
    norms = np.linalg.norm(rows, axis=1)
    rows = rows[norms > 0] / norms[norms > 0][:, None]
    if not len(rows):
        return np.zeros((rows.shape[1], 0))
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(right[values > RANK * values[0]].T)
