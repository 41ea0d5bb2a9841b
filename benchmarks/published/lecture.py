"""Noisy gradient descent as it is taught: ``python -m benchmarks.published.lecture [--draws 20]``.

Lecture notes take T releases of the *mean* gradient, each of sensitivity C/n, as one Gaussian release of sensitivity
``sqrt(T) C/n``, and calibrate that with ``sigma = sqrt(2 log(1.25/delta))/epsilon`` (Dwork & Roth 2014, theorem A.1, proved for
epsilon below 1).  C/n is the sensitivity to a record that appears or disappears while n stays public; when one is *replaced*,
it is 2C/n, and the noise is half of what is needed.  The bound on the mean excess is R B / sqrt(T).

The learner is logistic regression over a ball, on the Breast Cancer data in the unit cube with a 1 appended.  Printed are mean
excess and bound, and the delta that the taught noise keeps for a record that is replaced.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import cvxpy as cp
import numpy as np

import dpconvex as dp
from benchmarks import chosen, heading, row
from dpconvex.datasets import breast_cancer
from dpconvex.errors import TemplateError
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.noise.gaussian import gaussian_delta
from dpconvex.noise.samplers import seeded_generator

__all__ = ["lecture_delta", "lecture_rate", "lecture_sigma"]

DELTA, RADIUS = 1e-6, 5.0
EPSILONS, STEPS = (0.1, 0.3, 0.9), [10, 100, 1000]
WAYS = {"taught": "add-remove", "exact": "add-remove", "replaced": "replace-one"}


def lecture_sigma(epsilon: float, delta: float, gradient_bound: float, steps: int) -> float:
    """Return the deviation of each step's noise as taught, in sum form (n times that of the mean).

    >>> round(lecture_sigma(0.5, 1e-6, 1.0, 100), 2)
    105.98
    """
    if not (0 < epsilon < 1 and 0 < delta < 1 and gradient_bound > 0 and steps >= 1):
        raise TemplateError("lecture_sigma: epsilon and delta must lie in (0, 1), the bound and the steps be positive.")
    return gradient_bound * math.sqrt(steps) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def lecture_delta(epsilon: float, sigma: float, gradient_bound: float, steps: int, adjacency: str) -> float:
    """Return the delta that a deviation really gives; opposite records attain it under replace-one."""
    records = 2 if adjacency == "replace-one" else 1
    return float(gaussian_delta(epsilon, records * gradient_bound * math.sqrt(steps) / sigma))


def lecture_rate(
    radius: float, gradient_bound: float, steps: int, dimension: int, size: int, epsilon: float, delta: float
) -> float:
    """Return the lecture's bound on the mean excess, ``R B / sqrt(T)``, ``B^2 = C^2 (1 + T sigma_(eps, delta)^2 dim / n^2)``.

    >>> round(lecture_rate(2.0, 1.0, 400, 3, 10**9, 0.5, 1e-6), 3)  # without noise: 2 / 20
    0.1
    """
    each = lecture_sigma(epsilon, delta, gradient_bound, steps) / size
    return radius * math.hypot(gradient_bound, math.sqrt(dimension) * each) / math.sqrt(steps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print mean excess and bound for each guarantee, number of steps and calibration."""
    options = chosen(__doc__, arguments, {"--draws": (20, "fits of each kind"), "--steps": STEPS}, draws=1, steps=[3])
    features, labels = breast_cancer()
    x, y = (features - 1) / 9, np.where(labels == "malignant", 1, -1)
    n, dim = len(x), x.shape[1] + 1
    w, bound = cp.Variable(dim, name="w"), math.sqrt(dim)  # the lecture's C
    record = dp.Record(x=dp.Box(np.zeros(dim - 1), np.ones(dim - 1)), y=dp.Choice([-1, 1]))
    ball = [cp.norm(w) <= RADIUS]
    template = dp.Template(record, lambda x, y: cp.logistic(-y * (cp.hstack([x, 1]) @ w)), 0.0, ball)
    rows = y[:, None] * np.column_stack([x, np.ones(n)])
    problem = cp.Problem(cp.Minimize(cp.sum(cp.logistic(-rows @ w)) / n), ball)
    least = float(problem.solve(solver="CLARABEL"))
    analysis = analyse(template)
    engine = DataEngine(analysis, template.record.validate({"x": x, "y": y}), n, None)
    heading("ε", "T", "calibration", "mean excess", "bound", "delta for a replaced record")
    for epsilon in EPSILONS:
        for steps in options.steps:
            for way, adjacency in WAYS.items():
                mechanism = dp.NoisyGradientDescent(steps=steps)
                certificate = mechanism.certify(analysis, dp.Privacy(epsilon, DELTA, adjacency), n)
                sigma, told = certificate.noise_scale, certificate.settings
                step = told["step_size"]
                if way == "taught":
                    sigma = lecture_sigma(epsilon, DELTA, bound, steps)
                    step = RADIUS / (math.hypot(n * bound, math.sqrt(dim) * sigma) * math.sqrt(steps))
                settings = {**told, "step_size": step}
                exact = replace(certificate, tolerance=0.0, noise_scale=sigma, settings=settings)
                rng = seeded_generator(1000 * steps + round(100 * epsilon))
                fits = (mechanism.run(analysis, exact, engine, rng) for _ in range(options.draws))
                excess = [np.logaddexp(0.0, -rows @ fit).mean() - least for fit in fits]
                # Theorem 8.4, which gives the lecture's rate for the lecture's step.
                squares = (n * bound) ** 2 + dim * sigma**2
                most = (RADIUS**2 / (2 * step * steps) + step * squares / 2) / n
                true = lecture_delta(epsilon, sigma, bound, steps, "replace-one")
                row(f"{epsilon:g}", steps, way, f"{np.mean(excess):.3f}", f"{most:.3g}", f"{true:.2g}")


if __name__ == "__main__":
    main()
