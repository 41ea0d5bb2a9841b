"""How often a released model errs on records, counted with integer noise (docs/release.md, section 3)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import dlaplace

from dpconvex.accounting.budget import Budget
from dpconvex.certificates.integer_noise import laplace_count, perturb
from dpconvex.data.batch import Batch
from dpconvex.data.columns import blocks, dense
from dpconvex.data.domains import Box, Choice
from dpconvex.data.partitions import settled
from dpconvex.data.record import Record, table
from dpconvex.data.schema import check_unit
from dpconvex.errors import DomainError, DPConvexError, TemplateError
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import Fit
from dpconvex.fitting.verify import Method
from dpconvex.model.people import WEIGHT, for_promise
from dpconvex.model.privacy import Privacy, check_privacy
from dpconvex.model.template import Template
from dpconvex.util.arrays import Array, frozen
from dpconvex.util.deprecated import public
from dpconvex.util.runtime import Interrupt, interrupts_noted, one_blas_thread, silence

STEPS = 2**20  # Errors of a regression, and weighted ones, are added up in so many steps of the largest one
BLOCK = 65_536  # Records that are read at once


@dataclass(frozen=True, repr=False)
class Evaluation:
    """An error that was measured privately; it prints.

    Attributes
    ----------
    error : float
        Share of mistakes, or mean squared error.
    interval : tuple of float
        It holds the error on these very records with probability 0.95, over the noise.
    records : int
        Their number; a noisy one where it is protected.
    spent : Privacy or None
        None if a seed was given.
    measure : str
        What the error is: "error", a share, or a mean squared error and its units.
    """

    error: float
    interval: tuple[float, float]
    records: int
    spent: Privacy | None
    measure: str = "error"

    @property
    def status(self) -> str:
        """The guarantee, or a warning."""
        return f"spent: {self.spent}" if self.spent is not None else "NOT PRIVATE: drawn with a seed"

    def __repr__(self) -> str:
        low, high = self.interval
        between = f"but for the noise, on these very records: between {low:.4g} and {high:.4g}"
        return f"{self.measure} {self.error:.4g} on {self.records} records ({between}); {self.status}"


@public
def evaluate(
    template: Template,
    release: Release,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    *,
    features: str = "x",
    label: str = "y",
    clip: bool = False,
    budget: Budget | None = None,
    entry: str = "evaluate",
    seed: int | None = None,
    unit: ArrayLike | None = None,
) -> Evaluation:
    """Measure the error of a release on records that it was not fitted to; of others, the answer is as private, but too low.

    Parameters
    ----------
    template : Template
        Of the release: says what a valid record is.
    release : Release
        With a prediction function that treats every record by itself.
    privacy : Privacy
        Its delta is not needed.  With a unit, errors of a person's records add up to what docs/unit.md says.
    features, label : str
        The fields that predictions are made from and compared with.  A label that is a `Choice` is counted as right or wrong; for
        a number in a `Box`, squared errors are averaged.
    entry : str
        Name of the spend in the ledger.
    data, clip, budget, seed, unit
        As for `solve`.
    """
    check_privacy("evaluate", privacy, units=True)
    for given, kind in ((template, Template), (release, Release)):
        if not isinstance(given, kind):
            its = "; pass its `release`" if hasattr(given, "release") else ""
            raise TemplateError(f"evaluate: expected a {kind.__name__}, not a {type(given).__name__}{its}.")
    check_unit(release.schema, privacy.unit)
    promise = release.spent or (privacy if release.certificate is None else release.certificate.privacy)
    if promise.unit not in (None, privacy.unit):
        why = f"the release protects a {promise.unit}, and this guarantee a {privacy.unit or 'single record'}"
        raise TemplateError(f"evaluate: {why}; ask for unit={promise.unit!r} and most=, and pass unit= as to the fit.")
    protected, data = privacy.adjacency == "add-remove", settled(data)
    there = {features, label, *(table(data).keys() or template.record.fields), WEIGHT}
    fields = for_promise(template, privacy).record.fields
    needed = {name: domain for name, domain in fields.items() if name in there}
    record = Record(**needed) if needed else template.record  # the component of a mixture is not in the data
    errors = Errors(record, release, features, label, privacy)
    errors.check("evaluate")
    release.check_data("evaluate", data, features)
    paid = privacy.part(privacy.epsilon)
    size, method = 1 if protected else None, Method(units=True)
    call = Fit(data, paid, [template], method, None, size, clip, budget, entry, seed, record=record, unit=unit)
    call.check()
    call.pay()
    batch = call.cut(record.validate(call.data, clip=clip, empty=protected))
    count = batch.size if call.people is None else call.people.size
    if not protected and count != call.size:
        raise DomainError("the number of records changed; data must not change during an evaluation.")
    # Where the number of records is protected, half of the guarantee pays for it.
    parts = 2 if protected else 1

    def noisy(count: int, moved: int) -> tuple[float, float]:
        """Return a noisy count, and how far the noise moves it but for its part of 0.05."""
        noise = laplace_count(privacy.epsilon / parts, moved)
        drawn = perturb(np.array([float(count)]), noise, call.source.seeded)
        return float(drawn[0]), float(dlaplace.isf(0.025 / parts, min(1 / noise.scale, 700.0)))

    wrong, apart = noisy(errors.total(batch), errors.moved)
    records, off = noisy(count, int(privacy.person.weight)) if protected else (float(count), 0.0)
    domain, size = errors.record.fields[label], max(round(records), 1)
    top, measure = 1.0, "error"
    if isinstance(domain, Box):
        top = float(domain.upper - domain.lower) ** 2
        measure = f"mean squared error of {label} between {domain.lower:g} and {domain.upper:g}:"
    low, high = (wrong - apart) / max(records + off, 1.0), (wrong + apart) / max(records - off, 1.0)
    error, low, high = np.clip(np.array([wrong / size, low, high]) * (top / errors.largest), 0.0, top).tolist()
    return Evaluation(error, (low, high), size, None if seed is not None else paid, measure)


@dataclass(frozen=True)
class Errors:
    """How a release errs on records: wrong labels, or squared errors of a bounded number in whole steps, exact in any order."""

    record: Record
    release: Release
    features: str
    label: str
    privacy: Privacy

    def check(self, caller: str, strict: bool = True) -> None:
        """Refuse, before anything is paid, what cannot be compared, or other than one prediction for each of two records."""
        fields = self.record.fields
        for name in (self.features, self.label):
            if not isinstance(name, str) or name not in fields:
                raise TemplateError(f"{caller}: the record has no field {name!r}; its fields are {', '.join(fields)}.")
        domain, known = fields[self.label], fields[self.features]
        number = isinstance(domain, Box) and domain.shape == () and 1e-150 < domain.upper - domain.lower < 1e150
        if not (self.counts or number):  # the square of the range, too, is a number
            raise TemplateError(f"{caller}: {self.label!r} must be a Choice, or one bounded number, not {domain!r}.")
        if isinstance(known, Choice):
            raise TemplateError(f"{caller}: the field {self.features!r} is not of numbers, to predict from.")
        lower, upper = known.bounds
        rows = np.repeat((lower / 2 + upper / 2).reshape(1, *known.shape), 2, axis=0)
        try:
            with np.errstate(all="ignore"):
                shape = self.release.predict(rows).shape
        except Exception as error:
            if not strict and not isinstance(error, DPConvexError):  # of parameters that nobody fitted
                return
            raise TemplateError(f"{caller}: the release does not predict for {known!r} ({error}).") from error
        if shape != (2,):
            raise TemplateError(f"{caller}: predict must return one value for each record, not shape {shape} for 2.")

    @property
    def counts(self) -> bool:
        return isinstance(self.record.fields[self.label], Choice)

    @property
    def weighted(self) -> bool:
        return self.privacy.keep == "weights"

    @property
    def largest(self) -> int:
        """What one record adds to the sum of errors at most, in steps."""
        return 1 if self.counts and not self.weighted else STEPS

    @property
    def moved(self) -> int:
        """How far a person, or a record where nobody has several, moves the sum (docs/theory.md, section 21)."""
        return int(self.privacy.person.weight) * self.largest

    def total(self, batch: Batch) -> int:
        with interrupts_noted():
            return int(batch.added_up(total_of, batch.share(self)) or 0)

    def of_record(self, row: Array, truth: Any) -> int:
        """Return the error of one record, predicted by itself: no other record has a part in it, be it in the last bit.

        Rounding in a batch depends on its size, and one record may make a prediction of many fail.  What cannot be predicted,
        or is of no right form, counts in full.
        """
        domain = self.record.fields[self.label]
        try:
            predicted = self.release.predicted(row)
            if predicted.shape != (1,):
                return self.largest
            if isinstance(domain, Choice):
                return self.largest * bool(predicted[0] != truth)
            value = complex(predicted[0])
        except BaseException:  # of a function of somebody else's, which may do anything
            Interrupt.check()
            return self.largest
        if value.imag != 0 or not math.isfinite(value.real):
            return self.largest
        lower, upper = float(domain.lower), float(domain.upper)  # type: ignore[union-attr]
        share = (min(max(value.real, lower), upper) - float(truth)) / (upper - lower)
        return round(min(share * share, 1.0) * STEPS)


def total_of(batch: Batch, errors: Errors) -> int:
    known = errors.record.values(batch, errors.label) if errors.counts else batch.fields[errors.label]
    # A person's weights add up to 1 at most: rounded down, their errors add up to no more than that of one record.
    weights = dense(batch.fields[WEIGHT][:]) if errors.weighted else np.ones(batch.size)
    columns = (blocks(column, BLOCK) for column in (batch.fields[errors.features], known, weights))
    parts: Iterator[Any] = zip(*columns, strict=False)
    with one_blas_thread(), silence():
        return sum(
            math.floor(errors.of_record(row[None], y) * float(weight))
            for x, truth, some in parts
            for row, y, weight in zip(frozen(dense(x)), dense(truth), some, strict=True)
        )
