"""Reads the attributes of variables and constraints as conditions: bounds, equations, blocks in cones, and curved functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import hstack, reshape, transpose, vstack
from dpconvex.core.atoms.exponentials import rel_entr
from dpconvex.core.atoms.extremes import MAX, MAXIMUM
from dpconvex.core.atoms.matrices import LAMBDA_MAX, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM, norm
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.atoms.sums import NEGATE
from dpconvex.core.expression import Constraint, Expression
from dpconvex.core.parameter_space import Block as Coordinates, Space
from dpconvex.errors import MissingRule, TemplateError
from dpconvex.geometry.blocks import ABSOLUTE, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, Block
from dpconvex.geometry.constraints import check, with_domains
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.quadratics import affine_map, groups, linear_parts, squares

Array = NDArray[np.float64]
Affine = tuple[sp.csr_array, Array]

# Where no variable occurs, a number may miss zero by this much.
SLACK = 1e-12


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums ``matrix @ x + offset`` plus multiples of the entries of expressions that are not affine, a row each."""

    matrix: sp.csr_array
    offset: Array
    curved: dict[Expression, sp.csr_array]

    @classmethod
    def of(cls, expression: Expression, space: Space) -> Sums:
        matrix, offset, curved = sp.csr_array((expression.size, space.dim)), np.zeros(expression.size), {}
        for part, factors in linear_parts(expression).items():
            if part.is_affine:
                own, fixed = affine_map(part, space)
                matrix, offset = sp.csr_array(matrix + factors @ own), offset + factors @ fixed
            else:
                curved[part] = factors
        return cls(matrix, offset, curved)

    def take(self, rows: NDArray[np.int64], weights: Array | float = 1.0) -> Sums:
        """Return some rows, times numbers."""
        scale = sp.csr_array(sp.diags_array(np.broadcast_to(weights, rows.shape).astype(float)))
        curved = {part: sp.csr_array(scale @ factors[rows]) for part, factors in self.curved.items()}
        for factors in curved.values():
            factors.eliminate_zeros()
        curved = {part: factors for part, factors in curved.items() if factors.nnz}
        return Sums(sp.csr_array(scale @ self.matrix[rows]), self.offset[rows] * weights, curved)

    def plus(self, other: Sums) -> Sums:
        curved = dict(self.curved)
        for part, factors in other.curved.items():
            curved[part] = sp.csr_array(curved[part] + factors) if part in curved else factors
        return Sums(sp.csr_array(self.matrix + other.matrix), self.offset + other.offset, curved)

    def expanded(self, space: Space) -> list[Sums] | None:
        """Write upper bounds on the largest of several numbers as bounds on each; None if there is nothing to expand."""
        absolute = np.zeros(len(self.offset), dtype=int)
        for part, factors in self.curved.items():
            if part.atom is ABS or is_norm(part, 1.0):
                absolute += np.diff(factors.indptr) * (1 if part.atom is ABS else 2)
        for part, factors in self.curved.items():
            choices = candidates(part)
            rows = np.repeat(np.arange(len(self.offset)), np.diff(factors.indptr))
            fit = np.diff(factors.indptr)[rows] == 1
            fit &= (factors.data > 0) & ((part.atom is not ABS) | (absolute[rows] == 1))
            if not choices or not fit.any():
                continue
            rows, entries, weights = rows[fit], factors.indices[fit], factors.data[fit]
            others = Sums(self.matrix, self.offset, {p: f for p, f in self.curved.items() if p is not part})
            found = [self.take(np.setdiff1d(np.arange(len(self.offset)), rows))]
            for inner, owner, side in choices:
                order = np.argsort(owner, kind="stable")
                start, stop = (np.searchsorted(owner[order], entries, side=at) for at in ("left", "right"))
                which = np.repeat(np.arange(len(entries)), stop - start)
                places = order[np.concatenate([np.arange(a, b) for a, b in zip(start, stop, strict=True)])]
                chosen = Sums.of(inner, space).take(places, side * weights[which])
                found.append(others.take(rows[which]).plus(chosen))
            return [sums for sums in found if len(sums.offset)]
        return None


def is_norm(part: Expression, order: float) -> bool:
    return part.atom is NORM and part.option("p") == order


def candidates(part: Expression) -> list[tuple[Expression, NDArray[np.int64], float]]:
    """Return expressions such that each entry of a part is the largest of their entries, times a sign, that it owns."""
    everything = np.arange(part.size)
    if part.atom is MAXIMUM and all(argument.size == part.size for argument in part.args):
        return [(argument, everything, 1.0) for argument in part.args]
    if part.atom is MAX:
        return [(part.args[0], groups(part), 1.0)]
    if (part.atom is ABS or is_norm(part, np.inf)) and part.args[0].is_affine:
        owner = everything if part.atom is ABS else groups(part)
        return [(part.args[0], owner, side) for side in (1.0, -1.0)]
    return []


class Conditions:
    """What constraints ask, in the coordinates of a space.

    Attributes
    ----------
    lower, upper : ndarray, shape (dim,)
        Bounds, which are conditions too.
    equations : list of (csr_array, ndarray)
        ``matrix @ x + offset = 0``.
    rows : (csr_array, ndarray)
        ``matrix @ x + offset >= 0``, of several coordinates each.
    cones : list of Block
    curved : list of Expression
        Convex functions, none of whose entries is positive on K.
    blocks : list of Block
        Bounds and rows as one block, which comes first, and the cones.
    """

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.dim, self.declared = space, space.dim, tuple(constraints)
        for constraint in constraints:
            check(constraint, space)
        self.constraints = with_domains(constraints)
        self.lower, self.upper = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        self.equations: list[Affine] = []
        self.curved: list[Expression] = []
        self.cones: list[Block] = []
        self.told: list[str] = []
        self._rows: list[Affine] = []
        for block in space.blocks.values():
            self._attributes(block)
        for constraint in self.constraints:
            self._read(constraint)
        self.told += [str(constraint) for constraint in self.declared]
        if (self.lower > self.upper).any():
            raise self.contradiction()
        self.fixed = self.lower == self.upper
        parts = [(sp.csr_array((0, self.dim)), np.zeros(0)), *self._rows]
        self.rows = sp.csr_array(sp.vstack([m for m, _ in parts])), np.concatenate([offset for _, offset in parts])
        self.blocks = [*self._linear_block(), *self.cones]

    def contradiction(self) -> TemplateError:
        told = " and ".join(dict.fromkeys([*self.told, *map(str, self.declared)]))
        return TemplateError(
            f"no point satisfies all constraints together, the attributes of the variables included: {told}."
        )

    def _attributes(self, block: Coordinates) -> None:
        has, name, shape = block.variable.attributes, block.name, block.variable.shape
        entries = sp.csr_array(
            (block.lift.data, block.lift.indices + block.start, block.lift.indptr),
            shape=(block.lift.shape[0], self.dim),
        )
        for attribute, factor in (("PSD", 1.0), ("NSD", -1.0)):
            if attribute in has:
                self.told.append(f"{name} is {attribute}")
                self._semidefinite(factor * self._picked(np.arange(self.dim)[block.slice]), np.zeros(block.dim))
        below, above = np.full(shape, -np.inf), np.full(shape, np.inf)
        if "nonneg" in has or "pos" in has:
            below = np.zeros(shape)
            self.told.append(f"{name} >= 0")
        if "nonpos" in has or "neg" in has:
            above = np.zeros(shape)
            self.told.append(f"{name} <= 0")
        if "bounds" in has:
            low, high = has["bounds"]
            below, above = np.maximum(below, low), np.minimum(above, high)
            self.told.append(f"{name} within its bounds")
        for factor, ends in ((1.0, below), (-1.0, above)):
            flat = ends.reshape(-1, order="F")
            asked = np.isfinite(flat)
            self._not_negative(sp.csr_array(factor * entries[asked]), -factor * flat[asked])

    def _picked(self, coordinates: NDArray[np.int64]) -> sp.csr_array:
        count = len(coordinates)
        return sp.csr_array((np.ones(count), (np.arange(count), coordinates)), shape=(count, self.dim))

    def _semidefinite(self, matrix: sp.csr_array, offset: Array) -> None:
        if len(offset) == 1:
            self._not_negative(matrix, offset)
        else:
            self.cones.append(Block(SEMIDEFINITE, sp.csr_array(matrix), offset))

    def _linear_block(self) -> list[Block]:
        low, high = np.isfinite(self.lower) & ~self.fixed, np.isfinite(self.upper) & ~self.fixed
        parts = [
            (self._picked(np.flatnonzero(low)), -self.lower[low]),
            (-self._picked(np.flatnonzero(high)), self.upper[high]),
            self.rows,
        ]
        matrix = sp.csr_array(sp.vstack([matrix for matrix, _ in parts]))
        return [Block(NONNEGATIVE, matrix, np.concatenate([o for _, o in parts]))] if matrix.shape[0] else []

    def _not_negative(self, matrix: sp.csr_array, offset: Array, equal: bool = False) -> None:
        """Ask that ``matrix @ x + offset`` is not negative, or zero; rows of a single coordinate are bounds."""
        matrix = sp.csr_array(matrix)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        count = np.diff(matrix.indptr)
        fixed = offset[count == 0]
        if (fixed < -SLACK).any() or (equal and (fixed > SLACK).any()):
            raise self.contradiction()
        single = np.flatnonzero(count == 1)
        place, slope = matrix.indices[matrix.indptr[single]], matrix.data[matrix.indptr[single]]
        ends = -offset[single] / slope
        below, above = (slope > 0) | equal, (slope < 0) | equal
        np.maximum.at(self.lower, place[below], ends[below])
        np.minimum.at(self.upper, place[above], ends[above])
        if (count > 1).any():
            (self.equations if equal else self._rows).append((sp.csr_array(matrix[count > 1]), offset[count > 1]))

    def _read(self, constraint: Constraint) -> None:
        first, *others = constraint.args
        if constraint.kind == "semidefinite":
            self._semidefinite(*symmetric_map(first, self.space))
        elif constraint.kind == "equality":
            self._not_negative(*affine_map(first - others[0], self.space), equal=True)
        elif constraint.kind == "second-order cone":
            along = None if others[0].ndim < 2 else (int(constraint.options[0]),)
            length = reshape(norm(others[0], 2, along), first.shape)
            self._read(Constraint("inequality", (length, first)))
        elif constraint.kind == "inequality" and first.atom is MAXIMUM:
            for small in first.args:
                self._read(Constraint("inequality", (small, others[0])))
        elif constraint.kind == "inequality" and others[0].atom is NEGATE and others[0].args[0].atom is MAXIMUM:
            self._read(Constraint("inequality", (others[0].args[0], -first)))
        elif constraint.kind == "inequality":
            difference = first - others[0]
            if not self._inequality(Sums.of(difference, self.space)):
                self.curved.append(difference)
        elif constraint.kind == "exponential cone":
            self.curved.append(first + rel_entr(others[0], others[1]))
        else:
            raise MissingRule(
                f"a {constraint.kind} has no linearisations", first, "write the constraint with atoms such as cp.power"
            )

    def _norm(self, kind: str, level: Affine, inner: Affine) -> None:
        """Ask that a norm be at most a level."""
        if not level[0].nnz and level[1][0] < 0:
            raise self.contradiction()
        if len(inner[1]) == 1:
            for side in (1.0, -1.0):
                self._not_negative(sp.csr_array(level[0] + side * inner[0]), level[1] + side * inner[1])
            return
        matrix = sp.csr_array(sp.vstack([level[0], inner[0]]))
        self.cones.append(Block(kind, matrix, np.concatenate([level[1], inner[1]])))

    def _inequality(self, sums: Sums) -> bool:
        """Read sums that are not positive as rows and cones, if each of them is linear or of a known kind."""
        cones: list[tuple[str, Affine, Affine]] = []
        straight: list[Affine] = []
        waiting = [sums]
        while waiting:
            now = waiting.pop()
            more = now.expanded(self.space)
            if more is not None:
                waiting.extend(more)
                continue
            bent = np.zeros(len(now.offset), dtype=bool)
            for factors in now.curved.values():
                bent |= np.diff(factors.indptr) > 0
            straight.append((-now.matrix[~bent], -now.offset[~bent]))
            for row in np.flatnonzero(bent):
                cone = self._cone(now.take(np.array([row])))
                if cone is None:
                    return False
                cones.append(cone)
        for matrix, offset in straight:
            self._not_negative(matrix, offset)
        for kind, level, inner in cones:
            if kind == SEMIDEFINITE:
                self._semidefinite(*inner)
            else:
                self._norm(kind, level, inner)
        return True

    def _cone(self, sums: Sums) -> tuple[str, Affine, Affine] | None:
        """Read one sum that is not positive as a cone: its kind, what bounds, and what is bounded."""
        level = -sums.matrix, -sums.offset
        parts = [(part, factors.toarray()[0]) for part, factors in sums.curved.items()]
        if any((weights < 0).any() for _, weights in parts):
            return None
        squared = [squares(part, weights) for part, weights in parts]
        if all(found is not None for found in squared):
            return self._squares(level, [found for found in squared if found is not None])
        if not all(part.args[0].is_affine for part, _ in parts):
            return None
        inner = [affine_map(part.args[0], self.space) for part, _ in parts]
        if all(part.atom is ABS or is_norm(part, 1.0) for part, _ in parts):
            each = [w if part.atom is ABS else w[groups(part)] for part, w in parts]
            return ABSOLUTE, level, stacked(inner, each)
        (part, weights), *others = parts
        if others or np.count_nonzero(weights) != 1:
            return None
        entry = int(np.flatnonzero(weights)[0])
        if is_norm(part, 2.0):
            return SECOND_ORDER, level, stacked(inner, [np.where(groups(part) == entry, weights[entry], 0.0)])
        if part.atom in (LAMBDA_MAX, SIGMA_MAX):
            return SEMIDEFINITE, level, self._spectrum(part, level, weights[entry])
        return None

    def _squares(self, level: Affine, terms: list[tuple[Expression, Array]]) -> tuple[str, Affine, Affine]:
        rows = stacked([affine_map(e, self.space) for e, _ in terms], [np.sqrt(weights) for _, weights in terms])
        if not level[0].nnz:
            if level[1][0] < 0:
                raise self.contradiction()
            return SECOND_ORDER, (level[0], np.sqrt(level[1])), rows
        # |e|^2 <= t where ||(2 e, t - 1)|| <= t + 1.
        inside = sp.csr_array(sp.vstack([2 * rows[0], level[0]])), np.concatenate([2 * rows[1], level[1] - 1])
        return SECOND_ORDER, (level[0], level[1] + 1), inside

    def _spectrum(self, part: Expression, level: Affine, weight: float) -> Affine:
        """Return the svec of a matrix that is semidefinite where a multiple of an extreme value is at most a level."""
        inner = part.args[0]
        rows, columns = inner.shape
        if part.atom is LAMBDA_MAX:
            matrix, offset = symmetric_map(-inner, self.space)
            side = rows
        else:
            whole = vstack(
                hstack(np.zeros((rows, rows)), -inner), hstack(transpose(-inner), np.zeros((columns, columns)))
            )
            matrix, offset = symmetric_map(whole, self.space)
            side = rows + columns
        row, column = np.triu_indices(side)
        unit = sp.csr_array((row == column).astype(float)[:, None])
        return sp.csr_array(weight * matrix + unit @ level[0]), weight * offset + unit.toarray()[:, 0] * level[1][0]


def stacked(maps: Sequence[Affine], weights: Sequence[Array]) -> Affine:
    """Put affine maps below each other, their rows times weights; without those whose weight is zero."""
    kept = [weight > 0 for weight in weights]
    matrices = [m[k] * w[k][:, None] for (m, _), w, k in zip(maps, weights, kept, strict=True)]
    offsets = [offset[k] * w[k] for (_, offset), w, k in zip(maps, weights, kept, strict=True)]
    return sp.csr_array(sp.vstack(matrices)), np.concatenate(offsets)


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
