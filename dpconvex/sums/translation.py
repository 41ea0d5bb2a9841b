"""Check that proofs and programs give a template's expressions their values, at points of the public domain."""

import math

import numpy as np

from dpconvex.errors import TemplateError
from dpconvex.expressions.evaluate import evaluations
from dpconvex.expressions.expression import Constraint, Expression
from dpconvex.numerics import TRANSLATION_TOLERANCE
from dpconvex.sensitivity.loss_form import LossForm, affine_leaves
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array

SCALES = (1.0, 30.0)  # Records and parameters are drawn at these sizes
# A projection may lie on the boundary of an atom's domain, where rounding decides the value; the mean of several lies inside.
AVERAGED = 4
# Constraints are tried at five times this many points; points nearer to the boundary than this fraction do not count.
POINTS = 12
MARGIN = 1e-7


def check_translation(form: LossForm) -> None:
    """Evaluate every loss, the regularizer and every constraint in both ways; raise `TemplateError` if the values differ."""
    rng = np.random.default_rng(0)  # public points: any will do, and the same ones make an error repeatable
    for scale in SCALES:
        compare(form, rng, scale)
    for constraint in form.template.constraints:
        check_constraint(form, constraint, rng)


def compare(form: LossForm, rng: np.random.Generator, scale: float) -> None:
    """Compare losses and regularizer at one public point with their values from polynomials of affine subexpressions."""
    draws = scale * rng.normal(size=(AVERAGED, form.space.dim))
    theta = np.mean(list(map(form.feasible.project, draws)), axis=0) if form.feasible.has_projection else draws[0]
    batch, roots = form.template.record.sample(1, rng), [*form.losses, form.template.regularizer]
    fields = {name: np.asarray(batch.fields[name][0]) for name in form.template.record.continuous}
    polynomials = {leaf: form.polynomial(leaf) for root in roots for leaf in affine_leaves(root)}
    functions = form.expander.functions_of_record  # functions of the record that are no polynomials
    known: dict[Expression, Array] = {f: fields[f.name] for node in (*roots, *functions) for f in node.fields}
    found = evaluations(functions, known)
    parts = [*fields.values(), *(found[function][0] for function in functions)]  # in the order of the bases
    scalars = np.concatenate([np.zeros(0), *(np.reshape(part, -1, order="F") for part in parts)])
    expanded = {leaf: polynomial.evaluate(scalars, theta) for leaf, polynomial in polynomials.items()}
    expected, read = evaluations(roots, known | form.space.leaves(theta)), evaluations(roots, known | expanded)
    for root in roots:
        (value, size), other = expected[root], read[root][0]
        if np.isfinite(value).all() and not (np.abs(other - value) <= TRANSLATION_TOLERANCE * size).all():
            raise TemplateError(
                f"the package misread this expression: its value is {float(value.ravel()[0]):.12g}, not "
                f"{float(other.ravel()[0]):.12g}: {root}. Please report it as a bug, and write it in another way."
            )


def check_constraint(form: LossForm, constraint: Constraint, rng: np.random.Generator) -> None:
    """Compare a constraint with the conditions read from it, at points in and around K where its atoms are defined."""
    space, feasible = form.space, form.feasible
    alone = Region(space, [constraint])
    domain = Region(space, [one for one in alone.constraints if one != constraint])
    for number in range(5 * POINTS):
        theta = 4.0 ** (number / 10 - 3) * rng.normal(size=space.dim)
        if feasible.has_projection:  # on its boundary and between: random points miss most sets
            theta = theta + (0.0, 0.0, 0.5, 0.9, 1.0)[number % 5] * (feasible.project(theta) - theta)
        theta = alone.on_hull(theta).astype(float) if number % 2 else theta
        found = evaluations(constraint.args, space.leaves(theta))
        excess = excess_of(constraint.kind, [found[argument][0] for argument in constraint.args])
        if not np.isfinite(excess) or (domain.excess(theta) > TRANSLATION_TOLERANCE * space.dim).any():
            continue
        room = MARGIN * max(found[argument][1] for argument in constraint.args)
        missed = float(alone.excess(theta).max(initial=-np.inf))
        off = alone.off_hull(theta) + float(np.linalg.norm((theta - alone.lower)[alone.fixed]))
        inside, outside = missed < 0 and off <= TRANSLATION_TOLERANCE * np.linalg.norm(theta), max(missed, off) > room
        if (inside and excess > room) or (outside and excess < -room):
            why = f"the package misread the constraint {constraint} as a different set"
            raise TemplateError(f"{why}. Please report it as a bug, and write it in another way.")


def excess_of(kind: str, values: list[Array]) -> float:
    """Return the violation of a constraint (below 0 if it holds strictly); NaN for cones without a simple measure."""
    if kind == "inequality":
        return float(np.max(values[0] - values[1], initial=-np.inf))
    if kind == "equality":
        return float(np.abs(values[0] - values[1]).max(initial=0.0))
    if kind == "semidefinite" and np.isfinite(values[0]).all():
        return float(-np.linalg.eigvalsh((values[0] + values[0].T) / 2)[0])
    if kind == "second-order cone" and values[0].size == 1:
        return float(np.linalg.norm(values[1]) - values[0].ravel()[0])
    return math.nan
