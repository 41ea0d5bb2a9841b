"""Tables as scikit-learn's users pass them: what is none of numbers is refused in words, and records in partitions stay there."""

from collections.abc import Callable
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
# What copies of an estimator share.  Workers are not sent these: the ledger, what solves, and a template, which stay here.
SHARED = ("budget", "mechanism", "backend", "learner")


def checked(estimator: Any, caller: str, X: Any, y: Any = "no_validation", texts: bool = False, **options: Any) -> Any:
    """Return a table as scikit-learn reads it; what it says of missing values and of texts gets a place and a remedy."""
    plain(caller, "X", X)
    if not isinstance(y, str):
        plain(caller, "y", y, texts)
    try:
        return validate_data(estimator, X, y, accept_sparse="csr", dtype=np.float64, **options)
    except OverflowError as error:
        raise DomainError(f"{caller}: an entry is larger than floating-point numbers go.") from error
    except ValueError as error:
        text = str(error).splitlines()[0].rstrip(".")
        if not text.startswith(("could not convert", "Input X contains", "Input y contains")):
            raise
        remedy = f"leave such records out, fill them in with public values, or {ENCODE}"
        raise DomainError(f"{caller}: {text}{first_bad(X)}; {remedy}.") from error


def first_bad(X: Any) -> str:
    """Say where the first number of a table is that is none."""
    try:
        row, column = np.argwhere(~np.isfinite(np.asarray(X, dtype=float)))[0]
    except (TypeError, ValueError, IndexError):
        return ""
    return f": the first is in row {row}, column {column}"


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


# Partitions


def partitioned(estimator: Any, X: Any, y: Any) -> Partitions | None:
    """Return features x and labels y in partitions, None if they are in memory; the estimator notes the features' number."""
    alone = isinstance(X, Partitions)
    if not alone and not has_partitions({"x": X}):
        return None
    if alone != (y is None):
        raise TemplateError(
            "fit: pass Partitions of x and y alone, as fit(partitions), and features of Dask with their labels, as fit(X, y)."
        )
    parts = X if alone else Partitions({"x": X, "y": y})
    width = parts.width("x", *getattr(X, "shape", ())[1:2])
    # A frame without records, as Dask describes its frames, has names for its columns.
    validate_data(estimator, X._meta if hasattr(X, "columns") else np.zeros((0, width)), skip_check_array=True)
    return parts


def prepared(parts: Partitions, estimator: Any) -> Partitions:
    """Return partitions whose columns are what an estimator makes of those of a table, as it does in memory."""
    options = {name: value for name, value in estimator.get_params(deep=False).items() if name not in SHARED}
    made = partial(columns, type(estimator), options, estimator.n_features_in_, parts.schema)
    return parts.turned(made, parts.keys() or ("x", "y"))


def columns(kind: type[Any], options: dict[str, Any], features: int, schema: Any, found: Any) -> dict[str, Any]:
    estimator, y = kind(**options), found["y"]
    estimator.n_features_in_ = features
    if not isinstance(y, FileRows):
        # A template of one's own stays behind, and its record says what labels are.
        plain("fit", "y", y, texts=is_classifier(estimator) or hasattr(estimator, "learner"))
    if schema is not None and schema.labels is None:
        y = schema.decode_target(y)  # bounds of an estimator are in the units of the table

    def made(rows: Any) -> Any:
        return estimator._features(rows if sp.issparse(rows) else numbers("x", rows, (features,)))

    return {"x": turned(found["x"], made), "y": turned(y, estimator._target)}


def turned(column: Any, function: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a column; one in a file is read block by block."""
    if not isinstance(column, FileRows):
        return function(column)
    return Stored(column, function, (len(column), *function(column[:0]).shape[1:]))
