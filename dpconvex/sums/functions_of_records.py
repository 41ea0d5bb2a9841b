"""Entrywise functions of records as further fields, in their bounds."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import Columns, Stored, dense, in_memory
from dpconvex.data.domains import Box
from dpconvex.expressions.evaluate import over_records
from dpconvex.expressions.expression import Expression
from dpconvex.util.arrays import Array, frozen


def with_functions(batch: Batch, given: tuple[Mapping[str, Expression], Mapping[str, Box]]) -> Batch:
    """Return the records with functions of theirs: at once where they are in memory, else when they are read."""
    functions, domains = given
    fields = dict(batch.fields)
    for name, function in functions.items():
        columns = Columns(tuple(batch.fields[field] for field in names_in(function)))
        made = Stored(columns, partial(values, function, domains[name]), (batch.size, *function.shape))
        fields[name] = frozen(made[:]) if in_memory(made) else made
    return Batch(fields, batch.group)


def names_in(function: Expression) -> list[str]:
    return sorted(field.name for field in function.fields)


def values(function: Expression, domain: Box, columns: list[Array]) -> Array:
    """Return a function of some records, each a number for number operation on its record alone."""
    given = dict(zip(names_in(function), columns, strict=True))
    leaves: dict[Expression, Array] = {}
    leaves |= {field: np.moveaxis(dense(given[field.name]).astype(float), 0, -1) for field in function.fields}
    found = over_records([function], leaves)[function]
    return domain.project(np.ascontiguousarray(np.moveaxis(found, -1, 0)))
