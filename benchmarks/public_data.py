"""Loaders of public data sets that are not shipped: Adult, KDD Cup 1999, Letter Recognition, Landsat.

Every level of a categorical column and every bound of a numeric one is declared here, from the data sets' descriptions, and
not read off the records: a level that vanishes from the complete cases is still a column.  Files are looked for in the folder
named by the environment variable ``DPCONVEX_DATA``, then in ``~/.cache/dpconvex``.
"""

import csv
import gzip
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks import fewer
from benchmarks.levels import ADULT_LEVELS, ADULT_NUMERIC, KDD_COLUMNS, KDD_LEVELS, KDD_UNIT
from dpconvex.errors import DomainError
from dpconvex.util.arrays import Array

CHECKSUMS = {
    "adult.csv.gz": "56ab8712218c40aa8528a8b1f05c26de7e813bb596a592b3c84d25567cf7c56e",
    "kdd_10pct.csv.gz": "7bfaa8cef1350f72842018c32893e2fa4539d57efbb22f998eb74ecefc3da3b4",
    "letter_recognition.npz": "b31c53e91ba5e86a649be0b3c27f5a3651192f4f574751a5cc4e677a8042375d",
    "satellite.npz": "3431fb54b4d8ec826d6bbd4647da1bfe031333305a9751315ba9c326cea8a014",
}


@dataclass(frozen=True, eq=False)
class Table:
    """A table with declared columns: numbers with public bounds, and of each categorical column indices of its levels."""

    numeric: Array
    lower: Array
    upper: Array
    codes: NDArray[np.int64]
    levels: tuple[tuple[str, ...], ...]
    y: NDArray[Any]

    def design(self, maxima: bool = False, unit: bool = False) -> sp.csr_array:
        """Return numeric columns in [0, 1] and one-hot columns, sparse, shape (n, width).

        `maxima` divides numeric columns by their largest value, which looks at the data as published experiments do.  `unit`
        divides each record by its own norm.  Without it, rows have norm at most the square root of the number of columns.
        """
        if maxima:
            largest = np.abs(self.numeric).max(axis=0)
            scaled = self.numeric / np.where(largest > 0, largest, 1.0)
        else:
            clipped = np.clip(self.numeric, self.lower, self.upper)
            scaled = (clipped - self.lower) / (self.upper - self.lower)
        blocks = [sp.csr_array(scaled)]
        rows = np.arange(len(self.y))
        for column, levels in enumerate(self.levels):
            place = (rows, self.codes[:, column])
            blocks.append(sp.csr_array((np.ones(len(rows)), place), shape=(len(rows), len(levels))))
        table = sp.csr_array(sp.hstack(blocks, format="csr"))
        if unit:
            norms = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
            table = sp.csr_array(sp.diags_array(1.0 / np.where(norms > 0, norms, 1.0)) @ table)
        return table


def find(name: str) -> Path:
    """Find a data file, and check that it is the one that is meant."""
    folders = os.environ.get("DPCONVEX_DATA"), Path.home() / ".cache/dpconvex"
    files = [Path(folder) / name for folder in folders if folder]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        looked = ", ".join(map(str, files))
        raise DomainError(f"{name}: no such file (looked at {looked}); put it into the folder named by DPCONVEX_DATA.")
    if hashlib.sha256(found.read_bytes()).hexdigest() != CHECKSUMS[name]:
        raise DomainError(f"{found}: not the known {name} (its SHA-256 differs).")
    return found


def adult() -> Table:
    """Load UCI Adult, 45,222 complete cases, 105 columns (does a person earn more than 50,000 dollars a year; y is 1 or -1).

    B. Becker and R. Kohavi, UCI Machine Learning Repository, DOI 10.24432/C5XW20, CC BY 4.0.
    """
    with gzip.open(find("adult.csv.gz"), "rt", encoding="utf-8") as stream:
        rows = list(islice(csv.DictReader(stream), fewer(10**9)))
    numeric = np.array([[float(row[name]) for name in ADULT_NUMERIC] for row in rows])
    lower, upper = np.array(list(ADULT_NUMERIC.values())).T
    codes = [encoded(name, (row[name] for row in rows), levels) for name, levels in ADULT_LEVELS.items()]
    y = np.where(np.array([row["label"] for row in rows]) == ">50K", 1, -1)
    return Table(numeric, lower, upper, np.stack(codes, axis=1), tuple(ADULT_LEVELS.values()), y)


def kdd() -> Table:
    """Load KDD Cup 1999, the 10 % file: 494,021 records, 119 columns (is a network connection an attack; y is the label).

    UCI Machine Learning Repository, DOI 10.24432/C51C7N, CC BY 4.0.
    """
    with gzip.open(find("kdd_10pct.csv.gz"), "rt", encoding="utf-8") as stream:
        lines = stream.read().splitlines()[: fewer(10**9)]
    # Two thirds of the records are copies of others; each different one is read once.
    index: dict[str, int] = {}
    place = np.array([index.setdefault(line, len(index)) for line in lines], dtype=np.int64)
    numeric_names = [name for name in KDD_COLUMNS if name not in KDD_LEVELS]
    kept = [KDD_COLUMNS.index(name) for name in numeric_names]
    numeric = np.loadtxt(index, delimiter=",", usecols=kept, ndmin=2)[place]
    columns = list(zip(*csv.reader(index), strict=True))
    upper = np.array([1.0 if name in KDD_UNIT else numeric_bound(name) for name in numeric_names])
    codes = np.stack([encoded(name, columns[KDD_COLUMNS.index(name)], KDD_LEVELS[name]) for name in KDD_LEVELS], axis=1)
    y = np.array([label.rstrip(".") for label in columns[len(KDD_COLUMNS)]])
    return Table(numeric, np.zeros(len(upper)), upper, codes[place], tuple(KDD_LEVELS.values()), y[place])


def numeric_bound(name: str) -> float:
    """Return a public bound of a count of the KDD data: connections in a window of 512, of 256 per host, seconds, bytes."""
    if name in ("count", "srv_count"):
        return 512.0
    if name.startswith("dst_host"):
        return 256.0
    return 1e9 if name.endswith("bytes") else 1e5 if name == "duration" else 1e4


def letter() -> Table:
    """Load UCI Letter Recognition: 20,000 records, 16 features from 0 to 15, 26 classes (y holds the letter)."""
    return archived("letter_recognition.npz", 15.0)


def landsat() -> Table:
    """Load UCI Statlog Landsat: 6,435 records, 36 features from 0 to 255, 6 classes (y holds the name)."""
    return archived("satellite.npz", 255.0)


def archived(name: str, largest: float) -> Table:
    """Read an archive of features, class numbers and class names."""
    with np.load(find(name), allow_pickle=False) as archive:
        kept = fewer(len(archive["y"]))
        numeric, y = archive["X"][:kept].astype(float), archive["classes"][archive["y"][:kept]]
    bounds = np.zeros(numeric.shape[1]), np.full(numeric.shape[1], largest)
    return Table(numeric, *bounds, np.zeros((len(y), 0), dtype=np.int64), (), y)


def encoded(name: str, values: Iterable[str], levels: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the index of each value among the declared levels."""
    index = {level: k for k, level in enumerate(levels)}
    try:
        return np.array([index[value] for value in values], dtype=np.int64)
    except KeyError as error:
        raise DomainError(f"column {name!r}: the level {error} is not declared.") from error
