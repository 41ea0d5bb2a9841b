"""Losses of scores that are linear in one field: the table of parameters, and what multiplies it."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.arrays import Array, Indices
from dpconvex.core.runtime import once
from dpconvex.errors import NotPrivate
from dpconvex.evaluation.forms import LeafForm, form_of

MOST = 2**15  # Rows and columns of the table: products of whole numbers with so many terms are exact
REMEDY = "name another mechanism, such as NoisyGradientDescent(clip=1.0), or write scores as x @ w + b"


@dataclass(frozen=True, eq=False)
class LinearScores:
    """All scores of a template as ``(x, 1) @ table @ kinds``, with one row of the table for each scalar of x and for the 1.

    Parameters are entries of the table, each once, but for a scale.
    """

    form: LeafForm
    name: str
    radius: float  # Of the field x: a bound on its Euclidean norm
    inside: Indices  # The scalars of x that are read
    monomials: Indices  # Where these, and perhaps the 1 after them, stand among the monomials
    places: Indices  # Coordinates of the parameters, shape (rows, columns)
    scale: Array  # Of the entries of the table next to parameters, shape (rows, columns)
    kinds: sp.csr_array  # shape (columns, forms)

    @property
    def has_constant(self) -> bool:
        return len(self.monomials) > len(self.inside)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.places.shape
        return rows, columns

    def table(self, theta: Array) -> Array:
        """Return the table of parameters, shape (rows, columns), from coordinates."""
        return np.asarray(self.scale * theta[self.places])

    def coordinates(self, table: Array) -> Array:
        """Return coordinates, shape (dim,), from the table of parameters."""
        theta = np.zeros(self.places.size)
        theta[self.places] = table / self.scale
        return theta

    def coefficients(self, table: Array) -> Array:
        """Return the coefficients of the forms, shape (forms, monomials)."""
        found = np.zeros((self.form.forms, self.form.design.count))
        found[:, self.monomials] = (table @ self.kinds).T
        return found

    @cached_property
    def onto_kinds(self) -> Array:
        """The projection of columns on those that scores depend on, shape (columns, columns): of a softmax, sums of 0."""
        kinds = self.kinds.toarray()
        return np.asarray(kinds @ np.linalg.pinv(kinds))


@once
def linear_scores(form: LossForm) -> LinearScores:
    """Return the losses' scores, or raise `NotPrivate` where they are not linear in one field, each parameter in one place."""
    found = form_of(form.template, form.space)
    grid, design = found.grid, found.design
    if grid is None or design.pairs is not None:
        raise refusal(form, "parameters do not enter linear scores each in one place")
    places, kinds, used, scale = grid
    inside = used[used < design.count - 1]
    fields = {name for name, span in design.columns.items() if ((inside >= span.start) & (inside < span.stop)).any()}
    if len(fields) != 1:
        raise refusal(form, f"scores are linear in {len(fields)} fields ({', '.join(sorted(fields))}), and not in one")
    if max(places.shape) > MOST:
        raise refusal(form, f"scores have {max(places.shape):,} features or columns, more than {MOST:,}")
    (name,) = fields
    radius = float(form.template.record.continuous[name].norm_bound)
    if not 1e-100 <= radius <= 1e100 or not all(1e-100 <= abs(s) <= 1e100 for s in scale):
        raise refusal(form, f"the bound on {name!r}, or a factor of a parameter, is too far from 1")
    return LinearScores(
        form=found,
        name=name,
        radius=math.nextafter(radius, math.inf),
        inside=inside - design.columns[name].start,
        monomials=used,
        places=places,
        scale=scale[places],
        kinds=sp.csr_array(kinds),
    )


def refusal(form: LossForm, why: str) -> NotPrivate:
    return NotPrivate(f"adaptive steps: {why}", form.template.losses[0], REMEDY)
