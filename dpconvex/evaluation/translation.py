"""Compares what the toolkit has made of a template with what CVXPY computes, at points of the public domain.

The proofs and the compiled program speak of the toolkit's own reading of an expression.  That the reading is exact is tested here
for every template before anything is proved about it; a difference is an error.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.declared_atoms import DeclaredAtom
from dpconvex.core.values import Evaluation
from dpconvex.errors import DPConvexError, MissingRule, NotConverged, TemplateError
from dpconvex.evaluation.tape import record_tape
from dpconvex.geometry.constraints import Unrecognised, read_constraint
from dpconvex.geometry.convex_sets import Piece

__all__ = ["check_translation"]

Array = NDArray[np.float64]

# Records and parameters are drawn at these sizes; each size is tried this many times.
SCALES = (1.0, 30.0)
# Two ways of rounding may differ by this fraction of the largest number in a computation.
ROUNDING = 1e-9
# Constraints are tried around this many points, and points nearer to their boundary than this fraction do not count.
POINTS = 12
MARGIN = 1e-7


def check_translation(form: LossForm) -> DPConvexError | None:
    """Evaluate every loss, the regularizer and every constraint both ways.

    Returns
    -------
    DPConvexError or None
        Why the program cannot be run, whatever the data: K has no projection, or an atom cannot be evaluated over a batch.

    Raises
    ------
    TemplateError
        If they differ.
    """
    rng = np.random.default_rng(0)  # public points: any will do, and the same ones make an error repeatable
    points = [Point(form, rng, scale) for scale in SCALES]
    names = [f"the loss for {values}" if values else "the loss" for values in form.template.record.combinations]
    trees = [*zip(names, form.template.losses, strict=True), ("the regularizer", form.template.regularizer)]
    obstacle: DPConvexError | None = None
    for name, tree in trees:
        if not mentions_declared(tree):
            try:
                for point in points:
                    compare(name, tree, point)
            except MissingRule as error:  # nothing is run that cannot be evaluated
                obstacle = error
    for constraint in form.template.constraints:
        check_constraint(form, constraint, rng)
    return obstacle if form.feasible.reason is None else NotConverged(f"{form.feasible.reason}.")


class Point:
    """Parameters and one record, drawn from the public domain.

    Parameters
    ----------
    form : LossForm
    rng : numpy.random.Generator
    scale : float
        Size of the parameters before they are projected on K.
    """

    def __init__(self, form: LossForm, rng: np.random.Generator, scale: float) -> None:
        self.form = form
        theta = scale * rng.normal(size=form.space.dim)
        self.theta = form.feasible.project(theta) if form.feasible.has_projection else theta
        batch = form.template.record.sample(1, rng)
        self.fields = {name: np.asarray(column[0]) for name, column in batch.fields.items()}
        leaves: dict[int, Any] = {
            id(symbol): self.fields[name] for name, symbol in form.template.record.parameters.items()
        }
        values = form.space.unpack(self.theta)
        leaves |= {id(block.variable): values[name] for name, block in form.space.blocks.items()}
        self.evaluation = Evaluation(leaves)
        self.scalars = self._scalars()

    def _scalars(self) -> Array:
        """The record's scalars: its fields, and its functions that are no polynomials."""
        bases = self.form.bases
        result = np.zeros(bases.count)
        flat = [self.fields[name] for name in self.form.template.record.parameters]
        parts = [*flat, *(self.evaluation.value(function) for function in self.form.expander.functions_of_record)]
        for base, part in zip(bases.bases, parts, strict=True):
            result[base.start : base.start + base.size] = np.reshape(part, -1, order="F")
        return result


def compare(name: str, tree: cp.Expression, point: Point) -> None:
    """Evaluate an expression both ways at one point."""
    form = point.form
    expected = point.evaluation.value(tree)
    leaves = affine_leaves(tree)
    fields = tuple(form.template.record.parameters.values())
    tape, slots = record_tape(tree, form.space, fields, {id(leaf): number for number, leaf in enumerate(leaves)})
    found = [slot_value(slot.content, leaves, point) for slot in slots]
    with np.errstate(all="ignore"):
        value = tape.run(found, np)
    tolerance = ROUNDING * point.evaluation.magnitude
    if not np.isfinite(expected).all() or (np.isfinite(value).all() and (np.abs(value - expected) <= tolerance).all()):
        return
    raise TemplateError(
        f"{name} was read as a function of other values than CVXPY's ({float(np.ravel(value)[0]):.12g} instead of "
        f"{float(np.ravel(expected)[0]):.12g}): {tree}. Please report this expression; write it in another way."
    )


def slot_value(content: Any, leaves: list[cp.Expression], point: Point) -> Any:
    """Return what stands in a leaf's slot of a tape: an affine leaf by its polynomial, a field or a number."""
    if isinstance(content, int):
        return point.form.polynomial(leaves[content]).evaluate(point.scalars, point.theta)
    return point.fields[content] if isinstance(content, str) else content


def check_constraint(form: LossForm, constraint: cp.Constraint, rng: np.random.Generator) -> None:
    """Compare the set that a constraint was read as with CVXPY's opinion of points in and around it.

    Raises
    ------
    TemplateError
        If a point lies in one and not in the other.
    """
    pieces = read_constraint(constraint, form.space)
    if any(isinstance(piece, Unrecognised) for piece in pieces):
        return
    for number in range(POINTS):
        theta = 4.0 ** (number % 6 - 3) * rng.normal(size=form.space.dim)
        inside = theta.copy()
        for piece in pieces:
            inside[piece.coordinates] = piece.project(inside[piece.coordinates])
        for point in (theta, inside, (theta + inside) / 2):
            check_membership(form, constraint, pieces, point)


def check_membership(form: LossForm, constraint: cp.Constraint, pieces: list[Piece], theta: Array) -> None:
    """Raise if CVXPY takes a point for clearly outside that was read as inside, or the other way round."""
    values = form.space.unpack(theta)
    evaluation = Evaluation({id(block.variable): values[name] for name, block in form.space.blocks.items()})
    excess = evaluation.excess(constraint)
    if excess is None or not np.isfinite(excess):
        return
    here = [theta[piece.coordinates] for piece in pieces]
    away = max((float(np.linalg.norm(p.project(x) - x)) for p, x in zip(pieces, here, strict=True)), default=0.0)
    room = MARGIN * evaluation.magnitude
    if (away == 0.0 and excess > room) or (away > MARGIN * float(np.linalg.norm(theta)) and excess < -room):
        raise TemplateError(
            f"the constraint {constraint} was read as another set than CVXPY's. Please report it; write it in another way."
        )


def mentions_declared(tree: Any) -> bool:
    """Whether a user's own atom occurs, whose values have only one source."""
    return isinstance(tree, DeclaredAtom) or any(mentions_declared(argument) for argument in tree.args)
