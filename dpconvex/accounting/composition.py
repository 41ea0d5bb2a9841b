"""Total cost of several releases: non-adaptive composition, and the privacy filters of ledgers (docs/theory.md, section 20)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dpconvex.accounting.events import Approximate, Composition, Event, Pure, Tail, profile_of
from dpconvex.model.privacy import Privacy, text
from dpconvex.noise.gaussian import TRUNCATED, bisect, failure_delta, gaussian_delta, profile_epsilon, smallest_scale
from dpconvex.noise.loss_distributions import Counted, composed_delta, on_grid
from dpconvex.noise.profiles import LARGEST_LOSS
from dpconvex.numerics import NORM_SLACK, ROUNDED_UP
from dpconvex.util.arguments import one_of, require
from dpconvex.util.markup import downward, upward

ORDERS = np.array([*(1 + k / 10 for k in range(1, 100)), *range(11, 64), 80, 128, 256, 512], dtype=float)
# Grid steps up to the sought epsilon, the largest number of grid points for one event, and of distinct events.
STEPS, LARGEST_GRID, MOST = 4000, 2**17, 50
POINTS = 50  # Number of epsilons in a privacy profile
# Share of a ledger's delta reserved for the deltas of events, which Gaussian shifts and Rényi divergences do not cover.
SPARE = 0.1
# Relative margin of a limit that spends leave free.  Reading a ledger allows a tenth more, as rounding may differ.
GUARD = 1e-8
# Printed names of the rules of totals, except "basic composition".
NAMES = {"Rényi": "RDP accountant", "Gaussian": "GDP accountant", "convolution": "PLD accountant"}


@dataclass(frozen=True)
class Total:
    """Total cost of several releases, and its rule: "basic", "Rényi", "Gaussian" or "convolution" (of PLDs)."""

    epsilon: float
    delta: float
    rule: str

    def __str__(self) -> str:
        rule = NAMES.get(self.rule, f"{self.rule} composition")
        return f"epsilon = {upward(self.epsilon, 6)}, delta = {text(self.delta)} ({rule})"


def totals(promises: Sequence[Privacy], events: Sequence[Event], delta: float) -> list[Total]:
    """Return the totals at a delta, by increasing epsilon, under every rule with a finite one; ties keep the simplest first."""
    whole = Composition(tuple(events))
    found = []
    if sum(as_fraction(item.delta) for item in promises) <= as_fraction(float(delta)):
        found.append(Total(ceiling(sum(as_fraction(item.epsilon) for item in promises)), delta, "basic"))
    if not (promises and delta > 0):
        return found
    # Truncation failures count 1 + exp(epsilon) times.  If they need at most delta / 2, epsilon is at most that at delta / 2.
    bounds = bounds_of(whole)
    left = delta - failure_delta(tail_probability(whole), min(both_epsilons(bounds, delta / 2)))
    if left >= delta / 2:
        by_renyi, by_gauss = both_epsilons(bounds, left)
        found += [Total(by_renyi, delta, "Rényi"), Total(by_gauss, delta, "Gaussian")]
        numeric = convolved_epsilon(whole.counted, left, min(item.epsilon for item in found))
        if numeric is not None:
            found.append(Total(numeric, delta, "convolution"))
    return sorted((item for item in found if item.epsilon < math.inf), key=lambda item: item.epsilon)


def best_total(promises: Sequence[Privacy], events: Sequence[Event], delta: float) -> Total:
    return next(iter(totals(promises, events, delta)), Total(math.inf, delta, "none"))


def tail_probability(event: Event) -> float:
    return math.fsum(leaf.probability for leaf in event.leaves() if isinstance(leaf, Tail))


def bounds_of(whole: Composition) -> tuple[tuple[Any, Any], tuple[float, float]]:
    """Return the Rényi divergences of a composition at `ORDERS`, and its level mu of GDP, each with the delta to add."""
    with np.errstate(over="ignore"):
        return whole.renyi(ORDERS), whole.level()


def both_epsilons(bounds: tuple[tuple[Any, Any], tuple[float, float]], delta: float) -> tuple[float, float]:
    """Return the epsilons at a delta by RDP and by GDP, from the result of `bounds_of`; infinite if delta is too small."""
    (divergences, lost), (mu, beyond) = bounds
    by_renyi = math.inf
    if lost < delta:
        by_renyi = max(float(min(divergences + [rdp_term(order, delta - lost) for order in ORDERS.tolist()])), 0.0)
    return by_renyi, profile_epsilon(mu, delta - beyond) if beyond < delta else math.inf


def rdp_term(order: float, delta: float) -> float:
    """Return the term to add to a Rényi divergence of this order to get epsilon (Canonne, Kamath & Steinke 2020)."""
    found = (-math.log(delta) + order * math.log1p(-1 / order) - math.log(order - 1)) / (order - 1)
    return found + NORM_SLACK * (1 + abs(found))


def convolved_epsilon(leaves: Mapping[Event, int], delta: float, reach: float) -> float | None:
    """Return the epsilon of the composition by PLDs, or None if no grid fits; `reach`, an upper bound on it, sets the grid."""
    parts = losses_of(leaves, reach)
    if parts is None or any(item.lost >= delta for item, _ in parts):
        return None
    return smallest_scale(lambda epsilon: composed_delta(parts, epsilon), delta, reach, reach=0.0)


def losses_of(leaves: Mapping[Event, int], reach: float) -> Counted | None:
    """Return the PLD of each event on a common grid with step `reach / STEPS`, and its count; None if a grid is too large."""
    counted = [(profile_of(leaf), count) for leaf, count in leaves.items() if not isinstance(leaf, Tail)]
    if not (0 < len(counted) <= MOST and 0 < reach < LARGEST_LOSS):
        return None
    step, parts = reach / STEPS, []
    for profile, count in counted:
        losses, masses = profile.masses
        if not len(losses) or np.abs(losses).max() > LARGEST_GRID * step:
            return None
        parts.append((on_grid(losses, masses, step, profile.lost), count))
    return parts


@lru_cache(maxsize=64)
def profile_pairs(event: Event) -> list[tuple[float, float]]:
    """Return pairs (epsilon, delta) that hold for an event: by its PLD, or by RDP and GDP if its PLD has no grid."""
    whole, deltas = Composition((event,)), np.geomspace(1e-12, 0.99, 25).tolist()
    bounds = bounds_of(whole)
    reach = min(both_epsilons(bounds, deltas[0]))
    parts, beyond = losses_of(whole.counted, reach), tail_probability(whole)
    if parts is None:
        pairs = [(min(both_epsilons(bounds, delta)), delta) for delta in deltas]
    else:
        pairs = [(epsilon, composed_delta(parts, epsilon)) for epsilon in np.linspace(0.0, reach, POINTS).tolist()]
    return [(epsilon, delta + failure_delta(beyond, epsilon)) for epsilon, delta in pairs if epsilon < math.inf]


class Amount(NamedTuple):
    """An epsilon and a delta; each may be 0."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Entry:
    """One entry of a ledger: the guarantee spent, the event if known, the time (UTC), user, host and data set."""

    label: str
    privacy: Privacy
    event: Event | None = None
    time: str = ""
    user: str = ""
    host: str = ""
    dataset: str = ""

    @property
    def named(self) -> str:
        """The label, followed by the known ones of time, user, host and data set in parentheses."""
        origin = ", ".join(filter(None, (self.time, self.user, self.host, self.dataset)))
        return f"{self.label} ({origin})" if origin else self.label

    @property
    def known(self) -> Event:
        epsilon, delta = self.privacy.epsilon, self.privacy.delta
        return self.event or (Approximate(epsilon, delta) if delta else Pure(epsilon))


class Basic:
    """The composition rule of a ledger: sums of prices, starting at `nothing`.  Basic: epsilons and deltas, as exact decimals."""

    name, says = "basic", "basic composition: epsilons and deltas add up"
    nothing: tuple[Any, ...] = (Fraction(0), Fraction(0))

    def __init__(self, total: Privacy) -> None:
        self.total = total

    def price(self, item: Entry) -> tuple[Any, ...]:
        return as_fraction(item.privacy.epsilon), as_fraction(item.privacy.delta)

    def plus(self, sums: tuple[Any, ...], *entries: Entry) -> tuple[Any, ...]:
        """Return `sums` plus the prices of further entries."""
        return tuple(map(sum, zip(*map(self.price, entries), strict=True), sums)) if entries else sums

    def fits(self, sums: tuple[Any, ...], reading: bool = False) -> bool:
        """Return whether sums of prices are within the total; `reading` allows for rounding of an accepted ledger."""
        return min(self._left(sums)) >= 0

    def spent(self, sums: tuple[Any, ...]) -> Amount:
        """Return the total of the spends, rounded up."""
        return Amount(*map(ceiling, sums))

    def remaining(self, sums: tuple[Any, ...]) -> Amount:
        """Return the remaining budget, rounded down."""
        return Amount(*map(floor, self._left(sums)))

    def _left(self, sums: tuple[Any, ...]) -> tuple[Fraction, Fraction]:
        epsilon, delta = sums
        return as_fraction(self.total.epsilon) - epsilon, as_fraction(self.total.delta) - delta

    def refusal(self, sums: tuple[Any, ...], item: Entry) -> str:
        """Return a further reason why the spend does not fit, for the error message; empty if there is none."""
        return ""


class AdditiveCost(Basic):
    """A rule with one additive cost up to a limit.  The deltas of events add up to at most a share of the ledger's delta."""

    nothing = (0.0, 0.0, 0.0)
    limit: float

    def __init__(self, total: Privacy) -> None:
        super().__init__(total)
        require(not total.pure, f"Budget: {self.name} accounting needs a delta; use accounting='basic'.")
        self.delta, self.share = total.delta * (1 - SPARE), total.delta * SPARE

    def cost(self, event: Event) -> tuple[float, float]:
        """Return the additive cost of an event, and its delta."""
        raise NotImplementedError

    def epsilon(self, cost: float) -> float:
        """Return the epsilon of a cost at `self.delta`, the ledger's delta without the share for events."""
        raise NotImplementedError

    def price(self, item: Entry) -> tuple[Any, ...]:
        return priced(self, item.known)

    def fits(self, sums: tuple[Any, ...], reading: bool = False) -> bool:
        cost, lost = self._lost(sums)
        room = 1 - GUARD * (0.9 if reading else 1.0)
        return cost <= self.limit * room and lost <= self.share * room

    def spent(self, sums: tuple[Any, ...]) -> Amount:
        return Amount(self.epsilon(sums[0]), self.total.delta) if any(sums) else Amount(0.0, 0.0)

    def remaining(self, sums: tuple[Any, ...]) -> Amount:
        """Return the guarantee of the largest further release, with one truncation failure, that fits."""
        cost, lost = self._lost(sums)
        cost = self.limit * (1 - GUARD) - cost
        if cost <= 0 or self.share * (1 - GUARD) - lost < failure_delta(TRUNCATED, self.total.epsilon):
            return Amount(0.0, 0.0)
        return Amount(self.epsilon(cost), self.total.delta)

    def refusal(self, sums: tuple[Any, ...], item: Entry) -> str:
        cost, more = self._lost(self.price(item))
        left = max(self.share - self._lost(sums)[1], 0.0)
        alone = f"in which this release alone costs epsilon = {upward(self.epsilon(cost), 6)} ({item.known})"
        said = f" under {self.name} accounting, {alone}"
        if more <= left:
            fits = lambda e: self.fits(self.plus(sums, replace(item, event=Pure(e))))  # noqa: E731
            room = bisect(fits, 0.0, item.privacy.epsilon, 20)[0] if isinstance(item.known, Pure) else 0.0
            smaller = f"an epsilon of {downward(room, 3)} or less" if room else "a smaller epsilon"
            remedy = f". Ask for {smaller}, or use accounting='basic', which charges the stated epsilon"
            return said + remedy * (self.epsilon(cost) > item.privacy.epsilon)
        why = f"a truncation failure counts delta = {more:.3g}, and {left:.3g} of a tenth of delta remains for failures"
        remedy = "Ask for a smaller delta of this release, or a ledger with a larger one or with accounting='basic'"
        return f"{said}; {why}. {remedy}"

    def _lost(self, sums: tuple[Any, ...]) -> tuple[float, float]:
        cost, lost, beyond = sums
        return cost, lost + failure_delta(beyond, self.total.epsilon)


@lru_cache(maxsize=4096)
def priced(rule: AdditiveCost, event: Event) -> tuple[float, float, float]:
    return *rule.cost(event), tail_probability(event)


class Gauss(AdditiveCost):
    """The GDP privacy filter: the cost of an event is its squared level, mu^2; costs add up."""

    name, says = "gaussian", "GDP privacy filter: squares of mu add up"

    def __init__(self, total: Privacy) -> None:
        super().__init__(total)
        shifts = 2.0 ** np.arange(200)
        high = float(shifts[gaussian_delta(total.epsilon, shifts) > self.delta][0])
        self.limit = bisect(lambda mu: float(gaussian_delta(total.epsilon, mu)) <= self.delta, 0.0, high, 60)[0] ** 2

    def cost(self, event: Event) -> tuple[float, float]:
        mu, lost = event.level()
        return mu * mu * ROUNDED_UP, lost

    def epsilon(self, cost: float) -> float:
        return profile_epsilon(math.sqrt(cost), self.delta)


class Renyi(AdditiveCost):
    """The RDP privacy filter: Rényi divergences of one order add up.  This order minimises Gaussian noise for the total."""

    name, says = "renyi", "RDP privacy filter: Rényi divergences of one order add up"

    def __init__(self, total: Privacy) -> None:
        super().__init__(total)
        orders = (round(1 + 1.05**k, 4) for k in range(-80, 200))
        self.order = max(orders, key=lambda order: (total.epsilon - rdp_term(order, self.delta)) / order)
        self.limit = total.epsilon - rdp_term(self.order, self.delta)
        said = f"Budget: Rényi accounting cannot keep {self.total}; use accounting='basic'."
        require(self.limit > 0, said)

    def cost(self, event: Event) -> tuple[float, float]:
        divergence, lost = event.renyi(self.order)
        return float(divergence), lost

    def epsilon(self, cost: float) -> float:
        return max(cost + rdp_term(self.order, self.delta), 0.0)


RULES: dict[str, type[Basic]] = {rule.name: rule for rule in (Basic, Gauss, Renyi)}


def rule_of(name: str, total: Privacy) -> Basic:
    one_of(RULES).check("Budget", accounting=name)
    return RULES[name](total)


@lru_cache(maxsize=4096)
def as_fraction(value: float) -> Fraction:
    return Fraction(repr(value))


def ceiling(value: Fraction | int) -> float:
    """Return the smallest float whose shortest decimal is at least a fraction."""
    return 0.0 - floor(-value)


def floor(value: Fraction | int) -> float:
    """Return the largest float whose shortest decimal is at most a fraction."""
    result = float(value)
    while as_fraction(result) > value:
        result = math.nextafter(result, -math.inf)
    return result
