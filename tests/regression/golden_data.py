"""The data sets of the golden files, scaled by bounds that are declared here and not read off the records.

A bound is what a unit of measurement or a scale allows, rounded generously.  For a release they would have to be as public as
they are here: by definition of the measurement, or from another source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from benchmarks import public_data as loaders
from dpconvex.datasets import breast_cancer as load_breast_cancer, unit_ball

Array = NDArray[np.float64]
Find = Callable[[str], Path]

# Every third record is for testing; the sets that are sorted by class keep their mix that way.
TEST_EVERY = 3
# Measured in grams, per cent, milligrams...: see the description of the set.
WINE = (
    (10, 0, 1, 10, 50, 0, 0, 0, 0, 0, 0, 1, 0),
    (16, 6, 4, 40, 200, 5, 6, 1, 5, 15, 2, 5, 2000),
)
# Mean, standard error and worst of ten features of cell nuclei.
NUCLEI = (
    (40, 50, 300, 3000, 0.3, 0.5, 0.6, 0.3, 0.5, 0.15),
    (4, 6, 30, 600, 0.05, 0.2, 0.5, 0.1, 0.1, 0.05),
    (50, 60, 300, 5000, 0.3, 1.2, 1.5, 0.4, 0.8, 0.25),
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records in the unit ball, shape (n, d), numbers of their classes, and the columns in their own units."""

    x: Array
    y: NDArray[np.int64]
    raw: Array

    @cached_property
    def test(self) -> NDArray[np.bool_]:
        """Which records are for testing, shape (n,)."""
        return np.arange(len(self.y)) % TEST_EVERY == TEST_EVERY - 1

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    def every(self, step: int) -> Dataset:
        """Return each `step`-th record, for tests that have little time."""
        return Dataset(self.x[::step], self.y[::step], self.raw[::step])


def scaled(raw: Array, lower: object, upper: object, y: Array) -> Dataset:
    """Scale by public bounds; a record outside them is an error."""
    return Dataset(unit_ball(raw, lower, upper), np.asarray(y, dtype=np.int64), raw)  # type: ignore[arg-type]


def iris(find: Find) -> Dataset:
    """Four lengths in cm: 150 records, 3 classes."""
    bunch = datasets.load_iris()
    return scaled(bunch.data, 0, 10, bunch.target)


def wine(find: Find) -> Dataset:
    """178 records, 13 features, 3 classes."""
    bunch = datasets.load_wine()
    return scaled(bunch.data, *WINE, bunch.target)


def digits(find: Find) -> Dataset:
    """Pictures of 8 x 8 counts from 0 to 16: 1,797 records, 10 classes."""
    bunch = datasets.load_digits()
    return scaled(bunch.data, 0, 16, bunch.target)


def small_digits(find: Find) -> Dataset:
    """The same pictures with 4 x 4 means."""
    bunch = datasets.load_digits()
    means = bunch.data.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    return scaled(means, 0, 16, bunch.target)


def breast_cancer(find: Find) -> Dataset:
    """Wisconsin, original: 683 records, nine gradings from 1 to 10; class 1 is malignant."""
    raw, labels = load_breast_cancer()
    return scaled(raw, 1, 10, labels == "malignant")


def diagnostic(find: Find) -> Dataset:
    """Wisconsin, diagnostic: 569 records, 30 features; class 1 is malignant."""
    bunch = datasets.load_breast_cancer()
    return scaled(bunch.data, 0, np.concatenate(NUCLEI), 1 - bunch.target)


def adult(find: Find) -> Dataset:
    """UCI Adult: 45,222 records, 105 columns, each record divided by its own norm; class 1 earns more than 50,000."""
    table = loaders.adult(find("adult.csv.gz"))
    return Dataset(table.design(unit=True).toarray(), (table.y > 0).astype(np.int64), table.numeric)


def kdd(find: Find) -> Dataset:
    """KDD Cup 1999, every seventh record of the 10 % file, 119 columns, each record of norm 1; class 1 is an attack."""
    table = loaders.kdd(find("kdd_10pct.csv.gz"))
    x = table.design(unit=True)[::7].toarray()
    return Dataset(x, (table.y[::7] != "normal").astype(np.int64), table.numeric[::7])


def letter(find: Find) -> Dataset:
    """UCI Letter Recognition: 20,000 records, 16 features, 26 classes."""
    return numbered(loaders.letter(find("letter_recognition.npz")))


def landsat(find: Find) -> Dataset:
    """UCI Statlog Landsat: 6,435 records, 36 features, 6 classes."""
    return numbered(loaders.landsat(find("satellite.npz")))


def numbered(table: loaders.Table) -> Dataset:
    """Scale by the loader's bounds and number the classes in the order of their names."""
    return scaled(table.numeric, table.lower, table.upper, np.unique(table.y, return_inverse=True)[1])
