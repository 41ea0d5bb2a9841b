"""Intervals beside diffprivlib with bootstraps: ``python -m benchmarks.bootstrap FOLDER [--runs 40]``, for docs/intervals.md.

Logistic regression without an intercept.  *Resampled*: diffprivlib fits 20 half samples with a twentieth of epsilon each; the
interval is 1.96 of their deviations to both sides of their mean.  *Parametric* (C. Ferrando, S. Wang and D. Sheldon, "Parametric
bootstrap for differentially private confidence intervals", AISTATS 2022): one fit with all of epsilon, and 50 more of data that
are drawn from it; they are given the true law of the features, which nobody has.

diffprivlib runs in an environment of its own, as in `benchmarks.other_libraries`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks.intervals import DELTA, drawn
from benchmarks.other_libraries import environment

SCRIPT = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
data, (epsilon, seed) = np.load(sys.argv[1]), json.loads(sys.argv[2])
x, y, rng = data["x"], data["y"], np.random.default_rng(seed)
def fit(x, y, epsilon):
    return LogisticRegression(epsilon=epsilon, data_norm=1.0, fit_intercept=False, max_iter=1000).fit(x, y).coef_[0]
halves = [rng.permutation(len(x))[: len(x) // 2] for _ in range(20)]
fits = np.array([fit(x[half], y[half], epsilon / 20) for half in halves])
first = fit(x, y, epsilon)
again = []
for _ in range(50):
    drawn = np.random.default_rng(rng.integers(2**31)).normal(size=x.shape) * data["scales"]
    drawn /= np.maximum(1, np.linalg.norm(drawn, axis=1))[:, None]
    labels = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-drawn @ first)), 1, -1)
    again.append(fit(drawn, labels, epsilon))
again = np.array(again) - first
print(json.dumps({
    "resampled": [fits.mean(axis=0).tolist(), (1.96 * fits.std(axis=0, ddof=1)).tolist()],
    "parametric": [(first - again.mean(axis=0)).tolist(), (1.96 * again.std(axis=0, ddof=1)).tolist()],
}))
"""


def theirs(python: Path, data: dict[str, Any], epsilon: float, seed: int) -> dict[str, Any]:
    """Return centers and half-widths of the intervals of both bootstraps."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, **data, scales=np.ones(4) / 3)
        command = [str(python), "-c", SCRIPT, str(file), json.dumps([epsilon, seed])]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ours(data: dict[str, Any], epsilon: float, seed: int) -> Any:
    learner, half = dp.load("logistic_regression", features=4), dp.Privacy(epsilon / 2, DELTA / 2)
    fit = dp.solve(learner, data, half, dp.ObjectivePerturbation("gaussian"), whitening=False, seed=seed)
    found = dp.intervals(learner, fit, data, half, seed=seed)
    return found.estimates, (found.upper - found.lower) / 2


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=40)
    given = parser.parse_args()
    python = environment(given.folder)
    print(
        "| records | ε | ours: covered | half-width | resampled: covered | half-width | parametric: covered | half-width |"
    )
    print("|---" * 8 + "|")
    for size, epsilon in ((10_000, 1.0), (10_000, 3.0), (10_000, 8.0), (100_000, 1.0), (100_000, 3.0)):
        rng, found = np.random.default_rng(1), {name: [] for name in ("ours", "resampled", "parametric")}
        for seed in range(given.runs if size < 100_000 else max(given.runs // 4, 1)):
            data, true = drawn("logistic_regression", "round", size, rng)
            for name, (center, reach) in {
                "ours": ours(data, epsilon, seed),
                **theirs(python, data, epsilon, seed),
            }.items():
                found[name].append((np.mean(np.abs(center - true) <= reach), np.mean(reach)))
        cells = [f"{value:.3g}" for name in found for value in np.mean(found[name], axis=0)]
        print(f"| {size:,} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
