"""Fills the numbers of the pages: ``python docs/fill_numbers.py [--check] [--all] [program ...]`` (``make numbers``).

A number that a command prints stands between markers, ``<!-- number: NAME -->2,600<!-- /number -->``; a table likewise, with
an empty line at either end.  NAME is one of `NUMBERS`, or a program of `benchmarks/`, with its options, whose printed table the
page shows.  By default those are filled that take about a second.  ``--all`` fills all of `NUMBERS`, and programs run where they
are named.
Timings are those of the last ``make bench``.  ``--check`` writes nothing, and fails if a number is off by more than a tenth
(of those that are filled by default, or with ``--all`` of all `NUMBERS`).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are in the checkout alone

import dpconvex as dp  # noqa: E402
from benchmarks import RESULTS  # noqa: E402
from dpconvex.expressions.atoms import ATOMS  # noqa: E402

__all__ = ["filled", "pages", "stale"]

MARKED = re.compile(r"(<!-- number: (?P<name>[^>]+?) -->)(?P<text>.*?)(<!-- /number -->)", re.DOTALL)
FIGURES = re.compile(r"\d[\d,]*(?:\.\d+)?")
APART = 0.1  # A number may be so far off until somebody fills it anew


def lines(folder: str) -> str:
    """Return the lines of all Python files in a folder, in hundreds."""
    count = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / folder).rglob("*.py"))
    return f"{round(count, -2):,}"


def block(*rows: str) -> str:
    return "\n\n" + "\n".join(rows) + "\n\n"


@cache
def trace(rows: int) -> tuple[list[str], list[str]]:
    """Run the trace in a process of its own; return the table, and of each row the lines of rooms."""
    command = [sys.executable, "-m", "benchmarks.trusted_lines", "--rows", str(rows)]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return found.stdout.splitlines(), [line.strip() for line in found.stderr.splitlines() if line.startswith("    ")]


def trusted(old: str, everything: bool) -> str:
    """Return the table of trusted lines; the last row, which takes minutes, stays as it was unless everything is asked for."""
    rows = trace(4 if everything else 3)[0]
    return block(*rows, *old.strip().splitlines()[len(rows) :])


def timings(old: str, everything: bool) -> str:
    """Return the table of the last `make bench`; the old one where there is none."""
    file = RESULTS / "performance.json"
    if not file.is_file():
        return old
    found = json.loads(file.read_text(encoding="utf-8"))
    from benchmarks.__main__ import table
    from benchmarks.timing import Row

    return block(*table([Row(**row) for row in found["rows"]]).splitlines()) + f"Measured on {found['machine']}.\n\n"


def demonstration(old: str, everything: bool) -> str:
    """Return the mean test errors of a hundred splits of the demonstration, which take a minute."""
    if not everything:
        return old
    from dpconvex.cli.demo import EPSILONS, study

    errors = study(100, EPSILONS, None).mean(axis=1)
    heads = " | ".join([*(f"{epsilon:g}" for epsilon in EPSILONS), "no privacy"])
    rows = f"| epsilon | {heads} |", "|---" * (len(errors) + 1) + "|"
    return block(*rows, f"| test error | {' | '.join(f'{error:#.2g}' for error in errors)} |")


Number = Callable[[str, bool], str]
NUMBERS: dict[str, Number] = {
    "package lines": lambda old, everything: lines("dpconvex"),
    "checker lines": lambda old, everything: lines("dpconvex/checker"),
    "test lines": lambda old, everything: lines("tests"),
    "benchmark lines": lambda old, everything: lines("benchmarks"),
    "problems": lambda old, everything: str(len(dp.problems())),
    "atoms": lambda old, everything: str(len(ATOMS)),
    "trusted lines": trusted,
    "trusted rooms": lambda old, everything: trace(4 if everything else 3)[1][1],
    "timings": timings,
    "demonstration": demonstration,
}


def printed(program: str) -> str:
    """Run a benchmark, and return the table that it prints."""
    command = [sys.executable, "-m", *f"benchmarks.{program}".split()]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return block(*(line for line in found.splitlines() if line.startswith("|")))


def pages() -> list[Path]:
    """Return README and all pages."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(text: str, programs: Sequence[str] = (), everything: bool = False) -> str:
    """Return the text of a page with its numbers filled."""

    def replaced(found: re.Match[str]) -> str:
        name, old = found["name"], found["text"]
        new = NUMBERS[name](old, everything) if name in NUMBERS else printed(name) if name in programs else old
        return f"{found[1]}{new}{found[4]}"

    return MARKED.sub(replaced, text)


def near(old: str, new: str) -> bool:
    """Say whether two texts have the same words, and numbers that are nearly the same."""
    if FIGURES.sub("0", old) != FIGURES.sub("0", new):
        return False
    both = zip(
        *([float(figure.replace(",", "")) for figure in FIGURES.findall(text)] for text in (old, new)), strict=True
    )
    return all(abs(a - b) <= APART * max(abs(a), abs(b)) for a, b in both)


def stale(everything: bool = False) -> list[str]:
    """Return the names of numbers that have to be filled anew, with their pages."""
    found = []
    for page in pages():
        for old in MARKED.finditer(page.read_text(encoding="utf-8")):
            new = MARKED.fullmatch(filled(old[0], everything=everything))
            if new is not None and not near(old["text"], new["text"]):
                found.append(f"{page.name}: {old['name']}")
    return found


def main() -> int:
    """Fill, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="benchmarks to run for their tables")
    parser.add_argument("--all", action="store_true", help="fill those that take minutes, too")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    if given.check:
        found = stale(given.all)
        sys.stdout.write("".join(f"{name} is out of date: make numbers\n" for name in found))
        return int(bool(found))
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = filled(old, given.programs, given.all)
        if new != old:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"filled {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
