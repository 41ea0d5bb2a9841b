"""Several Gaussians per class, with components that are learnt privately, declared or given."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.errors import TemplateError
from dpconvex.estimators.base import none_of
from dpconvex.estimators.classifiers import LargeMarginGaussian, precision_and_mean
from dpconvex.language.record import in_one_place
from dpconvex.learners.components import Components
from dpconvex.learners.mixtures import solve_mixture, verify_mixture
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noisy_kmeans import NoisyKMeans
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.release.solve import solve

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False, kw_only=True)
class LargeMarginGaussianMixture(LargeMarginGaussian):
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

    Attributes
    ----------
    components_ : Components
        The centres, unless labels were given.

    Examples
    --------
    >>> import dpconvex as dp
    >>> X, y = [[0.8], [0.1], [-0.6]] * 300, ["out", "in", "out"] * 300
    >>> model = dp.LargeMarginGaussianMixture(epsilon=50.0, regularization=1e-4, classes=("in", "out"), seed=0)
    >>> model.fit(X, y).predict(X[:3]), [means.shape for means in model.means_]
    (array(['out', 'in', 'out'], dtype='<U3'), [(2, 1), (2, 1)])
    """

    problem = "large_margin_gaussian_mixture"
    options = ("competitors", "components")

    components: int = 2
    component_labels: str = "private"
    share: float = 0.2
    rounds: int | None = None
    centers: Any = None

    def certificate(self, features: int, size: int) -> Certificate:
        """Verify without data, for a number of features and of records; what private labels cost is part of it."""
        clustering = self._clustering()
        if clustering is None:
            return super().certificate(features, size)
        options: dict[str, Any] = {"clustering": clustering, "share": self.share, "whitening": self._whitening()}
        return verify_mixture(self.template(features), self.privacy(), size, self.mechanism, **options)

    def fit(self, X: Any, y: Any = None, m: ArrayLike | None = None) -> Any:
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
            given = "none are here" if m is None else f"it is {self.component_labels!r}"
            raise TemplateError(
                f"fit: components m are passed for component_labels='given', as fit(X, y, m), and not otherwise; {given}."
            )
        self._whitening()  # refuses what cannot be
        data = self._data(X, y)
        if clustering is None:
            in_one_place(
                "fit(X, y, m)", data, "pass arrays, or solve(model.template(features), partitions of x, y and m)"
            )
            self._keep(self._fitted(solve, {**data, "m": m}, backend=self.backend))
            return self
        mixture = self._fitted(solve_mixture, data, backend=self.backend, clustering=clustering, share=self.share)
        self._keep(mixture.release)
        self.components_ = mixture.components
        return self

    def _whitening(self) -> Whitened:
        return none_of(self, "components are learnt from original records")

    @property
    def precisions_(self) -> list[Array]:
        """Precision matrices of each class's Gaussians, shape (components, features, features)."""
        return [np.stack([precision for precision, _ in pairs]) for pairs in self._gaussians()]

    @property
    def means_(self) -> list[Array]:
        """Centres of each class's Gaussians, shape (components, features): for telling classes apart, not means of records."""
        return [np.stack([mean for _, mean in pairs]) for pairs in self._gaussians()]

    def _gaussians(self) -> list[list[tuple[Array, Array]]]:
        return [
            [precision_and_mean(self.release_[f"Phi_{c}_{k}"], self.radius) for k in range(self.components)]
            for c in range(len(self.classes_))
        ]

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
