"""The records of a batch, whitened, in this process or where its partitions are."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.evaluation.moment_sums import WEIGHTS
from dpconvex.evaluation.threads import one_blas_thread
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.columns import Pieces, Stored, Turned
from dpconvex.language.record import Record
from dpconvex.language.validation import Gate, check_column
from dpconvex.mechanisms.whitening_noise import WhiteningNoise
from dpconvex.release.whitening import Whitening, second_moment


def batch_moment(batch: Batch, noise: WhiteningNoise) -> NDArray[np.int64]:
    """Return the sum of ``x x'`` over the records, in squared levels: whole numbers, so that no order of adding them matters."""
    if not isinstance(batch, PartitionedBatch):
        return second_moment(batch.fields[noise.field], noise.features, noise.radius)
    found = batch.added_up(moment_of, batch.place.share(noise))
    return np.zeros((noise.features, noise.features), dtype=np.int64) if found is None else np.asarray(found)


def moment_of(batch: Batch, noise: WhiteningNoise) -> NDArray[np.int64]:
    """Return the sum over a partition."""
    with one_blas_thread():
        return second_moment(batch.fields[noise.field], noise.features, noise.radius)


def whitened_batch(record: Record, batch: Batch, whitening: Whitening) -> Batch:
    """Return the records with one field whitened."""
    if isinstance(batch, PartitionedBatch):
        return batch.mapped(whitened, (record, whitening))
    return whitened(batch, (record, whitening))


def whitened(batch: Batch, made: tuple[Record, Whitening]) -> Batch:
    """Return the records of a partition, whitened: block by block, whenever they are read, if they are not in memory."""
    record, whitening = made
    column, domain = batch.fields[whitening.field], record.continuous[whitening.field]
    turned: Any = Stored(Turned(column, whitening, tuple(column.shape)), Gate(whitening.field, domain, False))
    if isinstance(column, np.ndarray) or sp.issparse(column):
        with one_blas_thread():
            turned = check_column(whitening.field, domain, whitening(column), False)
    return Batch({**batch.fields, whitening.field: turned}, batch.group)


def weighted_batch(record: Record, batch: Batch, whitening: Whitening) -> Batch:
    if isinstance(batch, PartitionedBatch):
        return batch.mapped(weighted, (record, whitening))
    return weighted(batch, (record, whitening))


def weighted(batch: Batch, made: tuple[Record, Whitening]) -> Batch:
    """Return the records in one place, whitened, with their weights as a further column."""
    record, whitening = made
    column = batch.fields[whitening.field]
    if isinstance(column, Pieces):  # can only be read from front to back
        fields = {whitening.field: whitening(column), WEIGHTS: whitening.weights(column)}
        return Batch({**batch.fields, **fields}, batch.group)
    gate = Gate(whitening.field, record.continuous[whitening.field], False)
    turned = Stored(Turned(column, whitening, tuple(column.shape)), gate)
    weights = Turned(column, whitening.weights, (batch.size,))
    return Batch({**batch.fields, whitening.field: turned, WEIGHTS: weights}, batch.group)
