"""Errors of a release on records, in whole steps, and their sum: in this process, or where partitions of the records are.

A sum of whole numbers is exact in any order, so it has the same bits however the records are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.read_only import frozen
from dpconvex.core.record_domains import Choice
from dpconvex.errors import TemplateError
from dpconvex.evaluation.threads import one_blas_thread
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.columns import blocks, dense
from dpconvex.language.record import Record
from dpconvex.release.release import Release

# Errors of a regression are added up in so many steps of the largest one.
STEPS = 2**20
# Records whose predictions are compared at once.
BLOCK = 65_536


@dataclass(frozen=True)
class Errors:
    """How a release errs on records: wrong labels, or squared errors of a bounded number.

    Attributes
    ----------
    caller : str
        For messages.
    record : Record
    release : Release
    features, label : str
        The fields that predictions are made from and compared with.
    alone : bool
        Whether every record is predicted by itself, because one of them may be missing.
    """

    caller: str
    record: Record
    release: Release
    features: str
    label: str
    alone: bool

    def total(self, batch: Batch) -> int:
        """Return the sum over all records, in steps."""
        if not isinstance(batch, PartitionedBatch):
            return sum(int(found.sum()) for found in self.each(batch))
        sent = replace(self, release=replace(self.release, certificate=None, schema=None))
        return int(batch.added_up(total_of, batch.place.share(sent)) or 0)

    def each(self, batch: Batch) -> Iterator[NDArray[np.int64]]:
        """Yield the errors of blocks of records, each between 0 and the largest one."""
        domain = self.record.fields[self.label]
        known = self.record.values(batch, self.label) if isinstance(domain, Choice) else batch.fields[self.label]
        for block, truth in zip(blocks(batch.fields[self.features], BLOCK), blocks(known, BLOCK), strict=True):
            if not len(truth):  # a learner's predict need not know what to do with nothing
                continue
            predicted = self._predicted(frozen(dense(block)), truth.shape)
            if isinstance(domain, Choice):
                yield np.asarray(predicted != truth, dtype=np.int64)
                continue
            lower, upper = float(domain.lower), float(domain.upper)  # type: ignore[union-attr]
            shares = ((np.clip(predicted, lower, upper) - dense(truth)) / (upper - lower)) ** 2
            yield np.clip(np.rint(shares * STEPS), 0, STEPS).astype(np.int64)

    def _predicted(self, x: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Return one prediction for each record: in another shape, one record might count many times."""
        predicted = self.release.predict_each(x) if self.alone else self.release.predict(x)
        if predicted.shape != shape:
            what = "label" if self.label in self.record.discrete else "value"
            raise TemplateError(
                f"{self.caller}: predict must return shape {shape}, one {what} for each record, not {predicted.shape}."
            )
        return predicted


def total_of(batch: Batch, errors: Errors) -> int:
    """Return the sum over a partition."""
    with one_blas_thread():
        return errors.total(batch)
