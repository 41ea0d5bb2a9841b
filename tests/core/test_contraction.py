"""Sums within one record, against terms of which the first is so large that all others are lost if they come one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.record_sums import longest_sum
from dpconvex.core.contraction import contracted, summed
from dpconvex.core.double_precision import double_precision
from dpconvex.core.summation import RECORD, ROUNDOFF, SEVERAL, Lengths, each_apart
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.release.verify import analyse

jax = pytest.importorskip("jax")
LENGTH = 1024
LOST = np.r_[1.0, np.full(LENGTH - 1, 0.9 * ROUNDOFF)]
EXACT = float(sum(map(Fraction, LOST.tolist())))
ALLOWED = (SEVERAL + 8) * ROUNDOFF


@contextmanager
def arrays(kind: str) -> Iterator[Any]:
    with double_precision() if kind == "jax" else each_apart() if kind == "apart" else np.errstate():
        yield jax.numpy if kind == "jax" else np


@pytest.mark.parametrize("kind", ["plain", "apart", "jax"])
def test_long_sums_lose_no_more_than_short_ones(kind: str) -> None:
    long, ones, some = LOST[:, None], np.ones((LENGTH, 1)), np.ones((LENGTH, 64))
    with arrays(kind) as xp:
        for a, b in ((long, ones), (long, some), (some * long, ones), (some * long, some)):
            found = contracted(xp, "j", "j", "", xp.asarray(a), xp.asarray(b))
            assert np.abs(np.asarray(found) - EXACT).max() <= ALLOWED
            left, right = np.stack([a, a]), np.stack([b, b, b], axis=1)
            found = contracted(xp, "ij", "jk", "ik", xp.asarray(left), xp.asarray(right))
            assert np.abs(np.asarray(found) - EXACT).max() <= ALLOWED
        for a in (long, some * long):
            assert np.abs(np.asarray(summed(xp, xp.asarray(a), (0,))) - EXACT).max() <= ALLOWED


@pytest.mark.parametrize("shared", [False, True])
def test_nor_do_slopes(shared: bool) -> None:
    """The slope by x of ``<v, W x>`` is the sum of W's rows with weights v; records may share x."""
    rows, x = np.ones((LENGTH, 3, 8)), np.ones((3, 1 if shared else 8))
    with double_precision():

        def value(x: Any) -> Any:
            return (LOST[:, None] * contracted(jax.numpy, "ij", "j", "i", jax.numpy.asarray(rows), x)).sum()

        slope = np.asarray(jax.grad(value)(jax.numpy.asarray(x)))
    assert np.abs(slope / (8 if shared else 1) - EXACT).max() <= ALLOWED


def test_products_in_pieces_are_products() -> None:
    rng = np.random.default_rng(0)
    a, b, slope = rng.normal(size=(4, 100, 1)), rng.normal(size=(100, 70, 5)), rng.normal(size=(4, 70, 5))
    expected = np.einsum("ij,jkz->ikz", a[..., 0], b)
    with each_apart():
        assert contracted(np, "ij", "jk", "ik", a, b) == pytest.approx(expected)
    assert contracted(np, "ij", "jk", "ik", a, b) == pytest.approx(expected)
    assert summed(np, b, (0, 1)) == pytest.approx(b.sum(axis=(0, 1), keepdims=True))

    def value(a: Any, b: Any) -> Any:
        return (slope * contracted(jax.numpy, "ij", "jk", "ik", a, b) ** 2).sum() / 2

    def plain(a: Any, b: Any) -> Any:
        return (slope * jax.numpy.einsum("ij,jkz->ikz", a[..., 0], b) ** 2).sum() / 2

    with double_precision():
        # Gradients, and their change along both factors.
        results = [
            jax.jit(lambda a, b, f=f: jax.jvp(jax.grad(f, argnums=(0, 1)), (a, b), (a * a, b * b)))(a, b)
            for f in (value, plain)
        ]
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), rel=1e-10, abs=1e-9)


@pytest.mark.parametrize("engine", ["whole", "device"])
def test_gradients_of_long_records_err_less_than_is_claimed(engine: str) -> None:
    """An inner product whose first terms cancel, and whose others are lost beside these."""
    d, large, length = 1024, 8, 100.0
    w = cp.Variable(d, name="w")
    record = dp.Record(x=dp.Ball(d), s=dp.Box(0.0, 1.0))
    template = dp.Template(record, lambda x, s: cp.logistic(cp.exp(-s) * (x @ w)), 0.05 * cp.sum_squares(w))
    x, theta = np.zeros(d), np.full(d, 1e-3)
    x[:large] = 0.99 / np.sqrt(large)
    theta[:large] = length / np.sqrt(large) * np.where(np.arange(large) % 2, -1, 1)
    x[large:] = abs(x[0] * theta[0]) * ROUNDOFF * 900
    analysis = analyse(template)
    batch = record.validate({"x": x[None], "s": [0.0]})
    found = BatchedLoss(template, analysis.form.space, batch, engine).gradient(theta)
    margin = float(sum(Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), theta.tolist(), strict=True)))
    error = np.linalg.norm(found - x / (1 + np.exp(-margin)))
    norm = float(np.linalg.norm(theta))
    assert error <= RECORD * ROUNDOFF * (analysis.gradient_bound + analysis.hessian_bound * norm)


def test_other_long_sums_are_counted() -> None:
    x, b, w = dp.Ball(100), cp.Variable(name="b"), cp.Variable(100, name="w")
    losses = {
        0: lambda x: cp.logistic(x @ w) + cp.logistic(cp.sum(cp.multiply(x, w))),
        100: lambda x: cp.sum(cp.huber(x - b)),
        50: lambda x: sum(cp.huber(x[k] - w[k]) for k in range(50)),
        99: lambda x: cp.logistic(x[0] + cp.cumsum(w[:99])[98]),
    }
    for count, loss in losses.items():
        template = dp.Template(dp.Record(x=x), loss, cp.sum_squares(b) + cp.sum_squares(w))
        found = longest_sum(template.losses)
        assert found == count or found <= 2 >= count
    found = analyse(dp.Template(dp.Record(x=x), losses[100], cp.sum_squares(b))).form.lengths
    assert found.terms == 100
    arguments = (1000, 1.0, 0.25, 3.0, 0.0)
    more = found.gradient_error(*arguments) - Lengths(found.scalars, found.entries, found.row).gradient_error(
        *arguments
    )
    assert more == pytest.approx(ROUNDOFF * 1000 * (100 - SEVERAL) * (1 + 0.75))
