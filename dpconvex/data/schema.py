"""Public description of a table: `Schema` declares its features, label and ignored columns, and never reads them off the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from dpconvex.data import tables
from dpconvex.data.columns import index_of
from dpconvex.data.domains import Ball, Box, Choice
from dpconvex.data.encoded import Encoded, EncodedRows, with_origin
from dpconvex.data.learnt import Learnt, origin_of
from dpconvex.data.partitions import Partitions, tables_in
from dpconvex.data.record import Record, columns_of
from dpconvex.data.schema_columns import FURTHER, Categorical, Numeric, Times, beside, bounds_of, column_of, levels_of
from dpconvex.data.tables import concatenate_values, identifiers_of, name_of, table_of, value_of
from dpconvex.errors import DomainError, TemplateError, warn
from dpconvex.numerics import RECORD_TOLERANCE
from dpconvex.util.arguments import TEXT, number, recast, require
from dpconvex.util.arrays import Array
from dpconvex.util.plain_data import build, toml

PLAIN: dict[str, Any] = {"label": str, "clip": bool, "unit": bool, "constant": float}  # Settings that are plain data
# Texts of labels that readers of tables convert to truth values.
TRUTH_WORDS = {"no": False, "n": False, "f": False, "yes": True, "y": True, "t": True}
# Remedies for a missing or undeclared label.
NO_LABEL = "it is the label, and records without a known label do not belong to this task"
OTHER_LABEL = "; it is the label: declare all labels that may occur, as labels=['no', 'yes', 'unsure']"
PLAIN |= {"privacy_unit": str | None, "ignore": tuple[str, ...] | None, "absent": tuple[str, ...]}


@dataclass(frozen=True)
class Schema:
    """Declare the public types, bounds and levels of a labelled table.

    Parameters
    ----------
    features : mapping of str to column
        A pair of bounds, a `Numeric`, `Ordered`, `Categorical`, `Boolean` or `Date`, or a dict in the form of a TOML file.
    label : str
        The column to be predicted.
    labels, label_bounds : optional
        The labels that may occur, for a classification; or the bounds of the target, for a regression.
    clip : bool
        Move numbers and dates outside their bounds to the nearest bound instead of raising.
    ignore : sequence of str, optional
        Columns that are not used.  If given, any further column is an error.  If None, further columns are skipped.
    absent : sequence of str
        Texts that stand for a missing value, besides the empty one.
    unit : bool
        Divide each record by its own length, instead of by the largest possible length.
    constant : float
        A last feature with this value for every record.  Records then have length at most ``sqrt(1 + constant**2)``.
        Bounds and penalties apply to its coefficient: for an intercept, prefer the option `constant` of a problem.
    privacy_unit : str, optional
        The column with the identifier of a person who may have several records; it is not a feature.  A guarantee about these
        records must have a unit (docs/unit.md). `units` reads the column.
    exposure, weight, event : mapping of str to column, optional
        One column each, for `records`: ``exposure={"years": (0, 3)}`` for counts and costs over a time, a survey weight, or
        ``event={"died": Boolean("no", "yes")}``, whether the event was seen at the time that the label says.
    learnt : Learnt, optional
        Learnt columns and their cost, from `dpconvex.learn_schema`.  Entries of learnt columns raise no errors.

    Examples
    --------
    >>> schema = Schema({"age": (0, 100), "ward": Categorical(["a", "b"])}, label="sick", labels=["no", "yes"])
    >>> X, y = schema.encode({"age": [50, 100], "ward": ["a", "b"], "sick": ["no", "yes"]})
    >>> schema.feature_names, y.tolist()
    (['age', 'ward = a', 'ward = b'], ['no', 'yes'])
    >>> X.round(3)
    array([[0.   , 0.894, 0.   ],
           [0.447, 0.   , 0.894]])
    """

    features: Mapping[str, Any]
    label: str = ""
    labels: Sequence[str] | None = None
    clip: bool = False
    label_bounds: tuple[float, float] | None = None
    ignore: Sequence[str] | None = None
    absent: Sequence[str] = ()
    unit: bool = False
    constant: float = 0.0
    privacy_unit: str | None = None
    exposure: Mapping[str, Any] | None = None
    weight: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    learnt: Learnt | None = None

    def __post_init__(self) -> None:
        some = isinstance(self.features, Mapping) and self.features
        require(some, f"declare features, such as {{'age': (0, 110)}}; there is none in {self.features!r}.")
        features = {name_of(name): column for name, column in self.features.items()}
        ignored, unit = self.ignore, name_of(self.privacy_unit)
        ignored = ignored if ignored is None or isinstance(ignored, str) else tuple(map(name_of, ignored))
        self.__dict__.update(features=features, label=name_of(self.label), ignore=ignored, privacy_unit=unit)
        for name, kind in PLAIN.items():
            self.__dict__[name] = build(kind, getattr(self, name), where=name)
        units = [] if self.privacy_unit is None else [self.privacy_unit]
        others = (name for name in dict.fromkeys(self.ignore or ()) if name not in units)
        for field in FURTHER:
            self.__dict__[field] = beside(field, getattr(self, field))
        further = [name for field in FURTHER for name in getattr(self, field) or ()]
        names = [*self.features, self.label, *units, *further, *others]
        how = "label='sick', labels=['no', 'yes'], or label_bounds=(0, 10) of a regression"
        require(self.label, f"say which column is the label: {how}.")
        for name in names:
            TEXT.check("", column=name)
            said = f"the column {name!r} is declared twice, as a feature, the label, ignored or {', '.join(FURTHER)}."
            require(names.count(name) == 1, said)
        one = (self.labels is None) != (self.label_bounds is None)
        require(one, "declare either labels, for a classification, or label_bounds, for a regression.")
        number("finite, such as .5 for an intercept", math.isfinite).check("", constant=self.constant)
        learnt: Any = self.learnt
        self.__dict__["learnt"] = learnt if isinstance(learnt, Learnt | None) else build(Learnt, learnt, where="learnt")
        self.__dict__["features"] = {name: column_of(name, declared) for name, declared in self.features.items()}
        if self.labels is not None:
            self.__dict__["labels"] = levels_of(self.labels, "labels")
        else:
            self.__dict__["label_bounds"] = bounds_of(repr(self.label), self.label_bounds)
        said = f"with an exposure or an event, declare label_bounds of {self.label!r} that begin at 0."
        require(not (self.exposure or self.event) or (self.label_bounds or (1,))[0] == 0, said)
        require(self.target is not None, said)  # it raises if the schema was learnt, and `otherwise` is not declared

    @property
    def further(self) -> dict[str, tuple[str, Any]]:
        """Fields of a record and declarations of the columns of an exposure, a weight and an event, by name."""
        return {name: (field, column) for field in FURTHER for name, column in (getattr(self, field) or {}).items()}

    @property
    def largest(self) -> dict[str, float]:
        """Upper bounds of an exposure and a weight, and 1 for an event, by the field of a record."""
        return {field: column.ends[1] for field, column in self.further.values()}

    @property
    def feature_names(self) -> list[str]:
        """Names of the encoded features."""
        names = [feature for name, column in self.features.items() for feature in column.names(name)]
        return [*names, "constant"] if self.constant else names

    @property
    def steps(self) -> Array:
        """Change of each encoded feature per unit of its column, or for its level, without division by lengths of records."""
        found = []
        for name, column in self.features.items():
            own = np.full(len(column.names(name)), math.sqrt(column.square))
            own[0] = 1.0 if column.square == 1 else 1 / (column.ends[1] - column.ends[0])
            found.append(own / self.norm_bound)
        return np.concatenate([*found, [self.constant] if self.constant else []])

    @property
    def norm_bound(self) -> float:
        """Bound on the length of a record before scaling: the root of the sum of 1/4 for each number and 1 for each category."""
        return math.sqrt(sum(column.square for column in self.features.values()))

    @property
    def radius(self) -> float:
        """Bound on the length of an encoded record: 1, or more with a constant."""
        return math.hypot(1.0, self.constant)

    @property
    def record(self) -> Record:
        """Domain of a record: x in a ball of the `radius`, the label y (a target is between -1 and 1), and `further`."""
        y = Box(-1.0, 1.0) if self.labels is None else Choice(self.labels)
        more: Any = {field: Box(0.0, end if field == "weight" else 1.0) for field, end in self.largest.items()}
        return Record(x=Ball(len(self.feature_names), radius=self.radius), y=y, **more)

    def encode(
        self, data: Any, *, labelled: bool = True, clip: bool | None = None, empty: bool = False, sparse: bool = False
    ) -> tuple[Any, Any]:
        """Encode a table as features in the unit ball and labels, one record at a time.

        Parameters
        ----------
        data : data frame, mapping of str to column, or path
            A pandas or polars data frame, a PyArrow table, columns by name, or the path of a CSV or Parquet file.
        labelled : bool
            Read the label, too.  If False, `y` is empty.
        clip : bool, optional
            Use this value instead of the schema's `clip`.
        empty : bool
            Accept a table without records.
        sparse : bool
            Return a SciPy sparse array, for many levels.

        Returns
        -------
        X : ndarray or csr_array, shape (n, features)
        y : ndarray of str or of float, shape (n,)
            Labels as declared; for a regression the target, mapped from its bounds to [-1, 1].
        """
        table, clipped = table_of(data), self.clip if clip is None else clip
        names = [*self.features, *([self.label] if labelled else [])]
        columns = table.columns(names, self.known, self.absent, self.learnt is None)
        for name in {*self.features} & {*(self.learnt.columns if self.learnt else ())}:
            columns[name] = self.features[name].readable(columns[name])
        count = len(next(iter(columns.values())))
        require(count or empty, f"{table.title}: there is no record.", DomainError)
        placed = [column.placed(table.where(name), columns[name], clipped) for name, column in self.features.items()]
        starts = np.cumsum([0, *(len(column.names("")) for column in self.features.values())], dtype=np.int32)
        place, value = (np.array(part).ravel() for part in zip(*placed, strict=True))
        kept = np.flatnonzero((place >= 0) & (value != 0))
        place = np.repeat(starts[:-1], count)[kept] + place[kept].astype(np.int32)
        X: Any = sp.csr_array((value[kept], ((kept % count).astype(np.int32), place)), shape=(count, int(starts[-1])))
        X = X if sparse else X.toarray()
        lengths = np.full(count, self.norm_bound)
        if self.unit:
            lengths = np.sqrt(np.asarray((X * X).sum(axis=1)).ravel())
            lengths[lengths == 0] = 1.0
        X = sp.diags_array(1 / lengths) @ X
        if self.constant:
            X = (sp if sparse else np).hstack([X, np.full((count, 1), self.constant)])
        X, y = with_origin(EncodedRows(X) if sparse else X.view(Encoded), self), np.zeros(0)
        X.schema, X.index = self, index_of(data)
        if labelled:
            y = self.targets(columns[self.label], table.where(self.label), clipped)
            if self.labels is None:
                y = with_origin(y.view(Encoded), self)
                y.schema = self  # type: ignore[attr-defined]
        return X, y

    def records(
        self, data: Any, *, clip: bool | None = None, empty: bool = False, fields: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return columns for `dpconvex.solve`: x and y of `encode`, an exposure as a share of the largest, a weight, an event.

        With `fields`, return x and these alone, for predictions; exposures may be longer than the largest.
        """
        table, wanted, clip = table_of(data), FURTHER if fields is None else fields, self.clip if clip is None else clip
        encoded = self.encode(table, labelled=fields is None, clip=clip, empty=empty)
        found = {"x": encoded[0]} | ({"y": encoded[1]} if fields is None else {})
        own = {name: entry for name, entry in self.further.items() if entry[0] in wanted}
        columns = table.columns([*own], self.known, self.absent)
        for name, (field, column) in own.items():
            amounts = column.amounts(table.where(name), columns[name], clip, beyond=fields is not None)
            found[field] = amounts / (column.ends[1] if field == "exposure" else 1.0)
        if "event" in found:  # later ones are not seen
            found["event"] *= tables.within(table.columns([self.label])[self.label], self.target.ends)
        return found

    def targets(self, values: Any, where: Any = "row {}".format, clip: bool = True) -> Any:
        """Return labels, or targets in [-1, 1], for entries of the label's column; a learnt label never raises."""
        column, found = self.target, tables.entries(self.label, values)
        learnt = self.learnt is not None and self.label in self.learnt.columns
        place, value = column.placed(where, column.readable(found) if learnt else found, clip)
        return np.array(self.labels)[place] if self.labels else 2 * value

    def with_label(self, label: str, **declared: Any) -> "Schema":
        """Return the schema for another label, with public ``labels=`` or ``label_bounds=``; learnt features keep their cost.

        Columns of a declared `exposure`, `weight` or `event` are no features any more.
        """
        known: dict[str, Any] = {"labels": None, "label_bounds": None} | declared
        taken = {label, *(name for field in FURTHER for name in known.get(field) or ())}
        known["features"] = {name: column for name, column in self.features.items() if name not in taken}
        if self.ignore is not None:
            known["ignore"] = [name for name in (self.label, *self.ignore) if name not in taken]
        if self.learnt is not None:
            kept = [*known["features"], *([label] if label == self.label else [])]
            shares = {name: share for name, share in self.learnt.columns.items() if name in kept}
            otherwise = self.learnt.otherwise if label == self.label else None
            known["learnt"] = replace(self.learnt, otherwise=otherwise, columns=shares)
        return replace(self, label=label, **known)

    @property
    def encoding(self) -> tuple[Any, ...]:
        """The parts of the declaration that determine the encoding of features."""
        return list(self.features.items()), self.unit, self.constant

    def units(self, data: Any) -> Any:
        """Return the identifiers of the records of a table, or of Partitions, for ``unit=`` of a fit, shape (n,)."""
        name = self.privacy_unit or ""
        require(name, "this schema declares no privacy_unit.")
        found = []
        for table in tables_in(data):
            identifiers_of(table.read(name))  # raises if `columns` would round some
            found.append(table.columns([name], absent=self.absent)[name])
        return concatenate_values(found)

    def check_names(self, data: Any) -> None:
        """Raise if `encode` would refuse the names or types of the columns.  Entries are not read."""
        numbers = [name for name, column in self.features.items() if isinstance(column, Numeric)]
        numbers += [] if self.label_bounds is None else [self.label]
        table_of(data, header=True).check_names([*self.features, self.label, *self.further], self.known, numbers)

    @property
    def target(self) -> Numeric | Categorical:
        """The declaration of the label as a column."""
        missing: Any = self.learnt.otherwise if self.learnt else None
        lower, upper = self.label_bounds or (0.0, 1.0)
        number = Times if self.event else Numeric
        found = Categorical(self.labels, missing=missing) if self.labels else number(lower, upper, missing)
        found.__dict__["missing_remedy"] = NO_LABEL
        if not self.labels:
            return found
        found.__dict__["remedy"] = OTHER_LABEL
        truths = [TRUTH_WORDS.get(one.casefold()) for one in self.labels]
        if sorted(map(str, truths)) == ["False", "True"]:  # DuckDB and PyArrow read such columns as truth values
            found.__dict__["places"] |= {value_of(truth): float(place) for place, truth in enumerate(truths)}
        return found

    @property
    def known(self) -> set[str] | None:
        """Names of all declared columns; None if a table may have others."""
        own = {self.label, *self.features, *self.further, *([self.privacy_unit] if self.privacy_unit else [])}
        return None if self.ignore is None else {*self.ignore, *own}

    def decode_target(self, y: Any) -> Array:
        """Map predictions from [-1, 1] to the label's bounds; predictions outside [-1, 1] are clipped."""
        if self.label_bounds is None:
            raise TemplateError("decode_target is for regressions; this schema has labels, which need no decoding.")
        (lower, upper), found = self.label_bounds, np.asarray(y, dtype=float)
        if 2 * np.count_nonzero(np.abs(found) > 1) > found.size:
            why = "most of these predictions are outside [-1, 1], and are moved to the label's bounds"
            warn(f"decode_target: {why}. An estimator with bounds=schema predicts in units of the label already.")
        return lower + (np.clip(found, -1, 1) + 1) / 2 * (upper - lower)

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as JSON-able data."""
        said: dict[str, Any] = {"features": {name: column.to_dict() for name, column in self.features.items()}}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                plain = value.to_dict() if isinstance(value, Learnt) else value
                plain = {n: column.to_dict() for n, column in plain.items()} if field.name in FURTHER else plain
                said[field.name] = list(plain) if isinstance(plain, tuple) else plain
        return said

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the schema described by `to_dict`, or by the settings of a TOML file."""
        with recast(f"this does not declare a table: {fields!r}", TypeError, kind=TemplateError):
            return cls(**fields)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a TOML file; raise `TemplateError` if it is invalid, or does not declare a table."""
        return cls.from_dict(tables.read_settings(path, tuple(cls.__dataclass_fields__)))

    def to_toml(self) -> str:
        """Return the declaration as a TOML file."""
        said = self.to_dict()
        columns = [f"{toml(name)} = {toml(column)}" for name, column in said.pop("features").items()]
        return "\n".join([*(f"{key} = {toml(value)}" for key, value in said.items()), "", "[features]", *columns, ""])


def schema_of(data: Any) -> Schema | None:
    """Return the schema that encoded normalized data, or None; of several, the one with most learnt costs."""
    whole = isinstance(data, Partitions)
    parts = [] if whole and data.turns else [data] if whole else [data[name] for name in columns_of(data).keys()]  # noqa: SIM118
    schemas = [made for part in parts if isinstance(made := getattr(part, "schema", None), Schema)]
    return max(schemas, key=lambda one: len(one.learnt.costs) if one.learnt else 0, default=None)


def check_encoded(caller: str, known: Schema | None, made: Any) -> None:
    """Raise if features were encoded by another schema than `known`, for example with its levels in another order."""
    why = "these features were encoded by another schema: columns, bounds, levels, their order, unit or constant differ"
    alike = known is None or not isinstance(made, Schema) or known.encoding == made.encoding
    require(alike, f"{caller}: {why}. Encode tables with the schema of the fit.")


def check_beside(caller: str, schema: Schema, fitted: Mapping[str, float]) -> None:
    """Raise unless the largest exposure, weight and time of a schema are those of a fit."""
    declared = schema.largest | ({"time": (schema.label_bounds or (0.0, 1.0))[1]} if schema.event else {})
    said = f"{caller}: exposure, weight and time are at most {declared} in the schema, and {dict(fitted)} in the fit."
    require(declared == fitted, said)


def check_inside(schema: Schema, domain: Any, name: str) -> None:
    """Raise if encoded records of a schema may lie outside the domain of a field."""
    if schema.constant and isinstance(domain, Ball) and domain.dim == len(schema.feature_names) and domain.norm == 2:
        longest = schema.radius
        said = f"the schema has a constant, so its records are up to {longest:.4g} long, but the radius is {domain.radius:g}"
        remedy = "declare radius=schema.radius, or an intercept instead of the schema's constant"
        require(longest <= domain.radius * (1 + RECORD_TOLERANCE), f"field {name!r}: {said}; {remedy}.", DomainError)
    if isinstance(domain, Box) and domain.shape == () and schema.label_bounds is not None:
        said = f"the schema scales the target to [-1, 1], but declared is {domain!r}"
        remedy = "declare dp.Box(-1, 1), or pass schema.decode_target(y)"
        require(domain.lower <= -1 and domain.upper >= 1, f"field {name!r}: {said}; {remedy}.", DomainError)


def check_unit(unit: str | None, *known: Any) -> None:
    """Raise if the guarantee protects single records but a schema declares that a person may have several."""
    mine = None if unit is not None else origin_of(*known).privacy_unit
    why = f"the column {mine!r} identifies people, but the guarantee protects single records"
    remedy = "declare unit= and most=, and pass unit=schema.units(table), or Partitions without unit="
    require(mine is None, f"{why}; {remedy}.")
