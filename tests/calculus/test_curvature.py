"""Bounds on Hessians that are sums of pieces: against every mixture of vertices at many records."""

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse
from hypothesis import given, strategies as st

from dpconvex.calculus.curvature import curvature_bound
from dpconvex.calculus.gram import Gram
from dpconvex.core.abstract_values import Piece, Term
from dpconvex.core.record_domains import Ball, Box

SEEDS = st.integers(0, 2**32 - 1)
w = cp.Variable(2, name="w")
u = cp.Variable(2, name="u")
v = cp.Variable(name="v")
W = cp.Variable((3, 2), name="W")
MODULI = (1e-6, 0.1, 1.0, 100.0)


@pytest.fixture(scope="module")
def gram() -> Gram:
    """Three orthogonal generators: w'x and u'x with ||x|| <= 1, and v."""
    return analyse(lambda x: cp.logistic(w @ x) + cp.logistic(u @ x) + cp.logistic(v), x=Ball(2)).gram


def rows_at(x: np.ndarray) -> np.ndarray:
    """Rows of these generators at one record, shape (3, 5)."""
    return np.array([[*x, 0, 0, 0], [0, 0, *x, 0], [0, 0, 0, 0, 1]])


def draw_pieces(rng: np.random.Generator) -> list[Piece]:
    pieces = []
    for _ in range(rng.integers(1, 4)):
        rows = np.round(rng.normal(size=(rng.integers(1, 5), 3)), 1)
        outer, spread = rng.choice([0.0, 0.5, 2.0], size=2)
        if rng.random() < 0.3:
            pieces.append(Piece((Term(rows, ball=bool(rng.random() < 0.5)), Term(rows[:1])), max(outer, 0.5)))
        else:
            pieces.append(Piece((Term(rows),), outer, spread))
    return pieces


def draw_hessian(piece: Piece, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a Hessian of a piece, with weights that favour few vertices."""
    if piece.spread == 0:
        total = np.zeros(rows.shape[1])
        for term in piece.terms:
            weight = rng.normal(size=len(term.rows)) if term.ball else rng.dirichlet(np.full(len(term.rows), 0.2))
            total += (weight / np.linalg.norm(weight) if term.ball else weight) @ term.rows @ rows
        return piece.outer * np.outer(total, total)
    points = piece.terms[0].rows @ rows
    weight = rng.dirichlet(np.full(len(points), rng.choice([0.2, 1.0, 20.0])))
    mean = weight @ points
    covariance = (points.T * weight) @ points - np.outer(mean, mean)
    return piece.outer * np.outer(mean, mean) + piece.spread * covariance


@given(SEEDS)
def test_no_hessian_exceeds_the_bounds(gram, seed):
    rng = np.random.default_rng(seed)
    pieces = draw_pieces(rng)
    found = curvature_bound(pieces, gram, 5)
    for _ in range(60):
        x = rng.normal(size=2)
        rows = rows_at(x / np.linalg.norm(x))
        hessian = sum(draw_hessian(piece, rows, rng) for piece in pieces)
        values = np.linalg.eigvalsh(hessian)
        assert values[-1] <= found.eigenvalue * (1 + 1e-9) + 1e-12
        assert values.sum() <= found.trace * (1 + 1e-9) + 1e-12
        assert (values > 1e-9 * (1 + values[-1])).sum() <= found.rank
        for mu in MODULI:
            # Rounding makes eigenvalues of 1e-16 out of zeros.
            seen = np.log1p(np.where(values > 1e-12 * (1 + values[-1]), values, 0.0) / mu).sum()
            assert seen <= found.log_det(mu) * (1 + 1e-9) + 1e-12


APART = [(4e-13, 1.0, 1e-28), (4e-13, 1e14, 1.0), (2.0**-52, 1e17, 1.0), (1e-10, 1e11, 1.0), (3e-9, 1.0, 1e-18)]


@pytest.mark.parametrize(("apart", "largest", "modulus"), APART)
@pytest.mark.parametrize("count", [2, 3, 6])
def test_entries_that_differ_in_their_last_digits_curve(count, apart, largest, modulus):
    """At theta = 0 the Hessian is the covariance of the rows, whatever small part of them they differ in."""
    theta = cp.Variable(count, name="theta")
    steps = np.arange(count)

    def along_one(x, t):
        return cp.log_sum_exp(cp.hstack([x * theta[0] + (1 + apart * k) * t * theta[1] for k in steps]))

    def apart_in_all(x, t):
        return cp.log_sum_exp(cp.hstack([x * cp.sum(theta) + apart * t * theta[k] for k in steps]))

    bounds = {"x": Box(0.0, largest), "t": Box(0.0, largest)}
    (loss,) = analyse(along_one, **bounds).losses
    spread = np.var((1 + apart * steps) - 1) * largest**2  # of the factors as they are in floating point
    assert loss.curvature.log_det(modulus) >= np.log1p(spread / modulus)
    (loss,) = analyse(apart_in_all, **bounds).losses
    spread = (apart * largest) ** 2 / count  # count - 1 times
    assert loss.curvature.log_det(modulus) >= (count - 1) * np.log1p(spread / modulus)
    assert loss.curvature.rank == count - 1
    (loss,) = analyse(lambda x, t: cp.log_sum_exp(cp.hstack([x * theta[0]] * count)), **bounds).losses
    assert loss.curvature.trace <= 1e-20 * largest**2  # rounding
