"""Products of arrays that are summed over a common axis, in pieces; they have the records last, of length 1 where shared."""

from typing import Any

from dpconvex.core.summation import TERMS, Pairwise


def contracted(xp: Any, one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Sum over the axis, if any, that both factors have and the result has not; axes have letters, records none.

    NumPy adds one term after the other, for all records at once: a record's sum does not depend on how many there are.
    """
    axis = "".join(set(one) & set(two) - set(result))
    length = a.shape[one.index(axis)] if axis else 0
    if length <= TERMS:
        return xp.einsum(f"{one}z,{two}z->{result}z", a, b)
    total = Pairwise(0.0)
    for some in (slice(start, start + TERMS) for start in range(0, length, TERMS)):
        parts = (x[(slice(None),) * names.index(axis) + (some,)] for names, x in ((one, a), (two, b)))
        total.add(contracted(xp, one, two, result, *parts))
    return total.value
