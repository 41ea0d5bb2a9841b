"""An estimator for a template of your own."""

from dataclasses import field
from typing import Any, cast

from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags

from dpconvex.data.domains import Choice
from dpconvex.errors import shown
from dpconvex.estimators.base import Private, label_order
from dpconvex.estimators.options import scored
from dpconvex.model.template import Template
from dpconvex.util.arguments import require


class PrivateEstimator(Private):
    """Fit a template of your own as a classifier or regressor.

    The template's record has a vector x and a label y.  The estimator is a classifier if y is a `Choice`. The options
    `regularization`, `radius`, `fit_intercept` and `intercept_scaling` are not used, because the template declares these.

    Parameters
    ----------
    learner : Template
        A template with a function for predictions.

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
        """Return the template; raise unless it is for this number of features."""
        fields = self.learner.record.fields if isinstance(self.learner, Template) else {}
        fits = set(fields) == {"x", "y"} and getattr(fields["x"], "shape", None) == (features,)
        wanted = f"a Template of a vector x of {features} features and a label y, as dpconvex.load(name, {features=})"
        given = f"one of {dict(fields)}" if fields else shown(self.learner)
        require(fits, f"PrivateEstimator: expected {wanted}, not {given}.")
        return cast(Template, self.learner)

    @property
    def classes_(self) -> NDArray[Any]:
        if self._labels() is None:
            raise AttributeError("a regressor has no classes_.")
        return Choice(self._labels()).array[self._order]

    @property
    def _order(self) -> list[int]:  # type: ignore[override]
        return label_order(self._labels()) if self._labels() else []

    @scored
    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the accuracy, or R squared.  It is computed from these data, and is not private."""
        return float((r2_score if self._labels() is None else accuracy_score)(y, self.predict(X)))

    @property
    def models_probabilities(self) -> bool:  # type: ignore[override]
        return getattr(self.learner, "probabilities", None) is not None

    @property
    def has_scores(self) -> bool:  # type: ignore[override]
        return getattr(self.learner, "decision", None) is not None and self._labels() is not None

    def _labels(self) -> Any:
        domain = self.learner.record.fields.get("y") if isinstance(self.learner, Template) else None
        return domain.values if isinstance(domain, Choice) else None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self._labels() is None:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags(poor_score=True)
        else:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(poor_score=True)
        return tags
