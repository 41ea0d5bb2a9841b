"""Strong convexity of regularizers: exact for quadratics, a valid lower bound on bounded sets, nothing for affine and norms."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.evaluate import evaluate
from dpconvex.core.record_domains import Ball
from dpconvex.language.record import Record
from dpconvex.language.template import Template

w = cp.Variable(3, name="w")
v = cp.Variable(name="v")
X = cp.Variable((2, 2), PSD=True, name="X")
W = cp.Variable((2, 2), name="W")
A = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
MIX = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 1.0]])


def analysis_of(regularizer: Any, constraints: Any = (), *variables: cp.Variable) -> Analysis:
    """Return the analysis of a template with this regularizer and these variables, w if none are given."""
    seen = variables or (w,)
    record = Record(x=Ball(1))
    template = Template(
        record, lambda x: sum(cp.logistic(cp.sum(z) * x[0]) for z in seen), regularizer, list(constraints)
    )
    return Analysis(LossForm(template))


def observed(analysis: Analysis, size: float = 1.0, draws: int = 300) -> float:
    """Smallest curvature along random lines between points of K, from differences of values."""
    form, rng = analysis.form, np.random.default_rng(0)

    def value(theta: np.ndarray) -> float:
        return float(evaluate(form.template.regularizer, form.space.unpack(theta)))

    least = np.inf
    for _ in range(draws):
        first, second = (form.feasible.project(size * rng.normal(size=form.space.dim)) for _ in range(2))
        gap = float(np.sum((first - second) ** 2))
        ends = [value(first), value(second)]
        if not np.isfinite(ends).all() or gap < 1e-3:
            continue
        middle = value((first + second) / 2)
        least = min(least, 4 * (sum(ends) - 2 * middle) / gap)
    return least


QUADRATICS: dict[str, tuple[Any, tuple[cp.Variable, ...], float]] = {
    "sum of squares": (lambda: 0.5 * cp.sum_squares(w), (w,), 1.0),
    "sum of squares, shifted": (lambda: cp.sum_squares(w - np.arange(3)) + cp.sum(w), (w,), 2.0),
    "sum of squares of a map": (lambda: cp.sum_squares(MIX @ w), (w,), 2 * np.linalg.eigvalsh(MIX.T @ MIX)[0]),
    "over a constant": (lambda: cp.quad_over_lin(w, 4.0), (w,), 0.5),
    "quad_form": (lambda: cp.quad_form(w, A) / 2, (w,), 0.5),
    "squares of entries": (lambda: cp.sum(cp.square(w)), (w,), 2.0),
    "weighted squares": (lambda: cp.sum(cp.multiply(np.array([1.0, 3.0, 0.25]), cp.square(w))), (w,), 0.5),
    "squares along an axis": (lambda: np.array([1.0, 3.0]) @ cp.sum_squares(W, axis=0), (W,), 2.0),
    "square of a norm": (lambda: cp.square(cp.norm(w, 2)) * 3, (w,), 6.0),
    "squares one by one": (lambda: cp.square(w[0]) + 2 * cp.square(w[1]) + cp.square(w[2] - 1) / 4, (w,), 0.5),
    "elastic net": (lambda: 0.1 * cp.norm(w, 1) + cp.sum_squares(w), (w,), 2.0),
    "with other convex terms": (lambda: cp.sum_squares(w) + cp.norm(w) + cp.sum(cp.exp(w)) + cp.huber(w[0]), (w,), 2.0),
    "two variables": (lambda: cp.sum_squares(w) + 0.5 * cp.square(v), (w, v), 1.0),
    "a symmetric matrix": (lambda: 0.25 * cp.sum_squares(X) + cp.trace(X), (X,), 0.5),
    "a matrix": (lambda: cp.sum_squares(W @ np.array([[2.0, 0.0], [0.0, 1.0]])), (W,), 2.0),
    "coupled variables": (lambda: cp.sum_squares(w - v) + cp.square(v), (w, v), 2 * (5 - np.sqrt(21)) / 2),
}


@pytest.mark.parametrize("name", QUADRATICS)
def test_quadratics_are_exact(name):
    build, variables, expected = QUADRATICS[name]
    regularizer = build()
    analysis = analysis_of(regularizer, (), *variables)
    assert analysis.modulus == pytest.approx(expected, rel=1e-9)
    seen = observed(analysis)
    assert analysis.modulus <= seen * (1 + 1e-9)


BOUNDED: dict[str, tuple[Any, list[cp.Constraint], tuple[cp.Variable, ...], float]] = {
    "entropy": (lambda: -cp.sum(cp.entr(w)), [w >= 0, w <= 4], (w,), 0.25),
    "entropy of a ball": (lambda: -cp.sum(cp.entr(w + 1)), [cp.norm(w, 2) <= 1], (w,), 0.5),
    "entropy with weights": (lambda: -np.array([1.0, 2.0, 1.0]) @ cp.entr(w), [w >= 0, w <= 4], (w,), 0.25),
    "entropy with a factor": (lambda: 1 - (0.5 * cp.sum(cp.entr(w)) - w[0]), [w >= 0, w <= 4], (w,), 0.125),
    "logarithms": (lambda: -cp.sum(cp.log(w)), [w >= 0.1, w <= 2], (w,), 0.25),
    "one logarithm": (lambda: -2 * cp.log(v + 1), [v >= 0, v <= 1], (v,), 0.5),
    "powers below 2": (lambda: cp.sum(cp.power(w, 1.5)), [w >= 0, w <= 4], (w,), 0.375),
    "inverses": (lambda: cp.sum(cp.inv_pos(w)), [w >= 0.1, w <= 2], (w,), 0.25),
    "cubes": (lambda: cp.sum(cp.power(w, 3)), [w >= 1, w <= 2], (w,), 6.0),
    "fourth powers away from 0": (lambda: cp.sum(w**4), [w >= 0.5, w <= 2], (w,), 3.0),
    "relative entropy": (lambda: cp.sum(cp.rel_entr(w, 1)), [w >= 0, w <= 4], (w,), 0.25),
    "log det": (lambda: -cp.log_det(X + np.eye(2)), [cp.norm(X, "fro") <= 1], (X,), 1 / (1 + np.sqrt(2)) ** 2),
    "entropy and squares": (lambda: cp.sum_squares(w) - cp.sum(cp.entr(w)), [w >= 0, w <= 1], (w,), 3.0),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_curvature_that_a_bounded_set_leaves(name):
    build, constraints, variables, expected = BOUNDED[name]
    regularizer = build()
    analysis = analysis_of(regularizer, constraints, *variables)
    assert analysis.modulus == pytest.approx(expected, rel=1e-9)
    seen = observed(analysis, size=3.0, draws=20 if name == "log det" else 300)  # K has a slow projection
    assert analysis.modulus <= seen * (1 + 1e-6)


def test_moduli_of_the_blocks():
    analysis = analysis_of(cp.sum_squares(w) + 0.5 * cp.square(v) + cp.sum_squares(X), (), w, v, X)
    blocks = dict(zip(analysis.form.space.blocks, analysis.block_moduli, strict=True))
    assert blocks == pytest.approx({"w": 2.0, "v": 1.0, "X": 2.0})
    assert analysis.strong_convexity(10, added=5.0) == pytest.approx(15.0)
