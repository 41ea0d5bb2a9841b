"""What is known of slopes: public bounds first, then noisy histograms of their lengths, and the clips that these ask for."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpconvex.optim.row_metrics import DomainMetric
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

MAX_RISE = 4.0  # By how much the curvature rises in one step at most
HISTOGRAMS = 0.06  # The part of the squared level that histograms have
CLIP_STEPS = (0, 2, 6, 14)  # Rounds that begin with a histogram of lengths
# Bins of the histogram, by halves, down from so many of the largest slope, the clip while no histogram says more,
# and how many bins are for slopes shorter than usual ones at least.
BINS, LARGEST_EDGE, FIRST_CLIP, SHORTER = 24, 2.0, 0.27, 10
# By how many deviations of the noise a count stands out, in bins near the last clip and far above it.
STANDS_OUT, FAR_OUT, FAR_LENGTH = 2.0, 4.0, 4.0
# How much longer slopes are where steps end, at most, than near 0, where neither targets, constants nor the loss bound them.
STEEPER = 16.0
HIDDEN_DEVIATIONS = 4.0  # In deviations, what may be hidden in two bins next to each other
BOTH_SIDES = 0.25  # What gradients beyond the clip on both sides count, next to those of one side alone
NOISE_COST = 2.0  # What noise counts next to bias, and as much again in the first half of the steps
SEEN, UNCLIPPED = 0.25, 0.5  # A histogram of fewer records is not believed; so many are not clipped
BELIEVED = 6.0  # ... nor one of fewer deviations of a count: of all bins, one stands out by chance
# Where so many records are as loud as noise, tails go on beyond what is seen, each bin with at most this part of the one before.
TAILED, FALLS = 80.0, 0.5
# How much longer slopes are on one side at least where their sums tell of hidden ones, and where smooth losses are those of links
LOPSIDED, LINKED = 4.0, 50.0
TOGETHER, SEEN_TOGETHER = 4, 3.0  # Bins that most lengths lie in, and by how many deviations these stand out together
LEAST_SEEN = 0.1  # The least part of records that is seen
FEW_RECORDS = 5.0  # Records for each feature and unit of the level


def are_lopsided(longest: tuple[Any, ...], times: float) -> bool:
    """Say whether the longest slopes on one side are so many times as long as those on the other, if there are any."""
    return bool(0 < times * np.min(longest) < np.max(longest))


@dataclass(frozen=True)
class PublicFacts:
    """Public facts about a loss, from records of the declared domain and scores near their middle."""

    slope: float  # The largest
    curvature: float  # The mean, in the middle
    curvature_varies: bool  # Whether curvature depends on scores
    is_lipschitz: bool  # Whether slopes stay within bounds where scores are large
    lipschitz: float = math.inf  # The largest slope and curvature, where slopes, or curvatures, stay within bounds
    smoothness: float = math.inf
    vanishes: bool = False  # Whether the curvature does, far from a target: slopes are constant there
    both_sides: Callable[[float], tuple[float, float]] = lambda place: (place, place)  # The largest slopes up and down
    short_curvature: Callable[[float], float] = abs  # The curvature of the record that slopes most, next to that slope
    least_part: float = 0.0  # Of the slopes on that side, where they are large, the least next to the largest
    # In which rows of the declared domain are about round, where they are far from that.
    metric: DomainMetric | None = None
    is_level: bool = False  # Whether rows say a record's level alone: they are 1 in one place
    has_labels: bool = False  # Whether records have labels that say all of where their losses bend
    is_uneven: bool = False  # Whether losses are sums of functions of one column each, of unlike slopes or widths
    of_labels: Callable[[Array], tuple[Array, Array]] | None = None  # Losses and slopes at constants, by label
    center: Array | float = 0.0  # Of the scores at which slopes have both signs, by column, where these are far from 0
    score_unit: float = 1.0  # Of scores
    start_table: Array | None = None  # The table where steps begin and that they keep to K from, where losses have ends
    is_finite: bool = True  # Whether losses are numbers there, or at scores of 0
    saturation: float = 0.0  # The scores beyond which slopes of most records hardly change, if there are any
    longest: tuple[Array, ...] = (np.array(math.inf), np.array(math.inf))  # ... and slopes down and up there, by score
    sides: tuple[float, float] = (0.0, 0.0)  # The mean curvature far below and far above, if it stays there
    has_no_curvature: bool = False  # Whether losses have no curvature at scores of 0
    # The longest slopes, up and down, of scores that share rows, where those of few records balance those of many
    unbalanced_slopes: tuple[float, float] | None = None
    secant: Array | float = 0.0  # The curvature from 0 to the middle, by column, where that is not 0

    def short_side(self, place: float) -> float:
        """Return the largest slope at a score on the side where they are shorter."""
        return min(self.both_sides(place))

    @property
    def of_steps(self) -> "PublicFacts":
        """Facts for steps: squares that continue as lines count as squares, whose curvature is the largest."""
        if not self.vanishes or self.smoothness > MAX_RISE * self.curvature:
            return self
        return replace(self, curvature=self.smoothness, curvature_varies=False, vanishes=False)

    @property
    def has_one_side(self) -> bool:
        """Whether slopes stay within bounds, and have one sign alone: records are pairs of which one is preferred, say."""
        return self.is_lipschitz and min(float(np.max(side)) for side in self.longest) <= 0

    @property
    def has_log_link(self) -> bool:
        """Whether slopes grow with the distance from the answer, and depend on scores as curvature does: as for log links."""
        return self.curvature_varies and not self.vanishes

    def max_step(self, curvature: float) -> float:
        """Return the unit of the longest useful step of scores, where slopes that stay within bounds say one."""
        return self.lipschitz / curvature if self.vanishes else self.score_unit

    def histogram_edges(self, usual: float) -> Array:
        """The upper ends of the bins for lengths of slopes, of which the longest may be far longer than usual ones."""
        is_steep = self.has_labels and not self.is_lipschitz and not self.has_log_link
        longest = LARGEST_EDGE * min(STEEPER * self.slope if is_steep else self.slope, usual * 2.0 ** (BINS - SHORTER))
        return np.asarray(longest * 2.0 ** np.arange(1 - BINS, 1, dtype=float))


@dataclass(frozen=True)
class LengthHistograms:
    """Histograms of gradients' lengths in the metric, next to the usual leverage, and the clips that they ask for."""

    edges: Array
    deviation: float  # Of a count
    number: float  # Of records, or of people at least
    signed: bool  # Whether sides are those of one slope, which cancel
    # The largest public slopes, up and down, where all add up to about 0, so that seen ones tell of hidden ones.
    longest: tuple[float, float] | None = None

    @property
    def are_hidden(self) -> bool:
        """Whether noise hides lengths, whatever they are."""
        return self.number < BELIEVED * self.deviation

    def sides(self, counts: Array) -> tuple[float, float, float]:
        """Return how far slopes are on one side, from 0 to 1, their sum, and their mean length, but for a few long ones."""
        for width in (1, 2, 4, 8) if self.number > FAR_OUT * self.deviation else ():  # Else only noise stands out
            near = np.stack([np.convolve(side, np.ones(width), "valid") for side in counts]).max(axis=0)
            seen = np.flatnonzero(near > max(LEAST_SEEN * self.number, FAR_OUT * self.deviation * math.sqrt(width)))
            if len(seen):
                up, down = counts[:, : seen[-1] + width]
                middle = np.append(0.0, self.edges[1 : len(up)] / math.sqrt(2))
                net, both = float(middle @ (up - down)), float(middle @ np.maximum(up + down, 0.0))
                return min(abs(net) / max(both, 1e-300), 1.0), net, both / self.number
        return 0.0, 0.0, 0.0

    def standing_out(self, counts: Array, last: float) -> Array:
        """Return the counts that stand out of the noise, and 0 for others."""
        stands_out = np.where(self.edges > FAR_LENGTH * last, FAR_OUT, STANDS_OUT) * self.deviation
        return np.where(counts > stands_out, counts, 0.0)

    def with_tail(self, seen: Array) -> Array:
        """Return counts that stand out, and behind the last of them a tail that goes on as they fall: few rows are long."""
        last = int(np.flatnonzero(seen)[-1]) if seen.any() else 0
        if last < 2 or not (three := seen[last - 2 : last + 1]).all():
            return seen
        falls = min(float(three[2] / three[1]), FALLS)
        faster = min(falls / min(float(three[1] / three[0]), 1.0), 1.0)  # As counts of a lognormal law do
        ahead = seen[last] * np.cumprod(falls * faster ** np.arange(1.0, len(seen) - last))
        return np.append(seen[: last + 1], np.minimum(ahead, STANDS_OUT * self.deviation))

    def hidden(self, counts: Array, last: float) -> tuple[float, float]:
        """Return the sum of unseen slopes, on the side of few, that balance seen ones, and their least length."""
        if self.longest is None:
            return 0.0, 0.0
        up, down = self.standing_out(counts, last)
        side, unseen = math.copysign(1.0, float((up - down).sum())), HIDDEN_DEVIATIONS * self.deviation
        missing = max(side * float(self.edges @ (up - down)) / math.sqrt(2), 0.0)
        if missing > unseen * MAX_RISE * self.longest[side > 0]:  # None are so long: seen slopes balance elsewhere
            return 0.0, 0.0
        missing = min(missing, unseen * float(self.edges[-1]))
        return -side * missing, missing / unseen

    def together(self, counts: Array, usual: float) -> float:
        """Return a clip that is no longer than a usual one, and than bins that stand out together where none does alone."""
        near = np.convolve(counts.sum(axis=0)[1:], np.ones(TOGETHER), "valid")  # The first bin is of no slopes
        is_seen = near.max() > SEEN_TOGETHER * self.deviation * math.sqrt(2 * TOGETHER)
        return min(usual, float(self.edges[near.argmax() + TOGETHER])) if is_seen else usual

    def clip(self, counts: Array, noise_cost: float, usual: float, last: float) -> float:
        """Return the clip at which bias and noise together are least: bias is the sum of what gradients exceed it by."""
        up, down = self.standing_out(counts, last)
        up[0] = down[0] = 0.0  # Without a slope: at a tie, or beyond a margin
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
    """One fit: records behind their noise, public facts, and the level of all questions, whose square they share."""

    looks: PrivateLooks
    public: PublicFacts
    level: float
    size: float  # The nominal number of records
    rounds: float | None = None  # The number of steps, where that is given

    def level_of(self, part: float) -> float:
        """Return the level of a question that has a part of the squared level."""
        return self.level * math.sqrt(part)

    def noise_cost(self, part: float) -> float:
        """Return what noise on gradients with a part of the squared level counts next to bias, for a clip of 1."""
        return (NOISE_COST * self.looks.sensitivity / self.level) ** 2 / part

    def people(self, number: float) -> float:
        """Return the least number of people that `number` records belong to."""
        return number / (1 if self.looks.people is None else self.looks.privacy.most)

    @property
    def has_few(self) -> bool:
        """Whether records are few for each feature and unit of the level, so that one second moment is asked for."""
        return self.size * self.level / self.looks.rows.count < FEW_RECORDS
