"""Splitting a template: its leaves, and what is refused because it is not public, not convex or not there."""

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.affine.wraps import nonneg_wrap

from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.from_cvxpy import read
from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.errors import NotPrivate
from dpconvex.language.record import Record
from dpconvex.language.template import Template

RECORD = Record(x=Ball(2), s=Box(0.0, 1.0), y=Choice([-1, 1]))
w = cp.Variable(2, name="w")
v = cp.Variable(name="v")


def loss(x, s, y):
    return s * cp.logistic(-y * (w @ x))


def test_leaves_are_the_largest_affine_parts():
    x = RECORD.parameters["x"]
    margin = 1 - w @ x
    fields = RECORD.parameters.values()
    expression = read(cp.huber(cp.maximum(margin, 0), 1) + cp.logistic(v) + cp.square(margin) + w[0], fields)
    assert affine_leaves(expression) == [read(part, fields) for part in (margin, v, w[0])]
    assert affine_leaves(read(cp.exp(x), fields)) == []
    assert affine_leaves(read(margin, fields)) == [read(margin, fields)]


# What tests/test_refusals.py has no place for.
REFUSALS = {
    "regularizer mentions a field": (
        lambda: Template(RECORD, loss, RECORD.parameters["s"] * cp.sum_squares(w)),
        "the regularizer mentions a field of the record",
        "s * ",
    ),
    "factor of unknown sign": (
        lambda: Template(RECORD, lambda x, s, y: x[0] * cp.logistic(w @ x)),
        "a factor that can change sign multiplies a curved term",
        "x[0] * logistic(w @ x)",
    ),
    "wrong for one label only": (
        lambda: Template(RECORD, lambda x, s, y: y * cp.logistic(w @ x)),
        "for {'y': -1} is not convex",
        "-1 * logistic(w @ x)",
    ),
    "a sign asserted in the regularizer": (
        lambda: Template(RECORD, loss, cp.square(nonneg_wrap(cp.norm(w) - 5)) + cp.sum_squares(w)),
        "the regularizer is not convex",
        "square(norm(w) - 5)",
    ),
    "definiteness asserted in a constraint": (
        lambda: Template(RECORD, loss, 0, [cp.quad_form(w, cp.psd_wrap(np.diag([1.0, -1.0]))) <= 1]),
        "negative eigenvalue",
        "psd_wrap",
    ),
    "cancelling leaves": (
        lambda: Template(RECORD, lambda x, s, y: cp.square(w @ x - x @ w)),
        "the loss does not change with any variable",
        "w @ x",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_say_what_where_and_what_to_do(case):
    build, reason, where = REFUSALS[case]
    with pytest.raises(NotPrivate) as caught:
        LossForm(build())
    assert reason in caught.value.reason
    assert where in caught.value.expression
    assert caught.value.remedy


def test_a_symbol_of_another_record_is_not_taken_for_a_field_of_the_same_name():
    other = Record(x=Ball(2, radius=100.0))
    with pytest.raises(NotPrivate, match="'x', which is not a field of this record"):
        LossForm(Template(RECORD, lambda x, s, y: cp.logistic(w @ other.parameters["x"])))
