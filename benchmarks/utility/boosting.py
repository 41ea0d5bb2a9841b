"""DP-EBM: additive models by boosting, of the package `interpret-core`, in an environment of its own.

H. Nori, R. Caruana, Z. Bu, J. H. Shen and J. Kulkarni, "Accuracy, interpretability, and differential privacy via explainable
boosting", ICML 2021, arXiv:2106.09680.

What its code (version 0.7.8) protects: noise is scaled to a sensitivity of 1 for a feature's histogram and for a round's sums of
residuals.  That is adding or removing a record.  Replacing one moves two counts, or one sum by up to 2: every level doubles.
The number of records and the levels that occur are used without noise, which is taken as public here, in its favour.  Binning
and boosting are Gaussians, each of a level that belongs to a share of (epsilon, delta); the shares are added, though levels
compose as the root of their squares.  `asked` composes exactly, for either adjacency: with add-remove it asks for more than
what the package counts.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from benchmarks.public_data import Table
from benchmarks.utility.competitors import environment
from dpconvex.noise.profiles import gaussian_sigma

__all__ = ["PACKAGE", "Asked", "asked", "boosted"]

PACKAGE = "interpret-core==0.7.8"
BINNING = 0.1  # its default share of epsilon; of delta it takes a half


class Asked(NamedTuple):
    """One fit: a seed, the records, and the epsilon that the package is asked for."""

    seed: int
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    epsilon: float


SCRIPT = """
import json, sys, time, warnings
import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier
warnings.simplefilter("ignore")
data, plan = np.load(sys.argv[1]), json.loads(sys.argv[2])
bounds = data["bounds"]
X = np.empty((len(data["y"]), len(bounds) + data["codes"].shape[1]), dtype=object)
X[:, : len(bounds)], X[:, len(bounds) :] = data["numeric"], data["codes"].astype(str)
answers = []
for k, fit in enumerate(plan["fits"]):
    model = DPExplainableBoostingClassifier(
        feature_types=["continuous"] * len(bounds) + ["nominal"] * data["codes"].shape[1],
        privacy_bounds={place: tuple(pair) for place, pair in enumerate(bounds.tolist())},
        epsilon=fit["epsilon"], delta=plan["delta"], random_state=fit["seed"], n_jobs=1,
    )
    train, test = data[f"train {k}"], data[f"test {k}"]
    start = time.perf_counter()
    model.fit(X[train], data["y"][train])
    seconds = time.perf_counter() - start
    answers.append([model.predict_proba(X[test])[:, 1].tolist(), seconds])
print(json.dumps(answers))
"""


def asked(epsilon: float, delta: float, adjacency: str) -> float:
    """Return the epsilon to ask for, with the same delta, so that both releases together keep the guarantee exactly."""

    def level(epsilon: float, delta: float) -> float:
        return 1 / gaussian_sigma(epsilon, delta, 1.0)

    most = level(epsilon, delta) / (1 if adjacency == "add-remove" else 2)

    def beyond(value: float) -> float:
        return math.hypot(level(BINNING * value, delta / 2), level((1 - BINNING) * value, delta / 2)) - most

    return float(brentq(beyond, epsilon / 100, 10 * epsilon, rtol=1e-6))


def boosted(table: Table, fits: list[Asked], delta: float, folder: Path) -> list[tuple[NDArray[np.float64], float]]:
    """Fit to raw columns with declared bounds; return the chance of the second class for each test record, and seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "table.npz"
        parts = {f"{part} {k}": getattr(fit, part) for k, fit in enumerate(fits) for part in ("train", "test")}
        bounds = np.column_stack([table.lower, table.upper])
        clipped = np.clip(table.numeric, table.lower, table.upper)
        np.savez(file, numeric=clipped, bounds=bounds, codes=table.codes, y=(table.y > 0).astype(int), **parts)
        plan = {"delta": delta, "fits": [{"seed": fit.seed, "epsilon": fit.epsilon} for fit in fits]}
        command = [str(environment(folder, PACKAGE)), "-c", SCRIPT, str(file), json.dumps(plan)]
        answers = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [(np.array(chances), seconds) for chances, seconds in answers]
