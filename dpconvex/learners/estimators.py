"""scikit-learn estimators: thin wrappers of the problem files.

They take what a proof needs and scikit-learn does not ask for, a privacy promise, public classes and a public norm bound, as
constructor options, and learn nothing else from the data.  Needs scikit-learn: ``pip install dpconvex[estimators]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpconvex.errors import TemplateError
from dpconvex.language.entries import numbers
from dpconvex.language.privacy import Privacy
from dpconvex.language.template import Template
from dpconvex.learners.components import Components
from dpconvex.learners.fourier_features import RandomFourierFeatures
from dpconvex.learners.mixtures import solve_mixture, verify_mixture
from dpconvex.learners.problem_files import load
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noisy_kmeans import NoisyKMeans
from dpconvex.release.release import Release
from dpconvex.release.solve import solve
from dpconvex.release.verify import verify

__all__ = [
    "HuberSVC",
    "KernelSVC",
    "LargeMarginGaussian",
    "LargeMarginGaussianMixture",
    "LogisticRegression",
    "SoftmaxRegression",
]


@dataclass(eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """What the classifiers share.  No regularization means the problem file's own, which no data set is too large for.

    Attributes
    ----------
    release_ : Release
        The private fit.
    classes_ : ndarray
        The declared classes.
    """

    problem = ""

    epsilon: float = 1.0
    delta: float = 0.0
    adjacency: str = "replace-one"
    classes: Sequence[Any] = (0, 1)
    regularization: float | None = None
    radius: float = 1.0
    clip: bool = False
    size: int | None = None
    mechanism: Any = None
    backend: Any = None
    seed: int | None = None

    def template(self, features: int) -> Template:
        """Return the template that is fitted, for a number of features."""
        labels = tuple(self.classes)
        return load(
            self.problem,
            features=features,
            classes=len(labels),
            labels=labels,
            **({} if self.regularization is None else {"regularization": self.regularization}),
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        """Return what else the problem file takes."""
        return {"radius": self.radius}

    def certificate(self, features: int, size: int) -> Certificate:
        """Verify without data, for a number of features and of records."""
        return verify(self.template(features), self._privacy(), size, self.mechanism)

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrivateClassifier:
        """Fit privately."""
        self.release_: Release = self._fitted(solve, self._data(X, y))
        return self

    def _data(self, X: ArrayLike, y: ArrayLike) -> dict[str, Any]:
        """Return the data as a template takes them, and remember what is public about them."""
        records = np.asarray(numbers("X", X), dtype=float)
        if records.ndim != 2:
            raise TemplateError(f"fit: X must have two axes, (records, features), not shape {records.shape}.")
        self.n_features_in_ = records.shape[1]
        self.classes_ = np.array(list(self.classes))
        return {"x": self._map(records), "y": y}

    def _fitted(self, fit: Callable[..., Any], data: dict[str, Any], **options: Any) -> Any:
        template, privacy = self.template(self.n_features_in_), self._privacy()
        options |= {"size": self.size, "clip": self.clip, "seed": self.seed}
        return fit(template, data, privacy, self.mechanism, self.backend, **options)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels from the released parameters; costs no privacy."""
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


@dataclass(eq=False, repr=False)
class LargeMarginGaussian(PrivateClassifier):
    """Large-margin Gaussian classifier, any number of classes: `problems/large_margin_gaussian.py`.

    Parameters
    ----------
    competitors : {"summed", "soft"} or None
        How a record's competing classes are put together; None means "soft" for more than two classes.
    **options
        As for the other classifiers.
    """

    problem = "large_margin_gaussian"

    competitors: str | None = None

    def _options(self) -> dict[str, Any]:
        return {"radius": self.radius, "competitors": self.competitors}


@dataclass(eq=False, repr=False)
class LargeMarginGaussianMixture(PrivateClassifier):
    """Several Gaussians per class, trained for large margins: `problems/large_margin_gaussian_mixture.py`.

    Parameters
    ----------
    components : int
        K: number of Gaussians for each class.
    component_labels : {"private", "nearest", "given"}
        Where the component of a training record comes from: a private clustering of every class, which a share of the promise
        pays for; the nearest of declared public `centers`; or the argument `m` of `fit`, which must follow from each record by
        itself and from public facts.
    share : float
        Fraction of the promise that pays for "private" labels.
    rounds : int or None
        Rounds of the clustering, as for `dpconvex.NoisyKMeans`.
    centers : array_like, shape (classes, K, features), or None
        For "nearest"; fixed without looking at the data.
    competitors : {"summed", "soft"} or None
        As for `LargeMarginGaussian`.
    **options
        As for the other classifiers.

    Attributes
    ----------
    components_ : Components
        The centres, unless labels were given.
    """

    problem = "large_margin_gaussian_mixture"

    components: int = 2
    component_labels: str = "private"
    share: float = 0.2
    rounds: int | None = None
    centers: Any = None
    competitors: str | None = None

    def _options(self) -> dict[str, Any]:
        return {"radius": self.radius, "components": self.components, "competitors": self.competitors}

    def certificate(self, features: int, size: int) -> Certificate:
        """Verify without data, for a number of features and of records; what private labels cost is part of it."""
        clustering = self._clustering()
        if clustering is None:
            return super().certificate(features, size)
        return verify_mixture(
            self.template(features), self._privacy(), size, self.mechanism, clustering=clustering, share=self.share
        )

    def fit(self, X: ArrayLike, y: ArrayLike, m: ArrayLike | None = None) -> LargeMarginGaussianMixture:
        """Fit privately.

        Parameters
        ----------
        X : array_like, shape (n, features)
            Every row within the public radius (or ``clip=True``).
        y : array_like, shape (n,)
            Declared labels.
        m : array_like of int, shape (n,), optional
            Components, from 0 to K - 1; for ``component_labels="given"``, and only then.

        Returns
        -------
        self
        """
        clustering = self._clustering()
        if (clustering is None) != (m is not None):
            raise TemplateError(
                f"fit: components m are passed for component_labels='given' and not otherwise; it is {self.component_labels!r}."
            )
        data = self._data(X, y)
        if clustering is None:
            self.release_ = self._fitted(solve, {**data, "m": m})
            return self
        mixture = self._fitted(solve_mixture, data, clustering=clustering, share=self.share)
        self.release_, self.components_ = mixture.release, mixture.components
        return self

    def _clustering(self) -> NoisyKMeans | Components | None:
        if self.component_labels not in ("private", "nearest", "given"):
            raise TemplateError(
                f"component_labels must be 'private', 'nearest' or 'given', not {self.component_labels!r}."
            )
        if (self.component_labels == "nearest") != (self.centers is not None):
            raise TemplateError("declare public centers for component_labels='nearest', and not otherwise.")
        if self.component_labels == "nearest":
            return Components(self.centers, classes=tuple(self.classes), radius=self.radius)
        return NoisyKMeans(rounds=self.rounds) if self.component_labels == "private" else None


@dataclass(eq=False, repr=False)
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

    components: int = 50
    kernel: str = "gaussian"
    gamma: float = 1.0
    feature_seed: int = 0

    def _options(self) -> dict[str, Any]:
        names = ("components", "kernel", "gamma")
        return {name: getattr(self, name) for name in names} | {"seed": self.feature_seed}

    def _map(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        mapping = RandomFourierFeatures(
            records.shape[1], self.components, self.kernel, self.gamma, seed=self.feature_seed
        )
        return mapping.transform(records)
