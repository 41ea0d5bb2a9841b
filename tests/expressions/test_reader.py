"""What a user writes is read once: exact atoms, real constants, the same function in a normal form, and coordinates."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refused import refused

import dpconvex as dp
from dpconvex.expressions.discipline import is_convex
from dpconvex.expressions.evaluate import evaluate
from dpconvex.expressions.from_cvxpy import Reader
from dpconvex.fitting.verify import analyse

UNIT = dp.Record(x=dp.Ball(1))
PAIR = dp.Record(a=dp.Box(-np.ones((2, 1)), np.ones((2, 1))), b=dp.Box(-np.ones((1, 2)), np.ones((1, 2))))
v, one = cp.Variable(2, name="v"), cp.Variable(name="one")


def learner(regularizer, constraints=()):
    """A template whose loss is harmless, so that only its public part matters."""
    return dp.Template(UNIT, lambda x: cp.logistic(x[0] * v[0]), regularizer, list(constraints))


BROADCAST = {
    "maximum of sizes": lambda a, b: cp.norm1(cp.maximum(cp.abs(a * one), cp.abs(b * one))),
    "maximum": lambda a, b: cp.sum(cp.maximum(a * one, b * one)),
    "sum": lambda a, b: cp.sum(cp.logistic(a * one + b * one)),
    "product": lambda a, b: cp.sum(cp.multiply(cp.square(a), cp.logistic(b * one))),
    "relative entropy": lambda a, b: cp.sum(cp.rel_entr(3 + a * one, 3 + b * one)),
    "constant grid": lambda a, b: cp.sum(cp.maximum(a * one, np.array([[0.2, -0.1]]))),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_atoms_that_broadcast_count_every_entry(name):
    """Against the largest slope of a loss of a column and a row that is observed over their corners and some parameters."""
    a, b, steepest, step = cp.Parameter((2, 1)), cp.Parameter((1, 2)), 0.0, 1e-6
    expression = BROADCAST[name](a, b)
    for corner in np.ndindex(2, 2, 2, 2):
        first, second = np.split(2.0 * np.array(corner) - 1.0, 2)
        a.value, b.value = first[:, None], second[None]
        for theta in (-0.999, -0.5, -0.1, 0.1, 0.5, 0.999):
            values = []
            for one.value in (theta - step, theta + step):
                values.append(float(expression.value))
            steepest = max(steepest, abs(values[1] - values[0]) / (2 * step))
    found = analyse(dp.Template(PAIR, BROADCAST[name], cp.square(one), [one <= 1, one >= -1])).gradient_bound
    assert steepest <= found * (1 + 1e-6)
    assert found <= 6 * steepest  # and the bound is of this loss


REFUSED = {
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
def test_what_cvxpy_lets_pass_is_refused_in_every_place(name):
    build, message = REFUSED[name]
    for make in (
        lambda: learner(cp.sum_squares(v) + build()),
        lambda: dp.Template(UNIT, lambda x: cp.square(x @ v[:1]) + build(), cp.sum_squares(v), [cp.norm(v) <= 1]),
        lambda: learner(cp.sum_squares(v), [build() <= 1]),
    ):
        with pytest.raises(dp.NotPrivate, match=message):
            analyse(make())


def test_templates_and_records_cannot_be_changed():
    template, other = learner(100 * cp.sum_squares(v)), learner(0.1 * cp.sum_squares(v))
    for name in ("losses", "regularizer", "constraints", "variables", "record"):
        refused(dp.TemplateError, "cannot be changed", setattr, template, name, getattr(other, name))
    with pytest.raises(dp.TemplateError, match="cannot be changed"):
        template.record.fields = {"x": dp.Ball(1, radius=100.0)}
    for mapping in (template.record.fields, template.record.continuous, template.record.parameters):
        with pytest.raises(TypeError):
            mapping["x"] = dp.Ball(1, radius=100.0)


# What is read is rewritten as the same function, and what is in normal form stays as it was written.

w, u, W = cp.Variable(2, name="w"), cp.Variable(2, name="u"), cp.Variable((2, 3), name="W")
RECORD = dp.Record(x=dp.Ball(2), s=dp.Box(0, 2), t=dp.Box(-1, 1))
x, s, t = (RECORD.parameters[name] for name in "xst")
m, k = x @ w, x @ u + t
lse, logistic = cp.log_sum_exp, cp.logistic
READER = Reader(RECORD.parameters.values())


ATOMS = [logistic, cp.square, lambda z: lse(cp.hstack([z, 0.5])), lambda z: lse(x @ W + z)]
ATOMS += [lambda z: dp.huber_hinge(lse(cp.hstack([z, 0])) + z, 0.5)]
AFFINE = st.sampled_from([m, k, -m, m - k, 2 * m + 1, x @ W[:, 0], w[0], cp.Constant(0.5), t])
TERMS = st.tuples(st.sampled_from(ATOMS), AFFINE, st.sampled_from([0.25, 0.5, 1.0, 3.0]))


@given(st.lists(TERMS, min_size=1, max_size=3), st.lists(AFFINE, max_size=2), st.booleans())
@settings(max_examples=40)
def test_sums_of_anything_keep_their_values(parts, shift, outer):
    total = sum(c * atom(argument) for atom, argument, c in parts) - sum(shift)
    written = cp.logistic(total) + total if outer else total
    found = READER.expression(written, "the loss")
    assert is_convex(found)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for leaf in (w, u, W, x, s, t):
            leaf.value = np.abs(rng.normal(size=leaf.shape)) if leaf is s else 3 * rng.normal(size=leaf.shape)
        leaves = {leaf.name(): leaf.value for leaf in (w, u, W, x, s, t)}
        assert evaluate(found, leaves) == pytest.approx(written.value, rel=1e-11, abs=1e-11)


def test_products_and_quotients_of_variables_keep_their_sign():
    """Losses that are not convex are fitted by clipped steps; minus a product was read as the product, or crashed."""
    w, v = cp.Variable(name="w"), cp.Variable(name="v")
    for loss, written in (
        (lambda x: cp.square(w) - cp.multiply(w, v) * x, "square(w) - w * v * x"),
        (lambda x: -(x / (1 + w)) + cp.square(v), "-x / (1 + w) + square(v)"),
    ):
        assert str(dp.Template(dp.Record(x=dp.Box(0.1, 1)), loss).losses[0]) == written
