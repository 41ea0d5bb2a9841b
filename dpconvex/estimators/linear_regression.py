"""Linear regression from released sums: coefficients with standard errors that count the noise."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Space
from dpconvex.errors import NotConverged
from dpconvex.estimators.base import declared_pair, none_of
from dpconvex.estimators.regressors import PrivateRegressor
from dpconvex.language.template import Template
from dpconvex.learners.coefficients import Coefficients, coefficients
from dpconvex.learners.problem_files import load
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics
from dpconvex.release.solve import statistics
from dpconvex.release.statistics import Statistics

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(PrivateRegressor):
    """Least squares without a penalty, with standard errors and intervals: `problems/linear_regression.py`.

    The sums that least squares need are released once; estimates, standard errors and intervals follow from them free of charge.
    Where noise is too large for standard errors to mean anything, a ridge as large as the noise makes the coefficients, and
    `coefficients_` and `coef_std_` raise `NotConverged`.

    Parameters
    ----------
    confidence : float
        Of each interval by itself.
    fit_intercept : bool
        Fit a parameter for the constant; it makes records no longer here.
    intercept_scaling : float
        Not used.

    Attributes
    ----------
    statistics_ : Statistics
        The released sums.

    Examples
    --------
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-0.5, 0.5, size=(20000, 2))
    >>> y = 50 + 10 * x[:, 0] + rng.uniform(-5, 5, size=20000)
    >>> model = dp.LinearRegression(epsilon=1.0, delta=1e-6, bounds=(0, 100), fit_intercept=True, seed=0).fit(x, y)
    >>> bool(abs(model.coef_[0] - 10) < 5 * model.coef_std_[0]), model.coefficients_.names
    (True, ('x0', 'x1', 'intercept'))
    """

    problem = "linear_regression"

    confidence: float = 0.95

    def template(self, features: int) -> Template:
        """Return the template that is fitted, for a number of features."""
        given = {} if self.regularization is None else {"regularization": self.regularization}
        return load(self.problem, features=features, radius=self.radius, offset=bool(self.fit_intercept), **given)

    @property
    def coefficients_(self) -> Coefficients:
        """Estimates with standard errors and intervals, in the units of the target."""
        low, high = declared_pair("bounds", self.bounds)
        self._released()
        found, unit = coefficients(self.statistics_, confidence=self.confidence), (high - low) / 2
        features = getattr(self, "feature_names_in_", [f"x{k}" for k in range(self.n_features_in_)])
        shift = np.zeros(len(found.names))
        if self.fit_intercept:
            shift[-1] = (low + high) / 2
        return replace(
            found,
            names=(*map(str, features), *(["intercept"] if self.fit_intercept else [])),
            estimates=found.estimates * unit + shift,
            standard_errors=found.standard_errors * unit,
            noise_errors=found.noise_errors * unit,
            residual_deviation=found.residual_deviation * unit,
        )

    @property
    def coef_std_(self) -> Array:
        """Standard errors of `coef_`, shape (features,); they count the noise for privacy."""
        return self.coefficients_.standard_errors[: self.n_features_in_]

    @property
    def intercept_std_(self) -> float:
        """Standard error of `intercept_`; 0 where none is fitted."""
        return float(self.coefficients_.standard_errors[-1]) if self.fit_intercept else 0.0

    def fit(self, X: Any, y: Any = None) -> Any:
        self.statistics_: Statistics = self._fitted(statistics, self._data(X, y))
        release, learner = self.statistics_.fit(), self.statistics_.template
        assert learner is not None
        try:
            estimates = coefficients(self.statistics_).estimates
        except NotConverged:
            self._keep(release)
        else:
            self._keep(replace(release, parameters=Space(learner.variables).unpack(estimates)))
        return self

    def _mechanism(self) -> Any:
        usual = replace(SufficientStatistics.usual(self.privacy()), residuals=True)
        return usual if self.mechanism is None else self.mechanism

    def _whitening(self) -> Whitened:
        if not self.fit_intercept:
            return none_of(
                self, "standard errors need the weight of all records, which is released with an intercept alone"
            )
        return "auto" if self.whitening is None and self.mechanism is None else self.whitening

    def _constant(self) -> float:
        return 0.0

    def _weights(self) -> tuple[Array, Array]:
        released = self._released()
        return released["w"], released["b"] if self.fit_intercept else np.zeros(())
