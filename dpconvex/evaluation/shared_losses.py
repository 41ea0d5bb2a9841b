"""Labels whose losses are one function of different leaves, and the records of a block that have them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.evaluation.outer_functions import OuterFunction
from dpconvex.evaluation.shared_forms import Label, LeafForm

__all__ = ["Affine", "Kind", "Share", "kinds_of"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


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

    @cached_property
    def outer(self) -> OuterFunction:
        """The outer function."""
        return OuterFunction(self.labels[0].lowered.program, self.labels[0].lowered.constants)

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
        if (
            not self.outer.is_scalar
            or self.labels[0].combine.shape[1] != 1
            or (len(known) < len(shifts) and len(shifts) > 1)
        ):
            return None
        found = []
        for entry in range(self.labels[0].combine.shape[0]):
            scale = np.array([label.combine[entry, 0] for label in self.labels])
            shift = np.array([s[entry] for s in known] or [0.0])
            found.append(Affine(*(t[0] if (t == t[0]).all() else t[self.place[group]] for t in (scale, shift))))
        return tuple(found)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that the outer function reads."""
        return self.labels[0].lowered.fields


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
    diagonal = entries == forms and all(is_diagonal(label.combine) for label in labels)
    scale = shift = None
    if diagonal and all(s is not None for s in shifts):
        scale = np.stack([label.combine.diagonal() for label in labels], axis=1)
        shift = np.stack([s for s in shifts if s is not None], axis=1)
    return Kind(members, tuple(labels), scale, shift)


def is_diagonal(table: Any) -> bool:
    """Whether all entries off the diagonal are 0."""
    row, column = table.nonzero()
    return bool((row == column).all())


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
        return self.kind.outer.is_scalar and (self.affine is not None or self.kind.outer.entries == 1)
