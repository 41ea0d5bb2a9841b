"""scikit-learn estimators: thin wrappers of the problem files.

They take what a proof needs and scikit-learn does not ask for, a privacy promise, public classes and a public norm bound, as
constructor options, and learn nothing else from the data.  Needs scikit-learn: ``pip install dpconvex[estimators]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpconvex.certificate import Certificate
from dpconvex.errors import TemplateError
from dpconvex.features import RandomFourierFeatures
from dpconvex.gallery import load
from dpconvex.privacy import Privacy
from dpconvex.solve import solve
from dpconvex.template import Template
from dpconvex.verify import verify

__all__ = [
    "HuberSVC",
    "KernelSVC",
    "LargeMarginGaussian",
    "LogisticRegression",
    "SoftmaxRegression",
]


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """What the classifiers share.

    Parameters
    ----------
    epsilon : float
    delta : float
    adjacency : {"replace-one", "add-remove"}
    classes : sequence
        Public labels.  A label that the data hold and this list does not is an error.
    regularization : float
    radius : float
        Public bound on the Euclidean norm of a record's features.
    clip : bool
        Scale longer records down instead of raising.
    size : int or None
        Public nominal number of records, under add-remove.
    mechanism, backend : optional
        As for `dpconvex.solve`.
    seed : int or None
        For tests; the fit is then not private.

    Attributes
    ----------
    release_ : Release
        The private fit.
    classes_ : ndarray
        The declared classes.
    """

    problem = ""

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 0.0,
        adjacency: str = "replace-one",
        classes: Sequence[Any] = (0, 1),
        regularization: float | None = 0.01,
        radius: float = 1.0,
        clip: bool = False,
        size: int | None = None,
        mechanism: Any = None,
        backend: Any = None,
        seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.classes = classes
        self.regularization = regularization
        self.radius = radius
        self.clip = clip
        self.size = size
        self.mechanism = mechanism
        self.backend = backend
        self.seed = seed

    def template(self, features: int) -> Template:
        """Return the template that is fitted, for a number of features."""
        labels = tuple(self.classes)
        return load(
            self.problem,
            features=features,
            classes=len(labels),
            labels=labels,
            regularization=self.regularization,
            radius=self.radius,
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        """Return what else the problem file takes."""
        return {}

    def certificate(self, features: int, size: int) -> Certificate:
        """Verify without data, for a number of features and of records."""
        return verify(self.template(features), self._privacy(), size, self.mechanism)

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrivateClassifier:
        """Fit privately.

        Parameters
        ----------
        X : array_like, shape (n, features)
            Every row within the public radius (or ``clip=True``).
        y : array_like, shape (n,)
            Declared labels.

        Returns
        -------
        self
        """
        records = np.asarray(X, dtype=float)
        if records.ndim != 2:
            raise TemplateError(f"fit: X must have two axes, (records, features), not shape {records.shape}.")
        self.n_features_in_ = records.shape[1]
        self.classes_ = np.array(list(self.classes))
        data = {"x": self._map(records), "y": y}
        self.release_ = solve(
            self.template(records.shape[1]),
            data,
            self._privacy(),
            self.mechanism,
            self.backend,
            size=self.size,
            clip=self.clip,
            seed=self.seed,
        )
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels from the released parameters; costs no privacy.

        Parameters
        ----------
        X : array_like, shape (n, features)

        Returns
        -------
        ndarray, shape (n,)
        """
        check_is_fitted(self, "release_")
        return self.release_.predict(X)

    def _privacy(self) -> Privacy:
        return Privacy(self.epsilon, self.delta, self.adjacency)

    def _map(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        return records


class LogisticRegression(PrivateClassifier):
    """Logistic regression, two classes: `problems/logistic_regression.py`."""

    problem = "logistic_regression"


class HuberSVC(PrivateClassifier):
    """Support vector machine with the Huber hinge, two classes: `problems/huber_svm.py`."""

    problem = "huber_svm"


class SoftmaxRegression(PrivateClassifier):
    """Softmax regression, any number of classes: `problems/softmax_regression.py`."""

    problem = "softmax_regression"


class LargeMarginGaussian(PrivateClassifier):
    """Large-margin Gaussian classifier, any number of classes: `problems/large_margin_gaussian.py`.

    Parameters
    ----------
    regularization : float or None
        None means the problem file's own default, which depends on the number of classes.
    competitors : {"summed", "soft"} or None
        How a record's competing classes are put together; None means "soft" for more than two classes.
    **options
        As for the other classifiers.
    """

    problem = "large_margin_gaussian"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 0.0,
        adjacency: str = "replace-one",
        classes: Sequence[Any] = (0, 1),
        regularization: float | None = None,
        radius: float = 1.0,
        clip: bool = False,
        size: int | None = None,
        mechanism: Any = None,
        backend: Any = None,
        seed: int | None = None,
        competitors: str | None = None,
    ) -> None:
        super().__init__(
            epsilon, delta, adjacency, classes, regularization, radius, clip, size, mechanism, backend, seed
        )
        self.competitors = competitors

    def _options(self) -> dict[str, Any]:
        return {"competitors": self.competitors}


class KernelSVC(PrivateClassifier):
    """Kernel machine through random Fourier features, two classes: `problems/kernel_svm.py`.

    Parameters
    ----------
    components : int
        Number of random frequencies.
    kernel : {"gaussian", "laplace", "cauchy"}
    gamma : float
        Scale of the kernel.
    feature_seed : int
        Public seed of the frequencies.
    **options
        As for the other classifiers.
    """

    problem = "kernel_svm"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 0.0,
        adjacency: str = "replace-one",
        classes: Sequence[Any] = (0, 1),
        regularization: float = 0.01,
        radius: float = 1.0,
        clip: bool = False,
        size: int | None = None,
        mechanism: Any = None,
        backend: Any = None,
        seed: int | None = None,
        components: int = 50,
        kernel: str = "gaussian",
        gamma: float = 1.0,
        feature_seed: int = 0,
    ) -> None:
        super().__init__(
            epsilon, delta, adjacency, classes, regularization, radius, clip, size, mechanism, backend, seed
        )
        self.components = components
        self.kernel = kernel
        self.gamma = gamma
        self.feature_seed = feature_seed

    def template(self, features: int) -> Template:
        """Return the template that is fitted, for a number of raw features."""
        labels = tuple(self.classes)
        return load(
            self.problem,
            features=features,
            classes=len(labels),
            labels=labels,
            components=self.components,
            kernel=self.kernel,
            gamma=self.gamma,
            seed=self.feature_seed,
            regularization=self.regularization,
        )

    def _map(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        mapping = RandomFourierFeatures(
            records.shape[1], self.components, self.kernel, self.gamma, seed=self.feature_seed
        )
        return mapping.transform(records)
