"""Which event a certificate may have that was read from a file: one that its numbers, which its proof claims, bear out."""

import math
from typing import Any

from dpconvex.accounting.events import Approximate, Event, Gaussian, Perturbation, Pure, Tail
from dpconvex.mechanisms.certificate_text import PARTS, RUNS

NEAR = 1 - 1e-9  # for rounding
TAIL = 2.0**-100  # Probability with which the mechanism's noise may exceed the cap that tau was chosen for


def believed(certificate: Any) -> Event | None:
    """Return the event of a certificate, or None where its numbers say that the release loses more than the event does.

    Shifts of Gaussian noise add up in squares, and epsilons and failures plainly; an event of as much of each, and of the same
    objective perturbation, is no better.  Of a choice among fits, the numbers say too little.
    """
    event, lost = certificate.event, losses(certificate)
    if event is None or {RUNS, PARTS} & {*certificate.settings}:
        return None
    found = dict.fromkeys(lost, 0.0)
    perturbed = not (certificate.curved and certificate.is_gaussian)
    for leaf in event.leaves():
        match leaf:
            case Gaussian(mu=mu):
                found["squares"] += mu * mu
            case Tail(probability=probability):
                found["failures"] += probability
            case Pure(epsilon=epsilon) | Approximate(epsilon=epsilon):
                found["epsilon"] += epsilon
                found["delta"] += getattr(leaf, "delta", 0.0)
            case Perturbation():
                perturbed = perturbed or bears_out(leaf, certificate)
    return event if perturbed and all(found[name] >= NEAR * least for name, least in lost.items()) else None


def losses(certificate: Any) -> dict[str, float]:
    """Return what stages lose, by the certificate's numbers, but for the noise on an objective of Gaussian law."""
    squares, epsilons, failures, delta = [0.0], [0.0], [0.0], 0.0
    cover, places, moments = certificate.cover, certificate.clustering, certificate.whitening
    if cover is not None:
        leaves = list(cover.event.leaves())
        squares += [leaf.mu**2 for leaf in leaves if isinstance(leaf, Gaussian)]
        epsilons += [leaf.epsilon for leaf in leaves if isinstance(leaf, Pure)] + [cover.counting]
        failures += [leaf.probability for leaf in leaves if isinstance(leaf, Tail)] + [
            (1 + bool(cover.counting)) * TAIL
        ]
    if places is not None:
        gaussian = places.noise == "gaussian"
        squares += [(places.composed / places.scale) ** 2] * gaussian
        epsilons += [places.epsilon] * (not gaussian)
    if moments is not None:
        squares.append(moments.level**2)
    if certificate.gaussian_level is not None:
        squares.append(certificate.gaussian_level**2)
    elif not (certificate.curved and certificate.is_gaussian):
        epsilons.append(certificate.noise_epsilon + certificate.jacobian_epsilon)
        delta = certificate.noise_delta * certificate.is_gaussian  # of samples
    lost = {"squares": math.fsum(squares), "epsilon": math.fsum(epsilons), "failures": math.fsum(failures)}
    return lost | {"delta": delta}


def bears_out(leaf: Perturbation, certificate: Any) -> bool:
    """Whether an event is of noise of this size, for neighbours as far apart, and costs the delta that was calibrated for."""
    longest = max((hull.length for hull in leaf.kinds), default=0.0) * leaf.sigma
    bent = max((hull.curvature for hull in leaf.kinds), default=0.0)
    epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
    return (
        abs(leaf.sigma / certificate.noise_scale - 1) < 1e-9
        and longest >= NEAR * certificate.sensitivity
        and bent * certificate.privacy.most >= NEAR * certificate.jacobian_epsilon  # perhaps of one row after the other
        and leaf.delta(epsilon) >= 0.999 * certificate.noise_delta
    )
