"""The learner for tables of a schema, and the form of its records: labels, survival in intervals, and exposures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

import dpconvex as dp
from dpconvex.data.domains import Box
from dpconvex.data.schema import Schema
from dpconvex.data.survival import ends_of, lived_and_died
from dpconvex.data.tables import Table, as_list, objects, table_of, with_point
from dpconvex.errors import TemplateError
from dpconvex.fitting.problem_files import options as options_of
from dpconvex.model.template import Template
from dpconvex.util.arguments import recast, refuse, require
from dpconvex.util.runtime import Stage

# Problems with features that an estimator computes from a table, and the estimator.
CURVES = {"additive_logistic": "AdditiveClassifier", "additive_regression": "AdditiveRegressor"}
# Options of problems that take a column beside features and label, by the setting of a schema that names the column.
TAKES = {"exposure": ("exposure", "dispersion"), "weight": ("weight",), "event": ("intervals",)}


def open_table(path: str, comma: bool, unit: str | None = None) -> Any:
    """Return a table, read only once so that its rows match their identifiers, or the path if it is a folder.

    With `comma`, numbers are read as 1.234,5 and dates as 31.01.2020, except identifiers, in the column `unit`.
    """
    folder = Path(path).is_dir()
    Stage.begin("reading the table")
    require(not (folder and comma), f"{path}: --decimal-comma is for one file, not for a folder of Parquet files.")
    if folder or not comma:
        return path if folder else table_of(path)
    table = table_of(path)

    def read(name: str) -> Any:
        values = table.read(name)
        return values if name == unit else objects(map(with_point, as_list(values)))

    return replace(table, read=read)


@dataclass(frozen=True)
class Declared:
    """The learner for tables of a schema; `values` maps the table's labels to values of the learner's field y."""

    learner: Template
    schema: Schema
    values: Mapping[str, Any]
    model: Any = None  # the estimator that computes the features, or None
    times: Any = None  # the ends of the intervals of survival, or None

    def table(self, given: Any, *, empty: bool) -> Any:
        """Return the data for the problem, from the result of `open_table`; raise, before any charge, if they are invalid."""
        if isinstance(given, Table):
            found = self.coded(self.schema.records(given, empty=empty))
            return found if self.model is None else found | {"x": self.model.features(given)}
        require(self.model is None, "an additive model needs its records in one file, not a folder of several.")
        parts = dp.Partitions(given, self.schema)
        self.schema.record.validate(parts, empty=empty)  # type: ignore[arg-type]
        return parts.turned(self.coded, [name for name in self.learner.record.fields if name != "m"])

    def features(self, given: Any, rate: bool) -> dict[str, Any]:
        """Return the columns that predictions need; with `rate`, those of records with the largest exposure."""
        require(self.schema.exposure or not rate, "--rate is for models with an exposure, and this one has none.")
        if self.model is not None:
            return {"x": self.model.features(given)}
        found = self.schema.records(given, fields=() if rate else ("exposure",))
        return self.coded(found | ({"exposure": np.ones(len(found["x"]))} if rate else {}))

    def coded(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return records of the schema with y, the event and the exposure in the form of the problem."""
        if self.values and "y" in found:
            found = found | {"y": [self.values[text] for text in found["y"].tolist()]}
        if self.times is not None and "y" in found:
            event, ends = found["event"] > 0, self.schema.targets(self.times)
            found = {**found, "y": lived_and_died(event, found["y"] + 1, ends + 1)}
            del found["event"]
        if "exposure" in found and "offset" in self.learner.record.fields:
            half = cast(Box, self.learner.record.fields["offset"]).upper
            with np.errstate(divide="ignore"):  # a prediction for no exposure
                offset = np.log(found["exposure"]) + half
            offset = np.clip(offset, -half, half) if "y" in found else offset
            found = {name: column for name, column in found.items() if name != "exposure"} | {"offset": offset}
        return found

    def predicted(self, found: Any) -> list[Any]:
        """Return predictions as the table's labels, as numbers in its units, or as probabilities to survive."""
        if self.times is not None:
            return list(found.tolist())
        if self.schema.exposure is not None:  # totals of long exposures may exceed the bounds
            return list(((found + 1) / 2 * (self.schema.label_bounds or (0, 1))[1]).tolist())
        if not self.values:
            return list(self.schema.decode_target(found).tolist())
        labels = {value: label for label, value in self.values.items()}
        unknown = set(found.tolist()) - labels.keys()
        refuse(f"the problem predicts {value!r}, which is none of its labels {list(labels)!r}." for value in unknown)
        return [labels[value] for value in found.tolist()]


def declare_curves(learner: Template, model: Any) -> Declared:
    return Declared(learner, model.schema, {label: label for label in model.schema.labels or ()}, model)


def options_beside(problem: str, schema: Schema, options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the options of a problem for a schema's exposure, weight and event, and the ends of intervals of survival or None.

    Raise if the problem takes no such column, or needs one.
    """
    allowed, ends, shipped = options_of(problem), {}, dp.problems()
    for name, (field, column) in schema.further.items():
        takers = ", ".join(other for other in shipped if {*TAKES[field]} & options_of(other).keys())
        said = f"{problem} takes no {field}, such as {name!r}; of the problems that come with the toolkit, {takers} do."
        require({*TAKES[field]} & allowed.keys() or problem not in shipped, said)
        ends[field] = column.ends
    found: dict[str, Any] = {"weight": ends["weight"][1]} if "weight" in ends else {}
    if "exposure" in ends and "exposure" in allowed:
        found["exposure"] = 1.0
    elif "exposure" in ends and "dispersion" in allowed:
        low, high = ends["exposure"]
        how = "declare a lower bound above 0, such as --exposure years=0.1,3"
        require(low > 0, f"{problem} takes logarithms of exposures: {how}.")
        found["offset"] = float(np.log(high / low) / 2)
    if "event" not in ends or "intervals" not in allowed:
        said = f"{problem}: name the column that says whether the event was seen, as --event died=no,yes; --label names the time."
        require(problem not in shipped or "intervals" not in allowed, said)
        return found, None
    intervals = options.get("intervals", allowed["intervals"].default)
    times = ends_of(problem, intervals, (schema.label_bounds or (0.0, 1.0))[1])
    return found | {"intervals": times.tolist() if isinstance(intervals, list | tuple) else len(times)}, times


def declare(problem: str, schema: Schema, options: dict[str, Any]) -> Declared:
    further, times = options_beside(problem, schema, options)
    same = further.keys() & options.keys() - {"intervals"}
    said = "out of the options; the bounds of its column say it."
    refuse(f"{problem}: leave {name} {said}" for name in same if options[name] != further[name])
    if problem in CURVES:
        with recast(f"{problem}: its options do not fit", TypeError, kind=TemplateError):
            model = getattr(dp, CURVES[problem]).of_schema(schema, **options)
        return declare_curves(model.template(len(schema.features)), model)
    count, labels = len(schema.feature_names), list(schema.labels or ())
    known: dict[str, Any] = {"features": count} | ({"radius": schema.radius} if schema.constant else {})
    known |= {"classes": len(labels), "labels": labels} if labels else {}
    learner = dp.load(problem, **{key: known[key] for key in options_of(problem) if key in known} | options | further)
    record, values = learner.record.fields, list(getattr(learner.record.fields.get("y"), "values", ()))
    expected: dict[str, Any] = dict(schema.record.fields)
    if times is not None:
        expected["y"] = Box(-np.ones(len(times)), np.ones(len(times)))
        del expected["event"]
    if "offset" in further:
        expected["offset"] = expected.pop("exposure")
    fits = len(values) == len(labels) if labels else repr(record.get("y")) == repr(expected["y"])
    # The field m of a mixture, the component, is learnt.
    fits = fits and set(record) - {"m"} == set(expected) and getattr(record["x"], "shape", None) == (count,)
    said = f"records of the table are {schema.record!r}, but those of the problem are {learner.record!r}; "
    if options.keys() & {"features", "classes", "labels"}:
        said += "leave features, classes and labels out of the options: the table has them"
    elif not fits:
        kinds = (f"dp.{name}" for name in dir(dp) if getattr(getattr(dp, name), "problem", None) == problem)
        said += "fit it in Python with " + next(kinds, f"dp.load({problem!r}, ...) and dp.solve")
    if "y" in record and bool(values) != bool(labels):
        own, other = ("label_bounds", "labels") if labels else ("labels", "label_bounds")
        said = f"its y is {record['y']!r}, and the schema declares {other}; declare {own}, or choose another problem"
    elif not labels and not np.any(getattr(record.get("y"), "lower", 1.0)):
        said = f"its y is {record['y']!r}, and a schema moves targets to between -1 and 1; fit it in Python"
        said += ", or leave scaled at true" if "scaled" in options else ", or take a problem with the option `scaled`"
    require(fits, f"{problem}: {said}.")
    if set(values) == set(labels):
        values = labels  # the problem's order of labels does not matter
    texts = values is not labels and any(isinstance(value, str) for value in values)
    require(not texts, f"the labels of {problem} are {values!r}, but the table's are {labels!r}.")
    return Declared(learner, schema, dict(zip(labels, values, strict=True)), times=times)
