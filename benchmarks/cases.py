"""The measured cases, one function each; every function yields rows of the table."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

import dpconvex as dp
from benchmarks import fewer
from benchmarks.data import clouds, conic, halves, problem_of, scaled_letters
from benchmarks.passes import all_passes
from benchmarks.timing import Row, compare, seconds
from dpconvex.optim import backend as backends
from dpconvex.optim.problem import Problem
from dpconvex.sums.batch_loss import BatchedLoss

__all__ = ["CASES", "evaluation"]

Case = Callable[[int], Iterator[Row]]


def evaluation(problem: Problem) -> Callable[[], Any]:
    """One objective and gradient, at a point that is not special."""
    theta = np.random.default_rng(1).normal(size=problem.space.dim) / np.sqrt(problem.space.dim)
    copy = replace(problem)
    vars(copy)["loss"] = BatchedLoss(problem.template, problem.space, problem.batch)
    return lambda: copy.value_and_gradient(theta)


def summed(**options: Any) -> dp.Template:
    """Large-margin Gaussians as in the papers, with a regularization that does not depend on the number of classes."""
    return dp.load("large_margin_gaussian", competitors="summed", **options)


def against_the_conic_solver(repetitions: int) -> Iterator[Row]:
    """Compare a fit with Clarabel through CVXPY on the same program."""
    name = "large-margin Gaussians, n=2,000 d=10 C=4"
    template = summed(features=10, classes=4, regularization=0.01)
    problem = problem_of(template, clouds(2000, 10, 4))
    reference = conic()
    times = compare(
        {"ours": lambda: backends.solve(problem, None, 1e-8), "clarabel": lambda: reference.point(problem)},
        min(repetitions, 3),
    )
    solution = backends.solve(problem, None, 1e-8)
    apart = float(np.linalg.norm(reference.point(problem) - solution.theta))
    note = f"{times['clarabel'] / times['ours']:.0f} times faster; Clarabel ends {apart:.1g} away"
    measured = "time to a certified 1e-8; Clarabel to its own end"
    yield Row(name, measured, times["ours"], times["clarabel"], most=1 / 50, note=note)
    yield Row(name, "certified distance", solution.distance_bound, unit="", most=1e-8)


def weakly_regularized(repetitions: int) -> Iterator[Row]:
    """Count evaluations, for several strengths of the regularization."""
    for modulus, goal in ((0.02, 150), (1e-3, None), (1e-4, None)):
        name = f"large-margin Gaussians, n=20,000 d=16 C=10, mu/n={modulus:g}"
        template = summed(features=16, classes=10, regularization=modulus / 2)
        problem = problem_of(template, clouds(20000, 16, 10), noise=1e-3)
        tolerance = 1e-8 if goal else 1e-10 / modulus  # as far as double precision certifies
        solution = backends.solve(problem, None, tolerance)
        times = compare(
            {"fit": lambda p=problem, t=tolerance: backends.solve(p, None, t), "one": evaluation(problem)}, repetitions
        )
        yield Row(name, f"evaluations to {tolerance:g}", solution.evaluations, unit="", most=goal)
        spent = solution.evaluations * times["one"]
        yield Row(name, "fit against evaluations times one evaluation", times["fit"], spent, most=1.5)


def matrix_products(repetitions: int) -> Iterator[Row]:
    """Compare one evaluation with the two matrix products that quadratic forms need."""
    n, d, classes = 60000, 64, 10
    template = summed(features=d, classes=classes, regularization=0.01)
    data = clouds(n, d, classes)
    z = np.column_stack([data["x"], np.ones(len(data["x"]))]) / np.sqrt(2)
    rng = np.random.default_rng(0)
    forms, back = rng.normal(size=(d + 1, classes * (d + 1))), np.empty((d + 1, classes * (d + 1)))
    product = z @ forms
    problem = problem_of(template, data)

    def products() -> None:
        np.matmul(z, forms, out=product)
        np.matmul(z.T, product, out=back)

    times = compare({"ours": evaluation(problem), "limit": products}, repetitions)
    name = "large-margin Gaussians, n=60,000 D=65 C=10"
    measured = "one evaluation against Z Phi and Z' (.)"
    yield Row(name, measured, times["ours"], times["limit"], most=2)


def memory_bandwidth(repetitions: int) -> Iterator[Row]:
    """Compare one evaluation with reading the data."""
    n, d = 1_000_000, 50
    data = halves(n, d)
    problem = problem_of(dp.load("logistic_regression", features=d, regularization=1e-3), data)
    x, w = data["x"], np.ones(d)
    times = compare({"ours": evaluation(problem), "read": lambda: x.sum(), "both": lambda: (x @ w) @ x}, repetitions)
    name = "logistic regression, n=1,000,000 d=50"
    yield Row(name, "one evaluation against reading x once", times["ours"], times["read"], most=2)
    yield Row(name, "one evaluation against x w and x' r", times["ours"], times["both"])


def logistic_rows(
    name: str, data: dict[str, Any], radius: float, level: float, goal: float, repetitions: int
) -> Iterator[Row]:
    """Compare a fit with scikit-learn's, to the gradient norm that it reaches."""
    from sklearn.linear_model import LogisticRegression

    n, d = data["x"].shape
    x, y = data["x"], data["y"]

    def theirs() -> Any:
        return LogisticRegression(C=1 / (n * level), fit_intercept=False, tol=1e-7, max_iter=1000).fit(x, y)

    w = theirs().coef_.ravel()
    slope = x.T @ (-y / (1 + np.exp(y * (x @ w)))) + n * level * w
    tolerance = float(np.linalg.norm(slope)) / (n * level)
    template = dp.load("logistic_regression", features=d, regularization=level, radius=radius)
    privacy = dp.Privacy(1.0)
    cover = dp.ResidualNoise(tolerance=1e-8)
    first = seconds(lambda: dp.solve_without_privacy(template, data, tolerance=tolerance))
    times = compare(
        {"ours": lambda: dp.solve_without_privacy(template, data, tolerance=tolerance), "sklearn": theirs}, repetitions
    )
    # In turns of their own: threads that scikit-learn leaves waiting keep a processor busy for some milliseconds.
    times |= compare(
        {
            "private": lambda: dp.solve(template, data, privacy, residual_noise=cover),
            "same": lambda: dp.solve_without_privacy(template, data, tolerance=1e-8),
        },
        repetitions,
    )
    note = f"first call, {first:.2f} s"
    measured = "fit against scikit-learn's lbfgs, same gradient norm"
    yield Row(name, measured, times["ours"], times["sklearn"], most=goal, note=note)
    yield Row(name, "private fit against non-private, both to 1e-8", times["private"], times["same"], most=1.3)


def dense_logistic(repetitions: int) -> Iterator[Row]:
    """Logistic regression on dense data."""
    yield from logistic_rows("logistic regression, n=50,000 d=100", halves(50000, 100), 1.0, 1e-3, 1.0, repetitions)


def sparse_logistic(repetitions: int) -> Iterator[Row]:
    """Logistic regression on one-hot data, sparse."""
    from benchmarks.public_data import adult

    table = adult()
    x = sp.csr_matrix(table.design())
    yield from logistic_rows(
        "Adult, CSR, 45,222 x 105", {"x": x, "y": table.y}, float(np.sqrt(14)), 1e-3, 1.2, repetitions
    )


def letters(repetitions: int) -> Iterator[Row]:
    """Private large-margin Gaussians with 26 classes, everything included."""
    from benchmarks.public_data import letter

    table = letter()
    data = scaled_letters(table)
    labels = tuple(sorted(set(data["y"].tolist())))
    template = dp.load("large_margin_gaussian", features=16, classes=26, labels=labels)
    privacy, counts = dp.Privacy(3.0), []

    class Counting:
        def solve(self, problem: Problem, tolerance: float) -> Any:
            solution = backends.solve(problem, None, tolerance)
            counts.append((solution.evaluations, solution.distance_bound))
            return solution

    proof = seconds(lambda: dp.verify(template, privacy, len(table.y)))
    fit = seconds(lambda: dp.solve(template, data, privacy, backend=Counting()))
    release = dp.solve(template, data, privacy, backend=Counting())
    again = seconds(lambda: dp.solve(template, data, privacy, backend=Counting()))
    error = float(np.mean(release.predict(data["x"]) != data["y"]))
    name = "Letter, 20,000 x 16, 26 classes, private, epsilon=3"
    note = f"{counts[0][0]:.3g} evaluations, certified to {counts[0][1]:.0e}, training error {error:.2f}"
    yield Row(name, "proof and first fit", proof + fit, most=60, note=note)
    yield Row(name, "proof", proof, note=f"the second fit, of another draw, takes {again:.1f} s")


MAPPED = """
import resource, sys, time
import numpy as np
import dpconvex as dp
folder = sys.argv[1]
x = np.load(folder + "/x.npy", mmap_mode="r")
y = np.load(folder + "/y.npy", mmap_mode="r")
template = dp.load("logistic_regression", features=x.shape[1], regularization=1e-3)
start = time.perf_counter()
dp.solve(template, {"x": x, "y": y}, dp.Privacy(1.0))
taken = time.perf_counter() - start
try:  # what `getrusage` says includes the process that started this one
    with open("/proc/self/status") as status:
        peak = next(float(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(taken, peak / 2**20)
"""


def memory_mapped(repetitions: int) -> Iterator[Row]:
    """Measure the peak memory of a fit to a memory-mapped file (pages of the file that the system keeps are counted)."""
    n, d = fewer(5_000_000), 20
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        x = np.lib.format.open_memmap(f"{folder}/x.npy", "w+", shape=(n, d))
        y, w = np.empty(n, dtype=np.int8), rng.normal(size=d)
        for start in range(0, n, 250_000):
            rows = rng.normal(size=(min(250_000, n - start), d))
            rows /= np.linalg.norm(rows, axis=1)[:, None]
            x[start : start + len(rows)] = rows
            y[start : start + len(rows)] = np.where(3 * rows @ w + rng.logistic(size=len(rows)) > 0, 1, -1)
        x.flush()
        del x
        np.save(f"{folder}/y.npy", y)
        out = subprocess.run([sys.executable, "-c", MAPPED, folder], check=True, capture_output=True, text=True).stdout
    time, peak = (float(part) for part in out.split())
    name = "logistic regression, n=5,000,000 d=20, memory-mapped"
    yield Row(name, "peak memory of a private fit", peak, unit="GB", most=2, note=f"{time:.1f} s")


COLD = """
import time
start = time.process_time()
import dpconvex as dp
imported = time.process_time() - start
start = time.perf_counter()
import numpy as np
from dpconvex.datasets import breast_cancer, unit_ball
X, labels = breast_cancer()
X = unit_ball(X, lower=1, upper=10)
template = dp.load("large_margin_gaussian", features=9)
dp.solve(template, {"x": X, "y": (labels == "malignant").astype(int)}, dp.Privacy(1.0))
print(imported, time.perf_counter() - start)
"""


def cold_start(repetitions: int) -> Iterator[Row]:
    """Import, and a first small fit, in fresh processes."""
    found = []
    for _ in range(min(3, repetitions)):
        out = subprocess.run([sys.executable, "-c", COLD], check=True, capture_output=True, text=True).stdout
        found.append([float(part) for part in out.split()])
    imported, first = np.median(found, axis=0)
    yield Row("cold start", "import dpconvex (CPU time)", imported, most=1.5)
    yield Row("cold start", "first small fit, imports included", first, most=5)


def demo_sweep(repetitions: int) -> Iterator[Row]:
    """The demonstration's sweep: six values of epsilon, ten draws each."""
    from dpconvex.datasets import breast_cancer, unit_ball

    x, labels = breast_cancer()
    data = {"x": unit_ball(x, lower=1, upper=10), "y": (labels == "malignant").astype(int)}
    template = dp.load("large_margin_gaussian", features=9)

    def sweep() -> None:
        for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
            for _ in range(min(10, 2 * repetitions)):
                dp.solve(template, data, dp.Privacy(epsilon))

    taken = seconds(sweep)
    yield Row("Breast Cancer, 6 epsilons x 10 draws", "whole sweep", taken, most=30)


CASES: dict[str, Case] = {
    "cold": cold_start,
    "conic": against_the_conic_solver,
    "evaluations": weakly_regularized,
    "products": matrix_products,
    "bandwidth": memory_bandwidth,
    "dense": dense_logistic,
    "sparse": sparse_logistic,
    "letters": letters,
    "passes": all_passes,
    "mapped": memory_mapped,
    "sweep": demo_sweep,
}
