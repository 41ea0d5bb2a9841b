"""Private choice among candidates by a score that one record moves by at most one.

Exponential mechanism (McSherry & Talwar 2007; Chaudhuri, Monteleoni & Sarwate 2011, algorithm 4) and permute-and-flip
(McKenna & Sheldon 2020), which is never worse in expectation at the same epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import TemplateError

SELECTIONS = ("permute-and-flip", "exponential")


def rate(epsilon: float, adjacency: str) -> float:
    """Return the factor of the mistakes in the exponent.

    Replacing a held-out record moves some counts up and others down by one, so the exponent is halved; adding a record moves
    all of them the same way or not at all, and the full epsilon may be used (the score is monotone).
    """
    return epsilon if adjacency == "add-remove" else epsilon / 2


def probabilities(mistakes: Sequence[int], epsilon: float, adjacency: str) -> NDArray[np.float64]:
    """Return the exponential mechanism's probabilities, proportional to ``exp(-rate * mistakes)``, shape (candidates,)."""
    counts = np.asarray(mistakes, dtype=float)
    weights = np.exp(-rate(epsilon, adjacency) * (counts - counts.min()))
    return np.asarray(weights / weights.sum())


def select(
    mistakes: Sequence[int], epsilon: float, adjacency: str, rng: np.random.Generator, how: str = "permute-and-flip"
) -> int:
    """Choose a candidate with few mistakes, epsilon-differentially privately."""
    if len(mistakes) == 0:
        raise TemplateError("select: there is no candidate to choose from.")
    if how not in SELECTIONS:
        raise TemplateError(f"select: the method must be one of {SELECTIONS}, not {how!r}.")
    if how == "exponential":
        edges = np.cumsum(probabilities(mistakes, epsilon, adjacency))
        return int(min(np.searchsorted(edges, rng.random() * edges[-1], side="right"), len(mistakes) - 1))
    counts = np.asarray(mistakes, dtype=float)
    chances = np.exp(-rate(epsilon, adjacency) * (counts - counts.min()))
    # A candidate with the fewest mistakes is accepted for sure, so one pass over a permutation ends.
    for candidate in rng.permutation(len(counts)):
        if rng.random() < chances[candidate]:
            return int(candidate)
    return int(np.argmin(counts))
