"""Which event a certificate may have that was read from a file: one that its numbers, which its proof claims, bear out."""

import math
from typing import Any

import numpy as np

from dpconvex.accounting.events import Approximate, Composition, Event, Gaussian, Hull, Perturbation, Pure, Tail
from dpconvex.certificates.text import PARTS, RANGE, RUNS
from dpconvex.noise.gaussian import gaussian_delta
from dpconvex.numerics import TAIL_SLACK
from dpconvex.util.arrays import Array

NEAR = 1 - TAIL_SLACK  # for rounding
TAIL = 2.0**-100  # Probability with which the mechanism's noise may exceed the cap that tau was chosen for


def believed(certificate: Any) -> Event | None:
    """Return the event of a certificate, or None where its numbers say that the release loses more than the event does.

    Many small parts lose less than one of their sum: part by part, by size, the event's must be as large as those of the numbers,
    and noise costs what the rest leaves of the guarantee.  Of a choice among fits, the numbers say too little.
    """
    event, cover, level = certificate.event, certificate.cover, certificate.gaussian_level
    if event is None or {RUNS, PARTS} & {*certificate.settings}:
        return None
    least = [] if certificate.clustering is None else [certificate.clustering.event]
    if cover is not None:
        least += [cover.event, Pure(cover.counting), Tail((1 + bool(cover.counting)) * TAIL)]
    beside = [part for part in (certificate.clustering, cover) if part is not None]
    chosen = certificate.settings.get(RANGE, 0.0)
    least += [Pure(chosen)] if chosen else []
    rest = certificate.epsilon - chosen - sum(part.epsilon for part in beside) - (cover.counting if cover else 0.0)
    epsilon, delta = max(certificate.noise_epsilon + certificate.jacobian_epsilon, rest), certificate.noise_delta
    if certificate.is_gaussian:
        delta = max(delta, certificate.privacy.delta - sum(part.delta for part in beside))
    if certificate.curved and certificate.is_gaussian:
        same = any(bears_out(leaf, certificate, epsilon, delta) for leaf in event.leaves())
    else:  # of a level the proof bounds no more than what it costs; without one, Gaussian noise is that of samples
        least.append(Gaussian(level) if level is not None else Approximate(epsilon, delta * certificate.is_gaussian))
        shift = math.hypot(*(vars(leaf).get("mu", 0.0) for leaf in event.leaves()))
        same = level is None or gaussian_delta(epsilon, shift) >= 0.999 * delta
    found, wanted = amounts(event), amounts(Composition(tuple(least)))
    enough = all((have[:8] >= NEAR * want[:8]).all() for have, want in zip(found, wanted, strict=True))
    return event if same and enough else None


def amounts(event: Event) -> list[Array]:
    """Return the largest shifts and epsilons, and the sums of failures and of deltas, but for those of objective perturbation."""
    leaves = [vars(leaf) for leaf in event.leaves()]
    names = ("mu", "epsilon", "probability", "delta")
    shifts, epsilons, *sums = ([leaf.get(name, 0.0) for leaf in leaves] for name in names)
    return [np.sort([*parts, *[0.0] * 8])[::-1] for parts in (shifts, epsilons, *([sum(each)] for each in sums))]


def bears_out(leaf: Event, certificate: Any, epsilon: float, delta: float) -> bool:
    """Say whether an event is of noise of this size, for neighbours as far apart, and costs the delta that was calibrated for."""
    if not isinstance(leaf, Perturbation) or not abs(leaf.sigma / certificate.noise_scale - 1) < TAIL_SLACK:
        return False
    bend = math.log1p(certificate.hessian_bound / (certificate.strong_convexity or 5e-324))
    curvature = max(certificate.jacobian_epsilon, bend) / certificate.privacy.most  # perhaps of one row after the other
    length = certificate.sensitivity / leaf.sigma
    hulls = [hull for hull in leaf.kinds if hull.delta(epsilon)[0] >= 0.999 * delta]
    return any(is_complete(hull, NEAR * curvature, NEAR * length) for hull in hulls)


def is_complete(hull: Hull, curvature: float, length: float) -> bool:
    """Say whether differences have this curvature and length, and what else is known of them is not shorter, or less curved."""
    longest, bent = max(hull.lengths or (hull.length,)), True
    if hull.slopes is not None:
        up, down, flattest, ratio = hull.slopes
        longest = min(longest, max(up, down) + max(hull.behind or (0.0,)))
        bent = 2 * flattest <= max(up, down) and (ratio == 0 or ratio >= NEAR * 4 * math.expm1(hull.curvature))
    whole = longest >= NEAR * hull.length and min(hull.counts or (1.0,)) >= 1 and hull.dimension > 0
    return bent and whole and hull.curvature >= curvature and hull.length >= length


def tail_of(epsilon: float) -> float:
    """Return the part of delta that a truncation failure takes: a probability of 2^-100 under either of two neighbours."""
    return (1 + math.exp(min(epsilon, 700.0))) * TAIL
