"""Private clusterings of data: what is read, what is paid, what is refused; and records stand by themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.learners.clustering import Grouping

RECORD = dp.Record(x=dp.Ball(3, radius=2.0), y=dp.Choice(["a", "b", "none"]))
PROMISE = dp.Privacy(4.0, 1e-5)


def blobs(size: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two classes of two clusters each, at places along axes of their own, and the clusters."""
    rng = np.random.default_rng(4)
    cluster, y = rng.integers(0, 2, size), rng.integers(0, 2, size)
    x = 0.15 * rng.normal(size=(size, 3))
    x[np.arange(size), y] += np.where(cluster == 1, 1.0, -1.0)
    return x, np.array(["a", "b"])[y], cluster


@pytest.mark.parametrize("privacy", [PROMISE, dp.Privacy(4.0), dp.Privacy(4.0, 1e-5, "add-remove")], ids=str)
def test_clusters_are_found(privacy: dp.Privacy) -> None:
    x, y, cluster = blobs()
    places = dp.cluster(RECORD, {"x": x, "y": y}, privacy, seed=0)
    found = places.assign(x, y)
    for label in ("a", "b"):
        agree = np.mean(found[y == label] == cluster[y == label])
        assert max(agree, 1 - agree) > 0.98
    assert places.centers.shape == (3, 2, 3)


@pytest.mark.parametrize("form", [np.array, sp.csr_array, lambda x: dp.Chunks([x]), lambda x: x.astype(np.float32)])
def test_a_record_is_rounded_by_itself(form: Any) -> None:
    # One record far outside makes a clipped column be projected; it must not move any other record by a single step.
    rng = np.random.default_rng(0)
    sphere = rng.normal(size=(300, 3))
    x = 2.0 * sphere / np.linalg.norm(sphere, axis=1, keepdims=True)
    x[::3] = 2.0 * np.eye(3)[rng.integers(0, 3, 100)]
    x[1::3] = np.array([1.2, 1.6, 0.0])
    y = np.full(301, "a")
    rows = []
    for last in ([0.0, 0.0, 0.0], [9.0, 0.0, 0.0]):
        batch = RECORD.validate({"x": form(np.vstack([x, last])), "y": y}, clip=True)
        rows.append(np.concatenate([steps for steps, _ in Grouping(RECORD, "x", "y").blocks(batch, 2.0**-52)]))
    np.testing.assert_array_equal(rows[0][:-1], rows[1][:-1])
    assert np.linalg.norm(rows[1][-1]) * 2.0**-52 == pytest.approx(2.0)


CENTERS = [[[-0.5, 0.0], [0.5, 0.0]], [[0.0, -0.5], [0.0, 0.5]]]


def drawn_places() -> dp.Components:
    record = dp.Record(x=dp.Ball(2), y=dp.Choice(["a", "b"]))
    x = record.sample(500, np.random.default_rng(0)).fields["x"]
    return dp.cluster(record, {"x": x, "y": ["a", "b"] * 250}, PROMISE)


def test_every_record_goes_to_the_nearest_centre_of_its_class() -> None:
    places = dp.Components(CENTERS, classes=("a", "b"))
    rng = np.random.default_rng(1)
    x, y = dp.Ball(2).sample(400, rng), rng.choice(["a", "b"], 400)
    found = places.assign(x, y)
    distance = np.linalg.norm(x[:, None] - places.centers[np.searchsorted(["a", "b"], y)], axis=2)
    away = np.abs(distance[:, 0] - distance[:, 1]) > 1e-3
    assert away.sum() > 300
    np.testing.assert_array_equal(found[away], np.argmin(distance, axis=1)[away])
    alone = [places.assign(x[i : i + 1], y[i : i + 1]) for i in range(50)]
    np.testing.assert_array_equal(np.concatenate(alone), found[:50])


@pytest.mark.parametrize(
    "places", [dp.Components(CENTERS, classes=("a", "b")), drawn_places()], ids=["declared", "learnt"]
)
def test_saved_centres_are_the_same(places: dp.Components, tmp_path: Path) -> None:
    places.save(tmp_path / "places.npz")
    again = dp.Components.load(tmp_path / "places.npz")
    assert again.to_bytes() == places.to_bytes()
    assert (str(again), again.spent, again.noise) == (str(places), places.spent, places.noise)
    np.testing.assert_array_equal(again.centers, places.centers)
    with pytest.raises(dp.TemplateError, match="cannot hold the classes"):
        dp.Components(CENTERS, classes=((1, 2), "b")).to_bytes()
    with pytest.raises(dp.TemplateError, match="without a template"):
        dp.Components.load(tmp_path / "places.npz", dp.load("logistic_regression", features=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"centers": [[[3.0, 0.0]]], "classes": ()}, "farther from the middle"), ({"classes": ("a", "a")}, "classes are")],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(dp.TemplateError, match=message):
        dp.Components(**{"centers": CENTERS, "classes": ("a", "b"), **options})
