"""Powers, absolute values, Huber's function, and users' own functions with declared constants."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, NonsmoothPoint
from dpconvex.expressions.atom import ArgumentRange, AtomDefinition, LeastCurvature, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.discipline import sign
from dpconvex.expressions.expression import ATOM, Expression, Shape, constant
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.numerics import Interval, abs_ends
from dpconvex.util.arrays import Array

# Largest logarithm of a power: so that products of a few powers with usual numbers are finite.
LARGEST_LOGARITHM = 300.0
# CVXPY defines these powers on the whole line, and all other powers for nonnegative arguments only.
CONIC_WHOLE_LINE = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def even_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    return signs[k]


def number(option: Any) -> float:
    """Return an option of a CVXPY atom, a number or an expression of public numbers, as a float."""
    return float(np.asarray(getattr(option, "value", option)))


def clipped_product(expression: Expression, a: Any) -> Any:
    """Return a^2 for |a| <= M and 2M|a| - M^2 beyond, computed as c(2a - c) with c the clipped argument."""
    threshold = expression.option("M")
    clipped = np.clip(a, -threshold, threshold)
    return clipped * (2 * a - clipped)


def huber_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    """Bound Huber's function: its slope is 2m clipped to [-2M, 2M].  It is 0 at 0, so `huber(pos(m))` is differentiable."""
    threshold, low, high = expression.option("M"), entry.value.low, entry.value.high
    ends = np.array([low, high])
    slopes, values = (2 * np.clip(ends, -threshold, threshold)).tolist(), clipped_product(expression, ends).tolist()
    value = Interval(0.0 if low <= 0 <= high else min(values), max(values)).rounded()
    curvature = 2.0 if low < threshold and high > -threshold else 0.0
    return (entry.behind or entry).through(value, Interval(*slopes), curvature)


def huber_shape(shape: Shape, M: float) -> Shape:
    if not M > 0:
        raise ValueError(f"the threshold of huber is {M:g}, and must be positive")
    return shape


HUBER = AtomDefinition(
    name="huber",
    shape=huber_shape,
    value=clipped_product,
    vjp=lambda e, value, slope, a: [slope * (2 * np.clip(a, -e.option("M"), e.option("M")))],
    from_cvxpy={"elementwise.huber.huber": lambda node, args: huber(args[0], number(node.M))},
    to_cvxpy=lambda cp, e, args: cp.huber(args[0], e.option("M")),
    sign=always(1),
    monotonicity=even_slope,
    bounds=rules.entrywise(huber_rule),
    statement="huber(m, M): slope in [-2M, 2M], second derivative at most 2; of pos(m): slope in [0, 2M], differentiable",
    source="Chaudhuri, Monteleoni & Sarwate 2011, section 3.4.2, equation 35 (as a hinge); elementary calculus",
    entrywise=True,
    example=("huber(w[0], 1)", lambda cp, w: cp.huber(w[0], 1)),
)


def absolute_value(expression: Expression, entry: AbstractValue) -> AbstractValue:
    low, high = entry.value.low, entry.value.high
    moves = any(term.rows.any() for term in entry.terms)  # may reach 0, where the computed slope is 0
    if low > 0 or (low == 0 and not moves):
        return entry
    if high < 0 or (high == 0 and not moves):
        return entry.scaled(rules.MINUS)
    remedy = f"cp.huber(m, M) rounds the corner off; {rules.NO_SMOOTHNESS}"
    kink = NonsmoothPoint("the absolute value is not differentiable at 0", expression, remedy)
    found = entry.through(Interval(0.0, max(-low, high)), Interval(-1.0, 1.0), 0.0, kink=kink)
    return replace(found, array_norm=entry.array_norm)  # its norm is the same


ABS = AtomDefinition(
    name="abs",
    value=lambda expression, a: np.maximum(a, -a),  # with the derivative 0 at 0
    vjp=lambda expression, value, slope, a: [slope * np.sign(np.real(a))],
    from_cvxpy={"elementwise.abs.abs": lambda node, args: absolute(args[0])},
    sign=always(1),
    monotonicity=even_slope,
    bounds=rules.entrywise(absolute_value),
    smoothed=lambda expression, args, width: huber(args[0], width) / (2 * width),
    statement="|m|: slope in [-1, 1]; not differentiable at 0",
    entrywise=True,
    kinks="polyhedral",
    example=("abs(w[0])", lambda cp, w: cp.abs(w[0])),
)


def is_whole_line(p: float) -> bool:
    return p >= 2 and p % 2 == 0


def written_power(cp: Any, expression: Expression, args: list[Any]) -> Any:
    """Return a power in CVXPY; an even power is taken of the absolute value if CVXPY would restrict its argument."""
    p = expression.option("p")
    return cp.power(cp.abs(args[0]) if is_whole_line(p) and p not in CONIC_WHOLE_LINE else args[0], p)


def power_shape(shape: Shape, p: float) -> Shape:
    if not np.isfinite(p) or p in (0.0, 1.0):
        raise ValueError(f"the exponent of a power is {p:g}, and must be finite and neither 0 nor 1")
    return shape


def power_value(expression: Expression, a: Any) -> Any:
    p = expression.option("p")
    if p.is_integer() and 0 <= p <= 64:
        return a ** int(p)
    if p == 0.5:
        return np.sqrt(a)
    # Replacing the base at 0 keeps the derivative finite there if p > 1.
    return np.where(a == 0, 0.0 if p > 0 else np.inf, np.where(a == 0, 1.0, a) ** p)


def power_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    """Return the monotonicity: powers on the whole line are even, other powers increase if p > 0 and decrease if p < 0."""
    p = expression.option("p")
    return signs[k] if is_whole_line(p) else 1 if p > 0 else -1


def expanded_power(expander: Any, expression: Expression) -> Polynomial | None:
    p, (inner,) = expression.option("p"), expression.args
    return expander.expand(inner).power(int(p)) if not inner.variables and p in range(1, 9) else None


def power_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    """Bound a power on the range of its argument. Raise if the range leaves the domain, is unbounded, or overflows."""
    p, value = expression.option("p"), entry.value
    even = is_whole_line(p)
    steep = p < 0 or (p < 2 and bool(entry.terms))  # at 0, the value or a derivative is infinite
    if steep and not even and rules.rounded_low(value) <= 0:
        why = f"the power {p:g} needs an argument bounded away from zero, and it goes down to {value.low:.4g}"
        raise NotPrivate(
            why, None, f"shift the argument, or {rules.NARROWER}; squares and dp.huber_hinge take any argument"
        )
    rules.bounded(entry, f"the power {p:g}")
    if steep and not even:
        value = Interval(rules.rounded_low(value), value.high)
    ends = np.array([value.low, value.high])
    if (p * np.log(np.abs(ends[ends != 0]))).max(initial=0.0) > LARGEST_LOGARITHM:
        why = f"the power {p:g} of a number in [{value.low:.4g}, {value.high:.4g}] overflows"
        raise NotPrivate(why, None, rules.BOUND_IT)
    values = (ends**p).tolist()
    result = Interval(0.0 if value.low < 0 < value.high else min(values), max(values)).rounded()
    if not entry.terms:
        return AbstractValue(result)
    slopes, curvature = (p * ends ** (p - 1)).tolist(), float(np.abs(p * (p - 1) * ends ** (p - 2)).max())
    inner = entry.behind or entry if p >= 2 else entry
    return inner.through(result, Interval(min(slopes), max(slopes)).rounded(), curvature, sign=-1 if 0 < p < 1 else 1)


def power_bend(expression: Expression, weights: Array, reach: ArgumentRange) -> Array | None:
    """Return lower bounds on the curvature of weighted powers: at the argument nearest to 0 (p >= 2) or farthest (p < 2)."""
    p = expression.option("p")
    nearest = abs_ends(reach.low, reach.high)[0] if is_whole_line(p) else np.maximum(reach.low, 0.0)
    return rules.claimed(weights * p * (p - 1), nearest ** (p - 2) if p >= 2 else rules.at_most(reach.high) ** (p - 2))


POWER = AtomDefinition(
    name="power",
    shape=power_shape,
    value=power_value,
    vjp=lambda e, value, slope, a: [slope * (e.option("p") * a ** (e.option("p") - 1))],
    from_cvxpy={
        f"elementwise.power.{name}": lambda node, args: power(args[0], number(node.p))
        for name in ("Power", "PowerApprox", "power")
    },
    to_cvxpy=written_power,
    domain=lambda e: (None if is_whole_line(e.option("p")) else "positive" if e.option("p") < 0 else "not negative",),
    sign=always(1),
    curvature=lambda e: -1 if 0 < e.option("p") < 1 else 1,
    monotonicity=power_slope,
    to_string=lambda e, write: (
        f"square({write(e.args[0], 0)})"
        if e.option("p") == 2
        else f"power({write(e.args[0], 0)}, {e.option('p'):.6g})",
        ATOM,
    ),
    expand=expanded_power,
    bounds=rules.entrywise(power_rule),
    hessian_lower_bound=LeastCurvature(
        "power",
        "sum_k w_k m_k^p, m = A theta + c: Hessian at least A' diag(w_k p(p - 1) m_k^(p-2)) A, at the m_k nearest to 0 on K for "
        "p >= 2 (2 A' diag(w) A for squares) and at the largest m_k for p < 2",
        power_bend,
    ),
    statement="m^p: slope p m^(p-1), second derivative p(p-1) m^(p-2), on a bounded range; of pos(m): differentiable for p >= 2",
    entrywise=True,
    steep=lambda e: e.option("p") < 2,
    example=("square(w[0])", lambda cp, w: cp.square(w[0])),
)


def absolute(a: Any) -> Expression:
    a = constant(a)
    return a if sign(a) == 1 else ABS(a)


def huber(a: Any, M: float = 1.0) -> Expression:
    return HUBER(a, M=float(M))


def power(a: Any, p: float) -> Expression:
    a = constant(a)
    if p == 1:
        return a
    return constant(np.ones(a.shape)) if p == 0 else POWER(a, p=float(p))


def square(a: Any) -> Expression:
    return power(a, 2.0)


def checked_declaration(expression: Expression) -> Any:
    """Return the declaration of a user's function. Raise if the sampled function violates it."""
    declaration = expression.option("declaration")
    try:
        declaration.attack()
    except NotPrivate as error:
        raise NotPrivate(error.reason, expression, error.remedy) from error
    return declaration


def declared_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    low, high = expression.option("declaration").slope
    return 1 if low >= 0 else -1 if high <= 0 else 0


def declared_rule(expression: Expression, entry: AbstractValue) -> AbstractValue:
    declaration = checked_declaration(expression)
    value, slope = Interval(declaration.lower, float("inf")), Interval(*declaration.slope)
    return entry.through(value, slope, declaration.curvature)


DECLARED: AtomDefinition = AtomDefinition(
    name="declared",
    shape=lambda shape, declaration: shape,
    value=lambda e, a: checked_declaration(e).evaluate(a),
    to_cvxpy=None,  # it has no conic form
    vjp=lambda e, value, slope, a: [slope * e.option("declaration").evaluate(a, 1)],
    from_cvxpy={
        "dpconvex.expressions.declared_atoms.DeclaredAtom": lambda node, a: DECLARED(*a, declaration=node.declaration)
    },
    sign=lambda e, signs: 1 if e.option("declaration").lower >= 0 else 0,
    monotonicity=declared_slope,
    to_string=lambda e, write: (f"{e.option('declaration').name}({write(e.args[0], 0)})", ATOM),
    bounds=rules.entrywise(declared_rule),
    statement="a user's function of one variable: slope and curvature as declared; fits use an approximation that has both",
    source="declared by the user; dpconvex/expressions/declared_atoms.py",
    entrywise=True,
)
