"""Derivation trees: the rule that proved each constant of each subexpression, with its source."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dpconvex.errors import as_written, shorten
from dpconvex.util.markup import upward


@dataclass(frozen=True)
class Derivation:
    """One step of a proof: a rule, the subexpression it applies to, and the constants it proves."""

    rule: str
    expression: str = ""
    claims: dict[str, float] = field(default_factory=dict)
    source: str = ""  # reference for the rule
    children: "tuple[Derivation, ...]" = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        costs = ("epsilon", "delta")
        claims = ", ".join(
            f"{name} = {upward(value, 6) if name in costs else f'{value:.6g}'}" for name, value in self.claims.items()
        )
        text = shorten(as_written(self.expression), 60)
        parts = self.rule, claims, text and f"«{text}»", self.source and f"[{self.source}]"
        yield "  " * depth + "  ".join(filter(None, parts))
        for child in self.children:
            yield from child.lines(depth + 1)
