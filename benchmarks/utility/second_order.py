"""Second-order descent for private logistic regression, and the data that it was published with.

A. Ganesh, M. Haghifam, T. Steinke and A. Thakurta, "Faster differentially private convex optimization via second-order
methods", NeurIPS 2023, arXiv:2305.13209.  Double noise (algorithm 3) follows the paper and the public code beside it
(tensorflow/privacy, `research/dp_newton`), with its shares of the budget; of cubic Newton (algorithm 1) there is no public code,
and it is written from the paper.  What is better than published favours them: all Gaussians are composed exactly instead of by
zero-concentrated privacy, descent starts at zero, and the number of steps and the variant are tuned without being paid for.

Rows are features times labels, of length at most 1, so that adding or removing a record moves a sum of gradients by at most 1 and
a sum of Hessians by at most 1/4.  The number of records is public.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks import public_data
from dpconvex.noise.profiles import gaussian_sigma

__all__ = ["TASKS", "Task", "cubic_newton", "double_noise", "loss", "minimiser"]

Array = NDArray[np.float64]

QUADRATIC = 1e-8  # of the published experiments, too
CURVATURE = 0.25  # the largest second derivative of the logistic loss
CHANGE = 1 / (6 * math.sqrt(3))  # and its largest third derivative
GRADIENT_SHARE, TRACE_SHARE, TRACE_FACTOR = 0.7, 0.1, 0.5  # of double noise, as published


class Task(NamedTuple):
    """Training records in the unit ball with labels of 0 and 1."""

    x: Array
    y: NDArray[np.int64]

    @property
    def rows(self) -> Array:
        """Features times labels of -1 and 1."""
        return self.x * (2 * self.y - 1)[:, None]


def loss(rows: Array, w: Array) -> float:
    """Return the mean logistic loss and its quadratic."""
    return float(np.logaddexp(0, -rows @ w).mean() + QUADRATIC / 2 * w @ w)


def gradient(rows: Array, w: Array) -> Array:
    return -(expit(-rows @ w) @ rows) / len(rows) + QUADRATIC * w


def hessian(rows: Array, w: Array, upper: bool = False) -> Array:
    """Return the Hessian, or the curvature of the least quadratic that is above the loss everywhere and touches it at w."""
    score = rows @ w
    half = np.where(np.abs(score) > 1e-9, score, 1e-9) / 2
    curvature = np.tanh(half) / (4 * half) if upper else expit(score) * expit(-score)
    scaled = rows * np.sqrt(curvature)[:, None]
    return scaled.T @ scaled / len(rows)


def minimiser(rows: Array) -> Array:
    """Minimise without privacy: Newton's steps, halved until they help."""
    w = np.zeros(rows.shape[1])
    for _ in range(100):
        slope = gradient(rows, w)
        step = np.linalg.solve(hessian(rows, w) + QUADRATIC * np.eye(len(w)), slope)
        if step @ slope < 1e-12:
            break
        length = 1.0
        while loss(rows, w - length * step) > loss(rows, w) - 0.25 * length * (step @ slope):
            length /= 2
        w = w - length * step
    return w


def double_noise(
    rows: Array, epsilon: float, delta: float, rng: np.random.Generator, *, steps: int, upper: bool, add: bool
) -> Array:
    """Noise on the gradient, then on the direction: small eigenvalues are raised to a floor, or the floor is added to all."""
    n, d = rows.shape
    rho = 0.5 / gaussian_sigma(epsilon, delta, 1.0) ** 2 / steps
    slope, trace = rho * GRADIENT_SHARE, rho * (1 - GRADIENT_SHARE) * TRACE_SHARE
    direction = rho * (1 - GRADIENT_SHARE) * (1 - TRACE_SHARE)
    w = np.zeros(d)
    for _ in range(steps):
        noisy = gradient(rows, w) + rng.normal(size=d) * math.sqrt(0.5 / slope) / n
        matrix = hessian(rows, w, upper)
        size = max(np.trace(matrix) + rng.normal() * math.sqrt(0.5 / trace) * CURVATURE / n, 0.0)
        floor = max((TRACE_FACTOR * size / (n**2 * direction)) ** (1 / 3), 1 / n)
        values, vectors = np.linalg.eigh(matrix)
        changed = np.maximum(values, 0) + floor if add else np.maximum(values, floor)
        apart = n * floor**2 + (CURVATURE if add else -CURVATURE) * floor
        noise = rng.normal(size=d) * math.sqrt(0.5 / direction) * np.linalg.norm(noisy) * CURVATURE / apart
        w = w - vectors @ (vectors.T @ noisy / changed) + noise
    return w


def cubic_newton(rows: Array, epsilon: float, delta: float, rng: np.random.Generator, *, steps: int) -> Array:
    """Noise on gradients and Hessians, half of the guarantee each; every step minimises their cubic upper bound."""
    n, d = rows.shape
    sigma = gaussian_sigma(epsilon, delta, math.sqrt(2 * steps)) / n
    w = np.zeros(d)
    for _ in range(steps):
        noisy = gradient(rows, w) + sigma * rng.normal(size=d)
        drawn = np.triu(rng.normal(size=(d, d))) * sigma * CURVATURE
        values, vectors = np.linalg.eigh(hessian(rows, w) + drawn + np.triu(drawn, 1).T)
        values, along = np.maximum(values, 0) + QUADRATIC, vectors.T @ noisy

        def step(length: float, values: Array = values, along: Array = along) -> Array:
            return along / (values + CHANGE * length / 2)

        longest = math.sqrt(2 * np.linalg.norm(noisy) / CHANGE)
        w = w - vectors @ step(brentq(lambda length: np.linalg.norm(step(length)) - length, 1e-12, 2 * longest))
    return w


def synthetic(folder: Path | None) -> Task:
    """Directions that are uniform on the sphere, labels by a logistic law: 10,000 records, 100 features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, 100))
    x /= (1 + 1e-12) * np.linalg.norm(x, axis=1)[:, None]
    return Task(x, (rng.random(len(x)) < expit(x.sum(axis=1))).astype(int))


def census(folder: Path | None) -> Task:
    """Adult as a1a has it: numbers in five bins of equal counts, all columns standardised and a constant, rows of length 1.

    Bins, means and deviations are read off the data, as published: the same for everybody, and not private.
    """
    table = public_data.adult()
    numeric, start = table.numeric[:30_162], table.numeric.shape[1]
    cuts = np.quantile(numeric, [0.2, 0.4, 0.6, 0.8], axis=0)
    columns = [np.eye(5)[(column[:, None] > cut).sum(axis=1)] for column, cut in zip(numeric.T, cuts.T, strict=True)]
    x = np.hstack([*columns, np.asarray(table.design().todense())[:30_162, start:]])
    spread = x.std(axis=0)
    x = np.hstack([np.ones((len(x), 1)), ((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1))[:, spread > 0]])
    return Task(x / ((1 + 1e-12) * np.linalg.norm(x, axis=1)[:, None]), (table.y[:30_162] > 0).astype(int))


def images(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the files of MNIST or Fashion-MNIST: `part` is "train" or "t10k"."""

    def read(name: str, start: int) -> NDArray[np.uint8]:
        file = next(folder.rglob(f"{part}-{name}-ubyte*"))
        content = file.read_bytes()
        return np.frombuffer(gzip.decompress(content) if file.suffix == ".gz" else content, np.uint8, offset=start)

    return read("images-idx3", 16).reshape(-1, 784), read("labels-idx1", 8)


def fashion(folder: Path | None, part: str = "train") -> Task | None:
    """T-shirts against dresses, pixels in [-1, 1], rows of length 1."""
    if folder is None:
        return None
    pixels, labels = images(folder, part)
    kept = np.isin(labels, [0, 3])
    x = pixels[kept] / 127.5 - 1
    return Task(x / ((1 + 1e-12) * np.linalg.norm(x, axis=1)[:, None]), (labels[kept] == 3).astype(int))


TASKS: dict[str, Callable[[Path | None], Task | None]] = {"synthetic": synthetic, "a1a": census, "fashion": fashion}
