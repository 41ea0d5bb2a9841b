"""Events: descriptions of releases that accountants compose.  Their numbers are public, and fixed before data are read."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, product
from typing import Any, ClassVar, cast

import numpy as np
from scipy.special import ndtr, ndtri

from dpconvex.errors import TemplateError
from dpconvex.noise.gaussian import gaussian_delta
from dpconvex.noise.profiles import LARGEST_LOSS, Orders, Profile, chi_delta, swing, tabulate_delta
from dpconvex.numerics import NORM_SLACK, SUM_SLACK, TAIL_SLACK
from dpconvex.util.arguments import require
from dpconvex.util.markup import upward
from dpconvex.util.plain_data import build, field_names, is_real

SMALLEST_LEVEL = 1e-12  # Smaller Gaussian shifts and epsilons are rounded up to this, to tabulate their profiles
DEEPEST = 50  # Largest depth of nested compositions in a file


class Event:
    """How well neighbouring data sets can be told apart from one release, in both orders."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Raise unless numbers are finite and at least 0 (and probabilities below 1), and convert them to floats."""
        for name, value in vars(self).copy().items():
            if not isinstance(value, tuple):
                if not is_amount(value, 1 if name in ("delta", "probability") else math.inf):
                    raise TemplateError(
                        f"an event of kind {self.kind!r}: {name} must be finite and at least 0: {value!r}"
                    )
                object.__setattr__(self, name, float(value))

    def profile(self) -> Profile:
        raise NotImplementedError  # A `Composition` has none: accountants use the profiles of its leaves

    def renyi(self, order: Orders) -> tuple[Orders, float]:
        """Return upper bounds on the Rényi divergences of these orders, and a delta to add to the total."""
        return profile_of(self).renyi(order), profile_of(self).lost

    def level(self) -> tuple[float, float]:
        """Return the level mu at which the release is mu-GDP, and a delta to add to the total."""
        return profile_of(self).level, profile_of(self).lost

    def leaves(self) -> "Iterator[Event]":
        yield self

    def of_group(self, people: int) -> "Event":
        """Return the event for data sets that differ in this many people (group privacy, docs/unit.md)."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return dict(plain(self))


@lru_cache(maxsize=4096)
def profile_of(event: Event) -> Profile:
    return event.profile()


@dataclass(frozen=True)
class Approximate(Event):
    """An (epsilon, delta)-private release without further knowledge of its mechanism."""

    kind: ClassVar[str] = "approximate"
    epsilon: float
    delta: float

    def profile(self) -> Profile:
        """Return the profile of the worst case, randomised response with failures of delta (Kairouz, Oh & Viswanath 2015)."""
        loss, useful = min(max(self.epsilon, SMALLEST_LEVEL), LARGEST_LOSS), self.epsilon <= LARGEST_LOSS
        return Profile(np.array([loss]), np.array([self.delta if useful else 1.0]))

    def of_group(self, people: int) -> Event:
        return Approximate(people * self.epsilon, self.group_delta(people))

    def group_delta(self, people: int) -> float:
        """Return the delta for a group of people: ``delta * sum of exp(k epsilon) for k < people``, at most 1."""
        each = max(self.epsilon, SMALLEST_LEVEL)
        more = math.expm1(people * each) / math.expm1(each) if people * each < 700 else 1e300
        return min(more * self.delta * (1 + SUM_SLACK), 1 - 1e-15)

    def __str__(self) -> str:
        return f"epsilon = {upward(self.epsilon)}, delta = {upward(self.delta, 3)}"


@dataclass(frozen=True)
class Pure(Event):
    """An epsilon-private release without further knowledge of its mechanism."""

    kind: ClassVar[str] = "pure"
    epsilon: float

    def profile(self) -> Profile:
        return Approximate(self.epsilon, 0.0).profile()

    def of_group(self, people: int) -> Event:
        return Pure(people * self.epsilon)

    def __str__(self) -> str:
        return f"pure DP, epsilon = {upward(self.epsilon)}"


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise; `mu` is the sensitivity in standard deviations.  Adaptive steps mu_i count as one ``sqrt(sum mu_i^2)``."""

    kind: ClassVar[str] = "gaussian"
    mu: float

    def profile(self) -> Profile:
        mu = max(self.mu, SMALLEST_LEVEL)
        return tabulate_delta(lambda epsilon: float(gaussian_delta(epsilon, mu)), scale=mu + mu * mu)

    def of_group(self, people: int) -> Event:
        return Gaussian(people * self.mu)

    def level(self) -> tuple[float, float]:
        return self.mu, 0.0

    def renyi(self, order: Orders) -> tuple[Orders, float]:
        return order * self.mu * self.mu / 2, 0.0

    def __str__(self) -> str:
        return f"GDP, mu = {upward(self.mu)}"


@dataclass(frozen=True)
class Tail(Event):
    """A truncation failure: with this probability, under each of two neighbours, the guarantee fails (`failure_delta`)."""

    kind: ClassVar[str] = "tail"
    probability: float

    def profile(self) -> Profile:
        return Profile(np.zeros(1), np.zeros(1))

    def of_group(self, people: int) -> Event:
        return Tail(min(people * self.probability, 1 - 1e-16))

    def __str__(self) -> str:
        return f"truncation failure of probability {upward(self.probability, 2)}"


@dataclass(frozen=True)
class Composition(Event):
    kind: ClassVar[str] = "composition"
    parts: tuple[Event, ...]

    def leaves(self) -> Iterator[Event]:
        for part in self.parts:
            yield from part.leaves()

    def of_group(self, people: int) -> Event:
        """Return the event for a group.  A failure beside noise, as of rare levels, is likelier (docs/theory.md, section 23)."""
        mu, parts = self.level()[0], [part.of_group(people) for part in self.parts]
        for k, part in enumerate(self.parts):
            if isinstance(part, Approximate) and part.epsilon == 0:
                likelier = float(ndtr(ndtri(part.delta) + mu * np.arange(people)).sum()) * (1 + TAIL_SLACK)
                parts[k] = Approximate(0.0, min(likelier, 1 - 1e-15))
        return Composition(tuple(parts))

    @cached_property
    def counted(self) -> Counter[Event]:
        return Counter(self.leaves())

    def renyi(self, order: Orders) -> tuple[Orders, float]:
        total, lost = 0 * order, 0.0
        for leaf, count in self.counted.items():
            value, more = leaf.renyi(order)
            total, lost = total + count * value, lost + count * more
        return total * (1 + SUM_SLACK), lost * (1 + SUM_SLACK)

    def level(self) -> tuple[float, float]:
        """Return the level and the delta of the composition: levels add in quadrature, deltas add."""
        found = [(count, *leaf.level()) for leaf, count in self.counted.items()]
        root = math.hypot(*(math.sqrt(count) * mu for count, mu, _ in found))
        return root * (1 + SUM_SLACK), sum(count * lost for count, _, lost in found) * (1 + SUM_SLACK)

    def __str__(self) -> str:
        said = [(f"{count} times " if count > 1 else "") + str(what) for what, count in self.counted.items()]
        return "; ".join(said[:4]) + (f"; and {len(said) - 4} more" if len(said) > 4 else "")


@dataclass(frozen=True)
class Hull:
    """Bounds on gradient differences for one kind of ordered pairs of records, in standard deviations of the noise."""

    dimension: int  # dimension of the span of the differences of two given records
    length: float  # upper bound on the norm of every difference
    curvature: float  # epsilon charged for the Jacobian of the first record's gradient
    lengths: tuple[float, ...] | None = None  # norms of the vertices other than 0, if known
    counts: tuple[float, ...] | None = None  # number of vertices with each norm
    # If the first record's loss depends on one margin: its largest slopes upward and downward, the smallest slope, and
    # for logistic losses curvature over modulus, otherwise 0.  `behind`: norms of the second record's vertices, with repeats.
    slopes: tuple[float, float, float, float] | None = None
    behind: tuple[float, ...] | None = None

    def of_group(self, k: int) -> "Hull":
        several: Any = (part and tuple(k * n for n in part) for part in (self.lengths, self.counts))
        return Hull(k * self.dimension, k * self.length, k * self.curvature, *several)

    def delta(self, epsilon: float) -> tuple[float, str]:
        left, found = epsilon - self.curvature, [(1.0, "no bound")]
        if left >= 0 and self.dimension > 0:
            found.append((chi_delta(left, self.dimension, self.length), f"chi law in {self.dimension} dimensions"))
        counts, lengths = np.array(self.counts or ()), np.array(self.lengths or ())
        known = self.lengths is not None
        if known and (left >= 0 or not len(lengths)):
            total = float((counts * gaussian_delta(max(left, 0.0), lengths)).sum())
            found.append((total, f"{int(counts.sum())} vertices"))
        if known and self.slopes is not None and self.behind is not None:
            up, down, flattest, ratio = self.slopes
            least = flattest if min(up, down) == 0 else 0.0
            pairs = product((up, down), sorted(Counter(self.behind).items()))
            falls = (count * swing(epsilon, steep, least, self.curvature, ratio, end) for steep, (end, count) in pairs)
            total = float((counts * gaussian_delta(epsilon, lengths)).sum()) + sum(falls)
            found.append((total, "one margin, curved where its slope moves"))
        best, how = min(found, key=lambda item: item[0])
        return min(best * (1 + NORM_SLACK), 1.0), how


@dataclass(frozen=True)
class Perturbation(Event):
    """Gaussian objective perturbation: the differences of each kind of neighbours, and their curvature."""

    kind: ClassVar[str] = "objective perturbation"
    sigma: float
    kinds: tuple[Hull, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for hull in self.kinds:
            lengths, counts, *more = (part or () for part in (hull.lengths, hull.counts, hull.slopes, hull.behind))
            numbers = chain((hull.dimension, hull.length, hull.curvature), lengths, counts, *more)
            paired = (hull.lengths is None) == (hull.counts is None) and len(lengths) == len(counts)
            why = "numbers are finite and at least 0, and each length has a count"
            require(all(map(is_amount, numbers)) and paired, f"an event of objective perturbation: {why}")

    def of_group(self, people: int) -> Event:
        """Scale the differences by the number of people, with the largest bounds, as people may differ in kind."""
        names = ("dimension", "length", "curvature") if self.kinds else ()
        largest: Any = {name: max(getattr(hull, name) for hull in self.kinds) for name in names}
        return Perturbation(self.sigma, tuple(replace(hull, **largest).of_group(people) for hull in self.kinds))

    def delta(self, epsilon: float) -> float:
        return max((hull.delta(epsilon)[0] for hull in self.kinds), default=0.0)

    def profile(self) -> Profile:
        """Tabulate the bound of theorem 7 on delta.  The table's convex hull improves it below the curvature."""
        kinks = tuple(sorted({0.0, *(hull.curvature for hull in self.kinds)}))[:20]
        length = max((hull.length for hull in self.kinds), default=0.0)
        return tabulate_delta(self.delta, kinks, length + length * length)

    def __str__(self) -> str:
        longest = max((hull.length for hull in self.kinds), default=0.0)
        return f"objective perturbation, sigma = {self.sigma:.4g}, G_adj/sigma = {longest:.4g}"


def event_of(values: Any, depth: int = 0) -> Event:
    kinds = {cls.kind: cls for cls in Event.__subclasses__()}
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not (isinstance(kind, str) and kind in kinds):
        raise TemplateError(f"not a known event: {values!r:.60}")
    require(depth <= DEEPEST, "its compositions are nested too deeply")
    cls = kinds[kind]
    given = {name: value for name, value in values.items() if name != "kind"}
    if set(given) != field_names(cls)[0] or [] in given.values():  # type: ignore[arg-type]
        raise TemplateError(f"an event of kind {kind!r} has wrong fields, {sorted(given)}, or an empty one")
    return cast(Event, build(cls, given, {Event: lambda part: event_of(part, depth + 1)}, f"an event of kind {kind!r}"))


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        kind: dict[str, Any] = {"kind": value.kind} if isinstance(value, Event) else {}
        return kind | {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return value.item() if isinstance(value, np.generic) else value


def is_amount(value: object, below: float = math.inf) -> bool:
    return is_real(value) and 0 <= float(value) < below  # type: ignore[arg-type]
