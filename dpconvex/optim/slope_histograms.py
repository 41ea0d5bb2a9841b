"""Slopes of records: public bounds, then noisy histograms of their lengths, and clips that follow from these."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpconvex.optim.row_metrics import DomainMetric
from dpconvex.sums.private_queries import PrivateQueries
from dpconvex.util.arrays import Array

MAX_RISE = 4.0  # Largest factor by which the curvature rises in one step
HISTOGRAMS = 0.06  # Share of the squared level for histograms
CLIP_STEPS = (0, 2, 6, 14)  # Steps that begin with a histogram of lengths
# Bins of the histogram, each twice as long as the last; the last edge next to the largest slope; the clip before a histogram;
# the least bins for slopes shorter than usual ones.
BINS, LARGEST_EDGE, FIRST_CLIP, SHORTER = 24, 2.0, 0.27, 10
# Deviations of the noise by which a count must exceed 0, in bins near the last clip and far above it.
STANDS_OUT, FAR_OUT, FAR_LENGTH = 2.0, 4.0, 4.0
# Largest ratio of slopes where steps end and near 0, if neither targets, constants nor the loss bound slopes.
STEEPER = 16.0
HIDDEN_DEVIATIONS = 4.0  # Deviations that two adjacent bins may hide
BOTH_SIDES = 0.25  # Weight of gradients beyond the clip on both sides, next to those of one side
NOISE_COST = 2.0  # Weight of noise next to bias; twice this in the first half of the steps
SEEN, UNCLIPPED = 0.25, 0.5  # Least fraction of records in a credible histogram; least fraction that is not clipped
BELIEVED = 6.0  # ... and least deviations of its count: some bin stands out by chance
# If so many records equal the noise, tails continue beyond the last bin seen, each bin with at most this share of the last.
TAILED, FALLS = 80.0, 0.5
# Least ratio of slopes on both sides at which their sum reveals hidden ones, and for smooth losses of links
LOPSIDED, LINKED = 4.0, 50.0
TOGETHER, SEEN_TOGETHER = 4, 3.0  # Adjacent bins with most lengths, and deviations by which they stand out together
LEAST_SEEN = 0.1  # Least fraction of records that is seen
FEW_RECORDS = 5.0  # Records for each feature and unit of the level
# People for each parameter and unit of the level from which noise hides no rare rows; from which rows are clipped at more than
# their root mean square, and the largest factor.
MANY_RECORDS, LONGER_ROWS, LONGEST_ROWS = 500.0, 50.0, 16.0
USUAL_SLOPES = 0.5, 2.0  # Largest slopes of losses in usual units, such as those of logits


def unit_like(found: float, usual: tuple[float, float] = USUAL_SLOPES) -> float:
    """Return the unit of a loss by one of its slopes or curvatures: 1 if this is usual, and otherwise this number."""
    return 1.0 if usual[0] <= found < usual[1] else found


def are_lopsided(longest: tuple[Any, ...], times: float) -> bool:
    """Return whether the longest slopes on one side exceed `times` those on the other side, if both have some."""
    return bool(0 < times * np.min(longest) < np.max(longest))


@dataclass(frozen=True)
class PublicFacts:
    """Public facts about a loss, from records of the declared domain and scores near the middle."""

    slope: float  # The largest one
    curvature: float  # The mean one, in the middle
    curvature_varies: bool  # Whether curvature depends on scores
    is_lipschitz: bool  # Whether slopes are bounded for large scores
    lipschitz: float = math.inf  # The largest slope and the largest curvature, if bounded
    smoothness: float = math.inf
    vanishes: bool = False  # Whether curvature vanishes far from a target, where slopes are constant
    both_sides: Callable[[float], tuple[float, float]] = lambda place: (place, place)  # The largest slopes up and down
    short_curvature: Callable[[float], float] = abs  # Curvature of the record with the largest slope, next to it
    least_part: float = 0.0  # Of large slopes on that side, the least next to the largest
    # The metric in which rows of the declared domain are about round, if they are far from round.
    metric: DomainMetric | None = None
    is_level: bool = False  # Whether rows encode a record's level alone, with a single 1
    has_labels: bool = False  # Whether records have labels that determine where their losses curve
    is_uneven: bool = False  # Whether losses are sums of functions of single columns with unlike slopes or widths
    of_labels: Callable[[Array], tuple[Array, Array]] | None = None  # Losses and slopes at constants, by label
    center: Array | float = 0.0  # Scores at which slopes have both signs, by column, if far from 0
    score_unit: float = 1.0  # Of scores
    start_table: Array | None = None  # The first table, which steps keep to K from, if losses have a bounded domain
    is_finite: bool = True  # Whether losses are finite there, or at scores of 0
    saturation: float = 0.0  # Scores beyond which most slopes hardly change, if any
    longest: tuple[Array, ...] = (np.array(math.inf), np.array(math.inf))  # ... and slopes down and up there, by score
    sides: tuple[float, float] = (0.0, 0.0)  # The mean curvature far below and far above, if it does not vanish
    has_no_curvature: bool = False  # Whether losses have no curvature at scores of 0
    # The longest slopes, up and down, of scores that share rows, if those of few records balance those of many
    unbalanced_slopes: tuple[float, float] | None = None
    secant: Array | float = 0.0  # The mean curvature from 0 to the middle, by column, if that is not 0

    def short_side(self, place: float) -> float:
        """Return the largest slope at a score, on the side with shorter slopes."""
        return min(self.both_sides(place))

    @property
    def of_steps(self) -> "PublicFacts":
        """The facts for steps: squares that continue as lines count as squares, with the largest curvature."""
        if not self.vanishes or self.smoothness > MAX_RISE * self.curvature:
            return self
        return replace(self, curvature=self.smoothness, curvature_varies=False, vanishes=False)

    @property
    def has_one_side(self) -> bool:
        """Whether slopes are bounded with one sign alone, as for pairs of which one is preferred."""
        return self.is_lipschitz and min(float(np.max(side)) for side in self.longest) <= 0

    @property
    def has_log_link(self) -> bool:
        """Whether slopes grow with the distance from the answer, and curvature depends on scores, as for log links."""
        return self.curvature_varies and not self.vanishes

    def max_step(self, curvature: float) -> float:
        """Return the unit of the longest useful step of scores, by bounded slopes if curvature vanishes."""
        return self.lipschitz / curvature if self.vanishes else self.score_unit

    def histogram_edges(self, usual: float) -> Array:
        """Return the bins' upper ends for lengths of slopes; the longest may be far longer than usual ones."""
        is_steep = self.has_labels and not self.is_lipschitz and not self.has_log_link
        longest = LARGEST_EDGE * min(STEEPER * self.slope if is_steep else self.slope, usual * 2.0 ** (BINS - SHORTER))
        return np.asarray(longest * 2.0 ** np.arange(1 - BINS, 1, dtype=float))


@dataclass(frozen=True)
class LengthHistograms:
    """Histograms of gradient norms in the metric, next to the usual leverage, and clips that follow from them."""

    edges: Array
    deviation: float  # Of a count
    number: float  # Of records, or the least number of people
    signed: bool  # Whether the two sides are signs of one slope, which cancel
    # The largest public slopes, up and down, if all sum to about 0, so that seen slopes reveal hidden ones.
    longest: tuple[float, float] | None = None

    @property
    def are_hidden(self) -> bool:
        """Whether noise hides all lengths."""
        return self.number < BELIEVED * self.deviation

    def sides(self, counts: Array) -> tuple[float, float, float]:
        """Return the one-sidedness of slopes, from 0 to 1, their sum, and their mean length, without a few long ones."""
        for width in (1, 2, 4, 8) if self.number > FAR_OUT * self.deviation else ():  # Otherwise only noise stands out
            near = np.stack([np.convolve(side, np.ones(width), "valid") for side in counts]).max(axis=0)
            seen = np.flatnonzero(near > max(LEAST_SEEN * self.number, FAR_OUT * self.deviation * math.sqrt(width)))
            if len(seen):
                up, down = counts[:, : seen[-1] + width]
                middle = np.append(0.0, self.edges[1 : len(up)] / math.sqrt(2))
                net, both = float(middle @ (up - down)), float(middle @ np.maximum(up + down, 0.0))
                return min(abs(net) / max(both, 1e-300), 1.0), net, both / self.number
        return 0.0, 0.0, 0.0

    def standing_out(self, counts: Array, last: float) -> Array:
        """Return the counts that exceed the noise; other counts are 0."""
        stands_out = np.where(self.edges > FAR_LENGTH * last, FAR_OUT, STANDS_OUT) * self.deviation
        return np.where(counts > stands_out, counts, 0.0)

    def with_tail(self, seen: Array) -> Array:
        """Return the counts that exceed the noise, with an extrapolated tail behind the last: few rows are long."""
        last = int(np.flatnonzero(seen)[-1]) if seen.any() else 0
        if last < 2 or not (three := seen[last - 2 : last + 1]).all():
            return seen
        falls = min(float(three[2] / three[1]), FALLS)
        faster = min(falls / min(float(three[1] / three[0]), 1.0), 1.0)  # As counts of a lognormal law do
        ahead = seen[last] * np.cumprod(falls * faster ** np.arange(1.0, len(seen) - last))
        return np.append(seen[: last + 1], np.minimum(ahead, STANDS_OUT * self.deviation))

    def hidden(self, counts: Array, last: float) -> tuple[float, float]:
        """Return the sum of unseen slopes, on the side of few records, that balance seen ones, and their least length."""
        if self.longest is None:
            return 0.0, 0.0
        up, down = self.standing_out(counts, last)
        side, unseen = math.copysign(1.0, float((up - down).sum())), HIDDEN_DEVIATIONS * self.deviation
        missing = max(side * float(self.edges @ (up - down)) / math.sqrt(2), 0.0)
        if missing > unseen * MAX_RISE * self.longest[side > 0]:  # None are so long: other slopes balance the seen ones
            return 0.0, 0.0
        missing = min(missing, unseen * float(self.edges[-1]))
        return -side * missing, missing / unseen

    def together(self, counts: Array, usual: float) -> float:
        """Return a clip of at most `usual`, and at most the end of the adjacent bins that together exceed the noise, if any."""
        near = np.convolve(counts.sum(axis=0)[1:], np.ones(TOGETHER), "valid")  # The first bin is for slopes of 0
        is_seen = near.max() > SEEN_TOGETHER * self.deviation * math.sqrt(2 * TOGETHER)
        return min(usual, float(self.edges[near.argmax() + TOGETHER])) if is_seen else usual

    def clip(self, counts: Array, noise_cost: float, usual: float, last: float) -> float:
        """Return the clip with the least bias and noise together; bias is the sum of gradients' excesses over the clip."""
        up, down = self.standing_out(counts, last)
        up[0] = down[0] = 0.0  # Slopes of 0: at a tie, or beyond a margin
        seen = float((up + down).sum())
        if not seen >= max(SEEN * self.number, BELIEVED * self.deviation):
            return usual
        if self.longest is None and self.number > TAILED * math.sqrt(noise_cost):
            up, down = self.with_tail(up), self.with_tail(down)
        excess = np.maximum(self.edges / math.sqrt(2) - self.edges[:, None], 0.0)
        both = excess @ (up + down)
        net = excess @ (up - down) if self.signed else both / 2
        missing, length = self.hidden(counts, last)
        lost = missing * np.maximum(1 - self.edges / max(length, 1e-300), 0.0)
        net, both = net + lost, both + np.abs(lost)
        cost = net**2 + (BOTH_SIDES * both) ** 2 + self.edges**2 * noise_cost
        least = int(np.searchsorted(np.cumsum(up + down), UNCLIPPED * seen))
        return float(self.edges[max(int(np.argmin(cost)), least)])


@dataclass(frozen=True)
class Fit:
    """One fit: noisy queries, public facts, and the level of all queries; their squared levels add up."""

    queries: PrivateQueries
    public: PublicFacts
    level: float
    size: float  # The nominal number of records
    rounds: float | None = None  # The number of steps, if given

    def level_of(self, part: float) -> float:
        """Return the level of a query with this share of the squared level."""
        return self.level * math.sqrt(part)

    def noise_cost(self, part: float) -> float:
        """Return the weight of gradients' noise next to bias, at a clip of 1 and this share of the squared level."""
        return (NOISE_COST * self.queries.sensitivity / self.level) ** 2 / part

    def people(self, number: float) -> float:
        """Return the least number of people with `number` records."""
        return number / self.most

    def histogram_edges(self, usual: float) -> Array:
        """Return the bins' upper ends for lengths of a person's gradient, which may add up `most` slopes of one sign."""
        return self.public.histogram_edges(usual) * self.most

    @property
    def most(self) -> int:
        """The most records of a person."""
        return 1 if self.queries.people is None else self.queries.privacy.most

    @property
    def columns(self) -> float:
        """The number of columns of a table that differ."""
        return float(np.trace(self.queries.scores.table_projection))

    @property
    def people_each(self) -> float:
        """People for each parameter and unit of the level, next to the sensitivity."""
        return self.people(self.size) * self.level / (self.queries.sensitivity * self.queries.rows.count * self.columns)

    @property
    def has_many(self) -> bool:
        """Whether curvature depends on scores, and records are so many that steps can converge for rare rows, too."""
        bent = self.public.of_steps.curvature_varies and self.queries.scores.width == 0
        return bent and self.people_each >= MANY_RECORDS

    @property
    def has_few(self) -> bool:
        """Whether records are too few, for each feature and unit of the level, for a second query of the second moment."""
        return self.size * self.level / self.queries.rows.count < FEW_RECORDS
