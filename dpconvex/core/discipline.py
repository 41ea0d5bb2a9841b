"""Disciplined convexity of core expressions: signs and curvatures by the composition rule, from what each atom says of itself."""

from collections.abc import Sequence

import numpy as np

from dpconvex.core.expression import Constant, Expression, Field, Variable, postorder


def sign(expression: Expression) -> int:
    """Return 1 if no entry is ever negative, -1 if none is ever positive, 0 if neither is known."""
    known = expression.__dict__.get("_sign")
    if known is None:
        known = expression.__dict__["_sign"] = _sign(expression)
    return int(known)


def _sign(expression: Expression) -> int:
    if isinstance(expression, Constant):
        return 1 if (expression.dense >= 0).all() else -1 if (expression.dense <= 0).all() else 0
    if isinstance(expression, Field):
        return expression.sign
    if isinstance(expression, Variable):
        return sign_of_variable(expression)
    assert expression.atom is not None
    return expression.atom.sign(expression, [sign(argument) for argument in expression.args])


def sign_of_variable(variable: Variable) -> int:
    has = variable.attributes
    low, high = has.get("bounds", (-np.inf, np.inf))
    if has.get("nonneg") or has.get("pos") or (np.asarray(low) >= 0).all():
        return 1
    return -1 if has.get("nonpos") or has.get("neg") or (np.asarray(high) <= 0).all() else 0


def is_convex(expression: Expression) -> bool:
    """Whether an expression is convex in the variables by the composition rule, for every record."""
    return 1 in curvatures(expression)


def is_concave(expression: Expression) -> bool:
    """Whether an expression is concave in the variables by the composition rule, for every record."""
    return -1 in curvatures(expression)


def curvatures(expression: Expression) -> frozenset[int]:
    """Return the curvatures that are known: 1 for convex, -1 for concave; both for affine expressions."""
    known = expression.__dict__.get("_curvatures")
    if known is None:
        known = expression.__dict__["_curvatures"] = _curvatures(expression)
    return frozenset(known)


def _curvatures(expression: Expression) -> frozenset[int]:
    if expression.is_affine:
        return frozenset({1, -1})
    atom = expression.atom
    assert atom is not None
    signs = [sign(argument) for argument in expression.args]
    straight = {1, -1} if atom.keeps_affine(expression.args) else set()
    own = {atom.curve(expression)} - {0} if atom.affine == "curved" else straight
    return frozenset(curve for curve in own if _composes(expression, curve, signs))


def _composes(expression: Expression, curve: int, signs: Sequence[int]) -> bool:
    """Whether every argument is affine, or curved in a way that the atom's slope keeps."""
    assert expression.atom is not None
    for k, argument in enumerate(expression.args):
        if not argument.is_affine and curve * expression.atom.slope(expression, k, signs) not in curvatures(argument):
            return False
    return True


def obstacle(expression: Expression) -> Expression:
    """Return the smallest subexpression that keeps an expression from being convex: the one to show the user."""
    for argument in expression.args:
        if not curvatures(argument):
            return obstacle(argument)
    atom = expression.atom
    if atom is not None and atom.affine != "curved":
        signs = [sign(argument) for argument in expression.args]
        for k, argument in enumerate(expression.args):
            if atom.slope(expression, k, signs) == 1 and not is_convex(argument):
                return obstacle(argument)
    return expression


def direction(expression: Expression, leaf: Expression) -> int | None:
    """Return 1 if every occurrence of a leaf makes no entry fall, -1 if none makes one grow, 0 if neither is known.

    None means that the leaf does not occur.  All other leaves may have any values that their declared signs allow.
    """
    found: dict[Expression, int | None] = {}
    for node in postorder([expression]):
        if node is leaf:
            found[node] = 1
            continue
        signs, atom = [sign(argument) for argument in node.args], node.atom
        ways = {
            way * atom.slope(node, k, signs)
            for k, argument in enumerate(node.args)
            if atom is not None and (way := found[argument]) is not None
        }
        found[node] = None if not ways else ways.pop() if len(ways) == 1 else 0
        if atom is not None and any(found[a] is not None for a in node.args):
            asked = zip(atom.domain(node), node.args, strict=True)
            if not all(found[a] is None or _kept(domain, a, found[a]) for domain, a in asked):
                found[node] = 0
    return found[expression]


def _kept(domain: str | None, argument: Expression, way: int | None) -> bool:
    """Whether slopes are those in an atom's domain: it is never left, or a solver keeps to it and it grows with the leaf.

    Of an argument without variables nobody asks whether it is in the domain, and outside of it values mean nothing.
    """
    if domain is None:
        return True
    if domain not in ("positive", "not negative"):
        return False
    return sign(argument) == 1 or (way == 1 and bool(argument.variables))
