"""Largest and smallest: of arguments, of entries, and sums of the largest."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Scalar, Term, hull_of
from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import concatenate, reshape, together, vec
from dpconvex.core.atoms.exponentials import log_sum_exp
from dpconvex.core.atoms.groups import (
    Pair,
    affine_rows,
    along_axis,
    entry_ends,
    largest,
    lines,
    outward,
    scaled_mass,
    smallest,
    tie,
)
from dpconvex.core.atoms.powers import huber
from dpconvex.core.atoms.rules import CALCULUS, Entries
from dpconvex.core.atoms.shared import (
    axis_for,
    concave,
    convex,
    every_axis,
    grows,
    kept,
    over,
    reduced,
    reduction_text,
    unreduced,
)
from dpconvex.core.expression import Expression, Shape, constant
from dpconvex.core.intervals import Interval

# So many sums of k entries are enumerated.
LARGEST_CHOICE = 256


def largest_value(xp: Any, expression: Expression, *terms: Any) -> Any:
    best = terms[0]
    for term in terms[1:]:
        best = xp.maximum(best, term)
    return best


def smallest_value(xp: Any, expression: Expression, *terms: Any) -> Any:
    best = terms[0]
    for term in terms[1:]:
        best = xp.minimum(best, term)
    return best


def is_hinge(expression: Expression) -> bool:
    """Whether an expression is the positive part of another one."""
    return expression.atom is MAXIMUM and len(expression.args) == 2 and sum(map(is_zero, expression.args)) == 1


def is_zero(expression: Expression) -> bool:
    """Whether an expression is the constant 0, which has both signs."""
    return expression.is_constant and not expression.number.any()


def rounded_maximum(expression: Expression, args: list[Expression], width: float) -> Expression:
    """Largest of several: a smoothed hinge against zero, else a log-sum-exp."""
    if is_hinge(expression):
        (other,) = (a for a in args if not is_zero(a))
        return huber(pos(other + width), 2 * width) / (4 * width)
    return width * soft_largest([a / width for a in args])


def soft_largest(args: list[Expression]) -> Expression:
    """Log-sum-exp of several expressions of one shape, entry by entry."""
    stacked = concatenate(*(reshape(a, (1, a.size)) for a in args), axis=0)
    return reshape(log_sum_exp(stacked, axis=(0,)), args[0].shape)


def shared_among(expression: Expression, value: Any, slope: Any, *terms: Any) -> list[Any]:
    """Share the slope equally among the arguments that attain an extreme."""
    attained = [term == value for term in terms]
    part = slope / sum(at * 1.0 for at in attained)
    return [at * part for at in attained]


MAXIMUM = Atom(
    name="maximum",
    value=largest_value,
    pull=shared_among,
    reads={"cvxpy.atoms.elementwise.maximum.maximum": lambda node, args: maximum(*args)},
    writes=lambda cp, expression, args: cp.maximum(*args) if len(args) > 1 else args[0],
    sign=lambda expression, signs: 1 if 1 in signs else -1 if set(signs) == {-1} else 0,
    curve=convex,
    slope=grows,
    text=lambda e, write: (
        (f"pos({write(e.args[0], 0)})", 4)
        if len(e.args) == 2 and e.args[1].is_constant and not e.args[1].number.any()
        else (f"maximum({', '.join(write(a, 0) for a in e.args)})", 4)
    ),
    statement="max(m_1, ..., m_k): the gradient is a convex combination of the arguments'; not differentiable",
    source=CALCULUS,
    bounds=lambda e, expander: ends_of(np.maximum, e, expander),
    rule=lambda e, arguments: [largest(e, list(group)) for group in zip(*arguments, strict=True)],
    smooth=rounded_maximum,
)


MINIMUM = Atom(
    name="minimum",
    value=smallest_value,
    pull=shared_among,
    reads={"cvxpy.atoms.elementwise.minimum.minimum": lambda node, args: minimum(*args)},
    writes=lambda cp, expression, args: cp.minimum(*args) if len(args) > 1 else args[0],
    sign=lambda e, signs: -1 if -1 in signs or any(map(is_zero, e.args)) else 1 if set(signs) == {1} else 0,
    curve=concave,
    slope=grows,
    statement="min(m_1, ..., m_k): concave; the gradient is a convex combination of the arguments'",
    source=CALCULUS,
    bounds=lambda e, expander: ends_of(np.minimum, e, expander),
    rule=lambda e, arguments: [smallest(e, list(group)) for group in zip(*arguments, strict=True)],
    smooth=lambda e, args, width: -width * soft_largest([a / -width for a in args]),
)


def ends_of(pick: Any, expression: Expression, expander: Any) -> Pair:
    """Bound the maximum or minimum of functions of the record, entry by entry."""
    lows, highs = zip(*(expander.bounds(a) for a in expression.args), strict=True)
    return pick.reduce(lows), pick.reduce(highs)


def ends_along(pick: Any, expression: Expression, expander: Any) -> Pair:
    """Bound the maximum or minimum of a function of the record along axes."""
    table = lines(expression)
    low, high = expander.bounds(expression.args[0])
    return pick.reduce(low[table], axis=1), pick.reduce(high[table], axis=1)


def maximum(*terms: Any) -> Expression:
    """Largest argument, entry by entry."""
    arguments = together(*terms)
    return arguments[0] if len(arguments) == 1 else MAXIMUM(*arguments)


def pos(a: Any) -> Expression:
    """Positive part."""
    return maximum(a, 0.0)


def minimum(*terms: Any) -> Expression:
    """Smallest argument, entry by entry."""
    arguments = together(*terms)
    return arguments[0] if len(arguments) == 1 else MINIMUM(*arguments)


def shared_among_entries(expression: Expression, value: Any, slope: Any, a: Any) -> Any:
    attained = (a == unreduced(expression, value)) * 1.0
    return attained * (unreduced(expression, slope) / np.sum(attained, axis=expression.option("axis"), keepdims=True))


MAX = Atom(
    name="max",
    shape=reduced,
    value=lambda xp, e, a: kept(e, xp.max(a, axis=e.option("axis"), keepdims=True)),
    pull=lambda e, value, slope, a: [shared_among_entries(e, value, slope, a)],
    reads={"cvxpy.atoms.max.max": over(lambda a, axis, keepdims: largest_entry(a, axis, keepdims))},
    writes=lambda cp, e, args: cp.max(args[0], axis=axis_for(e), keepdims=e.option("keepdims")),
    sign=lambda expression, signs: signs[0],
    curve=convex,
    slope=grows,
    text=reduction_text,
    statement="largest entry: gradient a convex combination of the entries'; not differentiable",
    source=CALCULUS,
    bounds=lambda e, expander: ends_along(np.maximum, e, expander),
    rule=lambda e, arguments: [largest(e, group) for group in along_axis(e, arguments[0])],
    smooth=lambda e, args, width: width * log_sum_exp(args[0] / width, e.option("axis"), e.option("keepdims")),
)


MIN = Atom(
    name="min",
    shape=reduced,
    value=lambda xp, e, a: kept(e, xp.min(a, axis=e.option("axis"), keepdims=True)),
    pull=lambda e, value, slope, a: [shared_among_entries(e, value, slope, a)],
    reads={"cvxpy.atoms.min.min": over(lambda a, axis, keepdims: smallest_entry(a, axis, keepdims))},
    writes=lambda cp, e, args: cp.min(args[0], axis=axis_for(e), keepdims=e.option("keepdims")),
    sign=lambda expression, signs: signs[0],
    curve=concave,
    slope=grows,
    text=reduction_text,
    statement="smallest entry: concave; gradient a convex combination of the entries'; not differentiable",
    source=CALCULUS,
    bounds=lambda e, expander: ends_along(np.minimum, e, expander),
    rule=lambda e, arguments: [smallest(e, group) for group in along_axis(e, arguments[0])],
    smooth=lambda e, args, width: -width * log_sum_exp(args[0] / -width, e.option("axis"), e.option("keepdims")),
)


def choices(expression: Expression) -> np.ndarray | None:
    """Return the ways to choose k entries, as rows of zeros and ones; None if they are too many."""
    count, k = expression.args[0].size, expression.option("k")
    if comb(count, k) > LARGEST_CHOICE:
        return None
    table = np.zeros((comb(count, k), count))
    for row, chosen in zip(table, combinations(range(count), k), strict=True):
        row[list(chosen)] = 1.0
    return table


def sum_largest_bounds(expression: Expression, expander: Any) -> Pair:
    low, high = (np.sort(end)[-expression.option("k") :].sum() for end in expander.bounds(expression.args[0]))
    return outward(np.array([low]), np.array([high]), 4 + expression.option("k"))


def sum_largest_rule(expression: Expression, arguments: list[Entries]) -> Entries:
    """The largest of all sums of k entries; if they are too many, weights of at most 1 that add up to k are a ball's."""
    entries, k = arguments[0], expression.option("k")
    low, high = (float(np.sort(ends)[-k:].sum()) for ends in entry_ends(entries))
    value = Interval(low, high).rounded(float(sum(e.value.size for e in entries)), 8 + len(entries))
    table = choices(expression)
    if table is not None:
        sums = [sum((entries[j] for j in np.flatnonzero(row)), Scalar(Interval(0.0, 0.0))) for row in table]
        if len(sums) == 1:
            return sums
        terms = hull_of(sums)
    else:
        rows, size = affine_rows(entries, "the sum of the largest of many entries"), float(np.sqrt(k))
        terms = Term(size * rows, True, scaled_mass(entries, size))
    pieces = tuple(piece for entry in entries for piece in entry.pieces)
    inner_kink = next((entry.kink for entry in entries if entry.kink), None)
    return [Scalar(value, (terms,), pieces, 1, inner_kink or tie(expression))]


def rounded_sum_largest(expression: Expression, args: list[Expression], width: float) -> Expression | None:
    """Log-sum-exp of all sums of k entries."""
    table = choices(expression)
    return None if table is None else width * log_sum_exp((constant(table) @ vec(args[0])) / width)


def among_largest(expression: Expression, a: Any) -> Any:
    """Ones for the largest entries, as many as are added up, and zeros for the others."""
    rows = np.argsort(a.reshape((expression.args[0].size, -1)), axis=0, kind="stable")
    chosen = np.zeros(rows.shape)
    np.put_along_axis(chosen, rows[len(rows) - expression.option("k") :], 1.0, axis=0)
    return chosen.reshape((*expression.args[0].shape, -1))


SUM_LARGEST = Atom(
    name="sum_largest",
    shape=lambda shape, k: () if 0 < k <= int(np.prod(shape)) else _count(k),
    value=lambda xp, e, a: xp.sum(
        xp.sort(xp.reshape(a, (e.args[0].size, -1)), axis=0)[e.args[0].size - e.option("k") :], axis=0
    ),
    pull=lambda e, value, slope, a: [slope * among_largest(e, a)],
    reads={"cvxpy.atoms.sum_largest.sum_largest": lambda node, args: reshape(largest_sum(node, args[0]), node.shape)},
    writes=lambda cp, e, args: cp.sum_largest(args[0], e.option("k")),
    sign=lambda expression, signs: signs[0],
    curve=convex,
    slope=grows,
    statement="gradient a convex combination of sums of k entries' gradients, also sum u_j g_j with ||u||_2 <= sqrt(k); "
    "not differentiable",
    source=CALCULUS,
    bounds=sum_largest_bounds,
    rule=sum_largest_rule,
    smooth=rounded_sum_largest,
)


def _count(k: float) -> Shape:
    raise ValueError(f"the sum of the {k} largest entries is not defined for this argument")


def largest_sum(node: Any, argument: Expression) -> Expression:
    """Read a sum of largest entries; CVXPY interpolates between whole numbers, and sums along axes."""
    count = float(node.k)
    if getattr(node, "axis", None) is not None or not count.is_integer():
        raise ValueError("there is a rule for the sum of a whole number of largest entries, over all entries")
    return sum_largest(argument, int(count))


def largest_entry(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    a = constant(a)
    return MAX(a, axis=every_axis(a, axis), keepdims=keepdims)


def smallest_entry(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    a = constant(a)
    return MIN(a, axis=every_axis(a, axis), keepdims=keepdims)


def sum_largest(a: Any, k: int) -> Expression:
    return SUM_LARGEST(a, k=int(k))
