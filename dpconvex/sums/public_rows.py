"""What the declared domain says of rows of records: a metric in which they are about round, whatever their units are."""

from dataclasses import dataclass

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import dense, flattened
from dpconvex.sums.exact_rows import MATRIX_BITS, ExactRows, Leverage
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.util.arrays import Array

# Squared means of features next to their variance, and the largest variance next to the least: where they are larger, rows are
# measured in units of the domain first.  What varies less than EMPTY stays as it is.
FAR, UNEVEN, EMPTY = 5.0, 30.0, 1e-9
MOST = 2**12  # Rows of a matrix that is made beside the second moment's


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
        if scores.is_shared or rows.count > MOST:
            return None
        x = dense(flattened(batch.fields[rows.name][:])).astype(float)[:, rows.inside]
        means, spread = x.mean(axis=0), x.var(axis=0)
        moving = spread > EMPTY * (means**2 + spread).max(initial=0.0)
        far = (means[moving] ** 2 > FAR * spread[moving]).any()
        # Products of features are shorter than these, and stay so.
        uneven = scores.monomials is None and spread[moving].max(initial=0.0) > UNEVEN * spread[moving].min(
            initial=np.inf
        )
        if not moving.any() or not (far or uneven):
            return None
        constant = rows.constant * rows.grid
        units = np.sqrt(np.where(moving, spread, spread.max()))
        matrix = np.diag(np.append(1 / units, [1.0] * bool(constant)))
        if constant:
            matrix[:-1, -1] = -means / units
        turn = cls(matrix, 0.0).of_rows(constant)
        factor = 2.0**MATRIX_BITS / float(np.abs(turn).max())
        lengths = Leverage(rows, np.rint(turn * factor))(batch.fields[rows.name])
        return cls(matrix, float(lengths.max()) * rows.grid / factor)
