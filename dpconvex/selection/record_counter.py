"""Assign one record to the public cells of an evaluation, by its label, its score and the error of its prediction."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlogy

from dpconvex.data.batch import Batch
from dpconvex.data.columns import blocks, dense
from dpconvex.data.domains import Box, Choice, Domain
from dpconvex.data.record import Record
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.fitting.release import Release
from dpconvex.mechanisms.cell_counts import ALIVE, FAINT, LIKELY, PARTS, PREDICTIONS, ROUGHLY, SCORES, Cells, on_ruler
from dpconvex.model.people import WEIGHT
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import further_fields
from dpconvex.util.arguments import one_of, require
from dpconvex.util.arrays import Array, Indices, exact_array, frozen
from dpconvex.util.runtime import Interrupt, one_blas_thread
from dpconvex.util.silence import silence

BLOCK = 65_536  # Records in a block
MISTAKES = ("mistakes",)  # The measure of `tune`: wrong labels or squared errors


@dataclass(frozen=True)
class RecordCounter:
    """Predict records one by one and count them in cells, so that each prediction affects the cell of its own record only.

    Within a batch, rounding would make a prediction depend on the other records.  If the prediction of a record fails, or has an
    invalid form, the record is counted in the cell of the worst mistake.
    """

    record: Record
    release: Release
    features: str
    label: str
    privacy: Privacy
    measures: tuple[str, ...] = MISTAKES
    cuts: tuple[float, ...] | None = None  # None: the default of the kind of cells
    group: str | None = None
    centre: float | None = 0.5  # as in `Cells`
    target: int | None = None  # index among several numbers of the label, of each prediction, or of both

    def check(self, caller: str, strict: bool = True) -> None:
        """Raise, before any charge, if labels and predictions cannot be compared, by predictions for two public records."""
        fields = self.record.fields
        one_of(fields).check(caller, label=self.label)
        one_of(fields).or_none.check(caller, "Declare the values of another column by groups=[...].", group=self.group)
        domain = self.domain
        # The square of the range must not overflow or underflow.
        number = isinstance(domain, Box) and domain.shape == () and 1e-150 < domain.upper - domain.lower < 1e150
        what = "a Choice, one bounded number, or what was lived through (-1 to 1) of several intervals"
        said = f"{caller}: {self.label!r} must be {what}, not {domain!r}."
        require(isinstance(domain, Choice) or number or self.survives, said)
        said = f"{caller}: a deviance is of counts and other targets from 0, declared by dp.Box(0, largest), not {domain!r}."
        # An estimator with a log link scales its targets from [0, bound] to [-1, 1].
        scaled = (self.release.source or ("", {}))[1].get("scaled") and repr(domain) == repr(Box(-1.0, 1.0))
        positive = number and (domain.lower == 0 or scaled)
        require(positive or "deviance" not in self.measures, f"{said} Leave measures out.")
        others = [field for field in fields if field not in (self.label, self.group, WEIGHT)]
        remedy = (
            f"Name the field to predict from: features={others[0]!r}." if others else "Add a field to predict from."
        )
        one_of(others).check(caller, remedy, features=self.features)
        lacks = "no function predicts. Pass `predict` or `decision` to dp.Template, or `predictor` to dp.Release: a function of"
        said = f"{caller}: {lacks} (parameters, {self.features}) that returns one value for each record."
        require(self.release.predictor is not None, said)
        for field in self.columns:
            said = f"{caller}: predict needs the field {field!r}"
            require(field in fields, f"{said}; add it to the data.")
            require(field != self.label, f"{said}, which is to be predicted. Leave it out of the function's arguments.")
        rows = {field: middle(fields[field]) for field in self.columns}
        try:
            with np.errstate(all="ignore"):
                shape = np.shape(self.release.applied("predict", rows[self.features], rows))
                one = self.likelihoods if self.cells.likelihood else self.predicted
                given = one(rows).shape if self.target is None else (2,)
        except Exception as error:
            if not strict and not isinstance(error, DPConvexError):  # the parameters of a trial release are zeros
                return
            known = f"{self.features!r} in {fields[self.features]!r:.80}"
            raise TemplateError(f"{caller}: the release does not predict for {known}: {error}") from error
        many = shape[1] if len(shape) == 2 and not self.survives else 0
        said = f"{caller}: predict returns {many or 'one'} number{'s' * (many != 1)} for each record."
        said += which_target(many)
        require(not many if self.target is None else self.target < many, said)
        several = (2, self.cells.labels)
        what = f"{several[1]} probabilities to survive" if self.survives else "one value"
        said = f"{caller}: predict must return {what} for each record, not shape {shape} for 2."
        require(self.target is not None or shape == (several if self.survives else (2,)), said)
        wanted = several if self.cells.likelihood else (2,)
        require(given == wanted, f"{caller}: scores or probabilities have shape {given} for 2 records, not {wanted}.")

    @property
    def survives(self) -> bool:
        """Whether the label is a survival record: for each interval, the share survived (-1 to 0), or 1 for the event."""
        return self.target is None and says_survival(self.record.fields[self.label], self.release)

    @cached_property
    def domain(self) -> Any:
        """The domain of the label, or of its entry `target` if it has several."""
        known: Any = self.record.fields[self.label]
        return (
            known if self.target is None or not known.shape else Box(known.lower[self.target], known.upper[self.target])
        )

    @cached_property
    def cells(self) -> Cells:
        """The cells, derived from the declared domains and measures."""
        domain = self.domain
        release, measures = self.release, self.measures
        groups = 1 if self.group is None else len(self.record.discrete[self.group].values)
        known = self.privacy.adjacency == "replace-one" and groups == 1
        made = partial(Cells, groups=groups, known=known, measures=measures)
        if self.survives:
            return made("survival", self.cuts or ALIVE, labels=domain.shape[0])
        if not isinstance(domain, Choice):
            whole = bool(domain.lower == 0 and domain.upper >= 2)
            upper = float(domain.upper) if whole else PARTS
            return made("numbers", labels=0, upper=upper, centre=self.centre, whole=whole)
        own, count = release.labels == domain.values, len(domain.values)
        models = own and release.probabilities is not None
        if own and count == 2 and not measures and (models or release.decision is not None):
            return made("probabilities" if models else "scores", self.cuts or SCORES)
        return made("labels", labels=count, likelihood=models and not measures)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The fields that predictions need: the features, and further arguments of the predicting functions."""
        known = self.record.fields.keys() - {self.label}
        further = (field for function in self.release.functions.values() for field in further_fields(function, known))
        return tuple(dict.fromkeys((self.features, *further)))

    def applied(self, name: str, rows: Mapping[str, Array]) -> NDArray[Any]:
        """Apply a function of the release to records, given by field; keep the column `target` of several."""
        found = self.release.applied(name, rows[self.features], rows)
        return found if self.target is None else found[:, self.target]

    def predicted(self, rows: Mapping[str, Array]) -> Any:
        """Return the predictions, or the scores in [0, 1] of the second label or of survival, for comparison with labels."""
        kind = self.cells.kind
        if kind == "scores":
            found = np.asarray(self.applied("decision_function", rows), dtype=float)
            return expit(found[:, 1] - found[:, 0] if found.ndim == 2 else found)
        if kind == "survival":
            return np.asarray(self.applied("predict", rows), dtype=float).mean(axis=1)
        return self.likelihoods(rows)[:, 1] if kind == "probabilities" else self.applied("predict", rows)

    def likelihoods(self, rows: Mapping[str, Array]) -> Array:
        """Return the probabilities of all labels, shape (n, labels)."""
        return np.asarray(self.applied("predict_proba", rows), dtype=float)

    @property
    def largest(self) -> int:
        """Largest contribution of one record to a count, in steps."""
        return self.cells.steps(self.privacy)

    @property
    def moved(self) -> int:
        """Sensitivity of the number of mistakes to one person, or to one record without a unit (docs/theory.md, section 21)."""
        return int(self.privacy.person.weight) * self.largest

    def mistakes(self, batch: Batch) -> int:
        """Return the number of wrong labels, or the sum of squared errors relative to the squared range, in steps."""
        return int(self.counts(batch)["error"][1])

    def counts(self, batch: Batch) -> dict[str, Indices]:
        """Return the counts of the cells by table, in steps."""
        found = batch.added_up(counted_in, batch.share(self))
        every = {name: self.cells.groups * math.prod(shape) for name, shape in self.cells.tables.items()}
        flat = found if isinstance(found, np.ndarray) else np.zeros(sum(every.values()), dtype=np.int64)
        return dict(zip(every, np.split(flat, np.cumsum([*every.values()])[:-1]), strict=True))

    def places(self, row: Mapping[str, Array], truth: Any, steps: int) -> list[dict[int, int]]:
        """Return, for each table, the steps that one record adds to the cells of its group."""
        found, domain = None if self.centre is None else self.safely(self.predicted, row), self.domain
        if isinstance(domain, Choice):
            return [{self._of_label(name, row, domain.values, truth, found): steps} for name in self.cells.tables]
        if self.cells.kind == "numbers":
            one = truth[self.target] if np.ndim(truth) else truth
            return self._of_number(domain, float(one), steps, number_of(found))
        # Row: the interval of the event, or the number of survived intervals.  Column: the predicted probability to survive.
        died, score = np.flatnonzero(truth > 0), number_of(found)
        outcome = int(died[0]) if len(died) else self.cells.labels + int(np.sum(truth <= -1))
        return [{self._scored(outcome, float(len(died) > 0) if score is None else score): steps}]

    def _of_number(self, domain: Any, truth: float, steps: int, value: float | None) -> list[dict[int, int]]:
        lower, wide = float(domain.lower), float(domain.upper - domain.lower)
        true = (truth - lower) / wide
        said = float(true < 0.5) if value is None else min(max((value - lower) / wide, 0.0), 1.0)
        apart = true - said if value is not None else 1.0 - 2 * said
        count = truth if self.cells.whole else true * self.cells.upper
        known, found = {"error": apart**2, "centre": true, "counts": count}, []
        known["targets"] = true - (self.cells.centre or 0.0)
        if (
            "deviance" in self.cells.tables
        ):  # relative to the largest deviance; both counts are relative to the largest count
            least = max(said, FAINT)
            far = 2 * self.cells.upper * (float(xlogy(true, true / least)) - true + least)
            known["deviance"] = 1.0 if value is None else far / self.cells.largest_deviance
        for name in self.cells.tables:
            start = cell(PREDICTIONS, said) * len(ROUGHLY) if name == "by_prediction" else 0
            far = known.get(name, apart)
            shared = knots(self.cells.rulers[name], on_ruler(name, far), steps)
            found.append({start + place: count for place, count in shared.items()})
        return found

    def _of_label(self, name: str, row: Mapping[str, Array], labels: Any, truth: Any, found: Any) -> int:
        place = labels.index(truth)
        if name == "likelihood":
            other = self.safely(self.likelihoods, row)
            known = np.shape(other) == (1, len(labels))
            return cell(LIKELY, (number_of(other[:, place]) if known else None) or 0.0)
        if name in ("scores", "probabilities"):
            score = number_of(found)
            return self._scored(place, 1.0 - place if score is None else score)
        wrong = not self.safely(lambda label: label.shape == (1,) and bool(label[0] == truth), found)
        return wrong + 2 * place * (name == "labels")

    def _scored(self, outcome: int, score: float) -> int:
        return outcome * (len(self.cells.cuts) + 1) + cell(self.cells.cuts, score)

    def safely(self, function: Any, given: Any) -> Any:
        """Apply a function of the user to one record; return None if it fails in any way."""
        try:
            return function(given)
        except BaseException:  # MemoryError included: an error would reveal the record
            return None
        finally:
            Interrupt.check()


def which_target(several: int) -> str:
    """Return the remedy for a target that does not fit one number, or several."""
    last = f" to target={several - 1}" * (several > 1)
    return f" Evaluate each by itself, by target=0{last}." if several else " Leave target out."


def says_survival(domain: Any, release: Release) -> bool:
    """Return whether a label holds numbers in [-1, 1] for several intervals, and the release predicts survival."""
    several = isinstance(domain, Box) and len(domain.shape) == 1 and release.probabilities is not None
    return several and bool((domain.upper == 1).all() and (domain.lower == -1).all())


def middle(domain: Domain) -> Array:
    """Return the middle of a domain, or the first value of a Choice, for two records."""
    if isinstance(domain, Choice):
        return domain.array[[0, 0]]
    lower, upper = domain.bounds
    return np.repeat((lower / 2 + upper / 2).reshape(1, *domain.shape), 2, axis=0)


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
    """Return a prediction as a finite real number, or None if it is anything else."""
    try:
        value = complex(found[0])
        return value.real if found.shape == (1,) and value.imag == 0 and math.isfinite(value.real) else None
    except BaseException:
        return None


def alone(value: Any) -> NDArray[Any]:
    return exact_array([value]) if isinstance(value, tuple) else np.asarray(value)[None]


def counted_in(batch: Batch, counter: RecordCounter) -> Indices:
    record, label, cells = counter.record, counter.label, counter.cells
    names = counter.columns
    chosen = {name: choice.array[record.codes(batch, name)] for name, choice in record.discrete.items()}
    columns = [chosen[name] if name in chosen else batch.fields[name] for name in names]
    known = record.values(batch, label) if label in record.discrete else batch.fields[label]
    whose = np.zeros(batch.size, dtype=np.int64) if counter.group is None else record.codes(batch, counter.group)
    # The weights of a person sum to at most 1: rounded down, their steps sum to at most those of one record.
    steps = np.full(batch.size, counter.largest)
    if counter.privacy.keep == "weights":
        steps = np.floor(dense(batch.fields[WEIGHT][:]) * counter.largest).astype(np.int64)
    tables = [np.zeros((cells.groups, math.prod(shape)), dtype=np.int64) for shape in cells.tables.values()]
    parts: Iterator[Any] = zip(*(blocks(column, BLOCK) for column in (*columns, known, whose, steps)), strict=False)
    with one_blas_thread(), silence():
        for *given, truth, group, count in parts:
            # Arrays of integers and texts need no freezing: `alone` copies each entry.
            read = [frozen(found) if (found := dense(one)).dtype == float else found for one in given]
            for *own, y, mine, weight in zip(*read, dense(truth), group, count, strict=True):
                row = {field: alone(value) for field, value in zip(counter.columns, own, strict=True)}
                for table, places in zip(tables, counter.places(row, y, int(weight)), strict=True):
                    for place, count in places.items():
                        table[mine, place] += count
    return np.concatenate([table.ravel() for table in tables])
