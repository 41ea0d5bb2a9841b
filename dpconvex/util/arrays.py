"""NumPy arrays: names for annotations, read-only copies, and sums that do not depend on other rows."""

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
    """Return the squared lengths of rows, shape (n,); no bit of a length depends on other rows."""
    several = rows if len(rows) > 1 else np.repeat(rows, 2, axis=0)  # NumPy sums a single long row in another order
    return np.asarray(np.einsum("ij,ij->i", several, several)[: len(rows)])


def powers_of_two(sizes: Array) -> Array:
    """Return the powers of two near the sizes, for scaling without rounding; 1 for sizes of 0."""
    return np.asarray(2.0 ** np.rint(np.log2(np.where(sizes > 0, sizes, 1.0))))


def components(matrix: Any) -> list[Indices]:
    """Return the coordinates of each connected block of a matrix."""
    count, owner = connected_components(sp.csr_array(matrix), directed=False)  # in dense ones SciPy drops 1e-8
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=count))[:-1])


def exact_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array, shape (n,), of dtype object if NumPy would convert some, such as numbers beside texts."""
    with suppress(ValueError):  # tuples of different lengths
        found = np.array(list(values))
        if found.ndim == 1 and found.tolist() == list(values):
            return found
    return np.fromiter(values, dtype=object, count=len(values))


class Owned(np.ndarray):
    """Memory that only `frozen` has written to; NumPy allocates and reads it faster than bytes."""


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy of an array; a result of this function is returned without a copy."""
    base: Any = array
    while type(base) is np.ndarray:
        base = base.base
    owner: Any = base.obj if isinstance(base, memoryview) else None
    if type(owner) is Owned and array.flags.c_contiguous:
        return array
    if not array.size:
        return np.zeros(array.shape, dtype=array.dtype)
    # Over a read-only view: the write flag of an array that owns its memory, or of its base, can be set back.
    owner = np.array(array, order="C").view(Owned)
    return np.frombuffer(memoryview(owner).toreadonly(), dtype=array.dtype).reshape(array.shape)
