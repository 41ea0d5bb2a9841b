"""Values of core expressions at given values of their leaves, and expressions with other leaves."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Constant, Expression, Variable

Array = NDArray[np.float64]


def postorder(roots: Sequence[Expression], leaves: Collection[Expression] = ()) -> list[Expression]:
    """Return every node of some expressions once, arguments before what is made of them; `leaves` are not looked into."""
    order: dict[Expression, None] = {}
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, ready = waiting.pop()
        if node in order:
            continue
        if ready or not node.args or node in leaves:
            order[node] = None
        else:
            waiting.append((node, True))
            waiting.extend((argument, False) for argument in reversed(node.args))
    return list(order)


def evaluate(root: Expression, leaves: Mapping[Any, Any]) -> Array:
    """Evaluate an expression; NaN or infinite outside its domain.

    Examples
    --------
    >>> from dpconvex.core.expression import Variable
    >>> w = Variable.of((2,), "w", 1)
    >>> float(evaluate((w * w)[0] + 1, {"w": [3.0, 0.0]}))
    10.0
    """
    given = {node: value for node, value in leaves.items() if isinstance(node, Expression)}
    given |= {leaf: leaves[leaf.name] for leaf in root.variables | root.fields if leaf.name in leaves}
    return evaluations([root], given)[root][0]


def evaluations(roots: Sequence[Expression], leaves: Mapping[Expression, Any]) -> dict[Expression, tuple[Array, float]]:
    """Return the value of every node of some expressions, and the largest number that occurs in computing it.

    `leaves` may also give values of expressions that have arguments; these are not looked into.
    """
    given = {node: np.reshape(np.asarray(value, dtype=float), node.shape)[..., None] for node, value in leaves.items()}
    found: dict[Expression, tuple[Array, float]] = {}
    for node, value in over_records(roots, given).items():
        known = () if node in given else node.args
        own = float(np.abs(value).max(initial=0.0))
        size = max([0.0, own, *(found[argument][1] for argument in known)])
        found[node] = (np.asarray(np.broadcast_to(value[..., 0], node.shape)), size)
    return found


def over_records(roots: Sequence[Expression], leaves: Mapping[Expression, Array]) -> dict[Expression, Array]:
    """Return the value of every node of some expressions for many records, which are the last axis of all arrays."""
    found: dict[Expression, Array] = {}
    with np.errstate(all="ignore"):
        for node in postorder(roots, leaves):
            if node in leaves:
                found[node] = leaves[node]
            elif isinstance(node, Constant):
                found[node] = node.dense[..., None]
            else:
                assert node.atom is not None
                found[node] = np.asarray(node.atom.value(np, node, *(found[argument] for argument in node.args)))
    return found


def substituted(root: Expression, leaves: Mapping[Expression, Expression]) -> Expression:
    """Return an expression with others, of the same shapes, in the place of some of its leaves."""
    found: dict[Expression, Expression] = {}
    for node in postorder([root]):
        args = [found[argument] for argument in node.args]
        kept = all(new is old for new, old in zip(args, node.args, strict=True))
        found[node] = leaves.get(node, node) if kept or node.atom is None else node.atom(*args, **dict(node.options))
    return found[root]


def subgradient(root: Expression, leaves: Mapping[Variable, Any]) -> dict[Variable, Array] | None:
    """Return a subgradient of a scalar expression by each of its variables; None if an atom in it has no derivative.

    >>> from dpconvex.core.expression import Variable
    >>> w = Variable.of((2,), "w", 1)
    >>> subgradient((w * w)[0] + w[1], {w: [3.0, 0.0]})[w]
    array([6., 1.])
    """
    found = over_records([root], {leaf: np.asarray(value, dtype=float)[..., None] for leaf, value in leaves.items()})
    slopes: dict[Expression, Any] = {root: np.ones((*root.shape, 1))}
    with np.errstate(all="ignore"):
        for node in reversed(postorder([root])):
            if node.atom is None or not node.variables or node not in slopes:
                continue
            if node.atom.pull is None:
                return None
            parts = node.atom.pull(node, found[node], slopes[node], *(found[argument] for argument in node.args))
            for argument, part in zip(node.args, parts, strict=True):
                if argument.variables and part is not None:
                    slopes[argument] = slopes[argument] + part if argument in slopes else part
    zero = np.zeros(1)
    return {leaf: np.broadcast_to(slopes.get(leaf, zero)[..., 0], leaf.shape) for leaf in root.variables}
