"""Projections: closed forms against a pass over the records, and solvers' second projection against their first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import cvxpy as cp
import numpy as np

from benchmarks.timing import Row, compare
from dpconvex.core.from_cvxpy import Reader, variable_of
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.feasible_set import FeasibleSet, feasible_set

__all__ = ["closed_forms", "solvers"]

Declared = dict[str, tuple[list[cp.Variable], list[cp.Constraint]]]

# Parameters; records of the pass; sides of matrices with about as many entries.
D, N, SIDE, ACROSS = 1000, 2000, 44, 32


def closed() -> Declared:
    """One set of every kind that has a projection in closed form."""
    rng = np.random.default_rng(0)
    w, t, prices = cp.Variable(D, name="w"), cp.Variable(name="t"), np.linspace(1, 2, D)
    p, m = cp.Variable((SIDE, SIDE), PSD=True, name="P"), cp.Variable((ACROSS, ACROSS), name="M")
    s = cp.Variable((SIDE, SIDE), symmetric=True, name="S")
    box = [w >= 0, w <= 0.01]
    return {
        "bounds": ([w], box),
        "ball": ([w], [cp.norm(w) <= 1]),
        "half-space": ([w], [prices @ w <= 1]),
        "ten equations": ([w], [rng.normal(size=(10, D)) @ w == 1]),
        "simplex": ([w], [w >= 0, cp.sum(w) == 1]),
        "l1 ball": ([w], [cp.norm1(w) <= 1]),
        "second-order cone": ([w, t], [cp.norm(w) <= t]),
        "order": ([w], [cp.diff(w) >= 0]),
        "order in bounds": ([w], [cp.diff(w) >= 0, w >= 0, w <= 1]),
        "box and budget": ([w], [*box, prices @ w == 1]),
        "box and ball": ([w], [*box, cp.norm(w - 0.003) <= 0.1]),
        "ball and half-space": ([w], [cp.norm(w) <= 1, prices @ w <= -0.3]),
        "two balls": ([w], [cp.norm(w) <= 1, cp.norm(w - 0.03) <= 1]),
        "ellipsoid": ([w], [cp.norm(rng.normal(size=(20, D)) @ w) <= 1]),
        "tied numbers": ([w], [w[: D // 2] == w[D // 2 :], cp.norm(w[: D // 2]) <= 1]),
        "positive semidefinite matrices": ([p], []),
        "bounded trace": ([p], [cp.trace(p) <= 1]),
        "symmetric nuclear ball": ([s], [cp.normNuc(s) <= 1]),
        "nuclear ball": ([m], [cp.normNuc(m) <= 1]),
        "spectral ball": ([m], [cp.sigma_max(m) <= 1]),
    }


def searched() -> Declared:
    """Sets that a solver projects on: polyhedra and intersections."""
    rng = np.random.default_rng(1)
    w, s = cp.Variable(200, name="w"), cp.Variable((12, 12), PSD=True, name="P")
    rows, tall = rng.normal(size=(80, 200)) / np.sqrt(200), rng.normal(size=(200, 200)) / np.sqrt(200)
    return {
        "80 half-spaces in a box, d=200": ([w], [rows @ w <= 0.1, cp.abs(w) <= 0.5]),
        "convex sequence, d=200": ([w], [cp.diff(w, k=2) >= 0]),
        "correlations, 12 x 12": ([s], [cp.diag(s) == 1]),
        "ellipsoid and box, d=200": ([w], [cp.norm(tall @ w) <= 3, cp.abs(w) <= 0.5]),
    }


def read(variables: list[cp.Variable], constraints: list[cp.Constraint]) -> FeasibleSet:
    """Return the set that constraints declare."""
    reader = Reader([])
    space = Space([variable_of(variable) for variable in variables])
    return feasible_set(space, [reader.constraint(constraint) for constraint in constraints])


def closed_forms(repetitions: int) -> Iterator[Row]:
    """Compare projections with one pass over records: two products with a matrix of 2,000 x 1,000 numbers."""
    rng = np.random.default_rng(2)
    data, direction = rng.normal(size=(N, D)), rng.normal(size=D)
    for name, declared in closed().items():
        feasible = read(*declared)
        x = rng.normal(size=feasible.space.dim)
        calls = {"pass": lambda: data.T @ (data @ direction), "ours": lambda f=feasible, x=x: f.project(x)}
        times = compare(calls, max(repetitions, 21))
        ratio = times["ours"] / times["pass"]
        yield Row(
            f"{name}, d={feasible.space.dim:,}",
            "projection; a pass over 2,000 records of 1,000 features",
            1e3 * times["ours"],
            1e3 * times["pass"],
            "ms",
            "at most 3",
            ratio <= 3,
        )


def solvers(repetitions: int) -> Iterator[Row]:
    """Compare a solver's projection of a point near the last one with its first."""
    rng = np.random.default_rng(3)
    for name, declared in searched().items():
        feasible = read(*declared)
        x = rng.normal(size=feasible.space.dim)
        first, second = [], []
        for _ in range(max(repetitions, 3)):
            fresh = feasible.apart()
            near = x + 1e-6 * rng.normal(size=len(x))
            for found, point in ((first, x), (second, near)):
                start = time.perf_counter()
                fresh.project(point)
                found.append(time.perf_counter() - start)
        value, reference = median(second), median(first)
        yield Row(
            name,
            "second projection, 1e-6 from the first; the first",
            1e3 * value,
            1e3 * reference,
            "ms",
            "at most 0.2",
            value <= reference / 5,
        )
