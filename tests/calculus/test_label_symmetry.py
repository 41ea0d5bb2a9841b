"""Two labels stand for all that are interchangeable: constants as if all were examined, and no label taken for another one."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus import loss_form
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm

CLASSES = 36


def template(loss, classes=CLASSES, constraints=(), regularizer=None, **fields):
    W, b = cp.Variable((3, classes), name="W"), cp.Variable(classes, name="b")
    public = cp.sum_squares(W) + cp.sum_squares(b) if regularizer is None else regularizer(W, b)
    record = dp.Record(x=dp.Ball(3, radius=2.0), y=dp.Choice(range(classes)), **fields)
    return dp.Template(record, lambda **f: loss(W, b, **f), public, constraints=[c(W, b) for c in constraints])


def softmax(W, b, x, y):
    scores = x @ W + b
    return cp.log_sum_exp(scores) - scores[y]


def two_kinds(W, b, x, y, group):
    if group:
        return cp.logistic(cp.max(x @ W) - x @ W[:, y])
    return 0.5 * cp.sum(
        cp.pos(1 + cp.multiply(2.0, x @ W) + cp.multiply(np.ones(CLASSES), b) - 2 * (x @ W[:, y]) - b[y])
    )


LIKE = {
    "softmax": template(softmax),
    "two kinds": template(two_kinds, group=dp.Choice([0, 1])),
    "rows": template(lambda W, b, x, y: cp.log_sum_exp(W.T @ x) - W.T[y] @ x),
}
UNLIKE = {
    "weights of labels": template(lambda W, b, x, y: (1 + y / 10) * softmax(W, b, x, y)),
    "priors": template(lambda W, b, x, y: softmax(W, b + np.arange(CLASSES), x, y)),
    "neighbouring columns": template(lambda W, b, x, y: cp.logistic(x @ (W[:, y] - W[:, (y + 1) % CLASSES]))),
    "the first column": template(lambda W, b, x, y: cp.logistic(x @ (W[:, 0] - W[:, y]))),
    "half of the columns": template(lambda W, b, x, y: cp.log_sum_exp(x @ W[:, ::2]) - x @ W[:, y]),
    # Two labels would show two of its entries only.
    "an entry of one's own": template(lambda W, b, x, y: softmax(W, 0, x, y) + cp.huber(b[y]) / 50),
    "a bounded column": template(softmax, constraints=[lambda W, b: b[0] <= 1]),
}


def constants(analysis):
    found = [analysis.gradient_bound, analysis.replacement_bound, analysis.form.noise_dimension]
    if analysis.kink is None:
        mu = analysis.strong_convexity(100, 0.0)
        costs = [analysis.perturbation_cost(0.3, mu, adjacency)[0] for adjacency in ("replace-one", "add-remove")]
        found += [analysis.hessian_bound, analysis.log_det(mu)[0], *costs]
    return found


@pytest.mark.parametrize("name", LIKE)
def test_constants_are_those_of_all_labels(name, monkeypatch):
    short = LossForm(LIKE[name])
    assert short.exchange is not None
    assert len(short.losses) <= 4
    monkeypatch.setattr(loss_form, "FEW", 10**6)
    whole = LossForm(LIKE[name])
    assert whole.exchange is None
    assert constants(Analysis(short)) == pytest.approx(constants(Analysis(whole)), rel=1e-12)
    outside = whole.basis - short.basis @ (short.basis.T @ whole.basis)
    assert abs(outside).max() < 1e-12


@pytest.mark.parametrize("name", UNLIKE)
def test_other_labels_are_examined_one_by_one(name):
    form = LossForm(UNLIKE[name])
    assert form.exchange is None
    assert len(form.losses) == CLASSES
