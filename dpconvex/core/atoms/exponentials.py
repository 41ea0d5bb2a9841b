"""Exponentials and logarithms, entropies, and their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Piece, Scalar, hull_of, mixed_pieces
from dpconvex.core.atom import Atom, LeastCurvature, Reach
from dpconvex.core.atoms.divergences import a_log_ratio, log_ratio_slope
from dpconvex.core.atoms.groups import Pair, along_axis, entry_ends, lines, outward
from dpconvex.core.atoms.rules import BOUND_IT, CALCULUS, Entries, at_most, bounded, claimed, entrywise, image, positive
from dpconvex.core.atoms.shared import (
    axis_for,
    concave,
    convex,
    every_axis,
    grows,
    kept,
    nowhere_negative,
    over,
    reduced,
    reduction_text,
    unreduced,
)
from dpconvex.core.expression import Expression, constant
from dpconvex.core.intervals import Interval
from dpconvex.errors import NotPrivate

# exp of this is finite, and so are products of a few of them with anything reasonable.
LARGEST_EXPONENT = 300.0


def exp_range(expression: Expression, expander: Any) -> Any:
    """Increasing: exp at the ends."""
    with np.errstate(over="ignore"):  # an infinite bound is refused later, by name
        return outward(*(np.exp(end) for end in expander.bounds(expression.args[0])))


def exp_rule(expression: Expression, entry: Scalar) -> Scalar:
    """Exp is its own slope and its own curvature; it needs an upper bound of the argument."""
    value = image(np.exp, exponent(entry, "exp"))
    return entry.through(value, value, value.high)


def exponent(entry: Scalar, what: str) -> Interval:
    """Return the range of an argument, or refuse what is unbounded above or overflows."""
    high = entry.value.high
    if not np.isfinite(high):
        raise NotPrivate(f"{what} is Lipschitz only where its argument is bounded above, and it is not", None, BOUND_IT)
    if high > LARGEST_EXPONENT:
        raise NotPrivate(f"{what} of an argument as large as {high:.4g} overflows", None, BOUND_IT)
    return entry.value


EXP = Atom(
    name="exp",
    value=lambda xp, expression, a: xp.exp(a),
    pull=lambda expression, value, slope, a: [slope * value],
    reads="cvxpy.atoms.elementwise.exp.exp",
    sign=nowhere_negative,
    curve=convex,
    slope=grows,
    bounds=exp_range,
    rule=entrywise(exp_rule),
    statement="exp(m) on m <= u: slope and second derivative at most exp(u)",
    source=CALCULUS,
)
exp = EXP


def log_range(expression: Expression, expander: Any) -> Any:
    """Increasing: log at the ends, of an argument that keeps away from zero."""
    low, high = expander.bounds(expression.args[0])
    if not (low > 0).all():
        raise NotPrivate(
            f"the logarithm's argument can reach zero: over the declared domain it goes down to {float(low.min()):.4g}",
            expression,
            "shift it (cp.log(x + 1)), or declare a domain that keeps away from zero",
        )
    return outward(np.log(low), np.log(high))


def log_rule(expression: Expression, entry: Scalar) -> Scalar:
    """Slope 1/m, second derivative -1/m^2; needs a positive lower bound of the argument."""
    low = positive(entry, "log")
    slope = Interval(1 / entry.value.high, 1 / low).rounded()
    return entry.through(image(np.log, entry.value), slope, 1 / low**2, sign=-1)


LOG: Atom = Atom(
    name="log",
    value=lambda xp, expression, a: xp.log(a),
    pull=lambda expression, value, slope, a: [slope / a],
    reads={
        "cvxpy.atoms.elementwise.log.log": lambda node, args: LOG(args[0]),
        "cvxpy.atoms.elementwise.log1p.log1p": lambda node, args: LOG(1.0 + args[0]),
    },
    domain=lambda expression: ("not negative",),
    curve=concave,
    slope=grows,
    bounds=log_range,
    rule=entrywise(log_rule),
    strong=LeastCurvature(
        "logarithmic barrier",
        "-sum_k w_k log m_k on a bounded K, m = A theta + c <= u: Hessian at least A' diag(w/u^2) A",
        lambda expression, weights, reach: claimed(weights, at_most(reach.high) ** -2.0),
    ),
    statement="log(m) on m >= l > 0: concave, slope at most 1/l, second derivative at most 1/l^2",
    source=CALCULUS,
)
log = LOG


def entr_rule(expression: Expression, entry: Scalar) -> Scalar:
    """Slope -1 - log m, second derivative -1/m; needs positive bounds of the argument."""
    low = positive(entry, "entr")
    high = bounded(entry, "entr").high
    ends = [-low * np.log(low), -high * np.log(high)]
    top = float(np.exp(-1.0)) if low <= np.exp(-1.0) <= high else max(ends)
    slope = Interval(float(-1 - np.log(high)), float(-1 - np.log(low))).rounded(1.0)
    return entry.through(Interval(float(min(ends)), float(top)).rounded(), slope, 1 / low, sign=-1)


ENTR = Atom(
    name="entr",
    value=lambda xp, expression, a: -a_log_ratio(xp, a, 1.0),
    pull=lambda expression, value, slope, a: [-slope * log_ratio_slope(a, 1.0)],
    reads="cvxpy.atoms.elementwise.entr.entr",
    domain=lambda expression: ("not negative",),
    curve=concave,
    rule=entrywise(entr_rule),
    strong=LeastCurvature(
        "negative entropy",
        "sum_k w_k m_k log m_k on a bounded K, m = A theta + c <= u: Hessian at least A' diag(w/u) A",
        lambda expression, weights, reach: claimed(weights, 1 / at_most(reach.high)),
    ),
    statement="-m log m on l <= m <= u, l > 0: concave, slope -1 - log m, second derivative at most 1/l",
    source=CALCULUS,
)
entr = ENTR


def xexp_range(expression: Expression, expander: Any) -> Any:
    """Increasing on the numbers that are not negative: its values at the ends."""
    low, high = expander.bounds(expression.args[0])
    check_not_negative(float(low.min(initial=0.0)), expression)
    with np.errstate(over="ignore"):  # an infinite bound is refused later, by name
        return outward(low * np.exp(low), high * np.exp(high))


def xexp_rule(expression: Expression, entry: Scalar) -> Scalar:
    """Slope (m + 1) exp(m), second derivative (m + 2) exp(m), both increasing."""
    check_not_negative(entry.value.low, None)
    value = exponent(entry, "xexp")
    slope = image(lambda m: (m + 1) * np.exp(m), value)
    return entry.through(image(lambda m: m * np.exp(m), value), slope, slope.high * (1 + 1 / (1 + value.high)))


def check_not_negative(low: float, place: Expression | None) -> None:
    """Refuse arguments of xexp outside its domain."""
    if not low >= 0:
        raise NotPrivate(
            f"xexp is defined for arguments that are not negative, and its argument goes down to {low:.4g}",
            place,
            "shift the argument, or bound the parameters or the declared domain so that it is not negative",
        )


XEXP = Atom(
    name="xexp",
    value=lambda xp, expression, a: a * xp.exp(a),
    pull=lambda expression, value, slope, a: [slope * (a + 1) * np.exp(a)],
    reads="cvxpy.atoms.elementwise.xexp.xexp",
    domain=lambda expression: ("not negative",),
    sign=nowhere_negative,
    curve=convex,
    slope=grows,
    bounds=xexp_range,
    rule=entrywise(xexp_rule),
    strong=LeastCurvature(
        "xexp",
        "sum_k w_k m_k exp(m_k), m = A theta + c >= l >= 0 on K: Hessian at least A' diag(w (l + 2) exp(l)) A",
        lambda e, weights, reach: claimed(weights, (least_of(reach) + 2) * np.exp(least_of(reach))),
    ),
    statement="m exp(m) on 0 <= m <= u: slope at most (u + 1) exp(u), second derivative at most (u + 2) exp(u)",
    source=CALCULUS,
)
xexp = XEXP


def least_of(reach: Reach) -> Any:
    """Return lower bounds of arguments that are not negative."""
    return np.minimum(np.maximum(reach.low, 0.0), LARGEST_EXPONENT)


def log_one_plus_exp(xp: Any, expression: Expression, a: Any) -> Any:
    """Compute log(1 + exp(a)) without overflow."""
    if xp is not np:
        return softplus()(a)
    if not isinstance(a, np.ndarray):  # it carries a derivative (see `core.dual_numbers`), and knows how to share
        return np.logaddexp(a, 0.0)
    return np.maximum(a, 0.0) + np.log1p(np.exp(-np.abs(a)))  # four times as fast as `np.logaddexp`


def logistic_slope(a: Any) -> Any:
    """Slope of log(1 + exp(a)), without overflow."""
    return 1.0 / (1.0 + np.exp(np.minimum(-a, 700.0)))


@cache
def softplus() -> Callable[[Any], Any]:
    """Return log(1 + exp(a)) for JAX, with derivatives that share its exponential."""
    import jax
    import jax.numpy as xp

    @jax.custom_jvp
    def value(a: Any) -> Any:
        return xp.maximum(a, 0.0) + xp.log1p(xp.exp(-xp.abs(a)))

    @jax.custom_jvp
    def slope(a: Any) -> Any:
        tail = xp.exp(-xp.abs(a))
        return xp.where(a >= 0, 1.0, tail) / (1.0 + tail)

    @value.defjvp
    def value_rule(point: Any, direction: Any) -> Any:
        return value(*point), slope(*point) * direction[0]

    @slope.defjvp
    def slope_rule(point: Any, direction: Any) -> Any:
        s = slope(*point)
        return s, s * (1.0 - s) * direction[0]

    return value


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)) without overflow."""
    return float(np.exp(-np.logaddexp(0.0, -value)))


def logistic_range(expression: Expression, expander: Any) -> Any:
    """Increasing: log(1 + exp) at the ends."""
    return outward(*(np.logaddexp(0.0, end) for end in expander.bounds(expression.args[0])))


def logistic_rule(expression: Expression, entry: Scalar) -> Scalar:
    """Slope s(m), second derivative s(m)(1 - s(m)) with the sigmoid s; the latter is largest where m is nearest 0."""
    nearest = sigmoid(min(max(0.0, entry.value.low), entry.value.high))
    slope = image(sigmoid, entry.value)
    slope = Interval(slope.low, min(slope.high, 1.0))
    outcome = entry.through(image(lambda m: np.logaddexp(0.0, m), entry.value), slope, nearest * (1 - nearest))
    if entry.is_affine and len(entry.terms) == 1 and len(entry.terms[0].rows) == 1:
        return replace(outcome, logit=(entry.terms[0].rows[0], 1.0, slope.low, slope.high))
    return outcome


LOGISTIC = Atom(
    name="logistic",
    value=log_one_plus_exp,
    pull=lambda expression, value, slope, a: [slope * logistic_slope(a)],
    reads="cvxpy.atoms.elementwise.logistic.logistic",
    sign=nowhere_negative,
    curve=convex,
    slope=grows,
    bounds=logistic_range,
    rule=entrywise(logistic_rule),
    statement="log(1 + exp(m)): slope in [0, 1], second derivative at most 1/4; sharper on a bounded range",
    source=f"Chaudhuri, Monteleoni & Sarwate 2011, corollary 11; {CALCULUS}",
)
logistic = LOGISTIC


def log_sum_exp_value(xp: Any, expression: Expression, a: Any) -> Any:
    """Compute log sum exp without overflow; the shift is held fixed in derivatives, which it does not change."""
    axis = expression.option("axis")
    top = xp.max(a, axis=axis, keepdims=True)
    if xp is not np:
        from jax.lax import stop_gradient

        top = stop_gradient(top)
    return kept(expression, xp.log(xp.sum(xp.exp(a - top), axis=axis, keepdims=True)) + top)


def soft_maximum(low: Any, high: Any) -> Interval:
    """Bound the log-sum-exp of numbers in intervals: it grows in each of them."""
    sizes = np.abs(np.concatenate([low, high]))
    largest = float(sizes[np.isfinite(sizes)].max(initial=1.0))
    return Interval(float(np.logaddexp.reduce(low)), float(np.logaddexp.reduce(high))).rounded(len(low) * largest)


def log_sum_exp_bounds(expression: Expression, expander: Any) -> Pair:
    low, high = expander.bounds(expression.args[0])
    found = [soft_maximum(low[line], high[line]) for line in lines(expression)]
    return np.array([value.low for value in found]), np.array([value.high for value in found])


def log_sum_exp_rule(expression: Expression, arguments: list[Entries]) -> Entries:
    """Softmax weights p: gradient ``sum p_j g_j``, Hessian ``Cov_p(g) + sum p_j H_j``."""
    result = []
    for group in along_axis(expression, arguments[0]):
        hull = hull_of(group)
        kink = next((entry.kink for entry in group if entry.kink), None)
        spread = (Piece((hull,), 0.0, 1.0),) if len(hull.rows) + hull.merged > 1 else ()
        result.append(Scalar(soft_maximum(*entry_ends(group)), (hull,), spread + mixed_pieces(group), 1, kink))
    return result


def softmax(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    """Weights that are proportional to exponentials and add up to one; shifted by the value none overflows."""
    weights = np.exp(a - unreduced(expression, value))
    total = np.sum(weights, axis=expression.option("axis"), keepdims=True)
    return [weights * (unreduced(expression, slope) / total)]


LOG_SUM_EXP = Atom(
    name="log_sum_exp",
    shape=reduced,
    value=log_sum_exp_value,
    pull=softmax,
    reads={"cvxpy.atoms.log_sum_exp.log_sum_exp": over(lambda a, axis, keepdims: log_sum_exp(a, axis, keepdims))},
    writes=lambda cp, e, args: cp.log_sum_exp(args[0], axis=axis_for(e), keepdims=e.option("keepdims")),
    sign=lambda expression, signs: 1 if signs[0] == 1 else 0,
    curve=convex,
    slope=grows,
    text=reduction_text,
    statement="gradient a convex combination of the arguments' (so bounded by the largest, not the root sum of squares); "
    "Hessian their covariance under softmax weights, plus the arguments' own",
    source="Boyd & Vandenberghe, Convex Optimization, section 3.1.5; Popoviciu's inequality for the eigenvalues",
    bounds=log_sum_exp_bounds,
    rule=log_sum_exp_rule,
)


def log_sum_exp(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    a = constant(a)
    return LOG_SUM_EXP(a, axis=every_axis(a, axis), keepdims=keepdims)
