"""A release holds what was accounted for and nothing else, on paper, in memory and in a file, however that is edited."""

import io
import json
import math
import os
import pickle
import stat
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused

import dpconvex as dp
from dpconvex import DomainError, DPConvexError, Privacy, Release, TemplateError

LEARNER = dp.load("logistic_regression", features=3)
PROOF = dp.Certificate.from_dict(dp.verify(LEARNER, Privacy(1.0, 1e-6), 100).to_dict())  # as a file has it


def scores(parameters, x):
    return x @ parameters["W"] + parameters["b"]


W = np.arange(6.0).reshape(3, 2)
TABLE = dp.Schema({"a": (0, 1), "b": (-1, 1), "c": (0, 2.5)}, label="sick", labels=["no", "yes"])


def full(**changes):
    fields = {
        "parameters": {"W": W, "b": np.float64(0.5)},
        "certificate": PROOF,
        "spent": Privacy(1.0, 1e-6),
        "source": ("logistic_regression", {"features": 3, "labels": ["no", "yes"]}),
        "predictor": scores,
        "schema": TABLE,
    }
    return Release(**{**fields, **changes})


def template():
    w, b = cp.Variable((3, 2), name="W"), cp.Variable(name="b")
    return dp.Template(dp.Record(x=dp.Ball(3)), lambda x: cp.logistic(x @ w @ np.ones(2) + b), predict=scores)


def test_parameters_are_copies_that_cannot_be_written_to_and_drag_no_memory_along():
    source = np.ones((4, 3))
    release = full(parameters={"W": source[1:3, ::2], "T": np.asfortranarray(source).T})
    source[:] = 7
    np.testing.assert_array_equal(release["W"], np.ones((2, 2)))
    np.testing.assert_array_equal(release["T"], np.ones((3, 4)))
    for value in release.values():
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            value.flags.writeable = True
    base = full(parameters={"w": np.full(1000, 42.0)[:2]})["w"]
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
        ({"spent": None}, "not_private_because"),
        ({"not_private_because": "a seed"}, "pass either"),
        ({"source": ("name", 3)}, "source"),
    ],
)
def test_refuses_what_is_no_release(changes, complaint):
    refused(TemplateError, complaint, full, **changes)


def test_predict_says_what_is_wrong():
    wrong = {"NaN": [[0.0, np.nan, 0.0]], "numbers": [["a", "b", "c"]], r"shape \(2, 5\)": np.zeros((2, 5))}
    for words, x in wrong.items():
        refused((DomainError, TemplateError), words, full().predict, x)
    with pytest.raises(TemplateError, match=r"no function to predict with.*dpconvex\.load.*your_file\.py"):
        full(predictor=None).predict(np.zeros((1, 3)))
    raw = {"a": [0.5], "b": [0.0], "c": [2.5]}
    for table in (pd.DataFrame(raw), pd.DataFrame({**raw, "sick": ["no"]})):
        refused(DomainError, r"pass release\.schema\.encode", full(schema=TABLE).predict, table)
    missing = "there is no folder"
    refused(FileNotFoundError, missing, full().save, "no/folder/model.npz")
    refused(FileNotFoundError, missing, dp.report, full(), path="no/folder/report.html")


def test_the_source_is_kept_if_it_is_a_shipped_problem_in_plain_values():
    values = {"a": (1, 2), "b": np.float64(0.5), "c": range(2)}
    assert full(source=("p", values)).source == ("p", {"a": [1, 2], "b": 0.5, "c": [0, 1]})
    for source in (None, ("/home/mine.py", {"features": 3}), ("mine.py", {}), ("p", {"f": len}), ("p", {"x": np.nan})):
        assert full(source=source).source is None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.npz"


names = st.text(min_size=1, max_size=8)
values = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.floats(-1e300, 1e300)
)


@settings(deadline=None)
@given(st.dictionaries(names, values, min_size=1, max_size=4), st.booleans(), names)
def test_what_is_saved_is_what_is_loaded(parameters, private, because):
    """Any names: `file`, `../x` and `0` included, and any text."""
    status = {"spent": Privacy(0.3), "certificate": replace(PROOF, privacy=Privacy(0.3))}
    if not private:
        status = {"spent": None, "not_private_because": because}
    release = full(parameters=parameters, **status)
    again = Release.from_bytes(release.to_bytes())
    assert again.to_bytes() == release.to_bytes()
    assert [(n, v.tobytes()) for n, v in again.items()] == [(n, v.tobytes()) for n, v in parameters.items()]
    fields = ("certificate", "spent", "not_private_because", "source", "schema")
    assert [getattr(again, name) for name in fields] == [getattr(release, name) for name in fields]


def test_nothing_is_in_a_release_that_was_not_accounted_for(path):
    """Every attribute in memory, and every byte that means something in the file."""
    release = full()
    known = "parameters certificate spent not_private_because source predictor decision probabilities schema noise"
    assert set(vars(release)) == {*known.split(), "names", "labels", "scaled", "learnt", "fields", "choices"}
    release.save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.comment == b""
        for info in archive.infolist():
            assert (info.date_time, info.comment, info.extra) == ((1980, 1, 1, 0, 0, 0), b"", b"")
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
        "names": None,
        "schema": {"features": {"a": [0, 1], "b": [-1, 1], "c": [0, 2.5]}, "label": "sick", "labels": ["no", "yes"]},
    }
    assert {k: v.tolist() for k, v in members.items()} == {"0.npy": W.tolist(), "1.npy": 0.5}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_is_an_error_or_means_the_same(data):
    """Cut off, or with one byte flipped: some bytes of a ZIP archive mean nothing to its reader (time stamps, attributes)."""
    whole = full().to_bytes()
    position, flipped = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.just(0) | st.integers(1, 255))
    content = whole[:position] + (bytes([whole[position] ^ flipped]) + whole[position + 1 :] if flipped else b"")
    try:
        loaded = Release.from_bytes(content)
    except DPConvexError:
        return
    assert flipped
    assert loaded.to_bytes() == whole


def members():
    with np.load(io.BytesIO(full().to_bytes()), allow_pickle=False) as archive:
        return {**archive}


def rewritten(path, **changes):
    np.savez(path, **{**members(), "header": np.array(json.dumps(json.loads(str(members()["header"])) | changes))})


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_never_unpickles(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(path, allow_pickle=True, **members() | {"0": np.array([Bomb()], dtype=object)})
    refused(DPConvexError, r"damaged.*Object arrays", Release.load, path)
    path.write_bytes(pickle.dumps(Bomb()))
    refused(DPConvexError, "damaged", Release.load, path)
    assert not (tmp_path / "exploded").exists()


def test_doctored_files_and_templates_that_do_not_fit_are_refused(path):
    np.savez_compressed(path, **members())
    with pytest.raises(DPConvexError, match="unexpected member"):  # it could unfold without limit
        Release.load(path)
    rewritten(path, version=1)
    refused(DPConvexError, "version 1 of the format, but this program reads version 2", Release.load, path)
    rewritten(path, spent={"epsilon": 0.5, "delta": 1e-6, "adjacency": "replace-one"})
    refused(DPConvexError, r"damaged.*spent, but its certificate is for", Release.load, path)
    rewritten(path, source=["./evil.py", {}])
    refused(TemplateError, "not run automatically", Release.load, path, template=lambda name: template())
    full(parameters={"W": W}).save(path)
    refused(TemplateError, r"declares .*'b'.* but released were .*'W'", Release.load, path, template=template())
    refused(TemplateError, "template must be a Template", Release.load, path, template=lambda name, **options: None)
    found = Release({"w": np.ones(3)}, spent=Privacy(1.0), source=LEARNER.source)
    found.save(path)
    assert Release.load(path, template=LEARNER).source == found.source
    with pytest.raises(TemplateError, match="its problem is 'logistic_regression', but the template is of 'huber_svm'"):
        Release.load(path, template=dp.load("huber_svm", features=3))
    Release({"w": np.ones(3)}, spent=Privacy(1.0), source=(LEARNER.source[0], {"labels": ("no", "yes")})).save(path)
    turned = dp.load("logistic_regression", features=3, labels=("yes", "no"))
    refused(TemplateError, "fitted with labels=.*'no', 'yes'", Release.load, path, template=turned)
    assert "nobody can check" in repr(Release.load(path))  # it has no certificate
    own = [dp.load("logistic_regression", features=3, labels=labels) for labels in (("no", "yes"), ("yes", "no"))]
    fitted, other = (template.with_parts(source=None) for template in own)
    data = {"x": np.zeros((50, 3)), "y": ["no", "yes"] * 25}
    for privacy in (Privacy(1.0, 1e-6), Privacy(1.0, 1e-6, unit="person", most=1, keep="weights")):
        dp.solve(fitted, data, privacy, **{"unit": range(50)} if privacy.unit else {}).save(path)
        assert Release.load(path, template=fitted).labels == ("no", "yes")
        refused(TemplateError, r"have .*'no', 'yes'.*declares .*'yes', 'no'", Release.load, path, template=other)


@pytest.mark.parametrize("kind", [None, 1, "", b"model.npz", "model\0.npz", "a folder", "a pipe"])
def test_nothing_but_a_regular_file_is_replaced_or_read(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    where = {"a folder": tmp_path, "a pipe": tmp_path / "pipe"}.get(kind, kind)
    refused(TemplateError, r"path must be a text or a path|no file can be made there", full().save, where)
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]
    assert (tmp_path / "pipe").is_fifo()
    if isinstance(where, Path):
        for path in (where, Path("/dev/zero")):
            refused(DPConvexError, "cannot be read", Release.load, path)


@pytest.mark.parametrize("before", [None, 0o600, 0o444, 0o666])
def test_files_keep_their_permissions_and_links_what_they_lead_to(tmp_path, before):
    (tmp_path / "store").mkdir()
    target, link, second = tmp_path / "store" / "model.npz", tmp_path / "link.npz", tmp_path / "second.npz"
    link.symlink_to(target)
    second.symlink_to("link.npz")
    if before is not None:
        target.write_bytes(b"before")
        target.chmod(before)
    mask = os.umask(0o027)
    try:
        full().save(second)
    finally:
        os.umask(mask)
    assert all(name.is_symlink() for name in (link, second))
    assert target.stat().st_size > 10
    assert stat.S_IMODE(target.stat().st_mode) == (0o640 if before is None else before)
    assert os.listdir(tmp_path / "store") == ["model.npz"]


def test_a_disk_that_is_full_leaves_the_old_file(path, monkeypatch):
    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    path.write_text("kept", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full_disk)
    refused(OSError, "No space", full().save, path)
    assert path.read_text(encoding="utf-8") == "kept"


# Every edit of one field of a saved file is refused with words, or loads, prints and predicts.
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) / 8
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
SCHEMA = dp.Schema({"a": (0, 1), "b": (-1, 1)}, label="sick", labels=["no", "yes"])
OTHER = [None, "text", "", True, -1, 0, 0.5, 10**400, math.nan, math.inf, -math.inf, [], {}, {"a": {}}]


def edits(value):
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
def made(kind):
    if kind == "statistics":
        ridge = dp.load("ridge_regression", features=2)
        found = dp.statistics(ridge, {"x": X.copy(), "y": X[:, 0]}, dp.Privacy(5.0, 1e-6))

        def use_statistics(content):
            read = dp.Statistics.from_bytes(content, ridge)
            used(read.fit(), X)
            repr(read), str(read.certificate)

        return found.to_bytes(), use_statistics
    template = dp.load("logistic_regression", features=2)
    if kind == "centres":

        def use_centres(content):
            places = dp.ComponentCenters.from_bytes(content)
            repr(places), str(places), places.to_bytes(), places.assign(X, DATA["y"])

        return dp.cluster(template, DATA | {"x": X.copy()}, dp.Privacy(5.0, 1e-6)).to_bytes(), use_centres
    if kind == "mixture":
        template = dp.load("large_margin_gaussian_mixture", features=2, components=2)
        release = dp.solve_mixture(template, DATA | {"x": X.copy(), "y": DATA["y"] > 0}, dp.Privacy(20.0, 1e-6)).release
    else:
        release = dp.solve(template, DATA | {"x": X.copy()}, dp.Privacy(5.0, 1e-6))
    release = dp.Release(**{**vars(release), "schema": SCHEMA})
    return release.to_bytes(), lambda content: used(dp.Release.from_bytes(content, template), X)


def used(release, x):
    for text in (repr, str, dp.Release._repr_html_, dp.Release.to_bytes):
        text(release)
    repr(release.schema), repr(release.certificate)
    release.predict(x)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["plain", "statistics", "mixture", "centres"])
def test_every_edit_of_a_header_is_refused_or_means_something(kind):
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
def test_a_member_that_is_there_twice_is_refused(name):
    content, use = made("plain")
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(name, archive.read(name))
    refused(dp.DPConvexError, "twice", use, buffer.getvalue())


def test_predictions_refuse_levels_that_were_not_declared():
    """A level of -1, a usual code of missing values, took the effect of the last group."""
    a, w = cp.Variable(3, name="a"), cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), g=dp.Choice(range(3)), y=dp.Box(0, 1))
    template = dp.Template(
        record, lambda x, g, y: cp.square(x @ w + a[g] - y), predict=lambda p, x, g: x @ p["w"] + p["a"][g]
    )
    data = {"x": np.zeros((300, 2)), "g": np.arange(300) % 3, "y": np.zeros(300)}
    release = dp.solve(template, data, dp.Privacy(1.0, 1e-6), seed=0)
    assert len(release.predict(np.zeros((3, 2)), g=[0, 1, 2])) == 3
    refused(dp.DomainError, "-1", release.predict, np.zeros((3, 2)), g=[0, 1, -1])
