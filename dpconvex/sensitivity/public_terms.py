"""Terms of a loss that no record enters, which may count as part of the regularizer, and whether that pulls."""

import numpy as np

from dpconvex.expressions.atoms.arithmetic import ADD, DIVIDE, MULTIPLY, NEGATE, add, multiply
from dpconvex.expressions.discipline import is_convex
from dpconvex.expressions.evaluate import evaluate
from dpconvex.expressions.expression import Constant, Expression, postorder
from dpconvex.model.template import Template
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.quadratics import quadratic
from dpconvex.util.runtime import once

SAME = 1e-12  # Products of numbers that pass for equal


@once
def separated(template: Template) -> Template:
    """Return the template with the convex terms of its loss that no record enters in the regularizer, and as `public_terms`.

    An affine term stays that is part of a score elsewhere: as b in ``y * exp(-s) + s`` with s = x'w + b.
    """
    every = [summands(loss) for loss in template.losses]
    affine = [factored(term) for terms in every for term in terms if term.fields and term.is_affine]
    inner = [
        dict(map(factored, n.args)) for n in postorder(template.losses) if n.atom is ADD and n not in template.losses
    ]

    def is_score_part(term: Expression) -> bool:
        bare, factor = factored(term)
        sums = [known for known in inner if bare in known]
        return any(
            abs(known[one] * factor - known[bare] * own) < SAME for known in sums for one, own in affine if one in known
        )

    apart = [
        term
        for term in every[0]
        if term.variables and not term.fields and is_convex(term) and all(terms.count(term) == 1 for terms in every)
    ]
    apart = [term for term in apart if not (term.is_affine and is_score_part(term))]
    if not apart:
        return template
    losses = tuple(add(0.0, *(term for term in terms if term not in apart)) for terms in every)
    whole = add(*apart)
    parts = template.regularizer, whole
    return template.with_parts(losses=losses, regularizer=add(*parts), public_terms=parts)


def weighed(form: LossForm, times: float) -> LossForm:
    """Return the form with terms that were part of the loss so many times as heavy, as for other numbers of records."""
    if form.template.public_terms is None or times == 1:
        return form
    regularizer, terms = form.template.public_terms
    return LossForm(form.template.with_parts(regularizer=add(regularizer, multiply(times, terms))), convex=False)


def summands(expression: Expression) -> list[Expression]:
    """Return the terms of a sum, also of one that numbers multiply."""
    if expression.atom is ADD:
        return [term for argument in expression.args for term in summands(argument)]
    if (place := varied(expression)) is not None and not expression.shape:
        before, (inner, *after) = expression.args[:place], expression.args[place:]
        terms = summands(inner)
        return [expression.operation(*before, term, *after) for term in terms] if len(terms) > 1 else [expression]
    return [expression]


def varied(expression: Expression) -> int | None:
    """Return which argument of a product or a quotient has variables, if the expression is linear in that one."""
    places = [k for k, argument in enumerate(expression.args) if argument.variables]
    linear = expression.atom in (MULTIPLY, NEGATE) or (expression.atom is DIVIDE and places == [0])
    return places[0] if linear and len(places) == 1 else None


def factored(expression: Expression) -> tuple[Expression, float]:
    """Return a term without the numbers that multiply it, and their product."""
    factor = 1.0
    while (place := varied(expression)) is not None:
        others = [argument for k, argument in enumerate(expression.args) if k != place]
        if not all(isinstance(other, Constant) and other.size == 1 for other in others):
            break
        for other in others:
            number = float(evaluate(other, {}).item())
            factor = factor / number if expression.atom is DIVIDE else factor * number
        factor = -factor if expression.atom is NEGATE else factor
        expression = expression.args[place]
    return expression, factor


@once
def pulls(form: LossForm) -> bool:
    """Say whether the regularizer has a part of the loss, or is smaller elsewhere in K than near 0, as priors are."""
    public = quadratic(form.template.regularizer, form.space)
    if form.template.public_terms is not None or (public is not None and not public.slope.any()):
        return form.template.public_terms is not None
    rng, zero = np.random.default_rng(0), np.zeros(form.space.dim)
    away = zero if public is None else -public.slope / np.linalg.norm(public.slope)
    points = [zero, *(size * (away + rng.normal(size=(8, len(zero)))) for size in (0.01, 1.0)), 1e-6 * away]
    inside = [form.feasible.project(p) if form.feasible.has_projection else p for p in np.vstack(points)]
    found = np.array([evaluate(form.template.regularizer, form.space.leaves(point)) for point in inside])
    return not (np.isfinite(found[0]) and found[0] <= np.nanmin(found))
