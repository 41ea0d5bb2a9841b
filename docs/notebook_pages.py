"""A hook of MkDocs: shows the notebooks as pages, with the outputs and pictures that they were kept with; nothing is run."""

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from shown_outputs import fenced

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
LINK = re.compile(r"\]\((?:\.\./docs/)?([\w/]+\.md)(#[\w-]+)?\)|\]\((\w+)\.ipynb\)")


def linked(text: str) -> str:
    """Return a text whose links to guides and notebooks lead to their pages."""
    return LINK.sub(lambda found: f"]({found[3]}.md)" if found[3] else f"](../{found[1]}{found[2] or ''})", text)


def text_of(output: dict[str, Any], pictures: list[bytes], name: str) -> str:
    """Return an output in Markdown; a picture is put aside, and linked."""
    data = output.get("data", {})
    if "image/png" in data:
        pictures.append(base64.b64decode("".join(data["image/png"])))
        return f"![picture {len(pictures)} of this notebook]({name}_{len(pictures)}.png)\n"
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        return '<div class="notebook-output">' + "\n".join(line for line in lines if line.strip()) + "</div>\n"
    return fenced("".join(output.get("text", data.get("text/plain", ""))))


def page_of(path: Path) -> tuple[str, list[bytes]]:
    """Return a notebook in Markdown, and its pictures."""
    pictures: list[bytes] = []
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(linked(source) + "\n")
        else:
            parts.append(f"```python\n{source}\n```\n")
            parts += [text_of(output, pictures, path.stem) for output in cell["outputs"]]
    return "\n".join(parts), pictures


def on_files(files: Files, config: Any, **kwargs: Any) -> Files:
    """Add a page for each notebook."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        page, pictures = page_of(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for number, picture in enumerate(pictures, start=1):
            files.append(File.generated(config, f"notebooks/{path.stem}_{number}.png", content=picture))
    return files
