"""Products by parts: exact sums, the same bits for a record whatever is beside it, and as exact as is claimed."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpconvex.evaluation.exact_products import FEWEST_BITS, MOST_BITS, CutRows, bits_for, cut, pays


@pytest.mark.parametrize("terms", [1, 2, 64, 65, 100, 3969, 4096, 4097, 2**17])
def test_sums_of_products_are_exact(terms):
    bits = bits_for(terms)
    assert terms * 2 ** (2 * bits) <= 2**53
    assert bits == MOST_BITS or bits >= FEWEST_BITS
    assert not pays(10, 2**17 + 1)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(64, 300), st.floats(-300, 300), st.booleans())
def test_products_are_as_exact_as_is_claimed(seed, terms, decades, coarse):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9, terms)) * rng.choice([1e-9, 1.0, 30.0, 0.0], size=(9, terms)) * 10.0**decades
    rows = rows.astype(np.float32).astype(float) if coarse and abs(decades) < 30 else rows
    weights = rng.normal(size=(4, terms)) * rng.choice([1e-7, 1.0], size=(4, terms))
    exact = (weights.astype(np.longdouble)[:, None] * rows.astype(np.longdouble)).sum(axis=2)
    largest = np.abs(weights).max(axis=1)[:, None] * np.abs(rows).max(axis=1)
    error = np.abs(CutRows.of(rows).product(weights) - exact)
    # Frexp rounds scales up to powers of two: by up to 2 for each factor; and six terms are added in floating point.
    assert (error <= terms * 2.0**-53 * 4 * largest + 8 * 2.0**-53 * (np.abs(weights) @ np.abs(rows).T)).all()


def test_parts_are_whole_numbers_that_make_up_the_row():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 100)) * 10.0 ** rng.uniform(-8, 8, size=(5, 1))
    bits = bits_for(100)
    parts, exponent = cut(rows, bits)
    assert all((part == np.rint(part)).all() and np.abs(part).max() <= 2**bits for part in parts)
    whole = sum(np.ldexp(part.astype(np.longdouble), -bits * (k + 1)) for k, part in enumerate(parts))
    left = np.abs(np.ldexp(whole, exponent[:, None]) - rows)
    assert (left <= np.ldexp(1.0, exponent - 3 * bits - 1)[:, None]).all()


def test_a_record_has_the_same_bits_alone_permuted_and_beside_others():
    rng = np.random.default_rng(1)
    rows, weights = rng.normal(size=(700, 200)), rng.normal(size=(5, 200))
    rows[:350] = np.round(rows[:350] * 16) / 16  # these need one part alone
    rows[5], rows[6, 3], rows[7, 4] = 0.0, np.inf, np.nan
    with np.errstate(all="ignore"):
        whole = CutRows.of(rows).product(weights)
        for some in (np.array([3]), np.arange(350), rng.permutation(700), np.array([6, 699, 5, 7])):
            assert np.array_equal(CutRows.of(rows[some]).product(weights), whole[:, some], equal_nan=True)
    assert len(CutRows.of(rows[8:350]).parts) == 1
    assert len(CutRows.of(rows[350:]).parts) == 3
