"""Rules by which a ledger adds up spends that are chosen one after the other, each with knowledge of the earlier answers.

What is proved for releases that were fixed beforehand need not hold then: whoever may stop, and choose the next mechanism by
what was seen, may also choose which bound is to be the good one.  So a ledger has *one* rule, fixed when it is made, whose costs
add up to a limit that was fixed with it (docs/theory.md, section 20):

- *basic*: epsilons and deltas add up (Dwork & Roth 2014, theorem B.1);
- *gaussian*: squares of Gaussian shifts add up, and so does the delta that is lost beside them;
- *renyi*: Rényi divergences of one order add up, and so does the delta that is lost beside them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import add, is_
from typing import Any, NamedTuple

from dpconvex.accounting.events import Approximate, Event, Pure
from dpconvex.accounting.totals import converted, tails, tails_delta
from dpconvex.core.bisection import bisect
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.noise.gaussian_profiles import gaussian_delta, profile_epsilon

# Fraction of delta that is kept for what events lose beside Gaussian shifts or Rényi divergences.
SPARE = 0.1
# Probability of noise beyond its cap in a fit, once at least.
TAIL = 2.0**-100
# Spends fill a limit up to this, relatively, and a ledger that is read may exceed that a tenth as far: rounding differs.
GUARD = 1e-8


class Amount(NamedTuple):
    """So much epsilon and so much delta; either may be 0."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Entry:
    """One line of a ledger: what was spent, and the event that it is for accounting, if more is known than its promise."""

    label: str
    privacy: Privacy
    event: Event | None = None

    @property
    def known(self) -> Event:
        if self.event is not None:
            return self.event
        pure = self.privacy.pure
        return Pure(self.privacy.epsilon) if pure else Approximate(self.privacy.epsilon, self.privacy.delta)


class Rule(ABC):
    """How a ledger adds up, against a total."""

    name: str
    says: str
    nothing: tuple[Any, ...]

    def __init__(self, total: Privacy) -> None:
        self.total = total
        self._last: tuple[tuple[tuple[Entry, ...], tuple[Any, ...]], ...] = (((), self.nothing),)

    @abstractmethod
    def fits(self, entries: Sequence[Entry], reading: bool = False) -> bool:
        """Whether so many spends are within the total; one that is only read has been accepted before."""

    @abstractmethod
    def spent(self, entries: Sequence[Entry]) -> Amount:
        """Return the total of the spends, rounded up."""

    @abstractmethod
    def left(self, entries: Sequence[Entry]) -> Amount:
        """Return what is left, rounded down."""

    @abstractmethod
    def price(self, item: Entry) -> tuple[Any, ...]:
        """Return what adds up."""

    def refusal(self, entries: Sequence[Entry], item: Entry) -> str:
        """Say more about why one more spend does not fit, if there is more to say."""
        return ""

    def sums(self, entries: Sequence[Entry]) -> tuple[Any, ...]:
        """Return the sums of all prices, beginning with those of the last time where these entries are more of the same."""
        known, found = next(  # with the last one, which may have been refused, or without it, or anew
            (before, sums)
            for before, sums in reversed(self._last)
            if len(before) <= len(entries) and all(map(is_, before, entries))
        )
        before = found
        for item in entries[len(known) :]:
            before, found = found, tuple(map(add, found, self.price(item)))
        if len(entries) > len(known):
            self._last = ((), self.nothing), (tuple(entries[:-1]), before), (tuple(entries), found)
        return found


class Basic(Rule):
    """Epsilons and deltas add up, exactly: an amount counts as the shortest decimal that denotes its float."""

    name, says = "basic", "epsilons and deltas add up"
    nothing = (Fraction(0), Fraction(0))

    def price(self, item: Entry) -> tuple[Any, ...]:
        return exact(item.privacy.epsilon), exact(item.privacy.delta)

    def fits(self, entries: Sequence[Entry], reading: bool = False) -> bool:
        return min(self._left(entries)) >= 0

    def spent(self, entries: Sequence[Entry]) -> Amount:
        return Amount(*(float(amount) for amount in self.sums(entries)))

    def left(self, entries: Sequence[Entry]) -> Amount:
        return Amount(*(floor(amount) for amount in self._left(entries)))

    def _left(self, entries: Sequence[Entry]) -> tuple[Fraction, Fraction]:
        epsilon, delta = self.sums(entries)
        return exact(self.total.epsilon) - epsilon, exact(self.total.delta) - delta


class Additive(Rule):
    """One cost adds up to a limit, what is lost of delta to a share of it; the limit makes up for that share."""

    nothing = (0.0, 0.0, 0.0)

    def __init__(self, total: Privacy) -> None:
        super().__init__(total)
        if total.pure:
            raise TemplateError(f"Budget: {self.name} accounting needs a delta; use accounting='basic'.")
        self.delta = total.delta * (1 - SPARE)
        self.share = total.delta * SPARE
        self.limit = self._limit()

    @abstractmethod
    def _limit(self) -> float:
        """Return the largest cost within the total."""

    @abstractmethod
    def cost(self, event: Event) -> tuple[float, float]:
        """Return what an event costs, and what it loses of delta."""

    @abstractmethod
    def epsilon(self, cost: float) -> float:
        """Return the epsilon of a cost, for most of the ledger's delta."""

    def fits(self, entries: Sequence[Entry], reading: bool = False) -> bool:
        """The cost is within its limit, and what is lost within its share."""
        cost, lost = self._spent(entries)
        room = 1 - GUARD * (0.9 if reading else 1.0)
        return cost <= self.limit * room and lost <= self.share * room

    def spent(self, entries: Sequence[Entry]) -> Amount:
        """The epsilon of the cost, at the ledger's delta."""
        return Amount(self.epsilon(self._spent(entries)[0]), self.total.delta) if entries else Amount(0.0, 0.0)

    def left(self, entries: Sequence[Entry]) -> Amount:
        """The promise of the largest fit, itself Gaussian or of one known divergence but for its cap, that still fits."""
        cost, lost = self._spent(entries)
        cost = self.limit * (1 - GUARD) - cost
        if cost <= 0 or self.share * (1 - GUARD) - lost < tails_delta(TAIL, self.total.epsilon):
            return Amount(0.0, 0.0)
        return Amount(self.epsilon(cost), self.total.delta)

    def refusal(self, entries: Sequence[Entry], item: Entry) -> str:
        """What the spend costs alone, and what it loses of delta if that is what does not fit."""
        cost, more = self._lost(self.price(item))
        alone = self.epsilon(cost)
        said = f" under {self.name} accounting, by which this release alone is epsilon = {alone:.6g} ({item.known})"
        lost = self._spent(entries)[1]
        if lost + more > self.share * (1 - GUARD):
            said += (
                f". Beside that it loses delta = {more:.3g}, and of the {self.share:.3g} that the ledger keeps for such losses, "
                f"{max(self.share - lost, 0.0):.3g} is left: the delta of a promise without an event is lost, and the "
                "probability of noise beyond its cap counts 1 + exp(epsilon of the total) times. A total with a smaller "
                "epsilon or a larger delta has more room, and so has basic accounting"
            )
        return said

    def price(self, item: Entry) -> tuple[Any, ...]:
        """What it costs, what it loses of delta, and the probability of noise beyond its cap."""
        return *self.cost(item.known), math.fsum(count * p for p, count in tails(item.known))

    def _spent(self, entries: Sequence[Entry]) -> tuple[float, float]:
        return self._lost(self.sums(entries))

    def _lost(self, sums: tuple[Any, ...]) -> tuple[float, float]:
        cost, lost, beyond = sums
        return cost, lost + tails_delta(beyond, self.total.epsilon)


class Gauss(Additive):
    """The squares of Gaussian shifts add up; the cost of an event is the square of its own."""

    name, says = "gaussian", "squares of Gaussian shifts add up"

    def _limit(self) -> float:
        epsilon, delta = self.total.epsilon, self.delta
        high = 1.0
        while float(gaussian_delta(epsilon, high)) <= delta:
            high *= 2
        return float(bisect(lambda mu: float(gaussian_delta(epsilon, mu)) <= delta, 0.0, high, 60)[0] ** 2)

    def cost(self, event: Event) -> tuple[float, float]:
        mu, lost = event.level()
        return mu * mu * (1 + 1e-15), lost

    def epsilon(self, cost: float) -> float:
        return profile_epsilon(math.sqrt(cost), self.delta)


class Renyi(Additive):
    """Rényi divergences of one order add up: the order at which Gaussian noise is smallest for the ledger's total."""

    name, says = "renyi", "Rényi divergences of one order add up"

    def __init__(self, total: Privacy, order: float | None = None) -> None:
        self.order = best_order(total, (1 - SPARE) * total.delta) if order is None and not total.pure else order or 2.0
        super().__init__(total)

    def _limit(self) -> float:
        left = self.total.epsilon - converted(self.order, self.delta)
        if left <= 0:
            raise TemplateError(f"Budget: Rényi accounting of order {self.order:g} cannot keep {self.total}.")
        return left

    def cost(self, event: Event) -> tuple[float, float]:
        return event.renyi(self.order)

    def epsilon(self, cost: float) -> float:
        return max(cost + converted(self.order, self.delta), 0.0)


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Basic, Gauss, Renyi)}


def rule_of(name: object, total: Privacy) -> Rule:
    if not isinstance(name, str) or name not in RULES:
        known = ", ".join(map(repr, RULES))
        raise TemplateError(f"Budget: accounting must be one of {known}, not {name!r}.")
    return RULES[name](total)


def best_order(total: Privacy, delta: float) -> float:
    """Return the order at which a Gaussian mechanism within the total has the largest shift."""

    def gain(order: float) -> float:
        return (total.epsilon - converted(order, delta)) / order

    return max((round(1 + 1.05**k, 4) for k in range(-80, 200)), key=gain)


def exact(value: float) -> Fraction:
    """Return the shortest decimal that denotes a float, as a fraction."""
    return Fraction(repr(value))


def floor(value: Fraction) -> float:
    """Return the largest float that does not exceed a fraction, itself read as a decimal."""
    result = float(value)
    while exact(result) > value:
        result = math.nextafter(result, -math.inf)
    return result
