"""Labels whose losses are one function of different leaves, and the records of a block that have them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.evaluation.outer_functions import OuterFunction
from dpconvex.evaluation.shared_forms import Label, LeafForm

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Labels whose tables have more numbers than this are not compared; nor are more than so many forms of a label's own worth it.
LARGEST_SPREAD, MOST_TERMS = 2**22, 2


@dataclass(frozen=True, eq=False)
class Spread:
    """Leaves of a label as some that all labels share, plus a multiple of one direction: ``combine = common + direction own'``.

    So are the scores of all classes, less that of one's own.  Then records need not be sorted by their labels.

    Attributes
    ----------
    common : csr_array, shape (entries, forms)
    back : csr_array, shape (forms, entries)
        Its transpose.
    direction : ndarray, shape (entries,)
    places, weights : ndarray, shape (terms, labels)
        Each label's own: forms, and by what they are multiplied.
    """

    common: sp.csr_array
    back: sp.csr_array
    direction: Array
    places: Indices
    weights: Array

    def leaves(self, forms: Array, labels: Indices) -> Array:
        """Leaves from the forms of records with these labels, shape (entries, records)."""
        records, own = np.arange(len(labels)), np.zeros(len(labels))
        for place, weight in zip(self.places, self.weights, strict=True):
            own += weight[labels] * forms[place[labels], records]
        found = self.common @ forms
        found += self.direction[:, None] * own
        return np.asarray(found)

    def slopes(self, part: Array, labels: Indices) -> Array:
        """Slopes by the forms from those by the leaves, shape (forms, records)."""
        records, found = np.arange(len(labels)), self.back @ part
        along = np.einsum("e,en->n", self.direction, part)
        for place, weight in zip(self.places, self.weights, strict=True):
            found[place[labels], records] += weight[labels] * along
        return np.asarray(found)


def spread_of(labels: list[Label]) -> Spread | None:
    """Write the leaves of labels in this way; None if they are not of this kind."""
    first = labels[0].combine
    if len(labels) < 2 or len(labels) * np.prod(first.shape) > LARGEST_SPREAD:
        return None
    tables = np.stack([t.toarray() if sp.issparse(t) else t for t in (label.combine for label in labels)])
    apart = tables - tables[0]
    label, entry, form = (int(k) for k in np.unravel_index(np.argmax(np.abs(apart)), apart.shape))
    if apart[label, entry, form] == 0:
        return None
    direction = apart[label, :, form] / apart[label, entry, form]
    own = apart[:, entry]
    terms = int((own != 0).sum(axis=1).max())
    if terms > MOST_TERMS or (apart != direction[:, None] * own[:, None]).any():
        return None
    places = np.argsort(own == 0, axis=1, kind="stable")[:, :terms]
    weights = np.take_along_axis(own, places, axis=1)
    common = sp.csr_array(tables[0])
    return Spread(common, sp.csr_array(common.T), direction, places.T.copy(), weights.T.copy())


@dataclass(frozen=True, eq=False)
class Kind:
    """Labels whose outer functions differ in their leaves only.

    Attributes
    ----------
    members : ndarray of int
        Numbers of the labels.
    scale, shift : ndarray of shape (entries, labels) or None
        If each entry of the leaves is a multiple of the form of the same number, plus a constant, for all these labels.
        Only the constants, if there is a `spread`.
    spread : Spread or None
    """

    members: Indices
    labels: tuple[Label, ...]
    scale: Array | None
    shift: Array | None
    spread: Spread | None = None

    @property
    def together(self) -> bool:
        """Whether the leaves of records with different labels are found by the same operations."""
        return self.scale is not None or self.spread is not None

    @cached_property
    def outer(self) -> OuterFunction:
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
    scale = shift = spread = None
    if all(s is not None for s in shifts):
        scale = np.stack([label.combine.diagonal() for label in labels], axis=1) if diagonal else None
        shift = np.stack([s for s in shifts if s is not None], axis=1)
        spread = None if diagonal else spread_of(labels)
    return Kind(members, tuple(labels), scale, shift, spread)


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
