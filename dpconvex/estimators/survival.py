"""Survival analysis with the structured targets of scikit-survival: hazards in declared intervals, with censoring."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.columns import names_of
from dpconvex.data.schema_columns import bounds_of
from dpconvex.data.survival import ends_of, lived_and_died
from dpconvex.data.validation import nonnumeric
from dpconvex.errors import DomainError, shorten
from dpconvex.estimators.base import Private
from dpconvex.estimators.options import scored
from dpconvex.estimators.tables import checked, lazily
from dpconvex.util.arguments import recast, require
from dpconvex.util.arrays import Array

SMALLEST_NORMAL = np.finfo(float).tiny
SURV = "sksurv.util.Surv.from_arrays(event, time), or np.array(list(zip(event, time)), dtype='?,f8')"


@dataclass(frozen=True)
class SurvivalFunction:
    """A function of time with values y at times x; in between it is linear, or its logarithm is, if `logarithmic`."""

    x: Array
    y: Array
    logarithmic: bool = True

    def __call__(self, time: ArrayLike) -> Array:
        """Return the values at given times; raise outside of the range of x."""
        given = np.asarray(time, dtype=float)
        said = f"a survival curve is known for times from {self.x[0]:g} to {self.x[-1]:g}."
        require(((given >= self.x[0]) & (given <= self.x[-1])).all(), said, DomainError)
        if not self.logarithmic:
            return np.asarray(np.interp(given, self.x, self.y))
        return np.exp(np.interp(given, self.x, np.log(np.maximum(self.y, SMALLEST_NORMAL))))


class SurvivalRegressor(
    Private,
    problem="discrete_hazards",
    weights="w",
    own_constant="a hazard for each interval",
):
    """Survival by discrete-time proportional hazards: `problems/discrete_hazards.py`.

    Targets are structured arrays, as in scikit-survival: whether the event was seen, and the time of the event or, without an
    event, of the end of observation.

    Parameters
    ----------
    bounds : pair of float
        Required: 0 and the end of the curves.  People without an event until then are censored there.
    intervals : int or sequence of float
        Number of intervals, of equal length, or the times at which they end; the last one ends at the upper bound.  With
        ``delta=0`` proofs of more than six are not replayed.

    Examples
    --------
    >>> import dpconvex as dp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (3000, 1))
    >>> death, end = rng.exponential(5 * np.exp(-2 * X[:, 0])), rng.uniform(0, 20, 3000)
    >>> y = np.array(list(zip(death < end, np.minimum(death, end))), dtype=[("dead", bool), ("years", float)])
    >>> model = dp.SurvivalRegressor(epsilon=1.0, delta=1e-6, bounds=(0, 10), seed=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.7), bool(model.coef_[0] > 1)
    (True, True)
    >>> model.predict_survival_function(X, return_array=True).shape
    (3000, 6)
    """

    bounds: tuple[float, float] | None = None
    intervals: int | Sequence[float] = 6

    @property
    def unique_times_(self) -> Array:
        """The times at which the intervals end, shape (intervals,)."""
        name = type(self).__name__
        require(self.bounds is not None, f"{name}: declare 0 and the end of the curves, such as bounds=(0, 10).")
        low, high = bounds_of("the time", self.bounds)
        require(low == 0, f"{name}: bounds must be 0 and the largest time, not {self.bounds!r}.")
        return ends_of(name, self.intervals, high)

    def _declared(self, features: int) -> dict[str, Any]:
        ends = self.unique_times_.tolist()
        return super()._declared(features) | {"intervals": len(ends) if np.ndim(self.intervals) == 0 else ends}

    def _beside(self) -> dict[str, float]:
        return {"event": 1.0, "time": self.unique_times_[-1]}

    def _read(self, X: Any, y: Any) -> tuple[Any, Any]:
        return checked(self, "fit", X, None if y is None else "no_validation", later=True), y

    def _target(self, y: Any) -> Any:
        return lazily(structured("fit", y), self._lived_and_died)

    def _lived_and_died(self, y: Any) -> Array:
        """Return 1 for the interval of an event, otherwise minus the fraction of the interval lived; shape (n, intervals)."""
        return lived_and_died(*outcomes("fit", y), self.unique_times_)

    def predict(self, X: ArrayLike) -> Array:
        """Return risk scores, ``X @ coef_``: a higher score means that the event is expected sooner; costs no privacy."""
        return np.asarray(self._checked(X) @ self.coef_)

    def predict_survival_function(self, X: ArrayLike, return_array: bool = False) -> Any:
        """Return survival curves with constant hazards within intervals; costs no privacy.

        Parameters
        ----------
        X : array_like, shape (n, features)
        return_array : bool
            Return an array, shape (n, intervals), for the times `unique_times_`.  By default, return n functions of time.
            Between the ends of intervals their logarithms are linear.
        """
        curves = np.asarray(self._released().predict(self._checked(X)))
        return curves if return_array else self._functions(curves, True)

    def predict_cumulative_hazard_function(self, X: ArrayLike, return_array: bool = False) -> Any:
        """Return cumulative hazards, minus the logarithms of the survival functions; costs no privacy."""
        hazards = -np.log(np.maximum(self.predict_survival_function(X, return_array=True), SMALLEST_NORMAL))
        return hazards if return_array else self._functions(hazards, False)

    def _functions(self, values: Array, survival: bool) -> NDArray[Any]:
        x, found = np.append(0.0, self.unique_times_), np.empty(len(values), dtype=object)
        found[:] = [SurvivalFunction(x, np.append(float(survival), row), survival) for row in values]
        return found

    @scored
    def score(self, X: ArrayLike, y: Any) -> float:
        """Return Harrell's concordance index.  It is computed from these data, and is not private."""
        return concordance(*outcomes("score", structured("score", y)), self.predict(X))

    @property
    def coef_(self) -> Array:
        """Released logarithms of odds ratios of an event, shape (features,)."""
        return self._weights()[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags._skip_test = True  # scikit-learn's own checks have no structured targets
        return tags


def structured(caller: str, y: Any) -> Any:
    """Return a structured array of two fields, also for a frame of two columns; raise for other targets."""
    if hasattr(y, "to_records"):
        array = np.asarray(y.to_records(index=False))
    else:
        columns = {name: np.asarray(y[name]) for name in names_of(y) or ()}
        kinds = [(name, column.dtype) for name, column in columns.items()]
        array = np.asarray(np.rec.fromarrays(list(columns.values()), dtype=kinds) if columns else y)
    fits = array.ndim == 1 and len(array.dtype.names or ()) == 2
    require(fits, f"{caller}: y must have two fields, whether the event was seen and the time: {SURV}.")
    names = array.dtype.names or ()
    event, time = (array.dtype[name] for name in names)
    wrong = nonnumeric(y) or [name for name in names if array.dtype[name].kind in "USMm"]
    said = f"{caller}: {shorten(', '.join(wrong))} of y are texts or dates; make the event True or False: {SURV}."
    require(not wrong, said, DomainError)
    said = f"{caller}: times of y are True or False; put the event first, and then the time."
    require(event.kind == "b" or time.kind != "b", said, DomainError)
    return array


def outcomes(caller: str, y: Any) -> tuple[NDArray[np.bool_], Array]:
    """Return whether events were seen, and the times; raise for values of another kind."""
    names = y.dtype.names
    said = f"{caller}: pass {SURV}; {shorten(', '.join(names))} of y are not numbers"
    with recast(said, TypeError, ValueError, kind=DomainError):
        event, time = (np.asarray(y[name], dtype=float) for name in names)
    said = f"{caller}: {names[0]!r} of y must be True or False for each record; pass {SURV}."
    require(np.isin(event, (0.0, 1.0)).all(), said, DomainError)
    said = f"{caller}: {names[1]!r} of y must be times, finite and not negative; leave other records out."
    require(((time >= 0) & (time < np.inf)).all(), said, DomainError)
    return event > 0, time


def concordance(event: NDArray[np.bool_], time: Array, risk: Array) -> float:
    """Return the share of comparable pairs in which the earlier event has the higher risk; equal risks count half."""
    pairs = right = 0.0
    for k in np.flatnonzero(event):
        later = risk[(time > time[k]) | ((time == time[k]) & ~event)]
        pairs += len(later)
        right += (risk[k] > later).sum() + (risk[k] == later).sum() / 2
    said = "score: no two records can be compared; each pair needs an event before the other's time."
    require(pairs, said, DomainError)
    return right / pairs
