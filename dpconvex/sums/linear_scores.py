"""Losses of scores that are linear in parameters: a field times a table of these, or rows of scores that share parameters."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotPrivate
from dpconvex.numerics import norm_up
from dpconvex.sensitivity.loss_form import LossForm, expander_of
from dpconvex.sums.forms import LeafForm, entries_form, exact_losses, form_of, leaf_form, shared_grid, with_scores
from dpconvex.sums.monomials import NAME, Monomials
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

ROW_BITS = 16  # Of the norm of a record's rows, in multiples of a grid
MOST = 2**15  # Most rows and columns of the table: sums of so many products of integers are exact
# Limits: parameters that scores share, stored monomials, and forms if fields multiply parameters outside of scores.
MOST_SHARED, MOST_MONOMIALS, MOST_ROWS = 300, 2**12, 64
REMEDY = "name another mechanism, such as NoisyGradientDescent(clip=1.0), or write scores as x @ w + b"


@dataclass(frozen=True, eq=False)
class LinearScores:
    """All scores of a template as ``(x, 1) @ table @ to_forms``, with one row of the table for each scalar of x and for the 1.

    Each parameter is one entry of the table, up to a scale.  Where scores share parameters, the table has a single column with
    all parameters, and each record has one row for each of `to_forms`: the Jacobian of its scores.  With too many shared
    parameters, or losses of other forms, the table has a single row, that of the 1, and one column for each parameter.
    """

    form: LeafForm
    name: str
    radius: float  # A bound on the Euclidean norm of the field x
    features: Indices  # The scalars of x that scores read
    has_constant: bool
    indices: Indices  # Parameter of each table entry, shape (rows, columns)
    scale: Array  # Ratio of table entries to parameters, shape (rows, columns)
    to_forms: sp.csr_array  # shape (columns, forms); of shared parameters, (rows of a record, forms)
    monomials: Monomials | None  # The rule that computes x, if it is no field of the record
    is_shared: bool  # Whether scores share parameters
    bounds: tuple[Array, Array] | None  # Bounds of x, if it is a field of the record
    lift: sp.csr_array  # From parameters to the shortest coordinates, shape (dim, parameters)
    width: float = 0.0  # Step of a central difference of slopes; 0 for derivatives
    is_implied: bool = False  # Whether other rows, such as levels, add up to the constant

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.indices.shape
        return rows, columns

    @property
    def is_too_large(self) -> bool:
        """Whether there are too many parameters for a metric, so that whole gradients are clipped."""
        return self.shape[0] == 1 and self.shape[1] > MOST_SHARED and self.has_constant

    @property
    def fields(self) -> tuple[str, ...]:
        """The record's fields from which x is computed."""
        return (self.name,) if self.monomials is None else self.monomials.fields

    @property
    def has_mixed_products(self) -> bool:
        """Whether rows may have products of different fields."""
        return self.monomials is not None and len(self.fields) > 1 and bool((self.monomials.first >= 0).any())

    @cached_property
    def from_table(self) -> sp.csr_array:
        """The map from the table, column by column, to coordinates of least norm, shape (dim, rows * columns)."""
        return sp.csr_array(self.lift[:, self.indices.T.ravel()] @ sp.diags_array(1 / self.scale.T.ravel()))

    @cached_property
    def to_table(self) -> sp.csr_array:
        """The map from coordinates to the table, column by column, shape (rows * columns, dim)."""
        found = sp.csr_array(sp.diags_array(1 / self.from_table.power(2).sum(axis=0)) @ self.from_table.T)
        if self.is_implied:
            found = sp.vstack([found[:-1], sp.csr_array((1, found.shape[1]))], format="csr")
        return found

    def table(self, theta: Array) -> Array:
        """Return the table of parameters at given coordinates, shape (rows, columns)."""
        return np.asarray(self.to_table @ theta).reshape(self.shape[::-1]).T

    def coordinates(self, table: Array) -> Array:
        """Return coordinates, shape (dim,), from the table of parameters."""
        return np.asarray(self.from_table @ table.T.ravel())

    def coefficients(self, table: Array) -> Array:
        """Return the coefficients of the forms, shape (forms, monomials)."""
        return np.asarray(self.form.map @ self.coordinates(table)).reshape(self.form.forms, -1)

    def squares(self, diagonal: Array) -> Array:
        """Return weights of the table's squares from weights of the coordinates' squares, shape (rows, columns)."""
        return np.asarray(self.from_table.power(2).T @ diagonal).reshape(self.shape[::-1]).T

    @property
    def feature_bounds(self) -> Array:
        """Bounds on the absolute scalars of x that scores read; x must be a field of the record."""
        found = np.nextafter(np.abs(np.array(self.bounds)).max(axis=0), np.inf)
        return found[self.features] if found.ndim == 1 else np.full(len(self.features), found.max())

    def part(self, features: Indices) -> "LinearScores":
        """Return the scores of some features and of the constant; the other parameters are 0."""
        rows = np.append(features, [len(self.features)] * self.has_constant).astype(np.int64)
        radius = min(self.radius, norm_up(self.feature_bounds[features])) or float(self.feature_bounds.max())
        own: Any = {"features": self.features[features], "indices": self.indices[rows], "scale": self.scale[rows]}
        return replace(self, radius=radius, **own)

    def in_units(self, units: list[float]) -> "LinearScores":
        """Return scores with columns in other units; powers of two change no rounding."""
        return replace(self, to_forms=sp.csr_array(sp.diags_array(units) @ self.to_forms), scale=self.scale / units)

    def with_constant(self, along: Array) -> "LinearScores":
        """Return one column with a constant added. The product of each row with `along`, shape (rows,), must be 1."""
        lift = sp.hstack([self.lift, sp.csr_array(self.from_table @ along[:, None])], format="csr")
        places, scale = np.append(self.indices[:, 0], lift.shape[1] - 1), np.append(self.scale[:, 0], 1.0)
        parts: Any = {"indices": places[:, None], "scale": scale[:, None], "lift": lift}
        return replace(self, has_constant=True, is_implied=True, **parts)

    @cached_property
    def projection(self) -> Array:
        """The projection of columns onto directions that change scores, shape (columns, columns); for a softmax, onto sum 0."""
        to_forms = self.to_forms.toarray()
        return np.asarray(to_forms @ np.linalg.pinv(to_forms))

    @property
    def table_projection(self) -> Array:
        """The projection of the table's columns: `projection`, or 1 if scores share parameters."""
        return np.ones((1, 1)) if self.is_shared else self.projection


@once
def linear_scores(form: LossForm) -> LinearScores:
    """Return the linear scores of the losses; raise `NotPrivate` if rows would be too large, or bounds are too far from 1."""
    parts = [with_scores(loss) for loss in exact_losses(form.template, form.space)]
    found = leaf_form(
        [loss for loss, _ in parts], [leaves for _, leaves in parts], expander_of(form.template, form.space)
    )
    if found is None or found.merged[0].grid is None:
        whole = form_of(form.template, form.space)
        hidden = found is not None and not len(monomials_read(found)) and whole.forms <= MOST_ROWS
        if found is None or hidden or whole.merged[0].grid is not None or whole.forms < found.forms:
            found = whole
    merged, lift = found.merged
    moving, domains = monomials_read(found), form.template.record.continuous
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
        raise refusal(form, f"the bound on {name.strip()!r}, or a parameter's factor, is not in [1e-100, 1e100]")
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


def monomials_read(form: LeafForm) -> Indices:
    """Return the indices of the monomials that scores read, without the constant."""
    found = np.unique(sp.coo_array(form.map).row % form.design.count)
    return found[found < form.design.count - 1]


def refusal(form: LossForm, why: str) -> NotPrivate:
    return NotPrivate(f"adaptive steps: {why}", form.template.losses[0], REMEDY)


def probe_direction(scores: LinearScores, number: int, before: Array | None = None) -> Array:
    """Return a unit vector of columns, in the space that scores depend on; for single rows, along the last gradient."""
    random = np.random.default_rng(number).normal(size=len(scores.projection))
    found = scores.projection @ (before[0] if before is not None and before.any() and len(before) == 1 else random)
    return np.asarray(found / np.linalg.norm(found))
