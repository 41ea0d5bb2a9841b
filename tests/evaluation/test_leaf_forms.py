"""Losses split into shared forms and outer functions."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Ball, Choice
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.evaluation.forms import leaf_form
from dpconvex.language.record import Record
from dpconvex.language.template import Template


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_margins_of_all_classes_share_their_forms(classes: int) -> None:
    template = dp.load("large_margin_gaussian", features=4, classes=classes)
    form = leaf_form(template, Space(template.variables))
    assert form.forms == classes - 1
    assert len(form.monomials) == 15
    assert len({label.lowered.program for label in form.labels}) == 1
    assert all(label.combine.shape == (classes - 1, classes - 1) for label in form.labels)
    assert leaf_form(template, Space(template.variables)) is form


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-5, 1e-8])
def test_leaves_that_are_almost_the_same_make_no_bad_basis(apart: float) -> None:
    w, u = cp.Variable(4, name="w"), cp.Variable(4, name="u")
    template = Template(
        Record(x=Ball(4), y=Choice(range(3))),
        lambda x, y: [
            lambda: cp.logistic(x @ w) + cp.logistic(x @ (w + apart * u)),
            lambda: cp.logistic(x @ w) + cp.logistic(x @ u),
            lambda: cp.logistic(-(x @ (w - apart * u))),
        ][y](),
        cp.sum_squares(w) + cp.sum_squares(u),
    )
    space, rng = Space(template.variables), np.random.default_rng(0)
    batch = template.record.sample(200, rng)
    one, other = (BatchedLoss(template, space, batch, engine) for engine in ("blocks", "device"))
    assert one.engine == "blocks"
    theta = rng.normal(size=space.dim)
    assert one.gradient(theta) == pytest.approx(other.gradient(theta), rel=1e-12, abs=1e-12)
    form = leaf_form(template, space)
    rows = form.map.toarray()
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    assert np.linalg.cond(rows / np.linalg.norm(rows, axis=1)[:, None]) < 3
