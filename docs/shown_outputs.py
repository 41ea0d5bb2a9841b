"""A hook of MkDocs: runs the examples of guides when the site is built, and shows below each what it printed and returned."""

import ast
import base64
import contextlib
import io
import os
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

# Guides whose blocks run one after the other; `tests/test_docs.py` runs the same ones.
GUIDES = ("quickstart", "data", "certificates", "estimators", "features", "budgets", "pictures", "index")
GUIDES += ("evaluation", "from_scikit_learn", "from_diffprivlib", "from_opacus", "intervals", "predictions", "interop")
GUIDES += ("counts_and_costs", "hospital", "own_problems", "groups", "mechanisms")
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^```toml\n# (\w+\.toml)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def write_files(markdown: str) -> None:
    """Write the files that a page shows, with their names in their first lines, for its examples to read."""
    for name, content in FILE.findall(markdown):
        Path(name).write_text(content, encoding="utf-8")


def fenced(output: str) -> str:
    """Return an output as a block, empty if there is none; `site.css` wraps sentences, `text`, and scrolls tables, `output`."""
    text, kind = output.rstrip(), "text" if max(map(len, output.splitlines()), default=0) > 90 else "output"
    return f'```{kind} title="output"\n{text}\n```\n' if text.strip() else ""


def output_of(code: str, names: dict[str, Any]) -> tuple[str, bytes]:
    """Run a block in the names of those before it; return what it prints, with the value of its last line, and its picture."""
    tree, printed, drawn = ast.parse(code), io.StringIO(), io.BytesIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "example", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "example", "eval"), names)
        figure = getattr(value, "figure", value)
        if hasattr(figure, "savefig"):
            figure.savefig(drawn, dpi=100)
        elif value is not None:
            printed.write(f"{value!r}\n")
    return printed.getvalue(), drawn.getvalue()


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Return a page with the outputs of its examples."""
    if page.file.src_uri.removesuffix(".md") not in GUIDES:
        return markdown
    names: dict[str, Any] = {}

    def shown(block: re.Match[str]) -> str:
        output, picture = output_of(block[1], names)
        output = output.replace(block[2] or "", "")  # what the page shows already
        text = "\n" * bool(output.strip()) + fenced(output)
        image = f"\n![what is drawn](data:image/png;base64,{base64.b64encode(picture).decode()})\n" if picture else ""
        return block[0] + text + image

    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, np.printoptions(precision=4, threshold=20, suppress=True):
        os.chdir(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                write_files(markdown)
                return BLOCK.sub(shown, markdown)
        finally:
            os.chdir(here)
