"""Reading CVXPY constraints and attributes as sets in coordinates.

An affine expression of the variables becomes a sparse matrix and an offset in the coordinates of `space`; a constraint
becomes the pieces of `sets` that it states, or an `Unrecognised` piece if it states none of them.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.abs import abs as absolute
from cvxpy.atoms.elementwise.maximum import maximum
from cvxpy.atoms.elementwise.minimum import minimum
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.max import max as max_entries
from cvxpy.atoms.min import min as min_entries
from cvxpy.atoms.norm1 import norm1
from cvxpy.atoms.norm_inf import norm_inf
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from cvxpy.constraints.nonpos import Inequality, NonNeg, NonPos
from cvxpy.constraints.psd import PSD
from cvxpy.constraints.zero import Equality, Zero
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Block, Space
from dpconvex.errors import TemplateError, shorten
from dpconvex.geometry.convex_sets import AffineSubspace, Interval, NormBall, Piece, Slab, Spectrum, close

__all__ = ["Unrecognised", "affine_map", "read_attributes", "read_constraint"]

Array = NDArray[np.float64]


class Unrecognised(Piece):
    """A constraint that no projection is known for."""


def affine_map(expression: cp.Expression, space: Space) -> tuple[sp.csr_array, Array]:
    """Return the matrix and offset of an affine expression of the variables.

    Parameters
    ----------
    expression : cvxpy.Expression
        Affine, without parameters.
    space : Space

    Returns
    -------
    matrix : sparse array, shape (expression.size, space.dim)
    offset : ndarray, shape (expression.size,)
        So that the entries of the expression, in column order, are ``matrix @ theta + offset``.
    """
    # The derivative is taken on a copy with plain variables: values of the user's own variables are not ours to set.
    stand_in: dict[int, cp.Variable] = {}
    for variable in expression.variables():
        copy = cp.Variable(variable.shape)
        copy.value = np.zeros(variable.shape)
        stand_in[id(variable)] = copy
    if not stand_in:
        return sp.csr_array((expression.size, space.dim)), flat(expression.value)
    plain = expression.tree_copy(id_objects=stand_in)
    gradient = plain.grad
    matrix = sp.csr_array((expression.size, space.dim))
    for variable in expression.variables():
        block = space.block_of(variable)
        slope = gradient[stand_in[id(variable)]]
        part = sp.csr_array(slope if sp.issparse(slope) else np.reshape(slope, (variable.size, expression.size)))
        place = sp.csr_array(
            (np.ones(block.dim), (np.arange(block.dim), np.arange(block.start, block.start + block.dim))),
            shape=(block.dim, space.dim),
        )
        matrix = matrix + part.T @ block.lift @ place
    return sp.csr_array(matrix), flat(plain.value)


def flat(value: Any) -> Array:
    """Entries of a CVXPY value in column order, as a vector."""
    dense = value.toarray() if sp.issparse(value) else np.asarray(value, dtype=float)
    return np.asarray(dense, dtype=float).reshape(-1, order="F")


def read_attributes(block: Block) -> list[Piece]:
    """Turn the attributes of a variable into pieces.

    Raises
    ------
    TemplateError
        If its bounds are not numbers.
    """
    attributes, name = block.variable.attributes, block.name
    coordinates = np.arange(block.start, block.start + block.dim)
    side = int(np.sqrt(block.variable.size))
    pieces: list[Piece] = []
    for attribute, lower, upper in (("PSD", 0.0, np.inf), ("NSD", -np.inf, 0.0)):
        if attributes[attribute]:
            text = f"{name} is {attribute}"
            if block.symmetric:
                pieces.append(Spectrum(coordinates, text, np.zeros((side, side)), lower, upper))
            else:
                pieces.append(Interval(coordinates, text, np.array([lower]), np.array([upper])))
    below, above = np.full(block.variable.shape, -np.inf), np.full(block.variable.shape, np.inf)
    texts = []
    if attributes["nonneg"] or attributes["pos"]:
        below, texts = np.zeros(block.variable.shape), [f"{name} >= 0"]
    if attributes["nonpos"] or attributes["neg"]:
        above, texts = np.zeros(block.variable.shape), [*texts, f"{name} <= 0"]
    if attributes["bounds"] is not None:
        numbers = []
        for bound in list(attributes["bounds"]):
            constant = cp.Expression.cast_to_const(bound)
            if constant.parameters() or not constant.is_constant():
                raise TemplateError(f"variable {name!r}: its bounds must be numbers, not {bound}.")
            numbers.append(np.broadcast_to(np.asarray(constant.value, dtype=float), block.variable.shape))
        below, above = np.maximum(below, numbers[0]), np.minimum(above, numbers[1])
        texts.append(f"{name} within its bounds")
    if texts:
        entries = sp.csr_array(block.lift)
        shifted = sp.csr_array(
            (entries.data, entries.indices + block.start, entries.indptr),
            shape=(entries.shape[0], block.start + block.dim),
        )
        pieces.extend(linear(shifted, -flat(below), flat(above), " and ".join(texts)))
    return pieces


def read_constraint(constraint: cp.Constraint, space: Space) -> list[Piece]:
    """Turn a constraint into pieces.

    Raises
    ------
    TemplateError
        If it is not convex, mentions a parameter or a foreign variable, or cannot be satisfied.
    """
    text = shorten(str(constraint))
    if constraint.parameters():
        named = ", ".join(sorted(p.name() for p in constraint.parameters()))
        raise TemplateError(f"the constraint {text} mentions {named}: constraints are public, without parameters.")
    foreign = [v.name() for v in constraint.variables() if space.blocks.get(str(v.name()), None) is None]
    if foreign:
        raise TemplateError(f"the constraint {text} mentions unknown variables: {', '.join(foreign)}.")
    if not constraint.is_dcp():
        raise TemplateError(f"the constraint {text} is not convex by the rules of DCP; rewrite it with convex atoms.")
    pieces: list[Piece] | None = None
    if isinstance(constraint, PSD):
        pieces = semidefinite(*affine_map(constraint.args[0], space), text)
    elif isinstance(constraint, Equality | Zero):
        expression = constraint.expr if isinstance(constraint, Equality) else constraint.args[0]
        matrix, offset = affine_map(expression, space)
        pieces = linear(matrix, offset, -offset, text)
    elif isinstance(constraint, Inequality | NonPos | NonNeg):
        expression = {Inequality: lambda c: c.expr, NonPos: lambda c: c.args[0], NonNeg: lambda c: -c.args[0]}[
            type(constraint)
        ](constraint)
        pieces = at_most_zero(expression, space, text)
    elif isinstance(constraint, cp.SOC) and constraint.args[0].is_constant() and constraint.args[0].is_scalar():
        pieces = ball(*affine_map(constraint.args[1], space), float(flat(constraint.args[0].value)[0]), text)
    if pieces is None:
        used = [np.arange(b.start, b.start + b.dim) for b in map(space.block_of, constraint.variables())]
        pieces = [Unrecognised(np.unique(np.concatenate(used)) if used else np.zeros(0, dtype=np.int64), text)]
    return pieces


def at_most_zero(expression: cp.Expression, space: Space, text: str) -> list[Piece] | None:
    """Read ``expression <= 0``: affine, or one convex atom of an affine argument plus constants."""
    if expression.is_affine():
        matrix, offset = affine_map(expression, space)
        return linear(matrix, np.full(len(offset), np.inf), -offset, text)
    terms, constant = split(expression)
    if len(terms) != 1 or terms[0][0] == 0:
        return None
    factor, atom = terms[0]
    level = -np.asarray(constant, dtype=float) / factor
    sign = 1 if factor > 0 else -1
    if isinstance(atom, (maximum, max_entries) if factor > 0 else (minimum, min_entries)):
        arguments = list(atom.args) if isinstance(atom, maximum | minimum) or atom.axis is None else []
        return together([at_most_zero(sign * (a - spread(level, a, sign)), space, text) for a in arguments])
    if factor < 0:
        return None
    if not all(a.is_affine() for a in atom.args):
        squared = isinstance(atom, Power) and float(atom.p.value) == 2 and atom.is_scalar()
        if squared and isinstance(atom.args[0], Pnorm):
            return at_most_zero(atom.args[0] - root(level, text), space, text)
        if isinstance(atom, Sum) and isinstance(atom.args[0], Power) and atom.axis is None:
            inner = atom.args[0]
            if float(inner.p.value) == 2 and inner.args[0].is_affine():
                return ball(*affine_map(inner.args[0], space), root(level, text), text)
        return None
    if (
        isinstance(atom, absolute)
        or (isinstance(atom, norm_inf) and atom.axis is None)
        or (isinstance(atom, norm1) and atom.args[0].is_scalar())
    ):
        matrix, offset = affine_map(atom.args[0], space)
        limits = flat(np.broadcast_to(level, atom.args[0].shape))
        if (limits < 0).any():
            raise TemplateError(f"the constraint {text} cannot be satisfied.")
        return linear(matrix, limits + offset, limits - offset, text)
    if isinstance(atom, Pnorm) and atom.original_p == 2 and atom.axis is None:
        return ball(*affine_map(atom.args[0], space), float(level), text)
    if isinstance(atom, quad_over_lin) and atom.axis is None and atom.args[1].is_constant():
        square = level * float(atom.args[1].value)
        return ball(*affine_map(atom.args[0], space), root(square, text), text)
    if isinstance(atom, Power) and float(atom.p.value) == 2 and atom.is_scalar():
        return ball(*affine_map(atom.args[0], space), root(level, text), text)
    return None


def split(expression: cp.Expression) -> tuple[list[tuple[float, cp.Expression]], Any]:
    """Write an expression as a sum of positive or negative multiples of atoms, and a constant."""
    if expression.is_constant():
        return [], expression.value
    if isinstance(expression, AddExpression):
        parts = [split(a) for a in expression.args]
        return [term for terms, _ in parts for term in terms], sum(constant for _, constant in parts)
    if isinstance(expression, NegExpression):
        terms, constant = split(expression.args[0])
        return [(-factor, atom) for factor, atom in terms], -constant
    if isinstance(expression, Promote) and not expression.args[0].is_constant():
        return [(1.0, expression)], 0.0
    if isinstance(expression, multiply | MulExpression | DivExpression):
        left, right = expression.args
        scale, other = (left, right) if left.is_constant() else (right, left)
        while isinstance(scale, Promote):
            scale = scale.args[0]
        if scale.is_constant() and scale.is_scalar():
            number = float(scale.value)
            number = 1.0 / number if isinstance(expression, DivExpression) else number
            terms, constant = split(other)
            return [(number * factor, atom) for factor, atom in terms], number * constant
    return [(1.0, expression)], 0.0


def spread(level: Array, argument: cp.Expression, sign: int) -> Any:
    """Return the bound on an argument: the level itself, or the tightest of its entries if it has another shape."""
    if level.ndim == 0 or level.shape != argument.shape:
        return float(level.min() if sign > 0 else level.max())
    return level


def root(square: Any, text: str) -> float:
    """Square root of a bound."""
    if float(square) < 0:
        raise TemplateError(f"the constraint {text} cannot be satisfied.")
    return float(np.sqrt(square))


def together(parts: list[list[Piece] | None]) -> list[Piece] | None:
    """All pieces, or None if a part was not recognised."""
    if not parts or any(part is None for part in parts):
        return None
    return [piece for part in parts if part is not None for piece in part]


def linear(matrix: sp.csr_array, below: Array, above: Array, text: str) -> list[Piece]:
    """Pieces of ``-below <= matrix @ theta <= above``: bounds, linear equations and slabs, row by row."""
    matrix = sp.csr_array(matrix)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    lower, count = -below, np.diff(matrix.indptr)
    slack = 1e-12 * (1 + np.where(np.isfinite(above), np.abs(above), 0))
    if (lower > above + slack).any() or ((count == 0) & ((lower > slack) | (above < -slack))).any():
        raise TemplateError(f"the constraint {text} cannot be satisfied.")
    pieces: list[Piece] = []
    rows = np.flatnonzero(count == 1)
    if len(rows):
        column, slope = matrix.indices[matrix.indptr[rows]].astype(np.int64), matrix.data[matrix.indptr[rows]]
        one, two = lower[rows] / slope, above[rows] / slope
        pieces.append(bounds(column, np.minimum(one, two), np.maximum(one, two), text))
    for row in np.flatnonzero(count > 1):
        entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
        order = np.argsort(matrix.indices[entries])
        column, slope = matrix.indices[entries][order].astype(np.int64), matrix.data[entries][order]
        if lower[row] == above[row]:
            pieces.append(AffineSubspace(column, text, slope[None], above[[row]]))
        else:
            # A fixed sign and length make parallel slabs comparable.
            scale = float(np.linalg.norm(slope)) * (1.0 if slope[0] > 0 else -1.0)
            ends = sorted((lower[row] / scale, above[row] / scale))
            pieces.append(Slab(column, text, slope / scale, ends[0], ends[1]))
    return pieces


def bounds(column: NDArray[np.int64], below: Array, above: Array, text: str) -> Interval:
    """Bounds on single coordinates, each as tight as the tightest of those given for it."""
    coordinates, place = np.unique(column, return_inverse=True)
    lower, upper = np.full(len(coordinates), -np.inf), np.full(len(coordinates), np.inf)
    np.maximum.at(lower, place, below)
    np.minimum.at(upper, place, above)
    if (lower > upper).any():
        raise TemplateError(f"the constraint {text} cannot be satisfied.")
    return Interval(coordinates, text, lower, upper)


def ball(matrix: sp.csr_array, offset: Array, radius: float, text: str) -> list[Piece] | None:
    """Read ``||matrix @ theta + offset|| <= radius`` if the matrix is a multiple of an isometry on its coordinates."""
    gram = sp.csr_array(matrix.T @ matrix)
    scale = gram.diagonal()
    columns = np.flatnonzero(scale)
    if not len(columns):
        if float(np.linalg.norm(offset)) > radius:
            raise TemplateError(f"the constraint {text} cannot be satisfied.")
        return []
    square = float(scale[columns].mean())
    difference = gram[columns][:, columns] - square * sp.eye_array(len(columns))
    if abs(difference).max() > 1e-12 * square:
        return None
    center = -np.asarray(matrix[:, columns].T @ offset) / square
    missed = float(np.linalg.norm(matrix[:, columns] @ center + offset))
    missed = 0.0 if missed <= 1e-12 * float(np.linalg.norm(offset)) else missed
    if missed > radius:
        raise TemplateError(f"the constraint {text} cannot be satisfied.")
    return [NormBall(columns, text, center, float(np.sqrt((radius**2 - missed**2) / square)))]


def semidefinite(matrix: sp.csr_array, offset: Array, text: str) -> list[Piece] | None:
    """Read ``s X + C >= 0`` for a symmetric variable, or a principal submatrix of one, X."""
    side = int(np.sqrt(len(offset)))
    row, column = np.triu_indices(side)
    upper = sp.csr_array(matrix[column * side + row])
    mirrored = sp.csr_array(matrix[row * side + column])
    if abs(upper - mirrored).max() > 0 or not (np.diff(upper.indptr) == 1).all() or len(set(upper.indices)) < len(row):
        return None
    slope = upper.data * np.where(row == column, 1.0, np.sqrt(2.0))
    if not close(slope, np.full(len(slope), slope[0])).all():
        return None
    constant = offset.reshape(side, side)
    if not close(constant, constant.T).all():
        return None
    scale = float(slope[0])
    shift = -(constant + constant.T) / (2 * scale)
    level = 0.0
    if (shift == shift[0, 0] * np.eye(side)).all():
        shift, level = np.zeros((side, side)), float(shift[0, 0])
    bounds = (level, np.inf) if scale > 0 else (-np.inf, level)
    if side == 1:
        return [Interval(upper.indices.astype(np.int64), text, np.array([bounds[0]]), np.array([bounds[1]]))]
    return [Spectrum(upper.indices.astype(np.int64), text, shift, *bounds)]
