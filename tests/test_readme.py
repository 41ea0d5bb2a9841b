"""The README keeps its word: its example runs as printed, and its table of problems is complete."""

import re
from pathlib import Path

import numpy as np
import pytest

import dpconvex as dp

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROBLEMS = (ROOT / "docs" / "problems.md").read_text(encoding="utf-8")
PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def run(text: str, name: str) -> dict[str, object]:
    """Run the examples of a page, one after the other."""
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, name, "exec"), names)
    return names


@pytest.mark.parametrize("page", ["quickstart", "data", "certificates", "estimators", "budgets"])
def test_the_examples_of_the_documentation_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), page)


def test_the_examples_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(README, "README.md")
    certificate, release = names["certificate"], names["release"]
    assert isinstance(certificate, dp.Certificate)
    assert isinstance(release, dp.Release)
    assert np.shape(release["Phi_0"]) == (10, 10)


def test_every_shipped_problem_is_in_the_table() -> None:
    assert set(re.findall(r'^\| `"(\w+)"` \|', PROBLEMS, flags=re.MULTILINE)) == set(dp.problems())


def test_every_learner_of_the_papers_has_a_row() -> None:
    rows = [line.split("|")[1:-1] for line in PAPERS.splitlines() if line.startswith("| ")][1:]
    assert all(len(row) == 5 and all(cell.strip() for cell in row) for row in rows)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert named <= set(dp.problems())
    assert named >= {name for name in dp.problems() if name.startswith(("pathak_raj", "large_margin"))}
    assert named >= {"logistic_regression", "huber_svm", "smooth_hinge_svm", "kernel_svm", "hinge_svm"}


def test_what_the_table_of_learners_names_exists() -> None:
    names = re.findall(r"`(tests/[\w/]+)\.py`", PAPERS) + re.findall(r"python -m (benchmarks[.\w]+)", PAPERS)
    assert len(set(names)) >= 12
    missing = [name for name in names if not (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()]
    assert not missing
