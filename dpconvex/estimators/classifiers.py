"""Classifiers: each class names its problem file and declares its options."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array

from dpconvex.certificates.certificate import Certificate
from dpconvex.data.columns import array_of
from dpconvex.data.domains import Choice
from dpconvex.data.record import require_arrays
from dpconvex.data.tables import to_float
from dpconvex.data.validation import check_labels
from dpconvex.errors import TemplateError
from dpconvex.estimators.base import Private, label_order
from dpconvex.estimators.options import scored
from dpconvex.estimators.tables import checked, one_column, plain
from dpconvex.features.bases import ClassifierMixin
from dpconvex.features.fourier_features import RandomFourierFeatures
from dpconvex.features.transformers import hide_records
from dpconvex.mechanisms.noisy_kmeans import NoisyKMeans
from dpconvex.selection.mixtures import SHARE, solve_mixture, verify_mixture
from dpconvex.util.arguments import check_fields, recast, require, whole
from dpconvex.util.arrays import Array


class PrivateClassifier(ClassifierMixin, Private, has_scores=True):
    """Base class of classifiers.

    Parameters
    ----------
    classes : sequence
        Declared labels that may occur.  A list that is read off the data would reveal data without paying for it.

    Attributes
    ----------
    classes_ : ndarray
        The declared classes, sorted, as scikit-learn expects them; scores and coefficients are in this order.
    """

    two_classes: ClassVar[bool] = True
    example = """
    >>> import dpconvex as dp
    >>> X, y = [[0.6, 0.1], [-0.6, 0.2]] * 200, ["yes", "no"] * 200
    >>> model = dp.{name}(epsilon=5.0, classes=("no", "yes"), seed=0).fit(X, y)
    >>> model.predict([[0.5, 0.0], [-0.5, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    """

    classes: Sequence[Any] | None = (0, 1)
    score = scored(ClassifierMixin.score)

    def _labels(self) -> tuple[Any, ...]:
        with recast("classes must be a list of the labels", TemplateError, kind=TemplateError):
            labels = Choice(cast(Any, self.classes)).values
        several = len(labels) > 1
        require(several, f"classes must be two or more labels, such as classes=('no', 'yes'), not {self.classes!r}.")
        return labels

    def _declared(self, features: int) -> dict[str, Any]:
        labels, name = self._labels(), type(self).__name__
        said = f"{name} is for two classes, but {len(labels)} are declared; use dp.SoftmaxRegression for more."
        require(len(labels) == 2 or not self.two_classes, said)
        return super()._declared(features) | {"classes": len(labels), "labels": labels}

    def _check_labels(self, labels: Any) -> None:
        declared = self._labels()
        check_labels("y", declared, labels)
        self._order = label_order(declared)
        self.classes_ = Choice(declared).array[self._order]

    @property
    def coef_(self) -> Array:
        """Released coefficients, shape (1, features) for two classes with one score, otherwise (classes, features).

        Scores are ``X @ coef_.T + intercept_``.
        """
        return np.atleast_2d(self._in_order(self._weights()[0]).T)

    @property
    def intercept_(self) -> Array:
        """Released intercepts, shape (1,) or (classes,); zeros without an intercept."""
        return self._in_order(np.asarray(self._weights()[1])[None]).ravel()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class, tags.classifier_tags.poor_score = not self.two_classes, True
        return tags


class LinearClassifier(PrivateClassifier):
    """Base class of classifiers with scores that are linear in the features, and an intercept."""

    fit_intercept: bool = True


class LogisticRegression(LinearClassifier, problem="logistic_regression", weights="w", models_probabilities=True):
    """Fit logistic regression for two classes: `problems/logistic_regression.py`."""


class LinearSVC(LinearClassifier, problem="huber_svm", weights="w"):
    """Fit a support vector machine with the Huber hinge for two classes: `problems/huber_svm.py`."""


class SoftmaxRegression(
    LinearClassifier, problem="softmax_regression", weights="W", two_classes=False, models_probabilities=True
):
    """Fit softmax regression for any number of classes: `problems/softmax_regression.py`."""


class LeastSquaresClassifier(LinearClassifier, problem="least_squares_classifier", weights="W", two_classes=False):
    """Fit least squares to any number of classes, from one release of sums: `problems/least_squares_classifier.py`."""


class OrdinalRegressor(
    PrivateClassifier,
    problem="ordinal_regression",
    own_constant="thresholds",
    two_classes=False,
    models_probabilities=True,
):
    """Fit one score and ordered thresholds to grades: `problems/ordinal_regression.py`.

    The declared `classes` are the possible grades, from the lowest.  `predict` returns the median grade, for small absolute
    errors.  Fewer predictions may be exact than if the most frequent grade were predicted for all records.
    """

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the score of each record, shape (n,); costs no privacy.

        For two grades, a score above 0 predicts the second of `classes_`. For more grades, a higher score means a higher grade,
        and the thresholds are ``release_["b"]``.
        """
        rows, release = self._checked(X), self._released()
        scores, thresholds = np.asarray(rows @ release["w"]), release["b"]
        return self._in_order(scores - thresholds[0]) if len(thresholds) == 1 else scores


class LargeMarginGaussian(
    PrivateClassifier, problem="large_margin_gaussian", own_constant="a constant", two_classes=False
):
    """Fit a large-margin Gaussian classifier for any number of classes: `problems/large_margin_gaussian.py`.

    Parameters
    ----------
    competitors : {"summed", "soft"} or None
        Combination of the losses of a record's competing classes; None means "soft" for more than two classes.
    """

    competitors: str | None = None

    @property
    def precisions_(self) -> list[Array]:
        """Precision matrix P of the Gaussian, or of each Gaussian of a mixture, for each class, shape (..., features, features).

        In the units of the features.  A class's score is ``-(x - mean)' P (x - mean) / 2`` plus a constant.  The papers' Psi is
        half of P.
        """
        return [Phi[..., :-1, :-1] / self.radius**2 for Phi in self._matrices()]

    @property
    def means_(self) -> list[Array]:
        """Centre of the Gaussian, or of each Gaussian of a mixture, for each class, shape (..., features).

        A centre is the point with the highest score of its class, not the mean of the class's records.
        """
        parts = ((Phi[..., :-1, :-1], Phi[..., :-1, -1:]) for Phi in self._matrices())
        return [-self.radius * (np.linalg.pinv(square, hermitian=True) @ last)[..., 0] for square, last in parts]

    def _matrices(self) -> list[Array]:
        """Return the released matrices of each class, in the coordinates (x / radius, 1) / sqrt(2)."""
        self._released()
        return [self._matrix(c) for c in self._order]

    def _matrix(self, number: int) -> Array:
        return self.release_[f"Phi_{number}"]


class LargeMarginGaussianMixture(LargeMarginGaussian, problem="large_margin_gaussian_mixture"):
    """Fit several Gaussians per class for large margins: `problems/large_margin_gaussian_mixture.py`.

    The components of records are learnt.  `dpconvex.solve_mixture` takes declared centres, and `dpconvex.solve` known components.

    Parameters
    ----------
    components : int
        K: number of Gaussians for each class.
    share : float
        Fraction of the guarantee for a private clustering of every class, which finds the components of records.
    rounds : int or None
        Rounds of the clustering, as for `dpconvex.NoisyKMeans`.

    Attributes
    ----------
    components_ : ComponentCenters
        The centres.
    """

    components: int = 2
    share: float = SHARE
    rounds: int | None = None

    def certificate(self, features: int, size: int) -> Certificate:
        return verify_mixture(self.template(features), self.privacy(), size, **self._ways())

    def fit(self, X: Any, y: Any = None, *, unit: Any = None) -> Any:
        """Fit privately, as all estimators do."""
        require(unit is None, "fit: learnt components protect single records only; leave unit out.")
        mixture = self._fitted(solve_mixture, self._data(X, y), backend=self.backend)
        self.components_, self.release_ = mixture.components, mixture.release
        return self

    def _matrix(self, number: int) -> Array:
        return np.stack([self.release_[f"Phi_{number}_{k}"] for k in range(self.components)])

    def _ways(self) -> dict[str, Any]:
        return super()._ways() | {"clustering": NoisyKMeans(rounds=self.rounds), "share": self.share}


class KernelSVC(PrivateClassifier, problem="kernel_svm", maps_features=True):
    """Fit a kernel support vector machine for two classes on random Fourier features: `problems/kernel_svm.py`.

    Mapped records have length 1 for any `radius`.

    Parameters
    ----------
    components : int
        Number of random frequencies.
    kernel : {"gaussian", "laplace", "cauchy"}
    gamma : float
        Scale of the kernel.
    feature_seed : int
        Public seed of the frequencies.
    """

    components: int = 50
    kernel: str = "gaussian"
    gamma: float = 1.0
    feature_seed: int = 0

    def _declared(self, features: int) -> dict[str, Any]:
        return super()._declared(features) | {"seed": self.feature_seed}

    def _features(self, X: Any) -> Any:
        check_fields(self, feature_seed=whole(0))
        given = self.n_features_in_, self.components, self.kernel, self.gamma
        return RandomFourierFeatures(*given, seed=self.feature_seed).transform(X)

    def _intercept_scale(self, features: int) -> float:
        return self.intercept_scaling  # mapped records have length 1 for any radius


class MetricLearner(
    PrivateClassifier, problem="metric_learning", own_constant="a threshold", unsaved="it reads pairs, not tables"
):
    """Fit a Mahalanobis metric to pairs of similar or different objects: `problems/metric_learning.py`.

    A record is a pair.  Neighbouring tables differ in one pair, so a person in many pairs is protected less.  The `radius`
    bounds the difference of a pair.  `classes` are the labels of different and of similar pairs, in this order.  Features have
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
        """Squared distance below which a pair is similar."""
        return float(self._released()["b"])

    def _labels(self) -> tuple[Any, ...]:
        labels, said = super()._labels(), "classes must be the labels of different and of alike pairs"
        require(len(labels) == 2, f"{said}, not {self.classes!r}.")
        return labels

    def _data(self, X: Any, y: Any) -> Any:
        require_arrays("MetricLearner", X)
        return super()._data(X, y)

    @hide_records()
    def _read(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        differences = differences_of(X)
        plain("fit", "y", y, texts=True, cells=False)
        self.n_features_in_ = differences.shape[1]
        return differences, one_column(y)

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the threshold less the squared distance of each pair, shape (n,); costs no privacy.

        It is above 0 for the second of `classes_`.
        """
        self._released()
        mapped = differences_of(X, self.n_features_in_) @ self._factor()
        return self._in_order(np.asarray(self.threshold_ - (mapped**2).sum(axis=1)))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the label of each pair, shape (n,); costs no privacy."""
        return np.asarray(self.classes_[(self.decision_function(X) > 0).astype(int)])

    def transform(self, X: ArrayLike) -> Array:
        """Map objects so that Euclidean distance is the learnt distance, shape (n, features); costs no privacy."""
        return np.asarray(checked(self, "transform", X, reset=False) @ self._factor())

    def _factor(self) -> Array:
        """Return the symmetric square root of M, in the units of the features."""
        values, vectors = np.linalg.eigh(self._released()["M"])
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / self.radius)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, False, True
        return tags


@hide_records()
def differences_of(X: ArrayLike, features: int | None = None) -> Array:
    plain("MetricLearner", "X", X, cells=features is not None)
    if features is None and (given := array_of("X", X)).dtype == object:
        X = np.reshape([math.nan if isinstance(entry, str) else to_float(entry) for entry in given.flat], given.shape)
    options = {"allow_nd": True, "ensure_2d": False, "dtype": np.float64, "ensure_min_samples": 0}
    # In a fit, the check of the domain raises for NaN and infinity.
    pairs = check_array(X, ensure_all_finite=features is not None, **options)
    fits = pairs.ndim == 3 and pairs.shape[1:] == (2, pairs.shape[2] if features is None else features)
    require(fits, f"X must hold pairs, with the shape (n, 2, {features or 'features'}), not {pairs.shape}.")
    return np.asarray(pairs[:, 0] - pairs[:, 1])
