"""Products of arrays that are summed over a common axis, in pieces: no record's own sums err by more the longer they are.

Arrays have the records as their last axis, of length 1 where all share a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.summation import SEVERAL, Pairwise, apart, pairwise

Array = NDArray[np.float64]


def contracted(xp: Any, one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Sum over the axis, if any, that both factors have and the result has not; axes have letters, records none."""
    if xp is not np:
        return compiled()(one, two, result, a, b)
    axis = common(one, two, result)
    multiply = added_apart if apart() else partial(multiplied, np)
    length = a.shape[one.index(axis)] if axis else 0
    if length <= SEVERAL:
        return multiply(one, two, result, a, b)
    total = Pairwise(0.0)
    for start in range(0, length, SEVERAL):
        some = slice(start, start + SEVERAL)
        total.add(multiply(one, two, result, cut(one, axis, a, some), cut(two, axis, b, some)))
    return total.value


def common(one: str, two: str, result: str) -> str:
    """Return the axis that is summed over, of which there is one at most."""
    return "".join(set(one) & set(two) - set(result))


def cut(names: str, axis: str, x: Any, some: slice) -> Any:
    """Return a part of an array along an axis."""
    return x[(slice(None),) * names.index(axis) + (some,)]


def multiplied(xp: Any, one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Do the work for few terms; what all records share is multiplied as a matrix."""
    if a.shape[-1] == 1 and b.shape[-1] > 1:
        return xp.einsum(f"{one},{two}z->{result}z", a[..., 0], b, optimize=True)
    if b.shape[-1] == 1 and a.shape[-1] > 1:
        return xp.einsum(f"{one}z,{two}->{result}z", a, b[..., 0], optimize=True)
    return xp.einsum(f"{one}z,{two}z->{result}z", a, b)


def added_apart(one: str, two: str, result: str, a: Array, b: Array) -> Array:
    """Do the same one term after the other, so that no record's sums depend on how many there are."""
    axis = common(one, two, result)
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


def in_pieces(one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Do it for arrays of JAX: all pieces at once, and what is left over."""
    import jax.numpy as xp

    axis = common(one, two, result)
    length = a.shape[one.index(axis)] if axis else 0
    if length <= SEVERAL:
        return multiplied(xp, one, two, result, a, b)
    whole = length // SEVERAL * SEVERAL

    def pieces(names: str, x: Any) -> Any:
        place, some = names.index(axis), cut(names, axis, x, slice(whole))
        return some.reshape((*x.shape[:place], -1, SEVERAL, *x.shape[place + 1 :]))

    left, right = (name.replace(axis, f"c{axis}") for name in (one, two))
    total = pairwise(multiplied(xp, left, right, f"c{result}", pieces(one, a), pieces(two, b)), xp)
    if whole == length:
        return total
    rest = slice(whole, None)
    return total + multiplied(xp, one, two, result, cut(one, axis, a, rest), cut(two, axis, b, rest))


@cache
def compiled() -> Callable[..., Any]:
    """Return the function for JAX.  Its slopes are such products again: JAX would add them up in any order."""
    import jax
    import jax.numpy as xp

    def slope_by(one: str, two: str, result: str, slope: Any, a: Any, b: Any) -> Any:
        shared = a.shape[-1] == 1 and slope.shape[-1] > 1
        if not shared:
            return in_pieces(result, two, one, slope, b)
        if b.shape[-1] > 1 and not common(result, two, one):  # one term of each record
            return xp.einsum(f"{result}z,{two}z->{one}", slope, b)[..., None]
        return xp.sum(in_pieces(result, two, one, slope, b), axis=-1, keepdims=True)

    @partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
    def product(one: str, two: str, result: str, a: Any, b: Any) -> Any:
        return in_pieces(one, two, result, a, b)

    def forward(one: str, two: str, result: str, a: Any, b: Any) -> Any:
        return in_pieces(one, two, result, a, b), (a, b)

    def backward(one: str, two: str, result: str, factors: Any, slope: Any) -> Any:
        a, b = factors
        return slope_by(one, two, result, slope, a, b), slope_by(two, one, result, slope, b, a)

    product.defvjp(forward, backward)
    return product


def summed(xp: Any, a: Any, axis: tuple[int, ...]) -> Any:
    """Sum over axes, which are kept with length 1, in pieces."""
    kept = tuple(1 if k in axis else n for k, n in enumerate(a.shape))
    length = int(np.prod([a.shape[k] for k in axis], dtype=np.int64))
    if length <= SEVERAL or (
        xp is np and not isinstance(a, np.ndarray)
    ):  # the latter carry the derivatives of gradients
        return xp.sum(a, axis=axis, keepdims=True)
    others = [k for k in range(a.ndim) if k not in axis]
    rows = xp.transpose(a, (*axis, *others)).reshape((length, *(a.shape[k] for k in others)))
    whole = length // SEVERAL * SEVERAL
    total = pairwise(xp.sum(rows[:whole].reshape((-1, SEVERAL, *rows.shape[1:])), axis=1), xp)
    return (total + xp.sum(rows[whole:], axis=0)).reshape(kept)
