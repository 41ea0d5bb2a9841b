"""Values and derivatives of programs in NumPy, for many records at once: each atom says what its value and its slopes are.

Arrays have the records as their last axis, of length 1 where all share a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.dual_evaluation import applied, pulled, together
from dpconvex.core.dual_numbers import Dual, plain, tangent
from dpconvex.core.expression import Expression
from dpconvex.evaluation.programs import Lowered, Program

Array = NDArray[np.float64]


def computed(program: Program, leaves: Mapping[Expression, Any]) -> dict[Expression, Any]:
    """Return the value of every node."""
    found = dict(leaves)
    for node in program.order:
        if node not in found:
            found[node] = applied(node, [found[argument] for argument in node.args])
    return found


def slopes(program: Program, found: Mapping[Expression, Any], start: Array | None = None) -> list[Any]:
    """Return the slopes of the entries' sum, or of one with other weights, by what stands in the slots."""
    start = np.ones((*program.root.shape, 1)) if start is None else start
    known: dict[Expression, Any] = {program.root: start}
    for node in reversed(program.order):
        slope = known.get(node)
        if slope is None or not node.args:
            continue
        parts = pulled(node, found[node], slope, [found[argument] for argument in node.args])
        for argument, part in zip(node.args, parts, strict=True):
            if argument.variables:
                known[argument] = together(known.get(argument), part)
    return [known.get(slot) for slot in program.entries]


def values(program: Program, leaves: Mapping[Expression, Any], size: int) -> Array:
    with np.errstate(all="ignore"):
        found = computed(program, leaves)[program.root]
    return np.broadcast_to(np.reshape(found, -1), (size,))


def gradient(program: Program, leaves: Mapping[Expression, Any], size: int) -> tuple[Array, Array]:
    """Values and gradients by what stands in the slots, shapes (size,) and (entries, size)."""
    # What leaves a function's domain becomes infinite or NaN; solvers refuse it.
    with np.errstate(all="ignore"):
        found = computed(program, leaves)
        parts = slopes(program, found)
    value = np.broadcast_to(np.reshape(found[program.root], -1), (size,))
    return value, whole(program, parts, size)


def hessian_product(program: Program, leaves: Mapping[Expression, Any], along: Sequence[Any], size: int) -> Array:
    """Hessians by what stands in the slots times directions, shape (entries, size)."""
    moving = {slot: Dual(leaves[slot], move) for slot, move in zip(program.entries, along, strict=True)}
    with np.errstate(all="ignore"):
        parts = slopes(program, computed(program, {**leaves, **moving}))
        return whole(program, [part.whole if isinstance(part, Dual) else None for part in parts], size)


def whole(program: Program, parts: Sequence[Any], size: int) -> Array:
    """Join the slots' slopes to a table with a row for each entry."""
    full = [
        np.broadcast_to(0.0 if part is None else part, (*slot.shape, size))
        for slot, part in zip(program.entries, parts, strict=True)
    ]
    return program.joined(full) if full else np.zeros((0, size))


def affine_rows(lowered: Lowered, fields: Mapping[str, Any], count: int) -> tuple[Array, Array]:
    """Evaluate an expression that is affine in the variables for many records."""
    program, shape = lowered.program, lowered.program.root.shape
    found = computed(program, lowered.leaves(np.zeros((len(lowered.place), 1)), fields))
    offset = np.moveaxis(np.broadcast_to(found[program.root], (*shape, count)), -1, 0)
    slope = np.zeros((*shape, len(lowered.place), count))
    for entry in np.ndindex(shape):
        start = np.zeros((*shape, 1))
        start[entry] = 1.0
        slope[entry] = whole(program, slopes(program, found, start), count)
    return offset, np.moveaxis(slope, -1, 0)


def is_scalar(program: Program) -> bool:
    """Whether a program makes nothing but numbers of numbers."""
    return all(node.shape == () for node in program.order)


def value_and_slope(
    program: Program,
    given: Sequence[tuple[Array, Any]],
    fields: Sequence[Array] = (),
    numbers: Sequence[Array] = (),
) -> tuple[Array, Array]:
    """Evaluate a program of numbers, and its derivative by one number for each record that all that is given depends on.

    Exponentials are shared by values and slopes: for losses of one margin this takes half the time of `gradient`.
    """
    leaves = program.leaves([Dual(*pair) for pair in given], fields, numbers)
    with np.errstate(all="ignore"):
        found = computed(program, leaves)[program.root]
    shape = np.shape(given[0][0])
    return np.broadcast_to(plain(found), shape), np.broadcast_to(tangent(found), shape)
