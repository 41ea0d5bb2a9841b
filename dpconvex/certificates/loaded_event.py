"""The event of a certificate that was read from a file; it is refused unless the certificate's numbers confirm it."""

import math
from typing import Any

from dpconvex.accounting.events import Approximate, Composition, Event, Gaussian, Hull, Perturbation, Pure, Tail
from dpconvex.checker.mechanisms import costs_as_much
from dpconvex.checker.table import ONE_RUN, PARTS, RANGE, RUNS
from dpconvex.noise.gaussian import TRUNCATED, gaussian_delta
from dpconvex.numerics import TAIL_SLACK
from dpconvex.util.arguments import require

NEAR = 1 - TAIL_SLACK  # Relative tolerance for rounding


def confirmed_event(certificate: Any) -> Event | None:
    """Return a certificate's event, or raise `TemplateError` unless its numbers confirm that the event costs enough.

    Parts are compared one by one, sorted by size, because many small levels compose to less than their sum.  The noise must use
    up the guarantee without the other parts.  The event of fits composed by accounting is dropped: no number determines it.
    """
    event, cover, level = certificate.event, certificate.cover, certificate.gaussian_level
    chosen = event is not None and {ONE_RUN[0], PARTS} & {*certificate.settings}
    require(not chosen, "its event is that of one fit, and not that of a choice among fits")
    if event is None or RUNS in certificate.settings:
        return None
    least = [] if certificate.clustering is None else [certificate.clustering.event]
    if cover is not None:
        least += [cover.event, Pure(cover.counting), Tail((1 + bool(cover.counting)) * TRUNCATED)]
    beside = [part for part in (certificate.clustering, cover) if part is not None]
    chosen = certificate.settings.get(RANGE, 0.0)
    least += [Pure(chosen)] if chosen else []
    rest = certificate.epsilon - chosen - sum(part.epsilon for part in beside) - (cover.counting if cover else 0.0)
    epsilon, delta = max(certificate.noise_epsilon + certificate.jacobian_epsilon, rest), certificate.noise_delta
    if certificate.is_gaussian:
        delta = max(delta, certificate.privacy.delta - sum(part.delta for part in beside))
    if certificate.curved and certificate.is_gaussian:
        same = any(bears_out(leaf, certificate, epsilon, delta) for leaf in event.leaves())
    else:  # the proof bounds only the cost of a level; Gaussian noise without a level is that of Poisson samples
        least.append(Gaussian(level) if level is not None else Approximate(epsilon, delta * certificate.is_gaussian))
        shift = math.hypot(*(vars(leaf).get("mu", 0.0) for leaf in event.leaves()))
        same = level is None or gaussian_delta(epsilon, shift) >= 0.999 * delta
    enough = costs_as_much(*([vars(leaf) for leaf in whole.leaves()] for whole in (event, Composition(tuple(least)))))
    require(same and enough, "its event costs less than its numbers say: than its noise, curvature or failures")
    return event


def bears_out(leaf: Event, certificate: Any, epsilon: float, delta: float) -> bool:
    """Return whether an event has the certificate's noise scale, sensitivity and curvature, and costs the calibrated delta."""
    if not isinstance(leaf, Perturbation) or not abs(leaf.sigma / certificate.noise_scale - 1) < TAIL_SLACK:
        return False
    bend = math.log1p(certificate.hessian_bound / (certificate.strong_convexity or 5e-324))
    curvature = max(certificate.jacobian_epsilon, bend) / certificate.privacy.most  # least, of one row
    length = certificate.sensitivity / leaf.sigma
    hulls = [hull for hull in leaf.kinds if hull.delta(epsilon)[0] >= 0.999 * delta]
    return any(is_complete(hull, NEAR * curvature, NEAR * length) for hull in hulls)


def is_complete(hull: Hull, curvature: float, length: float) -> bool:
    """Return whether bounds have at least this curvature and length, and none of their further numbers understates these."""
    longest, bent = max(hull.lengths or (hull.length,)), True
    if hull.slopes is not None:
        up, down, flattest, ratio = hull.slopes
        longest = min(longest, max(up, down) + max(hull.behind or (0.0,)))
        bent = 2 * flattest <= max(up, down) and (ratio == 0 or ratio >= NEAR * 4 * math.expm1(hull.curvature))
    whole = longest >= NEAR * hull.length and min(hull.counts or (1.0,)) >= 1 and hull.dimension > 0
    return bent and whole and hull.curvature >= curvature and hull.length >= length
