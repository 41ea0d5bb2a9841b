"""Privacy itself for several classes and for matrices: exact log density ratios of the release, in the sensitive subspace.

With theta = u + v, u in the sensitive subspace U, the data enter through u alone, and v is a function of the released u.  Let
r(u) be the public part of the objective, minimised over v.  The noise that leads to u is ``b(u) = -(sum of gradients + r'(u))``,
so u has the density ``nu(b(u)) det(sum of Hessians + r''(u))`` by change of variables, with nu the law of the noise on U.

Everything here is written out by hand, for records on the line, and shares no code with the toolkit: softmax with three
classes (p = 2), and large-margin Gaussians with two classes (p = 3), where theta is a pair of 2 x 2 matrices
``((Omega + Psi), (Omega - Psi)) / sqrt 2`` and u = svec(Psi).  For the latter the public part comes in two forms:

- symmetric matrices without a constraint: ``mu/2 ||u||^2``;
- positive semidefinite ones.  The best v for given Psi is ``Omega = |Psi|``: in an eigenbasis of Psi, a feasible Omega has the
  diagonal ``Omega_ii >= |psi_i|``.  So ``r(u) = mu ||u||^2``, twice as curved, and the constraint is active at every u: noise in
  U never pushes Omega away from zero, so there is no interior case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.core.evaluate import substituted
from dpconvex.core.expression import constant
from dpconvex.core.to_cvxpy import Writer

Array = NDArray[np.float64]
ADJACENCIES = ("replace-one", "add-remove")
WIDTH = 0.5
# Orthonormal basis of the vectors with sum zero, shape (3, 2).
CENTRED = np.array([[1, 1], [-1, 1], [0, -2]]) / np.sqrt([2, 6])


@dataclass(frozen=True)
class Records:
    """Features on the line and labels 0, 1, ..., both of shape (n,)."""

    x: Array
    y: NDArray[np.int64]

    def without(self, row: int) -> Records:
        return Records(np.delete(self.x, row), np.delete(self.y, row))

    def replaced(self, row: int, x: float, y: int) -> Records:
        features, labels = self.x.copy(), self.y.copy()
        features[row], labels[row] = x, y
        return Records(features, labels)


# Losses: sums of gradients (m, p) and Hessians (m, p, p) of the records at points u, shape (m, p).


def softmax(u: Array, records: Records) -> tuple[Array, Array]:
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


def outer_products(x: Array) -> Array:
    """Return svec(z z') of z = (x, 1)/sqrt 2, shape (n, 3)."""
    return np.stack([x**2, np.sqrt(2) * x, np.ones_like(x)], axis=1) / 2


def gaussians(u: Array, records: Records) -> tuple[Array, Array]:
    """Return the derivatives of hinge(1 +- sqrt 2 <svec(z z'), u>), plus for label 0."""
    rows = outer_products(records.x) * np.where(records.y == 0, np.sqrt(2), -np.sqrt(2))[:, None]
    argument = 1 + u @ rows.T
    slope = np.clip((argument + WIDTH) / (2 * WIDTH), 0.0, 1.0)
    bend = np.where(np.abs(argument) < WIDTH, 1 / (2 * WIDTH), 0.0)
    return slope @ rows, np.einsum("mn,na,nb->mab", bend, rows, rows)


def matrices(u: Array) -> Array:
    """Turn svec coordinates (m, 3) into matrices (m, 2, 2)."""
    side = u[:, 1] / np.sqrt(2)
    return np.stack([np.stack([u[:, 0], side], axis=1), np.stack([side, u[:, 2]], axis=1)], axis=1)


def svec(matrix: Array) -> Array:
    """Turn symmetric matrices (..., 2, 2) into coordinates (..., 3)."""
    return np.stack([matrix[..., 0, 0], np.sqrt(2) * matrix[..., 0, 1], matrix[..., 1, 1]], axis=-1)


@dataclass(frozen=True)
class Learner:
    """A problem, its certificate, and the density of what it releases.

    Attributes
    ----------
    problem : {"softmax", "symmetric", "semidefinite"}
    """

    problem: str
    size: int
    regularization: float
    privacy: dp.Privacy

    @property
    def classes(self) -> int:
        return 3 if self.problem == "softmax" else 2

    @property
    def template(self) -> dp.Template:
        if self.problem == "softmax":
            return dp.load("softmax_regression", features=1, classes=3, regularization=self.regularization)
        if self.problem == "symmetric":
            return symmetric_template(self.regularization / 2)
        return dp.load("large_margin_gaussian", features=1, regularization=self.regularization / 2, trace=0.0)

    @property
    def certificate(self) -> dp.Certificate:
        found = dp.verify(self.template, self.privacy, self.size, dp.ObjectivePerturbation(noise="gamma"))
        assert found.noise_dimension == (2 if self.problem == "softmax" else 3)
        assert found.strong_convexity == pytest.approx(self.size * self.regularization + found.added, rel=1e-12)
        return found

    def curvature(self, certificate: dp.Certificate) -> float:
        """Return the curvature of the public part, a quadratic."""
        return certificate.strong_convexity * (2 if self.problem == "semidefinite" else 1)

    def losses(self, u: Array, records: Records) -> tuple[Array, Array]:
        return (softmax if self.problem == "softmax" else gaussians)(u, records)

    def release(self, noise: Array, records: Records, certificate: dp.Certificate) -> Array:
        """Return points u that noise b leads to, shape (m, p): damped Newton steps on the gradient."""
        u, mu = np.zeros_like(noise), self.curvature(certificate)
        for _ in range(40):
            g, h = self.losses(u, records)
            step = np.linalg.solve(h + mu * np.eye(u.shape[1]), (g + mu * u + noise)[..., None])[..., 0]
            trials = u[None] - 0.5 ** np.arange(0, 12, 1)[:, None, None] * step
            left = [self.losses(t, records)[0] + mu * t + noise for t in trials]
            best = np.argmin(np.linalg.norm(left, axis=2), axis=0)
            u = trials[best, np.arange(len(u))]
        return u


def symmetric_template(regularization: float) -> dp.Template:
    """Return large-margin Gaussians without their constraint."""
    Phi = [cp.Variable((2, 2), symmetric=True, name=f"Phi_{c}") for c in range(2)]

    def loss(x: Any, y: int) -> Any:
        z = cp.hstack([x, 1]) / np.sqrt(2)
        return dp.huber_hinge(1 + z @ (Phi[y] - Phi[1 - y]) @ z, width=WIDTH)

    return dp.Template(
        record=dp.Record(x=dp.Ball(1), y=dp.Choice([0, 1])),
        loss=loss,
        regularizer=regularization * sum(cp.sum_squares(P) for P in Phi),
    )


def log_density(learner: Learner, certificate: dp.Certificate, u: Array, records: Records) -> Array:
    """Return the log density of the release at points, up to a constant of the noise."""
    (g, h), mu = learner.losses(u, records), learner.curvature(certificate)
    sign, log_det = np.linalg.slogdet(h + mu * np.eye(u.shape[1]))
    assert (sign > 0).all()
    return np.asarray(-np.linalg.norm(g + mu * u, axis=1) / certificate.noise_scale + log_det)


def ratio(learner: Learner, certificate: dp.Certificate, u: Array, pair: tuple[Records, Records]) -> Array:
    """Return the absolute log ratio at the points."""
    first, second = (log_density(learner, certificate, u, records) for records in pair)
    return np.abs(first - second)


def share(certificate: dp.Certificate) -> float:
    """Return what the perturbed objective may spend: epsilon without the share of the cover."""
    return certificate.noise_epsilon + certificate.jacobian_epsilon


def climb(learner: Learner, certificate: dp.Certificate, u: Array, pair: tuple[Records, Records], rounds: int) -> float:
    """Return the largest log ratio found by random ascent from the points."""
    rng = np.random.default_rng(7)
    best = ratio(learner, certificate, u, pair)
    step = np.full(len(u), 0.5)
    for _ in range(rounds):
        trial = u + (step * np.maximum(np.linalg.norm(u, axis=1), 0.1))[:, None] * rng.normal(size=u.shape)
        value = ratio(learner, certificate, trial, pair)
        better = value > best
        u, best = np.where(better[:, None], trial, u), np.where(better, value, best)
        step = np.clip(np.where(better, 1.5 * step, 0.8 * step), 1e-6, 1.0)
    return float(best.max())


def points(learner: Learner, certificate: dp.Certificate, records: Records, count: int, seed: int) -> Array:
    """Return releases of a data set, points around them and far ones, and both sides of every edge of a hinge."""
    rng = np.random.default_rng(seed)
    p = certificate.noise_dimension
    direction = rng.normal(size=(count, p))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    noise = direction * rng.gamma(p, certificate.noise_scale, size=(count, 1))
    drawn = learner.release(noise, records, certificate)
    around = drawn + 0.1 * np.linalg.norm(drawn, axis=1, keepdims=True) * rng.normal(size=drawn.shape)
    far = direction * 10.0 ** rng.uniform(-1, 2, size=(count, 1))
    found = [drawn, around, far]
    if learner.problem != "softmax":
        rows = outer_products(rng.choice(records.x, count)) * np.sqrt(2)
        for base in (drawn, far):
            for edge in (-1 - WIDTH, -1 + WIDTH, 1 - WIDTH, 1 + WIDTH):
                side = rng.choice([-1e-9, 1e-9], size=count)
                gap = edge + side - np.einsum("mi,mi->m", rows, base)
                found.append(base + gap[:, None] * rows / np.sum(rows**2, axis=1, keepdims=True))
    return np.concatenate(found)


def drawn(size: int, classes: int, rng: np.random.Generator) -> Records:
    """Draw a data set, with many records at the ends of the line."""
    x = np.where(rng.random(size) < 0.5, rng.choice([-1.0, 1.0], size), rng.uniform(-1, 1, size))
    return Records(x, rng.integers(0, classes, size))


def extreme(learner: Learner) -> Iterator[tuple[Records, Records]]:
    """Yield neighbours in which all other records pull one way."""
    size, classes = learner.size, learner.classes
    for x, y in ((1.0, 0), (1.0, 1), (-1.0, classes - 1), (0.0, 0)):
        others = Records(np.full(size, x), np.full(size, y))
        if learner.privacy.adjacency == "add-remove":
            yield others, others.without(0)
            yield others.replaced(0, x, (y + 1) % classes), others.without(0)
        else:
            for there in (1.0, -1.0):
                for label in range(classes):
                    yield others, others.replaced(0, there, label)


PROBLEMS = ("softmax", "symmetric", "semidefinite")


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_two_hundred_random_neighbours_stay_within_epsilon(problem: str, adjacency: str) -> None:
    learner = Learner(problem, 8, 0.1, dp.Privacy(1.0, adjacency=adjacency))
    certificate = learner.certificate
    rng = np.random.default_rng(11)
    worst = 0.0
    for family in range(10):  # points are shared by the 20 neighbours of a data set
        data = drawn(learner.size, learner.classes, rng)
        u = points(learner, certificate, data, 12, family)
        for row in range(20):
            if adjacency == "add-remove":
                first = data.replaced(row % 8, float(rng.choice([-1, 1, rng.uniform(-1, 1)])), row % learner.classes)
                second = first.without(row % 8)
            else:
                first, second = data, data.replaced(row % 8, float(rng.uniform(-1, 1)), row % learner.classes)
            worst = max(worst, float(ratio(learner, certificate, u, (first, second)).max()))
        worst = max(worst, climb(learner, certificate, u, (first, second), 10))
    assert worst <= share(certificate) * (1 + 1e-9)
    assert worst >= 0.3


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("epsilon", [1.0, *(pytest.param(value, marks=pytest.mark.slow) for value in (0.1, 10.0))])
def test_extreme_neighbours_stay_within_epsilon_at_the_worst_release(
    problem: str, adjacency: str, epsilon: float
) -> None:
    learner = Learner(problem, 12, 0.05, dp.Privacy(epsilon, adjacency=adjacency))
    certificate = learner.certificate
    for k, pair in enumerate(extreme(learner)):
        u = points(learner, certificate, pair[0], 10, k)
        assert ratio(learner, certificate, u, pair).max() <= share(certificate) * (1 + 1e-9)
        if k % 5 == 0:
            assert climb(learner, certificate, u, pair, 20) <= share(certificate) * (1 + 1e-9)


def worst_case(learner: Learner) -> tuple[Records, Records, Array]:
    """Return neighbours and releases that spend nearly all of epsilon."""
    removed = learner.privacy.adjacency == "add-remove"
    if learner.problem == "softmax":
        # All records are on the wrong side of a far release, so that their slopes are as steep as can be.
        others = Records(np.ones(learner.size), np.full(learner.size, 2))
        u = np.geomspace(1.0, 1e4, 200)[:, None] * (np.array([1.0, -1.0, 0.0]) @ CENTRED)
        return others, others.without(0) if removed else others.replaced(0, -1.0, 2), u
    # At the edge of the hinge's curved piece a record has full slope and curvature; the others are straight there.
    others = Records(np.ones(learner.size), np.ones(learner.size, dtype=np.int64))
    first = others.replaced(0, 1.0, 0)
    a = outer_products(np.ones(1))
    return first, first.without(0) if removed else others, (WIDTH - 1 - 1e-9) / np.sqrt(2) * a


# Least share of epsilon that is spent.  A constrained objective is up to twice as curved in U as is certified; and records on
# the line cannot be nearly opposite with all scores alike, which is what a softmax replacement would take.
SPENT = {"softmax": (0.7, 0.99), "symmetric": (0.999, 0.999), "semidefinite": (0.8, 0.8)}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_worst_case_spends_most_of_epsilon(problem: str, adjacency: str) -> None:
    learner = Learner(problem, 400, 0.02, dp.Privacy(1.0, adjacency=adjacency))
    certificate = learner.certificate
    first, second, u = worst_case(learner)
    worst = float(ratio(learner, certificate, u, (first, second)).max())
    assert SPENT[problem][ADJACENCIES.index(adjacency)] * share(certificate) <= worst
    assert worst <= share(certificate) * (1 + 1e-9)
    # The test has power: half of the noise would not be private.
    wrong = replace(certificate, noise_scale=certificate.noise_scale / 2)
    assert ratio(learner, wrong, u, (first, second)).max() > learner.privacy.epsilon


# The densities are those of the release.


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_noise_that_a_release_needs_leads_to_it(problem: str) -> None:
    # The problem as declared, in all of theta and with its constraints, solved by another program.
    learner = Learner(problem, 5, 0.2, dp.Privacy(2.0))
    certificate = learner.certificate
    template = learner.template
    rng = np.random.default_rng(3)
    data = drawn(learner.size, learner.classes, rng)
    p = certificate.noise_dimension
    noise = certificate.noise_scale * 2.0 * rng.normal(size=(4, p))
    predicted = learner.release(noise, data, certificate)
    writer = Writer()
    variables = {v.name: writer.expression(v) for v in template.variables}
    losses = []
    for x, y in zip(data.x, data.y, strict=True):
        loss = template.losses[template.record.combinations.index({"y": int(y)})]
        losses.append(writer.expression(substituted(loss, {field: constant([x]) for field in loss.fields})))
    for b, expected in zip(noise, predicted, strict=True):
        if problem == "softmax":
            linear = cp.sum(cp.multiply((CENTRED @ b)[None, :], variables["W"]))
        else:
            linear = cp.trace(matrices(b[None])[0] @ (variables["Phi_0"] - variables["Phi_1"])) / np.sqrt(2)
        everything = cp.hstack([cp.vec(v, order="F") for v in variables.values()])
        objective = sum(losses) + learner.size * writer.expression(template.regularizer) + linear
        objective += certificate.added / 2 * cp.sum_squares(everything)
        constraints = [writer.constraint(constraint) for constraint in template.constraints]
        cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)
        if problem == "softmax":
            u = variables["W"].value[0] @ CENTRED
        else:
            u = svec((variables["Phi_0"].value - variables["Phi_1"].value) / np.sqrt(2))
        assert np.linalg.norm(u - expected) <= 2e-4 * (1 + np.linalg.norm(u))
