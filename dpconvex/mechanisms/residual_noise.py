"""Residual noise: exact integer noise on a grid hides the distance of an answer from the minimiser (docs/release.md)."""

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from dpconvex.accounting.events import Approximate, Composition, Event, Pure, Tail
from dpconvex.certificates.certificate import Certificate, OutputCertificate, StatisticsCertificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.integer_noise import IntegerNoise, laplace_count, perturb
from dpconvex.errors import DomainError, DPConvexError, NotPrivate, TemplateError
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.rounding import (
    answer_radius,
    kinks_of,
    largest_count,
    largest_distance_floor,
    regularizer_curvature,
)
from dpconvex.model.privacy import Privacy, remaining
from dpconvex.noise.discrete import GAUSSIAN, LAPLACE, measurement
from dpconvex.noise.gaussian import GRID_LOSS, TRUNCATED, failure_delta, gaussian_sigma, integer_scale
from dpconvex.numerics import EPSILON, GRID_SLACK, NORM_SLACK, TAIL_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.regularizer import largest_row_sum
from dpconvex.util.arguments import FRACTION, POSITIVE, check_fields, require

# Default share of epsilon for the residual noise; its largest epsilon; its share if the residual noise would be larger than the
# mechanism's: more epsilon lowers that noise, and then raises the distance that rounding can certify.
SHARE, LARGEST_EPSILON, EVEN = 0.01, 0.1, 0.5
# The part of it for a noisy number of records, and the margins of this noise that a certificate covers.
COUNTED, MARGINS = 0.25, 1.1
# Size of the residual noise next to the least effect of the mechanism's noise on the answer, if rounding allows it.
RELATIVE_SIZE = 0.01
# Ratio of the tolerance to the rounding floor, so that every fit can be certified: one gradient suffices without constraints
# and kinks; steps with a projection, and multipliers, need more room.
FREE_ROOM, ROOM_OF_STEPS = 3.0, 10.0
# The norm of log-concave noise exceeds this many means with probability at most TRUNCATED; the exponential is the worst.
LOG_CONCAVE = 70.0

DROWNED = (
    "The residual noise is larger than the mechanism's own: with these constants answers may be so large, or the objective so "
    "curved, that rounding certifies no shorter a distance. Bound the parameters by a constraint, or regularize more."
)
SMOOTHER = (
    "smooth it (cp.huber), write nonsmooth terms as norms or largest entries of disjoint variables that no constraint touches "
    "(docs/theory.md, section 13), write a nuclear norm as the only constraint and that of a semidefinite matrix as its trace, "
    "keep arguments of logarithms and powers off the ends of their domains by constraints, or use NoisyGradientDescent"
)
SOURCE = (
    "adaptive composition of the exact answer and the noisy difference of the computed one from it; docs/release.md"
)
COVER_SOURCE = {
    LAPLACE: "Ghosh, Roughgarden & Sundararajan 2012, in l1; docs/release.md",
    GAUSSIAN: "exact profile of the Gaussian mechanism, of which it is an image; docs/theory.md, section 8",
}


@dataclass(frozen=True)
class ResidualNoise:
    """Hide the distance between the computed answer and the exact one by noise.

    Parameters
    ----------
    share : float
        Fraction of epsilon (and of delta) that pays for the residual noise, in (0, 1); below a half at most 0.1 of epsilon.
        With the default it is a half, without that limit, where the residual noise would be the larger one.  Under add-remove
        adjacency a quarter of it pays for a noisy number of records, which the tolerance depends on.
    tolerance : float, optional
        Largest distance from the exact answer that a solver may leave.  The default makes the residual noise negligible beside
        the mechanism's noise, but stays above the rounding floor of all data.
    """

    share: float = SHARE
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, share=FRACTION, tolerance=POSITIVE.or_none)

    def split(self, privacy: Privacy) -> tuple[Privacy, Privacy]:
        """Divide a guarantee between the mechanism and the residual noise, without exceeding it in real numbers."""
        epsilon = min(self.share * privacy.epsilon, LARGEST_EPSILON if self.share < EVEN else math.inf)
        spent = privacy.part(epsilon, self.share * privacy.delta)
        return privacy.minus(spent), spent

    def certify(self, mechanism: Mechanism, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Prove a mechanism private with residual noise.  Choose mechanism and share for the least sum of both noises."""
        best = self._certify(mechanism, analysis, privacy, size)
        others = getattr(mechanism, "others", None)
        drowned = best.residual_dominates
        every = [(self, one) for one in (others(analysis, best) if drowned and callable(others) else ())]
        every += [(replace(self, share=EVEN), mechanism)] if drowned and self.share == SHARE else []
        for share, one in every:
            with suppress(NotPrivate, TemplateError, ArithmeticError, ValueError):
                found = share._certify(one, analysis, privacy, size)
                best = min(best, found, key=lambda one: one.noise_shift + (one.cover.size if one.cover else 0.0))
        return best

    def _certify(self, mechanism: Mechanism, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        rest, spent = self.split(privacy)
        bare = mechanism.certify(analysis, rest, size)
        counting = COUNTED * spent.epsilon if privacy.adjacency == "add-remove" else 0.0
        records: float = largest_count(privacy, bare.size)
        if counting:
            records += math.ceil(MARGINS * margin(counting, privacy.most))
        own = spent.part(remaining(spent.epsilon, counting), spent.delta)
        tail = (2 if counting else 1) * failure_delta(TRUNCATED, privacy.epsilon)
        found, noise, steps = with_cover(mechanism, analysis, bare, own, counting, tail, records, asked=self.tolerance)
        whole = found.copied(
            privacy=privacy,
            cover=noise,
            derivation=Derivation("mechanism, then residual noise", "", privacy.claims, SOURCE, steps),
            assumptions=(*bare.assumptions, *assumptions(bare, noise, tail), analysis.form.template.taken),
            diameter=analysis.form.feasible.diameter,
            event=released_event(bare, noise),
        )
        return whole.advised(DROWNED) if whole.residual_dominates else whole


def cover_records(mechanism: Mechanism, analysis: Analysis, certificate: Certificate, records: float) -> Certificate:
    """Return the certificate for at most this number of records; unchanged if it covers as many."""
    cover = certificate.cover
    assert cover is not None
    if records <= cover.records:
        return certificate
    spent = certificate.privacy.part(cover.epsilon, cover.delta)
    bare = certificate.copied(event=certificate.event, derivation=certificate.derivation.children[0])
    tail = (2 if cover.counting else 1) * failure_delta(TRUNCATED, certificate.epsilon)
    try:
        larger, noise, steps = with_cover(mechanism, analysis, bare, spent, cover.counting, tail, records, more=True)
    except TemplateError as error:
        why = "there are far more records than the nominal number, and noise for them cannot be certified; nothing is released"
        raise DomainError(f"{why}. Pass a larger nominal number as `size`. ({error})") from error
    derivation = replace(certificate.derivation, children=steps)
    return larger.copied(event=certificate.event, cover=noise, derivation=derivation)


def with_cover(
    mechanism: Mechanism,
    analysis: Analysis,
    bare: Certificate,
    spent: Privacy,
    counting: float,
    tail: float,
    records: float,
    more: bool = False,
    asked: float | None = None,
) -> tuple[Certificate, IntegerNoise, tuple[Derivation, ...]]:
    """Choose tolerance and residual noise for at most `records`, from public numbers; `more` if a certificate is extended."""
    chosen = getattr(mechanism, "chosen", None)
    mechanism = chosen(bare) if callable(chosen) else mechanism
    hiding = getattr(mechanism, "hiding", None)
    if not bare.minimises and callable(hiding):
        bare = hiding(analysis, bare, records)
    cap = noise_cap(mechanism, bare)
    if bare.minimises:
        drawn = 0.0 if isinstance(bare, OutputCertificate) else cap
        check_smoothness(analysis, bare, drawn, records)
        least = room_above(analysis) * largest_distance_floor(analysis, bare, drawn, records)
        unit = calibrate_residual_noise(spent, 1.0, analysis.form.space.dim).size
        usual = bare.tolerance if more else usual_tolerance(analysis, bare, drawn, records) / max(unit, 1.0)
        tolerance = asked if asked is not None else max(least, usual)
        why = f"cannot be certified for all data: double precision allows {least:.3g} here"
        require(tolerance >= least, f"a tolerance of {tolerance:.3g} {why}. Leave `tolerance` out, or regularize more.")
        bare = bare.copied(event=bare.event, tolerance=tolerance)
    elif asked is not None and isinstance(bare, StatisticsCertificate):
        raise TemplateError("a ResidualNoise for sufficient statistics only hides rounding: leave `tolerance` out.")
    distance = drawing_error(mechanism, analysis, bare, cap, records) + bare.tolerance
    count = bare.noise_dimension if isinstance(bare, StatisticsCertificate) else analysis.form.space.dim
    law = bare.cover.noise if more and bare.cover else ""  # another law of noise would be another event
    noise = calibrate_residual_noise(spent, distance, count, cap, tail, law)
    noise = replace(noise, records=float(records), counting=counting)
    return bare, noise, (bare.derivation, *residual_steps(noise))


def room_above(analysis: Analysis) -> float:
    return FREE_ROOM if analysis.form.feasible.is_space and not kinks_of(analysis.form) else ROOM_OF_STEPS


def usual_tolerance(analysis: Analysis, certificate: Certificate, cap: float, records: float) -> float:
    """Return the size of residual noise that is small next to the least effect of the mechanism's noise on the answer."""
    if isinstance(certificate, OutputCertificate):
        return RELATIVE_SIZE * certificate.expected_noise
    radius = answer_radius(analysis, certificate, cap, records)
    regular = largest_row_sum(analysis.regularizer[0]) + regularizer_curvature(analysis.form, radius).rest
    curvature = certificate.size * (certificate.hessian_bound + regular) + certificate.added
    return RELATIVE_SIZE * certificate.expected_noise / max(curvature, certificate.strong_convexity)


def released_event(bare: Certificate, noise: IntegerNoise) -> Event:
    """Return the event of a release: the mechanism, residual noise, a noisy count, and truncation failures."""
    promise = bare.privacy
    known = Pure(promise.epsilon) if promise.pure else Approximate(promise.epsilon, promise.delta)
    counted = (Pure(noise.counting),) if noise.counting else ()
    return Composition((bare.event or known, noise.event, *counted, Tail((2 if counted else 1) * TRUNCATED)))


def check_smoothness(analysis: Analysis, certificate: Certificate, cap: float, records: float) -> None:
    """Raise if some data have no certified answer: failures would then depend on the data without protection."""
    form = analysis.form
    bend = regularizer_curvature(form, answer_radius(analysis, certificate, cap, records) * (1 + 1e-6))
    if not math.isfinite(bend.rest):
        why = (
            "nothing bounds the curvature of the regularizer, so the distance of a computed answer from the exact one may be "
            f"impossible to certify, depending on the data: {bend.reason}"
        )
        raise NotPrivate(why, form.template.regularizer, SMOOTHER)


def residual_steps(noise: IntegerNoise) -> tuple[Derivation, ...]:
    values = {
        "epsilon": noise.epsilon,
        "delta": noise.delta,
        "tau": noise.distance,
        "grid step": noise.step,
        "sensitivity in steps": noise.sensitivity,
        "scale in steps": noise.scale,
        "truncation of the mechanism's noise": noise.noise_cap,
    }
    covered = Derivation("residual noise", "", values, COVER_SOURCE[noise.noise])
    if not noise.counting:
        return (covered,)
    counted = {"epsilon": noise.counting, "tau holds for records": noise.records}
    return Derivation("noisy number of records", "", counted, COVER_SOURCE[LAPLACE]), covered


def noise_cap(mechanism: Mechanism, certificate: Certificate) -> float:
    """Bound the norm of the noise, except with probability 2^-100, by the mechanism or as for log-concave noise with its mean."""
    own = getattr(mechanism, "noise_bound", None)
    return float(own(certificate, TRUNCATED)) if callable(own) else LOG_CONCAVE * certificate.expected_noise


def drawing_error(
    mechanism: Mechanism, analysis: Analysis, certificate: Certificate, cap: float, records: float
) -> float:
    """Bound the movement of the answer because noise is drawn, and added, in floating point."""
    relative = (analysis.form.space.dim + 16) * EPSILON
    if isinstance(certificate, StatisticsCertificate):
        reach = records * certificate.gradient_bound
        return (certificate.noise_dimension + 16) * EPSILON * cap + EPSILON * (reach + cap)
    if not certificate.minimises:
        return 0.0
    if isinstance(certificate, OutputCertificate):
        reach = answer_radius(analysis, certificate, 0.0, records) + cap
        return relative * (cap + reach) + 4 * EPSILON * reach
    own = getattr(mechanism, "noise_rounding", None)
    more = float(own(certificate, TRUNCATED)) if callable(own) else 0.0
    return (relative * cap + more) / certificate.strong_convexity


def calibrate_residual_noise(
    spent: Privacy, distance: float, dimension: int, noise_cap: float = 0.0, tail: float = TRUNCATED, law: str = ""
) -> IntegerNoise:
    """Choose grid and noise for answers within a distance tau of the exact one.

    Two answers near the same exact one are at most 2 tau apart, and rounding moves each coordinate by at most half a step.  On
    the grid they are at most ``2 tau sqrt(dim)/step + dim`` steps apart in l1, and ``2 tau/step + sqrt(dim)`` in l2.
    """
    if not 1e-250 < distance < 1e250:
        raise DPConvexError(f"residual noise: no floating-point grid fits distance {distance!r}; rescale the problem.")
    root = math.sqrt(dimension)
    step = 2.0 ** math.floor(math.log2(distance / (8 * root)))
    total = math.floor((2 * distance * root / step + dimension) * (1 + NORM_SLACK))
    scale = math.nextafter(total / spent.epsilon, math.inf)
    parts = (spent.epsilon, spent.delta, distance, step, dimension)
    laplace = IntegerNoise(LAPLACE, *parts, float(total), scale, noise_cap)
    if spent.delta <= 2 * tail:  # delta is too small for Gaussian noise
        return laplace
    euclidean = (2 * distance / step + root) * (1 + NORM_SLACK)
    sigma = gaussian_sigma(spent.epsilon, spent.delta - tail - failure_delta(GRID_LOSS, spent.epsilon), 1.0)
    gaussian = IntegerNoise(GAUSSIAN, *parts, euclidean, integer_scale(sigma * euclidean * (1 + GRID_SLACK)), noise_cap)
    return min((n for n in (laplace, gaussian) if law in ("", n.noise)), key=lambda noise: noise.size)


def check_noise(certificate: Certificate) -> None:
    """Raise, before charging, if the residual noise is not private, or OpenDP cannot draw it or the noise of a count."""
    cover = certificate.cover
    if cover is None:
        return
    cover.check()
    measurement(cover.noise, cover.scale)
    if cover.counting:
        measurement(LAPLACE, laplace_count(cover.counting, certificate.privacy.most).scale)


def margin(counting: float, most: int = 1) -> float:
    """Return the bound that integer noise of scale most/epsilon exceeds with probability below 2^-100."""
    return math.ceil(-math.log(TRUNCATED) / counting * most * (1 + TAIL_SLACK))


def noisy_upper_count(cover: IntegerNoise, count: int, rng: np.random.Generator | None = None, most: int = 1) -> float:
    """Release an upper bound on the number of records, of sensitivity `most`, which fails with probability below 2^-100."""
    noisy = perturb(np.array([float(count)]), laplace_count(cover.counting, most), rng)
    return float(noisy[0]) + margin(cover.counting, most)


def assumptions(certificate: Certificate, noise: IntegerNoise, tail: float) -> tuple[str, ...]:
    counted = "is part of delta" if noise.delta > 2 * tail else "comes on top of the guarantee"
    said = (
        f"The mechanism's noise has norm at most {noise.noise_cap:.4g}, except with probability below 2^-100 (a truncation "
        f"failure), which {counted}.",
        certificate.drawn,
        f"The residual noise is drawn exactly ({noise.noise}, by OpenDP) from the operating system's random numbers.",
    )
    more = (
        f"Where there are more than {noise.records:.4g} records, or their noisy number says so, tau is larger, and the release "
        f"says how large; the noise of that number exceeds its bound with a probability below 2^-100, which {counted}."
    )
    return (*said, more) if noise.counting else said
