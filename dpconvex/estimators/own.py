"""An estimator of a template of one's own."""

from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import ClassifierTags, RegressorTags

from dpconvex.core.record_domains import Choice
from dpconvex.errors import TemplateError
from dpconvex.estimators.base import Scoring
from dpconvex.language.schema import Schema
from dpconvex.language.tables import text_of
from dpconvex.language.template import Template


class PrivateEstimator(Scoring):
    """A classifier or regressor that fits a template of your own.

    The template's record has a vector x and a label y; it is a classifier if y is a `Choice`.

    Parameters
    ----------
    learner : Template
        With a function to predict with.
    regularization, radius, fit_intercept, intercept_scaling : object
        Not used: the template says all that.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import dpconvex as dp
    >>> w = cp.Variable(2, name="w")
    >>> template = dp.Template(
    ...     dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1])),
    ...     loss=lambda x, y: cp.logistic(-y * (x @ w)),
    ...     regularizer=0.01 * cp.sum_squares(w),
    ...     decision=lambda parameters, x: x @ parameters["w"],
    ... )
    >>> model = dp.PrivateEstimator(template, epsilon=5.0, seed=0)
    >>> model.fit([[0.6, 0.0], [-0.6, 0.1]] * 100, [1, -1] * 100).predict([[0.5, 0.0]])
    array([1])
    """

    learner: Template | None = field(default=None, kw_only=False)

    def template(self, features: int) -> Template:
        """Return the template, which must be for this number of features."""
        if not isinstance(self.learner, Template):
            raise TemplateError(
                f"PrivateEstimator: expected a Template, such as PrivateEstimator(dpconvex.load(name, features=...)), not "
                f"{self.learner!r}."
            )
        fields = self.learner.record.fields
        shape = getattr(fields.get("x"), "shape", None)
        if set(fields) != {"x", "y"} or shape != (features,):
            raise TemplateError(
                f"PrivateEstimator: the record must have a vector x of {features} features and a label y; it is "
                f"{self.learner.record!r}."
            )
        return self.learner

    @property
    def classes_(self) -> NDArray[Any]:
        """The declared labels, for a classifier."""
        labels = self._labels()
        if labels is None:
            raise AttributeError("a regressor has no classes_.")
        return np.array(list(labels))

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the share of right labels, or R squared.  It is computed from these data, and is not private."""
        from sklearn.metrics import accuracy_score, r2_score

        return float((r2_score if self._labels() is None else accuracy_score)(y, self.predict(X)))

    def _constant(self) -> float:
        return 0.0  # whatever the template says

    def _targets(self, schema: Schema) -> Any:
        labels = self._labels()
        return (None, schema.label_bounds) if labels is None else (tuple(map(text_of, labels)), None)

    @property
    def models_probabilities(self) -> bool:  # type: ignore[override]
        return isinstance(self.learner, Template) and self.learner.probabilities is not None

    def _scores(self) -> bool:
        return isinstance(self.learner, Template) and self.learner.decision is not None and self._labels() is not None

    def _labels(self) -> Any:
        domain = self.learner.record.fields.get("y") if isinstance(self.learner, Template) else None
        return domain.values if isinstance(domain, Choice) else None

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a template of your own holds functions, which are not pickled: save the release (release_.save), and read it with "
            "dpconvex.Release.load(path, template=...)."
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._labels() is None:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags(poor_score=True)
        else:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(poor_score=True)
        return tags
