"""Imports run one way through the package, and what is heavy is imported only when it is used."""

import ast
import json
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dpconvex

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dpconvex"

# The rooms of the package, lowest first, and the modules that stand alone.  A module may import from its own room and from those
# before it in this list; inside a room, no modules import each other in a circle.
ROOMS = [
    *("errors", "numerics", "checker", "plots", "util", "data", "datasets", "expressions", "sets", "model"),
    *("noise", "accounting", "certificates", "sensitivity", "mechanisms", "sums", "optim", "fitting", "interop"),
    *("selection", "features", "estimators", "auditing", "cli", "__main__"),
]
# Programs built on the toolkit rather than parts of it: they may use the public names.
PROGRAMS = {"cli", "__main__"}
# What a learner may be written in: the toolkit, its language, and plain Python.
LEARNERS_MAY_IMPORT = {"dpconvex", "cvxpy", "numpy", "jax", "__future__", "collections", "itertools", "math", "typing"}
# Slow to import, or optional; and modules that are about such an import, and are themselves imported only when they are used.
HEAVY = {"jax", "matplotlib", "sklearn", "dp_accounting", "opendp", "dask", "distributed", "cloudpickle"}
HEAVY |= {"sqlalchemy", "psycopg", "duckdb", "onnx", "onnxruntime"}
ABOUT_HEAVY = ("dpconvex.plots", "dpconvex.features.", "dpconvex.estimators.")
# Files that speak CVXPY: the reader and the bridge to conic solvers, which may look at atoms, and where users write it.
LOOK_AT_ATOMS = {f"dpconvex.expressions.{name}" for name in ("from_cvxpy", "to_cvxpy", "declared_atoms")}
WRITTEN_IN = {"dpconvex.data.record", "dpconvex.model.template", "dpconvex.model.batch_program"}
SPEAK_CVXPY = LOOK_AT_ATOMS | WRITTEN_IN | {"dpconvex.sets.conic_programs", "dpconvex.optim.conic"}
SPEAK_CVXPY |= {"dpconvex.selection.bounded", "dpconvex.fitting.intervals"}
ATOMS = {"atoms", "constraints", "expressions"}


def module_name(file):
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def is_module(dotted):
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@cache
def module_of(dotted):
    while not is_module(dotted):
        dotted = dotted.rpartition(".")[0]
    return dotted


def imported(node):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def forbidden(target, name, at_once):
    """Return why a module of the toolkit must not import something, empty if it may."""
    room, (top, *parts) = name.split(".")[1], target.split(".")
    if top in {"problems", "benchmarks", "tests"}:
        return "which is no part of the package; problem files are reached through problem_files.load"
    if top in HEAVY and at_once and not name.startswith(ABOUT_HEAVY):
        return "which is heavy: import it where it is used"
    if top == "cvxpy" and name not in (LOOK_AT_ATOMS if {*parts[:1]} & ATOMS else SPEAK_CVXPY):
        return "ask core expressions instead; only the reader and the bridge interpret atoms"
    if top == "" or (top == "dpconvex" and not (parts and is_module(f"dpconvex.{parts[0]}"))):
        return "" if room in PROGRAMS else "import it from the module that defines it"
    if top == "dpconvex" and parts[0] not in ROOMS[: ROOMS.index(room) + 1]:
        return "which comes after it, or has no place in ROOMS"
    return ""


def violations(source, name):
    tree = ast.parse(source)
    targets = [(node, target) for node in ast.walk(tree) for target in imported(node)]
    wrong = [(node, target, forbidden(target, name, node in tree.body)) for node, target in targets]
    return [f"{name}:{getattr(node, 'lineno', 0)} imports {target}: {why}" for node, target, why in wrong if why]


MODULES = {module_name(f): f for f in sorted(PACKAGE.rglob("*.py")) if f != PACKAGE / "__init__.py"}
LEARNERS = sorted((ROOT / "problems").glob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way_and_in_no_circle(room):
    within = {}
    for name, file in MODULES.items():
        if name.split(".")[1] == room:
            source = file.read_text(encoding="utf-8")
            assert violations(source, name) == []
            body = ast.parse(source).body
            checked = [n for n in body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))]
            targets = {t for part in checked for node in ast.walk(part) for t in imported(node)}
            within[name] = {module_of(target) for target in targets if target.startswith(f"dpconvex.{room}.")}
    # Names a circle, if there is one.
    TopologicalSorter({name: found - {f"dpconvex.{room}"} for name, found in within.items()}).prepare()


def test_few_tests_import_private_modules():
    """Tests of public names stay as they are when modules move."""
    public, found = {"dpconvex", *(f"dpconvex.{n}" for n in ("checker", "datasets", "errors", "interop", "plots"))}, []
    for file in (ROOT / "tests").rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        modules = {module_of(t) for node in nodes for t in imported(node) if t.startswith("dpconvex.")}
        found += [file.name] if modules - public else []
    assert len(found) <= 50, found


def test_files_have_at_most_400_lines_and_rooms_4400():
    rooms = dict.fromkeys(ROOMS, 0)
    tops = (ROOT / top for top in ("dpconvex", "problems", "tests", "benchmarks"))
    for file in (file for top in tops for file in top.rglob("*.py")):
        lines, own = len(file.read_text(encoding="utf-8").splitlines()), file.relative_to(ROOT).with_suffix("").parts
        assert lines <= 400, f"{file}: {lines} lines"
        if own[0] == "dpconvex" and own[1] in rooms:
            rooms[own[1]] += lines
    assert max(rooms.values()) <= 4400, rooms


def test_the_changelog_is_a_page():
    """Measurements and the history of development go to `docs/archive`."""
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_every_module_has_a_place():
    assert {name.split(".")[1] for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize(
    ("source", "name", "allowed"),
    [
        ("def f():\n    from dpconvex.cli.main import main", "expressions.expansion", False),
        ("from ..optim import conic", "mechanisms.base", False),
        ("import dpconvex as dp", "fitting.release", False),
        ("import problems.huber_svm", "estimators.base", False),
        ("import opendp", "sums.engine", False),
        ("import cvxpy as cp", "sensitivity.analysis", False),
        ("from cvxpy.atoms import affine", "model.template", False),
        ("from dpconvex import errors", "model.template", True),
        ("def f():\n    import opendp", "sums.engine", True),
        ("import dpconvex as dp", "cli.main", True),
    ],
)
def test_the_check_sees_what_it_must(source, name, allowed):
    assert (violations(source, f"dpconvex.{name}") == []) is allowed


@pytest.mark.parametrize("file", LEARNERS, ids=lambda f: f.stem)
def test_learners_use_public_names_only(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for target in imported(node):
            assert target.split(".")[0] in LEARNERS_MAY_IMPORT, f"imports {target}"
            assert not target.startswith("dpconvex.") or target.removeprefix("dpconvex.") in dpconvex.__all__, target
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("dp", "dpconvex"):
            assert node.attr in dpconvex.__all__, f"line {node.lineno} uses {ast.unparse(node)}, which is not public"


def modules_after(code):
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    return set(json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout))


def declared():
    """Return the names of the stub, each with the module that it is from."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in froms for alias in node.names)
    return {alias.name: node.module or "" for node in froms for alias in node.names}


def test_importing_is_light():
    assert not modules_after("import dpconvex") & (HEAVY | {"cvxpy", "numpy", "scipy"})
    light = [n for n in dpconvex.__all__ if not declared().get(n, "").startswith(("estimators", "features"))]
    names = [name for name in light if name != "plots"]
    after = modules_after(f"import dpconvex as dp; [getattr(dp, n) for n in {names}]")
    assert "cvxpy" in after
    assert not after & (HEAVY | {"narwhals"})  # nor jax, which CVXPY would import to ask whether a solver is there


def test_statistics_are_imported_when_they_are_used():
    """CVXPY imports them for one function of one atom, which takes a quarter of a first fit."""
    code = """
import sys
import dpconvex as dp
dp.Template
assert "cvxpy" in sys.modules and "jax" not in sys.modules
dp.solve(dp.load("logistic_regression", features=1), {"x": [[0.5], [0.2]], "y": [1, -1]}, dp.Privacy(1.0, 1e-6), seed=0)
assert "scipy.stats._distn_infrastructure" not in sys.modules
from scipy import stats
import cvxpy as cp
half = [[0.5, 0.0], [0.0, 0.5]]
assert abs(cp.quantum_rel_entr(half, half).value) < 1e-12
import scipy.stats
from scipy.stats import norm
assert stats.norm is norm is scipy.stats.norm and scipy.stats.__file__.endswith("stats/__init__.py")
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["--version", "--help", "fit --help", "budget show ledger.jsonl"])
def test_what_a_shell_asks_often_is_answered_without_what_learns(tmp_path, command):
    ledger = tmp_path / "ledger.jsonl"
    dpconvex.Budget(dpconvex.Privacy(1.0), ledger).spend(dpconvex.Privacy(0.3), "a fit")
    words = command.replace("ledger.jsonl", str(ledger)).split()
    after = modules_after(
        f"import contextlib, os, sys; from dpconvex.cli.main import main; sys.stdout = open(os.devnull, 'w')\n"
        f"with contextlib.suppress(SystemExit): main({words})\nsys.stdout = sys.__stdout__"
    )
    assert not after & {*HEAVY, "cvxpy", "pandas", "narwhals"}
    assert command.startswith("budget") or "numpy" not in after


def test_public_names_exist_are_documented_and_those_of_the_stub_and_no_module_hides_one():
    names = declared()
    assert sorted(dpconvex.__all__) == sorted([*names, "__version__"])
    for name in dpconvex.__all__:
        assert name in dir(dpconvex)
        assert getattr(dpconvex, name).__doc__ or name == "__version__", name
    assert not hasattr(dpconvex, "__wrapped__")
    assert dir(dpconvex) == sorted(dpconvex.__all__)
    modules = [name for name in sorted(dpconvex.__all__) if is_module(f"dpconvex.{name}")]
    assert modules == ["datasets", "errors", "interop", "plots"]
    kinds = {name for name, kind in vars(dpconvex.errors).items() if isinstance(kind, type)}
    assert {name for name, module in names.items() if module == "errors"} == kinds
