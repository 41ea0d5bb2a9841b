"""Largest: of arguments, of entries, and sums of the largest.  The smallest is minus the largest of what is negated."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Interval, Scalar, hull_of
from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import CONCATENATE, reshape, together, vec
from dpconvex.core.atoms.exponentials import log_sum_exp
from dpconvex.core.atoms.powers import huber
from dpconvex.core.atoms.rules import (
    Entries,
    along_axis,
    axis_for,
    ball_of,
    entry_ends,
    every_axis,
    grows,
    kept,
    kink_of,
    largest,
    over,
    reduced,
    reduction_text,
    tie,
    total,
    unreduced,
)
from dpconvex.core.expression import Expression, Shape, constant

# So many sums of k entries are enumerated.
LARGEST_CHOICE = 256


def largest_value(xp: Any, expression: Expression, *terms: Any) -> Any:
    best = terms[0]
    for term in terms[1:]:
        best = xp.maximum(best, term)
    return best


def is_hinge(expression: Expression) -> bool:
    """Whether an expression is the positive part of another one."""
    return expression.atom is MAXIMUM and len(expression.args) == 2 and sum(map(is_zero, expression.args)) == 1


def is_zero(expression: Expression) -> bool:
    return expression.is_constant and not expression.number.any()


def rounded_maximum(expression: Expression, args: list[Expression], width: float) -> Expression:
    """Largest of several: a smoothed hinge against zero, else a log-sum-exp."""
    if is_hinge(expression):
        (other,) = (a for a in args if not is_zero(a))
        return huber(pos(other + width), 2 * width) / (4 * width)
    stacked = CONCATENATE(*(reshape(a / width, (1, a.size)) for a in args), axis=0)
    return width * reshape(log_sum_exp(stacked, axis=(0,)), args[0].shape)


def shared_among(expression: Expression, value: Any, slope: Any, *terms: Any) -> list[Any]:
    """Share the slope equally among the arguments that attain an extreme."""
    attained = [term == value for term in terms]
    part = slope / sum(at * 1.0 for at in attained)
    return [at * part for at in attained]


MAXIMUM = Atom(
    name="maximum",
    value=largest_value,
    pull=shared_among,
    reads={
        "cvxpy.atoms.elementwise.maximum.maximum": lambda node, args: maximum(*args),
        "cvxpy.atoms.elementwise.minimum.minimum": lambda node, args: -maximum(*(-a for a in args)),
    },
    writes=lambda cp, expression, args: cp.maximum(*args) if len(args) > 1 else args[0],
    sign=lambda expression, signs: 1 if 1 in signs else -1 if set(signs) == {-1} else 0,
    slope=grows,
    text=lambda e, write: (
        (f"pos({write(e.args[0], 0)})", 4)
        if len(e.args) == 2 and is_zero(e.args[1])
        else (f"maximum({', '.join(write(a, 0) for a in e.args)})", 4)
    ),
    statement="max(m_1, ..., m_k): the gradient is a convex combination of the arguments'; not differentiable",
    rule=lambda e, arguments: [largest(e, list(group)) for group in zip(*arguments, strict=True)],
    smooth=rounded_maximum,
)


def maximum(*terms: Any) -> Expression:
    """Largest argument, entry by entry."""
    arguments = together(*terms)
    return arguments[0] if len(arguments) == 1 else MAXIMUM(*arguments)


def pos(a: Any) -> Expression:
    return maximum(a, 0.0)


def shared_among_entries(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    attained = (a == unreduced(expression, value)) * 1.0
    return [attained * (unreduced(expression, slope) / np.sum(attained, axis=expression.option("axis"), keepdims=True))]


MAX = Atom(
    name="max",
    shape=reduced,
    value=lambda xp, e, a: kept(e, xp.max(a, axis=e.option("axis"), keepdims=True)),
    pull=shared_among_entries,
    reads={
        "cvxpy.atoms.max.max": over(lambda a, axis, keepdims: largest_entry(a, axis, keepdims)),
        "cvxpy.atoms.min.min": over(lambda a, axis, keepdims: -largest_entry(-a, axis, keepdims)),
    },
    writes=lambda cp, e, args: cp.max(args[0], **axis_for(e)),
    sign=lambda expression, signs: signs[0],
    slope=grows,
    text=reduction_text,
    statement="largest entry: gradient a convex combination of the entries'; not differentiable",
    rule=lambda e, arguments: [largest(e, group) for group in along_axis(e, arguments[0])],
    smooth=lambda e, args, width: width * log_sum_exp(args[0] / width, e.option("axis"), e.option("keepdims")),
)


def largest_entry(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    a = constant(a)
    return MAX(a, axis=every_axis(a, axis), keepdims=keepdims)


def choices(expression: Expression) -> np.ndarray | None:
    """Return the ways to choose k entries, as rows of zeros and ones; None if they are too many."""
    count, k = expression.args[0].size, expression.option("k")
    if comb(count, k) > LARGEST_CHOICE:
        return None
    table = np.zeros((comb(count, k), count))
    for row, chosen in zip(table, combinations(range(count), k), strict=True):
        row[list(chosen)] = 1.0
    return table


def sum_largest_rule(expression: Expression, arguments: list[Entries]) -> Entries:
    """The largest of all sums of k entries; if they are too many, weights of at most 1 that add up to k are a ball's."""
    entries, k = arguments[0], expression.option("k")
    low, high = (float(np.sort(ends)[-k:].sum()) for ends in entry_ends(entries))
    value = Interval(low, high).rounded(float(sum(e.value.size for e in entries)), 8 + len(entries))
    table = choices(expression)
    if table is None:
        terms = ball_of(entries, "the sum of the largest of many entries", float(np.sqrt(k)))
    else:
        sums = [total([entries[j] for j in np.flatnonzero(row)]) for row in table]
        if len(sums) == 1:
            return sums
        terms = hull_of(sums)
    pieces = tuple(piece for entry in entries for piece in entry.pieces)
    return [Scalar(value, (terms,), pieces, 1, kink_of(entries) or tie(expression))]


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


def counted(shape: Shape, k: int) -> Shape:
    if not 0 < k <= int(np.prod(shape)):
        raise ValueError(f"the sum of the {k} largest entries is not defined for this argument")
    return ()


SUM_LARGEST = Atom(
    name="sum_largest",
    shape=counted,
    value=lambda xp, e, a: xp.sum(
        xp.sort(xp.reshape(a, (e.args[0].size, -1)), axis=0)[e.args[0].size - e.option("k") :], axis=0
    ),
    pull=lambda e, value, slope, a: [slope * among_largest(e, a)],
    reads={"cvxpy.atoms.sum_largest.sum_largest": lambda node, args: reshape(largest_sum(node, args[0]), node.shape)},
    writes=lambda cp, e, args: cp.sum_largest(args[0], e.option("k")),
    sign=lambda expression, signs: signs[0],
    slope=grows,
    statement="gradient a convex combination of sums of k entries' gradients, also sum u_j g_j with ||u||_2 <= sqrt(k); "
    "not differentiable",
    rule=sum_largest_rule,
    smooth=rounded_sum_largest,
)


def largest_sum(node: Any, argument: Expression) -> Expression:
    """Read a sum of largest entries; CVXPY interpolates between whole numbers, and sums along axes."""
    count = float(node.k)
    if getattr(node, "axis", None) is not None or not count.is_integer():
        raise ValueError("there is a rule for the sum of a whole number of largest entries, over all entries")
    return SUM_LARGEST(argument, k=int(count))
