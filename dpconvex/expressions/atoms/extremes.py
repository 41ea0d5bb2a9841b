"""Maxima of arguments and of entries, and sums of the largest entries.  A minimum is minus a maximum of negated terms."""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from dpconvex.expressions.abstract_values import AbstractValue, NonsmoothPoint, hull_of
from dpconvex.expressions.atom import AtomDefinition, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.atoms.arithmetic import total
from dpconvex.expressions.atoms.arrangement import CONCATENATE, broadcast_all, reshape, vec
from dpconvex.expressions.atoms.exponentials import log_sum_exp
from dpconvex.expressions.atoms.powers import huber
from dpconvex.expressions.expression import ATOM, Expression, Shape, constant
from dpconvex.numerics import APART, Interval, intervals

LARGEST_CHOICE = 256  # At most this many sums of k entries are enumerated


def largest(expression: Expression, group: rules.Entries) -> AbstractValue:
    """Bound the maximum of several entries. Entries that stay below another are dropped; a single entry has no kink."""
    floor = max(entry.value.low for entry in group)
    value = Interval(floor, max(entry.value.high for entry in group))
    # The margin covers rounding: dropped entries are not the computed maximum either.
    alive = [e for e in group if not e.value.high < floor - APART * (abs(e.value.high) + abs(floor))]
    if len(alive) == 1:
        return replace(alive[0], value=value, behind=None, array_norm=None)
    curved = [entry for entry in alive if entry.terms]
    if not curved:
        return AbstractValue(value)
    if len(curved) == 1:
        reason = "a hinge (the maximum of a term and a constant) is not differentiable at its corner"
        remedy = f"dp.huber_hinge(m, width) rounds the corner off; {rules.NO_SMOOTHNESS}"
        hinge = curved[0].through(value, Interval(0.0, 1.0), 0.0, kink=NonsmoothPoint(reason, expression, remedy))
        return replace(hinge, behind=curved[0]) if [e.value for e in alive if not e.terms] == [rules.ZERO] else hinge
    return AbstractValue(value, (hull_of(alive),), rules.pieces_of(alive), 1, rules.kink_of(alive) or tie(expression))


def tie(expression: Expression) -> NonsmoothPoint:
    reason = f"{expression.operation.name} is not differentiable where two of its terms tie"
    remedy = f"cp.log_sum_exp of the same terms is a smooth maximum; {rules.NO_SMOOTHNESS}"
    return NonsmoothPoint(reason, expression, remedy)


def is_hinge(expression: Expression) -> bool:
    return expression.atom is MAXIMUM and len(expression.args) == 2 and sum(map(is_zero, expression.args)) == 1


def is_zero(expression: Expression) -> bool:
    return expression.is_constant and not expression.number.any()


def rounded_maximum(expression: Expression, args: list[Expression], width: float) -> Expression:
    """Return a smoothed maximum: a smoothed hinge for the maximum with zero, otherwise a log-sum-exp."""
    if is_hinge(expression):
        (other,) = (a for a in args if not is_zero(a))
        return huber(pos(other + width), 2 * width) / (4 * width)
    stacked = CONCATENATE(*(reshape(a / width, (1, a.size)) for a in args), axis=0)
    return width * reshape(log_sum_exp(stacked, axis=(0,)), args[0].shape)


def shared_among(expression: Expression, value: Any, slope: Any, *terms: Any) -> list[Any]:
    attained = [(term == value) * 1.0 for term in terms]
    part = slope / sum(attained)
    return [at * part for at in attained]


def maximum_text(expression: Expression, write: rules.Write) -> tuple[str, int]:
    terms = [write(argument, 0) for argument in expression.args]
    hinge = len(terms) == 2 and is_zero(expression.args[1])
    return f"pos({terms[0]})" if hinge else f"maximum({', '.join(terms)})", ATOM


MAXIMUM = AtomDefinition(
    name="maximum",
    value=lambda expression, *terms: reduce(np.maximum, terms),
    vjp=shared_among,
    from_cvxpy={
        "elementwise.maximum.maximum": lambda node, args: maximum(*args),
        "elementwise.minimum.minimum": lambda node, args: -maximum(*(-a for a in args)),
    },
    to_cvxpy=lambda cp, expression, args: cp.maximum(*args) if len(args) > 1 else args[0],
    sign=lambda expression, signs: 1 if 1 in signs else -1 if set(signs) == {-1} else 0,
    monotonicity=always(1),
    to_string=maximum_text,
    statement="max(m_1, ..., m_k): the gradient is a convex combination of the arguments'; not differentiable",
    bounds=lambda e, arguments: [largest(e, list(group)) for group in zip(*arguments, strict=True)],
    smoothed=rounded_maximum,
    entrywise=True,
    kinks="polyhedral",
    example=("maximum(w[0], w[1])", lambda cp, w: cp.maximum(w[0], w[1])),
)


def maximum(*terms: Any) -> Expression:
    arguments = broadcast_all(*terms)
    return arguments[0] if len(arguments) == 1 else MAXIMUM(*arguments)


def pos(a: Any) -> Expression:
    return maximum(a, 0.0)


def shared_among_entries(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    attained = (a == value) * 1.0
    return [attained * (slope / np.sum(attained, axis=expression.option("axis"), keepdims=True))]


MAX = rules.reduction(
    "max",
    value=lambda e, a: np.max(a, axis=e.option("axis"), keepdims=True),
    vjp=shared_among_entries,
    one=largest,
    from_cvxpy={
        "max.max": lambda node, args: largest_entry(args[0], *rules.axes_of(node)),
        "min.min": lambda node, args: -largest_entry(-args[0], *rules.axes_of(node)),
    },
    sign=lambda expression, signs: signs[0],
    monotonicity=always(1),
    statement="largest entry: gradient a convex combination of the entries'; not differentiable",
    smoothed=lambda e, args, width: width * log_sum_exp(args[0] / width, e.option("axis"), e.option("keepdims")),
    kinks="polyhedral",
    example=("max(w)", lambda cp, w: cp.max(w)),
)
largest_entry: Callable[..., Expression] = partial(rules.along, MAX)


def entry_choices(expression: Expression) -> np.ndarray | None:
    """Return all choices of k entries, as rows of zeros and ones; None if there are more than LARGEST_CHOICE."""
    count, k = expression.args[0].size, expression.option("k")
    if comb(count, k) > LARGEST_CHOICE:
        return None
    return np.array([np.isin(range(count), chosen) for chosen in combinations(range(count), k)], dtype=float)


def sum_largest_rule(expression: Expression, arguments: list[rules.Entries]) -> rules.Entries:
    """Bound the largest of all sums of k entries; for too many sums, the weights of entries lie in a ball of radius sqrt(k)."""
    entries, k = arguments[0], expression.option("k")
    low, high = (np.sort(ends)[-k:] for ends in rules.entry_ends(entries))
    value = rules.in_any_order(reduce(operator.add, parts := intervals(low, high)), parts)
    table = entry_choices(expression)
    if table is None:
        terms = rules.ball_of(entries, "the sum of the largest of many entries", float(np.sqrt(k)))
    else:
        sums = [reduce(operator.add, [entries[j] for j in np.flatnonzero(row).tolist()]) for row in table]
        if len(sums) == 1:
            return [replace(sums[0], value=value)]
        terms = hull_of(sums)
    return [AbstractValue(value, (terms,), rules.pieces_of(entries), 1, rules.kink_of(entries) or tie(expression))]


def rounded_sum_largest(expression: Expression, args: list[Expression], width: float) -> Expression | None:
    table = entry_choices(expression)
    return None if table is None else width * log_sum_exp((constant(table) @ vec(args[0])) / width)


def among_largest(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    flat = a.reshape((expression.args[0].size, -1))
    ranks = np.argsort(np.argsort(flat, axis=0, kind="stable"), axis=0)
    return [slope * (ranks >= len(flat) - expression.option("k")).reshape(a.shape)]


def counted(shape: Shape, k: int) -> Shape:
    if not 0 < k <= int(np.prod(shape)):
        raise ValueError(f"the sum of the {k} largest entries is not defined for this argument")
    return ()


def largest_sum(node: Any, args: list[Expression]) -> Expression:
    """Convert CVXPY's sum of largest entries. Raise for a fractional k or an axis, which CVXPY allows."""
    count = float(node.k)
    if getattr(node, "axis", None) is not None or not count.is_integer():
        raise ValueError("the sum of largest entries has a rule only for a whole number, over all entries")
    whole = count == args[0].size  # CVXPY canonicalizes that wrongly, once variables have values
    return reshape(total(args[0]) if whole else SUM_LARGEST(args[0], k=int(count)), node.shape)


SUM_LARGEST = AtomDefinition(
    name="sum_largest",
    shape=counted,
    value=lambda e, a: np.sum(np.sort(np.reshape(a, (e.args[0].size, -1)), axis=0)[-e.option("k") :], axis=0),
    vjp=among_largest,
    from_cvxpy={"sum_largest.sum_largest": largest_sum},
    to_cvxpy=lambda cp, e, args: cp.sum_largest(args[0], e.option("k")),
    sign=lambda expression, signs: signs[0],
    monotonicity=always(1),
    statement="gradient a convex combination of sums of k entries' gradients, also sum u_j g_j with ||u||_2 <= sqrt(k); "
    "not differentiable",
    bounds=sum_largest_rule,
    smoothed=rounded_sum_largest,
    kinks="polyhedral",
    example=("sum_largest(w, 2)", lambda cp, w: cp.sum_largest(w, 2)),
)
