"""Packaging: what a wheel and an editable install give to a program that runs outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import dpconvex

ROOT = Path(__file__).resolve().parent.parent


def run(command, cwd):
    """Run a command as a user would, with nothing of this process's search path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))}
    result = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.slow
def test_a_wheel_holds_all_that_is_shipped_and_works_outside_the_checkout(tmp_path):
    """Built from a copy of the checkout, by way of the source archive; its dependencies are those of this interpreter."""
    copy = tmp_path / "checkout"
    kept = shutil.ignore_patterns(".*", "__pycache__", "docs", "benchmarks", "notebooks")
    shutil.copytree(ROOT, copy, ignore=kept)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, copy], tmp_path)
    (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    problems = {f"problems/{f.name}" for f in (ROOT / "problems").glob("*.py")}
    modules = {f.relative_to(ROOT).as_posix() for f in (ROOT / "dpconvex").rglob("*.py")}
    data = {"py.typed", "__init__.pyi", "data/breast_cancer_wisconsin.csv"}
    data |= {"selection/report.html", "checker/table.toml"}
    assert modules | {f"dpconvex/{name}" for name in problems | data} <= names
    assert {n.split("/")[0] for n in names} == {"dpconvex", f"dpconvex-{dpconvex.__version__}.dist-info"}
    with tarfile.open(archive) as source:
        names = {n.partition("/")[2] for n in source.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/conftest.py", *problems} <= names
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], tmp_path)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", scripts / "python"]
    run([*pip, "install", "--no-deps", wheel], tmp_path)
    site = run([scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip()
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    Path(site, "borrowed.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    lines = ["a,b,class", *(f"{i % 10},{(i * 7) % 10},{'high' if i % 10 > 4 else 'low'}" for i in range(200))]
    (tmp_path / "data.csv").write_text("\n".join(lines), encoding="utf-8")
    columns = ["--features=a,b", "--bounds=0,9", "--label=class", "--labels=low,high"]
    fit = [scripts / "dpconvex", "fit", "huber_svm", "data.csv", *columns, "--epsilon=5", "--out=model.npz", "--json"]
    assert json.loads(run(fit, tmp_path))["private"] is True
    code = "import dpconvex as dp; print(dp.__file__, *dp.problems())"
    file, *problems = run([scripts / "python", "-c", code], tmp_path).split()
    assert tmp_path in Path(file).parents
    assert problems == list(dpconvex.problems())


def test_without_opendp_all_is_proved_and_nothing_is_paid_for():
    code = """
import sys
sys.modules["opendp"] = None
import dpconvex as dp
learner, budget = dp.load("logistic_regression", features=1), dp.Budget(dp.Privacy(1.0))
assert dp.verify(learner, dp.Privacy(1.0), size=20)
try:
    dp.solve(learner, {"x": [[0.5]] * 20, "y": [1, -1] * 10}, dp.Privacy(1.0), budget=budget)
except dp.DPConvexError as error:
    print(error, budget.remaining.epsilon)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, left = done.stdout.rsplit(" ", 1)
    assert "nothing is released" in said
    assert "pip install opendp" in said
    assert float(left) == 1.0
