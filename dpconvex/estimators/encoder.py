"""A transformer that turns data frames into features by a schema, and learns nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from dpconvex.errors import TemplateError
from dpconvex.estimators.complaints import steps_before
from dpconvex.language.schema import Schema


@dataclass(eq=False, repr=False)
class SchemaEncoder(TransformerMixin, BaseEstimator):
    """Features in the unit ball from a table that a schema declares, as a step of a pipeline.

    Parameters
    ----------
    schema : Schema
    sparse : bool
        Return sparse features, for many levels.

    Examples
    --------
    >>> from dpconvex.language.schema import Schema
    >>> encoder = SchemaEncoder(Schema({"age": (0, 100), "weight": (0, 200)}, "sick", [0, 1]))
    >>> encoder.fit_transform({"age": [0, 50], "weight": [200, 100]}).round(3)
    array([[-0.707,  0.707],
           [ 0.   ,  0.   ]])
    """

    # What pipelines are not warned of.
    data_independent = True

    schema: Schema | None = None
    sparse: bool = False

    def fit(self, X: Any, y: Any = None) -> SchemaEncoder:
        """Do nothing but check the schema: what is known is declared."""
        self._schema()
        return self

    def transform(self, X: Any) -> Any:
        """Return features, shape (n, features), rows of length at most 1."""
        return self._schema().encode(X, labelled=False, empty=True, sparse=self.sparse)[0]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the features."""
        return np.array(self._schema().feature_names, dtype=object)

    def _schema(self) -> Schema:
        if not isinstance(self.schema, Schema):
            raise TemplateError(f"SchemaEncoder: expected a Schema, as SchemaEncoder(schema), not {self.schema!r}.")
        return self.schema

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        # Tables whose columns have names, of any kind; a schema checks them.
        tags.input_tags.two_d_array, tags.input_tags.dict = False, True
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = tags.no_validation = True
        return tags


def schema_before(estimator: Any) -> Schema | None:
    """Return the schema of the encoder that an estimator is being fitted behind, None if other steps are there as well."""
    steps = [step for step in steps_before(estimator) if step not in (None, "passthrough")]
    return steps[0].schema if len(steps) == 1 and isinstance(steps[0], SchemaEncoder) else None
