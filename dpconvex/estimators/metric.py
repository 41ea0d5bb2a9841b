"""A metric that is learnt from labelled pairs."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array, column_or_1d

from dpconvex.core.arrays import Array
from dpconvex.errors import TemplateError
from dpconvex.estimators.classifiers import PrivateClassifier
from dpconvex.estimators.tables import checked, plain
from dpconvex.language.record import in_one_place


class MetricLearner(PrivateClassifier, problem="metric_learning", own_constant="a threshold"):
    """Mahalanobis metric from pairs that are alike or different: `problems/metric_learning.py`.

    A record is a pair: neighbouring tables differ in one pair, and somebody who is in many pairs is protected less.  The `radius`
    bounds the difference of a pair, and `classes` are the labels of different and of alike pairs, in this order.  Features have
    the shape (n, 2, features).

    Parameters
    ----------
    width : float
        Half-width of the quadratic piece of the Huber hinge.

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

    width: float = 0.5

    @property
    def metric_(self) -> Array:
        """Positive semidefinite matrix M of the squared distance ``(a - b)' M (a - b)``, shape (features, features)."""
        factor = self._factor()
        return factor @ factor.T

    @property
    def threshold_(self) -> float:
        """Squared distance below which a pair is alike."""
        return float(self._released()["b"])

    def _labels(self) -> tuple[Any, ...]:
        labels = super()._labels()
        if len(labels) > 2:
            raise TemplateError(f"classes must be the labels of different and of alike pairs, not {self.classes!r}.")
        return labels

    def _read(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        in_one_place("MetricLearner", X)
        differences = differences_of(X)
        plain("fit", "y", y, texts=True)
        self.n_features_in_ = differences.shape[1]
        return differences, column_or_1d(y)

    def _target(self, y: Any) -> Any:
        return np.where(y == self.classes_[1], "alike", "different")

    def save(self, path: Any, schema: Any = None) -> None:
        raise TemplateError("save: MetricLearner reads pairs, and no table with a schema; save release_.")

    def decision_function(self, X: ArrayLike) -> Array:
        """Return how far below the threshold the squared distance of each pair is, shape (n,); costs no privacy."""
        self._released()
        mapped = differences_of(X, self.n_features_in_) @ self._factor()
        return np.asarray(self.threshold_ - (mapped**2).sum(axis=1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Say which pairs are alike, shape (n,); costs no privacy."""
        return np.asarray(self.classes_[(self.decision_function(X) > 0).astype(int)])

    def transform(self, X: ArrayLike) -> Array:
        """Map objects to where their Euclidean distance is the learnt one, shape (n, features); costs no privacy."""
        factor = self._factor()
        return np.asarray(checked(self, "transform", X, reset=False) @ factor)

    def _factor(self) -> Array:
        """Return the symmetric square root of M, in the units of the features."""
        values, vectors = np.linalg.eigh(self._released()["M"])
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / self.radius)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, False, True
        return tags


def differences_of(X: ArrayLike, features: int | None = None) -> Array:
    """Return the differences of pairs, shape (n, features)."""
    plain("MetricLearner", "X", X)
    pairs = check_array(X, allow_nd=True, ensure_2d=False, dtype=np.float64, ensure_min_samples=0)
    if pairs.ndim != 3 or pairs.shape[1] != 2 or features not in (None, pairs.shape[2]):
        wanted = "features" if features is None else features
        raise TemplateError(f"X must hold pairs, with the shape (n, 2, {wanted}), not {pairs.shape}.")
    return np.asarray(pairs[:, 0] - pairs[:, 1])
