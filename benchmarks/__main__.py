"""Run the benchmarks: ``python -m benchmarks [case ...] [--repetitions 7] [--output benchmarks/results]``.

Also ``python -m benchmarks ablation``, ``additive``, ``evaluation``, ``features``, ``glm``, ``intervals``, ``learnt_bounds``,
``many_features``, ``mutants``, ``mutations``, ``predictions``, ``survival`` and ``unit``.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

import dpconvex as dp
from benchmarks import RESULTS, chosen
from benchmarks.cases import CASES, GROWTH, SKIPPED
from benchmarks.timing import Row, accelerator, compare, device

PROGRAMS = (
    "ablation",
    "additive",
    "evaluation",
    "features",
    "glm",
    "intervals",
    "learnt_bounds",
    "many_features",
    "mutants",
    "mutations",
    "predictions",
    "survival",
    "unit",
)


def number(value: float | None, unit: str) -> str:
    """Three digits and a unit."""
    return "" if value is None else f"{value:.3g} {unit}".strip()


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table; the last column is for compiled functions on JAX's devices."""
    head = ["case", "measured", "value", "reference", "ratio", "goal", "reached", f"compiled ({device()})"]
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
            number(row.compiled, row.unit),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine() -> str:
    """What it ran on, in a line."""
    import jax

    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "default"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    cores = ", ".join(filter(None, (f"{os.cpu_count()} cores", accelerator())))
    return (
        f"{platform.machine()}, {cores}, Python {platform.python_version()}, NumPy {np.__version__}, JAX {jax.__version__}, "
        f"BLAS threads: {threads}, load {load:.1f}"
    )


def growth(output: Path, repetitions: int) -> None:
    """Draw the time of one evaluation against n, d and C, on each engine.

    Processors are compared by CPU time, which the work of others stretches less; an accelerator by the clock on the wall.
    """
    import jax
    import matplotlib.pyplot as plt

    from dpconvex.sums.batch_loss import BatchedLoss

    figure, axes = plt.subplots(1, len(GROWTH), figsize=(4.2 * len(GROWTH), 3.6), layout="constrained")
    kind_of = jax.default_backend()
    clock, kind = (time.perf_counter, "time") if accelerator() else (time.process_time, "CPU time")
    for axis, (label, (values, build)) in zip(axes, GROWTH.items(), strict=True):
        found: dict[str, list[float]] = {"blocks": [], f"compiled ({kind_of})": []}
        for value in values:
            problem = build(value)
            theta = np.random.default_rng(1).normal(size=problem.space.dim)
            losses = [BatchedLoss(problem.template, problem.space, problem.batch)]
            with dp.devices():
                losses.append(BatchedLoss(problem.template, problem.space, problem.batch))
            times = compare(
                {
                    name: (lambda loss=loss, t=theta: loss.value_and_gradient(t))
                    for name, loss in zip(found, losses, strict=True)
                },
                repetitions,
                clock=clock,
            )
            for name in found:
                found[name].append(1e3 * times[name])
        for name, times_found in found.items():
            axis.loglog(values, times_found, "o-", label=name)
        axis.set_xlabel(label)
        axis.set_xticks(values, [f"{value:,}" for value in values])
        axis.minorticks_off()
        axis.set_ylabel(f"{kind} of one evaluation [ms]")
        axis.legend()
        axis.grid(alpha=0.3)
    figure.savefig(output / "growth.png", dpi=120)


def ratios(rows: list[Row], output: Path) -> None:
    """Draw the ratios of all comparisons."""
    import matplotlib.pyplot as plt

    compared = [row for row in rows if row.ratio is not None]
    if not compared:
        return
    figure, axis = plt.subplots(figsize=(10, 0.5 * len(compared) + 1.2), layout="constrained")
    names = [f"{row.case}\n{row.measured}" for row in compared]
    axis.barh(names, [row.ratio or 0.0 for row in compared], color=["C0" if row.reached else "C3" for row in compared])
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("time relative to the reference")
    axis.tick_params(axis="y", labelsize=7)
    axis.invert_yaxis()
    figure.savefig(output / "ratios.png", dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and draw."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] and given[0] in PROGRAMS:
        raise SystemExit(import_module(f"benchmarks.{given[0]}").main(given[1:]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, "growth", []], help="which; all by default")
    parser.add_argument("--repetitions", type=int, default=7, help="turns of each comparison")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where pictures go")
    options = chosen(parser, given, repetitions=1)
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    print(machine() + ", SMALL: fewer records than the names say" * options.small, flush=True)
    for name in options.cases or CASES:
        if name == "growth":
            continue
        try:
            for row in CASES[name](options.repetitions):
                rows.append(row)
                print(table([row]).splitlines()[-1], flush=True)
        except SKIPPED as reason:
            print(f"| {name} | skipped: {reason} |", flush=True)
    text = f"{machine()}\n\n{table(rows)}\n"
    (options.output / "table.md").write_text(text, encoding="utf-8")
    ratios(rows, options.output)
    if (not options.cases and not options.small) or "growth" in options.cases:
        growth(options.output, min(options.repetitions, 5))


if __name__ == "__main__":
    main()
