"""Models of the constants of scores from noisy sums of slopes: one constant at a time, or all by the shares of labels."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from scipy.special import erfcx

from dpconvex.optim.slope_histograms import Fit
from dpconvex.sums.jacobians import derivatives
from dpconvex.util.arrays import Array

# Number of answers; width of the prior on places, and range of scales, next to half the declared range of targets; grid sizes.
MAX_QUERIES, PRIOR_WIDTH, SPREADS, NUM_PLACES, SCALES = 16, 0.2, (1e-4, 0.5), 97, 18
RECORD_WEIGHTS = tuple(2.0 ** -np.arange(0, 6, 0.5))  # Weights of records, next to the largest, if records have weights
RANGE, UNLIKELY = 2.2, 1e-4  # Range of places, and the tail probability that a finer grid may cut on each side
# The clip next to the doubt of the place, and next to the deviation of a logistic law. Early clips use a narrow law that is
# still likely, because wide clips cannot tell narrow laws apart; then later clips.
DOUBT_CLIP, EARLY_CLIP, LATE_CLIP = 0.7, 0.5, 1.5
# Distance of later queries from the place, in scales; and the doubt of the place that is small enough, in deviations.
ASIDE, SURE_DOUBT = 2.0, 0.2
MISFIT = 0.05  # Deviation of an answer, next to its clip, from targets with another law and from grids
BALANCE = 12.0  # Largest distance from the place at which slopes may balance, in scales
LOGISTIC_DEVIATION = math.pi / math.sqrt(3)
MAX_CONSTANT = 12.0  # Bound on a constant
# Noise that mean slopes at 0 may have, next to the longest slope, and the largest share of the squared level for it.
SLOPE_NOISE, SLOPE_COST = 0.03, 0.1
OfLabels = Callable[[Array], tuple[Array, Array]]


def mean_slope(offset: Array, spread: Array, ends: tuple[Any, Any], curvatures: tuple[float, float]) -> Array:
    """Return the mean slope at z with a logistic law of mean `offset` and scale `spread`.

    A slope grows with z by one of two curvatures, below and above 0, up to its end on that side.
    """
    down, up = (
        bend * spread * (np.logaddexp(0.0, far) - np.logaddexp(0.0, far - end / (bend * spread)))
        for far, end, bend in zip((-offset / spread, offset / spread), ends, curvatures, strict=True)
    )
    return np.asarray(up - down)


class PlacePosterior:
    """The posterior of a constant at which slopes add up to about 0, and of the scale of targets around it.

    Targets have a logistic law with unknown place and scale in this model.  `half` is half the range of targets.  `curvatures`
    are a record's slopes, down and up, divided by the distance from its target; `longest` are the longest slopes.  If these
    are bounded, the posterior is of the middle of the law.  If answers are `tilted`, it is of the place where slopes add up to
    0.  All records have one unknown weight among `weights`.
    """

    def __init__(
        self,
        half: float,
        curvatures: tuple[float, float],
        longest: tuple[float, float] = (math.inf,) * 2,
        tilted: bool = False,
        weights: Sequence[float] = (1.0,),
    ) -> None:
        self.half, self.curvatures, self.longest, self.tilted = half, curvatures, longest, tilted
        self.places, self.scales = RANGE * half * np.linspace(-1, 1, NUM_PLACES), half * np.geomspace(*SPREADS, SCALES)
        self.weights = np.array(weights)[:, None, None]
        self.answers = list[tuple[float, float, float, float]]()
        self.summarize(self.log_posterior())

    def log_posterior(self) -> Array:
        """Return the log posterior of each weight, place and scale, shape (weights, places, scales)."""
        prior = -np.log1p((self.places[:, None] / (PRIOR_WIDTH * self.half)) ** 2)
        return sum((self.log_likelihood(*answer) for answer in self.answers), prior + 0 * self.weights * self.scales)

    def log_likelihood(self, place: float, clip: float, answer: float, noise: float) -> Array:
        down, up = (np.minimum(clip / self.weights, end) for end in self.longest)
        foreseen = self.weights * mean_slope(place - self.places[:, None], self.scales, (down, up), self.curvatures)
        return np.asarray(((answer - foreseen) / (math.hypot(noise, MISFIT) * clip)) ** 2 / -2)

    def learn(self, place: float, clip: float, answer: float, noise: float) -> None:
        """Update the posterior with a noisy mean of clipped slopes at a place; `noise` is its deviation divided by the clip."""
        self.answers.append((place, clip, answer, noise))
        self.summarize(self.log_density + self.log_likelihood(place, clip, answer, noise))

    def summarize(self, log_density: Array) -> None:
        self.log_density = log_density
        likely = np.exp(log_density - log_density.max())
        likely /= likely.sum()
        of_place, of_scale = likely.sum(axis=(0, 2)), likely.sum(axis=(0, 1))
        self.weight = math.exp(float(likely.sum(axis=(1, 2)) @ np.log(self.weights.ravel())))
        self.place, logs = float(of_place @ self.places), np.log(self.scales)
        self.scale = math.exp(mean := float(of_scale @ logs))
        self.narrow = self.scale / math.exp(math.sqrt(float(of_scale @ (logs - mean) ** 2)))
        self.away = self.balance - self.place if self.tilted else 0.0
        apart = self.places[:, None] - self.place + (self.scales / self.scale - 1) * self.away
        self.doubt = math.sqrt(float((likely * apart**2).sum()))
        left, step = np.cumsum(of_place), self.places[1] - self.places[0]
        low, high = self.places[np.searchsorted(left, UNLIKELY)], self.places[np.searchsorted(left, 1 - UNLIKELY)]
        if high - low < (NUM_PLACES - 1) * step / 3:  # A finer grid for the next answers
            self.places = np.linspace(low - step, high + step, NUM_PLACES)
            self.log_density = self.log_posterior()

    @property
    def balance(self) -> float:
        """The place where slopes add up to 0 under the likely law; with bounded slopes, the middle of the law."""
        offsets = self.scale * np.linspace(-BALANCE, BALANCE, NUM_PLACES)
        slopes = mean_slope(offsets, np.array(self.scale), self.longest, self.curvatures)
        return self.place + float(np.interp(0.0, slopes, offsets)) * (self.tilted or max(self.longest) == math.inf)

    @property
    def is_sure(self) -> bool:
        return self.doubt < SURE_DOUBT * LOGISTIC_DEVIATION * self.scale

    @property
    def curvature(self) -> float:
        """The rise of the mean slope under the likely law, over one scale on each side of the balance; 0 in doubt."""
        offsets = self.balance - self.place + self.scale * np.array([-1.0, 1.0])
        down, up = mean_slope(offsets, np.array(self.scale), self.longest, self.curvatures)
        return self.weight * float(up - down) / (2 * self.scale) * self.is_sure

    def next_query(self, count: int) -> tuple[float, float]:
        """Return the place and the clip of the next query."""
        clip = max(self.curvatures) * max(
            DOUBT_CLIP * self.doubt,
            LOGISTIC_DEVIATION * (LATE_CLIP * self.scale if late(count) else EARLY_CLIP * self.narrow),
        )
        # At the place itself an answer does not depend on the scale.
        aside = self.away or ASIDE * self.scale * (-1) ** count
        return self.place + aside * late(count), self.weight * min(clip, max(self.longest))


def late(count: int) -> bool:
    return 2 * count >= MAX_QUERIES


def locate(ask: Callable[[Array, float], Array], noise: float, every: list[PlacePosterior], most: float) -> int:
    """Search several constants together, by noisy means of clipped vectors of slopes; return the number of queries.

    `ask` takes constants and a clip; `most` is the largest clip.  `noise` is the deviation of an answer divided by its clip.
    """
    for count in range(MAX_QUERIES):
        if late(count) and all(one.is_sure for one in every):
            return count
        tried, clips = np.array([one.next_query(count) for one in every]).T
        clip = min(math.hypot(*clips), most)
        for one, told, answer in zip(every, tried.tolist(), ask(tried, clip).tolist(), strict=True):
            one.learn(told, clip, answer, noise)
    return MAX_QUERIES


class LabelShares:
    """The posterior of label shares under a uniform prior, from noisy sums of slopes at nearly constant scores.

    Each sum is linear in the shares, so that least squares give their posterior mean.  `of_labels` returns losses and slopes
    at constants by label, which are public.
    """

    def __init__(self, of_labels: OfLabels, columns: int) -> None:
        self.of_labels, self.columns = of_labels, columns
        losses, slopes = of_labels(np.zeros(columns))
        # In this unit of losses, the longest slope at 0 is between 1/2 and 1.
        longest = float(np.linalg.norm(slopes, axis=1).max())
        self.count, self.unit = len(losses), math.ldexp(1.0, min(-math.frexp(longest)[1], 1000))
        self.apart = scipy.linalg.null_space(np.ones((1, self.count)))
        # Store rows and right-hand sides rather than normal equations: in squares, many records would hide other information.
        self.rows = math.sqrt(self.count * (self.count + 1)) * np.eye(self.count - 1)
        self.rhs = np.zeros(self.count - 1)

    def learn(self, place: Array, answer: Array, noise: float, clip: float) -> None:
        """Add a noisy mean of records' clipped slopes at a constant."""
        slopes = self.of_labels(place)[1]
        slopes = slopes * np.minimum(1.0, clip / np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1e-300))
        self.rows = np.concatenate([self.rows, ((self.apart.T @ slopes) / noise).T])
        self.rhs = np.append(self.rhs, (answer - slopes.mean(axis=0)) / noise)

    @property
    def shares(self) -> Array:
        left, sizes, right = np.linalg.svd(self.rows, full_matrices=False)
        each = self.apart @ right.T / sizes
        found, deviations = 1 / self.count + each @ (left.T @ self.rhs), np.linalg.norm(each, axis=1)
        # Truncate the posterior of each share at 0.
        found = found + deviations * math.sqrt(2 / math.pi) / erfcx(-found / deviations / math.sqrt(2))
        return np.asarray(found / found.sum())

    def best(self) -> Array:
        """Return the constants with the least mean loss."""
        shares = self.shares

        def mean(place: Array) -> tuple[float, Array]:
            losses, slopes = self.of_labels(place)
            return self.unit * float(shares @ losses), self.unit * (shares @ slopes)

        bounds = [(-MAX_CONSTANT, MAX_CONSTANT)] * self.columns
        found = scipy.optimize.minimize(mean, np.zeros(self.columns), jac=True, method="L-BFGS-B", bounds=bounds)
        return np.asarray(found.x)

    def squared_slope(self) -> float:
        """Return the mean squared slope at the best constants."""
        return float(self.shares @ (self.of_labels(self.best())[1] ** 2).sum(axis=1))


def shared_constants(fit: Fit, of_labels: OfLabels) -> tuple[Array, float]:
    """Return the best constants, as a table, for scores that share parameters, and their share of the squared level."""
    queries, scores, size = fit.queries, fit.queries.scores, fit.size
    table, every = np.zeros(scores.shape), derivatives(scores)
    moving = abs(every[:, scores.features]).sum(axis=1).reshape(-1, len(table)).any(axis=0)
    alone = every[:, [-1]].toarray().reshape(-1, len(table)) * ~moving
    if not len(fixed := np.flatnonzero(alone.any(axis=0))):
        return table, 0.0
    lengths = np.linalg.norm(alone[:, fixed], axis=0)
    kinds, nothing = alone[:, fixed] / lengths, np.zeros(len(fixed))

    def told(place: Array) -> tuple[Array, Array]:
        losses, slopes = of_labels(kinds @ place)
        return losses, slopes @ kinds

    shares, most = LabelShares(told, len(fixed)), queries.privacy.most
    clip, longest = (float(np.linalg.norm(of[1], axis=1).max()) for of in (of_labels(kinds @ nothing), told(nothing)))
    if not clip * longest > 0:  # No label has a slope at 0
        return table, 0.0
    louder = queries.sensitivity * most / (size * fit.level)
    spent = min((louder / SLOPE_NOISE) ** 2, SLOPE_COST)
    queries.set_metric(np.eye(len(table))[fixed] / lengths[:, None])
    seen = queries.query(table, clip, most * longest / clip, fit.level_of(spent)).gradient[:, 0] / size
    shares.learn(nothing, seen, louder * longest / math.sqrt(spent), math.inf)
    table[fixed, 0] = shares.best() / lengths
    return table, spent
