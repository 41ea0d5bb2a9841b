"""Values of core expressions at given values of their leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Constant, Expression

__all__ = ["evaluate", "postorder"]

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
    found: dict[Expression, Array] = {}
    with np.errstate(all="ignore"):
        for node in postorder([root]):
            if isinstance(node, Constant):
                value = node.dense[..., None]
            elif node.atom is None:
                name = node.__dict__["name"]
                value = np.asarray(leaves[node] if node in leaves else leaves[name], dtype=float).reshape(node.shape)[
                    ..., None
                ]
            else:
                value = node.atom.value(np, node, *(found[argument] for argument in node.args))
            found[node] = np.asarray(value)
    return np.asarray(np.broadcast_to(found[root][..., 0], root.shape))
