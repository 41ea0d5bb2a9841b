"""The notebooks run from top to bottom, and are committed as they ran."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDS = {"adult": "adult.csv.gz"}  # data that are not shipped
# Jupyter's own packages warn about each other; what the notebooks warn about is checked in their output.
pytestmark = pytest.mark.filterwarnings("default")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def complaints(notebook: Any) -> list[str]:
    """List the errors and warnings in the output of a notebook."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                found.append("\n".join(output.traceback))
            elif output.output_type == "stream" and output.name == "stderr":
                found.append(output.text)
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert complaints(notebook) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, shared_data: Callable[[str], Path]) -> None:
    folder = {"DPCONVEX_DATA": str(shared_data(NEEDS[path.stem]).parent)} if path.stem in NEEDS else {}
    notebook = read(path)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    client.execute(env={**os.environ, **folder, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"})
    assert complaints(notebook) == []
