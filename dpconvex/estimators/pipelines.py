"""Pipelines: a transformer that learns nothing, and warnings where usual idioms leak."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import islice
from traceback import walk_stack
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from dpconvex.errors import PrivacyWarning, TemplateError
from dpconvex.language.schema import Schema

# A pipeline calls its last step from its own `fit`, through a few wrappers.
DEPTH = 14


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
    """Return the schema of the encoder that an estimator is being fitted behind, None if other steps are there as well.

    Warns of steps that learn without paying, and of copies without a budget, as searches fit them.
    """
    steps: list[Any] = []
    for frame, _ in islice(walk_stack(None), DEPTH):
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline) and owner.steps and owner.steps[-1][1] is estimator:
            steps = [step for _, step in owner.steps[:-1] if step not in (None, "passthrough")]
            break
    found = [
        f"{type(step).__name__} learns from the data before the private step, and nobody pays for that: what it learnt is part "
        "of the model. Scale with public bounds (dpconvex.SchemaEncoder, dpconvex.datasets.unit_ball)."
        for step in steps
        if learns(step)
    ]
    if getattr(estimator, "_is_clone", False) and estimator.budget is None and estimator.seed is None:
        found.append(
            f"a copy of {type(estimator).__name__} is fitted, as cross-validation and searches do: each fit spends epsilon = "
            f"{estimator.epsilon:g} on the same people, and the scores are not private. Count the fits with budget=..., or "
            "choose privately with dpconvex.tune."
        )
    for said in found:
        warnings.warn(said, PrivacyWarning, stacklevel=4)
    return steps[0].schema if len(steps) == 1 and isinstance(steps[0], SchemaEncoder) else None


def learns(step: Any) -> bool:
    """Say whether a transformer takes anything from the data that it is fitted to."""
    try:
        return bool(get_tags(step).requires_fit)
    except Exception:  # a transformer of somebody else's that says nothing about itself
        return True
