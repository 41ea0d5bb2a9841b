"""Privacy itself, not its constants: the log density ratio of the release between neighbouring data sets.

Without constraints, the noise that leads to the release theta is b(theta) = -F'(theta), so by change of variables the
release has the density nu(b(theta)) det F''(theta), with nu the law of the noise.  Losses and their derivatives are written
out here, in one and two dimensions, and share no code with the toolkit; only the numbers of the certificate are taken
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp

Array = NDArray[np.float64]
ADJACENCIES = ("replace-one", "add-remove")
WIDTH = 0.5


def logistic(margin: Array) -> tuple[Array, Array]:
    """Return the first and second derivatives of log(1 + exp(-m)) at the margins m = y <x, theta>."""
    s = np.exp(-np.logaddexp(0.0, margin))
    return -s, s * (1.0 - s)


def huber(margin: Array) -> tuple[Array, Array]:
    """Return the first and second derivatives of the smoothed hinge at 1 - m: the second one jumps at m = 1 -+ h."""
    m = 1.0 - margin
    inside = np.abs(m) < WIDTH
    return -np.clip((m + WIDTH) / (2 * WIDTH), 0.0, 1.0), np.where(inside, 1 / (2 * WIDTH), 0.0)


LOSSES: dict[str, Callable[[Array], tuple[Array, Array]]] = {"logistic_regression": logistic, "huber_svm": huber}


@dataclass(frozen=True)
class Records:
    """Features of shape (n, d) and labels -1 or 1 of shape (n,)."""

    x: Array
    y: Array

    def without(self, row: int) -> Records:
        return Records(np.delete(self.x, row, axis=0), np.delete(self.y, row))

    def replaced(self, row: int, x: Array, y: float) -> Records:
        features, labels = self.x.copy(), self.y.copy()
        features[row], labels[row] = x, y
        return Records(features, labels)


@dataclass(frozen=True)
class Learner:
    """A problem with ridge penalty, its certificate, and the density of what it releases."""

    problem: str
    features: int
    size: int
    regularization: float
    privacy: dp.Privacy

    @property
    def certificate(self) -> dp.Certificate:
        template = dp.load(self.problem, features=self.features, regularization=self.regularization)
        return dp.verify(template, self.privacy, self.size, dp.ObjectivePerturbation())

    def share(self, certificate: dp.Certificate) -> float:
        """Return the part of epsilon that the exact answer may spend; the rest covers what is computed of it."""
        assert certificate.cover is not None
        return certificate.epsilon - certificate.cover.epsilon

    def modulus(self, certificate: dp.Certificate) -> float:
        return certificate.size * self.regularization + certificate.added

    def log_density(self, theta: Array, records: Records, certificate: dp.Certificate) -> Array:
        """Return the log density of the release at points theta (m, d), up to a constant of the noise."""
        xy = records.x * records.y[:, None]
        first, second = LOSSES[self.problem](theta @ xy.T)
        mu = self.modulus(certificate)
        gradient = first @ xy + mu * theta
        hessian = np.einsum("mn,ni,nj->mij", second, xy, xy) + mu * np.eye(self.features)
        sign, log_det = np.linalg.slogdet(hessian)
        assert (sign > 0).all()
        return -np.linalg.norm(gradient, axis=1) / certificate.noise_scale + log_det

    def grid(self, *data: Records) -> Array:
        """Return points on the line, shape (m, 1): a fine grid, far ones, and both sides of every kink."""
        edges = [edge / slope for d in data for slope in (d.x[:, 0] * d.y) if slope for edge in (1 - WIDTH, 1 + WIDTH)]
        near = [edge + side for edge in {*edges, 0.0} for side in (-1e-7, -1e-10, 1e-10, 1e-7)]
        far = np.geomspace(1.0, 1e4, 100)
        return np.concatenate([np.linspace(-8.0, 8.0, 401), far, -far, near])[:, None]

    def worst(
        self,
        family: list[Records],
        certificate: dp.Certificate,
        base: Records | None = None,
        theta: Array | None = None,
    ) -> float:
        """Return the largest log ratio between two data sets of a family, or between the base and one of a family."""
        data = family if base is None else [*family, base]
        points = self.grid(*data) if theta is None else theta
        values = np.array([self.log_density(points, d, certificate) for d in data])
        if base is None:
            return float(np.ptp(values, axis=0).max())
        return float(np.abs(values[:-1] - values[-1]).max())


def extreme_records(size: int) -> Iterator[Records]:
    """Yield data sets on the line that pull one way, both ways, or hardly at all."""
    for x, y in ((1.0, 1.0), (1.0, -1.0), (0.1, -1.0), (0.0, 1.0)):
        yield Records(np.full((size, 1), x), np.full(size, y))
    yield Records(np.ones((size, 1)), np.where(np.arange(size) % 2, 1.0, -1.0))


def neighbourhoods(adjacency: str, size: int) -> Iterator[tuple[list[Records], Records | None]]:
    """Yield data sets on the line that differ in one record, extreme and random ones, and what is left without it."""
    rng = np.random.default_rng(20)
    drawn = [Records(rng.uniform(-1, 1, (size, 1)), rng.choice([-1.0, 1.0], size)) for _ in range(4)]
    changes = [(x, y) for x in (1.0, 0.5, 0.0) for y in (1.0, -1.0)]
    changes += [(float(rng.uniform(-1, 1)), 1.0)]
    for data in [*extreme_records(size), *drawn]:
        family = [data.replaced(0, np.array([x]), y) for x, y in changes]
        yield family, data.without(0) if adjacency == "add-remove" else None


SETTINGS = [  # epsilon, size, regularization; in some of them the mechanism has to add strong convexity of its own
    (0.1, 40, 0.5),
    (1.0, 5, 1e-3),
    (1.0, 100, 0.1),
    (10.0, 20, 0.01),
]


@pytest.mark.parametrize(("epsilon", "size", "regularization"), SETTINGS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", LOSSES)
def test_the_log_ratio_never_exceeds_epsilon(
    problem: str, adjacency: str, epsilon: float, size: int, regularization: float
) -> None:
    learner = Learner(problem, 1, size, regularization, dp.Privacy(epsilon, adjacency=adjacency))
    certificate = learner.certificate
    assert learner.modulus(certificate) == pytest.approx(certificate.strong_convexity, rel=1e-12)
    worst = max(learner.worst(family, certificate, base) for family, base in neighbourhoods(adjacency, size))
    assert worst <= learner.share(certificate) * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "size", "regularization"), [*SETTINGS, (3.0, 100, 1e-3)])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_huber_loss_spends_all_of_epsilon(adjacency: str, epsilon: float, size: int, regularization: float) -> None:
    learner = Learner("huber_svm", 1, size, regularization, dp.Privacy(epsilon, adjacency=adjacency))
    certificate = learner.certificate
    # At 1 - h one record has its steepest slope and begins to curve; all others are straight there and pull against it.
    others = Records(np.ones((size, 1)), -np.ones(size))
    data = others.replaced(0, np.ones(1), 1.0)
    neighbour = data.without(0) if adjacency == "add-remove" else others
    worst = learner.worst([data, neighbour], certificate)
    share = learner.share(certificate)
    assert share >= 0.98 * epsilon
    assert 0.99 * share <= worst <= share * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "size", "regularization"), [(0.1, 200, 0.2), (1.0, 100, 0.1), (10.0, 100, 0.01)])
def test_the_logistic_loss_spends_nine_tenths_of_epsilon(epsilon: float, size: int, regularization: float) -> None:
    learner = Learner("logistic_regression", 1, size, regularization, dp.Privacy(epsilon, adjacency="add-remove"))
    certificate = learner.certificate
    # Far out, the slope of a record on the wrong side is 1, and all of the noise is needed to hide it.
    data = Records(np.ones((size, 1)), np.ones(size))
    worst = learner.worst([data, data.without(0)], certificate)
    assert 0.9 * epsilon <= worst <= learner.share(certificate) * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_less_noise_would_not_be_private(adjacency: str) -> None:
    # The test has power: noise that is a tenth too small is found out.
    learner = Learner("huber_svm", 1, 50, 0.05, dp.Privacy(1.0, adjacency=adjacency))
    certificate = learner.certificate
    smaller = replace(certificate, noise_scale=0.9 * certificate.noise_scale)
    assert max(learner.worst(family, smaller, base) for family, base in neighbourhoods(adjacency, 50)) > 1.0
