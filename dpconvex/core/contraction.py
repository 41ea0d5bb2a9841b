"""Products of arrays that are summed over a common axis, in pieces; they have the records last, of length 1 where shared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.summation import TERMS, Pairwise, apart

Array = NDArray[np.float64]


def contracted(xp: Any, one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Sum over the axis, if any, that both factors have and the result has not; axes have letters, records none."""
    axis = "".join(set(one) & set(two) - set(result))
    length = a.shape[one.index(axis)] if axis else 0
    if length > TERMS:
        total = Pairwise(0.0)
        for some in (slice(start, start + TERMS) for start in range(0, length, TERMS)):
            parts = (x[(slice(None),) * names.index(axis) + (some,)] for names, x in ((one, a), (two, b)))
            total.add(contracted(xp, one, two, result, *parts))
        return total.value
    if xp is np and apart():
        return added_apart(one, two, result, a, b)
    if a.shape[-1] == 1 and b.shape[-1] > 1:  # what all records share is multiplied as a matrix
        return xp.einsum(f"{one},{two}z->{result}z", a[..., 0], b, optimize=True)
    if b.shape[-1] == 1 and a.shape[-1] > 1:
        return xp.einsum(f"{one}z,{two}->{result}z", a, b[..., 0], optimize=True)
    return xp.einsum(f"{one}z,{two}z->{result}z", a, b)


def added_apart(one: str, two: str, result: str, a: Array, b: Array) -> Array:
    """Do the same one term after the other, so that no record's sums depend on how many there are."""
    axis = "".join(set(one) & set(two) - set(result))
    # Each factor with the common axis, of length 1 if there is none, before those of the result.
    left, right = (
        np.expand_dims(
            np.moveaxis(x, names.index(axis), 0) if axis else x[None],
            [1 + k for k, name in enumerate(result) if name not in names],
        )
        for names, x in ((one, a), (two, b))
    )
    total = left[0] * right[0]
    for x, y in zip(left[1:], right[1:], strict=True):
        total += x * y
    return np.asarray(total)
