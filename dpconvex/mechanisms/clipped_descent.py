"""Noisy descent by clipped gradients, without bounds on the loss, its curvature or K (docs/theory.md, section 8)."""

import math

import numpy as np

from dpconvex.certificates.certificate import DescentCertificate
from dpconvex.certificates.loaded_event import TAIL
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.rounding import largest_eigenvalue, public_start, quadratic_parts, regularizer_curvature
from dpconvex.model.privacy import Privacy, not_for_units
from dpconvex.noise.samplers import SPHERICAL
from dpconvex.numerics import NORM_SLACK, TAIL_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.regularizer import slope_of
from dpconvex.sets.kinks import split_kinks
from dpconvex.sets.quadratics import as_squares, linear_parts, weighted_sum
from dpconvex.util.runtime import once

GAUSSIAN = SPHERICAL["gaussian"]
# Limits of the step, in margins: movement of a margin by the noise of all steps; and movement by one step of all records'
# clipped gradients, times the number of directions that records share evenly. A loss without a bound on its slope has a lower
# limit. If curvature is known, the limit is also BENDS times its inverse.
NOISE_MARGIN, STEP_MARGIN, UNBOUNDED_MARGIN, BENDS = 2.0, 45.0, 7.0, 54.0
GRAIN = 2.0**-53  # Sampling probabilities are multiples of this, as uniform variates are


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
    most = min(NOISE_MARGIN * margin_length(analysis) / noise, 1 / stiff if stiff else math.inf)
    directions = 1.0, max(analysis.form.bases.count, 1)
    step, largest = (min(most, longest_step(analysis, bound * records, records, d)) for d in directions)
    return step, largest


def longest_step(analysis: Analysis, pull: float, records: float, directions: float) -> float:
    """Return the largest step size for gradients that add up to at most `pull`."""
    margin = STEP_MARGIN if analysis.unbounded is None else UNBOUNDED_MARGIN
    bend = curvature_or_zero(analysis)
    longest = margin * margin_length(analysis) / pull
    return directions * (min(longest, BENDS / (bend * records)) if bend else longest)


def margin_length(analysis: Analysis) -> float:
    """Return the length of parameters that moves a leaf by one unit: its offset's size (1 without one) over a row's norm."""
    longest = math.sqrt(max(float(analysis.gram.squared_norms(rows).max(initial=0.0)) for rows in analysis.gram.rows))
    ends = map(analysis.offset_range, analysis.form.every_leaf)
    offset = max(max(float(np.abs(end).max(initial=0.0)) for end in pair) for pair in ends)
    return (offset if 0 < offset < math.inf else 1.0) / longest


def regularizer_steepness(analysis: Analysis, size: int) -> tuple[float, float]:
    """Bound the curvature of the regularizer's smooth part, and the slope of its other part from the start on, in sum form."""
    form = analysis.form
    constant, (stiff, _, _) = largest_eigenvalue(analysis), quadratic_parts(form)
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
    form, bound = analysis.form, certificate.gradient_bound
    drawn, radius = path(analysis, certificate, records, sigma)
    # The depth of sums is that of all records; their terms are those of sampled records.
    return form.lengths.gradient_error(records, bound, curvature_or_zero(analysis), radius, 0.0) * drawn / records


def path(analysis: Analysis, certificate: DescentCertificate, records: float, sigma: float) -> tuple[float, float]:
    """Bound the number of sampled records in a step, and the norm of all iterates."""
    steps, rate, feasible = certificate.steps, certificate.sampling, analysis.form.feasible
    rare = TAIL / (2 * steps)
    drawn = most_drawn(records, rate, rare) if rate < 1 else records
    if feasible.bounded:
        return drawn, feasible.norm_bound
    longest = GAUSSIAN.quantile(certificate.noise_dimension, sigma, rare)
    pull = rate * regularizer_steepness(analysis, certificate.size)[1]
    start = float(np.linalg.norm(public_start(analysis, 1.0, 0.0)[0]))
    return drawn, start + steps * certificate.largest_step * (drawn * certificate.gradient_bound + longest + pull)


def most_drawn(records: float, sampling: float, probability: float) -> float:
    """Bound the size of a Poisson sample, except with this probability, by Bernstein's inequality."""
    mean, odds = sampling * records, -math.log(probability)
    return min(records, (mean + odds / 3 + math.sqrt(odds**2 / 9 + 2 * mean * odds)) * (1 + TAIL_SLACK))
