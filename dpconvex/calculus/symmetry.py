"""Pairs of losses that are alike: one pair is the other with its generators in another order.

With C classes there are C(C+1)/2 pairs of labels, but mostly only two kinds: equal labels, and different ones.  Bounds that
take long are found once for each kind.  That two pairs are of one kind is read off their vertices and the weights of all
forms, exactly.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.gram import Gram

__all__ = ["Symmetry"]

Array = NDArray[np.float64]


class Symmetry:
    """Recognises sets of vertices that differ in the order of generators and of vertices only.

    Parameters
    ----------
    gram : Gram
    """

    def __init__(self, gram: Gram) -> None:
        self._weights = np.array([form.weight for form in gram.forms])
        # Numbers of what has been seen, so that comparing is quick; equal numbers mean equal bytes.
        self._columns: dict[tuple[Hashable, ...], int] = {}
        self._profiles: dict[int, tuple[Array, list[int]]] = {}

    def key(self, *sets: Array) -> Hashable:
        """Return what two lists of vertex sets share only if they are alike.

        Parameters
        ----------
        sets : ndarray, shape (vertices, generators) each

        Notes
        -----
        Generators are put in an order that does not depend on their numbers, ties aside; then so are the vertices.  Equal keys
        hold equal arrays, so one permutation of the generators takes one list, and the weights of all forms, to the other.
        Where ties are broken differently, keys of lists that are alike may differ, which only costs time.
        """
        profiles = [self._profile(vertices) for vertices in sets]
        order = np.array(sorted(range(sets[0].shape[1]), key=lambda g: tuple(profile[g] for profile in profiles)))
        parts = [len(self._weights), self._weights[:, order][:, :, order].tobytes()]
        for vertices in sets:
            moved = vertices[:, order] + 0.0  # -0 is 0
            parts += [moved.shape, moved[np.lexsort(moved.T)].tobytes()]
        return tuple(parts)

    def _profile(self, vertices: Array) -> list[int]:
        """Return a number for each generator: the same for generators with the same entries and the same weights."""
        known = self._profiles.get(id(vertices))
        if known is None:
            own = [self._weights[:, g, g].tobytes() for g in range(vertices.shape[1])]
            columns = np.sort(vertices + 0.0, axis=0)
            keys = [(own[g], columns[:, g].tobytes()) for g in range(vertices.shape[1])]
            known = vertices, [self._columns.setdefault(key, len(self._columns)) for key in keys]
            self._profiles[id(vertices)] = known
        return known[1]
