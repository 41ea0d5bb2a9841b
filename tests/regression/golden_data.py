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


def adult(find: Find) -> Dataset:
    """UCI Adult: 45,222 records, 105 columns, each record divided by its own norm; class 1 earns more than 50,000."""
    table = loaders.adult(find("adult.csv.gz"))
    return Dataset(table.design(unit=True).toarray(), (table.y > 0).astype(np.int64), table.numeric)


def letter(find: Find) -> Dataset:
    """UCI Letter Recognition: 20,000 records, 16 features, 26 classes."""
    return numbered(loaders.letter(find("letter_recognition.npz")))


def numbered(table: loaders.Table) -> Dataset:
    """Scale by the loader's bounds and number the classes in the order of their names."""
    return scaled(table.numeric, table.lower, table.upper, np.unique(table.y, return_inverse=True)[1])
