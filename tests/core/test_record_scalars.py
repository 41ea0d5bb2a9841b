"""Bounds of functions of the record: never below what sampled records reach, and exact where they should be."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpconvex.core.expansion import Bases, Expander
from dpconvex.core.from_cvxpy import read
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.record_domains import Ball, Box
from dpconvex.language.record import Record

SEEDS = st.integers(0, 2**32 - 1)
RECORD = Record(
    a=Ball(3, 2.0, norm=1),
    b=Ball(2, 0.5),
    c=Ball(2, 1.5, norm=np.inf),
    d=Box([0.5, -2.0], [1.0, 3.0]),
    e=Box(-1.0, -0.25),
)


def scalars(record: Record, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw records as rows of all their scalars, in the order of the bases."""
    fields = record.sample(size, rng).fields
    return np.concatenate([fields[name].reshape(size, -1) for name in record.continuous], axis=1)


def draw(rng: np.random.Generator, entries: int, count: int, degree: int) -> Polynomial:
    terms = 3 * entries
    monomial = np.sort(rng.integers(-1, count, size=(terms, degree)), axis=1)
    return Polynomial(
        (entries,), rng.integers(0, entries, terms), np.full(terms, -1), monomial, rng.normal(size=terms)
    ).collected()


def values(polynomial: Polynomial, records: np.ndarray) -> np.ndarray:
    return np.stack([polynomial.evaluate(record, np.zeros(0)) for record in records])


@given(SEEDS, st.integers(0, 4))
def test_ranges_and_norms_contain_every_record(seed, degree):
    rng = np.random.default_rng(seed)
    bases = Bases(RECORD)
    polynomial = draw(rng, 4, bases.count, degree)
    seen = values(polynomial, scalars(RECORD, 200, rng))
    low, high = bases.range(polynomial)
    slack = 1e-9 * (1 + np.abs(seen).max())
    assert (low - slack <= seen.min(axis=0)).all()
    assert (high + slack >= seen.max(axis=0)).all()
    assert bases.norm(polynomial) + slack >= np.linalg.norm(seen, axis=1).max()


def test_the_norm_of_a_stack_uses_the_matrix_and_not_its_rows():
    bases = Bases(Record(x=Ball(3, 1.0)))
    matrix = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
    assert bases.norm(bases.polynomials["x"].linear(matrix, (3,))) == pytest.approx(np.sqrt(2))
    assert bases.norm(bases.polynomials["x"]) == pytest.approx(1.0)
    assert bases.norm(Polynomial.constant(np.array([3.0, 4.0]))) == pytest.approx(5.0)


def test_cauchy_schwarz_counts_equal_entries_of_a_tensor_power():
    """(x + y)^2 on the unit disc is at most 2: its cross term stands for two entries of the tensor square."""
    bases = Bases(Record(x=Ball(2, 1.0)))
    monomial = np.array([[0, 0], [0, 1], [1, 1]])
    assert bases.multiplicity(monomial).tolist() == [1.0, 2.0, 1.0]
    square = Polynomial((), np.zeros(3, int), np.full(3, -1), monomial, np.array([1.0, 2.0, 1.0]))
    assert bases.range(square)[1] == pytest.approx(2.0)


@given(SEEDS)
def test_inner_products_of_one_and_of_two_records(seed):
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.normal(size=(2, 3)), axis=0)
    record = Record(x=Box(ends[0], ends[1]))
    (base,) = Bases(record).bases
    x, y = scalars(record, 300, rng), scalars(record, 300, rng)
    for (low, high), seen in [(base.squared, (x * x).sum(axis=1)), (base.paired, (x * y).sum(axis=1))]:
        assert low - 1e-12 <= seen.min()
        assert seen.max() <= high + 1e-12


FUNCTIONS = Record(
    x=Ball(3, 2.0),
    u=Ball(3, 1.5, norm=1),
    m=Ball(2, 0.5, norm=np.inf),
    s=Box(0.5, 2.0),
    t=Box([-2.0, -1.0], [-0.5, 3.0]),
)
x, u, m, s, t = FUNCTIONS.parameters.values()


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        (lambda: cp.exp(s), np.exp(0.5), np.exp(2.0)),
        (lambda: cp.abs(s - 1), 0.0, 1.0),
        (lambda: cp.maximum(s, 1), 1.0, 2.0),
        (lambda: cp.minimum(s, 1), 0.5, 1.0),
        (lambda: cp.inv_pos(s), 0.5, 2.0),
        (lambda: cp.norm(x, 2), 0.0, 2.0),
        (lambda: cp.norm(x, 1), 0.0, 2.0 * np.sqrt(3)),
        (lambda: cp.norm(m, 1), 0.0, 1.0),
        (lambda: cp.norm(u, 2), 0.0, 1.5),
        (lambda: cp.norm(t, 2), 0.5, np.sqrt(13)),
    ],
)
def test_sharp_where_the_function_allows(expression, low, high):
    read_expression = read(expression(), FUNCTIONS.parameters.values())
    below, above = Expander(Space([]), Bases(FUNCTIONS)).bounds(read_expression)
    assert below == pytest.approx([low], abs=1e-12)
    assert above == pytest.approx([high])
