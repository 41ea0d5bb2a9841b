"""What a schema says of its own cost, where its bounds and levels were learnt from data (docs/theory.md, section 23)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Learnt:
    """How the bounds and levels of a schema were paid for.

    Attributes
    ----------
    privacy, event : mapping
        The guarantee, and what it is for accounting, as JSON has them.
    entry : str
        The label of the spend in a ledger.  No other learnt schema has it.
    columns : mapping of str to float
        The learnt columns, each with a bound on the share of records outside: beyond bounds, of no learnt level, or missing.
        Each bound holds with probability 0.95 over the noise.
    otherwise : str or float, optional
        The label, or the target, of records whose own is missing or was not learnt; None where labels are declared.
    not_private_because : str
        Why the guarantee does not hold, such as "the noise was drawn with the seed 0".
    before : Learnt, optional
        The cost of an earlier schema, whose columns were taken over.
    """

    privacy: Mapping[str, Any]
    event: Mapping[str, Any]
    entry: str
    columns: Mapping[str, float]
    otherwise: str | float | None = None
    not_private_because: str = ""
    before: "Learnt | None" = None

    @property
    def costs(self) -> "list[Learnt]":
        """The releases that paid for the schema, in order."""
        return [*(self.before.costs if self.before else ()), self]

    @property
    def status(self) -> str:
        """The guarantee, or a warning, in one line."""
        if seeded := next((one.not_private_because for one in self.costs if one.not_private_because), ""):
            return f"NOT PRIVATE: {seeded}"
        names = ("epsilon", "delta", "adjacency", "unit", "most")
        told = [[f"{name} = {one.privacy[name]}" for name in names if name in one.privacy] for one in self.costs]
        return f"spent: {', and '.join(map(', '.join, told))}"

    def __str__(self) -> str:
        entries = " and ".join(repr(one.entry) for one in self.costs)
        head = f"schema:          learnt by noisy counts; {self.status}; in a ledger it is {entries}"
        means = "beyond its bounds, of a rare level, or missing (each with probability 0.95)"
        shares = (f"outside:         at most {100 * share:.3g} % of {name!r}" for name, share in self.columns.items())
        return "\n".join([head, *shares, f"outside means:   {means}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able values, without those that are None."""
        said = {**asdict(self), "before": self.before and self.before.to_dict()}
        return {name: value for name, value in said.items() if value is not None}
