"""How often a released model errs on records, counted with integer noise (docs/release.md, section 3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import dlaplace

from dpconvex.core.arrays import Array, Indices, frozen
from dpconvex.core.deprecated import public
from dpconvex.core.record_domains import Box, Choice
from dpconvex.core.runtime import one_blas_thread
from dpconvex.errors import DomainError, DPConvexError, TemplateError
from dpconvex.language.batch import Batch
from dpconvex.language.columns import blocks, dense
from dpconvex.language.partitions import settled
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Record, table
from dpconvex.language.template import Template
from dpconvex.mechanisms.grid import laplace_count, perturb
from dpconvex.release.budget import Budget
from dpconvex.release.release import Release
from dpconvex.release.solve import Fit
from dpconvex.release.verify import Method

STEPS = 2**20  # Errors of a regression are added up in so many steps of the largest one
BLOCK = 65_536  # Records whose predictions are compared at once


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
) -> Evaluation:
    """Measure the error of a release on records that it was not fitted to; of others, the answer is as private, but too low.

    Parameters
    ----------
    template : Template
        Of the release: says what a valid record is.
    release : Release
        With a prediction function that treats every record by itself.
    privacy : Privacy
        Its delta is not needed.
    features, label : str
        The fields that predictions are made from and compared with.  A label that is a `Choice` is counted as right or wrong; for
        a number in a `Box`, squared errors are averaged.
    entry : str
        Name of the spend in the ledger.
    data, clip, budget, seed
        As for `solve`.
    """
    check_privacy("evaluate", privacy)
    for given, kind in ((template, Template), (release, Release)):
        if not isinstance(given, kind):
            its = "; pass its `release`" if hasattr(given, "release") else ""
            raise TemplateError(f"evaluate: expected a {kind.__name__}, not a {type(given).__name__}{its}.")
    protected, data = privacy.adjacency == "add-remove", settled(data)
    there = {features, label, *(table(data).keys() or template.record.fields)}
    needed = {name: domain for name, domain in template.record.fields.items() if name in there}
    record = Record(**needed) if needed else template.record  # the component of a mixture is not in the data
    errors = Errors(record, release, features, label, alone=protected)
    errors.check("evaluate")
    paid = Privacy(privacy.epsilon, 0.0, privacy.adjacency)
    size = 1 if protected else None
    call = Fit(data, paid, [template], Method(), None, size, clip, budget, entry, seed, record=record)
    call.check()
    call.pay()
    batch = record.validate(call.data, clip=clip, empty=protected)
    if not protected and batch.size != call.size:
        raise DomainError("the number of records changed; data must not change during an evaluation.")
    # Where the number of records is protected, half of the guarantee pays for it.
    parts = 2 if protected else 1

    def noisy(count: int, largest: int) -> tuple[float, float]:
        """Return a noisy count, and how far the noise moves it but for its part of 0.05."""
        noise = laplace_count(privacy.epsilon / parts, largest)
        drawn = perturb(np.array([float(count)]), noise, call.source.seeded)
        return float(drawn[0]), float(dlaplace.isf(0.025 / parts, min(1 / noise.scale, 700.0)))

    wrong, apart = noisy(errors.total(batch), errors.largest)
    records, off = noisy(batch.size, 1) if protected else (float(call.size), 0.0)
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
    alone: bool  # every record is predicted by itself, because one of them may be missing

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
    def largest(self) -> int:
        """What one record adds to the sum of errors at most, in steps."""
        return 1 if self.counts else STEPS

    def total(self, batch: Batch) -> int:
        return int(batch.added_up(total_of, batch.share(self)) or 0)

    def of_block(self, x: Array, truth: NDArray[Any]) -> Indices:
        """Return the errors of some records: whatever one of them does to a prediction, it counts for one record, in full."""
        found = None if self.alone else self._counted(x, truth)
        if found is not None:
            return found
        rows = [self._counted(x[k : k + 1], truth[k : k + 1]) for k in range(len(truth))]
        return np.concatenate([np.array([self.largest]) if row is None else row for row in rows])

    def _counted(self, x: Array, truth: NDArray[Any]) -> Indices | None:
        """Return errors; None where predictions are of no right form, as one record may have changed the type of all."""
        domain, several = self.record.fields[self.label], len(truth) > 1
        try:
            predicted = self.release.predict(x)
            kind = predicted.dtype.kind
            if predicted.shape != truth.shape:
                return None
            if isinstance(domain, Choice):
                kinds = {kind, *(np.asarray(value).dtype.kind for value in domain.values)}
                if several and not (kind == "O" or kinds <= set("biuf") or kinds == {"U"}):
                    return None
                wrong = np.asarray(predicted != truth)
                return wrong.astype(np.int64) if wrong.shape == truth.shape and wrong.dtype == bool else None
            if kind not in "biufc" and several:
                return None
            values = predicted.astype(complex)
        except (Exception, SystemExit):  # a function of somebody else's, which may do anything
            return None
        lower, upper = float(domain.lower), float(domain.upper)  # type: ignore[union-attr]
        with np.errstate(all="ignore"):
            shares = ((np.clip(values.real, lower, upper) - truth) / (upper - lower)) ** 2
        usable = np.isfinite(values) & (values.imag == 0) & np.isfinite(shares)
        return np.rint(np.clip(np.where(usable, shares, 1.0), 0, 1) * STEPS).astype(np.int64)


def total_of(batch: Batch, errors: Errors) -> int:
    known = errors.record.values(batch, errors.label) if errors.counts else batch.fields[errors.label]
    pairs: Iterator[Any] = zip(blocks(batch.fields[errors.features], BLOCK), blocks(known, BLOCK), strict=False)
    with one_blas_thread():  # a learner's predict need not know what to do with nothing
        return sum(int(errors.of_block(frozen(dense(x)), dense(truth)).sum()) for x, truth in pairs if len(truth))
