"""What private tuning costs, on parts of the data or by a random number of fits: ``python -m benchmarks.papers.tuning``.

Logistic regression on Adult (the file's folder in DPCONVEX_DATA), numeric columns scaled by public bounds and rows by their own
norms.  Candidates are regularizations, as in Algorithm 4 of Chaudhuri, Monteleoni & Sarwate (2011); the other ways are
permute-and-flip on the same parts, and the best of ten fits on average (Papernot & Steinke 2022).  For comparison, one fit with
each candidate for the whole promise, of which the best on the test records is shown: nobody may choose so.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

import dpconvex as dp
from benchmarks import RESULTS, chosen
from benchmarks.public_data import adult

GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
EPSILONS = (0.1, 0.3, 1.0)
Data = dict[str, object]


def ways() -> dict[str, Callable[[dict[str, dp.Template], Data, dp.Privacy], dp.Release]]:
    """Return each way to choose: candidates, data, promise -> release."""
    fit = dp.ObjectivePerturbation()
    return {
        "parts, exponential mechanism": lambda c, d, p: dp.tune(c, d, p, fit, selection="exponential").release,
        "parts, permute-and-flip": lambda c, d, p: dp.tune(c, d, p, fit).release,
        "all data, ten fits on average": lambda c, d, p: dp.tune_repeated(c, d, p, fit).release,
    }


def study(draws: int, path: str | None) -> dict[str, NDArray[np.float64]]:
    """Return test errors, shape (epsilons, draws), for every way."""
    table = adult(path)
    x, y = sp.csr_array(table.design(unit=True)), table.y
    grid = {f"{r:g}": dp.load("logistic_regression", features=x.shape[1], regularization=r) for r in GRID}
    found = {name: np.empty((len(EPSILONS), draws)) for name in (*ways(), "one fit, chosen on the test records")}
    rng = np.random.default_rng(0)
    for draw in range(draws):
        order = rng.permutation(len(y))
        test, train = order[: len(y) // 10], order[len(y) // 10 :]
        data: Data = {"x": x[train], "y": y[train]}

        def error(release: dp.Release, test: NDArray[np.int64] = test) -> float:
            return float(np.mean(np.where(x[test] @ release["w"] > 0, 1, -1) != y[test]))

        for row, epsilon in enumerate(EPSILONS):
            promise = dp.Privacy(epsilon)
            for name, way in ways().items():
                found[name][row, draw] = error(way(grid, data, promise))
            single = [error(dp.solve(t, data, promise, dp.ObjectivePerturbation())) for t in grid.values()]
            found["one fit, chosen on the test records"][row, draw] = min(single)
        print(f"{draw + 1} of {draws} splits", flush=True)
    return found


def text(found: dict[str, NDArray[np.float64]]) -> str:
    """Return the results as Markdown."""
    draws = next(iter(found.values())).shape[1]
    lines = [f"Mean test error (± standard error) over {draws} random splits, pure replace-one, candidates {GRID}", ""]
    lines += ["| | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |", "|---" * (len(EPSILONS) + 1) + "|"]
    for name, rows in found.items():
        cells = [f"{row.mean():.4f} ± {row.std() / math.sqrt(draws):.4f}" for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.tuning", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10, help="random splits")
    parser.add_argument("--data", help="folder of adult.csv.gz; by default, DPCONVEX_DATA")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the table goes")
    options = chosen(parser, arguments, draws=1)
    options.output.mkdir(parents=True, exist_ok=True)
    found = text(study(options.draws, options.data))
    print(found)
    (options.output / "tuning.md").write_text(found + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
