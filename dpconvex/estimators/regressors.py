"""Regressors: targets lie between declared bounds, and predictions are in the units of the targets."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.certificates.certificate import Certificate
from dpconvex.data.domains import Box
from dpconvex.data.schema import Schema
from dpconvex.data.schema_columns import Categorical, bounds_of
from dpconvex.data.validation import check_column
from dpconvex.errors import DPConvexError, NotConverged, warn
from dpconvex.estimators.base import Private
from dpconvex.estimators.options import scored, warn_of_refit
from dpconvex.estimators.tables import lazily
from dpconvex.expressions.parameter_space import Space
from dpconvex.features.bases import RegressorMixin
from dpconvex.fitting.problem_files import usual_width
from dpconvex.fitting.release import fields_of, functions_of
from dpconvex.fitting.solve import FitJob, statistics
from dpconvex.fitting.statistics import Coefficients, Statistics, coefficients
from dpconvex.fitting.verify import FitOptions, form_of
from dpconvex.mechanisms.adaptive_steps import AdaptiveSteps
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, mechanism_of
from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array

# `LinearRegression` fits `Ridge` if the mean eigenvalue of Q is at most this multiple of its noise: on tables `Ridge` did
# better there, and few standard errors held.  With a delta `Ridge` takes adaptive steps, and the limit is FAR_STEPS.
FAR, FAR_STEPS = 60.0, 200.0
# Length of residuals beyond which the loss of `Ridge` is linear, in units of the scaled target.
CAPPED = 2.0
MANY = 224  # From this number of features steps use CAPPED too: at 250 errors were 5 % smaller, up to 60 about the same


class PrivateRegressor(RegressorMixin, Private, weights="w"):
    """Base class of regressors.

    Parameters
    ----------
    bounds : pair of float, Schema or None
        Public bounds of the target, or a schema that declares these.  Targets are scaled from the bounds to [-1, 1], and clipped
        to learnt bounds.  Predictions are clipped to the bounds.  Without an intercept, linear regressors predict the middle of
        the bounds if all features are 0.  None is for targets and predictions in [-1, 1], such as the targets of a schema; other
        targets raise an error after the charge.  With a `budget` or a log link, plain targets need bounds.
    """

    example = """
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 1000)[:, None]
    >>> model = dp.{name}(epsilon=5.0, bounds=(0, 100), seed=0).fit(X, 50 + 40 * X[:, 0])
    >>> bool(abs(model.coef_[0] - 40) < 2), bool(abs(model.intercept_ - 50) < 2)
    (True, True)
    """

    fit_intercept: bool = True
    bounds: Any = None
    _in_any_unit = False

    @scored
    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: Any = None) -> float:
        """Return R squared.  It is computed from these data, and is not private."""
        return float(RegressorMixin.score(self, X, self._scored(y), sample_weight))

    def _scored(self, y: Any) -> Any:
        return y if self.bounds is None else self._in_units(y)

    def _interval(self) -> tuple[float, float]:
        if self.bounds is None:
            return -1.0, 1.0
        return bounds_of("the target", self.bounds.label_bounds if isinstance(self.bounds, Schema) else self.bounds)

    def _scale(self) -> tuple[float, float]:
        """Return the middle of the declared bounds, and half of their distance."""
        low, high = self._interval()
        return low / 2 + high / 2, high / 2 - low / 2

    def _in_units(self, y: Any) -> Any:
        """Return a target in the units of `bounds`; a target that a schema encoded is decoded."""
        made, declared = getattr(y, "schema", None), self._interval()
        known = getattr(made if isinstance(made, Schema) else getattr(self, "schema_", None), "label_bounds", None)
        if known is None:
            how = "declare the public bounds of the target, such as bounds=(0, 100) or bounds=schema"
            needed = self.budget is not None or self._in_any_unit
            require(self.bounds is not None or not needed, f"{type(self).__name__}: {how}; nothing was charged.")
        if known is None or (declared == (-1.0, 1.0) and made is not None):
            return y
        both = f"bounds are {declared}, but the schema declares label_bounds {known}"
        fits = declared == tuple(known) or (made is None and self.bounds is not None)
        require(fits, f"{type(self).__name__}: {both}; write bounds={known}.")
        return y if made is None else made.decode_target(y)

    def _target(self, y: Any) -> Any:
        return lazily(y, self._scaled)

    def _scaled(self, y: Any) -> NDArray[Any]:
        (middle, half), known = self._scale(), self.bounds
        if isinstance(known, Schema) and known.learnt is not None:
            return np.asarray(known.targets(np.asarray(y)))
        return np.clip((check_column("y", Box(*self._interval()), y, self.clip)[:] - middle) / half, -1.0, 1.0)

    def predict(self, X: ArrayLike) -> Array:
        """Predict from the released parameters, in the units of the target and within its bounds; costs no privacy."""
        return np.asarray(np.clip(self._unbounded(X), *self._interval()))

    def _unbounded(self, X: ArrayLike) -> Array:
        middle, half = self._scale()
        return np.asarray(middle + half * super().predict(X))

    @property
    def coef_(self) -> Array:
        """Released coefficients in the units of the target, shape (features,)."""
        return self._scale()[1] * self._weights()[0]

    @property
    def intercept_(self) -> float:
        """Prediction if all features are 0."""
        middle, half = self._scale()
        return float(middle + half * self._weights()[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


def needs_bound(estimator: Any) -> bool:
    """Return whether the problem needs a default bound on its parameters; adaptive steps need none."""
    return estimator.bound is None and not takes_steps(estimator)


def takes_steps(estimator: Any) -> bool:
    """Return whether the fit takes adaptive steps, by name or by default."""
    return (bool(estimator.delta) and estimator.mechanism is None) or isinstance(estimator.mechanism, AdaptiveSteps)


class Ridge(PrivateRegressor, problem="ridge_regression"):
    """Fit least squares with a ridge: `problems/ridge_regression.py`.

    `bound` limits the coefficients, not an intercept.  With an intercept, the loss is linear for residuals longer than the
    target's range, except for released statistics and for adaptive steps with fewer than 224 features.  No prediction within
    the bounds has a residual that long.

    Without a delta and a mechanism, a part of epsilon first finds the range of most targets, so that declared bounds may
    be wide.  The loss is linear for residuals beyond an eighth of that range, or more if there are many records.

    Parameters
    ----------
    bound : float or None
        Bound on the norm of the coefficients, for a target between -1 and 1. None means no bound with adaptive steps, the default
        mechanism with a delta, and without a delta or a mechanism; otherwise 1.
    """

    bound: float | None = None

    def _intercept_scale(self, features: int) -> float:
        # With released statistics, a larger scale makes their added ridge shift the intercept less.
        return super()._intercept_scale(features) * (1 + isinstance(self.mechanism, SufficientStatistics))

    def _declared(self, features: int) -> dict[str, Any]:
        squares = (takes_steps(self) and features < MANY) or isinstance(self.mechanism, SufficientStatistics)
        capped = CAPPED if self.fit_intercept and not squares else 0.0
        ranged = not self.delta and self.mechanism is None and self.regularization != 0
        bound = 1.0 if needs_bound(self) and not ranged else self.bound
        return super()._declared(features) | {"capped": capped, "bound": bound}


class HuberRegressor(PrivateRegressor, problem="huber_regression"):
    """Fit robust linear regression: `problems/huber_regression.py`.

    Parameters
    ----------
    threshold : float
        Residual at which the loss turns linear, for a target between -1 and 1.  With wide bounds most residuals are below the
        default, as in least squares: for a robust fit pass a typical residual over half of the range, such as 0.01.  Without a
        delta or a mechanism it applies to a target scaled by the range found, and is at most 1/4 if there are few records.
    """

    threshold: float = 0.5


class QuantileRegressor(PrivateRegressor, problem="quantile_regression"):
    """Fit linear regression to a quantile: `problems/quantile_regression.py`.

    Parameters
    ----------
    quantile : float
        Between 0 and 1; 0.5 is the median.
    width : float or None
        Half-width of the smoothing at the nonsmooth point, for a target between -1 and 1.  None is 0.005 with adaptive steps,
        the default mechanism with a delta.  Otherwise it is 0.1, or with a declared `size` 40 times the number of parameters
        over size times epsilon, between 0.01 and 0.1.  If targets vary by less than the width, another quantile is fitted:
        declare narrower bounds or the `size`, or a smaller width.
    """

    quantile: float = 0.5
    width: float | None = None

    def _declared(self, features: int) -> dict[str, Any]:
        usual = usual_width(takes_steps(self), features + bool(self.fit_intercept), self)
        return super()._declared(features) | {"width": usual if self.width is None else self.width}


class NoStandardErrors(NotConverged, AttributeError):
    """The noise leaves no standard errors; an `AttributeError`, so that `hasattr` and `dir` work."""


class LinearRegression(PrivateRegressor, problem="linear_regression"):
    """Fit least squares without a penalty, with standard errors and intervals: `problems/linear_regression.py`.

    The sums for least squares are released once.  Estimates, standard errors and intervals follow from them at no cost.  If
    noise is too large for standard errors, the fit is a ridge regression with a penalty of the size of the noise.  If public
    numbers show this beforehand and no mechanism is named, the fit is that of `Ridge`.  `coefficients_` and `coef_std_` then
    raise `NotConverged`. With `fit_intercept` the constant is a parameter that does not make records longer:
    `intercept_scaling` is not used.

    Parameters
    ----------
    confidence : float
        Confidence of each interval separately.

    Attributes
    ----------
    statistics_ : Statistics
        The released sums.
    """

    confidence: float = 0.95

    def _declared(self, features: int) -> dict[str, Any]:
        said = "LinearRegression has no penalty; use Ridge(regularization=...)."
        require(not self.regularization, said)
        return super()._declared(features) | {"offset": bool(self.fit_intercept)}

    def _intercept_scale(self, features: int) -> float:
        return 1.0

    @property
    def coefficients_(self) -> Coefficients:
        """Estimates with standard errors and intervals, in the units of the target."""
        self._released()
        if not hasattr(self, "statistics_"):
            raise NoStandardErrors(self._why_ridge())
        try:
            (middle, unit), found = self._scale(), coefficients(self.statistics_, confidence=self.confidence)
        except DPConvexError as error:
            raise NoStandardErrors(str(error)) from error
        numbered = [f"x{k}" for k in range(self.n_features_in_)]
        features = getattr(self, "feature_names_in_", getattr(self.schema_ or self.encoder_, "feature_names", numbered))
        shift = np.where(np.arange(len(found.names)) < self.n_features_in_, 0.0, middle)
        moved: Any = {name: getattr(found, name) * unit + shift for name in ("estimates", "lower", "upper")}
        moved |= {name: getattr(found, name) * unit for name in ("standard_errors", "noise_errors")}
        moved["covariance"] = None if found.covariance is None else found.covariance * unit**2
        spread, names = (found.residual_deviation or 0.0) * unit, (*map(str, features), "intercept")[: len(shift)]
        return replace(found, names=names, residual_deviation=spread, **moved)

    @property
    def coef_std_(self) -> Array:
        """Standard errors of `coef_`, shape (features,); they include the noise for privacy."""
        return self.coefficients_.standard_errors[: self.n_features_in_]

    @property
    def intercept_std_(self) -> float:
        """Standard error of `intercept_`; 0 without an intercept."""
        return float(self.coefficients_.standard_errors[-1]) if self.fit_intercept else 0.0

    def certificate(self, features: int, size: int) -> Certificate:
        instead = self._ridge(features, size)
        return super().certificate(features, size) if instead is None else instead.certificate(features, size)

    def _why_ridge(self) -> str:
        why = f"at {self.privacy()} Ridge is fitted instead: it predicts better than the noisy sums, but has no standard errors"
        more = "a larger epsilon or fewer features help; mechanism=SufficientStatistics(residuals=True) forces the sums"
        more = more if self.delta else "a delta, a larger epsilon or fewer features help"
        return f"{why}. More records, {more}."

    def _ridge(self, features: int, size: int) -> Ridge | None:
        """Return the `Ridge` to fit instead if public numbers show that standard errors would fail; otherwise None."""
        if self.mechanism is not None:
            return None
        template, proof = self.template(features), super().certificate(features, size)
        moments = mechanism_of(proof).moments(form_of(template), self.adjacency)
        nothing = Statistics(np.zeros(moments.count), moments, fields_of(template), proof, proof.privacy, "", template)
        count = features + self.fit_intercept  # number of eigenvalues; the smallest is at most their mean
        largest = size * (self.radius**2 + self.fit_intercept) / count
        if largest > (FAR_STEPS if self.delta else FAR) * nothing.quadratic().edge(np.arange(count)):
            return None
        return Ridge(**{name: value for name, value in self.get_params(False).items() if name in vars(Ridge())})

    def fit(self, X: Any, y: Any = None, *, unit: Any = None) -> Any:
        """Fit privately.  Raise before the fit if the categories of a schema leave the coefficients undetermined."""
        data, schema = self._data(X, y), self.schema_
        if schema is not None:
            alike = [n for n, c in schema.features.items() if isinstance(c, Categorical) and not c.reference]
            alike += [] if schema.unit else ["intercept"] * self.fit_intercept + ["constant"] * bool(schema.constant)
            why = f"features of {' and of '.join(alike)} add up to the same constant, which leaves coefficients undetermined"
            remedy = "a level out, Categorical(levels, reference=...), or the intercept, or predict with Ridge"
            require(len(alike) < 2, f"LinearRegression: {why}. Leave {remedy}.")
        options = FitOptions(size=self.size, unit=unit, units=True)
        public = FitJob(data, self.privacy(), [self.template(self.n_features_in_)], options).size
        instead = self._ridge(self.n_features_in_, public)
        if instead is not None:
            warn_of_refit(self, X)
            warn(f"LinearRegression: {self._why_ridge()}")
            self.__dict__.pop("statistics_", None)
            found, count = instead.fit(X, y, unit=unit).release_, self.n_features_in_
            learnt = {"w": found["w"], "b": found.get("b", 0.0) * instead._intercept_scale(count)}
            parameters = {variable.name: learnt[variable.name] for variable in self.template(count).variables}
            self.release_ = replace(found, parameters=parameters, **functions_of(self.template(count)))
            return self
        self.statistics_: Statistics = self._fitted(statistics, data, unit=unit)
        self.release_, learner = self.statistics_.fit(), self.statistics_.template
        assert learner is not None
        try:
            estimates = coefficients(self.statistics_).estimates
        except NotConverged:
            return self
        self.release_ = replace(self.release_, parameters=Space(learner.variables).unpack(estimates))
        return self

    def _ways(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism or replace(SufficientStatistics.usual(self.privacy()), residuals=True)}
