"""Names: every argument of a public function is read, and a name has one meaning."""

import ast
import inspect
from collections import Counter
from pathlib import Path
from textwrap import dedent

import dpconvex as dp


def test_every_argument_of_a_public_function_is_read():
    """An option that nothing reads would be dropped without a word."""
    functions = {name: inspect.unwrap(getattr(dp, name)) for name in dir(dp)}
    found = {name: function for name, function in functions.items() if inspect.isfunction(function)}
    assert {"solve", "tune", "tune_repeated", "sweep", "evaluate", "solve_mixture", "cluster"} <= {*found}
    for name, function in found.items():
        tree = ast.parse(dedent(inspect.getsource(function)))
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert {*inspect.signature(function).parameters} <= read, name


def test_a_class_and_a_constant_of_numerics_have_names_of_their_own():
    """The checker shares no code, so it may have the constants again."""
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in Path(dp.__file__).parent.rglob("*.py")}
    classes = Counter(node.name for tree in files.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []
    assigned = {
        (path.stem, node.id)
        for path, tree in files.items()
        if path.parent.name != "checker"
        for part in tree.body
        if isinstance(part, ast.Assign)
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    names = {name for module, name in assigned if module == "numerics" and name.isupper()}
    assert {found for found in assigned if found[1] in names and found[0] != "numerics"} == set()
