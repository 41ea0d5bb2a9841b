"""Reads the attributes of variables and constraints as conditions: bounds, equations, blocks in cones, and curved functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import hstack, repeated, reshape, transpose, vstack
from dpconvex.core.atoms.exponentials import rel_entr
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST
from dpconvex.core.atoms.matrices import LAMBDA_MAX, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS, POWER
from dpconvex.core.atoms.sums import NEGATE
from dpconvex.core.constraint import Constraint
from dpconvex.core.discipline import is_concave, sign
from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Expression, constant
from dpconvex.core.parameter_space import Space
from dpconvex.errors import MissingRule, TemplateError
from dpconvex.geometry.blocks import ABSOLUTE, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, Block
from dpconvex.geometry.constraints import read_attributes
from dpconvex.geometry.convex_sets import UNIT, Interval
from dpconvex.geometry.linear_maps import affine_map, groups, linear_parts
from dpconvex.geometry.quadratics import squares
from dpconvex.geometry.semidefinite import Spectrum

Array = NDArray[np.float64]
Affine = tuple[sp.csr_array, Array]

# Atoms with kinks that no condition of ours avoids; norms of order 1 and infinity have them too.
KINKED = (ABS, MAX, MAXIMUM, SUM_LARGEST, LAMBDA_MAX, SIGMA_MAX, NORM_NUC)


def has_kinks(expression: Expression) -> bool:
    return any(
        node.atom in KINKED or (node.atom is NORM and node.option("p") in (1.0, np.inf))
        for node in postorder([expression])
    )


class Conditions:
    """What constraints ask, in the coordinates of a space.

    Attributes
    ----------
    lower, upper : ndarray, shape (dim,)
        Bounds, which are blocks too.
    equations : list of (csr_array, ndarray)
        ``matrix @ x + offset = 0``.
    blocks : list of Block
        Linear inequalities come first, as one block.
    curved : list of Expression
        Convex functions, none of whose entries is positive on K.
    """

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.dim, self.declared = space, space.dim, tuple(constraints)
        self.constraints = with_domains([simple for constraint in constraints for simple in simplified(constraint)])
        self.lower, self.upper = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        self.equations: list[Affine] = []
        self.curved: list[Expression] = []
        self.blocks: list[Block] = []
        self._rows: list[Affine] = []
        for block in space.blocks.values():
            for piece in read_attributes(block):
                if isinstance(piece, Interval):
                    here = piece.coordinates
                    self.lower[here] = np.maximum(self.lower[here], piece.lower)
                    self.upper[here] = np.minimum(self.upper[here], piece.upper)
                elif isinstance(piece, Spectrum):
                    factor = 1.0 if np.isfinite(piece.lower) else -1.0
                    self._semidefinite(factor * self._picked(piece.coordinates), np.zeros(len(piece.coordinates)))
        for constraint in self.constraints:
            self._read(constraint)
        if (self.lower > self.upper).any():
            raise TemplateError(f"no point satisfies all constraints: {' and '.join(map(str, constraints))}")
        self.fixed = self.lower == self.upper
        self._linear_block()

    def _picked(self, coordinates: NDArray[np.int64]) -> sp.csr_array:
        count = len(coordinates)
        return sp.csr_array((np.ones(count), (np.arange(count), coordinates)), shape=(count, self.dim))

    def _semidefinite(self, matrix: sp.csr_array, offset: Array) -> None:
        if len(offset) == 1:
            self._not_negative(matrix, offset)
            return
        self.blocks.append(Block(SEMIDEFINITE, sp.csr_array(matrix), offset))

    def _linear_block(self) -> None:
        """Put bounds and rows together."""
        low, high = np.isfinite(self.lower) & ~self.fixed, np.isfinite(self.upper) & ~self.fixed
        parts = [
            (self._picked(np.flatnonzero(low)), -self.lower[low]),
            (-self._picked(np.flatnonzero(high)), self.upper[high]),
            *self._rows,
        ]
        matrix = sp.csr_array(sp.vstack([matrix for matrix, _ in parts]))
        if matrix.shape[0]:
            self.blocks.insert(0, Block(NONNEGATIVE, matrix, np.concatenate([offset for _, offset in parts])))

    def _not_negative(self, matrix: sp.csr_array, offset: Array) -> None:
        """Add rows; those of a single coordinate are bounds."""
        matrix = sp.csr_array(matrix)
        matrix.eliminate_zeros()
        count = np.diff(matrix.indptr)
        if (offset[count == 0] < -1e-12).any():
            raise TemplateError("no point satisfies all constraints: one asks for a negative number to be positive.")
        for row in np.flatnonzero(count == 1):
            place, slope = matrix.indices[matrix.indptr[row]], matrix.data[matrix.indptr[row]]
            end = -offset[row] / slope
            if slope > 0:
                self.lower[place] = max(self.lower[place], end)
            else:
                self.upper[place] = min(self.upper[place], end)
        several = count > 1
        if several.any():
            self._rows.append((sp.csr_array(matrix[several]), offset[several]))

    def _read(self, constraint: Constraint) -> None:
        first, *others = constraint.args
        if constraint.kind == "semidefinite":
            self._semidefinite(*symmetric_map(first, self.space))
        elif constraint.kind == "equality":
            self._equal(*affine_map(first - others[0], self.space))
        elif constraint.kind == "second-order cone":
            self._cones(constraint)
        elif constraint.kind == "inequality":
            if not self._inequality(first - others[0]):
                self.curved.append(first - others[0])
        elif constraint.kind == "exponential cone":
            self.curved.append(first + rel_entr(others[0], others[1]))
        else:
            raise MissingRule(
                f"a {constraint.kind} has no linearisations", first, "write the constraint with atoms such as cp.power"
            )

    def _equal(self, matrix: sp.csr_array, offset: Array) -> None:
        """Add equations; those of a single coordinate fix it."""
        count = np.diff(matrix.indptr)
        for row in np.flatnonzero(count == 1):
            place, slope = matrix.indices[matrix.indptr[row]], matrix.data[matrix.indptr[row]]
            end = -offset[row] / slope
            self.lower[place], self.upper[place] = max(self.lower[place], end), min(self.upper[place], end)
        self.equations.append((sp.csr_array(matrix[count > 1]), offset[count > 1]))

    def _cones(self, constraint: Constraint) -> None:
        top, rest = (affine_map(argument, self.space) for argument in constraint.args)
        place = np.arange(len(rest[1])).reshape(constraint.args[1].shape, order="F")
        columns = [place.ravel()]
        if place.ndim > 1:
            axis = int(constraint.options[0])
            columns = list(np.moveaxis(place, axis, 0).reshape(place.shape[axis], -1).T)
        for k, column in enumerate(columns):
            self._norm(SECOND_ORDER, (top[0][[k]], top[1][[k]]), (rest[0][column], rest[1][column]))

    def _norm(self, kind: str, level: Affine, inner: Affine) -> None:
        """Ask that a norm be at most a level."""
        if kind == ABSOLUTE and len(inner[1]) == 1:
            for side in (1.0, -1.0):
                self._not_negative(sp.csr_array(level[0] + side * inner[0]), level[1] + side * inner[1])
            return
        matrix = sp.csr_array(sp.vstack([level[0], inner[0]]))
        self.blocks.append(Block(kind, matrix, np.concatenate([level[1], inner[1]])))

    def _inequality(self, difference: Expression) -> bool:
        """Read ``difference <= 0`` as rows and blocks, if every row is linear or has one term of a known kind."""
        matrix, offset = sp.csr_array((difference.size, self.dim)), np.zeros(difference.size)
        curved = []
        for part, factors in linear_parts(difference).items():
            if part.is_affine:
                own, fixed = affine_map(part, self.space)
                matrix, offset = sp.csr_array(matrix + factors @ own), offset + factors @ fixed
            else:
                curved.append((part, factors))
        if len(curved) > 1:
            return False
        found: list[tuple[str, Affine, Affine]] = []
        straight = np.ones(difference.size, dtype=bool)
        for part, factors in curved:
            for row in range(difference.size):
                weights = factors[[row]].toarray()[0]
                if not weights.any():
                    continue
                straight[row] = False
                condition = self._condition(part, weights, (-matrix[[row]], -offset[[row]]))
                if condition is None:
                    return False
                found.append(condition)
        self._not_negative(sp.csr_array(-matrix[straight]), -offset[straight])
        for condition in found:
            self._norm(*condition)
        return True

    def _condition(self, part: Expression, weights: Array, level: Affine) -> tuple[str, Affine, Affine] | None:
        """Read ``weights @ part <= level`` for entries of an atom."""
        if (weights < 0).any() or part.atom is None:
            return None
        squared = squares(part, weights)
        if squared is not None:
            inner, weights = squared
            matrix, offset = affine_map(inner, self.space)
            kept, root = weights > 0, np.sqrt(weights)
            rows = sp.csr_array(matrix[kept] * root[kept][:, None]), offset[kept] * root[kept]
            if not level[0].nnz:
                if level[1][0] < 0:
                    raise TemplateError(f"no point satisfies all constraints: {part} is to be negative.")
                return SECOND_ORDER, (level[0], np.sqrt(level[1])), rows
            # |e|^2 <= t where ||(2 e, t - 1)|| <= t + 1.
            inside = sp.csr_array(sp.vstack([2 * rows[0], level[0]])), np.concatenate([2 * rows[1], level[1] - 1])
            return SECOND_ORDER, (level[0], level[1] + 1), inside
        if not part.args[0].is_affine:
            return None
        matrix, offset = affine_map(part.args[0], self.space)
        used = np.flatnonzero(weights)
        if part.atom is ABS:
            scales = weights[used]
            return ABSOLUTE, level, (sp.csr_array(matrix[used] * scales[:, None]), offset[used] * scales)
        if part.atom is NORM and part.option("p") in (1.0, 2.0) and len(used) == 1:
            rows = groups(part) == used[0]
            kind = SECOND_ORDER if part.option("p") == 2 else ABSOLUTE
            scale = float(weights[used[0]])
            return kind, level, (sp.csr_array(scale * matrix[rows]), scale * offset[rows])
        return None


def simplified(constraint: Constraint) -> list[Constraint]:
    """Write bounds on the greatest of several expressions as bounds on each, and bounds on spectra as matrix inequalities."""
    if constraint.kind != "inequality":
        return [constraint]
    small, large = constraint.args
    if small.atom is ABS:
        return [c for a in (small.args[0], -small.args[0]) for c in simplified(Constraint("inequality", (a, large)))]
    if small.atom is POWER and large.is_constant and small.option("p") >= 1 and sign(small.args[0]) == 1:
        ends = np.asarray(large.number)
        if not small.args[0].is_affine and (ends >= 0).all():
            root = constant(ends ** (1 / small.option("p")))
            return simplified(Constraint("inequality", (small.args[0], root)))
    if (small.atom is MAX or (small.atom is NORM and small.option("p") == np.inf)) and small.args[0].is_affine:
        inner = reshape(small.args[0], (small.args[0].size,))
        above = reshape(large, (large.size,))[groups(small)] if large.size > 1 else large
        sides = (inner,) if small.atom is MAX else (inner, -inner)
        return [Constraint("inequality", (side, above)) for side in sides]
    if large.atom is NEGATE and large.args[0].atom is MAXIMUM:
        return simplified(Constraint("inequality", (large.args[0], -small)))
    if small.atom is MAXIMUM:
        return [c for a in small.args for c in simplified(Constraint("inequality", (a, large)))]
    if small.atom in (LAMBDA_MAX, SIGMA_MAX) and small.args[0].is_affine and large.is_affine:
        inner, level = small.args[0], reshape(large, ())
        rows, columns = inner.shape
        if small.atom is LAMBDA_MAX:
            return [Constraint("semidefinite", (level * np.eye(rows) - inner,))]
        upper = hstack(level * np.eye(rows), inner)
        return [Constraint("semidefinite", (vstack(upper, hstack(transpose(inner), level * np.eye(columns))),))]
    return [constraint]


def symmetric_map(matrix: Expression, space: Space) -> Affine:
    """Return an affine symmetric matrix as a map from coordinates to its svec, and the svec of its constant."""
    entries, offset = affine_map(matrix, space)
    side = matrix.shape[0]
    row, column = np.triu_indices(side)
    upper, lower = column * side + row, row * side + column
    skew = abs(entries[upper] - entries[lower]).max(), np.abs(offset[upper] - offset[lower]).max(initial=0.0)
    if max(skew) > 4 * UNIT * max(abs(entries).max(), np.abs(offset).max(initial=0.0)):
        raise MissingRule(
            "a matrix inequality is of a matrix that is not symmetric", matrix, "symmetrise it: (X + X.T) / 2"
        )
    weight = np.where(row == column, 1.0, np.sqrt(2.0))
    return sp.csr_array(sp.diags_array(weight) @ entries[upper]), weight * offset[upper]


def with_domains(constraints: Sequence[Constraint]) -> list[Constraint]:
    """Add where the atoms in constraints are defined, as constraints of their own."""
    found = list(dict.fromkeys(constraints))
    for constraint in constraints:
        roots = list(constraint.args)
        if constraint.kind == "exponential cone":
            roots.append(rel_entr(*constraint.args[1:]))
        for node in postorder(roots):
            if node.atom is None or node.is_constant:
                continue
            for argument, kind in zip(node.args, node.atom.domain(node), strict=True):
                if kind in ("not negative", "positive") and argument.variables and is_concave(argument):
                    found.append(Constraint("inequality", (repeated(0.0, argument.shape), argument)))
                elif kind == "semidefinite" and argument.variables:
                    found.append(Constraint("semidefinite", (argument,)))
    return list(dict.fromkeys(found))
