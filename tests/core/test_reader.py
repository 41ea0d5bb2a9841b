"""What a user writes is read once: exact atoms, real constants, shapes of one size, and nothing that changes afterwards."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.core.evaluate import evaluate
from dpconvex.core.from_cvxpy import Reader
from dpconvex.release.verify import analyse

UNIT = dp.Record(x=dp.Ball(1))
PAIR = dp.Record(a=dp.Box(-np.ones((2, 1)), np.ones((2, 1))), b=dp.Box(-np.ones((1, 2)), np.ones((1, 2))))
w = cp.Variable(name="w")
v = cp.Variable(2, name="v")
X = cp.Variable((2, 2), name="X")
INTERVAL = [w <= 1, w >= -1]


def learner(regularizer: Any, constraints: Any = (), variable: cp.Variable = v) -> dp.Template:
    """Return a template whose loss is harmless, so that only its public part matters."""
    first = variable if variable.ndim == 0 else cp.vec(variable, order="F")[0]
    return dp.Template(UNIT, lambda x: cp.logistic(x[0] * first), regularizer, list(constraints))


def modulus(regularizer: Any, constraints: Any = (), variable: cp.Variable = v) -> float:
    return analyse(learner(regularizer, constraints, variable)).modulus


def of_pairs(loss: Callable[..., Any]) -> Analysis:
    return analyse(dp.Template(PAIR, loss, cp.square(w), INTERVAL))


def steepest(loss: Callable[..., Any]) -> float:
    """Largest observed slope of a loss of a column and a row, over their corners and some parameters."""
    best, step = 0.0, 1e-6
    a, b = cp.Parameter((2, 1)), cp.Parameter((1, 2))
    expression = loss(a, b)
    for corner in np.ndindex(2, 2, 2, 2):
        fields = 2.0 * np.array(corner) - 1.0
        for theta in (-0.999, -0.5, -0.1, 0.1, 0.5, 0.999):
            a.value, b.value = fields[:2].reshape(2, 1), fields[2:].reshape(1, 2)
            values = []
            for w.value in (theta - step, theta + step):
                values.append(float(expression.value))
            best = max(best, abs(values[1] - values[0]) / (2 * step))
    return best


BROADCAST: dict[str, Callable[..., Any]] = {
    "maximum of sizes": lambda a, b: cp.norm1(cp.maximum(cp.abs(a * w), cp.abs(b * w))),
    "maximum": lambda a, b: cp.sum(cp.maximum(a * w, b * w)),
    "sum": lambda a, b: cp.sum(cp.logistic(a * w + b * w)),
    "product": lambda a, b: cp.sum(cp.multiply(cp.square(a), cp.logistic(b * w))),
    "relative entropy": lambda a, b: cp.sum(cp.rel_entr(3 + a * w, 3 + b * w)),
    "constant grid": lambda a, b: cp.sum(cp.maximum(a * w, np.array([[0.2, -0.1]]))),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_atoms_that_broadcast_count_every_entry(name: str) -> None:
    found, seen = of_pairs(BROADCAST[name]).gradient_bound, steepest(BROADCAST[name])
    assert seen <= found * (1 + 1e-6)
    assert found <= 6 * seen  # and the bound is of this loss


class SquareOfLogarithm(cp.log):
    """A user's subclass: another function under the rules of its parent."""


def test_a_subclass_is_not_its_parent() -> None:
    with pytest.raises(dp.MissingRule, match="SquareOfLogarithm"):
        learner(cp.sum_squares(v) - cp.sum(SquareOfLogarithm(v)), [v <= 3])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "negative by less than an absolute tolerance": (lambda: 2e10 * cp.quad_form(v, -5e-11 * np.eye(2)), "convex"),
    "of both signs": (lambda: 2e10 * cp.quad_form(v, np.diag([1.0, -5e-11])), "negative eigenvalue"),
    "asserted": (lambda: cp.quad_form(v, np.diag([1.0, -1.0]), assume_PSD=True), "negative eigenvalue"),
    "said to be PSD": (lambda: cp.quad_form(v, cp.psd_wrap(np.diag([1.0, -1.0]))), "negative eigenvalue"),
    "divided by a negative expression": (lambda: -2 * cp.quad_over_lin(v, 1e-300), "convex"),
    "imaginary part": (lambda: cp.sum_squares(cp.real(np.array([1.0, 99.0j]) @ v)), "complex"),
    "norm": (lambda: cp.norm(np.fft.fft(np.eye(2)) @ np.diag([1.0, 1e-9j]) @ v), "complex"),
    "an imaginary part that CVXPY ignores": (lambda: cp.square(cp.real((1.0 + 1e-6j) * v[0])), "complex"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cvxpy_lets_pass_is_refused_in_every_place(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(dp.NotPrivate, match=message):
        modulus(cp.sum_squares(v) + build())
    with pytest.raises(dp.NotPrivate, match=message):
        analyse(dp.Template(UNIT, lambda x: cp.square(x @ v[:1]) + build(), cp.sum_squares(v), [cp.norm(v) <= 1]))
    with pytest.raises(dp.NotPrivate, match=message):
        analyse(learner(cp.sum_squares(v), [build() <= 1]))


def test_a_public_parameter_is_a_number() -> None:
    strength = cp.Parameter(nonneg=True, name="strength", value=3.0)
    width = cp.Parameter(nonneg=True, name="width", value=0.5)
    power = cp.Parameter(name="power", value=2)
    template = dp.Template(
        UNIT,
        lambda x: strength * cp.huber(x[0] * v[0], width),
        strength * cp.sum_squares(v) + cp.power(v[0], power),
        [v <= strength],
    )
    found = analyse(template)
    assert found.modulus == pytest.approx(6.0)
    assert found.gradient_bound == pytest.approx(3.0)
    assert found.form.feasible.upper.tolist() == [3.0, 3.0]
    strength.value = width.value = 1e-6  # too late
    fresh = Analysis(type(found.form)(template))
    assert (fresh.modulus, fresh.gradient_bound) == (found.modulus, found.gradient_bound)


def test_a_template_stays_what_it_was() -> None:
    matrix, cap, lower = np.eye(2), np.ones(2), np.zeros(2)
    u = cp.Variable(2, name="u", bounds=[lower, None])
    template = dp.Template(UNIT, lambda x: cp.logistic(x[0] * u[0]), cp.sum_squares(matrix @ u), [u <= cap])
    matrix *= 1e-3
    cap *= 1e3
    lower -= 1e3
    u.attributes["bounds"] = None
    found = analyse(template)
    assert found.modulus == pytest.approx(2.0)
    assert (found.form.feasible.lower.tolist(), found.form.feasible.upper.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_sets_that_are_not_convex_are_refused() -> None:
    with pytest.raises(dp.NotPrivate, match="FiniteSet"):
        learner(cp.sum_squares(v), [cp.constraints.FiniteSet(v[0], [-1.0, 0.5, 2.0])])


@pytest.mark.parametrize("name", ["losses", "regularizer", "constraints", "variables", "record"])
def test_templates_and_records_cannot_be_changed(name: str) -> None:
    template = learner(100 * cp.sum_squares(v))
    with pytest.raises(dp.TemplateError, match="cannot be changed"):
        setattr(template, name, getattr(learner(0.1 * cp.sum_squares(v)), name))
    with pytest.raises(dp.TemplateError, match="cannot be changed"):
        template.record.fields = {"x": dp.Ball(1, radius=100.0)}  # type: ignore[misc]
    for mapping in (template.record.fields, template.record.continuous, template.record.parameters):
        with pytest.raises(TypeError):
            mapping["x"] = dp.Ball(1, radius=100.0)  # type: ignore[index]


A, B = np.arange(6.0).reshape(2, 3) - 2, np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]])
# Of a scalar, a vector of three, a matrix of 2 x 3, a square one of 3 x 3.
VALUES: dict[str, Callable[..., Any]] = {
    "sparse": lambda s, v, M, S: cp.Constant(sp.csc_array(A)) @ v,
    "index": lambda s, v, M, S: cp.hstack([M[0, 1], M[1, ::-1], v[1:], v[-1], S[:, 0]]),
    "fancy index": lambda s, v, M, S: cp.hstack([v[[2, 0]], M[np.array([True, False]), 1]]),
    "log": lambda s, v, M, S: cp.log(cp.square(v) + 1) + cp.log1p(cp.square(v)),
    "power": lambda s, v, M, S: cp.power(v, 2) + cp.power(cp.abs(v), 1.5) + cp.power(v, 4) + cp.power(cp.abs(v), 3),
    "roots": lambda s, v, M, S: cp.sqrt(cp.abs(v)) + cp.inv_pos(cp.abs(v) + 1) + cp.power(v, 1) + cp.power(v, 0),
    "kl_div": lambda s, v, M, S: cp.kl_div(cp.abs(v), 2.0) + cp.rel_entr(cp.abs(s), cp.abs(v)),
    "max": lambda s, v, M, S: cp.max(M) + cp.min(M, axis=0) + cp.max(v),
    "sum_squares": lambda s, v, M, S: cp.sum_squares(M) + cp.quad_over_lin(v, cp.abs(s) + 1),
    "quad_form": lambda s, v, M, S: cp.quad_form(v, B) - cp.quad_form(v, np.eye(3)),
    "constants": lambda s, v, M, S: v * (cp.sum_squares(np.ones(3)) + cp.exp(0.0)) + cp.max(np.arange(3.0)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_cvxpy(name: str) -> None:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"s": (), "v": (3,), "M": (2, 3), "S": (3, 3)}
    leaves = [cp.Variable(shape, name=key) for key, shape in shapes.items()]
    root = VALUES[name](*leaves)
    for leaf in leaves:
        value = rng.normal(size=leaf.shape)
        leaf.value = value + value.T if leaf.name() == "S" else value
    read = Reader([]).expression(root, "the expression")
    found = evaluate(read, {leaf.name(): leaf.value for leaf in leaves})
    assert found.shape == root.shape
    np.testing.assert_allclose(found, np.reshape(root.value, root.shape), rtol=1e-9, atol=1e-12)
