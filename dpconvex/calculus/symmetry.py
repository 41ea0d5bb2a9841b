"""Pairs of losses that are alike: one pair is the other with its generators in another order.

With C classes there are C(C+1)/2 pairs of labels, but mostly only two kinds: equal labels, and different ones.  Bounds that
take long are found once for each kind.  That two pairs are of one kind is read off their vertices and the weights of all
forms, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.gram import Gram

Array = NDArray[np.float64]
Index = NDArray[np.int64]
T = TypeVar("T")


class Symmetry:
    """Recognises sets of vertices that differ in the order of generators and of vertices only."""

    def __init__(self, gram: Gram) -> None:
        self._gram = gram
        # Numbers of what has been seen, so that comparing is quick; equal numbers mean equal bytes.
        self._columns: dict[tuple[Hashable, ...], int] = {}
        self._profiles: dict[int, tuple[Array, dict[int, int]]] = {}
        self._sparse: dict[int, tuple[Array, tuple[Index, Index, Index]]] = {}
        self._found: dict[Hashable, Any] = {}

    def key(self, *sets: Array) -> Hashable:
        """Return what two lists of vertex sets, shape (vertices, generators) each, share only if they are alike.

        Generators that occur are put in an order that does not depend on their numbers, ties aside; then so are the vertices.
        Equal keys stand for equal arrays (by a hash of them), so one permutation of the generators takes one list, and the
        weights of all forms, to the other.  Where ties are broken differently, keys of lists that are alike may differ, which
        only costs time.
        """
        profiles = [self._profile(vertices) for vertices in sets]
        ranked = sorted((*(p.get(g, -1) for p in profiles), g) for g in set().union(*profiles))
        order = np.array([rank[-1] for rank in ranked], dtype=np.int64)
        weights = self._kinds[order] if self._exchangeable else self._weights[np.ix_(order, order)]
        digest = sha256(weights.tobytes())
        rank = np.empty(len(self._kinds), dtype=np.int64)
        rank[order] = np.arange(len(order))
        for vertices in sets:
            # Of each vertex the places and the entries that are not 0, in order.
            row, column, entry = self._entries(vertices)
            moved = np.lexsort([rank[column], row])
            content = np.stack([rank[column[moved]], entry[moved]], axis=1).tobytes()
            ends = (16 * np.cumsum(np.bincount(row, minlength=len(vertices)))).tolist()
            rows = sorted(content[a:b] for a, b in pairwise([0, *ends]))
            digest.update(repr([len(part) for part in rows]).encode() + b"".join(rows))
        return digest.digest()

    def once(self, facts: Hashable, points: Array, find: Callable[[], T]) -> T:
        """Return what is found of a set of points and further facts, which holds for all that are alike."""
        key = facts, self.key(points)
        if key not in self._found:
            self._found[key] = find()
        found: T = self._found[key]
        return found

    def _entries(self, vertices: Array) -> tuple[Index, Index, Index]:
        """Return rows, columns and bits of the entries that are not 0, row by row."""
        known = self._sparse.get(id(vertices))
        if known is None:
            row, column = np.nonzero(vertices)
            known = vertices, (row, column, vertices[row, column].view(np.int64))
            self._sparse[id(vertices)] = known
        return known[1]

    @cached_property
    def _weights(self) -> Index:
        """A number for each pair of generators: the same for pairs with the same weights in all forms."""
        count = len(self._gram.generators)
        result = np.zeros(count**2, dtype=np.int64)
        for form in self._gram.forms:
            weight = form.weight.ravel()
            place = np.flatnonzero((weight != 0) | (result != 0))  # mostly few
            distinct, number = np.unique(np.append(weight[place], 0.0), return_inverse=True)
            codes = np.append(result[place], 0) * len(distinct) + number
            own = np.unique(codes, return_inverse=True)[1].ravel()
            # What is 0 in all forms keeps the number 0.
            result[place] = np.where(own[:-1] == own[-1], 0, own[:-1] + 1)
        return result.reshape(count, count)

    @cached_property
    def _kinds(self) -> Index:
        """A number for each generator: its weight with itself."""
        return np.ascontiguousarray(np.diag(self._weights))

    @cached_property
    def _exchangeable(self) -> bool:
        """Whether the weights of two generators depend on their kinds alone, so that all of a kind may change places."""
        if not len(self._kinds):
            return True
        number = np.unique(self._kinds, return_inverse=True)[1].ravel()
        side = int(number.max()) + 1
        apart = ~np.eye(len(number), dtype=bool)
        place, weights = (number[:, None] * side + number[None, :])[apart], self._weights[apart]
        least, most = np.full(side**2, np.iinfo(np.int64).max), np.full(side**2, -1)
        np.minimum.at(least, place, weights)
        np.maximum.at(most, place, weights)
        return bool((least >= most).all())

    def _profile(self, vertices: Array) -> dict[int, int]:
        """Return a number for each generator that occurs: the same for generators of a kind with the same entries."""
        known = self._profiles.get(id(vertices))
        if known is None:
            used = np.flatnonzero((vertices != 0).any(axis=0))
            columns = np.sort(vertices[:, used] + 0.0, axis=0).T.copy()
            keys = [(int(kind), column.tobytes()) for kind, column in zip(self._kinds[used], columns, strict=True)]
            numbers = [self._columns.setdefault(key, len(self._columns)) for key in keys]
            known = vertices, dict(zip(used.tolist(), numbers, strict=True))
            self._profiles[id(vertices)] = known
        return known[1]
