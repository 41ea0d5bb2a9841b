"""What it costs to protect people with several records: ``python -m benchmarks unit``; docs/unit.md prints its tables.

Noise is compared with that of a record's guarantee of epsilon/k, whose group of k records keeps the same epsilon and delta.
Errors are of fits to simulated visits, which agree or disagree within a person, and to the Breast Cancer data, dealt to made-up
people.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np

import dpconvex as dp
from benchmarks import Run, chosen, fewer
from dpconvex.datasets import breast_cancer, unit_ball

TABLES = "agree", "disagree", "tumours"
EPSILON, DELTA, ROWS, FITS, FEATURES = 1.0, 1e-6, (1, 3, 10), 30, 10


def promise(k: int, delta: float = DELTA, **further: str) -> dp.Privacy:
    return dp.Privacy(EPSILON, delta, unit="person", most=k, **further)


def composed(k: int, delta: float = DELTA) -> dp.Privacy:
    """Return the guarantee of one record that k records together keep the whole of, one after the other."""
    part = EPSILON / k
    return dp.Privacy(part, delta / sum(math.exp(j * part) for j in range(k)))


def noise_table(size: int = 30_000) -> str:
    """Ratios of the noise on the answer: a person's k records against composition, for each mechanism."""
    template = dp.load("logistic_regression", features=FEATURES, regularization=1e-3)
    few = dp.load("logistic_regression", features=1, regularization=1e-3)
    cases = {
        "objective, Gamma": (template, dp.ObjectivePerturbation(), 0.0, size),
        "objective, Gaussian": (template, dp.ObjectivePerturbation("gaussian"), DELTA, size),
        "output, Gaussian": (template, dp.OutputPerturbation("gaussian"), DELTA, size),
        "objective, Gamma, one feature, 3,000 records, nothing added": (
            few,
            dp.ObjectivePerturbation(added=0.0),
            0.0,
            3000,
        ),
        "clipped steps, usual clip": (template, None, DELTA, size),
    }
    lines = [f"| noise against composition | {' | '.join(f'k = {k}' for k in ROWS)} |", "|---" * (1 + len(ROWS)) + "|"]
    for name, (learner, mechanism, delta, count) in cases.items():
        ratios = []
        for k in ROWS:
            part, one = mechanism, mechanism
            if mechanism is None:  # steps do not depend on how many records there are, so that noise is what differs
                longest = 0.25 * 1.0
                part = dp.NoisyGradientDescent(clip=longest * math.sqrt(k))
                one = dp.NoisyGradientDescent(clip=longest)
            found = dp.verify(learner, promise(k, delta), count, part, proof=False).noise_scale
            ratios.append(found / dp.verify(learner, composed(k, delta), count, one, proof=False).noise_scale)
        lines.append(f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return "\n".join(lines)


def visits(
    k: int, agree: float, rng: np.random.Generator, people: int = 2000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulate k visits of each person: features and labels of visits share a part of what they vary by."""
    people = fewer(people)
    own = rng.normal(size=(people, 1, FEATURES))
    x = math.sqrt(agree) * own + math.sqrt(1 - agree) * rng.normal(size=(people, k, FEATURES))
    x = (x / np.maximum(np.linalg.norm(x, axis=2, keepdims=True), 1.0)).reshape(-1, FEATURES)
    w = np.linspace(-6, 6, FEATURES)
    y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-x @ w)), 1, -1)
    return x, y, np.repeat(np.arange(people), k)


def tumours(k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table, labels = breast_cancer()
    order = rng.permutation(len(table))
    return unit_ball(table, 1, 10)[order], np.where(labels == "malignant", 1, -1)[order], np.arange(len(table)) // k


def error(
    fit: Callable[[dict[str, np.ndarray], np.ndarray], dp.Release], x: np.ndarray, y: np.ndarray, ids: np.ndarray
) -> float:
    """Mean error on the last fifth of the people, of fits to the others."""
    test = ids >= 0.8 * (ids.max() + 1)
    errors = [
        np.mean(fit({"x": x[~test], "y": y[~test]}, ids[~test]).predict(x[test]) != y[test])
        for _ in range(1 if Run.small else FITS)
    ]
    return float(np.mean(errors))


def error_table(seed: int = 0) -> str:
    ways: dict[str, Callable[[int], tuple[dp.Privacy, object, bool]]] = {
        "one after the other, objective": lambda k: (composed(k), dp.ObjectivePerturbation("gaussian"), False),
        "objective": lambda k: (promise(k), dp.ObjectivePerturbation("gaussian"), True),
        "objective, weights": lambda k: (promise(k, keep="weights"), dp.ObjectivePerturbation("gaussian"), True),
        "one after the other, clipped steps": lambda k: (composed(k), dp.NoisyGradientDescent(clip=0.25), False),
        "clipped sums": lambda k: (promise(k), dp.NoisyGradientDescent(clip=0.25 * math.sqrt(k)), True),
    }
    head = [f"{name}, k = {k}" for name in TABLES for k in ROWS]
    lines = [f"| test error | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for name, way in ways.items():
        cells = []
        for table in TABLES[: 1 if Run.small else None]:
            for k in ROWS:
                rng = np.random.default_rng(seed)
                x, y, ids = tumours(k, rng) if table == "tumours" else visits(k, 0.9 if table == "agree" else 0.0, rng)
                learner = dp.load("logistic_regression", features=x.shape[1], regularization=1e-4)
                privacy, mechanism, grouped = way(k)

                def fit(data: dict[str, np.ndarray], people: np.ndarray) -> dp.Release:
                    further = {"unit": people} if grouped else {}  # noqa: B023
                    return dp.solve(learner, data, privacy, mechanism, whitening=False, **further)  # noqa: B023

                cells.append(f"{error(fit, x, y, ids):.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen(argparse.ArgumentParser(prog="python -m benchmarks unit", description=__doc__), arguments)
    print(f"epsilon = {EPSILON:g}, delta = {DELTA:g}, replace-one\n\n{noise_table()}\n", flush=True)
    print(error_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
