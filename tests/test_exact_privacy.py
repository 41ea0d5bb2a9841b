"""Privacy itself, not its constants: the log density ratio of the release between neighbouring data sets.

Without constraints, the noise that leads to the release theta is b(theta) = -F'(theta), so by change of variables the
release has the density nu(b(theta)) F''(theta), with nu the law of the noise.  Losses and their derivatives are written
out here, for records on the line, and share no code with the toolkit; only the numbers of the certificate are taken from it.
"""

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
    """Return the first and second derivatives of log(1 + exp(-m)) at the margins m = y x theta."""
    s = np.exp(-np.logaddexp(0.0, margin))
    return -s, s * (1.0 - s)


def huber(margin: Array) -> tuple[Array, Array]:
    """Return the first and second derivatives of the smoothed hinge at 1 - m: the second one jumps at m = 1 -+ h."""
    m = 1.0 - margin
    return -np.clip((m + WIDTH) / (2 * WIDTH), 0.0, 1.0), np.where(np.abs(m) < WIDTH, 1 / (2 * WIDTH), 0.0)


LOSSES: dict[str, Callable[[Array], tuple[Array, Array]]] = {"logistic_regression": logistic, "huber_svm": huber}


@dataclass(frozen=True)
class Learner:
    """A problem with ridge penalty and the density of what it releases, of records y x, shape (n,)."""

    problem: str
    size: int
    regularization: float
    privacy: dp.Privacy

    @property
    def certificate(self) -> dp.Certificate:
        template = dp.load(self.problem, features=1, regularization=self.regularization)
        return dp.verify(template, self.privacy, self.size, dp.ObjectivePerturbation())

    def share(self, certificate: dp.Certificate) -> float:
        """Return the part of epsilon that the exact answer may spend; the rest covers what is computed of it."""
        assert certificate.cover is not None
        return certificate.epsilon - certificate.cover.epsilon

    def log_density(self, theta: Array, records: Array, certificate: dp.Certificate) -> Array:
        """Return the log density of the release at points theta (m,), up to a constant of the noise."""
        first, second = LOSSES[self.problem](np.outer(theta, records))
        mu = self.size * self.regularization + certificate.added
        assert mu == pytest.approx(certificate.strong_convexity, rel=1e-12)
        return -np.abs(first @ records + mu * theta) / certificate.noise_scale + np.log(second @ records**2 + mu)

    def worst(self, family: list[Array], certificate: dp.Certificate, base: Array | None = None) -> float:
        """Return the largest log ratio between two data sets of a family, or between the base and one of a family."""
        data = family if base is None else [*family, base]
        edges = [edge / slope for records in data for slope in records if slope for edge in (1 - WIDTH, 1 + WIDTH)]
        near = [edge + side for edge in {*edges, 0.0} for side in (-1e-7, -1e-10, 1e-10, 1e-7)]
        far = np.geomspace(1.0, 1e4, 100)
        points = np.concatenate([np.linspace(-8.0, 8.0, 401), far, -far, near])
        values = np.array([self.log_density(points, records, certificate) for records in data])
        return float(np.ptp(values, axis=0).max() if base is None else np.abs(values[:-1] - values[-1]).max())


def neighbourhoods(adjacency: str, size: int) -> Iterator[tuple[list[Array], Array | None]]:
    """Yield data sets that differ in one record, extreme and random ones, and what is left without it."""
    rng = np.random.default_rng(20)
    ways = [np.full(size, slope) for slope in (1.0, -1.0, -0.1, 0.0)]
    ways += [np.where(np.arange(size) % 2, 1.0, -1.0), *rng.uniform(-1, 1, (4, size))]
    for data in ways:
        family = [np.append(change, data[1:]) for change in (1.0, 0.5, 0.0, -0.5, -1.0, rng.uniform(-1, 1))]
        yield family, data[1:] if adjacency == "add-remove" else None


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
    learner = Learner(problem, size, regularization, dp.Privacy(epsilon, adjacency=adjacency))
    certificate = learner.certificate
    worst = max(learner.worst(family, certificate, base) for family, base in neighbourhoods(adjacency, size))
    assert worst <= learner.share(certificate) * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "size", "regularization"), [*SETTINGS, (3.0, 100, 1e-3)])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_huber_loss_spends_all_of_epsilon(adjacency: str, epsilon: float, size: int, regularization: float) -> None:
    learner = Learner("huber_svm", size, regularization, dp.Privacy(epsilon, adjacency=adjacency))
    certificate = learner.certificate
    # At 1 - h one record has its steepest slope and begins to curve; all others are straight there and pull against it.
    others = -np.ones(size)
    data = np.append(1.0, others[1:])
    neighbour = data[1:] if adjacency == "add-remove" else others
    share = learner.share(certificate)
    assert share >= 0.98 * epsilon
    assert 0.99 * share <= learner.worst([data, neighbour], certificate) <= share * (1 + 1e-9)
    # The test has power: noise that is a tenth too small is found out.
    smaller = replace(certificate, noise_scale=0.9 * certificate.noise_scale)
    assert learner.worst([data, neighbour], smaller) > share * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "size", "regularization"), [(0.1, 200, 0.2), (1.0, 100, 0.1), (10.0, 100, 0.01)])
def test_the_logistic_loss_spends_nine_tenths_of_epsilon(epsilon: float, size: int, regularization: float) -> None:
    learner = Learner("logistic_regression", size, regularization, dp.Privacy(epsilon, adjacency="add-remove"))
    certificate = learner.certificate
    # Far out, the slope of a record on the wrong side is 1, and all of the noise is needed to hide it.
    data = np.ones(size)
    assert 0.9 * epsilon <= learner.worst([data, data[1:]], certificate) <= learner.share(certificate) * (1 + 1e-9)
