"""Arrays of NumPy: what they are called in annotations, and ones that nobody writes to."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def squared_lengths(rows: Array) -> Array:
    """Return squared lengths of rows, shape (n,), each to the same bits whatever rows are beside it."""
    several = rows if len(rows) > 1 else np.repeat(rows, 2, axis=0)  # NumPy adds up one long row alone in another order
    return np.asarray(np.einsum("ij,ij->i", several, several)[: len(rows)])


def powers_of_two(sizes: Array) -> Array:
    """Return units near some sizes, in which numbers keep all digits; 1 for what has no size."""
    return np.asarray(2.0 ** np.rint(np.log2(np.where(sizes > 0, sizes, 1.0))))


def components(matrix: Any) -> list[Indices]:
    """Return the coordinates of the blocks of a matrix that no entry connects."""
    count, owner = connected_components(sp.csr_array(matrix), directed=False)  # of a dense one it takes 1e-8 to be 0
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=count))[:-1])


def as_they_are(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array, shape (n,); of objects where NumPy would turn some into others, as numbers beside texts."""
    with suppress(ValueError):  # of tuples that are not equally long
        found = np.array(list(values))
        if found.ndim == 1 and found.tolist() == list(values):
            return found
    return np.fromiter(values, dtype=object, count=len(values))


class Owned(np.ndarray):
    """Memory that only `frozen` has written to: NumPy's own, which is faster to get and to read than that of bytes."""


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array in memory of its own, which nobody can write to; what came from here as it is."""
    base: Any = array
    while type(base) is np.ndarray:
        base = base.base
    owner: Any = base.obj if isinstance(base, memoryview) else None
    if type(owner) is Owned and array.flags.c_contiguous:
        return array
    if not array.size:
        return np.zeros(array.shape, dtype=array.dtype)
    # Over a read-only view: the flag of an array that owns its memory, or of its base, can be set back.
    owner = np.array(array, order="C").view(Owned)
    return np.frombuffer(memoryview(owner).toreadonly(), dtype=array.dtype).reshape(array.shape)
