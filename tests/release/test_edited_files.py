"""Every edit of one field of a saved file is refused with words, or loads, prints and predicts."""

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

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) / 8
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
SCHEMA = dp.Schema({"a": (0, 1), "b": (-1, 1)}, label="sick", labels=["no", "yes"])
OTHER: list[Any] = [None, "text", "", True, -1, 0, 0.5, 10**400, math.nan, math.inf, -math.inf, [], {}, {"a": {}}]


def edits(value: Any) -> Iterator[Any]:
    """Yield what stands for a value if it, or one thing in it, is dropped, or of another type, or beside one more."""
    yield from (*OTHER, [value], {"a": value})
    if isinstance(value, dict):
        yield {**value, "further": 1}
        for key, item in value.items():
            yield {name: other for name, other in value.items() if name != key}
            yield from ({**value, key: new} for new in edits(item))
    elif isinstance(value, list):
        for k, item in enumerate(value):
            yield value[:k] + value[k + 1 :]
            yield from ([*value[:k], new, *value[k + 1 :]] for new in edits(item))


@cache
def made(kind: str) -> tuple[bytes, Callable[[bytes], Any]]:
    """Return the bytes of a file, and what loads, prints and uses one."""
    if kind == "statistics":
        ridge = dp.load("ridge_regression", features=2)
        found = dp.statistics(ridge, {"x": X, "y": X[:, 0]}, dp.Privacy(5.0, 1e-6), whitening=True)

        def use_statistics(content: bytes) -> None:
            read = dp.Statistics.from_bytes(content, ridge)
            used(read.fit(), X)
            repr(read), read._repr_html_(), str(read.certificate)

        return found.to_bytes(), use_statistics
    template = dp.load("logistic_regression", features=2)
    if kind == "centres":

        def use_centres(content: bytes) -> None:
            places = dp.Components.from_bytes(content)
            repr(places), str(places), places.to_bytes(), places.assign(X, DATA["y"])

        return dp.cluster(template, DATA, dp.Privacy(5.0, 1e-6)).to_bytes(), use_centres
    if kind == "mixture":
        template = dp.load("large_margin_gaussian_mixture", features=2, components=2)
        release = dp.solve_mixture(template, DATA | {"y": DATA["y"] > 0}, dp.Privacy(5.0, 1e-6)).release
    else:
        release = dp.solve(template, DATA, dp.Privacy(5.0, 1e-6), whitening=kind == "whitened")
    release = dp.Release(**{**vars(release), "schema": SCHEMA})
    return release.to_bytes(), lambda content: used(dp.Release.from_bytes(content, template), X)


def used(release: dp.Release, x: Any) -> None:
    for text in (repr, str, dp.Release._repr_html_, dp.Release.to_bytes):
        text(release)
    repr(release.schema), repr(release.certificate)
    release.predict(x)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["plain", "whitened", "statistics", "mixture", "centres"])
def test_every_edit_of_a_header_is_refused_or_means_something(kind: str) -> None:
    content, use = made(kind)
    use(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        members = {**archive}
    chosen, refused = list(edits(json.loads(str(members["header"])))), 0
    for number in np.random.default_rng().permutation(len(chosen))[:200]:
        buffer = io.BytesIO()
        np.savez(buffer, **{**members, "header": np.array(json.dumps(chosen[number]))})
        try:
            use(buffer.getvalue())
        except dp.DPConvexError as error:
            refused += len(str(error)) > 20
        except Exception as error:
            raise AssertionError(f"edit {number} of {kind}: {error!r}") from error
    assert refused > 60


@pytest.mark.parametrize("name", ["header.npy", "0.npy"])
def test_a_member_that_is_there_twice_is_refused(name: str) -> None:
    content, use = made("plain")
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(name, archive.read(name))
    with pytest.raises(dp.DPConvexError, match="twice"):
        use(buffer.getvalue())
