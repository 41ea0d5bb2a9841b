"""Privacy itself, on the line, for several classes and for matrices: exact log density ratios of the release.

Any loss on the line, under any noise: tests/auditing/test_falsify.py.

With theta = u + v, u in the sensitive subspace U, the data enter through u alone, and v is a function of the released u.  Let
r(u) be the public part of the objective, minimised over v.  The noise that leads to u is ``b(u) = -(sum of gradients + r'(u))``,
so u has the density ``nu(b(u)) det(sum of Hessians + r''(u))`` by change of variables, with nu the law of the noise on U.

Everything here is written out by hand, for records on the line, and shares no code with the toolkit: a Huber hinge (p = 1),
softmax with three classes (p = 2), and large-margin Gaussians with two classes (p = 3), where theta is a pair of 2 x 2 matrices
``((Omega + Psi), (Omega - Psi)) / sqrt 2``, positive semidefinite, and u = svec(Psi).  There the best v for given Psi is
``Omega = |Psi|``: in an eigenbasis of Psi, a feasible Omega has the diagonal ``Omega_ii >= |psi_i|``.  So ``r(u) = mu ||u||^2``,
twice as curved, and the constraint is active at every u: noise in U never pushes Omega away from zero.
"""

from typing import NamedTuple

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import root

import dpconvex as dp

ADJACENCIES = ("replace-one", "add-remove")
WIDTH = 0.5
# Dimensions of the sensitive subspaces.
DIMENSIONS = {"huber_svm": 1, "softmax": 2, "semidefinite": 3}
# Orthonormal basis of the vectors with sum zero, shape (3, 2).
CENTRED = np.array([[1, 1], [-1, 1], [0, -2]]) / np.sqrt([2, 6])


class Records(NamedTuple):
    """Features on the line and labels 0, 1, ..., both of shape (n,)."""

    x: np.ndarray
    y: np.ndarray

    def without(self, row):
        return Records(np.delete(self.x, row), np.delete(self.y, row))

    def replaced(self, row, x, y):
        first = np.arange(len(self.x)) == row
        return Records(np.where(first, x, self.x), np.where(first, y, self.y))


# Losses: sums of gradients (m, p) and Hessians (m, p, p) of the records at points u, shape (m, p).
def softmax(u, records):
    """Return the derivatives of log sum_c exp(x (w_c - w_y)), with w = CENTRED @ u."""
    scores = records.x[None, :, None] * (u @ CENTRED.T)[:, None, :]
    weight = np.exp(scores - scores.max(axis=2, keepdims=True))
    weight /= weight.sum(axis=2, keepdims=True)
    slope = (weight - np.eye(3)[records.y]) * records.x[None, :, None]
    square = records.x[None, :, None] ** 2 * weight
    bend = np.einsum("mnc,ca,cb->mab", square, CENTRED, CENTRED)
    mean = weight @ CENTRED
    bend -= np.einsum("mna,mnb,n->mab", mean, mean, records.x**2)
    return slope.sum(axis=1) @ CENTRED, bend


def hinges(u, rows):
    """Return the derivatives of the hinge at 1 plus the inner products with rows (n, p)."""
    argument = 1 + u @ rows.T
    slope = np.clip((argument + WIDTH) / (2 * WIDTH), 0.0, 1.0)
    bend = np.where(np.abs(argument) < WIDTH, 1 / (2 * WIDTH), 0.0)
    return slope @ rows, np.einsum("mn,na,nb->mab", bend, rows, rows)


def svec(matrix):
    """Turn symmetric matrices (..., 2, 2) into coordinates (..., 3)."""
    return np.stack([matrix[..., 0, 0], np.sqrt(2) * matrix[..., 0, 1], matrix[..., 1, 1]], axis=-1)


def declared(problem, regularization):
    if problem == "softmax":
        return dp.load("softmax_regression", features=1, classes=3, regularization=regularization)
    if problem == "semidefinite":
        return dp.load("large_margin_gaussian", features=1, regularization=regularization / 2, trace=0.0)
    return dp.load("huber_svm", features=1, regularization=regularization, labels=(0, 1))


class Learner:
    """A problem, its certificate, and the density of what it releases."""

    def __init__(self, problem, size, regularization, privacy):
        self.problem, self.size, self.privacy = problem, size, privacy
        self.classes = 3 if problem == "softmax" else 2
        self.template = declared(problem, regularization)
        self.certificate = found = dp.verify(self.template, privacy, size, dp.ObjectivePerturbation(noise="gamma"))
        assert found.noise_dimension == DIMENSIONS[problem]
        assert found.strong_convexity == pytest.approx(size * regularization + found.added, rel=1e-12)
        # What the perturbed objective may spend: epsilon without the share of the cover.
        self.share = found.noise_epsilon + found.jacobian_epsilon
        # The curvature of the public part, a quadratic.
        self.curvature = found.strong_convexity * (2 if problem == "semidefinite" else 1)

    def rows(self, records):
        """Return what u is multiplied with; for matrices, svec(z z') of z = (x, 1)/sqrt 2 times the root of 2."""
        x, sign = records.x, np.where(records.y == 0, 1.0, -1.0)[:, None]
        if DIMENSIONS[self.problem] == 1:
            return sign * x[:, None]
        return sign * np.stack([x**2, np.sqrt(2) * x, np.ones_like(x)], axis=1) / np.sqrt(2)

    def losses(self, u, records):
        return softmax(u, records) if self.problem == "softmax" else hinges(u, self.rows(records))

    def release(self, noise, records):
        """Return points u that noise b leads to, shape (m, p)."""

        def gradient(u, b):
            return np.asarray(self.losses(u[None], records)[0][0] + self.curvature * u + b)

        return np.array([root(gradient, np.zeros(len(b)), b).x for b in noise])

    def log_density(self, u, records, times):
        """Return the log density of the release at points, up to a constant of the noise, of so many times the scale."""
        (g, h), mu = self.losses(u, records), self.curvature
        sign, log_det = np.linalg.slogdet(h + mu * np.eye(u.shape[1]))
        assert (sign > 0).all()
        return np.asarray(-np.linalg.norm(g + mu * u, axis=1) / (times * self.certificate.noise_scale) + log_det)

    def ratio(self, u, pair, times=1.0):
        first, second = (self.log_density(u, records, times) for records in pair)
        return np.abs(first - second)


def climb(learner, u, pair, rounds):
    """Return the largest log ratio found by random ascent from the points."""
    rng = np.random.default_rng(7)
    best, step = learner.ratio(u, pair), np.full(len(u), 0.5)
    for _ in range(rounds):
        trial = u + (step * np.maximum(np.linalg.norm(u, axis=1), 0.1))[:, None] * rng.normal(size=u.shape)
        value = learner.ratio(trial, pair)
        better = value > best
        u, best = np.where(better[:, None], trial, u), np.where(better, value, best)
        step = np.clip(np.where(better, 1.5 * step, 0.8 * step), 1e-6, 1.0)
    return float(best.max())


def points(learner, records, count, seed):
    """Return releases of a data set, points around them and far ones, and both sides of every edge of a hinge."""
    rng, p = np.random.default_rng(seed), DIMENSIONS[learner.problem]
    direction = rng.normal(size=(count, p))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    near = learner.release(direction * rng.gamma(p, learner.certificate.noise_scale, size=(count, 1)), records)
    around = near + 0.1 * np.linalg.norm(near, axis=1, keepdims=True) * rng.normal(size=near.shape)
    far = direction * 10.0 ** rng.uniform(-1, 2, size=(count, 1))
    found = [near, around, far]
    if learner.problem != "softmax":
        ends = np.where(rng.random(count) < 0.5, 1.0, rng.choice(records.x, count))
        rows = learner.rows(Records(ends, np.zeros(count, dtype=int)))
        for base in (near, far):
            for edge in (-1 - WIDTH, -1 + WIDTH, 1 - WIDTH, 1 + WIDTH):
                side = rng.choice([-1e-9, 1e-9], size=count)
                gap = edge + side - np.einsum("mi,mi->m", rows, base)
                found.append(base + gap[:, None] * rows / np.maximum(np.sum(rows**2, axis=1, keepdims=True), 1e-6))
    return np.concatenate(found)


def drawn(size, classes, rng):
    """Draw a data set, with many records at the ends of the line."""
    x = np.where(rng.random(size) < 0.5, rng.choice([-1.0, 1.0], size), rng.uniform(-1, 1, size))
    return Records(x, rng.integers(0, classes, size))


def families(learner):
    """Yield data sets with neighbours: random ones, and those in which all other records pull one way."""
    size, classes, rng = learner.size, learner.classes, np.random.default_rng(11)
    removed = learner.privacy.adjacency == "add-remove"
    for _ in range(10):
        data = drawn(size, classes, rng)
        places = rng.choice([-1.0, 1.0, *rng.uniform(-1, 1, 2)], 20)
        moved = [data.replaced(row % size, x, row % classes) for row, x in enumerate(places)]
        yield data, [(m, m.without(row % size)) if removed else (data, m) for row, m in enumerate(moved)]
    for x, y in ((1.0, 0), (1.0, 1), (-1.0, classes - 1), (0.0, 0)):
        others = Records(np.full(size, x), np.full(size, y))
        moved = [others.replaced(0, there, label) for there in (1.0, -1.0) for label in range(classes)]
        yield others, [(m, m.without(0)) if removed else (others, m) for m in [others, *moved]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", DIMENSIONS)
@pytest.mark.parametrize(
    ("epsilon", "size", "regularization"),  # in the second, the mechanism has to add strong convexity of its own
    [(1.0, 8, 0.1), pytest.param(1.0, 5, 1e-3, marks=pytest.mark.slow)],
)
def test_neighbours_stay_within_epsilon_at_the_worst_release(problem, adjacency, epsilon, size, regularization):
    learner, worst = Learner(problem, size, regularization, dp.Privacy(epsilon, adjacency=adjacency)), 0.0
    for k, (data, pairs) in enumerate(families(learner)):
        u = points(learner, data, 12, k)
        worst = max(worst, climb(learner, u, pairs[-1], 20), *(float(learner.ratio(u, pair).max()) for pair in pairs))
    assert 0.3 <= worst <= learner.share * (1 + 1e-9)


def worst_case(learner):
    size, removed = learner.size, learner.privacy.adjacency == "add-remove"
    if learner.problem == "softmax":
        # All records are on the wrong side of a far release, so that their slopes are as steep as can be.
        others = Records(np.ones(size), np.full(size, 2))
        u = np.geomspace(1.0, 1e4, 200)[:, None] * np.array([1.0, -1.0, 0.0]) @ CENTRED
        return (others, others.without(0) if removed else others.replaced(0, -1.0, 2)), u
    # At the edge of the hinge's curved piece a record has full slope and curvature; the others are straight there.
    others = Records(np.ones(size), np.ones(size, dtype=np.int64))
    first = others.replaced(0, 1.0, 0)
    row = learner.rows(first)[:1]
    return (first, first.without(0) if removed else others), (WIDTH - 1 - 1e-9) * row / np.sum(row**2)


# Least share of epsilon that is spent.  A constrained objective is up to twice as curved in U as is certified; and records on
# the line cannot be nearly opposite with all scores alike, which is what a softmax replacement would take.
SPENT = {"huber_svm": (0.99, 0.99), "softmax": (0.7, 0.99), "semidefinite": (0.8, 0.8)}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", DIMENSIONS)
def test_the_worst_case_spends_most_of_epsilon(problem, adjacency):
    learner = Learner(problem, 400, 0.02, dp.Privacy(1.0, adjacency=adjacency))
    pair, u = worst_case(learner)
    worst = float(learner.ratio(u, pair).max())
    assert SPENT[problem][ADJACENCIES.index(adjacency)] * learner.share <= worst <= learner.share * (1 + 1e-9)
    # The test has power: less than half of the noise, or where all of epsilon is spent a tenth less, would not be private.
    assert learner.ratio(u, pair, 0.9 if problem == "huber_svm" else 0.4).max() > learner.privacy.epsilon


@pytest.mark.parametrize("problem", DIMENSIONS)
def test_the_noise_that_a_release_needs_leads_to_it(problem):
    # The problem as declared, in all of theta and with its constraints, solved by another program.
    learner, rng = Learner(problem, 5, 0.2, dp.Privacy(2.0)), np.random.default_rng(3)
    data = drawn(learner.size, learner.classes, rng)
    noise = learner.certificate.noise_scale * 2.0 * rng.normal(size=(4, DIMENSIONS[problem]))
    for b, expected in zip(noise, learner.release(noise, data), strict=True):
        if DIMENSIONS[problem] == 3:
            half = np.array([[b[0], b[1] / np.sqrt(2)], [b[1] / np.sqrt(2), b[2]]]) / np.sqrt(2)
            linear = {"Phi_0": half, "Phi_1": -half}
        else:
            linear = {"W": (CENTRED @ b)[None]} if problem == "softmax" else {"w": b}
        program = learner.template.problem({"x": data.x[:, None], "y": data.y}, linear, added=learner.certificate.added)
        program.solve(solver=cp.CLARABEL)
        found = {variable.name(): variable.value for variable in program.variables()}
        if DIMENSIONS[problem] == 3:
            u = svec((found["Phi_0"] - found["Phi_1"]) / np.sqrt(2))
        else:
            u = found["W"][0] @ CENTRED if problem == "softmax" else found["w"]
        assert np.linalg.norm(u - expected) <= 2e-4 * (1 + np.linalg.norm(u))
