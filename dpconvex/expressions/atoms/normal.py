"""Minus the logarithm of the normal distribution function: the loss of probit models."""

from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr

from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import Scalar
from dpconvex.expressions.atom import Atom, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.atoms.arithmetic import PRODUCT, negate
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import TINY, Interval
from dpconvex.util.arrays import Array

ROUNDINGS = 64  # within so many of them, relative, are the values of SciPy; tests compare them with exact bounds


def hazard(m: Any) -> Any:
    """Return the normal density over its distribution function at m: minus the slope; no difference cancels in it."""
    return np.sqrt(2 / np.pi) / erfcx(-m / np.sqrt(2))


def bend(m: Any) -> Any:
    """Return the second derivative h (h + m) with h the hazard, within [0, 1]."""
    steep = hazard(m)
    return np.clip(steep * (steep + m), 0.0, 1.0)


def with_derivative(value: Array, slope: Array, m: Any) -> Any:
    return value + 1j * slope * m.imag if np.iscomplexobj(m) else value  # imaginary parts carry derivatives along


def log_normcdf_value(xp: Any, expression: Expression, a: Any) -> Any:
    if xp is not np:
        from jax.scipy.special import log_ndtr as compiled_log_ndtr

        return -compiled_log_ndtr(a)
    real = np.real(a)
    return with_derivative(-log_ndtr(real), -hazard(real), a)


def log_normcdf_rule(expression: Expression, entry: Scalar) -> Scalar:
    low, high = entry.value.low, entry.value.high
    if not low > -np.inf:
        why = "log_normcdf is Lipschitz only where its argument has a lower bound, and nothing bounds it"
        raise NotPrivate(why, None, rules.BOUND_IT)
    value = Interval(-float(log_ndtr(high)), -float(log_ndtr(low))).rounded(count=ROUNDINGS)
    steep = Interval(float(hazard(high)), float(hazard(low))).rounded(count=ROUNDINGS)
    steep = Interval(steep.low if steep.low > TINY else 0.0, max(steep.high, TINY))
    # h (h + m) falls in m, between 0 and 1 (Sampford 1953); its sum cancels below.
    most = float(bend(low)) + ROUNDINGS * np.finfo(float).eps * steep.high**2
    slope = Interval(-steep.high, -steep.low)
    return entry.through(Interval(max(value.low, 0.0), value.high), slope, min(1.0, most))


NEG_LOG_NORMCDF = Atom(
    name="neg_log_normcdf",
    value=log_normcdf_value,
    pull=lambda e, value, slope, a: [slope * with_derivative(-hazard(np.real(a)), bend(np.real(a)), a)],
    reads={"dpconvex.expressions.log_normcdf.LogNormcdf": lambda node, args: negate(NEG_LOG_NORMCDF(args[0]))},
    writes=None,  # it has no conic form
    sign=always(1),
    slope=always(-1),
    text=lambda e, write: (f"-log_normcdf({write(e.args[0], 0)})", PRODUCT),
    rule=rules.entrywise(log_normcdf_rule),
    statement="-log Phi(m) on m >= l, with h = phi/Phi: slope in [-h(l), 0], second derivative at most h(l) (h(l) + l) <= 1",
    source="Sampford, Some inequalities on Mill's ratio and related functions, Annals of Mathematical Statistics 24, 1953",
)
