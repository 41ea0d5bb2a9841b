"""Privacy units: identifiers as numbers, limits on the records of each unit, and weights (docs/unit.md)."""

from collections.abc import Mapping, Set, Sized
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.batch import Batch, PartitionedBatch
from dpconvex.data.domains import Box
from dpconvex.data.partitions import Partitions
from dpconvex.data.record import Record, require_arrays
from dpconvex.data.tables import identifiers_of, reads_as_missing, value_of
from dpconvex.errors import DomainError, TemplateError
from dpconvex.expressions.from_cvxpy import field_of
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.util.arguments import require
from dpconvex.util.arrays import frozen
from dpconvex.util.runtime import once

IDENTIFIERS = {int: "numbers", float: "numbers", bool: "numbers", str: "texts", bytes: "bytes"}
IDENTIFIERS |= {date: "dates", datetime: "times"}
WEIGHT = "weight_of_a_record"  # The field that keep="weights" adds to a template and to data
NO_UNIT = 'unit: `privacy` declares no unit. Write dp.Privacy(..., unit="patient", most=3).'
WEIGHTED = WeakSet[Template]()


@dataclass(frozen=True, eq=False)
class People:
    """The units of records: the number of each kept record's unit, from 0 (`of`), and the mask of kept records, shape (n,)."""

    of: NDArray[np.int64]
    kept: NDArray[np.bool_]
    weighted: bool

    @classmethod
    def read(cls, privacy: Privacy, given: Any, records: int, rng: np.random.Generator) -> Self:
        """Read one identifier per record; for units above the declared limit, raise or keep only some records."""
        unit = privacy.unit
        require(given is not None, f"unit: the privacy unit is a {unit}; pass unit=, one identifier for each record.")
        wrong = isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Sized)
        if wrong or len(getattr(given, "shape", (records,))) != 1 or len(given) != records:
            raise DomainError(f"unit: expected one identifier of the {unit} for each of {records} records.")
        of, known = identifier_codes(given, unit or "person")
        order = np.lexsort((rng.random(records) if privacy.keep == "random" else np.arange(records), of))
        counts = np.bincount(of, minlength=len(known))
        rank = np.empty(records, dtype=np.int64)
        rank[order] = np.arange(records) - np.repeat(np.cumsum(counts) - counts, counts)
        kept = rank < privacy.most
        why = f"one {unit} has more than the declared {privacy.most} records; nothing was spent"
        how = "Declare more (most=, --most), or keep some: Privacy(..., keep='random') (--keep random)"
        require(kept.all() or privacy.keep in ("first", "random"), f"unit: {why}. {how}.", DomainError)
        return cls(frozen(of[kept]), frozen(kept), privacy.keep == "weights")

    @property
    def size(self) -> int:
        """Number of kept records, or of people if records are weighted."""
        return len(np.unique(self.of)) if self.weighted else len(self.of)

    def cut(self, batch: Batch) -> Batch:
        if batch.size != len(self.kept):
            raise DomainError("records and identifiers differ in number; nothing is released. Data must not change.")
        return batch if self.kept.all() else batch.chosen(self.kept)

    def chosen(self, rows: NDArray[np.bool_]) -> "People":
        """Return the people of some of the kept records, numbered anew; `rows` is a mask of the kept records."""
        of = np.unique(self.of[rows], return_inverse=True)[1]
        return People(frozen(of), frozen(np.ones(len(of), dtype=bool)), self.weighted)

    def check_together(self, data: Any) -> None:
        """Raise if the records of a unit lie in several partitions, because the sum of their gradients is clipped."""
        if not isinstance(data, Partitions | PartitionedBatch):
            return
        where = np.repeat(np.arange(len(data.sizes)), data.sizes)[self.kept]
        if len(np.unique(np.stack([self.of, where]), axis=1)[0]) > len(np.unique(self.of)):
            why = "the records of a unit lie in several partitions, and the sum of their gradients is clipped"
            remedy = "Make partitions by unit, pass keep=True to from_query, or take another mechanism"
            raise DomainError(f"unit: {why}; nothing was spent. {remedy}.")

    def with_weights(self, data: Any) -> Any:
        """Return data with a weight for each record: 1 over the number of records of its person, rounded down."""
        require_arrays('keep="weights"', data, "pass arrays, or ask for no weights")
        counts = np.bincount(self.of)
        each = np.where(counts > 1, np.nextafter(1.0 / np.maximum(counts, 1), 0.0), 1.0)
        return {**{name: data[name] for name in data.keys()}, WEIGHT: each[self.of]}  # noqa: SIM118


def identifier_codes(given: Any, unit: str = "person") -> tuple[NDArray[np.int64], list[Any]]:
    """Return numbers of identifiers, by their first occurrence, and the distinct identifiers; raise for missing or mixed ones."""
    entries: list[Any] = identifiers_of(given)
    if any(map(reads_as_missing, entries)):
        raise DomainError("unit: some records have no identifier; give each its own, or leave them out.")
    # `to_pydatetime` converts timestamps of pandas to times of Python.
    entries = [e.to_pydatetime(warn=False) if hasattr(e, "to_pydatetime") else e for e in entries]
    others = {type(entry).__name__ for entry in entries if type(entry) not in IDENTIFIERS}
    if others:  # an entry unequal to itself, such as a decimal NaN, would be a new person in each record
        raise DomainError(f"unit: identifiers must be numbers, texts or dates, not of type {min(others)}.")
    kinds = {IDENTIFIERS[type(e)] + " with a time zone" * bool(getattr(e, "tzinfo", None)) for e in entries}
    if len(kinds) > 1:  # 7 and "7" would be two people
        both = " and ".join(sorted(kinds))
        raise DomainError(f"unit: identifiers are {both}; nothing was spent. Make them all of one kind.")
    if "times with a time zone" in kinds:  # Python may distinguish one time in two zones, at a change of clocks
        entries = [entry.astimezone(UTC) for entry in entries]
    known: dict[Any, int] = {}
    of = np.array([known.setdefault(entry, len(known)) for entry in entries], dtype=np.int64)
    if kinds == {"texts"} and len({value_of(entry) for entry in known}) < len(known):
        why = "some identifiers differ as texts, but are the same number, time or word, such as '7' and '07'"
        remedy = f"Spell each {unit} in one way (accents, too, have two spellings in Unicode)"
        raise DomainError(f"unit: {why}; nothing was spent. {remedy}.")
    return of, list(known)


def template_to_fit(template: Template, privacy: Privacy) -> Template:
    """Return the template to fit: with a weight for each record, if the guarantee weights records."""
    return template if privacy.keep != "weights" or template in WEIGHTED else weighted(template)


@once
def weighted(template: Template) -> Template:
    """Return the template of weighted records: the loss is multiplied by a weight between 0 and 1."""
    if WEIGHT in template.record.fields:
        raise TemplateError(f'keep="weights" adds a field named {WEIGHT!r}; give yours another name.')
    extra = Record(**{WEIGHT: Box(0.0, 1.0)})
    record, weight = copy(template.record), field_of(extra.parameters[WEIGHT])
    more = {name: {**getattr(record, name), **getattr(extra, name)} for name in ("fields", "continuous", "parameters")}
    record.__dict__.update({name: MappingProxyType(values) for name, values in more.items()})
    made = template.with_parts(record=record, losses=tuple(weight * loss for loss in template.losses))
    WEIGHTED.add(made)
    return made
