"""Learners of your own with a semidefinite matrix: ``python -m benchmarks matrices [case ...] [--seeds 8]``.

Prints which part of the gain of the objective over the best multiple of the identity the default loses, with delta = 1e-6 and
without a delta.  Mean of seeds; four features; replace-one.
"""

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp
from benchmarks import chosen, fewer, heading, row, some_of

D, SIZES, EPSILONS = 4, (600, 2500), (1.0, 3.0)
P, B = cp.Variable((D, D), PSD=True, name="P"), cp.Variable(name="b")
BALL, CLASS, TARGET, BOUNDED = (
    dp.Ball(D),
    dp.Choice([-1, 1]),
    dp.Box(0.0, 2.0),
    [cp.norm(P, "fro") <= 8, cp.abs(B) <= 8],
)
PAIR, VALUE, COUPLE = {"x": BALL, "y": CLASS}, {"x": BALL, "y": TARGET}, {"u": BALL, "v": BALL}


def hinge(margin: Any) -> Any:
    return dp.huber_hinge(1 - margin, width=0.5)


# Fields of a record, its loss, what is added to a ridge, and constraints.
CASES: dict[str, tuple[dict[str, Any], Any, Any, list[Any]]] = {
    "metric, logistic": (PAIR, lambda x, y: cp.logistic(y * (B - x @ P @ x)), 0.0, []),
    "metric, hinge": (PAIR, lambda x, y: hinge(y * (x @ P @ x - B)), 0.0, []),
    "metric in a ball": (PAIR, lambda x, y: cp.logistic(y * (B - x @ P @ x)), 0.0, BOUNDED),
    "metric with a trace": (PAIR, lambda x, y: cp.logistic(y * (B - x @ P @ x)), 0.01 * cp.trace(P), []),
    "triplets": (COUPLE, lambda u, v: hinge(v @ P @ v - u @ P @ u), 0.0, BOUNDED[:1]),
    "regression, Huber": (VALUE, lambda x, y: cp.huber(y - x @ P @ x, 0.2), 0.0, []),
    "regression, absolute": (VALUE, lambda x, y: cp.abs(y - x @ P @ x), 0.0, []),
    "largest eigenvalue": (VALUE, lambda x, y: cp.huber(y - x @ P @ x, 0.2), 0.02 * cp.lambda_max(P), []),
    "correlations": ({**COUPLE, "y": CLASS}, lambda u, v, y: hinge(4 * y * (u @ P @ v)), 0.0, [cp.diag(P) == 1]),
}


def drawn(fields: dict[str, Any], size: int, seed: int) -> dict[str, Any]:
    """Draw records of which a matrix with one long axis tells the label, the target, or the shorter of two vectors."""
    rng, axes = np.random.default_rng(seed), np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0]
    truth = axes @ np.diag([2.0, 1.0, 0.1, 0.0]) @ axes.T
    x = rng.normal(size=(2, size, D))
    x *= rng.uniform(0.3, 1, (2, size, 1)) / np.linalg.norm(x, axis=2, keepdims=True)
    lengths = np.einsum("kni,ij,knj->kn", x, truth, x)
    if "x" in fields:
        noisy = lengths[0] + 0.1 * rng.normal(size=size)
        told = np.clip(noisy, 0, 2) if fields["y"] is TARGET else np.where(noisy > np.median(noisy), 1, -1)
        return {"x": x[0], "y": told}
    if "y" in fields:
        return {"u": x[0], "v": x[1], "y": np.where(np.einsum("ni,ij,nj->n", x[0], truth, x[1]) > 0, 1, -1)}
    near = np.argsort(lengths, axis=0)[:, :, None]
    u, v = np.take_along_axis(x, near, axis=0)
    return {"u": u, "v": v}


def lost(template: dp.Template, data: dict[str, Any], fits: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return the part of the gain over the best multiple of the identity that each fit loses."""
    problem, found = template.problem(data), list[float]()
    matrix = next(v for v in problem.variables() if v.name() == "P")
    plain = cp.Problem(problem.objective, [*problem.constraints, matrix == cp.Variable() * np.eye(D)])
    most, least = (one.solve(solver_path=["CLARABEL", ("SCS", {"eps": 1e-7})]) for one in (plain, problem))
    for fit in fits:
        for variable in problem.variables():
            variable.save_value(fit[variable.name()])
        found.append((problem.objective.value - least) / (most - least))
    return np.array(found)


def main(arguments: Sequence[str] | None = None) -> None:
    args = chosen(__doc__, arguments, {"cases": some_of(CASES), "--seeds": 8}, seeds=1, cases=["triplets"])
    heading("loss", *(f"n = {n:,}, ε = {epsilon:g}: steps, pure" for n in SIZES for epsilon in EPSILONS))
    for name in args.cases or CASES:
        fields, loss, penalty, constraints = CASES[name]
        free = [P, B] if name.startswith("metric") else [P]
        ridge = sum(5e-5 * cp.sum_squares(variable) for variable in free)
        template, cells = dp.Template(dp.Record(**fields), loss, ridge + penalty, constraints), []
        for size, epsilon in ((size, epsilon) for size in SIZES for epsilon in EPSILONS):
            total = np.zeros(2)
            for seed in range(args.seeds):
                data, ways = drawn(fields, fewer(size), seed), (dp.Privacy(epsilon, 1e-6), dp.Privacy(epsilon))
                total += lost(template, data, [dp.solve(template, data, way).parameters for way in ways])
            cells.append(", ".join(f"{value:.2f}" for value in total / args.seeds))
        row(name, *cells)


if __name__ == "__main__":
    main()
