"""Programs and their derivatives in NumPy, for many records at once: each atom says what its value and its slopes are.

Arrays have the records as their last axis, of length 1 where all share a value.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.evaluate import STEP, slopes
from dpconvex.evaluation.programs import Program, records_last

Array = NDArray[np.float64]

# What a processor computes at once, at most: records are gone through in multiples of it (`dpconvex.evaluation.clipping`).
LANES = 64


def gradient(
    program: Program, numbers: Sequence[Array], entries: Array, fields: Sequence[Array], size: int
) -> tuple[Array, Array]:
    """Values, shape (size,), and gradients by the entries of the slots, shape (entries, size).

    Entries have the records last, or one column if these share them; fields have the records first.
    """
    # What leaves a function's domain becomes infinite or NaN; solvers refuse it.
    with np.errstate(all="ignore"):
        found = program.leaves(program.cut(entries), [records_last(field) for field in fields], numbers)
        for node in program.order:
            if node not in found:
                assert node.atom is not None
                found[node] = node.atom.value(np, node, *(found[argument] for argument in node.args))
        known = slopes(program.order, found, program.root)
    parts = [np.broadcast_to(known.get(slot, 0.0), (*slot.shape, size)) for slot in program.entries]
    whole = program.joined(parts) if parts else np.zeros((0, size))
    return np.broadcast_to(np.reshape(found[program.root], -1), (size,)), whole


def hessian_product(
    program: Program, numbers: Sequence[Array], entries: Array, along: Array, fields: Sequence[Array], size: int
) -> Array:
    """Hessians by the entries of the slots times directions, shape (entries, size)."""
    moved = gradient(program, numbers, entries + 1j * STEP * along, fields, size)[1]
    return np.imag(moved) / STEP
