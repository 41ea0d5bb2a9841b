"""Normal forms are the same functions, fewer of them, and what is in normal form stays the object that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.core.discipline import is_convex
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression
from dpconvex.core.from_cvxpy import Reader
from dpconvex.core.normal_form import normal_form
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_scalars import Bases

D, C = 2, 3
w, v = cp.Variable(D, name="w"), cp.Variable(D, name="v")
W = cp.Variable((D, C), name="W")
RECORD = dp.Record(x=dp.Ball(D), s=dp.Box(0, 2), t=dp.Box(-1, 1))
x, s, t = (RECORD.parameters[name] for name in "xst")
m, k = x @ w, x @ v + t
VARIABLES = [w, v, W]
lse, logistic = cp.log_sum_exp, cp.logistic


unknown = cp.Parameter(name="unknown")  # a field, but of another record
READER = Reader([*RECORD.parameters.values(), unknown])


def read(loss: cp.Expression) -> Expression:
    return READER.expression(loss, "the loss")


SPACE = Space([read(variable) for variable in VARIABLES])


def normalised(loss: Expression) -> Expression:
    return normal_form(loss, Expander(SPACE, Bases(RECORD)))


def values(expression: Expression, seed: int) -> float:
    """Evaluate at a random record and random parameters."""
    rng = np.random.default_rng(seed)
    leaves = {
        leaf.name(): np.abs(rng.normal(size=leaf.shape)) if leaf is s else 3 * rng.normal(size=leaf.shape)
        for leaf in (*VARIABLES, x, s, t)
    }
    return float(evaluate(expression, leaves).item())


def same(first: Expression, second: Expression) -> None:
    for seed in range(5):
        assert values(first, seed) == pytest.approx(values(second, seed), rel=1e-11, abs=1e-11)


REWRITTEN: list[tuple[Any, Any]] = [
    (lambda: 0.5 * logistic(m) + logistic(m) / 2, lambda: logistic(m)),
    (lambda: logistic(m) - m, lambda: logistic(-m)),
    (lambda: 2 * logistic(m - t) - 2 * m, lambda: 2 * logistic(t - m) - 2 * t),
    (lambda: logistic(m) + 0.25 * m, lambda: lse(cp.hstack([m / 4, 1.25 * m]))),
    (lambda: lse(cp.hstack([0, m])), lambda: logistic(m)),
    (lambda: lse(cp.hstack([m, t])), lambda: logistic(m - t) + t),
    (lambda: lse(cp.hstack([m, k])) - k, lambda: logistic(m - k)),
    (lambda: lse(x @ W) - x @ W[:, 1], lambda: lse(x @ W - x @ W[:, 1])),
    (lambda: s * (lse(x @ W) - x @ W[:, 1]), lambda: s * lse(x @ W - x @ W[:, 1])),
    (lambda: cp.max(x @ W) - x @ W[:, 1], lambda: cp.max(x @ W - x @ W[:, 1])),
    (lambda: cp.maximum(m, k, 0) - k, lambda: cp.maximum(m - k, 0, -k)),
    (lambda: cp.pos(m) - m, lambda: cp.pos(-m)),
    (lambda: -cp.minimum(m, k, 1), lambda: cp.maximum(-m, -k, -1)),
    (lambda: cp.huber(cp.neg(m)), lambda: cp.huber(cp.pos(-m))),
    (lambda: cp.norm(w - x) ** 2, lambda: cp.sum_squares(w - x)),
    (lambda: s * logistic(m) / 2 + 0.5 * (s * logistic(m)), lambda: s * logistic(m)),
    (lambda: dp.huber_hinge(1 + lse(x @ W) - m, 1), lambda: dp.huber_hinge(1 + lse(x @ W - m), 1)),
    (lambda: cp.exp(cp.square(m) / 2 + cp.square(m) / 2), lambda: cp.exp(cp.square(m))),
]


@pytest.mark.parametrize("number", range(len(REWRITTEN)))
def test_what_is_rewritten_is_the_same_function(number: int) -> None:
    written, expected = (read(make()) for make in REWRITTEN[number])
    found = normalised(written)
    assert found is not written
    assert is_convex(found)
    same(written, found)
    same(expected, found)
    assert curved(found) == curved(expected)


def curved(expression: Expression) -> list[str]:
    """Return the names of the atoms that are not affine, as often as they are written."""
    own = (
        []
        if expression.atom is None or expression.is_affine or expression.atom.affine != "curved"
        else [expression.atom.name]
    )
    return sorted([*own, *(name for argument in expression.args for name in curved(argument))])


@pytest.mark.parametrize(
    "written",
    [
        logistic(-m),
        lse(x @ W),
        lse(cp.hstack([m, k])),
        lse(x @ W - x @ W[:, 0]),
        0.5 * dp.huber_hinge(1 + lse(cp.hstack([m, k])), 0.5) + cp.sum(cp.huber(x @ W)),
        logistic(m) + logistic(k),
        logistic(m) + cp.huber(m) - m / 3,
        cp.maximum(0.3 * m, -0.7 * m),
        cp.square(m - t) + cp.abs(k),
        cp.pos(m) + k,
        s * logistic(m),
        cp.huber(m, 1) + cp.huber(m, 2),
        cp.abs(m) + cp.abs(m * (1 + 1e-15)),
        cp.sum_squares(w - x) + cp.quad_form(v, 2 * np.eye(D)),
        cp.quad_over_lin(m, 2 + v[0]) + cp.quad_over_lin(m, -2 - v[0]),
        cp.kl_div(1 + s, 2 + s) + cp.exp(m) - t * m,
    ],
    ids=str,
)
def test_what_is_in_normal_form_stays_as_it_is(written: cp.Expression) -> None:
    assert normalised(read(written)) is read(written)


@pytest.mark.parametrize(
    "written",
    [
        logistic(m) - 2 * cp.huber(m) + logistic(m),
        -cp.pos(m) - cp.pos(m),
        lse(cp.hstack([cp.log(m), 0])) - m,
        logistic(m) - unknown * m + logistic(m),
        1e-200 * (1e-200 * logistic(m)) + logistic(k) + logistic(k),
    ],
    ids=["concave term", "concave", "not convex", "not a field", "rounds to zero"],
)
def test_what_is_refused_or_cannot_be_read_stays_as_it_is(written: cp.Expression) -> None:
    assert normalised(read(written)) is read(written)


def test_small_differences_of_large_numbers_are_exact() -> None:
    # 1e16 m + m - 1e16 m is m, although rounded sums of these numbers are 0.
    hidden = cp.sum(cp.multiply(np.array([1e16, 1.0, -1e16]), cp.hstack([m, m, m])))
    found = normalised(read(lse(cp.hstack([hidden, k])) - k))
    assert "logistic" in str(found)
    found = normalised(read(lse(cp.hstack([hidden + k, m])) - m))  # k is what is left of the first entry
    assert "logistic" in str(found)
    nearly = normalised(read(logistic(m) - (1 + 1e-15) * m))
    assert "logistic" not in str(nearly)


ATOMS: list[Callable[[Any], Any]] = [
    logistic,
    cp.huber,
    cp.pos,
    cp.abs,
    cp.square,
    lambda z: lse(cp.hstack([z, 0.5])),
    lambda z: lse(cp.hstack([z, -z])),
    lambda z: lse(x @ W + z),
    lambda z: cp.max(x @ W - z),
    lambda z: -cp.minimum(z, 1),
    lambda z: cp.norm(cp.hstack([z, 1])),
    lambda z: dp.huber_hinge(lse(cp.hstack([z, 0])) + z, 0.5),
]
AFFINE = [m, k, -m, m - k, 2 * m + 1, x @ W[:, 0], w[0], cp.Constant(0.5), t]
terms = st.tuples(st.integers(0, len(ATOMS) - 1), st.sampled_from(AFFINE), st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]))


@given(
    parts=st.lists(terms, min_size=1, max_size=4),
    shift=st.lists(st.sampled_from(AFFINE), max_size=2),
    outer=st.booleans(),
)
@settings(max_examples=40)
def test_sums_of_anything_keep_their_values(parts: list[Any], shift: list[Any], outer: bool) -> None:
    total = sum(c * ATOMS[index](argument) for index, argument, c in parts) - sum(shift)
    written = read(cp.logistic(total) + total if outer else total)
    found = normalised(written)
    same(written, found)
    assert is_convex(found)
    assert normalised(found) is found or normalised(normalised(found)) is normalised(found)


def test_derivations_speak_of_what_was_written() -> None:
    template = dp.Template(
        record=dp.Record(x=dp.Ball(D)),
        loss=lambda x: cp.log_sum_exp(cp.hstack([0, x @ w])),
        regularizer=0.1 * cp.sum_squares(w),
    )
    assert template.losses[0] is not template.written[0]
    certificate = dp.verify(template, dp.Privacy(1.0), 100, dp.ObjectivePerturbation())
    text = "\n".join(certificate.derivation.lines())
    assert "log_sum_exp" in text
    assert "logistic" in text
    assert "in normal form" in text
