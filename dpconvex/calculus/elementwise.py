"""Rules for atoms of one variable: slope and curvature over the range of the argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.abs import abs as cp_abs
from cvxpy.atoms.elementwise.power import Power, PowerApprox

from dpconvex.calculus.abstract_values import Kink, Scalar, hull_of
from dpconvex.calculus.bilinear_forms import Interval
from dpconvex.calculus.interpreter import Entries, outer_rule, spread
from dpconvex.core.reader import WHOLE_LINE
from dpconvex.core.record_ranges import public_number
from dpconvex.errors import NotPrivate

__all__: list[str] = []

CMS = "Chaudhuri, Monteleoni & Sarwate 2011"
CALCULUS = "elementary calculus"
NO_SMOOTHNESS = "or use a mechanism that needs no smoothness (dp.OutputPerturbation, dp.NoisyGradientDescent)"
BOUND_IT = "bound the parameters (a ball, a box) so that the argument is bounded, or use a Lipschitz loss"
# exp of this is finite, and so are products of a few of them with anything reasonable.
LARGEST_EXPONENT = 300.0
# Ranges are exact but for this fraction of their larger end.
ROUNDING = 1e-14


def sigmoid(value: float) -> float:
    """Return 1 / (1 + exp(-value)) without overflow."""
    return float(np.exp(-np.logaddexp(0.0, -value)))


def image(function: Callable[[float], float], interval: Interval) -> Interval:
    """Return the image of an interval under a non-decreasing function."""
    return Interval(function(interval.low), function(interval.high)).rounded()


def bounded(scalar: Scalar, what: str) -> Interval:
    """Return a scalar's range, or refuse if it is unbounded."""
    if not (np.isfinite(scalar.value.low) and np.isfinite(scalar.value.high)):
        raise NotPrivate(f"{what} is Lipschitz only on bounded sets, and its argument is unbounded", None, BOUND_IT)
    return scalar.value


@outer_rule(
    cp.logistic,
    name="logistic",
    statement="log(1 + exp(m)): slope in [0, 1], second derivative at most 1/4; sharper on a bounded range",
    source=f"{CMS}, corollary 11; {CALCULUS}",
)
def logistic(expression: Any, arguments: list[Entries]) -> Entries:
    """Slope s(m), second derivative s(m)(1 - s(m)) with the sigmoid s; the latter is largest where m is nearest 0."""
    result = []
    for entry in arguments[0]:
        nearest = min(max(0.0, entry.value.low), entry.value.high)
        slope = sigmoid(nearest)
        value = image(lambda m: float(np.logaddexp(0.0, m)), entry.value)
        slopes = image(sigmoid, entry.value)
        slopes = Interval(slopes.low, min(slopes.high, 1.0))
        outcome = entry.through(value, slopes, slope * (1 - slope))
        if entry.is_affine and len(entry.terms) == 1 and len(entry.terms[0].rows) == 1:
            outcome = replace(outcome, logit=(entry.terms[0].rows[0], 1.0, slopes.low, slopes.high))
        result.append(outcome)
    return result


@outer_rule(
    cp.huber,
    name="huber",
    statement="huber(m, M): slope in [-2M, 2M], second derivative at most 2; of pos(m): slope in [0, 2M], no kink",
    source=f"{CMS}, section 3.4.2, equation 35 (as a hinge); {CALCULUS}",
)
def huber(expression: Any, arguments: list[Entries]) -> Entries:
    """Slope 2m cut at 2M in absolute value.  The slope at 0 is 0, so `huber(pos(m))` is differentiable although pos is not."""
    threshold = public_number(expression.M, "the threshold of huber", expression)
    result = []
    for entry in arguments[0]:
        inner = positive_part(entry)
        low, high = entry.value.low, entry.value.high
        slope = Interval(2 * max(-threshold, min(low, threshold)), 2 * max(-threshold, min(high, threshold)))

        def value(m: float, limit: float = threshold) -> float:
            return m * m if abs(m) <= limit else 2 * limit * abs(m) - limit * limit

        least = 0.0 if low <= 0 <= high else min(value(low), value(high))
        curvature = 2.0 if low < threshold and high > -threshold else 0.0
        result.append(inner.through(Interval(least, max(value(low), value(high))).rounded(), slope, curvature))
    return result


def positive_part(entry: Scalar) -> Scalar:
    """Return m behind an entry pos(m) for outer functions of slope 0 at 0, whose composition with pos has no kink."""
    return entry.behind if isinstance(entry, PositivePart) else entry


class PositivePart(Scalar):
    """The entry pos(m), remembering m: its kink vanishes under an outer function of slope 0 at 0."""

    behind: Scalar


@outer_rule(
    cp.maximum,
    name="maximum",
    statement="max(m_1, ..., m_k): the gradient is a convex combination of the arguments'; not differentiable",
    source=CALCULUS,
)
def maximum(expression: Any, arguments: list[Entries]) -> Entries:
    """Arguments that can never be the largest are dropped; if one is left there is no kink.

    Ranges are rounded outward, so an argument is dropped only if another one is proved to be as large everywhere.
    """
    size = expression.size
    columns = [spread(entries, size) for entries in arguments]
    return [largest(expression, list(group)) for group in zip(*columns, strict=True)]


def largest(expression: Any, group: list[Scalar]) -> Scalar:
    """Bound the maximum of several entries."""
    floor = max(entry.value.low for entry in group)
    value = Interval(floor, max(entry.value.high for entry in group))
    alive = [entry for entry in group if entry.value.high > floor or entry.value.low == entry.value.high == floor]
    curved = [entry for entry in alive if entry.terms]
    if len(alive) == 1:
        return alive[0].with_value(value)
    pieces = tuple(piece for entry in alive for piece in entry.pieces)
    inner_kink = next((entry.kink for entry in alive if entry.kink), None)
    constants = [entry for entry in alive if not entry.terms]
    if not curved:
        return Scalar(value)
    kink = tie(expression, hinge=len(curved) == 1)
    if len(curved) == 1 and len(constants) == 1 and constants[0].value == Interval(0.0, 0.0):
        (inner,) = curved
        plain = inner.through(value, Interval(0.0, 1.0), 0.0, kink=kink)
        result = PositivePart(plain.value, plain.terms, plain.pieces, plain.sign, plain.kink)
        object.__setattr__(result, "behind", inner)
        return result
    if len(curved) == 1:
        return curved[0].through(value, Interval(0.0, 1.0), 0.0, kink=kink)
    return Scalar(value, (hull_of(alive),), pieces, 1, inner_kink or kink)


def tie(expression: Any, hinge: bool) -> Kink:
    """Say that a maximum has a kink where its terms tie, and how to round it off."""
    if hinge:
        reason = "a hinge (the maximum of a term and a constant) is not differentiable at its corner"
        remedy = "dp.huber_hinge(m, width) rounds the corner off"
    else:
        reason = f"{type(expression).__name__} is not differentiable where two of its terms tie"
        remedy = "cp.log_sum_exp of the same terms is a smooth maximum"
    return Kink(reason, expression, f"{remedy}; {NO_SMOOTHNESS}")


@outer_rule(
    cp.minimum,
    name="minimum",
    statement="min(m_1, ..., m_k): concave; the gradient is a convex combination of the arguments'",
    source=CALCULUS,
)
def minimum(expression: Any, arguments: list[Entries]) -> Entries:
    """Minus the maximum of the negatives."""
    flip = Interval(-1.0, -1.0)
    negatives = [[entry.scaled(flip) for entry in entries] for entries in arguments]
    return [Scalar.scaled(entry, flip) for entry in maximum(expression, negatives)]


@outer_rule(cp_abs, name="abs", statement="|m|: slope in [-1, 1]; not differentiable at 0", source=CALCULUS)
def absolute(expression: Any, arguments: list[Entries]) -> Entries:
    """A kink only if 0 lies inside the range."""
    return [absolute_value(expression, entry) for entry in arguments[0]]


def absolute_value(expression: Any, entry: Scalar, kink: Kink | None = None) -> Scalar:
    """Bound |m|; `kink` says what is not differentiable if 0 lies inside the range."""
    low, high = entry.value.low, entry.value.high
    if low >= 0:
        return entry
    if high <= 0:
        return entry.scaled(Interval(-1.0, -1.0))
    if kink is None:
        reason = "the absolute value is not differentiable at 0"
        kink = Kink(reason, expression, f"cp.huber(m, M) rounds the corner off; {NO_SMOOTHNESS}")
    return entry.through(Interval(0.0, max(-low, high)), Interval(-1.0, 1.0), 0.0, kink=kink)


def exponential_value(m: float) -> float:
    """Return exp(m), or refuse what overflows."""
    if m > LARGEST_EXPONENT:
        raise NotPrivate(f"exp of an argument as large as {m:.4g} overflows", None, BOUND_IT)
    return float(np.exp(m))


@outer_rule(
    cp.exp, name="exp", statement="exp(m) on m <= u: slope and second derivative at most exp(u)", source=CALCULUS
)
def exponential(expression: Any, arguments: list[Entries]) -> Entries:
    """Needs an upper bound of the argument."""
    result = []
    for entry in arguments[0]:
        if not np.isfinite(entry.value.high):
            raise NotPrivate("exp is Lipschitz only where its argument is bounded above, and it is not", None, BOUND_IT)
        value = image(exponential_value, entry.value)
        result.append(entry.through(value, value, value.high))
    return result


@outer_rule(
    cp.log,
    name="log",
    statement="log(m) on m >= l > 0: concave, slope at most 1/l, second derivative at most 1/l^2",
    source=CALCULUS,
)
def logarithm(expression: Any, arguments: list[Entries]) -> Entries:
    """Needs a positive lower bound of the argument."""
    result = []
    for entry in arguments[0]:
        low = positive(entry, "log")
        value = image(lambda m: float(np.log(m)), entry.value)
        slope = Interval(1 / entry.value.high, 1 / low).rounded()
        result.append(entry.through(value, slope, 1 / low**2, sign=-1))
    return result


@outer_rule(
    cp.entr,
    name="entr",
    statement="-m log m on l <= m <= u, l > 0: concave, slope -1 - log m, second derivative at most 1/l",
    source=CALCULUS,
)
def entropy(expression: Any, arguments: list[Entries]) -> Entries:
    """Needs positive bounds of the argument."""
    result = []
    for entry in arguments[0]:
        low = positive(entry, "entr")
        high = bounded(entry, "entr").high
        ends = [-low * np.log(low), -high * np.log(high)]
        top = float(np.exp(-1.0)) if low <= np.exp(-1.0) <= high else max(ends)
        slope = Interval(float(-1 - np.log(high)), float(-1 - np.log(low))).rounded(1.0)
        result.append(entry.through(Interval(float(min(ends)), top).rounded(), slope, 1 / low, sign=-1))
    return result


def positive(entry: Scalar, what: str, part: str = "argument") -> float:
    """Return a positive lower bound of an entry, or refuse."""
    low = shrunk(entry.value)
    if not low > 0:
        raise NotPrivate(
            f"{what} is Lipschitz only where its {part} keeps away from zero, and it goes down to {entry.value.low:.4g}",
            None,
            f"shift the {part}, or bound the parameters so that it has a positive lower bound",
        )
    return low


def shrunk(value: Interval) -> float:
    """Return a lower end less what rounding may have added to it: near zero it may be the difference of large numbers."""
    return value.low - ROUNDING * abs(value.high) if np.isfinite(value.high) else value.low


@outer_rule(
    Power,
    PowerApprox,
    name="power",
    statement="m^p: slope p m^(p-1), second derivative p(p-1) m^(p-2), on a bounded range; of pos(m): no kink for p >= 2",
    source=CALCULUS,
)
def power(expression: Any, arguments: list[Entries]) -> Entries:
    """Squares, whole powers, fractional and negative powers where the argument keeps to their domain."""
    p = public_number(expression.p, "the exponent of a power", expression)
    return [powered(positive_part(entry) if p >= 2 else entry, entry.value, p) for entry in arguments[0]]


def powered(inner: Scalar, value: Interval, p: float) -> Scalar:
    """Bound m^p for m in the interval `value`."""
    if p == 1:
        return inner
    if p == 0:
        return Scalar(Interval(1.0, 1.0))
    even = p in WHOLE_LINE
    if (not even or p < 0) and (value.low < 0 or (p < 2 and shrunk(value) <= 0)):
        raise NotPrivate(
            f"the power {p:g} needs an argument bounded away from {'zero' if p < 2 else 'negative numbers'}, and it goes down "
            f"to {value.low:.4g}",
            None,
            "shift the argument, or bound the parameters; cp.square and dp.huber_hinge take any argument",
        )
    if not np.isfinite(value.high) or not np.isfinite(value.low):
        raise NotPrivate(
            f"the power {p:g} is Lipschitz only on bounded sets, and its argument is unbounded", None, BOUND_IT
        )

    if p < 2:
        value = Interval(shrunk(value), value.high)
    largest_logarithm = max((p * np.log(abs(m)) for m in (value.low, value.high) if m != 0), default=0.0)
    if largest_logarithm > LARGEST_EXPONENT:
        raise NotPrivate(
            f"the power {p:g} of a number in [{value.low:.4g}, {value.high:.4g}] overflows", None, BOUND_IT
        )

    def at(exponent: float, m: float) -> float:
        return (
            1.0
            if exponent == 0
            else float(np.sign(m) ** int(exponent) * abs(m) ** exponent)
            if even
            else float(m**exponent)
        )

    straddles = value.low < 0 < value.high
    ends = [at(p, value.low), at(p, value.high)]
    slopes = [p * at(p - 1, value.low), p * at(p - 1, value.high)]
    bends = [abs(p * (p - 1) * at(p - 2, m)) for m in (value.low, value.high)]
    result = Interval(0.0 if straddles else min(ends), max(ends)).rounded()
    slope = Interval(min(slopes), max(slopes)).rounded()
    return inner.through(result, slope, max(bends), sign=-1 if 0 < p < 1 else 1)
