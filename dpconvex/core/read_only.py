"""Arrays that nobody can write to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of an array in memory of its own that nobody can write to.

    Over bytes: the flag of an array that owns its memory, or of its base, can be set back.  An array that came from here is
    returned as it is.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, bytes) and type(array) is np.ndarray and array.flags.c_contiguous:
        return array
    if not array.size:
        return np.zeros(array.shape, dtype=array.dtype)
    return np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape)
