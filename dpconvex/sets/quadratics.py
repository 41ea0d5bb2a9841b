"""Linear and quadratic parts of public expressions, as matrices in the coordinates of the parameters."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.expressions.atoms.arithmetic import add, total
from dpconvex.expressions.atoms.arrangement import reshape, vec
from dpconvex.expressions.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST, entry_choices as choices_of
from dpconvex.expressions.atoms.norms import NORM, QUAD_OVER_LIN, sum_squares
from dpconvex.expressions.atoms.powers import ABS, POWER
from dpconvex.expressions.atoms.rules import sum_matrix
from dpconvex.expressions.evaluate import STEP, gradients, over_records
from dpconvex.expressions.expansion import Expander, RecordVariables
from dpconvex.expressions.expression import Constraint, Expression, Variable, constant
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, stack_entries as joined
from dpconvex.numerics import EPSILON, quotient_ends, root_up, sum_ends
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once

Affine = tuple[sp.csr_array, Array]
# Affine expressions and curved atoms, each with the matrix that weights and sums its entries.
Parts = dict[Expression, sp.csr_array]


class Reading(NamedTuple):
    """An affine map ``matrix @ theta + offset``, and bounds on the rounding errors of its coefficients."""

    matrix: sp.csr_array
    offset: Array
    wrong: sp.csr_array
    missed: Array


@once
def public(space: Space) -> Expander:
    return Expander(space, RecordVariables({}))


def affine_polynomial(expression: Expression, space: Space) -> Polynomial:
    """Return a public affine expression as a polynomial, with bounds on the rounding errors of its coefficients."""
    return public(space).expand(expression)


def affine_map(expression: Expression, space: Space) -> Affine:
    """Return M and c such that the entries of a public affine expression, in column order, are ``M @ theta + c``."""
    return reading_of(affine_polynomial(expression, space), space.dim)[:2]


def reading_of(found: Polynomial, dim: int) -> Reading:
    # After cancellation, a coefficient is about as large as its error: it counts as 0.
    kept = np.abs(found.coefficient) > found.error
    value, error = np.where(kept, found.coefficient, 0.0), found.error * (1 + 4 * EPSILON)
    error = np.where(kept, error, error + np.abs(found.coefficient))
    fixed = found.coordinate < 0
    offset, missed = (np.bincount(found.entry[fixed], part[fixed], found.size) for part in (value, error))
    places = found.entry[~fixed & kept], found.coordinate[~fixed & kept]
    parts = (part[~fixed & kept] for part in (value, error))
    matrix, wrong = (sp.csr_array((part, places), shape=(found.size, dim)) for part in parts)
    return Reading(matrix, offset.astype(float), wrong, missed.astype(float))


@once
def linear_parts(expression: Expression, absolute: bool = False) -> Parts:
    """Return affine expressions and curved atoms with matrices that weight and sum them; if `absolute`, absolute matrices."""
    found: Parts = {}
    waiting = [(expression, sp.csr_array(sp.eye_array(expression.size)))]
    while waiting:
        node, matrix = waiting.pop()
        matrix.eliminate_zeros()
        if not matrix.nnz:
            continue
        # Expand only sums, and products of numbers with curved expressions.
        if node.is_affine or node.atom is None or not node.atom.keeps_affine(node.args):
            found[node] = found[node] + matrix if node in found else matrix
            continue
        for argument, own in reversed(arguments_of(node)):
            waiting.append((argument, sp.csr_array(matrix @ (abs(own) if absolute else own))))
    return found


def level_of(space: Space, parts: Parts) -> Polynomial:
    """Return minus the affine part of sums: if the sums are at most 0, this bounds their curved parts."""
    count = next(iter(parts.values())).shape[0] if parts else 0
    affine = (affine_polynomial(part, space).linear(-rows, (count,)) for part, rows in parts.items() if part.is_affine)
    return reduce(operator.add, affine, Polynomial.constant(np.zeros(count)))


def as_paraboloid(space: Space, constraint: Constraint) -> Constraint | None:
    """Return ``a ||v||^2 / t <= s`` for a number s as ``a ||v||^2 / s <= t``, which implies t >= 0; None for other constraints.

    The quotient is as steep as s / t, and t may be as small as rounding.  Rounding makes the set smaller, never larger.
    """
    if constraint.kind != "inequality" or not constraint.args[0].size == constraint.args[1].size == 1:
        return None
    sums = linear_parts(constraint.args[0] - constraint.args[1])
    curved = [(part, factors.toarray().ravel()) for part, factors in sums.items() if not part.is_affine]
    matrix, offset, _, missed = reading_of(level_of(space, sums), space.dim)
    if len(curved) != 1 or matrix.nnz or curved[0][0].atom is not QUAD_OVER_LIN:
        return None
    (part, factors), least = curved[0], float(sum_ends(offset, -missed)[0][0])
    inner, divisor = part.args
    affine = inner.is_affine and divisor.is_affine and bool(divisor.variables)
    if not affine or len(factors) > 1 or not min(factors[0], least) > 0:
        return None
    root = root_up(float(quotient_ends(float(factors[0]), least)[1]))
    return Constraint("inequality", (sum_squares(inner * root), divisor))


def weighted_sum(parts: Mapping[Expression, sp.csr_array]) -> Expression:
    """Return the scalar expression with these `linear_parts`."""
    terms = []
    for part, row in parts.items():
        weights = row.toarray()[0]
        if (weights == weights[0]).all():
            added = reshape(total(part), ())
            terms.append(added if weights[0] == 1 else float(weights[0]) * added)
        else:
            terms.append(total(reshape(weights, part.shape) * part))
    return add(*terms) if terms else constant(0.0)


def arguments_of(node: Expression) -> list[tuple[Expression, sp.csr_array]]:
    """Return the summands of a linear atom, numbers and arguments with variables, each with the matrix that multiplies it."""
    stand_ins = [
        Variable.of(argument.shape, f"argument {k}", -1 - k) if argument.variables else argument
        for k, argument in enumerate(node.args)
    ]
    space = Space([argument for argument in stand_ins if isinstance(argument, Variable)])
    matrix, offset = affine_map(node.operation(*stand_ins, **dict(node.options)), space)
    columns = sp.csc_array(matrix)
    numbers = [(constant(offset), sp.csr_array(sp.eye_array(node.size)))] if offset.any() else []
    return numbers + [
        (argument, sp.csr_array(columns[:, space.blocks[stand_in.name].slice]))
        for argument, stand_in in zip(node.args, stand_ins, strict=True)
        if isinstance(stand_in, Variable)
    ]


def groups(reduction: Expression) -> NDArray[np.int64]:
    """Return, for each entry of a reduction's argument, the number of the result's entry that it is part of."""
    return sum_matrix(reduction).indices.astype(np.int64)


def select_rows(parts: Parts, rows: Any) -> Parts:
    found = {part: sp.csr_array(factors[rows]) for part, factors in parts.items()}
    return {part: factors for part, factors in found.items() if factors.nnz}


def expand_maxima(parts: Parts) -> list[Parts] | None:
    """Return upper bounds on maxima as upper bounds on each of their terms; None if there is nothing to expand."""
    absolute = sum(np.diff(factors.indptr) for part, factors in parts.items() if part.atom is ABS)
    for part, factors in parts.items():
        found = choices(part)
        fit = (np.diff(factors.indptr) == 1) & (factors.sum(axis=1) > 0) & ((part.atom is not ABS) | (absolute == 1))
        if not found or not fit.any():
            continue
        others = {p: f for p, f in parts.items() if p is not part}
        sums = [select_rows(parts, np.flatnonzero(~fit))]
        for inner, chosen in found:
            pairs = sp.coo_array(sp.diags_array(fit.astype(float)) @ factors @ chosen)
            new = select_rows(others, pairs.row)
            pick = sp.csr_array((pairs.data, (np.arange(pairs.nnz), pairs.col)), shape=(pairs.nnz, inner.size))
            for p, f in linear_parts(inner).items():
                new[p] = sp.csr_array(new[p] + pick @ f) if p in new else sp.csr_array(pick @ f)
            sums.append(new)
        return [one for one in sums if one]
    return None


def is_euclidean(part: Expression) -> bool:
    return part.atom is NORM and part.option("p") == 2


def choices(part: Expression) -> list[tuple[Expression, sp.csr_array]]:
    """Return pairs of an expression and a matrix such that the part is the maximum of their products; [] for other atoms."""
    one = sp.csr_array(sp.eye_array(part.size))
    if part.atom is MAXIMUM:
        return [(argument, one) for argument in part.args]
    if part.atom is MAX:
        return [(part.args[0], sp.csr_array(one[:, groups(part)]))]
    if part.atom is SUM_LARGEST and (table := choices_of(part)) is not None:
        return [(constant(table) @ vec(part.args[0]), sp.csr_array(np.ones((1, len(table)))))]
    if part.atom is ABS and part.args[0].is_affine:
        return [(part.args[0], one), (part.args[0], -one)]
    return []


def stack_maps(maps: Sequence[Affine]) -> Affine:
    """Return affine maps stacked below each other."""
    return sp.csr_array(sp.vstack([matrix for matrix, _ in maps])), np.concatenate([offset for _, offset in maps])


def stack_weighted(parts: Sequence[Polynomial], weights: Sequence[Array]) -> Polynomial:
    """Return affine maps stacked below each other, with rows multiplied by weights; rows of weight zero are dropped."""
    rows = [sp.csr_array(sp.diags_array(w))[np.flatnonzero(w)] for w in weights]
    return joined([part.linear(own, own.shape[:1]) for own, part in zip(rows, parts, strict=True)])


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The function ``theta' H theta / 2 + <g, theta> + c``, with H sparse, shape (dim, dim), and g, shape (dim,)."""

    hessian: sp.csr_array
    slope: Array
    constant: float

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        bent = np.asarray(self.hessian @ theta)
        return float(theta @ bent / 2 + self.slope @ theta) + self.constant, bent + self.slope

    def hessian_at(self, theta: Array) -> sp.csr_array:
        return self.hessian


@dataclass(frozen=True, eq=False)
class SmoothExpression:
    """A public scalar as a function of the coordinates, with the methods of `Quadratic`."""

    root: Expression
    space: Space

    def _at(self, points: Array) -> tuple[Array, Array]:
        """Return values, shape (m,), and gradients, shape (dim, m), at real or complex points, shape (dim, m)."""
        blocks, many = self.space.blocks.values(), points.shape[1:]
        leaves: dict[Expression, Any] = {
            block.variable: (block.lift @ points[block.slice]).reshape((*block.variable.shape, *many), order="F")
            for block in blocks
        }
        found = over_records([self.root], leaves)
        with np.errstate(all="ignore"):
            known = gradients(list(found), found, self.root)
        slopes = [np.zeros((0, *many))]
        for block in blocks:
            slope = np.broadcast_to(known.get(block.variable, 0.0), (*block.variable.shape, *many))
            slopes.append(block.lift.T @ slope.reshape((-1, *many), order="F"))
        return np.broadcast_to(found[self.root], many), np.concatenate(slopes)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the value and the gradient; a subgradient where there are kinks."""
        value, slope = self._at(theta[:, None])
        return float(value[0]), slope[:, 0]

    def hessian_at(self, theta: Array) -> sp.csr_array:
        return sp.csr_array(np.imag(self._at(theta[:, None] + 1j * STEP * np.eye(len(theta)))[1]) / STEP)


def slope_of(expression: Expression, space: Space, x: Array) -> Array:
    """Return a subgradient of a public scalar at a point, shape (dim,)."""
    return SmoothExpression(expression, space).value_and_gradient(x)[1]


@dataclass(frozen=True)
class CurvatureBounds:
    """Bounds on the Hessian of a regularizer's smooth part, as declared, not multiplied by the number of records."""

    quadratic: float = 0.0  # For its squares: the largest absolute row sum of the Hessian
    rest: float = np.inf  # For the other terms, in the operator norm; infinite if there is no bound
    radius: float = 0.0  # The bounds hold at points of K of at most this norm
    reason: str = ""  # Why there is no bound


@once
def as_quadratic(expression: Expression, space: Space) -> Quadratic | None:
    """Return a public scalar expression as a quadratic function; None if it is not written as squares and affine terms."""
    return quadratic_of(linear_parts(expression), space) if expression.is_scalar else None


def quadratic_of(parts: Parts, space: Space) -> Quadratic | None:
    """Return the sum of weighted entries of expressions (`linear_parts` of a scalar) as a quadratic; None if it is not one."""
    nothing: tuple[Affine, Array] = (sp.csr_array((0, space.dim)), np.zeros(0)), np.zeros(0)
    found = {True: [nothing], False: [nothing]}  # affine expressions and squared ones, with their weights
    for part, row in parts.items():
        weights = row.toarray()[0]
        one = (part, weights) if part.is_affine else as_squares(part, weights)
        if one is None:
            return None
        found[part.is_affine].append((affine_map(one[0], space), one[1]))
    (lines, heights), (inner, offsets) = (stack_maps([one for one, _ in found[kind]]) for kind in (True, False))
    slopes, weights = (np.concatenate([own for _, own in found[kind]]) for kind in (True, False))
    scaled = sp.csr_array(inner.T * weights)
    slope = lines.T @ slopes + 2 * (scaled @ offsets)
    hessian = sp.csr_array(2 * (scaled @ inner))
    hessian.sort_indices()  # it is cached: sort before callers sort it in place
    return Quadratic(hessian, slope, float(slopes @ heights) + float(weights @ offsets**2))


def as_squares(part: Expression, weights: Array) -> tuple[Expression, Array] | None:
    """Return an affine e and weights v such that weighted entries of an atom add up to ``sum(v * e**2)``; None otherwise."""
    inner = part.args[0]
    if part.atom is POWER and part.option("p") == 2 and inner.is_affine:
        return inner, weights
    if part.atom is QUAD_OVER_LIN and inner.is_affine and part.args[1].is_constant:
        return inner, (weights / float(part.args[1].number))[groups(part)]
    return None
