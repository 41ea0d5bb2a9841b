"""Docstrings of estimators: each class describes what it adds, and is shown with all that it inherits."""

import inspect
import re

SECTION = re.compile(r"^(Parameters|Attributes|Examples)\n-+\n", flags=re.MULTILINE)
ENTRY = re.compile(r"^(?=\S)", flags=re.MULTILINE)


def described(kind: type) -> str:
    """Return the docstring of a class with every parameter and attribute along its line, the nearest description of each."""
    line = [cls for cls in inspect.getmro(kind) if "own_sections" in vars(cls)]
    written = {cls: vars(cls)["own_sections"] for cls in line}
    found: dict[str, list[str]] = {"Parameters": [], "Attributes": []}
    for title, texts in found.items():
        known = set[str]()
        for cls in line:
            named = entries(written[cls].get(title, ""))
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
