"""Tables as scikit-learn's users pass them: what is none of numbers is refused in words, and records in partitions stay there."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.utils.validation import validate_data

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.columns import FileRows, Stored
from dpconvex.language.partitions import Partitions, has_partitions
from dpconvex.language.validation import TIMES, has_masked, numbers

ENCODE = "declare what they stand for in a dpconvex.Schema, and encode the table with dpconvex.SchemaEncoder"
CLASSIFY = "targets are numbers between declared bounds, and labels are for a classifier, such as LogisticRegression"
# How scikit-learn's complaints begin, and what to do.
REMEDIES = {
    "could not convert": ENCODE,
    "Input X contains": f"{{first}}leave such records out, fill them in with public values, or {ENCODE}",
    "Input y contains": "leave such records out",
}
# What copies of an estimator share.  Workers are not sent these: the ledger, what solves, and a template, which stay here.
SHARED = ("budget", "mechanism", "backend", "learner")


@contextmanager
def explained(caller: str, X: Any) -> Iterator[None]:
    """Context in which scikit-learn reads a table: what it says of missing values and of texts gets a place and a remedy."""
    try:
        yield
    except OverflowError as error:
        raise DomainError(f"{caller}: an entry is larger than floating-point numbers go.") from error
    except ValueError as error:
        text = str(error).splitlines()[0]
        remedy = next((remedy for begin, remedy in REMEDIES.items() if text.startswith(begin)), None)
        if remedy is None:
            raise
        raise DomainError(f"{caller}: {text.rstrip('.')}: {remedy.format(first=first_bad(X))}.") from error


def first_bad(X: Any) -> str:
    """Say where the first number of a table is that is none."""
    try:
        rows, column = np.nonzero(~np.isfinite(np.asarray(X, dtype=float)))
    except (TypeError, ValueError):
        return ""
    return f"the first is in row {rows[0]}, column {column[0]}; " if len(rows) else ""


def plain(caller: str, name: str, values: Any, texts: bool = False) -> None:
    """Refuse masked entries, dates, durations and, except as labels, texts: scikit-learn would make numbers of them."""
    if has_masked(values):
        raise DomainError(f"{caller}: entries of {name} are masked; leave such records out, or fill them in.")
    if values is None or sp.issparse(values):
        return
    try:
        array = np.asarray(values)
    except Exception:  # what is no array, scikit-learn refuses with its own words
        return
    kind, wrong = array.dtype.kind, TIMES if texts else (*TIMES, str, bytes)
    odd = kind == "O" and any(isinstance(entry, wrong) for entry in array.ravel().tolist())
    if odd or kind in "Mm" or (kind in "US" and not texts):
        what = f"{'' if texts else 'texts, '}dates or durations for numbers"
        raise DomainError(f"{caller}: {name} has {what}: {CLASSIFY if name == 'y' else ENCODE}.")


def declared_classes(classes: Any) -> tuple[Any, ...]:
    found = () if isinstance(classes, str) or not isinstance(classes, Iterable) else tuple(classes)
    if len(found) < 2 or (all(isinstance(label, Hashable) for label in found) and len(set(found)) < len(found)):
        raise TemplateError(
            f"classes must be two or more different labels that may occur, such as classes=('no', 'yes'), not {classes!r}."
        )
    return found


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
    check_fields(parts.keys() or "xy")
    shape = getattr(X, "shape", None)  # of an array or a frame of Dask
    if shape is not None and len(shape) != 2:
        raise DomainError(f"fit: expected features of shape (n, features), got {len(shape)} axes.")
    # A frame without records, as Dask describes its frames, has names for its columns.
    width = parts.width("x", None if shape is None else int(shape[1]))
    validate_data(estimator, X._meta if hasattr(X, "columns") else np.zeros((0, width)), skip_check_array=True)
    return parts


def check_fields(names: Any) -> None:
    if set(names) != {"x", "y"}:
        raise DomainError(f"fit: expected the fields x (features) and y (labels), not {sorted(names)}.")


def prepared(parts: Partitions, estimator: Any, features: int) -> Partitions:
    """Return partitions whose columns are what an estimator makes of those of a table, as it does in memory."""
    options = {name: value for name, value in estimator.get_params(deep=False).items() if name not in SHARED}
    return parts.turned(partial(columns, type(estimator), options, features, parts.schema), ("x", "y"))


def columns(kind: type[Any], options: dict[str, Any], features: int, schema: Any, found: Any) -> dict[str, Any]:
    check_fields(found if isinstance(found, Mapping) else [type(found).__name__])
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
