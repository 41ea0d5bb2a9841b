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
# Slopes are on one side if their sum is so much of the sum of their lengths; how many histograms there are at most, and the
# interval that need not be halved.
SIDED, GUESSES, NARROW = 0.6, 12, 1.0
# As FINE, NARROW and GUESSES, where the curvature vanishes far from the answer.
ROUGH, NARROWEST, HALVES = 0.05, 1e-4, 16
# Noise of a count, next to the number of records, that a test of a side asks for; its largest share; by how many deviations
# slopes that are all on one side stand out, at least, and where the clip is wide enough; and, next to usual slopes, such a clip
# and the least one that is worth a test.
FINEST, TESTED, PLAIN, SURE, ENOUGH, FEWER = 0.0033, 0.05, 2.5, 4.5, 12.0, 5.0
# What the last steps have of the squared level, more where records are few, at most, and the part of it that the first one has.
LAST, FEW, ALL_LAST, EARLY = 0.06, 80.0, 0.15, 0.25
# How much wider their clip is at least than others, and than the least length of hidden slopes; the longest move of each; and
# the noise of a step that halves it.
WIDER, FURTHER, LONGEST, UNSURE = 1.5, 2.0, 2.0, 0.5


def constant_alone(looks: PrivateLooks) -> Array:
    """Measure rows by their constant from now on; return the matrix."""
    only = np.zeros((1, looks.rows.count))
    only[0, -1] = 1 / looks.constant
    return looks.in_metric(only)


class Start(NamedTuple):
    """Where the constant is before anything else moves, the curvature there, what it cost, and the clip for a loudness."""

    place: float
    bend: float
    spent: float  # Of the squared level
    share: float  # Of the squared level, that a histogram of slopes needs
    clip: Callable[[float], float]
    last: float  # Of the squared level, for the last steps
    hidden: float  # The least length of slopes that nothing is seen of


def find_constant(looks: PrivateLooks, level: float, number: float, public: Public, begin: Array | float) -> Start:
    """Move the constant alone until slopes are on both sides, by histograms of slopes: wide bounds of targets cost nothing.

    The first histogram is that of the first clip.  Others cost little where there are many records.  Where the curvature
    depends on scores, moves double until slopes change sides; then they halve the interval.  Elsewhere a noisy mean slope follows
    if records are few: all later steps may turn out to be noise, and then this is the prediction.
    """
    turn, people = constant_alone(looks), people_of(looks, number)
    needed = (1 / (FINE * people * level)) ** 2
    fine, averaged = min(needed, COSTLY), min(needed, AVERAGED)
    low, high, reach, settled = -math.inf, math.inf, 1.0, not public.is_bent
    place, spent = halved(looks, level, people, public, begin, turn) if public.vanishes else (0.0, 0.0)
    bend, usual, probe = public.curvature, USUAL * public.slope, np.ones(int(public.vanishes))
    for guess in range(GUESSES):
        share = fine if guess else max(fine, HISTOGRAMS / len(LOOKS))
        own, spent = level * math.sqrt(share), spent + share * (1 + len(probe))
        lengths = LengthHistograms(public.edges, looks.deviation_of_counts(own), people, True, public.is_balanced)
        cap = public.most_curvature if public.vanishes else RISING * bend
        asked: Any = {"edges": lengths.edges, "histogram_level": own, "cap": cap, "curvature_level": own}
        answer = looks.look(begin + turn.T * place, probe=probe, **asked)
        if len(probe):
            told, doubt = float(answer.curvature[0]) / number, looks.counted(cap, 1.0) / (own * number)
            least = math.inf if public.vanishes else max(bend, told - doubt)
            bend, settled = min(least, max(told, 0.0) + doubt), told > doubt
        sided, net, size = lengths.sides(answer.histogram)
        usual = USUAL * size if guess and size else usual
        test = min((1 / (FINEST * people * level)) ** 2, TESTED)
        widest = people * level * math.sqrt(test) / sides_of(looks)  # Its noise is as long as all usual slopes together
        wide = max(widest / SURE, min(widest / PLAIN, ENOUGH))
        is_open = math.isinf(high if net < 0 else low)
        if guess > 1 and (sided > SIDED or not settled) and public.is_balanced and wide > FEWER and is_open:
            # A few long slopes on the other side may be hidden by the noise of counts; one number with a wide clip shows them.
            spent, noise = spent + test, people * size * wide / widest
            slope = looks.look(begin + turn.T * place, wide * size, 1.0, level * math.sqrt(test)).gradient[0, 0]
            if math.copysign(slope, slope * net) < noise:
                settled = settled or abs(slope) < noise
                sided, net = (0.0, net) if abs(slope) < noise else (1.0, slope)
        low, high = (place, high) if net < 0 else (low, place)
        near = sided <= SIDED or (high - low < NARROW and public.is_bent)
        if spent > ALL_COSTLY and public.is_balanced and not near and high - low < math.inf:
            place = (low + high) / 2
        if not size or public.vanishes or spent > ALL_COSTLY or (near and (settled or not guess)):
            break
        move, reach = -math.copysign(reach, net) if public.is_bent else -net / (number * bend), 2 * reach
        place = place + move if low < place + move < high else (low + high) / 2
        probe = np.ones(int(public.is_bent))
    clip = partial(lengths.clip, answer.histogram, usual=usual, last=size)
    if averaged > WORTH_ASKING and not public.is_bent:
        own, expected = level * math.sqrt(averaged), EXPECTED * public.slope / public.curvature
        loud, table = (LOUD * sides_of(looks) / own) ** 2, begin + turn.T * place
        place, spent = place - constant_step(looks, table, clip(loud), own, number * bend, expected), spent + averaged
    hidden = lengths.hidden(answer.histogram, size)[1]
    last = max(LAST, min((FEW / (people * level)) ** 2, ALL_LAST) if hidden > FEWER * size else 0.0)
    return Start(place, bend, spent, fine, clip, last, hidden)


def sides_of(looks: PrivateLooks) -> int:
    return 2 if looks.replaced else 1


def constant_step(
    looks: PrivateLooks, table: Array, clip: float, level: float, curvature: float, expected: float = math.inf
) -> float:
    """Return the step of the constant alone, shorter by what of it may be noise, and where noise exceeds what is expected."""
    step = float(looks.look(table, clip, 1.0, level).gradient[0, 0]) / curvature
    noise = sides_of(looks) * clip / level / curvature
    return step * max(0.0, 1 - (noise / step) ** 2) / (1 + (noise / expected) ** 2) if step else 0.0


def halved(
    looks: PrivateLooks, level: float, people: float, public: Public, begin: Array | float, turn: Array
) -> tuple[float, float]:
    """Return a constant where slopes are on both sides, and what it cost, where the curvature far from there says nothing."""
    share = min((1 / (ROUGH * people * level)) ** 2, COSTLY / 2)
    lengths = LengthHistograms(public.edges, looks.deviation_of_counts(level * math.sqrt(share)), people, True)
    place, low, high, reach, spent = 0.0, -math.inf, math.inf, 1.0, 0.0
    for _ in range(HALVES):
        asked: Any = {"edges": lengths.edges, "histogram_level": level * math.sqrt(share)}
        sided, net, _ = lengths.sides(looks.look(begin + turn.T * place, **asked).histogram)
        spent += share
        if sided <= SIDED or high - low < NARROWEST or spent > ALL_COSTLY / 2:
            break
        low, high = (place, high) if net < 0 else (low, place)
        move, reach = -math.copysign(reach, net), 2 * reach
        place = place + move if low < place + move < high else (low + high) / 2
    return place, spent


def last_constant(
    looks: PrivateLooks,
    table: Array,
    start: Start,
    level: float,
    clip: float,
    curvature: float,
    lengths: LengthHistograms,
    farthest: float = 1.0,
) -> Array:
    """Move the constant twice more, with a wider clip: that of all directions loses what is far out on one side.

    The noise of one number is small.  Moves are logarithms: where curvature grows with the constant, these end nearer.
    """
    own = level * math.sqrt(start.share)
    constant_alone(looks)
    counts = looks.look(table, edges=lengths.edges, histogram_level=own).histogram
    there = replace(lengths, deviation=looks.deviation_of_counts(own))
    asked = there.clip(counts, (LOUD * sides_of(looks) / level) ** 2 / start.last, clip, clip)
    wide = max(asked, WIDER * clip, FURTHER * there.hidden(counts, clip)[1])
    for part in (EARLY, 1 - EARLY) if lengths.balanced else (1.0,):
        unsure = UNSURE if lengths.balanced else math.inf
        step = constant_step(looks, table, wide, level * math.sqrt(part * start.last), curvature, unsure)
        longest = min(math.log1p(abs(step)), LONGEST) if lengths.balanced else min(abs(step), farthest)
        move = math.copysign(longest, step)
        table = table - move / looks.constant * (np.arange(len(table)) == len(table) - 1)[:, None]
        curvature *= math.exp(min(longest, LONGEST))
    return table
