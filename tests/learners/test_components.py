"""Centres of components: exact assignment, declared or released, saved without anything that was not accounted for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpconvex as dp

PROMISE = dp.Privacy(2.0, 1e-6)
CENTERS = [[[-0.5, 0.0], [0.5, 0.0]], [[0.0, -0.5], [0.0, 0.5]]]


def learnt(seed: int | None = None) -> dp.Components:
    record = dp.Record(x=dp.Ball(2), y=dp.Choice(["a", "b"]))
    x = record.sample(500, np.random.default_rng(0)).fields["x"]
    return dp.cluster(record, {"x": x, "y": ["a", "b"] * 250}, PROMISE, seed=seed)


def test_every_record_goes_to_the_nearest_centre_of_its_class() -> None:
    places = dp.Components(CENTERS, classes=("a", "b"))
    rng = np.random.default_rng(1)
    x, y = dp.Ball(2).sample(400, rng), rng.choice(["a", "b"], 400)
    found = places.assign(x, y)
    distance = np.linalg.norm(x[:, None] - places.centers[np.searchsorted(["a", "b"], y)], axis=2)
    away = np.abs(distance[:, 0] - distance[:, 1]) > 1e-3
    assert away.sum() > 300
    np.testing.assert_array_equal(found[away], np.argmin(distance, axis=1)[away])
    order = rng.permutation(400)
    np.testing.assert_array_equal(places.assign(x[order], y[order]), found[order])
    np.testing.assert_array_equal(
        np.concatenate([places.assign(x[i : i + 1], y[i : i + 1]) for i in range(50)]), found[:50]
    )


def test_declared_centres_cost_nothing_and_learnt_ones_say_what() -> None:
    declared = dp.Components(CENTERS, classes=("a", "b"))
    assert declared.declared
    assert declared.spent is None
    assert "declared without data" in repr(declared)
    assert str(declared) == repr(declared)
    private = learnt()
    assert not private.declared
    assert private.spent == PROMISE
    assert "classes 2, centres each 2, features 2; spent: epsilon = 2" in repr(private)
    assert "composition of all rounds" in str(private)
    assert "rounded draw is taken to have the law" in str(private)


@pytest.mark.parametrize("places", [dp.Components(CENTERS, classes=("a", "b")), learnt()], ids=["declared", "learnt"])
def test_saved_centres_are_the_same(places: dp.Components, tmp_path: Path) -> None:
    places.save(tmp_path / "places.json")
    again = dp.Components.load(tmp_path / "places.json")
    assert again.to_dict() == places.to_dict()
    assert (again.classes, again.spent, again.noise) == (places.classes, places.spent, places.noise)
    np.testing.assert_array_equal(again.centers, places.centers)
    assert list(tmp_path.iterdir()) == [tmp_path / "places.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"centers": [[0.0, 1.0]]}, "three axes"),
        ({"centers": [[[np.nan, 0.0]]]}, "finite"),
        ({"centers": [["a", "b"]]}, "array of numbers"),
        ({"centers": [[[3.0, 0.0]]], "classes": ()}, "3 from the middle"),
        ({"classes": ("a",)}, "classes are"),
        ({"classes": ("a", "a")}, "classes are"),
        ({"radius": 0.0}, "radius"),
        ({"radius": "wide"}, "radius"),
        ({"middle": [0.0, 0.0, 0.0]}, "middle"),
        ({"step": 0.3}, "power of two"),
        ({"spent": PROMISE}, "were learnt"),
        ({"spent": PROMISE, "not_private_because": "seeded"}, "say how, and either"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(dp.TemplateError, match=message):
        dp.Components(**{"centers": CENTERS, "classes": ("a", "b"), **options})
