"""A guarantee of privacy."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from dpconvex.core.plain_data import is_real
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError

ADJACENCIES = ("replace-one", "add-remove")
# Noise is computed for epsilon between these, and for a delta of 0 or above the smaller one: their squares do not overflow.
COMPUTABLE = 1e-100, 1e100


@dataclass(frozen=True)
class Privacy:
    """The guarantee that one person's record hardly changes what may be released.

    Parameters
    ----------
    epsilon : float
        Bound on the log-ratio of probabilities between neighbouring data sets; positive and finite.
    delta : float
        Probability mass that the bound may miss; in [0, 1), and 0 for a pure guarantee, which a release keeps up to a probability
        of 2^-100 (docs/release.md, section 5).
    adjacency : {"replace-one", "add-remove"}
        Which data sets are neighbours.  Under "replace-one" the number of records is public and one record is changed;
        under "add-remove" one record is added or taken away, and the number of records is itself protected.

    Examples
    --------
    >>> print(Privacy(epsilon=0.5, delta=1e-6, adjacency="add-remove"))
    epsilon = 0.5, delta = 1e-06, add-remove
    """

    epsilon: float
    delta: float = 0.0
    adjacency: str = "replace-one"

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if not is_real(value):
                raise TemplateError(f"Privacy: {name} must be a number, not {value!r}.")
            self.__dict__[name] = float(value) + 0.0  # -0.0 is 0
        if not 0 < self.epsilon < math.inf:
            raise TemplateError(f"Privacy: epsilon must be positive and finite, not {self.epsilon!r}.")
        if not 0 <= self.delta < 1:
            raise TemplateError(f"Privacy: delta must be at least 0 and below 1, not {self.delta!r}.")
        if not isinstance(self.adjacency, str) or self.adjacency not in ADJACENCIES:
            raise TemplateError(f"Privacy: adjacency must be one of {ADJACENCIES}, not {self.adjacency!r}.")

    @property
    def pure(self) -> bool:
        """Whether delta is 0."""
        return self.delta == 0

    @property
    def claims(self) -> dict[str, float]:
        """What a derivation claims: epsilon, and a delta that is not 0."""
        return {"epsilon": self.epsilon} | ({} if self.pure else {"delta": self.delta})

    def minus(self, part: "Privacy") -> "Privacy":
        """Return what a part leaves of the guarantee, rounded down, so that the two together do not exceed it."""
        return Privacy(left(self.epsilon, part.epsilon), left(self.delta, part.delta), self.adjacency)

    def __str__(self) -> str:
        delta = "" if self.pure else f"delta = {text(self.delta)}, "
        return f"epsilon = {text(self.epsilon)}, {delta}{self.adjacency}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`, or raise `TemplateError`."""
        if not isinstance(fields, Mapping) or set(fields) != {"epsilon", "delta", "adjacency"}:
            raise TemplateError(f"Privacy: expected the fields epsilon, delta and adjacency, not {fields!r}.")
        return cls(**fields)


def check_privacy(owner: str, privacy: object) -> None:
    if not isinstance(privacy, Privacy):
        example = f"Privacy(epsilon={privacy if is_real(privacy) else 1.0})"
        raise TemplateError(f"{owner}: privacy must be a Privacy, such as {example}, not {privacy!r:.60}.")


@contextmanager
def computable(privacy: Privacy) -> Iterator[None]:
    """Context in which noise is calibrated: what double precision cannot compute with becomes a refusal."""
    remedy = "ask for an epsilon from 1e-6 to 1e6, and a delta of 0 or from 1e-20 to 0.5"
    (small, large), why = COMPUTABLE, "no noise can be computed in double precision for so extreme a guarantee"
    if not small <= privacy.epsilon <= large or 0 < privacy.delta < small:
        raise NotPrivate(why, privacy, remedy)
    try:
        yield
    except (ArithmeticError, AssertionError, ValueError) as error:
        usual = 1e-6 <= privacy.epsilon <= 1e6 and (privacy.pure or 1e-20 <= privacy.delta <= 0.5)
        if usual or isinstance(error, DPConvexError):
            raise
        raise NotPrivate(f"{why} ({type(error).__name__}: {error})", privacy, remedy) from error


def left(total: float, part: float) -> float:
    """Return what a part leaves of a total, rounded down."""
    return 0.0 if total == 0 else math.nextafter(total - part, 0.0)


def text(value: float) -> str:
    """Write a number with all of its digits, and no more: 3, 0.1, 1e-06."""
    return repr(value).removesuffix(".0")
