"""Ranges of bilinear forms in one record or two: they contain what is sampled, and know what is never negative."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, strategies as st

from dpconvex.calculus import bilinear_forms as forms
from dpconvex.calculus.bilinear_forms import form_range
from dpconvex.core.intervals import Interval
from dpconvex.core.record_domains import Ball, Box
from dpconvex.core.record_scalars import Bases
from dpconvex.language.record import Record

SEEDS = st.integers(0, 2**32 - 1)
RECORDS = [
    Record(x=Ball(3, 2.0)),
    Record(x=Ball(2, 0.5, norm=1), t=Box([-1.0, 0.5], [2.0, 0.75])),
    Record(x=Ball(2, 1.0), y=Ball(2, 3.0, norm=np.inf)),
    Record(t=Box(-0.5, 2.0)),
]


def monomials(record: Record, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the monomials up to degree 2 and their values at records, shape (count, monomials)."""
    scalars = Bases(record).count
    pairs = [(-1, -1)] + [(-1, j) for j in range(scalars)] + [(i, j) for i in range(scalars) for j in range(i, scalars)]
    table = np.array(pairs)
    fields = record.sample(count, rng).fields
    columns = [fields[name].reshape(count, -1) for name in record.continuous]
    return table, np.column_stack([*columns, np.ones(count)])[:, table].prod(axis=2)


def contains(interval: Interval, seen: np.ndarray) -> bool:
    slack = 1e-9 * (1 + float(np.abs(seen).max()))
    return bool(interval.low - slack <= seen.min() and seen.max() <= interval.high + slack)


def check(form: np.ndarray, table: np.ndarray, values: np.ndarray, bases: Bases) -> None:
    sparse = sp.csr_array(form)
    assert contains(form_range(sparse, table, bases, same=True), np.einsum("ni,ij,nj->n", values, form, values))
    assert contains(form_range(sparse, table, bases, same=False), values @ form @ values.T)


@given(SEEDS, st.sampled_from(RECORDS), st.sampled_from(["full", "sparse", "symmetric", "diagonal"]))
def test_ranges_contain_every_record(seed, record, kind):
    rng = np.random.default_rng(seed)
    table, values = monomials(record, 150, rng)
    form = rng.normal(size=(len(table), len(table)))
    if kind == "sparse":
        form *= rng.random(form.shape) < 0.2
    elif kind == "symmetric":
        form = form @ form.T
    elif kind == "diagonal":
        form = np.diag(np.diag(form))
    check(form, table, values, Bases(record))


@given(SEEDS, st.sampled_from(RECORDS[:1] + RECORDS[3:]))
def test_isotropic_forms_are_exact_polynomials_of_the_inner_product(seed, record):
    """With one base, c0 + c1 <z, z'> + c2 <z, z'>^2 has the range of a quadratic on the range of the inner product."""
    rng = np.random.default_rng(seed)
    bases = Bases(record)
    table, values = monomials(record, 150, rng)
    coefficients = rng.normal(size=3)
    degree = (table >= 0).sum(axis=1)
    form = np.diag(coefficients[degree] * bases.multiplicity(table))
    check(form, table, values, bases)
    for same, (low, high) in ((True, bases.bases[0].squared), (False, bases.bases[0].paired)):
        t = np.linspace(low, high, 20001)
        image = coefficients[0] + coefficients[1] * t + coefficients[2] * t**2
        found = form_range(sp.csr_array(form), table, bases, same)
        scale = np.abs(coefficients).sum() * (1 + high**2)
        assert found.low >= image.min() - 1e-6 * scale
        assert found.high <= image.max() + 1e-6 * scale


@given(SEEDS)
def test_large_blocks_fall_back_to_valid_bounds(seed):
    """Without eigenvalues of large blocks the ranges are wider, never narrower."""
    rng = np.random.default_rng(seed)
    record = RECORDS[1]
    table, values = monomials(record, 100, rng)
    form = rng.normal(size=(len(table), len(table)))
    bases = Bases(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "LARGEST_DENSE", 1)
        check(form, table, values, bases)
        block = sp.csr_array(rng.normal(size=(7, 5)))
        assert forms.singular_bound(block) >= np.linalg.norm(block.toarray(), 2) * (1 - 1e-12)
        square = rng.normal(size=(6, 6))
        low, high = forms.eigenvalue_range(sp.csr_array(square))
        exact = np.linalg.eigvalsh((square + square.T) / 2)
        assert low <= exact[0]
        assert exact[-1] <= high


@given(*[st.floats(-10, 10) for _ in range(4)])
def test_interval_arithmetic(a, b, c, d):
    first, second = Interval(min(a, b), max(a, b)), Interval(min(c, d), max(c, d))
    grid = np.linspace(0, 1, 7)
    u, v = (i.low + grid * (i.high - i.low) for i in (first, second))
    for result, seen in [
        (first + second, u[:, None] + v),
        (first * second, u[:, None] * v),
        (first.power(2), u**2),
        (first.power(3), u**3),
        (first.power(4), u**4),
    ]:
        slack = 1e-9 * (1 + np.abs(seen).max())
        assert result.low - slack <= seen.min()
        assert seen.max() <= result.high + slack
    if max(first.low, second.low) <= min(first.high, second.high):
        assert (first.meet(second)) == Interval(max(first.low, second.low), min(first.high, second.high))
