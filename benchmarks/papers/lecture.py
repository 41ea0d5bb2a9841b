"""Excess risk of noisy gradient descent against its number of steps: ``python -m benchmarks.papers.lecture [--draws 20]``.

The lecture's learner is logistic regression over a ball, on features in the unit cube with a 1 appended; its bound on the mean
excess is R B / sqrt(T).  The Breast Cancer data are scaled to the cube by their public bounds.  Beside the lecture's calibration
stand two of ours: for the lecture's neighbours (a record appears or disappears, n public), and for a record that is replaced,
where the lecture's noise would be half of what its promise needs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

import dpconvex as dp
from benchmarks import RESULTS, chosen
from benchmarks.published.lecture import lecture_delta, lecture_sigma
from benchmarks.published.risk_bounds import lecture_rate
from dpconvex.certificates.certificate import Certificate
from dpconvex.datasets import breast_cancer
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.noise.samplers import seeded_generator
from dpconvex.sensitivity.analysis import Analysis

Array = NDArray[np.float64]

EPSILONS = (0.1, 0.3, 0.9)
DELTA = 1e-6
STEPS = (1, 3, 10, 30, 100, 300, 1000, 3000)
RADIUS = 5.0
WAYS = {"lecture": "add-remove", "ours, add-remove": "add-remove", "ours, replace-one": "replace-one"}


@dataclass(frozen=True)
class Point:
    """What was measured for one promise, one number of steps and one calibration; on the mean loss."""

    epsilon: float
    steps: int
    way: str
    excess: Array
    bound: float
    likely: float
    true_delta: float


def learner(features: int, radius: float = RADIUS) -> dp.Template:
    """Constrained logistic regression, as the lecture declares it."""
    w = cp.Variable(features + 1, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Box(np.zeros(features), np.ones(features)), y=dp.Choice([-1, 1])),
        loss=lambda x, y: cp.logistic(-y * (cp.hstack([x, 1]) @ w)),
        regularizer=0.0,
        constraints=[cp.norm(w) <= radius],
    )


def data() -> tuple[Array, Array]:
    """Breast Cancer, gradings 1 to 10 scaled to [0, 1]; labels -1 and 1."""
    x, labels = breast_cancer()
    return (x - 1) / 9, np.where(labels == "malignant", 1, -1)


def mean_loss(x: Array, y: Array) -> Callable[[Array], float]:
    """Return the objective."""
    rows = y[:, None] * np.column_stack([x, np.ones(len(x))])
    return lambda w: float(np.logaddexp(0.0, -rows @ w).mean())


def smallest(x: Array, y: Array, radius: float = RADIUS) -> float:
    """Return the minimum over the ball, by an interior-point solver."""
    rows = y[:, None] * np.column_stack([x, np.ones(len(x))])
    w = cp.Variable(rows.shape[1])
    problem = cp.Problem(cp.Minimize(cp.sum(cp.logistic(-rows @ w)) / len(rows)), [cp.norm(w) <= radius])
    problem.solve(solver="CLARABEL")
    return mean_loss(x, y)(w.value * min(1.0, radius / float(np.linalg.norm(w.value))))


def measure(draws: int, epsilons: tuple[float, ...], steps: tuple[int, ...]) -> Iterator[Point]:
    """Fit every promise, number of steps and calibration several times."""
    x, y = data()
    n = len(x)
    template, loss, least = learner(x.shape[1]), mean_loss(x, y), smallest(x, y)
    analysis = analyse(template)
    engine = DataEngine(analysis, template.record.validate({"x": x, "y": y}), n, None)
    bound = math.sqrt(x.shape[1] + 1)  # the lecture's C
    for epsilon in epsilons:
        for count in steps:
            for way, adjacency in WAYS.items():
                mechanism = dp.NoisyGradientDescent(steps=count)
                certificate = mechanism.certify(analysis, dp.Privacy(epsilon, DELTA, adjacency), n)
                certificate = replace(certificate, tolerance=0.0)  # of exact steps, as the lecture's are
                expected, likely = descent_bounds(analysis, certificate)
                if way == "lecture":
                    sigma = lecture_sigma(epsilon, DELTA, bound, count)
                    largest = math.hypot(n * bound, math.sqrt(len(x[0]) + 1) * sigma)
                    step = RADIUS / (largest * math.sqrt(count))
                    certificate = replace(
                        certificate, noise_scale=sigma, settings=certificate.settings | {"step_size": step}
                    )
                    expected = lecture_rate(RADIUS, bound, count, len(x[0]) + 1, n, epsilon, DELTA)
                    likely = descent_bounds(analysis, certificate)[1]
                    true = lecture_delta(epsilon, sigma, bound, count, "replace-one")
                else:
                    true = DELTA
                rng = seeded_generator(1000 * count + round(100 * epsilon))
                excess = [loss(mechanism.run(analysis, certificate, engine, rng)) - least for _ in range(draws)]
                yield Point(epsilon, count, way, np.array(excess), expected, likely, true)


def descent_bounds(analysis: Analysis, certificate: Certificate, probability: float = 0.05) -> tuple[float, float]:
    """Bound the mean excess of exact noisy steps without a regularizer, and what it exceeds so rarely (theorem 14.3)."""
    p, sigma, most = certificate.noise_dimension, certificate.noise_scale, analysis.form.feasible.norm_bound
    steps, step = int(certificate.settings["steps"]), certificate.settings["step_size"]
    steepest = certificate.size * analysis.gradient_bound
    start = most**2 / (2 * step * (steps + 1)) + step * steepest**2 / 2
    squares = step * sigma**2 / (2 * (steps + 1))
    walk = sigma * (2 * most + step * steepest) * math.sqrt(steps) * float(norm.isf(probability / 4)) / (steps + 1)
    expected, likely = start + squares * p * steps, start + squares * float(chi2.isf(probability / 2, p * steps)) + walk
    return expected / certificate.size, likely / certificate.size


def table(points: list[Point]) -> str:
    """Return the measurements as a Markdown table."""
    lines = [
        "| epsilon | T | calibration | mean excess | bound on the mean | ratio | largest of the draws | our bound with 95 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.epsilon:g} | {p.steps} | {p.way} | {p.excess.mean():.4f} | {p.bound:.4f} | {p.bound / p.excess.mean():.1f} | "
        f"{p.excess.max():.4f} | {p.likely:.4f} |"
        for p in points
    ]
    return "\n".join(lines)


def draw(points: list[Point], path: Path) -> None:
    """Draw mean excess, and the bounds on it, against T."""
    from matplotlib.figure import Figure

    epsilons = sorted({p.epsilon for p in points})
    figure = Figure(figsize=(4.0 * len(epsilons), 4.0), layout="constrained")
    colours = dict(zip(WAYS, ("#b3541e", "#1f5fa8", "#5a9bd4"), strict=True))
    panels = figure.subplots(1, len(epsilons), sharey=True, squeeze=False)[0]
    for axes, epsilon in zip(panels, epsilons, strict=True):
        for way, colour in colours.items():
            mine = sorted((p for p in points if (p.epsilon, p.way) == (epsilon, way)), key=lambda p: p.steps)
            steps = [p.steps for p in mine]
            axes.plot(steps, [p.excess.mean() for p in mine], "o-", color=colour, ms=4, label=f"measured: {way}")
            axes.plot(steps, [p.bound for p in mine], "--", color=colour, lw=1, label=f"bound: {way}")
        axes.set(xscale="log", yscale="log", xlabel="steps T", title=f"ε = {epsilon:g}, δ = {DELTA:g}")
        axes.grid(True, alpha=0.2)
    panels[0].set_ylabel("excess of the mean loss")
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    figure.suptitle(f"Noisy gradient descent on Breast Cancer, logistic loss, ‖w‖ ≤ {RADIUS:g}", fontsize=11)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, save it and the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.lecture", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20, help="fits of each kind (20)")
    parser.add_argument("--most", type=int, default=max(STEPS), help="largest number of steps (3000)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = chosen(parser, arguments, draws=1, most=3)
    points = list(measure(options.draws, EPSILONS, tuple(t for t in STEPS if t <= options.most)))
    text = table(points)
    broken = sum(p.excess.mean() > p.bound for p in points)
    worst = max(p.true_delta for p in points)
    text += (
        f"\n\n{len(points)} means of {options.draws} draws, {broken} above their bound.  The lecture's noise promises "
        f"delta = {DELTA:g}; where a record is replaced it gives up to {worst:.2g}."
    )
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "lecture.md").write_text(text + "\n", encoding="utf-8")
    draw(points, options.output / "lecture.png")
    print(f"\nwritten: {options.output / 'lecture.md'}, {options.output / 'lecture.png'}")


if __name__ == "__main__":
    main()
