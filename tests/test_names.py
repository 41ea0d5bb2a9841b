"""Public functions: every argument is read, or refused."""

import ast
import inspect
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
