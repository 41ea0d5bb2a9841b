"""How certificates put constants and derivations into words."""

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpconvex.core.derivation import Derivation
from dpconvex.core.markup import aligned, brief, paragraph


def number(value: float) -> str:
    return f"{value:.6g}"


def columns(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield lines of names, values and what they are from, each in a column."""
    found = list(rows)
    wide = max(len(name) for name, _, _ in found)
    broad = max(len(value) for _, value, _ in found)
    return (f"  {name:<{wide}}  {value:>{broad}}  {why}" for name, value, why in found)


def proof(derivation: Derivation, assumptions: Iterable[str]) -> list[str]:
    said = [f"  - {text}" for text in assumptions]
    return ["", "Derivation", *(f"  {line}" for line in derivation.lines()), *(["", "Assumed", *said] if said else [])]


def source(root: Derivation, key: str) -> str:
    """Return the one-line reason of a constant: the rule of the branch of the derivation that proves it."""
    level = root.children
    while level:
        for step in level:
            if key in step.rule:
                return step.source or step.rule
        level = tuple(child for step in level for child in step.children)
    return root.source


def tree(step: Derivation) -> str:
    head = html.escape(brief(next(iter(step.lines())).strip()))
    return f"<ul><li>{head}{''.join(tree(child) for child in step.children)}</li></ul>"


@dataclass(frozen=True)
class Comparison:
    """The constants of two certificates, their ratios, and which of the two moves the answer less."""

    names: tuple[str, ...]
    constants: dict[str, tuple[float, float]]
    verdict: str

    def rows(self) -> list[tuple[str, str, str, str]]:
        pairs = self.constants.items()
        return [(name, number(a), number(b), f"{b / a:.3f}" if a else "-") for name, (a, b) in pairs]

    def __str__(self) -> str:
        rows = [("constant", "first", "second", "ratio"), *self.rows()]
        lines = [f"{name:<28}{a:>12}{b:>12}{ratio:>9}" for name, a, b, ratio in rows]
        return "\n".join([f"first:  {self.names[0]}", f"second: {self.names[1]}", "", *lines, "", self.verdict])

    def _repr_html_(self) -> str:
        table = aligned(["constant", "first", "second", "ratio"], self.rows(), numbers=(1, 2, 3))
        return table + paragraph("", self.verdict)
