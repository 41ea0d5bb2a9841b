"""Tables in partitions for estimators: what is public about them is looked up here, and records stay where they are."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.utils.validation import validate_data

from dpconvex.errors import DomainError, TemplateError
from dpconvex.estimators.complaints import plain
from dpconvex.language.columns import FileRows, Stored
from dpconvex.language.partitions import Partitions, has_partitions
from dpconvex.language.validation import numbers

# What workers are not sent: the ledger, what solves, and a template, of which nothing is needed there.
LEFT_OUT = ("budget", "mechanism", "backend", "learner")


def partitioned(estimator: Any, X: Any, y: Any) -> Partitions | None:
    """Return features x and labels y in partitions, None if they are in memory; the estimator notes the features' number."""
    if isinstance(X, Partitions):
        if y is not None:
            raise TemplateError("fit: partitions hold the fields x and y; pass them alone, as fit(partitions).")
        parts = X
    elif has_partitions({"x": X}):
        if y is None:
            raise TemplateError("fit: pass the labels, too, in the same partitions as the features: fit(X, y).")
        parts = Partitions({"x": X, "y": y})
    else:
        return None
    fields(parts.keys() or "xy")
    shape = getattr(X, "shape", None)  # of an array or a frame of Dask
    if shape is not None and len(shape) != 2:
        raise DomainError(f"fit: expected features of shape (n, features), got {len(shape)} axes.")
    # A frame without records, as Dask describes its frames, has names for its columns.
    width = parts.width("x", None if shape is None else int(shape[1]))
    validate_data(estimator, X._meta if hasattr(X, "columns") else np.zeros((0, width)), skip_check_array=True)
    return parts


def fields(names: Any) -> None:
    if set(names) != {"x", "y"}:
        raise DomainError(f"fit: expected the fields x (features) and y (labels), not {sorted(names)}.")


def prepared(parts: Partitions, estimator: Any, features: int) -> Partitions:
    """Return partitions whose columns are what an estimator makes of those of a table, as it does in memory."""
    options = {name: value for name, value in estimator.get_params(deep=False).items() if name not in LEFT_OUT}
    return parts.turned(partial(columns, type(estimator), options, features, parts.schema), ("x", "y"))


def columns(kind: type[Any], options: dict[str, Any], features: int, schema: Any, found: Any) -> dict[str, Any]:
    fields(found if isinstance(found, Mapping) else [type(found).__name__])
    estimator, y = kind(**options), found["y"]
    if not isinstance(y, FileRows):
        # A template of one's own stays behind, and its record says what labels are.
        plain("fit", "y", y, texts=is_classifier(estimator) or hasattr(estimator, "learner"))
    if schema is not None and schema.labels is None:
        y = schema.decode_target(y)  # bounds of an estimator are in the units of the table
    return {"x": turned(found["x"], partial(rows_of, estimator, features)), "y": turned(y, estimator._target)}


def turned(column: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a column; one in a file is read block by block."""
    if not isinstance(column, FileRows):
        return function(column)
    made = function(column[:0])
    return column if made is None else Stored(column, function, (len(column), *made.shape[1:]))


def rows_of(estimator: Any, features: int, rows: Any) -> Any:
    if not sp.issparse(rows):
        rows = numbers("x", rows)
        rows = rows if len(rows) else rows.reshape(0, features)
    if rows.ndim != 2 or rows.shape[1] != features:
        raise DomainError(f"field 'x': expected shape (n, {features}), got {rows.shape}.")
    return estimator._features(rows)
