"""Guarantees of differential privacy."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.util.arguments import BELOW_ONE, COUNT, POSITIVE, REAL, Kind, check_fields, instance, one_of, require
from dpconvex.util.plain_data import is_real

ADJACENCIES = ("replace-one", "add-remove")
# Noise is computed for epsilon in this range, and for a delta of 0 or above its lower end: squares do not overflow.
COMPUTABLE = 1e-100, 1e100
MOST_ROWS, KEEPS = 10_000, ("first", "random", "weights")  # of one person


class Person(NamedTuple):
    """Largest number of rows of one person, and their total weight."""

    rows: int = 1
    weight: float = 1.0

    def moves(self, apart: float, length: float) -> float:
        """Bound a person's change of a sum: terms of two rows differ by at most `apart`, and a term has at most this length."""
        return apart if self.rows == 1 else self.weight * max(apart, length)


ONE_ROW = Person()
WORD = Kind('a word such as "patient"', lambda unit: isinstance(unit, str) and unit.isidentifier()).or_none
ADJACENCY = one_of(ADJACENCIES)


@dataclass(frozen=True)
class Privacy:
    """Declare a guarantee of (epsilon, delta)-differential privacy.

    Parameters
    ----------
    epsilon : float
        Bound on the log-ratio of probabilities between neighbouring data sets; positive and finite.
    delta : float
        Probability mass outside the bound, in [0, 1). 0 is a pure guarantee, which a release keeps except with a probability of
        2^-100 (docs/release.md, section 5).
    adjacency : {"replace-one", "add-remove"}
        Which data sets are neighbours.  Under "replace-one" the number of records is public and one record is changed;
        under "add-remove" one record is added or taken away, and the number of records is itself protected.
    unit : str, optional
        Whom the guarantee protects if one person has several records, such as "patient" (docs/unit.md). Neighbours then differ
        in all records of one patient, replaced or added or removed.  By default each record belongs to another person.
    most : int
        Public bound on the number of records of one unit.
    keep : {"first", "random", "weights"}, optional
        Treatment of units above the limit: by default an error.  "first" and "random" keep `most` of their records.  "weights"
        raises the error too; it weights each record by one over the number of its unit's records, and counts units.

    Examples
    --------
    >>> print(Privacy(epsilon=0.5, delta=1e-6, adjacency="add-remove"))
    epsilon = 0.5, delta = 1e-06, add-remove
    >>> print(Privacy(1.0, unit="patient", most=3))
    epsilon = 1, replace-one of one patient with at most 3 records
    """

    epsilon: float
    delta: float = 0.0
    adjacency: str = "replace-one"
    unit: str | None = None
    most: int = 1
    keep: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, epsilon=REAL, delta=REAL)
        self.__dict__.update(epsilon=float(self.epsilon) + 0.0, delta=float(self.delta) + 0.0)  # -0.0 is 0
        check_fields(self, epsilon=POSITIVE, delta=BELOW_ONE, adjacency=ADJACENCY, most=COUNT)
        self.__dict__["most"] = int(self.most)
        check_fields(self, unit=WORD)
        why = 'name the unit of these records, such as unit="patient"' if self.unit is None else f"at most {MOST_ROWS}"
        require(self.most <= (1 if self.unit is None else MOST_ROWS), f"Privacy: most is {self.most}; {why}.")
        if self.keep is not None and (self.unit is None or self.keep not in KEEPS):
            raise TemplateError(f"Privacy: keep must be None or, with a unit, one of {KEEPS}, not {self.keep!r}.")

    @property
    def person(self) -> Person:
        """Number and weight of one unit's records in the sums."""
        return Person(self.most, 1.0 if self.keep == "weights" else float(self.most))

    @property
    def whose(self) -> str:
        """The difference between neighbours, in words."""
        return "one record" if self.unit is None else f"all records of one {self.unit}, at most {self.most}"

    @property
    def pure(self) -> bool:
        """Whether delta is 0."""
        return self.delta == 0

    @property
    def claims(self) -> dict[str, float]:
        """Claims of a derivation: epsilon, and delta if it is not 0."""
        return {"epsilon": self.epsilon} | ({} if self.pure else {"delta": self.delta})

    def minus(self, part: "Privacy") -> "Privacy":
        """Return the guarantee minus a part, rounded down, so that the two parts do not exceed this guarantee."""
        return self.part(remaining(self.epsilon, part.epsilon), remaining(self.delta, part.delta))

    def part(self, epsilon: float, delta: float = 0.0) -> "Privacy":
        """Return a guarantee with another epsilon and delta, about the same neighbours."""
        return replace(self, epsilon=epsilon, delta=delta)

    def __str__(self) -> str:
        delta = "" if self.pure else f"delta = {text(self.delta)}, "
        records = f"{self.most} record{'s' * (self.most > 1)}"
        whom = "" if self.unit is None else f" of one {self.unit} with at most {records}"
        whom += "" if self.keep is None else f" (keep {self.keep})"
        return f"epsilon = {text(self.epsilon)}, {delta}{self.adjacency}{whom}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able values, without the fields of a unit if there is none."""
        found = asdict(self)
        return found if self.unit is not None else {key: found[key] for key in ("epsilon", "delta", "adjacency")}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the guarantee that `to_dict` described, or raise `TemplateError`."""
        known = {"epsilon", "delta", "adjacency"}
        if not isinstance(fields, Mapping) or set(fields) not in (known, known | {"unit", "most", "keep"}):
            raise TemplateError(f"Privacy: expected the fields epsilon, delta and adjacency, not {fields!r}.")
        return cls(**fields)


def check_privacy(owner: str, privacy: Any, units: bool = False) -> None:
    """Raise if `privacy` is not a `Privacy`, or declares a unit although only single records are protected (`units` is False)."""
    example = f"such as Privacy(epsilon={privacy if is_real(privacy) else 1.0})"
    instance(Privacy, example).check("" if owner == "this" else owner, privacy=privacy)
    if privacy.unit is not None and not units:
        raise not_for_units(owner, privacy)


def not_for_units(owner: str, privacy: Privacy) -> NotPrivate:
    remedy = f"make one record of each {privacy.unit}, or use a function that docs/unit.md lists"
    return NotPrivate(f"{owner} protects single records only, not people with several", str(privacy), remedy)


@contextmanager
def calibration(privacy: Privacy) -> Iterator[None]:
    """Context for the calibration of noise: guarantees that double precision cannot handle raise `NotPrivate`."""
    remedy = "ask for an epsilon from 1e-6 to 1e6, and a delta of 0 or from 1e-20 to 0.5"
    (small, large), why = COMPUTABLE, "the noise of so extreme a guarantee cannot be computed in double precision"
    if not small <= privacy.epsilon <= large or 0 < privacy.delta < small:
        raise NotPrivate(why, privacy, remedy)
    try:
        yield
    except (ArithmeticError, AssertionError, ValueError) as error:
        usual = 1e-6 <= privacy.epsilon <= 1e6 and (privacy.pure or 1e-20 <= privacy.delta <= 0.5)
        if usual or isinstance(error, DPConvexError):
            raise
        raise NotPrivate(f"{why} ({type(error).__name__}: {error})", privacy, remedy) from error


def remaining(total: float, part: float) -> float:
    """Return `total` minus `part`, rounded down; 0 for a total of 0."""
    return 0.0 if total == 0 else math.nextafter(total - part, 0.0)


def text(value: float) -> str:
    """Return a number as a text with all of its digits, and no more: 3, 0.1, 1e-06."""
    return repr(value).removesuffix(".0")
