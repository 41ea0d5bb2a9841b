"""Distributions of the noise b of objective perturbation: calibration to a template and a guarantee, and drawing."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq

from dpconvex.accounting.events import Event, Hull, Perturbation, Pure
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.base import check_delta
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import smallest_scale
from dpconvex.noise.samplers import SPHERICAL, Spherical, in_subspace
from dpconvex.numerics import SUM_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.neighbour_differences import all_differences, person_differences
from dpconvex.util.arrays import Array

# Relative accuracies: of the calibrated beta, which costs at most epsilon; and of predictions.
ACCURATE, ROUGH = 1e-12, 1e-4


@dataclass(frozen=True)
class NoiseCalibration:
    """The calibrated noise of a guarantee."""

    scale: float  # 1/beta or sigma
    jacobian: float  # The part of epsilon that pays for curvature
    how: str  # The name of the bound that was used
    square: float  # Mean square of the norm of the noise, and its mean
    mean: float
    event: Event


class NoiseDistribution:
    """Base of noise on the sensitive subspace, for a template and a guarantee."""

    norm: ClassVar[Spherical]

    def __init__(self, analysis: Analysis, privacy: Privacy) -> None:
        self.analysis, self.privacy = analysis, privacy
        self.sensitivity = analysis.sensitivity(privacy.adjacency, privacy.person)  # in the norm of the distribution
        self.p = analysis.form.noise_dimension
        self.settings: dict[str, float] = {}

    @classmethod
    def draw(cls, analysis: Analysis, scale: float, rng: np.random.Generator) -> Array:
        return in_subspace(analysis.form.basis, cls.norm.draw(analysis.form.noise_dimension, scale, rng))


class GammaLaw(NoiseDistribution):
    """Gamma noise, with density proportional to ``exp(-beta ||b||)``."""

    norm, how = SPHERICAL["gamma"], ""

    def __init__(self, analysis: Analysis, privacy: Privacy) -> None:
        super().__init__(analysis, privacy)
        self.unit = float(self.p * (self.p + 1)), float(self.p)  # the mean square and the mean of the norm for beta = 1

    def cost(self, beta: float, mu: float) -> tuple[float, str]:
        """Bound epsilon for an inverse scale, jointly for gradient and curvature if that is known."""
        return self.analysis.perturbation_cost(beta, mu, self.privacy.adjacency, self.privacy.person)

    def square(self, mu: float) -> float:
        """Return the predicted mean square, with separate costs of gradient and curvature."""
        left = self.privacy.epsilon - self.analysis.log_det(mu, self.privacy.person)[0]
        return self.unit[0] * (self.sensitivity / left) ** 2 if left > 0 else math.inf

    def calibrate(self, mu: float) -> NoiseCalibration:

        def excess(beta: float) -> float:
            return self.cost(beta, mu)[0] - epsilon

        epsilon = self.privacy.epsilon
        found = most = epsilon / self.sensitivity
        if excess(most) > 0:
            if excess(0.0) >= 0:
                raise too_curved(self.analysis, epsilon, self.cost(0.0, mu)[0])
            found = float(brentq(excess, 0.0, most, xtol=ACCURATE * most, rtol=ACCURATE))
            step = ACCURATE * most
            while excess(found) > 0:
                found, step = max(found - step, 0.0), 2 * step
        jacobian, how = max(epsilon - found * self.sensitivity, 0.0), self.cost(found, mu)[1] + self.how
        norms = self.unit[0] / found**2, self.unit[1] / found
        return NoiseCalibration(1 / found, jacobian, how, *norms, Pure(epsilon))


class GaussianLaw(NoiseDistribution):
    """Independent normal coordinates, for (epsilon, delta)."""

    norm = SPHERICAL["gaussian"]

    def __init__(self, analysis: Analysis, privacy: Privacy) -> None:
        check_delta(privacy, "Gaussian noise on the objective", "use noise='gamma'")
        super().__init__(analysis, privacy)

    def square(self, mu: float) -> float:
        """Return the predicted mean square of the norm."""
        sigma = self._sigma(mu, ROUGH)
        return math.inf if sigma is None else self.norm.square(self.p, sigma)

    def calibrate(self, mu: float) -> NoiseCalibration:
        sigma = self._sigma(mu, 1e-10)
        if sigma is None:
            raise too_curved(self.analysis, self.privacy.epsilon, self.analysis.log_det(mu, self.privacy.person)[0])
        hulls, _, how, jacobian = self._worst(mu, sigma)
        norms = self.norm.square(self.p, sigma), self.norm.mean(self.p, sigma)
        return NoiseCalibration(sigma, jacobian, how, *norms, Perturbation(sigma, hulls))

    def _sigma(self, mu: float, accuracy: float) -> float | None:
        delta = self.privacy.delta
        start = self.sensitivity * math.sqrt(2 * math.log(2 / delta)) / min(self.privacy.epsilon, 4.0)
        return smallest_scale(lambda sigma: self._worst(mu, sigma)[1], delta, start, accuracy)

    def _worst(self, mu: float, sigma: float) -> tuple[tuple[Hull, ...], float, str, float]:
        """Return neighbours' differences, the largest delta of one, the bound that gave it, and its epsilon for curvature."""
        hulls, largest, paid, how = hulls_of(self.analysis, self.privacy, mu, sigma), 0.0, 0.0, ""
        for hull in hulls:
            found = hull.delta(self.privacy.epsilon)
            if found[0] >= largest:
                (largest, how), paid = found, hull.curvature
        rows = self.privacy.person.rows
        if rows > 1 == self.privacy.person.weight / rows:  # or group privacy: each row has its part of epsilon
            part = self.privacy.epsilon / rows
            kinds = (replace(self.privacy, most=1, adjacency=a) for a in {"add-remove", self.privacy.adjacency})
            single = max(h.delta(part)[0] for kind in kinds for h in hulls_of(self.analysis, kind, mu, sigma))
            chained = math.fsum(math.exp(min(k * part, 700.0)) for k in range(rows)) * single * (1 + SUM_SLACK)
            if chained < largest:
                largest, how, paid = chained, f"{rows} rows, one after the other", rows * self.analysis.log_det(mu)[0]
        return hulls, largest, how, paid


def too_curved(analysis: Analysis, epsilon: float, curvature: float) -> NotPrivate:
    why = f"curvature alone costs {curvature:.4g} of epsilon, but only {epsilon:.4g} is available"
    remedy = "raise the regularization, or leave `added` out: it is then chosen automatically"
    return NotPrivate(why, analysis.form.template.regularizer, remedy)


def hulls_of(analysis: Analysis, privacy: Privacy, mu: float, sigma: float) -> tuple[Hull, ...]:
    """Return the differences between neighbours in units of sigma, with the curvature of the first record."""
    adjacency, person, hulls = privacy.adjacency, privacy.person, list[Hull]()
    several, curvatures = person.rows > 1, analysis.log_dets(mu)
    whole = analysis.log_det(mu, person)[0] if several else 0.0
    for item in person_differences(analysis, adjacency, person) if several else all_differences(analysis, adjacency):
        curvature = whole if several else float(curvatures[list(item.firsts)].max())
        # The lengths of vertices, and the number of each, if they are known
        known = (item.vertices[0] / sigma, item.vertices[1]) if item.vertices else ()
        hull = Hull(item.dimension, item.length / sigma, curvature, *(tuple(part.tolist()) for part in known))
        if item.slopes is not None and item.behind is not None:
            low, high, bend = item.slopes.low / sigma, item.slopes.high / sigma, item.slopes.logistic / mu
            more = 1 + SUM_SLACK
            slopes = max(high, 0.0) * more, max(-low, 0.0) * more, max(low, -high, 0.0) / more, bend
            hull = replace(hull, slopes=slopes, behind=tuple((item.behind / sigma).tolist()))
        hulls.append(hull)
    return tuple(hulls)
