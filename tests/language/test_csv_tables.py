"""CSV files are read through a public declaration, and every cell that does not fit it is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.csv_tables import Table, read_settings
from dpconvex.language.datasets import unit_ball

Write = Callable[[str | bytes], Path]

TABLE = Table({"age": (0, 100), "hours": (-10, 30)}, label="sick", labels=["no", "yes"])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(content: str | bytes) -> Path:
        file = tmp_path / "data.csv"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return make


def test_features_are_scaled_by_the_bounds_and_not_by_the_data(write: Write) -> None:
    X, y = TABLE.read(write("age,hours,sick\n25,0,no\n50,10,yes\n"))
    np.testing.assert_array_equal(X, unit_ball([[25, 0], [50, 10]], [0, -10], [100, 30]))
    assert y == ["no", "yes"]
    alone, _ = TABLE.read(write("age,hours,sick\n25,0,no\n"))
    np.testing.assert_array_equal(alone[0], X[0])


def test_corners_lie_in_the_unit_ball(write: Write) -> None:
    X, _ = TABLE.read(write("age,hours,sick\n0,-10,no\n100,30,no\n0,30,yes\n"))
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0, rtol=1e-12)


def test_columns_are_found_by_name(write: Write) -> None:
    plain = TABLE.read(write("age,hours,sick\n1,2,no\n3,4,yes\n"))
    other = TABLE.read(write('\ufeffname, sick ,hours,age\r\nAnn, no ,2,1\r\n\r\n"Bob, Sr.",yes, 4 ,3.0\r\n'))
    np.testing.assert_array_equal(plain[0], other[0])
    assert plain[1] == other[1]


def test_labels_are_read_on_request_only(write: Write) -> None:
    X, y = TABLE.read(write("age,hours\n1,2\n"), labelled=False)
    assert X.shape == (1, 2)
    assert y == []


def test_values_outside_their_bounds_can_be_clipped(write: Write) -> None:
    outside, inside = "age,hours,sick\n-5,1e300,no\n", "age,hours,sick\n0,30,no\n"
    expected = TABLE.read(write(inside))[0]
    np.testing.assert_array_equal(TABLE.read(write(outside), clip=True)[0], expected)
    clipping = Table(TABLE.features, TABLE.label, TABLE.labels, clip=True)
    np.testing.assert_array_equal(clipping.read(write(outside))[0], expected)
    with pytest.raises(DomainError):
        clipping.read(write(outside), clip=False)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", r"data\.csv: the file is empty; its first line must name the columns"),
        ("age,hours,sick\n", r"no record below the header"),
        ("age,hours,sick\n\n\n", r"no record below the header"),
        ("age,sick\n1,no\n", r"no column 'hours'; the columns are age, sick"),
        ("age;hours;sick\n1;2;no\n", r"no column 'age'; the columns are age;hours;sick"),
        ("age,hours,sick,age\n1,2,no,3\n", r"2 columns are called 'age'"),
        ("age,hours,sick\n1,2,no\n1,2\n", r"line 3: 2 cells, but the header has 3"),
        ("age,hours,sick\n1,2,no\n1,two,no\n", r"line 3, column 'hours': 'two' is not a finite number"),
        ("age,hours,sick\n1,,no\n", r"line 2, column 'hours': the cell is empty"),
        ("age,hours,sick\n1,nan,no\n", r"line 2, column 'hours': 'nan' is not a finite number"),
        ("age,hours,sick\n1,-inf,no\n", r"line 2, column 'hours': '-inf' is not a finite number"),
        ("age,hours,sick\n1,1e999,no\n", r"line 2, column 'hours': '1e999' is not a finite number"),
        ("age,hours,sick\n1_0,2,no\n", r"line 2, column 'age': '1_0' is not a finite number"),
        ("age,hours,sick\n101,2,no\n", r"line 2, column 'age': 101 is outside the declared bounds 0 to 100; clip it"),
        ("age,hours,sick\n1,2,maybe\n", r"line 2, column 'sick': the label 'maybe' was not declared; declared are no"),
        ("age,hours,sick\n1,2,No\n", r"the label 'No' was not declared"),
        ("age,hours,sick\n1,2,\n", r"the label '' was not declared"),
        ('age,hours,sick\n1,2,"no\n', r"not valid CSV"),
        (b"age,hours,sick\n1,2,\xff\n", r"not a text file in UTF-8"),
    ],
)
def test_what_does_not_fit_is_named(write: Write, content: str | bytes, complaint: str) -> None:
    with pytest.raises(DomainError, match=complaint):
        TABLE.read(write(content))


@pytest.mark.parametrize("text", ["nan", "inf", "", "abc"])
def test_clipping_makes_no_number_of_what_is_none(write: Write, text: str) -> None:
    with pytest.raises(DomainError, match="line 2, column 'age'"):
        TABLE.read(write(f"age,hours,sick\n{text},2,no\n"), clip=True)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TABLE.read(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"features": {}}, "there is none"),
        ({"features": ["age"]}, "there is none"),
        ({"features": {"": (0, 1)}}, "name of a column"),
        ({"features": {"age": (1, 0)}}, "'age' must be finite, the lower one below"),
        ({"features": {"age": (0, 0)}}, "'age' must be finite, the lower one below"),
        ({"features": {"age": (0, float("inf"))}}, "'age' must be finite"),
        ({"features": {"age": (float("nan"), 1)}}, "'age' must be finite"),
        ({"features": {"age": 5}}, "'age' must be two numbers"),
        ({"features": {"age": "19"}}, "'age' must be two numbers"),
        ({"features": {"age": ("0", "old")}}, "'age' must be two numbers"),
        ({"features": {"age": (0, 1, 2)}}, "'age' must be two numbers"),
        ({"features": {"age": (0, 1), "sick": (0, 1)}}, "both as a feature and as the label"),
        ({"label": 3}, "name of a column"),
        ({"labels": "no,yes"}, "as a list"),
        ({"labels": ["no"]}, "at least two labels"),
        ({"labels": ["no", "no"]}, "all of them different"),
        ({"labels": [0, "0"]}, "all of them different"),
        ({"labels": [True, False]}, "a text or an integer"),
        ({"labels": ["no", ""]}, "a text or an integer"),
        ({"clip": "yes"}, "true or false"),
    ],
)
def test_a_declaration_must_make_sense(changes: dict[str, Any], complaint: str) -> None:
    fields = {"features": {"age": (0, 1)}, "label": "sick", "labels": ["no", "yes"], **changes}
    with pytest.raises(TemplateError, match=complaint):
        Table(**fields)


@pytest.mark.parametrize(
    "fields", [{}, {"features": 3}, {"features": [["a"]], "label": "y"}, {"features": [["a", 0, 1]]}]
)
def test_a_declaration_is_rebuilt_from_its_own_fields_only(fields: dict[str, Any]) -> None:
    with pytest.raises(TemplateError, match="does not declare a table"):
        Table.from_dict(fields)


def test_settings_are_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "fit.toml"
    file.write_text('label = "sick"\n[features]\nage = [0, 100]\n', encoding="utf-8")
    assert read_settings(file, ["label", "features"]) == {"label": "sick", "features": {"age": [0, 100]}}
    with pytest.raises(TemplateError, match=r"unknown setting 'features'; settings are label, labels"):
        read_settings(file, ["label", "labels"])
    file.write_text("label = sick\n", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"fit\.toml: not valid TOML"):
        read_settings(file, ["label"])
