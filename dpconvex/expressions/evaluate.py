"""Values of core expressions at given values of their leaves, and expressions with other leaves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpconvex.expressions.expression import Constant, Expression, Variable, postorder
from dpconvex.util.arrays import Array

# At a point this far off the real line, imaginary parts are derivatives: exact, for no two numbers are subtracted from each
# other (Squire & Trapp, Using complex variables to estimate derivatives of real functions, 1998).
STEP = 1e-200


def evaluate(root: Expression, leaves: Mapping[Any, Any]) -> Array:
    """Evaluate an expression, with leaves given by themselves or by name; NaN or infinite outside its domain."""
    given = {node: value for node, value in leaves.items() if isinstance(node, Expression)}
    given |= {leaf: leaves[leaf.name] for leaf in root.variables | root.fields if leaf.name in leaves}
    return evaluations([root], given)[root][0]


def evaluations(roots: Sequence[Expression], leaves: Mapping[Expression, Any]) -> dict[Expression, tuple[Array, float]]:
    """Return every node's value, and the largest number that occurs in computing it; what `leaves` give is not looked into."""
    given = {node: np.reshape(np.asarray(value, dtype=float), node.shape)[..., None] for node, value in leaves.items()}
    found: dict[Expression, tuple[Array, float]] = {}
    for node, value in over_records(roots, given).items():
        known = () if node in given else node.args
        own = float(np.abs(value).max(initial=0.0))
        size = max([0.0, own, *(found[argument][1] for argument in known)])
        found[node] = (np.asarray(np.broadcast_to(value[..., 0], node.shape)), size)
    return found


def over_records(roots: Sequence[Expression], leaves: Mapping[Expression, Any], xp: Any = np) -> dict[Expression, Any]:
    """Return the value of every node of some expressions, by NumPy or JAX, for many records: the last axis of all arrays."""
    found: dict[Expression, Any] = {}
    with np.errstate(all="ignore"):
        for node in postorder(roots, leaves):
            if node in leaves:
                found[node] = leaves[node]
            elif isinstance(node, Constant):
                found[node] = node.dense[..., None]
            else:
                found[node] = xp.asarray(node.operation.value(xp, node, *(found[argument] for argument in node.args)))
    return found


def substituted(root: Expression, leaves: Mapping[Expression, Expression]) -> Expression:
    """Return an expression with others, of the same shapes, in the place of some of its leaves."""
    found: dict[Expression, Expression] = {}
    for node in postorder([root]):
        args = [found[argument] for argument in node.args]
        kept = all(new is old for new, old in zip(args, node.args, strict=True))
        found[node] = leaves.get(node, node) if kept or node.atom is None else node.atom(*args, **dict(node.options))
    return found[root]


def slopes(order: Sequence[Expression], found: Mapping[Expression, Any], root: Expression) -> dict[Expression, Any]:
    """Return the slopes of the sum of an expression's entries by its nodes in `order`, whose values are known."""
    known: dict[Expression, Any] = {root: np.ones((*root.shape, 1))}
    for node in reversed(order):
        if node.atom is None or not node.variables or node not in known:
            continue
        parts = node.atom.vjp(node, found[node], known[node], *(found[argument] for argument in node.args))
        for argument, part in zip(node.args, parts, strict=True):
            if argument.variables and part is not None:
                known[argument] = known[argument] + part if argument in known else part
    return known


def subgradient(root: Expression, leaves: Mapping[Expression, Any]) -> dict[Variable, Array]:
    found = over_records([root], {leaf: np.asarray(value, dtype=float)[..., None] for leaf, value in leaves.items()})
    with np.errstate(all="ignore"):
        known = slopes(list(found), found, root)
    return {leaf: np.broadcast_to(known.get(leaf, np.zeros(1))[..., 0], leaf.shape) for leaf in root.variables}


def bent(
    root: Expression, leaves: Mapping[Expression, Array], moves: Mapping[Variable, Array]
) -> dict[Variable, Array]:
    """Return the Hessian of a scalar expression times m directions, shape (..., m) for each variable, where it is smooth."""
    found = over_records([root], {leaf: leaves[leaf][..., None] + 1j * STEP * move for leaf, move in moves.items()})
    with np.errstate(all="ignore"):
        known = slopes(list(found), found, root)
    return {leaf: np.imag(known[leaf]) / STEP for leaf in root.variables if leaf in known}
