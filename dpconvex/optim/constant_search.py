"""A noisy search for one constant: each mean slope is asked for where the last ones say that the answer is, and how wide."""

import math
from collections.abc import Callable

import numpy as np

from dpconvex.util.arrays import Array

# Answers; the prior's places and spreads, next to half the targets that the domain allows, on grids of so many points.
ASKED, NEAR, SPREADS, PLACES, WIDTHS = 16, 0.2, (1e-4, 0.5), 97, 18
FARTHEST, UNLIKELY = 2.2, 1e-4  # Of places, and what may be cut of both tails where a finer grid replaces one
# The clip, next to how uncertain the place is, and to the deviation of a logistic law, in early answers and in later ones.
UNCERTAIN, CLOSE, WIDER = 0.7, 0.5, 1.5
# How far from the place later answers are asked for, in scales; and the doubt of the place that is small enough, in deviations.
ASIDE, SURE = 2.0, 0.2
MISFIT = 0.05  # The deviation of an answer, next to its clip, for targets that have another law, and for grids
DEVIATION = math.pi / math.sqrt(3)


def mean_slope(offset: Array, spread: Array, down: float, up: float) -> Array:
    """Return the mean of ``max(-down, min(z, up))`` for z of a logistic law with this mean and scale."""
    above, below = (np.logaddexp(0.0, (offset + end) / spread) for end in (down, -up))
    return np.asarray(spread * (above - below) - down)


def search(
    ask: Callable[[float, float], float],
    noise: float,
    half: float,
    bend: float = 1.0,
    longest: tuple[float, float] = (math.inf, math.inf),
) -> tuple[float, float, int]:
    """Return the constant at which slopes add up to about 0, the scale of targets about it, and how many answers were needed.

    Targets are taken to have a logistic law, of which place and scale are unknown.

    Parameters
    ----------
    ask : callable
        Takes a constant and a clip, and returns the noisy mean of clipped slopes.
    noise : float
        The deviation of an answer, next to its clip.
    half : float
        Half the range of targets.
    bend : float
        The slope of a record next to the distance from its target.
    longest : pair of float
        The longest slopes down and up.
    """
    places, scales = FARTHEST * half * np.linspace(-1, 1, PLACES), half * np.geomspace(*SPREADS, WIDTHS)
    answers = list[tuple[float, float, float]]()

    def likelihood(told: float, clip: float, answer: float) -> Array:
        ends = (min(clip, end) for end in longest)
        foreseen = mean_slope(bend * (told - places[:, None]), bend * scales, *ends)
        return np.asarray(((answer - foreseen) / (math.hypot(noise, MISFIT) * clip)) ** 2 / -2)

    def prior() -> Array:
        return np.repeat(-np.log1p((places[:, None] / (NEAR * half)) ** 2), WIDTHS, axis=1)

    logarithms = prior()
    for count in range(ASKED + 1):
        likely = np.exp(logarithms - logarithms.max())
        likely /= likely.sum()
        of_place = likely.sum(axis=1)
        place, of_scale = float(of_place @ places), likely.sum(axis=0)
        scale = math.exp(float(of_scale @ np.log(scales)))
        doubt = math.sqrt(float(of_place @ (places - place) ** 2))
        if count == ASKED or (2 * count >= ASKED and doubt < SURE * DEVIATION * scale):
            break
        left, step = np.cumsum(of_place), places[1] - places[0]
        low, high = places[np.searchsorted(left, UNLIKELY)], places[np.searchsorted(left, 1 - UNLIKELY)]
        if high - low < (PLACES - 1) * step / 3:
            places = np.linspace(low - step, high + step, PLACES)
            logarithms = sum((likelihood(*answer) for answer in answers), prior())
        clip = bend * max(UNCERTAIN * doubt, (CLOSE if 2 * count < ASKED else WIDER) * DEVIATION * scale)
        clip = min(clip, max(longest))
        # At the place itself an answer says nothing of the scale.
        tried = place + ASIDE * scale * (-1) ** count * (2 * count >= ASKED)
        answers.append((tried, clip, ask(tried, clip)))
        logarithms = logarithms + likelihood(*answers[-1])
    return place, scale, count
