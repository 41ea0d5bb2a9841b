"""Test error against epsilon for large-margin Gaussians on Breast Cancer data, as in figure 2 of Pathak and Raj (2012)."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from dpconvex.cli.commands import picture_at
from dpconvex.cli.main import emit
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.plots import PLAIN as COLOUR, error_bands
from dpconvex.util.arguments import COUNT
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import Interrupt

LABELS = ("benign", "malignant")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
QUICK = (0.3, 3.0, 30.0)
TEST_SIZE = 100
# Regularization without privacy, where no mechanism adds a quadratic; fixed without the data.
PLAIN = 1e-3

ABOUT = f"""\
Breast Cancer Wisconsin (Original): {{size}} records for training, {TEST_SIZE} for testing, 9 gradings from 1 to 10.
Features are scaled by these public bounds: (x - 1)/9, centred, then into the unit ball.
Large-margin Gaussians with the problem's own regularization, fixed without the data and too small to matter.  What privacy needs
beyond that, the mechanism adds by itself, from public numbers.  Without privacy the regularization is {PLAIN:g}.
"""
FOOTNOTE = """\
Each fit keeps its guarantee by itself.  These data are public; on data that are not, every fit would have to be paid for, and
so would looking at test errors."""


def learner(**options: float) -> dp.Template:
    return dp.load("large_margin_gaussian", features=9, labels=LABELS, **options)


def study(draws: int, epsilons: Sequence[float], seed: int | None) -> Array:
    """Return test errors of repeated random splits, shape (epsilons + 1, draws); the last row is without privacy."""
    X, y = breast_cancer()
    X, rng, promises = unit_ball(X, lower=1, upper=10), np.random.default_rng(seed), [dp.Privacy(e) for e in epsilons]
    found = []
    for _ in range(draws):
        order = rng.permutation(len(X))
        test, train = order[:TEST_SIZE], order[TEST_SIZE:]
        data = {"x": X[train], "y": y[train]}
        first = None if seed is None else int(rng.integers(2**31))
        plain = dp.solve_without_privacy(learner(regularization=PLAIN), data)
        fits = [*dp.sweep(learner(), data, promises, seed=first), plain]
        found.append([np.mean(fit.predict(X[test]) != y[test]) for fit in fits])
    return np.array(found).T


def demo(chosen: argparse.Namespace) -> None:
    out = Path(chosen.out or "demo-output/error_against_epsilon.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    picture_at("out", str(out), {})
    epsilons, usual = (QUICK, 3) if chosen.quick else (EPSILONS, 10)
    draws = usual if chosen.draws is None else chosen.draws
    COUNT.check("demo", draws=draws)
    size = len(breast_cancer()[1]) - TEST_SIZE
    if not chosen.json:
        print(f"{ABOUT.format(size=size)}\n{dp.verify(learner(), dp.Privacy(1.0), size)}\n")
    errors = study(draws, epsilons, chosen.seed)
    footnote, promise = FOOTNOTE, "ε-differential privacy for replacing one record"
    if chosen.seed is not None:
        footnote = promise = f"NOT PRIVATE: the noise was drawn with the seed {chosen.seed}."
    Interrupt.close()
    picture(epsilons, errors, promise).savefig(out)
    data = {"epsilons": epsilons, "errors": errors[:-1].tolist(), "reference": errors[-1].tolist()}
    names = [*(f"{epsilon:g}" for epsilon in epsilons), "no privacy"]
    rows = [f"{name:>10}   {row.mean():>15.3f}   {row.std():>6.3f}" for name, row in zip(names, errors, strict=True)]
    table = "\n".join([f"{'epsilon':>10}   {'mean test error':>15}   {'± sd':>6}", *rows])
    data |= {"picture": str(out), "private": chosen.seed is None}
    emit(chosen, data, f"{table}\n\n{draws} random splits.\n{footnote}\nPicture: {out}")


def picture(epsilons: Sequence[float], errors: Array, promise: str) -> Any:
    plain = float(errors[-1].mean())
    axes = error_bands(epsilons, errors[:-1], label=f"private: median and quartiles of {errors.shape[1]} draws")
    axes.axhline(plain, color=COLOUR, linestyle="--", label=f"without privacy: {100 * plain:.1f} %")
    axes.legend(frameon=False)
    axes.set_title(f"Breast Cancer Wisconsin: large-margin Gaussians, random splits\n{promise}", loc="left", fontsize=9)
    return axes.figure
