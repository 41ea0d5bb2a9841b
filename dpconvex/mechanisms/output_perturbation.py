"""Output perturbation: add noise to the exact minimiser; minimisers of neighbours are at most ``G_adj/mu`` apart."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpconvex.accounting.events import Gaussian, Pure
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.expressions.rewriting import smoothed
from dpconvex.mechanisms import added_quadratic as quadratic, base
from dpconvex.model.privacy import Privacy
from dpconvex.noise.samplers import SPHERICAL, Spherical
from dpconvex.numerics import NORM_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.util.arguments import check_fields, one_of
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once

# Kinks are smoothed over this fraction of the noise's movement of their argument.
ROUNDED = 0.1
SOURCE = "Chaudhuri, Monteleoni & Sarwate 2011, corollary 8; docs/theory.md"


@dataclass(frozen=True)
class OutputPerturbation(base.ForUnits):
    """Add noise to the minimiser, with a choice of noise; the loss may be nonsmooth.

    Parameters
    ----------
    noise : {"gamma", "gaussian"}
        Gamma-distributed norm and uniform direction for pure epsilon, or Gaussian noise for (epsilon, delta).
    added : float or None
        Modulus of a quadratic to add to the objective, in sum form; None picks the one with the smallest predicted excess
        risk, which uses public numbers only.
    """

    noise: str = "gamma"
    added: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(SPHERICAL), added=quadratic.ADDED)

    @property
    def name(self) -> str:
        return f"output perturbation with {self.law.name} noise"

    @property
    def law(self) -> Spherical:
        return SPHERICAL[self.noise]

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        if self.noise == "gaussian":
            base.check_delta(privacy, "Gaussian noise on the output", "use noise='gamma'")
        quadratic.check_strong_convexity(analysis, self.added)
        p, regular, added = analysis.form.space.dim, size * analysis.modulus, self.added
        risk = partial(self._risk, analysis, privacy, size)
        if added is None:
            noise = math.sqrt(self._square(analysis, privacy, 1.0))
            guess = quadratic.minimiser_radius(analysis, size, noise, p)
            own = quadratic.least_added(analysis, size)
            added = own + quadratic.best_added(risk, regular + own, guess)
        radius, mu = quadratic.reference_radius(analysis), regular + added
        width, smooth = 0.0, analysis
        if analysis.kink is not None:
            width = self._width(analysis, privacy, mu)
            smooth = smooth_analysis(analysis, width)
        sensitivity = smooth.sensitivity(privacy.adjacency, privacy.person)
        reach = sensitivity / mu * (1 + NORM_SLACK)
        scale = self.law.calibrate(privacy.epsilon, privacy.delta, reach)
        return Certificate(
            privacy=privacy,
            mechanism=self.name,
            size=size,
            gradient_bound=smooth.gradient_bound,
            sensitivity=sensitivity,
            strong_convexity=mu,
            added=added,
            hessian_bound=smooth.hessian_bound,
            noise_epsilon=privacy.epsilon,
            noise_dimension=p,
            noise_scale=scale,
            derivation=derive(smooth, privacy, mu, width),
            assumptions=(base.DRAWN, base.UNSEEN, *base.declared_constants(analysis)),
            advice=advise(analysis, width),
            perturbed="output",
            noise=self.noise,
            mean_noise=self.law.mean(p, scale),
            predicted_risk=added * radius**2 / 2 + risk(mu),
            settings={"smoothing": width} if width else {},
            event=Gaussian(reach / scale * (1 + NORM_SLACK)) if self.noise == "gaussian" else Pure(privacy.epsilon),
        )

    def run(self, analysis: Analysis, certificate: Certificate, engine: base.Engine, rng: np.random.Generator) -> Array:
        mu, tolerance = certificate.strong_convexity, certificate.tolerance
        theta = engine.minimise(mu, tolerance, added=certificate.added, smoothing=certificate.smoothing)
        return theta + self.law.draw(certificate.noise_dimension, certificate.noise_scale, rng)

    def _square(self, analysis: Analysis, privacy: Privacy, mu: float) -> float:
        reach = analysis.sensitivity(privacy.adjacency, privacy.person) / mu
        return self.law.square(analysis.form.space.dim, self.law.calibrate(privacy.epsilon, privacy.delta, reach))

    def _risk(self, analysis: Analysis, privacy: Privacy, size: int, mu: float) -> float:
        """Return the predicted increase of the objective by rotation-invariant noise, from public numbers."""
        square, p = self._square(analysis, privacy, mu), analysis.form.space.dim
        rank = max(min(max(loss.dimension for loss in analysis.losses), p), 1)
        slope = analysis.gradient_bound * math.sqrt(square * rank / p)
        bent = math.inf
        if analysis.kink is None:
            bent = max(loss.curvature.trace for loss in analysis.losses) / p * square / 2
        return size * min(slope, bent) + mu * square / 2

    def _width(self, analysis: Analysis, privacy: Privacy, mu: float) -> float:
        """Return the width over which kinks are smoothed: far below the noise, and below the diameter of K."""
        rows = np.concatenate([row for row in analysis.gram.rows if len(row)])
        longest = math.sqrt(float(analysis.gram.squared_norms(np.unique(rows, axis=0)).max()))
        each = math.sqrt(self._square(analysis, privacy, mu) / analysis.form.space.dim)
        return ROUNDED * longest * min(each, analysis.form.feasible.norm_bound)


@once
def smooth_analysis(analysis: Analysis, width: float) -> Analysis:
    """Return the analysis of the template with smoothed kinks."""
    template = analysis.form.template
    found = Analysis(LossForm(template.with_parts(losses=tuple(smoothed(loss, width) for loss in template.losses))))
    if found.kink is not None:
        why, remedy = "smoothing leaves a nonsmooth point", "give a delta: adaptive steps need no smoothness"
        raise NotPrivate(f"{why}: {found.kink.reason}", found.kink.expression, remedy)
    return found


def derive(analysis: Analysis, privacy: Privacy, mu: float, width: float) -> Derivation:
    kinks = "Nesterov 2005; gradients are convex combinations of the kinked loss's"
    smoothing = (Derivation("smoothing of nonsmooth points", "", {"width": width}, kinks),) if width else ()
    apart = {"G_adj / mu": analysis.sensitivity(privacy.adjacency, privacy.person) / mu}
    answers = Derivation("distance of two exact answers", "", apart, "strong convexity and the optimality of both")
    children = (*base.record_steps(analysis, privacy), *smoothing, answers, *base.public_steps(analysis))
    return Derivation("output perturbation", "", privacy.claims, SOURCE, children)


def advise(analysis: Analysis, width: float) -> tuple[str, ...]:
    if analysis.kink is None:
        return ()
    off = f"it is smoothed over {2 * width:.3g} of its argument, much less than the noise moves that"
    return (f"The loss is nonsmooth ({analysis.kink.reason}); {off}.",)
