"""Values of core expressions at given values of their leaves, and expressions with other leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Constant, Expression

__all__ = ["evaluate", "evaluations", "postorder", "substituted"]

Array = NDArray[np.float64]


def postorder(roots: Sequence[Expression]) -> list[Expression]:
    """Return every node of some expressions once, arguments before what is made of them."""
    order: dict[Expression, None] = {}
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, ready = waiting.pop()
        if node in order:
            continue
        if ready or not node.args:
            order[node] = None
        else:
            waiting.append((node, True))
            waiting.extend((argument, False) for argument in reversed(node.args))
    return list(order)


def evaluate(root: Expression, leaves: Mapping[Any, Any]) -> Array:
    """Evaluate an expression; NaN or infinite outside its domain.

    Parameters
    ----------
    root : Expression
    leaves : mapping of Variable, Field or str to array_like
        Values of the leaves, or of the leaves' names.

    Examples
    --------
    >>> from dpconvex.core.expression import Variable
    >>> w = Variable.of((2,), "w", 1)
    >>> float(evaluate((w * w)[0] + 1, {"w": [3.0, 0.0]}))
    10.0
    """
    return evaluations([root], leaves)[root][0]


def evaluations(roots: Sequence[Expression], leaves: Mapping[Any, Any]) -> dict[Expression, tuple[Array, float]]:
    """Evaluate expressions, each node once: the value of every node, and the largest number that occurs in computing it."""
    found: dict[Expression, Array] = {}
    sizes: dict[Expression, float] = {}
    with np.errstate(all="ignore"):
        for node in postorder(roots):
            if isinstance(node, Constant):
                value = node.dense[..., None]
            elif node.atom is None:
                given = leaves[node] if node in leaves else leaves[node.__dict__["name"]]
                value = np.asarray(given, dtype=float).reshape(node.shape)[..., None]
            else:
                value = node.atom.value(np, node, *(found[argument] for argument in node.args))
            found[node] = np.asarray(value)
            own = float(np.abs(found[node]).max(initial=0.0))
            sizes[node] = max([0.0, own, *(sizes[argument] for argument in node.args)])
    return {
        node: (np.asarray(np.broadcast_to(value[..., 0], node.shape)), sizes[node]) for node, value in found.items()
    }


def substituted(root: Expression, leaves: Mapping[Expression, Expression]) -> Expression:
    """Return an expression with others, of the same shapes, in the place of some of its leaves."""
    found: dict[Expression, Expression] = {}
    for node in postorder([root]):
        args = [found[argument] for argument in node.args]
        kept = all(new is old for new, old in zip(args, node.args, strict=True))
        found[node] = leaves.get(node, node) if kept or node.atom is None else node.atom(*args, **dict(node.options))
    return found[root]
