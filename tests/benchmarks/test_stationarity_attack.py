"""The attack tells neighbours apart where noise misses a direction, and is held to epsilon where it covers them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cvxpy as cp
import numpy as np
import pytest
from scipy.stats import binom

import dpconvex as dp
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import reproduce
from benchmarks.published.stationarity_attack import Explanation, FaceCone, explain, tell_apart
from dpconvex.errors import TemplateError
from dpconvex.release.release import Release
from dpconvex.release.verify import analyse

Data = Mapping[str, np.ndarray]

SIZE = 80
EPSILON = 1.0
PUBLISHED = PublishedPerturbation.of(2012)


def neighbours(adjacency: str, features: int, components: int = 1) -> tuple[Data, Data]:
    """Two overlapping groups, and the same with one far record left out, or given the other label."""
    rng = np.random.default_rng(0)
    y = np.arange(SIZE) % 2
    x = rng.normal(size=(SIZE, features)) * 0.25
    x[:, 0] += np.where(y == 0, -0.4, 0.4)
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    x[0] = np.eye(features)[0]
    data = {"x": x, "y": y}
    if components > 1:
        data["m"] = (x[:, 1] > 0).astype(int)  # a public rule
    other = {name: column.copy() for name, column in data.items()}
    if adjacency == "add-remove":
        return data, {name: column[1:] for name, column in other.items()}
    other["y"][0] = 1 - y[0]
    return data, other


def matrices_alone(release: Release) -> Release:
    """Forget everything but the released numbers."""
    return Release({name: value.copy() for name, value in release.items()}, not_private_because="copied by hand")


def successes(template: dp.Template, pair: tuple[Data, Data], fit: Callable[[Data, int], Release], runs: int) -> int:
    """Count how often the attack names the data set that a release was made from."""
    return sum(
        tell_apart(fit(pair[seed % 2], seed), template, pair, mechanism_of(fit)) == seed % 2 for seed in range(runs)
    )


def mechanism_of(fit: Callable[[Data, int], Release]) -> PublishedPerturbation | None:
    return getattr(fit, "mechanism", None)


def published(template: dp.Template) -> Callable[[Data, int], Release]:
    def fit(data: Data, seed: int) -> Release:
        return matrices_alone(reproduce(template, data, dp.Privacy(EPSILON), PUBLISHED, seed=seed))

    fit.mechanism = PUBLISHED  # type: ignore[attr-defined]
    return fit


def repaired(template: dp.Template, adjacency: str) -> Callable[[Data, int], Release]:
    def fit(data: Data, seed: int) -> Release:
        return dp.solve(template, data, dp.Privacy(EPSILON, adjacency=adjacency), size=SIZE, seed=seed)

    return fit


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_published_releases_are_told_apart(adjacency: str) -> None:
    template = dp.load("pathak_raj_2012", features=3, regularization=0.1, trace=0.01, width=0.5)
    assert successes(template, neighbours(adjacency, 3), published(template), 20) >= 19


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_only_the_true_data_set_is_explained(adjacency: str) -> None:
    template = dp.load("pathak_raj_2012", features=3, regularization=0.1, trace=0.01)
    truth, neighbour = neighbours(adjacency, 3)
    release = published(template)(truth, 3)
    right, wrong = (explain(release, template, data, PUBLISHED) for data in (truth, neighbour))
    assert right.residual < 1e-7
    assert wrong.residual > 1e-3
    assert right.scale > 0.01


def allowed(runs: int) -> tuple[int, int]:
    """Return the range of successes that epsilon leaves likely: outside it once in a thousand, at most."""
    most = np.exp(EPSILON) / (1 + np.exp(EPSILON))
    return int(binom.ppf(1e-3, runs, 1 - most)), int(binom.ppf(1 - 1e-3, runs, most))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_repaired_releases_are_not(adjacency: str) -> None:
    template = dp.load("large_margin_gaussian", features=3, regularization=0.1, trace=0.01)
    least, most = allowed(40)
    assert most < 40
    assert least <= successes(template, neighbours(adjacency, 3), repaired(template, adjacency), 40) <= most


def test_covering_noise_explains_both_candidates_alike() -> None:
    template = dp.load("large_margin_gaussian", features=3, regularization=0.1, trace=0.01)
    pair = neighbours("replace-one", 3)
    release = repaired(template, "replace-one")(pair[0], 5)
    first, second = (explain(release, template, data) for data in pair)
    assert first.residual < 1e-3
    assert first.residual == pytest.approx(second.residual, rel=1e-2, abs=1e-9)
    # The noise that is needed differs by no more than the sensitivity.
    assert release.certificate is not None
    assert abs(first.noise - second.noise) <= release.certificate.sensitivity * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_two_hundred_repaired_releases(adjacency: str) -> None:
    template = dp.load("large_margin_gaussian", features=3, regularization=0.1, trace=0.01)
    least, most = allowed(200)
    assert least <= successes(template, neighbours(adjacency, 3), repaired(template, adjacency), 200) <= most


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_published_releases_with_nine_features(adjacency: str) -> None:
    template = dp.load("pathak_raj_2012", features=9, regularization=0.1, trace=0.01)
    assert successes(template, neighbours(adjacency, 9), published(template), 20) >= 19


@pytest.mark.slow
def test_published_mixtures_are_told_apart() -> None:
    template = dp.load("pathak_raj_2012_mixture", features=3, regularization=0.1, trace=0.01)
    assert successes(template, neighbours("add-remove", 3, components=2), published(template), 20) >= 19


# The parts


def test_noise_that_is_needed_is_the_noise_that_was_drawn() -> None:
    # Without an active constraint the stationarity condition gives the noise back.
    template = dp.load("logistic_regression", features=2, regularization=0.1)
    rng = np.random.default_rng(1)
    x = rng.uniform(-0.5, 0.5, size=(30, 2))
    data = {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}
    release = dp.solve(template, data, dp.Privacy(1.0), seed=4)
    assert release.certificate is not None
    explanation = explain(release, template, data)
    assert explanation.residual < 1e-9
    # sum form: grad losses + size * 0.1 * w + added * w + b = 0
    w = release["w"]
    sign = data["y"]
    slope = -(x * (sign / (1 + np.exp(sign * (x @ w))))[:, None]).sum(axis=0)
    b = -(slope + (30 * 0.1 + release.certificate.added) * w)
    assert explanation.noise == pytest.approx(np.linalg.norm(b), rel=1e-4)
    assert isinstance(explanation, Explanation)


@pytest.mark.parametrize("seed", range(5))
def test_without_noise_the_cone_is_projected_on(seed: int) -> None:
    # With no noise at all the fit is the projection on the face: W (W'GW)_+ W'.
    form = analyse(dp.load("large_margin_gaussian", features=2)).form
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    ranks = {"Phi_0": 1, "Phi_1": 2}
    release = {k: basis[:, :r] @ np.diag(rng.uniform(1, 5, size=r)) @ basis[:, :r].T for k, r in ranks.items()}
    gradient = rng.normal(size=form.space.dim)
    fitted = FaceCone(form, release).fit(gradient, np.zeros((form.space.dim, 0)))
    target, found = form.space.unpack(gradient), form.space.unpack(fitted)
    for name, rank in ranks.items():
        w = basis[:, rank:]
        values, vectors = np.linalg.eigh(w.T @ target[name] @ w)
        nearest = w @ (vectors * np.maximum(values, 0)) @ vectors.T @ w.T
        # The distance is flat around its minimiser: half of the solver's digits are left in the matrix.
        np.testing.assert_allclose(found[name], nearest, atol=1e-4)
        best = np.linalg.norm(target[name] - nearest)
        assert np.linalg.norm(target[name] - found[name]) == pytest.approx(best, rel=1e-8)


def test_interior_matrices_have_no_normal_cone() -> None:
    form = analyse(dp.load("large_margin_gaussian", features=2)).form
    cone = FaceCone(form, {"Phi_0": np.eye(3), "Phi_1": 2 * np.eye(3)})
    assert not cone.maps
    np.testing.assert_array_equal(cone.fit(np.ones(form.space.dim), form.basis), 0.0)


def test_what_the_attack_cannot_read_is_an_error() -> None:
    template = dp.load("pathak_raj_2012", features=2)
    data = {"x": np.zeros((4, 2)), "y": np.array([0, 1, 0, 1])}
    release = reproduce(template, data, dp.Privacy(1.0), seed=0)
    with pytest.raises(TemplateError, match="no certificate of a perturbed objective; name the mechanism"):
        explain(release, template, data)
    with pytest.raises(TemplateError, match="there is no candidate"):
        tell_apart(release, template, [], PUBLISHED)
    with pytest.raises(TemplateError, match=r"the release has \['w'\], the template \['Phi_0', 'Phi_1'\]"):
        explain(Release({"w": [1.0]}, not_private_because="x"), template, data, PUBLISHED)
    with pytest.raises(dp.DomainError, match="declared"):
        explain(release, template, {"x": np.zeros((4, 2)), "y": np.array([0, 1, 0, 7])}, PUBLISHED)


def test_other_constraints_are_not_guessed_at() -> None:
    w = cp.Variable(2, name="w", nonneg=True)
    template = dp.Template(
        record=dp.Record(x=dp.Ball(2)), loss=lambda x: cp.logistic(x @ w), regularizer=cp.sum_squares(w)
    )
    release = Release({"w": [0.0, 1.0]}, not_private_because="made up")
    with pytest.raises(TemplateError, match="semidefinite variables and free ones, not the constraint w"):
        explain(release, template, {"x": np.zeros((3, 2))}, PUBLISHED)
