"""How much a release can cost in accuracy: bounds on its excess risk, proved in docs/theory.md, section 14.

It is by how much the declared objective, mean loss plus regularizer, is larger at the released parameters than at a comparator:
the exact minimiser, or any other point of K.  The bounds hold for every data set of the domain, and count all that a fit adds.
"""

import math
from dataclasses import dataclass, replace

from dpconvex.certificates.certificate import Certificate, ObjectiveCertificate, OutputCertificate
from dpconvex.certificates.loaded_event import TAIL
from dpconvex.certificates.text import RUNS, number
from dpconvex.errors import TemplateError
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.rewriting import terms
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.objective_perturbation import LAWS
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.rounding import answer_radius
from dpconvex.model.template import Template
from dpconvex.noise.samplers import SPHERICAL
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.regularizer import largest_row_sum, slope_of, walked
from dpconvex.sets.quadratics import quadratic
from dpconvex.util.plain_data import is_real

# The part of the probability that is kept for the residual noise.
COVER_SHARE = 1e-3
# What is computed in floating point is raised by this.
SLACK = 1 + 1e-9


@dataclass(frozen=True)
class RiskBound:
    """A bound on the excess risk of a release, in units of the mean loss; it prints.

    Attributes
    ----------
    bound, probability : float
        The bound fails with at most this probability over the noise of one release, whatever the data of at most `size` records.
    expected : float
        Bound on the mean over the noise, but for the event, of probability at most 2^-100, that it exceeds its cap.
    comparator_norm : float
        The norm up to which comparators are allowed; by default, a public bound on that of the exact minimiser.
    noise_norm : float
        The norm ||b|| of the noise is at most this, but for the probability, in the units of the certificate's `noise_scale`.
    parts : dict of str to float
        What `bound` is made of.
    objective : str
        Whose risk it is.
    """

    mechanism: str
    size: int
    probability: float
    bound: float
    expected: float
    comparator_norm: float
    noise_norm: float
    parts: dict[str, float]
    objective: str = "mean loss plus regularizer"

    def __str__(self) -> str:
        lines = [
            f"Excess risk ({self.objective}) of {self.mechanism}, {self.size} records:",
            f"  at most {number(self.bound)} with probability {number(1 - self.probability)}, at most "
            f"{number(self.expected)} on average,",
            f"  against comparators of norm at most {number(self.comparator_norm)}.",
        ]
        wide = max(len(name) for name in self.parts)
        return "\n".join([*lines, *(f"    {name:<{wide}}  {number(value)}" for name, value in self.parts.items())])


# A bound on the excess in sum form: on average, and with high probability by its parts.
Excess = tuple[float, dict[str, float]]
# How far an answer lies from what a theorem speaks of: with high probability, and in mean square.
Moved = tuple[float, float]


def risk_bound(
    template: Template, certificate: Certificate, probability: float = 0.05, comparator_norm: float | None = None
) -> RiskBound:
    """Bound the excess risk of a release under a certificate, before any data are read.

    Parameters
    ----------
    template : Template
    certificate : Certificate
        Of this template, from `verify`.
    probability : float
        The bound may fail with this probability.
    comparator_norm : float, optional
        Norm of the parameters to be compared with, by default of the exact minimiser.  It matters where a quadratic was added.
    """
    if not isinstance(certificate, Certificate):
        raise TemplateError(f"risk_bound: certificate must be a Certificate, not {type(certificate).__name__}.")
    if RUNS in certificate.settings:
        raise TemplateError(
            "risk_bound: the certificate is of the best of several runs, and which run that is depends on their noise; the "
            "bound is about a single fit. Verify one by itself."
        )
    if not (is_real(probability) and 1e-20 <= probability < 1):
        raise TemplateError(f"risk_bound: probability must lie in [1e-20, 1), not {probability!r}.")
    if comparator_norm is not None and not (is_real(comparator_norm) and 0 <= comparator_norm < math.inf):
        raise TemplateError(f"risk_bound: comparator_norm must be finite and not negative, not {comparator_norm!r}.")
    if not isinstance(certificate, ObjectiveCertificate | OutputCertificate):
        raise TemplateError(
            "risk_bound: what noise on an objective or on a minimiser costs is bounded, and not that of gradients or of released "
            "statistics; verify with `whitening=False`, or name a mechanism, for a minimiser."
        )
    analysis = analyse(template)
    objective, width = "mean loss plus regularizer", certificate.smoothing
    if width:
        analysis = smooth_analysis(analysis, width)
        objective += f", with kinks rounded off over {number(2 * width)}"
    if not math.isclose(certificate.gradient_bound, analysis.gradient_bound, rel_tol=1e-6):
        raise TemplateError("risk_bound: the certificate is not of this template: their gradient bounds differ.")
    radius = minimiser_radius(analysis, certificate) if comparator_norm is None else comparator_norm
    radius = min(radius, analysis.form.feasible.norm_bound)
    if not math.isfinite(radius) and certificate.added:
        raise TemplateError(
            "risk_bound: no bound on the norm of the minimiser is known, and the risk grows with it; give the norm of the "
            "parameters to compare with as `comparator_norm`."
        )
    left = probability * (1 - COVER_SHARE) - TAIL
    length = LAWS[certificate.noise].bound(certificate, left)
    bound = output_excess if isinstance(certificate, OutputCertificate) else objective_excess
    covered = displacement(certificate, probability * COVER_SHARE)
    expected, sums = bound(analysis, certificate, length, radius, covered)
    parts = {name: value * SLACK / certificate.size for name, value in sums.items()}
    total, mean = sum(parts.values()), expected * SLACK / certificate.size
    if not math.isfinite(total):
        raise TemplateError(
            "risk_bound: no bound is found: the regularizer has terms whose slopes are unbounded where answers can be."
        )
    named = certificate.mechanism, certificate.size, probability
    return RiskBound(*named, total, mean, radius, length, parts, objective)


def objective_excess(
    analysis: Analysis, certificate: Certificate, length: float, radius: float, covered: Moved
) -> Excess:
    """Bound the excess of objective perturbation, ``||b + Delta theta_0||^2 / (2 (mu + Delta))``, and of the residual noise."""
    mu, added = certificate.strong_convexity, certificate.added
    reach, square = added * radius if added else 0.0, mean_square(certificate)
    exact = (length + reach) ** 2 / (2 * (mu + added))
    noise = min(length**2 / (2 * mu), exact)
    where = answer_radius(analysis, certificate, LAWS[certificate.noise].bound(certificate, TAIL))
    # In all of space the slope of the objective at the answer is the noise, and what the added quadratic pulls with.
    pulls = (length + added * where, math.sqrt(square) + added * where)
    cover, usual = (rise(analysis, certificate, where, d, pull) for d, pull in zip(covered, pulls, strict=True))
    parts = {"noise": noise, "added quadratic": exact - noise, "cover": cover}
    return (square + reach**2) / (2 * (mu + added)) + usual, parts


def output_excess(analysis: Analysis, certificate: Certificate, length: float, radius: float, covered: Moved) -> Excess:
    """Bound the excess of output perturbation: the answer lies ``||b||`` and a little from what was minimised exactly."""
    added = certificate.added
    where = answer_radius(analysis, certificate, 0.0)
    bias = (added * radius) ** 2 / (2 * (certificate.strong_convexity + added)) if added else 0.0
    likely, usual = (
        rise(analysis, certificate, where, of + more, added * where)
        for of, more in zip((length, math.sqrt(mean_square(certificate))), covered, strict=True)
    )
    return bias + usual, {"noise and cover": likely, "added quadratic": bias}


def rise(analysis: Analysis, certificate: Certificate, radius: float, distance: float, pull: float) -> float:
    """Bound how much the objective rises from a point of K of norm at most `radius` to one of K at a distance.

    The slopes of losses and regularizer bound it; where the point minimises in all of space, so does its slope there, at most
    `pull`, with the curvature.
    """
    n, regularizer, form = certificate.size, analysis.form.template.regularizer, analysis.form
    stiffness, kinked = bregman_bounds(regularizer, form)
    bent, gradient = n * stiffness * distance**2 / 2, analysis.gradient_bound
    anyhow = n * (gradient + slope_of(regularizer, form, radius) + 2 * kinked) * distance + bent
    if not form.feasible.is_space:
        return anyhow
    bend = certificate.hessian_bound if analysis.kink is None else math.inf
    losses = n * min(bend * distance / 2, 2 * gradient)
    return min(anyhow, (pull + losses + 2 * n * kinked) * distance + bent)


def bregman_bounds(expression: Expression, form: LossForm) -> tuple[float, float]:
    """Bound how far a convex public expression rises above its tangents: by ``stiffness v^2/2 + 2 slope v`` at a distance v."""
    stiffness, slope = 0.0, 0.0
    for factor, term in terms(expression):
        closed, weight = quadratic(term, form.space), abs(float(factor))
        if closed is not None:
            stiffness += weight * largest_row_sum(closed.hessian)
        elif term.variables:
            slope += weight * walked(term, form)
    return stiffness, slope


def minimiser_radius(analysis: Analysis, certificate: Certificate) -> float:
    """Bound the norm of the exact minimiser of the declared objective over all data; infinite if nothing bounds it."""
    regular = certificate.size * analysis.modulus
    if regular <= 0:
        return analysis.form.feasible.norm_bound
    return answer_radius(analysis, replace(certificate, strong_convexity=regular, added=0.0), 0.0)


def mean_square(certificate: Certificate) -> float:
    law = SPHERICAL.get(certificate.noise)
    p, scale = certificate.noise_dimension, certificate.noise_scale
    return certificate.expected_noise**2 if law is None else law.square(p, scale)


def displacement(certificate: Certificate, probability: float) -> Moved:
    """Return how far the residual noise moves an answer, what a solver left included."""
    cover = certificate.cover
    assert cover is not None
    still = cover.distance + math.sqrt(cover.dimension) * cover.step / 2
    # Its norm by that of each coordinate; the discrete Gaussian law is sub-Gaussian.
    logarithm = math.log(2 * cover.dimension / probability)
    each = cover.scale * (math.sqrt(2 * logarithm) if cover.is_gaussian else logarithm)
    return still + math.sqrt(cover.dimension) * cover.step * each, still + cover.size
