"""Learnt bounds: a schema whose bounds and levels are read off noisy counts (docs/theory.md, section 23).

Every column gets a share of the level.  Of numbers and days, counts by powers of two say how large they are, and two
counts in equal cells where they lie.  Of categories, levels are kept whose noisy counts no single person can reach.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from dpconvex.accounting.budget import Budget, pay
from dpconvex.accounting.events import Composition, Gaussian, Tail
from dpconvex.certificates.integer_noise import GAUSSIAN, measurement
from dpconvex.data.learnt import Learnt
from dpconvex.data.schema import MANY, Schema
from dpconvex.data.schema_columns import INDICATOR, Categorical, Column, Date, Numeric, column_of
from dpconvex.data.tables import (
    MISSING,
    day,
    is_missing,
    listed,
    number,
    plain,
    table_of,
    text_of,
    value_of,
    values_of,
)
from dpconvex.errors import NotConverged, NotPrivate, TemplateError
from dpconvex.mechanisms.adaptive_steps import whole_level
from dpconvex.mechanisms.noisy_queries import ROOM, Queries, deviation
from dpconvex.model.people import People
from dpconvex.model.privacy import Privacy, check_privacy, computable
from dpconvex.noise.profiles import GRID_LOSS
from dpconvex.noise.samplers import NoiseSource
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.deprecated import public

NUMBER, DATE, CATEGORY = KINDS = "number", "date", "category"
ORIGIN, LAST = date(2000, 1, 1).toordinal(), date.max.toordinal()  # Days are counted from the first
WHOLE = 2**16  # What all records of a person count together
ROOT_TWO = math.sqrt(2) * (1 + 1e-15)
OCTAVE = 1000  # Numbers beyond 2^1000 count as such, those below 2^-1000 as 0
# Shares of the squared level: of the label against one feature, of a noisy number of records, of a column's kind, and of the
# three looks at numbers.  Part of delta that levels may lose which one person alone has.
TARGET, COUNTING, KIND, LOOKS, STABLE = 2.0, 0.02, 0.1, (0.5, 0.25, 0.25), 0.1
# Deviations of the noise above which the largest of all cells is no noise, a neighbour of it, what is missing or left over,
# and the sum of cells at an end; the share that may be cut off at each end; and cells of a look at numbers.
SURE, NEAR, SOME, FLOOR, SPARSE, CELLS = 4.5, 2.0, 3.0, 0.7, 0.05, (4, 64)
COARSE = (4, 70.0), (2, 150.0)
COVERED = 1.645  # Deviations that noise exceeds with a probability of 0.05


@public
def learn_schema(
    table: Any,
    privacy: Privacy,
    *,
    label: str,
    known: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    label_bounds: tuple[float, float] | None = None,
    ignore: Sequence[str] = (),
    absent: Sequence[str] = (),
    unit: Any = None,
    budget: Budget | None = None,
    entry: str = "learn_schema",
    seed: int | None = None,
) -> Schema:
    """Learn a schema privately: the kinds of columns, bounds, levels, and labels or bounds of the target.

    Formal guarantee: (epsilon, delta)-differential privacy for the adjacency and the unit of `Privacy`, by theorem 23.1 of
    docs/theory.md.  Public are the names of the columns and what you pass; under replace-one, the number of records, too.
    No value of the table makes this raise: what cannot be read counts as missing.  Too few records are refused, before anything
    is paid if public numbers tell, and else by noisy counts, after it.

    Parameters
    ----------
    table : data frame, mapping of str to column, or path
        As for `Schema.encode`.  Types of its columns are not looked at: a file's reader may have guessed them from the records.
    privacy : Privacy
        The guarantee of the schema, with a delta; a fit costs its own on top.
    label : str
        The column to be predicted.
    known : mapping of str to object, optional
        What is public of columns: "number", "date" or "category", whose bounds or levels are learnt; or a whole declaration, as a
        `Schema` takes it, which costs nothing.  The kind of other columns is learnt.
    labels, label_bounds : optional
        The labels, or the bounds of the target, where they are public.
    ignore : sequence of str
        Columns that are not used.  Each one that is used gets a share of the guarantee.
    absent : sequence of str
        Texts that stand for a missing value, besides those that pandas reads so.
    unit : str or array_like, shape (n,), optional
        Where the guarantee has a unit: the column, or identifiers, that say whose a record is.
    budget, entry, seed
        As for `solve`.

    Returns
    -------
    Schema
        It moves numbers to its bounds; its `learnt` says what it cost.  Columns that showed nothing are ignored.

    Raises
    ------
    NotPrivate, TemplateError, BudgetExceeded
        If there are too few records, or arguments make no sense; nothing was spent.
    NotConverged
        If noise hides the label or all features; what was paid stays paid.

    Examples
    --------
    >>> import numpy as np
    >>> table = {"age": np.arange(4000) % 90, "ward": ["east", "west"] * 2000, "cost": np.arange(4000.0)}
    >>> schema = learn_schema(table, Privacy(1.0, 1e-6), label="cost", seed=0)
    >>> list(schema.features), schema.features["ward"].levels
    (['age', 'ward'], ('east', 'west'))
    """
    check_privacy("learn_schema", privacy, units=True)
    if privacy.pure:
        raise NotPrivate(
            "levels that only one person has are hidden by a delta", str(privacy), "ask for a delta, such as 1e-6"
        )
    given, mine = table_of(table), [unit] if isinstance(unit, str) else []
    names = [name for name in given.names if name and name not in (label, *mine, *ignore)]
    head: dict[str, Any] = {
        "label": label,
        "labels": labels,
        "label_bounds": label_bounds,
        "absent": absent,
        "clip": True,
    }
    head["privacy_unit"] = unit if mine else None
    stands = {"label_bounds": (0, 1)} if labels is None and label_bounds is None else {}
    Schema(dict.fromkeys(names, (0, 1)), ignore=ignore, **head | stands)  # which refuses what makes no sense
    columns, known = given.columns([*names, label, *mine]), dict(known or {})
    for name, kind in known.items():
        if name not in names and (name != label or kind not in KINDS or not stands):
            raise TemplateError(
                f"learn_schema: known is about {name!r}, which is no feature; labels=, label_bounds= are the label's."
            )
        if isinstance(kind, str) and kind not in KINDS:
            raise TemplateError(f"learn_schema: the kind of {name!r} must be one of {', '.join(KINDS)}, not {kind!r}.")
    kinds = {
        name: known.get(name) for name in (*([label] if stands else []), *names) if known.get(name) in (None, *KINDS)
    }
    declared: dict[str, Column | None] = {name: column_of(name, known[name]) for name in names if name not in kinds}
    source, records = NoiseSource(seed), len(columns[label])
    weights = np.full(records, WHOLE, dtype=np.int64)
    if privacy.unit is not None:
        people = People.read(privacy, columns[unit] if mine else unit, records, source.rng)
        weights[~people.kept] = 0
        weights[people.kept] = WHOLE // np.bincount(people.of)[people.of]
    elif unit is not None:
        raise TemplateError('unit: the guarantee says nothing of one: dp.Privacy(..., unit="patient", most=3).')
    public = records if privacy.unit is None and privacy.adjacency == "replace-one" else None
    with computable(privacy):
        plan = Plan.of(privacy, kinds, label, public)
    if source.seeded is None:
        measurement(GAUSSIAN, float(WHOLE))  # OpenDP is there, and draws it
    spend = f"{entry} {secrets.token_hex(4)}"
    pay(budget, privacy, spend, plan.event)
    marks = {value for text in absent for value in values_of(text)}
    counts = Counts(Queries(plan.level, source.seeded), weights, privacy.adjacency == "replace-one", plan.tail)
    size = float(public or 0) or max(counts.people(plan.part(COUNTING)), 1.0)
    outside: dict[str, float] = {}
    for name, share in plan.shares.items():
        look = Look(counts, Entries.read(columns[name], marks), plan.part(share), size)
        declared[name] = look.column(kinds[name])
        outside[name] = look.outside
    target = declared.pop(label, None)
    features = {name: declared[name] for name in names if declared.get(name) is not None}
    unknown = label in outside and not isinstance(target, Numeric | Categorical)
    if unknown or not features:
        what = f"the label {label!r}" if unknown else "every feature"
        why = f"noise for {privacy} hides {what}; nothing is released, and what was paid stays paid"
        raise NotConverged(
            f"learn_schema: {why}. Ask for a larger epsilon, use fewer columns (ignore=), or declare them."
        )
    otherwise: Any = None
    if isinstance(target, Categorical):
        head["labels"], otherwise = target.levels, target.reference
    elif isinstance(target, Numeric):
        head["label_bounds"], otherwise = target.ends, (target.lower + target.upper) / 2
    rest = tuple(name for name in given.names if name and name not in (*features, label, *mine))
    kept = {name: part for name, part in outside.items() if name == label or name in features}
    because = source.spending(privacy)["not_private_because"]
    paid = {key: value for key, value in privacy.to_dict().items() if value is not None}
    learnt = Learnt(paid, plan.event.to_dict(), spend, kept, otherwise, because)
    return Schema(features, ignore=rest or None, learnt=learnt, **head)


@dataclass(frozen=True)
class Plan:
    """The level of all counts together, what shares of its square columns have, and what the whole is for accounting."""

    level: float
    tail: float  # Probability with which a level of one column may pass that one person alone has
    shares: Mapping[str, float]
    event: Composition

    def part(self, share: float) -> float:
        return self.level * math.sqrt(share) * (1 - 1e-9)

    @classmethod
    def of(cls, privacy: Privacy, kinds: Mapping[str, str | None], label: str, size: int | None) -> Self:
        """Divide a guarantee, or refuse one whose noise hides so many columns of so many records; no value is read."""
        if not kinds:
            raise TemplateError("learn_schema: every column is declared; write a Schema, which costs nothing.")
        stable = sum(kind in (None, CATEGORY) for kind in kinds.values())
        lost = STABLE * privacy.delta / (1 + math.exp(min(privacy.epsilon, 700.0))) if stable else 0.0
        level = whole_level(privacy.part(privacy.epsilon, privacy.delta * (1 - STABLE * bool(stable))))
        weights = {name: TARGET if name == label else 1.0 for name in kinds}
        total = math.fsum(weights.values())
        rest = 1.0 if size is not None else 1 - COUNTING
        shares = {name: rest * weight / total for name, weight in weights.items()}
        parts = (Gaussian(level * ROOM), Tail(GRID_LOSS), *([Tail(lost)] if stable else []))
        found = cls(level, lost / (max(stable, 1) * privacy.most), shares, Composition(parts))
        first = found.part(min(shares.values()) * LOOKS[0] * (1 - KIND))
        needed = 2 * SURE * (ROOT_TWO if privacy.adjacency == "replace-one" else 1.0) / first
        if size is not None and size < needed:
            why = f"the noise hides the columns of fewer than {math.ceil(needed)} records; there are {size}, and {len(kinds)} columns"
            remedy = "ask for a larger epsilon, use fewer columns (ignore=), or declare what is public of them (known=)"
            raise NotPrivate(f"learn_schema: {why}. Nothing was spent", privacy, remedy)
        return found


@dataclass(frozen=True)
class Entries:
    """The entries of a column: the place of each among the different ones, and what each of these is, by itself."""

    places: Indices
    kinds: Indices  # 0 for one that is missing or of no kind, else 1 and the place among KINDS
    numbers: Array
    days: Array
    texts: list[str]

    @classmethod
    def read(cls, values: NDArray[Any], marks: set[Any]) -> Self:
        if values.dtype.kind in "iuf":
            different, places = np.unique(values, return_inverse=True, equal_nan=True)
            known = [facts(entry, marks) for entry in listed(different)]
        else:
            seen: dict[Any, tuple[int, Any]] = {}
            places = np.array([seen.setdefault(key_of(e), (len(seen), e))[0] for e in values.tolist()], dtype=np.int64)
            known = [facts(entry, marks) for _, entry in seen.values()]
        kinds, numbers, days, texts = zip(*known, strict=True) if known else ((), (), (), ())
        return cls(places, np.array(kinds, np.int64), np.array(numbers, float), np.array(days, float), list(texts))

    def of_kind(self, kind: str) -> Array:
        """Return each record's number, or its day from the origin on, NaN where there is none, shape (n,)."""
        found = self.numbers if kind == NUMBER else self.days - ORIGIN
        return np.where(np.isfinite(found), found, np.nan)[self.places]


def key_of(entry: Any) -> Any:
    """Return what entries share that are read alike: equal ones need not be, such as one time in two zones."""
    if type(entry) in (str, int, float, bool):
        return type(entry), entry if entry == entry else None
    try:
        return type(entry), repr(entry)
    except Exception:  # of an object that may do anything
        return None


def facts(entry: Any, marks: set[Any]) -> tuple[int, float, float, str]:
    """Return what an entry is: its kind, its number, its day and its text; the same whatever else is in the column."""
    entry = plain(entry)
    value = math.nan if is_missing(entry) or (isinstance(entry, str) and entry in MISSING) else value_of(entry)
    if value != value or value in marks:
        return 0, math.nan, math.nan, ""
    as_number, as_day = number(entry), float(day(entry))
    kind = 1 if math.isfinite(as_number) else 2 if math.isfinite(as_day) else 3
    return kind, as_number, as_day, text_of(entry)


@dataclass
class Counts:
    """The records behind their noise: each is in one cell of a count, and all records of a person weigh one together."""

    queries: Queries
    weights: Indices
    replaced: bool
    tail: float  # Probability with which a level may pass that one person alone has

    @property
    def moved(self) -> float:
        return WHOLE * (ROOT_TWO if self.replaced else 1.0)

    def sigma(self, level: float) -> float:
        """Return the standard deviation of a noisy count, in people."""
        return deviation(self.moved, level) / WHOLE

    def noisy(self, places: Indices, cells: int, level: float) -> Array:
        sums = np.bincount(places, self.weights, cells).astype(np.int64)  # exact: they are below 2^53
        return np.asarray(self.queries.noisy(sums, self.moved, level), dtype=float) / WHOLE

    def people(self, level: float) -> float:
        total = np.array([self.weights.sum()], dtype=np.int64)
        return float(self.queries.noisy(total, float(WHOLE), level)[0]) / WHOLE


@dataclass
class Look:
    """One column behind its noise, with its share of the level and the number of people, which is public or noisy."""

    counts: Counts
    entries: Entries
    level: float
    people: float
    outside: float = 1.0

    def part(self, share: float) -> float:
        return self.level * math.sqrt(share) * (1 - 1e-9)

    def column(self, kind: str | None) -> Column | None:
        """Return the declaration of the column; None if it shows nothing, or the same in all records."""
        kind = self.kind() if kind is None else kind
        if kind == CATEGORY:
            levels, missing, rest = self.levels()
            if len(levels) < 2:
                return None
            first, absent = next(iter(levels)), missing > SOME
            return Categorical(sorted(levels), rest > SOME, INDICATOR if absent else first, first)
        found = self.bounds(kind)
        if found is None:
            return None
        low, high, absent = found
        if kind == NUMBER:
            return Numeric(low, high, INDICATOR if absent else (low + high) / 2)
        first, last = (
            date.fromordinal(int(np.clip(day + ORIGIN, 1, LAST))) for day in (math.floor(low), math.ceil(high))
        )
        return Date(first, last, INDICATOR if absent else first)

    def kind(self) -> str:
        """Return the kind that most entries have, and keep the rest of the level."""
        found = self.counts.noisy(self.entries.kinds[self.entries.places], 1 + len(KINDS), self.part(KIND))
        self.level = self.part(1 - KIND)
        return KINDS[int(np.argmax(found[1:]))]

    def levels(self) -> tuple[dict[str, float], float, float]:
        """Return the levels that many have, the most frequent first; and what is missing and left over, in deviations of its noise."""
        kinds, texts = self.entries.kinds, self.entries.texts
        names = sorted({text for text, kind in zip(texts, kinds, strict=True) if kind})
        place = {text: k + 1 for k, text in enumerate(names)}
        of = np.array([place[text] if kind else 0 for text, kind in zip(texts, kinds, strict=True)], dtype=np.int64)
        missing, *found = self.counts.noisy(of[self.entries.places], 1 + len(names), self.part(1.0)).tolist()
        sigma = self.counts.sigma(self.part(1.0))
        least = 1 + sigma * float(norm.isf(self.counts.tail)) * (1 + 1e-9) + 2 / WHOLE
        common = sorted(((n, name) for n, name in zip(found, names, strict=True) if n >= least), reverse=True)[:MANY]
        rest = self.people - missing - sum(n for n, _ in common)
        self.covered(sum(n for n, _ in common), sigma * math.sqrt(max(len(common), 1)))
        return {name: n for n, name in common}, missing / sigma, rest / (sigma * math.sqrt(1 + len(common)))

    def covered(self, inside: float, sigma: float) -> None:
        off = self.people - inside + COVERED * sigma
        self.outside = min(max(off / max(self.people, 1.0), 0.0), 1.0)

    def bounds(self, kind: str) -> tuple[float, float, bool] | None:
        """Return bounds, and whether many records are missing; None where noise hides all numbers but 0."""
        values = self.entries.of_kind(kind)
        first, *further = (self.part(share) for share in LOOKS)
        sigma = self.counts.sigma(first)
        width = next((width for width, least in COARSE if self.people < least * sigma), 1)
        found = self.counts.noisy(*octaves(values, width), first)
        missing, large = found[0] > SOME * sigma, np.flatnonzero(found[2:] > SURE * sigma)
        if not len(large):
            return None
        top = int(large[-1]) + 2
        while (found[top + 1 : top + 3] > NEAR * sigma).any():
            top += 1
        high = 2.0 ** min((top - 1) * width - OCTAVE - 1, OCTAVE)
        low = -high
        for level in further:
            low, high = self.narrowed(values, low, high, level)
        return low, high, bool(missing)

    def narrowed(self, values: Array, low: float, high: float, level: float) -> tuple[float, float]:
        """Return closer bounds: of equal cells between two bounds, those at both ends are cut off that hardly any record is in."""
        sigma = self.counts.sigma(level)
        cells = int(np.clip(self.people / (4 * sigma), *CELLS))
        found = self.counts.noisy(in_cells(values, low, high, cells), cells + 3, level)[1 : cells + 1]
        least = max(FLOOR * sigma, SPARSE * self.people / cells)
        sums = np.concatenate([[0.0], np.cumsum(found - least)])
        first, last = divmod(int(np.argmax(np.triu(sums - sums[:, None], 1) - np.tri(cells + 1) * 1e300)), cells + 1)
        self.covered(float(found[first:last].sum()), sigma * math.sqrt(last - first))
        width = (high - low) / cells
        return low + first * width, low + last * width


def octaves(values: Array, width: int) -> tuple[Indices, int]:
    """Return the cells of numbers by size, and how many there are: 0 of NaN, 1 of 0, then of so many powers of two each.

    The smallest power of two that is no less than a number says which, whatever its sign.
    """
    parts, powers = np.frexp(np.abs(values))
    place = np.clip(powers - (parts == 0.5) + OCTAVE, -1, 2 * OCTAVE) // width + 2
    place = np.where(np.isnan(values), 0, np.where((values == 0) | (place < 2), 1, place))
    return place.astype(np.int64), 2 * OCTAVE // width + 3


def in_cells(values: Array, low: float, high: float, cells: int) -> Indices:
    """Return equal cells (a, b] of numbers between two bounds, from 1 on; 0 below, then above, and last of NaN."""
    with np.errstate(invalid="ignore"):
        place = np.clip(np.ceil((values - low) / (high - low) * cells), 1, cells)
        place = np.where(values < low, 0, np.where(values > high, cells + 1, place))
    return np.where(np.isnan(values), cells + 2, place).astype(np.int64)
