"""The sums of `dpconvex.core.summation` inside compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpconvex.core.summation import PIECE, pairwise

__all__ = ["sum_of_pieces"]

# Gradients of pieces that are held at a time have so many numbers.
HELD = 2**21


def sum_of_pieces(function: Callable[..., tuple[Any, Any]], records: Any, width: int) -> tuple[Any, Any]:
    """Sum a value and a gradient over records, in pieces."""
    import jax

    size = len(jax.tree.leaves(records)[0])
    count = 1
    while size // count > PIECE and size % (2 * count) == 0:
        count *= 2
    together = min(count, 1 << max(0, (HELD // max(width, 1)).bit_length() - 1))

    def summed(pieces: Any) -> tuple[Any, Any]:
        value, gradient = function(*pieces)
        return pairwise(value), pairwise(gradient)

    def cut(array: Any) -> Any:
        return array.reshape((count // together, together, size // count, *array.shape[1:]))

    pieces = jax.tree.map(cut, records)
    first = summed(jax.tree.map(lambda array: array[0], pieces))
    if count == together:
        return first
    start = first, jax.tree.map(jax.numpy.zeros_like, first)
    rest = jax.tree.map(lambda array: array[1:], pieces)
    (total, lost), _ = jax.lax.scan(lambda sums, part: (compensated(*sums, summed(part)), None), start, rest)
    return total[0] + lost[0], total[1] + lost[1]


def compensated(total: Any, lost: Any, term: Any) -> tuple[Any, Any]:
    """Add a pair of arrays to another, and what rounding takes from the sums to a third (D. Knuth's error-free sum)."""
    sums, errors = [], []
    for a, b, error in zip(total, term, lost, strict=True):
        s = a + b
        back = s - a
        sums.append(s)
        errors.append(error + ((a - (s - back)) + (b - back)))
    return tuple(sums), tuple(errors)
