"""Slopes and Hessians of every atom against differences of its values, and against JAX."""

from typing import Any

import numpy as np
import pytest
from atom_cases import CASES, Case, full

from dpconvex.core.atoms import arithmetic, exponentials, powers
from dpconvex.core.expression import Variable
from dpconvex.core.runtime import double_precision
from dpconvex.core.summation import PIECE
from dpconvex.evaluation.devices import compiled
from dpconvex.evaluation.programs import Lowered, gradient, hessian_product, lowered

EVERY = pytest.mark.parametrize("name", CASES)
# No loss or regularizer with these has a Hessian.
SPECTRAL = ("lambda_max", "sigma_max", "norm_nuc")
STEP = 1e-6


def prepared(case: Case, records: int) -> tuple[Lowered, np.ndarray, np.ndarray]:
    """A scalar function of an atom, points, and directions that stay in its domain."""
    rng, built, rows, start = np.random.default_rng(0), case.expression(), {}, 0
    for leaf in case.leaves():
        rows[leaf], start = np.arange(start, start + leaf.size), start + leaf.size
    # A sum of squares has a curvature of its own, which shows Hessians of arguments and of slopes.
    own = lowered(arithmetic.total(built * rng.normal(size=built.shape) + powers.square(built) / 2), rows)
    here, there = ([case.point(rng) for _ in range(records)] for _ in range(2))
    tables = [
        np.array([np.concatenate([np.ravel(p, "F") for p in point]) for point in some]).T for some in (here, there)
    ]
    return own, tables[0][own.place], (tables[1] - tables[0])[own.place]


@EVERY
def test_slopes_and_hessians(name: str) -> None:
    for case in full(name):
        own, entries, along = prepared(case, 3)
        slopes = gradient(own.program, own.constants, entries, [], 3)[1]
        ahead, behind = (gradient(own.program, own.constants, entries + sign * STEP * along, [], 3) for sign in (1, -1))
        size = 1 + np.abs(ahead[0])
        change = (ahead[0] - behind[0]) / (2 * STEP)
        assert (np.abs(np.sum(slopes * along, axis=0) - change) <= 1e-6 * size).all(), str(case)
        if name not in SPECTRAL:
            bend = (ahead[1] - behind[1]) / (2 * STEP)
            found = hessian_product(own.program, own.constants, entries, along, [], 3)
            assert found == pytest.approx(bend, rel=1e-4, abs=1e-6 * (1 + np.abs(bend).max(initial=0.0))), str(case)


@EVERY
def test_compiled_functions_agree(name: str) -> None:
    pytest.importorskip("jax")
    own, entries, _ = prepared(full(name)[-1], 1)
    values, slopes = gradient(own.program, own.constants, entries, [], 1)
    with double_precision():
        value, slope = compiled(own.program)(entries[:, 0], own.constants, (np.eye(1, PIECE)[0],))
        assert float(value) == pytest.approx(values[0], rel=1e-11)
        assert np.asarray(slope) == pytest.approx(slopes[:, 0], rel=1e-11, abs=1e-11)


def test_logistic_slopes_far_out() -> None:
    leaf: Any = Variable.of((), "m", 4)
    own = lowered(exponentials.logistic(leaf), {leaf: np.arange(1)})
    values, slopes = gradient(own.program, (), np.array([[-1e300, -1000.0, 1000.0, 1e300]]), [], 4)
    assert values == pytest.approx([0.0, 0.0, 1000.0, 1e300])
    assert slopes == pytest.approx(np.array([[0.0, 0.0, 1.0, 1.0]]))
