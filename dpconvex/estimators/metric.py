"""A metric that is learnt from labelled pairs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from dpconvex.core.arrays import Array
from dpconvex.errors import TemplateError
from dpconvex.estimators.base import Private
from dpconvex.estimators.pipelines import warn_of_leaks
from dpconvex.estimators.tables import declared_classes, plain
from dpconvex.language.record import in_one_place
from dpconvex.language.schema import Schema
from dpconvex.language.validation import check_labels
from dpconvex.release.solve import solve


class MetricLearner(ClassifierMixin, Private):
    """Mahalanobis metric from pairs that are alike or different: `problems/metric_learning.py`.

    A record is a pair: neighbouring tables differ in one pair, and somebody who is in many pairs is protected less.

    Parameters
    ----------
    radius : float
        Public bound on the Euclidean norm of the difference of a pair.
    fit_intercept : False
        The learner has a threshold of its own.
    width : float
        Half-width of the quadratic piece of the Huber hinge.
    classes : sequence of two
        The labels of different and of alike pairs, in this order.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)

    Examples
    --------
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> pairs = rng.uniform(-0.3, 0.3, size=(4000, 2, 2))
    >>> alike = (abs(pairs[:, 0, 0] - pairs[:, 1, 0]) < 0.15).astype(int)  # the second feature says nothing
    >>> model = dp.MetricLearner(epsilon=20.0, seed=0).fit(pairs, alike)
    >>> bool(model.metric_[0, 0] > 3 * model.metric_[1, 1])
    True
    """

    problem = "metric_learning"
    options = ("width",)
    own_constant = "a threshold"

    width: float = 0.5
    classes: Sequence[Any] = (0, 1)

    @property
    def metric_(self) -> Array:
        """Positive semidefinite matrix M of the squared distance ``(a - b)' M (a - b)``, shape (features, features)."""
        factor = self._factor()
        return factor @ factor.T

    @property
    def threshold_(self) -> float:
        """Squared distance below which a pair is alike."""
        return float(self._released()["b"])

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit privately.

        Parameters
        ----------
        X : array_like, shape (n, 2, features)
            Pairs, whose differences lie within the public radius (or ``clip=True``).
        y : array_like, shape (n,)

        Returns
        -------
        self
        """
        warn_of_leaks(self)
        in_one_place("MetricLearner", X)
        classes = declared_classes(self.classes)
        if len(classes) > 2:
            raise TemplateError(f"classes must be the labels of different and of alike pairs, not {self.classes!r}.")
        differences = differences_of(X)
        plain("fit", "y", y, texts=True)
        labels = column_or_1d(y)
        check_labels("y", classes, labels)
        self.n_features_in_, self.classes_ = differences.shape[1], np.array(classes)
        data = {"x": differences, "y": np.where(labels == self.classes_[1], "alike", "different")}
        return self._keep(self._fitted(solve, data, backend=self.backend))

    def _targets(self, schema: Schema) -> Any:
        raise TemplateError("save: MetricLearner reads pairs, and no table with a schema; save release_.")

    def decision_function(self, X: ArrayLike) -> Array:
        """Return how far below the threshold the squared distance of each pair is, shape (n,); costs no privacy."""
        self._released()
        return np.asarray(
            self.threshold_ - np.sum((differences_of(X, self.n_features_in_) @ self._factor()) ** 2, axis=1)
        )

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Say which pairs are alike, shape (n,); costs no privacy."""
        return np.asarray(self.classes_[(self.decision_function(X) > 0).astype(int)])

    def transform(self, X: ArrayLike) -> Array:
        """Map objects to where their Euclidean distance is the learnt one, shape (n, features); costs no privacy."""
        self._released()
        plain("transform", "X", X)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64) @ self._factor())

    def _factor(self) -> Array:
        """Return the symmetric square root of M, in the units of the features."""
        values, vectors = np.linalg.eigh(self._released()["M"])
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / self.radius)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, False, True
        tags.classifier_tags.multi_class, tags.classifier_tags.poor_score = False, True
        return tags


def differences_of(X: ArrayLike, features: int | None = None) -> Array:
    """Return the differences of pairs, shape (n, features)."""
    plain("MetricLearner", "X", X)
    pairs = check_array(X, allow_nd=True, ensure_2d=False, dtype=np.float64, ensure_min_samples=0)
    if pairs.ndim != 3 or pairs.shape[1] != 2 or features not in (None, pairs.shape[2]):
        wanted = "features" if features is None else features
        raise TemplateError(f"X must hold pairs, with the shape (n, 2, {wanted}), not {pairs.shape}.")
    return np.asarray(pairs[:, 0] - pairs[:, 1])
