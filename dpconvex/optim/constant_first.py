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
LAST, WIDER = 0.06, 1.5  # What the last step has of the squared level, and how much wider its clip is at least


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
        lengths = LengthHistograms(public.edges, looks.deviation_of_counts(own), people, True)
        cap = public.most_curvature if public.vanishes else RISING * bend
        asked: Any = {"edges": lengths.edges, "histogram_level": own, "cap": cap, "curvature_level": own}
        answer = looks.look(begin + turn.T * place, probe=probe, **asked)
        if len(probe):
            told, doubt = float(answer.curvature[0]) / number, looks.counted(cap, 1.0) / (own * number)
            least = math.inf if public.vanishes else max(bend, told - doubt)
            bend, settled = min(least, max(told, 0.0) + doubt), told > doubt
        sided, net, size = lengths.sides(answer.histogram)
        usual = USUAL * size if guess and size else usual
        low, high = (place, high) if net < 0 else (low, place)
        near = sided <= SIDED or (high - low < NARROW and public.is_bent)
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
    return Start(place, bend, spent, fine, clip)


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
    share: float,
    level: float,
    clip: float,
    curvature: float,
    lengths: LengthHistograms,
    farthest: float = 1.0,
) -> Array:
    """Move the constant once more, with a wider clip: that of all directions loses what is far out on one side.

    The noise of one number is small.
    """
    own = level * math.sqrt(share)
    constant_alone(looks)
    counts = looks.look(table, edges=lengths.edges, histogram_level=own).histogram
    there = replace(lengths, deviation=looks.deviation_of_counts(own))
    wide = max(there.clip(counts, (LOUD * sides_of(looks) / level) ** 2 / LAST, clip, clip), WIDER * clip)
    move = float(np.clip(constant_step(looks, table, wide, level * math.sqrt(LAST), curvature), -farthest, farthest))
    return table - move / looks.constant * (np.arange(len(table)) == len(table) - 1)[:, None]
