"""Exponentials and logarithms, relative entropies, and the logarithm of a sum of exponentials."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.special import expit

from dpconvex.errors import MissingRule, NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet, HessianTerm, Mean, hull_of
from dpconvex.expressions.atom import AtomDefinition, LeastCurvature, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.atoms.arrangement import broadcast_all
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import TINY, Interval

LARGEST_EXPONENT = 300.0  # so that products of a few exponentials with usual numbers are finite


def image(function: Callable[[float], Any], interval: Interval) -> Interval:
    """Return bounds on an increasing positive function, also where its values underflow."""
    found = Interval(float(function(interval.low)), float(function(interval.high))).rounded()
    return Interval(found.low if found.low > TINY else 0.0, max(found.high, TINY))


def exp_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    if not entry.value.high <= LARGEST_EXPONENT:
        why = f"exp needs an argument of at most {LARGEST_EXPONENT:g}, and it goes up to {entry.value.high:.4g}"
        if not expression.variables:  # no mechanism helps: values of the record are too large for double precision
            raise NotPrivate(
                why, None, "declare smaller bounds of the record's fields, or scale them in the loss: exp(u / 100)"
            )
        steps = "adaptive steps need no bound: leave mechanism= out, with a delta and an epsilon below 100"
        raise NotPrivate(why, None, f"{rules.BOUND_IT}; {steps}")
    value = image(np.exp, entry.value)
    return entry.through(value, value, value.high)


EXP = AtomDefinition(
    name="exp",
    value=lambda expression, a: np.exp(a),
    vjp=lambda expression, value, slope, a: [slope * value],
    from_cvxpy="elementwise.exp.exp",
    sign=always(1),
    monotonicity=always(1),
    bounds=rules.entrywise(exp_rule),
    statement="exp(m) on m <= u: slope and second derivative at most exp(u)",
    entrywise=True,
    example=("exp(w[0])", lambda cp, w: cp.exp(w[0])),
)


def log_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    low = rules.positive(entry, "log")
    value = Interval(float(np.log(entry.value.low)), float(np.log(entry.value.high))).rounded()
    return entry.through(value, Interval(1 / entry.value.high, 1 / low).rounded(), (1 / low) * (1 / low), sign=-1)


LOG: AtomDefinition = AtomDefinition(
    name="log",
    value=lambda expression, a: np.log(a),
    vjp=lambda expression, value, slope, a: [slope / a],
    from_cvxpy={
        "elementwise.log.log": lambda node, args: LOG(args[0]),
        "elementwise.log1p.log1p": lambda node, args: LOG(1.0 + args[0]),
    },
    domain=always(("not negative",)),
    curvature=always(-1),
    monotonicity=always(1),
    bounds=rules.entrywise(log_rule),
    hessian_lower_bound=LeastCurvature(
        "logarithmic barrier",
        "-sum_k w_k log m_k on a bounded K, m = A theta + c <= u: Hessian at least A' diag(w/u^2) A",
        lambda expression, weights, reach: rules.claimed(weights, rules.at_most(reach.high) ** -2.0),
    ),
    statement="log(m) on m >= l > 0: concave, slope at most 1/l, second derivative at most 1/l^2",
    entrywise=True,
    steep=always(True),
    example=("-log(w[0])", lambda cp, w: -cp.log(w[0])),
)


@lru_cache
def logistic_bounds(reach: Interval) -> tuple[Interval, Interval, float]:
    """Bound the logistic function, its slope s(m), s the sigmoid, and s(m)(1 - s(m)), which is largest at the m nearest 0."""
    nearest = min(max(0.0, reach.low), reach.high)
    slope, other = (image(expit, end) for end in (reach, Interval(-nearest, -nearest)))
    curvature = min(0.25, image(expit, Interval(nearest, nearest)).high * other.high)  # 1 - s(m) is s(-m)
    return image(partial(np.logaddexp, 0.0), reach), Interval(slope.low, min(slope.high, 1.0)), curvature


def logistic_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    value, slope, curvature = logistic_bounds(entry.value)
    outcome = entry.through(value, slope, curvature)
    if entry.terms and rules.is_one_row(entry):
        (term,) = entry.terms
        points = GradientSet(np.concatenate([0 * term.rows, term.rows]), mass=term.mass)
        return replace(outcome, mean=Mean(1.0, HessianTerm((points,), 0.0, 1.0), slope))
    return outcome


LOGISTIC = AtomDefinition(
    name="logistic",
    value=lambda e, a: np.maximum(a, 0.0) + np.log1p(np.exp(np.minimum(a, -a))),  # four times as fast as `np.logaddexp`
    vjp=lambda expression, value, slope, a: [slope * (1.0 / (1.0 + np.exp(np.minimum(-a, 700.0))))],
    vjp_reads_value=False,
    from_cvxpy="elementwise.logistic.logistic",
    sign=always(1),
    monotonicity=always(1),
    bounds=rules.entrywise(logistic_rule),
    statement="log(1 + exp(m)): slope in [0, 1], second derivative at most 1/4; sharper on a bounded range",
    source="Chaudhuri, Monteleoni & Sarwate 2011, corollary 11; elementary calculus",
    entrywise=True,
    example=("logistic(w[0])", lambda cp, w: cp.logistic(w[0])),
)
logistic = LOGISTIC


def log_ratio_value(expression: Expression, a: Any, b: Any) -> Any:
    safe = np.where(a > 0, a, 1.0)
    return np.where(a > 0, safe * np.log(safe / b), np.where(a == 0, 0.0, np.inf))


def log_ratio_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    return [slope * np.where(a > 0, np.log(np.where(a > 0, a, 1.0) / b) + 1.0, 0.0), -slope * a / b]


def relative_entropy(m: AbstractValue, y: AbstractValue) -> AbstractValue:
    """Bound one entry of m log(m/y). The Hessian is v v' with ``v = g_m/sqrt(m) - (sqrt(m)/y) g_y``."""
    low_m, low_y = (rules.positive(entry, "relative entropy") for entry in (m, y))
    high_m, high_y = (rules.bounded(entry, "relative entropy").high for entry in (m, y))
    if not (m.is_affine and y.is_affine):
        raise MissingRule("relative entropy has a rule only for affine arguments", None, "expand the composition")
    ratio = Interval(low_m / high_y, high_m / low_y)
    slope_m = Interval(float(np.log(ratio.low)) + 1, float(np.log(ratio.high)) + 1).rounded(1.0)
    slope_y = Interval(-ratio.high, -ratio.low).rounded(1.0 + ratio.high)
    if not y.terms:
        piece = HessianTerm(m.terms, 1.0 / low_m)
    elif not m.terms:
        piece = HessianTerm(y.terms, high_m / low_y**2)
    else:
        own, other = Interval(high_m**-0.5, low_m**-0.5), Interval(-(high_m**0.5) / low_y, -(low_m**0.5) / high_y)
        piece = HessianTerm((*(t.scaled(own) for t in m.terms), *(t.scaled(other) for t in y.terms)), 1.0)
    terms = tuple(t.scaled(slope_m) for t in m.terms) + tuple(t.scaled(slope_y) for t in y.terms)
    corners = [a * np.log(a / b) for a in (low_m, high_m) for b in (low_y, high_y)]
    size = high_m * (1 + max(abs(np.log(ratio.low)), abs(np.log(ratio.high)))) + high_y
    least = float(min(*corners, -high_y * np.exp(-1.0)))
    return AbstractValue(Interval(least, float(max(corners))).rounded(float(size)), terms, (piece,))


REL_ENTR = AtomDefinition(
    name="rel_entr",
    value=log_ratio_value,
    vjp=log_ratio_pull,
    from_cvxpy={
        "elementwise.rel_entr.rel_entr": lambda node, args: rel_entr(*args),
        "elementwise.kl_div.kl_div": lambda node, args: rel_entr(*args) - args[0] + args[1],
        "elementwise.entr.entr": lambda node, args: -rel_entr(args[0], 1.0),
    },
    domain=always(("not negative", "not negative")),
    monotonicity=lambda expression, k, signs: -1 if k == 1 else 0,
    bounds=lambda expression, arguments: [relative_entropy(m, y) for m, y in zip(*arguments, strict=True)],
    hessian_lower_bound=LeastCurvature(
        "negative entropy",
        "sum_k w_k m_k log(m_k/c_k) on a bounded K, m = A theta + c <= u: Hessian at least A' diag(w/u) A",
        lambda e, w, reach: rules.claimed(w, 1 / rules.at_most(reach.high)) if e.args[1].is_constant else None,
    ),
    statement="m log(m/y) on positive bounded m, y: Hessian (1/m) v v' with v = g_m - (m/y) g_y; -m log m over y = 1",
    source="Boyd & Vandenberghe, Convex Optimization, example 3.19",
    entrywise=True,
    steep=always(True),
    example=("rel_entr(w[0], w[1])", lambda cp, w: cp.rel_entr(w[0], w[1])),
)


def rel_entr(a: Any, b: Any) -> Expression:
    return REL_ENTR(*broadcast_all(a, b))


def log_sum_exp_value(expression: Expression, a: Any) -> Any:
    """Compute log sum exp without overflow."""
    axis = expression.option("axis")
    top = np.max(a, axis=axis, keepdims=True)
    return np.log(np.sum(np.exp(a - top), axis=axis, keepdims=True)) + top


def softmax_rule(expression: Expression, group: rules.Entries) -> AbstractValue:
    """Bound log-sum-exp: gradient ``sum p_j g_j``, Hessian ``Cov_p(g) + sum p_j H_j`` with softmax weights p."""
    if len(group) == 2:  # a constant c and m: c + logistic(m - c)
        for base, other in ([*group], [*group][::-1]):
            if base.is_affine and all(not term.rows.any() and not term.masses.any() for term in base.terms):
                still = AbstractValue(base.value)
                return still + logistic_rule(expression, other + still.scaled(rules.MINUS))
    ends, hull = np.array(rules.entry_ends(group)), hull_of(group)
    largest = float(np.abs(ends[np.isfinite(ends)]).max(initial=1.0))
    value = Interval(*np.logaddexp.reduce(ends, axis=1).tolist()).rounded(len(group) * largest)
    pieces = (HessianTerm((hull,), 0.0, 1.0),) if len(hull.rows) + hull.merged > 1 else ()
    curved, kink = rules.pieces_of(group), rules.kink_of(group)
    mean = Mean(1.0, pieces[0]) if pieces and not curved and kink is None else None
    return AbstractValue(value, (hull,), pieces + curved, 1, kink, mean)


def softmax(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    """Return `slope` times the softmax weights; exponents are shifted by the value, so that none overflows."""
    weights = np.exp(a - value)
    return [weights * (slope / np.sum(weights, axis=expression.option("axis"), keepdims=True))]


LOG_SUM_EXP = rules.reduction(
    "log_sum_exp",
    value=log_sum_exp_value,
    vjp=softmax,
    one=softmax_rule,
    from_cvxpy={"log_sum_exp.log_sum_exp": lambda node, args: log_sum_exp(args[0], *rules.axes_of(node))},
    sign=lambda expression, signs: 1 if signs[0] == 1 else 0,
    monotonicity=always(1),
    statement="gradient a convex combination of the arguments' (so bounded by the largest, not the root sum of squares); "
    "Hessian their covariance under softmax weights, plus the arguments' own",
    source="Boyd & Vandenberghe, Convex Optimization, section 3.1.5; Popoviciu's inequality for the eigenvalues",
    example=("log_sum_exp(w)", lambda cp, w: cp.log_sum_exp(w)),
)
log_sum_exp: Callable[..., Expression] = partial(rules.along, LOG_SUM_EXP)
