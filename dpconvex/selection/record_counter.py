"""Where one record lies in the public cells that an evaluation counts: by its label, its score, and how far a prediction errs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import expit

from dpconvex.data.batch import Batch
from dpconvex.data.columns import blocks, dense
from dpconvex.data.domains import Box, Choice
from dpconvex.data.record import Record
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.fitting.release import Release
from dpconvex.mechanisms.cell_counts import LIKELY, PREDICTIONS, RESIDUALS, ROUGHLY, SCORES, TARGETS, Cells
from dpconvex.model.people import WEIGHT
from dpconvex.model.privacy import Privacy
from dpconvex.util.arrays import Array, Indices, frozen
from dpconvex.util.runtime import Interrupt, interrupts_noted, one_blas_thread, silence

BLOCK = 65_536  # Records that are read at once


@dataclass(frozen=True)
class RecordCounter:
    """Looks at records one by one, and counts them in cells; whatever a prediction does, it changes its own record's cell alone.

    A prediction in a batch depends, in its last bits, on the others.  A record that cannot be predicted, or whose prediction has
    no right form, lies in the cell of the worst mistake.
    """

    record: Record
    release: Release
    features: str
    label: str
    privacy: Privacy
    plain: bool = True  # right and wrong labels alone
    cuts: tuple[float, ...] = SCORES
    group: str | None = None

    def check(self, caller: str, strict: bool = True) -> None:
        """Refuse, before anything is paid, what cannot be compared, or other than one prediction for each of two records."""
        fields = self.record.fields
        for name in (self.features, self.label, *(() if self.group is None else (self.group,))):
            if not isinstance(name, str) or name not in fields:
                raise TemplateError(f"{caller}: the record has no field {name!r}; its fields are {', '.join(fields)}.")
        domain, known = fields[self.label], fields[self.features]
        number = isinstance(domain, Box) and domain.shape == () and 1e-150 < domain.upper - domain.lower < 1e150
        if not (isinstance(domain, Choice) or number):  # the square of the range, too, is a number
            raise TemplateError(f"{caller}: {self.label!r} must be a Choice, or one bounded number, not {domain!r}.")
        if isinstance(known, Choice):
            raise TemplateError(f"{caller}: the field {self.features!r} is not of numbers, to predict from.")
        lower, upper = known.bounds
        rows = np.repeat((lower / 2 + upper / 2).reshape(1, *known.shape), 2, axis=0)
        try:
            with np.errstate(all="ignore"):
                shape = self.release.predict(rows).shape
                given = (self.likelihoods if self.cells.likelihood else self.predicted)(rows).shape
        except Exception as error:
            if not strict and not isinstance(error, DPConvexError):  # of parameters that nobody fitted
                return
            raise TemplateError(f"{caller}: the release does not predict for {known!r} ({error}).") from error
        if shape != (2,):
            raise TemplateError(f"{caller}: predict must return one value for each record, not shape {shape} for 2.")
        wanted = (2, self.cells.labels) if self.cells.likelihood else (2,)
        if given != wanted:
            raise TemplateError(f"{caller}: scores or probabilities have shape {given} for 2 records, not {wanted}.")

    @cached_property
    def cells(self) -> Cells:
        """The cells, which follow from what is declared."""
        domain, release = self.record.fields[self.label], self.release
        groups = 1 if self.group is None else len(self.record.discrete[self.group].values)
        if not isinstance(domain, Choice):
            return Cells("numbers", groups=groups, labels=0)
        own, count = not self.plain and release.labels == domain.values, len(domain.values)
        models = own and release.probabilities is not None
        if own and count == 2 and (models or release.decision is not None):
            return Cells("probabilities" if models else "scores", self.cuts, groups=groups)
        return Cells("labels", labels=count, groups=groups, likelihood=models)

    def predicted(self, rows: Array) -> Any:
        """Return what is compared with labels: predictions, or scores of the second label between 0 and 1."""
        kind, release = self.cells.kind, self.release
        if kind == "scores":
            found = np.asarray(release.applied("decision_function", rows), dtype=float)
            return expit(found[:, 1] - found[:, 0] if found.ndim == 2 else found)
        return self.likelihoods(rows)[:, 1] if kind == "probabilities" else release.applied("predict", rows)

    def likelihoods(self, rows: Array) -> Array:
        """Return the probabilities of all labels, shape (n, labels)."""
        return np.asarray(self.release.applied("predict_proba", rows), dtype=float)

    @property
    def largest(self) -> int:
        """What one record adds to a count at most, in steps."""
        return self.cells.steps(self.privacy)

    @property
    def moved(self) -> int:
        """How far a person, or a record where nobody has several, moves the number of mistakes (docs/theory.md, section 21)."""
        return int(self.privacy.person.weight) * self.largest

    def mistakes(self, batch: Batch) -> int:
        """Return the number of wrong labels, in steps."""
        return int(self.counts(batch)["labels"][1::2].sum())

    def counts(self, batch: Batch) -> dict[str, Indices]:
        """Return the counts of the cells of each table, in steps."""
        with interrupts_noted():
            found = batch.added_up(counted_in, batch.share(self))
        every = {name: self.cells.groups * math.prod(shape) for name, shape in self.cells.tables.items()}
        flat = found if isinstance(found, np.ndarray) else np.zeros(sum(every.values()), dtype=np.int64)
        return dict(zip(every, np.split(flat, np.cumsum([*every.values()])[:-1]), strict=True))

    def places(self, row: Array, truth: Any, steps: int) -> list[dict[int, int]]:
        """Return the cells of one record in each table, of its group, with its steps in each."""
        domain, cells = self.record.fields[self.label], self.cells
        found = self.safely(self.predicted, row)
        if isinstance(domain, Box):
            lower, wide = float(domain.lower), float(domain.upper - domain.lower)
            true, value = (float(truth) - lower) / wide, number_of(found)
            said = float(true < 0.5) if value is None else min(max((value - lower) / wide, 0.0), 1.0)
            apart = true - said if value is not None else 1.0 - 2 * said
            start = cell(PREDICTIONS, said) * len(ROUGHLY)
            roughly = {start + k: count for k, count in knots(ROUGHLY, apart, steps).items()}
            return [knots(RESIDUALS, apart, steps), roughly, knots(TARGETS, true, steps)]
        place = domain.values.index(truth)  # type: ignore[union-attr]
        if cells.kind != "labels":
            score = number_of(found)
            return [{place * (len(cells.cuts) + 1) + cell(cells.cuts, 1.0 - place if score is None else score): steps}]
        right = self.safely(lambda predicted: predicted.shape == (1,) and bool(predicted[0] == truth), found)
        if not cells.likelihood:
            return [{2 * place + (not right): steps}]
        other = self.safely(self.likelihoods, row)
        likely = number_of(other[:, place]) if np.shape(other) == (1, len(domain.values)) else None  # type: ignore[union-attr]
        return [{2 * place + (not right): steps}, {cell(LIKELY, likely or 0.0): steps}]

    def safely(self, function: Any, given: Any) -> Any:
        """Return what a function of somebody else's makes of one record, or None; it may do anything."""
        try:
            return function(given)
        except BaseException:
            Interrupt.check()
            return None


def cell(cuts: tuple[float, ...], value: float) -> int:
    """Return the cell of a value; a cut belongs to the cell below it."""
    return int(np.searchsorted(cuts, value, side="left"))


def knots(places: tuple[float, ...], value: float, steps: int) -> dict[int, int]:
    """Share steps between the two knots beside a value, so that knots weighted by them have its mean."""
    right = min(max(int(np.searchsorted(places, value)), 1), len(places) - 1)
    along = (value - places[right - 1]) / (places[right] - places[right - 1])
    later = math.floor(min(max(along, 0.0), 1.0) * steps)
    return {right - 1: steps - later, right: later}


def number_of(found: Any) -> float | None:
    """Return the one number that was predicted, or None if it is none."""
    try:
        value = complex(found[0])
        return value.real if found.shape == (1,) and value.imag == 0 and math.isfinite(value.real) else None
    except BaseException:
        Interrupt.check()
        return None


def counted_in(batch: Batch, counter: RecordCounter) -> Indices:
    record, label, cells = counter.record, counter.label, counter.cells
    known = record.values(batch, label) if cells.labels else batch.fields[label]
    whose = np.zeros(batch.size, dtype=np.int64)
    if counter.group is not None:
        groups = record.discrete[counter.group].values
        whose = np.array([groups.index(value) for value in record.values(batch, counter.group)], dtype=np.int64)
    # A person's weights add up to 1 at most: rounded down, their records add no more steps than one record has.
    steps = np.full(batch.size, counter.largest)
    if counter.privacy.keep == "weights":
        steps = np.floor(dense(batch.fields[WEIGHT][:]) * counter.largest).astype(np.int64)
    tables = [np.zeros((cells.groups, math.prod(shape)), dtype=np.int64) for shape in cells.tables.values()]
    columns = (blocks(column, BLOCK) for column in (batch.fields[counter.features], known, whose, steps))
    parts: Iterator[Any] = zip(*columns, strict=False)
    with one_blas_thread(), silence():
        for x, truth, group, count in parts:
            for row, y, mine, own in zip(frozen(dense(x)), dense(truth), group, count, strict=True):
                for table, places in zip(tables, counter.places(row[None], y, int(own)), strict=True):
                    for place, count in places.items():
                        table[mine, place] += count
    return np.concatenate([table.ravel() for table in tables])
