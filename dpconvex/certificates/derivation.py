"""Derivation trees: which rule proved which constant of which subexpression, and where the rule comes from."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dpconvex.errors import readable, shorten
from dpconvex.util.markup import upward


@dataclass(frozen=True)
class Derivation:
    """One step of a proof: a rule, the subexpression that it was applied to, and the constants that it proves."""

    rule: str
    expression: str = ""
    claims: dict[str, float] = field(default_factory=dict)
    source: str = ""  # where the rule's mathematics comes from
    children: "tuple[Derivation, ...]" = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        costs = ("epsilon", "delta")
        claims = ", ".join(
            f"{name} = {upward(value, 6) if name in costs else f'{value:.6g}'}" for name, value in self.claims.items()
        )
        text = shorten(readable(self.expression), 60)
        parts = self.rule, claims, text and f"«{text}»", self.source and f"[{self.source}]"
        yield "  " * depth + "  ".join(filter(None, parts))
        for child in self.children:
            yield from child.lines(depth + 1)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
