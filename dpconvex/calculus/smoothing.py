"""Rounds off the kinks of a loss, so that its minimiser can be computed to a certified distance.

A kinked atom is replaced by a smooth one whose gradients are convex combinations of the kinked one's, so a smoothed loss
is exactly as sensitive as the loss itself, and it is the smoothed learner that is proved private.  The atoms differ by at
most a small multiple of the width (Nesterov 2005, "Smooth minimization of non-smooth functions"; Beck & Teboulle 2012,
"Smoothing and first order methods").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.abs import abs as absolute
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.norm1 import norm1
from cvxpy.atoms.norm_inf import norm_inf
from cvxpy.atoms.pnorm import Pnorm

from dpconvex.core.reader import rebuilt
from dpconvex.errors import MissingRule
from dpconvex.language.huber_hinge import huber_hinge
from dpconvex.language.template import Template

__all__ = ["smooth_template", "smoothed"]

_TEMPLATES: WeakKeyDictionary[Template, dict[float, Template]] = WeakKeyDictionary()


def smooth_template(template: Template, width: float) -> Template:
    """Return the template with the kinks of its losses rounded off; variables, record and the rest are shared.

    Parameters
    ----------
    template : Template
    width : float
        Half the length of the interval on which a kink is rounded off, in units of the kinked atom's argument; positive.

    Raises
    ------
    MissingRule
        If a loss contains a kinked atom that cannot be rounded off.
    """
    known = _TEMPLATES.setdefault(template, {})
    if width not in known:
        known[width] = template.with_losses([smoothed(loss, width) for loss in template.losses])
    return known[width]


def smoothed(expression: cp.Expression, width: float) -> cp.Expression:
    """Return an expression with its kinked atoms replaced; affine subexpressions stay the same objects.

    Examples
    --------
    >>> x = cp.Variable(name="x")
    >>> round_off = smoothed(cp.pos(1 - x), 0.5)
    >>> x.value = 1.0
    >>> float(round_off.value)
    0.125
    """
    if not expression.variables() or expression.is_affine():
        return expression
    if flat_at_zero(expression):
        inner = expression.args[0]
        parts: list[Any] = [rebuilt(inner, [smoothed(argument, width) for argument in inner.args])]
    else:
        parts = [smoothed(argument, width) for argument in expression.args]
    rule = next((ROUNDED[kind] for kind in type(expression).__mro__ if kind in ROUNDED), None)
    if rule is not None:
        result = rule(expression, parts, width)
        if result is None:
            raise MissingRule(
                f"the kinks of {type(expression).__name__} along an axis cannot be rounded off",
                expression,
                "write it entry by entry, or use NoisyGradientDescent, which needs no smoothness",
            )
        return result
    if type(expression).__name__ in SHARP:
        raise MissingRule(
            f"the kinks of {type(expression).__name__} cannot be rounded off",
            expression,
            "use NoisyGradientDescent, which needs no smoothness",
        )
    if all(new is old for new, old in zip(parts, expression.args, strict=True)):
        return expression
    return cp.Expression.cast_to_const(rebuilt(expression, parts))


def flat_at_zero(expression: Any) -> bool:
    """Say whether an outer function of slope 0 at 0 is applied to a positive part, so that there is no kink."""
    power = isinstance(expression, Power) and float(np.asarray(expression.p.value)) >= 2
    return (power or isinstance(expression, cp.huber)) and isinstance(expression.args[0], cp.maximum)


def hinge(expression: Any, parts: list[Any], width: float) -> cp.Expression:
    """Largest of several: a smoothed hinge against zero, else a log-sum-exp."""
    constants = [part for part in parts if part.is_constant() and not part.parameters()]
    if len(parts) == 2 and len(constants) == 1 and not np.any(constants[0].value):
        (other,) = [part for part in parts if part is not constants[0]]
        if other.shape == expression.shape:
            return huber_hinge(other, width=width)
    return width * soft_largest([part / width for part in parts], expression.shape)


def least(expression: Any, parts: list[Any], width: float) -> cp.Expression:
    """Smallest of several."""
    return -width * soft_largest([part / -width for part in parts], expression.shape)


def soft_largest(parts: list[Any], shape: tuple[int, ...]) -> Any:
    """Return the log-sum-exp of several expressions, entry by entry."""
    flat = [cp.reshape(broadcast(part, shape), (1, int(np.prod(shape))), order="F") for part in parts]
    return cp.reshape(cp.log_sum_exp(cp.vstack(flat), axis=0), shape, order="F")


def broadcast(part: Any, shape: tuple[int, ...]) -> Any:
    """Repeat a scalar into a shape."""
    return part if part.shape == shape else part * np.ones(shape)


def round_absolute(expression: Any, parts: list[Any], width: float) -> cp.Expression:
    """Absolute value: quadratic near zero."""
    return cp.huber(parts[0], width) / (2 * width)


def largest_entry(expression: Any, parts: list[Any], width: float) -> cp.Expression | None:
    """Largest entry of all."""
    if expression.axis is not None:
        return None
    return width * cp.log_sum_exp(parts[0] / width)


def sum_absolute(expression: Any, parts: list[Any], width: float) -> cp.Expression | None:
    """Sum of the absolute values of all entries."""
    if expression.axis is not None:
        return None
    return cp.sum(cp.huber(parts[0], width)) / (2 * width)


def largest_absolute(expression: Any, parts: list[Any], width: float) -> cp.Expression | None:
    """Largest absolute value of all entries."""
    if expression.axis is not None:
        return None
    flat = cp.vec(parts[0], order="F") / width
    return width * cp.log_sum_exp(cp.hstack([flat, -flat]))


def euclidean(expression: Any, parts: list[Any], width: float) -> cp.Expression | None:
    """Euclidean norm, of one entry more that is the width."""
    if expression.axis is not None or float(expression.original_p) != 2:
        return None
    return cp.norm(cp.hstack([cp.vec(parts[0], order="F"), width]), 2)


ROUNDED: dict[type, Callable[[Any, list[Any], float], cp.Expression | None]] = {
    cp.maximum: hinge,
    cp.minimum: least,
    absolute: round_absolute,
    cp.max: largest_entry,
    norm1: sum_absolute,
    norm_inf: largest_absolute,
    Pnorm: euclidean,
}
# Kinked atoms that have a rule in the calculus, but no smooth stand-in here.
SHARP = {"lambda_max", "sigma_max", "normNuc", "sum_largest"}
