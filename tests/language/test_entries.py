"""Entries of columns: nothing is guessed from text, dates or masks, and no index of a sparse matrix is believed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.errors import DomainError
from dpconvex.language.record import Record
from dpconvex.language.validation import check_labels

RECORD = Record(x=Box(-np.full(3, 500.0), np.full(3, 500.0)))
DENSE = np.array([[0.0, 1.0, 0.0], [2.0, 0.0, -3.0], [0.0, 0.0, 0.0], [4.0, 5.0, 6.0]])
FORMATS = ["csr", "csc", "bsr", "coo", "dia", "dok", "lil"]


def read(column: Any, record: Record = RECORD) -> Any:
    return record.validate({"x": column}).fields["x"]


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int16, np.int64, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_holds_the_same_records(form: str, kind: Any) -> None:
    if form == "lil" and kind is np.longdouble:
        pytest.skip("SciPy makes no such matrix")
    values = np.abs(DENSE).astype(kind)
    for matrix in (sp.coo_array(values).asformat(form), sp.coo_matrix(values).asformat(form)):
        found = read(matrix)
        assert isinstance(found, sp.csr_array)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found.toarray(), values.astype(float))
    blocked = sp.bsr_array(np.kron(np.eye(2, 1), np.ones((2, 3))), blocksize=(2, 3))
    np.testing.assert_array_equal(read(blocked).toarray(), blocked.toarray())


def put(name: str, value: Any, at: Any = None) -> Callable[[Any], None]:
    """Return a function that spoils an attribute of a matrix, or an entry of it."""
    return lambda m: setattr(m, name, np.array(value)) if at is None else getattr(m, name).__setitem__(at, value)


SPOILT = {
    **{
        f"{form}, an index of {value}": (form, put("indices", value, 0))
        for form in ("csr", "csc", "bsr")
        for value in (10**9, -1)
    },
    "csr, a start too large": ("csr", put("indptr", 10**9, -1)),
    "csr, too few numbers": ("csr", put("data", [1.0])),
    "csr, text": ("csr", put("data", ["1", "2", "3", "4", "5", "6"])),
    "coo, a row too large": ("coo", lambda m: m.coords[0].__setitem__(0, 4)),
    "coo, too few numbers": ("coo", put("data", [1.0])),
    "lil, an index too large": ("lil", lambda m: m.rows[0].__setitem__(0, 7)),
    "dok, an index too large": ("dok", lambda m: m._dict.__setitem__((0, 9), 1.0)),
}


@pytest.mark.parametrize(("form", "change"), SPOILT.values(), ids=SPOILT)
def test_indices_that_do_not_fit_are_refused(form: str, change: Callable[[Any], None]) -> None:
    matrix = sp.coo_array(DENSE).asformat(form)
    change(matrix)
    with pytest.raises(DomainError, match=r"do not fit it|expected real numbers"):
        read(matrix)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_repeated_entries_count_together(form: str) -> None:
    """A sum of small integers does not wrap around, no flag is believed that says there are none, and sums may overflow."""

    def repeated(entries: Any) -> Any:
        size = len(entries)
        found = sp.csr_array((np.asarray(entries), np.ones(size, dtype=np.int64), [0, size]), shape=(1, 3)).asformat(
            form
        )
        found.has_canonical_format = True
        return found

    assert read(repeated(np.array([100, 100], np.int8))).toarray().tolist() == [[0, 200, 0]]
    with pytest.raises(DomainError, match="by 100 %"):
        read(repeated([0.5] * 4), Record(x=Ball(3)))
    with pytest.raises(DomainError, match="row 0, column 1 is inf"):
        read(repeated([1e308, 1e308]))


MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
TEXTS = np.array([["0.1", "0.2", "0.3"]], dtype=object)


@pytest.mark.parametrize(
    "column",
    [
        (MASKED, MASKED),
        [[np.ma.masked, 1.0, 2.0]],
        TEXTS,
        np.array([[np.datetime64("2020-01-01")] * 3]),
        np.array([[np.datetime64("2020-01-01")] * 3], dtype=object),
        np.array([[1.0, np.timedelta64(5, "ns"), 2.0]], dtype=object),
        np.zeros((1, 3), dtype=[("a", float)]),
        np.array([["a"]], dtype=np.dtypes.StringDType()),
        [[1.0, 2.0], [3.0]],
        object(),
        np.array([["1e400", 0, 0]], dtype=np.longdouble),
    ],
    ids=lambda column: type(column).__name__,
)
def test_what_is_no_number_is_not_guessed(column: Any) -> None:
    for clip in (False, True):
        with pytest.raises(DomainError):
            RECORD.validate({"x": column}, clip=clip)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.matrix([[1.0, 2.0, 3.0]]), [1, 2, 3]),
        ([[True, False, True]], [1, 0, 1]),
        (np.array([[1, 2.5, np.float32(3)]], dtype=object), [1, 2.5, 3]),
        (np.array([[255, 1, 0]], dtype=np.uint8), [255, 1, 0]),
        (np.array([[1, 2, 3]], dtype=">f8"), [1, 2, 3]),
        (np.array([[1, 2, 3]], dtype=np.float16), [1, 2, 3]),
        (np.ma.array([[1.0, 2.0, 3.0]]), [1, 2, 3]),
    ],
)
def test_numbers_of_every_kind_are_read(column: Any, expected: list[float]) -> None:
    found = read(column)
    assert type(found) is np.ndarray
    assert found.dtype == np.float64
    assert found.tolist() == [expected]


# Labels.


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([0, 1], ["0", "1"]),
        ([b"a", b"b"], ["a", "b"]),
        (["a", "b"], np.array([b"a", b"b"])),
        ([0, 1], [np.nan, 1]),
        ([0, 1], np.ma.array([0, 1], mask=[True, False])),
        ([0, 1], np.array([0, 1j])),
        ([0, 2**53], np.array([0, 2**53 + 1])),
        ([0.1, 0.2], np.array([0.1, 0.2], dtype=np.float32)),
        ([0, 1], np.array([0, -1], dtype=np.int8).view(np.uint8)),
    ],
)
def test_labels_that_were_not_declared_are_refused(values: Any, column: Any) -> None:
    with pytest.raises(DomainError):
        check_labels("y", Choice(values).values, column)


@pytest.mark.parametrize(
    "column", [[1, 0], [1.0, 0.0], [True, False], np.array([True, False]), np.array([1.0, 0.0], np.float16)]
)
@pytest.mark.parametrize("values", [[0, 1], [False, True], [0.0, 1.0], range(9)], ids=repr)
def test_equal_numbers_are_one_label(values: Any, column: Any) -> None:
    """As in Python, where 1, 1.0 and True are one key; no two of them can be declared apart."""
    np.testing.assert_array_equal(check_labels("y", Choice(values).values, column), [1, 0])
