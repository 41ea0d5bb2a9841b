"""Arithmetic of arrays that are affine in theta and polynomial in a record, against NumPy on random values."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, strategies as st

from dpconvex.core.polynomial import Polynomial, concatenate, numbered_rows

SCALARS = 4
DIM = 5
SEEDS = st.integers(0, 2**32 - 1)
SHAPES = [(), (3,), (2, 3), (1, 4), (4, 1)]


def random_polynomial(rng: np.random.Generator, shape: tuple[int, ...], with_theta: bool = True) -> Polynomial:
    """Draw a polynomial of degree at most 2 in the record; terms may repeat, as those of an unsimplified sum do."""
    size = int(np.prod(shape, dtype=int))
    terms = int(rng.integers(0, 4 * size + 1))
    coordinate = rng.integers(-1, DIM, size=terms) if with_theta else np.full(terms, -1)
    monomial = np.sort(rng.integers(-1, SCALARS, size=(terms, 2)), axis=1)
    return Polynomial(shape, rng.integers(0, size, size=terms), coordinate, monomial, rng.integers(-3, 4, terms) * 0.5)


@pytest.fixture
def point() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=SCALARS), rng.normal(size=DIM)


@given(SEEDS)
def test_collecting_keeps_the_value_and_leaves_no_equal_terms(seed):
    rng = np.random.default_rng(seed)
    at = rng.normal(size=SCALARS), rng.normal(size=DIM)
    a = random_polynomial(rng, (2,))
    doubled = concatenate([a, a], (2,), [a.entry, a.entry]).collected()
    assert doubled.evaluate(*at) == pytest.approx(2 * a.evaluate(*at), abs=1e-12)
    padded = np.pad(doubled.monomial, ((0, 0), (2 - doubled.monomial.shape[1], 0)), constant_values=-1)
    terms = np.column_stack([doubled.entry, doubled.coordinate, padded])
    assert len(np.unique(terms, axis=0)) == len(terms)
    assert (doubled.coefficient != 0).all()


def test_opposite_terms_cancel_to_nothing(point):
    x = Polynomial.scalars((2,), 0)
    theta = Polynomial.coordinates((2,), 1, sp.csr_array(np.eye(2)))
    zero = x.times(theta) + theta.times(x).scaled(-1.0)
    assert len(zero.entry) == 0
    assert zero.is_constant
    assert (zero.evaluate(*point) == 0).all()


@pytest.mark.parametrize("top", [3, 2**40])
@pytest.mark.parametrize("columns", [0, 1, 2, 3])
def test_rows_are_numbered_in_lexicographic_order(columns, top):
    rng = np.random.default_rng(columns)
    table = rng.choice([-1, 0, 1, top], size=(50, columns))
    distinct, number = numbered_rows(table)
    assert (distinct[number] == table).all()
    expected = np.unique(table, axis=0) if columns else table[:1]
    assert np.array_equal(distinct, expected)
    empty, none = numbered_rows(table[:0])
    assert empty.shape == (0, columns)
    assert len(none) == 0
