"""Searches for the constant of scores alone: before the other parameters, for wide bounds of targets, and again at the end."""

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
from dpconvex.sums.private_queries import PrivateQueries
from dpconvex.util.arrays import Array

# Noise of a count next to the number of records, and the largest share of the squared level for a histogram with it.
FINE, HISTOGRAM_COST = 0.02, 0.03
TILTED = 3.0  # Product of records and level for each parameter below which a search ends where slopes add up to 0
# Cost of all mean slopes of a search, times the squared product of records and level; its minimum; and the largest share of the
# remaining level for all queries of the constant.
MEAN_COST, LEAST_COST, COST_PART = 100.0, 0.02, 0.85
# The clip of first steps, next to the deviation that the search finds; the mean slope, next to the clip, that contradicts it.
CLIP_DEVIATIONS, TOO_LONG = 1.2, 8.0
# Least curvature at the constant, next to that of the law that the search finds, and at later places: ties have more.
LAW_PART, TIED = 0.5, 2.0
# If slopes balance: largest shares of the mean slopes, and the noise at the whole level below which they shrink, in 1 / LOOSE.
SHARES, LOOSE = (0.003, 0.003, 0.003, 0.004, 0.005, 0.006, 0.01, 0.012, 0.018, 0.026), 20.0
WIDENED = 3  # Queries until clips, short at first, are wide
# Inverse noise of a clip next to the short side; the least clip; and a clip that is wide enough if noise allows it.
SHORT_PARTS, NARROW_CLIP, WIDE_CLIP = 4.0, 1.5, 12.0
# Prior spread of constants; their grid; relative error of the model of mean slopes; and the loss by clipping.
PRIOR_SPREAD, FINEST, MODEL_ERROR, CLIP_LOSS = 1.5, 50, 0.25, 0.6
# The end of steps: width of its distribution; squared width of a known curvature; largest spread, and the doubt by it.
END_WIDTH, END_PARTS, LARGE, DOUBTS = 0.02, 0.5, 2.0, 10.0
# Squared level for a curvature there, and before; largest score and least slopes in the search; the clip if no slope is seen.
CURVATURE_COST, PREDICTED, MAX_SCORE, MIN_SLOPE, USUALLY = 0.015, 0.005, 40, 1e-9, 2.0
EVEN = 0.7  # Least ratio of slopes on the short side at which all records count as equal
LAST, EARLY = 0.06, 0.25  # Share of the squared level for the last steps, and the part of it for the first one
# Least ratio of their clip to other clips, and to the least length of hidden slopes.
WIDER_CLIP, FURTHER = 1.5, 2.0


def set_constant_metric(queries: PrivateQueries) -> Array:
    """Set the metric to the constant of rows; return the matrix."""
    only = np.zeros((1, queries.rows.count))
    only[0, -1] = 1 / queries.constant
    return queries.set_metric(only)


class ConstantStart(NamedTuple):
    """The result of the first search of the constant, with the curvature there and its cost."""

    constants: Array  # By column
    curvature: float
    min_curvature: float  # Least curvature of later places, if slopes settle
    spent: float  # Of the squared level
    histogram_share: float  # Share of the squared level for a histogram of slopes
    clip: Callable[[float], float]
    last_share: float  # Share of the squared level for the last steps of a constant, if there is one
    hidden_length: float  # The least length of unseen slopes
    lengths: LengthHistograms  # With public slopes there, if slopes balance
    posterior: "BalancePosterior"
    num_records: float  # The estimated number of records


def estimate_constant(fit: Fit, number: float, begin: Array | float, most: float) -> ConstantStart | None:
    """Move the constant alone until slopes balance: wide bounds of targets then cost nothing.

    Mean slopes locate it, and cost little with many records.  With few records, all later steps may be noise, and the constant
    alone is the prediction.  A histogram of slopes there gives the first clip.  The search spends at most a part of `most` of
    the squared level.  Several constants are searched together, or not at all if records are too few.
    """
    queries, public, people = fit.queries, fit.public, fit.people(number)
    matrix, curvature, columns = set_constant_metric(queries), public.curvature, queries.scores.shape[1]
    probe = np.full(columns * public.vanishes, columns**-0.5)
    belief, law = BalancePosterior(public.least_part), 0.0
    share = max(min((1 / (FINE * people * fit.level)) ** 2, HISTOGRAM_COST), HISTOGRAMS / len(CLIP_STEPS))
    # Where curvature does not vanish far away, as at squared hinges, slopes are not those of log links, which last steps assume.
    last = LAST if public.curvature_varies and columns == 1 and not any(public.sides) else 0.0
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
    edges, least = fit.histogram_edges(usual if public.has_log_link else math.inf), 0.0
    longest = public.both_sides(float(place[0])) if public.has_log_link else None
    lengths = LengthHistograms(edges, queries.deviation_of_counts(own), people, columns == 1, longest)
    cap = public.smoothness
    asked: Any = {"edges": lengths.edges, "histogram_level": own, "cap": cap, "along_level": own * public.vanishes}
    answer = queries.query(begin + np.outer(matrix.T, place), probe=probe, **asked)
    if len(probe):
        curvature = max(float(answer.along[0]) / number, 0.0) + queries.sum_sensitivity(cap, 1.0) / (own * number)
        curvature = max(curvature, LAW_PART * law)  # 0 between targets of few values, but not for spread scores
        least = min(curvature, TIED * law)
    _, _, size = lengths.sides(answer.histogram)
    near = partial(lengths.clip, answer.histogram, usual=usual, last=size)

    def clip(noise_cost: float) -> float:
        # Slopes far longer than the search predicts contradict its law.
        is_told = public.has_log_link or size > TOO_LONG * usual
        return near(noise_cost) if is_told else max(min(near(noise_cost), usual), usual / 2)

    hidden = lengths.hidden(answer.histogram, size)[1]
    return ConstantStart(
        place, curvature, least or curvature, spent, share, clip, last, hidden, lengths, belief, number
    )


def search_constants(
    fit: Fit, number: float, begin: Array | float, matrix: Array, most: float
) -> tuple[Array, float, float, float] | None:
    """Search the constants; return where mean slopes are about 0, a clip for slopes, the cost, and the curvature there."""
    queries, public, people = fit.queries, fit.public, fit.people(number)
    columns, few = queries.scores.shape[1], people * fit.level / queries.sensitivity
    if (mixed := loss_directions(queries.scores)).size:
        apart = np.linalg.inv(mixed)
    # Each record has one of them: move them together.
    elif len(queries.scores.form.labels) > 1 and are_separate(queries.scores):
        mixed, apart = np.ones((1, 1)), np.ones((1, columns))
    else:
        return None
    wider, louder = (float(np.linalg.norm(one, 2)) for one in (mixed, apart))
    low, high = sorted(float(np.max(end)) for end in public.longest)
    # Steps of few records hardly move a constant that is far from the middle, as for quantiles.
    weights = RECORD_WEIGHTS if columns == 1 and public.least_part < EVEN else (1.0,)
    enough = TILTED * queries.rows.count / float(np.median(weights))
    tilted = columns == 1 and 0 < low < high < math.inf and few < enough
    told = MEAN_COST * (math.sqrt(high / low) if tilted else 1.0)
    spent = max(told * len(mixed) * (wider * louder / few) ** 2, LEAST_COST)
    if spent > most and len(mixed) > 1:
        return None
    spent = min(spent, most)
    each, own = number / people, fit.level_of(spent / MAX_QUERIES)

    def ask(tried: Array, clip: float) -> Array:
        here = begin + np.outer(matrix.T, tried @ apart)
        return np.asarray(apart @ queries.query(here, clip * wider, 1.0, own).gradient[0]) / people

    most_clip = public.lipschitz / wider if len(mixed) > 1 else math.inf
    half = public.saturation or public.slope / public.curvature / 2
    sharp = each * apart.shape[1] / len(mixed) * (public.smoothness if public.vanishes else public.curvature)
    ends = (each * (end if len(mixed) > 1 else end.max()) for end in public.longest)
    down, up = (np.broadcast_to(end, len(mixed)).tolist() for end in ends)
    sides = public.sides if columns == 1 and min(public.sides) > 0 else (sharp / each, sharp / each)
    curvatures = each * sides[0], each * sides[1]
    every = [PlacePosterior(half, curvatures, ends, tilted, weights) for ends in zip(down, up, strict=True)]
    spent *= locate(ask, wider * louder * queries.sensitivity / (people * own), every, most_clip) / MAX_QUERIES
    clips = (CLIP_DEVIATIONS * LOGISTIC_DEVIATION * one.scale * sum(one.curvatures) / 2 for one in every)
    usual = wider * math.hypot(
        *(one.weight * min(clip, max(one.longest)) for one, clip in zip(every, clips, strict=True))
    )
    law = every[0].curvature / (each * columns) if len(every) == 1 else 0.0
    return np.array([one.balance for one in every]) @ apart, usual, spent, law


def balance_constant(
    fit: Fit, number: float, begin: Array | float, matrix: Array, belief: "BalancePosterior"
) -> tuple[float, float, float]:
    """Return the place where mean slopes balance, the mean curvature there, and the share of the squared level spent."""
    queries, public, spent = fit.queries, fit.public, 0.0
    few = fit.people(number) * fit.level / queries.sensitivity
    near = (float(place) for far in range(MAX_SCORE) for place in (-far, far))
    place = next((one for one in near if public.short_side(one) > MIN_SLOPE), 0.0)
    bears = few * math.sqrt(sum(SHARES))
    widest = max(min(bears / SHORT_PARTS, max(math.sqrt(2 * bears), WIDE_CLIP)), NARROW_CLIP)  # as far as noise allows

    def noisy_curvature(cost: float, wider: float) -> tuple[float, float]:
        """Return the noisy mean curvature at the place, and its standard deviation."""
        own, cap = fit.level_of(cost), wider * public.short_side(place)
        answer = queries.query(begin + matrix.T * place, probe=np.ones(1), cap=cap, along_level=own)
        return float(answer.along[0]) / number, queries.sum_sensitivity(cap, 1.0) / (own * number)

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
        narrow = min(NARROW_CLIP * wider, allowed)  # Narrow clips show the direction, wide clips the place
        clip = part * narrow * (allowed / narrow) ** min(count / WIDENED, 1.0)
        slope = float(queries.query(begin + matrix.T * place, clip * unit, 1.0, fit.level_of(share)).gradient[0, 0])
        belief.learn(place, slope / (number * unit), clip, clip / (few * math.sqrt(share)))
        spent += share
    place = nearest_defined(belief.median, place, public)
    seen, doubt = noisy_curvature(CURVATURE_COST, MAX_RISE)
    return place, max(min(public.short_side(place), max(seen, 0.0) + doubt), seen - doubt), spent + CURVATURE_COST


def nearest_defined(place: float, before: float, public: PublicFacts) -> float:
    """Return a place with defined slopes, moved towards `before` if necessary."""
    while abs(before - place) > 1e-9 and not public.short_side(place) > MIN_SLOPE:
        place = (before + place) / 2
    return place


def are_separate(scores: LinearScores) -> bool:
    """Return whether each score reads at most one column."""
    return bool((np.diff(sp.csc_array(scores.to_forms).indptr) <= 1).all())


def loss_directions(scores: LinearScores) -> Array:
    """Return the directions of columns that losses depend on, shape (columns, parts); an empty table if they are no basis."""
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
    """The posterior of the constant where slopes balance.

    At another place the mean slope is about ``r (1 - exp(constant - place))``, next to the largest slope on the short side.
    This holds for log links, where a slope is the prediction minus the target.  The part r is unknown, too.
    """

    def __init__(self, least: float = 0.0) -> None:
        parts = 2.0 ** -np.arange(0, 10, 0.5)
        self.places, self.parts = np.arange(-MAX_SCORE, MAX_SCORE, 1 / FINEST), parts[parts > least * EVEN][:, None]
        self.log = np.log(self.parts) - 2 * np.log1p((self.places / PRIOR_SPREAD) ** 2)

    def learn(self, place: float, slope: float, clip: float, noise: float) -> None:
        """Update the posterior with a noisy mean of clipped slopes; the clip may cut long slopes below the constant."""
        mean = np.maximum(self.parts * (1 - np.exp(self.places - place)), -clip)
        cut = np.where(mean > 0, 1.0, 1 - min(CLIP_LOSS, NARROW_CLIP * self.part / clip)) * mean
        missed = np.maximum(mean - min(slope, 1.0), 0.0) + np.maximum(min(slope, 1.0) - cut, 0.0)
        self.log = self.log - missed**2 / (noise**2 + (MODEL_ERROR * mean) ** 2) / 2

    def learn_curvature(self, place: float, bend: float, noise: float, alone: float) -> None:
        """Update with a noisy mean curvature, clipped to the short side; `alone` is a record's curvature over its slope."""
        mean = np.minimum(self.parts * (alone + (1 - alone) * np.exp(np.minimum(self.places - place, MAX_SCORE))), 1.0)
        self.log = self.log - (mean - bend) ** 2 / (noise**2 + (MODEL_ERROR * mean) ** 2) / 2

    def add_end(self, place: float, noise: float, part: float, doubt: float) -> None:
        """Update with the end of the steps, where r is about `part`; earlier knowledge is discounted by `doubt`."""
        self.log = self.log / (1 + doubt) - np.log1p(((self.places - place) / (END_WIDTH + noise)) ** 2)
        self.log = self.log - np.log(self.parts / part) ** 2 / END_PARTS

    @property
    def part(self) -> float:
        """The estimated ratio of usual slopes to the largest one: small if few records have large weights."""
        likely = np.exp(self.log - self.log.max()).sum(axis=1)
        return float(np.exp(likely @ np.log(self.parts[:, 0]) / likely.sum()))

    @property
    def median(self) -> float:
        likely = np.exp(self.log - self.log.max()).sum(axis=0).cumsum()
        return float(self.places[np.searchsorted(likely, likely[-1] / 2)])


def refine_constant(
    fit: Fit, start: ConstantStart, table: Array, spread: float, place: float, away: float, clip: float, bend: float
) -> Array:
    """Return the table after another move of the constant alone, with a wide clip because its noise is small.

    Scores have the root mean square `spread` about their mean, which is `place`, with noise `away`.
    """
    queries, public, last, number = fit.queries, fit.public, start.last_share, start.num_records
    only = set_constant_metric(queries).T
    # A separate clip for the constant: the clip for all directions loses slopes far out on one side.
    own = fit.level_of(start.histogram_share)
    counts = queries.query(table, edges=start.lengths.edges, histogram_level=own).histogram
    there = replace(start.lengths, deviation=queries.deviation_of_counts(own))
    asked = there.clip(counts, fit.noise_cost(last), clip, clip)
    wide = max(asked, WIDER_CLIP * clip, FURTHER * there.hidden(counts, clip)[1])
    if there.longest is None:
        own = fit.level_of(last)
        step = queries.query(table, wide, 1.0, own).gradient[0, 0] / (number * bend)
        # Shrink the step for its noise.
        step *= max(0.0, 1 - (queries.sensitivity * wide / own / (number * bend) / step) ** 2) if step else 0.0
        return table - math.copysign(min(abs(step), public.max_step(bend)), step) * only
    belief, more = start.posterior, min(spread, LARGE) ** 2 / 2  # The increase of the mean of log links by other scores
    belief.add_end(place + more, away, bend / public.short_side(place + more), DOUBTS * more)
    for part in (EARLY, 1 - EARLY):
        before, place = place, nearest_defined(belief.median, place + more, public) - more
        table, unit = table + (place - before) * only, public.short_side(place + more)
        own = fit.level_of(part * last)
        slope = float(queries.query(table, wide, 1.0, own).gradient[0, 0] / number)
        belief.learn(place + more, slope / unit, wide / unit, queries.sensitivity * wide / own / number / unit)
    return table + (belief.median - more - place) * only
