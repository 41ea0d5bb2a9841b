"""The constant of scores, moved alone: before all else, so that wide bounds of targets cost nothing, and once more at the end."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dpconvex.optim.constant_models import LOGISTIC_DEVIATION, MAX_QUERIES, RECORD_WEIGHTS, PlacePosterior, locate
from dpconvex.optim.slope_histograms import CLIP_STEPS, HISTOGRAMS, MAX_RISE, Fit, LengthHistograms, PublicFacts
from dpconvex.sums.forms import SAME_DIGITS
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

# Noise of a count next to the number of records, and what such a histogram costs at most, of the squared level.
FINE, HISTOGRAM_COST = 0.02, 0.03
TILTED = 3.0  # Records and unit of the level for each parameter, below which a search ends where slopes add up to 0
# What all mean slopes of a search cost, next to records and unit of the level, squared, and at least; and the part of what is
# left that they and all else that is asked of the constant cost at most.
MEAN_COST, LEAST_COST, COST_PART = 100.0, 0.02, 0.85
# The clip of first steps, next to the deviation that the search finds; the mean slope at which that is not believed, next to it.
CLIP_DEVIATIONS, TOO_LONG = 1.2, 8.0
# The curvature there at least, next to that of the law that the search finds, and that later ones have at least: ties have more.
LAW_PART, TIED = 0.5, 2.0
# Where slopes balance: what mean slopes cost at most, and with records so many that their noise is small, in 1 / LOOSE.
SHARES, LOOSE = (0.003, 0.003, 0.003, 0.004, 0.005, 0.006, 0.01, 0.012, 0.018, 0.026), 20.0
WIDENED = 3  # Looks until clips, short at first, are wide
# One over the noise of a clip next to the short side; the least clip, and one that is wide enough if noise allows it.
SHORT_PARTS, NARROW_CLIP, WIDE_CLIP = 4.0, 1.5, 12.0
# Before anything is asked, how far constants are from 0; their grid; how wrong the model of mean slopes is, and what clips cut.
PRIOR_SPREAD, FINEST, MODEL_ERROR, CLIP_LOSS = 1.5, 50, 0.25, 0.6
# Where steps end: how near, and how near to a known curvature, in squares; the largest spread, and what it says of doubts.
END_WIDTH, END_PARTS, LARGE, DOUBTS = 0.02, 0.5, 2.0, 10.0
# What a curvature costs there, and before all else; the farthest score and the shortest slopes that it may have; the clip if
# nothing is seen.
CURVATURE_COST, PREDICTED, MAX_SCORE, MIN_SLOPE, USUALLY = 0.015, 0.005, 40, 1e-9, 2.0
EVEN = 0.7  # The least part of the largest slope on the short side that records have where all have about as much
LAST, EARLY = 0.06, 0.25  # What the last steps have of the squared level, and the part of it that the first one has
# How much wider their clip is at least than others, and than the least length of hidden slopes.
WIDER_CLIP, FURTHER = 1.5, 2.0


def measure_constant(looks: PrivateLooks) -> Array:
    """Measure rows by their constant from now on; return the matrix."""
    only = np.zeros((1, looks.rows.count))
    only[0, -1] = 1 / looks.constant
    return looks.set_metric(only)


class ConstantStart(NamedTuple):
    """The constant before anything else moves, the curvature there, its cost, and the clip for a loudness."""

    constants: Array  # By column
    curvature: float
    min_curvature: float  # That of later places at least, where slopes settle
    spent: float  # Of the squared level
    histogram_share: float  # Of the squared level, that a histogram of slopes needs
    clip: Callable[[float], float]
    last_share: float  # Of the squared level, for the last steps of a constant, if there is one
    hidden_length: float  # The least length of slopes that nothing is seen of
    lengths: LengthHistograms  # With public slopes there, where slopes balance
    posterior: "BalancePosterior"
    num_records: float  # Of records, about


def estimate_constant(fit: Fit, number: float, begin: Array | float, most: float) -> ConstantStart | None:
    """Move the constant alone until slopes are on both sides: wide bounds of targets cost nothing.

    Mean slopes tell where it is, which cost little if there are many records.  If they are few, all later steps may turn out to
    be noise, and then this is the prediction.  A histogram of slopes there is that of the first clip.  At most a part
    of `most` of the squared level is spent.  Several constants are searched together, unless records are too few to tell them.
    """
    looks, public, people = fit.looks, fit.public, fit.people(number)
    matrix, curvature, columns = measure_constant(looks), public.curvature, looks.scores.shape[1]
    probe = np.full(columns * public.vanishes, columns**-0.5)
    belief, law = BalancePosterior(public.least_part), 0.0
    share = max(min((1 / (FINE * people * fit.level)) ** 2, HISTOGRAM_COST), HISTOGRAMS / len(CLIP_STEPS))
    last = LAST if public.curvature_varies and columns == 1 else 0.0
    if public.has_log_link:
        one, curvature, spent = balance_constant(fit, number, begin, matrix, belief)
        place, usual = np.array([one]), USUALLY * public.short_side(one)
    else:
        most = COST_PART * most - share * (1 + public.vanishes) - (last and last + share)
        found = search_constants(fit, number, begin, matrix, most)
        if found is None:
            return None
        place, usual, spent, law = found
    own, spent = fit.level_of(share), spent + share * (1 + public.vanishes)
    edges, least = public.histogram_edges(usual if public.has_log_link else math.inf), 0.0
    longest = public.both_sides(float(place[0])) if public.has_log_link else None
    lengths = LengthHistograms(edges, looks.deviation_of_counts(own), people, columns == 1, longest)
    cap = public.smoothness
    asked: Any = {"edges": lengths.edges, "histogram_level": own, "cap": cap, "along_level": own * public.vanishes}
    answer = looks.look(begin + np.outer(matrix.T, place), probe=probe, **asked)
    if len(probe):
        curvature = max(float(answer.along[0]) / number, 0.0) + looks.sum_sensitivity(cap, 1.0) / (own * number)
        curvature = max(curvature, LAW_PART * law)  # 0 between targets of few values, but not where scores spread
        least = min(curvature, TIED * law)
    _, _, size = lengths.sides(answer.histogram)
    near = partial(lengths.clip, answer.histogram, usual=usual, last=size)

    def clip(noise_cost: float) -> float:
        # Slopes far longer than the search says are those of another law.
        is_told = public.has_log_link or size > TOO_LONG * usual
        return near(noise_cost) if is_told else max(min(near(noise_cost), usual), usual / 2)

    hidden = lengths.hidden(answer.histogram, size)[1]
    return ConstantStart(
        place, curvature, least or curvature, spent, share, clip, last, hidden, lengths, belief, number
    )


def search_constants(
    fit: Fit, number: float, begin: Array | float, matrix: Array, most: float
) -> tuple[Array, float, float, float] | None:
    """Search the constants; return where mean slopes are about 0, a clip for slopes, the cost, and the curvature found."""
    looks, public, people = fit.looks, fit.public, fit.people(number)
    columns, few = looks.scores.shape[1], people * fit.level / looks.sensitivity
    if (mixed := loss_directions(looks.scores)).size:
        apart = np.linalg.inv(mixed)
    # Each record has one of them: they move together.
    elif len(looks.scores.form.labels) > 1 and are_separate(looks.scores):
        mixed, apart = np.ones((1, 1)), np.ones((1, columns))
    else:
        return None
    wider, louder = (float(np.linalg.norm(one, 2)) for one in (mixed, apart))
    low, high = sorted(float(np.max(end)) for end in public.longest)
    # Steps of few records hardly move a constant that is far from the middle, as those of quantiles are.
    weights = RECORD_WEIGHTS if columns == 1 and public.least_part < EVEN else (1.0,)
    enough = TILTED * looks.rows.count / float(np.median(weights))
    tilted = columns == 1 and 0 < low < high < math.inf and few < enough
    told = MEAN_COST * (math.sqrt(high / low) if tilted else 1.0)
    spent = max(told * len(mixed) * (wider * louder / few) ** 2, LEAST_COST)
    if spent > most and len(mixed) > 1:
        return None
    spent = min(spent, most)
    each, own = number / people, fit.level_of(spent / MAX_QUERIES)

    def ask(tried: Array, clip: float) -> Array:
        here = begin + np.outer(matrix.T, tried @ apart)
        return np.asarray(apart @ looks.look(here, clip * wider, 1.0, own).gradient[0]) / people

    most_clip = public.lipschitz / wider if len(mixed) > 1 else math.inf
    half = public.saturation or public.slope / public.curvature / 2
    sharp = each * apart.shape[1] / len(mixed) * (public.smoothness if public.vanishes else public.curvature)
    ends = (each * (end if len(mixed) > 1 else end.max()) for end in public.longest)
    down, up = (np.broadcast_to(end, len(mixed)).tolist() for end in ends)
    sides = public.sides if columns == 1 and min(public.sides) > 0 else (sharp / each, sharp / each)
    curvatures = each * sides[0], each * sides[1]
    every = [PlacePosterior(half, curvatures, ends, tilted, weights) for ends in zip(down, up, strict=True)]
    spent *= locate(ask, wider * louder * looks.sensitivity / (people * own), every, most_clip) / MAX_QUERIES
    clips = (CLIP_DEVIATIONS * LOGISTIC_DEVIATION * one.scale * sum(one.curvatures) / 2 for one in every)
    usual = wider * math.hypot(
        *(one.weight * min(clip, max(one.longest)) for one, clip in zip(every, clips, strict=True))
    )
    law = every[0].curvature / (each * columns) if len(every) == 1 else 0.0
    return np.array([one.balance for one in every]) @ apart, usual, spent, law


def balance_constant(
    fit: Fit, number: float, begin: Array | float, matrix: Array, belief: "BalancePosterior"
) -> tuple[float, float, float]:
    """Return where slopes balance, by mean slopes, the mean curvature there, and what they cost, of the squared level."""
    looks, public, spent = fit.looks, fit.public, 0.0
    few = fit.people(number) * fit.level / looks.sensitivity
    near = (float(place) for far in range(MAX_SCORE) for place in (-far, far))
    place = next((one for one in near if public.short_side(one) > MIN_SLOPE), 0.0)
    bears = few * math.sqrt(sum(SHARES))
    widest = max(min(bears / SHORT_PARTS, max(math.sqrt(2 * bears), WIDE_CLIP)), NARROW_CLIP)  # that noise allows

    def noisy_curvature(cost: float, wider: float) -> tuple[float, float]:
        """Return the noisy mean curvature at the place, and its noise."""
        own, cap = fit.level_of(cost), wider * public.short_side(place)
        answer = looks.look(begin + matrix.T * place, probe=np.ones(1), cap=cap, along_level=own)
        return float(answer.along[0]) / number, looks.sum_sensitivity(cap, 1.0) / (own * number)

    if public.least_part < EVEN:
        (seen, doubt), unit = noisy_curvature(PREDICTED, 1.0), public.short_side(place)
        belief.learn_curvature(place, seen / unit, doubt / unit, public.short_curvature(place))
        spent += PREDICTED
    for count, most in enumerate(SHARES):
        place, part = nearest_defined(belief.median, place, public), belief.part
        unit = public.short_side(place)
        wider = math.exp(min(max(-place, 0.0), MAX_SCORE) / 2)  # Below 0 targets are rarer, and slopes fall slower
        allowed = min(widest * wider, max(public.slope / (part * unit), WIDE_CLIP))
        share = most * min((LOOSE * allowed / few) ** 2, 1.0)
        narrow = min(NARROW_CLIP * wider, allowed)  # It tells which way to go, and wide ones where to stay
        clip = part * narrow * (allowed / narrow) ** min(count / WIDENED, 1.0)
        slope = float(looks.look(begin + matrix.T * place, clip * unit, 1.0, fit.level_of(share)).gradient[0, 0])
        belief.learn(place, slope / (number * unit), clip, clip / (few * math.sqrt(share)))
        spent += share
    place = nearest_defined(belief.median, place, public)
    seen, doubt = noisy_curvature(CURVATURE_COST, MAX_RISE)
    return place, max(min(public.short_side(place), max(seen, 0.0) + doubt), seen - doubt), spent + CURVATURE_COST


def nearest_defined(place: float, before: float, public: PublicFacts) -> float:
    """Return a place, nearer to one before where slopes are no numbers."""
    while abs(before - place) > 1e-9 and not public.short_side(place) > MIN_SLOPE:
        place = (before + place) / 2
    return place


def are_separate(scores: LinearScores) -> bool:
    """Say whether no score is one of two columns."""
    return bool((np.diff(sp.csc_array(scores.to_forms).indptr) <= 1).all())


def loss_directions(scores: LinearScores) -> Array:
    """Return what losses are functions of, by columns, shape (columns, parts); an empty table if these are not as many."""
    if scores.shape[1] == 1:
        return np.eye(1)
    if len(scores.form.labels) > 1:
        return np.zeros((0, 0))
    rows = (scores.form.labels[0].combine @ scores.to_forms.T).toarray()
    rows = rows[np.abs(rows).max(axis=1) > 0]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
    parts = np.unique(np.round(rows / largest, SAME_DIGITS), axis=0).T
    return parts if len(parts) == len(parts.T) == np.linalg.matrix_rank(parts) else np.zeros((0, 0))


class BalancePosterior:
    """How likely each constant is the one where slopes balance.

    At any other place the mean slope is about ``r (1 - exp(constant - place))``, next to the largest slope on the short side: so
    it is with log links, where a slope is the prediction less the target.  The part r is not known either.
    """

    def __init__(self, least: float = 0.0) -> None:
        parts = 2.0 ** -np.arange(0, 10, 0.5)
        self.places, self.parts = np.arange(-MAX_SCORE, MAX_SCORE, 1 / FINEST), parts[parts > least * EVEN][:, None]
        self.log = np.log(self.parts) - 2 * np.log1p((self.places / PRIOR_SPREAD) ** 2)

    def learn(self, place: float, slope: float, clip: float, noise: float) -> None:
        """Learn from a noisy mean of clipped slopes; long slopes may be cut where the place is too low."""
        mean = np.maximum(self.parts * (1 - np.exp(self.places - place)), -clip)
        cut = np.where(mean > 0, 1.0, 1 - min(CLIP_LOSS, NARROW_CLIP * self.part / clip)) * mean
        missed = np.maximum(mean - min(slope, 1.0), 0.0) + np.maximum(min(slope, 1.0) - cut, 0.0)
        self.log = self.log - missed**2 / (noise**2 + (MODEL_ERROR * mean) ** 2) / 2

    def learn_curvature(self, place: float, bend: float, noise: float, alone: float) -> None:
        """Learn from a noisy mean curvature, cut to the short side; `alone` is that of a record there, next to its slope."""
        mean = np.minimum(self.parts * (alone + (1 - alone) * np.exp(np.minimum(self.places - place, MAX_SCORE))), 1.0)
        self.log = self.log - (mean - bend) ** 2 / (noise**2 + (MODEL_ERROR * mean) ** 2) / 2

    def add_end(self, place: float, noise: float, part: float, doubt: float) -> None:
        """Learn that steps ended at a place, where r is about a part; what was known before is doubted."""
        self.log = self.log / (1 + doubt) - np.log1p(((self.places - place) / (END_WIDTH + noise)) ** 2)
        self.log = self.log - np.log(self.parts / part) ** 2 / END_PARTS

    @property
    def part(self) -> float:
        """About the part of the largest slope that usual records have: little where few have large weights."""
        likely = np.exp(self.log - self.log.max()).sum(axis=1)
        return float(np.exp(likely @ np.log(self.parts[:, 0]) / likely.sum()))

    @property
    def median(self) -> float:
        likely = np.exp(self.log - self.log.max()).sum(axis=0).cumsum()
        return float(self.places[np.searchsorted(likely, likely[-1] / 2)])


def refine_constant(
    fit: Fit, start: ConstantStart, table: Array, spread: float, place: float, away: float, clip: float, bend: float
) -> Array:
    """Return the table with the constant moved once more, alone: its noise is small, so the clip is wide.

    Scores have the root mean square `spread` about their mean, which is `place`, with noise `away`.
    """
    looks, public, last, number = fit.looks, fit.public, start.last_share, start.num_records
    only = measure_constant(looks).T
    # The clip for the constant: that of all directions loses what is far out on one side.
    own = fit.level_of(start.histogram_share)
    counts = looks.look(table, edges=start.lengths.edges, histogram_level=own).histogram
    there = replace(start.lengths, deviation=looks.deviation_of_counts(own))
    asked = there.clip(counts, fit.noise_cost(last), clip, clip)
    wide = max(asked, WIDER_CLIP * clip, FURTHER * there.hidden(counts, clip)[1])
    if there.longest is None:
        own = fit.level_of(last)
        step = looks.look(table, wide, 1.0, own).gradient[0, 0] / (number * bend)
        # Shorter by what of it may be noise.
        step *= max(0.0, 1 - (looks.sensitivity * wide / own / (number * bend) / step) ** 2) if step else 0.0
        return table - math.copysign(min(abs(step), public.max_step(bend)), step) * only
    belief, more = start.posterior, min(spread, LARGE) ** 2 / 2  # By which other scores raise the mean of log links
    belief.add_end(place + more, away, bend / public.short_side(place + more), DOUBTS * more)
    for part in (EARLY, 1 - EARLY):
        before, place = place, nearest_defined(belief.median, place + more, public) - more
        table, unit = table + (place - before) * only, public.short_side(place + more)
        own = fit.level_of(part * last)
        slope = float(looks.look(table, wide, 1.0, own).gradient[0, 0] / number)
        belief.learn(place + more, slope / unit, wide / unit, looks.sensitivity * wide / own / number / unit)
    return table + (belief.median - more - place) * only
