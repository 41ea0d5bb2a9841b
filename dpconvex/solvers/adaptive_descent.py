"""The steps of `AdaptiveSteps`: which questions are asked, and what is made of noisy answers (docs/theory.md, section 20).

Everything here is post-processing: the records are behind `PrivateLooks`, and nothing here has to be right for privacy.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.arrays import Array
from dpconvex.evaluation.linear_scores import LinearScores
from dpconvex.evaluation.private_looks import PrivateLooks
from dpconvex.geometry.quadratics import quadratic
from dpconvex.solvers.noisy_quadratic import least_point

# Parts of the squared level: of both second moments, of histograms, and of curvatures; the steps have the rest.
FIRST, SECOND, HISTOGRAMS, CURVATURES = 0.1, 0.2, 0.05, 0.02
FIRST_EDGE, SECOND_EDGE = 0.2, 0.35  # Ridges, next to the edge of a moment's noise
LEVERAGE = 0.8  # Where rows are cut for the second moment, next to the root mean square of their leverages
# Steps, fewest of them, and how many there are to a look at lengths and curvature; there are fewer steps where there are fewer
# records than so many for each direction and unit of the level.
ROUNDS, FEWEST, EVERY, ENOUGH = 30, 6, 4, 20.0
DECAY = 0.25  # The part of the steps, the last ones, that become shorter
# Bins of the histogram, by halves, down from so many of the largest slope, and the clip while no histogram says more.
BINS, LARGEST, USUAL = 16, 0.27, 0.27
# By how many deviations of the noise a count stands out, in bins near the last clip and far above it.
STANDS_OUT, FAR_OUT, FAR = 2.0, 3.5, 4.0
BOTH_SIDES = 0.1  # What gradients beyond the clip on both sides count, next to those of one side alone
SEEN, UNCLIPPED = 0.25, 0.5  # A histogram of fewer records is not believed; so many are not clipped
SMALLEST_KEPT, LEAST_SHARE = 1e-3, 0.1


@dataclass(frozen=True)
class Metric:
    """A noisy second moment in its eigenvectors: how much of it is kept, and the matrix that makes rows round."""

    kept: Array  # shape (rows,): the part of each direction that is not noise
    root: Array  # shape (rows,): of the second moment with the ridge, by direction
    vectors: Array

    @classmethod
    def of(cls, moment: Array, ridge: float) -> "Metric":
        values, vectors = np.linalg.eigh(moment)
        kept = np.maximum(values, 0.0)
        return cls(kept / (kept + ridge), np.sqrt(kept + ridge), vectors)

    @property
    def matrix(self) -> Array:
        return np.asarray(self.vectors.T / self.root[:, None])

    @property
    def directions(self) -> float:
        """The effective number of directions."""
        return max(float(self.kept.sum()), 1.0)


@dataclass(frozen=True)
class Public:
    """What is known of a loss without data, from records of the declared domain: its largest slope and curvature at 0."""

    slope: float
    curvature: float


def descend(looks: PrivateLooks, form: LossForm, settings: dict[str, float], size: float, public: Public) -> Array:
    """Return the parameters that the steps end at, in coordinates, shape (dim,)."""
    scores, level, share = looks.scores, settings["level"], looks.scores.onto_kinds
    columns, sides = float(np.trace(share)), 2 if looks.replaced else 1
    metric, matrix, number = metric_of(looks, level, size)
    unit = math.sqrt(metric.directions / number)  # The root mean square of leverages
    steps = level * math.sqrt(1 - FIRST - SECOND - HISTOGRAMS - CURVATURES)
    enough = number * level / (sides * ENOUGH * metric.directions * columns)
    rounds = int(settings.get("rounds", min(max(round(ROUNDS * min(1.0, enough)), FEWEST), ROUNDS)))
    count = -(-rounds // EVERY)
    step_level = steps / math.sqrt(rounds)
    asking: Any = {
        "edges": LARGEST * public.slope * unit * 2.0 ** np.arange(1 - BINS, 1),
        "histogram_level": level * math.sqrt(HISTOGRAMS / (count + 1)),
        "curvature_level": level * math.sqrt(CURVATURES / count),
    }
    lengths = Lengths(asking["edges"] / unit, looks.counted(1.0, math.sqrt(2)) / asking["histogram_level"], number)
    loud = (sides / steps) ** 2 * metric.directions * columns
    first = looks.look(np.zeros(scores.shape), edges=asking["edges"], histogram_level=asking["histogram_level"])
    clip = lengths.clip(first.histogram, loud, USUAL * public.slope, 0.0)
    bend, point, variance = public.curvature, np.zeros(scores.shape), np.zeros(len(metric.kept))
    for t in range(rounds):
        more = asking | {"probe": probe_of(scores, t), "cap": 4 * bend} if t % EVERY == 0 else {}
        answer = looks.look(matrix.T @ point, clip, unit, step_level, **more)
        if more:
            bend = max(float(answer.curvature[0]) / number, bend / 2)
        rate = min(1.0, (rounds - t) / (DECAY * rounds + 1))
        point = point - rate / bend * (answer.gradient @ share)
        deviation = sides * clip * unit / step_level / bend
        variance = (1 - rate * metric.kept) ** 2 * variance + (rate * deviation) ** 2
        if more:
            clip = lengths.clip(answer.histogram, loud, clip, clip)
    constant = np.linalg.solve(matrix.T, np.eye(len(matrix))[-1]) if looks.constant else None
    table = matrix.T @ shortened(point, variance * columns, np.maximum(metric.kept, SMALLEST_KEPT), constant)
    inverse = np.linalg.inv(matrix)
    return regularized(table, bend * inverse @ inverse.T, form, scores, looks.constant, size)


def metric_of(looks: PrivateLooks, level: float, size: float) -> tuple[Metric, Array, float]:
    """Return the metric, the matrix that rows are turned by, and about the number of records.

    A first second moment, of whole rows, is rough; a second one, of rows that it made round and that are cut, is finer.
    """
    one, first = looks.rows.squared_norm(looks.scores.radius) * looks.rows.grid**2, level * math.sqrt(FIRST)
    edge = math.sqrt(2 * looks.rows.count)
    deviation = looks.counted(one, math.sqrt(2)) / first
    moment = looks.second_moment(first)
    rough = Metric.of(moment, FIRST_EDGE * edge * deviation)
    turn, number = looks.in_metric(rough.matrix), size
    if (
        looks.constant
    ):  # Its square, summed, is a noisy number of records: believed where the nominal one cannot be right
        counted, wide = (value / looks.constant**2 for value in (float(moment[-1, -1]), 4 * deviation))
        number = counted if abs(counted - size) > wide and counted > wide else size
    second, most = level * math.sqrt(SECOND), LEVERAGE * math.sqrt(rough.directions / number)
    fine = looks.second_moment_in_metric(most, second)
    metric = Metric.of(fine, SECOND_EDGE * edge * looks.counted(most**2, math.sqrt(2)) / second)
    return metric, looks.in_metric(metric.matrix @ turn), number


@dataclass(frozen=True)
class Lengths:
    """Histograms of gradients' lengths in the metric, next to the usual leverage, and the clips that they ask for."""

    edges: Array
    deviation: float  # Of a count
    number: float  # Of records

    def clip(self, counts: Array, loud: float, usual: float, last: float) -> float:
        """Return the clip at which bias and noise together are least: bias is the sum of what gradients exceed it by."""
        stands_out = np.where(self.edges > FAR * last, FAR_OUT, STANDS_OUT) * self.deviation
        up, down = np.where(counts > stands_out, counts, 0.0)
        seen = float((up + down).sum())
        if not seen >= SEEN * self.number:
            return usual
        middle = self.edges / math.sqrt(2)
        excess = np.maximum(middle - self.edges[:, None], 0.0)
        cost = (excess @ (up - down)) ** 2 + (BOTH_SIDES * excess @ (up + down)) ** 2 + self.edges**2 * loud
        least = int(np.searchsorted(np.cumsum(up + down), UNCLIPPED * seen))
        return float(self.edges[max(int(np.argmin(cost)), least)])


def probe_of(scores: LinearScores, number: int) -> Array:
    """Return a direction of length 1 of the columns, in the space that scores depend on."""
    found = scores.onto_kinds @ np.random.default_rng(number).normal(size=scores.shape[1])
    return np.asarray(found / np.linalg.norm(found))


def shortened(point: Array, variance: Array, weights: Array, constant: Array | None) -> Array:
    """Shorten the answer by what noise made it longer: one James-Stein factor for all directions but that of the constant."""
    fixed = np.zeros_like(point)
    if constant is not None:
        along = weights * constant
        fixed = np.outer(constant, along @ point / (along @ constant))
    moving = point - fixed
    signal, noise = float((weights[:, None] * moving**2).sum()), float((weights * variance).sum())
    return np.asarray(fixed + max(LEAST_SHARE, 1 - noise / max(signal, 1e-300)) * moving)


def regularized(
    table: Array, hessian: Array, form: LossForm, scores: LinearScores, constant: float, size: float
) -> Array:
    """Minimise a quadratic model of the loss about the end of the steps, with the regularizer, on K; shape (dim,)."""
    units = np.ones(len(table))
    if constant:
        units[-1] = constant
    theta, public = scores.coordinates(table * units[:, None]), quadratic(form.template.regularizer, form.space)
    free = form.feasible.is_space and public is not None and not public.slope.any()
    if free and public is not None and not public.hessian.nnz:
        return theta
    inside = scores.scale[:, 0] / units
    block = hessian * np.outer(inside, inside)
    if free and public is not None and is_diagonal(public.hessian):
        kinds, owner = np.unique(size * public.hessian.diagonal()[scores.places], axis=1, return_inverse=True)
        pulled = block @ theta[scores.places]
        for k, more in enumerate(kinds.T):
            own = np.flatnonzero(owner.ravel() == k)
            theta[scores.places[:, own]] = np.linalg.solve(block + np.diag(more), pulled[:, own])
        return theta
    places = scores.places.T.ravel()
    back = np.argsort(places)
    whole = sp.csr_array(sp.block_diag([block] * scores.shape[1], format="csr")[back][:, back])
    return least_point(form, whole, whole @ theta, size)


def is_diagonal(matrix: sp.csr_array) -> bool:
    return not (matrix - sp.diags_array(matrix.diagonal())).count_nonzero()
