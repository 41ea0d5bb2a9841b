"""Private choice among candidates by a score that one record moves by at most one.

Exponential mechanism (McSherry & Talwar 2007; Chaudhuri, Monteleoni & Sarwate 2011, algorithm 4) and permute-and-flip
(McKenna & Sheldon 2020), which is never worse in expectation at the same epsilon.  Both take candidates in random order until one
is accepted, with a probability of exactly ``exp(-rate * excess mistakes)``: with replacement, and without.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpconvex.errors import TemplateError
from dpconvex.noise.samplers import accepts, below

SELECTIONS = ("permute-and-flip", "exponential")


def rate(epsilon: float, adjacency: str) -> float:
    """Return the factor of the mistakes in the exponent.

    Replacing a held-out record moves some counts up and others down by one, so the exponent is halved; adding a record moves
    all of them the same way or not at all, and the full epsilon may be used (the score is monotone).
    """
    return epsilon if adjacency == "add-remove" else epsilon / 2


def select(
    mistakes: Sequence[int],
    epsilon: float,
    adjacency: str,
    rng: np.random.Generator | None = None,
    how: str = "permute-and-flip",
) -> int:
    """Choose a candidate with few mistakes, epsilon-differentially privately; with a generator, for tests, not privately."""
    if len(mistakes) == 0:
        raise TemplateError("select: there is no candidate to choose from.")
    if how not in SELECTIONS:
        raise TemplateError(f"select: the method must be one of {SELECTIONS}, not {how!r}.")
    factor, fewest = Fraction(rate(epsilon, adjacency)), min(mistakes)
    left = list(range(len(mistakes)))
    while True:  # a candidate with the fewest mistakes is accepted for sure
        place = below(len(left), rng)
        candidate = left[place]
        if accepts(factor * int(mistakes[candidate] - fewest), rng):
            return candidate
        if how == "permute-and-flip":
            del left[place]
