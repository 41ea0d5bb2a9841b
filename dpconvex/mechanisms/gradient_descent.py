"""Noisy projected gradient descent: every gradient is perturbed, and the average of the iterates is released.

From theta_0 in K, ``theta_{t+1} = P_K(theta_t - eta (grad F(theta_t) + w_t))`` with Gaussian w_t of deviation sigma on the
sensitive subspace, T steps.  The data enter through the gradients alone: T adaptive Gaussian releases of sensitivity G_adj,
which together are exactly as private as one of sensitivity ``sqrt(T) G_adj`` (Dong, Roth & Su 2022, "Gaussian differential
privacy", corollary 3.3).  Losses need not be differentiable, and nothing has to be strongly convex.

With R at least the distance from theta_0 to the minimiser, ``B^2 >= E ||grad F + w||^2`` and ``eta = R / (B sqrt(T))``, the
expected excess risk of the average is at most ``R B / sqrt(T)`` (docs/theory.md).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.accounting.events import Gaussian
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.regularizer_slopes import regularizer_slope
from dpconvex.core.arguments import is_whole
from dpconvex.core.derivation import Derivation
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.added_quadratic import check_options
from dpconvex.mechanisms.base import Engine
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.clipped_descent import Options, certify_clipped, hide_rounding
from dpconvex.mechanisms.proof_steps import (
    DRAWN,
    check_delta,
    declared_constants,
    louder,
    public_steps,
    record_steps,
    sensitivity_of,
)
from dpconvex.noise.gaussian_profiles import gaussian_sigma
from dpconvex.noise.samplers import in_subspace
from dpconvex.noise.spherical import SPHERICAL

Array = NDArray[np.float64]

# A set of one point needs no steps, but a number that can be divided by.
SMALLEST_RADIUS = 1e-100

GAUSSIAN = SPHERICAL["gaussian"]
# Numbers of steps that are chosen automatically.
FEWEST, MOST = 10, 1000
# Squares of norms near the clip neither underflow nor overflow.
LARGEST_CLIP = 1e100
# What is usual with clipped gradients.
CLIPPED_STEPS, MOMENTUM = 100, 0.8
SOURCE = "Dong, Roth & Su 2022, corollary 3.3; Balle & Wang 2018, theorem 8; docs/theory.md"
ASSUMPTIONS = (
    DRAWN,
    "Gradients are computed in floating point; a bound on what rounding does to them is part of the sensitivity, the part of one "
    "record in it is assumed (docs/release.md).",
    "Nobody observes how long a fit takes.",
)


@dataclass(frozen=True)
class NoisyGradientDescent:
    """Projected gradient descent with Gaussian noise; releases the average iterate, or with clipped gradients the last one.

    Needs a promise with delta, and a projection on the set K.  Without a clip, K has to be bounded, and the loss Lipschitz on it;
    it may have kinks, and the regularizer may be none.

    With a clip, every record's gradient is scaled down to that norm, and nothing else is asked of the loss: no convexity, no
    bound on its slope or on K.  Nothing is then claimed about accuracy.

    Parameters
    ----------
    steps : int or None
        Number T of steps.  None picks the number from which on more steps would not help much, at most 1000.
    radius : float or None
        A public bound on the distance from the start (the point of K next to 0) to the minimiser; None takes it from K.  It
        only sets the step size: every choice is private.
    step_size : float or None
        In sum form; None is ``R / (B sqrt(T))``, and with a clip a rule from public numbers (docs/theory.md).
    clip : float or None
        Largest norm of a record's gradient (loss per unit of the parameters).  A quarter of the gradient bound is a good choice;
        more than all of it changes nothing.
    sampling : float or None
        With a clip, under add-remove: the probability with which each record takes part in each step, independently.
        Privacy-loss distributions account for it (``pip install dpconvex[accounting]``).  None takes all records.
    momentum : float or None
        With a clip: the weight of earlier steps in the next one, in [0, 1).  None is 0.8.
    average : float or None
        With a clip: the fraction of the iterates, from the last one back, whose mean is released; None and 0 are the last one.
    directions : float or None
        With a clip: how many directions the records share evenly, if that is public; it allows for longer steps.  Private
        whitening finds it out.

    Raises
    ------
    TemplateError
        If an option is out of range, or needs a clip.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("softmax_regression", features=2, classes=3, regularization=0)
    >>> privacy = dp.Privacy(1.0, 1e-5, "add-remove")
    >>> certificate = dp.verify(template, privacy, 1000, dp.NoisyGradientDescent(clip=0.3))
    >>> round(certificate.sensitivity, 3)
    0.3
    """

    steps: int | None = None
    radius: float | None = None
    step_size: float | None = None
    clip: float | None = None
    sampling: float | None = None
    momentum: float | None = None
    average: float | None = None
    directions: float | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and not is_whole(self.steps, 1):
            raise TemplateError(f"NoisyGradientDescent: steps must be a positive integer, not {self.steps!r}.")
        positive = ("radius", "step_size", "clip", "sampling", "directions")
        check_options("NoisyGradientDescent", self, ("momentum", "average"), positive)
        if self.clip is not None and not 1 / LARGEST_CLIP <= self.clip <= LARGEST_CLIP:
            raise TemplateError(
                f"NoisyGradientDescent: clip must be between {1 / LARGEST_CLIP:g} and {LARGEST_CLIP:g}, so that the squares of "
                f"clipped gradients are numbers, not {self.clip!r}; choose another unit for the loss."
            )
        for name in ("sampling", "average", "momentum"):
            value = getattr(self, name)
            if value is not None and not (value < 1 or (value == 1 and name == "average")):
                raise TemplateError(f"NoisyGradientDescent: {name} must be below 1, not {value!r}.")
        for name in ("sampling", "momentum", "average", "directions"):
            if self.clip is None and getattr(self, name) is not None:
                raise TemplateError(
                    f"NoisyGradientDescent: {name} is an option for clipped gradients; give a `clip` too."
                )

    @property
    def bounds_gradients(self) -> bool:
        """Whether gradients are clipped, so that no bound on those of the loss is needed."""
        return self.clip is not None

    @property
    def name(self) -> str:
        """What certificates call the mechanism."""
        return "noisy gradient descent"

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Check the conditions and calibrate the noise of all steps together."""
        check_conditions(analysis, privacy, self.clip is not None)
        if self.clip is not None:
            return certify_clipped(self._options(self.clip), analysis, privacy, size)
        sensitivity = sensitivity_of(analysis, privacy)
        p = analysis.form.noise_dimension
        once = gaussian_sigma(privacy.epsilon, privacy.delta, sensitivity)
        steepest = size * (analysis.gradient_bound + regularizer_slope(analysis))
        steps = self.steps if self.steps is not None else enough_steps(steepest, math.sqrt(p) * once)
        sigma = once * math.sqrt(steps) * (1 + 1e-12)
        radius = self.radius if self.radius is not None else max(analysis.form.feasible.norm_bound, SMALLEST_RADIUS)
        largest = math.hypot(steepest, math.sqrt(p) * sigma)
        if self.step_size is None and not math.isfinite(largest):
            raise TemplateError(
                "NoisyGradientDescent: no bound on the regularizer's gradient over K is known, so there is no step size; give "
                "one as `step_size`, in sum form."
            )
        step = self.step_size if self.step_size is not None else radius / (largest * math.sqrt(steps))
        risk = radius**2 / (2 * step * steps) + step * largest**2 / 2
        return Certificate(
            privacy=privacy,
            mechanism=self.name,
            size=size,
            gradient_bound=analysis.gradient_bound,
            sensitivity=sensitivity,
            hessian_bound=0.0 if analysis.kink is not None else analysis.hessian_bound,
            noise_epsilon=privacy.epsilon,
            noise_dimension=p,
            noise_scale=sigma,
            derivation=derive(analysis, privacy, sensitivity, steps, sigma),
            assumptions=ASSUMPTIONS + declared_constants(analysis),
            perturbed="gradients",
            noise="gaussian",
            mean_noise=GAUSSIAN.mean(p, sigma),
            predicted_risk=risk if math.isfinite(risk) else None,
            settings={"steps": float(steps), "step_size": float(step), "radius": float(radius)},
            event=Gaussian(math.sqrt(steps) * sensitivity / sigma * (1 + 1e-12)),
        )

    def _options(self, clip: float) -> Options:
        """Fill in what was not chosen."""
        steps = CLIPPED_STEPS if self.steps is None else int(self.steps)
        momentum = MOMENTUM if self.momentum is None else float(self.momentum)
        return Options(
            float(clip), steps, self.step_size, self.sampling, momentum, float(self.average or 0.0), self.directions
        )

    def hiding(self, analysis: Analysis, certificate: Certificate, records: float, tolerance: float) -> Certificate:
        """Return the certificate with noise that also hides what rounding does to sums of so many gradients, at points of K."""
        if "clip" in certificate.settings:
            return hide_rounding(analysis, certificate, records)
        bend = analysis.hessian_bound if analysis.kink is None and math.isfinite(analysis.hessian_bound) else 0.0
        radius, bound = analysis.form.feasible.norm_bound, analysis.gradient_bound
        rounding = analysis.form.lengths.gradient_error(records, bound, bend, radius, 0.0)
        reach, apart = certificate.sensitivity, sensitivity_of(analysis, certificate.privacy) + 2 * rounding
        found = louder(certificate, reach, max(apart - reach, 0.0), {"G_adj": apart})
        moved = certificate.settings["steps"] * certificate.settings["step_size"] * rounding
        return replace(found, sensitivity=max(apart, reach), tolerance=max(moved, 1e-200))

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        """Descend; return the mean of all iterates, or of clipped gradients that of the last ones; coordinates, shape (dim,)."""
        settings, basis, p = certificate.settings, analysis.form.basis, certificate.noise_dimension
        steps, step, clip = int(settings["steps"]), settings["step_size"], settings.get("clip")
        rate, momentum = settings.get("sampling", 1.0), settings.get("momentum", 0.0)
        kept = steps + 1 if clip is None else max(round(settings["average"] * steps), 1)
        theta = engine.project(np.zeros(analysis.form.space.dim))
        velocity, total = np.zeros_like(theta), theta.copy() if kept > steps else np.zeros_like(theta)
        for t in range(steps):
            if clip is None:
                gradient = engine.loss_gradient(theta)
            else:  # where none is longer than the clip, none is clipped
                chosen = rng.random(engine.records) < rate if rate < 1 else None
                longest = clip if certificate.gradient_bound >= clip else math.inf
                gradient = engine.clipped_gradient(theta, longest, chosen)
            released = gradient + in_subspace(basis, GAUSSIAN.draw(p, certificate.noise_scale, rng))
            velocity = momentum * velocity + (1 - momentum) * step * released
            theta = engine.project(theta - velocity - step * rate * engine.public_gradient(theta))
            if t >= steps - kept:
                total += theta
        return total / kept

    def noise_bound(self, certificate: Certificate, probability: float) -> float:
        """Return a bound on the norm of every step's noise that fails with at most the given probability."""
        each = probability / certificate.settings["steps"]
        return GAUSSIAN.quantile(certificate.noise_dimension, certificate.noise_scale, each)


def check_conditions(analysis: Analysis, privacy: Privacy, clipped: bool) -> None:
    """Refuse what noisy gradient descent cannot do."""
    feasible = analysis.form.feasible
    check_delta(privacy, "noisy gradient descent", "use ObjectivePerturbation or OutputPerturbation")
    if not feasible.bounded and not clipped:
        raise NotPrivate(
            "noisy gradient descent needs bounded parameters: its steps and its risk scale with their size",
            feasible.describe(),
            "add a constraint such as cp.norm(w) <= 10 for every variable w, or bounds; or clip gradients",
        )
    if feasible.obstacle is not None:
        raise NotPrivate(
            "noisy gradient descent needs a projection on the feasible set", feasible.describe(), feasible.obstacle
        )


def enough_steps(steepest: float, noise: float) -> int:
    if not math.isfinite(steepest):
        return MOST
    return int(min(max(math.ceil((steepest / noise) ** 2), FEWEST), MOST)) if noise > 0 else MOST


def derive(analysis: Analysis, privacy: Privacy, sensitivity: float, steps: int, sigma: float) -> Derivation:
    """Assemble the derivation tree of a certificate."""
    values = {"steps": float(steps), "G_adj of all": math.sqrt(steps) * sensitivity, "sigma": sigma}
    how = "adaptive Gaussian releases add up in squares; exact profile of the Gaussian mechanism"
    composed = Derivation("composition of all steps", "", values, how)
    children = (*record_steps(analysis, privacy), composed, *public_steps(analysis))
    return Derivation("noisy descent", "", privacy.claims, SOURCE, children)
