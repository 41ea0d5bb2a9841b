"""Regressors with a log link: counts, costs and other amounts that are not negative, with optional exposures and weights."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import d2_tweedie_score

from dpconvex.data.columns import array_of
from dpconvex.data.domains import Box
from dpconvex.data.validation import check_column
from dpconvex.errors import DomainError, warn
from dpconvex.estimators.options import scored
from dpconvex.estimators.regressors import PrivateRegressor, needs_bound
from dpconvex.estimators.tables import lazily, plain
from dpconvex.fitting.problem_files import LARGEST
from dpconvex.fitting.solve import solve
from dpconvex.util.arguments import NOT_NEGATIVE, require
from dpconvex.util.arrays import Array


def in_units(name: str, domain: Box, clip: bool, unit: float, column: Any) -> Array:
    return np.asarray(check_column(name, domain, column, clip)[:] / unit)


class LogLinkRegressor(PrivateRegressor):
    """Base class of regressors with a log link.

    The predicted mean is the lower bound of the target, which is 0 with exposures, plus exp of the score.

    Parameters
    ----------
    alpha : float
        Strength of the penalty ``alpha/2 ||coef_||^2`` beside the mean of half the deviances, as in scikit-learn.
        `regularization` replaces it, in units of the scaled targets.
    bound : float or None
        Bound on the norm of the coefficients; times the radius, it bounds the intercept (0 for a prediction of a twentieth of
        the upper bound).  None means no bound for adaptive steps, the default mechanism with a delta, and otherwise 1 / `radius`.
    exposure : float
        Public upper bound of exposures; 0 for none.  With a bound, `fit` and `score` need exposures.  The target of a
        record is the total over its exposure, and predictions are for an exposure of 1.
    weight : float
        Public upper bound of survey weights; 0 for none.  With a bound, `fit` takes `sample_weight`, 1 for all by default.
    """

    example = """
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, years = rng.uniform(-1, 1, (5000, 1)), rng.uniform(0.5, 3.0, 5000)
    >>> visits = rng.poisson(years * np.exp(0.5 + X[:, 0])).clip(1, 40)
    >>> model = dp.{name}(epsilon=5.0, delta=1e-6, bounds=(0, 40), exposure=3.0, seed=0)
    >>> bool(model.fit(X, visits, exposure=years).score(X, visits, exposure=years) > 0.1)
    True
    """

    _in_any_unit = True
    alpha: float = 1e-6
    bound: float | None = None
    exposure: float = 0.0
    weight: float = 0.0

    @property
    def _power(self) -> float:
        """Exponent of the mean in the variance of a target."""
        return float(getattr(self, "power", 1.0))

    def _unit(self) -> float:
        """Return the prediction at a score of 0, for an exposure of 1."""
        return 2 * self._scale()[1] / LARGEST / (self.exposure or 1.0)

    def _check_options(self) -> None:
        given = {name: getattr(self, name, 0.0) for name in ("alpha", "exposure", "weight", "power")}
        NOT_NEGATIVE.check(type(self).__name__, **given)
        low, high = self._interval()
        which = "with exposures, bounds are 0 and the largest total" if self.exposure else "bounds must not be negative"
        how = f"write bounds=(0, {high:g}), and if a schema declares others, schema.with_label(..., label_bounds=(0, {high:g}))"
        fits = low == 0 if self.exposure else low >= 0 or self.bounds is None
        require(fits, f"{type(self).__name__}: {which}, not {self._interval()}: {how}.")

    def _declared(self, features: int) -> dict[str, Any]:
        self._check_options()
        ridge = self.alpha * self._unit() ** (self._power - 2) if self.regularization is None else self.regularization
        found = {"regularization": ridge, "target": LARGEST, "scaled": True, "exposure": float(self.exposure > 0)}
        known = super()._declared(features)  # checks the radius
        return known | found | {"bound": 1.0 / self.radius if needs_bound(self) else self.bound}

    def _more(self, found: Mapping[str, Any], x: Any) -> dict[str, Any]:
        """Return the declared columns: exposures in units of their bound, and weights."""
        self._check_options()
        columns = {}
        for name, said in (("exposure", "exposure"), ("weight", "sample_weight")):
            largest, column, where = getattr(self, name), found.get(name), type(self).__name__
            require(largest or column is None, f"fit: {said} needs its public upper bound; write {where}({name}=...).")
            fits = not largest or column is not None or (name == "weight" and largest >= 1)
            require(fits, f"fit: pass {said}, because {name}={largest:g} is declared.")
            if largest:
                plain("fit", said, column, cells=False)
                values = np.ones(x.shape[0]) if column is None else array_of(said, column)
                wrong = f"fit: {said} is one number for each record, not an array of shape {values.shape}."
                require(values.ndim == 1, wrong, DomainError)
                unit = largest if name == "exposure" else 1.0
                columns[name] = lazily(values, partial(in_units, said, Box(0.0, largest), self.clip, unit))
        return columns

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, exposure: Any = None, *, unit: Any = None) -> Any:
        """Fit privately; in partitions, exposures and weights are the fields `exposure` and `weight`.

        Parameters
        ----------
        X, y, unit : object
            As for all estimators.
        sample_weight, exposure : array_like, shape (n,), optional
            Between 0 and the declared bounds `weight` and `exposure`.
        """
        if needs_bound(self):
            why = "without a delta, scores are bounded by 1 and noise is large, and a fit may be far worse than a constant"
            warn(f"{type(self).__name__}: {why}. Pass a delta, such as delta=1e-6, or a bound of your own.")
        data = self._records(X, y, exposure=exposure, sample_weight=sample_weight)
        self.release_ = self._fitted(solve, data, backend=self.backend, unit=unit)
        return self

    def _records(self, X: Any, y: Any, exposure: Any = None, sample_weight: Any = None, **columns: Any) -> Any:
        data = super()._records(X, y, **columns)
        if isinstance(data, dict):
            return data | self._more({"exposure": exposure, "weight": sample_weight}, data["x"])
        said = "fit: pass exposures and weights of partitions as their fields exposure and weight."
        require(sample_weight is None and exposure is None, said)
        return data

    def _unbounded(self, X: ArrayLike) -> Array:
        (middle, half), rows = self._scale(), self._checked(X)
        further = {"exposure": np.ones(rows.shape[0])} if self.exposure else {}
        return np.asarray(middle + half * self._released().predict(rows, **further))

    def predict(self, X: ArrayLike) -> Array:
        """Predict the mean for an exposure of 1 from the released parameters; costs no privacy."""
        return self._unbounded(X) / (self.exposure or 1.0)  # without exposures the problem has bounded means

    @scored
    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: Any = None, exposure: Any = None) -> float:
        """Return D squared, the explained share of the deviance.  It is computed from these data, and is not private."""
        y = np.ravel(self._scored(y))
        said = f"score: pass exposure, because exposure={self.exposure:g} is declared."
        require(exposure is not None or not self.exposure, said)
        share = np.ones(len(y)) if exposure is None else np.asarray(exposure, dtype=float)
        weight = share if sample_weight is None else share * np.asarray(sample_weight)
        rate = y / np.where(share > 0, share, 1.0)
        return float(d2_tweedie_score(rate, self.predict(X), sample_weight=weight, power=self._power))

    @property
    def coef_(self) -> Array:
        """Released coefficients of the logarithm of the mean less the lower bound, shape (features,)."""
        return self._weights()[0]

    @property
    def intercept_(self) -> float:
        """Logarithm of the difference of prediction and lower bound if all features are 0."""
        return float(self._weights()[1] + np.log(self._unit()))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _beside(self) -> dict[str, float]:
        return {name: float(bound) for name in ("exposure", "weight") if (bound := getattr(self, name))}


class PoissonRegressor(LogLinkRegressor, problem="poisson_regression"):
    """Fit Poisson regression to counts: `problems/poisson_regression.py`."""


class GammaRegressor(LogLinkRegressor, problem="gamma_regression", _power=2.0):
    """Fit gamma regression to costs and other positive amounts: `problems/gamma_regression.py`."""


class TweedieRegressor(LogLinkRegressor, problem="tweedie_regression"):
    """Fit Tweedie regression to amounts that are often zero: `problems/tweedie_regression.py`.

    Parameters
    ----------
    power : float
        Exponent of the mean in the variance: 1 for Poisson, 2 for gamma, between them for sums of gamma amounts.
    """

    power: float = 1.5
