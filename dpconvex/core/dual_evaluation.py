"""Atoms on dual arrays, and second derivatives of expressions by them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.dual_numbers import Dual, plain, tangent
from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import Constant, Expression, Variable
from dpconvex.errors import MissingRule

Array = NDArray[np.float64]


def applied(node: Expression, arguments: list[Any]) -> Any:
    """Evaluate an atom, on dual arrays too."""
    assert node.atom is not None
    value = node.atom.value
    if not any(isinstance(argument, Dual) for argument in arguments) or node.atom.affine in ("curved", "quotient"):
        return value(np, node, *arguments)
    still, moving = plain(arguments), tangent(arguments)
    if node.atom.affine == "linear":
        return Dual(value(np, node, *still), value(np, node, *moving))
    parts = [
        value(np, node, *still[:k], moving[k], *still[k + 1 :])
        for k, argument in enumerate(arguments)
        if isinstance(argument, Dual)
    ]
    return Dual(value(np, node, *still), sum(parts[1:], parts[0]))


def pulled(node: Expression, value: Any, slope: Any, arguments: list[Any]) -> Sequence[Any]:
    """Return an atom's slopes by its arguments, on dual arrays too."""
    assert node.atom is not None
    pull = node.atom.pull
    if pull is None:
        raise MissingRule(f"{node.atom.name} has no derivative that can be computed", node, "write it with other atoms")
    varying = [isinstance(part, Dual) for part in (slope, *arguments)]
    if not any(varying) or node.atom.affine in ("curved", "quotient"):
        return pull(node, value, slope, *arguments)
    still = pull(node, plain(value), plain(slope), *plain(arguments))
    moving = pull(node, plain(value), tangent(slope), *plain(arguments)) if varying[0] else None
    if node.atom.affine == "bilinear" and any(varying[1:]):
        others = pull(node, plain(value), plain(slope), *tangent(arguments))
        moving = others if moving is None else [together(a, b) for a, b in zip(moving, others, strict=True)]
    if moving is None:
        return still
    return [None if a is None else Dual(a, b) for a, b in zip(still, moving, strict=True)]


def together(a: Any, b: Any) -> Any:
    """Add up slopes, of which None is none."""
    return b if a is None else a if b is None else a + b


def bent(root: Expression, leaves: Mapping[Variable, Array], moves: Mapping[Variable, Array]) -> dict[Variable, Array]:
    """Return the Hessian of a scalar expression times m directions, shape (..., m) for each variable, where it is smooth.

    >>> from dpconvex.core.atoms.powers import power
    >>> w = Variable.of((), "w", 1)
    >>> bent(power(w, 3), {w: np.array(2.0)}, {w: np.array([1.0, 10.0])})[w]
    array([ 12., 120.])
    """
    found: dict[Expression, Any] = {
        leaf: Dual(np.broadcast_to(np.asarray(value, dtype=float)[..., None], moves[leaf].shape), moves[leaf])
        for leaf, value in leaves.items()
    }
    slopes: dict[Expression, Any] = {root: np.ones((*root.shape, 1))}
    with np.errstate(all="ignore"):
        for node in postorder([root]):
            if isinstance(node, Constant):
                found[node] = node.dense[..., None]
            elif node not in found:
                found[node] = applied(node, [found[argument] for argument in node.args])
        for node in reversed(postorder([root])):
            if node.atom is None or not node.variables or node not in slopes:
                continue
            parts = pulled(node, found[node], slopes[node], [found[argument] for argument in node.args])
            for argument, part in zip(node.args, parts, strict=True):
                if argument.variables:
                    slopes[argument] = together(slopes.get(argument), part)
    return {leaf: tangent(slopes[leaf]) for leaf in root.variables if isinstance(slopes.get(leaf), Dual)}
