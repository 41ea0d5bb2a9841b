"""Results of an audit: claimed and found values for each part of a guarantee, with the worst neighbours."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpconvex.auditing.laws import Masses
from dpconvex.model.privacy import Privacy
from dpconvex.util.arrays import Array
from dpconvex.util.markup import html_table, paragraph
from dpconvex.util.plain_data import json_numbers

Place = Mapping[str, Any] | None
Row = tuple[str, str, str, str]
HEAD: Row = ("", "claimed", "found", "ratio")

# Largest relative excess over a claim that rounding explains, in the certificate and in the attack.
TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Attack:
    """An attack on one part of a guarantee.

    `found_epsilon` is a lower bound on epsilon at the claimed delta, and `found_delta` one on delta at the claimed epsilon; NaN
    if not computed.  `record` and `neighbour` are the differing records of the two data sets, None if absent.  `slope` is the
    gradient of the remaining data, unnormalised, and `answer` a point with a large privacy loss.  `what` names the quantity
    that replaces epsilon.  `masses` holds the answer's distribution under each data set.
    """

    part: str
    epsilon: float
    delta: float
    found_epsilon: float
    found_delta: float
    how: str
    what: str = "epsilon"
    record: Place = None
    neighbour: Place = None
    slope: Mapping[str, Array] = field(default_factory=dict)
    answer: Mapping[str, Array] = field(default_factory=dict)
    masses: Masses | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Found over claimed value, of epsilon if the claim is pure, of delta otherwise.  At most 1 if the claim holds."""
        found, claimed = (self.found_epsilon, self.epsilon) if self.delta == 0 else (self.found_delta, self.delta)
        return found / claimed if claimed > 0 else math.inf if found > 0 else 1.0

    @property
    def holds(self) -> bool:
        return not self.ratio > 1 + TOLERANCE

    def rows(self) -> Iterator[Row]:
        pairs = (self.what, self.epsilon, self.found_epsilon), ("delta", self.delta, self.found_delta)
        for name, claimed, found in pairs:
            if not math.isnan(found) and (name != "delta" or claimed > 0 or found > 0):
                share = f"{found / claimed:.4f}" if claimed > 0 else ""
                yield f"{self.part}: {name}", f"{claimed:.6g}", f"{found:.6g}", share

    def places(self) -> Iterator[tuple[str, str]]:
        if self.record is not None or self.neighbour is not None:
            yield "one data set has", place_text(self.record)
            yield "the other has", place_text(self.neighbour)
            some = any(np.any(value) for value in self.slope.values())
            yield "the rest of the data", f"gradient {place_text(self.slope)}" if some else "nothing"
        if self.answer:
            yield "seen at", place_text(self.answer)
        yield "by", self.how
        yield from (("note", note) for note in self.notes)


@dataclass(frozen=True, eq=False)
class Audit:
    """Results of an attack on a whole guarantee.

    Attributes
    ----------
    privacy : Privacy
        The guarantee.
    mechanism : str
    attacks : tuple of Attack
        One attack for each part of the guarantee.  Their epsilons and deltas add up to it.
    """

    privacy: Privacy
    mechanism: str
    attacks: tuple[Attack, ...]

    @property
    def holds(self) -> bool:
        """Whether no claim was broken."""
        return all(attack.holds for attack in self.attacks)

    @property
    def worst(self) -> Attack:
        """The attack with the largest excess over its claim; the first part, if no claim is broken."""
        broken = [attack for attack in self.attacks if not attack.holds]
        return max(broken, key=lambda attack: attack.ratio) if broken else self.attacks[0]

    @property
    def ratio(self) -> float:
        """Found value over claimed value, for `worst`. If the certificate holds, this bounds its tightness from below."""
        return self.worst.ratio

    def __getitem__(self, part: str) -> Attack:
        for attack in self.attacks:
            if attack.part == part:
                return attack
        raise KeyError(f"{part!r}; attacked were: {', '.join(attack.part for attack in self.attacks)}")

    @property
    def verdict(self) -> str:
        if self.holds:
            return "No claim was broken."
        broken = ", ".join(attack.part for attack in self.attacks if not attack.holds)
        said = "This is a defect of dpconvex; please report it with the template and what is printed here"
        return f"BROKEN: {broken}. More was found than claimed. {said} (unless certificate or code was changed)."

    def __str__(self) -> str:
        lines = [f"Audit of {self.mechanism}, {self.privacy}", self.verdict, "", *table_lines(HEAD, self._rows())]
        for attack in self.attacks:
            lines += ["", attack.part, *(f"  {name}: {place}" for name, place in attack.places())]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return paragraph(self.verdict) + html_table(HEAD, self._rows(), numbers=(1, 2, 3))

    def _rows(self) -> Iterator[Row]:
        return (row for attack in self.attacks for row in attack.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return all results except the distributions, as JSON-able data."""
        every = (vars(attack) | {"ratio": attack.ratio, "holds": attack.holds} for attack in self.attacks)
        listed = [json_numbers({name: value for name, value in own.items() if name != "masses"}) for own in every]
        return {"holds": self.holds, "privacy": self.privacy.to_dict(), "mechanism": self.mechanism, "attacks": listed}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plot claimed and found delta against epsilon, and save the figure; the path's extension selects the format."""
        from dpconvex.plots import audit_curve

        figure: Any = audit_curve(self).figure
        figure.savefig(path)


def table_lines(head: Row, rows: Iterable[Row]) -> list[str]:
    """Return the lines of a table, with names left-aligned and numbers right-aligned."""
    table = [head, *rows]
    wide = max(len(row[0]) for row in table)
    lines = [f"{a:<{wide}}{b:>13}{c:>13}{d:>9}" for a, b, c, d in table]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def place_text(place: Place) -> str:
    if place is None:
        return "no such record"
    arrays = {key: np.array2string(np.asarray(v), precision=5, threshold=12) for key, v in place.items()}
    return ", ".join(f"{key} = {array}".replace("\n", "") for key, array in arrays.items()) or "nothing"
