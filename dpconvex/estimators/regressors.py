"""Regressors: targets lie between declared bounds, and predictions come back in their units."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from dpconvex.errors import DomainError, TemplateError
from dpconvex.estimators.base import Private, declared_pair, none_of
from dpconvex.language.schema import Schema
from dpconvex.language.validation import ROUNDING
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, Private):
    """What regressors share.

    Parameters
    ----------
    bounds : pair of float
        Public bounds of the target, which is moved from them to -1 and 1.
    fit_intercept : bool
        As for all estimators; without it, the middle of the bounds is predicted where all features are 0.
    """

    weights = "w"

    bounds: tuple[float, float] = (-1.0, 1.0)

    def _whitening(self) -> Whitened:
        return none_of(
            self, "whitened records are all of one length, so predictions would not be linear in the features"
        )

    def _target(self, y: Any) -> NDArray[Any]:
        low, high = declared_pair("bounds", self.bounds)
        try:
            targets = np.asarray(y, dtype=float)
        except (TypeError, ValueError, OverflowError) as error:
            raise DomainError(
                f"y: {error}; targets are numbers between the declared bounds, and labels are for a classifier, such as "
                "LogisticRegression."
            ) from error
        moved = np.asarray((targets - low) / (high - low) * 2 - 1)
        outside = np.flatnonzero(np.abs(moved) > 1 + ROUNDING)
        if len(outside) and not self.clip:
            raise DomainError(
                f"y: {len(outside)} targets lie outside the declared bounds {low:g} to {high:g} (first: row {outside[0]}, "
                f"{targets[outside[0]]:g}); declare bounds that hold by definition, or pass clip=True."
            )
        return moved

    def _check_schema(self, schema: Schema) -> None:
        super()._check_schema(schema)
        if schema.label_bounds != declared_pair("bounds", self.bounds):
            raise TemplateError(
                f"save: the schema's label_bounds are {schema.label_bounds}, and the bounds of the fit {self.bounds}; "
                "they must agree."
            )

    def predict(self, X: ArrayLike) -> Array:
        """Predict from the released parameters, in the units of the target; costs no privacy."""
        low, high = declared_pair("bounds", self.bounds)
        return np.asarray(low + (super().predict(X) + 1) / 2 * (high - low))

    @property
    def coef_(self) -> Array:
        """Released coefficients in the units of the target, shape (features,)."""
        low, high = declared_pair("bounds", self.bounds)
        return self._weights()[0] * (high - low) / 2

    @property
    def intercept_(self) -> float:
        """Prediction where all features are 0."""
        low, high = declared_pair("bounds", self.bounds)
        return float(low + (self._weights()[1] + 1) / 2 * (high - low))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class Ridge(PrivateRegressor):
    """Least squares in a ball: `problems/ridge_regression.py`.

    Parameters
    ----------
    bound : float
        Bound on the norm of the coefficients, for a target between -1 and 1.

    Examples
    --------
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 1000)[:, None]
    >>> model = dp.Ridge(epsilon=5.0, bounds=(0, 100), seed=0).fit(X, 50 + 40 * X[:, 0])
    >>> model.coef_.round(), round(model.intercept_)
    (array([40.]), 50)
    """

    problem = "ridge_regression"
    options = ("bound",)

    bound: float = 1.0

    def _whitening(self) -> Whitened:
        # Of released statistics the parameters are those of the original features.
        statistics = self.mechanism is None or isinstance(self.mechanism, SufficientStatistics)
        return self.whitening if statistics else super()._whitening()


@dataclass(eq=False, repr=False, kw_only=True)
class HuberRegressor(PrivateRegressor):
    """Robust linear regression: `problems/huber_regression.py`.

    Parameters
    ----------
    threshold : float
        Residual at which the loss turns linear, for a target between -1 and 1.

    Examples
    --------
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 1000)[:, None]
    >>> model = dp.HuberRegressor(epsilon=5.0, bounds=(0, 100), seed=0).fit(X, 50 + 40 * X[:, 0])
    >>> model.coef_.round(), round(model.intercept_)
    (array([40.]), 50)
    """

    problem = "huber_regression"
    options = ("threshold",)

    threshold: float = 0.5


@dataclass(eq=False, repr=False, kw_only=True)
class QuantileRegressor(PrivateRegressor):
    """Linear regression to a quantile: `problems/quantile_regression.py`.

    Parameters
    ----------
    quantile : float
        Between 0 and 1; 0.5 is the median.
    width : float
        Of the smoothed kink, for a target between -1 and 1.

    Examples
    --------
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.ones((4000, 1))
    >>> model = dp.QuantileRegressor(epsilon=5.0, quantile=0.9, bounds=(0, 100), seed=0)
    >>> above = rng.uniform(0, 100, 4000) > model.fit(X, rng.uniform(0, 100, 4000)).predict(X)
    >>> bool(0.05 < above.mean() < 0.15)
    True
    """

    problem = "quantile_regression"
    options = ("quantile", "width")

    quantile: float = 0.5
    width: float = 0.1
