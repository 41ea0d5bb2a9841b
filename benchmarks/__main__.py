"""Run the benchmarks: ``python -m benchmarks [case ...] [--repetitions 7] [--output benchmarks/results]``.

A first argument that names a program of this folder runs it: ``python -m benchmarks evaluation --small``.
"""

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks import RESULTS, chosen, some_of
from benchmarks.cases import CASES
from benchmarks.timing import Row
from dpconvex.errors import DomainError


def number(value: float | None, unit: str) -> str:
    """Three digits and a unit."""
    return "" if value is None else f"{value:.3g} {unit}".strip()


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    lines = ["| case | measured | value | reference | ratio | goal | reached |", "|---" * 7 + "|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        measured = f"{row.measured} ({row.note})" if row.note else row.measured
        reached = "" if not row.goal else "yes" if row.reached else "**no**"
        numbers = number(row.value, row.unit), number(row.reference, row.unit)
        lines.append(f"| {' | '.join((row.case, measured, *numbers, ratio, row.goal, reached))} |")
    return "\n".join(lines)


def machine() -> str:
    """What it ran on, in a line."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "default"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"BLAS threads: {threads}, load {load:.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, and write the table and its numbers."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] not in CASES and (Path(__file__).parent / given[0]).with_suffix(".py").is_file():
        raise SystemExit(import_module(f"benchmarks.{given[0]}").main(given[1:]))
    known = {"cases": some_of(CASES), "--repetitions": (7, "turns of each comparison")}
    known |= {"--output": {"type": Path, "default": RESULTS, "help": "where table.md and performance.json go"}}
    options = chosen(__doc__, given, known, repetitions=1)
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    print(machine() + ", SMALL: fewer records than the names say" * options.small, flush=True)
    for name in options.cases or CASES:
        try:
            for row in CASES[name](options.repetitions):
                rows.append(row)
                print(table([row]).splitlines()[-1], flush=True)
        except DomainError as reason:
            print(f"| {name} | skipped: {reason} |", flush=True)
    (options.output / "table.md").write_text(f"{machine()}\n\n{table(rows)}\n", encoding="utf-8")
    numbers = {"machine": machine(), "rows": [asdict(row) for row in rows]}
    (options.output / "performance.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
