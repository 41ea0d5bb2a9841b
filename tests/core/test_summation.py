"""Sums over records: what they are, and how far rounding can take them, against exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as pairs
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.core.parameter_space import Space
from dpconvex.core.summation import (
    PIECE,
    RECORD,
    ROUNDOFF,
    SPLIT,
    Lengths,
    Pairwise,
    SparseRows,
    Tree,
    in_pieces,
    inner_products,
    pairwise,
    piece,
    transposed_product,
)
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.evaluation.design import product
from dpconvex.evaluation.shared_forms import leaf_form
from dpconvex.release.verify import analyse
from dpconvex.solvers.composite import Composite

RNG = np.random.default_rng(0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 900), st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_products_in_pieces_are_products(records: int, forms: int, scalars: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, gradient = rng.normal(size=(records, scalars)), rng.normal(size=(forms, records))
    rows[rng.random(rows.shape) < 0.5] = 0.0
    expected = pytest.approx(gradient @ rows, rel=1e-10, abs=1e-10)
    assert in_pieces(gradient, rows.T) == expected
    assert in_pieces(gradient, np.asfortranarray(rows).T) == expected
    assert transposed_product(rows, gradient) == expected
    assert transposed_product(sp.csr_array(rows), gradient) == expected
    kept = SparseRows(rows)
    assert transposed_product(kept, gradient) == expected
    assert transposed_product(kept, gradient) == expected  # by what it remembers
    weights = rng.normal(size=(forms, scalars))
    forms_of = pytest.approx(weights @ rows.T, rel=1e-10, abs=1e-10)
    assert inner_products(weights, rows.T) == forms_of
    assert kept.product(weights) == forms_of
    assert pairwise(rows) == pytest.approx(rows.sum(axis=0), rel=1e-10, abs=1e-10)
    total = Pairwise(np.zeros(scalars))
    for row in rows:
        total.add(row)
    assert total.value == pytest.approx(rows.sum(axis=0), rel=1e-10, abs=1e-10)


def test_nothing_is_a_sum_too() -> None:
    assert Pairwise(2.5).value == 2.5
    assert transposed_product(sp.csr_array((0, 3)), np.zeros((2, 0))).shape == (2, 3)


def test_wide_sparse_records_make_longer_pieces() -> None:
    assert piece(100) == PIECE
    assert piece(160_000) == 10_000
    rows = sp.random_array((700, 4800), density=0.01, format="csr", rng=1)
    gradient = RNG.normal(size=(3, 700))
    assert SparseRows(rows).cut(piece(4800)).shape == (700, 3 * 4800)
    assert transposed_product(rows, gradient) == pytest.approx(gradient @ rows, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairwise"])
def test_equal_terms_do_not_drift(kind: str) -> None:
    """Added one by one, equal numbers err by thousands of units: more than the root of their number, times eight."""
    size, number = 200_000, 0.1
    exact = size * Fraction(number)
    rows = np.full((size, 1), number)
    plain = float(np.cumsum(rows)[-1])
    units = float(ROUNDOFF * exact)
    assert abs(Fraction(plain) - exact) > 8 * math.sqrt(size) * units
    total = Pairwise(0.0)
    for start in range(0, size, 1000):
        total.add(rows[start : start + 1000].sum())
    found = {
        "dense": lambda: transposed_product(rows, np.ones((1, size)))[0, 0],
        "sparse": lambda: transposed_product(sp.csr_array(rows), np.ones((1, size)))[0, 0],
        "pairwise": lambda: total.value,
    }[kind]()
    assert abs(Fraction(float(found)) - exact) <= (PIECE + math.log2(size / PIECE) + 2) * units


LONG = np.longdouble


@pytest.mark.parametrize("forms", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "stream", "sparse"])
def test_inner_products_err_less_than_is_assumed(kind: str, forms: int) -> None:
    """On equal terms, of which all partial sums are rounded the same way, and on such that cancel."""
    rng = np.random.default_rng(1)
    for length in (20, 32, 33, 100, 112, 128, 129, 300, 1000):
        for sign in (1.0, -1.0):
            weights = np.full((forms, length), rng.uniform(0.5, 1.0))
            rows = np.repeat(rng.uniform(0.5, 1.0, size=(400, 1)), length, axis=1)
            rows[:, length // 2 :] *= sign
            found = product(sp.csr_array(rows) if kind == "sparse" else rows, weights, kind == "stream")
            exact = (weights.astype(LONG)[:, None] * rows.astype(LONG)).sum(axis=2)
            norms = np.linalg.norm(weights, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
            assert (np.abs(found - exact) <= RECORD * ROUNDOFF * norms).all(), length


def slope(violation: Any, width: float) -> Any:
    """Derivative of `huber_hinge`."""
    return np.clip((violation + width) / (2 * width), 0, 1)


def logistic(x: Any, y: Any, w: Any) -> Any:
    return -(y / (1 + np.exp(y * (x @ w))))[:, None] * x


def huber(x: Any, y: Any, w: Any) -> Any:
    return -(y * slope(1 - y * (x @ w), LONG(0.5)))[:, None] * x


def softmax(x: Any, y: Any, w: Any) -> Any:
    scores = x @ w.reshape(-1, x.shape[1]).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    weights[np.arange(len(x)), y] -= 1
    return (weights[:, :, None] * x[:, None]).reshape(len(x), -1)


LEARNERS = {
    "logistic_regression": (logistic, {}, [-1, 1]),
    "huber_svm": (huber, {}, [-1, 1]),
    "softmax_regression": (softmax, {"classes": 6}, list(range(6))),
}


@pytest.mark.parametrize("features", [5, 200])
@pytest.mark.parametrize("form", ["blocks", "device", "sparse"])
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("data", ["flat", "equal", "corner", "random"])
def test_gradients_err_less_than_is_claimed(name: str, data: str, form: str, features: int) -> None:
    """With equal records all errors point the same way; long parameters whose inner products cancel make them large."""
    exact, more, labels = LEARNERS[name]
    options = more | {"features": features}
    template = dp.load(name, regularization=1e-3, **options)
    analysis = analyse(template)
    d = int(options["features"])
    rng = np.random.default_rng(sorted(LEARNERS).index(name))
    for length, size in pairs((0.1, 1.0, 10.0, 100.0), (8, 30_000 if d < 10 else 5000)):
        x = rng.uniform(0.5, 1.0, size=(1 if data == "equal" else size, 1 if data == "flat" else d)) + np.zeros(d)
        if data == "random":
            x *= rng.choice([-1, 1], size=x.shape)
        x = np.broadcast_to(x / np.linalg.norm(x, axis=1)[:, None] * (1 - 1e-9), (size, d)).copy()
        y = np.full(size, labels[0]) if data != "random" else rng.choice(labels, size)
        w = rng.normal(size=analysis.form.space.dim).reshape(-1, d)
        if data == "flat":  # partial sums grow, and shrink again
            w = np.sort(np.sign(w)) * rng.uniform(0.5, 1.0)
        w -= np.outer(w @ x[0], x[0]) / (x[0] @ x[0])  # the first record, or all of them, lie on the border
        w = (w / np.linalg.norm(w) * length).ravel()
        batch = template.record.validate({"x": sp.csr_array(x) if form == "sparse" else x, "y": y})
        loss = BatchedLoss(template, analysis.form.space, batch, "device" if form == "device" else "blocks")
        found = loss.gradient(w)
        expected = exact(x.astype(LONG), y.astype(LONG) if name != "softmax_regression" else y, w.astype(LONG))
        error = float(np.linalg.norm((found - expected.sum(axis=0)).astype(float)))
        bound = analysis.form.lengths.gradient_error(size, analysis.gradient_bound, analysis.hessian_bound, length, 0.0)
        assert error <= bound
        unit = ROUNDOFF * size * (analysis.gradient_bound + analysis.hessian_bound * length)
        assert bound <= 600 * unit
        if size < 10:  # no long sums: this is what is assumed of one record, with room to spare
            assert error <= RECORD / 2 * unit


@pytest.mark.parametrize("engine", ["whole", "device"])
def test_many_labels_are_summed_in_pairs_too(engine: str) -> None:
    """Equal records, each with a label of its own, on the engines that go through whole losses."""
    w, count = cp.Variable(1, name="w"), 3000
    record = dp.Record(x=dp.Box(np.zeros(1), np.ones(1)), y=dp.Choice(range(count)))
    template = dp.Template(record, lambda x, y: cp.abs(x[0] ** 3 * w[0] - 5), cp.sum_squares(w))
    space = Space(template.variables)
    batch = record.validate({"x": np.full((count, 1), 0.9), "y": np.arange(count)})
    assert BatchedLoss(template, space, batch).engine == "whole"
    loss = BatchedLoss(template, space, batch, engine)
    exact = -count * Fraction(0.9) ** 3
    error = abs(float(Fraction(float(loss.gradient(np.zeros(1))[0])) - exact))
    assert error <= 40 * ROUNDOFF * float(-exact)


def test_lengths_are_those_of_the_template() -> None:
    logistic_lengths = analyse(dp.load("logistic_regression", features=7)).form.lengths
    assert logistic_lengths == Lengths(scalars=7, entries=1, row=1)
    several = analyse(dp.load("large_margin_gaussian", features=4, classes=5)).form.lengths
    assert several.entries == 4
    # The projection takes the mean over the classes from each: rows of five numbers, 4/5 and four times -1/5.
    assert several.projected == pytest.approx(5 * 8 / 5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax_regression", {"features": 3, "classes": 3}),
        ("softmax_regression", {"features": 3, "classes": 26}),
        ("large_margin_gaussian", {"features": 3, "classes": 2}),
        ("large_margin_gaussian", {"features": 3, "classes": 10}),
        ("large_margin_gaussian", {"features": 3, "classes": 7, "competitors": "summed"}),
        ("large_margin_gaussian_mixture", {"features": 2, "classes": 3, "components": 2}),
        ("large_margin_gaussian_mixture", {"features": 2, "classes": 2, "components": 3}),
        ("robust_location", {"features": 3}),
        ("metric_learning", {"features": 3}),
    ],
)
def test_sums_of_forms_are_not_much_larger_than_gradients(name: str, options: dict[str, Any]) -> None:
    """The factor by which errors of the forms' sums can exceed those of the gradients' sums is the one that is counted."""
    analysis = analyse(dp.load(name, **options))
    form = leaf_form(analysis.form.template, analysis.form.space)
    assert form is not None
    rows = form.map.toarray()
    norms = np.linalg.norm(rows, axis=1)
    scaled = rows[norms > 0] / norms[norms > 0, None]
    largest = np.linalg.norm(np.abs(scaled), 2) / np.linalg.svd(scaled, compute_uv=False).min()
    data = {"records": 1e6, "gradient_bound": 1.0, "hessian_bound": 0.0, "radius": 0.0, "public": 0.0}
    own, single = (lengths.gradient_error(**data) for lengths in (analysis.form.lengths, Lengths(1, 1, 1)))
    summed = piece(1) + math.log2(1 + 1e6 / piece(1))
    assert own - single >= (largest - 1 - 1e-9) * summed * 1e6 * ROUNDOFF


def test_every_part_of_a_gradient_counts() -> None:
    lengths = Lengths(scalars=5, entries=1, row=1)
    base = lengths.gradient_error(1000, 1.0, 0.25, 3.0, 50.0)
    assert lengths.gradient_error(2000, 1.0, 0.25, 3.0, 50.0) > base
    assert lengths.gradient_error(1000, 2.0, 0.25, 3.0, 50.0) > base
    assert lengths.gradient_error(1000, 1.0, 0.5, 3.0, 50.0) > base
    assert lengths.gradient_error(1000, 1.0, 0.25, 6.0, 50.0) > base
    assert lengths.gradient_error(1000, 1.0, 0.25, 3.0, 100.0) > base
    assert Lengths(5, 4, 1).gradient_error(1000, 1.0, 0.25, 3.0, 50.0) > base
    assert Lengths(5, 1, 9).gradient_error(1000, 1.0, 0.25, 3.0, 50.0) > base
    assert Lengths(5, 1, 1, 2.0).gradient_error(1000, 1.0, 0.25, 3.0, 50.0) > base
    assert Lengths(50_000, 1, 1).gradient_error(1000, 1.0, 0.25, 3.0, 50.0) > base


def test_a_long_noise_vector_counts_with_its_rounding() -> None:
    """The sum of the data's gradient, the noise and the quadratic's is rounded at the size of the largest part."""
    from tests.solvers.sample_problems import logistic as problem_of

    for noise in (1e3, 1e9):
        problem = problem_of(noise=noise, lengths=Lengths(4, 1, 1))
        composite = Composite(problem)
        theta = -np.asarray(problem.linear) / problem.strong_convexity
        gradient = composite.smooth(theta)[1]
        data, level = problem.loss.gradient(theta), Fraction(problem.size * 0.1)
        rows = np.stack([gradient, data, problem.linear, theta]).T.tolist()
        errors = [float(Fraction(g) - Fraction(a) - Fraction(b) - level * Fraction(t)) for g, a, b, t in rows]
        error = math.hypot(*errors)
        assert 0 < error <= composite.gradient_error(theta, gradient)


def test_a_tree_adds_terms_of_many_records_few_times() -> None:
    """Partition k is added to others at most ceil(log2(n / n_k)) times, which pays for one more addition than all at once."""

    @dataclass(frozen=True)
    class Term:
        depths: tuple[tuple[int, int], ...]  # which leaves, in their order, and how often each was added

        def __add__(self, other: Term) -> Term:
            return Term(tuple((leaf, depth + 1) for leaf, depth in (*self.depths, *other.depths)))

    rng = np.random.default_rng(3)
    for _ in range(300):
        sizes = rng.choice([0, 1, 2, 5, 100, 128, 1000, 10**6], rng.integers(1, 40)).tolist()
        leaves = [k for k, size in enumerate(sizes) if size]
        orders = set()
        for _ in range(2):
            total = Tree(sizes)
            for leaf in rng.permutation(leaves).tolist():
                total.add(leaf, Term(((leaf, 0),)))
            assert (total.value is None) == (not leaves)
            if leaves:
                orders.add(total.value.depths)
        owner, total = rng.integers(3, size=len(sizes)), Tree(sizes)
        for worker in range(3):  # who adds up what it has, and hands on the rest
            own = [leaf for leaf in leaves if owner[leaf] == worker]
            some = Tree.of(total.below(own))
            for leaf in own:
                some.add(leaf, Term(((leaf, 0),)))
            for node, term in some.waiting.items():
                total.add(node, term)
        if leaves:
            orders.add(total.value.depths)
            assert len(Tree(sizes).below(leaves)) == 2 * (len(leaves) - 1)
        assert len(orders) == bool(leaves)
        for leaf, depth in next(iter(orders), ()):
            assert depth <= np.ceil(np.log2(sum(sizes) / sizes[leaf]))
            inside = min(sizes[leaf], PIECE) + np.log2(max(sizes[leaf] / PIECE, 1))
            assert inside + depth <= PIECE + np.log2(1 + sum(sizes) / PIECE) + SPLIT
        assert sorted(leaf for leaf, _ in next(iter(orders), ())) == leaves
