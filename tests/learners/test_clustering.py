"""Private clusterings of data: what is read, what is paid, what is refused; and records stand by themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.learners.clustering import Grouping, Records

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


def test_every_form_of_the_records_gives_the_same_centres(tmp_path: Path) -> None:
    x, y, _ = blobs(900)
    x = np.round(x, 2)
    np.save(tmp_path / "x.npy", x)
    forms = [
        x,
        sp.csr_array(x),
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        dp.Chunks([x[:1], x[1:500], x[500:]]),
        np.asfortranarray(x),
    ]
    centers = [dp.cluster(RECORD, {"x": form, "y": y}, PROMISE, seed=0).centers for form in forms]
    for other in centers[1:]:
        np.testing.assert_array_equal(other, centers[0])


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
        rows.append(
            np.concatenate([steps for steps, _ in Records(Grouping(RECORD, "x", "y"), batch, 2.0**-52).blocks()])
        )
    np.testing.assert_array_equal(rows[0][:-1], rows[1][:-1])
    assert np.linalg.norm(rows[1][-1]) * 2.0**-52 == pytest.approx(2.0)
