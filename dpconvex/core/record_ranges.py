"""Bounds of expressions of the record alone: interval rules, and which of them are polynomials.

A feature map may use norms, exponentials or maxima of the record's fields.  These rules bound such functions over the
declared domain; anything without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.elementwise.exp import exp
from cvxpy.atoms.elementwise.log import log
from cvxpy.atoms.elementwise.logistic import logistic
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.norm1 import norm1
from cvxpy.atoms.norm_inf import norm_inf
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.quad_over_lin import quad_over_lin
from numpy.typing import NDArray

from dpconvex.errors import FUNCTIONS, MissingRule, NotPrivate

if TYPE_CHECKING:
    from dpconvex.core.expansion import Expander

__all__ = ["INTERVAL_RULES", "IntervalRule", "bounds_of", "is_polynomial", "polynomial_power", "public_number"]

Array = NDArray[np.float64]
Pair = tuple[Array, Array]


def public_number(value: Any, what: str, expression: cp.Expression) -> float:
    """Return an option of an atom as a number; one that depends on a field of the record is refused.

    Raises
    ------
    MissingRule
        If it depends on the record.
    """
    if isinstance(value, cp.Expression):
        if value.parameters():
            raise MissingRule(f"{what} depends on the record", expression, "use a constant")
        value = value.value
    return float(np.asarray(value))


class _PolynomialPower:
    """Recognises atoms of the record that are polynomials: whole powers and sums of squares."""

    atoms: tuple[type, ...] = (Power, PowerApprox, quad_over_lin)

    def exponent(self, expression: Any) -> int:
        """Return the exponent if the atom is a whole power (2 for a sum of squares), else 0."""
        if isinstance(expression, quad_over_lin):
            divisor = expression.args[1]
            plain = divisor.is_constant() and not divisor.parameters() and float(divisor.value) == 1.0
            return 2 if plain and expression.get_data() == [None, False] else 0
        exponent = public_number(expression.p, "the exponent of a power", expression)
        return int(exponent) if exponent == int(exponent) and 1 <= exponent <= 8 else 0


polynomial_power = _PolynomialPower()


def is_polynomial(expression: cp.Expression) -> bool:
    """Say whether the outermost atom of a record-only expression keeps polynomials polynomials."""
    if isinstance(expression, polynomial_power.atoms):
        return polynomial_power.exponent(expression) > 0
    if isinstance(expression, DivExpression):
        return True
    return isinstance(expression, AffAtom)


Apply = Callable[[Any, "Expander"], Pair]


@dataclass(frozen=True)
class IntervalRule:
    """A rule that bounds a function of the record.

    Attributes
    ----------
    name : str
    atoms : tuple of type
        CVXPY classes that it applies to.
    statement : str
    apply : callable
        ``apply(expression, expander)`` returns lower and upper bounds of the entries, in column order.
    """

    name: str
    atoms: tuple[type, ...]
    statement: str
    apply: Apply


INTERVAL_RULES: dict[type, IntervalRule] = {}


def interval_rule(*atoms: type, name: str, statement: str) -> Callable[[Apply], Apply]:
    """Register the decorated function as the interval rule of some atoms."""

    def register(function: Apply) -> Apply:
        found = IntervalRule(name, atoms, statement, function)
        for atom in atoms:
            INTERVAL_RULES[atom] = found
        return function

    return register


def bounds_of(expression: cp.Expression, expander: Expander) -> Pair:
    """Bound the entries (in column order) of an expression of the record alone.

    Parameters
    ----------
    expression : cvxpy.Expression
        Contains parameters and constants only.
    expander : Expander
        Knows the bounds of the record's scalars.

    Returns
    -------
    lower, upper : ndarray, shape (expression.size,)

    Raises
    ------
    MissingRule
        If an atom has no interval rule.
    """
    if is_polynomial(expression) or not expression.args:
        return expander.bases.range(expander.expand(expression))
    rule = INTERVAL_RULES.get(type(expression))
    if rule is None:
        name = type(expression).__name__
        raise MissingRule(
            f"there is no interval rule for {FUNCTIONS.get(name, name)} of the record",
            expression,
            "compute it beforehand and declare it as a field with its own bounds",
        )
    return rule.apply(expression, expander)


@interval_rule(exp, name="exp", statement="increasing: exp at the ends")
def _exp(expression: Any, expander: Expander) -> Pair:
    with np.errstate(over="ignore"):  # an infinite bound is refused later, by name
        low, high = bounds_of(expression.args[0], expander)
        return outward(np.exp(low), np.exp(high))


@interval_rule(log, name="log", statement="increasing: log at the ends, of an argument that keeps away from zero")
def _log(expression: Any, expander: Expander) -> Pair:
    low, high = bounds_of(expression.args[0], expander)
    if (low <= 0).any():
        raise NotPrivate(
            f"the logarithm's argument can reach zero: over the declared domain it goes down to {float(low.min()):.4g}",
            expression,
            "shift it (cp.log(x + 1)), or declare a domain that keeps away from zero",
        )
    return outward(np.log(low), np.log(high))


@interval_rule(logistic, name="logistic", statement="increasing: log(1 + exp) at the ends")
def _logistic(expression: Any, expander: Expander) -> Pair:
    low, high = bounds_of(expression.args[0], expander)
    return outward(np.logaddexp(0.0, low), np.logaddexp(0.0, high))


@interval_rule(
    cp.abs, name="abs", statement="the larger end; from 0 if the interval contains it, else from the smaller end"
)
def _abs(expression: Any, expander: Expander) -> Pair:
    low, high = bounds_of(expression.args[0], expander)
    straddles = (low < 0) & (high > 0)
    return np.where(straddles, 0.0, np.minimum(np.abs(low), np.abs(high))), np.maximum(np.abs(low), np.abs(high))


@interval_rule(cp.maximum, cp.minimum, name="maximum, minimum", statement="the maximum, or minimum, of the ends")
def _extreme(expression: Any, expander: Expander) -> Pair:
    pick = np.maximum if isinstance(expression, cp.maximum) else np.minimum
    lows, highs = zip(*(spread(bounds_of(a, expander), expression.size) for a in expression.args), strict=True)
    return pick.reduce(lows), pick.reduce(highs)


def outward(low: Array, high: Array, count: int = 4) -> Pair:
    """Move computed bounds apart by some roundings of themselves."""
    room = count * float(np.finfo(float).eps)
    return low - room * np.abs(low), high + np.where(np.isfinite(high), room * np.abs(high), 0.0)


def spread(pair: Pair, size: int) -> Pair:
    """Repeat the bounds of a scalar for every entry."""
    return (np.broadcast_to(pair[0], (size,)), np.broadcast_to(pair[1], (size,)))


@interval_rule(
    Pnorm,
    PnormApprox,
    norm1,
    norm_inf,
    name="norms",
    statement="the norm of the entries' least and largest absolute values; of polynomials also a multiple of the bound on their "
    "Euclidean norm",
)
def _norm(expression: Any, expander: Expander) -> Pair:
    low, high = bounds_of(expression.args[0], expander)
    least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    most = np.maximum(np.abs(low), np.abs(high))
    order = (
        1.0
        if isinstance(expression, norm1)
        else np.inf
        if isinstance(expression, norm_inf)
        else float(expression.original_p)
    )
    if expression.size != 1 or order < 1:
        raise MissingRule("norms of the record are bounded over all entries, of order 1 or more", expression)
    upper = float(np.linalg.norm(most, ord=order))
    if (order >= 2 and is_polynomial(expression.args[0])) or not expression.args[0].args:
        scale = most.size ** max(0.0, 1.0 / order - 0.5)
        upper = min(upper, scale * expander.bases.norm(expander.expand(expression.args[0])))
    return outward(np.array([np.linalg.norm(least, ord=order)]), np.array([upper]), 4 + least.size)


@interval_rule(
    Power,
    PowerApprox,
    name="power",
    statement="monotone on the positive numbers: the power at the ends (whole powers up to 8 are polynomials)",
)
def _power(expression: Any, expander: Expander) -> Pair:
    low, high = bounds_of(expression.args[0], expander)
    value = public_number(expression.p, "the exponent of a power", expression)
    if (low < 0).any() or (value < 0 and (low <= 0).any()):
        raise NotPrivate(
            f"the argument of the power {value:g} can leave the positive numbers: over the declared domain it goes down "
            f"to {float(low.min()):.4g}",
            expression,
            "declare a domain that keeps away from zero, or shift the argument",
        )
    ends = np.stack([low**value, high**value])
    return outward(ends.min(axis=0), ends.max(axis=0))
