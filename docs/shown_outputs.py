"""A hook of MkDocs: runs the examples of guides when the site is built, and shows below each what it printed and returned."""

import ast
import contextlib
import io
import os
import re
import tempfile
import warnings
from typing import Any

import numpy as np

# Guides whose blocks run one after the other; `tests/test_docs.py` runs the same ones.
GUIDES = ("quickstart", "data", "certificates", "estimators", "features", "budgets", "index")
BLOCK = re.compile(r"^```python\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)


def output_of(code: str, names: dict[str, Any]) -> str:
    """Run a block in the names of those before it; return what it prints, and the value of its last line if that is one."""
    tree, printed = ast.parse(code), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "example", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "example", "eval"), names)
        if value is not None:
            printed.write(f"{value!r}\n")
    return printed.getvalue()


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Return a page with the outputs of its examples."""
    if page.file.src_uri.removesuffix(".md") not in GUIDES:
        return markdown
    names: dict[str, Any] = {}

    def shown(block: re.Match[str]) -> str:
        output = output_of(block[1], names)
        return f'{block[0]}\n```text title="output"\n{output.rstrip()}\n```\n' if output.strip() else block[0]

    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, np.printoptions(precision=4, threshold=20, suppress=True):
        os.chdir(folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return BLOCK.sub(shown, markdown)
        finally:
            os.chdir(here)
