"""Exact deltas and log ratios of objective perturbation on the line, with or without an interval K for the answer.

The rest of the objective is ``mu t^2/2 + pull t``, the pull standing for what the other records add.  With Gaussian noise the
answer has a density inside K, and masses at its ends.  Losses are written out here and share no code with the toolkit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
Derivatives = Callable[[Array], tuple[Array, Array]]
EVERYWHERE = (-np.inf, np.inf)
# Cells of the quadrature, in a search and in the end, over so many standard deviations of the noise.
ROUGH, FINE, REACH = 240, 40_000, 9.0


@dataclass(frozen=True)
class Kind:
    """A loss of a margin: ``scale`` times a function of ``sign x theta + offset``.

    `width`: where the slope of a Huber function or of its hinge stops growing; the slope then is 1; `leaves`: multiples of
    the feature in a log-sum-exp.
    """

    name: str
    scale: float = 1.0
    sign: float = 1.0
    offset: float = 0.0
    width: float = 0.5
    leaves: tuple[float, ...] = (0.0, 1.0, -0.7)

    def expression(self, x: Any, theta: Any, weight: Any = 1.0) -> Any:
        m = self.sign * x * theta + self.offset
        factor = weight * self.scale
        if self.name == "logistic":
            return factor * cp.logistic(m)
        if self.name == "huber":
            return factor / (2 * self.width) * cp.huber(m, self.width)
        if self.name == "hinge":
            return factor / (2 * self.width) * cp.huber(cp.pos(m), self.width)
        if self.name == "square":
            return factor * cp.square(m)
        if self.name == "softmax":
            return factor * cp.log_sum_exp(cp.hstack([leaf * x * theta + self.offset * leaf for leaf in self.leaves]))
        return factor * m if self.name == "linear" else cp.Constant(0.0)

    def derivatives(self, x: float, weight: float = 1.0) -> Derivatives:
        a, factor = self.sign * x, weight * self.scale

        def found(t: Array) -> tuple[Array, Array]:
            m = a * t + self.offset
            if self.name == "logistic":
                s = np.exp(-np.logaddexp(0.0, -m))
                return factor * a * s, factor * a * a * s * (1 - s)
            if self.name in ("huber", "hinge"):
                least = -self.width if self.name == "huber" else 0.0
                inside = (m > least) & (m < self.width)
                return factor * a * np.clip(m, least, self.width) / self.width, factor * a * a / self.width * inside
            if self.name == "square":
                return 2 * factor * a * m, 2 * factor * a * a * np.ones_like(m)
            if self.name == "softmax":
                rows = np.array(self.leaves)
                scores = (x * t + self.offset)[..., None] * rows
                p = np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))
                mean = p @ rows
                return factor * x * mean, factor * x * x * (p @ rows**2 - mean**2)
            return factor * a * np.full_like(m, self.name == "linear"), np.zeros_like(m)

        return found


NOTHING = Kind("zero").derivatives(0.0)


@dataclass(frozen=True)
class Line:
    """The rest of an objective on the line, and the Gaussian noise.

    `bounds`: ends of K.
    """

    mu: float
    sigma: float
    bounds: tuple[float, float] = EVERYWHERE
    places: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        far = 60.0 + 3 * REACH * self.sigma / self.mu
        places = np.concatenate([np.linspace(-40, 40, 4001), np.geomspace(40, far, 400), -np.geomspace(40, far, 400)])
        places = np.append(places, [end for end in self.bounds if np.isfinite(end)])
        object.__setattr__(self, "places", np.unique(np.clip(places, *self.bounds)))

    def force(self, loss: Derivatives, t: Array) -> tuple[Array, Array]:
        """First and second derivative of the objective without pull."""
        first, second = loss(t)
        return self.mu * t + first, self.mu + second

    def deltas(self, first: Derivatives, second: Derivatives, pulls: Array, epsilon: float, cells: int = FINE) -> Array:
        """Return delta of the data with the first loss against those with the second, for each pull."""
        edges = np.linspace(-REACH, REACH, cells + 1) * self.sigma
        targets = edges - pulls[:, None]
        ends = np.interp(targets, self.force(first, self.places)[0], self.places)
        width, t = np.diff(ends), (ends[:, 1:] + ends[:, :-1]) / 2
        logs = []
        for loss in (first, second):
            slope, bend = self.force(loss, t)
            logs.append(np.log(bend) - ((slope + pulls[:, None]) / self.sigma) ** 2 / 2)
        excess = np.exp(logs[0]) * np.maximum(-np.expm1(np.minimum(epsilon + logs[1] - logs[0], 1.0)), 0.0)
        total = (excess * width).sum(axis=1) / (self.sigma * np.sqrt(2 * np.pi))
        for end, side in zip(self.bounds, (1.0, -1.0), strict=True):
            if np.isfinite(end):
                masses = [
                    ndtr(side * (self.force(loss, np.array([end]))[0] + pulls) / self.sigma) for loss in (first, second)
                ]
                total += np.maximum(masses[0] - np.exp(epsilon) * masses[1], 0.0)
        return np.asarray(total)

    def worst_delta(self, first: Derivatives, second: Derivatives, epsilon: float) -> float:
        """Search over the pull, three times finer: answers anywhere within reach, and noise that leads there."""
        low, high = np.clip(self.bounds, -12.0, 12.0)
        answers, noises = np.linspace(low, high, 11), np.linspace(-4.5, 4.5, 6) * self.sigma
        slopes = self.force(first, answers)[0]
        pulls = (-slopes[:, None] - noises).ravel()
        step = 1.8 * self.sigma + np.ptp(slopes) / 10
        for _ in range(4):
            centre = pulls[np.argmax(self.deltas(first, second, pulls, epsilon, ROUGH))]
            pulls, step = centre + np.linspace(-step, step, 11), step / 4
        return float(self.deltas(first, second, np.array([centre]), epsilon)[0])

    def worst_ratio(self, first: Derivatives, second: Derivatives, beta: float) -> float:
        """Return the largest log ratio of densities with noise of density ``exp(-beta |b|)``: the pull takes b anywhere."""
        t = np.clip(self.places, *self.bounds)
        a, b = self.force(first, t), self.force(second, t)
        return float((beta * np.abs(a[0] - b[0]) + np.log(a[1] / b[1])).max())


@dataclass(frozen=True)
class Domain:
    """What records of one feature, and perhaps a weight, may be.

    `kinds`: one for each label; `bounds`: ends of K.
    """

    kinds: Sequence[Kind]
    features: tuple[float, float] = (-1.0, 1.0)
    weights: tuple[float, float] = (1.0, 1.0)
    bounds: tuple[float, float] = EVERYWHERE

    def records(self) -> list[Derivatives]:
        """Extreme records of every kind."""
        extremes = [(x, weight) for x in self.features for weight in sorted(set(self.weights))]
        return [kind.derivatives(*extreme) for kind in self.kinds for extreme in extremes]

    def neighbours(self, adjacency: str) -> list[tuple[Derivatives, Derivatives]]:
        """Return all ordered pairs of different records, or of a record and none."""
        records = self.records()
        if adjacency == "add-remove":
            return [pair for record in records for pair in ((record, NOTHING), (NOTHING, record))]
        return [(first, second) for first in records for second in records if first is not second]
