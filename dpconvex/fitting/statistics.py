"""Released statistics of a quadratic loss, and fits that follow from the statistics at no cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import ndtri

from dpconvex.certificates.certificate import Certificate
from dpconvex.data.learnt import Learnt
from dpconvex.data.schema import Schema
from dpconvex.errors import NotConverged, TemplateError
from dpconvex.expressions.parameter_space import Space
from dpconvex.fitting.files import Released, StatedNumbers
from dpconvex.fitting.proof import plain_moments
from dpconvex.fitting.release import Release, fields_of, functions_of
from dpconvex.fitting.verify import form_of
from dpconvex.model.people import template_to_fit
from dpconvex.model.privacy import Privacy
from dpconvex.model.template import Template
from dpconvex.optim.noisy_quadratic import RIDGE, NoisyQuadratic, least_point
from dpconvex.sensitivity.moments import Moments, QuadraticLoss, quadratic_loss
from dpconvex.sensitivity.public_terms import move_public_terms
from dpconvex.util.arguments import FRACTION, NOT_NEGATIVE, POSITIVE, instance, one_of, require
from dpconvex.util.arrays import Array, frozen

# The expansion needs a smallest eigenvalue of the noisy Q above this multiple of the largest eigenvalue of the noise.
CLEAR = 2.0
HEAD = ("coefficient", "estimate", "std. error", "of noise", "lower", "upper")


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Released):
    """Hold noisy sums that determine a quadratic loss.  Any template with this loss is fitted from the sums at no cost.

    Attributes
    ----------
    values : ndarray, shape (statistics,)
        Noisy sums over the records, on a fixed grid.  `moments` names the summed terms, `fields` the domains.
    certificate, spent, not_private_because, schema, names, learnt
        As for `Release`.
    template : Template or None
        The template of the release.
    """

    form = "dpconvex statistics"
    kept = ("values", "moments", "fields", "certificate", "spent", "not_private_because", "schema", "names", "learnt")

    values: Array
    moments: Moments
    fields: str
    certificate: Certificate
    spent: Privacy | None
    not_private_because: str = ""
    template: Template | None = None
    schema: Schema | None = None
    names: tuple[str, ...] | None = None
    learnt: Learnt | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if values.shape != (self.moments.count,) or not np.isfinite(values).all():
            raise TemplateError(f"Statistics: expected {self.moments.count} finite numbers, not shape {values.shape}.")
        scaled = all(0 < kind.scale < np.inf for kind in self.moments.kinds)
        if not (scaled and 0 <= self.deviation < np.inf and 0 < self.certificate.size < 2**53):
            raise TemplateError("Statistics: the moments have no scale, or the certificate no noise or no records.")
        self.check_paid()
        object.__setattr__(self, "values", frozen(values.copy()))

    def compare(self, proof: Mapping[str, Any]) -> None:
        same = proof.get("moments", plain_moments(self.moments)) == plain_moments(self.moments)
        require(same, "Statistics: its proof is for other moments.")

    @property
    def deviation(self) -> float:
        """Standard deviation of the total noise on each statistic."""
        certificate: Any = self.certificate
        return float(certificate.deviation)

    def __repr__(self) -> str:
        return f"Statistics({self.moments.count} sums; {self.status})"

    def fit(self, template: Template | None = None, ridge: float | None = None) -> Release:
        """Fit a template from the statistics; it costs nothing.

        Parameters
        ----------
        template : Template, optional
            By default, the template of the release.  Another template must have the same record, and a loss with Q and q linear
            in the same moments; otherwise a `TemplateError` is raised.  Regularizer and constraints are free.
        ridge : float, optional
            Ridge added to the noisy Q, in sum form, after projection on positive semidefinite matrices.  By default 0.7 times
            the largest eigenvalue of its noise.
        """
        chosen = move_public_terms(self.matching(template))
        NOT_NEGATIVE.or_none.check("fit", ridge=ridge)
        form, noisy = form_of(chosen), self.quadratic(template)
        found = form.space.unpack(least_point(form, noisy.convex(ridge, RIDGE), noisy.slope, self.certificate.size))
        known: Any = {"schema": self.schema, "names": self.names, "learnt": self.learnt, **functions_of(chosen)}
        return Release(found, self.certificate, self.spent, self.not_private_because, **known)

    def noise_map(self, release: Release) -> Array:
        """Return the matrix from standard noise to the change of a fit of `template`, to first order at this release."""
        form, noisy = form_of(self.matching(None)), self.quadratic()
        gradients = noisy.gradient_map(form.space.pack(release.parameters))
        values, vectors = np.linalg.eigh((gradients @ gradients.T).toarray())
        moved = vectors * np.sqrt(np.maximum(values, 0.0)) * self.deviation
        return np.asarray(np.linalg.solve(noisy.convex(None, RIDGE).toarray(), moved))

    def quadratic(self, template: Template | None = None) -> NoisyQuadratic:
        """Return the noisy sum of a template's losses as a quadratic function of its parameters."""
        loss: QuadraticLoss = quadratic_loss(form_of(self.matching(template)))
        return NoisyQuadratic(loss, self.moments, np.append(self.values, self.certificate.size), self.deviation)

    def matching(self, template: Template | None) -> Template:
        """Return the template of a fit; raise `TemplateError` if its record differs from that of the release."""
        chosen = self.template if template is None else template
        instance(Template).check("fit", "Saved statistics have none: pass it.", template=chosen)
        assert chosen is not None
        if fields_of(chosen) != self.fields:
            chosen = template_to_fit(chosen, self.certificate.privacy)
        if fields_of(chosen) != self.fields:
            raise TemplateError(f"fit: statistics are of {self.fields}, but the template declares {fields_of(chosen)}.")
        return chosen

    def with_template(self, template: Any) -> Self:
        return replace(self, template=self.matching(template))


class Combination(NamedTuple):
    """A combination of coefficients, its standard error, and the ends of its interval."""

    estimate: float
    standard_error: float
    lower: float
    upper: float


# Coefficients.  With noise N on Q and m on q, the solution of Q theta = q moves by ``Q^-1 (m - N theta)`` to first order.  The
# mean of the second order is subtracted.  So the covariance is ``Q^-1 (s^2 Q + V) Q^-1`` with the variance s^2 of the residuals
# and the covariance V of ``m - N theta``, which is public (docs/theory.md, section 18).


@dataclass(frozen=True, eq=False, repr=False)
class Coefficients(StatedNumbers):
    """Hold estimates with standard errors and confidence intervals; print them as a table.

    Attributes
    ----------
    names : tuple of str
        Such as ``w[0]``.
    undetermined : tuple of str
        Names of the coefficients with NaN as their numbers, because noise hides the curvature of the loss along them.
    estimates, standard_errors, noise_errors : ndarray, shape (coefficients,)
        `noise_errors` are the part of the standard errors that the noise for privacy causes.
    lower, upper : ndarray, shape (coefficients,)
        Ends of the confidence intervals.
    confidence : float
    residual_deviation : float or None
        Estimated standard deviation of the residuals; None for losses other than squares.
    spent : Privacy or None
        Cost of `intervals`; None with a seed, and for pure post-processing.
    not_private_because : str
        Reason why the numbers are not private, such as a seed of the fit; empty if they are private.
    ratio : str
        Name of `exp` of a coefficient, such as "odds ratio"; empty if it is not known.
    learnt : Learnt or None
        The cost of the learnt schema that encoded the features.
    covariance : ndarray, shape (coefficients, coefficients), or None
        Covariance of the estimates, noise included; NaN for undetermined ones, None from files without a covariance.
    """

    form = "dpconvex coefficients 1"

    names: tuple[str, ...]
    estimates: Array
    standard_errors: Array
    noise_errors: Array
    lower: Array
    upper: Array
    confidence: float
    residual_deviation: float | None = None
    spent: Privacy | None = None
    not_private_because: str = ""
    ratio: str = ""
    learnt: Learnt | None = None
    covariance: Array | None = None

    def __post_init__(self) -> None:
        count = len(self.rows())  # raises for parts of different lengths
        said = f"Coefficients: expected a covariance of {count} estimates."
        require(self.covariance is None or np.shape(self.covariance) == (count, count), said)
        FRACTION.check("Coefficients", confidence=self.confidence)
        errors, ends = (self.standard_errors, self.noise_errors), (self.lower, self.estimates, self.upper)
        wrong = np.any([part < 0 for part in errors]) or np.any([low > high for low, high in pairwise(ends)])
        squares = None if self.covariance is None else np.diag(self.covariance)
        wrong |= squares is not None and not np.allclose(squares, self.standard_errors**2, equal_nan=True)
        said = "Coefficients: standard errors are those of the covariance, and estimates lie in their intervals."
        require(not wrong, said)

    @classmethod
    def around(
        cls, space: Space, estimates: Array, covariance: Array, of_noise: Array, confidence: float, **further: Any
    ) -> Self:
        """Return estimates with normal intervals from their covariance, of which `of_noise` is a part; NaN get no interval."""
        hidden = np.isnan(estimates)
        covariance = np.where(hidden | hidden[:, None], np.nan, covariance)
        errors, level = np.sqrt(np.diag(covariance)), float(confidence)
        reach = errors * -float(ndtri((1 - level) / 2))
        ends: Any = {"lower": estimates - reach, "upper": estimates + reach, "confidence": level}
        noise = np.where(hidden, np.nan, np.sqrt(np.diag(of_noise)))
        return cls(tuple(coefficient_names(space)), estimates, errors, noise, **ends, **further, covariance=covariance)

    @property
    def undetermined(self) -> tuple[str, ...]:
        return tuple(name for name, value in zip(self.names, self.estimates, strict=True) if np.isnan(value))

    def ratios(self, schema: Schema | None = None, per: Mapping[str, float] | None = None) -> Self:
        """Return `exp` of the coefficients with their intervals: odds or rate ratios; it costs nothing.

        With the table's schema, a ratio has the name of a column, and is for one unit of the column, such as one year, or for a
        level. `per` sets other units, such as ``{"income": 10_000, "since": 365}``; dates count days. Intercepts, `b`, are left
        out, because their `exp` depends on the scale of the targets.
        """
        found = self._per_unit("ratios", schema, per, 1.0)
        centre, low, high = (np.exp(part) for part in (found.estimates, found.lower, found.upper))
        errors: Any = {"standard_errors": centre * found.standard_errors, "noise_errors": centre * found.noise_errors}
        if found.covariance is not None:
            errors["covariance"] = found.covariance * np.outer(centre, centre)
        return replace(found, estimates=centre, lower=low, upper=high, **errors)

    def combination(self, weights: Mapping[str, float], over: Mapping[str, float] | None = None) -> "Combination":
        """Return a weighted sum of coefficients, or a quotient of two sums, with its interval; it costs nothing.

        ``{"w[2]": 1, "w[0]": -1}`` is a difference, and ``{"w[1]": 60}, over={"w[0]": 1}`` the price of an hour if w[1] belongs
        to minutes and w[0] to prices. Intervals of quotients use the delta method: the divisor should be several of its
        standard errors away from 0.
        """
        require(self.covariance is not None, "combination: this file has no covariance of its estimates.")
        sums = []
        for given in (weights, {} if over is None else over):
            one_of(self.names).check("combination", **{f"coefficient {k}": name for k, name in enumerate(given)})
            sums.append(np.array([float(given.get(name, 0.0)) for name in self.names]))
        used = (sums[0] != 0) | (sums[1] != 0)
        lost = [name for name, k in zip(self.names, used, strict=True) if k and name in self.undetermined]
        require(not lost, f"combination: noise hides {', '.join(lost)}.")
        slopes, estimates, covariance = sums[0][used], self.estimates[used], np.asarray(self.covariance)[used][:, used]
        value = float(slopes @ estimates)
        if over is not None:
            divisor = float(sums[1][used] @ estimates)
            require(divisor, "combination: the divisor, the sum `over`, is 0.")
            value, slopes = value / divisor, (slopes - value / divisor * sums[1][used]) / divisor
        error = float(np.sqrt(slopes @ covariance @ slopes))
        reach = error * -float(ndtri((1 - self.confidence) / 2))
        return Combination(value, error, value - reach, value + reach)

    def in_units(self, schema: Schema, per: Mapping[str, float] | None = None) -> Self:
        """Return effects in units of the target, for one unit of each column, with their intervals; it costs nothing.

        The schema has scaled targets to [-1, 1]. `per` is as for `ratios`; intercepts are left out.
        """
        fits = schema.label_bounds is not None and not self.ratio
        require(fits, "in_units: these are no effects on a target with label_bounds. `ratios(schema)` returns factors.")
        low, high = schema.label_bounds or (0.0, 0.0)
        return self._per_unit("in_units", schema, per, high / 2 - low / 2)

    def _per_unit(self, caller: str, schema: Schema | None, per: Mapping[str, float] | None, size: float) -> Self:
        """Return coefficients without intercepts, for one unit of each column, times `size` for the unit of targets."""
        names, unit = list(self.names), np.full(len(self.names), size)
        if schema is not None:
            places = [k for k, name in enumerate(names) if name.startswith("w[") and "," not in name]
            if schema.unit or len(places) != len(schema.feature_names):
                raise TemplateError(f"{caller}: these are not coefficients of the schema's columns.")
            unit[places] *= schema.steps
            for k, name in zip(places, schema.feature_names, strict=True):
                names[k] = name
        own = [k for k, name in enumerate(self.names) if name.partition("[")[0] != "b"]
        for name, units in (per or {}).items():
            one_of([names[k] for k in own]).check(f"{caller}(schema, per=...)", column=name)
            POSITIVE.check(caller, **{f"per[{name!r}]": units})
            unit[names.index(name)] *= units
            names[names.index(name)] = f"{name} (per {units:,g})"
        parts = ("estimates", "standard_errors", "noise_errors", "lower", "upper")
        moved: Any = {name: (getattr(self, name) * unit)[own] for name in parts}
        if self.covariance is not None:
            moved["covariance"] = (self.covariance * np.outer(unit, unit))[np.ix_(own, own)]
        deviation = None if self.residual_deviation is None else self.residual_deviation * size
        return replace(self, names=tuple(names[k] for k in own), residual_deviation=deviation, **moved)

    def rows(self) -> list[tuple[str, float, float, float, float, float]]:
        """Return (name, estimate, standard error, error by noise, lower, upper) for each coefficient."""
        parts = (self.estimates, self.standard_errors, self.noise_errors, self.lower, self.upper)
        return list(zip(self.names, *(part.tolist() for part in parts), strict=True))

    def __repr__(self) -> str:
        rows = [HEAD, *((name, *(f"{value:.4g}" for value in values)) for name, *values in self.rows())]
        wide = max(len(row[0]) for row in rows)
        foot = f"{100 * self.confidence:g} % intervals"
        foot += "" if self.residual_deviation is None else f"; residual deviation {self.residual_deviation:.4g}"
        foot += f"; hidden by noise, not determined: {', '.join(self.undetermined)}" if self.undetermined else ""
        foot += "" if self.spent is None and self.private else f"; {self.status}"
        return "\n".join([*(f"{row[0]:<{wide}}" + "".join(f"{v:>12}" for v in row[1:]) for row in rows), foot])


def coefficients(statistics: Statistics, template: Template | None = None, confidence: float = 0.95) -> Coefficients:
    """Estimate a linear regression from released statistics, with standard errors; costs no privacy.

    Estimates are least squares; regularizer and constraints of the template are ignored.  Intervals assume a linear model with
    residuals of one variance, many records, and noise that is small compared with the variation of the features.

    Parameters
    ----------
    statistics : Statistics
        Released with ``SufficientStatistics(residuals=True)``. If their noise is too large for intervals, an error is raised.
    template : Template, optional
        By default, the template of the release.  Its loss is the squared residual of one response, times a number.
    confidence : float
        Confidence of each interval separately.
    """
    FRACTION.check("coefficients", confidence=confidence)
    said = "coefficients: expected the result of dp.statistics; for a fit, use dp.intervals(release, data, privacy)."
    require(isinstance(statistics, Statistics), said)
    noisy, space = statistics.quadratic(template), Space(statistics.matching(template).variables)
    known = np.flatnonzero((noisy.loss.targets < 0).all(axis=1))
    if not len(known) or not noisy.loss.onto(noisy.moments)[known].count_nonzero():
        mechanism = f"SufficientStatistics({statistics.certificate.noise!r}, residuals=True)"
        why = f"the squared response was not released; release it by dp.statistics(..., {mechanism})"
        raise TemplateError(f"coefficients: {why}. Without standard errors, `fit()` still works.")
    said = "coefficients: the loss is a sum of several regressions; use dp.intervals(template, None, data, ...)."
    require(len(noisy.parts) < 2, said)
    q = noisy.hessian.toarray()
    values, vectors = np.linalg.eigh(q)
    edge = noisy.edge(np.arange(len(q)))
    if not values[0] > CLEAR * edge:
        part = f"noise alone contributes about {edge:.3g}, and {CLEAR:g} times that is needed"
        why = f"the smallest curvature of the noisy squares is {values[0]:.3g}; {part}"
        more = f"{CLEAR * edge / max(values[0], edge):.2g} times the records, or the epsilon,"
        remedy = f"About {more} help, or fewer features; `fit` works, with its ridge"
        raise NotConverged(f"{why}: no standard errors hold. {remedy}.")
    inverse = (vectors / values) @ vectors.T
    theta = inverse @ noisy.slope
    moved = noisy.gradient_map(theta).toarray() * noisy.deviation
    covariance = moved @ moved.T
    bias = noisy.deviation * noisy.curvature_products(inverse @ moved)
    count = statistics.certificate.size if noisy.count is None else noisy.count
    squares = 2 * (noisy.constant - noisy.slope @ theta / 2) + float(np.sum(inverse * covariance))
    # Noise can make the sum of squares small or negative; the deviation of its noise is a lower limit.
    least = 2 * noisy.deviation * float(np.linalg.norm(noisy.value_map(theta)))
    variance = max(squares, least) / max(count - len(q), 1.0)
    of_noise = inverse @ covariance @ inverse
    of_residuals = statistics.certificate.privacy.person.weight * variance * inverse  # a person's may be alike
    estimates, deviation = theta - inverse @ bias, float(np.sqrt(variance))
    paid: Any = {"not_private_because": statistics.not_private_because, "learnt": statistics.learnt}
    both = of_noise + of_residuals
    return Coefficients.around(space, estimates, both, of_noise, confidence, residual_deviation=deviation, **paid)


def coefficient_names(space: Space) -> Iterator[str]:
    for name, block in space.blocks.items():
        if block.symmetric:
            raise TemplateError(f"coefficients: the variable {name!r} is a symmetric matrix; declare plain variables.")
        for place in np.ndindex(block.variable.shape[::-1]):
            yield name + (f"[{', '.join(map(str, place[::-1]))}]" if place else "")
