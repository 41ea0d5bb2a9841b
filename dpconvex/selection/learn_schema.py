"""Learn the bounds and levels of a schema from noisy counts (docs/theory.md, section 23).

Each column gets a share of the level.  For numbers and days, a histogram by powers of two finds their magnitude, and two
histograms of equal cells their range.  A level of a category is kept if its noisy count exceeds what one person can cause.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpconvex.accounting.budget import RARE, Budget, charge, charge_schema
from dpconvex.accounting.events import Approximate, Composition, Gaussian, Tail
from dpconvex.data import tables
from dpconvex.data.columns import check_aligned
from dpconvex.data.draft import MANY
from dpconvex.data.encoded import learnt_cost
from dpconvex.data.learnt import Learnt, Origin
from dpconvex.data.partitions import Partitions, tables_in
from dpconvex.data.schema import Schema, check_unit
from dpconvex.data.schema_columns import INDICATOR, Categorical, Column, Date, Numeric, column_of
from dpconvex.data.tables import to_float
from dpconvex.errors import NotConverged, NotPrivate
from dpconvex.mechanisms.adaptive_steps import total_level
from dpconvex.mechanisms.noisy_queries import QueryNoise, noise_scale
from dpconvex.model.people import NO_UNIT, People
from dpconvex.model.privacy import Privacy, calibration, check_privacy
from dpconvex.noise.discrete import GAUSSIAN, measurement
from dpconvex.noise.gaussian import GRID_LOSS
from dpconvex.noise.samplers import NoiseSource
from dpconvex.numerics import NORM_SLACK
from dpconvex.sums.private_queries import ROOT_TWO
from dpconvex.util.arguments import Kind, require
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import quietly

DECLARED = Kind(
    "a Schema, or a mapping from columns to declarations", lambda value: isinstance(value, Schema | Mapping)
).or_none
NUMBER, DATE, CATEGORY = KINDS = "number", "date", "category"
ORIGIN, LAST = date(2000, 1, 1).toordinal(), date.max.toordinal()  # Days are counted from `ORIGIN`
WHOLE = 2**16  # Total weight of the records of a person
OCTAVE = 1000  # Magnitudes are clipped to 2^1000; those below 2^-1000 count as 0
# Shares of the squared level: of the label relative to a feature, of the noisy number of people, of a column's kind, and of
# the three histograms of numbers.
TARGET, COUNTING, KIND, HISTOGRAM_SHARES = 4.0, 0.02, 0.1, (0.4, 0.3, 0.3)
# Thresholds in standard deviations of the noise.  A cell holds records if its count exceeds SURE, or FAR beyond 2^COMMON, where
# cells are so many that noise would exceed SURE too often.  The cell next to it must exceed NEAR, a sum of further cells SOME.
# A column needs ENOUGH * SURE records.  With probability 0.95, no run of k cells has noise above COVERED * sqrt(k).
SURE, FAR, COMMON, NEAR, SOME, ENOUGH, COVERED = 4.8, 6.0, 64, 2.5, 3.0, 3.0, 2.2415
COARSE = (4, 70.0), (2, 150.0)  # (powers of two in a cell, used if people are fewer than so many deviations)
# Histograms of equal cells have CELLS cells.  The chosen run of cells maximises the sum of the counts, less a price for each cell
# of FLOOR deviations, or SPARSE of an even share of the people.  A bound within ZERO lengths of the interval from 0 becomes 0.
CELLS, FLOOR, SPARSE, ZERO = (4, 64), 0.7, 0.05, 0.05


@quietly
def learn_schema(
    table: Any,
    privacy: Privacy,
    *,
    label: str,
    known: Mapping[str, Any] | Schema | None = None,
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
    docs/theory.md.  Public inputs are the names of the columns and your arguments; under replace-one, the number of records,
    too.  Types of columns are not read, and no value raises an error.

    Parameters
    ----------
    table, label, labels, label_bounds, absent : object
        As for `Schema` and its `encode`.  The table may also be a folder of Parquet files, or `Partitions`, each of which is read
        once.  Labels, or bounds of the target, are learnt unless you pass them.
    privacy : Privacy
        The guarantee of the schema, with a delta.  A fit has its own cost in addition.
    known : mapping of str to object, or Schema, optional
        Public facts on columns: "number", "date" or "category", whose bounds or levels are learnt, or a whole declaration as for
        `Schema`, which costs nothing.  The kind of other columns is learnt.  Or an earlier learnt schema: its features, and no
        others, are taken over for another label.
    ignore : sequence of str
        Columns that are not used.  Each used column gets a share of the guarantee.
    unit : str or array_like, shape (n,), optional
        If the guarantee has a unit: the column of identifiers, or the identifiers of the people.
    budget, entry, seed
        As for `solve`.

    Returns
    -------
    Schema
        The schema clips numbers to its bounds; `learnt` states its cost.  Columns without frequent values are ignored.

    Raises
    ------
    NotPrivate, TemplateError, BudgetExceeded
        If there are too few records, or arguments are invalid; nothing was charged.
    NotConverged
        If noise hides the label or all features; the charge stays.

    Examples
    --------
    >>> import numpy as np
    >>> table = {"age": np.arange(4000) % 90, "ward": ["east", "west"] * 2000, "cost": np.arange(4000.0)}
    >>> schema = learn_schema(table, Privacy(1.0, 1e-6), label="cost", seed=0)
    >>> list(schema.features), schema.features["ward"].levels
    (['age', 'ward'], ('east', 'west'))
    """
    check_privacy("learn_schema", privacy, units=True)
    earlier = known if isinstance(known, Schema) else None
    check_unit(privacy.unit, Origin((), getattr(table, "privacy_unit", None)), earlier)
    if privacy.pure:
        raise NotPrivate("a delta hides levels that one person alone has", privacy, "ask for a delta, such as 1e-6")
    said = "learn_schema: of Partitions, name the column of identifiers, as unit='patient'."
    require(isinstance(unit, str | None) or not isinstance(table, Partitions), said)
    head: dict[str, Any] = {"label": label, "labels": labels, "label_bounds": label_bounds, "absent": absent}
    head |= {"clip": True, "privacy_unit": unit if isinstance(unit, str) else None}
    asked = SchemaRequest.of(table, known, head, ignore)
    columns, size = asked.columns, len(asked.columns[label])
    source, weights = NoiseSource(seed), np.full(size, WHOLE, dtype=np.int64)
    if privacy.unit is not None:
        check_aligned({"the table": table, "unit": unit})
        people = People.read(privacy, columns[unit] if isinstance(unit, str) else unit, size, source.rng)
        # Texts of dropped records must not become levels.
        columns = {name: values[people.kept] for name, values in columns.items()}
        weights = WHOLE // np.bincount(people.of)[people.of]
    require(unit is None or privacy.unit is not None, NO_UNIT)
    replaced = privacy.adjacency == "replace-one"
    public_size = len(weights) if privacy.unit is None and replaced else None
    with calibration(privacy):
        level, tail, shares, event = counting_plan(privacy, asked.kinds, label, public_size)
    if source.seeded is None:
        measurement(GAUSSIAN, float(WHOLE))  # raises before the charge if OpenDP cannot draw it
    spend = f"{entry} {secrets.token_hex(8)}"
    charge_schema(budget, learnt_cost([earlier]))
    charge(budget, privacy, spend, event)
    marks = frozenset(value for text in absent for value in tables.values_of(text))
    counts = Counts(QueryNoise(level, source.seeded), weights, WHOLE * (ROOT_TWO if replaced else 1.0), tail)
    everybody = np.zeros(len(weights), dtype=np.int64)
    counts.people = public_size or max(float(counts.noisy(everybody, 1, level_share(level, COUNTING))[0][0]), 1.0)
    before = None if earlier is None else earlier.learnt
    outside, found = dict(before.columns) if before else {}, dict(asked.declared)
    for name, share in shares.items():
        found[name] = counts.column(columns[name], marks, asked.kinds[name], level_share(level, share))
        outside[name] = counts.outside
    target = asked.target(found.pop(label, None), privacy)
    features = {name: column for name in asked.names if (column := found[name]) is not None}
    how = "ignore columns, or declare them (known=; on the command line, a schema)"
    require(features, hidden(privacy, "every feature", how), NotConverged)
    outside = {name: share for name, share in outside.items() if name in (*features, label)}
    paid = {key: value for key, value in privacy.to_dict().items() if value is not None}
    because, otherwise = source.spending(privacy)["not_private_because"], target.pop("otherwise", None)
    learnt = Learnt(paid, event.to_dict(), spend, outside, otherwise, because, before)
    used = (*features, label, head["privacy_unit"])
    rest = tuple(name for name in asked.every if name not in used)
    return Schema(features, ignore=rest or None, learnt=learnt, **head | target)


@dataclass
class SchemaRequest:
    """The columns of a table, and the public declarations and questions about them."""

    every: list[str]  # Names of all columns
    names: list[str]  # Those of features
    columns: dict[str, NDArray[Any]]
    declared: dict[str, Column | None]  # Features that are known
    kinds: dict[str, str | None]  # Columns to learn, with their declared kinds, or None
    label: str

    @classmethod
    def of(cls, table: Any, known: Any, head: Mapping[str, Any], ignore: Sequence[str]) -> Self:
        """Read the columns of a table; raise if the declarations are inconsistent."""
        label, unit = head["label"], head["privacy_unit"]
        DECLARED.check("learn_schema", known=known)
        parts, mine = tables_in(table), [unit] * (unit is not None)
        given = next(parts)
        every = [name for name in given.names if name]
        names = [name for name in every if name not in (label, *mine, *(ignore or ()))]
        if isinstance(known, Schema):
            names = [name for name in names if name in known.features]
            known = {name: known.features[name] for name in names}
        known, learns_label = dict(known or {}), head["labels"] is None and head["label_bounds"] is None
        stands = {"label_bounds": (0, 1)} if learns_label else {}
        # It raises for inconsistent declarations.
        Schema(dict.fromkeys(names, (0, 1)), ignore=ignore, **{**head, **stands})
        read = [one.columns([*names, label, *mine]) for one in chain([given], parts)]
        columns = {name: tables.concatenate_values([own[name] for own in read]) for name in read[0]}
        kinds = {name: known.pop(name, None) for name in [*([label] if learns_label else []), *names]}
        whole = [name for name in names if not isinstance(kinds[name], str | None)]
        declared: dict[str, Column | None] = {name: column_of(name, kinds.pop(name)) for name in whole}
        wrong = [*known, *(name for name, kind in kinds.items() if kind not in (None, *KINDS))]
        wrong = wrong or [label] * (kinds.get(label) == DATE)  # nothing predicts a date
        said = f"known must say {', '.join(KINDS)}, or the declaration of a feature, and says something else of {wrong}"
        require(not wrong, f"learn_schema: {said}.")
        require(kinds, "learn_schema: all is declared; write a Schema, or schema.with_label, which costs nothing.")
        return cls(every, names, columns, declared, kinds, label)

    def target(self, found: Column | None, privacy: Privacy) -> dict[str, Any]:
        """Return the label's part of the schema, and the substitute for unknown labels; empty if the label is declared."""
        if self.label not in self.kinds:
            return {}
        if isinstance(found, Categorical):
            return {"labels": found.levels, "otherwise": found.reference}
        if isinstance(found, Numeric):
            return {"label_bounds": found.ends, "otherwise": (found.lower + found.upper) / 2}
        how = "declare what it may be: labels=['no', 'yes'] (--labels no,yes), or label_bounds=(0, 9) (--label-bounds 0,9)"
        raise NotConverged(hidden(privacy, f"the label {self.label!r}", how))


def hidden(privacy: Privacy, what: str, how: str) -> str:
    why = f"noise for {privacy} hides {what}; nothing is released, and what was paid stays paid"
    return f"learn_schema: {why}. Ask for a larger epsilon, or {how}."


def level_share(level: float, share: float) -> float:
    """Return the level whose square is the given share of the squared level, rounded down."""
    return level * math.sqrt(share) * (1 - 1e-9)


def counting_plan(
    privacy: Privacy, kinds: Mapping[str, str | None], label: str, size: int | None
) -> tuple[float, float, dict[str, float], Composition]:
    """Return the level of all counts, the tail probability for one column's levels, the columns' shares, and the event."""
    stable = sum(kind in (None, CATEGORY) for kind in kinds.values())
    lost = RARE * privacy.delta * (1 - 1e-7)  # less than the share of a ledger with the same delta
    level = total_level(privacy.part(privacy.epsilon, privacy.delta * (1 - RARE * bool(stable))))
    weights = {name: TARGET if name == label else 1.0 for name in kinds}
    rest = (1 - COUNTING * (size is None)) / sum(weights.values())
    shares = {name: rest * weight for name, weight in weights.items()}
    needed = ENOUGH * SURE * ROOT_TWO / level_share(level, min(shares.values()) * HISTOGRAM_SHARES[0] * (1 - KIND))
    if size is not None and size < needed:
        why = f"noise hides {len(kinds)} columns of fewer than {math.ceil(needed)} records, and there are {size}"
        remedy = "ask for a larger epsilon, ignore columns, or declare what is public of them (known=)"
        raise NotPrivate(f"learn_schema: {why}; nothing was spent", privacy, remedy)
    parts = (Gaussian(level * (1 + NORM_SLACK)), Tail(GRID_LOSS), *([Approximate(0.0, lost)] if stable else []))
    return level, lost / (max(stable, 1) * privacy.most), shares, Composition(parts)


def kind_number_day(entry: Any, marks: frozenset[Any]) -> tuple[int, float, float]:
    """Return an entry's kind (1, 2 or 3; 0 if it is missing), its number, and its day (NaN where it has none)."""
    if type(entry) in (int, float) and math.isfinite(found := to_float(entry)) and not marks:  # a fast path
        return 1, found, math.nan
    entry = tables.as_python(entry)
    value = math.nan if tables.reads_as_missing(entry) else tables.value_of(entry)
    if value != value or value in marks:
        return 0, math.nan, math.nan
    found, from_origin = to_float(entry), float(tables.to_ordinal(entry)) - ORIGIN
    if math.isfinite(found):
        return 1, found, from_origin
    return 2 if math.isfinite(from_origin) else 3, math.nan, from_origin


def level_of(entry: Any) -> str:
    """Return an entry as text; empty if Python cannot convert an integer of that length."""
    with suppress(ValueError):
        return tables.text_of(tables.as_python(entry))
    return ""


@dataclass
class Counts:
    """Noisy histograms of the records.  Each record is in one cell; the records of a person have total weight one."""

    noise: QueryNoise
    weights: Indices
    moved: float  # Sensitivity of a histogram
    tail: float  # Probability that a level of a single person passes
    people: float = 0.0  # Their number, public or noisy
    outside: float = 1.0  # Bound on the share of people outside the declaration of the last learnt column

    def noisy(self, places: Indices, cells: int, level: float) -> tuple[Array, float]:
        """Return noisy numbers of people in cells, and the deviation of the noise."""
        sums = np.bincount(places, self.weights, cells).astype(np.int64)  # exact: they are below 2^53
        noisy = np.asarray(self.noise.noisy(sums, self.moved, level), dtype=float)
        return noisy / WHOLE, noise_scale(self.moved, level) / WHOLE

    def covered(self, inside: float, noise: float) -> None:
        self.outside = min(max((self.people - inside + noise) / self.people, 0.0), 1.0)

    def column(self, values: NDArray[Any], marks: frozenset[Any], kind: str | None, level: float) -> Column | None:
        """Return the learnt declaration of a column; None if noise hides it or it has a single level."""
        entries, of_texts = tables.as_list(values), lru_cache(None)(kind_number_day)
        known = [(of_texts if type(entry) is str else kind_number_day)(entry, marks) for entry in entries]
        kinds, *numbers = np.array(known, dtype=float).reshape(-1, 3).T
        if kind is None:
            found, _ = self.noisy(kinds.astype(np.int64), 1 + len(KINDS), level_share(level, KIND))
            kind, level = KINDS[int(np.argmax(found[1:]))], level_share(level, 1 - KIND)
        if kind == CATEGORY:
            return self.levels([level_of(e) if of else "" for e, of in zip(entries, kinds, strict=True)], level)
        return self.bounds(numbers[KINDS.index(kind)], kind, level)

    def levels(self, texts: list[str], level: float) -> Column | None:
        """Return a category of the frequent levels.  The threshold hides a level of a single person with probability 1 - tail."""
        names = sorted({*texts} - {""})
        place = {text: k for k, text in enumerate(("", *names))}
        found, sigma = self.noisy(np.array([place[text] for text in texts], dtype=np.int64), 1 + len(names), level)
        least = 1 + sigma * -float(ndtri(self.tail)) * (1 + 1e-9) + 2 / WHOLE
        common = sorted(zip(found[1:].tolist(), names, strict=True), reverse=True)[:MANY]
        common = [(number, name) for number, name in common if number >= least]
        inside, spread = sum(number for number, _ in common), sigma * math.sqrt(1 + len(common))
        self.covered(inside, len(common) * sigma * -float(ndtri(0.05 / self.people)))
        if len(common) < 2:
            return None
        first = next(name for _, name in common if name != INDICATOR)  # INDICATOR cannot be both a level and `missing`
        other = self.people - found[0] - inside > SOME * spread
        missing = INDICATOR if found[0] > SOME * sigma else first
        return Categorical(sorted(name for _, name in common), bool(other), missing, first)

    def bounds(self, values: Array, kind: str, level: float) -> Column | None:
        """Return a `Numeric` or `Date` with learnt bounds; None if noise hides all values but 0."""
        values = np.clip(values, -(2.0**OCTAVE), 2.0**OCTAVE)
        first, *further = (level_share(level, share) for share in HISTOGRAM_SHARES)
        few = self.people * WHOLE / noise_scale(self.moved, first)
        width = next((width for width, least in COARSE if few < least), 1)
        found, sigma = self.noisy(*octaves(values, width), first)
        upper_ends = np.minimum((np.arange(len(found)) - 1) * width - OCTAVE - 1, OCTAVE)  # as powers of two
        large = np.flatnonzero(found[2:] > np.where(abs(upper_ends[2:]) > COMMON, FAR, SURE) * sigma)
        if not len(large):
            return None
        top = int(large[-1]) + 2
        top += bool(found[top + 1 : top + 2].sum() > NEAR * sigma)
        high = 2.0 ** float(upper_ends[top])
        low = -high
        for share in further:
            low, high = self.narrowed(values, low, high, share)
        near = ZERO * (high - low)
        low, high = 0.0 if 0 < low < near else low, 0.0 if -near < high < 0 else high
        missing = INDICATOR if found[0] > SOME * sigma else None
        if kind == NUMBER:
            return Numeric(low, high, missing or (low + high) / 2)
        start = min(max(math.floor(low) + ORIGIN, 1), LAST - 1)
        stop = min(max(math.ceil(high) + ORIGIN, start + 1), LAST)
        first_day, middle, last_day = map(date.fromordinal, (start, (start + stop) // 2, stop))
        return Date(first_day, last_day, missing or middle)

    def narrowed(self, values: Array, low: float, high: float, level: float) -> tuple[float, float]:
        """Return the ends of the run of cells in [low, high] with the largest sum of noisy counts minus a price per cell.

        A run across 0 is cut at 0 unless counts on both sides exceed the noise.
        """
        sigma = noise_scale(self.moved, level) / WHOLE
        cells = int(np.clip(self.people / (4 * sigma), *CELLS))
        width, below = (high - low) / cells, 0  # number of cells below 0
        if low < 0 < high:  # Cells meet at 0
            below, cells = math.ceil(-low / width), math.ceil(-low / width) + math.ceil(high / width)
            low, high = -below * width, (cells - below) * width
        found, _ = self.noisy(in_cells(values, low, high, cells, below), cells + 3, level)
        sums = np.append(0.0, np.cumsum(found[1 : cells + 1] - max(FLOOR * sigma, SPARSE * self.people / cells)))
        gains = np.where(np.tri(cells + 1, dtype=bool), -np.inf, sums - sums[:, None])
        first, last = divmod(int(np.argmax(gains)), cells + 1)
        if first < below < last:
            sides = found[1 + first : 1 + below], found[1 + below : 1 + last]
            negative, positive = (side.sum() > SOME * sigma * math.sqrt(len(side)) for side in sides)
            first, last = first if negative else below, last if positive or not negative else below
        self.covered(float(found[1 + first : 1 + last].sum()), COVERED * sigma * math.sqrt(cells))
        return low + first * width, low + last * width


def octaves(values: Array, width: int) -> tuple[Indices, int]:
    """Return the cell of each number by magnitude, and the number of cells: NaN, 0, then `width` powers of two each."""
    parts, powers = np.frexp(np.abs(values))
    place = np.clip(powers - (parts == 0.5) + OCTAVE, -1, 2 * OCTAVE) // width + 2
    place = np.where(np.isnan(values), 0, np.where((values == 0) | (place < 2), 1, place))
    return place.astype(np.int64), 2 * OCTAVE // width + 3


def in_cells(values: Array, low: float, high: float, cells: int, below: int = 0) -> Indices:
    """Return the index of each number's cell (a, b] of equal width: 1 to `cells`; 0 below, cells + 1 above, cells + 2 for NaN.

    The first `below` cells hold exactly the negative numbers.
    """
    with np.errstate(all="ignore"):  # NumPy's warnings would reveal data
        place = np.clip(np.ceil((values - low) / (high - low) * cells), 1, cells)
        place = np.where(values < 0, np.minimum(place, below), np.maximum(place, below + 1)) if below else place
        place = np.where(values < low, 0, np.where(values > high, cells + 1, place))
    return np.where(np.isnan(values), cells + 2, place).astype(np.int64)
