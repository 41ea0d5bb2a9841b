"""Rows of scores that share parameters: the Jacobian of a record's scores by all parameters, in integers."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.numerics import grid_step
from dpconvex.sums.forms import SAME
from dpconvex.sums.linear_scores import MOST_SHARED, ROW_BITS, LinearScores
from dpconvex.util.arrays import Array

JACOBIAN_BITS = 20  # Of an entry of a Jacobian
PLACES = 0.01, 0.1, 1.0, 10.0  # Sizes of the scores at which slopes are computed


def jacobian_of(scores: LinearScores, field_grid: float) -> tuple[sp.csr_array, float, float]:
    """Return the matrix from multiples of x and 1 to multiples of rows, the bound on a record's rows, and the rows' grid."""
    plain = derivatives(scores)
    bound = longest_rows(scores, plain)
    grid = grid_step(bound, ROW_BITS)
    table = plain[:, np.append(scores.features, -1)] * (field_grid / grid)
    unit = grid_step(float(abs(table).max()), JACOBIAN_BITS)
    table.data = np.rint(table.data / unit) * unit
    return table, bound / grid, grid


def derivatives(scores: LinearScores) -> sp.csr_array:
    """Return the map from monomials to a record's rows in units of the table, shape (kinds * dim, monomials)."""
    dim, count = len(scores.indices), scores.form.design.count
    table = sp.coo_array(sp.kron(scores.to_forms, sp.eye_array(count)) @ scores.form.map @ scores.from_table)
    rows = table.row // count * dim + table.col
    shape = (scores.to_forms.shape[0] * dim, count)
    return sp.csr_array(sp.coo_array((table.data, (rows, table.row % count)), shape=shape))


def longest_rows(scores: LinearScores, table: sp.csr_array) -> float:
    """Return an estimate of the largest norm of all rows of a record together; longer ones are clipped."""
    moving = table[:, scores.features]
    gram, few = moving.T @ moving, len(scores.features) <= MOST_SHARED
    longest = float(np.linalg.eigvalsh(gram.toarray())[-1] if few else abs(gram).sum(axis=0).max())
    return math.sqrt(longest * scores.radius**2 + float((table[:, [-1]] ** 2).sum()))


def without_constant_directions(scores: LinearScores, slopes_at: Callable[[Array], Any], size: int) -> LinearScores:
    """Return the scores without the directions of the forms in which `size` public records have no slopes."""
    apart = np.random.default_rng(0).normal(size=(scores.form.forms, size))
    slopes = np.concatenate([slopes_at(far * apart) for far in PLACES], axis=1)
    lengths = np.linalg.norm(slopes, axis=0)
    known = (lengths > 0) & (lengths < 1e100)  # neither infinite nor NaN
    directions, sizes, _ = np.linalg.svd(slopes[:, known] / lengths[known], full_matrices=False)
    kept = directions[:, sizes > SAME * sizes.max(initial=0.0)]
    return scores if kept.shape[1] in (0, len(kept)) else replace(scores, to_forms=sp.csr_array(kept.T))
