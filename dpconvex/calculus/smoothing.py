"""Rounds off the kinks of a loss, so that its minimiser can be computed to a certified distance.

A kinked atom is replaced (its slot `smooth`) by one whose gradients are convex combinations of its own, so a smoothed loss is
exactly as sensitive (Nesterov 2005, "Smooth minimization of non-smooth functions"; Beck & Teboulle 2012).
"""

from collections.abc import Mapping

from dpconvex.core.atoms.extremes import is_hinge
from dpconvex.core.atoms.norms import QUAD_OVER_LIN
from dpconvex.core.atoms.powers import HUBER, POWER
from dpconvex.core.expression import Expression, node, postorder
from dpconvex.core.runtime import once
from dpconvex.errors import MissingRule
from dpconvex.language.template import Template


@once
def smooth_template(template: Template, width: float) -> Template:
    """Return the template with the kinks of its losses rounded off; variables, record and the rest are shared."""
    return template.with_parts(losses=tuple(smoothed(loss, width) for loss in template.losses))


def smoothed(expression: Expression, width: float) -> Expression:
    """Return an expression with its kinked atoms replaced.

    Examples
    --------
    >>> from dpconvex.core.atoms.extremes import pos
    >>> from dpconvex.core.expression import Variable
    >>> print(smoothed(pos(1 - Variable.of((), "x", 1)), 0.5))
    huber(pos(1 - x + 0.5), 1) / 2
    """
    done: dict[Expression, Expression] = {}
    for part in postorder([expression]):  # a part that is shared is rounded off once
        done[part] = rounded(part, done, width)
    return done[expression]


def rounded(expression: Expression, done: Mapping[Expression, Expression], width: float) -> Expression:
    if not expression.variables or expression.is_affine:
        return expression
    atom = expression.operation
    args = [done[argument] for argument in expression.args]
    if is_flat_at_zero(expression) and is_hinge(expression.args[0]):
        hinge = expression.args[0]
        args[0] = node(hinge.operation, [done[argument] for argument in hinge.args], hinge.options, hinge.shape)
    if atom.smooth is None:
        return node(atom, args, expression.options, expression.shape)
    result: Expression | None = atom.smooth(expression, args, width)
    if result is None:
        lines = "" if expression.is_scalar else " along an axis"
        raise MissingRule(
            f"the kinks of {atom.name}{lines} cannot be rounded off",
            expression,
            "write it entry by entry, or use NoisyGradientDescent, which needs no smoothness",
        )
    return result


def is_flat_at_zero(expression: Expression) -> bool:
    """Say whether an outer function has slope 0 at 0, so that of a positive part it has no kink."""
    powered = expression.atom is POWER and expression.option("p") >= 2
    return powered or expression.atom in (HUBER, QUAD_OVER_LIN)
