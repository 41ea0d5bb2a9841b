"""Columns that are not plain arrays: the same checks, the same answers, no copies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.errors import DomainError
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.language.columns import Chunks, blocks
from dpconvex.language.record import Record
from dpconvex.language.template import Template
from dpconvex.language.validation import SINGLE_ROUNDING

RNG = np.random.default_rng(0)
RECORD = Record(x=Ball(5), y=Choice([-1, 1]))
X = RECORD.sample(90, np.random.default_rng(1)).fields["x"]
Y = np.where(RNG.random(90) < 0.4, -1, 1)


def logistic(record: Record = RECORD) -> Template:
    w = cp.Variable(5, name="w")
    return Template(record, lambda x, y: cp.logistic(-y * (x @ w)), 0.05 * cp.sum_squares(w))


def chunked(values: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(sizes)[:-1])


def forms(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """The same records in every form."""
    yield "sparse", sp.csr_array(X), Y
    yield "sparse matrix by columns", sp.csc_matrix(X), Y
    yield (
        "coordinates with repetitions",
        sp.coo_array((np.r_[X[X != 0] / 2, X[X != 0] / 2], np.tile(X.nonzero(), 2))),
        Y,
    )
    np.save(folder / "x.npy", X)
    yield "memory-mapped", np.load(folder / "x.npy", mmap_mode="r"), Y
    yield "integer labels", X, Y.astype(np.int8)
    yield "chunks", Chunks(chunked(X, [1, 40, 0, 49])), Chunks(chunked(Y, [60, 30]))
    yield "generated chunks", Chunks(lambda: iter(chunked(X, [30, 30, 30]))), Y
    yield "by columns in memory", np.asfortranarray(X), Y


def test_every_form_of_a_column_gives_the_same_loss(tmp_path: Path) -> None:
    template = logistic()
    theta = RNG.normal(size=5)
    plain = BatchedLoss(template, Space(template.variables), RECORD.validate({"x": X, "y": Y}))
    value, gradient = plain.value_and_gradient(theta)
    for name, x, y in forms(tmp_path):
        loss = BatchedLoss(template, Space(template.variables), RECORD.validate({"x": x, "y": y}))
        assert loss.engine == "blocks", name
        found, slope = loss.value_and_gradient(theta)
        assert found == pytest.approx(value, rel=1e-13), name
        assert slope == pytest.approx(gradient, rel=1e-12), name
        assert loss.records(theta)[1] == pytest.approx(plain.records(theta)[1], rel=1e-12, abs=1e-14), name


def test_single_precision_is_put_back_into_the_domain() -> None:
    x = RNG.normal(size=(500, 5)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert (np.linalg.norm(x.astype(float), axis=1) > 1 + 1e-9).any()
    for column in (x, Chunks([x[:10], x[10:]])):
        found = RECORD.validate({"x": column, "y": np.ones(500)}).fields["x"]
        read = np.concatenate(list(blocks(found, 64)))
        assert np.linalg.norm(read, axis=1).max() <= 1 + 1e-14
        assert np.abs(read - x).max() <= SINGLE_ROUNDING
    with pytest.raises(DomainError, match="1 of 501 records lie outside"):
        RECORD.validate({"x": np.vstack([x, [[1.001, 0, 0, 0, 0]]]).astype(np.float32), "y": np.ones(501)})


@pytest.mark.parametrize("norm", [1, 2, np.inf])
def test_sparse_balls(norm: float) -> None:
    record = Record(x=Ball(3, 2.0, norm))
    dense = np.array([[0, 0, 0], [2.0, 0, 0], [0, 1.5, -1.5], [5.0, 0, 5.0]])
    outside = np.linalg.norm(dense, ord=norm, axis=1) > 2
    with pytest.raises(DomainError, match=rf"{outside.sum()} of 4 records lie outside .* row 3, by"):
        record.validate({"x": sp.csr_array(dense)})
    clipped = record.validate({"x": sp.csr_array(dense)}, clip=True).fields["x"]
    assert sp.issparse(clipped)
    assert clipped.toarray() == pytest.approx(record.validate({"x": dense}, clip=True).fields["x"])


@pytest.mark.parametrize("domain", [Ball(3, radius=2.0), Ball(3, norm=1), Box(-np.ones(3), np.ones(3))], ids=repr)
@pytest.mark.parametrize("form", [np.array, sp.csr_array, lambda x: Chunks([x]), lambda x: x.astype(np.float32)])
def test_a_record_outside_leaves_the_others_as_they_are(form: Any, domain: Any) -> None:
    record = Record(x=domain)
    x = domain.project(domain.sample(300, np.random.default_rng(0)) * (1 + 1e-12))
    found = []
    for last in (np.zeros(3), np.full(3, 9.0)):
        column = record.validate({"x": form(np.vstack([x, last]))}, clip=True).fields["x"]
        found.append(column.toarray() if sp.issparse(column) else np.asarray(column[np.arange(301)]))
    np.testing.assert_array_equal(found[0][:-1], found[1][:-1])
    assert domain.excess(found[1]).max() <= domain.slack


# Records that change after they were checked.


def columns_of(x: Any, path: Path) -> dict[str, Any]:
    np.save(path, x)
    return {
        "array": x,
        "memory-mapped": np.load(path, mmap_mode="r+"),
        "sparse": sp.csr_array(np.eye(5, 3)),
        "chunks": Chunks([x[:2], x[2:]]),
        "generated": Chunks(lambda: iter([x])),
        "list": list(x),
    }


@pytest.mark.parametrize("copied", [True, False], ids=["small", "large"])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("form", ["array", "memory-mapped", "chunks", "generated", "sparse", "list"])
def test_nothing_is_read_outside_of_the_domain_whatever_changes(
    form: str, clip: bool, copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not copied:
        monkeypatch.setattr("dpconvex.language.validation.LARGEST_COPY", 0)
    x, labels, template = np.zeros((5, 3)), np.ones(5), dp.load("logistic_regression", features=3)
    columns = columns_of(x, tmp_path / "x.npy")
    batch = template.record.validate({"x": columns[form], "y": labels}, clip=clip)
    loss = BatchedLoss(template, Space(template.variables), batch)
    before = loss.value_and_gradient(np.ones(3))[1]
    x[3, 1] = columns["memory-mapped"][3, 1] = 40.0
    columns["sparse"].data *= 40.0
    labels[:] = -1
    np.testing.assert_array_equal(batch.group, 1)
    chunks = form in ("chunks", "generated")
    if form in ("sparse", "list") or (copied and form == "array"):
        np.testing.assert_array_equal(loss.value_and_gradient(np.ones(3))[1], before)
    elif clip and not chunks:
        for block in [*blocks(batch.fields["x"], 2), batch.fields["x"][np.array([3])]]:
            assert np.linalg.norm(block, axis=1).max() <= 1 + 1e-14
        assert np.linalg.norm(loss.value_and_gradient(np.ones(3))[1] - before) <= 1
    else:
        for read in (lambda: loss.value_and_gradient(np.ones(3)), lambda: batch.fields["x"][np.array([3])]):
            with pytest.raises(DomainError, match="other records than" if clip else "lie outside"):
                read()
