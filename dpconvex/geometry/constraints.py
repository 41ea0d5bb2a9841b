"""Constraints and attributes as sets in coordinates.

An affine expression of the variables becomes a sparse matrix and an offset in the coordinates of `space`; a constraint
becomes the pieces of `convex_sets` that it states, or an `Unrecognised` piece, with what bounds it, if it states none of them.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.extremes import MAX, MAXIMUM
from dpconvex.core.atoms.matrices import LAMBDA_MAX, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM, QUAD_OVER_LIN
from dpconvex.core.atoms.powers import ABS, POWER
from dpconvex.core.constraint import Constraint
from dpconvex.core.discipline import is_concave, is_convex, sign
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Block, Space
from dpconvex.errors import TemplateError, shorten
from dpconvex.geometry.convex_sets import Interval, Piece, Unrecognised
from dpconvex.geometry.linear_maps import affine_map, groups, linear_parts, weighted_counts
from dpconvex.geometry.quadratics import squares
from dpconvex.geometry.semidefinite import Spectrum
from dpconvex.geometry.stated_sets import (
    linear,
    norm_ball,
    nuclear_ball,
    semidefinite,
    spectral_ball,
    two_sided,
    unsatisfiable,
)

Array = NDArray[np.float64]
Pieces = list[Piece] | None


def read_attributes(block: Block) -> list[Piece]:
    has, name, shape = block.variable.attributes, block.name, block.variable.shape
    coordinates = np.arange(block.start, block.start + block.dim)
    side = math.isqrt(block.variable.size)
    pieces: list[Piece] = []
    for attribute, lower, upper in (("PSD", 0.0, np.inf), ("NSD", -np.inf, 0.0)):
        if attribute in has:
            text = f"{name} is {attribute}"
            if block.symmetric:
                pieces.append(Spectrum(coordinates, text, np.zeros((side, side)), lower, upper))
            else:
                pieces.append(Interval(coordinates, text, np.array([lower]), np.array([upper])))
    below, above = np.full(shape, -np.inf), np.full(shape, np.inf)
    texts = []
    if "nonneg" in has or "pos" in has:
        below, texts = np.zeros(shape), [f"{name} >= 0"]
    if "nonpos" in has or "neg" in has:
        above, texts = np.zeros(shape), [*texts, f"{name} <= 0"]
    if "bounds" in has:
        low, high = has["bounds"]
        below, above = np.maximum(below, low), np.minimum(above, high)
        texts.append(f"{name} within its bounds")
    if texts:
        entries = sp.csr_array(block.lift)
        shifted = sp.csr_array(
            (entries.data, entries.indices + block.start, entries.indptr),
            shape=(entries.shape[0], block.start + block.dim),
        )
        limits = below.reshape(-1, order="F"), above.reshape(-1, order="F")
        pieces.extend(linear(shifted, *limits, " and ".join(texts)))
    return pieces


def read_constraint(constraint: Constraint, space: Space) -> list[Piece]:
    text = shorten(str(constraint))
    fields = frozenset().union(*(argument.fields for argument in constraint.args))
    if fields:
        named = ", ".join(sorted(field.name for field in fields))
        raise TemplateError(f"the constraint {text} mentions {named}: constraints are public, without parameters.")
    foreign = [variable.name for variable in constraint.variables if variable.name not in space.blocks]
    if foreign:
        raise TemplateError(f"the constraint {text} mentions unknown variables: {', '.join(sorted(foreign))}.")
    if not states_convex_set(constraint):
        raise TemplateError(f"the constraint {text} is not convex by the rules of DCP; rewrite it with convex atoms.")
    pieces = recognised(constraint, space, text)
    if pieces is None:
        used = [np.arange(b.start, b.start + b.dim) for b in map(space.block_of, constraint.variables)]
        pieces = [Unrecognised(np.unique(np.concatenate(used)) if used else np.zeros(0, dtype=np.int64), text)]
    return pieces


def states_convex_set(constraint: Constraint) -> bool:
    if constraint.kind == "inequality":
        smaller, larger = constraint.args
        return is_convex(smaller) and is_concave(larger)
    return all(argument.is_affine for argument in constraint.args)


def recognised(constraint: Constraint, space: Space, text: str) -> Pieces:
    first, *others = constraint.args
    if constraint.kind == "semidefinite":
        return semidefinite(*affine_map(first, space), text)
    if constraint.kind == "equality":
        matrix, offset = affine_map(first - others[0], space)
        return linear(matrix, -offset, -offset, text)
    if constraint.kind == "inequality":
        difference = first - others[0]
        return at_most(difference, np.zeros(difference.size), space, text)
    if constraint.kind == "second-order cone" and first.is_scalar and first.is_constant:
        return norm_ball(*affine_map(others[0], space), 2, float(first.number.ravel()[0]), text)
    return None


def at_most(expression: Expression, level: Array, space: Space, text: str) -> Pieces:
    """Read ``expression <= level``, entry by entry in column order; infinite levels ask nothing."""
    if expression.is_affine:
        matrix, offset = affine_map(expression, space)
        return linear(matrix, np.full(len(offset), -np.inf), level - offset, text)
    matrix, curved = sp.csr_array((expression.size, space.dim)), {}
    for part, factors in linear_parts(expression).items():
        if part.is_affine:
            own, offset = affine_map(part, space)
            matrix, level = matrix + factors @ own, level - factors @ offset
        else:
            curved[part] = factors
    matrix.eliminate_zeros()
    counts = np.array([np.diff(factors.indptr) for factors in curved.values()]).reshape(len(curved), -1)
    asked = np.isfinite(level)
    straight = asked & (counts.sum(axis=0) == 0)
    bent = asked & ~straight
    # Each row is linear, or bounds entries of one atom by a number.
    if ((counts > 0).sum(axis=0)[bent] > 1).any() or (np.diff(matrix.indptr)[bent] > 0).any():
        return None
    found: list[Pieces] = [linear(matrix[straight], np.full(straight.sum(), -np.inf), level[straight], text)]
    for (part, factors), count in zip(curved.items(), counts, strict=True):
        upper, lower = np.full(part.size, np.inf), np.full(part.size, -np.inf)
        for row in np.flatnonzero(bent & (count > 0)):
            entries, weights = (
                a[factors.indptr[row] : factors.indptr[row + 1]] for a in (factors.indices, factors.data)
            )
            if count[row] > 1:
                found.append(
                    sum_at_most(part, weighted_counts(entries, weights, part.size), float(level[row]), space, text)
                )
            elif weights[0] > 0:
                upper[entries] = np.minimum(upper[entries], level[row] / weights[0])
            else:
                lower[entries] = np.maximum(lower[entries], level[row] / weights[0])
        if np.isfinite(upper).any():
            found.append(atom_at_most(part, upper, space, text))
        if np.isfinite(lower).any():
            found.append(None)  # a convex function from below
    return together(found)


def sum_at_most(part: Expression, weights: Array, level: float, space: Space, text: str) -> Pieces:
    """Read a bound on a weighted sum of an atom's entries: of squares, or of absolute values."""
    if (weights < 0).any():
        return None
    squared = squares(part, weights)
    if squared is not None:
        inner, weights = squared
        matrix, offset = affine_map(inner, space)
        scale = np.sqrt(weights)
        return norm_ball(rows_times(matrix, scale), offset * scale, 2, root(level, text), text)
    if part.atom is ABS and part.args[0].is_affine:
        matrix, offset = affine_map(part.args[0], space)
        return norm_ball(rows_times(matrix, weights), offset * weights, 1, level, text)
    return None


def atom_at_most(part: Expression, level: Array, space: Space, text: str) -> Pieces:
    """Read bounds on the entries of an atom that is not affine."""
    inner, atom = part.args[0], part.atom
    if atom is MAXIMUM:
        return together([at_most(argument, level, space, text) for argument in part.args])
    if atom is MAX:
        return at_most(inner, level[groups(part)], space, text)
    if atom is POWER and part.option("p") >= 1 and sign(inner) == 1 and not inner.is_affine:
        return at_most(inner, np.array([root(bound, text, part.option("p")) for bound in level]), space, text)
    if not inner.is_affine:
        return None
    matrix, offset = affine_map(inner, space)
    if atom is ABS:
        return two_sided(matrix, offset, level, text)
    if atom is POWER and part.option("p") == 2:
        return two_sided(matrix, offset, np.array([root(bound, text) for bound in level]), text)
    if atom is LAMBDA_MAX:
        return semidefinite(-matrix, level[0] * np.eye(inner.shape[0]).ravel() - offset, text)
    if atom is SIGMA_MAX:
        return spectral_ball(matrix, offset, inner.shape, float(level[0]), text)
    if atom is NORM_NUC:
        return nuclear_ball(matrix, offset, inner.shape, float(level[0]), text)
    if atom is NORM and part.option("p") == np.inf:
        return two_sided(matrix, offset, level[groups(part)], text)
    if atom is NORM or (atom is QUAD_OVER_LIN and part.args[1].is_constant):
        order = part.option("p") if atom is NORM else 2.0
        divisor = 1.0 if atom is NORM else float(part.args[1].number)
        found: list[Pieces] = []
        for k in np.flatnonzero(np.isfinite(level)):
            rows, bound = groups(part) == k, float(level[k])
            bound = bound if atom is NORM else root(bound * divisor, text)
            found.append(norm_ball(sp.csr_array(matrix[rows]), offset[rows], order, bound, text))
        return together(found)
    return None


def rows_times(matrix: sp.csr_array, factors: Array) -> sp.csr_array:
    return sp.csr_array(sp.dia_array((factors[None], 0), shape=(len(factors), len(factors))) @ matrix)


def root(power: float, text: str, order: float = 2.0) -> float:
    """Return the bound on a number that is not negative, from the bound on its power."""
    if power < 0:
        raise unsatisfiable(text)
    return float(np.sqrt(power)) if order == 2 else float(power ** (1 / order))


def together(parts: list[Pieces]) -> Pieces:
    """All pieces, or None if a part was not recognised."""
    if any(part is None for part in parts):
        return None
    return [piece for part in parts if part is not None for piece in part]
