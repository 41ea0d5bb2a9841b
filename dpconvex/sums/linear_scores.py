"""Losses of scores that are linear in one field: the table of parameters, and what multiplies it."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotPrivate
from dpconvex.expressions.atoms.arithmetic import ADD
from dpconvex.expressions.atoms.arrangement import BROADCAST
from dpconvex.expressions.expression import Expression
from dpconvex.sensitivity.loss_form import LossForm, expander_of
from dpconvex.sums.forms import LeafForm, exact_losses, split
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

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
    parts = [with_scores(loss) for loss in exact_losses(form.template, form.space)]
    expander = expander_of(form.template, form.space)
    found = split([loss for loss, _ in parts], [leaves for _, leaves in parts], expander)
    if found is None or found.grid is None or found.design.pairs is not None:
        raise refusal(form, "parameters do not enter linear scores each in one place")
    grid, design = found.grid, found.design
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


def with_scores(loss: Expression) -> tuple[Expression, list[Expression]]:
    """Return a loss, rewritten, and its scores: affine parts that no other field multiplies.

    In ``exp(s) - y * s`` the score is s, which y multiplies; in ``y * exp(-s) + x @ w + b`` the last two terms are one score.
    """
    scores: dict[Expression, None] = {}
    known: dict[Expression, Expression] = {}

    def rewritten(node: Expression) -> Expression:
        if node not in known:
            known[node] = made(node)
        return known[node]

    def made(node: Expression) -> Expression:
        if not node.variables:
            return node
        if is_score(node):
            scores[node] = None
            return node
        if node.atom is not ADD:
            return node.operation(*map(rewritten, node.args), **dict(node.options))
        own = [term for term in node.args if term.variables and is_score(term)]
        others = [rewritten(term) for term in node.args if term not in own]
        if len(own) > 1 and len({term.shape for term in own}) == 1:
            own = [ADD(*own)]
        scores.update(dict.fromkeys(own))
        return ADD(*own, *others)

    return rewritten(loss), list(scores)


def is_score(node: Expression) -> bool:
    """Say whether an expression is affine, and nothing of it is a product of a field with what reads a field already."""
    if not node.is_affine or node.atom is BROADCAST:
        return False
    varied = [argument for argument in node.args if argument.variables]
    multiplied = node.atom is not None and node.atom.affine in ("bilinear", "quotient")
    if multiplied and any(a.fields for a in varied) and any(a.fields for a in node.args if not a.variables):
        return False
    return all(map(is_score, varied))


def refusal(form: LossForm, why: str) -> NotPrivate:
    return NotPrivate(f"adaptive steps: {why}", form.template.losses[0], REMEDY)
