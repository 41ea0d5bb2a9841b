"""Derivation trees: which rule proved which constant of which subexpression, and where the rule comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from dpconvex.core.plain_data import built
from dpconvex.errors import readable, shorten


@dataclass(frozen=True)
class Derivation:
    """One step of a proof.

    Attributes
    ----------
    rule : str
        Name of the rule.
    expression : str
        The subexpression that it was applied to.
    claims : dict of str to float
        The constants that it proves.
    source : str
        Where the rule's mathematics comes from.
    children : tuple of Derivation
        The steps that it builds on.
    """

    rule: str
    expression: str = ""
    claims: dict[str, float] = field(default_factory=dict)
    source: str = ""
    children: tuple[Derivation, ...] = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the tree as indented lines of text."""
        claims = ", ".join(f"{name} = {value:.6g}" for name, value in self.claims.items())
        text = shorten(readable(self.expression), 60)
        body = "  ".join(
            part for part in (self.rule, claims, text and f"«{text}»", self.source and f"[{self.source}]") if part
        )
        yield "  " * depth + body
        for child in self.children:
            yield from child.lines(depth + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as JSON-able data."""
        return {
            "rule": self.rule,
            "expression": self.expression,
            "claims": dict(self.claims),
            "source": self.source,
            "children": [child.to_dict() for child in self.children],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Derivation:
        """Rebuild a tree from `to_dict`."""
        return cast(Derivation, built(cls, data))
