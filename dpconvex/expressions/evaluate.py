"""Values and gradients of core expressions at given values of their leaves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpconvex.expressions.expression import Constant, Expression, postorder
from dpconvex.util.arrays import Array

# Imaginary part for complex-step differentiation: no numbers are subtracted, so no digits cancel
# (Squire & Trapp, Using complex variables to estimate derivatives of real functions, 1998).
STEP = 1e-200


def evaluate(root: Expression, leaves: Mapping[Any, Any]) -> Array:
    """Evaluate an expression; keys of `leaves` are leaves or names. Values outside the domain are NaN or infinite."""
    given = {node: value for node, value in leaves.items() if isinstance(node, Expression)}
    given |= {leaf: leaves[leaf.name] for leaf in root.variables | root.fields if leaf.name in leaves}
    return evaluations([root], given)[root][0]


def evaluations(roots: Sequence[Expression], leaves: Mapping[Expression, Any]) -> dict[Expression, tuple[Array, float]]:
    """Return, for each node, its value and the largest absolute number in its computation; `leaves` gives values of nodes."""
    given = {node: np.reshape(np.asarray(value, dtype=float), node.shape)[..., None] for node, value in leaves.items()}
    found: dict[Expression, tuple[Array, float]] = {}
    for node, value in over_records(roots, given).items():
        known = () if node in given else node.args
        size = max([0.0, float(np.abs(value).max(initial=0.0)), *(found[argument][1] for argument in known)])
        found[node] = (np.asarray(np.broadcast_to(value[..., 0], node.shape)), size)
    return found


def over_records(roots: Sequence[Expression], leaves: Mapping[Expression, Any]) -> dict[Expression, Any]:
    """Return the value of every node of the expressions for many records; the last axis of all arrays holds the records."""
    found: dict[Expression, Any] = {}
    with np.errstate(all="ignore"):
        for node in postorder(roots, leaves):
            if node in leaves:
                found[node] = leaves[node]
            elif isinstance(node, Constant):
                found[node] = node.dense[..., None]
            else:
                found[node] = np.asarray(node.operation.value(node, *(found[argument] for argument in node.args)))
    return found


def gradients(
    order: Sequence[Expression], found: Mapping[Expression, Any], root: Expression, weights: Array | None = None
) -> dict[Expression, Any]:
    """Return the gradients of a weighted sum of the entries of `root` in the nodes in `order`; `found` maps nodes to values."""
    known: dict[Expression, Any] = {root: np.ones((*root.shape, 1)) if weights is None else weights}
    for node in reversed(order):
        if node.atom is None or not node.variables or node not in known:
            continue
        parts = node.atom.vjp(node, found[node], known[node], *(found[argument] for argument in node.args))
        for argument, part in zip(node.args, parts, strict=True):
            if argument.variables and part is not None:
                known[argument] = known[argument] + part if argument in known else part
    return known
