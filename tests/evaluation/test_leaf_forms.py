"""Losses split into shared forms and outer functions."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.evaluation.design import TABLE, Design
from dpconvex.evaluation.forms import leaf_form, row_basis
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


def test_rounded_multiples_are_recognised() -> None:
    basis = np.random.default_rng(0).normal(size=(3, 40))
    weights = np.random.default_rng(1).normal(size=(9, 3))
    weights[4] = 0.0
    found = row_basis(sp.csr_array(weights @ basis), np.array([0, 2, 9]))
    assert found is not None
    rows, combine = found
    assert rows.shape == (3, 40)
    assert combine @ rows.toarray() == pytest.approx(weights @ basis, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("loss", [lambda x: x[0] ** 3, lambda x: cp.norm(x, 2), lambda x: cp.exp(x[0])])
def test_what_is_no_low_polynomial_is_left_alone(loss: Any) -> None:
    w = cp.Variable(2, name="w")
    template = Template(Record(x=Ball(2)), lambda x: cp.logistic(loss(x) * w[0] + x @ w), cp.sum_squares(w))
    assert leaf_form(template, Space(template.variables)).monomials.shape == (1, 0)


PAIRS = [(a, b) for a in range(-1, 8) for b in range(max(a, 0), 8)] + [(-1, -1)]


@pytest.mark.parametrize(
    "monomials",
    [[(0,), (2,), (3,), (5,), (-1,)], PAIRS, [(-1, 1), (0, 0), (0, 4), (7, 7), (-1, -1)]],
)
def test_designs_multiply_monomials(monomials: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    size = 2500
    block = {"x": rng.normal(size=(size, 3)), "s": rng.normal(size=size), "A": rng.normal(size=(size, 2, 2))}
    scalars = np.column_stack([block["x"], block["s"], block["A"].transpose(0, 2, 1).reshape(size, -1), np.ones(size)])
    design = Design(np.array(monomials), {"x": slice(0, 3), "s": slice(3, 4), "A": slice(4, 8)})
    if design.pairs is not None:
        block[TABLE] = design.with_table(block)
    features = scalars[:, monomials].prod(axis=2).T
    assert design.table(block, size) == pytest.approx(features.T)
    for forms in (1, 3):
        coefficients, gradient = rng.normal(size=(forms, len(monomials))), rng.normal(size=(forms, size))
        assert design.forward(block, coefficients, size) == pytest.approx(coefficients @ features)
        assert design.backward(block, gradient) == pytest.approx(gradient @ features.T)
    assert not design.forward(block, np.zeros((2, len(monomials))), size).any()


def test_records_of_several_fields() -> None:
    w = cp.Variable(2, name="w")
    record = Record(x=Ball(2), t=Box(-1.0, 1.0), y=Choice([0, 1]))
    template = Template(record, lambda x, t, y: cp.huber(x @ w - t * (1 + y), 0.5), cp.sum_squares(w))
    form = leaf_form(template, Space(template.variables))
    assert all(label.is_moving for label in form.labels)
    assert form.labels[1].offset.tolist() == [[0.0, 0.0, -2.0, 0.0]]


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
