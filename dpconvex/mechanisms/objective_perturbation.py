"""Objective perturbation: minimise the objective plus a random linear term (docs/theory.md, section 7)."""

import math
from dataclasses import dataclass

import numpy as np

from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms import added_quadratic as quadratic, base
from dpconvex.mechanisms.matrix_noise import MatrixLaw, noise_bound, rounding_bound, shape_of
from dpconvex.mechanisms.noise_laws import GammaLaw, GaussianLaw, NoiseCalibration
from dpconvex.model.privacy import Privacy
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arguments import check_fields, one_of
from dpconvex.util.arrays import Array

LAWS: dict[str, type[GammaLaw | GaussianLaw]] = {"gamma": GammaLaw, "gaussian": GaussianLaw, "matrix": MatrixLaw}
SOURCE = (
    "after Chaudhuri, Monteleoni & Sarwate 2011, theorem 9, and Kifer, Smith & Thakurta 2012; docs/theory.md, section 7"
)
# At FREE times the largest curvature over epsilon, curvature is free; from this share of epsilon on it is mentioned.
FREE, REMARKABLE = 1e6, 0.25
ASSUMPTIONS = (
    "The computed answer lies within the tolerance of the exact minimiser.  Every fit checks this by a bound on the rounding of "
    "its gradient.  Only the part of a single record in this bound is assumed (docs/release.md).",
    base.DRAWN,
    base.UNSEEN,
)


@dataclass(frozen=True)
class ObjectivePerturbation(base.ForUnits):
    """Perturb the objective by a random linear term, with a choice of noise.

    Parameters
    ----------
    noise : {"gamma", "gaussian", "matrix"}
        Gamma-distributed norm and uniform direction, for pure epsilon; Gaussian noise, for (epsilon, delta); or matrix-shaped
        noise, for pure epsilon where every gradient is a matrix of rank one (softmax, large-margin Gaussians).
    added : float or None
        Modulus of a quadratic to add to the objective, in sum form; None picks one from public numbers only, by
        the predicted excess risk (docs/choosing.md).
    """

    noise: str = "gamma"
    added: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(LAWS), added=quadratic.ADDED)

    @property
    def name(self) -> str:
        named = {"gamma": "Gamma", "gaussian": "Gaussian", "matrix": "matrix-shaped"}
        return f"objective perturbation with {named[self.noise]} noise"

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        kink = analysis.kink
        if kink is not None:
            why = f"objective perturbation needs a differentiable loss: {kink.reason}"
            raise NotPrivate(why, kink.expression, kink.remedy)
        quadratic.check_strong_convexity(analysis, self.added)
        law = LAWS[self.noise](analysis, privacy)
        added = self.added if self.added is not None else self._choose(law, analysis, privacy, size)
        mu = analysis.strong_convexity(size, added)
        found = law.calibrate(mu)
        radius = quadratic.reference_radius(analysis)
        steps = proof_steps(analysis, privacy, mu, found)
        # With a delta, curvature may cost more than epsilon: if slopes depend on it, both are bounded together.
        curved = min(found.jacobian, privacy.epsilon)
        return Certificate(
            privacy=privacy,
            mechanism=self.name,
            size=size,
            gradient_bound=analysis.gradient_bound,
            sensitivity=analysis.sensitivity(privacy.adjacency, privacy.person),
            strong_convexity=mu,
            added=added,
            hessian_bound=analysis.hessian_bound,
            jacobian_epsilon=curved,
            noise_epsilon=privacy.epsilon - curved,
            noise_dimension=analysis.form.noise_dimension,
            noise_scale=found.scale,
            derivation=Derivation("objective perturbation", "", privacy.claims, SOURCE, steps),
            assumptions=ASSUMPTIONS + base.declared_constants(analysis),
            advice=(advise(curved / privacy.epsilon, mu, law.sensitivity),),
            noise=self.noise,
            mean_noise=None if self.noise == "gamma" else found.mean,
            predicted_risk=added * radius**2 / 2 + found.square / (2 * mu),
            settings=law.settings,
            event=found.event,
        )

    def run(self, analysis: Analysis, certificate: Certificate, engine: base.Engine, rng: np.random.Generator) -> Array:
        noise, mu = LAWS[self.noise].draw(analysis, certificate.noise_scale, rng), certificate.strong_convexity
        return engine.minimise(mu, certificate.tolerance, linear=noise, added=certificate.added)

    def noise_bound(self, certificate: Certificate, probability: float) -> float:
        if self.noise != "matrix":
            return super().noise_bound(certificate, probability)
        # The tail is heavy; half of the probability is for the rounding.
        return noise_bound(*shape_of(certificate), certificate.noise_scale, probability / 2)

    def noise_rounding(self, certificate: Certificate, probability: float) -> float:
        """Bound the rounding error of the drawn noise beyond the bound by its norm (`residual_noise`)."""
        matrix = self.noise == "matrix"
        return rounding_bound(*shape_of(certificate), certificate.noise_scale, probability / 2) if matrix else 0.0

    def _choose(self, law: GammaLaw | GaussianLaw, analysis: Analysis, privacy: Privacy, size: int) -> float:
        """Return the added modulus with the least predicted risk (docs/theory.md), from public numbers only."""
        own, epsilon, weight = quadratic.least_added(analysis, size), privacy.epsilon, privacy.person.weight
        regular = size * analysis.modulus + own

        def cost(mu: float) -> float:
            return analysis.log_det(max(mu, regular), privacy.person)[0]

        def risk(mu: float) -> float:
            return law.square(max(mu, regular)) / (2 * mu)

        # Guess the minimiser's norm under the noise that applies when curvature is free.
        free = analysis.strong_convexity(size, FREE * max(weight * analysis.hessian_bound, regular) / epsilon)
        radius = quadratic.minimiser_radius(analysis, size, math.sqrt(law.square(free)), law.p)
        joint = isinstance(law, GaussianLaw)  # curvature may be free then, whatever its own supremum is
        return own + quadratic.best_added(risk, regular, radius, None if joint else cost, epsilon)


def proof_steps(analysis: Analysis, privacy: Privacy, mu: float, found: NoiseCalibration) -> tuple[Derivation, ...]:
    gradient, sensitivity = base.record_steps(analysis, privacy)
    worst = analysis.log_det(mu)[1].derivation
    below = (worst,) if worst is not gradient.children[0] else ()
    values, how = {"J": found.jacobian, "at mu": mu}, f"sup log det(I + H/mu); {found.how}"
    whose = "one record" if privacy.most == 1 else f"the {privacy.most} records of one {privacy.unit}"
    curvature = Derivation(f"curvature of {whose}", "", values, how, below)
    return gradient, sensitivity, curvature, *base.public_steps(analysis)


def advise(share: float, mu: float, sensitivity: float) -> str:
    """Return advice on the largest part of the cost and how to lower it; `share` of epsilon pays for curvature."""
    if share < REMARKABLE:
        cheapest = "is free" if share < 1e-9 else f"costs {100 * share:.0f} %"
        return (
            f"Of the mechanism's epsilon {100 * (1 - share):.0f} % pays for the noise, and curvature {cheapest}. A smaller bound "
            f"on records, more records or a larger epsilon lowers the noise's effect (it grows with G_adj = {sensitivity:.4g})."
        )
    return (
        f"Of the mechanism's epsilon {100 * share:.0f} % pays for curvature: a strong convexity above {mu:.4g} lowers the noise "
        f"scale, by up to {100 * share:.0f} %."
    )
