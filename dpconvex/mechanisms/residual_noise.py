"""The covered release: exact noise on a grid, for the distance between the computed answer and the exact one.

A theorem speaks of an exact minimiser and of real numbers; a program returns an answer within tau of that minimiser, made of
floating-point numbers.  The difference depends on the data, so it is an output of its own, and is protected like one: the
answer is rounded to a fixed grid and perturbed by integer noise that OpenDP draws exactly.  By the triangle inequality the
difference moves by at most 2 tau between neighbours, whatever it is.  Its share of the budget, tau and the grid are fixed
before any data are read (docs/release.md has the proof).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpconvex.accounting.events import Approximate, Composition, Event, Pure, Tail
from dpconvex.calculus.analysis import Analysis
from dpconvex.core.arguments import is_real
from dpconvex.core.derivation import Derivation
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.language.privacy import Privacy, left
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import TAIL, Certificate, tail_of
from dpconvex.mechanisms.grid import GAUSSIAN, LAPLACE, IntegerNoise, laplace_count, measurement
from dpconvex.mechanisms.regularizer_curvature import bend_of
from dpconvex.mechanisms.rounding import (
    COUNTED,
    LARGEST_EPSILON,
    SHARE,
    answer_radius,
    covered_count,
    largest_eigenvalue,
    largest_floor,
    margin,
)
from dpconvex.noise.gaussian_profiles import gaussian_sigma, grid_loss, on_integers
from dpconvex.noise.spherical import SPHERICAL

# Where rounding allows it, the residual noise is this small next to the least that the mechanism's noise may do to the answer, in
# every direction: both are independent, so together they are longer by half the square of it, .005 %.
RELATIVE_SIZE = 0.01
# The tolerance is this many times the floor that rounding sets, so that every fit can be certified.
ABOVE_FLOOR = 10.0
# The same for numbers of records that a noisy number of them all but excludes.
ABOVE_RARE_FLOOR = 2.0
# A norm with a log-concave law exceeds so many times its mean with probability TAIL at most; the exponential is the worst.
LOG_CONCAVE = 70.0
# Relative error of everything computed below; sensitivities are rounded up by it.
SLACK = 1 + 1e-12
# Gaussian noise on the grid is larger by this than it need be, and what it keeps is asked before anything is paid with half of
# that to spare: then the noise for any other distance, whose scale over sensitivity is the same but for rounding, keeps it too.
ROOM, SPARE = 1 + 4e-9, 1 + 2e-9

SOURCE = "adaptive composition of the exact answer and its perturbed residual; docs/release.md"
COVER_SOURCE = {
    LAPLACE: "Ghosh, Roughgarden & Sundararajan 2012, in l1; docs/release.md",
    GAUSSIAN: "exact profile of the Gaussian mechanism, of which it is an image; docs/theory.md, section 8",
}


@dataclass(frozen=True)
class Cover:
    """How the distance between the computed answer and the exact one is covered.

    Parameters
    ----------
    share : float
        Fraction of epsilon (and of delta) that pays for the residual noise, in (0, 1); at most 0.1 of epsilon is ever
        used.  Under add-remove adjacency a quarter of it pays for a noisy number of records, which the tolerance depends on.
    tolerance : float, optional
        Largest distance from the exact answer that a solver may leave.  By default, a public function of the problem's
        constants: as small as makes the residual noise negligible next to the mechanism's noise, but above what
        rounding allows to
        certify for any data.  A mechanism that pays for that distance itself, as output perturbation does, keeps its own.

    Raises
    ------
    TemplateError
        If a number is out of range.
    """

    share: float = SHARE
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not (is_real(self.share) and 0 < self.share < 1):
            raise TemplateError(f"Cover: share must be a number between 0 and 1, not {self.share!r}.")
        tolerance = self.tolerance
        if tolerance is not None and not (is_real(tolerance) and 0 < tolerance < math.inf):
            raise TemplateError(f"Cover: tolerance must be positive and finite, not {tolerance!r}.")

    def split(self, privacy: Privacy) -> tuple[Privacy, Privacy]:
        """Divide a promise between the mechanism and the residual noise; as real numbers the two do not exceed it.

        Returns
        -------
        rest, spent : Privacy
        """
        epsilon = min(self.share * privacy.epsilon, LARGEST_EPSILON)
        spent = Privacy(epsilon, self.share * privacy.delta, privacy.adjacency)
        return privacy.minus(spent), spent

    def certify(self, mechanism: Mechanism, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Prove a mechanism private on what the residual noise leaves of a promise, and calibrate the residual noise.

        Parameters
        ----------
        mechanism : Mechanism
        analysis : Analysis
        privacy : Privacy
            The whole promise.
        size : int

        Returns
        -------
        Certificate
            Of the whole: its `cover` says what is drawn, its `tolerance` what a solver has to reach.

        Raises
        ------
        NotPrivate
            If the mechanism has no proof.
        TemplateError
            If the tolerance lies below what rounding allows.
        """
        rest, spent = self.split(privacy)
        counting = COUNTED * spent.epsilon if privacy.adjacency == "add-remove" else 0.0
        bare = mechanism.certify(analysis, rest, size)
        records = covered_count(privacy, size, counting)
        if not bare.minimises:  # the mechanism pays for rounding itself, and knew no share
            records = min(records, covered_count(rest, size))
        spare = margin(counting) if counting else 0.0
        looser = getattr(mechanism, "looser", None)
        if bare.pays_for_distance and callable(looser):  # noise for a distance that can be certified
            least = least_tolerance(analysis, bare, 0.0, records, spare) * (1 + 1e-6)
            other = looser(bare, least) if bare.tolerance < least < math.inf else None
            bare = bare if other is None else replace(other.certify(analysis, rest, size), advice=bare.advice)
        cap = noise_cap(mechanism, bare)
        check_smoothness(analysis, bare, cap, records)
        own = Privacy(left(spent.epsilon, counting), spent.delta, privacy.adjacency)
        tolerance = self._tolerance(analysis, bare, cap, own, records, spare)
        tail = tail_cost(privacy)
        bare = replace(bare, tolerance=tolerance)
        noise = residual_noise(mechanism, analysis, bare, own, cap, tail, records, counting)
        return replace(
            bare,
            privacy=privacy,
            cover=noise,
            derivation=Derivation(
                "covered release",
                "",
                privacy.claims,
                SOURCE,
                (bare.derivation, *residual_steps(noise)),
            ),
            assumptions=bare.assumptions + assumptions(bare, noise, tail),
            event=released_event(bare, noise),
        )

    def _tolerance(
        self, analysis: Analysis, certificate: Certificate, cap: float, spent: Privacy, records: float, spare: float
    ) -> float:
        """Choose the distance that solvers must certify, from public numbers."""
        if not certificate.minimises:  # the mechanism knows how exact its answer is
            return certificate.tolerance
        least = least_tolerance(analysis, certificate, linear_cap(certificate, cap), records, spare)
        asked = certificate.tolerance if certificate.pays_for_distance else self.tolerance
        if asked is None:
            unit = calibrate_residual_noise(spent, 1.0, analysis.form.space.dim).size
            shift = certificate.expected_noise / largest_curvature(analysis, certificate, cap, records)
            return max(least, RELATIVE_SIZE * shift / unit)
        if asked < least:
            raise TemplateError(
                f"a tolerance of {asked:.3g} cannot be certified for all data: double precision allows {least:.3g} here. "
                "Leave it out, or regularize more."
            )
        return asked


def released_event(bare: Certificate, noise: IntegerNoise) -> Event:
    """Return what a covered release is for accounting: the mechanism, the cover, a noisy count, and noise beyond its cap."""
    promise = bare.privacy
    if bare.event is not None:
        own = bare.event
    else:  # a mechanism of which only its promise is known
        own = Pure(promise.epsilon) if promise.pure else Approximate(promise.epsilon, promise.delta)
    counted = (Pure(noise.counting),) if noise.counting else ()
    tails = Tail(tail_cost(promise) / tail_of(promise.epsilon) * TAIL)
    return Composition((own, noise.event, *counted, tails))


def linear_cap(certificate: Certificate, cap: float) -> float:
    """Return the bound on the linear term in what is minimised: none if the noise is added afterwards."""
    return 0.0 if certificate.pays_for_distance else cap


def least_tolerance(analysis: Analysis, certificate: Certificate, cap: float, records: float, spare: float) -> float:
    """Return a distance that solvers reach with ease, whatever the data."""
    usual = ABOVE_FLOOR * largest_floor(analysis, certificate, cap, records - spare)
    return max(usual, ABOVE_RARE_FLOOR * largest_floor(analysis, certificate, cap, records)) if spare else usual


def largest_curvature(analysis: Analysis, certificate: Certificate, cap: float, records: float) -> float:
    """Bound the curvature of the whole objective: noise b moves the minimiser by ``||b||`` over this, at least."""
    radius = answer_radius(analysis, certificate, linear_cap(certificate, cap), records)
    regular = largest_eigenvalue(analysis) + bend_of(analysis.form, radius).rest
    return max(
        certificate.size * (certificate.hessian_bound + regular) + certificate.added, certificate.strong_convexity
    )


def check_smoothness(analysis: Analysis, certificate: Certificate, cap: float, records: float) -> None:
    """Refuse what may have no certified answer: whether a fit fails would then depend on the data, and nothing hides that."""
    if not certificate.minimises:
        return
    form = analysis.form
    radius = answer_radius(analysis, certificate, linear_cap(certificate, cap), records)
    bend = bend_of(form, radius * (1 + 1e-6))
    if not math.isfinite(bend.rest):
        raise NotPrivate(
            "nothing bounds the curvature of the regularizer, so the distance of a computed answer from the exact one may be "
            f"impossible to certify, depending on the data: {bend.reason}",
            form.template.regularizer,
            "smooth its kinks (cp.huber), bound the variables so that its curvature is bounded, write kinks as norms or largest "
            "entries of disjoint free variables (docs/theory.md, section 13), or use NoisyGradientDescent",
        )


def tail_cost(privacy: Privacy) -> float:
    """Return the part of delta that pays for noise which is longer than its bound: the mechanism's, and that of a count."""
    events = 2 if privacy.adjacency == "add-remove" else 1
    return events * tail_of(privacy.epsilon)


def residual_noise(
    mechanism: Mechanism,
    analysis: Analysis,
    certificate: Certificate,
    spent: Privacy,
    cap: float,
    tail: float,
    records: float,
    counting: float,
) -> IntegerNoise:
    left_behind = linear_cap(certificate, certificate.tolerance)
    distance = drawing_error(mechanism, analysis, certificate, cap, records) + left_behind
    noise = calibrate_residual_noise(spent, distance, analysis.form.space.dim, cap, tail)
    return replace(noise, records=records, counting=counting)


def residual_steps(noise: IntegerNoise) -> tuple[Derivation, ...]:
    values = {
        "epsilon": noise.epsilon,
        "delta": noise.delta,
        "tau": noise.distance,
        "grid step": noise.step,
        "sensitivity in steps": noise.sensitivity,
        "scale in steps": noise.scale,
        "cap on the noise": noise.noise_cap,
    }
    covered = Derivation("cover of the residual", "", values, COVER_SOURCE[noise.noise])
    if not noise.counting:
        return (covered,)
    counted = {"epsilon": noise.counting, "tau holds for records": noise.records}
    return Derivation("noisy number of records", "", counted, COVER_SOURCE[LAPLACE]), covered


def noise_cap(mechanism: Mechanism, certificate: Certificate) -> float:
    """Return a bound on the norm of a mechanism's noise that holds but for a probability of 2^-100.

    A mechanism with noise of its own kind says so with a method ``noise_bound(certificate, probability)``; else noise of an
    unknown kind is taken to have a norm with a log-concave law and the certificate's mean.
    """
    own = getattr(mechanism, "noise_bound", None)
    p, scale = certificate.noise_dimension, certificate.noise_scale
    if callable(own):
        return float(own(certificate, TAIL))
    law = SPHERICAL.get(certificate.noise)
    if law is not None:
        return law.quantile(p, scale, TAIL)
    return LOG_CONCAVE * certificate.expected_noise if p else 0.0


def drawing_error(
    mechanism: Mechanism, analysis: Analysis, certificate: Certificate, cap: float, records: float | None = None
) -> float:
    """Bound how far the answer moves because the noise is drawn, and added to an answer, in floating point.

    What rounding does to noise is proportional to its norm; a mechanism for which that is not enough says so with a method
    ``noise_rounding(certificate, probability)``.
    """
    relative = (analysis.form.space.dim + 16) * UNIT
    own = getattr(mechanism, "noise_rounding", None)
    more = float(own(certificate, TAIL)) if callable(own) else 0.0
    if certificate.perturbed == "objective":
        return (relative * cap + more) / certificate.strong_convexity
    if certificate.pays_for_distance:
        reach = answer_radius(analysis, certificate, 0.0, records) + cap
        return relative * (cap + reach) + 4 * UNIT * reach
    return 0.0


def calibrate_residual_noise(
    spent: Privacy, distance: float, dimension: int, noise_cap: float = 0.0, tail: float = TAIL
) -> IntegerNoise:
    """Choose grid and noise for answers within a distance of the exact one.

    Two answers that come from neighbours and belong to the same exact answer are at most 2 tau apart.  Rounding moves each
    coordinate of each by half a step at most, so on the grid they are at most ``2 tau sqrt(dim)/step + dim`` steps apart in l1,
    and ``2 tau/step + sqrt(dim)`` in l2.
    """
    if not 1e-250 < distance < 1e250:
        raise DPConvexError(f"cover: there is no grid for a distance of {distance!r}; rescale the problem.")
    root = math.sqrt(dimension)
    step = 2.0 ** math.floor(math.log2(distance / (8 * root)))
    total = math.floor((2 * distance * root / step + dimension) * SLACK)
    scale = math.nextafter(total / spent.epsilon, math.inf)
    laplace = IntegerNoise(
        noise=LAPLACE,
        epsilon=spent.epsilon,
        delta=spent.delta,
        distance=distance,
        step=step,
        dimension=dimension,
        sensitivity=float(total),
        scale=scale,
        noise_cap=noise_cap,
    )
    if spent.delta <= 2 * tail:  # too little for Gaussian noise
        return laplace
    euclidean = (2 * distance / step + root) * SLACK
    left = spent.delta - tail - grid_loss(spent.epsilon)
    sigma = on_integers(gaussian_sigma(spent.epsilon, left, 1.0) * euclidean * ROOM)
    gaussian = replace(laplace, noise=GAUSSIAN, sensitivity=euclidean, scale=sigma)
    return min(laplace, gaussian, key=lambda noise: noise.size)


def confirm(certificate: Certificate) -> None:
    """Ask, before anything is paid, what the residual noise keeps, and whether OpenDP draws it and that of a count."""
    cover = certificate.cover
    if cover is None:
        return
    if not replace(cover, sensitivity=cover.sensitivity * (SPARE if cover.is_gaussian else 1.0)).holds:
        raise DPConvexError("cover: the calibrated noise does not keep its share of the promise; nothing is released.")
    measurement(cover.noise, cover.scale)
    if cover.counting:
        measurement(LAPLACE, laplace_count(cover.counting).scale)


def assumptions(certificate: Certificate, noise: IntegerNoise, tail: float) -> tuple[str, ...]:
    """Say what the proof about the released numbers takes for granted."""
    counted = "is paid from the cover's delta" if noise.delta > 2 * tail else "comes on top of the promise"
    drawn = (
        "Drawing the mechanism's noise in floating point moves an ideal draw by at most (dim + 16) 2^-52 of its norm, which is "
        "covered."
    )
    if certificate.noise == "matrix":
        drawn = (
            "Drawing the mechanism's noise in floating point moves an ideal draw by no more than docs/release.md proves, but for "
            "the same probability; that is covered."
        )
    if certificate.perturbed == "gradients":
        drawn = (
            "The noise of every step is taken to be ideal, although it is drawn and added in floating point; what is covered "
            "are the digits of the answer."
        )
    said = [
        f"The mechanism's noise has norm at most {noise.noise_cap:.4g}: it exceeds that with a probability below 2^-100, which "
        f"{counted}.",
        drawn,
        f"The cover's noise is drawn exactly ({noise.noise}, by OpenDP) from the operating system's random numbers.",
    ]
    if noise.counting:
        said.append(
            f"Where there are more than {noise.records:.4g} records, or their noisy number says so, tau is larger, and the "
            "release says how large; the noise of that number exceeds its bound with a probability below 2^-100, which "
            f"{counted}."
        )
    return tuple(said)
