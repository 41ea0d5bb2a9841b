"""Noisy gradient descent with clipped gradients: no bound on the loss, its curvature or K is needed.

Each record's gradient is scaled down to a norm of at most c, so one record moves their sum by at most c, whatever the loss and
wherever the parameters are, and one for another by at most 2c.  (Clipping is the projection on a ball, which brings gradients no
farther apart; but norms are rounded up, by more for one record than for another, so what is computed is no projection.)  Where no
gradient is longer than c none is clipped, and a replacement moves the sum by what gradients differ by.  T full-batch steps are
one Gaussian mechanism of sensitivity ``sqrt(T) c``; with Poisson samples their privacy-loss distribution is composed
(docs/theory.md, section 8).

What is minimised no longer has a name: clipped gradients of several leaves are gradients of no function.  So nothing is claimed
about accuracy, and step sizes follow a rule of thumb from public numbers.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from dpconvex.accounting.events import Gaussian
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.regularizer_slopes import slope_of
from dpconvex.core.derivation import Derivation
from dpconvex.core.remembered import once
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.geometry.kinks import split_kinks
from dpconvex.geometry.linear_maps import linear_parts, weighted_sum
from dpconvex.geometry.quadratics import squares
from dpconvex.language.privacy import Privacy, left
from dpconvex.mechanisms.certificate import TAIL, Certificate
from dpconvex.mechanisms.proof_steps import DRAWN, UNSEEN, declared_constants, louder, public_steps, sensitivity_of
from dpconvex.mechanisms.rounding import bend_of, largest_eigenvalue, parts, public_start
from dpconvex.noise.gaussian_profiles import gaussian_sigma
from dpconvex.noise.loss_distributions import sampled_multiplier
from dpconvex.noise.spherical import SPHERICAL

GAUSSIAN = SPHERICAL["gaussian"]
SOURCE = "Dong, Roth & Su 2022, corollary 3.3; Abadi et al. 2016 (clipping); docs/theory.md, section 8"
# The rule for steps, in margins: how far the noise of all steps moves a margin, and, times the number of directions that the
# records share evenly, how far one step of all records' clipped gradients may; a loss without a bound on its slope gets less.
# Where curvature is known, so many times its inverse is enough.
NOISE_MARGIN, STEP_MARGIN, UNBOUNDED_MARGIN, BENDS = 2.0, 45.0, 7.0, 54.0
# A computed clipped gradient is at most so much longer than the clip.
ROUNDED = 1 + 1e-12
# With samples, the part of the promise that hides what rounding does to all other records' gradients.
ROUNDING_SHARE = 1e-3
# How often twice the noise is tried where there are far more records than planned.
ROUNDS = 30
# Probabilities of samples are multiples of this, as uniform variates are.
GRAIN = 2.0**-53


@dataclass(frozen=True)
class Options:
    """What can be chosen, as `NoisyGradientDescent` describes it."""

    clip: float
    steps: int
    step_size: float | None
    sampling: float | None
    momentum: float
    average: float
    directions: float | None


def certify_clipped(options: Options, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
    """Calibrate the noise of all steps together, and choose the steps, from public numbers."""
    clip, steps, rate = options.clip, options.steps, sampling_rate(options, privacy)
    bound, apart = largest_norms(analysis, privacy, clip)
    p, root = analysis.form.noise_dimension, math.sqrt(steps) * (1 + 1e-12)
    if rate == 1.0:
        sigma = gaussian_sigma(privacy.epsilon, privacy.delta, apart) * root
    else:  # the rest of the promise is for rounding: see `hiding`
        rest = (left(total, ROUNDING_SHARE * total) for total in (privacy.epsilon, privacy.delta))
        sigma = sampled_multiplier(*rest, rate, steps) * apart * (1 + 1e-12)
    stiff, _ = regularizer_steepness(analysis, size)
    step, largest = step_sizes(options, analysis, sigma, size * rate, bound, rate * stiff)
    if not largest * rate * stiff <= 2:
        raise TemplateError(
            f"NoisyGradientDescent: steps of {largest:.3g} are too long for the regularizer, whose curvature is up to "
            f"{stiff:.3g} in sum form; give a smaller `step_size`, below {2 / (rate * stiff):.3g}."
        )
    settings = {"clip": clip, "steps": float(steps), "step_size": step}
    settings |= {"momentum": options.momentum, "average": options.average, "largest_step": largest}
    sampled = {"sampling": rate} if options.sampling is not None else {}
    return Certificate(
        privacy=privacy,
        mechanism="noisy gradient descent, clipped" + (" and sampled" if sampled else ""),
        size=size,
        gradient_bound=bound,
        sensitivity=apart,
        hessian_bound=curvature(analysis),
        noise_epsilon=privacy.epsilon,
        noise_dimension=p,
        noise_scale=sigma,
        derivation=derive(analysis, privacy, clip, apart, steps, sigma, rate),
        assumptions=assumptions(analysis),
        advice=advise(analysis, clip),
        perturbed="gradients",
        event=None if sampled else Gaussian(math.sqrt(steps) * apart / sigma * (1 + 1e-12)),
        noise="gaussian",
        mean_noise=GAUSSIAN.mean(p, sigma),
        settings=settings | sampled,
    )


def sampling_rate(options: Options, privacy: Privacy) -> float:
    """Return the probability with which a record takes part in a step."""
    if options.sampling is None:
        return 1.0
    if privacy.adjacency != "add-remove":
        raise NotPrivate(
            "Poisson samples are accounted for where a record is added or removed, not where one is replaced",
            f"sampling = {options.sampling:g}",
            'promise adjacency="add-remove", or use all records at every step',
        )
    return max(math.floor(options.sampling / GRAIN), 1) * GRAIN


def largest_norms(analysis: Analysis, privacy: Privacy, clip: float) -> tuple[float, float]:
    """Bound one record's clipped gradient, and how far neighbours move their sum."""
    replaced = privacy.adjacency == "replace-one"
    if analysis.unbounded is not None:
        return clip * ROUNDED, (2 if replaced else 1) * clip * ROUNDED
    bound = min(clip * ROUNDED, analysis.gradient_bound)
    apart = 2 * bound if replaced else bound
    return bound, min(apart, sensitivity_of(analysis, privacy)) if bound < clip else apart


def step_sizes(
    options: Options, analysis: Analysis, sigma: float, records: float, bound: float, stiff: float
) -> tuple[float, float]:
    """Return the step, and the largest that whitened records may lead to."""
    if options.step_size is not None:
        return options.step_size, options.step_size
    most = NOISE_MARGIN * margin_length(analysis) / (sigma * math.sqrt(options.steps))
    most = min(most, 1 / stiff if stiff else math.inf)
    directions = options.directions or 1.0
    step, largest = (
        min(most, capped(analysis, bound * records, records, d))
        for d in (directions, max(directions, analysis.form.bases.count))
    )
    return step, largest


def capped(analysis: Analysis, pull: float, records: float, directions: float) -> float:
    """Return the longest step for gradients that add up to at most `pull`."""
    margin = STEP_MARGIN if analysis.unbounded is None else UNBOUNDED_MARGIN
    bend = curvature(analysis)
    longest = margin * margin_length(analysis) / pull
    return directions * (min(longest, BENDS / (bend * records)) if bend else longest)


def margin_length(analysis: Analysis) -> float:
    """Return how long parameters are that move a leaf by one unit: its offset's size, or 1 if it has none, over a row's norm."""
    leaves = [leaf for group in analysis.form.leaves for leaf in group]
    longest = math.sqrt(max(float(analysis.gram.squared_norms(rows).max(initial=0.0)) for rows in analysis.gram.rows))
    ends = [analysis.offset_range(analysis.form.polynomial(leaf)) for leaf in leaves]
    offset = max(max(float(np.abs(end).max(initial=0.0)) for end in pair) for pair in ends)
    return (offset if 0 < offset < math.inf else 1.0) / longest


def regularizer_steepness(analysis: Analysis, size: int) -> tuple[float, float]:
    """Bound the curvature of the regularizer's smooth part, and the slope of the rest of it, in sum form.

    A gradient step on the smooth part, from the start, has the slope there.  Where K is bounded, nothing depends on the slope.
    """
    form = analysis.form
    constant, (stiff, _, _) = largest_eigenvalue(analysis), parts(form)
    bend = bend_of(form, form.feasible.norm_bound)
    smooth = math.isfinite(bend.rest)
    slope = public_start(analysis, size, 0.0)[1] + 2 * size * slope_of_rest(form, smooth)
    if math.isfinite(slope) or form.feasible.bounded:
        return size * (constant + (bend.rest if smooth else stiff)), slope
    raise NotPrivate(
        "nothing bounds the curvature or the slope of the regularizer, so nothing bounds the iterates, and what rounding does "
        f"to their gradients: {bend.reason}",
        form.template.regularizer,
        "smooth it, or bound the parameters",
    )


@once
def slope_of_rest(form: LossForm, smooth: bool) -> float:
    """Bound the slope of what is not square in a regularizer; of its kinks alone, if the curvature of all else is bounded."""
    smoothed = linear_parts(split_kinks(form.feasible, form.template.regularizer)[0]) if smooth else {}
    steep = {
        part: row
        for part, row in linear_parts(form.template.regularizer).items()
        if part not in smoothed and not part.is_affine and squares(part, row.toarray()[0]) is None
    }
    return slope_of(weighted_sum(steep), form) if steep else 0.0


def curvature(analysis: Analysis) -> float:
    """Return the largest curvature of one record's loss, 0 if that is not known."""
    known = analysis.unbounded is None and analysis.kink is None and math.isfinite(analysis.hessian_bound)
    return analysis.hessian_bound if known else 0.0


def hide_rounding(analysis: Analysis, certificate: Certificate, records: float) -> Certificate:
    """Return the certificate with noise that also hides what rounding does to sums of so many clipped gradients.

    With samples rounding may move the sum for all other records too, in samples or not, so what it does is not amplified by
    sampling: it is paid from a share of its own, with noise on top.
    """
    settings, scale = certificate.settings, certificate.noise_scale
    reach, clean = certificate.sensitivity, largest_norms(analysis, certificate.privacy, settings["clip"])[1]
    root = math.sqrt(settings["steps"]) * (1 + 1e-12)
    for most in scale * 2.0 ** np.arange(1, ROUNDS):  # iterates are bounded for noise of that size
        rounding = path_rounding(analysis, certificate, records, float(most))
        apart = max(clean + 2 * rounding, reach)
        if "sampling" in settings and rounding > 0:
            paid = ROUNDING_SHARE * certificate.noise_epsilon, ROUNDING_SHARE * certificate.noise_delta
            more = math.hypot(scale, gaussian_sigma(*paid, 2 * rounding) * root) - scale
            found = louder(certificate, scale, more, {"G_adj": apart})
        else:
            found = louder(certificate, reach, apart - reach, {"G_adj": apart})
        if found.noise_scale <= most:
            tolerance = max(settings["steps"] * settings["largest_step"] * rounding, 1e-200)
            return replace(found, sensitivity=apart, tolerance=tolerance)
    raise TemplateError(
        "NoisyGradientDescent: rounding in sums of so many gradients is larger than the clip; give a larger `clip`."
    )


def path_rounding(analysis: Analysis, certificate: Certificate, records: float, sigma: float) -> float:
    """Bound how far computed sums of so many clipped gradients can be from exact ones, at all iterates.

    A gradient step on a smooth convex regularizer moves no two points apart.
    """
    settings, bound = certificate.settings, certificate.gradient_bound
    rare = TAIL / (2 * settings["steps"])
    longest = GAUSSIAN.quantile(certificate.noise_dimension, sigma, rare)
    drawn = most_drawn(records, settings["sampling"], rare) if "sampling" in settings else records
    pull = settings.get("sampling", 1.0) * regularizer_steepness(analysis, certificate.size)[1]
    moved = settings["steps"] * settings["largest_step"] * (drawn * bound + longest + pull)
    start = float(np.linalg.norm(public_start(analysis, 1.0, 0.0)[0]))
    radius = min(start + moved, analysis.form.feasible.norm_bound)
    # Sums are as deep as those of all records, and have terms of those that take part.
    return analysis.form.lengths.gradient_error(records, bound, curvature(analysis), radius, 0.0) * drawn / records


def most_drawn(records: float, sampling: float, probability: float) -> float:
    """Bound the size of a Poisson sample, but for this probability, by Bernstein's inequality."""
    mean, odds = sampling * records, -math.log(probability)
    return min(records, (mean + odds / 3 + math.sqrt(odds**2 / 9 + 2 * mean * odds)) * (1 + 1e-9))


def for_directions(analysis: Analysis, certificate: Certificate, directions: float) -> Certificate:
    """Return a certificate whose steps are for records that share so many directions evenly, which is public by then."""
    settings = certificate.settings
    records = certificate.size * settings.get("sampling", 1.0)
    longest = capped(analysis, certificate.gradient_bound * records, records, directions)
    step = max(min(settings["largest_step"], longest), settings["step_size"])
    return replace(certificate, settings={**settings, "step_size": step})


def derive(
    analysis: Analysis, privacy: Privacy, clip: float, sensitivity: float, steps: int, sigma: float, rate: float
) -> Derivation:
    """Assemble the derivation tree of a certificate."""
    gradient = Derivation("gradient bound", "", {"clip": clip}, "every record's gradient is scaled down to the clip")
    why = "one clipped gradient appears or disappears"
    if privacy.adjacency == "replace-one":
        why = (
            "two clipped gradients: 2 clips apart at most, or what gradients differ by if none is longer than the clip"
        )
    moved = Derivation("sensitivity", "", {"G_adj": sensitivity}, why)
    values = {"steps": float(steps), "sigma": sigma}
    how = "adaptive Gaussian releases add up in squares; exact profile of the Gaussian mechanism"
    if rate < 1:
        values["sampling"] = rate
        how = "privacy-loss distribution of Gaussian noise on Poisson samples, rounded up"
    composed = Derivation("composition of all steps", "", values, how)
    children = (gradient, moved, composed, *public_steps(analysis))
    return Derivation("noisy descent, clipped", "", privacy.claims, SOURCE, children)


def assumptions(analysis: Analysis) -> tuple[str, ...]:
    """Say what the proof takes for granted, and what it does not say."""
    said = [
        DRAWN,
        "Clipped gradients are no longer than the clip as they are computed, and none depends on other records, to the last bit; "
        "a bound on what rounding does to their sum is part of the sensitivity (docs/release.md).",
        "Nothing is claimed about accuracy: clipped gradients need not be the gradients of any function.",
        UNSEEN,
    ]
    if analysis.unbounded is not None:
        unproved = str(analysis.unbounded).splitlines()[0]
        said.insert(2, f"No convexity and no bound on the loss was proved, and none is needed: {unproved}.")
    return (*said, *declared_constants(analysis))


def advise(analysis: Analysis, clip: float) -> tuple[str, ...]:
    if analysis.unbounded is None and clip >= analysis.gradient_bound:
        return (f"No gradient is longer than {analysis.gradient_bound:.4g}, so the clip changes nothing.",)
    return ()
