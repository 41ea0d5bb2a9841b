"""Rules of affine atoms: carried through entry by entry, they give the rows and the ranges of the whole expression."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from dpconvex.core.abstract_values import Scalar, Term
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression
from dpconvex.core.from_cvxpy import read
from dpconvex.core.intervals import Interval
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.record_domains import Ball, Box
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import NotPrivate
from dpconvex.language.record import Record

RECORD = Record(x=Ball(3, 2.0), s=Box(0.5, 2.0), t=Box(-1.0, 2.0))
x, s, t = (RECORD.parameters[name] for name in "xst")
v, w, W, S = (
    cp.Variable(name="v"),
    cp.Variable(3, name="w"),
    cp.Variable((2, 3), name="W"),
    cp.Variable((3, 3), name="S"),
)
A = np.random.default_rng(0).normal(size=(3, 3))

PUBLIC: dict[str, cp.Expression] = {
    "sum": v + w + W + 1,
    "negation": -W,
    "sum along an axis": cp.sum(W, axis=0) + cp.sum(W, axis=1, keepdims=True),
    "sum of everything": cp.sum(S),
    "trace": cp.trace(S),
    "cumulative sum": cp.cumsum(W, axis=0) - cp.cumsum(W, axis=1),
    "product": cp.multiply(A, S),
    "quotient": W / np.array([1.0, -2.0, 4.0]),
    "matrix products": A @ S @ A.T,
    "matrix times vector": A @ w,
    "vector times matrix": np.ones(2) @ W,
    "Kronecker products": cp.kron(A, W) + cp.kron(A, W),
    "Kronecker product, variable first": cp.kron(W, A),
    "convolutions": cp.convolve(np.array([1.0, -2.0]), w),
    "part": cp.hstack([w[::-1], W[1, :], S[[0, 2], [1, 1]]]),
    "shapes": cp.reshape(W, (3, 2), order="F") + W.T + cp.reshape(W, (3, 2), order="C"),
    "diagonals": cp.diag(w, k=1) + cp.diag(cp.hstack([cp.diag(S), v])),
    "stack": cp.vstack([W, w, cp.vec(cp.upper_tri(S), order="F")]),
}


def core(expression: cp.Expression) -> Expression:
    return read(expression, RECORD.parameters.values())


def space_of(expression: Expression) -> Space:
    return Space(sorted(expression.variables, key=lambda variable: variable.key))


def walked(expression: Expression, expander: Expander) -> list[Scalar]:
    """Apply the rules down to the variables, which lie between -1 and 1."""
    if not expression.variables:
        low, high = expander.bases.range(expander.expand(expression))
        return [Scalar(Interval(float(a), float(b))) for a, b in zip(low, high, strict=True)]
    if expression.atom is None:
        rows = dense(expander.expand(expression), expander.space.dim)
        return [Scalar(Interval(-1.0, 1.0), (Term(row[None, :]),)) for row in rows]
    assert expression.atom.rule is not None
    found: list[Scalar] = expression.atom.rule(expression, [walked(a, expander) for a in expression.args])
    return found


def dense(polynomial: Polynomial, dim: int) -> np.ndarray:
    table = np.zeros((polynomial.size, dim + 1))
    np.add.at(table, (polynomial.entry, polynomial.coordinate), polynomial.coefficient)
    return table[:, :-1]


@pytest.mark.parametrize("name", PUBLIC)
def test_gradients_are_the_rows(name: str) -> None:
    expression = core(PUBLIC[name])
    expander = Expander(space_of(expression), Bases(RECORD))
    found = walked(expression, expander)
    rows = [sum((term.rows[0] for term in entry.terms), np.zeros(expander.space.dim)) for entry in found]
    assert np.stack(rows) == pytest.approx(dense(expander.expand(expression), expander.space.dim), abs=1e-12)


@pytest.mark.parametrize(
    ("expression", "low", "high", "slopes"),
    [
        (lambda: s * v, -2.0, 2.0, (0.5, 2.0)),
        (lambda: t * v, -2.0, 2.0, (-1.0, 2.0)),
        (lambda: v / s, -2.0, 2.0, (0.5, 2.0)),
        (lambda: cp.kron(cp.reshape(s, (1, 1), order="F"), cp.reshape(v, (1, 1), order="F")), -2.0, 2.0, (0.5, 2.0)),
        (lambda: cp.convolve(cp.hstack([s, 0.0]), cp.hstack([v]))[0], -2.0, 2.0, (0.5, 2.0)),
    ],
)
def test_functions_of_the_record_are_factors(expression, low, high, slopes):
    found = core(expression())
    (entry,) = walked(found, Expander(space_of(found), Bases(RECORD)))
    assert entry.value.low == pytest.approx(low)
    assert entry.value.high == pytest.approx(high)
    assert sorted(entry.terms[0].rows.ravel().tolist()) == pytest.approx(slopes)


def test_what_reaches_zero_divides_nothing():
    found = core(v / t)
    with pytest.raises(NotPrivate, match="divisor can reach zero"):
        walked(found, Expander(space_of(found), Bases(RECORD)))
