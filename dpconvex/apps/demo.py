"""The demonstration: what privacy costs a large-margin Gaussian classifier of the Breast Cancer data.

The counterpart of figure 2 of Pathak and Raj, "Large Margin Gaussian Mixture Models with Differential Privacy", 2012.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from dpconvex.core.arrays import Array
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.errors import DPConvexError, TemplateError

LABELS = ("benign", "malignant")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
QUICK = (0.3, 3.0, 30.0)
TEST_SIZE = 100
# Without privacy no mechanism adds a quadratic, and the learner needs one of its own; fixed without the data.
PLAIN = 1e-3

ABOUT = f"""\
Breast Cancer Wisconsin (Original): {{size}} records for training, {TEST_SIZE} for testing, 9 gradings from 1 to 10.
Features are scaled by these public bounds: (x - 1)/9, centred, then into the unit ball.
Large-margin Gaussians with the problem's own regularization, fixed without the data and too small to matter.  What privacy needs
beyond that, the mechanism adds by itself, from public numbers.  Without privacy the regularization is {PLAIN:g}.
"""
FOOTNOTE = """\
Each fit keeps its promise by itself.  These data are public; on data that are not, every fit would have to be paid for, and
so would looking at test errors."""


def learner(**options: float) -> dp.Template:
    return dp.load("large_margin_gaussian", features=9, labels=LABELS, **options)


def study(draws: int, epsilons: Sequence[float], seed: int | None = None) -> tuple[Array, Array]:
    """Split, fit and test repeatedly; returns test errors, shape (epsilons, draws), and those without privacy, shape (draws,)."""
    from tqdm import tqdm

    X, y = breast_cancer()
    X = unit_ball(X, lower=1, upper=10)
    template, plain = learner(), learner(regularization=PLAIN)
    rng = np.random.default_rng(seed)
    found = np.empty((len(epsilons) + 1, draws))
    with tqdm(total=found.size, desc="fits", unit="fit") as bar:
        for draw in range(draws):
            order = rng.permutation(len(X))
            test, train = order[:TEST_SIZE], order[TEST_SIZE:]
            data = {"x": X[train], "y": y[train]}
            seeds = [None if seed is None else int(rng.integers(2**31)) for _ in epsilons]
            fits: list[Callable[[], Any]] = [
                partial(dp.solve, template, data, dp.Privacy(e), seed=s) for e, s in zip(epsilons, seeds, strict=True)
            ]
            fits.append(partial(dp.minimize, plain, data))
            for row, fit in enumerate(fits):
                found[row, draw] = np.mean(fit().predict(X[test]) != y[test])
                bar.update()
    return found[:-1], found[-1]


def demo(chosen: argparse.Namespace) -> None:
    for package in ("matplotlib", "tqdm"):
        if find_spec(package) is None:
            raise DPConvexError(f"the demonstration needs {package}: pip install 'dpconvex[demo]'.")
    out = Path(chosen.out or "demo-output/error_against_epsilon.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    draws = chosen.draws if chosen.draws is not None else 3 if chosen.quick else 10
    if draws < 1:
        raise TemplateError(f"demo: the number of draws must be positive, not {draws}.")
    epsilons = QUICK if chosen.quick else EPSILONS
    y = breast_cancer()[1]
    size = len(y) - TEST_SIZE
    if not chosen.json:
        print(ABOUT.format(size=size))
        print(dp.verify(learner(), dp.Privacy(1.0), size), end="\n\n")
    errors, reference = study(draws, epsilons, chosen.seed)
    chance = 1 - max(float(np.mean(y == label)) for label in LABELS)
    promise = (
        "ε-differential privacy for replacing one record" if chosen.seed is None else "NOT PRIVATE: drawn with a seed"
    )
    draw(epsilons, errors, float(reference.mean()), chance, out, promise)
    if chosen.json:
        told = {"epsilons": epsilons, "errors": errors.tolist(), "reference": reference.tolist(), "chance": chance}
        print(json.dumps({**told, "picture": str(out), "private": chosen.seed is None}))
        return
    print(f"{'epsilon':>10}   {'mean test error':>15}   {'± sd':>6}")
    for name, row in zip([*(f"{epsilon:g}" for epsilon in epsilons), "no privacy"], [*errors, reference], strict=True):
        print(f"{name:>10}   {row.mean():>15.3f}   {row.std():>6.3f}")
    print(f"\n{draws} random splits; always naming the most frequent class is wrong in {chance:.3f}.")
    print(FOOTNOTE if chosen.seed is None else f"NOT PRIVATE: the noise was drawn with the seed {chosen.seed}.")
    print(f"Picture: {out}")


def draw(epsilons: Sequence[float], errors: Array, plain: float, chance: float, out: Path, promise: str) -> None:
    from dpconvex.plots import FAINT, PLAIN as COLOUR, error_bands

    axes = error_bands(epsilons, errors, label=f"private: median and quartiles of {errors.shape[1]} draws")
    axes.axhline(plain, color=COLOUR, linestyle="--", label=f"without privacy: {100 * plain:.1f} %")
    axes.axhline(chance, color=FAINT, linestyle=":", label=f"most frequent class: {100 * chance:.1f} %")
    axes.set_ylim(0, 1.1 * chance)
    axes.legend(frameon=False)
    axes.set_title(f"Breast Cancer Wisconsin: large-margin Gaussians, random splits\n{promise}", loc="left", fontsize=9)
    figure: Any = axes.figure
    figure.savefig(out)
