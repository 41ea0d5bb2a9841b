"""Centres of components: exact assignment, declared or released, saved without anything that was not accounted for."""

from __future__ import annotations

import json
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


def test_a_domain_may_lie_anywhere() -> None:
    places = dp.Components([[[10.25], [10.75]]], radius=0.5, middle=10.5)
    np.testing.assert_array_equal(places.assign([[10.0], [10.4], [10.6], [11.0]]), [0, 0, 1, 1])
    np.testing.assert_array_equal(places.centers, [[[10.25], [10.75]]])


def test_declared_centres_cost_nothing_and_learnt_ones_say_what() -> None:
    declared = dp.Components(CENTERS, classes=("a", "b"))
    assert declared.declared
    assert declared.spent is None
    assert "declared without data" in repr(declared)
    assert str(declared) == repr(declared)
    private = learnt()
    assert not private.declared
    assert private.spent == PROMISE
    assert "2 classes, 2 centres each, 2 features; spent: epsilon = 2" in repr(private)
    assert "composition of all rounds" in str(private)
    assert "rounded draw is taken to have the law" in str(private)


def test_seeded_centres_are_not_private_for_ever(tmp_path: Path) -> None:
    seeded = learnt(seed=3)
    assert seeded.spent is None
    assert not seeded.declared
    seeded.save(tmp_path / "places.json")
    again = dp.Components.load(tmp_path / "places.json")
    assert again.spent is None
    assert again.not_private_because == "the noise was drawn with the seed 3"
    assert "NOT PRIVATE" in repr(again)
    np.testing.assert_array_equal(again.centers, learnt(seed=3).centers)


@pytest.mark.parametrize("places", [dp.Components(CENTERS, classes=("a", "b")), learnt()], ids=["declared", "learnt"])
def test_saved_centres_are_the_same(places: dp.Components, tmp_path: Path) -> None:
    places.save(tmp_path / "places.json")
    again = dp.Components.load(tmp_path / "places.json")
    assert again.to_dict() == places.to_dict()
    assert (again.classes, again.spent, again.noise) == (places.classes, places.spent, places.noise)
    np.testing.assert_array_equal(again.centers, places.centers)
    assert list(tmp_path.iterdir()) == [tmp_path / "places.json"]


def test_a_file_holds_nothing_else(tmp_path: Path) -> None:
    learnt().save(tmp_path / "places.json")
    fields = json.loads((tmp_path / "places.json").read_text())
    assert set(fields) == {
        *("format", "version", "centers", "classes", "radius", "middle", "step"),
        *("noise", "derivation", "spent", "not_private_because"),
    }
    assert np.shape(fields["centers"]) == (2, 2, 2)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "dpconvex components", "version": 1}', "\xff"])
def test_damaged_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "places.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(dp.DPConvexError, match="damaged"):
        dp.Components.load(tmp_path / "places.json")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "other"},
        {"centers": [[["far"]]]},
        {"spent": {"epsilon": -1}},
        {"noise": {"scale": 1}},
        {"spent": None},
        {"extra": 1},
    ],
)
def test_changed_files_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    fields = {**learnt().to_dict(), **change}
    (tmp_path / "places.json").write_text(json.dumps(fields))
    with pytest.raises(dp.DPConvexError, match="damaged"):
        dp.Components.load(tmp_path / "places.json")


def test_labels_that_json_would_change_are_not_saved(tmp_path: Path) -> None:
    places = dp.Components(CENTERS, classes=(("a", 1), ("b", 2)))
    with pytest.raises(dp.TemplateError, match="JSON cannot hold the classes"):
        places.save(tmp_path / "places.json")
    with pytest.raises(dp.TemplateError, match="JSON cannot hold these classes"):
        dp.Components(CENTERS, classes=(b"a", b"b")).save(tmp_path / "places.json")
    assert not list(tmp_path.iterdir())


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
        ({"spent": PROMISE, "not_private_because": "seeded"}, "either private or not"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(dp.TemplateError, match=message):
        dp.Components(**{"centers": CENTERS, "classes": ("a", "b"), **options})


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.0, np.inf]], ["a"], "finite"),
        ([[0.0]], ["a"], "expected 2 features"),
        ([["wide", 0.0]], ["a"], "numbers"),
        ([[2.0, 0.0]], ["a"], "outside"),
        ([[0.0, 0.0]], ["c"], "not declared"),
        ([[0.0, 0.0]], ["a", "b"], "1 records, but 2 labels"),
        ([[0.0, 0.0]], None, "pass the labels"),
    ],
)
def test_bad_records_are_refused(x: Any, y: Any, message: str) -> None:
    with pytest.raises(dp.DomainError, match=message):
        dp.Components(CENTERS, classes=("a", "b")).assign(x, y)


def test_centres_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        dp.Components(CENTERS, classes=("a", "b")).centers[0, 0, 0] = 1.0
