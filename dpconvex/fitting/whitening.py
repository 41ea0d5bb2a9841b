"""Whitened records: how the data become them, and how a release makes them of records to predict for.

Products are of integers below 2^53, exact in any order, so that what becomes of a record depends on that record alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.certificates.integer_noise import LEVELS, WhiteningNoise
from dpconvex.data.batch import Batch
from dpconvex.data.columns import Stored, blocks
from dpconvex.errors import TemplateError
from dpconvex.model.template import Template
from dpconvex.sums.moment_sums import WEIGHTS
from dpconvex.util.arguments import NOT_NEGATIVE, POSITIVE
from dpconvex.util.arrays import Array, frozen
from dpconvex.util.runtime import one_blas_thread

# Entries of a matrix are rounded to so many levels, and those of a record to so many of the largest of them.
FINE, RECORD_LEVELS = 2**22, 2**18
SMALLEST = 1e-250
BLOCK = 2**22  # Numbers of a block that is gone through
# Whitened records lie within their ball by so much, and are multiples of so small a power of two: single precision holds them.
INSIDE, WHITENED_BITS = 1 - 1e-12, 20


@dataclass(frozen=True, eq=False)
class Whitening:
    """The public map from records to whitened ones, ``z = radius A x / max(L, ||A x||)``, with weights ``L / max(L, ||A x||)``.

    A, the `matrix`, shape (d, d), is scaled and rounded to a grid, and z is rounded towards 0 on one; `least` is L, 0 if records
    have no weights.
    """

    field: str
    radius: float
    matrix: Array
    least: float = 0.0

    def __post_init__(self) -> None:
        matrix = np.array(self.matrix, dtype=float)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all() or not matrix.any():
            raise TemplateError("Whitening: the matrix must be square, finite, and not 0.")
        POSITIVE.check("Whitening", radius=self.radius)
        NOT_NEGATIVE.check("Whitening", least=self.least)
        object.__setattr__(self, "matrix", frozen(np.rint(matrix / np.abs(matrix).max() * FINE) / FINE))

    def check(self, template: Template) -> None:
        declared = getattr(template.record.continuous.get(self.field), "shape", None)
        if declared != (len(self.matrix),):
            raise TemplateError(f"Whitening: it is for {len(self.matrix)} features, the template declares {declared}.")

    def __call__(self, column: Any, kind: Any = float) -> Array:
        """Whiten records, shape (n, d), dense or sparse."""
        d = len(self.matrix)
        if not (getattr(column, "ndim", 2) == 2 and column.shape[1] == d):
            raise TemplateError(f"predict: expected features of shape (n, {d}), not {column.shape}.")
        result, start = np.empty(column.shape, kind), 0
        for turned, _ in self._blocks(column):
            result[start : start + len(turned)] = turned
            start += len(turned)
        return result

    def weights(self, column: Any) -> Array:
        """Return the weights of records, shape (n,), between 0 and 1."""
        return np.concatenate([np.zeros(0), *(weights for _, weights in self._blocks(column))])

    def _blocks(self, column: Any) -> Iterator[tuple[Array, Array]]:
        """Yield whitened records and their weights, in blocks; of sparse records of any format, as rows."""
        rows = sp.csr_array(column) if sp.issparse(column) else column
        grid = grid_of(self.radius)
        for block in blocks(rows, max(BLOCK // len(self.matrix), 1)):
            largest = abs(block).max(axis=1).toarray().ravel() if sp.issparse(block) else np.abs(block).max(axis=1)
            largest = largest.astype(float)  # What is too small to be divided by counts as nothing.
            scale = np.where(largest > SMALLEST, RECORD_LEVELS / np.maximum(largest, SMALLEST), 0.0)
            turned = np.asarray(in_levels(block, scale) @ (self.matrix.T * FINE))
            least = self.least * FINE * scale
            longest = np.maximum(np.sqrt(np.einsum("ij,ij->i", turned, turned)), least)
            nothing = longest == 0
            longest[nothing] = 1.0
            turned *= (self.radius * INSIDE / longest)[:, None]
            yield np.trunc(turned / grid) * grid, np.where(nothing, 1.0, least / longest)


def grid_of(radius: float) -> float:
    """Return the power of two of which entries of whitened records are multiples."""
    return max(2.0 ** (math.ceil(math.log2(radius)) - WHITENED_BITS), math.ulp(0.0))


def typical_length(matrix: Array, sigma: float, size: float) -> float:
    """Return about the root mean square of ``|A x|``, A the matrix that records of length 1 were whitened by.

    It is ``(S + r)^(-1/2)`` but for a factor; S, the noisy second moment, has about the trace `size`, and r is public.
    """
    edge = sigma * np.sqrt(2 * len(matrix))
    squares = np.linalg.eigvalsh(matrix @ matrix.T)
    factor = (size + len(matrix) * edge) / np.sum(1 / squares)
    return float(np.sqrt(np.sum(np.maximum(factor - edge * squares, 0.0)) / size))


def in_levels(block: Any, scale: Any) -> Any:
    if sp.issparse(block):
        return sp.csr_array(sp.diags_array(scale) @ block).trunc()
    return np.trunc(np.asarray(block, dtype=float) * scale[:, None])


def second_moment(column: Any, features: int, radius: float) -> NDArray[np.int64]:
    """Return the sum of ``x x'`` over records, in squared levels, shape (d, d): integers, so that no order of adding matters."""
    total = np.zeros((features, features), dtype=np.int64)
    for block in blocks(column, max(BLOCK // features, 1)):
        levels = in_levels(block, np.full(block.shape[0], LEVELS / radius))
        part = levels.T @ levels
        total += np.asarray(part.toarray() if sp.issparse(part) else part).astype(np.int64)
    return total


def batch_moment(batch: Batch, noise: WhiteningNoise) -> NDArray[np.int64]:
    found = batch.added_up(moment_of, batch.share(noise))
    return np.zeros((noise.features, noise.features), dtype=np.int64) if found is None else np.asarray(found)


def moment_of(batch: Batch, noise: WhiteningNoise) -> NDArray[np.int64]:
    return second_moment(batch.fields[noise.field], noise.features, noise.radius)


def whitened(batch: Batch, whitening: Whitening) -> Batch:
    """Return records with one field whitened, block by block where they are not read again and again, perhaps with weights."""
    column = batch.fields[whitening.field]
    turned: Any = Stored(column, whitening, tuple(column.shape))
    weights: Any = Stored(column, whitening.weights, (batch.size,))
    in_memory = type(getattr(column, "column", column)) is np.ndarray or sp.issparse(column)
    if in_memory and not whitening.least:  # steps read records again and again
        with one_blas_thread():
            turned = whitening(column)
    further = {WEIGHTS: weights} if whitening.least else {}
    return Batch({**batch.fields, whitening.field: turned, **further}, batch.group)
