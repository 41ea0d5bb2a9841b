"""Entrywise functions of records as further fields, in their bounds."""

from collections.abc import Mapping

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import dense
from dpconvex.data.domains import Box
from dpconvex.expressions.evaluate import over_records
from dpconvex.expressions.expression import Expression
from dpconvex.util.arrays import Array, frozen


def with_functions(batch: Batch, given: tuple[Mapping[str, Expression], Mapping[str, Box]]) -> Batch:
    """Return the records with functions of theirs, each a number for number operation on its record alone."""
    functions, domains = given
    found = {name: domains[name].project(values(batch, function)) for name, function in functions.items()}
    return Batch({**batch.fields, **{name: frozen(column) for name, column in found.items()}}, batch.group)


def values(batch: Batch, function: Expression) -> Array:
    columns = ((field, dense(batch.fields[field.name][:]).astype(float)) for field in function.fields)
    leaves: dict[Expression, Array] = {field: np.moveaxis(column, 0, -1) for field, column in columns}
    return np.ascontiguousarray(np.moveaxis(over_records([function], leaves)[function], -1, 0))
