"""What scikit-learn's users are told of a table that is none of numbers: where, and what to do."""

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.validation import TIMES, has_masked

ENCODE = "declare what they stand for in a dpconvex.Schema, and encode the table with dpconvex.SchemaEncoder"
CLASSIFY = "targets are numbers between declared bounds, and labels are for a classifier, such as LogisticRegression"
# How scikit-learn's complaints begin, and what to do.
REMEDIES = {
    "could not convert": ENCODE,
    "Input X contains": f"{{first}}leave such records out, fill them in with public values, or {ENCODE}",
    "Input y contains": "leave such records out",
}


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
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise TemplateError(
            f"classes must be the labels that may occur, such as classes=('no', 'yes'), not {classes!r}."
        )
    found = tuple(classes)
    if len(found) < 2 or (all(isinstance(label, Hashable) for label in found) and len(set(found)) < len(found)):
        raise TemplateError(
            f"classes must be two or more different labels, such as classes=('no', 'yes'), not {classes!r}."
        )
    return found
