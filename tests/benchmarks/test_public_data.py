"""Loaders of public data sets: declared columns, known counts, and clear errors."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import public_data as loaders
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC
from dpconvex.errors import DomainError


def write_adult(folder: Path, change: dict[str, str]) -> Path:
    row = dict.fromkeys(ADULT_NUMERIC, "3") | {name: levels[0] for name, levels in ADULT_LEVELS.items()}
    file = folder / "adult.csv.gz"
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*row, "label"])
        writer.writeheader()
        writer.writerow(row | {"label": ">50K"})
        writer.writerow(row | {"label": "<=50K"} | change)
    return file


def test_declared_levels_make_the_columns(tmp_path: Path) -> None:
    table = loaders.adult(write_adult(tmp_path, {"sex": "Male"}), check=False)
    assert table.width == 105
    assert table.y.tolist() == [1, -1]
    design = table.design().toarray()
    assert design.shape == (2, 105)
    assert (design >= 0).all()
    assert (design <= 1).all()
    assert (design[:, 6:].sum(axis=1) == 8).all()
    np.testing.assert_allclose(np.linalg.norm(table.design(unit=True).toarray(), axis=1), 1.0)
    np.testing.assert_allclose(table.design(maxima=True).toarray()[:, :6].max(axis=0), 1.0)


def test_an_undeclared_level_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=r"'race'.*'Martian'"):
        loaders.adult(write_adult(tmp_path, {"race": "Martian"}), check=False)


@pytest.mark.shared
def test_adult_counts(shared_data: Callable[[str], Path]) -> None:
    table = loaders.adult(shared_data("adult.csv.gz"))
    assert table.numeric.shape == (45_222, 6)
    assert int((table.y == 1).sum()) == 11_208
    assert (table.numeric >= table.lower).all()
    assert (table.numeric <= table.upper).all()
