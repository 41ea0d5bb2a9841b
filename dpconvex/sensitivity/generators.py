"""Generators: a few coefficient vectors, each within a variable or a column; rows of `A_z` are combinations of generators."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, numbered_rows
from dpconvex.numerics import rounded_product
from dpconvex.util.arrays import Array, Indices

FEW = 8  # Up to this many generators are not divided further


@dataclass(frozen=True, eq=False)
class GradientBasis:
    """The coefficients, up to a factor, of one row of `A_z` in one cell: a variable, or a column, row or entry of one."""

    block: int
    cell: int
    key: bytes  # Shared with generators with equal coefficients in other cells
    place: Indices  # The cell's coordinates of theta
    coordinate: Indices  # Of each term, within the cell
    monomial: Indices
    coefficient: Array
    divided: bool = False  # Whether rows have several generators in one cell

    def matrix(self, monomials: int) -> sp.csr_array:
        """Return the coefficients as a matrix, shape (cell's coordinates, monomials)."""
        return sp.csr_array((self.coefficient, (self.coordinate, self.monomial)), shape=(len(self.place), monomials))

    def name(self, number: Indices) -> tuple[Hashable, ...]:
        """Return a hashable key of the coefficients, with monomials renumbered by `number`."""
        order = np.lexsort([number[self.monomial], self.coordinate])
        parts = self.coordinate, number[self.monomial], self.coefficient
        return self.block, self.cell, *(part[order].tobytes() for part in parts)


def factor_rows(
    terms: Polynomial, mono: Indices, largest: Array, space: Space, rows: int
) -> tuple[Array, list[GradientBasis], Array]:
    """Return the coordinates of each row, shape (rows, generators), the generators, and error bounds per generator."""
    blocks = list(space.blocks.values())
    owner = np.searchsorted(np.array([block.start for block in blocks]), terms.coordinate, side="right") - 1
    generators: list[GradientBasis] = []
    table_parts: list[tuple[Indices, Indices, Array]] = []
    excess = [np.zeros(0)]
    for number, block in enumerate(blocks):
        own = np.flatnonzero(owner == number)
        if len(own) == 0:
            continue
        place = terms.entry[own], terms.coordinate[own] - block.start, mono[own]
        best = Runs(np.arange(block.dim)[None, :], *place, terms.coefficient[own])
        if best.count > 1 and not block.symmetric:
            for cells in layouts(block.variable.shape):
                if len(np.unique(np.argsort(cells.ravel())[place[1]] // cells.shape[1])) > best.count:
                    continue  # each cell would need a generator
                split = Runs(cells, *place, terms.coefficient[own])
                if split.alike and split.count <= best.count:
                    best = split
        parts = 1
        divisible = best.cells.shape[1] > 1 and not block.symmetric and 2 * best.least_rank <= best.count
        if best.count > FEW and divisible:  # rows may be sums of few parts: each part is a generator
            for cells in layouts(block.variable.shape)[1:] or [best.cells]:
                part = Runs(cells, *place, terms.coefficient[own]).parts()
                count = int(part.max()) + 1
                split = Runs(cells, place[0] * count + part, *place[1:], terms.coefficient[own])
                if 2 * split.count <= best.count or (parts > 1 and split.count < best.count):
                    best, parts = split, count
        table_parts.append((best.entry[best.begins] // parts, best.number + len(generators), best.lead))
        generators.extend(replace(generator, divided=parts > 1) for generator in best.generators(number, block.start))
        excess.append(best.excess(terms.error[own], largest))
    table = np.zeros((rows, len(generators)))
    for row, column, lead in table_parts:
        table[row, column] = lead
    return table, generators, np.concatenate(excess)


def layouts(shape: tuple[int, ...]) -> list[Indices]:
    """Return the divisions of a variable's coordinates into cells of equal size, shape (cells, size) each."""
    numbers = np.arange(int(np.prod(shape, dtype=np.int64)))
    found = [numbers[:, None]]
    if len(shape) == 2:
        columns = numbers.reshape(shape[::-1])
        found += [columns, columns.T]
    return found


def terms_of(generators: list[GradientBasis]) -> tuple[Indices, Indices, Indices, Array]:
    """Return the generator, the coordinate of theta, the monomial and the coefficient of each term of the generators."""
    lengths = [len(generator.coefficient) for generator in generators]
    empty = np.zeros(0, dtype=np.int64)
    return (
        np.repeat(np.arange(len(generators)), lengths),
        np.concatenate([empty, *(g.place[g.coordinate] for g in generators)]),
        np.concatenate([empty, *(g.monomial for g in generators)]),
        np.concatenate([np.zeros(0), *(g.coefficient for g in generators)]),
    )


class Runs:
    """Rows in one variable as multiples of generators, cell by cell; a run is the terms of one row in one cell.

    `begins`: start of each run; `number`: number of its generator; `lead`: its factor, the first coefficient if division by it
    is exact, otherwise the coefficient's sign and power of two; `alike`: whether generators differ only in their cells.
    """

    def __init__(self, cells: Indices, entry: Indices, coordinate: Indices, mono: Indices, coefficient: Array) -> None:
        cell, position = np.empty((2, cells.size), dtype=np.int64)
        cell[cells], position[cells] = np.indices(cells.shape)
        cell, position = cell[coordinate], position[coordinate]
        self.cells, self.order = cells, np.lexsort([mono, position, cell, entry])
        self.entry, self.position, self.mono = entry[self.order], position[self.order], mono[self.order]
        cell = cell[self.order]
        self.begins = np.flatnonzero(np.append(True, (np.diff(self.entry) != 0) | (np.diff(cell) != 0)))
        self.lengths = np.diff(np.append(self.begins, len(cell)))
        self.cell, self.coefficient = cell, coefficient[self.order]
        first = self.coefficient[self.begins]
        each = np.repeat(first, self.lengths)
        product, error = rounded_product(self.coefficient / each, each)
        divides = np.logical_and.reduceat((product == self.coefficient) & (error == 0), self.begins)
        self.lead = np.where(divides, first, np.copysign(np.ldexp(1.0, np.frexp(first)[1] - 1), first))
        self.pattern = self.coefficient / np.repeat(self.lead, self.lengths)
        values = np.unique(self.pattern, return_inverse=True)[1]
        token = numbered_rows(np.stack([self.position, self.mono, values.ravel()], axis=1))[1]
        shape = numbered_runs(token, self.begins, self.lengths)
        # Generators are numbered in order of occurrence.
        owner = cell[self.begins]
        _, first, number = np.unique(shape * len(cells) + owner, return_index=True, return_inverse=True)
        self.first = np.sort(first)
        self.number = np.argsort(np.argsort(first))[number.ravel()]
        self.shape, self.owner = shape[self.first], owner[self.first]
        self.count, self.alike = len(first), bool((shape == shape[0]).all())

    @property
    def least_rank(self) -> int:
        """Return a lower bound on the rank of the rows: rows with different first (or last) cells are independent."""
        own, entry = self.cell[self.begins], self.entry[self.begins]
        change = np.diff(entry) != 0
        return max(len(np.unique(own[np.append(True, change)])), len(np.unique(own[np.append(change, True)])))

    def parts(self) -> Indices:
        """Return a part number for each term, in the order given; terms in the same proportions in all rows share a number."""
        row = np.cumsum(np.append(0, (np.diff(self.entry) != 0) | (np.diff(self.cell) != 0)))
        token = numbered_rows(np.stack([self.position, self.mono], axis=1))[1]
        order = np.lexsort([row, token])
        begins = np.flatnonzero(np.append(True, np.diff(token[order]) != 0))
        lengths = np.diff(np.append(begins, len(order)))
        lead = np.repeat(self.coefficient[order][begins], lengths)
        values = np.unique(self.coefficient[order] / lead, return_inverse=True)[1].ravel()
        table, known = np.stack([row[order], values], axis=1), dict[bytes, int]()
        ends = zip(begins.tolist(), (begins + lengths).tolist(), strict=True)
        shape = [known.setdefault(table[begin:end].tobytes(), len(known)) for begin, end in ends]
        result = np.empty(len(order), dtype=np.int64)
        result[self.order[order]] = np.repeat(shape, lengths)
        return result

    def generators(self, block: int, start: int) -> list[GradientBasis]:
        """Return the generators of the variable number `block`, with coordinates from `start`."""
        keys: dict[int, bytes] = {}
        found = []
        for run, shape, cell in zip(self.first.tolist(), self.shape.tolist(), self.owner.tolist(), strict=True):
            own = slice(self.begins[run], self.begins[run] + self.lengths[run])
            parts = self.position[own], self.mono[own], self.pattern[own]
            key = keys.setdefault(shape, b"|".join(part.tobytes() for part in parts))
            found.append(GradientBasis(block, cell, key, start + self.cells[cell], *parts))
        return found

    def excess(self, error: Array, largest: Array) -> Array:
        """Return bounds on the distance of rows from factor times generator, per unit of factor; `error` is by coefficient."""
        run = np.repeat(np.arange(len(self.begins)), self.lengths)
        apart = error[self.order] / np.abs(self.lead)[run]
        begins = np.append(True, (np.diff(run) != 0) | (np.diff(self.position) != 0))
        lines = np.add.reduceat(apart * largest[self.mono], np.flatnonzero(begins)) ** 2
        lengths = np.sqrt(np.bincount(run[begins], weights=lines, minlength=len(self.begins)))
        result = np.zeros(self.count)
        np.maximum.at(result, self.number, lengths)
        return result


def numbered_runs(token: Indices, begins: Indices, lengths: Indices) -> Indices:
    """Return a number for each run of tokens; equal runs have equal numbers."""
    result, count = np.empty(len(begins), dtype=np.int64), 0
    for length in np.unique(lengths):
        own = np.flatnonzero(lengths == length)
        number = numbered_rows(token[begins[own][:, None] + np.arange(length)])[1]
        result[own] = number + count
        count += int(number.max()) + 1
    return result
