"""Bounds on the accuracy of computed answers, over all data and noise, from public constants: refusals reveal nothing."""

import math

import numpy as np
import scipy.sparse as sp

from dpconvex.certificates.certificate import Certificate, OutputCertificate
from dpconvex.errors import NotPrivate
from dpconvex.expressions.atoms.matrices import LOG_DET
from dpconvex.expressions.expression import Expression
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.model.privacy import Privacy
from dpconvex.numerics import EPSILON, NORM_SLACK, TAIL_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.curvature import curvature_bound
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.regularizer import bound_entries, largest_row_sum
from dpconvex.sets.certified_distance import longest_row, relative_rounding
from dpconvex.sets.kinks import Kinks, split_kinks
from dpconvex.sets.quadratics import (
    CurvatureBounds,
    as_quadratic,
    as_squares,
    linear_parts,
    quadratic_of,
    slope_of,
    weighted_sum,
)
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once
from dpconvex.util.summation import public_norms

SURPLUS = 2  # Under add-remove the number of records is private; bounds hold up to this multiple of the nominal one
# Ratio of the duality gap of a certificate by multipliers to the rounding of inequalities, in units of their margins.
GAPS = 16.0


def largest_distance_floor(analysis: Analysis, certificate: Certificate, noise_bound: float, records: float) -> float:
    """Bound the rounding part of a distance in `dpconvex.optim.problem`, over all data sets and noise up to a bound."""
    mu = certificate.strong_convexity
    if mu <= 0:
        return float(np.inf)
    form, feasible, kinks = analysis.form, analysis.form.feasible, kinks_of(analysis.form)
    start, slope = public_start(analysis, certificate.size, certificate.added)
    radius = answer_radius(analysis, certificate, noise_bound, records)
    stiff = largest_row_sum(analysis.regularizer[0])
    curved = certificate.size * (stiff + regularizer_curvature(form, radius).rest)
    stiffness = curved + certificate.added
    loss_bend = certificate.hessian_bound if np.isfinite(certificate.hessian_bound) else 0.0
    data = records * certificate.gradient_bound
    if kinks:  # slopes of kinks may hide slopes of the smooth part
        smooth = split_kinks(feasible, form.template.regularizer)[0]
        steepness = float(np.linalg.norm(slope_of(smooth, form.space, start)))
        slope += certificate.size * steepness if np.isfinite(steepness) else math.inf
    gradient = data + noise_bound + slope + stiffness * (radius + float(np.linalg.norm(start)))
    public = public_norms(data, noise_bound, certificate.added * radius, gradient, max(curved, mu) * radius)
    error = float(form.lengths.gradient_error(records, certificate.gradient_bound, loss_bend, radius, public) / mu)
    if feasible.is_space and not kinks:
        return error
    if kinks.epigraph is not None:
        region, room = kinks.epigraph.region, certificate.size * kinks.epigraph.room
        # The multipliers of an epigraph variable add up to its cost, times the rows' lengths.
        pulls = gradient + certificate.size * float(kinks.epigraph.weights.sum()) * longest_row(region)
        return 2 * error + math.sqrt(2) * dual_floor(region, mu, radius, gradient, pulls, room)
    if feasible.obstacle is not None:
        return math.inf
    if not feasible.has_projection:
        return error + dual_floor(feasible.region, mu, radius, 2 * gradient, 2 * gradient)
    lipschitz = max(records * loss_bend + stiffness, mu)
    # One gradient certifies no point here.
    if isinstance(certificate, OutputCertificate) or not math.isfinite(certificate.hessian_bound):
        proximal = projection_error(form, radius + gradient / lipschitz, certificate.size / lipschitz)
        return 2 * error + proximal * (1 + 2 * lipschitz / mu)
    root = math.sqrt(lipschitz * mu)
    return error + projection_error(form, radius + gradient / root, certificate.size / root) * (1 + 2 * root / mu)


def dual_floor(region: Region, mu: float, radius: float, gradient: float, pulls: float, room: float = 0.0) -> float:
    """Bound the rounding part of a distance that multipliers certify, over all answers of norm at most `radius`.

    Let s_j be the margins of the inequalities at a point p of K, and y the minimiser's multipliers.  The sum of the y_j s_j is
    at most the objective's decrease from p.  If inequalities hold to a fraction r of margins, the gap is a multiple of r times
    this decrease.  `gradient` bounds the slope, `pulls` the terms of gradients and multipliers, `room` the cost of heights
    above terms at p.
    """
    reach = radius + float(np.linalg.norm(region.inside.astype(float)))
    decrease = min(gradient * reach, gradient**2 / mu) + room
    count = sum(len(block.offset) for block in (*region.blocks, *region.cuts(region.inside)))
    # One rounding for each term in multipliers and rows.
    residual = (8 * (64 + count + region.dim) * EPSILON + region.tilt) * pulls / mu + 8 * EPSILON * radius
    if region.is_polyhedral:  # its points are found in exact arithmetic, without a gap
        return residual
    return math.sqrt(GAPS * relative_rounding(region, radius) * decrease / mu) + residual


def answer_radius(analysis: Analysis, certificate: Certificate, noise_bound: float, records: float) -> float:
    """Bound the norm of a certificate's minimiser, over all data sets of so many records and noise up to a bound."""
    mu, bound = certificate.strong_convexity, certificate.gradient_bound
    smooth = smooth_analysis(analysis, certificate.smoothing) if certificate.smoothing else analysis
    return minimiser_norm(smooth, mu, bound, certificate.size, certificate.added, records, noise_bound)


def minimiser_norm(
    analysis: Analysis, mu: float, gradient_bound: float, size: float, added: float, records: float, noise: float
) -> float:
    """Bound the norm of the minimiser (docs/release.md, section 4).

    Let theta_0 be the point of K nearest to 0, and s the slope of the public part there.  The minimiser's distance r from
    theta_0 has ``mu r <= nG + s + ||b||``.  If theta_0 is 0, then ``mu r^2 - (s + ||b||) r <= n D``, with D the largest drop
    of a loss, because losses are convex.
    """
    start, slope = public_start(analysis, size, added)
    pull = slope + noise
    reach = (records * gradient_bound + pull) / mu
    if not start.any():
        root = math.sqrt(pull**2 + 4 * mu * records * analysis.largest_drop)
        reach = min(reach, (pull + root) / (2 * mu) * (1 + NORM_SLACK))
    return min(float(np.linalg.norm(start)) + reach, analysis.form.feasible.norm_bound)


def largest_count(privacy: Privacy, size: int) -> int:
    rows = privacy.most if privacy.keep == "weights" else 1  # if people are counted
    return size * rows * (SURPLUS if privacy.adjacency == "add-remove" else 1)


def public_start(analysis: Analysis, size: float, added: float) -> tuple[Array, float]:
    """Return the point of K nearest to 0, and the norm of a subgradient of the public part there (0 if there is none)."""
    start, gradient = start_and_slope(analysis)
    norm = float(np.linalg.norm(size * gradient + added * start))
    return start, norm if np.isfinite(norm) else 0.0


@once
def start_and_slope(analysis: Analysis) -> tuple[Array, Array]:
    form, kinks = analysis.form, kinks_of(analysis.form)
    start = np.zeros(form.space.dim)  # 0 itself if K is not known well enough
    if kinks.epigraph is not None:
        start = kinks.epigraph.inside
    elif form.feasible.obstacle is None:
        feasible = form.feasible
        start = feasible.project(start) if feasible.has_projection else feasible.region.bring_in(start).astype(float)
    return start, slope_of(form.template.regularizer, form.space, start)


def kinks_of(form: LossForm) -> Kinks:
    return split_kinks(form.feasible, form.template.regularizer)[1]


def projection_error(form: LossForm, norm: float, step: float) -> float:
    """Bound the error of a computed proximal step from a point of this norm."""
    kinks = kinks_of(form)
    return form.feasible.error(norm) + 4 * EPSILON * norm + (kinks.error(norm, step) if kinks else 0.0)


def regularizer_curvature(form: LossForm, radius: float) -> CurvatureBounds:
    """Bound the curvature of a regularizer, without kinks in a proximal map, at all points of K up to a norm."""
    bounded = form.feasible.norm_bound
    radius = bounded if bounded <= radius else 2.0 ** math.ceil(math.log2(max(radius, 1e-100)))
    return curvature_up_to(form, radius)


@once
def quadratic_parts(form: LossForm) -> tuple[float, float, Expression | None]:
    """Return the largest absolute row sum of the squares' Hessian, the curvature of determinants over K, and all other terms."""
    smooth, _ = split_kinks(form.feasible, form.template.regularizer)
    if known_part := as_quadratic(smooth, form.space):
        return largest_row_sum(known_part.hessian), 0.0, None
    bent: dict[Expression, sp.csr_array] = {}
    rest: dict[Expression, sp.csr_array] = {}
    determinants = 0.0
    for part, row in linear_parts(smooth).items():
        least = form.feasible.least_eigenvalue(part.args[0]) if part.atom is LOG_DET else 0.0
        if least > 0:  # the curvature of log det P along V is tr(P^-1 V P^-1 V)
            determinants += float(abs(row).sum()) / least**2
            continue
        known = part.is_affine or as_squares(part, row.toarray()[0]) is not None
        (bent if known else rest)[part] = row
    known_part = quadratic_of(bent, form.space)
    assert known_part is not None
    return largest_row_sum(known_part.hessian), determinants * (1 + TAIL_SLACK), weighted_sum(rest) if rest else None


@once
def curvature_up_to(form: LossForm, radius: float) -> CurvatureBounds:
    stiff, determinants, rest = quadratic_parts(form)
    if rest is None:
        return CurvatureBounds(stiff, determinants, math.inf)
    if not math.isfinite(radius):
        return CurvatureBounds(stiff, math.inf, radius, "nothing bounds the answer")
    try:
        (scalar,), gram = bound_entries(rest, form, radius)
    except NotPrivate as error:
        return CurvatureBounds(stiff, math.inf, radius, str(error).splitlines()[0])
    if scalar.kink is not None:
        return CurvatureBounds(stiff, math.inf, radius, scalar.kink.reason)
    other = determinants + curvature_bound(scalar.pieces, gram, form.space.dim).eigenvalue
    return CurvatureBounds(stiff, other, radius)
