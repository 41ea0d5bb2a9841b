"""Products of arrays that are summed over a common axis; they have the records last, of length 1 where shared."""

from __future__ import annotations

from typing import Any


def contracted(xp: Any, one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Sum over the axis, if any, that both factors have and the result has not; axes have letters, records none.

    NumPy adds one term after the other, for all records at once: a record's sum does not depend on how many there are.
    """
    return xp.einsum(f"{one}z,{two}z->{result}z", a, b)
