"""Slopes and Hessians of every atom against differences of its values, and against JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpconvex.core.atom import ATOMS
from dpconvex.core.atoms import (
    arithmetic,
    arrangement as place,
    exponentials,
    extremes,
    matrices,
    norms,
    powers,
)
from dpconvex.core.atoms.exponentials import rel_entr
from dpconvex.core.atoms.powers import DECLARED
from dpconvex.core.expression import Expression, Field, Variable
from dpconvex.core.runtime import double_precision
from dpconvex.evaluation.devices import compiled
from dpconvex.evaluation.programs import Lowered, gradient, hessian_product, lowered

V, W, S = Variable.of((4,), "v", 1), Variable.of((2, 3), "W", 2), Variable.of((3, 3), "S", 3)
T, X, A = Field.of((), "t"), Field.of((4,), "x"), Field.of((2, 3), "A")


class Square:
    """A function with declared constants, of which only values and slopes are asked for here."""

    name, slope, lower = "cosine", (-np.inf, np.inf), -np.inf

    def evaluate(self, a: Any, order: int = 0, xp: Any = np) -> Any:
        return (xp.cosh(a), xp.sinh(a), xp.cosh(a))[order]

    def attack(self) -> dict[str, float]:
        return {}


positive = powers.square(V) + 0.5
CASES: dict[str, Callable[[], Expression]] = {
    "index": lambda: W[1, ::-1] * V[1:],
    "select": lambda: V[[0, 2, 0]] * X[:3],
    "reshape": lambda: place.reshape(W, (3, 2)) @ A,
    "transpose": lambda: place.transpose(W) @ A + S,
    "broadcast": lambda: place.repeated(W[:1], (4, 3)) + V[0],
    "concatenate": lambda: place.vstack(W, A, 2 * W[0]) + place.CONCATENATE(W, W * T, W[:1], axis=0)[:5, :],
    "add": lambda: V + X + V[1] + 1.0,
    "negate": lambda: -V,
    "sum": lambda: arithmetic.total(W * A, (0,)) + arithmetic.total(W, (1,), keepdims=True)[0],
    "multiply": lambda: V * X * V,
    "divide": lambda: V / (powers.square(V) + 1) + V / 2,
    "matmul": lambda: W @ S @ (place.transpose(A) @ W)[0] + W @ np.ones(3)[0:3] + (X[:2] @ W) @ S @ S[0],
    "exp": lambda: exponentials.EXP(V),
    "log": lambda: exponentials.LOG(positive),
    "xexp": lambda: exponentials.XEXP(V),
    "logistic": lambda: exponentials.logistic(3 * V),
    "log_sum_exp": lambda: (
        exponentials.log_sum_exp(W, (0,)) + exponentials.log_sum_exp(W) + exponentials.log_sum_exp(W, (1,), True)
    ),
    "rel_entr": lambda: rel_entr(positive, powers.square(X) + positive),
    "huber": lambda: powers.huber(V, 0.5),
    "abs": lambda: powers.ABS(V),
    "power": lambda: (
        powers.power(V, 2) + powers.power(V, 6) + powers.power(positive, 1.5) + powers.power(positive, -0.5)
    ),
    "quad_over_lin": lambda: norms.quad_over_lin(W, 1.5 + V[0], (1,)) + norms.sum_squares(W * A),
    "maximum": lambda: extremes.maximum(V, 0.1, 2 * X),
    "max": lambda: extremes.largest_entry(W, (1,)) + extremes.largest_entry(W),
    "sum_largest": lambda: extremes.SUM_LARGEST(W, k=2),
    "norm": lambda: (
        norms.norm(W) + norms.norm(W, 1, (0,)) + norms.norm(W[0], 3) + norms.norm(V, np.inf) + norms.norm(W, 2, (0,))
    ),
    "lambda_max": lambda: matrices.LAMBDA_MAX(S + place.transpose(S)),
    "sigma_max": lambda: matrices.SIGMA_MAX(W),
    "norm_nuc": lambda: matrices.NORM_NUC(W),
    "log_det": lambda: matrices.LOG_DET(S @ place.transpose(S) + np.eye(3)),
    "declared": lambda: DECLARED(V, declaration=Square()),
}

# No loss or regularizer with these has a Hessian.
SPECTRAL = ("lambda_max", "sigma_max", "norm_nuc")


def test_every_atom_is_tried() -> None:
    assert set(CASES) == set(ATOMS)


def in_columns(variables: list[Variable]) -> dict[Expression, np.ndarray]:
    ends = np.cumsum([v.size for v in variables])
    return {v: np.arange(end - v.size, end) for v, end in zip(variables, ends, strict=True)}


def prepared(name: str, records: int) -> tuple[Lowered, np.ndarray, np.ndarray, Any]:
    rng = np.random.default_rng(0)
    built = CASES[name]()
    # A sum of squares has a curvature of its own, which shows Hessians of arguments and of slopes.
    root = arithmetic.total(built * rng.normal(size=built.shape) + powers.square(built) / 2)
    own = lowered(root, in_columns(sorted(root.variables, key=lambda v: v.key)))
    values = rng.normal(size=(2, len(own.place), records))
    shapes = [slot.shape for slot in own.program.fields]
    return own, *values, [rng.normal(size=(records, *shape)) for shape in shapes]


def test_logistic_slopes_far_out() -> None:
    leaf = Variable.of((), "m", 4)
    own = lowered(exponentials.logistic(leaf), in_columns([leaf]))
    values, slopes = gradient(own.program, (), np.array([[-1e300, -1000.0, 1000.0, 1e300]]), [], 4)
    assert values == pytest.approx([0.0, 0.0, 1000.0, 1e300])
    assert slopes == pytest.approx(np.array([[0.0, 0.0, 1.0, 1.0]]))


@pytest.mark.parametrize("name", CASES)
def test_slopes_and_hessians(name: str) -> None:
    own, entries, along, fields = prepared(name, 5)
    outer = own.program, own.constants
    slopes = gradient(*outer, entries, fields, 5)[1]
    step = 1e-5
    ahead, behind = (gradient(*outer, entries + sign * step * along, fields, 5) for sign in (1, -1))
    change = (ahead[0] - behind[0]) / (2 * step)
    assert np.sum(slopes * along, axis=0) == pytest.approx(change, rel=1e-6, abs=1e-6)
    bend = (ahead[1] - behind[1]) / (2 * step)
    if name not in SPECTRAL:
        assert hessian_product(*outer, entries, along, fields, 5) == pytest.approx(bend, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_compiled_functions_agree(name: str) -> None:
    pytest.importorskip("jax")
    own, entries, _, fields = prepared(name, 2)
    summed, (values, slopes) = compiled(own.program), gradient(own.program, own.constants, entries, fields, 2)
    for k in range(2):
        record = np.ones(1), *(field[k : k + 1] for field in fields)
        with double_precision():
            value, slope = summed(entries[:, k], own.constants, record)
            assert float(value) == pytest.approx(values[k], rel=1e-11)
            assert np.asarray(slope) == pytest.approx(slopes[:, k], rel=1e-11, abs=1e-11)
