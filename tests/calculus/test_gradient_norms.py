"""Norms of sums of gradient sets: exact where all vertices are tried, and never below that where they are not."""

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse
from hypothesis import given, strategies as st

import dpconvex as dp
from dpconvex.calculus import gradient_norms as gradients
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.gradient_norms import Gradients, gradient_bound, term_norm
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.abstract_values import Term
from dpconvex.core.record_domains import Ball, Box, Choice

SEEDS = st.integers(0, 2**32 - 1)
w = cp.Variable(2, name="w")
u = cp.Variable(2, name="u")
v = cp.Variable(name="v")
LOSSES = [
    # Generators w'x, u'x, v; then rows that are neither parallel nor orthogonal for every record.
    (lambda x, t: cp.logistic(w @ x) + cp.logistic(u @ x) + cp.logistic(v), {"x": Ball(2), "t": Box(0.0, 1.0)}),
    (lambda x, t: cp.logistic(w @ x) + cp.logistic(w[0] + t * w[1]), {"x": Ball(2, 3.0), "t": Box(-0.5, 1.0)}),
]


def rows_at(gram: Gram, which: int, x: np.ndarray, t: float) -> np.ndarray:
    """Rows of the generators of the losses above at one record, shape (generators, dim)."""
    if which == 0:
        return np.array([[*x, 0, 0, 0], [0, 0, *x, 0], [0, 0, 0, 0, 1]])
    return np.array([x, [1.0, t]])


def draw_terms(rng: np.random.Generator, generators: int, balls: bool) -> list[Term]:
    terms = []
    for _ in range(rng.integers(1, 5)):
        rows = np.round(rng.normal(size=(rng.integers(1, 4), generators)), 1)
        terms.append(Term(rows, ball=bool(balls and rng.random() < 0.4)))
    return terms


def draw_point(terms: list[Term], rng: np.random.Generator) -> np.ndarray:
    """Draw an element of the sum of the terms, mostly at their boundary, in generator coordinates."""
    total = np.zeros(terms[0].rows.shape[1])
    for term in terms:
        if term.ball:
            weight = rng.normal(size=len(term.rows))
            weight /= np.linalg.norm(weight)
        else:
            weight = rng.dirichlet(np.full(len(term.rows), 0.2))
        total += weight @ term.rows
    return total


@given(SEEDS, st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_bounds_hold_for_every_element_and_every_record(seed, which, balls, pairwise):
    rng = np.random.default_rng(seed)
    loss, fields = LOSSES[which]
    gram = analyse(loss, **fields).gram
    assert rows_at(gram, which, np.ones(2), 1.0).shape[0] == len(gram.upper)
    first, second = (draw_terms(rng, len(gram.upper), balls) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        if pairwise:
            patch.setattr(gradients, "LARGEST_ENUMERATION", 0)
        bound = gradient_bound(first, gram)
        apart = Gradients(first, gram).difference_bound(Gradients(second, gram))
        norms = [term_norm(term, gram) for term in first]
    assert bound <= sum(norms) * (1 + 1e-12) or not pairwise
    assert apart <= (bound + gradient_bound(second, gram)) * (1 + 1e-12) or pairwise
    radius = fields["x"].radius
    for _ in range(50):
        records = [
            rows_at(gram, which, radius * x / np.linalg.norm(x), t)
            for x, t in zip(rng.normal(size=(2, 2)), rng.choice([-0.5 * which, 1.0], size=2), strict=True)
        ]
        g, other = draw_point(first, rng) @ records[0], draw_point(second, rng) @ records[1]
        assert np.linalg.norm(g) <= bound * (1 + 1e-9) + 1e-12
        assert np.linalg.norm(g - other) <= apart * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_margins_that_share_a_row_by_pairs(classes, monkeypatch):
    """G = sqrt(C (C - 1)) for large-margin Gaussians, and G_adj = sqrt 2 C."""
    monkeypatch.setattr(gradients, "LARGEST_ENUMERATION", 0)
    analysis = Analysis(LossForm(dp.load("large_margin_gaussian", features=2, classes=classes, competitors="summed")))
    assert analysis.gradient_bound == pytest.approx(np.sqrt(classes * (classes - 1)))
    assert np.sqrt(2) * classes * (1 - 1e-9) <= analysis.replacement_bound <= 1.07 * np.sqrt(2) * classes


def test_labels_are_compared_pair_by_pair():
    analysis = analyse(lambda x, y: cp.logistic(y * (w @ x)), x=Ball(2), y=Choice([1, 10]))
    assert analysis.gradient_bound == pytest.approx(10.0)
    assert analysis.replacement_bound == pytest.approx(20.0)
    apart = analyse(lambda x, y: cp.logistic((w if y else u) @ x), x=Ball(2), y=Choice([0, 1]))
    assert apart.replacement_bound == pytest.approx(2.0)
    only = analyse(lambda x, y: cp.logistic(w @ x) if y else cp.Constant(1.0), x=Ball(2), y=Choice([0, 1]))
    assert only.replacement_bound == pytest.approx(2.0)
