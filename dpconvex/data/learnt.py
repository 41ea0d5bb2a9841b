"""Privacy cost of a schema learnt from data (docs/theory.md, section 23), and its record on the arrays that it encoded."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpconvex.errors import DomainError
from dpconvex.util.arguments import number_in, require


@dataclass(frozen=True)
class Learnt:
    """The privacy cost of learning the bounds and levels of a schema.

    Attributes
    ----------
    privacy, event : mapping
        The guarantee, and the event for accounting, as JSON data.
    entry : str
        The label of the cost in a ledger.  No other learnt schema has the same label.
    columns : mapping of str to float
        For each learnt column, a bound on the share of records outside: beyond bounds, without a learnt level, or missing.
        Each bound holds with probability 0.95 over the noise.
    otherwise : str or float, optional
        The label, or the target, of records with a missing label or one that was not learnt; None if labels are declared.
    not_private_because : str
        Why the guarantee does not hold, such as "the noise was drawn with the seed 0".
    before : Learnt, optional
        The cost of an earlier schema, which provided some of the columns.
    """

    privacy: Mapping[str, Any]
    event: Mapping[str, Any]
    entry: str
    columns: Mapping[str, float]
    otherwise: str | float | None = None
    not_private_because: str = ""
    before: "Learnt | None" = None

    def __post_init__(self) -> None:
        check = number_in(0, 1).check
        check("learnt", **{f"share of {name}": share for name, share in self.columns.items()})

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
        """Return the fields as JSON-able values, without fields that are None."""
        said = {**asdict(self), "before": self.before and self.before.to_dict()}
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True)
class Origin:
    """The schemas behind an array: the costs of learnt ones, and the column that names people."""

    learnt: tuple[Learnt, ...] = ()
    privacy_unit: str | None = None

    def checked(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the columns of a partition; raise if their origin was unknown before the charge."""
        said = "its schema was learnt or names people, which Dask does not show: pass Partitions of delayed mappings."
        require(origin_of(self, *columns.values()) == self, said, DomainError)
        return columns


def origin_of(*sources: Any) -> Origin:
    """Return the combined origin of arrays, partitions, schemas or releases."""
    known = [getattr(source, "origin", source) for source in sources]
    given = [one.learnt if isinstance(one, Origin) else (one, getattr(one, "learnt", None)) for one in known]
    costs = [cost for costs in given for cost in costs if isinstance(cost, Learnt)]  # a frame may have such columns
    units = (unit for one in known if isinstance(unit := getattr(one, "privacy_unit", None), str))
    return Origin(tuple(cost for k, cost in enumerate(costs) if cost not in costs[:k]), next(units, None))
