"""What transformers share that learn nothing from the data."""

from __future__ import annotations

from typing import Any, Self

from dpconvex.errors import TemplateError
from dpconvex.features.bases import BaseEstimator, TransformerMixin
from dpconvex.language.schema import Schema


class LearnsNothing(TransformerMixin, BaseEstimator):
    """A transformer that is ready without a fit, which only checks: what becomes of a record depends on it and on options."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Do nothing but check the options and the shape of the records."""
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


class TableTransformer(LearnsNothing):
    """One that takes tables which its `schema` declares."""

    schema: Schema | None

    def _schema(self) -> Schema:
        if not isinstance(self.schema, Schema):
            name = type(self).__name__
            raise TemplateError(f"{name}: expected a Schema, as {name}(schema), not {self.schema!r}.")
        return self.schema

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64"]
        return of_tables(tags)


def of_tables(tags: Any) -> Any:
    """Say that tables are taken whose columns have names, of any kind; a schema checks them."""
    tags.input_tags.two_d_array, tags.input_tags.sparse, tags.input_tags.dict = False, False, True
    tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = tags.no_validation = True
    return tags
