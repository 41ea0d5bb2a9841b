"""Run the benchmarks: ``python -m benchmarks [case ...] [--repetitions 7] [--output benchmarks/results]``.

A first argument that names a program of this folder runs it: ``python -m benchmarks evaluation --small``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks import RESULTS, chosen
from benchmarks.cases import CASES, SKIPPED
from benchmarks.timing import Row


def number(value: float | None, unit: str) -> str:
    """Three digits and a unit."""
    return "" if value is None else f"{value:.3g} {unit}".strip()


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    head = ["case", "measured", "value", "reference", "ratio", "goal", "reached"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        measured = f"{row.measured} ({row.note})" if row.note else row.measured
        reached = "" if not row.goal else "yes" if row.reached else "**no**"
        cells = (
            row.case,
            measured,
            number(row.value, row.unit),
            number(row.reference, row.unit),
            ratio,
            row.goal,
            reached,
        )
        lines.append("| " + " | ".join(cells) + " |")
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="which; all by default")
    parser.add_argument("--repetitions", type=int, default=7, help="turns of each comparison")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where table.md and performance.json go")
    options = chosen(parser, given, repetitions=1)
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    print(machine() + ", SMALL: fewer records than the names say" * options.small, flush=True)
    for name in options.cases or CASES:
        try:
            for row in CASES[name](options.repetitions):
                rows.append(row)
                print(table([row]).splitlines()[-1], flush=True)
        except SKIPPED as reason:
            print(f"| {name} | skipped: {reason} |", flush=True)
    (options.output / "table.md").write_text(f"{machine()}\n\n{table(rows)}\n", encoding="utf-8")
    numbers = {"machine": machine(), "rows": [asdict(row) for row in rows]}
    (options.output / "performance.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
