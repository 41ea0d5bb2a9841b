"""Measured excess risk beside its bounds: ``python -m benchmarks.papers.risk [--draws 200]``.

Two tables on the Breast Cancer data.  The first has the mechanisms of this toolkit, whole releases with their cover, and the
bounds of `excess_risk`.  The second has the papers' mechanisms with the papers' noise, the papers' bounds, and what the argument
of docs/theory.md, section 14, says about the same noise with its exact quantile.  Everything is on the mean loss plus the
regularizer, and bounds are at the 95 % quantile except where the mean is named.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import gamma

import dpconvex as dp
from benchmarks import RESULTS, chosen
from benchmarks.papers.excess_risk import risk_bound
from benchmarks.published.chaudhuri import published_calibration
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.risk_bounds import (
    chaudhuri_lemma_3,
    chaudhuri_lemma_5,
    chaudhuri_theorem_3,
    chaudhuri_theorem_4,
    pathak_raj_theorem_5_2,
    pathak_raj_theorem_5_3,
)
from dpconvex.certificates.integer_noise import perturb
from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.noise.samplers import gamma_direction, seeded_generator

Array = NDArray[np.float64]

PROBABILITY = 0.05
EPSILON, DELTA = 1.0, 1e-6
REGULARIZATION = 0.01


@dataclass(frozen=True)
class Measurement:
    """Excess of several draws, with the bounds on it: on the quantile and, where there is one, on the mean."""

    learner: str
    mechanism: str
    excess: Array
    bound: float
    expected: float | None = None
    other: float | None = None
    source: str = ""

    @property
    def quantile(self) -> float:
        """The measured quantile that the bounds are for."""
        return float(np.quantile(self.excess, 1 - PROBABILITY))

    @property
    def exceeded(self) -> int:
        """How many draws lie above the bound."""
        return int((self.excess > self.bound).sum())


@cache
def data() -> tuple[Array, Array]:
    """Breast Cancer in the unit ball, by public bounds."""
    x, labels = breast_cancer()
    return unit_ball(x, lower=1, upper=10), labels


def records(labels: tuple[Any, Any]) -> dict[str, Array]:
    """Return the data with the given names for benign and malignant."""
    x, y = data()
    return {"x": x, "y": np.where(y == "malignant", labels[1], labels[0])}


def in_a_ball() -> dp.Template:
    """Logistic regression without a regularizer, over a ball."""
    w = cp.Variable(data()[0].shape[1], name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(w.size), y=dp.Choice([-1, 1])),
        loss=lambda x, y: cp.logistic(-y * (x @ w)),
        regularizer=0.0,
        constraints=[cp.norm(w) <= 5],
    )


class Objective:
    """The declared objective (mean form) and its minimum, with fits from one engine."""

    def __init__(self, template: dp.Template, table: dict[str, Array]) -> None:
        self.template, self.analysis = template, analyse(template)
        self.batch = template.record.validate(table)
        self.size = self.batch.size
        self.engine = DataEngine(self.analysis, self.batch, self.size, None)
        self.plain = self.engine.problem(1.0)
        self.modulus = self.size * self.analysis.modulus
        if self.modulus > 0:
            self.best = self.engine.minimise(self.modulus, 1e-7)
        else:
            self.best = minimum_over_ball(table)
        self.least = self.value(self.best)

    def value(self, theta: Array) -> float:
        """Return mean loss plus regularizer."""
        return self.plain.value(theta) / self.size

    def excess(self, thetas: Iterator[Array]) -> Array:
        """Return the excess of several answers."""
        return np.array([self.value(theta) - self.least for theta in thetas])


def minimum_over_ball(table: dict[str, Array]) -> Array:
    """Minimise the logistic loss over the ball by an interior-point solver."""
    rows = table["y"][:, None] * table["x"]
    w = cp.Variable(rows.shape[1])
    cp.Problem(cp.Minimize(cp.sum(cp.logistic(-rows @ w))), [cp.norm(w) <= 5]).solve(solver="CLARABEL")
    return np.asarray(w.value * min(1.0, 5 / float(np.linalg.norm(w.value))))


def ours(name: str, template: dp.Template, labels: tuple[Any, Any], draws: int) -> Iterator[Measurement]:
    """Measure releases of every mechanism that the template admits."""
    objective = Objective(template, records(labels))
    for mechanism, delta in (
        (dp.ObjectivePerturbation(), 0.0),
        (dp.ObjectivePerturbation("matrix"), 0.0),
        (dp.ObjectivePerturbation("gaussian"), DELTA),
        (dp.OutputPerturbation(), 0.0),
        (dp.OutputPerturbation("gaussian"), DELTA),
    ):
        try:
            certificate = dp.verify(template, dp.Privacy(EPSILON, delta), objective.size, mechanism)
        except dp.NotPrivate:
            continue
        rng = seeded_generator(len(name) + len(certificate.mechanism))

        def releases(mechanism: Any = mechanism, certificate: Any = certificate, rng: Any = rng) -> Iterator[Array]:
            for _ in range(draws):
                theta = mechanism.run(objective.analysis, certificate, objective.engine, rng)
                yield objective.engine.project(perturb(theta, certificate.cover, rng))

        norm = float(np.linalg.norm(objective.best))
        found = risk_bound(template, certificate, PROBABILITY)
        told = risk_bound(template, certificate, PROBABILITY, comparator_norm=norm)
        yield Measurement(
            name, certificate.mechanism, objective.excess(releases()), found.bound, found.expected, told.bound
        )


def chaudhuri(name: str, template: dp.Template, draws: int) -> Iterator[Measurement]:
    """Measure Algorithms 1 and 2 with their own noise."""
    objective = Objective(template, records((-1, 1)))
    analysis, n, d = objective.analysis, objective.size, objective.analysis.form.space.dim
    c = analysis.hessian_bound
    for algorithm in (1, 2):
        found = published_calibration(analysis, EPSILON, n, algorithm)
        rng = seeded_generator(algorithm)
        longest = float(gamma.isf(PROBABILITY, d)) / found.rate
        if algorithm == 1:
            answers: Callable[[Array], Array] = lambda b: objective.best + b  # noqa: E731
            exact = (c + REGULARIZATION) * longest**2 / 2
            claimed, source = chaudhuri_lemma_3(n, d, EPSILON, REGULARIZATION, c, PROBABILITY), "lemma 3"
        else:
            answers = lambda b: objective.engine.minimise(objective.modulus, 1e-7, linear=b)  # noqa: E731
            exact = longest**2 / (2 * objective.modulus * n)
            claimed, source = chaudhuri_lemma_5(n, d, EPSILON, REGULARIZATION, PROBABILITY), "lemma 5"
        noise = (gamma_direction(d, 1 / found.rate, rng) for _ in range(draws))
        excess = objective.excess(answers(b) for b in noise)
        yield Measurement(name, f"Algorithm {algorithm}", excess, exact, None, claimed, source)


def pathak_raj(draws: int) -> Iterator[Measurement]:
    """Measure the mechanism of 2012 with its own noise: one matrix for both classes, not divided by n."""
    d, weight = data()[0].shape[1], 0.31
    template = dp.load("pathak_raj_2012", features=d, regularization=weight)
    objective = Objective(template, records((0, 1)))
    published = PublishedPerturbation.of(2012)
    rng = seeded_generator(12)
    space, scale = objective.analysis.form.space, published.scale(EPSILON, objective.size)

    def answers() -> Iterator[Array]:
        for _ in range(draws):
            noise = published.noise(space, scale, rng)
            yield objective.engine.minimise(objective.modulus, 1e-6, linear=noise)

    # The same b is added to both classes, so the norm of the whole is sqrt(2) that of b; and the modulus is 2 lambda.
    longest = math.sqrt(2) * float(gamma.isf(PROBABILITY, (d + 1) ** 2)) / EPSILON
    exact = longest**2 / (2 * 2 * weight)
    claimed = pathak_raj_theorem_5_2(d, 2, EPSILON, weight, PROBABILITY)
    yield Measurement(
        "large-margin Gaussians, 2012", "as printed", objective.excess(answers()), exact, None, claimed, "theorem 5.2"
    )


def first_table(rows: list[Measurement]) -> str:
    """Return the toolkit's mechanisms as a Markdown table."""
    lines = [
        "| learner | mechanism | mean | bound on it | 95 % quantile | bound on it | ratio | for the minimiser's norm | "
        "draws above |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.learner} | {r.mechanism} | {r.excess.mean():.3g} | {r.expected:.3g} | {r.quantile:.3g} | {r.bound:.3g} | "
        f"{r.bound / r.quantile:.1f} | {r.other:.3g} | {r.exceeded} of {len(r.excess)} |"
        for r in rows
    ]
    return "\n".join(lines)


def second_table(rows: list[Measurement]) -> str:
    """Return the papers' mechanisms as a Markdown table."""
    lines = [
        "| learner | noise as published | 95 % quantile | ours for this noise | ratio | the paper's | from | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.learner} | {r.mechanism} | {r.quantile:.3g} | {r.bound:.3g} | {r.bound / r.quantile:.1f} | {r.other:.3g} | "
        f"{r.source} | {r.other / r.quantile:.0f} |"
        for r in rows
        if r.other is not None
    ]
    return "\n".join(lines)


def sample_sizes() -> str:
    """Say what theorems 3 and 4 ask for, up to their unknown constant, and theorem 5.3 claims."""
    d, n = data()[0].shape[1], len(data()[0])
    three = chaudhuri_theorem_3(10.0, 0.1, d, EPSILON, 0.25, PROBABILITY)
    four = chaudhuri_theorem_4(10.0, 0.1, d, EPSILON, 0.25, PROBABILITY)
    true = pathak_raj_theorem_5_3(n, d, 2, EPSILON, 0.31, PROBABILITY)
    rows = "; ".join(
        f"{name} {', '.join(f'{v:.0f}' for v in terms)}" for name, terms in (("theorem 3", three), ("theorem 4", four))
    )
    return (
        "Records for an excess of 0.1 over a classifier of norm 10, in units of the constant C that the paper leaves open: "
        f"{rows}.  Theorem 5.3 of 2012 for {n} records: {true:.4g}."
    )


def draw(mine: list[Measurement], theirs: list[Measurement], path: Path) -> None:
    """Draw every sample of excesses with its bounds."""
    from matplotlib.figure import Figure

    rows = mine + theirs
    figure = Figure(figsize=(9, 0.38 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for k, r in enumerate(reversed(rows)):
        axes.plot(r.excess, np.full(len(r.excess), k), "|", color="#7a7a7a", ms=6, alpha=0.4)
        axes.plot(r.quantile, k, "o", color="#333333", ms=4, label="measured, 95 %" if k == 0 else None)
        axes.plot(r.bound, k, ">", color="#1f5fa8", ms=6, label="our bound, 95 %" if k == 0 else None)
        if r.source:
            axes.plot(r.other, k, "D", color="#b3541e", ms=5, label="the paper's bound" if k == 0 else None)
    axes.set_yticks(range(len(rows)), [f"{r.learner}: {r.mechanism}" for r in reversed(rows)], fontsize=7)
    axes.axhline(len(theirs) - 0.5, color="#7a7a7a", lw=0.8, ls=":")
    axes.set(xscale="log", xlabel="excess of the mean loss plus the regularizer", title="Excess risk, ε = 1")
    axes.grid(True, axis="x", alpha=0.2)
    figure.legend(fontsize=8, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables, save them and the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.risk", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=200, help="fits of each kind (200)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = chosen(parser, arguments, draws=1)
    d = data()[0].shape[1]
    logistic = dp.load("logistic_regression", features=d, regularization=REGULARIZATION)
    huber = dp.load("huber_svm", features=d, regularization=REGULARIZATION)
    gaussians = dp.load("large_margin_gaussian", features=d, regularization=REGULARIZATION)
    mine = [
        *ours("logistic", logistic, (-1, 1), options.draws),
        *ours("Huber SVM", huber, (-1, 1), options.draws),
        *ours("large-margin Gaussians", gaussians, (0, 1), max(options.draws // 4, 1)),
        *ours("logistic in a ball", in_a_ball(), (-1, 1), options.draws),
    ]
    theirs = [
        *chaudhuri("logistic", logistic, options.draws),
        *chaudhuri("Huber SVM", huber, options.draws),
        *pathak_raj(max(options.draws // 4, 1)),
    ]
    text = "\n\n".join((first_table(mine), second_table(theirs), sample_sizes()))
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "risk.md").write_text(text + "\n", encoding="utf-8")
    draw(mine, theirs, options.output / "risk.png")
    print(f"\nwritten: {options.output / 'risk.md'}, {options.output / 'risk.png'}")


if __name__ == "__main__":
    main()
