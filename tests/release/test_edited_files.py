"""Every edit of one field of a saved file is refused with words, or loads, prints and predicts."""

import copy
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.learners.clustering import Components
from dpconvex.release.statistics import Statistics

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) / 8
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
SCHEMA = dp.Schema({"a": (0, 1), "b": (-1, 1)}, label="sick", labels=["no", "yes"])


def retyped(value: Any) -> list[Any]:
    """Return other values for a field, nested ones too."""
    numbers = [True, -1, 0, 0.5, 10**400, math.nan, math.inf, -math.inf]
    other: list[Any] = [None, "text", "", *numbers, [], {}, [[0]], {"a": {}}]
    return [item for item in [*other, [value], {"a": value}] if not (type(item) is type(value) and item == value)]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def edits(header: Any) -> Iterator[Any]:
    """Yield the header with one field dropped, or of another type, or beside one more."""
    for path in places(header):
        for new in [..., *retyped(at(header, path))]:
            edited = copy.deepcopy(header)
            parent = at(edited, path[:-1])
            if new is ...:
                del parent[path[-1]]
            else:
                parent[path[-1]] = new
            yield edited
    yield {**header, "further": 1}


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@cache
def made(kind: str) -> tuple[bytes, Callable[[bytes], Any]]:
    """Return the bytes of a file, and what loads, prints and uses one."""
    if kind == "statistics":
        ridge = dp.load("ridge_regression", features=2)
        found = dp.statistics(ridge, {"x": X, "y": X[:, 0]}, dp.Privacy(5.0, 1e-6), whitening=True)

        def use_statistics(content: bytes) -> None:
            read = Statistics.from_bytes(content, ridge)
            used(read.fit(), X)
            repr(read), read._repr_html_(), str(read.certificate)

        return found.to_bytes(), use_statistics
    if kind == "mixture":
        template = dp.load("large_margin_gaussian_mixture", features=2, components=2)
        release = dp.solve_mixture(template, DATA | {"y": DATA["y"] > 0}, dp.Privacy(5.0, 1e-6)).release
    else:
        template = dp.load("logistic_regression", features=2)
        release = dp.solve(template, DATA, dp.Privacy(5.0, 1e-6), whitening=kind == "whitened")
    release = dp.Release(**{**vars(release), "schema": SCHEMA})
    return release.to_bytes(), lambda content: used(dp.Release.from_bytes(content, template), X)


def used(release: dp.Release, x: Any) -> None:
    for text in (repr, str, dp.Release._repr_html_, dp.Release.to_bytes):
        text(release)
    repr(release.schema), repr(release.certificate)
    release.predict(x)


def members_of(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {**archive}


def with_header(content: bytes, header: str) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{**members_of(content), "header": np.array(header)})
    return buffer.getvalue()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["plain", "whitened", "statistics", "mixture"])
def test_every_edit_of_a_header_is_refused_or_means_something(kind: str) -> None:
    content, use = made(kind)
    use(content)
    chosen, refused = list(edits(json.loads(str(members_of(content)["header"])))), 0
    for number in np.random.default_rng().permutation(len(chosen))[:200]:
        try:
            use(with_header(content, json.dumps(chosen[number])))
        except dp.errors.DPConvexError as error:
            refused += len(str(error)) > 20
        except Exception as error:
            raise AssertionError(f"edit {number} of {kind}: {error!r}") from error
    assert refused > 60


def test_every_edit_of_saved_centres_is_refused_or_means_something() -> None:
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    fields = dp.cluster(record, DATA, dp.Privacy(5.0, 1e-6)).to_dict()
    for edited in edits(json.loads(json.dumps(fields))):
        try:
            read = Components.from_dict(edited)
            repr(read), str(read), read.assign(X, DATA["y"])
        except dp.errors.DPConvexError:
            continue


@pytest.mark.parametrize("name", ["header.npy", "0.npy"])
def test_a_member_that_is_there_twice_is_refused(name: str) -> None:
    content, use = made("plain")
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(name, archive.read(name))
    with pytest.raises(dp.errors.DPConvexError, match="twice"):
        use(buffer.getvalue())
