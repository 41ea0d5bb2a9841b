"""Pairs of losses that are alike have one key, and no others do."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse
from hypothesis import given, strategies as st

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.neighbour_differences import differences
from dpconvex.calculus.symmetry import Symmetry
from dpconvex.core.record_domains import Ball, Box, Choice

w, u = (cp.Variable(2, name=name) for name in "wu")
v = cp.Variable(name="v")


def keys(analysis: Analysis) -> list[object]:
    """Return the keys of all pairs of labels."""
    sets = [loss.gradients.vertices for loss in analysis.losses]
    return [analysis.symmetry.key(first, second) for k, first in enumerate(sets) for second in sets[k:]]


@pytest.mark.parametrize(
    ("problem", "options"), [("large_margin_gaussian", {"competitors": "summed"}), ("softmax_regression", {})]
)
def test_pairs_of_labels_are_of_two_kinds(problem, options):
    found = keys(Analysis(LossForm(dp.load(problem, features=2, classes=6, **options))))
    assert len(found) == 21
    assert len(set(found)) == 2


def test_labels_with_other_slopes_are_of_other_kinds():
    analysis = analyse(lambda x, y: cp.logistic(y * (w @ x)) + cp.logistic(u @ x), x=Ball(2), y=Choice([1, 2, -2]))
    # Labels 2 and -2 are not alike: the vertices are, but one pair does not become the other.
    assert len(set(keys(analysis))) == 6


@given(st.integers(0, 2**32 - 1))
def test_the_order_of_vertices_and_of_alike_generators_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    gram = analyse(lambda x: cp.logistic(w @ x) + cp.logistic(u @ x) + cp.logistic(v), x=Ball(2)).gram
    symmetry = Symmetry(gram)
    # Columns that differ in their entries, so that there are no ties.
    first, second = rng.integers(0, 5, size=(4, 3)) + np.array([0.0, 10.0, 0.5]), rng.normal(size=(3, 3))
    swap = np.array([1, 0, 2])
    moved = first[rng.permutation(4)][:, swap], second[rng.permutation(3)][:, swap]
    assert symmetry.key(first, second) == symmetry.key(*moved)
    assert symmetry.key(first, second) != symmetry.key(moved[0], second)
    # v is a number and not a vector: other bounds hold for it.
    other = np.array([0, 2, 1])
    assert symmetry.key(first, second) != symmetry.key(first[:, other], second[:, other])


def test_one_entry_more_or_less_counts():
    gram = analyse(lambda x: cp.logistic(w @ x) + cp.logistic(u @ x), x=Ball(2)).gram
    symmetry = Symmetry(gram)
    first = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    nudged = first.copy()
    nudged[1, 0] = np.nextafter(1.0, 2.0)
    assert symmetry.key(first, first) == symmetry.key(-0.0 + first[::-1], first[::-1, ::-1])
    assert symmetry.key(first, first) != symmetry.key(nudged, first)
    assert symmetry.key(first, first) != symmetry.key(first[:2], first)
    assert symmetry.key(first) != symmetry.key(first, first)


def test_constants_are_those_of_all_pairs():
    """Labels of different kinds, with and without the shortcut."""

    def loss(x, t, y):
        return cp.logistic((y + 1) * (w @ x)) + cp.log_sum_exp(cp.hstack([u @ x, t * v, y * v]))

    analysis = analyse(loss, x=Ball(2), t=Box(-1.0, 2.0), y=Choice([0, 1, 3]))
    every = [
        first.gradients.difference_bound(second.gradients) for first in analysis.losses for second in analysis.losses
    ]
    assert analysis.replacement_bound == pytest.approx(max(every), rel=1e-10)
    assert max(item.length for item in differences(analysis, "replace-one")) == pytest.approx(max(every), rel=1e-10)


@pytest.mark.parametrize(
    ("problem", "options", "kinds"),
    [("large_margin_gaussian", {"competitors": "summed"}, 2), ("softmax_regression", {}, 1)],
)
def test_vertices_of_two_records_are_multiplied_once_for_each_kind(problem, options, kinds, monkeypatch):
    calls = []
    original = Gram.products

    def counted(self, left, right, cross, sign=1.0):
        calls.append(cross)
        return original(self, left, right, cross, sign)

    monkeypatch.setattr(Gram, "products", counted)
    for classes in (3, 9):
        calls.clear()
        analysis = Analysis(LossForm(dp.load(problem, features=2, classes=classes, **options)))
        assert analysis.replacement_bound > 0
        differences(analysis, "replace-one")
        assert len({loss.gradients.rounding for loss in analysis.losses}) == 1
        # Two kinds for the lengths; for the bound, none after one that reaches the sum of the two longest gradients.  Forms
        # that are the same for every record are also subtracted first, and what is left is multiplied again.
        passes = 2 if any(form.fixed for form in analysis.gram.forms) else 1
        assert sum(calls) == (2 + kinds) * passes


def test_a_label_without_parameters_has_vertices_too():
    analysis = analyse(lambda x, y: cp.logistic(w @ x) if y else cp.Constant(1.0), x=Ball(2), y=Choice([0, 1]))
    lengths = [item.length for item in differences(analysis, "replace-one")]
    assert max(lengths) == pytest.approx(2.0)
    assert dp.is_private(analysis.form.template, dp.Privacy(1.0, 1e-6), 100) is False  # no regularizer
