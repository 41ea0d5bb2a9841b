"""Errors of a release on records, in whole steps, and their sum: in this process, or where partitions of the records are.

A sum of whole numbers is exact in any order, so it has the same bits however the records are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

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
            if len(truth):  # a learner's predict need not know what to do with nothing
                yield self._of_block(frozen(dense(block)), truth if isinstance(domain, Choice) else dense(truth))

    def _of_block(self, x: NDArray[np.float64], truth: NDArray[Any]) -> NDArray[np.int64]:
        """Return the errors of some records: whatever one of them does to a prediction, it counts for one record, in full."""
        found = None if self.alone else self._counted(x, truth)
        if found is not None:
            return found
        full = np.array([1 if isinstance(self.record.fields[self.label], Choice) else STEPS])
        rows = [self._counted(x[k : k + 1], truth[k : k + 1]) for k in range(len(truth))]
        return np.concatenate([full if row is None else row for row in rows])

    def _counted(self, x: NDArray[np.float64], truth: NDArray[Any]) -> NDArray[np.int64] | None:
        """Return errors; None where there is no prediction of the right form for each of the records."""
        domain = self.record.fields[self.label]
        try:
            predicted = self.release.predict(x)
            if predicted.shape != truth.shape:
                return None
            if isinstance(domain, Choice):
                declared: set[str] = {np.asarray(value).dtype.kind for value in domain.values}
                # Arrays have one type, and one record's prediction may have changed that of all.
                if len(truth) > 1 and not (predicted.dtype.kind == "O" or alike({predicted.dtype.kind}, declared)):
                    return None
                wrong = np.asarray(predicted != truth)
                return wrong.astype(np.int64) if wrong.shape == truth.shape and wrong.dtype == bool else None
            if predicted.dtype.kind not in "biufc" and len(truth) > 1:
                return None
            values = predicted.astype(complex)
        except (Exception, SystemExit):  # a function of somebody else's, which may do anything
            return None
        lower, upper = float(domain.lower), float(domain.upper)  # type: ignore[union-attr]
        with np.errstate(all="ignore"):
            shares = ((np.clip(values.real, lower, upper) - truth) / (upper - lower)) ** 2
        usable = np.isfinite(values) & (values.imag == 0) & np.isfinite(shares)
        return np.rint(np.clip(np.where(usable, shares, 1.0), 0, 1) * STEPS).astype(np.int64)


def alike(kinds: AbstractSet[str], others: AbstractSet[str]) -> bool:
    """Say whether types of arrays are all numbers, or all texts."""
    both = kinds | others
    return both <= set("biuf") or both == {"U"}


def check_predictions(caller: str, record: Record, release: Release, features: str, strict: bool = True) -> None:
    """Refuse, before anything is paid, a function that does not predict one value for each of two public records."""
    if features not in record.continuous:
        raise TemplateError(f"{caller}: the record has no field {features!r} of numbers to predict from.")
    domain = record.continuous[features]
    lower, upper = domain.bounds
    rows = np.repeat((lower / 2 + upper / 2).reshape(1, *domain.shape), 2, axis=0)
    try:
        with np.errstate(all="ignore"):
            shape = release.predict(rows).shape
    except Exception as error:
        if not strict:  # of parameters that nobody fitted
            return
        raise TemplateError(f"{caller}: the release does not predict for records of {domain!r} ({error}).") from error
    if shape != (2,):
        raise TemplateError(f"{caller}: predict must return one value for each record, shape (2,) for 2, not {shape}.")


def total_of(batch: Batch, errors: Errors) -> int:
    """Return the sum over a partition."""
    with one_blas_thread():
        return errors.total(batch)
