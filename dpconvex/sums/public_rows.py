"""What the declared domain says of rows of records: a metric in which they are about round, whatever their units are."""

from dataclasses import dataclass

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import dense, flattened
from dpconvex.data.domains import Box
from dpconvex.data.record import Record
from dpconvex.sums.exact_rows import MATRIX_BITS, ExactRows, Leverage
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.util.arrays import Array

# Squared means of features next to their variance, and the largest variance next to the least: where they are larger, rows are
# measured in units of the domain first.  What varies less than EMPTY stays as it is.
FAR, UNEVEN, EMPTY = 5.0, 30.0, 1e-9
MOST = 2**12  # Rows of a matrix that is made beside the second moment's
NUMBERS = 2**22  # Of rows that are made at a time


@dataclass(frozen=True, eq=False)
class DomainMetric:
    """A metric of rows of (x, 1), and how long these are in it."""

    matrix: Array  # shape (rows, rows)
    longest: float

    def of_rows(self, constant: float) -> Array:
        """Return the matrix for rows of (x, constant)."""
        found = self.matrix.copy()
        found[:, -1] /= constant or 1.0
        return found

    @classmethod
    def of(cls, batch: Batch, scores: LinearScores) -> "DomainMetric | None":
        """Return it from records of the domain, which `on_grid` made; None if rows are about round as they are."""
        rows = ExactRows.of(scores)
        if rows.count > MOST:
            return None
        if scores.is_shared:
            return cls.of_shared(batch, rows)
        x = dense(flattened(batch.fields[rows.name][:])).astype(float)[:, rows.inside]
        means, spread = x.mean(axis=0), x.var(axis=0)
        moving = spread > EMPTY * (means**2 + spread).max(initial=0.0)
        wide = spread[moving]
        far = (means[moving] ** 2 > FAR * wide).any()
        # Products of features are shorter than these, and stay so.
        uneven = scores.monomials is None and wide.max(initial=0.0) > UNEVEN * wide.min(initial=np.inf)
        if not (far or uneven):
            return None
        constant = rows.constant * rows.grid
        units = np.sqrt(np.where(moving, spread, spread.max()))
        matrix = np.diag(np.append(1 / units, [1.0] * bool(constant)))
        if constant:
            matrix[:-1, -1] = -means / units
        return cls(matrix, longest(cls(matrix, 0.0).of_rows(constant), batch, rows))

    @classmethod
    def of_shared(cls, batch: Batch, rows: ExactRows) -> "DomainMetric | None":
        """Return it where a record has several rows: in the eigenvectors of their second moment."""
        column, step = batch.fields[rows.name][:], max(NUMBERS // (rows.count * rows.each), 1)
        parts = (rows.read(column[start : start + step]) for start in range(0, batch.size, step))
        values, vectors = np.linalg.eigh(sum(part.T @ part for part in parts) / batch.size)
        seen = values > EMPTY * values[-1]  # Along others, as along equal changes of all levels, no row differs
        if values[-1] < UNEVEN * values[seen].min():
            return None
        matrix = vectors.T / np.sqrt(np.where(seen, values, values[-1]))[:, None]
        return cls(matrix, longest(matrix, batch, rows))


def in_natural_units(record: Record) -> list[str]:
    """Return the names of vectors in boxes whose entries have units of their own, or lie far from 0."""
    found = []
    for name, box in record.continuous.items():
        if isinstance(box, Box) and box.shape:
            lower, upper = (np.ravel(end) for end in (box.lower, box.upper))
            spread, square = (upper - lower) ** 2 / 12, (upper + lower) ** 2 / 4  # of what is even in the box
            moving = spread > 0
            uneven = spread.max() > UNEVEN * spread[moving].min(initial=np.inf)
            found += [name] if uneven or (square > FAR * spread)[moving].any() else []
    return found


def longest(matrix: Array, batch: Batch, rows: ExactRows) -> float:
    """Return how long a matrix makes all rows of a record, at most."""
    factor = 2.0**MATRIX_BITS / float(np.abs(matrix).max())
    lengths = Leverage(rows, np.rint(matrix * factor))(batch.fields[rows.name])
    return float(lengths.max()) * rows.grid / factor
