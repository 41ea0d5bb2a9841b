"""Disciplined convexity of core expressions: signs, curvatures and monotonicity as CVXPY's rules see them.

An expression is written with CVXPY again, in leaves that know their signs.  CVXPY has few rules for products and powers that the
core writes differently; what it does not know to be convex is refused.
"""

from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Constant, Expression, Field, Variable


def written(expression: Expression) -> Any:
    """Return an expression as CVXPY's rules read it: each node is written once."""
    for part in postorder([expression]):
        if "_written" not in part.__dict__:
            part.__dict__["_written"] = _written(part)
    return expression.__dict__["_written"]


def _written(node: Expression) -> Any:
    if isinstance(node, Constant):
        return cp.Constant(node.value)
    if isinstance(node, Field):
        return _parameter(node.shape, node.sign)
    if isinstance(node, Variable):
        way = sign_of_variable(node)
        return cp.Variable(node.shape, nonneg=way > 0, nonpos=way < 0)
    assert node.atom is not None
    return _applied(node, [argument.__dict__["_written"] for argument in node.args])


def _applied(node: Expression, args: list[Any]) -> Any:
    assert node.atom is not None
    if node.atom.writes is None:  # a user's own function
        return node.option("declaration")(args[0])
    return node.atom.writes(cp, node, args)


def _parameter(shape: tuple[int, ...], way: int) -> Any:
    return cp.Parameter(shape, nonneg=way > 0, nonpos=way < 0)


def sign_of_variable(variable: Variable) -> int:
    has = variable.attributes
    low, high = has.get("bounds", (-np.inf, np.inf))
    if has.get("nonneg") or has.get("pos") or (np.asarray(low) >= 0).all():
        return 1
    return -1 if has.get("nonpos") or has.get("neg") or (np.asarray(high) <= 0).all() else 0


def sign(expression: Expression) -> int:
    """Return 1 if no entry is ever negative, -1 if none is ever positive, 0 if neither is known."""
    found = written(expression)
    return 1 if found.is_nonneg() else -1 if found.is_nonpos() else 0


def is_convex(expression: Expression) -> bool:
    """Whether an expression is convex in the variables by the composition rule, for every record."""
    return expression.is_affine or bool(written(expression).is_convex())


def is_concave(expression: Expression) -> bool:
    """Whether an expression is concave in the variables by the composition rule, for every record."""
    return expression.is_affine or bool(written(expression).is_concave())


def obstacle(expression: Expression) -> Expression:
    """Return the smallest subexpression that keeps an expression from being convex: the one to show the user."""
    for argument in expression.args:
        if not is_convex(argument) and not is_concave(argument):
            return obstacle(argument)
    if expression.atom is not None and expression.atom.affine != "curved":
        for k, argument in enumerate(expression.args):
            if slope(expression, k) == 1 and not is_convex(argument):
                return obstacle(argument)
    return expression


def slope(node: Expression, k: int) -> int:
    """Return 1 if an atom is non-decreasing in argument k, -1 if it is non-increasing, 0 if neither is known."""
    assert node.atom is not None
    if node.atom.affine == "quotient" and k == 1:
        return 0
    parts = [_parameter(argument.shape, sign(argument)) for argument in node.args]
    return _way(_applied(node, parts), parts[k]) or 0


def _way(root: Any, symbol: Any) -> int | None:
    """Return the monotonicity of a small CVXPY tree in a parameter; None if it does not occur."""
    if root is symbol:
        return 1
    ways = {
        way * (1 if root.is_incr(k) else -1 if root.is_decr(k) else 0)
        for k, argument in enumerate(root.args)
        if (way := _way(argument, symbol)) is not None
    }
    return None if not ways else ways.pop() if len(ways) == 1 else 0


def direction(expression: Expression, leaf: Expression) -> int | None:
    """Return 1 if every occurrence of a leaf makes no entry fall, -1 if none makes one grow, 0 if neither is known.

    None means that the leaf does not occur.  All other leaves may have any values that their declared signs allow.
    """
    found: dict[Expression, int | None] = {}
    for node in postorder([expression]):
        if node is leaf:
            found[node] = 1
            continue
        met = [(k, argument, found[argument]) for k, argument in enumerate(node.args) if found[argument] is not None]
        if not met or node.atom is None:
            found[node] = None
            continue
        domains = node.atom.domain(node)
        ways = {way * slope(node, k) if _kept(domains[k], a, way) else 0 for k, a, way in met if way is not None}
        found[node] = ways.pop() if len(ways) == 1 else 0
    return found[expression]


def _kept(domain: str | None, argument: Expression, way: int) -> bool:
    """Whether slopes are those in an atom's domain: it is never left, or a solver keeps to it and it grows with the leaf.

    Of an argument without variables nobody asks whether it is in the domain, and outside of it values mean nothing.
    """
    if domain is None:
        return True
    if domain not in ("positive", "not negative"):
        return False
    return sign(argument) == 1 or (way == 1 and bool(argument.variables))
