"""Functions for several atoms: reductions over axes, checks of ranges, bounds on groups of entries."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce, wraps
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import MissingRule, NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, AffineEntries, GradientSet, HessianTerm, NonsmoothPoint
from dpconvex.expressions.atom import AtomDefinition
from dpconvex.expressions.expression import ATOM, Expression, Shape, constant
from dpconvex.numerics import APART, BOUND_SLACK, EPSILON, Interval
from dpconvex.util.arrays import Array

Entries = Sequence[AbstractValue]
Write = Callable[[Expression, int], str]

NO_SMOOTHNESS = "or use a mechanism that needs no smoothness (dp.OutputPerturbation, dp.NoisyGradientDescent)"
BOUND_IT = "bound the parameters (by a ball or a box, or with `bound=` of a named problem), or use a Lipschitz loss"
NARROWER = "bound the parameters or the declared domain"
MINUS, ZERO = Interval(-1.0, -1.0), Interval(0.0, 0.0)


def common_sign(expression: Expression, signs: Sequence[int]) -> int:
    return signs[0] if len(set(signs)) == 1 else 0


def no_rule(what: str, *shapes: Shape) -> NoReturn:
    raise ValueError(f"there is no rule for {what} shape {' and '.join(map(str, shapes))}")


def reduction(
    name: str, value: Callable[..., Any], vjp: Callable[..., list[Any]], one: Callable[..., AbstractValue], **slots: Any
) -> AtomDefinition:
    """Return an atom that reduces axes; in `value` and `vjp` these have length 1. `one` bounds the result of one line."""
    usual: dict[str, Any] = {
        "shape": reduced,
        "to_string": lambda e, write: called(name, e, *(write(argument, 0) for argument in e.args)),
        "to_cvxpy": lambda cp, e, args: getattr(cp, name)(*args, **axis_for(e)),
    }

    @wraps(value)
    def kept(expression: Expression, *args: Any) -> Any:
        found = value(expression, *args)
        return found.reshape((*expression.shape, found.shape[-1]))

    def pulled(expression: Expression, *found: Any) -> list[Any]:
        shape = reduced(expression.args[0].shape, expression.option("axis"), True)
        return vjp(expression, *(part.reshape((*shape, part.shape[-1])) for part in found[:2]), *found[2:])

    def rule(expression: Expression, arguments: list[Entries]) -> Entries:
        entries, *others = arguments
        firsts = [other[0] for other in others]
        table = lines(expression)
        groups = [entries] if len(table) == 1 else [[entries[k] for k in line] for line in table.tolist()]
        return [one(expression, group, *firsts) for group in groups]

    return AtomDefinition(name=name, value=kept, vjp=pulled, bounds=rule, **{**usual, **slots})


def along(
    atom: AtomDefinition, a: Any, axis: Shape | None = None, keepdims: bool = False, **options: Any
) -> Expression:
    a = constant(a)
    return atom(a, axis=tuple(range(a.ndim)) if axis is None else axis, keepdims=keepdims, **options)


def reduced(shape: Shape, axis: tuple[int, ...], keepdims: bool) -> Shape:
    return tuple(1 if k in axis else n for k, n in enumerate(shape) if keepdims or k not in axis)


def axes_of(node: Any) -> tuple[tuple[int, ...], bool]:
    """Return the axes that a CVXPY atom reduces (all if it names none), and whether the result keeps these axes."""
    count = len(node.args[0].shape)
    axes = range(count) if node.axis is None else np.atleast_1d(node.axis)
    return tuple(sorted(int(k) % count for k in axes)), bool(getattr(node, "keepdims", False))


def axis_for(expression: Expression) -> dict[str, Any]:
    axis = expression.option("axis")
    given = None if len(axis) == expression.args[0].ndim else axis[0] if len(axis) == 1 else axis
    return {"axis": given, "keepdims": expression.option("keepdims")}


def lines(expression: Expression) -> NDArray[np.int64]:
    """Return a table with a row per entry of a reduction: the numbers of the argument's entries in it, in column order."""
    inner, axis = expression.args[0], expression.option("axis")
    rest = tuple(k for k in range(inner.ndim) if k not in axis)
    table = np.arange(inner.size).reshape(inner.shape, order="F").transpose(rest + axis)
    return table.reshape(expression.size, inner.size // max(expression.size, 1), order="F")


def sum_matrix(expression: Expression) -> sp.csc_array:
    """Return the 0-1 matrix that sums the entries of each line of a reduction; entries are in column order."""
    table = lines(expression)
    places = np.repeat(np.arange(len(table)), table.shape[1]), table.ravel()
    return sp.csc_array((np.ones(table.size), places), shape=(expression.size, expression.args[0].size))


def called(name: str, expression: Expression, *words: str) -> tuple[str, int]:
    axis = axis_for(expression)["axis"]
    return f"{name}({', '.join([*words, *([] if axis is None else [f'axis={axis}'])])})", ATOM


def entrywise(one: Callable[..., AbstractValue]) -> Callable[[Expression, list[Entries]], Entries]:
    return lambda expression, arguments: [one(expression, entry) for entry in arguments[0]]


def bounded(entry: AbstractValue, what: str) -> Interval:
    if not (np.isfinite(entry.value.low) and np.isfinite(entry.value.high)):
        raise NotPrivate(f"{what} is Lipschitz only on bounded sets, and its argument is unbounded", None, BOUND_IT)
    return entry.value


def positive(entry: AbstractValue, what: str, part: str = "argument") -> float:
    low, away = rounded_low(entry.value), f"its {part} keeps away from zero, and it goes down to {entry.value.low:.4g}"
    if not low > 0:
        remedy = f"shift the {part}, or {NARROWER} so that it has a positive lower bound"
        raise NotPrivate(f"{what} is Lipschitz only where {away}", None, remedy)
    return low


def rounded_low(value: Interval) -> float:
    """Return the lower end minus a bound on its rounding error: near zero it may be a difference of large numbers."""
    return value.low - BOUND_SLACK * abs(value.high) if np.isfinite(value.high) else value.low


def entry_ends(group: Sequence[AbstractValue]) -> tuple[Array, Array]:
    if isinstance(group, AffineEntries):
        return group.ends
    return np.array([entry.value.low for entry in group]), np.array([entry.value.high for entry in group])


def at_most(high: Array) -> Array:
    """Return upper bounds on arguments of an atom with a positive domain; infinite if `high` is not positive."""
    return np.where(high > 0, high, np.inf)


def claimed(weights: Array, curvature: Array) -> Array | None:
    """Return lower bounds on the curvature of weighted entries, 0 where none is finite; None if all are 0."""
    with np.errstate(all="ignore"):
        rounded = np.where(curvature == 1, 1.0, 1 - BOUND_SLACK)
        bend = np.nan_to_num(np.abs(weights) * curvature * rounded, nan=0.0, posinf=0.0, neginf=0.0)
    return bend if bend.any() else None


def cancelled(size: float, where: Expression | None = None) -> NotPrivate:
    why = f"numbers cancel: terms of size {size:.3g} are added up, and their rounding errors may exceed the sum"
    return NotPrivate(why, where, "write it without the terms that cancel")


def sum_of(entries: Sequence[AbstractValue]) -> AbstractValue:
    """Return the sum of entries, with a range that holds for every order of summation."""
    if not entries:
        return AbstractValue(ZERO)
    total = reduce(operator.add, entries)
    return replace(total, value=in_any_order(total.value, [entry.value for entry in entries]))


def in_any_order(total: Interval, parts: Sequence[Interval]) -> Interval:
    """Widen the range of a sum by its rounding error. Raise if the parts cancel up to rounding."""
    size = sum(part.size for part in parts)
    if APART * total.size < EPSILON * size < np.inf:
        raise cancelled(size)
    if len(parts) < 3:
        return total
    value = total.rounded(size, len(parts))
    low = 0.0 if min(part.low for part in parts) >= 0 else -np.inf  # the computed sum keeps a common sign
    return Interval(max(value.low, low), min(value.high, 0.0 if max(part.high for part in parts) <= 0 else np.inf))


def pieces_of(group: Sequence[AbstractValue]) -> tuple[HessianTerm, ...]:
    """Return all Hessian terms of the entries: their sum bounds every convex combination of the entries' Hessians."""
    return () if isinstance(group, AffineEntries) else tuple(piece for entry in group for piece in entry.pieces)


def kink_of(group: Sequence[AbstractValue]) -> NonsmoothPoint | None:
    return None if isinstance(group, AffineEntries) else next((entry.kink for entry in group if entry.kink), None)


def is_one_row(entry: AbstractValue) -> bool:
    return entry.is_affine and (not entry.terms or (len(entry.terms) == 1 and len(entry.terms[0].rows) == 1))


def affine_rows(group: Entries, what: str) -> Array:
    width = max((entry.terms[0].rows.shape[1] for entry in group if entry.terms), default=0)
    if not all(map(is_one_row, group)):
        why = f"{what} of terms that are not affine in the parameters has no rule"
        raise MissingRule(why, None, "expand the composition")
    return np.stack([entry.terms[0].rows[0] if entry.terms else np.zeros(width) for entry in group])


def ball_of(group: Entries, what: str, size: float) -> GradientSet:
    """Return the set of all ``sum u_j g_j`` with ``||u||`` at most `size`, for affine entries."""
    rows, terms = affine_rows(group, what), [term for entry in group for term in entry.terms]
    summed = any(term.mass is not None for term in terms)
    return GradientSet(rows * size, True, size * np.max([term.masses[0] for term in terms], axis=0) if summed else None)


def norm_of(entries: Sequence[AbstractValue]) -> float:
    """Return a bound on the Euclidean norm of entries, or of their positive parts; infinite unless all are of one array."""
    found = [entry.array_norm for entry in entries if entry.array_norm is not None]
    if not found or len(found) < len(entries) or any(array is not found[0][0] for array, _ in found):
        return np.inf
    return found[0][0]([place for _, place in found])
