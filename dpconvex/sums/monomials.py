"""Functions of records as further fields: monomials that scores read, entrywise functions, and parameters picked by levels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.data.batch import Batch
from dpconvex.data.columns import Columns, Stored, dense, flattened
from dpconvex.data.domains import Ball, Box
from dpconvex.data.record import Record
from dpconvex.expressions.evaluate import over_records
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import INSIDE
from dpconvex.sensitivity.picked_parameters import Picked
from dpconvex.sums.design import Design
from dpconvex.sums.forms import LeafForm
from dpconvex.sums.programs import LANES
from dpconvex.util.arrays import Array, Indices, frozen

NAME = " scores"  # The batch field of the monomials
# Functions by field name, the record with these fields, and the new index of each combination of levels (None: unchanged).
RecordFunctions = tuple[Mapping[str, Expression | Picked], Record, Indices | None]


@dataclass(frozen=True, eq=False)
class Monomials:
    """Products of one or two scalars of a record, divided by bounds. Rows are clipped, even if these bounds are wrong."""

    fields: tuple[str, ...]
    first: Indices  # Indices of these fields' scalars; -1 stands for 1
    second: Indices
    bounds: Array  # shape (monomials,)
    radius: float

    @classmethod
    def of(cls, design: Design, chosen: Indices, domains: Mapping[str, Ball | Box]) -> "Monomials":
        """Return the chosen monomials of a design."""
        first, second = (part[chosen] for part in design.pairs) if design.pairs else (np.full(len(chosen), -1), chosen)
        sizes = [int(np.prod(domains[name].shape)) for name in design.fields]
        owner = np.append(np.repeat(np.arange(len(sizes)), sizes), -1)
        used = np.setdiff1d(owner[np.concatenate([first, second])], -1)
        kept = np.isin(owner, used)
        place = np.where(kept, np.cumsum(kept) - 1, -1)
        fields = tuple(design.fields[k] for k in used)
        norms = np.append([float(domains[name].norm_bound) or 1.0 for name in design.fields], 1.0)
        pairs = np.stack([owner[first], owner[second]])
        radius = max(float(np.sqrt(np.unique(pairs, axis=1).shape[1])), 1.0)
        return cls(fields, place[first], place[second], norms[pairs].prod(axis=0), radius)

    def __call__(self, columns: list[Any]) -> Array:
        """Return the rows of records, shape (n, monomials)."""
        *own, group = columns
        scalars = np.concatenate([*(dense(flattened(column)) for column in own), np.ones((len(group), 1))], axis=1)
        # The same order of numbers for one record and for many, so that sums of a record's squares have the same bits.
        rows = np.ascontiguousarray(scalars[:, self.first] * scalars[:, self.second] / self.bounds)
        lengths = np.sqrt((rows**2).sum(axis=1))
        far = ~(lengths <= self.radius)
        rows[far] = np.nan_to_num(rows[far] * (self.radius / lengths[far] * INSIDE)[:, None])
        return np.asarray(rows)

    def column(self, batch: Batch) -> Any:
        """Return the rows of all records, computed when they are read."""
        columns = Columns((*(batch.fields[name] for name in self.fields), batch.group))
        return Stored(columns, self, (batch.size, len(self.first)))

    def tabulated(self, form: LeafForm, chosen: Indices) -> LeafForm:
        """Return the form in terms of these monomials, with unchanged offsets."""
        old, more = form.design, len(chosen)
        count = more + old.count
        onto = sp.csr_array(
            (np.append(self.bounds, 1.0), (np.append(np.arange(more), count - 1), np.append(chosen, old.count - 1))),
            shape=(count, old.count),
        )
        offsets = [np.pad(label.offset, ((0, 0), (more, 0))) for label in form.labels]
        read = np.any([offset[:, :-1].any(axis=0) for offset in offsets], axis=0)
        spans = {name: slice(span.start + more, span.stop + more) for name, span in old.columns.items()}
        columns = {NAME: slice(0, more)} | {name: span for name, span in spans.items() if read[span].any()}
        design = replace(old, count=count, columns=columns, pairs=old.pairs if len(columns) > 1 else None)
        labels = tuple(replace(label, offset=offset) for label, offset in zip(form.labels, offsets, strict=True))
        return LeafForm(labels, design, sp.csr_array(sp.kron(sp.eye_array(form.forms), onto) @ form.map))


def with_functions(batch: Batch, given: RecordFunctions) -> Batch:
    """Return the batch with functions as further fields: at once for arrays in memory, otherwise when they are read."""
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
    """Return the values of a function at some records; the bits of each value depend on its own record alone."""
    *given, group = columns
    if isinstance(function, Picked):
        inner = values_of(function.function, given) if given else function.function.number[None]
        found = function.table[group][:, :, None] * inner[:, None, :]
    else:
        found = values_of(function, given)
    # Intermediate results may overflow although the bounds do not, such as 0 * x**8: NaN counts as 0.
    return domain.project(np.nan_to_num(np.ascontiguousarray(found.reshape(len(group), *domain.shape))))


def values_of(function: Expression, columns: list[Array]) -> Array:
    """Return the values of an entrywise function. Records are padded to a multiple of `LANES`, so that all are computed alike."""
    count = columns[0].shape[0]
    columns = [np.resize(dense(column), (count + -count % LANES, *column.shape[1:])) for column in columns]
    leaves: dict[Expression, Array] = {
        field: np.moveaxis(column.astype(float), 0, -1)
        for field, column in zip(sorted(function.fields, key=lambda field: field.name), columns, strict=True)
    }
    return np.asarray(np.moveaxis(over_records([function], leaves)[function], -1, 0)[:count])
