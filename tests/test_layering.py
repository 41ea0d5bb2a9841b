"""Imports run one way through the package, and what is heavy is imported only when it is used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpconvex

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dpconvex"

# Lowest first.  A module may import from its own layer and from those above it in this list, nothing below.
# A name stands for the module or for every module of the package of that name.
LAYERS = [
    {"errors"},
    {"derivation"},
    {"columns"},
    {"threads", "sums"},
    {"entries"},
    {"checks"},
    {"record"},
    {"atoms", "declared", "piecewise"},
    {"reader", "values"},
    {"space", "sets", "polynomial", "bases", "ranks"},
    {"constraints"},
    {"absolute", "quadratics"},
    {"feasible"},
    {"mentions"},
    {"affine", "intervals"},
    {"combinations"},
    {"normal_form"},
    {"template"},
    {"smoothing"},
    {"domains"},
    {"subspace"},
    {"form"},
    {"magnitudes"},
    {"rules"},
    {"ledger", "outputs", "privacy"},
    {"comparison", "certificate"},
    {"noise"},
    {"mechanisms"},
    {"lowering_rules"},
    {"tape"},
    {"translation"},
    {"verify"},
    {"risk"},
    {"duals"},
    {"compiled_sums"},
    {"lowering"},
    {"pairs"},
    {"leaves", "designs"},
    {"kinds"},
    {"engines", "device"},
    {"batched"},
    {"problem"},
    {"backends"},
    {"datasets", "levels"},
    {"loaders"},
    {"tables"},
    {"release"},
    {"components"},
    {"clustering"},
    {"solve"},
    {"mixtures"},
    {"sweep"},
    {"reproduction"},
    {"attack"},
    {"tuning"},
    {"repeated"},
    {"adversary"},
    {"falsify"},
    {"plots"},
    {"audit"},
    {"features"},
    {"gallery"},
    {"estimators"},
    {"demo"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# Programs built on the toolkit rather than parts of it: they may use the public names.
PROGRAMS = {"demo", "cli"}

# What a learner may be written in: the toolkit, its language, and plain Python.
LEARNERS_MAY_IMPORT = {"dpconvex", "cvxpy", "numpy", "jax", "__future__", "collections", "math", "typing"}

# Slow to import, or optional.
HEAVY = {"jax", "matplotlib", "sklearn", "dp_accounting", "tqdm", "opendp"}


# Modules that are about such an import, and are themselves imported only when they are used.
ENGINES = {"lowering", "estimators", "plots"}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything imported anywhere in a file, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            origin = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            target = node.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield node.lineno, target.value


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def violations(source: str, name: str, package: str) -> list[str]:
    """List what the layering forbids in a module of the toolkit."""
    room = name.split(".")[1]
    found = []
    for line, target in imported(ast.parse(source), package):
        if target.split(".")[0] == "problems" or target.startswith("dpconvex.problems"):
            found.append(f"{name}:{line} imports {target}: problem files are reached through gallery.load")
        if target.split(".")[0] != "dpconvex":
            continue
        parts = target.split(".")
        if len(parts) == 1 or (len(parts) == 2 and (parts[1] in dpconvex.__all__ or not is_module(target))):
            if room not in PROGRAMS and target != "dpconvex.errors":
                found.append(f"{name}:{line} imports {target}: import it from the module that defines it")
        elif parts[1] not in RANK:
            found.append(f"{name}:{line} imports {target}, which has no place in LAYERS")
        elif RANK[parts[1]] > RANK[room]:
            found.append(f"{name}:{line} imports {target}, which lies above it")
    return found


MODULES = sorted(f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "__init__.py")
LEARNERS = sorted((ROOT / "problems").glob("*.py"))


def package_of(file: Path) -> str:
    name = module_name(file)
    return name if file.name == "__init__.py" else name.rpartition(".")[0]


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_imports_run_one_way(file: Path) -> None:
    name = module_name(file)
    assert name.split(".")[1] in RANK, f"{name} has no place in LAYERS: decide where it belongs"
    assert violations(file.read_text(encoding="utf-8"), name, package_of(file)) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from dpconvex.solve import solve", "dpconvex.record"),
        ("def f():\n    from dpconvex.cli import main", "dpconvex.rules.affine"),
        ("import dpconvex.backends.conic", "dpconvex.mechanisms.objective"),
        ("from ..backends import conic", "dpconvex.mechanisms.objective"),
        ("from . import cli", "dpconvex.record"),
        ("import importlib\nimportlib.import_module('dpconvex.cli')", "dpconvex.record"),
        ("from dpconvex import Record", "dpconvex.template"),
        ("from dpconvex import verify", "dpconvex.solve"),
        ("import dpconvex as dp", "dpconvex.release"),
        ("from dpconvex.nowhere import f", "dpconvex.cli"),
        ("import problems.huber_svm", "dpconvex.estimators"),
        ("from dpconvex.problems import huber_svm", "dpconvex.cli"),
    ],
)
def test_the_check_sees_what_it_must(source: str, name: str) -> None:
    assert violations(source, name, name.rpartition(".")[0])


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from dpconvex.record import Record", "dpconvex.template"),
        ("from dpconvex import errors", "dpconvex.template"),
        ("from .objective import calibrate", "dpconvex.mechanisms.output"),
        ("import dpconvex as dp", "dpconvex.cli"),
        ("import numpy", "dpconvex.errors"),
    ],
)
def test_the_check_allows_what_it_should(source: str, name: str) -> None:
    assert violations(source, name, name.rpartition(".")[0]) == []


def test_there_are_learners() -> None:
    assert LEARNERS


@pytest.mark.parametrize("file", LEARNERS, ids=lambda f: f.stem)
def test_learners_use_public_names_only(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    aliases = {"dpconvex"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname for a in node.names if a.name == "dpconvex" and a.asname}
    for line, target in imported(tree, ""):
        assert target.split(".")[0] in LEARNERS_MAY_IMPORT, f"line {line} imports {target}"
        if target.startswith("dpconvex."):
            assert target.removeprefix("dpconvex.") in dpconvex.__all__, f"line {line} imports {target}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            assert node.attr in dpconvex.__all__, f"line {node.lineno} uses {ast.unparse(node)}, which is not public"


def modules_after(code: str) -> set[str]:
    """Run code in a fresh interpreter; return the top-level packages that it imported."""
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout))


def test_importing_the_package_is_light() -> None:
    after = modules_after("import dpconvex")
    assert not after & (HEAVY | {"cvxpy", "numpy", "scipy"})


def test_the_public_names_are_light() -> None:
    after = modules_after(
        "import dpconvex as dp; [getattr(dp, n) for n in dp.__all__ if dp._HOMES.get(n) != 'estimators']"
    )
    assert "cvxpy" in after
    # CVXPY imports jax, where it is installed, to ask whether a solver is.
    assert not after & (HEAVY - {"jax"})


@pytest.mark.parametrize("file", [f for f in MODULES if module_name(f).split(".")[1] not in ENGINES], ids=module_name)
def test_heavy_imports_wait_until_they_are_used(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    at_once = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[])
    heavy = {
        f"line {line}: {name}" for line, name in imported(at_once, package_of(file)) if name.split(".")[0] in HEAVY
    }
    assert not heavy


# The package's own namespace


def test_every_public_name_exists_and_is_listed() -> None:
    assert len(set(dpconvex.__all__)) == len(dpconvex.__all__)
    for name in dpconvex.__all__:
        assert getattr(dpconvex, name) is not None
        assert name in dir(dpconvex)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Recrod'; public names: Atom, Audit"):
        getattr(dpconvex, "Recrod")  # noqa: B009
    assert not hasattr(dpconvex, "__wrapped__")


@pytest.mark.parametrize("name", ["verify", "solve"])
@pytest.mark.parametrize("first", ["", "import dpconvex.{name}; ", "from dpconvex.{name} import {name} as f; "])
def test_a_function_keeps_its_name_although_a_file_has_it_too(name: str, first: str) -> None:
    code = (
        first.format(name=name)
        + f"import sys, dpconvex; assert callable(dpconvex.{name}), dpconvex.{name}; "
        + f"assert dpconvex.{name} is sys.modules['dpconvex.{name}'].{name}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_type_checker_sees_the_same_names() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    declared = {
        alias.name: (node.module or "").removeprefix("dpconvex.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == dpconvex._HOMES
    assert set(dpconvex.__all__) == {*declared, *dpconvex.errors.__all__, "errors", "__version__"}
