"""Tables 1 and 2 and figures 2 to 5 of Chaudhuri, Monteleoni & Sarwate (2011): ``python -m benchmarks.papers.chaudhuri``.

Each command prints the paper's numbers beside those of its algorithms, calibrated to the letter, and of this toolkit's certified
mechanisms at the same epsilon; pictures and every single error go to ``benchmarks/results``.  An interrupted command goes on
where it stopped, and one with more draws adds them; delete the files to begin anew:

    tables   errors at epsilon = 0.1 over the paper's regularizations, 10 folds   (--data adult: table 1; kdd: table 2)
    figures  errors against epsilon                                              (--data adult: figure 2; kdd: figure 3)
    curves   errors against the number of records, tuned privately on KDD        (figures 4 and 5)

Adult and the 10 % file of KDD Cup 1999 are looked for in the folder named by DPCONVEX_DATA, or in ``--path``.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import RESULTS, chosen
from benchmarks.papers.folds import (
    LEARNERS,
    Records,
    adult_records,
    certified,
    errors,
    folds,
    kdd_records,
    plain,
    published as run_published,
)
from dpconvex.errors import DPConvexError

__all__ = ["BEST", "GRIDS", "PRINTED", "WAYS", "Log", "main"]

DELTA = 1e-6
EPSILON = 0.1

# Logarithms of Lambda, and the errors that tables 1 and 2 print for them.
GRIDS = {
    "adult": (-10.0, -7.0, -4.0, -3.5, -3.0, -2.5, -2.0, -1.5),
    "kdd": (-9.0, -7.0, -5.0, -3.5, -3.0, -2.5, -2.0, -1.5),
}
PRINTED = {
    ("adult", "logistic", "plain"): (0.1540, 0.1533, 0.1654, 0.1694, 0.1758, 0.1895, 0.2322, 0.2478),
    ("adult", "logistic", "output"): (0.5318, 0.5318, 0.5175, 0.4928, 0.4310, 0.3163, 0.2395, 0.2456),
    ("adult", "logistic", "objective"): (0.8248, 0.8248, 0.8248, 0.2694, 0.2369, 0.2161, 0.2305, 0.2475),
    ("adult", "Huber", "plain"): (0.1527, 0.1521, 0.1632, 0.1669, 0.1719, 0.1793, 0.2454, 0.2478),
    ("adult", "Huber", "output"): (0.5318, 0.5318, 0.5211, 0.5011, 0.4464, 0.3352, 0.2376, 0.2476),
    ("adult", "Huber", "objective"): (0.2585, 0.2585, 0.2585, 0.2582, 0.2559, 0.2046, 0.2319, 0.2478),
    ("kdd", "logistic", "plain"): (0.0016, 0.0016, 0.0021, 0.0038, 0.0037, 0.0037, 0.0325, 0.0594),
    ("kdd", "logistic", "output"): (0.5245, 0.5245, 0.5093, 0.3518, 0.1114, 0.0359, 0.0304, 0.0678),
    ("kdd", "logistic", "objective"): (0.2084, 0.2084, 0.2084, 0.0196, 0.0118, 0.0113, 0.0285, 0.0591),
    ("kdd", "Huber", "plain"): (0.0013, 0.0013, 0.0013, 0.0029, 0.0051, 0.0056, 0.0061, 0.0163),
    ("kdd", "Huber", "output"): (0.5245, 0.5245, 0.5229, 0.4611, 0.3353, 0.0590, 0.0092, 0.0179),
    ("kdd", "Huber", "objective"): (0.0191, 0.0191, 0.0191, 0.1827, 0.0123, 0.0066, 0.0064, 0.0157),
}

Run = Callable[[str, float, Records, float, int], Iterator[dp.Release]]


@dataclass(frozen=True)
class Way:
    """How a table's row is computed: a name to print, and releases for (learner, Lambda, records, epsilon, draws)."""

    title: str
    run: Run
    drawn: bool = True
    more: int = 1  # times as many draws, where they cost nothing


def ours(title: str, delta: float, adjacency: Any, added: float | None) -> Way:
    """Return a certified way."""

    def run(name: str, level: float, train: Records, epsilon: float, draws: int) -> Iterator[dp.Release]:
        return certified(name, level, train, dp.Privacy(epsilon, delta, adjacency), added, draws)

    return Way(title, run)


def theirs(title: str, algorithm: int) -> Way:
    """Return a published way."""

    def run(name: str, level: float, train: Records, epsilon: float, draws: int) -> Iterator[dp.Release]:
        return run_published(name, level, train, epsilon, algorithm, draws)

    return Way(title, run, more=25 if algorithm == 1 else 1)


WAYS = {
    "plain": Way("no privacy", lambda name, level, train, epsilon, draws: plain(name, level, train), drawn=False),
    "output": theirs("Algorithm 1 (output)", 1),
    "objective": theirs("Algorithm 2 (objective)", 2),
    "pure": ours("ours, pure", 0.0, "replace-one", 0.0),
    "pure+": ours("ours, pure, more regularization", 0.0, "replace-one", None),
    "delta": ours("ours, delta=1e-6", DELTA, "replace-one", 0.0),
    "delta+": ours("ours, delta=1e-6, more regularization", DELTA, "replace-one", None),
    "adding": ours("ours, delta=1e-6, add-remove", DELTA, "add-remove", 0.0),
    "adding+": ours("ours, delta=1e-6, add-remove, more regularization", DELTA, "add-remove", None),
}

# For the figures, logarithms of Lambda: as in the paper, the one with the smallest error at epsilon = 0.1.  A mechanism that may
# add to a small regularization does so for each epsilon.
BEST: dict[tuple[str, str], dict[str, float]] = {
    ("adult", "logistic"): {
        "plain": -7,
        "output": -2,
        "objective": -2.5,
        "pure+": -3.5,
        "delta+": -3.5,
        "adding+": -3.5,
    },
    ("adult", "Huber"): {"plain": -7, "output": -2, "objective": -2.5, "pure+": -3.5, "delta+": -3.5, "adding+": -3.5},
    ("kdd", "logistic"): {"plain": -7, "output": -2, "objective": -2.5, "pure+": -3.5, "delta+": -3.5, "adding+": -3.5},
    ("kdd", "Huber"): {"plain": -7, "output": -2, "objective": -2, "pure+": -3.5, "delta+": -3.5, "adding+": -3.5},
}
EPSILONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


class Log:
    """Every error in a file of comma-separated values, and in memory; what is in the file already is not computed again."""

    def __init__(self, file: Path, *keys: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self.found: dict[tuple[Any, ...], dict[int, list[float]]] = {}
        if not file.exists():
            self._write([[*keys, "fold", "draw", "error"]], "w")
        with file.open(newline="", encoding="utf-8") as stream:
            for *key, fold, _, error in islice(csv.reader(stream), 1, None):
                known = self.found.setdefault((*key[:2], *map(float, key[2:])), {})
                known.setdefault(int(fold), []).append(float(error))

    def _write(self, rows: Iterable[list[Any]], mode: str = "a") -> None:
        with self.file.open(mode, newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(rows)

    def run(self, key: tuple[Any, ...], fold: int, way: Way, draws: int, *arguments: Any, test: Records) -> None:
        """Add the errors of some draws, as many as are missing."""
        wanted = draws * way.more if way.drawn else 1
        missing = wanted - len(self.found.get(key, {}).get(fold, ()))
        if missing > 0:
            self.add(key, fold, errors(way.run(*arguments, missing), test))

    def add(self, key: tuple[Any, ...], fold: int, values: list[float]) -> None:
        """Keep the errors of some draws."""
        if values:
            known = self.found.setdefault(key, {}).setdefault(fold, [])
            self._write([*key, fold, draw, f"{value:.6f}"] for draw, value in enumerate(values, len(known)))
            known.extend(values)

    def mean(self, *key: Any) -> float:
        """Return the mean over folds and draws; not a number if there are none."""
        return float(np.mean([np.mean(v) for v in self.found[key].values()])) if key in self.found else float("nan")

    def deviation(self, *key: Any) -> float:
        """Return the standard error of the mean that the noise alone leaves, folds held fixed."""
        values = list(self.found.get(key, {}).values())
        if not values or min(map(len, values)) < 2:
            return float("nan")
        return float(np.sqrt(np.mean([np.var(v, ddof=1) / len(v) for v in values]) / len(values)))


def number(value: float) -> str:
    """Four digits, or a dash."""
    return "–" if np.isnan(value) else f"{value:.4f}"


def load(data: str, options: argparse.Namespace) -> Records:
    """Load one of the two data sets."""
    return adult_records(options.path) if data == "adult" else kdd_records(options.path)


def tables(options: argparse.Namespace) -> None:
    """Errors at epsilon = 0.1 over the paper's grid."""
    for data in options.data:
        records = load(data, options)
        ways = options.ways or list(WAYS)
        log = Log(options.output / f"chaudhuri_table_{data}.csv", "learner", "way", "log10_lambda")
        chosen = options.grid or GRIDS[data]
        for name in LEARNERS:
            for way in ways:
                for power in chosen:
                    for k, fold in enumerate(islice(folds(records), options.folds)):
                        log.run(
                            (name, way, power),
                            k,
                            WAYS[way],
                            options.draws,
                            *(name, 10.0**power, fold.train, EPSILON),
                            test=fold.test,
                        )
                print(f"{data}, {name}, {way}: done", file=sys.stderr, flush=True)
        text = table(data, list(WAYS), GRIDS[data], log)
        (options.output / f"chaudhuri_table_{data}.md").write_text(text, encoding="utf-8")
        print(text)


def table(data: str, ways: list[str], grid: tuple[float, ...], log: Log) -> str:
    """Lay out one of the tables in Markdown."""
    title = f"{data}: test error at epsilon = {EPSILON}, in the paper and here, for each logarithm of Lambda"
    lines = [title, "", "| learner | way | " + " | ".join(f"{p:g}" for p in grid) + " | noise moves a mean by |"]
    lines.append("|---" * (len(grid) + 3) + "|")
    for name in LEARNERS:
        for way in ways:
            printed = dict(zip(GRIDS[data], PRINTED.get((data, name, way), ()), strict=False))
            if printed:
                cells = [number(printed.get(power, float("nan"))) for power in grid]
                lines.append(f"| {name} | {WAYS[way].title}, paper | " + " | ".join(cells) + " | |")
            means = [log.mean(name, way, power) for power in grid]
            cells = [number(mean) for mean in means]
            if not np.isnan(means).all():
                best = int(np.nanargmin(means))
                cells[best] = f"**{cells[best]}**"
                spread = number(log.deviation(name, way, grid[best])) if WAYS[way].drawn else ""
                lines.append(f"| {name} | {WAYS[way].title} | " + " | ".join(cells) + f" | {spread} |")
    return "\n".join(lines) + "\n"


def figures(options: argparse.Namespace) -> None:
    """Errors against epsilon, each way with the Lambda that is best at epsilon = 0.1."""
    from benchmarks.papers.chaudhuri_figures import draw_against_epsilon

    for data in options.data:
        records = load(data, options)
        log = Log(options.output / f"chaudhuri_figure_{data}.csv", "learner", "way", "epsilon")
        for name in LEARNERS:
            for way, power in BEST[data, name].items():
                for epsilon in EPSILONS if WAYS[way].drawn else EPSILONS[:1]:
                    for k, fold in enumerate(islice(folds(records), options.folds)):
                        log.run(
                            (name, way, epsilon),
                            k,
                            WAYS[way],
                            options.draws,
                            *(name, 10.0**power, fold.train, epsilon),
                            test=fold.test,
                        )
                print(f"{data}, {name}, {way}: done", file=sys.stderr, flush=True)
        titles = {way: WAYS[way].title.removesuffix(", more regularization") for way in WAYS}
        for name in LEARNERS:
            print(f"\n{data}, {name}: test error\n")
            print("| way | Lambda | " + " | ".join(f"{e:g}" for e in EPSILONS) + " |")
            print("|---" * (len(EPSILONS) + 2) + "|")
            for way, power in BEST[data, name].items():
                shown = EPSILONS if WAYS[way].drawn else EPSILONS[:1] * len(EPSILONS)
                cells = " | ".join(number(log.mean(name, way, e)) for e in shown)
                print(f"| {titles[way]} | 10^{power:g} | {cells} |")
        draw_against_epsilon(data, log, list(LEARNERS), titles, EPSILONS, options.output)


def curves(options: argparse.Namespace) -> None:
    """Learning curves with private tuning."""
    from benchmarks.papers.chaudhuri_curves import learning_curves

    learning_curves(options)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {"tables": tables, "figures": figures, "curves": curves}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status, 2 if the data are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.chaudhuri",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), default="tables")
    parser.add_argument("--data", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), help="rows of a table; all by default")
    parser.add_argument("--grid", nargs="+", type=float, help="logarithms of Lambda; the paper's by default")
    parser.add_argument("--folds", type=int, default=10, help="how many of the ten folds to run")
    parser.add_argument("--draws", type=int, default=5, help="draws of the noise for each fit")
    parser.add_argument("--permutations", type=int, default=5, help="draws of the records for the curves")
    parser.add_argument("--path", help="folder that holds the data")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where results go")
    options = chosen(parser, arguments, folds=1, draws=1, permutations=1, data=["adult"], grid=[-3.0])
    try:
        COMMANDS[options.command](options)
    except DPConvexError as error:
        print(f"chaudhuri: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
