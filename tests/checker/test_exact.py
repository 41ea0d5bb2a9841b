"""Bounds of functions from below and above, and what is read, strictly."""

import json
import math
from dataclasses import fields
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings, strategies as st
from refused import refused
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import chi

import dpconvex as dp
from dpconvex.accounting.events import Event
from dpconvex.checker import Rejected, check, exact
from dpconvex.checker.exact import PI, exp, hazard, log, normal_tail, pivots, root, spectrum
from dpconvex.checker.gaussian import chi_delta, falling_slope_delta
from dpconvex.checker.reading import MOST_STEPS, Steps, number
from dpconvex.checker.scalar_bounds import hull_sum, merge_segments
from dpconvex.checker.table import TABLES
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet
from dpconvex.expressions.atoms import normal
from dpconvex.expressions.atoms.normal import NEG_LOG_NORMCDF
from dpconvex.expressions.expression import Variable
from dpconvex.noise import profiles
from dpconvex.noise.profiles import moving_delta
from dpconvex.numerics import Interval

CLOSE = 1e-13


@pytest.fixture(autouse=True)
def all_steps(monkeypatch):
    """Give back the steps that a check before this test used: parts of the checker are called here without one."""
    monkeypatch.setattr(Steps, "left", MOST_STEPS)


def encloses(ends, value, width=1e-30):
    low, high = ends
    assert low <= high <= low + Fraction(width) * max(abs(low), abs(high), Fraction(1, 10**18))
    assert float(low) <= value + CLOSE * abs(value)
    assert float(high) >= value - CLOSE * abs(value)


@given(st.floats(-200, 200), st.floats(1e-200, 1e200), st.floats(-12, 9))
def test_functions_lie_between_their_bounds(x, y, t):
    Steps.left = 10**6
    encloses(exp(Fraction(x)), math.exp(x))
    encloses(root(Fraction(y)), math.sqrt(y))
    assert exp(log(Fraction(y)))[1] >= y > exp(log(Fraction(y)) - Fraction(1, 10**22))[0]
    encloses(normal_tail(Fraction(t)), float(ndtr(-t)), 1e-12)
    encloses(PI, math.pi)


@given(st.floats(5, 37))
def test_far_tails_are_known_to_eighty_bits(t):
    """Those of large guarantees are differences of two: true proofs were rejected from epsilon = 60 on."""
    Steps.left = 10**6
    low, high = normal_tail(Fraction(t))
    assert low <= high <= low * (1 + Fraction(1, 2**80))
    assert float(low) == pytest.approx(ndtr(-t), rel=1e-12)
    # They differ by what lies between, whose density falls: at a finer scale than floating point has.
    further = normal_tail(Fraction(t) + Fraction(1, 2**30))
    density = exp(-(Fraction(t) ** 2) / 2)[1] / root(2 * PI[0])[0]
    assert 0 < low - further[1] <= high - further[0] <= density / 2**30


@given(st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=3), st.integers(0, 2))
def test_squares_are_semidefinite_and_less_than_they_are_is_not(rows, k):
    Steps.left = 1000
    square = [[Fraction(sum(r[i] * r[j] for r in rows)) for j in range(3)] for i in range(3)]
    assert math.prod(pivots(square)) == round(np.linalg.det(np.array(square, dtype=float)))
    square[k][k] = Fraction(-1) if square[k][k] == 0 else -square[k][k]
    assert pivots(square) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_exactly(x):
    assert number(x.hex()) == Fraction(x)


NO_PROOF = [b"", b"[]", b"{}", b"null", b"[" * 10**6, b'{"a": NaN}', b'{"a": 1.5}', b"\xff", b" " * (2**23 + 1)]
NO_PROOF += [b'{"format": "dpconvex proof 1", "format": 1}', b'{"format": "dpconvex proof 2"}']
NO_PROOF += [b'{"format": "dpconvex proof 1", "n": 1' + b"0" * 5000 + b"}"]


@pytest.mark.parametrize("text", NO_PROOF)
def test_what_is_no_proof_is_rejected(text):
    refused(Rejected, None, check, text)


# What curvature adds under normal noise, as the checker bounds it: above the largest value, and no looser than the calculus
@example(7.78125, 0.46875, 1e-6)  # largest at an end of the range of noise
@given(st.floats(0.01, 8), st.floats(1e-3, 4), st.floats(1e-6, 3))
def test_what_curvature_adds_is_bounded_and_no_looser_than_the_calculus(epsilon, length, curved):
    Steps.left = 10**6
    found = float(falling_slope_delta(Fraction(epsilon), Fraction(length), Fraction(curved)))
    noise = np.linspace(0.0, 12.0, 20_001)
    left = epsilon - length * noise - length**2 / 2
    seen = np.minimum(-np.expm1(left - curved), -np.expm1(-curved)) / -np.expm1(-curved)
    largest = float((np.exp(-(noise**2) / 2) * np.maximum(seen, 0.0)).max()) / np.sqrt(2 * np.pi)
    assert largest * (1 - 1e-9) <= found <= float(moving_delta(epsilon, length, curved)) * (1 + 1e-9)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.3, 8), st.integers(1, 12), st.floats(0.2, 0.95))
def test_the_law_of_a_norm_is_bounded_and_no_looser_than_in_the_calculus(epsilon, dimension, part):
    Steps.left, shift = 10**6, part * epsilon / (2 + np.sqrt(dimension))
    found = float(chi_delta(Fraction(epsilon), dimension, Fraction(shift)))
    start = epsilon / shift - shift / 2
    assume(start < 11)  # normal tails are coarser beyond 12
    density = lambda t: -np.expm1(-shift * (t - start)) * chi.pdf(t, dimension)  # noqa: E731
    true = quad(density, start, start + 30, epsabs=0, limit=500)[0]
    assert true * (1 - 1e-7) <= found <= profiles.chi_delta(epsilon, dimension, shift)


# The exact logarithm of the normal distribution function, against exact bounds in rational numbers
# Far out on both sides, where terms are many or few, and near the point where series give way to fractions.
POINTS = [*np.linspace(-12, 12, 97), -8.0, np.nextafter(-8, -9), -1e-300, 0.0, -37.5, -300.0, -1e5, 30.0, 45.0]


def tail(t, terms=400):
    """Bound the hazard rate at t >= 0 by other means than the checker: the continued fraction, of many terms, from both ends."""
    low, high = t, t + (terms + 1) / t
    for k in range(terms, 0, -1):
        low, high = t + Fraction(k) / high, t + Fraction(k) / low
        low, high = (Fraction(int(end * 2**200) + up, 2**200) for up, end in enumerate((low, high)))
    return low, high


@pytest.mark.parametrize("t", [1, 2, 7.99, 8, 8.01, 20, 1000])
def test_exact_hazard_rates_are_those_of_a_longer_fraction(t):
    ours, other = hazard(Fraction(t)), tail(Fraction(t))
    assert ours[0] <= ours[1] <= ours[0] * (1 + Fraction(1, 2**60))
    assert ours[0] <= other[1]
    assert other[0] <= ours[1]
    assert other[1] - other[0] < Fraction(1, 10**8) or t < 7


@pytest.mark.parametrize("m", POINTS)
def test_values_slopes_and_curvatures_are_within_the_bounds_of_the_rule(m):
    """h at -m, exactly; the density over it is the distribution function, whose logarithm is bounded by exponentials."""
    exact = Fraction(m)
    low, high = hazard(-exact)
    steep = float(normal.hazard(m))
    (entry,) = NEG_LOG_NORMCDF.bounds(None, [[AbstractValue(Interval(m, m), (GradientSet(np.eye(1)),))]])
    slope, (piece,) = entry.terms[0], entry.pieces
    least, most = -slope.rows.max(), -slope.rows.min()
    assert Fraction(least) <= low <= high <= Fraction(most)
    assert most == pytest.approx(steep, rel=1e-10, abs=1e-300)
    assert high * (high + exact) <= Fraction(piece.outer) <= 1
    assert piece.outer == pytest.approx(min(1.0, float(low * (low + exact))), rel=1e-8, abs=1e-8 if m > -100 else 1e-3)
    if abs(m) < 60:  # exp of the value is one over the distribution function
        inside = normal_tail(-exact)
        assert exp(-Fraction(entry.value.high))[0] <= inside[1]
        assert exp(-Fraction(entry.value.low))[1] >= inside[0]


@pytest.mark.parametrize(("low", "high"), [(-3.0, 2.0), (-40.0, -1.0), (0.5, 50.0), (-1.0, np.inf)])
def test_ranges_hold_what_is_inside(low, high):
    (entry,) = NEG_LOG_NORMCDF.bounds(None, [[AbstractValue(Interval(low, high), (GradientSet(np.eye(1)),))]])
    points = np.linspace(low, min(high, 60.0), 200)
    assert entry.value.low <= (-log_ndtr(points)).min()
    assert (-log_ndtr(points)).max() <= entry.value.high
    steep, bend = normal.hazard(points), normal.bend(points)
    assert -entry.terms[0].rows.min() >= steep.max()
    assert -entry.terms[0].rows.max() <= steep.min()
    assert entry.pieces[0].outer >= bend.max()
    assert (np.diff(steep) <= 0).all()
    assert (np.diff(bend[steep > 1e-12]) <= 1e-12).all()  # Sampford: the hazard rate is convex


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_nothing_bounds_below_is_refused(sign):
    w = cp.Variable(2, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: -dp.log_normcdf(sign * (x @ w)), 0.1 * cp.sum_squares(w))
    refused(dp.NotPrivate, "lower bound", dp.verify, template, dp.Privacy(1.0), 100)


def test_it_is_exact_where_cvxpy_approximates():
    m = np.array([-20.0, -5.0, 0.0, 3.0, 40.0])
    np.testing.assert_allclose(dp.log_normcdf(m).value, log_ndtr(m), rtol=1e-15)
    assert abs(cp.log_normcdf(-20.0).value - log_ndtr(-20.0)) > 1
    expression = dp.log_normcdf(cp.Variable())
    assert expression.is_concave()
    assert expression.is_nonpos()
    assert not (-expression).is_concave()
    assert str(NEG_LOG_NORMCDF(Variable.of((), "m", 1))) == "-log_normcdf(m)"


# What is found out once: eigenvalues of matrices
@pytest.mark.parametrize("side", [1, 2, 5, 12])
def test_eigenvalues_are_bounded_sharply(side):
    rng = np.random.default_rng(side)
    for kind in range(4):
        a = rng.standard_normal((side, side))
        a = {0: a + a.T, 1: a @ a.T, 2: -a @ a.T, 3: np.linalg.qr(a)[0][:, :1] @ np.linalg.qr(a)[0][:, :1].T}[kind]
        a = (a + a.T) / 2 * 10.0 ** rng.integers(-40, 40)
        low, high = spectrum({i: {j: Fraction(a[i, j]) for j in range(side)} for i in range(side)})
        true, room = np.linalg.eigvalsh(a), 4e-12 * np.abs(a).sum()
        assert min(true[0], 0 if side > 1 else true[0]) - room <= low <= true[0] + room
        assert true[-1] - room <= high <= true[-1] + room
        for end, sign in ((low, -1), (high, 1)):  # exactly: no vector has a larger quotient
            v = [Fraction(x) for x in np.linalg.eigh(sign * a)[1][:, -1]]
            quotient = sum(v[i] * v[j] * Fraction(a[i, j]) for i in range(side) for j in range(side))
            assert sign * quotient / sum(x * x for x in v) <= sign * end


def test_large_matrices_are_bounded_by_sums_of_rows_and_that_is_said():
    Steps.left, Steps.coarse = MOST_STEPS, False
    side = exact.MOST_SIDE + 1
    assert exact.largest_eigenvalue(((Fraction(1),) * side,) * side) == side
    assert Steps.coarse


def test_segments_of_one_direction_are_one():
    a, b = ((0, Fraction(1)), (1, Fraction(-2))), ((1, Fraction(3)),)
    minus = tuple((k, -x) for k, x in a)
    hulls = ((), a), (minus, ()), ((), b), ((), tuple((k, 3 * x) for k, x in a))
    assert len(merge_segments(hulls)) == 2
    found = {tuple(float(dict(v).get(k, 0)) for k in (0, 1)) for v in hull_sum(hulls)}
    assert found == {(-1.0, 2.0), (-1.0, 5.0), (4.0, -8.0), (4.0, -5.0)}


def rows_of_the_table():
    for name, groups in TABLES.items():
        keys = ["; ".join(f"`{k}` {kind}" for k, kind in group.items() if k not in ("op", "shape")) for group in groups]
        row = f"| {keys[0] or 'none'} | {'<br>'.join(keys[1:])} |"
        if not name.startswith("claim of ") or name.endswith(("objective", "queries")):
            yield name.removeprefix("node ").replace("claim of objective", "claim"), row.replace(" | ", " \\| ")


def test_the_schema_of_certificates_names_what_there_is():
    names = json.loads((files("dpconvex.checker") / "certificate.schema.json").read_text("utf-8"))["$defs"]
    named = {item.name for item in fields(dp.Certificate)} - {"writer"} | {"learnt"}
    assert {*names["certificate"]["properties"]} == named
    assert {*names["proof"]["properties"]} == {key for group in TABLES["proof"] for key in group}
    kinds = {kind["properties"]["kind"]["const"]: {*kind["required"]} for kind in names["event"]["oneOf"]}
    assert kinds == {kind.kind: {item.name for item in fields(kind)} for kind in Event.__subclasses__()}


def test_the_documentation_has_the_table_of_keys():
    page = (Path(__file__).parents[2] / "docs" / "checking.md").read_text(encoding="utf-8")
    lines = page.replace(" | ", " \\| ").splitlines()
    for name, row in rows_of_the_table():
        assert any(line.endswith(row.lstrip("|")) and name in line for line in lines), (name, row)
