"""Rules for groups of entries: the lines of a reduction, their extremes, the rows of affine ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.abstract_values import Kink, Scalar, hull_of, mixed_pieces
from dpconvex.core.atoms.rules import NO_SMOOTHNESS
from dpconvex.core.expression import Expression
from dpconvex.core.intervals import Interval
from dpconvex.errors import MissingRule

Array = NDArray[np.float64]
Pair = tuple[Array, Array]

MINUS, ZERO = Interval(-1.0, -1.0), Interval(0.0, 0.0)


def outward(low: Array, high: Array, count: int = 4) -> Pair:
    """Move computed bounds apart by some roundings of themselves."""
    room = count * float(np.finfo(float).eps)
    return low - room * np.abs(low), high + np.where(np.isfinite(high), room * np.abs(high), 0.0)


def least_sizes(low: Array, high: Array) -> Array:
    """Bound the absolute values of numbers in intervals from below."""
    return np.maximum(np.maximum(low, -high), 0.0)


def largest_sizes(low: Array, high: Array) -> Array:
    """Bound the absolute values of numbers in intervals from above."""
    return np.maximum(np.abs(low), np.abs(high))


def lines(expression: Expression) -> NDArray[np.int64]:
    """Return the entries (of the first argument) that make each entry of a reduction, in column order, as the rows of a table."""
    inner, axis = expression.args[0], expression.option("axis")
    numbers = np.arange(inner.size).reshape(inner.shape, order="F")
    rest = tuple(k for k in range(inner.ndim) if k not in axis)
    table = numbers.transpose(rest + tuple(axis))
    return table.reshape(expression.size, inner.size // max(expression.size, 1), order="F")


def entry_ends(group: list[Scalar]) -> Pair:
    """Return the ranges of entries as two arrays."""
    return np.array([entry.value.low for entry in group]), np.array([entry.value.high for entry in group])


def along_axis(expression: Expression, entries: list[Scalar]) -> list[list[Scalar]]:
    """Group the entries of the first argument as the axes of a reduction say."""
    return [[entries[k] for k in line] for line in lines(expression)]


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


def largest(expression: Expression, group: list[Scalar]) -> Scalar:
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
    inner_kink = next((entry.kink for entry in alive if entry.kink), None)
    return Scalar(value, (hull_of(alive),), mixed_pieces(alive), 1, inner_kink or kink)


def smallest(expression: Expression, group: list[Scalar]) -> Scalar:
    """Bound the minimum of several entries: minus the maximum of the negatives."""
    return largest(expression, [entry.scaled(MINUS) for entry in group]).scaled(MINUS)


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


def scaled_mass(group: list[Scalar], factor: float) -> Array | None:
    """Return the mass of a ball whose axes are the rows of affine entries, if some are sums; see `Term`."""
    masses = [term.masses[0] for entry in group for term in entry.terms]
    return factor * np.max(masses, axis=0) if any(t.mass is not None for e in group for t in e.terms) else None


def is_one_row(entry: Scalar) -> bool:
    return entry.is_affine and (not entry.terms or (len(entry.terms) == 1 and len(entry.terms[0].rows) == 1))


def affine_rows(group: list[Scalar], what: str) -> Array:
    """Return the rows of affine entries, shape (k, generators), or refuse."""
    width = max((entry.terms[0].rows.shape[1] for entry in group if entry.terms), default=0)
    if not all(is_one_row(entry) for entry in group):
        raise MissingRule(
            f"{what} of terms that are not affine in the parameters has no rule", None, "expand the composition"
        )
    return np.stack([entry.terms[0].rows[0] if entry.terms else np.zeros(width) for entry in group])


def length_of(entries: Sequence[Scalar]) -> float:
    """Bound the Euclidean norm of entries of one affine array by that of the array; infinite for others.

    The positive parts of such entries are no longer.
    """
    found = [entry.together for entry in entries if entry.together is not None]
    if not found or len(found) < len(entries) or any(array is not found[0][0] for array, _ in found):
        return float(np.inf)
    return found[0][0].norm([place for _, place in found])
