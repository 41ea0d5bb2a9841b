"""Base classes of transformers that learn nothing from the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from dpconvex.data.schema import Schema
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.features.bases import BaseEstimator, TransformerMixin
from dpconvex.util.arguments import instance


class LearnsNothing(TransformerMixin, BaseEstimator):
    """A transformer that is ready without a fit: its result for a record depends on this record and on options alone."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """No-op `fit`: only checks the options and the shape of the records."""
        self._read(X, reset=True)
        return self

    def _read(self, X: Any, reset: bool = False) -> Any:
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@contextmanager
def hide_records() -> Iterator[None]:
    """Context that removes quoted records from scikit-learn's errors, and suppresses NumPy's warnings, which reveal records."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DPConvexError:
        raise
    except ValueError as error:
        first, *rest = str(error).splitlines()
        raise ValueError(" ".join([first, *(line for line in rest if line.startswith("Reshape"))])) from None


@hide_records()
def finite_rows(transformer: Any, X: Any, reset: bool) -> NDArray[Any]:
    """Return records in double or single precision, as they are stored; raise at the first record that is not finite."""
    options = {"dtype": [np.float64, np.float32], "ensure_all_finite": False, "ensure_min_samples": 0}
    rows: NDArray[Any] = validate_data(transformer, X, reset=reset, **options)
    total = rows.sum(dtype=float)
    for row in np.flatnonzero(~np.isfinite(rows).all(axis=1)) if not np.isfinite(total) else ():
        raise_unusable(f"{type(transformer).__name__}: row", int(row), rows[row])
    return rows


def raise_unusable(kind: str, number: int, record: NDArray[Any]) -> NoReturn:
    what = "its numbers are too large" if np.isfinite(record).all() else "it holds NaN or infinity"
    raise DomainError(f"{kind} {number}: {what}; fill in and scale by public values.")


class TableTransformer(LearnsNothing):
    """Base class of transformers of tables that a `schema` declares."""

    schema: Schema | None

    def _schema(self) -> Schema:
        name, schema = type(self).__name__, self.schema
        instance(Schema, f"as in {name}(schema)").check(name, schema=schema)
        assert schema is not None
        return schema

    def _read(self, X: Any, reset: bool = False) -> Any:
        return self._schema()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64"]
        return table_tags(tags)


def table_tags(tags: Any) -> Any:
    """Return scikit-learn's tags of a transformer of tables: named columns of any type, which the schema checks."""
    tags.input_tags.two_d_array, tags.input_tags.sparse, tags.input_tags.dict = False, False, True
    tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = tags.no_validation = True
    return tags
