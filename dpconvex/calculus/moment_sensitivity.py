"""How long the moments of one record are, and how far those of two records are apart, over the record's domain.

Moments of one kind are the tensor product of the record's fields with a row of patterns: those of z and z' have inner products

    K(z, z') = sum over kinds of  weight^2  P(y, y')  product over the kind's fields b of <b, b'>,

P being inner products of patterns.  Moments that are left out of a kind only make differences shorter.  The squared distance is
K(z, z) + K(z', z') - 2 K(z, z'), bounded as a polynomial in few numbers (docs/theory.md, section 18).
"""

import itertools

import numpy as np

from dpconvex.calculus.moments import Kind, Moments
from dpconvex.core.arrays import Array
from dpconvex.core.expansion import Bases
from dpconvex.core.runtime import once

# Rounding of all that is computed here, and of records that are checked in floating point: of results, and of terms that cancel.
SLACK, ROUNDING = 1 + 1e-9, 1e-12
# The bound is this close to the largest value found, unless that takes more points.
CLOSE, MOST_POINTS = 1e-6, 2**17


def length_bound(moments: Moments, bases: Bases) -> float:
    """Bound the Euclidean norm of one record's moments."""
    squares = sum((scaled(kind, bases) * np.sum(kind.patterns**2, axis=1) for kind in moments.kinds), np.zeros(1))
    return float(np.sqrt(np.max(squares))) * SLACK


@once
def difference_bound(moments: Moments, bases: Bases) -> float:
    length, kinds = length_bound(moments, bases), moments.kinds
    fields = sorted({b for kind in kinds for b in kind.bases})
    exact = next((base for base in fields if bases.bases[base].size == 1), None)
    exponents: list[Array] = []
    ranges: list[tuple[float, float]] = []
    none = np.zeros(len(kinds))
    for base in fields:
        field, power = bases.bases[base], np.array([float(kind.bases.count(base)) for kind in kinds])
        square = field.squared[1]
        if base == exact:
            exponents += [np.concatenate([2 * power, none, power]), np.concatenate([none, 2 * power, power])]
            ranges += 2 * [(float(field.lower[0]) / square**0.5, float(field.upper[0]) / square**0.5)]
        else:
            exponents.append(np.concatenate([none, none, power]))
            ranges.append((field.paired[0] / square, field.paired[1] / square))
    if any(kind.weights for kind in kinds):
        exponents.append(np.concatenate([none, none, [kind.weights for kind in kinds]]))
        ranges.append((0.0, 1.0))
    table, ends = np.array(exponents).reshape(len(ranges), -1), np.array(ranges).reshape(-1, 2)
    scales = np.array([scaled(kind, bases) for kind in kinds])
    products = np.array([kind.patterns @ kind.patterns.T for kind in kinds])
    own = np.diagonal(products, axis1=1, axis2=2).T
    pairs = np.repeat(own, len(own), axis=0), np.tile(own, (len(own), 1)), -2 * products.reshape(len(kinds), -1).T
    cases = np.unique(np.column_stack(pairs), axis=0) * np.tile(scales, 3)
    largest = 0.0
    for case in cases:
        largest = highest(case, table, ends, largest)
    largest = largest * (1 + CLOSE) + 4 * ROUNDING * length**2
    return min(float(np.sqrt(largest)) * SLACK, 2 * length)


def scaled(kind: Kind, bases: Bases) -> float:
    """Bound the squared norm of all moments of a kind but for the patterns: a weight, if nothing is rounded."""
    result = kind.scale**2
    for base in kind.bases:
        result *= bases.bases[base].squared[1]
    return result


def highest(coefficients: Array, exponents: Array, ranges: Array, known: float) -> float:
    """Bound a polynomial in a box of numbers from -1 to 1, but for `CLOSE` of it and rounding; at least `known`.

    `exponents` has shape (variables, terms).  In variables that are linear in each moment the polynomial is convex: a largest
    value has these at their ends, and the others at theirs or where their slope is 0.  On a grid that has the ends, the point
    nearest to it, half a step or less away in each variable, is lower by (step/2)^2/2 times the sum of the absolute second slopes
    at most: d (d - 1) for a term of degree d.  Only points that can be that near are kept when steps are halved.
    """
    low, high = ranges.T
    curved = exponents[:, -(len(coefficients) // 3) :].max(axis=1) > 1
    if max(2 ** len(low), 3 ** int(curved.sum())) > MOST_POINTS:
        return max(known, float(np.abs(coefficients).sum()))
    degree = exponents[curved].sum(axis=0)
    bend, step = float(np.abs(coefficients) @ (degree * (degree - 1))), np.where(curved, high - low, 0.0)
    points = np.array(list(itertools.product(*ranges.tolist()))).reshape(-1, len(low))
    rounding = ROUNDING * float(np.abs(coefficients).sum())
    ways = [(-0.5, 0.0, 0.5) if bent else (0.0,) for bent in curved]
    moves = np.array(list(itertools.product(*ways))).reshape(-1, len(low))
    while True:
        values = np.prod(points[:, :, None] ** exponents, axis=1) @ coefficients
        known, room = max(known, float(values.max())), bend * step.max(initial=0.0) ** 2 / 8
        kept = points[values + room > known * (1 + CLOSE) + rounding]
        if not len(kept):
            return known
        if len(kept) * len(moves) > MOST_POINTS:
            return float(known + room)
        points = np.unique(np.clip((kept[:, None] + moves * step).reshape(-1, len(low)), low, high), axis=0)
        step = step / 2
