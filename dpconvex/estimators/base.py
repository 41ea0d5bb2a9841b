"""The base class of all estimators: options state everything that a proof needs, and nothing else is learnt from the data.

A class names its problem file. Options with the name of an option of the problem are passed on. `fit` maps each record to
features, loads the problem for their number, and solves the problem privately.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, ClassVar, dataclass_transform

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpconvex.accounting.budget import Budget
from dpconvex.certificates.certificate import Certificate
from dpconvex.data.columns import check_names, names_of
from dpconvex.data.domains import Choice
from dpconvex.data.encoded import learnt_cost, with_origin
from dpconvex.data.schema import Schema, check_beside, check_encoded, check_unit
from dpconvex.data.tables import entries, text_of
from dpconvex.data.validation import length_of_labels, nonnumeric
from dpconvex.errors import shorten
from dpconvex.estimators.options import as_candidate, warn_of_refit, with_hints
from dpconvex.estimators.tables import (
    SHARED,
    charge_columns,
    checked,
    lazily,
    one_column,
    partitioned,
    plain,
    prepared,
    schemas_before,
    with_columns,
)
from dpconvex.features.bases import BaseEstimator
from dpconvex.features.transformers import hide_records
from dpconvex.fitting.onnx_export import export_estimator
from dpconvex.fitting.problem_files import load, options as options_of
from dpconvex.fitting.release import Release
from dpconvex.fitting.solve import solve
from dpconvex.fitting.verify import verify
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.util.arguments import POSITIVE, TRUTH, check_fields, instance, require
from dpconvex.util.arrays import Array

SECTION = re.compile(r"^(Parameters|Attributes|Examples)\n-+\n", flags=re.MULTILINE)


def sections(text: str | None) -> tuple[str, dict[str, str]]:
    head, *parts = (part.strip() for part in SECTION.split(inspect.cleandoc(text or "")))
    return head, dict(zip(parts[::2], parts[1::2], strict=True))


def label_order(labels: Sequence[Any]) -> list[int]:
    """Return the indexes of the declared labels in sorted order, the order that scikit-learn expects of `classes_`."""
    try:
        return [int(place) for place in np.argsort(Choice(labels).array, kind="stable")]
    except TypeError:  # labels of several types, such as None and texts, that have no order
        return list(range(len(labels)))


@dataclass_transform(eq_default=False, kw_only_default=True)
@dataclass(eq=False, repr=False, kw_only=True)
class Private(BaseEstimator):
    """Base class of estimators: it holds the options of a fit, and the release.

    Parameters
    ----------
    epsilon, delta, adjacency, unit, most, keep : object
        Guarantee of one fit, as for `dpconvex.Privacy`.
    regularization : float or None
        Lambda; None means the default of the problem file.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    fit_intercept : bool
        Fit an intercept b, with a penalty of 1e-6 at most.  Learners with linear scores do so by default.  Learners with a
        constant of their own raise an error.
    intercept_scaling : float
        Factor of b, in units of the radius.  Gradients are longer with b, by ``sqrt(1 + intercept_scaling**2)``.
    clip : bool
        Project records onto their declared domain instead of raising.
    size : int or None
        Public number of records; needed under add-remove.
    mechanism, backend, seed : object
        As for `dpconvex.solve`. With a seed a fit is marked as not private.
    budget : Budget or None
        A ledger that records each fit before data are read.  Copies of the estimator share it.

    Attributes
    ----------
    release_ : Release
        The private fit; ``save(path)`` writes the fit with its schema, ``release_.save(path)`` without.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Column names, if the table had names.  Tables for predictions must have the same names, in the same order.
    schema_ : Schema or None
        Schema of the `SchemaEncoder` directly before the estimator in a pipeline, or of the partitions of the fit.
    """

    problem: ClassVar[str] = ""
    # The released parameter that is linear in the features; empty if there is none.
    weights: ClassVar[str] = ""
    # Whether there is a `decision_function`, and a `predict_proba`.
    has_scores: ClassVar[bool] = False
    models_probabilities: ClassVar[bool] = False
    # The learner's own constant term that replaces an intercept, such as "a threshold"; empty if there is none.
    own_constant: ClassVar[str] = ""
    maps_features: ClassVar[bool] = False  # whether `_features` depends on options
    # Why `save` is not available; empty if it is.
    unsaved: ClassVar[str] = ""
    # Docstring example of classes without an own example; {name} is the name of the class.
    example: ClassVar[str] = ""

    epsilon: float = 1.0
    delta: float = 0.0
    adjacency: str = "replace-one"
    unit: str | None = None
    most: int = 1
    keep: str | None = None
    regularization: float | None = None
    radius: float = 1.0
    fit_intercept: bool = False
    intercept_scaling: float = 0.5
    clip: bool = False
    size: int | None = None
    mechanism: Any = None
    backend: Any = None
    budget: Budget | None = None
    seed: int | None = None

    def __init_subclass__(cls, **facts: Any) -> None:
        """Set class attributes from the keywords, add inherited sections to the docstring, and make the class a dataclass."""
        super().__init_subclass__()
        for name, fact in facts.items():
            setattr(cls, name, fact)
        head, own = sections(cls.__doc__)
        _, inherited = sections(next(kind.__doc__ for kind in cls.__mro__[1:] if issubclass(kind, Private)))
        for title in ("Parameters", "Attributes"):
            own[title] = f"{own.get(title, '')}\n{inherited[title]}".strip()
        if cls.problem and cls.example:
            own.setdefault("Examples", inspect.cleandoc(cls.example.format(name=cls.__name__)))
        cls.__doc__ = "\n\n".join([head, *(f"{title}\n{'-' * len(title)}\n{text}" for title, text in own.items())])
        dataclass(eq=False, repr=False, kw_only=True)(cls)
        for method in {"__init__", "fit"} & vars(cls).keys():
            setattr(cls, method, with_hints(vars(cls)[method]))

    # Declaration

    def template(self, features: int) -> Template:
        """Return the template to be fitted for a number of features."""
        given = self.get_params(deep=False) | self._declared(features)
        if given["regularization"] is None:
            del given["regularization"]
        return load(self.problem, **{name: given[name] for name in options_of(self.problem) if name in given})

    def certificate(self, features: int, size: int) -> Certificate:
        """Return the certificate for a number of features and of records, without data."""
        return verify(self.template(features), self.privacy(), size, **self._ways())

    candidate, _annotated = as_candidate, with_columns

    def privacy(self) -> Privacy:
        """Return the guarantee of one fit."""
        return Privacy(self.epsilon, self.delta, self.adjacency, self.unit, self.most, self.keep)

    def _declared(self, features: int) -> dict[str, Any]:
        """Return public numbers about records by name; the problem takes the names among its options."""
        name, fitted = type(self).__name__, self.fit_intercept
        said = f"{name} fits {self.own_constant} instead of an intercept; leave fit_intercept at False."
        require(not fitted or not self.own_constant, said)
        check_fields(self, fit_intercept=TRUTH, radius=POSITIVE, intercept_scaling=POSITIVE)
        constant = self._intercept_scale(features) * bool(fitted)
        return {"features": features, "radius": self.radius, "constant": constant}

    def _intercept_scale(self, features: int) -> float:
        """Return the value of the intercept at b = 1."""
        return self.intercept_scaling * self.radius

    def _ways(self) -> dict[str, Any]:
        """Return the options of `verify` and `solve` that choose the mechanism."""
        return {"mechanism": self.mechanism}

    # Data

    @with_hints
    def fit(self, X: Any, y: Any = None, *, unit: Any = None) -> Any:
        """Fit privately.

        Parameters
        ----------
        X : array_like, data frame or SciPy sparse matrix, shape (n, features)
            Every row within the public radius (or ``clip=True``).  Also an array or a frame of Dask, with `y` in the same
            partitions, or `dpconvex.Partitions` of the fields x and y, without `y`.  Partitions stay where they are.
        y : array_like, shape (n,)
            Declared labels, or targets between declared bounds.
        unit : array_like, shape (n,), optional
            Identifiers of the people of the records, if the guarantee has a unit.

        Returns
        -------
        self
        """
        self.release_ = self._fitted(solve, self._records(X, y), backend=self.backend, unit=unit)
        return self

    def records(self, X: Any, y: Any = None, **columns: Any) -> Any:
        """Return records in the form of the fit, with scaled targets, for `dpconvex.evaluate` and `dpconvex.intervals`.

        Arguments are those of `fit` without `unit`; pass `unit` to these two functions.
        """
        self._released()
        made = self.__sklearn_clone__()
        records = made._records(X, y, **columns)
        self._check_alike("records", made.schema_ or made.encoder_, getattr(made, "_names", None))
        return records

    def _records(self, X: Any, y: Any, **columns: Any) -> Any:
        require(not columns, f"{type(self).__name__} takes no {', '.join(columns)} beside X and y.")
        return self._data(X, y)

    def _data(self, X: Any, y: Any) -> Any:
        """Return the data in the form of the template's record, and set the public attributes, such as `schema_`."""
        (before, schemas), parts = schemas_before(self), partitioned(self, X, y)
        self.encoder_ = found if isinstance(found := getattr(X, "schema", None), Schema) else None
        self._names = names_of(X) if parts is None else parts.names.get("x")
        self.schema_ = before if parts is None else parts.schema
        behind = [*([X, y] if parts is None else [parts]), *schemas]
        check_unit(self.unit, *behind)
        self._check_labels(list(getattr(self.schema_, "labels", None) or ()))
        self._learnt = learnt_cost(behind)
        y = self._in_units(y)
        if parts is not None:
            return prepared(parts, self)
        rows, labels = self._read(X, y)
        if hasattr(self, "_labels") and nonnumeric(y):  # NumPy forgets types of columns of texts
            length_of_labels("y", self._labels(), y)
        return {"x": with_origin(lazily(rows, self._features), X, *schemas), "y": self._target(labels)}

    @hide_records()
    def _read(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return arrays of features and labels with checked shapes and types; values are checked after the charge."""
        plain("fit", "y", y, is_classifier(self), cells=False)
        target = None if y is None else "no_validation"  # scikit-learn raises its own error without y
        return checked(self, "fit", X, target, later=True), one_column(y)

    def _check_labels(self, labels: Any) -> None:
        """Raise if the labels of a schema were not declared."""

    def _in_units(self, y: Any) -> Any:
        return y

    def _target(self, y: Any) -> Any:
        """Return the labels; a schema that learnt its labels maps every entry to one of its labels."""
        known: Any = vars(self).get("schema_") or vars(self).get("encoder_")
        labels: Any = hasattr(self, "_labels") and known is not None and self._labels()
        learnt = labels and known.learnt is not None and known.label in known.learnt.columns
        return known.targets(entries("y", y)) if learnt and {*labels} == {*(known.labels or ())} else y

    def _more(self, found: Mapping[str, Any], x: Any) -> dict[str, Any]:
        """Return further fields of the record, computed from the given columns."""
        return {}

    def _features(self, X: Any) -> Any:
        """Return the field x of the problem's record for given features."""
        return X

    def _fitted(self, fit: Callable[..., Any], data: Any, **options: Any) -> Any:
        """Return ``fit(template, data, ...)`` with the estimator's options; a release also gets schema and learnt cost."""
        warn_of_refit(self, data)
        options |= {name: getattr(self, name) for name in ("size", "clip", "seed", "budget")} | self._ways()
        label, template = f"fit {type(self).__name__}", self.template(self.n_features_in_)
        charge_columns(self, template)
        found = fit(template, data, self.privacy(), entry=label, **options)
        return self._annotated(found, template) if hasattr(found, "schema") else found

    def save(self, path: str | PathLike[str], schema: Schema | None = None) -> None:
        """Write the release with its schema to a file, for ``dpconvex predict`` and ``dpconvex evaluate``.

        Parameters
        ----------
        path : str or path
            Such as ``model.npz``.
        schema : Schema, optional
            Schema of the features and labels of the fit; by default that of the pipeline's `SchemaEncoder` or of partitions.
        """
        require(not self.unsaved, f"save: {self.unsaved}; save release_, and use it in Python.")
        release, encoder = self._released(), getattr(self, "encoder_", None)
        known: Any = getattr(self, "schema_", None) or encoder if schema is None else schema
        remedy = "Pass the schema of the features: save(path, schema). To save the fit alone: release_.save(path)."
        instance(Schema).check("save", remedy, schema=known)
        check_encoded("save", encoder, known)
        said = self._unsuited(known, self.template(self.n_features_in_))
        require(not said, f"save: {said}")
        check_beside("save", known, getattr(self, "_beside", dict)())
        replace(release, schema=known).save(path)

    def _unsuited(self, schema: Schema, template: Template) -> str:
        """Return why a schema does not match the features and labels of the fit; an empty text if it does."""
        names = schema.feature_names
        labels = tuple(map(text_of, getattr(self, "_labels", tuple)() or ())) or None
        bounds = None if labels else self._interval() if hasattr(self, "_interval") else schema.label_bounds or ()
        makes = len(names), names, schema.labels, schema.label_bounds
        if makes != (fitted := (self.n_features_in_, list(getattr(self, "feature_names_in_", names)), labels, bounds)):
            both = f"{shorten(str(makes))} in the schema, and {shorten(str(fitted))} in the fit"
            what = "number and names of features, labels and label_bounds"
            return f"{what} differ: {both}; pass the schema of the table, or fit with bounds=schema."
        fits = getattr(template.record.fields["x"], "shape", None) == (len(names),)
        return "" if fits else "dpconvex predict has no feature maps; save release_, and use it in Python."

    # Predictions

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict from the released parameters; costs no privacy."""
        return self._released().predict(self._checked(X))

    @available_if(lambda self: self.has_scores)  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Array:
        """Return scores of `classes_`, shape (n, classes), or (n,) for two classes, above 0 for the second; costs no privacy."""
        found = self._in_order(self._released().decision_function(self._checked(X)))
        return found[:, 1] - found[:, 0] if found.ndim == 2 and found.shape[1] == 2 else found

    @available_if(lambda self: self.models_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Array:
        """Return probabilities of `classes_`, shape (n, classes); costs no privacy."""
        return self._in_order(self._released().predict_proba(self._checked(X)))

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write the fit as an ONNX graph with the same predictions (extra ``onnx``); outputs are as for `Release.to_onnx`.

        Behind a `SchemaEncoder` the graph reads the columns of a table, otherwise features ``x``.
        """
        self._released()
        export_estimator(self, path)

    def _in_order(self, found: Array) -> Array:
        """Sort scores or probabilities of the declared labels, shape (n,) or (n, labels), into the order of `classes_`."""
        order = self._order
        return found[:, order] if found.ndim == 2 else -found if order == [1, 0] else found

    def _released(self) -> Release:
        check_is_fitted(self, "release_")
        return self.release_

    def _checked(self, X: ArrayLike) -> Any:
        """Return features for a prediction; raise unless number, names and schema match the features of the fit."""
        self._released()
        rows = checked(self, "predict", X, reset=False)
        self._check_alike("predict", getattr(X, "schema", None), names_of(X))
        return rows

    def _check_alike(self, caller: str, schema: Any, names: Any) -> None:
        """Raise if features have another schema, or other names, than the features of the fit."""
        check_encoded(caller, getattr(self, "encoder_", None), schema)
        check_names(caller, getattr(self, "_names", None), names)

    def _weights(self) -> tuple[Array, Array]:
        """Return the released weights of the original features, shape (features, ...), and the intercept, shape (...)."""
        if not self.weights:
            raise AttributeError(f"{type(self).__name__} has no coef_; read its parameters by release_.parameters.")
        release, scale = self._released(), self._intercept_scale(self.n_features_in_)
        found = release[self.weights]
        return found, release["b"] * scale if self.fit_intercept else np.zeros(found.shape[1:])

    # Copies

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy that shares the budget and is marked as a copy."""
        options = self.get_params(deep=False).items()
        copied = type(self)(**{n: value if n in SHARED else clone(value, safe=False) for n, value in options})
        copied._is_clone = True
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with the release as the bytes of its file; raise for a template of your own."""
        state: dict[str, Any] = dict(super().__getstate__())
        if state.get("learner") is not None or ("release_" in state and self.release_.source is None):
            why = "functions of your own template, and labels without a form in JSON, cannot be pickled"
            raise TypeError(f"{why}: save the release, and read it with dpconvex.Release.load(path, template=...).")
        return state

    # Display

    def _html_repr(self) -> str:
        shown = str(super()._html_repr())
        return f"<div>{shown}{self.release_._repr_html_()}</div>" if "release_" in vars(self) else shown

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.non_deterministic = tags.target_tags.required = True
        return tags
