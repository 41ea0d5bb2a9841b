"""Disciplined convexity of core expressions: signs, and curvatures by the composition rule, from the atoms' definitions."""

import numpy as np

from dpconvex.expressions.expression import Constant, Expression, Field, Variable
from dpconvex.util.runtime import once


@once
def sign(expression: Expression) -> int:
    """Return 1 if all entries are nonnegative, -1 if all are nonpositive, 0 if neither is known."""
    if isinstance(expression, Constant):
        return 1 if (expression.dense >= 0).all() else -1 if (expression.dense <= 0).all() else 0
    if isinstance(expression, Field):
        return expression.sign
    if isinstance(expression, Variable):
        has = expression.attributes
        low, high = has.get("bounds", (-np.inf, np.inf))
        if has.get("nonneg") or has.get("pos") or (np.asarray(low) >= 0).all():
            return 1
        return -1 if has.get("nonpos") or has.get("neg") or (np.asarray(high) <= 0).all() else 0
    return expression.operation.sign(expression, [sign(argument) for argument in expression.args])


def is_convex(expression: Expression) -> bool:
    return 1 in curvatures(expression)


def is_concave(expression: Expression) -> bool:
    return -1 in curvatures(expression)


@once
def curvatures(expression: Expression) -> frozenset[int]:
    """Return the provable curvatures: 1 for convex, -1 for concave; both for affine expressions."""
    if expression.is_affine:
        return frozenset({1, -1})
    atom = expression.operation
    signs = [sign(argument) for argument in expression.args]
    straight = {1, -1} if atom.keeps_affine(expression.args) else set()
    own = {atom.curvature(expression)} if atom.affine == "curved" else straight
    # Composition rule: each argument is affine, or its curvature times the atom's monotonicity is the result's curvature.
    bent = [(k, curvatures(a)) for k, a in enumerate(expression.args) if not a.is_affine]
    return frozenset(c for c in own if all(c * atom.monotonicity(expression, k, signs) in known for k, known in bent))


def nonconvex_part(expression: Expression) -> Expression:
    """Return the smallest subexpression that prevents a proof of convexity, to show to the user."""
    for argument in expression.args:
        if not curvatures(argument):
            return nonconvex_part(argument)
    atom = expression.atom
    if atom is not None and atom.affine != "curved":
        signs = [sign(argument) for argument in expression.args]
        for k, argument in enumerate(expression.args):
            if atom.monotonicity(expression, k, signs) == 1 and not is_convex(argument):
                return nonconvex_part(argument)
    return expression


@once
def monotonicity(expression: Expression, leaf: Field) -> int | None:
    """Return 1 if all entries are non-decreasing in the field `leaf`, -1 if non-increasing, 0 if unknown; None without `leaf`.

    An atom is monotone on its domain only. So its argument must be nonnegative, or it grows with the field and contains
    variables: then the solver enforces the domain, and the feasible set grows with the field.
    """
    if expression is leaf or leaf not in expression.fields:
        return 1 if expression is leaf else None
    atom, ways, signs = expression.operation, set(), [sign(argument) for argument in expression.args]
    for k, (argument, domain) in enumerate(zip(expression.args, atom.domain(expression), strict=True)):
        way = monotonicity(argument, leaf)
        if way is not None:
            inside = sign(argument) == 1 or (way == 1 and bool(argument.variables))
            kept = domain is None or (domain in ("positive", "not negative") and inside)
            ways.add(way * atom.monotonicity(expression, k, signs) if kept else 0)
    return ways.pop() if len(ways) == 1 else 0
