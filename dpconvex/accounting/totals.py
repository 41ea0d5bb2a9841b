"""What events cost together, under each rule that is proved, and the smallest of these (docs/theory.md, section 20).

All totals are for events that were *fixed beforehand*: which releases there are may not depend on what earlier ones showed,
though their inputs may.  Rules for ledgers, where it may, are in `accounting.rules`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.accounting.events import Composition, Event, Tail, known
from dpconvex.language.privacy import Privacy, text
from dpconvex.noise.gaussian_profiles import profile_epsilon, smallest_scale
from dpconvex.noise.loss_distributions import composed_delta, on_grid
from dpconvex.noise.profiles import LARGEST_LOSS

Array = NDArray[np.float64]

ORDERS = np.array([*(1 + k / 10 for k in range(1, 100)), *range(11, 64), 80, 128, 256, 512], dtype=float)
# Losses up to this are looked for; beyond it there is no bound.
LARGEST = 700.0
# Grid steps in the loss that is looked for, the largest grid of one event, and the most events that differ.
STEPS, LARGEST_GRID, MOST = 4000, 2**17, 50


@dataclass(frozen=True)
class Total:
    """What several releases cost together, and by which rule: "basic", "Rényi", "Gaussian" or "convolution"."""

    epsilon: float
    delta: float
    rule: str

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:.6g}, delta = {text(self.delta)} ({self.rule})"


def totals(promises: Sequence[Privacy], events: Sequence[Event], delta: float) -> list[Total]:
    """Return the total at a delta under every rule that gives one, the smallest first; of equal ones the plainest."""
    whole = Composition(tuple(events))
    found = []
    if math.fsum(item.delta for item in promises) * (1 - 1e-15) <= delta:
        found.append(Total(math.fsum(item.epsilon for item in promises) * (1 + 1e-15), delta, "basic"))
    if not (promises and delta > 0):
        return found
    # With half of delta for noise beyond its cap, no total is larger than this: so that part is computed for no larger epsilon.
    with np.errstate(over="ignore"):
        divergences, level = whole.renyi(ORDERS), whole.level()
    reach = min(renyi_epsilon(*divergences, delta / 2), gaussian_epsilon(*level, delta / 2))
    left = delta - tails_delta(sum(count * p for p, count in tails(whole)), reach)
    if left >= delta / 2:
        found.append(Total(renyi_epsilon(*divergences, left), delta, "Rényi"))
        found.append(Total(gaussian_epsilon(*level, left), delta, "Gaussian"))
        numeric = convolved_epsilon(whole.counted, left, min(item.epsilon for item in found))
        if numeric is not None:
            found.append(Total(numeric, delta, "convolution"))
    return sorted((item for item in found if item.epsilon < math.inf), key=lambda item: item.epsilon)


def best_total(promises: Sequence[Privacy], events: Sequence[Event], delta: float) -> Total:
    """Return the smallest proved total at a delta; infinite if there is none."""
    return next(iter(totals(promises, events, delta)), Total(math.inf, delta, "none"))


def tails_delta(probability: float, epsilon: float) -> float:
    """Return the part of delta that so large a probability takes."""
    return (1 + math.exp(min(epsilon, LARGEST))) * probability


def tails(event: Event) -> Iterator[tuple[float, int]]:
    """Yield the probabilities of noise beyond its cap, and how often each occurs."""
    counted = event.counted if isinstance(event, Composition) else {event: 1}
    return ((leaf.probability, count) for leaf, count in counted.items() if isinstance(leaf, Tail))


def gaussian_epsilon(mu: float, lost: float, delta: float) -> float:
    """Return the epsilon of the Gaussian mechanism that all of it is no less private than."""
    return profile_epsilon(mu, delta - lost) if mu < math.inf and lost < delta else math.inf


def renyi_epsilon(divergences: Array, lost: float, delta: float) -> float:
    """Return the epsilon that the best Rényi divergence gives."""
    if not lost < delta:
        return math.inf
    return max(float(min(divergences + [converted(order, delta - lost) for order in ORDERS.tolist()])), 0.0)


def converted(order: float, delta: float) -> float:
    """Return what a Rényi divergence of an order lacks to an epsilon (Canonne, Kamath & Steinke 2020; docs/release.md)."""
    found = (-math.log(delta) + order * math.log1p(-1 / order) - math.log(order - 1)) / (order - 1)
    return found + 1e-12 * (1 + abs(found))


def convolved_epsilon(leaves: Mapping[Event, int], delta: float, reach: float) -> float | None:
    """Return the epsilon of the sum of all privacy losses, or None; `reach` is a known bound on it, which sets the grid."""
    counted = {leaf: count for leaf, count in leaves.items() if not isinstance(leaf, Tail)}
    if not (0 < len(counted) <= MOST and 0 < reach < LARGEST_LOSS):
        return None
    step, parts = reach / STEPS, []
    for leaf, count in counted.items():
        losses, masses = known(leaf).masses
        if known(leaf).lost >= delta or not len(losses) or np.abs(losses).max() > LARGEST_GRID * step:
            return None
        parts.append((on_grid(losses, masses, step, known(leaf).lost), count))
    return smallest_scale(lambda epsilon: composed_delta(parts, epsilon), delta, reach, reach=0.0)
