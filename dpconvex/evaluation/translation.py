"""Compares what proofs and programs make of a template with the values of its expressions, at points of the public domain.

Affine subexpressions are expanded into polynomials, and constraints are read as sets.  That both are exact is tested here for
every template before anything is proved about it; a difference is an error.
"""

import math

import numpy as np

from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.arrays import Array
from dpconvex.core.evaluate import evaluations
from dpconvex.core.expression import Constraint, Expression
from dpconvex.errors import TemplateError
from dpconvex.geometry.region import Region

# Records and parameters are drawn at these sizes; each size is tried this many times.
SCALES = (1.0, 30.0)
# Two ways of rounding may differ by this fraction of the largest number in a computation.
ROUNDING = 1e-9
# Constraints are tried around this many points, and points nearer to their boundary than this fraction do not count.
POINTS = 12
MARGIN = 1e-7


def check_translation(form: LossForm) -> None:
    """Evaluate every loss, the regularizer and every constraint both ways."""
    rng = np.random.default_rng(0)  # public points: any will do, and the same ones make an error repeatable
    names = [f"the loss for {values}" if values else "the loss" for values in form.combinations]
    roots = [*form.losses, form.template.regularizer]
    for scale in SCALES:
        compare(form, [*names, "the regularizer"], roots, rng, scale)
    for constraint in form.template.constraints:
        check_constraint(form, constraint, rng)


def compare(form: LossForm, names: list[str], roots: list[Expression], rng: np.random.Generator, scale: float) -> None:
    """Evaluate expressions as they are, and with polynomials in the place of their affine subexpressions.

    At one record of the public domain, and parameters of a given size before they are projected on K.
    """
    theta = scale * rng.normal(size=form.space.dim)
    theta = form.feasible.some_point(theta) if form.feasible.has_projection else theta
    values, batch = form.space.unpack(theta), form.template.record.sample(1, rng)
    fields = {name: np.asarray(batch.fields[name][0]) for name in form.template.record.continuous}
    leaves = list(dict.fromkeys(leaf for root in roots for leaf in affine_leaves(root)))
    polynomials = [form.polynomial(leaf) for leaf in leaves]
    functions = form.expander.functions_of_record  # of the record, that are no polynomials
    known: dict[Expression, Array] = {f: fields[f.name] for node in (*roots, *functions) for f in node.fields}
    found = evaluations(functions, known)
    scalars = np.zeros(form.bases.count)
    parts = [*fields.values(), *(found[function][0] for function in functions)]
    for base, part in zip(form.bases.bases, parts, strict=True):
        scalars[base.start : base.start + base.size] = np.reshape(part, -1, order="F")
    expanded = {leaf: p.evaluate(scalars, theta) for leaf, p in zip(leaves, polynomials, strict=True)}
    variables: dict[Expression, Array] = {block.variable: values[name] for name, block in form.space.blocks.items()}
    expected, read = evaluations(roots, {**known, **variables}), evaluations(roots, {**known, **expanded})
    for name, root in zip(names, roots, strict=True):
        (value, size), other = expected[root], read[root][0]
        if np.isfinite(value).all() and not (np.abs(other - value) <= ROUNDING * size).all():
            raise TemplateError(
                f"{name} was read as a function of other values ({float(other.ravel()[0]):.12g} instead of "
                f"{float(value.ravel()[0]):.12g}): {root}. Please report this expression; write it in another way."
            )


def check_constraint(form: LossForm, constraint: Constraint, rng: np.random.Generator) -> None:
    """Compare the conditions that a constraint was read as with it, at points in and around K, where its atoms are defined."""
    space, feasible = form.space, form.feasible
    alone = Region(space, [constraint])
    domain = Region(space, [one for one in alone.constraints if one != constraint])
    for number in range(5 * POINTS):
        theta = 4.0 ** (number / 10 - 3) * rng.normal(size=space.dim)
        if feasible.has_projection:  # at its edge, and between: most sets are hit by no draw
            theta = theta + (0.0, 0.0, 0.5, 0.9, 1.0)[number % 5] * (feasible.project(theta) - theta)
        theta = alone.on_hull(theta).astype(float) if number % 2 else theta
        values = space.unpack(theta)
        leaves: dict[Expression, Array] = {block.variable: values[name] for name, block in space.blocks.items()}
        found = evaluations(constraint.args, leaves)
        excess = excess_of(constraint.kind, [found[argument][0] for argument in constraint.args])
        if not np.isfinite(excess) or (domain.excess(theta) > ROUNDING * space.dim).any():
            continue
        room = MARGIN * max(found[argument][1] for argument in constraint.args)
        missed = float(alone.excess(theta).max(initial=-np.inf))
        off = alone.off_hull(theta) + float(np.linalg.norm((theta - alone.lower)[alone.fixed]))
        inside, outside = missed < 0 and off <= ROUNDING * np.linalg.norm(theta), max(missed, off) > room
        if (inside and excess > room) or (outside and excess < -room):
            raise TemplateError(
                f"the constraint {constraint} was read as another set. Please report it; write it in another way."
            )


def excess_of(kind: str, values: list[Array]) -> float:
    """By how much a constraint is missed (below 0 if it holds strictly); NaN for cones that have no simple measure."""
    if kind == "inequality":
        return float(np.max(values[0] - values[1], initial=-np.inf))
    if kind == "equality":
        return float(np.abs(values[0] - values[1]).max(initial=0.0))
    if kind == "semidefinite" and np.isfinite(values[0]).all():
        return float(-np.linalg.eigvalsh((values[0] + values[0].T) / 2)[0])
    if kind == "second-order cone" and values[0].size == 1:
        return float(np.linalg.norm(values[1]) - values[0].ravel()[0])
    return math.nan
