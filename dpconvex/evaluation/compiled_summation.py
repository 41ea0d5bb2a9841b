"""The sums of `dpconvex.core.summation` inside compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpconvex.core.summation import PIECE, pairwise

# Gradients of pieces that are held at a time have so many numbers.
HELD = 2**21


def records_at_once(size: float, width: int) -> int:
    """Return the number of records that are summed at once: at most `size`, whole pieces, a power of two of them.

    >>> records_at_once(1000, 5), records_at_once(1e9, 2**20), records_at_once(7, 5)
    (512, 256, 128)
    """
    pieces = int(min(size / PIECE, HELD / max(width, 1)))
    return PIECE << max(pieces.bit_length() - 1, 0)


def sum_of_pieces(function: Callable[..., tuple[Any, Any]], records: Any) -> tuple[Any, Any]:
    """Sum a value and a gradient over records: a piece with a call of `function`, and the pieces in pairs."""
    import jax

    size = len(jax.tree.leaves(records)[0])
    count = 1
    while size // count > PIECE and size % (2 * count) == 0:
        count *= 2
    pieces = jax.tree.map(lambda array: array.reshape((count, size // count, *array.shape[1:])), records)
    value, gradient = function(*pieces)
    return pairwise(value), pairwise(gradient)
