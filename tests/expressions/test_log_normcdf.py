"""The exact logarithm of the normal distribution function, against exact bounds in rational numbers."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import log_ndtr

import dpconvex as dp
from dpconvex.checker.exact import exp, hazard, normal_tail
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet
from dpconvex.expressions.atoms import normal
from dpconvex.expressions.atoms.normal import NEG_LOG_NORMCDF
from dpconvex.expressions.expression import Variable
from dpconvex.numerics import Interval

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
    with pytest.raises(dp.NotPrivate, match="lower bound"):
        dp.verify(template, dp.Privacy(1.0), 100)


def test_it_is_exact_where_cvxpy_approximates():
    m = np.array([-20.0, -5.0, 0.0, 3.0, 40.0])
    np.testing.assert_allclose(dp.log_normcdf(m).value, log_ndtr(m), rtol=1e-15)
    assert abs(cp.log_normcdf(-20.0).value - log_ndtr(-20.0)) > 1
    expression = dp.log_normcdf(cp.Variable())
    assert expression.is_concave()
    assert expression.is_nonpos()
    assert not (-expression).is_concave()
    assert str(NEG_LOG_NORMCDF(Variable.of((), "m", 1))) == "-log_normcdf(m)"
