"""The constant of scores, moved alone: before all else, so that wide bounds of targets cost nothing, and once more at the end."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dpconvex.optim.slope_histograms import HISTOGRAMS, LOOKS, LOUD, RISING, USUAL, LengthHistograms, Public, people_of
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

# Noise of a count next to the number of records, what such a histogram costs at most, and all of them, of the squared level.
FINE, COSTLY, ALL_COSTLY = 0.02, 0.03, 0.2
# What the mean slope costs at most where curvature is constant, the share below which it is not worth a pass, and how large a
# mean is expected to be, next to the largest slope.
AVERAGED, WORTH_ASKING, EXPECTED = 0.12, 0.01, 0.15
# Slopes are on one side if their sum is so much of the sum of their lengths, and how many histograms there are at most.
SIDED, GUESSES = 0.6, 12
# As FINE and GUESSES, where the curvature vanishes far from the answer, and the interval that need not be halved.
ROUGH, NARROWEST, HALVES = 0.05, 1e-4, 16
# Where slopes balance: how many mean slopes are asked for before the last one, what each costs at most, and the last one, and the
# noise, next to the short side, that a clip of 1 needs then.
MEANS, CHEAP, CLOSE, SHARP, SHARPEST = 8, 0.012, 0.05, 40.0, 200.0
# The noise that a clip has, in 1 / PLAIN, and the least clip; the deviations that a mean stands out by; and how far a step goes.
PLAIN, NARROW, CALM, DAMPED = 2.0, 1.5, 1.5, 0.7
# What a curvature costs there, the farthest score and the shortest slopes that it may have, and the clip if nothing is seen.
BENDS, FARTHEST, SHORTEST, USUALLY = 0.015, 16, 1e-9, 2.0
# What the last steps have of the squared level, more where records are few, at most, and the part of it that the first one has.
LAST, FEW, ALL_LAST, EARLY, ROUGHLY = 0.06, 80.0, 0.15, 0.25, 0.5
# How much wider their clip is at least than others, and than the least length of hidden slopes; the longest move of each; and
# the noise of a step that halves it.
WIDER, FURTHER, LONGEST, UNSURE = 1.5, 2.0, 2.0, 0.5
# The noise and the clip, next to the curvature, up to which the clip of the very last step is wider, and the noise that counts.
BEARABLE, ENOUGH, SURE = 0.4, 12.0, 2.0
# How far the length of all else may be wrong, next to directions for each record and unit of the level, at most, and at least if
# it is asked for; and by how much it grows in a step at most.
DOUBT, DOUBTFUL, DOUBTED, GROWS = 8.0, 0.6, 0.3, 0.5


def constant_alone(looks: PrivateLooks) -> Array:
    """Measure rows by their constant from now on; return the matrix."""
    only = np.zeros((1, looks.rows.count))
    only[0, -1] = 1 / looks.constant
    return looks.in_metric(only)


class Start(NamedTuple):
    """The constant before anything else moves, the curvature there, its cost, and the clip for a loudness."""

    place: float
    bend: float
    spent: float  # Of the squared level
    share: float  # Of the squared level, that a histogram of slopes needs
    clip: Callable[[float], float]
    last: float  # Of the squared level, for the last steps
    hidden: float  # The least length of slopes that nothing is seen of


def find_constant(looks: PrivateLooks, level: float, number: float, public: Public, begin: Array | float) -> Start:
    """Move the constant alone until slopes are on both sides: wide bounds of targets cost nothing.

    A histogram of slopes is that of the first clip.  Where curvature is constant others follow, which cost little if there are
    many records, and then a noisy mean slope if they are few: all later steps may turn out to be noise, and then this is the
    prediction.
    """
    turn, people = constant_alone(looks), people_of(looks, number)
    needed = (1 / (FINE * people * level)) ** 2
    fine, averaged, probe = min(needed, COSTLY), min(needed, AVERAGED), np.ones(int(public.vanishes))
    low, high, usual, cap = -math.inf, math.inf, USUAL * public.slope, public.most_curvature
    place, bend, spent = 0.0, public.curvature, 0.0
    if public.vanishes:
        place, spent = halved(looks, level, people, public, begin, turn)
    elif public.is_balanced:
        place, bend, spent = balanced(looks, level, number, public, begin, turn)
        usual = USUALLY * public.short_side(place)
    for guess in range(GUESSES):
        share = fine if guess else max(fine, HISTOGRAMS / len(LOOKS))
        own, spent = level * math.sqrt(share), spent + share * (1 + len(probe))
        lengths = LengthHistograms(public.edges, looks.deviation_of_counts(own), people, True, public.is_balanced)
        asked: Any = {"edges": lengths.edges, "histogram_level": own, "cap": cap, "along_level": own * len(probe)}
        answer = looks.look(begin + turn.T * place, probe=probe, **asked)
        if len(probe):
            bend = max(float(answer.along[0]) / number, 0.0) + looks.counted(cap, 1.0) / (own * number)
        sided, net, size = lengths.sides(answer.histogram)
        usual = USUAL * size if guess and size else usual
        low, high = (place, high) if net < 0 else (low, place)
        if not size or public.is_bent or spent > ALL_COSTLY or sided <= SIDED:
            break
        move = -net / (number * bend)
        place = place + move if low < place + move < high else (low + high) / 2
    clip = partial(lengths.clip, answer.histogram, usual=usual, last=size)
    if averaged > WORTH_ASKING and not public.is_bent:
        own, expected = level * math.sqrt(averaged), EXPECTED * public.slope / public.curvature
        wide, bent = clip((LOUD * looks.sides / own) ** 2), number * bend
        step = float(looks.look(begin + turn.T * place, wide, 1.0, own).gradient[0, 0]) / bent
        place, spent = place - certain(step, looks.sides * wide / own / bent, expected), spent + averaged
    last = max(LAST, min((FEW / (people * level)) ** 2, ALL_LAST) if public.is_balanced else 0.0)
    return Start(place, bend, spent, fine, clip, last, lengths.hidden(answer.histogram, size)[1])


def balanced(
    looks: PrivateLooks, level: float, number: float, public: Public, begin: Array | float, turn: Array
) -> tuple[float, float, float]:
    """Return a constant where slopes balance, the mean curvature there, and what they cost, of the squared level.

    Next to the length of slopes on their short side, 1 - y / mean for log links, a mean slope tells the distance in logarithms.
    One number tells it where few records leave nothing of a histogram.  Its clip is as wide as noise allows.
    """
    few = people_of(looks, number) * level / looks.sides
    usual = min((SHARP / few) ** 2, CHEAP)
    spent, calm = 0.0, 0
    near = (float(place) for far in range(FARTHEST) for place in (-far, far))
    place = next((one for one in near if public.short_side(one) > SHORTEST), 0.0)
    for guess in range(MEANS + 1):
        last = guess == MEANS or calm > 1
        share = max(min((SHARPEST / few) ** 2, CLOSE), usual) if last else usual
        unit, own, bears = public.short_side(place), level * math.sqrt(share), few * math.sqrt(share)
        clip = max(min(bears / PLAIN, max(math.sqrt(2 * bears), ENOUGH)), NARROW)
        slope = float(looks.look(begin + turn.T * place, clip * unit, 1.0, own).gradient[0, 0]) / (number * unit)
        noise, spent = clip / bears, spent + share
        slope = certain(slope, noise, math.inf) if last else slope
        calm = calm + 1 if abs(slope) < CALM * noise else 0
        move = (
            -math.log(max(1 - slope, noise)) if slope > CALM * noise else math.copysign(math.log1p(abs(slope)), slope)
        )
        before, place = place, place - DAMPED * move
        while abs(before - place) > 1e-9 and not public.short_side(place) > SHORTEST:
            place = (before + place) / 2
        if last:
            break
    unit, noise = public.short_side(place), public.slope / (few * math.sqrt(CLOSE))
    if unit < noise:  # Few records may have all of the mean, and no clip near it sees them
        slope = float(looks.look(begin + turn.T * place, public.slope, 1.0, level * math.sqrt(CLOSE)).gradient[0, 0])
        place += math.log1p(-slope / number / unit) if -slope > SURE * noise * number else 0.0
        spent += CLOSE
    own, cap = level * math.sqrt(BENDS), RISING * public.short_side(place)
    answer = looks.look(begin + turn.T * place, probe=np.ones(1), cap=cap, along_level=own)
    told, doubt = float(answer.along[0]) / number, looks.counted(cap, 1.0) / (own * number)
    return place, max(min(cap / RISING, max(told, 0.0) + doubt), told - doubt), spent + BENDS


def certain(step: float, noise: float, expected: float) -> float:
    """Return a step, shorter by what of it may be noise, and where noise exceeds what is expected."""
    return step * max(0.0, 1 - (noise / step) ** 2) / (1 + (noise / expected) ** 2) if step else 0.0


def halved(
    looks: PrivateLooks, level: float, people: float, public: Public, begin: Array | float, turn: Array
) -> tuple[float, float]:
    """Return a constant where slopes are on both sides, and what it cost, where the curvature far from there says nothing."""
    share = min((1 / (ROUGH * people * level)) ** 2, COSTLY / 2)
    lengths = LengthHistograms(public.edges, looks.deviation_of_counts(level * math.sqrt(share)), people, True)
    place, low, high, reach, spent = 0.0, -math.inf, math.inf, public.unit, 0.0
    for _ in range(HALVES):
        asked: Any = {"edges": lengths.edges, "histogram_level": level * math.sqrt(share)}
        sided, net, _ = lengths.sides(looks.look(begin + turn.T * place, **asked).histogram)
        spent += share
        if sided <= SIDED or high - low < NARROWEST * public.unit or spent > ALL_COSTLY / 2:
            break
        low, high = (place, high) if net < 0 else (low, place)
        move, reach = -math.copysign(reach, net), 2 * reach
        place = place + move if low < place + move < high else (low + high) / 2
    return place, spent


def last_steps(
    looks: PrivateLooks,
    table: Array,
    moving: Array,
    spread: float,
    start: Start,
    level: float,
    clip: float,
    curvature: float,
    lengths: LengthHistograms,
    few: float,
    farthest: float,
) -> tuple[Array, float]:
    """Move two numbers at the end, the constant and the length of all else: their noise is small, so the clip is wide.

    All else is a table `moving`, whose scores have the root mean square `spread`.  Return the table, and the factor of all else.
    Moves of the constant are logarithms where slopes balance: where curvature grows with it, these end nearer.  There a step
    with the widest clip that noise allows comes last, and moves the constant if the noise does not explain it.
    """
    last, is_balanced, length, doubt = start.last, lengths.balanced, 1.0, min(DOUBTFUL, DOUBT * few)
    constant_alone(looks)
    # The clip for the constant: that of all directions loses what is far out on one side.
    own = level * math.sqrt(start.share)
    counts = looks.look(table, edges=lengths.edges, histogram_level=own).histogram
    there = replace(lengths, deviation=looks.deviation_of_counts(own))
    asked = there.clip(counts, (LOUD * looks.sides / level) ** 2 / last, clip, clip)
    wide = max(asked, WIDER * clip, FURTHER * there.hidden(counts, clip)[1])
    if count := int(is_balanced and doubt > DOUBTED and spread > 0):
        both = np.zeros((2, looks.rows.count))
        both[0, -1], both[1] = 1 / looks.constant, moving[:, 0] / spread
        looks.in_metric(both)
    is_rough = start.share >= COSTLY  # The histogram says little of long slopes
    parts = ((1.0, ROUGHLY), (SURE, 1 - ROUGHLY)) if is_rough else ((1.0, EARLY), (1.0, 1 - EARLY))
    for sure, part in parts if is_balanced else ((1.0, 1.0),):
        own = level * math.sqrt(part * last)
        slopes = looks.look(table, wide, math.sqrt(1 + count), own).gradient[:, 0] / curvature
        noise = looks.sides * wide * math.sqrt(1 + count) / own / curvature
        step = certain(slopes[0], sure * noise, UNSURE if is_balanced else math.inf)
        longest = min(math.log1p(abs(step)), LONGEST) if is_balanced else min(abs(step), farthest)
        if count:
            gain = doubt**2 / (doubt**2 + (noise / spread) ** 2)
            change = min(max(-gain * slopes[1] / spread, -length), GROWS * length)
            length, table, count = length + change, table + change * moving, 0
            constant_alone(looks)
        move = math.copysign(longest, step) / looks.constant
        table = table - move * (np.arange(len(table)) == len(table) - 1)[:, None]
        curvature *= math.exp(min(longest, LONGEST))
        own = level * math.sqrt((1 - ROUGHLY) * last) / looks.sides
        wide = max(wide, min(BEARABLE * own, ENOUGH / lengths.number) * curvature) if is_rough else wide
    return table, length
