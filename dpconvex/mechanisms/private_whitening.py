"""Private whitening: a noisy second moment of the records first, and then any mechanism on records that it makes round.

Released is ``S + noise``, ``S = sum x x'`` in integers, with Gaussian noise drawn exactly.  With ``A = (S + noise + r)^(-1/2)``
all records become ``z = radius A x / ||A x||``, in the same ball (docs/theory.md, section 8; docs/release.md, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dpconvex.accounting.events import Composition, Gaussian, Tail
from dpconvex.certificates.certificate import Certificate, DescentCertificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.integer_noise import GAUSSIAN, LEVELS, WhiteningNoise, drawn
from dpconvex.data.domains import Ball
from dpconvex.data.record import Record
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.mechanisms.base import Mechanism, check_delta
from dpconvex.mechanisms.gradient_descent import for_directions
from dpconvex.mechanisms.residual_noise import ResidualNoise
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, on_whitened
from dpconvex.model.privacy import Privacy, left
from dpconvex.noise.profiles import GRID_LOSS, gaussian_delta, gaussian_sigma, grid_loss, integer_level
from dpconvex.numerics import TAIL_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arguments import FRACTION, TEXT
from dpconvex.util.arrays import Array, Indices

MOST_FEATURES = 4096
SOURCE = "docs/theory.md, section 8"
ASSUMED = (
    "The whitening's noise is drawn exactly (discrete Gaussian, by OpenDP) from the operating system's random numbers; that it "
    "is not continuous is paid for."
)


@dataclass(frozen=True)
class PrivateWhitening:
    """Whiten records by a noisy second moment, as a first stage of `verify` and `solve`.

    Whitened records need fewer steps and less noise.  The release carries the matrix, which reveals as much as the noisy second
    moment, and predicts from original records.

    Parameters
    ----------
    share : float
        Share of the cost, in (0, 1): of the squared level of one Gaussian mechanism, if the second stage is Gaussian too,
        otherwise of epsilon and delta.
    field : str, optional
        The field to whiten, a `Ball` in the Euclidean norm.  By default the only such field.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("logistic_regression", features=3, regularization=0)
    >>> privacy, mechanism = dp.Privacy(1.0, 1e-5, "add-remove"), dp.NoisyGradientDescent(clip=0.3)
    >>> certificate = dp.verify(template, privacy, 1000, mechanism, whitening=dp.PrivateWhitening())
    >>> round(certificate.whitening.share, 6)
    0.09
    """

    share: float = 0.09
    field: str | None = None

    def __post_init__(self) -> None:
        FRACTION.check("PrivateWhitening", share=self.share)
        TEXT.or_none.check("PrivateWhitening", field=self.field)

    def plan(
        self, cover: ResidualNoise, mechanism: Mechanism, analysis: Analysis, privacy: Privacy, size: int
    ) -> Stages:
        check_delta(privacy, "private whitening", "leave it out")
        name, ball = field_of(analysis.form.template.record, self.field)
        if isinstance(mechanism, SufficientStatistics):
            mechanism = on_whitened(mechanism, analysis.form, name)
        second = partial(cover.certify, mechanism, analysis, size=size)
        return self._together(cover, second, privacy, name, ball) or self._apart(second, privacy, name, ball)

    def _together(
        self, cover: ResidualNoise, second: Callable[[Privacy], Certificate], privacy: Privacy, name: str, ball: Ball
    ) -> Stages | None:
        """Compose two Gaussian mechanisms exactly; None if the second is none."""

        def excess(epsilon: float) -> float:
            rest, spent = cover.split(replace(privacy, epsilon=epsilon))
            whole = level(*for_both(privacy, spent.epsilon, spent.delta))
            return level(rest.epsilon, rest.delta) ** 2 - (1 - self.share) * whole**2

        # What the second stage may take; how exactly matters to the share alone, for the first one gets what is left.
        least, most = 1e-9 * privacy.epsilon, privacy.epsilon
        if not excess(least) < 0:
            return None
        if excess(most) > 0:
            most = float(brentq(excess, least, most, xtol=1e-12 * privacy.epsilon, rtol=1e-12))
        fit = second(replace(privacy, epsilon=most))
        own = fit.gaussian_level
        if own is None or fit.cover is None:
            return None
        epsilon, delta = for_both(privacy, left(most, fit.noise_epsilon), fit.cover.delta)
        first = math.sqrt(max(level(epsilon, delta) ** 2 - (own * (1 + TAIL_SLACK)) ** 2, 0.0)) / (1 + TAIL_SLACK)
        both = math.hypot(first, own)
        if not first > 0 or not gaussian_delta(epsilon, both) <= delta:
            return None
        share, paid = first**2 / (first**2 + own**2), left(privacy.epsilon, most)
        noise = calibrated(name, ball, privacy, first, epsilon=paid, share=share, composed=both)
        return Stages(privacy, noise, fit)

    def _apart(self, second: Callable[[Privacy], Certificate], privacy: Privacy, name: str, ball: Ball) -> Stages:
        part = privacy.part(self.share * privacy.epsilon, self.share * privacy.delta)
        fit = second(privacy.minus(part))
        first = level(*for_both(part, 0.0, 0.0)) / (1 + TAIL_SLACK)
        if not first > 0:
            why = "private whitening: what noise on the integers loses is no part of so small a delta"
            remedy = "ask for a larger delta or a smaller epsilon, or leave whitening out"
            raise NotPrivate(why, f"delta = {privacy.delta:g}", remedy)
        paid = {"epsilon": part.epsilon, "delta": part.delta, "share": self.share}
        return Stages(privacy, calibrated(name, ball, privacy, first, **paid), fit)


@dataclass(frozen=True)
class Stages:
    """Both stages, proved: the guarantee of the whole, the first one's noise, and the second one's certificate."""

    privacy: Privacy
    noise: WhiteningNoise
    fit: Certificate

    def whole(self, fit: Certificate | None = None) -> Certificate:
        fit, noise = self.fit if fit is None else fit, self.noise
        values = {"sensitivity": noise.sensitivity, "sigma": noise.sigma, "level": noise.level}
        why = "the Frobenius norm of x x' is the square of that of x; exact profile of the Gaussian mechanism"
        how = "squares of mu (GDP) add up" if noise.composed else "both parts add up"
        steps = (Derivation("whitening", "", values, why), fit.derivation)
        first, said = (
            (Gaussian(noise.level * (1 + TAIL_SLACK)), Tail(GRID_LOSS)),
            "private preconditioning, then the fit",
        )
        return fit.copied(
            privacy=self.privacy,
            whitening=noise,
            event=None if fit.event is None else Composition((*first, fit.event)),
            derivation=Derivation(said, "", self.privacy.claims, f"{how}; {SOURCE}", steps),
            assumptions=(*fit.assumptions, ASSUMED),
        )

    def released(self, sums: Indices, rng: np.random.Generator | None) -> Array:
        """Return the noisy second moment, in units of the squared radius, from exact sums in levels, shape (d, d)."""
        upper, scale = np.triu_indices(len(sums), 1), self.noise.scale
        noisy = np.diag(drawn(GAUSSIAN, scale, np.diag(sums), rng))
        noisy[upper] = drawn(GAUSSIAN, math.nextafter(scale / math.sqrt(2), math.inf), sums[upper], rng)
        return np.asarray((noisy + np.triu(noisy, 1).T) / float(LEVELS) ** 2)

    def adapted(self, analysis: Analysis, directions: float) -> Certificate:
        """Return the second stage's certificate for records that share so many directions, which are public by then."""
        if isinstance(self.fit, DescentCertificate) and self.fit.clip < math.inf:
            return for_directions(analysis, self.fit, directions)
        return self.fit


def for_both(privacy: Privacy, epsilon: float, delta: float) -> tuple[float, float]:
    """Return what is left for two Gaussian mechanisms: the first, on integers, loses a little."""
    return left(privacy.epsilon, epsilon), max(left(left(privacy.delta, delta), grid_loss(privacy.epsilon)), 0.0)


def field_of(record: Record, name: str | None) -> tuple[str, Ball]:
    balls = {key: d for key, d in record.continuous.items() if isinstance(d, Ball) and d.norm == 2}
    if name is None and len(balls) == 1:
        name = next(iter(balls))
    if name not in balls:
        known = f"one of the record's Euclidean balls, {list(balls)}"
        raise TemplateError(f"PrivateWhitening: name {known}, as `field`, not {name!r}.")
    dim = balls[name].dim
    if dim > MOST_FEATURES:
        raise TemplateError(f"PrivateWhitening: {dim} features are more than the {MOST_FEATURES} that it can do.")
    return name, balls[name]


def level(epsilon: float, delta: float) -> float:
    """Return the largest shift, in deviations, of a Gaussian mechanism that keeps a guarantee."""
    return 1 / gaussian_sigma(epsilon, delta, 1.0) if epsilon > 0 and delta > 0 else 0.0


def calibrated(name: str, ball: Ball, privacy: Privacy, first: float, **paid: float) -> WhiteningNoise:
    one = math.sqrt(2) if privacy.adjacency == "replace-one" else 1.0
    reach = privacy.most * one * (1 + TAIL_SLACK)  # rows are whitened one by one, whatever they weigh
    facts: dict[str, Any] = dict.fromkeys(("epsilon", "delta", "share", "composed"), 0.0) | paid
    facts |= {"field": name, "features": int(ball.dim), "radius": float(ball.radius)}
    noise = WhiteningNoise(level=first, sensitivity=reach, sigma=reach / first, **facts)
    # Off the diagonal sums have the smaller deviation, and count twice.
    if not integer_level(reach * float(LEVELS) ** 2, noise.scale / math.sqrt(2)) / math.sqrt(2) <= first * (
        1 + TAIL_SLACK
    ):
        raise NotPrivate("the whitening's noise is too small for its grid", f"sigma = {noise.sigma:g}", "ask for less")
    return noise


def whitened_matrix(moment: Array, sigma: float) -> tuple[Array, float]:
    """Return ``(S + r)^(-1/2)`` for a noisy second moment S, and the number of directions that records share evenly."""
    values, vectors = np.linalg.eigh(moment)
    values, edge = np.maximum(values, 0.0), sigma * math.sqrt(2 * len(values))
    kept = values / (values + edge)
    directions = float(kept.sum() / kept.max()) if kept.max() > 0 else 1.0
    return np.asarray((vectors / np.sqrt(values + edge)) @ vectors.T), directions
