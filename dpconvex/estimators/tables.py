"""Checks of tables and pipelines of scikit-learn: errors for data that are not numbers, and warnings of steps that leak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from traceback import walk_stack
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from dpconvex.accounting.budget import charge_schema
from dpconvex.data.columns import FileRows, Stored, array_of, records_of
from dpconvex.data.dask_columns import has_partitions, is_frame
from dpconvex.data.encoded import learnt_cost
from dpconvex.data.partitions import Partitions
from dpconvex.data.schema import Schema, check_inside
from dpconvex.data.validation import TIMES, has_masked, nonnumeric, real_array
from dpconvex.errors import DomainError, warn
from dpconvex.features.transformers import TableTransformer, hide_records
from dpconvex.model.template import Template
from dpconvex.util.arguments import require

ENCODE = "declare their meaning in a dpconvex.Schema, and encode the table with dpconvex.SchemaEncoder"
CLASSIFY = "targets are numbers between declared bounds, and labels are for a classifier, such as LogisticRegression"
# Options that copies of an estimator share.  Workers do not get them: ledger, mechanism, solver and template stay here.
SHARED = ("budget", "mechanism", "backend", "learner")
SKIPPED = (None, "passthrough", "drop")  # steps of a composed estimator that do nothing


@hide_records()
def checked(estimator: Any, caller: str, X: Any, y: Any = "no_validation", later: bool = False, **options: Any) -> Any:
    """Return features checked by scikit-learn, except values if `later`; errors about texts and values get a remedy."""
    X = X.compute() if is_frame(X) else X  # NumPy would lose the names of the columns
    kind = plain(caller, "X", X, cells=not later)
    if later:
        options |= {"ensure_min_samples": 0, "ensure_all_finite": False}
    if later and kind == "O":
        validate_data(estimator, X, y, skip_check_array=True)
        return check_array(X, dtype=object, **options)
    try:
        return validate_data(estimator, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], **options)
    except OverflowError as error:
        raise DomainError(f"{caller}: an entry exceeds the range of floating-point numbers.") from error
    except ValueError as error:
        text = str(error).splitlines()[0].rstrip(".")
        if not text.startswith(("could not convert", "Input X contains")):
            raise
        raise DomainError(f"{caller}: {text}; fill them in with public values, or {ENCODE}.") from error


def plain(caller: str, name: str, values: Any, texts: bool = False, cells: bool = True) -> str:
    """Raise for masked entries, dates, durations and (unless `texts`) texts, in objects only if `cells`; return NumPy's kind."""
    if has_masked(values):
        raise DomainError(f"{caller}: entries of {name} are masked; leave these records out, or fill the entries in.")
    if values is None or sp.issparse(values):
        return ""
    try:
        array = array_of(name, values)
    except Exception:  # scikit-learn raises its own error
        return ""
    kind, wrong = array.dtype.kind, TIMES if texts else (*TIMES, str, bytes)
    odd = cells and kind == "O" and any(isinstance(entry, wrong) for entry in array.ravel().tolist())
    if odd or kind in "Mm" or (not texts and (kind in "US" or nonnumeric(values))):
        what = f"{'' if texts else 'texts, '}dates or durations instead of numbers"
        raise DomainError(f"{caller}: {name} has {what}: {CLASSIFY if name == 'y' else ENCODE}.")
    return kind


def one_column(y: Any) -> NDArray[Any]:
    """Return labels or targets, shape (n,); entries of a list of several types keep their types."""
    kinds = {*map(type, y)} if isinstance(y, list | tuple) else set()
    if len(kinds) > 1 or kinds - {bool, int, float, str}:  # NumPy would convert numbers beside a text to texts
        y = np.array(y, dtype=object)
    return np.asarray(column_or_1d(y, warn=True))


# Partitions


def partitioned(estimator: Any, X: Any, y: Any) -> Partitions | None:
    """Return features x and labels y as partitions, or None if they are in memory; set number and names of features."""
    alone = isinstance(X, Partitions)
    if not alone and not has_partitions({"x": X}):
        return None
    why = "Partitions of x and y alone, as fit(partitions), or features of Dask with their labels, as fit(X, y)"
    require(alone == (y is None), f"fit: pass {why}.")
    parts = X if alone else Partitions({"x": X, "y": y})
    width = parts.width("x", *getattr(X, "shape", ())[1:2])
    # Dask describes a frame by a frame without records, with the names of its columns.
    validate_data(estimator, X._meta if hasattr(X, "columns") else np.zeros((0, width)), skip_check_array=True)
    if names := parts.names.get("x"):
        estimator.feature_names_in_ = np.array(names, dtype=object)
    return parts


def prepared(parts: Partitions, estimator: Any) -> Partitions:
    """Return partitions with the feature map and the scaled targets of an estimator, as for a table in memory."""
    options = {name: value for name, value in estimator.get_params(deep=False).items() if name not in SHARED}
    made = partial(columns, type(estimator), options, estimator.n_features_in_, parts.schema)
    return parts.turned(made, parts.keys() or ("x", "y"))


def columns(kind: type[Any], options: dict[str, Any], features: int, schema: Any, found: Any) -> dict[str, Any]:
    estimator, y = kind(**options), found["y"]
    estimator.n_features_in_ = features
    if not isinstance(y, FileRows):
        # A template of your own is not sent; its record checks the labels.
        plain("fit", "y", y, texts=is_classifier(estimator) or hasattr(estimator, "learner"))
    if schema is not None and schema.labels is None:
        y = schema.decode_target(y)  # bounds of an estimator are in the units of the table

    def made(rows: Any) -> Any:
        return estimator._features(rows if sp.issparse(rows) else real_array("x", rows, (features,)))

    return {"x": lazily(found["x"], made), "y": estimator._target(y)} | estimator._more(found, found["x"])


def lazily(column: Any, function: Callable[[Any], Any]) -> Any:
    """Return a column with a function applied when it is read, after the charge; for sparse results the function runs now."""
    none = function(column[:0])
    return function(column) if sp.issparse(none) else Stored(column, function, (records_of(column), *none.shape[1:]))


# Pipelines


@dataclass(eq=False, repr=False)
class SchemaEncoder(TableTransformer):
    """Encode a table as features in the unit ball by its schema, as a step of a pipeline.

    Parameters
    ----------
    schema : Schema
    sparse : bool
        Return sparse features, for many levels.

    Examples
    --------
    >>> from dpconvex.data.schema import Schema
    >>> encoder = SchemaEncoder(Schema({"age": (0, 100), "weight": (0, 200)}, "sick", [0, 1]))
    >>> encoder.fit_transform({"age": [0, 50], "weight": [200, 100]}).round(3)
    array([[-0.707,  0.707],
           [ 0.   ,  0.   ]])
    """

    schema: Schema | None = None
    sparse: bool = False

    def transform(self, X: Any) -> Any:
        """Return features, shape (n, features), with rows of length at most `schema.radius`."""
        return self._schema().encode(X, labelled=False, empty=True, sparse=self.sparse)[0]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        return np.array(self._schema().feature_names, dtype=object)


def schemas_before(estimator: Any) -> tuple[Schema | None, list[Schema]]:
    """Return the schema if its encoder is the only step before, and all schemas; warn of steps that learn from the data."""
    steps, schemas, last = list[Any](), list[Schema](), estimator
    # Reading locals of other frames would leave a copy of them, data included, on a frame of the user.
    fits = (f for f, _ in walk_stack(None) if f.f_code.co_varnames[:1] == ("self",) and f.f_code.co_name[:3] == "fit")
    for frame in fits:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and owner.steps:
            before = [step for _, step in owner.steps[:-1] if step not in SKIPPED]
            given = (value for step in before for value in getattr(step, "get_params", dict)().values())
            schemas += [value for value in given if isinstance(value, Schema)]  # also of steps in steps
            if owner.steps[-1][1] is last:  # no search or other estimator is between them
                steps, last = [*before, *steps], owner
    for step in filter(learns, steps):
        said = f"{type(step).__name__} learns from the data before the private step, at a cost that is not counted"
        texts = type(step).__module__.startswith("sklearn.feature_extraction")
        remedy = "Scale with public bounds (dpconvex.SchemaEncoder, dpconvex.datasets.unit_ball)"
        warn(f"{said}. {'Use HashingVectorizer or FeatureHasher, which learn nothing' if texts else remedy}.")
    return schemas[0] if len(steps) == 1 and isinstance(steps[0], SchemaEncoder) else None, schemas


def learns(step: Any) -> bool:
    """Return whether a step may learn from values, by its class and options, or by a function that chooses columns."""
    from sklearn.compose import ColumnTransformer

    if step in SKIPPED:
        return False
    if isinstance(step, Pipeline | FeatureUnion):
        return any(learns(inner) for _, inner in (step.steps if isinstance(step, Pipeline) else step.transformer_list))
    if isinstance(step, ColumnTransformer):
        chosen = any(learns(inner) or callable(columns) for _, inner, columns in step.transformers)
        return chosen or learns(step.remainder)
    # These are fitted to the number of columns alone.
    if type(step) is PolynomialFeatures or (type(step) is SplineTransformer and not isinstance(step.knots, str)):
        return False
    try:
        return bool(get_tags(step).requires_fit)
    except Exception:  # a third-party transformer without tags
        return True


def declared(estimator: Any) -> list[Any]:
    """Return the schema and what else of an estimator may have a learnt cost."""
    return [vars(estimator).get(name) for name in ("schema_", "encoder_", "bounds", "_learnt")]


def suited_schema(estimator: Any, template: Template | None) -> Schema | None:
    """Return the schema of the columns unless the estimator maps them, or the schema does not match a given template."""
    schema: Schema | None = vars(estimator).get("schema_") or vars(estimator).get("encoder_")
    maps = estimator.maps_features or getattr(estimator, "encoder", None) is not None
    return None if schema is None or maps or (template and estimator._unsuited(schema, template)) else schema


def charge_columns(estimator: Any, template: Template) -> None:
    """Charge what a schema cost, unless its features lie outside the domain of a template that does not clip them."""
    if (schema := suited_schema(estimator, None)) is not None and not estimator.clip:
        check_inside(schema, template.record.fields["x"], "x")
    charge_schema(estimator.budget, learnt_cost(declared(estimator)))


def with_columns(estimator: Any, found: Any, template: Template) -> Any:
    """Return a release with the names and the schema of the columns of an estimator, and what the schema cost."""
    names, schema = found.names or vars(estimator).get("_names"), suited_schema(estimator, template) or found.schema
    known = declared(estimator)
    if (learnt := learnt_cost(known)) is None:
        return replace(found, names=names, schema=schema)
    schema = next((one for one in known if isinstance(one, Schema) and one.learnt is learnt), schema)
    return replace(found, names=names, schema=schema, learnt=learnt)
