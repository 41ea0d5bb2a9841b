"""Moments of weighted records: what a quadratic loss takes from records that were turned, stretched and weighted.

The loss ``theta' Q_z theta / 2 - <q_z, theta> + c`` of a record z, times the square of a weight u, is the loss of ``u x``, with
all other numbers times u: a moment that is linear in the features x takes one more factor u, and one without them takes two.  A
linear map of the features is one of the parameters (docs/theory.md, section 18).
"""

import itertools
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.calculus.moments import Moments, QuadraticLoss
from dpconvex.core.parameter_space import Space
from dpconvex.errors import TemplateError

Array = NDArray[np.float64]

# Relative error of two polynomials that are the same.
ALIKE = 1e-9


def base_of(loss: QuadraticLoss, field: str) -> int:
    """Return the number of a field among those of the record's scalars."""
    return next(k for k, base in enumerate(loss.bases.bases) if base.name == field)


def weighted(loss: QuadraticLoss, moments: Moments, field: str) -> Moments:
    base = base_of(loss, field)
    kinds = []
    for kind in moments.kinds:
        if kind.bases.count(base) > 2:
            raise TemplateError(
                f"the loss is of a higher degree than two in {field!r}, so records cannot be weighted; leave `whitening` out."
            )
        kinds.append(replace(kind, weights=2 - kind.bases.count(base)))
    return Moments(tuple(kinds))


def turned_parameters(loss: QuadraticLoss, space: Space, field: str, matrix: Array) -> sp.csr_array:
    """Return C, shape (dim, dim), such that the loss of theta at ``matrix @ x`` is that of ``C theta`` at x, or refuse.

    Every variable whose first or last axis is as long as x is turned along it, or left as it is; which, is tried.
    """
    d = len(matrix)
    choices = []
    for block in space.blocks.values():
        eye = sp.eye_array(block.dim)
        ways = [sp.csr_array(eye)]
        if not block.symmetric and block.variable.shape and block.dim == block.variable.size:
            rest = sp.eye_array(block.dim // d) if block.dim % d == 0 else None
            if rest is not None and block.variable.shape[0] == d:
                ways.insert(0, sp.csr_array(sp.kron(rest, matrix.T)))
            if rest is not None and block.variable.shape[-1] == d and len(block.variable.shape) == 2:
                ways.insert(1, sp.csr_array(sp.kron(matrix.T, rest)))
        choices.append(ways)
    for way in itertools.product(*choices):
        found = sp.csr_array(sp.block_diag(way))
        if turns(loss, field, matrix, found):
            return found
    raise TemplateError(
        f"the loss is not a function of linear scores of {field!r} that a turn of the parameters follows; leave `whitening` out."
    )


def turns(loss: QuadraticLoss, field: str, matrix: Array, turn: sp.csr_array) -> bool:
    """Say whether a turn of the parameters follows one of the features, at a random record: equal polynomials agree at all."""
    rng = np.random.default_rng(0)
    base = loss.bases.bases[base_of(loss, field)]
    mine = slice(base.start, base.start + base.size)
    scalars, theta = rng.uniform(-1.0, 1.0, loss.bases.count), rng.uniform(-1.0, 1.0, loss.dim)
    moved = scalars.copy()
    moved[mine] = matrix @ scalars[mine]
    first, second = record_terms(loss, scalars, turn @ theta), record_terms(loss, moved, theta)
    coefficient = sp.csc_array(loss.coefficient)
    apart = np.abs(coefficient.T @ first - coefficient.T @ second)
    return bool((apart <= ALIKE * (abs(coefficient).T @ (np.abs(first) + np.abs(second)))).all())


def record_terms(loss: QuadraticLoss, scalars: Array, theta: Array) -> Array:
    width = max(map(len, loss.monomials), default=0)
    table = np.array([(*monomial, *[len(scalars)] * (width - len(monomial))) for monomial in loss.monomials], dtype=int)
    products = np.append(scalars, 1.0)[table.reshape(len(loss.monomials), width)].prod(axis=1)
    factors = np.where(loss.targets >= 0, theta[loss.targets], 1.0).prod(axis=1)
    return np.asarray(products[loss.monomial] * factors[loss.target])
