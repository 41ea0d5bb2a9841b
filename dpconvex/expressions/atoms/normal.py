"""Minus the logarithm of the normal distribution function: the loss of probit models."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr

from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue
from dpconvex.expressions.atom import AtomDefinition, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.expression import PRODUCT, Expression
from dpconvex.numerics import EPSILON, TINY, Interval
from dpconvex.util.arrays import Array

ROUNDINGS = 64  # relative error of SciPy's values, in units of EPSILON; tests compare them with exact bounds
FAR = 1e3  # values underflow long before


def hazard(m: Any) -> Any:
    """Return the normal density divided by its distribution function at m: minus the slope. No digits cancel."""
    return np.sqrt(2 / np.pi) / erfcx(-m / np.sqrt(2))


def bend(m: Any) -> Any:
    """Return the second derivative h (h + m) with h the hazard, within [0, 1]."""
    steep = hazard(m)
    return np.clip(steep * (steep + m), 0.0, 1.0)


def with_derivative(value: Array, slope: Array, m: Any) -> Any:
    return value + 1j * slope * m.imag if np.iscomplexobj(m) else value  # imaginary parts carry derivatives along


def log_normcdf_value(expression: Expression, a: Any) -> Any:
    real = np.real(a)
    return with_derivative(-log_ndtr(real), -hazard(real), a)


def image(function: Callable[[float], Any], interval: Interval) -> Interval:
    """Return bounds on a decreasing positive function; relative errors grow with the square of positive arguments."""
    low, high = (float(function(end)) for end in (interval.high, interval.low))
    slack = [ROUNDINGS * EPSILON * (1 + max(min(end, FAR), 0.0) ** 2) for end in (interval.high, interval.low)]
    return Interval(low * (1 - slack[0]) if low > TINY and slack[0] < 1 else 0.0, max(high * (1 + slack[1]), TINY))


def log_normcdf_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    if not entry.value.low > -np.inf:
        why = "log_normcdf is Lipschitz only where its argument has a lower bound, and nothing bounds it"
        raise NotPrivate(why, None, rules.BOUND_IT)
    steep, low = image(hazard, entry.value), entry.value.low
    # h (h + m) decreases in m from 1 to 0 (Sampford 1953); far to the left, digits of h + m cancel.
    slack = ROUNDINGS * EPSILON * (1 + max(low, 0.0) ** 2)
    most = float(bend(low)) + slack * steep.high * (steep.high + abs(low))
    return entry.through(image(lambda m: -log_ndtr(m), entry.value), Interval(-steep.high, -steep.low), min(1.0, most))


NEG_LOG_NORMCDF = AtomDefinition(
    name="neg_log_normcdf",
    value=log_normcdf_value,
    vjp=lambda e, value, slope, a: [slope * with_derivative(-hazard(np.real(a)), bend(np.real(a)), a)],
    from_cvxpy="dpconvex.expressions.declared_atoms.NegLogNormcdf",
    to_cvxpy=None,  # it has no conic form
    sign=always(1),
    monotonicity=always(-1),
    to_string=lambda e, write: (f"-log_normcdf({write(e.args[0], 0)})", PRODUCT),
    bounds=rules.entrywise(log_normcdf_rule),
    statement="-log Phi(m) on m >= l, with h = phi/Phi: slope in [-h(l), 0], second derivative at most h(l) (h(l) + l) <= 1",
    source="Sampford, Some inequalities on Mill's ratio and related functions, Annals of Mathematical Statistics 24, 1953",
    entrywise=True,
)
