"""The pages under docs/ keep their word: generated ones are up to date, links lead somewhere, formulas hold in numbers."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpconvex as dp
from dpconvex.core.atoms import ATOMS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
SEVERITIES = ("critical", "high", "medium", "low")


def script(name: str) -> ModuleType:
    """Import a script of docs/, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The rules page


def test_the_rules_page_is_what_the_rules_say_today() -> None:
    module = script("build_rules")
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python docs/build_rules.py"


def test_every_rule_has_an_example() -> None:
    ruled = [atom for atom in ATOMS.values() if atom.affine == "curved" and atom.rule is not None]
    assert {atom.name for atom in ruled} == set(script("build_rules").EXAMPLES)
    assert all(atom.statement and atom.source for atom in ruled)


def test_the_reference_lists_the_public_names() -> None:
    module = script("build_api")
    written = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "api").glob("*.md")}
    assert written == module.pages(), "run: python docs/build_api.py"
    assert "further" not in written, "give the new names a page in docs/build_api.py"


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "api" / "proving" / "index.html").is_file()


# Links, names and tables


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        other = page if not file else (page.parent / file).resolve()
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(other.read_text(encoding="utf-8")), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_public_names_and_files_that_a_page_mentions_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`dp\.(\w+)", text):
        assert hasattr(dp, name), f"{page.name} mentions dp.{name}"
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text):
        assert any((place / name).is_file() for place in (ROOT, ROOT / "dpconvex")), f"{page.name} mentions {name}"


def test_pitfalls_are_rated_and_complete() -> None:
    text = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(.*?)\]\(#.*?\) \| (\w+) \|$", text, flags=re.MULTILINE)
    assert len(listed) >= 20
    section, found = "", []
    for level, title in re.findall(r"^(##+) (.*)$", text, flags=re.MULTILINE):
        section = title.lower() if level == "##" else section
        if level == "###":
            found.append((title, section))
    assert found == listed
    assert {rating for _, rating in listed} == set(SEVERITIES)
    for part in text.split("\n### ")[1:]:
        for label in ("What goes wrong", "What the toolkit does", "Left to you"):
            assert part.count(f"*{label}.*") == 1, part.splitlines()[0]
