"""How often labels occur, by the mean slopes that steps are told anyway, and the constants that predict best by that alone."""

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize
from scipy.special import erfcx

from dpconvex.sums.engine import Records, RecordSums, SumPlan
from dpconvex.sums.jacobians import derivatives
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

LARGEST = 12.0  # Of a constant
# The noise that mean slopes at 0 may have, next to the longest one, and the part of the squared level that they cost at most.
TOLD, COSTLY = 0.03, 0.1
OfLabels = Callable[[Array], tuple[Array, Array]]


class LabelShares:
    """The shares of labels, as likely as each other before, after noisy sums of slopes at scores that are about constant.

    Each sum is linear in the shares, so their posterior mean is what least squares say; `of_labels` gives losses and slopes at
    constants by label, which are public.
    """

    def __init__(self, of_labels: OfLabels, columns: int) -> None:
        self.of_labels, self.columns = of_labels, columns
        self.count = len(of_labels(np.zeros(columns))[0])
        self.apart = scipy.linalg.null_space(np.ones((1, self.count)))
        # Rows and what they say, not their squares, in which many records would drown what else is known.
        self.rows = math.sqrt(self.count * (self.count + 1)) * np.eye(self.count - 1)
        self.told = np.zeros(self.count - 1)

    def learn(self, place: Array, told: Array, noise: float, clip: float) -> None:
        """Learn from a noisy mean of clipped slopes of records at a constant."""
        slopes = self.of_labels(place)[1]
        slopes = slopes * np.minimum(1.0, clip / np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1e-300))
        self.rows = np.concatenate([self.rows, ((self.apart.T @ slopes) / noise).T])
        self.told = np.append(self.told, (told - slopes.mean(axis=0)) / noise)

    @property
    def shares(self) -> Array:
        left, sizes, right = np.linalg.svd(self.rows, full_matrices=False)
        each = self.apart @ right.T / sizes
        found, deviations = 1 / self.count + each @ (left.T @ self.told), np.linalg.norm(each, axis=1)
        # None is below 0.
        found = found + deviations * math.sqrt(2 / math.pi) / erfcx(-found / deviations / math.sqrt(2))
        return np.asarray(found / found.sum())

    def best(self) -> Array:
        """Return the constants at which the mean loss is least."""
        shares = self.shares

        def mean(place: Array) -> tuple[float, Array]:
            losses, slopes = self.of_labels(place)
            return float(shares @ losses), shares @ slopes

        bounds = [(-LARGEST, LARGEST)] * self.columns
        found = scipy.optimize.minimize(mean, np.zeros(self.columns), jac=True, method="L-BFGS-B", bounds=bounds)
        return np.asarray(found.x)


def shared_constants(looks: PrivateLooks, of_labels: OfLabels, level: float, size: float) -> tuple[Array, float]:
    """Return the best table of constants alone where scores share parameters, and the part of the squared level that it cost."""
    scores, table = looks.scores, np.zeros(looks.scores.shape)
    every = derivatives(scores)
    moving = abs(every[:, scores.inside]).sum(axis=1).reshape(-1, len(table)).any(axis=0)
    alone = every[:, [-1]].toarray().reshape(-1, len(table)) * ~moving
    if not len(fixed := np.flatnonzero(alone.any(axis=0))):
        return table, 0.0
    lengths = np.linalg.norm(alone[:, fixed], axis=0)
    kinds, nothing = alone[:, fixed] / lengths, np.zeros(len(fixed))

    def told(place: Array) -> tuple[Array, Array]:
        losses, slopes = of_labels(kinds @ place)
        return losses, slopes @ kinds

    shares, most = LabelShares(told, len(fixed)), looks.privacy.most
    clip, longest = (float(np.linalg.norm(of[1], axis=1).max()) for of in (of_labels(kinds @ nothing), told(nothing)))
    if not clip * longest > 0:  # No label has a slope there
        return table, 0.0
    louder = looks.sides * most / (size * level)
    spent = min((louder / TOLD) ** 2, COSTLY)
    looks.in_metric(np.eye(len(table))[fixed] / lengths[:, None])
    seen = looks.look(table, clip, most * longest / clip, level * math.sqrt(spent)).gradient[:, 0] / size
    shares.learn(nothing, seen, louder * longest / math.sqrt(spent), math.inf)
    table[fixed, 0] = shares.best() / lengths
    return table, spent


def of_labels(
    engine: RecordSums, block: Records, plan: SumPlan, scores: LinearScores, place: Array
) -> tuple[Array, Array]:
    """Return losses of one record of each label at constants, shape (labels,), and slopes, shape (labels, columns)."""
    forms = np.repeat((scores.kinds.T @ place)[:, None], plan.size, axis=1)
    losses, slopes = engine._slopes(forms, block, plan, valued=True)
    return losses, (scores.kinds @ slopes).T
