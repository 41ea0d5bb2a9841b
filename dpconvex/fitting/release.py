"""Releases: parameters with their guarantee, without objective values, counts or times, which would cost privacy."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.certificates.bound_certificate import BoundCertificate
from dpconvex.certificates.certificate import Certificate
from dpconvex.data.batch import Batch
from dpconvex.data.columns import blocks, check_aligned, check_names, dense, names_of, per_block, records_of
from dpconvex.data.domains import Box
from dpconvex.data.encoded import learnt_cost, origins
from dpconvex.data.learnt import Learnt
from dpconvex.data.record import common_length, feature_names
from dpconvex.data.schema import Schema, check_encoded, schema_of
from dpconvex.data.validation import check_labels, finite_numbers, has_masked
from dpconvex.errors import DomainError, DPConvexError, TemplateError
from dpconvex.fitting.files import Released
from dpconvex.model.people import WEIGHT
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Predict, Template, arguments_of, further_fields
from dpconvex.numerics import RECORD_TOLERANCE
from dpconvex.util.arguments import TEXT, instance, recast, require
from dpconvex.util.arrays import Array, exact_array, frozen
from dpconvex.util.markup import details, html_table, paragraph

RAW = "this is a table, not the features of its schema: pass release.schema.encode(table, labelled=False)[0]."
REMEDY = (
    "Declare it in the template. Load a saved release with Release.load(path, template=...), for a shipped problem with "
    "template=dpconvex.load. A problem file of your own is not run automatically: pass dpconvex.load('your_file.py', ...)."
)


@dataclass(frozen=True, eq=False, repr=False)
class Release(Released, Mapping[str, Array]):
    """Hold released parameters by variable name, with their certificate and their cost.

    Parameters
    ----------
    parameters : mapping of str to array_like
        Finite real arrays; copied and made read-only.
    certificate : Certificate or BoundCertificate, optional
        The proof.
    spent : Privacy, optional
        The guarantee that was kept.
    not_private_because : str
        Reason for no guarantee, such as "drawn with a seed". Pass exactly one of `spent` and this.
    source : tuple of (str, dict), optional
        Name and options of the shipped problem that declared the learner, if JSON can hold them.
    predictor, decision, probabilities : callable, optional
        The template's functions, of (parameters, x).
    schema : Schema, optional
        The declared columns.  New records are read in the same way.
    names : tuple of str, optional
        Names of the columns, if the features were a data frame.  Other data frames must have the same names, in this order.
    labels : tuple, optional
        The labels in the order of the columns of scores and probabilities, as the template declares them.
    scaled : bool
        Whether the target is in [-1, 1], the range to which a schema scales targets.
    noise : ndarray, shape (k, k), optional
        Directly after adaptive steps: the noise of the steps moved the k coefficients of each score by ``noise @ z`` at most,
        for standard normal z.
    learnt : Learnt, optional
        The cost of the learnt schema that encoded the features.
    fields : str
        Shapes and labels of the template's record.  A template that is passed to `load` must have the same.
    choices : mapping of str to tuple, optional
        Declared values of the template's discrete fields.  Predictions from other values raise an error.

    Examples
    --------
    >>> release = Release({"w": [1.0, -2.0]}, spent=Privacy(epsilon=1), predictor=lambda p, x: x @ p["w"])
    >>> release
    Release(w (2,); spent: epsilon = 1, replace-one (without a certificate: nobody can check this))
    >>> release["w"]
    array([ 1., -2.])
    >>> release.predict([[1.0, 1.0]])
    array([-1.])
    """

    form = "dpconvex release"
    kept = (
        "parameters",
        "certificate",
        "spent",
        "not_private_because",
        "source",
        "schema",
        "names",
        "learnt",
        "fields",
    )

    parameters: Mapping[str, Array]
    certificate: Certificate | BoundCertificate | None = None
    spent: Privacy | None = None
    not_private_because: str = ""
    source: tuple[str, dict[str, Any]] | None = None
    predictor: Predict | None = None
    decision: Predict | None = None
    probabilities: Predict | None = None
    schema: Schema | None = None
    names: tuple[str, ...] | None = None
    labels: tuple[Any, ...] | None = None
    scaled: bool = False
    noise: Array | None = None
    learnt: Learnt | None = None
    fields: str = ""
    choices: Mapping[str, tuple[Any, ...]] | None = None

    def __post_init__(self) -> None:
        instance(Mapping, "of names to arrays").check("Release", parameters=self.parameters)
        self.check_paid()
        copied = {name: finite(name, value) for name, value in self.parameters.items()}
        require(copied, "Release: there is no parameter to release.")
        with recast("Release: labels must be a list of the labels", TypeError, kind=TemplateError):
            labels = None if self.labels is None else tuple(self.labels)
        self.__dict__.update(parameters=copied, source=json_source(self.source), labels=labels)

    __hash__ = object.__hash__  # a mapping of arrays has no useful equality, so a release is equal to itself alone
    __eq__ = object.__eq__

    def __getitem__(self, name: str) -> Array:
        if name not in self.parameters:
            raise KeyError(f"{name!r}: the released parameters are {', '.join(map(repr, self.parameters))}")
        return self.parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __repr__(self) -> str:
        return f"Release({', '.join(f'{name} {value.shape}' for name, value in self.items())}; {self.status})"

    def _repr_html_(self) -> str:
        rows = [(name, " x ".join(map(str, value.shape)) or "a number") for name, value in self.items()]
        proof = "" if self.certificate is None else details("its guarantee", self.certificate._repr_html_())
        head = paragraph("Release", f", {self.status}", not self.private)
        return head + html_table(["parameter", "shape"], rows, numbers=()) + proof

    @property
    def functions(self) -> dict[str, Predict | None]:
        """The learner's functions of (parameters, x), by the method that calls each."""
        return {"predict": self.predictor, "decision_function": self.decision, "predict_proba": self.probabilities}

    def predict(self, x: ArrayLike, **fields: ArrayLike) -> NDArray[Any]:
        """Predict from features, array_like or sparse, of shape (n, ...) and scaled as in training; costs no privacy.

        `fields` are the arguments of the template's function after x, such as ``g=groups``, of shape (n, ...).
        """
        return self._applied("predict", x, fields)

    def decision_function(self, x: ArrayLike, **fields: ArrayLike) -> NDArray[Any]:
        """Return scores: above 0 for the second of two `labels`, shape (n,), or one for each label, shape (n, labels)."""
        return self._applied("decision_function", x, fields)

    def predict_proba(self, x: ArrayLike, **fields: ArrayLike) -> NDArray[Any]:
        """Return probabilities of `labels`, shape (n, labels), for learners that model probabilities."""
        return self._applied("predict_proba", x, fields)

    def _applied(self, name: str, x: ArrayLike, fields: Mapping[str, ArrayLike]) -> NDArray[Any]:
        if (function := self.functions[name]) is None:
            if not self.predictor:
                raise TemplateError(f"{name}: there is no function to predict with. {REMEDY}")
            lacks = "probabilities" if name == "predict_proba" else "scores"
            raise TemplateError(f"{name}: this learner has no {lacks}; it has `predict`.")
        needed = further_fields(function, fields)
        said = f"{name}: pass {', '.join(('x', *(f'{field}=...' for field in needed)))}, and no other field."
        require(set(needed) == set(fields), said)
        said = f"{name}: pass the exposures, such as {name}(**release.schema.records(table, fields=['exposure']))."
        require(self.schema is None or not self.schema.exposure or {"exposure", "offset"} & set(fields), said)
        check_encoded(name, self.schema, getattr(x, "schema", None))
        self.check_names(name, names_of(x))
        check_aligned({"x": x, **fields})
        further = {field: self._column(field, values) for field, values in fields.items()}
        first = next((one.name for one in arguments_of(function)), "")
        is_level = first in (self.choices or {})
        features: Any = self._column(first, x) if is_level else finite_numbers("x", x)
        if self.schema is not None and not sp.issparse(features) and not is_level:
            made = abs(features).max(initial=0) <= self.schema.radius + RECORD_TOLERANCE
            require(made, f"{name}: {RAW}", DomainError)  # features of numeric columns have the names of the columns
        if further:
            lengths = {field: len(np.atleast_1d(values)) for field, values in further.items()}
            common_length({"x": records_of(features)} | lengths)
        return self._called(name, features, further)

    def applied(self, name: str, x: Array, fields: Mapping[str, Any]) -> NDArray[Any]:
        """Call `predict`, `decision_function` or `predict_proba` with columns that a record has checked."""
        return self._called(name, x, {field: fields[field] for field in further_fields(self.functions[name], fields)})

    def _column(self, field: str, given: Any) -> NDArray[Any]:
        """Return the checked values of a field other than features that are numbers."""
        values = np.asarray(given)
        if values.dtype.kind in "US" and isinstance(given, list):  # NumPy may have converted numbers of a list to texts
            values = exact_array(given)
        values = finite_numbers(field, values) if values.dtype.kind == "f" else values
        if (declared := (self.choices or {}).get(field)) is not None:
            check_labels(field, declared, np.atleast_1d(values))
        return values

    def _called(self, name: str, features: Any, fields: Mapping[str, Any]) -> NDArray[Any]:
        function: Any = self.functions[name]
        try:
            found = by_blocks(partial(function, dict(self.parameters)), features, fields)
            require(not has_masked(found), f"{name}: the learner's function returned masked numbers.")
            return np.asarray(found)
        except DPConvexError:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            shape = features.shape
            raise TemplateError(f"{name}: features of shape {shape} do not fit the parameters ({error}).") from error

    def check_data(self, caller: str, data: Any, field: str | None = None) -> None:
        """Raise if data have other columns, or another schema, than the data of the fit."""
        check_encoded(caller, self.schema, schema_of(data))
        self.check_names(caller, feature_names(data, field))

    def check_names(self, caller: str, given: Sequence[str] | None) -> None:
        """Raise if the names of features and those of the fit are known and differ."""
        known = self.names if self.schema is None else self.schema.feature_names
        raw = self.schema is not None and {*self.schema.features} <= {*(given or ())} != {*self.schema.feature_names}
        require(not raw, f"{caller}: {RAW}", DomainError)
        check_names(caller, known, given)

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write the model as an ONNX graph, for scores or predictions that are linear in the features (extra ``onnx``).

        With a schema the graph reads the columns of a table, otherwise features ``x``. Its outputs are ``score``, ``label`` and,
        for logistic losses, ``probability``; or ``prediction``, between the bounds of the label that a schema declares.  Other
        models raise a `TemplateError`.
        """
        from dpconvex.fitting.onnx_export import export

        needed = {field for function in self.functions.values() for field in further_fields(function)}
        said = f"to_onnx: a graph predicts from x alone, but this release also from {', '.join(sorted(needed))}."
        require(not needed, said)
        functions = [f and partial(f, dict(self.parameters)) for f in self.functions.values()]
        known = self.names if self.schema is None else self.schema.feature_names
        widths = sorted({size - k for value in self.values() for size in value.shape for k in (0, 1)})
        width = widths if known is None else len(known)
        export(path, self.status, functions, self.labels, width, self.schema, self.scaled)

    def compare(self, proof: Mapping[str, Any]) -> None:
        declared = {node["name"]: tuple(node["shape"]) for node in proof.get("nodes", ()) if node["op"] == "variable"}
        released = {name: value.shape for name, value in self.items()}
        # Estimators may release other parameters than those of the fit; they name a problem.
        said = f"Release: its proof is for the parameters {declared}, but released were {released}."
        require(self.source is not None or not declared or declared == released or proof["moments"], said)

    def with_template(self, template: Any) -> Self:
        if callable(template):
            if self.source is None:
                raise TemplateError(f"Release: it does not come from a shipped problem. {REMEDY}")
            template = template(self.source[0], **self.source[1])
        instance(Template, "or a function that returns one").check("Release", template=template)
        known = json_source(template.source)
        if self.source is not None and known is not None:
            (mine, fitted), (theirs, given) = self.source, known
            require(mine == theirs, f"Release: its problem is {mine!r}, but the template is of {theirs!r}.")
            for name in fitted.keys() & given.keys():
                said = f"Release: fitted with {name}={fitted[name]!r}, but the template has {name}={given[name]!r}"
                require(fitted[name] == given[name], f"{said}; template=dpconvex.load takes the options of the fit.")
        declared = {variable.name: tuple(variable.shape) for variable in template.variables}
        released = {name: value.shape for name, value in self.items()}
        require(declared == released, f"Release: the template declares {declared}, but released were {released}.")
        made = functions_of(template)
        said = f"Release: its records have {self.fields}, but the template declares {made['fields']}."
        require(self.fields in ("", made["fields"]), said)
        return replace(self, **made | {"source": self.source or template.source})


def annotated(found: Any, data: Any) -> Any:
    """Return a release, or statistics, with the column names, the schema and the learnt cost of normalized data."""
    if isinstance(data, Batch):
        return found
    return replace(found, names=feature_names(data), schema=schema_of(data), learnt=learnt_cost(origins(data)))


def functions_of(template: Template) -> dict[str, Any]:
    named = {"predictor": template.predict, "decision": template.decision, "probabilities": template.probabilities}
    scaled = repr(template.record.fields.get("y")) == repr(Box(-1.0, 1.0))
    choices = {name: domain.values for name, domain in template.record.discrete.items()}
    only = next(iter(choices.values())) if len(choices) == 1 and "y" not in template.record.fields else None
    known = {"labels": choices.get("y", only), "choices": choices, "fields": fields_of(template, WEIGHT)}
    return {"source": template.source, "scaled": scaled, **known, **named}


def fields_of(template: Template, beside: str = "") -> str:
    """Return a text of the fields of a template's records except `beside`: shapes of continuous fields, labels of others."""
    record = template.record
    continuous = [f"{name}: {domain.shape}" for name, domain in record.continuous.items() if name != beside]
    return "; ".join([*continuous, *(f"{name}: {domain.values}" for name, domain in record.discrete.items())])


def by_blocks(function: Predict, features: Any, fields: Mapping[str, Any]) -> Any:
    """Return a function of features; a function that cannot take sparse features gets dense blocks of records."""
    try:
        return function(features, **fields)
    except (TypeError, ValueError, LookupError, NotImplementedError):
        if not sp.issparse(features) or not features.shape[0]:
            raise
        step = per_block(features.shape[1:])
        parts = zip(*(blocks(column, step) for column in (features, *fields.values())), strict=True)
        return np.concatenate([function(dense(x), **dict(zip(fields, own, strict=True))) for x, *own in parts])


def finite(name: object, value: ArrayLike) -> Array:
    TEXT.check("Release", **{"name of a parameter": name})
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise TemplateError(f"Release: the parameter {name!r} must be an array of finite real numbers.")
    # A copy: a view would keep all of its base array, which may hold private data.
    return frozen(array.astype(np.float64))


def json_source(source: Any) -> tuple[str, dict[str, Any]] | None:
    """Return name and options of a shipped problem as JSON data; None for a path, or options that JSON cannot hold."""
    # A pattern would ask an array without dimensions for its length.
    match source if isinstance(source, tuple | list | None) else object():
        case None:
            return None
        case [str(name), {**options}]:
            with suppress(TypeError, ValueError):
                text = json.dumps(options, default=lambda value: np.asarray(value).tolist(), allow_nan=False)
                return (name, json.loads(text)) if name.isidentifier() else None  # not for a path
            return None
    raise TemplateError(f"Release: the source must be a problem's name and its options, not {source!r}.")
