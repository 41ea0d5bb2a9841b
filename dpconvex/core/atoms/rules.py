"""What several atoms share: shapes, signs and texts; ranges that rules can use or must refuse; groups of entries."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.abstract_values import Interval, Kink, Scalar, Term, hull_of, mixed_pieces
from dpconvex.core.expression import ATOM, PRODUCT, SIGN, Expression, Shape
from dpconvex.errors import MissingRule, NotPrivate

Array = NDArray[np.float64]
Entries = list[Scalar]
Write = Callable[[Expression, int], str]

NO_SMOOTHNESS = "or use a mechanism that needs no smoothness (dp.OutputPerturbation, dp.NoisyGradientDescent)"
BOUND_IT = "bound the parameters (a ball, a box) so that the argument is bounded, or use a Lipschitz loss"
# Ranges are exact but for this fraction of their larger end.
ROUNDING = 1e-14
MINUS, ZERO = Interval(-1.0, -1.0), Interval(0.0, 0.0)


# Signs and slopes.


def nowhere_negative(expression: Expression, signs: Sequence[int]) -> int:
    return 1


def common_sign(expression: Expression, signs: Sequence[int]) -> int:
    return signs[0] if len(set(signs)) == 1 else 0


def product_sign(expression: Expression, signs: Sequence[int]) -> int:
    return signs[0] * signs[1]


def grows(expression: Expression, k: int, signs: Sequence[int]) -> int:
    return 1


def even_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    """Even convex functions grow on one side and fall on the other."""
    return signs[k]


def concave(expression: Expression) -> int:
    return -1


def varies(expression: Expression, k: int) -> bool:
    """Whether an argument mentions variables, so that a slope by it is wanted."""
    return bool(expression.args[k].variables)


# Reductions over axes.


def refused(what: str, *shapes: Shape) -> NoReturn:
    raise ValueError(f"there is no rule for {what} shape {' and '.join(map(str, shapes))}")


def reduced(shape: Shape, axis: tuple[int, ...], keepdims: bool) -> Shape:
    """Shape after a reduction over some axes."""
    return tuple(1 if k in axis else n for k, n in enumerate(shape) if keepdims or k not in axis)


def every_axis(a: Expression, axis: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(range(a.ndim)) if axis is None else axis


def axes_of(node: Any) -> tuple[int, ...]:
    """Return the axes over which an atom of CVXPY reduces: all of them if it names none."""
    count, axis = len(node.args[0].shape), node.axis
    if axis is None:
        return tuple(range(count))
    return tuple(sorted(int(k) % count for k in (axis if isinstance(axis, tuple | list) else (axis,))))


def over(build: Any) -> Any:
    """Read a reduction with its axes."""
    return lambda node, args: build(args[0], axes_of(node), bool(node.keepdims))


def axis_for(expression: Expression) -> dict[str, Any]:
    """Return the axis and whether it is kept as CVXPY takes them."""
    axis = expression.option("axis")
    given = None if len(axis) == expression.args[0].ndim else axis[0] if len(axis) == 1 else axis
    return {"axis": given, "keepdims": expression.option("keepdims")}


def kept(expression: Expression, result: Any) -> Any:
    """Return a reduction that kept its axes, without them unless the atom keeps them."""
    return result.reshape((*expression.shape, result.shape[-1]))


def unreduced(expression: Expression, slope: Any) -> Any:
    """Return what belongs to the results of a reduction with the axes that were reduced, of length 1."""
    shape = reduced(expression.args[0].shape, expression.option("axis"), True)
    return slope.reshape((*shape, slope.shape[-1]))


def lines(expression: Expression) -> NDArray[np.int64]:
    """Return the entries (of the first argument) that make each entry of a reduction, in column order, as the rows of a table."""
    inner, axis = expression.args[0], expression.option("axis")
    numbers = np.arange(inner.size).reshape(inner.shape, order="F")
    rest = tuple(k for k in range(inner.ndim) if k not in axis)
    table = numbers.transpose(rest + tuple(axis))
    return table.reshape(expression.size, inner.size // max(expression.size, 1), order="F")


def along_axis(expression: Expression, entries: Entries) -> list[Entries]:
    """Group the entries of the first argument as the axes of a reduction say."""
    return [[entries[k] for k in line] for line in lines(expression)]


def sum_matrix(expression: Expression) -> sp.csc_array:
    """Return the matrix, of zeros and ones, that adds up what a reduction reduces; entries are in column order."""
    table = lines(expression)
    row = np.repeat(np.arange(len(table)), table.shape[1])
    shape = (expression.size, expression.args[0].size)
    return sp.csc_array((np.ones(table.size), (row, table.ravel())), shape=shape)


# Texts.


def infix(symbol: str) -> Callable[[Expression, Write], tuple[str, int]]:
    def written(expression: Expression, write: Write) -> tuple[str, int]:
        return f"{write(expression.args[0], PRODUCT)} {symbol} {write(expression.args[1], SIGN)}", PRODUCT

    return written


def called(name: str, expression: Expression, *words: str) -> tuple[str, int]:
    """Write a reduction as a call, with its axis unless it is over everything."""
    axis = expression.option("axis")
    along = [] if len(axis) == expression.args[0].ndim else [f"axis={axis[0] if len(axis) == 1 else axis}"]
    return f"{name}({', '.join([*words, *along])})", ATOM


def reduction_text(expression: Expression, write: Write) -> tuple[str, int]:
    assert expression.atom is not None
    return called(expression.atom.name, expression, *(write(argument, 0) for argument in expression.args))


def number(option: Any) -> float:
    """Return an option of a CVXPY atom, which may be an expression of public numbers, as a number."""
    return float(np.asarray(getattr(option, "value", option)))


# Ranges.


def entrywise(one: Callable[[Expression, Scalar], Scalar]) -> Callable[[Expression, list[Entries]], Entries]:
    """Return the rule that treats each entry of one argument by itself."""
    return lambda expression, arguments: [one(expression, entry) for entry in arguments[0]]


def image(function: Callable[[float], Any], interval: Interval) -> Interval:
    """Return the range of a function that grows."""
    return Interval(float(function(interval.low)), float(function(interval.high))).rounded()


def bounded(entry: Scalar, what: str) -> Interval:
    """Return an entry's range, or refuse if it is unbounded."""
    if not (np.isfinite(entry.value.low) and np.isfinite(entry.value.high)):
        raise NotPrivate(f"{what} is Lipschitz only on bounded sets, and its argument is unbounded", None, BOUND_IT)
    return entry.value


def positive(entry: Scalar, what: str, part: str = "argument") -> float:
    """Return a positive lower bound of an entry, or refuse."""
    low = shrunk(entry.value)
    if not low > 0:
        raise NotPrivate(
            f"{what} is Lipschitz only where its {part} keeps away from zero, and it goes down to {entry.value.low:.4g}",
            None,
            f"shift the {part}, or bound the parameters or the declared domain so that it has a positive lower bound",
        )
    return low


def shrunk(value: Interval) -> float:
    """Return a lower end less what rounding may have added to it: near zero it may be the difference of large numbers."""
    return value.low - ROUNDING * abs(value.high) if np.isfinite(value.high) else value.low


def least_sizes(low: Array, high: Array) -> Array:
    """Bound the absolute values of numbers in intervals from below."""
    return np.maximum(np.maximum(low, -high), 0.0)


def largest_sizes(low: Array, high: Array) -> Array:
    """Bound the absolute values of numbers in intervals from above."""
    return np.maximum(np.abs(low), np.abs(high))


def entry_ends(group: Sequence[Scalar]) -> tuple[Array, Array]:
    """Return the ranges of entries as two arrays."""
    return np.array([entry.value.low for entry in group]), np.array([entry.value.high for entry in group])


def sizes_of(group: Sequence[Scalar]) -> tuple[Array, Array]:
    """Bound the absolute values of entries from below and above."""
    ends = entry_ends(group)
    return least_sizes(*ends), largest_sizes(*ends)


def at_most(high: Array) -> Array:
    """Return upper bounds of arguments that are positive where their atom is defined; infinite where no argument is."""
    return np.where(high > 0, high, np.inf)


def claimed(weights: Array, curvature: Array) -> Array | None:
    """Return least curvatures of weighted entries, 0 where nothing finite is known; None if they are 0 everywhere.

    Concave atoms have weights that are not positive, so the sizes of both are what counts.
    """
    with np.errstate(all="ignore"):
        bend = np.abs(weights) * curvature
    bend = np.where(np.isfinite(bend), bend, 0.0)
    return bend if bend.any() else None


# Groups of entries.


def behind(entry: Scalar) -> Scalar:
    """Return m behind an entry pos(m) for outer functions of slope 0 at 0, whose composition with pos has no kink."""
    return entry.behind or entry


def total(entries: Sequence[Scalar]) -> Scalar:
    """Add entries up."""
    return reduce(operator.add, entries) if entries else Scalar(ZERO)


def kink_of(group: Sequence[Scalar]) -> Kink | None:
    return next((entry.kink for entry in group if entry.kink), None)


def absolute_value(expression: Expression, entry: Scalar, kink: Kink | None = None) -> Scalar:
    """Bound |m|; `kink` says what is not differentiable if 0 lies inside the range."""
    low, high = entry.value.low, entry.value.high
    if low >= 0:
        return entry
    if high <= 0:
        return entry.scaled(MINUS)
    if kink is None:
        reason = "the absolute value is not differentiable at 0"
        kink = Kink(reason, expression, f"cp.huber(m, M) rounds the corner off; {NO_SMOOTHNESS}")
    return entry.through(Interval(0.0, max(-low, high)), Interval(-1.0, 1.0), 0.0, kink=kink)


def largest(expression: Expression, group: Entries) -> Scalar:
    """Bound the maximum of several entries.

    Arguments that can never be the largest are dropped; if one is left there is no kink.  Ranges are rounded outward, so an
    argument is dropped only if another one is proved to be as large everywhere.
    """
    floor = max(entry.value.low for entry in group)
    value = Interval(floor, max(entry.value.high for entry in group))
    alive = [entry for entry in group if entry.value.high > floor or entry.value.low == entry.value.high == floor]
    if len(alive) == 1:
        return alive[0].with_value(value)
    curved = [entry for entry in alive if entry.terms]
    if not curved:
        return Scalar(value)
    kink = tie(expression, hinge=len(curved) == 1)
    if len(curved) == 1:
        hinge = curved[0].through(value, Interval(0.0, 1.0), 0.0, kink=kink)
        constants = [entry for entry in alive if not entry.terms]
        against_zero = len(constants) == 1 and constants[0].value == ZERO
        return replace(hinge, behind=curved[0]) if against_zero else hinge
    return Scalar(value, (hull_of(alive),), mixed_pieces(alive), 1, kink_of(alive) or kink)


def tie(expression: Expression, hinge: bool = False) -> Kink:
    """Say that a maximum has a kink where its terms tie, and how to round it off."""
    if hinge:
        reason = "a hinge (the maximum of a term and a constant) is not differentiable at its corner"
        remedy = "dp.huber_hinge(m, width) rounds the corner off"
    else:
        assert expression.atom is not None
        reason = f"{expression.atom.name} is not differentiable where two of its terms tie"
        remedy = "cp.log_sum_exp of the same terms is a smooth maximum"
    return Kink(reason, expression, f"{remedy}; {NO_SMOOTHNESS}")


def is_one_row(entry: Scalar) -> bool:
    return entry.is_affine and (not entry.terms or (len(entry.terms) == 1 and len(entry.terms[0].rows) == 1))


def affine_rows(group: Entries, what: str) -> Array:
    """Return the rows of affine entries, shape (k, generators), or refuse."""
    width = max((entry.terms[0].rows.shape[1] for entry in group if entry.terms), default=0)
    if not all(is_one_row(entry) for entry in group):
        raise MissingRule(
            f"{what} of terms that are not affine in the parameters has no rule", None, "expand the composition"
        )
    return np.stack([entry.terms[0].rows[0] if entry.terms else np.zeros(width) for entry in group])


def ball_of(group: Entries, what: str, size: float) -> Term:
    """Return the set of all ``sum u_j g_j`` with ``||u||`` at most `size`, for affine entries."""
    rows, terms = affine_rows(group, what), [term for entry in group for term in entry.terms]
    summed = any(term.mass is not None for term in terms)
    return Term(rows * size, True, size * np.max([term.masses[0] for term in terms], axis=0) if summed else None)


def length_of(entries: Sequence[Scalar]) -> float:
    """Bound the Euclidean norm of entries of one array by what is known of that array; infinite for others.

    The positive parts of such entries are no longer.
    """
    found = [entry.together for entry in entries if entry.together is not None]
    if not found or len(found) < len(entries) or any(array is not found[0][0] for array, _ in found):
        return float(np.inf)
    return found[0][0].norm([place for _, place in found])
