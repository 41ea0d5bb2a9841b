"""Passes over the records, and fits against scikit-learn's to the same gradient norm, where second moments are far from round."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

import dpconvex as dp
from benchmarks.data import distorted_digits, halves, problem_of, scaled_letters
from benchmarks.timing import Row, compare
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.optim import backend as backends
from dpconvex.optim.problem import Solution

__all__ = ["all_passes"]

# Norm of the gradient of the mean of the losses and the regularizer, at which all fits end.
NORM = 1e-8


def all_passes(repetitions: int) -> Iterator[Row]:
    """Everything that is here."""
    yield from growth()
    yield from distorted(repetitions)
    from benchmarks.public_data import adult, letter

    table = adult()
    data = {"x": sp.csr_matrix(table.design()), "y": table.y}
    for level, goal in ((1e-3, None), (1e-5, 0.2)):
        options = {"features": 105, "regularization": level, "radius": float(np.sqrt(14))}
        yield from against_scikit_learn(
            "Adult, CSR, 45,222 x 105", "logistic_regression", options, data, goal, repetitions
        )
    letters = scaled_letters(letter())
    labels = tuple(sorted(set(letters["y"].tolist())))
    for level in (1e-4, 1e-6):
        options = {"features": 16, "classes": 26, "labels": labels, "regularization": level}
        yield from against_scikit_learn("Letter, softmax", "softmax_regression", options, letters, None, repetitions)


def growth() -> Iterator[Row]:
    """Passes for more and more records, with features of lengths from 1 to 1/100."""
    scales, counts = np.logspace(0, -2, 20), []
    sizes = 10_000, 100_000, 1_000_000
    for n in sizes:
        data = halves(n, 20)
        data["x"] *= scales
        problem = problem_of(dp.load("logistic_regression", features=20, regularization=1e-6), data)
        counts.append(backends.solve(problem, None, NORM / 1e-6).evaluations)
    found = ", ".join(f"{count:.3g} for {n:,}" for n, count in zip(sizes, counts, strict=True))
    case = "logistic regression, d=20, Lambda=1e-6, n=1,000,000"
    yield Row(case, "passes to 1e-8, against those for 10,000", counts[-1], counts[0], "", 1.25, found)


def distorted(repetitions: int) -> Iterator[Row]:
    """Softmax regression on digits."""
    options = {"features": 784, "classes": 10, "regularization": 1e-4}
    data = distorted_digits(60000)
    yield from against_scikit_learn(
        "digits, 60,000 x 784, softmax", "softmax_regression", options, data, 0.5, min(repetitions, 3)
    )


def against_scikit_learn(
    name: str, learner: str, options: dict[str, Any], data: dict[str, Any], goal: float | None, repetitions: int
) -> Iterator[Row]:
    """Compare a fit and a private fit with scikit-learn's L-BFGS, which looks at the largest entry of the gradient."""
    from sklearn.linear_model import LogisticRegression

    n, level = len(data["y"]), options["regularization"]
    template = dp.load(learner, **options)
    analysis = analyse(template)
    dim, theirs = analysis.form.space.dim, []

    def scikit_learn() -> None:
        model = LogisticRegression(
            C=1 / (n * level), fit_intercept=False, tol=NORM / np.sqrt(dim), max_iter=100_000, solver="lbfgs"
        )
        with warnings.catch_warnings(action="ignore"):  # its line search may end in rounding, just before the end
            model.fit(data["x"], data["y"])
        theirs.append(int(model.n_iter_[0]))

    def ours() -> Solution:
        batch = template.record.validate(data)  # anew, so that nothing is kept from fit to fit
        problem = DataEngine(analysis, batch, n, None).problem(n * analysis.modulus, None, 0.0)
        return backends.solve(problem, None, NORM / level)

    def private() -> None:
        dp.solve(template, data, dp.Privacy(1.0, 1e-6), dp.ObjectivePerturbation("gaussian"))

    times = compare({"ours": ours, "sklearn": scikit_learn, "private": private}, repetitions, budget=120.0)
    case = f"{name}, Lambda={level:g}"
    measured = f"fit against scikit-learn's lbfgs, gradient norm {NORM:g}"
    note = f"{ours().evaluations:.3g} passes; {theirs[-1]} iterations"
    yield Row(case, measured, times["ours"], times["sklearn"], most=goal, note=note)
    measured = "private fit, epsilon=1, delta=1e-6, against the same"
    yield Row(case, measured, times["private"], times["sklearn"], most=goal)
