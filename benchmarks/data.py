"""Synthetic batches, and the public data sets where they are found."""

from typing import Any

import numpy as np

import dpconvex as dp
from benchmarks import fewer
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.optim.conic import ConicSolver
from dpconvex.optim.problem import Problem

__all__ = ["clouds", "halves", "problem_of", "scaled_letters"]


def halves(n: int, d: int, seed: int = 0) -> dict[str, Any]:
    """Logistic data on the unit sphere: x of shape (n, d), y in {-1, 1}."""
    n = fewer(n)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1)[:, None]
    return {"x": x, "y": np.where(3 * x @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1, -1)}


def clouds(n: int, d: int, classes: int, seed: int = 0) -> dict[str, Any]:
    """Overlapping clouds in the unit ball, one for each class."""
    n = fewer(n)
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, d)) / (2 * np.sqrt(d))
    y = rng.integers(0, classes, size=n)
    x = means[y] + rng.normal(size=(n, d)) / (2 * np.sqrt(d))
    return {"x": x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None], "y": y}


def scaled_letters(table: Any) -> dict[str, Any]:
    """Letter Recognition in the unit ball, by its public bounds."""
    x = (table.numeric - table.lower) / (table.upper - table.lower) * 2 - 1
    return {"x": x / np.sqrt(x.shape[1]), "y": table.y}


def distorted_digits(n: int, seed: int = 0) -> dict[str, Any]:
    """Handwritten digits of 28 x 28 pixels, each divided by its norm: scikit-learn's, turned, sheared, scaled and moved."""
    n = fewer(n)
    from scipy.ndimage import affine_transform
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    images, chosen = images.reshape(-1, 8, 8) / 16, rng.integers(0, len(labels), n)
    x = np.empty((n, 784))
    for row, image in zip(x, images[chosen], strict=True):
        angle, size, shear = rng.uniform(-0.25, 0.25), rng.uniform(0.8, 1.2), rng.uniform(-0.3, 0.3)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = turn @ np.array([[1, shear], [0, 1]]) * (8 / 20) / size
        start = 3.5 - matrix @ (13.5 + rng.uniform(-1.5, 1.5, 2))
        row[:] = affine_transform(image, matrix, start, output_shape=(28, 28), order=1).ravel()
    x = np.clip(1.6 * x - 0.3, 0, 1)
    return {"x": x / ((1 + 1e-12) * np.linalg.norm(x, axis=1)[:, None]), "y": labels[chosen]}


def problem_of(template: dp.Template, data: dict[str, Any], noise: float = 0.0, seed: int = 0) -> Problem:
    """The program of a template in sum form, with a random linear term of a given norm per record."""
    analysis = analyse(template)
    batch = template.record.validate(data)
    engine = DataEngine(analysis, batch, batch.size, None)
    linear = None
    if noise:
        direction = np.random.default_rng(seed).normal(size=analysis.form.space.dim)
        linear = noise * batch.size * direction / np.linalg.norm(direction)
    return engine.problem(batch.size * analysis.modulus, linear, 0.0)


def conic() -> ConicSolver:
    """The reference backend without polishing: what the solver itself answers."""
    return ConicSolver("CLARABEL", polish_steps=0)
