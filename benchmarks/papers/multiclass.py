"""Error against epsilon with many classes: ``python -m benchmarks.papers.multiclass [--only digits letter] [--splits 5]``.

Digits (scikit-learn's), Letter Recognition and Landsat, split at random into 80 % for training and 20 % for testing; neighbours
differ in one record, delta is 1e-6.  Nothing is read off the data: every feature is mapped from its public bounds to [-1, 1],
and each record is then divided by its own norm.  A learner that knows all classes at once (softmax regression, large-margin
Gaussians with soft competitors) is compared with what is usual: one private logistic regression for each class against the rest,
each with a C-th of the budget, and with the summed competitors of Pathak and Raj.

As in the papers, the error is that of the best strong convexity mu (in sum form) of a short grid, which is printed whole.
Choosing it by its test error is not private; a public choice, or `dp.tune`, would be.  Letter and Landsat are looked for in the
folder named by ``DPCONVEX_DATA``, and left out if they are not there.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpconvex as dp
from benchmarks import RESULTS, chosen, fewer
from benchmarks.public_data import landsat, letter
from dpconvex.errors import DomainError

Array = NDArray[np.float64]

DELTA = 1e-6
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
# Regularization of the templates: the grid adds its own strong convexity, and one analysis then serves all of it.
LEAST = 1e-8
SOFTMAX, SOFT, SUMMED, REST, PURE = (
    "softmax",
    "large-margin Gaussians, soft",
    "large-margin Gaussians, summed",
    "one-vs-rest, ε/C and δ/C",
    "one-vs-rest, ε/C and δ = 0",
)
COLOURS = {SOFTMAX: "#1f5fa8", SOFT: "#2e7d4f", SUMMED: "#b3541e", REST: "#555555", PURE: "#a8a8a8"}


@dataclass(frozen=True)
class Case:
    """One learner on one data set with one promise.

    Attributes
    ----------
    grid : tuple of float
        Strong convexities mu that are tried, in sum form.
    goal, prototype : float or None
        Test error that should be reached, and what an independent implementation had.
    """

    data: str
    learner: str
    epsilon: float
    grid: tuple[float, ...]
    goal: float | None = None
    prototype: float | None = None


@dataclass(frozen=True)
class Outcome:
    """Test errors of a case, shape (grid, splits)."""

    case: Case
    errors: Array
    seconds: float

    @property
    def best(self) -> int:
        """Which strength of the grid has the smallest mean error."""
        return int(np.argmin(self.errors.mean(axis=1)))

    @property
    def error(self) -> float:
        """Its mean error."""
        return float(self.errors[self.best].mean())


CASES = (
    Case("digits", SOFTMAX, 0.3, (30, 60, 120)),
    Case("digits", SOFTMAX, 1, (20, 40, 80), 0.37, 0.356),
    Case("digits", SOFTMAX, 3, (5, 10, 20), 0.15, 0.138),
    Case("digits", SOFTMAX, 10, (1, 3, 10)),
    Case("digits", REST, 1, (10, 100, 1000)),
    Case("digits", REST, 3, (30, 100, 300)),
    Case("digits", REST, 10, (10, 30, 100)),
    Case("digits", PURE, 1, (30, 100, 300), None, 0.88),
    Case("digits", PURE, 3, (30, 100, 300), None, 0.86),
    Case("digits", PURE, 10, (30, 100, 300)),
    Case("landsat", SOFTMAX, 0.3, (10, 30, 60)),
    Case("landsat", SOFTMAX, 1, (3, 5, 8), 0.25, 0.238),
    Case("landsat", SOFTMAX, 3, (1, 2, 4), 0.22, 0.205),
    Case("landsat", SOFTMAX, 10, (0.3, 1, 2)),
    Case("landsat", REST, 1, (10, 30, 100)),
    Case("landsat", REST, 3, (3, 10, 30)),
    Case("landsat", REST, 10, (1, 3, 10)),
    Case("landsat", PURE, 1, (30, 100, 300)),
    Case("landsat", PURE, 3, (10, 30, 100)),
    Case("landsat", PURE, 10, (3, 10, 30)),
    Case("letter", SOFTMAX, 0.3, (30, 60)),
    Case("letter", SOFTMAX, 1, (4, 8, 16), 0.41, 0.396),
    Case("letter", SOFTMAX, 3, (1.5, 3, 6), 0.31, 0.296),
    Case("letter", SOFTMAX, 10, (0.5, 1, 2)),
    Case("letter", REST, 1, (100, 1000)),
    Case("letter", REST, 3, (30, 100)),
    Case("letter", REST, 10, (10, 30)),
    Case("letter", PURE, 1, (100, 1000), None, 0.94),
    Case("letter", PURE, 3, (100, 300), None, 0.90),
    Case("letter", PURE, 10, (30, 100)),
    Case("letter", SOFT, 1, (6,)),
    Case("letter", SOFT, 3, (1, 1.5), 0.30, 0.29),
    Case("letter", SOFT, 10, (0.3, 0.4), 0.21, 0.20),
    Case("letter", SUMMED, 3, (40,), None, 0.58),
)


# The data


def digits() -> tuple[Array, NDArray[Any]]:
    """Features between -1 and 1, and labels."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    few = slice(fewer(len(raw.target)))
    return raw.data[few] / 8 - 1, raw.target[few]  # grey levels from 0 to 16


def tabled(load: Callable[..., Any]) -> Callable[[], tuple[Array, NDArray[Any]]]:
    """A loader's table, by its declared bounds."""

    def read() -> tuple[Array, NDArray[Any]]:
        table = load(SHARED if "DPCONVEX_DATA" not in os.environ and SHARED.is_dir() else None)
        return 2 * (table.numeric - table.lower) / (table.upper - table.lower) - 1, table.y

    return read


SOURCES = {"digits": digits, "landsat": tabled(landsat), "letter": tabled(letter)}


def unit(x: Array) -> Array:
    """Divide every record by its own norm, a hair more."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms * (1 + 1e-12), 1.0)


# The learners


def template(learner: str, features: int, classes: tuple[Any, ...]) -> dp.Template:
    """Declare a learner."""
    options = {"features": features, "classes": len(classes), "labels": classes, "regularization": LEAST}
    if learner == SOFTMAX:
        return dp.load("softmax_regression", **options)
    if learner in (REST, PURE):
        return dp.load("logistic_regression", features=features, regularization=LEAST)
    # A wide parabola has less curvature to pay for.
    kind = "summed" if learner == SUMMED else "soft"
    return dp.load("large_margin_gaussian", competitors=kind, width=1.4, trace=LEAST, **options)


def predictions(case: Case, declared: dp.Template, mu: float, x: Array, y: NDArray[Any], tested: Array) -> NDArray[Any]:
    """Fit privately, and predict."""
    mechanism = dp.ObjectivePerturbation("gamma" if case.learner == PURE else "gaussian", added=mu)
    if case.learner not in (REST, PURE):
        privacy = dp.Privacy(case.epsilon, DELTA)
        # Weakly regularized matrices take long to reach the last digits, and their own noise is far larger than this.
        cover = dp.ResidualNoise(tolerance=1e-6) if case.learner in (SOFT, SUMMED) else None
        release = dp.solve(declared, {"x": x, "y": y}, privacy, mechanism, residual_noise=cover)
        return np.asarray(release.predict(tested))
    classes = np.unique(y)
    privacy = dp.Privacy(case.epsilon / len(classes), 0.0 if case.learner == PURE else DELTA / len(classes))
    weights = [dp.solve(declared, {"x": x, "y": np.where(y == c, 1, -1)}, privacy, mechanism)["w"] for c in classes]
    return np.asarray(classes[np.argmax(tested @ np.array(weights).T, axis=1)])


def without_privacy(x: Array, y: NDArray[Any]) -> float:
    """Test error of softmax regression without noise, on the first split."""
    train, test = split(len(y), 0)
    classes = tuple(np.unique(y).tolist())
    options = {"features": x.shape[1], "classes": len(classes), "labels": classes, "regularization": 1e-5}
    declared = dp.load("softmax_regression", **options)
    release = dp.solve_without_privacy(declared, {"x": x[train], "y": y[train]}, tolerance=0.1)
    return float(np.mean(release.predict(x[test]) != y[test]))


def split(size: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training and for testing."""
    order = np.random.default_rng(number).permutation(size)
    return order[: round(0.8 * size)], order[round(0.8 * size) :]


def measure(cases: list[Case], splits: int) -> Iterator[Outcome]:
    """Fit every case on every split, with fresh noise."""
    tables: dict[str, tuple[Array, NDArray[Any]]] = {}
    declared: dict[tuple[str, str], dp.Template] = {}
    for case in cases:
        if case.data not in tables:
            raw, y = SOURCES[case.data]()
            tables[case.data] = unit(raw), y
        x, y = tables[case.data]
        classes = tuple(np.unique(y).tolist())
        learner = declared.setdefault((case.data, case.learner), template(case.learner, x.shape[1], classes))
        start = time.perf_counter()
        errors = np.ones((len(case.grid), splits))
        for k, mu in enumerate(case.grid):
            for number in range(splits):
                train, test = split(len(y), number)
                try:
                    guessed = predictions(case, learner, mu, x[train], y[train], x[test])
                except dp.NotPrivate:  # so little strong convexity that curvature costs all of epsilon
                    break
                errors[k, number] = np.mean(guessed != y[test])
        yield Outcome(case, errors, time.perf_counter() - start)


# What is shown


HEAD = "| data | learner | epsilon | test error | sd | best mu | whole grid | goal | prototype | reached |"


def row(outcome: Outcome) -> str:
    """One line of the table."""
    case = outcome.case
    grid = ", ".join(f"{mu:g}: {e:.3f}" for mu, e in zip(case.grid, outcome.errors.mean(axis=1), strict=True))
    goal, prototype = ("" if value is None else f"{value:g}" for value in (case.goal, case.prototype))
    reached = "" if case.goal is None else "yes" if outcome.error <= case.goal else "**no**"
    spread = outcome.errors[outcome.best].std()
    return (
        f"| {case.data} | {case.learner} | {case.epsilon:g} | {outcome.error:.3f} | {spread:.3f} | "
        f"{case.grid[outcome.best]:g} | {grid} | {goal} | {prototype} | {reached} |"
    )


def draw(outcomes: list[Outcome], plain: dict[str, float], path: Path) -> None:
    """Error against epsilon, a panel for each data set."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

    names = list(dict.fromkeys(outcome.case.data for outcome in outcomes))
    figure = Figure(figsize=(4.6 * len(names), 3.8 + 0.75 / len(names)), dpi=150, layout="constrained")
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names), sharey=True)), names, strict=True):
        mine = [outcome for outcome in outcomes if outcome.case.data == name]
        for learner, colour in COLOURS.items():
            points = sorted(
                (o.case.epsilon, o.error, o.errors[o.best].std()) for o in mine if o.case.learner == learner
            )
            if points:
                x, y, bar = zip(*points, strict=True)
                axes.errorbar(
                    x, y, yerr=bar, color=colour, marker="o", markersize=5, capsize=3, label=learner, zorder=3
                )
        goals = [(o.case.epsilon, o.case.goal) for o in mine if o.case.goal is not None]
        axes.plot(*zip(*goals, strict=True), linestyle="", marker="_", markersize=14, color="#333333", label="goal")
        axes.axhline(plain[name], color="#b3541e", linestyle="--", linewidth=1.2, label="softmax without privacy")
        axes.set_title(name.capitalize(), loc="left", fontweight="bold")
        axes.set_xscale("log")
        axes.set_xticks(sorted({o.case.epsilon for o in mine}))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(0, 1)
        axes.set_xlabel("ε  (replace-one, δ = 1e-6)")
        axes.grid(axis="y", color="#e6e6e6")
    figure.axes[0].set_ylabel("test error")
    known = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(list(known.values()), list(known), loc="outside lower center", ncols=len(names), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def available(names: list[str]) -> list[str]:
    """The data sets that can be read; says which cannot, and why."""
    found = []
    for name in names:
        try:
            SOURCES[name]()
        except DomainError as error:
            print(f"{name} is left out: {error}")
        else:
            found.append(name)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.multiclass", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(SOURCES), default=sorted(SOURCES), metavar="DATA")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = chosen(parser, arguments, splits=1, only=["digits"])
    names = available(options.only)
    print(HEAD + "\n" + "|---" * HEAD.count(" | ") + "|---|", flush=True)
    outcomes, lines = [], [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for outcome in measure([case for case in CASES if case.data in names], options.splits):
        outcomes.append(outcome)
        lines.append(row(outcome))
        print(lines[-1], flush=True)
    if not outcomes:
        raise SystemExit("no data, so nothing was measured.")
    plain = {name: without_privacy(unit(x), y) for name, (x, y) in ((name, SOURCES[name]()) for name in names)}
    print("without privacy: " + ", ".join(f"{name} {error:.3f}" for name, error in plain.items()))
    draw(outcomes, plain, options.output / "multiclass.png")
    (options.output / "multiclass.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written: {options.output / 'multiclass.md'}, {options.output / 'multiclass.png'}")


if __name__ == "__main__":
    main()
