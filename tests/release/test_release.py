"""A release holds what was accounted for and nothing else, on paper, in memory and in a file."""

import io
import json
import os
import pickle
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import dpconvex as dp
from dpconvex.core.record_domains import Ball
from dpconvex.errors import DomainError, DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.language.record import Record
from dpconvex.language.schema import Schema
from dpconvex.language.template import Template
from dpconvex.release.release import Release, plain

PROOF = dp.verify(dp.load("logistic_regression", features=3), Privacy(1.0, 1e-6), 100)


def scores(parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return x @ parameters["W"] + parameters["b"]


W = np.arange(6.0).reshape(3, 2)
TABLE = Schema({"a": (0, 1), "b": (-1, 1), "c": (0, 2.5)}, label="sick", labels=["no", "yes"])


def full(**changes: Any) -> Release:
    fields = {
        "parameters": {"W": W, "b": np.float64(0.5)},
        "certificate": PROOF,
        "spent": Privacy(1.0, 1e-6),
        "source": ("logistic_regression", {"features": 3, "labels": ["no", "yes"]}),
        "predictor": scores,
        "schema": TABLE,
    }
    return Release(**{**fields, **changes})


def template(**changes: Any) -> Template:
    w, b = cp.Variable((3, 2), name="W"), cp.Variable(name="b")
    fields = {"loss": lambda x: cp.logistic(x @ w @ np.ones(2) + b), "predict": scores, **changes}
    return Template(record=Record(x=Ball(3)), **fields)


# In memory.


def test_parameters_are_copies_that_cannot_be_written_to() -> None:
    source = np.ones((4, 3))
    view = source[1:3, ::2]
    release = full(parameters={"W": view, "T": np.asfortranarray(source).T})
    source[:] = 7
    np.testing.assert_array_equal(release["W"], np.ones((2, 2)))
    np.testing.assert_array_equal(release["T"], np.ones((3, 4)))
    for value in release.values():
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            value.flags.writeable = True


def test_no_array_drags_along_the_memory_that_it_was_cut_from() -> None:
    base: Any = full(parameters={"w": np.full(1000, 42.0)[:2]})["w"]
    while isinstance(getattr(base, "base", None), np.ndarray | bytes | memoryview):
        base = base.base
    assert memoryview(base).nbytes == 2 * 8


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"parameters": {}}, "no parameter"),
        ({"parameters": {"": W}}, "name"),
        ({"parameters": {"w": [1.0, np.nan]}}, "finite real numbers"),
        ({"parameters": {"w": [object()]}}, "finite real numbers"),
        ({"spent": None}, "why the release is not private"),
        ({"not_private_because": "a seed"}, "not both"),
        ({"source": ("name", 3)}, "source"),
    ],
)
def test_refuses_what_is_no_release(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TemplateError, match=complaint):
        full(**changes)


def test_predict_says_what_is_wrong() -> None:
    release = full()
    with pytest.raises(DomainError, match="NaN"):
        release.predict([[0.0, np.nan, 0.0]])
    with pytest.raises(DomainError, match="numbers"):
        release.predict([["a", "b", "c"]])
    with pytest.raises(TemplateError, match=r"shape \(2, 5\)"):
        release.predict(np.zeros((2, 5)))
    with pytest.raises(TemplateError, match=r"no function to predict with.*'logistic_regression'.*dpconvex\.load"):
        full(predictor=None).predict(np.zeros((1, 3)))
    with pytest.raises(TemplateError, match=r"no function to predict with.*your_file\.py"):
        full(predictor=None, source=None).predict(np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        (None, None),
        (("huber_svm", {}), ("huber_svm", {})),
        (("p", {"a": (1, 2), "b": np.float64(0.5), "c": range(2)}), ("p", {"a": [1, 2], "b": 0.5, "c": [0, 1]})),
        (("/home/me/mine.py", {"features": 3}), None),
        (("mine.py", {}), None),
        (("p", {"f": lambda x: x}), None),
        (("p", {"x": np.nan}), None),
    ],
)
def test_the_source_is_kept_if_it_is_a_shipped_problem_in_plain_values(source: Any, kept: Any) -> None:
    assert full(source=source).source == kept


# In a file.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fit.npz"


def same(first: Release, second: Release) -> bool:
    arrays = all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(first.values(), second.values(), strict=True)
    )
    rest = [(list(r), r.certificate, r.spent, r.not_private_because, r.source, r.schema) for r in (first, second)]
    return arrays and rest[0] == rest[1]


names = st.text(min_size=1, max_size=8)
values = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.floats(-1e300, 1e300)
)


@settings(deadline=None)
@given(st.dictionaries(names, values, min_size=1, max_size=4), st.booleans(), names)
def test_what_is_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, parameters: dict[str, np.ndarray], private: bool, because: str
) -> None:
    """Any names: `file`, `../x` and `0` included, and any text."""
    status: dict[str, Any] = {"spent": Privacy(0.3), "certificate": replace(PROOF, privacy=Privacy(0.3))}
    if not private:
        status = {"spent": None, "not_private_because": because}
    release = full(parameters=parameters, **status)
    file = tmp_path_factory.mktemp("saved") / "release"
    release.save(file)
    assert same(release, Release.load(file))


def test_nothing_is_in_a_release_that_was_not_accounted_for(path: Path) -> None:
    """Every attribute in memory, and every byte that means something in the file."""
    release = full()
    known = "parameters certificate spent not_private_because source predictor decision probabilities schema whitening"
    assert set(vars(release)) == set(known.split())
    assert not {"objective", "iterations", "time", "value", "labels", "status_of_solver"} & set(dir(release))

    release.save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.comment == b""
        for info in archive.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert (info.comment, info.extra) == (b"", b"")
        members = {i.filename: np.lib.format.read_array(io.BytesIO(archive.read(i))) for i in archive.infolist()}
        size = sum(len(archive.read(i)) for i in archive.infolist())
    assert path.stat().st_size - size < 120 * len(members) + 22 + 50  # the ZIP format's own headers, and no gaps
    assert json.loads(str(members.pop("header.npy"))) == {
        "format": "dpconvex release",
        "version": 2,
        "parameters": {"W": 0, "b": 1},
        "certificate": json.loads(json.dumps(PROOF.to_dict())),
        "spent": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"},
        "not_private_because": "",
        "source": ["logistic_regression", {"features": 3, "labels": ["no", "yes"]}],
        "whitening": None,
        "schema": {
            "features": {"a": [0.0, 1.0], "b": [-1.0, 1.0], "c": [0.0, 2.5]},
            "label": "sick",
            "labels": ["no", "yes"],
        },
    }
    assert {k: v.tolist() for k, v in members.items()} == {"0.npy": W.tolist(), "1.npy": 0.5}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_is_an_error_or_means_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Some bytes of a ZIP archive mean nothing to its reader (time stamps, attributes); all others are checked."""
    release = full()
    file = tmp_path_factory.mktemp("damaged") / "release.npz"
    release.save(file)
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:position]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    try:
        loaded = Release.load(file)
    except DPConvexError:
        return
    assert len(content) > position
    assert same(release, loaded)


def members_of(path: Path) -> dict[str, Any]:
    full().save(path)
    with np.load(path, allow_pickle=False) as archive:
        return {**archive}


def rewritten(path: Path, **changes: Any) -> None:
    """Save a release and write its archive anew, with other header entries."""
    members = members_of(path)
    np.savez(path, **{**members, "header": np.array(json.dumps({**json.loads(str(members["header"])), **changes}))})


class Bomb:
    """Would run code when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def test_never_unpickles(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    members = members_of(path) | {"0": np.array([Bomb()], dtype=object)}
    np.savez(path, allow_pickle=True, **members)
    with pytest.raises(DPConvexError, match=r"damaged.*Object arrays"):
        Release.load(path)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DPConvexError, match="damaged"):
        Release.load(path)
    assert not (tmp_path / "exploded").exists()


def test_refuses_compressed_members_that_could_unfold_without_limit(path: Path) -> None:
    np.savez_compressed(path, **members_of(path))
    with pytest.raises(DPConvexError, match="unexpected member"):
        Release.load(path)


# Predicting after loading.


def test_a_doctored_file_cannot_name_a_file_to_run(path: Path) -> None:
    rewritten(path, source=["./evil.py", {}])
    with pytest.raises(TemplateError, match="never run on its own account"):
        Release.load(path, template=lambda name: template())


def test_a_template_with_other_parameters_is_refused(path: Path) -> None:
    full(parameters={"W": W}).save(path)
    with pytest.raises(TemplateError, match=r"declares .*'b'.* and released were .*'W'"):
        Release.load(path, template=template())
    with pytest.raises(TemplateError, match="expected a Template"):
        Release.load(path, template=lambda name, **options: None)  # type: ignore[arg-type, return-value]


def test_a_file_whose_parts_contradict_each_other_is_refused(path: Path) -> None:
    rewritten(path, spent={"epsilon": 0.5, "delta": 1e-6, "adjacency": "replace-one"})
    with pytest.raises(DPConvexError, match=r"damaged.*spent, and its certificate is for"):
        Release.load(path)
    learner = dp.load("logistic_regression", features=3)
    Release({"w": np.ones(3)}, spent=Privacy(1.0), source=learner.source).save(path)
    assert Release.load(path, template=learner).source == plain(learner.source)
    with pytest.raises(TemplateError, match="of the problem 'logistic_regression', and the template is of 'huber_svm'"):
        Release.load(path, template=dp.load("huber_svm", features=3))


@pytest.mark.parametrize("kind", [None, 1, "", b"model.npz", "model\0.npz", "a folder", "a pipe"])
def test_nothing_but_a_regular_file_is_replaced_or_read(tmp_path: Path, kind: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    where: Any = {"a folder": tmp_path, "a pipe": tmp_path / "pipe"}.get(kind, kind)
    with pytest.raises(TemplateError, match=r"path of a file must be|no file can be made there"):
        full().save(where)
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]
    assert (tmp_path / "pipe").is_fifo()
    if isinstance(where, Path):
        for path in (where, Path("/dev/zero")):
            with pytest.raises(DPConvexError, match="cannot be read"):
                Release.load(path)


@pytest.mark.parametrize("save", [full().save, dp.Components([[[0.5]]]).save], ids=["release", "components"])
@pytest.mark.parametrize("before", [None, 0o600, 0o444, 0o666])
def test_files_keep_their_permissions_and_links_what_they_lead_to(
    tmp_path: Path, save: Any, before: int | None
) -> None:
    (tmp_path / "store").mkdir()
    target, link, second = tmp_path / "store" / "model.npz", tmp_path / "link.npz", tmp_path / "second.npz"
    link.symlink_to(target)
    second.symlink_to("link.npz")
    if before is not None:
        target.write_bytes(b"before")
        target.chmod(before)
    mask = os.umask(0o027)
    try:
        save(second)
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert second.is_symlink()
    assert target.stat().st_size > 10
    assert stat.S_IMODE(target.stat().st_mode) == (0o640 if before is None else before)
    assert os.listdir(tmp_path / "store") == ["model.npz"]


def test_a_disk_that_is_full_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    path.write_text("kept", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="No space"):
        full().save(path)
    assert path.read_text(encoding="utf-8") == "kept"
