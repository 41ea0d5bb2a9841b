"""Compares what proofs and programs make of a template with the values of its expressions, at points of the public domain.

Affine subexpressions are expanded into polynomials, and constraints are read as sets.  That both are exact is tested here for
every template before anything is proved about it; a difference is an error.
"""

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.evaluate import evaluations
from dpconvex.core.expression import Constraint, Expression
from dpconvex.errors import DPConvexError, NotConverged, TemplateError
from dpconvex.geometry.region import Region

Array = NDArray[np.float64]

# Records and parameters are drawn at these sizes; each size is tried this many times.
SCALES = (1.0, 30.0)
# Two ways of rounding may differ by this fraction of the largest number in a computation.
ROUNDING = 1e-9
# Constraints are tried around this many points, and points nearer to their boundary than this fraction do not count.
POINTS = 12
MARGIN = 1e-7


def check_translation(form: LossForm) -> DPConvexError | None:
    """Evaluate every loss, the regularizer and every constraint both ways."""
    rng = np.random.default_rng(0)  # public points: any will do, and the same ones make an error repeatable
    names = [f"the loss for {values}" if values else "the loss" for values in form.combinations]
    roots = [*form.losses, form.template.regularizer]
    for scale in SCALES:
        Point(form, rng, scale).compare([*names, "the regularizer"], roots)
    for constraint in form.template.constraints:
        check_constraint(form, constraint, rng)
    return None if form.feasible.obstacle is None else NotConverged(f"{form.feasible.obstacle}.")


class Point:
    """Parameters, of a given size before they are projected on K, and one record, drawn from the public domain."""

    def __init__(self, form: LossForm, rng: np.random.Generator, scale: float) -> None:
        self.form = form
        theta = scale * rng.normal(size=form.space.dim)
        self.theta = form.feasible.some_point(theta) if form.feasible.has_projection else theta
        values = form.space.unpack(self.theta)
        self.variables: dict[Expression, Array] = {b.variable: values[name] for name, b in form.space.blocks.items()}
        batch = form.template.record.sample(1, rng)
        self.fields = {name: np.asarray(batch.fields[name][0]) for name in form.template.record.continuous}

    def compare(self, names: list[str], roots: list[Expression]) -> None:
        """Evaluate expressions as they are, and with polynomials in the place of their affine subexpressions."""
        record: dict[Expression, Array] = {field: self.fields[field.name] for root in roots for field in root.fields}
        leaves = list(dict.fromkeys(leaf for root in roots for leaf in affine_leaves(root)))
        polynomials = [self.form.polynomial(leaf) for leaf in leaves]
        scalars = self._scalars(record)
        expanded = {leaf: p.evaluate(scalars, self.theta) for leaf, p in zip(leaves, polynomials, strict=True)}
        expected, found = evaluations(roots, {**record, **self.variables}), evaluations(roots, {**record, **expanded})
        for name, root in zip(names, roots, strict=True):
            value, size = expected[root]
            other = found[root][0]
            if np.isfinite(value).all() and not (np.abs(other - value) <= ROUNDING * size).all():
                raise TemplateError(
                    f"{name} was read as a function of other values ({float(other.ravel()[0]):.12g} instead of "
                    f"{float(value.ravel()[0]):.12g}): {root}. Please report this expression; write it in another way."
                )

    def _scalars(self, record: dict[Expression, Array]) -> Array:
        """The record's scalars: its fields, and its functions that are no polynomials."""
        functions = self.form.expander.functions_of_record
        missing: dict[Expression, Array] = {
            field: self.fields[field.name] for function in functions for field in function.fields
        }
        values = evaluations(functions, {**record, **missing})
        parts = [*self.fields.values(), *(values[function][0] for function in functions)]
        result = np.zeros(self.form.bases.count)
        for base, part in zip(self.form.bases.bases, parts, strict=True):
            result[base.start : base.start + base.size] = np.reshape(part, -1, order="F")
        return result


def check_constraint(form: LossForm, constraint: Constraint, rng: np.random.Generator) -> None:
    """Compare the conditions that a constraint was read as with it, at points in and around K, where attributes hold."""
    space, feasible = form.space, form.feasible
    alone, attributes = Region(space, [constraint]), Region(space, [])
    for number in range(5 * POINTS):
        theta = 4.0 ** (number / 10 - 3) * rng.normal(size=space.dim)
        if feasible.has_projection:  # at its edge, and between: most sets are hit by no draw
            theta = theta + (0.0, 0.0, 0.5, 0.9, 1.0)[number % 5] * (feasible.project(theta) - theta)
        theta = alone.on_hull(theta).astype(float) if number % 2 else theta
        values = space.unpack(theta)
        leaves: dict[Expression, Array] = {block.variable: values[name] for name, block in space.blocks.items()}
        found = evaluations(constraint.args, leaves)
        excess = excess_of(constraint, [found[argument][0] for argument in constraint.args])
        if excess is None or not np.isfinite(excess) or (attributes.excess(theta) > ROUNDING * space.dim).any():
            continue
        room = MARGIN * max(found[argument][1] for argument in constraint.args)
        missed = float(alone.excess(theta).max(initial=-np.inf))
        off = alone.off_hull(theta) + float(np.linalg.norm((theta - alone.lower)[alone.fixed]))
        inside, outside = missed < 0 and off <= ROUNDING * np.linalg.norm(theta), max(missed, off) > room
        if (inside and excess > room) or (outside and excess < -room):
            raise TemplateError(
                f"the constraint {constraint} was read as another set. Please report it; write it in another way."
            )


def excess_of(constraint: Constraint, values: list[Array]) -> float | None:
    """By how much a constraint is missed (below 0 if it holds strictly); None for cones that have no simple measure."""
    if constraint.kind == "inequality":
        return float(np.max(values[0] - values[1], initial=-np.inf))
    if constraint.kind == "equality":
        return float(np.abs(values[0] - values[1]).max(initial=0.0))
    if constraint.kind == "semidefinite":
        symmetric = (values[0] + values[0].T) / 2
        return float(-np.linalg.eigvalsh(symmetric)[0]) if np.isfinite(symmetric).all() else None
    if constraint.kind == "second-order cone" and values[0].size == 1:
        return float(np.linalg.norm(values[1]) - values[0].ravel()[0])
    return None
