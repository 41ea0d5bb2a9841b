"""Losses of scores that are linear in parameters: a table of these and one field, or rows of many scores that share them."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotPrivate
from dpconvex.numerics import norm_up
from dpconvex.sensitivity.loss_form import LossForm, expander_of
from dpconvex.sums.forms import LeafForm, entries_form, exact_losses, form_of, shared_grid, split, with_scores
from dpconvex.sums.monomials import NAME, Monomials
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

ROW_BITS = 16  # Of the norm of a record's row, or of all its rows, in multiples of a grid
MOST = 2**15  # Rows and columns of the table: products of whole numbers with so many terms are exact
# Parameters that scores share, monomials that are written down, and scores of a record whose fields parameters multiply.
MOST_SHARED, MOST_MONOMIALS, MOST_ROWS = 300, 2**12, 64
REMEDY = "name another mechanism, such as NoisyGradientDescent(clip=1.0), or write scores as x @ w + b"


@dataclass(frozen=True, eq=False)
class LinearScores:
    """All scores of a template as ``(x, 1) @ table @ to_forms``, with one row of the table for each scalar of x and for the 1.

    Parameters are entries of the table, each once, but for a scale.  Where scores share parameters, the table has one column,
    which is all parameters, and a record has a row of its own for each of `to_forms`: the Jacobian of its scores.  Where these
    are too many, or losses are no functions of such scores, the table has one row, that of the 1, and a column a parameter.
    """

    form: LeafForm
    name: str
    radius: float  # Of the field x: a bound on its Euclidean norm
    features: Indices  # The scalars of x that are read
    has_constant: bool
    indices: Indices  # Of the table's entries among all parameters, shape (rows, columns)
    scale: Array  # Of the entries of the table next to parameters, shape (rows, columns)
    to_forms: sp.csr_array  # shape (columns, forms); of shared parameters, (rows of a record, forms)
    monomials: Monomials | None  # How x is made, if it is no field of the record
    is_shared: bool  # Whether scores share parameters
    bounds: tuple[Array, Array] | None  # Of x, if it is a field of the record
    lift: sp.csr_array  # To coordinates, shape (dim, parameters): of those that enter in proportion, the shortest ones
    width: float = 0.0  # Half of how far apart slopes are whose difference is a curvature; 0 for derivatives
    is_implied: bool = False  # Whether the constant is that of other rows, as of levels, and no parameter of its own

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.indices.shape
        return rows, columns

    @property
    def is_too_large(self) -> bool:
        """Whether parameters are too many for a metric, so that whole gradients are clipped."""
        return self.shape[0] == 1 and self.shape[1] > MOST_SHARED and self.has_constant

    @property
    def fields(self) -> tuple[str, ...]:
        """The record's fields that x is made of."""
        return (self.name,) if self.monomials is None else self.monomials.fields

    @property
    def has_mixed_products(self) -> bool:
        """Whether rows have products of entries of several fields."""
        return self.monomials is not None and len(self.fields) > 1 and bool((self.monomials.first >= 0).any())

    @cached_property
    def from_table(self) -> sp.csr_array:
        """The map from the table, column by column, to the shortest coordinates, shape (dim, rows * columns)."""
        return sp.csr_array(self.lift[:, self.indices.T.ravel()] @ sp.diags_array(1 / self.scale.T.ravel()))

    @cached_property
    def to_table(self) -> sp.csr_array:
        """The map from coordinates to the table, column by column, shape (rows * columns, dim)."""
        found = sp.csr_array(sp.diags_array(1 / self.from_table.power(2).sum(axis=0)) @ self.from_table.T)
        if self.is_implied:
            found = sp.vstack([found[:-1], sp.csr_array((1, found.shape[1]))], format="csr")
        return found

    def table(self, theta: Array) -> Array:
        """Return the table of parameters that coordinates have, shape (rows, columns)."""
        return np.asarray(self.to_table @ theta).reshape(self.shape[::-1]).T

    def coordinates(self, table: Array) -> Array:
        """Return coordinates, shape (dim,), from the table of parameters."""
        return np.asarray(self.from_table @ table.T.ravel())

    def coefficients(self, table: Array) -> Array:
        """Return the coefficients of the forms, shape (forms, monomials)."""
        return np.asarray(self.form.map @ self.coordinates(table)).reshape(self.form.forms, -1)

    def squares(self, diagonal: Array) -> Array:
        """Return weights of squares of the table from those of squares of coordinates, shape (rows, columns)."""
        return np.asarray(self.from_table.power(2).T @ diagonal).reshape(self.shape[::-1]).T

    @property
    def feature_bounds(self) -> Array:
        """Bounds on the scalars of x that are read, where it is a field of the record."""
        found = np.nextafter(np.abs(np.array(self.bounds)).max(axis=0), np.inf)
        return found[self.features] if found.ndim == 1 else np.full(len(self.features), found.max())

    def part(self, features: Indices) -> "LinearScores":
        """Return the scores of some features, and of the constant; other parameters are 0."""
        rows = np.append(features, [len(self.features)] * self.has_constant).astype(np.int64)
        radius = min(self.radius, norm_up(self.feature_bounds[features])) or float(self.feature_bounds.max())
        own: Any = {"features": self.features[features], "indices": self.indices[rows], "scale": self.scale[rows]}
        return replace(self, radius=radius, **own)

    def in_units(self, units: list[float]) -> "LinearScores":
        """Return scores whose columns are in other units: powers of two, which change no rounding."""
        return replace(self, to_forms=sp.csr_array(sp.diags_array(units) @ self.to_forms), scale=self.scale / units)

    def with_constant(self, along: Array) -> "LinearScores":
        """Return one column with a constant beside rows whose products with a vector, shape (rows,), are 1 for each record."""
        lift = sp.hstack([self.lift, sp.csr_array(self.from_table @ along[:, None])], format="csr")
        places, scale = np.append(self.indices[:, 0], lift.shape[1] - 1), np.append(self.scale[:, 0], 1.0)
        parts: Any = {"indices": places[:, None], "scale": scale[:, None], "lift": lift}
        return replace(self, has_constant=True, is_implied=True, **parts)

    @cached_property
    def projection(self) -> Array:
        """The projection of columns on those that scores depend on, shape (columns, columns): of a softmax, sums of 0."""
        to_forms = self.to_forms.toarray()
        return np.asarray(to_forms @ np.linalg.pinv(to_forms))

    @property
    def table_projection(self) -> Array:
        """The same of the table's columns."""
        return np.ones((1, 1)) if self.is_shared else self.projection


@once
def linear_scores(form: LossForm) -> LinearScores:
    """Return the losses' scores, or raise `NotPrivate` where no rows of records can be written down."""
    parts = [with_scores(loss) for loss in exact_losses(form.template, form.space)]
    found = split([loss for loss, _ in parts], [leaves for _, leaves in parts], expander_of(form.template, form.space))
    if found is None or found.merged[0].grid is None:
        whole = form_of(form.template, form.space)
        hidden = found is not None and not len(read(found)) and whole.forms <= MOST_ROWS
        if found is None or hidden or whole.merged[0].grid is not None or whole.forms < found.forms:
            found = whole
    merged, lift = found.merged
    moving, domains = read(found), form.template.record.continuous
    names = [n for n, span in found.design.columns.items() if ((moving >= span.start) & (moving < span.stop)).any()]
    monomials, grid = None, merged.grid
    if not names or (grid is None and merged.map.shape[1] > MOST_SHARED):
        found, moving, names = entries_form(form.template, form.space), moving[:0], []
        grid = np.arange(form.space.dim)[None], found.map.T, np.zeros(1, dtype=np.int64), np.ones(form.space.dim)
        lift = sp.eye_array(form.space.dim, format="csr")
    if grid is None or found.design.pairs is not None or len(names) != 1:
        if len(moving) > MOST_MONOMIALS:
            raise refusal(form, f"scores read {len(moving):,} products of fields, more than {MOST_MONOMIALS:,}")
        monomials = Monomials.of(found.design, moving, domains)
        found = monomials.tabulated(found, moving)
        merged, lift = found.merged if names else (merged, lift)
        grid = merged.grid if names else grid
    shared, name = grid is None, NAME if monomials else names[0]
    places, kinds, used, scale = grid or shared_grid(merged, len(moving))
    if max(places.shape) > MOST:
        raise refusal(form, f"scores have {max(places.shape):,} features or columns, more than {MOST:,}")
    radius = float(domains[name].norm_bound) if monomials is None else monomials.radius
    if not 1e-100 <= radius <= 1e100 or not all(1e-100 <= abs(s) <= 1e100 for s in scale):
        raise refusal(form, f"the bound on {name.strip()!r}, or a factor of a parameter, is too far from 1")
    features = used[used < found.design.count - 1] - found.design.columns[name].start
    return LinearScores(
        form=found,
        name=name,
        radius=math.nextafter(radius, math.inf),
        features=features,
        has_constant=len(used) > len(features) and not shared,
        indices=places,
        scale=scale[places],
        to_forms=sp.csr_array(kinds),
        monomials=monomials,
        is_shared=shared,
        bounds=domains[name].bounds if monomials is None else None,
        lift=lift,
    )


def read(form: LeafForm) -> Indices:
    """Return the numbers of the monomials that scores read, but for 1."""
    found = np.unique(sp.coo_array(form.map).row % form.design.count)
    return found[found < form.design.count - 1]


def refusal(form: LossForm, why: str) -> NotPrivate:
    return NotPrivate(f"adaptive steps: {why}", form.template.losses[0], REMEDY)
