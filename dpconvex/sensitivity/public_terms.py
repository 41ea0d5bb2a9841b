"""Terms of a loss without fields of the record, which may count as part of the regularizer."""

from fractions import Fraction

import numpy as np

from dpconvex.expressions.atoms.arithmetic import ADD, add, multiply
from dpconvex.expressions.discipline import is_convex
from dpconvex.expressions.evaluate import evaluate
from dpconvex.expressions.expression import Expression, postorder
from dpconvex.expressions.rewriting import sum_terms, terms
from dpconvex.model.template import Template
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.util.runtime import once


@once
def move_public_terms(template: Template) -> Template:
    """Return the template with the loss's convex terms without fields in the regularizer, and in `public_terms`.

    An affine term stays in the loss if it is part of a score elsewhere, as b in ``y * exp(-s) + s`` with s = x'w + b.
    """
    every = [terms(loss) for loss in template.losses]
    affine = [(factor, term) for own in every for factor, term in own if term.fields and term.is_affine]
    sums = [node for node in postorder(template.losses) if node.atom is ADD and node.is_scalar]
    inner = [{term: factor for factor, term in terms(node)} for node in sums if node not in template.losses]

    def is_score_part(factor: Fraction, term: Expression) -> bool:
        known = [own for own in inner if term in own]
        return any(own[one] * factor == own[term] * times for own in known for times, one in affine if one in own)

    public = [(factor, term) for factor, term in every[0] if term.variables and not term.fields]
    apart = [
        (factor, term)
        for factor, term in public
        if is_convex(sum_terms([(factor, term)])) and all(own.count((factor, term)) == 1 for own in every)
        if not (term.is_affine and is_score_part(factor, term))
    ]
    if not apart:
        return template
    losses = tuple(sum_terms([pair for pair in own if pair not in apart]) for own in every)
    parts = template.regularizer, sum_terms(apart)
    return template.with_parts(losses=losses, regularizer=add(*parts), public_terms=parts)


def scale_public_terms(form: LossForm, times: float) -> LossForm:
    """Return the form with `public_terms` of the loss multiplied by a factor, to fit another number of records."""
    if form.template.public_terms is None or times == 1:
        return form
    regularizer, terms = form.template.public_terms
    return LossForm(form.template.with_parts(regularizer=add(regularizer, multiply(times, terms))), convex=False)


@once
def pulls_away_from_zero(form: LossForm) -> bool:
    """Return whether the regularizer contains terms of the loss, or is smaller elsewhere in K than at 0, as a prior can be."""
    public = as_quadratic(form.template.regularizer, form.space)
    if form.template.public_terms is not None or (public is not None and not public.slope.any()):
        return form.template.public_terms is not None
    rng, zero = np.random.default_rng(0), np.zeros(form.space.dim)
    away = zero if public is None else -public.slope / np.linalg.norm(public.slope)
    points = [zero, *(size * (away + rng.normal(size=(8, len(zero)))) for size in (0.01, 1.0)), 1e-6 * away]
    inside = [form.feasible.project(p) if form.feasible.obstacle is None else p for p in np.vstack(points)]
    found = np.array([evaluate(form.template.regularizer, form.space.leaves(point)) for point in inside])
    return not (np.isfinite(found[0]) and found[0] <= np.nanmin(found))
