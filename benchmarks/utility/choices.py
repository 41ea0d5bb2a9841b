"""What mechanisms really do on problems of many sizes, and how well the automatic choice foresees it.

``python -m benchmarks.utility.choices`` fits every candidate to synthetic data, prints the factors of
`dpconvex.certificates.certificate` that follow from it, and the regret of the choice on public data.  ``--classes`` compares
the default for classes with clipped steps on whitened records, on problems that nothing was ever chosen by.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import chosen
from benchmarks.data import clouds
from benchmarks.utility.tables import CLASSES, HELD_OUT, REGRESSION, Array, Split, find, heavy_tails
from dpconvex.certificates.certificate import Certificate
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.recipe import Automatic, clipped_steps

__all__ = ["Setting", "factors", "measured", "real", "regret", "synthetic"]

DELTA = 1e-5
EPSILONS = (0.1, 1.0, 8.0)
BINARY = ("logistic_regression", "huber_svm", "hinge_svm")
EPSILONS_OF_CLASSES, MOST = (0.3, 1.0, 3.0, 8.0), 2000  # and how many training records
CHOICES = 41  # factors that are tried, from 1/100 to 100

FORESEEN = {kind: one.foreseen for kind, one in Certificate.kinds.items()}


@dataclass(frozen=True)
class Setting:
    """A problem of some size: what each mechanism's theory says, and what its test error was."""

    name: str
    kinds: tuple[str, ...]
    risks: tuple[float, ...]
    errors: tuple[float, ...]
    # The errors of clipped steps alone and of released statistics, where there are any, and of what `solve` does by default.
    clipped: float = math.inf
    statistics: float = math.inf
    default: float = math.nan

    @property
    def regret(self) -> float:
        """Return the error of the default over the smallest of all that was fitted."""
        return self.default / min(*self.errors, self.clipped, self.statistics)

    def chosen(self, table: dict[str, float]) -> float:
        """Return the error of what factors say over the smallest."""
        scores = [risk * table.get(kind, 1.0) for kind, risk in zip(self.kinds, self.risks, strict=True)]
        return self.errors[int(np.argmin(scores))] / min(self.errors)


def declared(problem: str, split: Split) -> dp.Template:
    """Load a problem for a data set."""
    labels = {"classes": split.classes, "labels": tuple(range(split.classes))} if split.classes else {}
    return dp.load(problem, features=split.x.shape[1], **labels)


def measured(split: Split, problem: str, epsilon: float, seeds: int) -> Setting:
    """Fit every candidate a few times."""
    privacy, size = dp.Privacy(epsilon, DELTA, "add-remove"), len(split.y)
    template = declared(problem, split)
    found: list[tuple[str, float, float]] = []

    def error_of(mechanism: Any, whitening: bool | None = False) -> float:
        options: dict[str, Any] = {"size": size, "clip": True, "whitening": whitening}
        fits = (dp.solve(template, split.data, privacy, mechanism, seed=k, **options) for k in range(seeds))
        return max(float(np.mean([split.error(fit.predict(split.x_test)) for fit in fits])), 1 / len(split.y_test))

    for mechanism in Automatic().candidates(analyse(template), not privacy.pure):
        try:
            certificate = dp.verify(template, privacy, size, mechanism)
        except dp.NotPrivate:
            continue
        found.append((certificate.perturbed, certificate.predicted_risk or math.inf, error_of(mechanism)))
    kinds, risks, errors = zip(*found, strict=True)
    clipped = statistics = math.inf
    if analyse(template).kink is None:
        clipped = error_of(clipped_steps(analyse(template), privacy))
    if dp.verify(template, privacy, size).perturbed == "statistics":
        statistics = error_of(dp.SufficientStatistics())
    name = f"{problem}, {split.name}, epsilon {epsilon:g}"
    return Setting(name, kinds, risks, errors, clipped, statistics, error_of(None, None))


def made(n: int, d: int, classes: int, seed: int) -> Split:
    """Draw overlapping clouds, or linear targets with heavy tails where there are no classes."""
    x, y = clouds(n + 3000, d, classes, seed).values() if classes else heavy_tails(n + 3000, d)
    n = min(n, len(y) // 2)
    return Split(f"n {n}, d {d}, C {classes}", x[:n], y[:n], x[n:], y[n:], classes)


def synthetic(full: bool) -> Iterator[Setting]:
    """Yield settings of many sizes."""
    sizes = [(300, 5), (300, 40), (3000, 5), (3000, 40)] + [(20_000, 10), (20_000, 100)] * full
    for n, d in sizes:
        for problem, classes in (*((name, 2) for name in BINARY), ("softmax_regression", 6), ("ridge_regression", 0)):
            for epsilon in EPSILONS:
                yield measured(made(n, d, classes, n + d), problem, epsilon, 8 if full else 3)


def real(full: bool) -> Iterator[Setting]:
    """Yield settings on public data."""
    for name, (_, _, classes) in {**CLASSES, **REGRESSION}.items():
        split = find(name, most=12_000 if full else 2000)
        if split is None:
            continue
        for problem in {2: BINARY, 0: ("ridge_regression",)}.get(classes, ("softmax_regression",)):
            for epsilon in EPSILONS:
                yield measured(split, problem, epsilon, 6 if full else 3)


def against_whitening(small: bool) -> Iterator[tuple[str, float, Array]]:
    """Yield problems, epsilons, and means of errors and log losses: of the default and of whitened steps, shape (2, 2)."""
    for name, epsilon in product(
        [name for name in HELD_OUT if name in CLASSES][: 1 if small else None], EPSILONS_OF_CLASSES
    ):
        found = []
        for split, noise, whitening in product(range(2), range(2), (None, True)):
            records = find(name, split, MOST)
            if records is None:
                break
            template = declared("logistic_regression" if records.classes == 2 else "softmax_regression", records)
            options: dict[str, Any] = {"size": len(records.y), "seed": 100 + 17 * noise + split, "whitening": whitening}
            fit = dp.solve(template, records.data, dp.Privacy(epsilon, DELTA, "add-remove"), **options)
            chances = np.asarray(fit.predict_proba(records.x_test))
            own = chances[np.arange(len(chances)), records.y_test.astype(int)]
            found.append((records.error(fit.predict(records.x_test)), -np.log(np.maximum(own, 1e-12)).mean()))
        if found:
            yield name, epsilon, np.reshape(found, (-1, 2, 2)).mean(axis=0)


def classes(small: bool) -> None:
    """Print the default over whitened steps; a fifth of a percent is added to errors, which are 0 in some draws."""
    ratios: dict[float, list[float]] = {}
    losses = []
    for name, epsilon, ((ours, own_loss), (theirs, their_loss)) in against_whitening(small):
        ratios.setdefault(epsilon, []).append((ours + 0.002) / (theirs + 0.002))
        losses.append(own_loss - their_loss)
        print(
            f"{name:20} epsilon {epsilon:g}: error {ours:.3f} for {theirs:.3f}, log loss {own_loss:.2f} for {their_loss:.2f}"
        )
    for epsilon, values in ratios.items():
        print(
            f"epsilon {epsilon:g}: {np.exp(np.log(values).mean()):.3f} of the errors on average, {max(values):.2f} at worst"
        )
    everything = np.concatenate([np.zeros(0), *ratios.values()])
    print(f"all {len(everything)}: {np.exp(np.log(everything).mean()):.3f}, log loss {np.mean(losses):+.3f}")


def regret(settings: list[Setting], table: dict[str, float]) -> tuple[float, float]:
    """Return the geometric mean and the largest of error over the smallest error."""
    values = np.array([setting.chosen(table) for setting in settings])
    return float(np.exp(np.log(values).mean())), float(values.max())


def factors(settings: list[Setting]) -> dict[str, float]:
    """Find the factor of each kind, one after the other, that chooses best; the first kind's is 1."""
    kinds = sorted({kind for setting in settings for kind in setting.kinds} - {"objective"})
    table = dict.fromkeys(["objective", *kinds], 1.0)
    for kind in kinds * 2:
        tried = np.geomspace(0.01, 100, CHOICES)
        values = np.array([regret(settings, {**table, kind: float(f)})[0] for f in tried])
        best = np.flatnonzero(values <= values.min() * (1 + 1e-9))
        table[kind] = float(tried[best[len(best) // 2]])  # the middle of those that choose alike
    return table


def main(arguments: Any = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.choices", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more sizes and seeds (some minutes)")
    parser.add_argument("--classes", action="store_true", help="the default for classes over whitened steps (minutes)")
    options = chosen(parser, arguments)
    if options.classes or options.small:
        classes(options.small)
    if options.classes:
        return
    made_up, public = (list(islice(found(options.full), 1 if options.small else None)) for found in (synthetic, real))
    best = factors(made_up)
    print("factors:", {kind: round(value, 2) for kind, value in best.items()}, "shipped:", FORESEEN)
    for title, settings in (("synthetic", made_up), ("public data", public)):
        for setting in settings:
            print(f"{title:12} {setting.name}: the default is at {setting.regret:.3f} of the smallest error")
        for name, table in (("as proved", {}), ("shipped", FORESEEN), ("factors", best)):
            mean, worst = regret(settings, table) if settings else (math.nan, math.nan)
            print(f"{title:12} {name:10} error over the smallest: {mean:.3f} on average, {worst:.2f} at worst")


if __name__ == "__main__":
    main()
