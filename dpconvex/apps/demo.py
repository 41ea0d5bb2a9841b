"""The demonstration: what privacy costs a large-margin Gaussian classifier of the Breast Cancer data.

Run ``dpconvex demo``.  The counterpart of figure 2 of Pathak and Raj, "Large Margin Gaussian
Mixture Models with Differential Privacy", IEEE TDSC 9(4), 2012.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.errors import DPConvexError, TemplateError

Array = NDArray[np.float64]

LABELS = ("benign", "malignant")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
QUICK = (0.3, 3.0, 30.0)
TEST_SIZE = 100

ABOUT = f"""\
Breast Cancer Wisconsin (Original): {{size}} records for training, {TEST_SIZE} for testing, 9 gradings from 1 to 10.
Features are scaled by these public bounds: (x - 1)/9, centred, then into the unit ball.
Large-margin Gaussians with the problem's own regularization, fixed without the data and too small to matter.  What privacy needs
beyond that, the mechanism adds by itself, from public numbers.  Without privacy the regularization is 1e-3.
"""

FOOTNOTE = """\
Each fit keeps its promise by itself.  These data are public; on data that are not, every fit would have to be paid for, and
so would looking at test errors."""


@dataclass(frozen=True)
class Study:
    """Test errors of repeated fits, shape (epsilons, draws); those without privacy, and of naming the most frequent class."""

    epsilons: tuple[float, ...]
    errors: Array
    reference: Array
    chance: float

    def __str__(self) -> str:
        head = f"{'epsilon':>10}   {'mean test error':>15}   {'± sd':>6}"
        rows = [(f"{epsilon:g}", row) for epsilon, row in zip(self.epsilons, self.errors, strict=True)] + [
            ("no privacy", self.reference)
        ]
        lines = [f"{name:>10}   {row.mean():>15.3f}   {row.std():>6.3f}" for name, row in rows]
        return "\n".join([head, "-" * len(head), *lines])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        arrays = {"errors": self.errors.tolist(), "reference": self.reference.tolist()}
        return {"epsilons": list(self.epsilons), **arrays, "chance": self.chance}


# Without privacy no mechanism adds a quadratic, and the learner needs one of its own; fixed without the data.
PLAIN = 1e-3


def learner(**options: float) -> dp.Template:
    """Return the classifier; the same for every epsilon."""
    return dp.load("large_margin_gaussian", features=9, labels=LABELS, **options)


def study(draws: int, epsilons: Sequence[float] = EPSILONS, seed: int | None = None, progress: bool = True) -> Study:
    """Split, fit and test repeatedly, without privacy and for each epsilon."""
    from tqdm import tqdm

    if draws < 1:
        raise TemplateError(f"demo: the number of draws must be positive, not {draws}.")
    X, y = breast_cancer()
    X = unit_ball(X, lower=1, upper=10)
    template, plain = learner(), learner(regularization=PLAIN)
    rng = np.random.default_rng(seed)
    errors, reference = np.empty((len(epsilons), draws)), np.empty(draws)
    with tqdm(total=draws * (len(epsilons) + 1), desc="fits", unit="fit", disable=not progress) as bar:
        for draw in range(draws):
            order = rng.permutation(len(X))
            test, train = order[:TEST_SIZE], order[TEST_SIZE:]
            data = {"x": X[train], "y": y[train]}

            def error(release: dp.Release, test: NDArray[np.int64] = test) -> float:
                bar.update()
                return float(np.mean(release.predict(X[test]) != y[test]))

            reference[draw] = error(dp.minimize(plain, data))
            for row, epsilon in enumerate(epsilons):
                noise = None if seed is None else int(rng.integers(2**31))
                errors[row, draw] = error(dp.solve(template, data, dp.Privacy(epsilon), seed=noise))
    frequent = max(float(np.mean(y == label)) for label in LABELS)
    return Study(tuple(epsilons), errors, reference, 1 - frequent)


def run(chosen: argparse.Namespace) -> None:
    """Run the demonstration with parsed options."""
    for package in ("matplotlib", "tqdm"):
        if find_spec(package) is None:
            raise DPConvexError(f"the demonstration needs {package}: pip install 'dpconvex[demo]'.")
    out = Path(chosen.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    draws = chosen.draws if chosen.draws is not None else 3 if chosen.quick else 10
    size = len(breast_cancer()[0]) - TEST_SIZE
    if not chosen.json:
        print(ABOUT.format(size=size))
        print(dp.verify(learner(), dp.Privacy(1.0), size), end="\n\n")
    found = study(draws, QUICK if chosen.quick else EPSILONS, chosen.seed)
    draw(found, size, out, chosen.seed)
    if chosen.json:
        print(json.dumps({**found.to_dict(), "picture": str(out), "private": chosen.seed is None}))
        return
    print(found)
    print(f"\n{draws} random splits; always naming the most frequent class is wrong in {found.chance:.3f}.")
    print(FOOTNOTE if chosen.seed is None else f"NOT PRIVATE: the noise was drawn with the seed {chosen.seed}.")
    print(f"Picture: {out}")


def draw(found: Study, size: int, out: Path, seed: int | None) -> None:
    """Write the picture of a study."""
    from dpconvex.plots import FAINT, PLAIN, error_bands

    draws = found.errors.shape[1]
    axes = error_bands(found.epsilons, found.errors, label=f"private: median and quartiles of {draws} draws")
    plain = float(found.reference.mean())
    axes.axhline(plain, color=PLAIN, linestyle="--", label=f"without privacy: {100 * plain:.1f} %")
    axes.axhline(found.chance, color=FAINT, linestyle=":", label=f"most frequent class: {100 * found.chance:.1f} %")
    axes.set_ylim(0, 1.1 * found.chance)
    axes.legend(frameon=False)
    promise = "ε-differential privacy for replacing one record" if seed is None else "NOT PRIVATE: drawn with a seed"
    about = f"{size} records for training, {TEST_SIZE} for testing, random splits; {promise}"
    axes.set_title(f"Breast Cancer Wisconsin: large-margin Gaussians\n{about}", loc="left", fontsize=9)
    figure: Any = axes.figure
    figure.savefig(out)
