"""Exact deltas in the plane: labels whose losses are softmax, logistic and Huber, with one row of parameters bounded by a box.

The density of the answer inside K, on each edge and the masses at the corners are written out here, for Gaussian noise with
independent coordinates: on an edge one coordinate is held by the noise beyond what it takes to get there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_ndtr

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.mechanisms.noise_laws import objective_delta
from dpconvex.noise.gaussian_profiles import smallest_scale
from dpconvex.release.verify import analyse

Array = NDArray[np.float64]
Loss = Callable[[Array], tuple[Array, Array]]
ADJACENCIES = ("replace-one", "add-remove")
LABELS = ("softmax", "logistic", "hinge", "nothing")
ROWS = np.array([[0.0, 0.0], [1.0, 0.0], [0.3, 1.0]])
WIDTH, SLOPE = 0.4, 0.6


def expression(label: str, x: Any, theta: Any) -> Any:
    scores = x * (ROWS @ theta)
    if label == "softmax":
        return cp.log_sum_exp(scores)
    if label == "logistic":
        return 1.5 * cp.logistic(-scores[1] - 1.0)
    if label == "hinge":
        return SLOPE / (2 * WIDTH) * cp.huber(cp.pos(scores[2] - 0.5), WIDTH)
    return cp.Constant(0.0)


def loss(label: str, x: float) -> Loss:
    """Return gradient (m, 2) and Hessian (m, 2, 2) at points (m, 2)."""

    def found(t: Array) -> tuple[Array, Array]:
        scores = x * t @ ROWS.T
        if label == "softmax":
            p = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
            mean = p @ ROWS
            square = np.einsum("mk,ki,kj->mij", p, ROWS, ROWS) - mean[:, :, None] * mean[:, None, :]
            return x * mean, x * x * square
        if label == "logistic":
            s = np.exp(-np.logaddexp(0.0, scores[:, 1] + 1.0))
            first, second, row = -1.5 * s, 1.5 * s * (1 - s), ROWS[1]
        elif label == "hinge":
            m = scores[:, 2] - 0.5
            first, second, row = SLOPE * np.clip(m / WIDTH, 0, 1), SLOPE / WIDTH * ((m > 0) & (m < WIDTH)), ROWS[2]
        else:
            first, second, row = np.zeros(len(t)), np.zeros(len(t)), ROWS[0]
        return x * first[:, None] * row, (x * x * second)[:, None, None] * np.outer(row, row)

    return found


def template(bound: float, order: tuple[str, ...] = LABELS) -> dp.Template:
    theta = cp.Variable(2, name="theta")
    box = [theta <= bound, theta >= -bound] if np.isfinite(bound) else []
    record = dp.Record(x=dp.Box(-1.0, 1.0), y=dp.Choice(order))
    return dp.Template(record, lambda x, y: expression(y, x, theta), 5e-10 * cp.sum_squares(theta), box)


def delta(first: Loss, second: Loss, mu: float, sigma: float, epsilon: float, pull: Array, bound: float) -> float:
    """Return delta between two data sets whose rest is ``mu |t|^2/2 + <pull, t>``."""
    reach = min(bound, 30.0)
    # Answers to noise within seven deviations, from the monotone gradient's bounds.
    centre = -pull / mu
    low, high = (np.clip(centre + side * (7 * sigma + 3.0) / mu, -reach, reach) for side in (-1, 1))
    axes = [np.linspace(a, b, 141) for a, b in zip(low, high, strict=True)]
    total = 0.0
    for held in itertools.product((0, -1, 1) if np.isfinite(bound) else (0,), repeat=2):
        free = [k for k in range(2) if held[k] == 0]
        if any(axes[k][0] == axes[k][-1] for k in free):
            continue
        points = [(axes[k][1:] + axes[k][:-1]) / 2 if held[k] == 0 else np.array([held[k] * bound]) for k in range(2)]
        t = np.stack([grid.ravel() for grid in np.meshgrid(*points, indexing="ij")], axis=1)
        cell = float(np.prod([axes[k][1] - axes[k][0] for k in free]))
        logs = []
        for data in (first, second):
            gradient, hessian = data(t)
            noise = -(gradient + mu * t + pull) / sigma
            logarithm = np.zeros(len(t))
            for k in range(2):
                # Held at the upper end by noise below what would lead there, at the lower end by noise above it.
                inside = -(noise[:, k] ** 2) / 2 - np.log(sigma * np.sqrt(2 * np.pi))
                logarithm += inside if held[k] == 0 else log_ndtr(held[k] * noise[:, k])
            if free:
                block = (hessian + mu * np.eye(2))[:, free][:, :, free]
                logarithm += np.linalg.slogdet(block)[1]
            logs.append(logarithm)
        total += (
            float((np.exp(logs[0]) * np.maximum(-np.expm1(np.minimum(epsilon + logs[1] - logs[0], 1)), 0)).sum()) * cell
        )
    return total


def claimed(analysis: Analysis, adjacency: str, mu: float, epsilon: float, sigma: float) -> float:
    return objective_delta(analysis, adjacency, analysis.moduli(1, mu - analysis.modulus), epsilon, sigma)[0]


def test_masses_add_up() -> None:
    for bound in (0.7, np.inf):
        whole = delta(loss("softmax", 1.0), loss("nothing", 1.0), 1.0, 1.0, -50.0, np.array([0.4, -0.3]), bound)
        assert whole == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("bound", [np.inf, 0.8])
@pytest.mark.parametrize(("mu", "epsilon", "target"), [(1.0, 1.2, 0.1), (0.3, 2.5, 0.02)])
def test_labels_of_several_kinds(mu: float, epsilon: float, target: float, bound: float, adjacency: str) -> None:
    analysis = analyse(template(bound))
    sigma = smallest_scale(lambda s: claimed(analysis, adjacency, mu, epsilon, s), target, 1.0, 1e-4)
    assert sigma is not None
    rng = np.random.default_rng(5)
    records = [(label, x) for label in LABELS for x in (1.0, -1.0)]
    worst = 0.0
    for _ in range(16):
        first, second = (records[k] for k in rng.choice(len(records), 2, replace=False))
        pair = (loss(*first), loss("nothing", 0.0) if adjacency == "add-remove" else loss(*second))
        pull = rng.uniform(-1, 1, 2) * (3 * sigma + mu * min(bound, 2.0) + 1)
        for one, other in (pair, pair[::-1]):
            worst = max(worst, delta(one, other, mu, sigma, epsilon, pull, bound))
    assert worst <= claimed(analysis, adjacency, mu, epsilon, sigma) * (1 + 1e-2)
    assert worst > 1e-3 * target or adjacency == "replace-one" or bound < 1


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_labels_may_be_listed_in_any_order(adjacency: str) -> None:
    found = []
    for order in itertools.islice(itertools.permutations(LABELS), 0, 24, 5):
        analysis = analyse(template(0.8, order))
        certificate = dp.ObjectivePerturbation("gaussian", added=9.0).certify(
            analysis, dp.Privacy(2.0, 1e-5, adjacency), 1
        )
        found.append(certificate.noise_scale)
    assert found == pytest.approx([found[0]] * len(found), rel=1e-9)
