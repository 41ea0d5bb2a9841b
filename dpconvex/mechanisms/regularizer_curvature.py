"""Curvature of a regularizer, where its answers are: what certificates of distance rest on.

A squared term has a curvature that is read off, and so has a determinant whose eigenvalues K keeps away from zero.  What is left
is treated like a loss that no record enters, by the same rules, over K or a ball that holds all answers.  Kinks that a
proximal map handles do not count.
"""

from __future__ import annotations

import math

import scipy.sparse as sp

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.abstract_values import Kink
from dpconvex.core.atoms.arrangement import hstack, vec
from dpconvex.core.atoms.matrices import LOG_DET
from dpconvex.core.atoms.norms import norm, sum_squares
from dpconvex.core.constraint import Constraint
from dpconvex.core.expression import Expression, constant
from dpconvex.core.normal_form import normal_form
from dpconvex.core.record_domains import Box
from dpconvex.core.remembered import once
from dpconvex.errors import MissingRule, NotPrivate, TemplateError
from dpconvex.geometry.kinks import split_kinks
from dpconvex.geometry.linear_maps import linear_parts, weighted_sum
from dpconvex.geometry.quadratics import Bend, quadratic_of, squares
from dpconvex.language.record import Record


def bend_of(form: LossForm, radius: float) -> Bend:
    """Bound the curvature of a template's regularizer at all points of K up to a norm."""
    bounded = form.feasible.norm_bound
    radius = bounded if bounded <= radius else 2.0 ** math.ceil(math.log2(max(radius, 1e-100)))
    return found(form, radius)


def bends(form: LossForm) -> bool:
    """Whether a regularizer has terms besides squares, affine terms and kinks that a proximal map handles."""
    return parts(form)[2] is not None


@once
def parts(form: LossForm) -> tuple[float, float, Expression | None]:
    """Return the largest absolute row sum of the Hessian of squares, the curvature of determinants over K, and other terms."""
    smooth, _ = split_kinks(form.feasible, form.template.regularizer)
    bent: dict[Expression, sp.csr_array] = {}
    rest: dict[Expression, sp.csr_array] = {}
    determinants = 0.0
    for part, row in linear_parts(smooth).items():
        least = form.feasible.least_eigenvalue(part.args[0]) if part.atom is LOG_DET else 0.0
        if least > 0:  # log det P bends a direction V by tr(P^-1 V P^-1 V)
            determinants += float(abs(row).sum()) / least**2
            continue
        known = part.is_affine or squares(part, row.toarray()[0]) is not None
        (bent if known else rest)[part] = row
    known_part = quadratic_of(bent, form.space)
    assert known_part is not None
    hessian = known_part.hessian
    stiff = float(abs(hessian).sum(axis=1).max()) if hessian.nnz else 0.0
    return stiff, determinants * (1 + 1e-9), weighted_sum(rest) if rest else None


@once
def found(form: LossForm, radius: float) -> Bend:
    stiff, determinants, rest = parts(form)
    if rest is None:
        return Bend(stiff, determinants, math.inf)
    if not math.isfinite(radius):
        return Bend(stiff, math.inf, radius, "nothing bounds the answer")
    everything = hstack(*(vec(variable) for variable in form.template.variables))
    near = list(form.constraints)
    if not form.feasible.norm_bound <= radius:
        near.append(Constraint("inequality", (norm(everything), constant(radius))))
    record = Record(unused=Box(0.0, 1.0))
    try:
        losses = (normal_form(rest),)
        alone = form.template.with_parts(
            record=record, written=(rest,), losses=losses, regularizer=sum_squares(everything), constraints=tuple(near)
        )
        analysis = Analysis(LossForm(alone))
        kink: Kink | None = analysis.kink
        if kink is not None:
            return Bend(stiff, math.inf, radius, kink.reason)
        return Bend(stiff, determinants + analysis.hessian_bound, radius)
    except (NotPrivate, MissingRule, TemplateError) as error:
        return Bend(stiff, math.inf, radius, str(error).splitlines()[0])
