"""Docstrings of estimators: each class describes what it adds, and is shown with all that it inherits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from textwrap import indent

SECTION = re.compile(r"^(Parameters|Attributes|Examples)\n-+\n", flags=re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)", flags=re.MULTILINE)


def described(kind: type, hidden: Collection[str]) -> str:
    """Return the docstring of a class with every parameter and attribute along its line, the nearest description of each.

    Attributes are those that docstrings list, and properties whose names end in an underscore; not the `hidden` ones.
    """
    line = [cls for cls in inspect.getmro(kind) if "own_sections" in vars(cls)]
    written = {cls: vars(cls)["own_sections"] for cls in line}
    found: dict[str, list[str]] = {"Parameters": [], "Attributes": []}
    for title, texts in found.items():
        known = set(hidden)
        for cls in line:
            named = entries(written[cls].get(title, "")) | (computed(cls) if title == "Attributes" else {})
            texts += [text for names, text in named.items() if not known & {*names.split(", ")}]
            known |= {name for names in named for name in names.split(", ")}
    examples = next((written[cls]["Examples"] for cls in line if "Examples" in written[cls]), "")
    titled = {**{title: "\n".join(texts) for title, texts in found.items()}, "Examples": examples}
    parts = [f"{title}\n{'-' * len(title)}\n{text.rstrip()}" for title, text in titled.items() if text]
    return "\n\n".join([written[kind][""].strip(), *parts]) + "\n"


def sections(text: str) -> dict[str, str]:
    """Split a docstring into its sections by title, and what stands before them, under an empty one."""
    head, *rest = SECTION.split(inspect.cleandoc(text))
    return {"": head, **dict(zip(rest[::2], rest[1::2], strict=True))}


def entries(text: str) -> dict[str, str]:
    r"""Split a section into its entries, by the names that they begin with.

    >>> entries("a, b : float\n    Numbers.\nc : int\n")
    {'a, b': 'a, b : float\n    Numbers.', 'c': 'c : int'}
    """
    return {entry.partition(" :")[0]: entry.rstrip() for entry in ENTRY.split(text) if entry.strip()}


def computed(kind: type) -> dict[str, str]:
    """Return an entry for each attribute of a fit that a class computes."""
    found = {name: value for name, value in vars(kind).items() if isinstance(value, property) and name.endswith("_")}
    return {
        name: f"{name} : {kind_of(value)}\n{indent(inspect.getdoc(value) or '', '    ')}"
        for name, value in found.items()
    }


def kind_of(value: property) -> str:
    """Return what a property is, as its annotation says it."""
    said = str(getattr(value.fget, "__annotations__", {}).get("return", "object"))
    return re.sub(r"NDArray\[\w+\]|Array", "ndarray", said)
