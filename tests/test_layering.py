"""Imports run one way through the package, and what is heavy is imported only when it is used."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dpconvex

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dpconvex"

# The wings of the package, lowest first, and the two modules that stand alone.  A module may import from its own wing and from
# those before it in this list; inside a wing, no modules import each other in a circle.
WINGS = [
    "errors",
    "plots",
    "core",
    "geometry",
    "language",
    "datasets",
    "calculus",
    "noise",
    "accounting",
    "mechanisms",
    "evaluation",
    "solvers",
    "release",
    "learners",
    "estimators",
    "auditing",
    "apps",
    "__main__",
]
RANK = {name: rank for rank, name in enumerate(WINGS)}

# Programs built on the toolkit rather than parts of it: they may use the public names.
PROGRAMS = {"apps", "__main__"}

# What a learner may be written in: the toolkit, its language, and plain Python.
LEARNERS_MAY_IMPORT = {"dpconvex", "cvxpy", "numpy", "jax", "__future__", "collections", "itertools", "math", "typing"}

# Slow to import, or optional.
HEAVY = {"jax", "matplotlib", "sklearn", "dp_accounting", "tqdm", "opendp", "dask", "distributed", "cloudpickle"}


# Modules that are about such an import, and are themselves imported only when they are used.
ENGINES = {"dpconvex.plots"}
ENGINES |= {
    f"dpconvex.estimators.{file.stem}" for file in (PACKAGE / "estimators").glob("*.py") if file.stem != "__init__"
}


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
    wing = name.split(".")[1]
    found = []
    for line, target in imported(ast.parse(source), package):
        if target.split(".")[0] == "problems" or target.startswith("dpconvex.problems"):
            found.append(f"{name}:{line} imports {target}: problem files are reached through problem_files.load")
        if target.split(".")[0] in {"benchmarks", "tests"}:
            found.append(f"{name}:{line} imports {target}, which is no part of the package")
        if target.split(".")[0] != "dpconvex":
            continue
        parts = target.split(".")
        if len(parts) == 1 or (len(parts) == 2 and (parts[1] in dpconvex.__all__ or not is_module(target))):
            if wing not in PROGRAMS and target != "dpconvex.errors":
                found.append(f"{name}:{line} imports {target}: import it from the module that defines it")
        elif parts[1] not in RANK:
            found.append(f"{name}:{line} imports {target}, which has no place in WINGS")
        elif RANK[parts[1]] > RANK[wing]:
            found.append(f"{name}:{line} imports {target}, which comes after it")
    return found


MODULES = sorted(f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "__init__.py")
LEARNERS = sorted((ROOT / "problems").glob("*.py"))


def package_of(file: Path) -> str:
    name = module_name(file)
    return name if file.name == "__init__.py" else name.rpartition(".")[0]


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_imports_run_one_way(file: Path) -> None:
    name = module_name(file)
    assert name.split(".")[1] in RANK, f"{name} has no place in WINGS: decide where it belongs"
    assert violations(file.read_text(encoding="utf-8"), name, package_of(file)) == []


@pytest.mark.parametrize(
    ("source", "name", "allowed"),
    [
        ("def f():\n    from dpconvex.apps.cli import main", "dpconvex.core.expansion", False),
        ("from ..solvers import conic", "dpconvex.mechanisms.base", False),
        ("import importlib\nimportlib.import_module('dpconvex.apps.cli')", "dpconvex.language.record", False),
        ("from dpconvex import verify", "dpconvex.release.solve", False),
        ("import dpconvex as dp", "dpconvex.release.release", False),
        ("from dpconvex.nowhere import f", "dpconvex.apps.cli", False),
        ("import problems.huber_svm", "dpconvex.estimators.base", False),
        ("from benchmarks.public_data import adult", "dpconvex.apps.demo", False),
        ("from dpconvex import errors", "dpconvex.language.template", True),
        ("from .base import Mechanism", "dpconvex.mechanisms.output_perturbation", True),
        ("import dpconvex as dp", "dpconvex.apps.cli", True),
    ],
)
def test_the_check_sees_what_it_must(source: str, name: str, allowed: bool) -> None:
    assert (violations(source, name, name.rpartition(".")[0]) == []) is allowed


def module_of(dotted: str) -> str:
    """Return the module that an imported name is in, or is."""
    while not is_module(dotted):
        dotted = dotted.rpartition(".")[0]
    return dotted


def running(tree: ast.Module) -> ast.Module:
    """Take off what is imported for type checkers only."""
    return ast.Module(
        [n for n in tree.body if not (isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")],
        type_ignores=[],
    )


def imports_within(wing: str) -> dict[str, set[str]]:
    """Return what each module of a wing imports from it when it runs, inside functions too."""
    found = {}
    for file in MODULES:
        name = module_name(file)
        if name.split(".")[1] == wing:
            targets = (target for _, target in imported(running(ast.parse(file.read_text("utf-8"))), package_of(file)))
            inside = {module_of(target) for target in targets if target.startswith(f"dpconvex.{wing}.")}
            found[name] = inside - {f"dpconvex.{wing}"}
    return found


@pytest.mark.parametrize("wing", WINGS)
def test_no_circles_within_a_wing(wing: str) -> None:
    TopologicalSorter(imports_within(wing)).prepare()  # raises CycleError, which names the circle


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


def declared() -> dict[str, str]:
    """Return the names of the stub, each with the module that it is from."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in froms for alias in node.names), "write `name as name`"
    return {alias.name: node.module or "" for node in froms for alias in node.names}


def test_importing_the_package_is_light() -> None:
    after = modules_after("import dpconvex")
    assert not after & (HEAVY | {"cvxpy", "numpy", "scipy"})


def test_the_public_names_are_light() -> None:
    after = modules_after(
        "import dpconvex as dp; "
        f"[getattr(dp, n) for n in {[n for n in dpconvex.__all__ if not declared().get(n, '').startswith('estimators')]}]"
    )
    assert "cvxpy" in after
    # CVXPY imports jax, where it is installed, to ask whether a solver is, and that imports cloudpickle.
    assert not after & (HEAVY - {"jax", "cloudpickle"})


@pytest.mark.parametrize("file", [f for f in MODULES if module_name(f) not in ENGINES], ids=module_name)
def test_heavy_imports_wait_until_they_are_used(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    at_once = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[])
    heavy = {
        f"line {line}: {name}" for line, name in imported(at_once, package_of(file)) if name.split(".")[0] in HEAVY
    }
    assert not heavy


# Files that speak CVXPY: where users write it, the one that reads it, and the bridge to conic solvers.
SPEAK_CVXPY = {
    "dpconvex.language.record",
    "dpconvex.language.template",
    "dpconvex.language.huber_hinge",
    "dpconvex.language.problem_parts",
    "dpconvex.core.declared_atoms",
    "dpconvex.core.from_cvxpy",
    "dpconvex.core.to_cvxpy",
    "dpconvex.solvers.conic",
    "dpconvex.solvers.duality_gap",
    "dpconvex.language.batch_program",
    "dpconvex.language.bounded_program",
    "dpconvex.language.private_bound",
}
# Of these, only the reader and the bridge may look at atoms; the others make variables, parameters, and functions of them.
LOOK_AT_ATOMS = {"dpconvex.core.from_cvxpy", "dpconvex.core.to_cvxpy"}


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_only_the_reader_and_the_bridge_interpret_cvxpy(file: Path) -> None:
    name = module_name(file)
    used = [t for _, t in imported(ast.parse(file.read_text(encoding="utf-8")), package_of(file))]
    speaks = [target for target in used if target.split(".")[0] == "cvxpy"]
    assert not speaks or name in SPEAK_CVXPY, f"{name} imports {speaks[0]}: ask core expressions instead"
    atoms = [
        target for target in speaks if target.startswith(("cvxpy.atoms", "cvxpy.constraints", "cvxpy.expressions"))
    ]
    if name not in LOOK_AT_ATOMS | {"dpconvex.core.declared_atoms"}:  # a user's atom is a class of CVXPY's
        assert not atoms, f"{name} imports {atoms[0]}"
    assert "__mro__" not in file.read_text(encoding="utf-8"), f"{name}: a class stands for itself"


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


def test_the_type_checker_sees_the_same_names() -> None:
    names = declared()
    assert set(dpconvex.__all__) == {*names, "__version__"}
    assert {name for name, module in names.items() if module == "errors"} <= set(dpconvex.errors.__all__)
    assert set(dpconvex.errors.__all__) <= set(names)


def test_no_module_hides_a_public_name() -> None:
    assert {name for name in dpconvex.__all__ if is_module(f"dpconvex.{name}")} == {"errors"}


def test_public_names_have_docstrings() -> None:
    silent = [name for name in dpconvex.__all__ if name != "__version__" and not getattr(dpconvex, name).__doc__]
    assert not silent
