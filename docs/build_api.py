"""Writes docs/api/*.md from the list of public names: ``python docs/build_api.py``."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUB = HERE.parent / "dpconvex" / "__init__.pyi"

# Pages, each with what it is about and the modules whose names it shows, by the start of their path.
PAGES = {
    "declaring": ("Declaring a learner", ("expressions", "model", "data.domains", "data.record")),
    "tables": ("Tables and columns", ("data", "selection.learn_schema")),
    "learners": (
        "Problems, mixtures, choices",
        (
            "fitting.problem_files",
            *(
                f"selection.{name}"
                for name in ("clustering", "evaluate", "evaluation", "measures", "mixtures", "sweep", "tune")
            ),
        ),
    ),
    "proving": ("Proving and fitting", ("fitting", "selection", "optim", "sums")),
    "mechanisms": ("Mechanisms and certificates", ("mechanisms", "certificates")),
    "budgets": ("Budgets", ("accounting",)),
    "features": ("Feature maps", ("features",)),
    "estimators": ("Estimators", ("estimators",)),
    "auditing": ("Auditing", ("auditing",)),
    "errors": ("Errors", ("errors",)),
    "further": ("Further", ("",)),
}
# Modules whose names are listed in them, and classes that others inherit from, with the pages that show them.
MODULES = {
    "interop": ("Other libraries", ("interop",)),
    "plots": ("Pictures and data sets", ("plots", "datasets")),
}
SHARED = {"estimators": ("What all estimators share", "estimators.base.Private")}
HEAD = "# {title}\n\n<!-- Written by docs/build_api.py from dpconvex/__init__.pyi. -->\n"


def public_names() -> list[tuple[str, str]]:
    """Return (module, name) of every public name that is defined in the package."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    return [(node.module or "", alias.name) for node in froms for alias in node.names]


def listed(module: str) -> list[str]:
    """Return the public names of a module, which it lists."""
    tree = ast.parse((STUB.parent / f"{module}.py").read_text(encoding="utf-8"))
    (found,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    return list(ast.literal_eval(found))


def pages() -> dict[str, str]:
    """Return the text of each page that has names."""
    left, written = public_names(), {}
    for page, (title, starts) in PAGES.items():
        mine = [
            (module, name)
            for module, name in left
            if any(f"{module}.".startswith(f"{s}." if s else "") for s in starts)
        ]
        left = [pair for pair in left if pair not in mine]
        if mine:
            blocks = [f"\n## dp.{name}\n\n::: dpconvex.{module}.{name}\n" for module, name in mine]
            if page in SHARED:
                blocks.insert(0, "\n## {}\n\n::: dpconvex.{}\n".format(*SHARED[page]))
            written[page] = HEAD.format(title=title) + "".join(blocks)
    for page, (title, names) in MODULES.items():
        blocks = [
            f"\n## dp.{name}\n\n::: dpconvex.{name}\n    options: {{members: {listed(name)}}}\n" for name in names
        ]
        written[page] = HEAD.format(title=title) + "".join(blocks)
    return written


def main() -> None:
    """Write the pages, and remove those that have no names any more."""
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for page, text in pages().items():
        (folder / f"{page}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
