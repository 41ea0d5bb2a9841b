"""Ranges of bilinear forms ``m(z)' P m(z')`` in the monomials of one record, or of two.

Gradients of a loss are combinations of rows of `A_z`, so every inner product of two gradients is such a form.  Here it is
bounded over the record's domain, for one record (z = z') and for two records that are chosen independently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.polynomial import interval_product, rounded_product, rounded_sums
from dpconvex.core.record_scalars import Bases

__all__ = ["Interval", "form_range"]

Array = NDArray[np.float64]
Kinds = dict[tuple[int, ...], NDArray[np.int64]]

LARGEST_DENSE = 1500
# Products that are smaller have fewer digits.
SMALLEST = 1e-290
# Rounding of a computed eigenvalue, relative to the largest one and to the side of the matrix.
EPSILON = 2.0**-52
# Diagonal entries that agree to this fraction may be taken together.
ALIKE = 1e-12
# Bounds of one number may miss each other by this fraction of the size of its terms, for rounding: there may be millions of them.
APART = 1e-9


@dataclass(frozen=True)
class Interval:
    """A closed interval; sums, products and powers are rounded outward, unless they are exact.

    Examples
    --------
    >>> Interval(1e16, 1e16) + Interval(1.0, 1.0)
    Interval(low=1e+16, high=1.0000000000000002e+16)
    >>> Interval(-1.0, 2.0) * Interval(3.0, 3.0)
    Interval(low=-3.0, high=6.0)
    """

    low: float
    high: float

    @property
    def size(self) -> float:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def __add__(self, other: Interval) -> Interval:
        return Interval(plus(self.low, other.low)[0], plus(self.high, other.high)[1])

    def __mul__(self, other: Interval) -> Interval:
        corners = [times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(low for low, _ in corners), max(high for _, high in corners))

    def rounded(self, magnitude: float = 0.0, count: int = 8) -> Interval:
        """Move the ends outward by a few roundings of themselves, or of the size of what they are sums of.

        >>> Interval(0.0, 1.0).rounded().low
        0.0
        """
        low, high = (count * EPSILON * max(abs(end), magnitude) for end in (self.low, self.high))
        return Interval(
            self.low - low if math.isfinite(self.low) else self.low,
            self.high + high if math.isfinite(self.high) else self.high,
        )

    def __and__(self, other: Interval) -> Interval:
        """Intersect two intervals that contain one number; see `meet`."""
        return self.meet(other)

    def meet(self, other: Interval, magnitude: float = 0.0) -> Interval:
        """Intersect two intervals that contain one number, both computed with rounding.

        Parameters
        ----------
        other : Interval
        magnitude : float
            Size of the terms that the number is a sum of, if it is larger than the intervals: rounding is relative to it.

        Returns
        -------
        Interval
            Where they miss each other by rounding, what lies between them.

        Raises
        ------
        AssertionError
            If they lie farther apart.  Then one of the bounds is wrong, and nothing may be concluded from either.
        """
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low <= high:
            return Interval(low, high)
        ends = (self.low, self.high, other.low, other.high)
        if any(map(math.isnan, ends)):  # an overflow: nothing is known
            return Interval(-math.inf, math.inf)
        if low - high > APART * max(magnitude, *(abs(end) for end in ends if math.isfinite(end))):
            raise AssertionError(f"bounds of one number contradict each other: {self} and {other}.")
        return Interval(high, low)

    def power(self, exponent: int) -> Interval:
        """Raise to a whole power."""
        if exponent == 0:
            return Interval(1.0, 1.0)
        even = exponent % 2 == 0 and self.low < 0
        base = Interval(0.0 if self.high > 0 else -self.high, max(-self.low, self.high)) if even else self
        result = base
        for _ in range(exponent - 1):
            result = result * base
        return result


def plus(a: float, b: float) -> tuple[float, float]:
    """Bound a sum from below and above; the same number twice if it is exact."""
    total = a + b
    if not math.isfinite(total):
        return total, total
    other = total - a
    error = (a - (total - other)) + (b - other)  # Knuth's: exact
    return math.nextafter(total, -math.inf) if error < 0 else total, (
        math.nextafter(total, math.inf) if error > 0 else total
    )


def times(a: float, b: float) -> tuple[float, float]:
    """Bound a product from below and above, where zero times an infinite end is zero; the same number twice if it is exact."""
    if a == 0 or b == 0:
        return 0.0, 0.0
    product = a * b
    if abs(a) == 1 or abs(b) == 1 or not math.isfinite(product):
        return product, product
    if abs(product) > SMALLEST and max(abs(a), abs(b)) < 1 / SMALLEST:
        (a1, a0), (b1, b0) = halves(a), halves(b)
        error = ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0  # Dekker's: exact
        if error == 0:
            return product, product
    low, high = math.nextafter(product, -math.inf), math.nextafter(product, math.inf)
    return (max(low, 0.0), high) if (a > 0) == (b > 0) else (low, min(high, 0.0))


def halves(number: float) -> tuple[float, float]:
    """Split a number into two of half as many digits."""
    large = 134217729.0 * number
    top = large - (large - number)
    return top, number - top


def form_range(form: sp.csr_array, monomial: NDArray[np.int64], bases: Bases, same: bool) -> Interval:
    """Bound ``m(z)' P m(z')`` over the record's domain.

    Parameters
    ----------
    form : sparse array P, shape (monomials, monomials)
    monomial : ndarray of int, shape (monomials, degree)
        The monomials m, one per row.
    bases : Bases
    same : bool
        Whether z and z' are one record, or two independent ones.

    Returns
    -------
    Interval

    Notes
    -----
    Three bounds are intersected, each valid by itself.  *Isotropic*: if P acts as a multiple of the identity on each tensor
    power of the record, the form is a polynomial in the inner products of the bases, ``t = <z, z'>``, whose range is exact
    for one base; this is what knows that ``(z'z)**2`` is never negative.  *Spectral*: blocks of P between tensor powers are
    bounded by their extreme eigenvalues or singular values (Cauchy-Schwarz).  *Box*: interval arithmetic, term by term.
    """
    table = sp.coo_array(form)
    used = np.unique(np.concatenate(table.coords)) if table.nnz else np.empty(0, dtype=np.int64)
    if len(used) == 0:
        return Interval(0.0, 0.0)
    position = np.zeros(form.shape[0], dtype=np.int64)
    position[used] = np.arange(len(used))
    row, column = position[table.coords[0]], position[table.coords[1]]
    monomial = monomial[used]
    weight = np.sqrt(bases.multiplicity(monomial))
    scaled = sp.csr_array((table.data / (weight[row] * weight[column]), (row, column)), shape=(len(used), len(used)))
    kinds = bases.kinds(monomial)
    largest = np.max(np.abs(bases.monomial_range(monomial)), axis=0)
    magnitude = float(np.abs(table.data) @ (largest[row] * largest[column]))
    box = box_range(table.data, row, column, monomial, bases, same)
    result = spectral_range(scaled, kinds, bases, same).meet(box, magnitude)
    isotropic = isotropic_coefficients(scaled, kinds, bases)
    if isotropic is not None:
        result = result.meet(polynomial_range(isotropic, bases, same), magnitude)
    return result


def isotropic_coefficients(scaled: sp.csr_array, kinds: Kinds, bases: Bases) -> dict[tuple[int, ...], Interval] | None:
    """Return the multiple of the identity that P is on each tensor power, or None if it is something else.

    Where its diagonal differs by rounding, what it adds lies between its least and its largest entry times the identity.
    """
    table = sp.coo_array(scaled)
    if (table.coords[0] != table.coords[1]).any():
        return None
    diagonal = scaled.diagonal()
    coefficients = {}
    for kind, members in kinds.items():
        values = diagonal[members]
        if len(members) != tensor_size(kind, bases) or np.ptp(values) > ALIKE * np.abs(values).max():
            return None
        coefficients[kind] = Interval(float(values.min()), float(values.max()))
    return coefficients


def tensor_size(kind: tuple[int, ...], bases: Bases) -> int:
    """Count the distinct monomials of a type."""
    size = 1
    for base in set(kind):
        power = kind.count(base)
        size *= math.comb(bases.bases[base].size + power - 1, power)
    return size


def polynomial_range(coefficients: dict[tuple[int, ...], Interval], bases: Bases, same: bool) -> Interval:
    """Bound a polynomial in the inner products of the bases."""
    involved = {base for kind in coefficients for base in kind}
    ranges = {b: Interval(*(bases.bases[b].squared if same else bases.bases[b].paired)) for b in involved}
    total = Interval(0.0, 0.0)
    centre = {kind: c.low if c.low == c.high else (c.low + c.high) / 2 for kind, c in coefficients.items()}
    spread = 0.0  # what the differences of the diagonal's entries add
    for kind, c in centre.items():
        term = Interval(c, c)
        for base in set(kind):
            term = term * ranges[base].power(kind.count(base))
        total = total + term
        around = coefficients[kind]
        spread += (around.high - around.low) * float(np.prod([bases.bases[base].norm ** 2 for base in kind]))
    if len(involved) == 1:
        (base,) = involved
        degree = max(len(kind) for kind in coefficients)
        poly = np.zeros(degree + 1)
        for kind, c in centre.items():
            poly[degree - len(kind)] += c
        critical = np.roots(np.polyder(poly)) if degree > 1 else np.empty(0)
        inside = [float(t.real) for t in critical if abs(t.imag) <= 1e-6 * (1 + abs(t.real))]
        points = [t for t in inside if ranges[base].low < t < ranges[base].high]
        values = np.polyval(poly, [ranges[base].low, ranges[base].high, *points])
        magnitude = float(np.abs(poly) @ ranges[base].size ** np.arange(degree, -1, -1.0))
        pad = 16 * EPSILON * (degree + 1) * magnitude if degree else 0.0
        total = total.meet(Interval(float(values.min()) - pad, float(values.max()) + pad), magnitude)
    return total + Interval(-spread, spread)


def spectral_range(scaled: sp.csr_array, kinds: Kinds, bases: Bases, same: bool) -> Interval:
    """Bound the form block by block, by eigenvalues or singular values and the norms of the tensor powers."""
    total = Interval(0.0, 0.0)
    norms = {kind: float(np.prod([bases.bases[b].norm for b in kind])) for kind in kinds}
    # A tensor power of the record is at least so long, but a part of it can vanish.
    least = {
        kind: float(np.prod([np.sqrt(bases.bases[b].squared[0]) for b in kind]))
        if len(members) == tensor_size(kind, bases)
        else 0.0
        for kind, members in kinds.items()
    }
    for first, rows in kinds.items():
        for second, columns in kinds.items():
            block = scaled[rows][:, columns]
            if block.nnz == 0:
                continue
            # Few roundings for each factor of a monomial, and those of the decomposition; what is constant is exact.
            room = EPSILON * (8 * (len(first) + len(second)) + (max(block.shape) if first or second else 0))
            if first == second and (same or not first):
                low, high = eigenvalue_range(block)
                square = Interval(least[first] ** 2 * (1 - room), norms[first] ** 2 * (1 + room))
                total = total + Interval((Interval(low, low) * square).low, (Interval(high, high) * square).high)
            else:
                size = singular_bound(block) * norms[first] * norms[second] * (1 + room)
                total = total + Interval(-size, size)
    return total


def box_range(
    value: Array,
    row: NDArray[np.int64],
    column: NDArray[np.int64],
    monomial: NDArray[np.int64],
    bases: Bases,
    same: bool,
) -> Interval:
    """Bound the form term by term, by interval arithmetic on the scalars' bounds."""
    if same:
        pairs = np.sort(np.concatenate([monomial[row], monomial[column]], axis=1), axis=1)
        low, high = bases.monomial_range(pairs)
    else:
        left, right = bases.monomial_range(monomial[row]), bases.monomial_range(monomial[column])
        low, high = interval_product(left, right)
    ends, error = rounded_product(np.stack([value, value]), np.stack([low, high]))
    least, most = ends.min(axis=0), ends.max(axis=0)
    (least, lost), (most, gained) = (rounded_sums(part, np.zeros(1, dtype=np.int64)) for part in (least, most))
    more = float(error.max(axis=0).sum())
    return Interval(float(least[0]), float(most[0])) + Interval(-float(lost[0]) - more, float(gained[0]) + more)


def eigenvalue_range(block: sp.csr_array) -> tuple[float, float]:
    """Bound the eigenvalues of the symmetric part of a block from below and above."""
    symmetric = (block + block.T) / 2
    if is_diagonal(symmetric):
        diagonal = symmetric.diagonal()
        return float(diagonal.min()), float(diagonal.max())
    if symmetric.shape[0] <= LARGEST_DENSE:
        values = np.linalg.eigvalsh(symmetric.toarray())
        room = EPSILON * len(values) * float(np.abs(values).max())
        return float(values[0]) - room, float(values[-1]) + room
    size = singular_bound(symmetric)
    return -size, size


def singular_bound(block: sp.csr_array) -> float:
    """Bound the largest singular value of a block."""
    if is_diagonal(block):
        return float(np.abs(block.diagonal()).max(initial=0.0))
    if max(block.shape) <= LARGEST_DENSE:
        return float(np.linalg.norm(block.toarray(), 2))
    magnitude = abs(block)
    return float(np.sqrt(magnitude.sum(axis=0).max() * magnitude.sum(axis=1).max()))


def is_diagonal(block: sp.csr_array) -> bool:
    """Say whether only diagonal entries are non-zero."""
    table = sp.coo_array(block)
    return bool((table.coords[0] == table.coords[1]).all())
