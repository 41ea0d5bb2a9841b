"""Noisy counts of records in public cells, with integer noise for all records of a person (docs/theory.md, section 21)."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dpconvex.certificates.integer_noise import IntegerNoise, laplace_count
from dpconvex.errors import TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array, Indices

STEPS = 2**20  # Weighted records, and records between two knots, count in multiples of 1 / STEPS
# Cuts of scores and probabilities, of probabilities of the true label, and of mean survival probabilities. Knots for residuals,
# in parts of the label's range; coarser ones by cell of the prediction; knots for labels and deviances.
SCORES = (0.003, 0.015, 0.05, *(k / 10 for k in range(1, 10)), 0.95, 0.985, 0.997)
LIKELY = (0.001, 0.003, 0.01, 0.03, *(k / 10 for k in range(1, 10)), 0.95, 0.99)
ALIVE = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 0.99)
BESIDE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
RESIDUALS = (*(-far for far in BESIDE[::-1]), 0.0, *BESIDE)
ROUGHLY = (-1.0, -0.5, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PREDICTIONS = (0.2, 0.4, 0.6, 0.8)
SQUARED = "residuals", "targets"  # Shared between knots so that means of squares are exact
ROOTS = "deviance", "counts"  # Roots of deviances are lengths, and counts have longer tails than residuals
CENTRES = tuple(k / 16 for k in range(17))  # Knots for the first search of the middle of the labels,
CENTRING = 0.125  # ... with this share of the guarantee
DEVIANCES = (0.0, *(2.0**-k for k in range(12, -1, -1)))
PARTS = 64.0  # Knots per largest target, for positive targets that are not integers
FINE, RATIO = 8, 1.25  # Each count up to FINE has a knot; each further knot is larger by RATIO
# Default weights of tables, and tables for a single requested measure.
KINDS = "probabilities", "scores", "labels", "numbers", "survival"
DEFAULTS = {"labels": {"error": 4, "labels": 1}, "numbers": {"residuals": 2, "by_prediction": 1, "targets": 1}}
ALONE = {  # By kind and measure
    ("labels", "error"): ("error",),
    ("labels", "mistakes"): ("error",),
    ("numbers", "error"): ("residuals",),
    ("numbers", "mistakes"): ("error",),
    ("numbers", "deviance"): ("deviance", "counts"),
}
FAINT = 2.0**-10  # Smallest prediction of a count with a deviance, in parts of the largest count
# For tails of squares, and of roots: the fraction of the way to a knot from which records count as beyond it; and the largest
# weight of a power law in their decay. The least weight is SLOWER.
TAILS, SLOWER = ((0.5, 0.95), (0.0, 0.75)), 0.1
CLEAR = 3.0  # Deviations of the noise by which a count beyond a knot, or in a cell, must exceed 0


@dataclass(frozen=True)
class Cells:
    """The public cells of an evaluation. A record is in one group and one cell of each table, or between two knots."""

    # "probabilities" or "scores" of the second of two labels, correct and wrong "labels", "numbers", or "survival" in intervals
    kind: str
    cuts: tuple[float, ...] = SCORES  # of scores between 0 and 1; for survival, of mean survival probabilities
    labels: int = 2  # or intervals
    groups: int = 1
    likelihood: bool = False  # whether probabilities of the true labels are also counted
    known: bool = False  # whether the number of records is public, and there are no groups
    measures: tuple[str, ...] = ()  # requested alone; empty for all
    upper: float = 1.0  # the largest label with knots of counts; PARTS divide this range
    whole: bool = True  # whether counts are integers, which lie on knots
    centre: float | None = 0.5  # origin of labels, in parts of their range; None to find it

    def __post_init__(self) -> None:
        known = self.kind in KINDS and 0 < self.upper < math.inf and self.groups > 0 <= self.labels
        known &= all(low < high for low, high in pairwise((0.0, *self.cuts, 1.0))) and 0 <= (self.centre or 0) <= 1
        require(known, f"evaluate: these cells are invalid: {self}.")

    @cached_property
    def weights(self) -> dict[str, int]:
        """The integer weight of each table, with which its counts are released."""
        if self.centre is None:
            return {"centre": 1}
        if not self.measures:
            return DEFAULTS.get(self.kind, {self.kind: 1}) | ({"likelihood": 1} if self.likelihood else {})
        if wrong := [measure for measure in self.measures if (self.kind, measure) not in ALONE]:
            raise TemplateError(f"evaluate: measures are error, mistakes and, for counts, deviance; not {wrong[0]!r}.")
        return dict.fromkeys((name for measure in self.measures for name in ALONE[self.kind, measure]), 1)

    @cached_property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tables of one group."""
        scores = len(self.cuts) + 1
        shapes = {
            "error": (2,),
            "labels": (self.labels, 2),
            "likelihood": (len(LIKELY) + 1,),
            "survival": (2 * self.labels + 1, scores),
            "by_prediction": (len(PREDICTIONS) + 1, len(ROUGHLY)),
        }
        shapes = {name: (len(knots),) for name, knots in self.knots.items()} | shapes
        return {name: shapes.get(name, (2, scores)) for name in self.weights}

    @cached_property
    def knots(self) -> dict[str, tuple[float, ...]]:
        """The knots of each table of numbers, between which records are shared."""
        low = -(self.centre or 0.0)
        targets = low, *(knot for knot in RESIDUALS if low < knot < 1 + low), 1 + low
        known = {"error": (0.0, 1.0), "residuals": RESIDUALS, "by_prediction": ROUGHLY, "targets": targets}
        return known | {"deviance": DEVIANCES, "counts": self.count_knots, "centre": CENTRES}

    @cached_property
    def rulers(self) -> dict[str, tuple[float, ...]]:
        """The knots on the scale of sharing: the number itself, or its signed square."""
        return {name: tuple(on_ruler(name, k) for k in own) for name, own in self.knots.items()}

    @cached_property
    def count_knots(self) -> tuple[float, ...]:
        """The knots of counts: integers, and then numbers in a fixed ratio."""
        several = math.ceil(math.log(max(self.upper / FINE, 1.0)) / math.log(RATIO))
        knots = (*range(FINE + 1), *(FINE * RATIO**k for k in range(1, several + 1)))
        return (*(float(knot) for knot in knots if knot < self.upper), self.upper)

    @property
    def largest_deviance(self) -> float:
        """The deviance of the largest count from the smallest prediction."""
        return 2 * self.upper * (FAINT - 1 - math.log(FAINT))

    @property
    def released(self) -> dict[str, slice]:
        """The cells of each table with released counts; only the wrong ones, if the number of records is public."""
        return {name: slice(int(name == "error" and self.known), None) for name in self.tables}

    @property
    def noisy(self) -> int:
        """The number of released counts."""
        return sum(self.num_released.values())

    @property
    def num_released(self) -> dict[str, int]:
        """The number of released counts of each table, for all groups."""
        return {name: self.groups * (math.prod(self.tables[name]) - own.start) for name, own in self.released.items()}

    @property
    def edges(self) -> Array:
        """The edges of the cells of scores, or of likelihoods."""
        return np.array([0.0, *(LIKELY if self.kind == "labels" else self.cuts), 1.0])

    def steps(self, privacy: Privacy) -> int:
        """Return the number of steps that one record adds: 1, or `STEPS` if records are weighted or shared by two knots."""
        return STEPS if privacy.keep == "weights" or self.kind == "numbers" else 1

    def sensitivity(self, privacy: Privacy) -> int:
        """Return the L1 sensitivity of all released sums together, for one person, in steps.

        A record adds each table's weight to one cell.  A replaced record leaves this cell for another one, and the number of a
        person's records may change.
        """
        come = sum(self.weights.values())
        stay = sum(weight * self.released[name].start for name, weight in self.weights.items())
        one = come if privacy.adjacency == "add-remove" else 2 * come - stay
        return one * int(privacy.person.weight) * self.steps(privacy)

    def noise(self, privacy: Privacy) -> IntegerNoise:
        """Return the noise on every count: together with the counts that found the centre, all counts are epsilon-private."""
        epsilon = privacy.epsilon * (CENTRING if self.centre is None else 1.0)
        if "targets" in self.tables:
            epsilon = math.nextafter((1 - CENTRING) * epsilon, 0.0)
        return replace(laplace_count(epsilon, self.sensitivity(privacy)), dimension=self.noisy)

    def deviation(self, scale: float) -> float:
        """Return the standard deviation of the noise on the sum of the first table's counts."""
        name, size = next(iter(self.num_released.items()))
        return scale / self.weights[name] * math.sqrt(2 * size)

    def sums(self, counts: dict[str, Indices]) -> Array:
        """Return the weighted counts to release, without noise, group after group."""
        parts = (self.weights[k] * counts[k].reshape(self.groups, -1)[:, own] for k, own in self.released.items())
        return np.concatenate([part.ravel() for part in parts]).astype(float)

    def middle(self, sums: Array) -> float:
        """Return about the median label from noisy counts at `CENTRES`, as the mean of the knots nearest to it."""
        found = on_simplex(sums[None], np.maximum(sums.sum(keepdims=True), 1.0))[0]
        below = np.cumsum(found) - found / 2
        best = int(np.argmin(np.abs(below - found.sum() / 2)))
        near = slice(max(best - 1, 0), best + 2)
        return round(1024 * float(np.average(CENTRES[near], weights=found[near]))) / 1024

    def estimates(
        self, sums: Array, total: int | None, scale: float, clusters: int, replicates: int
    ) -> dict[str, Array]:
        """Estimate counts, (1 + replicates, 1 + groups, *cells), by least squares; replicates resample records and noise."""
        rng, found, start = np.random.default_rng(0), {}, 0
        for name, own in self.released.items():
            weight, size = self.weights[name], self.num_released[name]
            noisy = sums[start : start + size].reshape(self.groups, -1) / weight
            start += size
            several, sizes = [], np.maximum(noisy.sum(axis=1), 1.0)
            if total is not None and self.groups > 1:  # groups add up to the total
                sizes = np.maximum(on_simplex(sizes[None], np.array([float(total)]))[0], 1.0)
            for k, part in enumerate([noisy.sum(axis=0), *(noisy if self.groups > 1 else ())]):
                whole, noises = (None, 1) if k else (total, self.groups)
                spread = scale / weight * math.sqrt(2 * noises)
                drawn = self._counted(name, part[None], float(sizes[k - 1]) if k else total, spread)
                people = max(float(drawn.sum()), 1e-9)
                again = rng.multinomial(round(people / clusters), drawn[0] / people, replicates) * float(clusters)
                noise = rng.laplace(scale=scale / weight, size=(noises, replicates, part.size)).sum(axis=0)
                both = np.concatenate([drawn, self._counted(name, again[:, own] + noise, whole, spread)])
                several.append(both.reshape(-1, *self.tables[name]))
            found[name] = np.stack(several, axis=1)
        return found

    def _counted(self, name: str, noisy: Array, total: float | None, spread: float) -> Array:
        """Return the nonnegative counts nearest to noisy ones with this total, for each row separately."""
        if self.released[name].start:
            noisy = np.hstack([(total or 0) - noisy, noisy])
        whole = np.maximum(noisy.sum(axis=1), 1.0) if total is None else np.full(len(noisy), float(total))
        if name not in (*SQUARED, *ROOTS):
            return on_simplex(noisy, whole)
        found = np.maximum(bounded_tails(name, noisy, whole, spread, np.array(self.knots[name])), 0.0)
        return np.asarray(found * (whole / np.maximum(found.sum(axis=1), 1e-9))[:, None])


def bounded_tails(name: str, noisy: Array, total: Array, spread: float, knots: Array) -> Array:
    """Return counts at knots, with tails that fall at least as fast as a mixture where noise hides them.

    The mixture is of an exponential and a power law, in logarithms.  Each row has its own weight, so that replicates differ.
    """
    shared, slower = TAILS[name in ROOTS]
    away, side = np.unique(np.sqrt(knots) if name in ROOTS else np.abs(knots), return_inverse=True)
    member = np.eye(len(away))[side]
    beyond = np.cumsum((noisy @ member)[:, ::-1], axis=1)[:, ::-1]
    several = np.cumsum(member.sum(axis=0)[::-1])[::-1]
    clear = np.maximum.accumulate((beyond > CLEAR * spread * np.sqrt(several))[:, ::-1], axis=1)[:, ::-1]
    shares = np.log(np.clip(beyond[:, 1:] / np.maximum(total, 1e-9)[:, None], 1e-9, 1.0))
    far, row, last = away[1:], np.arange(len(noisy)), np.maximum(clear.sum(axis=1) - 2, 0)
    half = np.maximum(np.searchsorted(far, far / 2, side="right") - 1, 0)  # a power of lengths starts here
    fallen, times = np.minimum(shares[row, last] - shares[row, half[last]], 0.0), np.maximum(far / far[half], 1.1)
    rates = np.where(clear[:, 1:], shares / far, 0.0)
    before = (away[1:-1] + shared * np.diff(away)[1:])[:, None]
    fast = (rates.min(axis=1) if name in ROOTS else rates[row, last]) * before
    slow = np.minimum(shares[row, last] + fallen / np.log(times[last]) * np.log(before / far[last]), 0.0)
    mix = np.linspace(SLOWER, slower, len(noisy) + 2)[1:-1]
    most = total * np.exp(np.vstack([np.zeros((2, len(noisy))), np.maximum(fast, fast + mix * (slow - fast))]))
    seen, held = clear[:, side], np.maximum(noisy, 0.0)
    if name == "counts":  # Positive noise on many knots would raise means
        held = on_simplex(np.where(seen, -1e18, noisy), np.maximum(np.where(seen, 0.0, noisy).sum(axis=1), 0.0))
    held *= np.minimum(1.0, most.T / np.maximum(held @ member, 1e-9))[:, side]
    return np.where(seen, noisy, held)


def on_ruler(name: str, number: Any) -> Any:
    """Return numbers on the scale on which the knots of a table share them: as they are, or as signed squares."""
    return number * abs(number) if name in SQUARED else number


def on_simplex(values: Array, total: Array) -> Array:
    """Return the nearest nonnegative rows with these totals."""
    down = -np.sort(-values, axis=1)
    count = np.arange(1, values.shape[1] + 1)
    with np.errstate(invalid="ignore"):
        level = (np.cumsum(down, axis=1) - total[:, None]) / count
        last = np.sum(down > level, axis=1, keepdims=True) - 1
    return np.maximum(values - np.take_along_axis(level, np.maximum(last, 0), axis=1), 0.0)
