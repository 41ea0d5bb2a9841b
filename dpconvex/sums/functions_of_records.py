"""Functions of records as further fields, in their bounds: entrywise ones, and those that a record's levels pick."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import Columns, Stored, dense
from dpconvex.data.domains import Ball, Box
from dpconvex.data.record import Record
from dpconvex.expressions.evaluate import over_records
from dpconvex.expressions.expression import Expression
from dpconvex.sensitivity.picked_parameters import Picked
from dpconvex.sums.programs import LANES
from dpconvex.util.arrays import Array, Indices, frozen

# Functions by the names of their fields, the record that has these, and, by combination of levels, which is left of them.
Made = tuple[Mapping[str, Expression | Picked], Record, Indices | None]


def with_functions(batch: Batch, given: Made) -> Batch:
    """Return the records with functions of theirs: at once where they are arrays in memory, else when they are read."""
    functions, record, groups = given
    fields = dict(batch.fields)
    for name, function in functions.items():
        read = function.function if isinstance(function, Picked) else function
        columns = Columns((*(batch.fields[field] for field in sorted(own.name for own in read.fields)), batch.group))
        made = Stored(
            columns, partial(values, function, record.continuous[name]), (batch.size, *record.continuous[name].shape)
        )
        at_once = all(type(column) is np.ndarray for column in columns.columns)  # sparse ones may be too wide
        fields[name] = frozen(made[:]) if at_once else made
    return Batch(fields, batch.group if groups is None else frozen(groups[batch.group]))


def values(function: Expression | Picked, domain: Ball | Box, columns: list[Array]) -> Array:
    """Return a function of some records, each a number for number operation on its record alone."""
    *given, group = columns
    if isinstance(function, Picked):
        inner = values_of(function.function, given) if given else function.function.number[None]
        found = function.table[group][:, :, None] * inner[:, None, :]
    else:
        found = values_of(function, given)
    # Steps may overflow whose bounds do not, such as 0 * x**8: no number is taken to be 0.
    return domain.project(np.nan_to_num(np.ascontiguousarray(found.reshape(len(group), *domain.shape))))


def values_of(function: Expression, columns: list[Array]) -> Array:
    """Return an entrywise function; records are filled up to a multiple of `LANES`, in which one is computed like any other."""
    count = columns[0].shape[0]
    columns = [np.resize(dense(column), (count + -count % LANES, *column.shape[1:])) for column in columns]
    leaves: dict[Expression, Array] = {
        field: np.moveaxis(column.astype(float), 0, -1)
        for field, column in zip(sorted(function.fields, key=lambda field: field.name), columns, strict=True)
    }
    return np.asarray(np.moveaxis(over_records([function], leaves)[function], -1, 0)[:count])
