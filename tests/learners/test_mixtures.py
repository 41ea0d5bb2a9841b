"""Mixtures with private component labels: one promise for both stages, and labels that are worth their share."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.learners.clustering import Grouping

PROMISE = dp.Privacy(2.0, 1e-6)


def moons(size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return two interleaved half circles in the unit ball: no quadratic separates them, two for each class do."""
    y, angle = rng.integers(0, 2, size), rng.uniform(0, np.pi, size)
    first = np.column_stack([np.cos(angle), np.sin(angle)])
    x = np.where(y[:, None] == 0, first, [1.0, 0.5] - first) - [0.5, 0.25]
    x = (x + 0.08 * rng.normal(size=x.shape)) / 1.9
    return x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), y


@cache
def learner(components: int = 2) -> dp.Template:
    return dp.load("large_margin_gaussian_mixture", features=2, components=components, regularization=3e-4, trace=0.0)


X, Y = moons(4000, np.random.default_rng(0))
DATA = {"x": X, "y": Y}
SMALL = {"x": X[:300], "y": Y[:300]}


def test_two_components_learnt_privately_beat_one() -> None:
    x, y = moons(4000, np.random.default_rng(1))
    errors = {}
    for components in (1, 2):
        mixtures = [dp.solve_mixture(learner(components), DATA, PROMISE, seed=seed) for seed in range(2)]
        errors[components] = [np.mean(mixture.predict(x) != y) for mixture in mixtures]
        certificate = mixtures[0].release.certificate
        assert isinstance(certificate, dp.Certificate)
        assert (certificate.privacy, certificate.clustering is None) == (PROMISE, components == 1)
    assert min(errors[1]) > 0.1
    assert max(errors[2]) < 0.09


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_parts_add_up_to_the_promise(delta: float, adjacency: str) -> None:
    privacy = dp.Privacy(1.0, delta, adjacency)
    certificate = dp.verify_mixture(learner(), privacy, 4000, share=0.3)
    noise, cover = certificate.clustering, certificate.cover
    assert noise is not None
    assert cover is not None
    assert (certificate.privacy, noise.epsilon) == (privacy, 0.3)
    assert noise.delta == pytest.approx(0.3 * delta, rel=1e-12)
    assert (cover.counting > 0) == (adjacency == "add-remove")
    parts = certificate.noise_epsilon + certificate.jacobian_epsilon + cover.epsilon + cover.counting + noise.epsilon
    assert parts == pytest.approx(1.0, rel=1e-9)
    # Each part by itself is what was proved for its share.
    part, rest = (dp.Privacy(share, share * delta, adjacency) for share in (0.3, 0.7))
    assert certificate.noise_scale == pytest.approx(dp.verify(learner(), rest, 4000).noise_scale, rel=1e-9)
    alone = dp.NoisyKMeans().calibrate(part, classes=2, components=2, features=2, radius=1.0)
    assert noise.scale == pytest.approx(alone.scale, rel=1e-9)


# What the proof of composition uses: given the centres, a record's component is its own affair.


def test_given_the_centres_a_neighbour_has_one_other_label() -> None:
    places = dp.cluster(learner(), SMALL, PROMISE, seed=0)
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1]))
    grouping = Grouping(record, "x", "y")
    before = grouping.assigned(record.validate(SMALL), places)
    rng = np.random.default_rng(0)
    for row, value in zip(rng.integers(0, 300, 20), dp.Ball(2).sample(20, rng), strict=True):
        x, y = SMALL["x"].copy(), SMALL["y"].copy()
        x[row], y[row] = value, 1 - y[row]
        after = grouping.assigned(record.validate({"x": x, "y": y}), places)
        assert set(np.flatnonzero(before != after)) <= {row}
        fewer = {"x": np.delete(x, row, axis=0), "y": np.delete(y, row)}
        without = grouping.assigned(record.validate(fewer), places)
        np.testing.assert_array_equal(without, np.delete(before, row))
    np.testing.assert_array_equal(before, places.assign(**SMALL))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"share": True}, dp.TemplateError, "share"),
        ({"clustering": 3}, dp.TemplateError, "NoisyKMeans"),
        ({"clustering": dp.Components([[[0.0, 0.0]]])}, dp.TemplateError, "the centres have the shape"),
        ({"group": "m"}, dp.TemplateError, "no Choice 'm'"),
        ({"data": {**SMALL, "m": np.zeros(300)}}, dp.DomainError, "fills in"),
    ],
)
def test_bad_calls_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    budget = dp.Budget(dp.Privacy(2.0, 1e-6))
    with pytest.raises(error, match=message):
        dp.solve_mixture(**{"template": learner(), "data": SMALL, "privacy": PROMISE, "budget": budget, **change})
