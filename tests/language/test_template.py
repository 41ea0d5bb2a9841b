"""Declaring a learner: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import cvxpy as cp
import pytest

from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.errors import TemplateError
from dpconvex.language.record import Record
from dpconvex.language.template import Template

RECORD = Record(x=Ball(2), y=Choice(["no", "yes"]), weight=Box(0.0, 1.0), group=Choice([0, 1, 2]))
w = cp.Variable(2, name="w")
b = cp.Variable(name="b")


def loss(x, y, weight, group):
    return weight * cp.logistic((1 if y == "yes" else -1) * (x @ w) + group * b)


def test_the_loss_is_called_once_for_every_combination():
    calls = []

    def recorded(**fields):
        calls.append((fields["y"], fields["group"]))
        return loss(**fields)

    template = Template(RECORD, recorded)
    assert calls == [(c["y"], c["group"]) for c in RECORD.combinations]
    assert len(template.losses) == 6
    assert all(expression.is_scalar for expression in template.losses)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"record": {"x": Ball(2)}}, "record must be a Record"),
        ({"loss": 3}, "loss must be a function"),
        ({"loss": lambda **fields: w}, "must be a scalar, a CVXPY expression, but it has shape"),
        ({"loss": lambda **fields: "logistic"}, "must be a scalar, a CVXPY expression|is not a CVXPY expression"),
        ({"loss": lambda **fields: None}, "is None; does the function return its expression"),
        ({"loss": lambda x, y: cp.sum(w)}, r"must accept the record's fields \(x, y, weight, group\)"),
        ({"loss": lambda **fields: w @ w >= 1}, "must be a scalar, a CVXPY expression|is not a CVXPY expression"),
        ({"regularizer": w}, "regularizer must be a scalar"),
        ({"regularizer": [w]}, "regularizer"),
        ({"constraints": [True]}, "True is not a CVXPY constraint"),
        ({"predict": 1}, "predict must be a function"),
        ({"regularizer": cp.Variable(name="w") ** 2}, "two variables are called 'w'"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_malformed_declarations(arguments, message):
    with pytest.raises(TemplateError, match=message):
        Template(**{"record": RECORD, "loss": loss, **arguments})


def test_errors_of_the_users_own_code_pass_through():
    def broken(**fields):
        raise KeyError("mistake")

    with pytest.raises(KeyError, match="mistake"):
        Template(RECORD, broken)

    def wrong(**fields):
        return len(3)

    with pytest.raises(TypeError, match="has no len"):
        Template(RECORD, wrong)
