"""What scikit-learn refuses in a table, with a place and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpconvex.errors import DomainError


@contextmanager
def explained(caller: str, X: Any) -> Iterator[None]:
    """Context in which scikit-learn reads a table: what it says of missing values and of texts gets a place and a remedy."""
    try:
        yield
    except ValueError as error:
        text = str(error).splitlines()[0]
        if text.startswith("could not convert"):
            remedy = (
                "declare what texts stand for in a dpconvex.Schema, and encode the table with dpconvex.SchemaEncoder"
            )
        elif text.startswith("Input X contains"):
            remedy = (
                f"{first_bad(X)}leave such records out, fill them in with public values, or declare in a dpconvex.Schema what is "
                "missing, and encode the table with dpconvex.SchemaEncoder"
            )
        elif text.startswith("Input y contains"):
            remedy = "leave such records out"
        else:
            raise
        raise DomainError(f"{caller}: {text.rstrip('.')}: {remedy}.") from error


def first_bad(X: Any) -> str:
    """Say where the first number of a table is that is none."""
    try:
        rows, column = np.nonzero(~np.isfinite(np.asarray(X, dtype=float)))
    except (TypeError, ValueError):
        return ""
    return f"the first is in row {rows[0]}, column {column[0]}; " if len(rows) else ""
