"""Reads attributes and constraints as conditions: bounds, equations, blocks in cones, and curved functions.

What the domains of atoms ask is part of a constraint, or becomes one beside a regularizer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.core.arrays import Array
from dpconvex.core.atoms.arrangement import hstack, repeated, reshape, transpose, vstack
from dpconvex.core.atoms.exponentials import rel_entr
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST
from dpconvex.core.atoms.matrices import LAMBDA_MAX, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM, norm
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.discipline import is_concave, is_convex, sign
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Constraint, Expression, postorder
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.to_cvxpy import attribute_constraints
from dpconvex.errors import MissingRule, NotPrivate, TemplateError
from dpconvex.geometry.blocks import ABSOLUTE, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, Block
from dpconvex.geometry.convex_sets import UNIT, triangle
from dpconvex.geometry.quadratics import Affine, Parts, affine_map, groups, linear_parts, squares, weighted_sum

# Where no variable occurs, a number may miss zero by this much.
SLACK = 1e-12
# Atoms with kinks that no condition of ours avoids; norms of order 1 and infinity have them too.
KINKED = (ABS, MAX, MAXIMUM, SUM_LARGEST, LAMBDA_MAX, SIGMA_MAX, NORM_NUC)
# Entries of a symmetric matrix may differ from their mirror images by this fraction of the largest.
SYMMETRIC = 1e-12


def has_kinks(expression: Expression) -> bool:
    return any(
        node.atom in KINKED or (node.atom is NORM and node.option("p") in (1.0, np.inf))
        for node in postorder([expression])
    )


def check(constraint: Constraint) -> None:
    """Refuse what is not public, or not convex."""
    if constraint.fields:
        raise NotPrivate(
            "a constraint mentions a field of the record, so the feasible set would depend on data",
            constraint,
            "state the constraint with public constants, or penalise its violation in the loss",
        )
    known = all(argument.is_affine for argument in constraint.args)
    if constraint.kind == "inequality":
        known = is_convex(constraint.args[0]) and is_concave(constraint.args[1])
    if not known:
        raise NotPrivate(
            "a constraint is not convex by CVXPY's rules",
            constraint,
            "bound convex functions from above and concave ones from below; let equations be affine",
        )


def domains(expression: Expression) -> Iterator[tuple[Expression, Expression, str]]:
    """Yield what the domains of atoms ask of their arguments: the atom, the argument, and the kind of condition."""
    for node in postorder([expression]):
        for argument, kind in zip(node.args, node.atom.domain(node), strict=True) if node.atom is not None else ():
            # At the end of its domain, a function of one argument is infinite: to close the domain adds no point.
            if kind is not None:
                yield node, argument, "not negative" if kind == "positive" and len(node.args) == 1 else kind


def not_negative(argument: Expression) -> Constraint:
    return Constraint("inequality", (repeated(0.0, argument.shape), argument))


def with_domains(constraints: Sequence[Constraint]) -> list[Constraint]:
    """Add where the atoms in constraints are defined, as constraints of their own."""
    found = list(constraints)
    for constraint in constraints:
        more = [rel_entr(*constraint.args[1:])] if constraint.kind == "exponential cone" else []
        for _, argument, kind in (one for root in (*constraint.args, *more) for one in domains(root)):
            if kind in ("not negative", "positive") and argument.variables and is_concave(argument):
                found.append(not_negative(argument))
            elif kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
    return list(dict.fromkeys(found))


def implicit_constraints(
    regularizer: Expression, expander: Expander, least_entry: Callable[[Expression], float]
) -> list[Constraint]:
    """Return the domains of a regularizer's atoms that do not contain K, as constraints; entries are bounded over K from below.

    CVXPY keeps them implicitly: ``power(w, 3)`` is convex because w is not negative there.  Compiled code would leave them.
    """
    found: list[Constraint] = []
    for node, argument, kind in domains(regularizer):
        if kind in ("symmetric", "semidefinite"):  # CVXPY would add symmetry as a constraint
            if not (argument.is_affine and is_symmetric(expander.expand(argument))):
                raise NotPrivate(
                    f"{node.atom.name if node.atom else ''} is defined for symmetric matrices, and this one is not known to "
                    "be symmetric",
                    node,
                    "declare the variable symmetric (or PSD), and keep the matrix symmetric",
                )
            if kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
            continue
        least = least_entry(argument)
        if kind == "positive" and not least > 0:
            raise NotPrivate(
                "the divisor of squares in the regularizer is not known to be positive",
                node,
                "divide by a positive number, or bound the divisor away from zero by a constraint",
            )
        if least >= 0 or (not argument.is_affine and sign(argument) == 1):
            continue
        if not is_concave(argument) or not argument.variables:
            raise NotPrivate(
                "an atom of the regularizer is defined only where its argument is not negative, which is not known",
                node,
                "write an argument whose sign follows from its parts, or constrain the variables",
            )
        found.append(not_negative(argument))
    return found


def is_symmetric(matrix: Polynomial) -> bool:
    """Whether an affine matrix is symmetric for all parameters and records, but for the rounding of its coefficients."""
    difference = matrix + matrix.gathered(matrix.numbers().T).scaled(-1.0)
    return bool((np.abs(difference.coefficient) <= SYMMETRIC * np.abs(matrix.coefficient).max(initial=0.0)).all())


class Conditions:
    """What constraints ask, in the coordinates of a space."""

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.dim = space, space.dim
        for constraint in constraints:
            check(constraint)
        attributes = [pair for block in space.blocks.values() for pair in attribute_constraints(block.variable)]
        self.constraints = with_domains(constraints)
        self.told = [*(told for told, _ in attributes), *map(str, constraints)]  # what was declared
        self.lower, self.upper = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        self.equations: list[Affine] = []  # matrix @ x + offset = 0
        self.curved: list[Expression] = []  # convex functions, none of whose entries is positive on K
        self.cones: list[Block] = []
        self._rows: list[Affine] = []
        for constraint in (*(constraint for _, constraint in attributes), *self.constraints):
            self._read(constraint)
        if (self.lower > self.upper).any():
            raise self.contradiction()
        self.fixed = self.lower == self.upper
        # matrix @ x + offset >= 0, of several coordinates each; and these with the bounds as one block, before the cones
        self.rows = stacked([(sp.csr_array((0, self.dim)), np.zeros(0)), *self._rows])
        low, high = np.isfinite(self.lower) & ~self.fixed, np.isfinite(self.upper) & ~self.fixed
        one = sp.csr_array(sp.eye_array(self.dim))
        linear = stacked([(one[low], -self.lower[low]), (-one[high], self.upper[high]), self.rows])
        self.blocks = [*([Block(NONNEGATIVE, *linear)] if len(linear[1]) else []), *self.cones]

    def contradiction(self) -> TemplateError:
        told = " and ".join(dict.fromkeys(self.told))
        return TemplateError(
            f"no point satisfies all constraints together, the attributes of the variables included: {told}."
        )

    def _read(self, constraint: Constraint) -> None:
        first, *others = constraint.args
        if constraint.kind == "semidefinite":
            self._semidefinite(first)
        elif constraint.kind == "equality":
            self._not_negative(*affine_map(first - others[0], self.space), equal=True)
        elif constraint.kind == "second-order cone":
            along = None if others[0].ndim < 2 else (int(constraint.options[0]),)
            self._inequality(reshape(norm(others[0], 2, along), first.shape) - first)
        elif constraint.kind == "inequality":
            self._inequality(first - others[0])
        elif constraint.kind == "exponential cone":
            self.curved.append(first + rel_entr(others[0], others[1]))
        else:
            raise MissingRule(
                f"a {constraint.kind} has no linearisations", first, "write the constraint with atoms such as cp.power"
            )

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

    def _semidefinite(self, matrix: Expression) -> None:
        """Ask that an affine symmetric matrix, as a map from coordinates to its svec, is semidefinite."""
        entries, offset = affine_map(matrix, self.space)
        side = matrix.shape[0] if matrix.ndim else 1
        row, column, weight = triangle(side)
        upper, lower = column * side + row, row * side + column
        skew = abs(entries[upper] - entries[lower]).max(), np.abs(offset[upper] - offset[lower]).max(initial=0.0)
        if max(skew) > 4 * UNIT * max(abs(entries).max(), np.abs(offset).max(initial=0.0)):
            raise MissingRule(
                "a matrix inequality is of a matrix that is not symmetric", matrix, "symmetrise it: (X + X.T) / 2"
            )
        found = sp.csr_array(sp.diags_array(weight) @ entries[upper]), weight * offset[upper]
        if side == 1:
            self._not_negative(*found)
        else:
            self.cones.append(Block(SEMIDEFINITE, *found))

    def _norm(self, kind: str, level: Affine, inner: Affine) -> None:
        """Ask that a norm be at most a level."""
        if not level[0].nnz and level[1][0] < 0:
            raise self.contradiction()
        if len(inner[1]) == 1:
            for side in (1.0, -1.0):
                self._not_negative(sp.csr_array(level[0] + side * inner[0]), level[1] + side * inner[1])
        else:
            self.cones.append(Block(kind, *stacked([level, inner])))

    def _inequality(self, difference: Expression) -> None:
        """Ask that no entry is positive: by rows and cones, or, where there is one of another kind, as a curved function."""
        waiting, whole = [linear_parts(difference)], True
        while waiting:
            parts = waiting.pop()
            more = expanded(parts)
            if more is not None:
                waiting.extend(more)
                whole = False
                continue
            bent = np.zeros(next(iter(parts.values())).shape[0] if parts else 0, dtype=bool)
            for part, factors in parts.items():
                bent |= (np.diff(factors.indptr) > 0) & (not part.is_affine)
            found = [self._cone(taken(parts, [row])) for row in np.flatnonzero(bent)]
            if whole and any(cone is None for cone in found):
                self.curved.append(difference)
                return
            self._not_negative(*self._level(taken(parts, np.flatnonzero(~bent))))
            for row, cone in zip(np.flatnonzero(bent), found, strict=True):
                if cone is None:
                    self.curved.append(weighted_sum(taken(parts, [row])))
                elif isinstance(cone, Expression):
                    self._semidefinite(cone)
                else:
                    self._norm(*cone)

    def _level(self, parts: Parts) -> Affine:
        """Return minus the affine parts of sums."""
        count = next(iter(parts.values())).shape[0] if parts else 0
        matrix, offset = sp.csr_array((count, self.dim)), np.zeros(count)
        for part, factors in parts.items():
            if part.is_affine:
                own, fixed = affine_map(part, self.space)
                matrix, offset = sp.csr_array(matrix - factors @ own), offset - factors @ fixed
        return matrix, offset

    def _cone(self, sums: Parts) -> tuple[str, Affine, Affine] | Expression | None:
        """Read one sum that is not positive: as a norm's kind, what bounds it and what it is of; or as a semidefinite matrix."""
        level = self._level(sums)
        parts = [(part, factors.toarray()[0]) for part, factors in sums.items() if not part.is_affine]
        if any((weights < 0).any() for _, weights in parts):
            return None
        squared = [squares(part, weights) for part, weights in parts]
        if None not in squared:
            return self._squares(level, [found for found in squared if found is not None])
        if not all(part.args[0].is_affine for part, _ in parts):
            return None
        inner = [affine_map(part.args[0], self.space) for part, _ in parts]
        if all(part.atom is ABS or is_norm(part, 1.0) for part, _ in parts):
            return ABSOLUTE, level, stacked(inner, [w if p.atom is ABS else w[groups(p)] for p, w in parts])
        (part, weights), *others = parts
        if others or np.count_nonzero(weights) != 1:
            return None
        entry = int(np.flatnonzero(weights)[0])
        if is_norm(part, 2.0):
            return SECOND_ORDER, level, stacked(inner, [np.where(groups(part) == entry, weights[entry], 0.0)])
        if part.atom not in (LAMBDA_MAX, SIGMA_MAX):
            return None
        matrix = part.args[0]
        if part.atom is SIGMA_MAX:
            zeros = [np.zeros((side, side)) for side in matrix.shape]
            matrix = vstack(hstack(zeros[0], matrix), hstack(transpose(matrix), zeros[1]))
        bound = weighted_sum({part: factors for part, factors in sums.items() if part.is_affine})
        return -bound * np.eye(matrix.shape[0]) - float(weights[entry]) * matrix

    def _squares(self, level: Affine, terms: list[tuple[Expression, Array]]) -> tuple[str, Affine, Affine]:
        rows = stacked([affine_map(e, self.space) for e, _ in terms], [np.sqrt(weights) for _, weights in terms])
        if not level[0].nnz:
            if level[1][0] < 0:
                raise self.contradiction()
            return SECOND_ORDER, (level[0], np.sqrt(level[1])), rows
        # |e|^2 <= t where ||(2 e, t - 1)|| <= t + 1.
        inside = stacked([(2 * rows[0], 2 * rows[1]), (level[0], level[1] - 1)])
        return SECOND_ORDER, (level[0], level[1] + 1), inside


def taken(parts: Parts, rows: Any) -> Parts:
    """Return some of the sums."""
    found = {part: sp.csr_array(factors[rows]) for part, factors in parts.items()}
    return {part: factors for part, factors in found.items() if factors.nnz}


def expanded(parts: Parts) -> list[Parts] | None:
    """Write upper bounds on the largest of several numbers as bounds on each; None if there is nothing to expand."""
    absolute: Array | float = 0.0
    for part, factors in parts.items():
        if part.atom is ABS or is_norm(part, 1.0):
            absolute = absolute + np.diff(factors.indptr) * (1 if part.atom is ABS else 2)
    for part, factors in parts.items():
        found = choices(part)
        fit = (np.diff(factors.indptr) == 1) & (factors.sum(axis=1) > 0)
        if part.atom is ABS:
            fit &= absolute == 1
        if not found or not fit.any():
            continue
        others = {p: f for p, f in parts.items() if p is not part}
        sums = [taken(parts, np.flatnonzero(~fit))]
        for inner, chosen in found:
            pairs = sp.coo_array(sp.diags_array(fit.astype(float)) @ factors @ chosen)
            new = taken(others, pairs.row)
            pick = sp.csr_array((pairs.data, (np.arange(pairs.nnz), pairs.col)), shape=(pairs.nnz, inner.size))
            for p, f in linear_parts(inner).items():
                new[p] = sp.csr_array(new[p] + pick @ f) if p in new else sp.csr_array(pick @ f)
            sums.append(new)
        return [one for one in sums if one]
    return None


def is_norm(part: Expression, order: float) -> bool:
    return part.atom is NORM and part.option("p") == order


def choices(part: Expression) -> list[tuple[Expression, sp.csr_array]]:
    """Return expressions, and signs for each entry of a part by their entries, of which it is the largest."""
    one = sp.csr_array(sp.eye_array(part.size))
    if part.atom is MAXIMUM:
        return [(argument, one) for argument in part.args]
    if part.atom is MAX:
        return [(part.args[0], sp.csr_array(one[:, groups(part)]))]
    if (part.atom is ABS or is_norm(part, np.inf)) and part.args[0].is_affine:
        own = one if part.atom is ABS else sp.csr_array(one[:, groups(part)])
        return [(part.args[0], own), (part.args[0], -own)]
    return []


def stacked(maps: Sequence[Affine], weights: Sequence[Array] | None = None) -> Affine:
    """Put affine maps below each other, their rows times weights if given; without those whose weight is zero."""
    if weights is not None:
        kept = [(m[w > 0] * w[w > 0][:, None], o[w > 0] * w[w > 0]) for (m, o), w in zip(maps, weights, strict=True)]
        return stacked(kept)
    return sp.csr_array(sp.vstack([matrix for matrix, _ in maps])), np.concatenate([offset for _, offset in maps])
