"""Matrix products that are exact, so that no order of adding matters, at the speed of libraries of linear algebra.

Numbers are cut into integers of few bits, as Ozaki, Ogita, Oishi & Rump (2012, "Error-free transformations of matrix
multiplication") do: all sums of products of these are below 2^53.  A record is cut by its own scale, whatever is beside it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.arrays import Array, Indices

# Parts of a number, of so many bits at most, which single precision holds; three of the fewest make one more than a number has.
PARTS, MOST_BITS, FEWEST_BITS = 3, 24, 18
# Fewer forms, or products in a sum, are not worth cutting.
FEWEST_FORMS, FEWEST_TERMS = 4, 64
# So many numbers are made double again at a time.
CACHED = 2**20


def bits_for(terms: int) -> int:
    """Return of how many bits both factors may be for exact sums of so many products."""
    return min((53 - (terms - 1).bit_length()) // 2, MOST_BITS)


def pays(forms: int, terms: int) -> bool:
    return forms >= FEWEST_FORMS and terms >= FEWEST_TERMS and bits_for(terms) >= FEWEST_BITS


def cut(rows: Array, bits: int) -> tuple[list[Array], Indices]:
    """Write each row as ``2**e * sum(part[k] * 2**(-bits * (k + 1)))``, up to ``2**(e - 3 * bits - 1)``; return parts and e."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    exponent = np.frexp(np.where(np.isfinite(largest), largest, 1.0))[1]
    left, parts = np.ldexp(rows, (bits - exponent)[:, None]), []
    for _ in range(PARTS):
        parts.append(np.rint(left))
        left = np.ldexp(left - parts[-1], bits)
    return parts, exponent


@dataclass(frozen=True, eq=False)
class CutRows:
    """Dense records, cut; parts that are 0 for all of them are left out, which changes no bit of a product."""

    parts: tuple[NDArray[np.float32], ...]
    exponent: Indices
    bits: int

    @classmethod
    def of(cls, rows: Array) -> "CutRows":
        bits = bits_for(rows.shape[1])
        kept: list[Any] = [np.empty(rows.shape, dtype=np.float32) for _ in range(PARTS)]
        exponent, used = np.zeros(len(rows), dtype=np.int64), 1
        step = max(CACHED // rows.shape[1], 1)
        for some in (slice(start, start + step) for start in range(0, len(rows), step)):
            parts, exponent[some] = cut(np.asarray(rows[some], dtype=float), bits)
            for number, part in enumerate(parts):
                kept[number][some] = part
                used = max(used, number + 1) if part.any() else used
        return cls(tuple(kept[:used]), exponent, bits)

    def product(self, weights: Array) -> Array:
        """Return ``weights @ rows.T``, shape (forms, records), up to one unit in the last place for each product."""
        parts, exponent = cut(weights, self.bits)
        forms, found = len(weights), np.zeros((len(weights), len(self.exponent)))
        step = max(CACHED // weights.shape[1], 1)
        for some in (slice(start, start + step) for start in range(0, len(self.exponent), step)):
            for number, part in reversed([*enumerate(self.parts)]):
                few = PARTS - number  # of the weights' parts: products of smaller ones are nothing
                whole = (np.concatenate(parts[:few]) @ part[some].T.astype(float)).reshape(few, forms, -1)
                for other in reversed(range(few)):
                    found[:, some] += np.ldexp(whole[other], -self.bits * (number + other + 2))
        return np.asarray(np.ldexp(found, exponent[:, None] + self.exponent))
