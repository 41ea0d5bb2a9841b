"""This library beside diffprivlib, both with their defaults: ``python -m benchmarks.other_libraries FOLDER [--draws 20]``.

Printed are medians over random splits and noises: shares of right labels, and R squared of regressions.

diffprivlib runs in an environment of its own, made in the folder if it is missing: it asks for an older scikit-learn.  Both
get the same records, which public bounds have brought into the unit ball, and ask for a pure epsilon for replacing a record.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpconvex as dp
from benchmarks.data import halves
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.errors import DPConvexError

EPSILONS = (0.1, 1.0, 10.0)
VERSIONS = ("diffprivlib==0.6.6", "scikit-learn<1.8")
CLINIC = 5000  # records of the synthetic table, and of its test
SCRIPT = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression
warnings.simplefilter("ignore")
data, epsilons = np.load(sys.argv[1]), json.loads(sys.argv[2])
x, y, answers = data["x"], data["y"], []
for epsilon in epsilons:
    if y.dtype.kind == "f":
        model = LinearRegression(epsilon=epsilon, bounds_X=(-1.0, 1.0), bounds_y=(-1.0, 1.0), fit_intercept=True)
    else:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0)
    answers.append(model.fit(x, y).predict(data["x_test"]).tolist())
print(json.dumps(answers))
"""

Array = NDArray[Any]
Split = tuple[Array, Array, Array, Array]


def environment(folder: Path) -> Path:
    """Return the Python of an environment with diffprivlib, which is made if it is missing."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *VERSIONS], check=True)
    return python


def theirs(python: Path, split: Split) -> list[Array]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.npz"
        np.savez(file, x=split[0], y=split[1], x_test=split[2])
        command = [str(python), "-c", SCRIPT, str(file), json.dumps(EPSILONS)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [np.array(row) for row in json.loads(answer)]


def ours(split: Split, estimator: Any) -> list[Array]:
    x, y, x_test, _ = split
    facts: dict[str, Any] = {} if y.dtype.kind == "f" else {"classes": (0, 1)}
    return [estimator(epsilon=epsilon, **facts).fit(x, y).predict(x_test) for epsilon in EPSILONS]


def score(found: Array, truth: Array) -> float:
    """Share of right labels, or R squared."""
    if truth.dtype.kind != "f":
        return float(np.mean(found == truth))
    return float(1 - np.sum((found - truth) ** 2) / np.sum((truth - truth.mean()) ** 2))


def halved(x: Array, y: Array, test: int, rng: np.random.Generator) -> Split:
    order = rng.permutation(len(x))
    return x[order[test:]], y[order[test:]], x[order[:test]], y[order[:test]]


def tables(rng: np.random.Generator) -> Iterator[tuple[str, Any, Split]]:
    """Yield a name, our estimator, and a split of each table."""
    x, labels = breast_cancer()
    yield (
        "breast cancer",
        dp.LogisticRegression,
        halved(unit_ball(x, 1, 10), (labels == "malignant").astype(int), 100, rng),
    )
    made = halves(2 * CLINIC, 8, seed=int(rng.integers(2**31)))
    split = halved(made["x"], (made["y"] > 0).astype(int), CLINIC, rng)
    yield "synthetic, 5,000 records of 8 features", dp.LogisticRegression, split
    slopes = rng.normal(size=8)
    target = np.clip(made["x"] @ slopes / np.linalg.norm(slopes) + 0.1 * rng.normal(size=2 * CLINIC), -1, 1)
    for estimator in (dp.Ridge, dp.LinearRegression):
        yield f"the same, a number; ours {estimator.__name__}", estimator, halved(made["x"], target, CLINIC, rng)
    try:
        from benchmarks.public_data import adult

        table = adult()
    except DPConvexError:
        return
    yield (
        "Adult",
        dp.LogisticRegression,
        halved(table.design(unit=True).toarray(), (table.y > 0).astype(int), 15060, rng),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    chosen = parser.parse_args()
    python, rng, found = environment(chosen.folder), np.random.default_rng(0), dict[str, list[Array]]()
    for _ in range(chosen.draws):
        for name, estimator, split in tables(rng):
            both = (theirs(python, split), ours(split, estimator))
            found.setdefault(name, []).append(np.array([[score(f, split[3]) for f in answers] for answers in both]))
    heads = [f"{who}, ε = {epsilon:g}" for who in ("diffprivlib", "dpconvex") for epsilon in EPSILONS]
    print(f"| table | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for name, draws in found.items():
        medians = np.median(draws, axis=0).ravel()
        print(f"| {name} | {' | '.join('below -1' if value < -1 else f'{value:.3f}' for value in medians)} |")


if __name__ == "__main__":
    main()
