"""Noisy projected gradient descent: each gradient is perturbed, and the average iterate (clipped: the last) is released."""

import math
from dataclasses import dataclass, replace

import numpy as np

from dpconvex.accounting.events import Gaussian
from dpconvex.certificates.certificate import Certificate, DescentCertificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.mechanisms import base
from dpconvex.mechanisms.added_quadratic import ADDED, GUESS
from dpconvex.mechanisms.rounding import public_start, quadratic_parts, regularizer_curvature
from dpconvex.model.privacy import Privacy, not_for_units, remaining
from dpconvex.noise.gaussian import TRUNCATED, gaussian_sigma
from dpconvex.noise.loss_distributions import sampled_multiplier
from dpconvex.noise.samplers import SPHERICAL, in_subspace
from dpconvex.numerics import EPSILON, NORM_SLACK, TAIL_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.regularizer import largest_row_sum, slope_of
from dpconvex.sets.kinks import split_kinks
from dpconvex.sets.quadratics import as_squares, linear_parts, weighted_sum
from dpconvex.util.arguments import COUNT, check_fields, number_in, require
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once

GAUSSIAN = SPHERICAL["gaussian"]
SMALLEST_RADIUS = 1e-100  # A set with a single point gets this radius, so that divisions succeed
FEWEST, MOST = 10, 1000  # Limits of the automatic number of steps
LARGEST_LENGTH = 1e150
LARGEST_CLIP = 1e75  # Squares of norms near the clip, and their factors, neither underflow nor overflow
# Defaults with clipped gradients.
CLIPPED_STEPS, MOMENTUM = 100, 0.8
# Limits of the step, in margins: movement of a margin by the noise of all steps; and movement by one step of all records'
# clipped gradients, times the number of directions that records share evenly. A loss without a bound on its slope has a lower
# limit. If curvature is known, the limit is also BENDS times its inverse.
NOISE_MARGIN, STEP_MARGIN, UNBOUNDED_MARGIN, BENDS = 2.0, 45.0, 7.0, 54.0
# Slopes of targets do not vanish far away, and bounds do not tell how far targets spread. Their steps shrink: the limits of the
# first step, and the last one, as a movement by all records' clipped gradients and as a part of the first.
TARGET_NOISE, FIRST_MARGIN, LAST_MARGIN, LAST_PART = 0.5, 7.0, 0.007, 0.01
GRAIN = 2.0**-53  # Sampling probabilities are multiples of this, as uniform variates are
SOURCE = "Dong, Roth & Su 2022, corollary 3.3; Balle & Wang 2018, theorem 8; docs/theory.md"
CLIPPED_SOURCE = "Dong, Roth & Su 2022, corollary 3.3; Abadi et al. 2016 (clipping); docs/theory.md, section 8"
WHY = {
    "add-remove": "one appears or disappears",
    "replace-one": "two are 2 clips apart at most, or what gradients differ by if none is longer than the clip",
}
# With samples: the share of the guarantee that hides rounding of all other records' gradients.
ROUNDING_SHARE = 1e-3
ROUNDED = (
    "Gradients are computed in floating point; a bound on what rounding does to them is part of the sensitivity, the part of one "
    "record in it is assumed (docs/release.md)."
)
CLIPPED = (
    "Clipped gradients are no longer than the clip as they are computed, and none depends on other records, to the last bit; "
    "a bound on what rounding does to their sum is part of the sensitivity (docs/release.md).",
    "Nothing is claimed about accuracy: clipped gradients need not be the gradients of any function.",
)


@dataclass(frozen=True)
class NoisyGradientDescent(base.ForUnits):
    """Run projected gradient descent with Gaussian noise; release the average iterate or, with a clip, the last one.

    It needs a guarantee with delta and a projection on K. Without a clip, K must be bounded and the loss Lipschitz on it.  The
    loss may be nonsmooth, and the regularizer 0.

    With a clip, every record's gradient is scaled down to that norm.  The loss then needs no convexity and no bound on its
    slope, and K need not be bounded.  Nothing is claimed about accuracy.

    Parameters
    ----------
    steps : int or None
        Number T of steps.  None picks the number beyond which more steps help little, at most 1000.
    step_size : float or None
        In sum form; None is ``R / (B sqrt(T))``, and with a clip a rule from public numbers (docs/theory.md).
    clip : float or None
        Clipping norm of a record's gradient (loss per unit of the parameters). A quarter of the gradient bound is a good choice.
        Above the gradient bound it changes nothing.
    sampling : float or None
        With a clip, under add-remove: the probability with which each record takes part in each step, independently.
        Privacy-loss distributions give the cost.  None takes all records.
    momentum : float or None
        With a clip: the weight of earlier steps in the next one, in [0, 1).  None is 0.8.

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
    step_size: float | None = None
    clip: float | None = None
    sampling: float | None = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, steps=COUNT.or_none, momentum=ADDED, step_size=GUESS, sampling=GUESS)
        check_fields(self, clip=number_in(1 / LARGEST_CLIP, LARGEST_CLIP).or_none)
        for name, value in {"sampling": self.sampling, "momentum": self.momentum}.items():
            if value is not None and not (value < 1 and self.clip is not None):
                raise TemplateError(f"NoisyGradientDescent: {name} must be below 1, and needs a `clip`; got {value!r}.")

    @property
    def bounds_gradients(self) -> bool:
        """Whether gradients are clipped, so that the loss needs no gradient bound."""
        return self.clip is not None

    @property
    def name(self) -> str:
        if self.clip is None:
            return "noisy gradient descent"
        return "DP-GD with per-example clipping" + " and Poisson sampling" * (self.sampling is not None)

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Check the conditions, choose the steps, and calibrate the noise of all steps together."""
        check_conditions(analysis, privacy, self.clip is not None)
        clip = math.inf if self.clip is None else float(self.clip)
        bound, apart = largest_norms(analysis, privacy, clip)
        rate, p = sampling_rate(self.sampling, privacy), analysis.form.noise_dimension
        once, steps = gaussian_sigma(privacy.epsilon, privacy.delta, apart), self.steps or CLIPPED_STEPS
        if self.clip is None:
            steepest = size * (bound + slope_of(analysis.form.template.regularizer, analysis.form))
            said = f"NoisyGradientDescent: gradients in sum form may have length {steepest:.3g}; use other units."
            require(not LARGEST_LENGTH < steepest < math.inf, said)  # squares of longer gradients overflow
            enough = (steepest / (math.sqrt(p) * once)) ** 2 if p else math.inf
            steps = self.steps or (math.ceil(max(enough, FEWEST)) if enough < MOST else MOST)
        sigma = once * math.sqrt(steps) * (1 + NORM_SLACK)
        if rate < 1:  # the rest of the guarantee is for rounding: see `hiding`
            rest = (remaining(total, ROUNDING_SHARE * total) for total in (privacy.epsilon, privacy.delta))
            multiplier = sampled_multiplier(*rest, rate, steps)
            sigma = multiplier * apart * (1 + NORM_SLACK)
        risk: float | None = None
        if self.clip is None:
            settings, risk = self._plain(analysis, steps, steepest, sigma)
        else:
            settings = self._clipped(analysis, size, steps, rate, bound, sigma)
        if rate < 1:
            settings["multiplier"] = multiplier  # of the noise, without the part that hides rounding
        unclipped = f"No gradient is longer than {bound:.4g}, so the clip changes nothing."
        values = {"steps": float(steps), "sigma": sigma} | ({"sampling": rate} if rate < 1 else {})
        return Certificate(
            privacy=privacy,
            mechanism=self.name,
            size=size,
            gradient_bound=bound,
            sensitivity=apart,
            hessian_bound=curvature_or_zero(analysis),
            noise_epsilon=privacy.epsilon,
            noise_dimension=p,
            noise_scale=sigma,
            derivation=derive(analysis, privacy, clip, apart, values),
            assumptions=assumptions(analysis, clip),
            advice=(unclipped,) if bound < clip < math.inf else (),
            perturbed="gradients",
            noise="gaussian",
            mean_noise=GAUSSIAN.mean(p, sigma),
            predicted_risk=risk,
            settings=settings,
            event=None if self.sampling is not None else Gaussian(math.sqrt(steps) * apart / sigma * (1 + NORM_SLACK)),
        )

    def _plain(
        self, analysis: Analysis, steps: int, steepest: float, sigma: float
    ) -> tuple[dict[str, float], float | None]:
        """Choose the step size with the smallest bound on the risk of the average iterate; return settings and this bound."""
        radius = max(analysis.form.feasible.norm_bound, SMALLEST_RADIUS)
        largest = math.hypot(steepest, math.sqrt(analysis.form.noise_dimension) * sigma)
        if self.step_size is None and not math.isfinite(largest):
            why = "no bound on the regularizer's gradient over K is known, so there is no step size"
            raise TemplateError(f"NoisyGradientDescent: {why}; give one as `step_size`, in sum form.")
        step = self.step_size if self.step_size is not None else radius / (largest * math.sqrt(steps))
        risk = radius**2 / (2 * step * steps) + step * largest**2 / 2
        settings = {"steps": float(steps), "step_size": float(step), "radius": float(radius)}
        return settings, risk if math.isfinite(risk) else None

    def _clipped(
        self, analysis: Analysis, size: int, steps: int, rate: float, bound: float, sigma: float
    ) -> dict[str, float]:
        assert self.clip is not None
        stiff = rate * regularizer_steepness(analysis, size)[0]
        if self.step_size is not None:
            step = largest = float(self.step_size)
        else:
            step, largest = step_sizes(analysis, sigma * steps / math.sqrt(steps), size * rate, bound, stiff)
        if not largest * stiff <= 2:
            why = f"steps of {largest:.3g} are too long for a regularizer whose curvature is up to {stiff / rate:.3g}"
            remedy = f"give a smaller `step_size`, below {2 / stiff:.3g}"
            raise TemplateError(f"NoisyGradientDescent: {why} in sum form; {remedy}.")
        momentum = MOMENTUM if self.momentum is None else float(self.momentum)
        settings = {"clip": float(self.clip), "steps": float(steps), "step_size": step, "momentum": momentum}
        settings |= {"largest_step": largest} | ({} if self.sampling is None else {"sampling": rate})
        if self.step_size is None and has_targets(analysis):
            last = LAST_MARGIN * margin_length(analysis) / (bound * size * rate)
            settings["last_step"] = min(max(last, LAST_PART * step), step)
        return settings

    def hiding(self, analysis: Analysis, certificate: Certificate, records: float) -> Certificate:
        """Return the certificate with more noise, which hides rounding in sums; with samples, a share of the budget pays it."""
        assert isinstance(certificate, DescentCertificate)
        reach, scale = certificate.sensitivity, certificate.noise_scale
        root = math.sqrt(certificate.steps) * (1 + NORM_SLACK)
        clean = largest_norms(analysis, certificate.privacy, certificate.clip)[1]
        for most in scale * 2.0 ** np.arange(1, 30):  # iterates are bounded for noise of this size
            rounding = path_rounding(analysis, certificate, records, float(most))
            apart = max(clean + 2 * rounding, reach)
            found = with_more_noise(certificate, reach, apart - reach, apart)
            if "sampling" in certificate.settings and rounding > 0:
                paid = ROUNDING_SHARE * certificate.noise_epsilon, ROUNDING_SHARE * certificate.noise_delta
                more = math.hypot(scale, gaussian_sigma(*paid, 2 * rounding) * root) - scale
                found = with_more_noise(certificate, scale, more, apart)
            if found.noise_scale <= most:
                # Rounding of noise drawn in floating point; the noise of each step hides rounding in its sums.
                drawn = EPSILON * (analysis.form.space.dim + 16) * self.noise_bound(found, TRUNCATED)
                moved = certificate.sum_of_steps("largest_step") * drawn
                return found.copied(event=found.event, sensitivity=apart, tolerance=max(moved, 1e-200))
        why = "rounding errors in sums of this many gradients exceed the clip"
        raise TemplateError(f"NoisyGradientDescent: {why}; give a larger `clip`.")

    def run(self, analysis: Analysis, certificate: Certificate, engine: base.Engine, rng: np.random.Generator) -> Array:
        """Return the mean of all iterates, or the last one with clipped gradients, in coordinates, shape (dim,)."""
        assert isinstance(certificate, DescentCertificate)
        basis, p, momentum = analysis.form.basis, certificate.noise_dimension, certificate.settings.get("momentum", 0.0)
        steps, step, clip, rate = certificate.steps, certificate.step_size, certificate.clip, certificate.sampling
        shrinking = (certificate.settings.get("last_step", step) / step) ** (1 / steps)
        theta = engine.project(np.zeros(analysis.form.space.dim))
        velocity, total = np.zeros_like(theta), theta.copy()
        for _ in range(steps):
            if clip == math.inf:
                gradient = engine.loss_gradient(theta)
            else:  # no clipping if no gradient exceeds the clip
                chosen = rng.random(engine.records) < rate if rate < 1 else None
                longest = clip if certificate.gradient_bound >= clip else math.inf
                gradient = engine.clipped_gradient(theta, longest, chosen)
            released = gradient + in_subspace(basis, GAUSSIAN.draw(p, certificate.noise_scale, rng))
            velocity = momentum * velocity + (1 - momentum) * step * released
            theta = engine.project(theta - velocity - step * rate * engine.public_gradient(theta))
            total = total + theta
            step *= shrinking
        return total / (steps + 1) if clip == math.inf else theta

    def noise_bound(self, certificate: Certificate, probability: float) -> float:
        assert isinstance(certificate, DescentCertificate)
        each = probability / certificate.steps
        return GAUSSIAN.quantile(certificate.noise_dimension, certificate.noise_scale, each)


def check_conditions(analysis: Analysis, privacy: Privacy, clips: bool) -> None:
    feasible, what = analysis.form.feasible, "noisy gradient descent"
    base.check_delta(privacy, what, "use ObjectivePerturbation or OutputPerturbation")
    if not feasible.bounded and not clips:
        why = f"{what} needs bounded parameters: its steps and its risk scale with their size"
        remedy = "add a constraint such as cp.norm(w) <= 10 for every variable w, or bounds; or clip gradients"
        raise NotPrivate(why, feasible.describe(), remedy)
    if feasible.obstacle is not None:
        raise NotPrivate(f"{what} needs a projection on the feasible set", feasible.describe(), feasible.obstacle)


def derive(
    analysis: Analysis, privacy: Privacy, clip: float, sensitivity: float, values: dict[str, float]
) -> Derivation:
    how = "adaptive Gaussian releases add up in squares; exact profile of the Gaussian mechanism"
    if "sampling" in values:
        how = "privacy-loss distribution of Gaussian noise on Poisson samples, rounded up"
    if clip == math.inf:
        name, source, steps = "DP-GD", SOURCE, base.record_steps(analysis, privacy)
    else:
        name, source = "DP-GD with per-example clipping", CLIPPED_SOURCE
        why = f"clipped gradients: {WHY[privacy.adjacency]}"
        whose = "every record's gradient" if privacy.unit is None else f"the sum of every {privacy.unit}'s gradients"
        clips = Derivation("gradient bound", "", {"clip": clip}, f"{whose} is scaled down to the clip")
        steps = clips, Derivation("sensitivity", "", {"G_adj": sensitivity}, why)
    composed = Derivation("composition of all steps", "", values, how)
    return Derivation(name, "", privacy.claims, source, (*steps, composed, *base.public_steps(analysis)))


def assumptions(analysis: Analysis, clip: float) -> tuple[str, ...]:
    if clip == math.inf:
        return base.DRAWN, ROUNDED, base.UNSEEN, *base.declared_constants(analysis)
    said = [base.DRAWN, *CLIPPED, base.UNSEEN]
    if analysis.unbounded is not None:
        unproved = str(analysis.unbounded).splitlines()[0]
        said.insert(2, f"No convexity and no bound on the loss was proved, and none is needed: {unproved}.")
    return (*said, *base.declared_constants(analysis))


def with_more_noise(certificate: Certificate, reach: float, more: float, apart: float) -> Certificate:
    """Return a certificate with noise larger by ``1 + more / reach``, for neighbours that are `apart`."""
    ratio, proof = (reach + more) / reach * (1 + NORM_SLACK), certificate.derivation
    mean = None if certificate.mean_noise is None else certificate.mean_noise * ratio
    why = "noise grows in proportion to how far neighbours are apart"
    step = Derivation("noise that hides rounding", "", {"G_adj": apart}, why)
    steps = (*(child for child in proof.children if child.rule != step.rule), step)
    scale = certificate.noise_scale * ratio
    derivation = replace(proof, children=steps)
    return certificate.copied(event=certificate.event, noise_scale=scale, mean_noise=mean, derivation=derivation)


def sampling_rate(sampling: float | None, privacy: Privacy) -> float:
    if sampling is None:
        return 1.0
    if privacy.unit is not None:
        raise not_for_units("Poisson sampling", privacy)
    if privacy.adjacency != "add-remove":
        why = "privacy accounting of Poisson samples needs add-remove adjacency"
        remedy = 'ask for adjacency="add-remove", or use all records at every step'
        raise NotPrivate(why, f"sampling = {sampling:g}", remedy)
    return max(math.floor(sampling / GRAIN), 1) * GRAIN


def largest_norms(analysis: Analysis, privacy: Privacy, clip: float) -> tuple[float, float]:
    """Bound the clipped gradient of one record (or a person's clipped sum), and the sensitivity of the total."""
    replaced, person = privacy.adjacency == "replace-one", privacy.person
    if analysis.unbounded is not None:
        return clip * (1 + NORM_SLACK), (2 if replaced else 1) * clip * (1 + NORM_SLACK)
    if clip == math.inf:
        return analysis.gradient_bound, analysis.sensitivity(privacy.adjacency, person)
    bound = min(clip * (1 + NORM_SLACK), person.weight * analysis.gradient_bound)
    apart = 2 * bound if replaced else bound
    return bound, min(apart, analysis.sensitivity(privacy.adjacency, person)) if bound < clip else apart


def step_sizes(analysis: Analysis, noise: float, records: float, bound: float, stiff: float) -> tuple[float, float]:
    """Return the step size, and a bound on it for records of any directions; `noise` is the noise of all steps together."""
    length, bend = margin_length(analysis), curvature_or_zero(analysis)
    margin = STEP_MARGIN if analysis.unbounded is None else UNBOUNDED_MARGIN
    longest = min(margin * length / (bound * records), BENDS / (bend * records) if bend else math.inf)
    moved = NOISE_MARGIN
    if has_targets(analysis):
        longest, moved = FIRST_MARGIN * length / (bound * records), TARGET_NOISE
    most = min(moved * length / noise, 1 / stiff if stiff else math.inf)
    return min(most, longest), min(most, max(analysis.form.bases.count, 1) * longest)


def has_targets(analysis: Analysis) -> bool:
    """Return whether all leaves of labels have offsets that differ by records, unlike counts with an exposure."""
    return all(np.ptp(analysis.ranges[leaf][0], axis=0).any() for leaf in analysis.form.every_leaf)


def margin_length(analysis: Analysis) -> float:
    """Return the length of parameters that moves a leaf by one unit: its offset's size (1 without one) over a row's norm."""
    longest = math.sqrt(max(float(analysis.gram.squared_norms(rows).max(initial=0.0)) for rows in analysis.gram.rows))
    ends = (analysis.ranges[leaf][0] for leaf in analysis.form.every_leaf)
    offset = max(max(float(np.abs(end).max(initial=0.0)) for end in pair) for pair in ends)
    return (offset if 0 < offset < math.inf else 1.0) / longest


def regularizer_steepness(analysis: Analysis, size: int) -> tuple[float, float]:
    """Bound the curvature of the regularizer's smooth part, and the slope of its other part from the start on, in sum form."""
    form = analysis.form
    constant, (stiff, _, _) = largest_row_sum(analysis.regularizer[0]), quadratic_parts(form)
    bend = regularizer_curvature(form, form.feasible.norm_bound)
    smooth = math.isfinite(bend.rest)
    slope = public_start(analysis, size, 0.0)[1] + 2 * size * slope_of_rest(form, smooth)
    if math.isfinite(slope) or form.feasible.bounded:
        return size * (constant + (bend.rest if smooth else stiff)), slope
    why = "neither the regularizer's curvature nor its slope is bounded, so the rounding of gradients is unbounded"
    raise NotPrivate(f"{why}: {bend.reason}", form.template.regularizer, "smooth it, or bound the parameters")


@once
def slope_of_rest(form: LossForm, smooth: bool) -> float:
    """Bound the slope of a regularizer without its squares; of its kinks alone, if all other curvature is bounded."""
    smoothed = linear_parts(split_kinks(form.feasible, form.template.regularizer)[0]) if smooth else {}
    left = ((part, row) for part, row in linear_parts(form.template.regularizer).items() if part not in smoothed)
    steep = {part: row for part, row in left if not part.is_affine and as_squares(part, row.toarray()[0]) is None}
    return slope_of(weighted_sum(steep), form) if steep else 0.0


def curvature_or_zero(analysis: Analysis) -> float:
    """Return the largest curvature of one record's loss, or 0 if it is not known."""
    known = analysis.unbounded is None and analysis.kink is None and math.isfinite(analysis.hessian_bound)
    return analysis.hessian_bound if known else 0.0


def path_rounding(analysis: Analysis, certificate: DescentCertificate, records: float, sigma: float) -> float:
    """Bound the rounding of sums of `records` gradients at all iterates: in K, or within reach of all steps from the start."""
    form, bound, steps, rate = analysis.form, certificate.gradient_bound, certificate.steps, certificate.sampling
    rare, radius = TRUNCATED / (2 * steps), form.feasible.norm_bound
    drawn = most_drawn(records, rate, rare) if rate < 1 else records
    if not form.feasible.bounded:
        longest = GAUSSIAN.quantile(certificate.noise_dimension, sigma, rare)
        pull = rate * regularizer_steepness(analysis, certificate.size)[1]
        start = float(np.linalg.norm(public_start(analysis, 1.0, 0.0)[0]))
        radius = start + certificate.sum_of_steps("largest_step") * (drawn * bound + longest + pull)
    # The depth of sums is that of all records; their terms are those of sampled records.
    return form.lengths.gradient_error(records, bound, curvature_or_zero(analysis), radius, 0.0) * drawn / records


def most_drawn(records: float, sampling: float, probability: float) -> float:
    """Bound the size of a Poisson sample, except with this probability, by Bernstein's inequality."""
    mean, odds = sampling * records, -math.log(probability)
    return min(records, (mean + odds / 3 + math.sqrt(odds**2 / 9 + 2 * mean * odds)) * (1 + TAIL_SLACK))
