"""Labels whose losses are one function of different leaves, and the records of a block that have them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Expression
from dpconvex.evaluation.compiled import compiled_outer, double_precision
from dpconvex.evaluation.derivatives import gradient, hessian_product, is_scalar, value_and_slope, values
from dpconvex.evaluation.programs import Program, records_last
from dpconvex.evaluation.shared_forms import Label, LeafForm

__all__ = ["Affine", "Kind", "Share", "kinds_of", "padded"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# So many entries of leaves are gone through at a time in NumPy: what is made of them stays in a cache.
CACHED = 2**15


@dataclass(frozen=True, eq=False)
class Kind:
    """Labels whose outer functions differ in their leaves only.

    Attributes
    ----------
    members : ndarray of int
        Numbers of the labels.
    scale, shift : ndarray of shape (entries, labels) or None
        If each entry of the leaves is a multiple of the form of the same number, plus a constant, for all these labels.
    """

    members: Indices
    labels: tuple[Label, ...]
    scale: Array | None
    shift: Array | None

    @property
    def program(self) -> Program:
        """The outer function."""
        return self.labels[0].lowered.program

    @property
    def entries(self) -> int:
        """Number of entries of the leaves."""
        return len(self.labels[0].combine)

    @cached_property
    def scalar(self) -> bool:
        """Whether the outer function is one of numbers, which takes half the time where these depend on one of them."""
        return is_scalar(self.program) and self.entries > 0

    @cached_property
    def place(self) -> Indices:
        """Place of a label among those of the kind, by its number."""
        place = np.zeros(int(self.members.max()) + 1, dtype=np.int64)
        place[self.members] = np.arange(len(self.members))
        return place

    def affine(self, group: Indices) -> tuple[Affine, ...] | None:
        """Return the leaves of records with these labels, if numbers do, and the leaves depend on a single form."""
        shifts = [label.constant for label in self.labels]
        known = [shift for shift in shifts if shift is not None]
        if not self.scalar or self.labels[0].combine.shape[1] != 1 or (len(known) < len(shifts) and len(shifts) > 1):
            return None
        found = []
        for entry in range(len(self.labels[0].combine)):
            scale = np.array([label.combine[entry, 0] for label in self.labels])
            shift = np.array([s[entry] for s in known] or [0.0])
            found.append(Affine(*(t[0] if (t == t[0]).all() else t[self.place[group]] for t in (scale, shift))))
        return tuple(found)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that the outer function reads."""
        return self.labels[0].lowered.fields

    @property
    def constants(self) -> tuple[Array, ...]:
        """Numbers that the outer function reads."""
        return self.labels[0].lowered.constants

    def along_one(self, given: list[tuple[Array, Any]], fields: list[Array]) -> tuple[Array, Array]:
        """Values, and slopes by the one form that all leaves depend on, if the outer function is one of numbers."""
        return value_and_slope(self.program, given, fields, self.constants)

    def gradient(self, leaves: Array, fields: list[Array], padded_size: int = 0) -> tuple[Array, Array]:
        """Values and slopes by the leaves; with a size, compiled for so many records."""
        if padded_size:
            return self._compiled("gradient", leaves, [], fields, padded_size)
        found = [
            gradient(self.program, self._slots(leaves[:, k], [f[k] for f in fields]), k.stop - k.start)
            for k in self._pieces(leaves)
        ]
        return joined([value for value, _ in found]), joined([slope for _, slope in found])

    def hessian_product(self, leaves: Array, along: Array, fields: list[Array], padded_size: int = 0) -> Array:
        """Hessians by the leaves times directions."""
        if padded_size:
            return np.asarray(self._compiled("hessian_product", leaves, [along], fields, padded_size))
        return joined(
            [
                hessian_product(
                    self.program,
                    self._slots(leaves[:, k], [f[k] for f in fields]),
                    self.program.cut(along[:, k]),
                    k.stop - k.start,
                )
                for k in self._pieces(leaves)
            ]
        )

    def values(self, leaves: Array, fields: list[Array], padded_size: int = 0) -> Array:
        """Values for each record."""
        if padded_size:
            return np.asarray(self._compiled("record_values", leaves, [], fields, padded_size))
        return joined(
            [
                values(self.program, self._slots(leaves[:, k], [f[k] for f in fields]), k.stop - k.start)
                for k in self._pieces(leaves)
            ]
        )

    def _pieces(self, leaves: Array) -> list[slice]:
        count = leaves.shape[1]
        step = max(CACHED // max(self.entries, 1), 1)
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]

    def _slots(self, leaves: Array, fields: list[Array]) -> dict[Expression, Any]:
        return self.program.leaves(self.program.cut(leaves), [records_last(f) for f in fields], self.constants)

    def _compiled(self, name: str, leaves: Array, more: list[Array], fields: list[Array], size: int) -> Any:
        count = leaves.shape[1]
        columns = [padded(part, size) for part in (leaves, *more)]
        rows = tuple(np.concatenate([f, np.repeat(f[:1], size - count, axis=0)]) for f in fields)
        with double_precision():
            found = getattr(compiled_outer(self.program), name)(*columns, rows, self.constants)
            if isinstance(found, tuple):
                return tuple(np.asarray(part)[..., :count] for part in found)
            return np.asarray(found)[..., :count]


def joined(parts: list[Array]) -> Array:
    """Join arrays along the records."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def padded(leaves: Array, size: int) -> Array:
    """Repeat the first column until there are `size`: a value that occurs keeps every function finite."""
    missing = size - leaves.shape[1]
    return leaves if missing == 0 else np.concatenate([leaves, np.repeat(leaves[:, :1], missing, axis=1)], axis=1)


def kinds_of(form: LeafForm, present: Indices) -> list[Kind]:
    """Group the labels that occur in the data."""
    found: dict[Any, list[int]] = {}
    for number in present.tolist():
        lowered = form.labels[number].lowered
        numbers = tuple((c.shape, c.tobytes()) for c in lowered.constants)
        found.setdefault((lowered.program, lowered.fields, numbers), []).append(number)
    return [kind_of([form.labels[m] for m in members], np.array(members)) for members in found.values()]


def kind_of(labels: list[Label], members: Indices) -> Kind:
    """Return the kind of labels with equal outer functions."""
    shifts = [label.constant for label in labels]
    entries, forms = labels[0].combine.shape
    diagonal = entries == forms and all((label.combine == np.diag(np.diag(label.combine))).all() for label in labels)
    scale = shift = None
    if diagonal and all(s is not None for s in shifts):
        scale = np.stack([np.diag(label.combine) for label in labels], axis=1)
        shift = np.stack([s for s in shifts if s is not None], axis=1)
    return Kind(members, tuple(labels), scale, shift)


@dataclass(frozen=True, eq=False)
class Affine:
    """A leaf as a multiple of a form, plus a constant: numbers, or arrays with one for each record.

    The constant does not count where it depends on the record in another way; then there is only one label.
    """

    scale: Any
    shift: Any


@dataclass(frozen=True, eq=False)
class Share:
    """The records of one kind in one block: which, in order of their labels, and where each label's begin."""

    kind: Kind
    rows: Indices | None
    ends: tuple[int, ...]
    size: int
    affine: tuple[Affine, ...] | None = None  # where `rows` is None, the leaves if a single form has them all

    @property
    def scalar(self) -> bool:
        """Whether the outer function is one of numbers that depend on one of them."""
        return self.kind.scalar and (self.affine is not None or self.kind.entries == 1)
