"""Private tuning: candidates are trained on disjoint parts of the data, and one is chosen on a part of its own.

Every record takes part in one fit or in the choice, never in two, so the whole costs what one of them costs (Chaudhuri,
Monteleoni & Sarwate 2011, algorithm 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.selection import SELECTIONS, select
from dpconvex.noise import seeded_generator, system_generator
from dpconvex.privacy import Budget, Privacy
from dpconvex.release import Release
from dpconvex.solve import solve
from dpconvex.template import Template
from dpconvex.verify import verify

__all__ = ["Tuning", "tune"]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The outcome of a private choice.

    Attributes
    ----------
    choice : str
        Name of the chosen candidate.
    release : Release
        The chosen candidate's fit.
    spent : Privacy or None
        What the whole cost: the fits, the choice and the release together.  None if a seed was given.
    """

    choice: str
    release: Release
    spent: Privacy | None


def tune(
    candidates: Mapping[str, Template] | Sequence[Template],
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    selection: str = "permute-and-flip",
    features: str = "x",
    label: str = "y",
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    seed: int | None = None,
) -> Tuning:
    """Fit several templates privately and choose one privately; the whole keeps one promise.

    Parameters
    ----------
    candidates : mapping of str to Template, or sequence of Template
        Public: fixed without looking at the data.  Each needs `predict` and the same record fields.
    data : mapping of str to array_like
    privacy : Privacy
        The promise of the whole.
    mechanism : Mechanism, optional
    backend : str or object, optional
    selection : {"permute-and-flip", "exponential"}
    features, label : str
        The fields that predictions are made from and compared with.
    size : int, optional
        Under add-remove, a public nominal number of records.
    clip : bool
        Project records onto their declared domain instead of raising.
    budget : Budget, optional
        A ledger that the cost is recorded in before the data are read.
    seed : int, optional
        For tests; the outcome is then not private.

    Returns
    -------
    Tuning

    Raises
    ------
    NotPrivate
        If a candidate has no proof; no data are read.
    TemplateError
        If there are fewer records than parts, or a candidate cannot predict.

    Notes
    -----
    With m candidates there are m + 1 parts.  Under replace-one the parts are a public random split of the positions; under
    add-remove every record chooses its part by itself, so that adding one does not move the others.
    """
    named = dict(candidates) if isinstance(candidates, Mapping) else {str(k): c for k, c in enumerate(candidates)}
    check(named, selection)
    columns = {name: np.asarray(column) for name, column in data.items()}
    counted = len(next(iter(columns.values()))) if columns else 0
    count = public_count(privacy, size, counted)
    share = count // (len(named) + 1)
    if share < 1:
        raise TemplateError(f"tune: {count} records cannot be split into {len(named) + 1} parts.")
    for template in named.values():
        verify(template, privacy, share, mechanism)
    if budget is not None:
        budget.spend(privacy, "tune")
    rng = system_generator() if seed is None else seeded_generator(seed)
    held_out = next(iter(named.values())).record.validate(columns, clip=clip)
    part = parts(counted, len(named) + 1, privacy.adjacency, rng)
    releases = []
    for k, template in enumerate(named.values()):
        mine = {name: column[part == k] for name, column in columns.items()}
        nominal = share if privacy.adjacency == "add-remove" else None
        stream = None if seed is None else seed + k
        releases.append(solve(template, mine, privacy, mechanism, backend, size=nominal, clip=clip, seed=stream))
    rows = np.flatnonzero(part == len(named))
    truth = np.array(columns[label], dtype=object)[rows]
    x = held_out.fields[features][rows]
    mistakes = [int(np.sum(release.predict(x) != truth)) if len(rows) else 0 for release in releases]
    chosen = select(mistakes, privacy.epsilon, privacy.adjacency, rng, selection)
    return Tuning(list(named)[chosen], releases[chosen], privacy if seed is None else None)


def check(named: Mapping[str, Template], selection: str) -> None:
    """Refuse an empty list, candidates that cannot predict, and unknown methods."""
    if not named:
        raise TemplateError("tune: there is no candidate to choose from.")
    if selection not in SELECTIONS:
        raise TemplateError(f"tune: selection must be one of {SELECTIONS}, not {selection!r}.")
    for name, template in named.items():
        if not isinstance(template, Template):
            raise TemplateError(f"tune: candidate {name!r} is not a Template but {type(template).__name__}.")
        if template.predict is None:
            raise TemplateError(f"tune: candidate {name!r} declares no predict, so its mistakes cannot be counted.")


def public_count(privacy: Privacy, size: int | None, counted: int) -> int:
    """Return the public number of records."""
    if privacy.adjacency == "add-remove":
        if size is None:
            raise NotPrivate(
                "under add-remove adjacency the number of records is private, and the parts depend on it",
                None,
                "pass a public nominal number of records as `size`",
            )
        return size
    if size is not None and size != counted:
        raise TemplateError(f"tune: size is {size}, but there are {counted} records.")
    return counted


def parts(size: int, count: int, adjacency: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Assign each record to a part, without looking at the records, shape (size,)."""
    if adjacency == "add-remove":
        return np.asarray(rng.integers(0, count, size=size))
    assigned = np.arange(size) % count
    # Parts differ in size by at most one; a fit's own size is the number of records in its part, which is public here.
    return np.asarray(rng.permutation(assigned))
