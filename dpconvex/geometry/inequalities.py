"""Constraints as what can be linearised: what is linear, matrix inequalities, and convex functions that are not positive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import hstack, repeated, reshape, transpose, vstack
from dpconvex.core.atoms.divergences import rel_entr
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, MIN, MINIMUM, SUM_LARGEST
from dpconvex.core.atoms.matrices import LAMBDA_MAX, NORM_NUC, SIGMA_MAX
from dpconvex.core.atoms.norms import NORM, norm
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.constraint import Constraint
from dpconvex.core.discipline import is_concave
from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.errors import MissingRule
from dpconvex.geometry.constraints import recognised
from dpconvex.geometry.convex_sets import UNIT, AffineSubspace, Interval, Piece, Slab
from dpconvex.geometry.linear_maps import affine_map, groups
from dpconvex.geometry.semidefinite import Spectrum

Array = NDArray[Any]

# Atoms with kinks that no inequality of ours avoids; norms of order 1 and infinity have them too.
KINKED = (ABS, MAX, MAXIMUM, MIN, MINIMUM, SUM_LARGEST, LAMBDA_MAX, SIGMA_MAX, NORM_NUC)


def stated(constraint: Constraint, space: Space) -> list[Piece] | None:
    """Return the bounds, slabs, equations and matrix inequalities that a constraint states; None if it is curved."""
    pieces = recognised(constraint, space, str(constraint))
    if pieces is not None and all(isinstance(p, Interval | Slab | AffineSubspace | Spectrum) for p in pieces):
        return pieces
    return None


def has_kinks(expression: Expression) -> bool:
    return any(
        node.atom in KINKED or (node.atom is NORM and node.option("p") in (1.0, np.inf))
        for node in postorder([expression])
    )


def simplified(constraint: Constraint) -> list[Constraint]:
    """Write bounds on the greatest of several expressions as bounds on each, and bounds on spectra as matrix inequalities."""
    if constraint.kind != "inequality":
        return [constraint]
    small, large = constraint.args
    if small.atom is ABS:
        return [c for a in (small.args[0], -small.args[0]) for c in simplified(Constraint("inequality", (a, large)))]
    if (small.atom is MAX or (small.atom is NORM and small.option("p") == np.inf)) and small.args[0].is_affine:
        inner = reshape(small.args[0], (small.args[0].size,))
        above = reshape(large, (large.size,))[groups(small)] if large.size > 1 else large
        sides = (inner,) if small.atom is MAX else (inner, -inner)
        return [Constraint("inequality", (side, above)) for side in sides]
    if small.atom is MAXIMUM or large.atom is MINIMUM:
        smaller = small.args if small.atom is MAXIMUM else (small,)
        larger = large.args if large.atom is MINIMUM else (large,)
        return [c for a in smaller for b in larger for c in simplified(Constraint("inequality", (a, b)))]
    if small.atom in (LAMBDA_MAX, SIGMA_MAX) and small.args[0].is_affine and large.is_affine:
        inner, level = small.args[0], reshape(large, ())
        rows, columns = inner.shape
        if small.atom is LAMBDA_MAX:
            return [Constraint("semidefinite", (level * np.eye(rows) - inner,))]
        upper = hstack(level * np.eye(rows), inner)
        return [Constraint("semidefinite", (vstack(upper, hstack(transpose(inner), level * np.eye(columns))),))]
    return [constraint]


def symmetric_map(matrix: Expression, space: Space) -> tuple[sp.csr_array, Array]:
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


def curved(constraint: Constraint) -> Expression:
    first, *others = constraint.args
    if constraint.kind == "inequality":
        return first - others[0]
    if constraint.kind == "second-order cone":
        if others[0].ndim < 2:
            return norm(others[0]) - reshape(first, ())
        return norm(others[0], axis=(int(constraint.options[0]),)) - reshape(first, (first.size,))
    if constraint.kind == "exponential cone":
        return first + rel_entr(others[0], others[1])
    raise MissingRule(
        f"a {constraint.kind} has no linearisations", first, "write the constraint with atoms such as cp.power"
    )


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
