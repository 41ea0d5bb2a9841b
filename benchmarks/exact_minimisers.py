"""Minimisers in 60 digits: Newton's method on the conditions of Karush, Kuhn and Tucker.

A program is a sum of functions of affine forms, over sums that are not positive and over semidefinite matrices.  A minimiser
counts if its conditions hold to forty digits, multipliers and slacks included.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mpmath as mp
import numpy as np

import dpconvex as dp

DIGITS, ENOUGH, STEPS = 60, 40, 40
ACTIVE = (1e-5, 1e-3, 1e-7)  # Slacks below this are taken to be 0, one guess after another

# Functions of one variable, with two derivatives.
FUNCTIONS: dict[str, Callable[[Any], tuple[Any, Any, Any]]] = {
    "line": lambda s: (s, mp.mpf(1), mp.mpf(0)),
    "square": lambda s: (s * s, 2 * s, mp.mpf(2)),
    "fourth power": lambda s: (s**4, 4 * s**3, 12 * s**2),
    "exp": lambda s: (mp.exp(s),) * 3,
    "-log": lambda s: (-mp.log(s), -1 / s, 1 / s**2) if s > 0 else (mp.inf, mp.mpf(0), mp.mpf(1)),
    "softplus": lambda s: (mp.log1p(mp.exp(s)), 1 / (1 + mp.exp(-s)), 1 / (2 + mp.exp(s) + mp.exp(-s))),
}


@dataclass
class Term:
    """A weight times a function of one affine form."""

    weight: Any
    function: str
    row: list[Any]
    offset: Any = 0


@dataclass
class Case:
    """A template and its data, and the same program for exact numbers: variables, then heights."""

    words: str
    template: dp.Template
    data: dict[str, Any]
    variables: list[tuple[str, int, bool]]  # name, side, and whether it is a symmetric matrix
    cost: list[Term] = field(default_factory=list)
    below: list[list[Term]] = field(default_factory=list)  # sums that are not positive
    matrices: list[list[Any]] = field(default_factory=list)  # A_0, A_1, ...: semidefinite sums
    heights: int = 0

    def flat(self, fit: Any) -> list[Any]:
        """Return a fit's entries; of symmetric matrices, those of the upper triangle, row by row."""
        found: list[Any] = []
        for name, side, symmetric in self.variables:
            value = np.asarray(fit[name])
            found += list(value[np.triu_indices(side)] if symmetric else value)
        return [mp.mpf(float(number)) for number in found]

    def apart(self, one: list[Any], other: list[Any]) -> Any:
        """Return the distance of two points, entries off the diagonal counted twice."""
        weights: list[int] = []
        for _, side, symmetric in self.variables:
            row, column = np.triu_indices(side)
            weights += list(np.where(row == column, 1, 2)) if symmetric else [1] * side
        pairs = zip(weights, one, other, strict=False)
        return mp.sqrt(sum((int(w) * (a - b) ** 2 for w, a, b in pairs), mp.mpf(0)))


def unit(size: int, place: int, number: Any = 1) -> list[Any]:
    return [mp.mpf(number) if k == place else mp.mpf(0) for k in range(size)]


def exactly(numbers: Any) -> list[Any]:
    return [mp.mpf(float(number)) for number in np.ravel(numbers)]


def derivatives(terms: list[Term], x: list[Any], hessian: bool = True) -> tuple[Any, list[Any], Any]:
    """Return the value, gradient and Hessian of a sum of terms."""
    value, gradient, bent = mp.mpf(0), [mp.mpf(0)] * len(x), mp.matrix(len(x))
    for term in terms:
        places = [k for k, a in enumerate(term.row) if a]
        v, d, dd = FUNCTIONS[term.function](sum((term.row[k] * x[k] for k in places), mp.mpf(term.offset)))
        value += term.weight * v
        for k in places:
            gradient[k] += term.weight * d * term.row[k]
            for j in places if hessian and dd else ():
                bent[k, j] += term.weight * dd * term.row[k] * term.row[j]
    return value, gradient, bent


def at(parts: list[Any], x: list[Any]) -> Any:
    return sum((number * part for number, part in zip(x, parts[1:], strict=True)), parts[0])


def symmetric(side: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(side) for j in range(i, side)]


def basis(side: int, i: int, j: int) -> Any:
    found = mp.matrix(side)
    found[i, j] = found[j, i] = mp.mpf(1)
    return found


def guess(case: Case, x: list[Any], active: float) -> tuple[list[int], list[Any], list[Any]] | None:
    """Return which sums are 0, and multipliers of these and of matrices, by least squares."""
    tight, columns, spaces = [], [], []
    for k, terms in enumerate(case.below):
        value, gradient, _ = derivatives(terms, x, hessian=False)
        if value > -active:
            tight.append(k)
            columns.append([float(g) for g in gradient])
    for parts in case.matrices:
        numbers = np.array(at(parts, x).tolist(), dtype=float)
        values, vectors = np.linalg.eigh(numbers)
        flat = vectors[:, values < active]
        pairs = symmetric(flat.shape[1])
        spaces.append((flat, pairs))
        for i, j in pairs:
            product = np.outer(flat[:, i], flat[:, j])
            product = (product + product.T) / (2 if i == j else 1)
            columns.append([-float((np.array(part.tolist(), dtype=float) * product).sum()) for part in parts[1:]])
    slope = np.array([float(g) for g in derivatives(case.cost, x, hessian=False)[1]])
    found = np.linalg.lstsq(np.array(columns).T, -slope, rcond=None)[0] if columns else np.zeros(0)
    duals, start = [], len(tight)
    for flat, pairs in spaces:
        inner = np.zeros((flat.shape[1],) * 2)
        for number, (i, j) in zip(found[start:], pairs, strict=False):
            inner[i, j] = inner[j, i] = number
        start += len(pairs)
        dual = flat @ inner @ flat.T
        duals.append(mp.matrix((dual / 2 + dual.T / 2).tolist()))
    return tight, exactly(found[: len(tight)]), duals


def residual(case: Case, tight: list[int], x: list[Any], sums: list[Any], duals: list[Any]) -> tuple[list[Any], Any]:
    """Return what the conditions miss, and its Jacobian by the point, the multipliers of sums and those of matrices."""
    size, pairs = len(x), [symmetric(dual.rows) for dual in duals]
    whole = size + len(sums) + sum(map(len, pairs))
    missed, jacobian = [mp.mpf(0)] * whole, mp.matrix(whole)
    _, gradient, bent = derivatives(case.cost, x)
    for number, (k, weight) in enumerate(zip(tight, sums, strict=True), start=size):
        value, slope, own = derivatives(case.below[k], x)
        missed[number] = value
        bent += weight * own
        for j in range(size):
            gradient[j] += weight * slope[j]
            jacobian[number, j] = jacobian[j, number] = slope[j]
    place = size + len(sums)
    for parts, dual, own in zip(case.matrices, duals, pairs, strict=True):
        matrix, here = at(parts, x), {pair: place + k for k, pair in enumerate(own)}
        place += len(own)
        product = (matrix * dual + dual * matrix) / 2
        moves = [(part * dual + dual * part) / 2 for part in parts[1:]]
        for (i, j), line in here.items():
            missed[line] = product[i, j]
            turned = basis(dual.rows, i, j)
            along = (matrix * turned + turned * matrix) / 2
            for other, row in here.items():
                jacobian[row, line] = along[other]
            for k in range(size):
                jacobian[line, k] = moves[k][i, j]
                jacobian[k, line] = -sum(parts[k + 1][a, b] * turned[a, b] for a, b in ((i, j), (j, i))[: 1 + (i < j)])
        for k in range(size):
            gradient[k] -= sum(parts[k + 1][a, b] * dual[a, b] for a in range(dual.rows) for b in range(dual.rows))
    for k in range(size):
        missed[k] = gradient[k]
        for j in range(size):
            jacobian[k, j] = bent[k, j]
    return missed, jacobian


def exact(case: Case, start: list[Any]) -> list[Any] | None:
    """Return the minimiser, heights included, from a point near it; None if its conditions do not hold to forty digits."""
    for active in ACTIVE:
        tight, sums, duals = guess(case, start, active)
        x, good = list(start), False
        try:
            for _ in range(STEPS):
                missed, jacobian = residual(case, tight, x, sums, duals)
                good = max(map(abs, missed)) < mp.mpf(10) ** (10 - DIGITS)
                if good or max(map(abs, missed)) > 1e6:
                    break
                step = list(mp.lu_solve(jacobian, -mp.matrix(missed)))
                x = [a + b for a, b in zip(x, step, strict=False)]
                sums = [a + b for a, b in zip(sums, step[len(x) :], strict=False)]
                place = len(x) + len(sums)
                for k, dual in enumerate(duals):
                    for i, j in symmetric(dual.rows):
                        duals[k] = duals[k] + step[place] * basis(dual.rows, i, j)
                        place += 1
        except (ZeroDivisionError, ValueError):
            continue
        if good and holds(case, x, sums, duals):
            return x
    return None


def holds(case: Case, x: list[Any], sums: list[Any], duals: list[Any]) -> bool:
    """Say whether sums are not positive, matrices semidefinite, and multipliers too."""
    least = mp.mpf(10) ** -ENOUGH
    inside = all(derivatives(terms, x, hessian=False)[0] <= least for terms in case.below)
    signs = all(weight >= -least for weight in sums)
    return inside and signs and all(map(semidefinite, [*duals, *(at(parts, x) for parts in case.matrices)]))


def semidefinite(matrix: Any) -> bool:
    try:
        mp.cholesky(matrix + mp.eye(matrix.rows) * mp.mpf(10) ** -ENOUGH)
    except ValueError:
        return False
    return True


def heights_at(case: Case, x: list[Any]) -> list[Any]:
    """Return the least heights above a point, by bisection."""
    free = len(x)
    found = []
    for k in range(case.heights):
        place, low, high = free + k, mp.mpf(-100), mp.mpf(100)
        sums = [terms for terms in case.below if any(term.row[place] for term in terms)]
        matrices = [parts for parts in case.matrices if any(parts[place + 1])]
        for _ in range(60):
            middle = (low + high) / 2
            point = x + unit(case.heights, k, middle)
            squared = any(term.function == "square" and term.row[place] for terms in sums for term in terms)
            inside = not (squared and middle < 0)
            inside = inside and all(derivatives(terms, point, hessian=False)[0] <= 0 for terms in sums)
            inside = inside and all(semidefinite(at(parts, point)) for parts in matrices)
            low, high = (low, middle) if inside else (middle, high)
        found.append(high)
    return found
