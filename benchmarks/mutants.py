"""Mutants of the code that proofs rest on: how many do the tests catch?

``python -m benchmarks mutants [--count 20]`` changes one operator, constant, comparison or term at a time in a copy of
`expressions/atoms`, `sensitivity` and `mechanisms`, runs the tests of that room until one fails, and prints what survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import chosen

ROOT = Path(__file__).resolve().parents[1]
# The tests that are to catch a mutant of each room, the quickest first.
TESTS = {
    "expressions/atoms": ["tests/expressions/test_atoms.py", "tests/sensitivity/test_soundness.py"],
    "sensitivity": ["tests/sensitivity", "tests/regression/test_golden.py"],
    "mechanisms": ["tests/mechanisms", "tests/test_exact_density.py", "tests/auditing/test_audit.py"],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "log1p": "log", "sqrt": "square"}


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what a node may become, with a word for it."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        changed = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        yield "operator", changed
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            yield "dropped term", node.left
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        changed_comparison = copy.deepcopy(node)
        changed_comparison.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
        yield "comparison", changed_comparison
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        yield "constant", ast.Constant(node.value * 0.9 if isinstance(node.value, float) else node.value + 1)
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield "name", ast.Attribute(node.value, NAMES[node.attr], node.ctx)
    if isinstance(node, ast.Name) and node.id in NAMES:
        yield "name", ast.Name(NAMES[node.id], node.ctx)


class Replacing(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def mutant(file: Path, rng: np.random.Generator) -> tuple[str, str] | None:
    """Return a changed source and what was changed, or None if there is nothing to change."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = [part for top in ast.walk(tree) if isinstance(top, ast.FunctionDef) for part in top.body]
    places = [(node, word, new) for part in inside for node in ast.walk(part) for word, new in mutations(node)]
    if not places:
        return None
    node, word, new = places[rng.integers(len(places))]
    line = getattr(node, "lineno", 0)
    before = ast.unparse(node)
    changed = ast.fix_missing_locations(Replacing(node, new).visit(tree))
    return ast.unparse(changed), f"{line}, {word}: {before[:60]} -> {ast.unparse(new)[:60]}"


def caught(folder: Path, tests: Sequence[str], seconds: float) -> str:
    """Return what became of a mutant: caught, out of time, or survived."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "out of time"
    return {0: "survived", 1: "caught", 2: "caught", 4: "caught"}.get(done.returncode, f"exit status {done.returncode}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what became of each mutant, and the share that was caught."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0, help="for the tests of each mutant")
    parser.add_argument("--room", choices=list(TESTS), help="one alone")
    options = chosen(parser, arguments, count=1, seconds=1.0)
    rng, outcomes = np.random.default_rng(options.seed), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "shared", "site"))
        while len(outcomes) < options.count:
            room = options.room or str(rng.choice(list(TESTS)))
            files = sorted((folder / "dpconvex" / room).glob("*.py"))
            file = files[rng.integers(len(files))]
            source, found = file.read_text(encoding="utf-8"), mutant(file, rng)
            if found is None:
                continue
            file.write_text(found[0], encoding="utf-8")
            outcome = caught(folder, [test for test in TESTS[room] if (folder / test).exists()], options.seconds)
            file.write_text(source, encoding="utf-8")
            outcomes.append(outcome)
            print(f"{outcome}: {file.relative_to(folder)}:{found[1]}", flush=True)
    print(f"{outcomes.count('caught')} of {len(outcomes)} caught, {outcomes.count('out of time')} out of time")


if __name__ == "__main__":
    main()
