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

EDGE = 0.7  # The ridge, next to the edge of the second moment's noise
LEVERAGE = 0.7  # The largest leverage, next to the root mean square of all
RATE, MOMENTUM = 0.7, 0.5
EDGES = 2.0 ** np.arange(-24, 25)  # Upper ends of the bins of histograms
# By how many deviations counts stand out of all bins, and in bins next to one that does.
SOLID, STANDS_OUT, NEAR = 4.5, 3.0, 1
BOTH_SIDES = 0.1  # What slopes beyond the clip on both sides count, next to those of one side alone
SMALLEST_KEPT = 1e-3


@dataclass(frozen=True)
class Metric:
    """The noisy second moment in its eigenvectors: how much of it is kept, and the matrix that makes rows round."""

    kept: Array  # shape (rows,): the part of each direction that is not noise
    root: Array  # shape (rows,): of the second moment with the ridge, by direction
    vectors: Array

    @classmethod
    def of(cls, moment: Array, deviation: float) -> "Metric":
        values, vectors = np.linalg.eigh(moment)
        kept, edge = np.maximum(values, 0.0), EDGE * deviation * math.sqrt(2 * len(values))
        return cls(kept / (kept + edge), np.sqrt(kept + edge), vectors)

    @property
    def matrix(self) -> Array:
        return np.asarray(self.vectors.T / self.root[:, None])

    @property
    def directions(self) -> float:
        """The effective number of directions."""
        return max(float(self.kept.sum()), 1.0)


@dataclass
class Steps:
    """Parameters and velocity in the directions of the metric, and the variance of the noise in them, known by recursion."""

    point: Array
    velocity: Array
    uu: Array
    uv: Array
    vv: Array

    @classmethod
    def zero(cls, rows: int, columns: int) -> "Steps":
        return cls(*(np.zeros((rows, columns)) for _ in range(2)), *(np.zeros(rows) for _ in range(3)))

    def move(self, gradient: Array, rate: float, kept: Array, deviation: float) -> None:
        """Take a step; `kept` stands for the Hessian in units of the rate, and the gradient's noise has this deviation."""
        self.velocity = MOMENTUM * self.velocity - rate * gradient
        self.point = self.point + self.velocity
        bent, uu, uv, vv = RATE * kept, self.uu, self.uv, self.vv
        self.vv = MOMENTUM**2 * vv - 2 * MOMENTUM * bent * uv + bent**2 * uu + (rate * deviation) ** 2
        crossed = MOMENTUM * uv - bent * uu
        self.uu, self.uv = uu + 2 * crossed + self.vv, crossed + self.vv


def descend(looks: PrivateLooks, form: LossForm, settings: dict[str, float], size: float) -> Array:
    """Return the parameters that the steps end at, in coordinates, shape (dim,)."""
    scores, rounds = looks.scores, int(settings["rounds"])
    every = -(-rounds // int(settings["looks"]))
    one, deviations = looks.rows.squared_norm(scores.radius) * looks.rows.grid**2, 1 / settings["step_level"]
    moment = looks.second_moment(settings["moment_level"])
    metric = Metric.of(moment, looks.counted(one, math.sqrt(2)) / settings["moment_level"])
    matrix = looks.in_metric(metric.matrix)
    number = max(float(moment[-1, -1]) / looks.constant**2, 1.0) if looks.constant else size
    leverage = LEVERAGE * math.sqrt(metric.directions / number)
    # Of all steps together, in units of the clip: what its choice weighs against bias.
    loud = deviations / math.sqrt(rounds) * (2 if looks.replaced else 1)
    share = scores.onto_kinds
    columns = float(np.trace(share))
    histogram_level, curvature_level = settings["histogram_level"], settings["curvature_level"]
    state = Steps.zero(*scores.shape)
    probe = probe_of(scores, 0)
    known: Any = {"edges": EDGES, "histogram_level": histogram_level, "curvature_level": curvature_level}
    first = looks.look(matrix.T @ state.point, probe=probe, **known)
    clip = chosen_clip(first.histogram, settings, looks, loud, metric.directions * columns)
    bend = typical(first.curvature, settings, looks, columns)
    for t in range(rounds):
        asked = t % every == 0
        more = known | {"probe": probe_of(scores, t), "cap": 4 * bend * columns} if asked else {}
        if not t:
            more["histogram_level"] = 0.0
        answer = looks.look(matrix.T @ state.point, clip, leverage, settings["step_level"], **more)
        if asked:
            bend = max(float(answer.curvature[0]) / number / columns, bend / 2)
        deviation = clip * leverage * deviations * (2 if looks.replaced else 1)
        state.move(answer.gradient @ share, RATE / bend, metric.kept, deviation)
        if asked and t:
            clip = chosen_clip(answer.histogram, settings, looks, loud, metric.directions * columns)
    point = shrunk(state, metric)
    table = matrix.T @ point
    return regularized(table, metric, bend, form, scores, looks.constant, size)


def probe_of(scores: LinearScores, number: int) -> Array:
    """Return signs for the columns, in the space that scores depend on."""
    columns = scores.shape[1]
    signs = np.random.default_rng(number).choice([-1.0, 1.0], columns) if columns > 1 else np.ones(1)
    return np.asarray(scores.onto_kinds @ signs)


def standing_out(counts: Array, level: float, moved: float) -> Array:
    """Return counts, shape (..., bins), without those that noise alone explains; at least one is left."""
    deviation = moved / level
    every = counts.reshape(-1, counts.shape[-1]).max(axis=0)
    solid = np.flatnonzero(every > SOLID * deviation)
    least, most = (solid[0], solid[-1]) if len(solid) else (int(np.argmax(every)),) * 2
    place = np.arange(counts.shape[-1])
    near = (place >= least - NEAR) & (place <= most + NEAR) & (counts > STANDS_OUT * deviation)
    return np.where(near | (place == most), np.maximum(counts, 0.0), 0.0)


def chosen_clip(
    histogram: Array, settings: dict[str, float], looks: PrivateLooks, loud: float, directions: float
) -> float:
    """Return the clip at which bias and noise together are least: bias is the sum of what slopes exceed it by."""
    moved = looks.counted(1.0, math.sqrt(2))
    up, down = standing_out(histogram, settings["histogram_level"], moved)
    excess = np.maximum(EDGES / math.sqrt(2) - EDGES[:, None], 0.0)
    net, both = excess @ (up - down), excess @ (up + down)
    largest = np.flatnonzero(up + down).max(initial=0)
    cost = net**2 + (BOTH_SIDES * both) ** 2 + (EDGES * loud) ** 2 * directions
    return float(EDGES[int(np.argmin(cost[: largest + 1]))])


def typical(counts: Array, settings: dict[str, float], looks: PrivateLooks, columns: float) -> float:
    """Return about the mean curvature of a column, from counts by size."""
    known = standing_out(counts, settings["curvature_level"], looks.counted(1.0, math.sqrt(2)))
    total = float(known.sum())
    return float(known @ EDGES) / math.sqrt(2) / total / columns if total else 1.0


def shrunk(state: Steps, metric: Metric) -> Array:
    """Shorten the answer by what noise made it longer: one positive-part James-Stein factor for each column."""
    weights = np.maximum(metric.kept, SMALLEST_KEPT)
    signal = float((weights[:, None] * state.point**2).sum())
    noise = float((weights * np.maximum(state.uu, 0.0)).sum()) * state.point.shape[1]
    return np.asarray(state.point * max(0.0, 1 - noise / max(signal, 1e-300)))


def regularized(
    table: Array, metric: Metric, bend: float, form: LossForm, scores: LinearScores, constant: float, size: float
) -> Array:
    """Minimise the model of the loss about the end of the steps, with the regularizer, on K; shape (dim,)."""
    units = np.ones(len(table))
    if constant:
        units[-1] = constant
    theta, public = scores.coordinates(table * units[:, None]), quadratic(form.template.regularizer, form.space)
    if form.feasible.is_space and public is not None and not public.hessian.nnz and not public.slope.any():
        return theta
    turned = metric.vectors * metric.root * math.sqrt(bend)
    turned *= scores.scale[:, :1] / units[:, None]
    block = turned @ turned.T
    if form.feasible.is_space and public is not None and not public.slope.any() and is_diagonal(public.hessian):
        kinds, owner = np.unique(size * public.hessian.diagonal()[scores.places], axis=1, return_inverse=True)
        pulled = block @ theta[scores.places]
        for k, more in enumerate(kinds.T):
            own = np.flatnonzero(owner.ravel() == k)
            theta[scores.places[:, own]] = np.linalg.solve(block + np.diag(more), pulled[:, own])
        return theta
    places = scores.places.T.ravel()
    back = np.argsort(places)
    hessian = sp.csr_array(sp.block_diag([block] * scores.shape[1], format="csr")[back][:, back])
    return least_point(form, hessian, hessian @ theta, size)


def is_diagonal(matrix: sp.csr_array) -> bool:
    return not (matrix - sp.diags_array(matrix.diagonal())).count_nonzero()
