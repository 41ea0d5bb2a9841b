"""Rules for atoms, each alone: never below what is observed, and rarely far above; and rounded kinks."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse, compare
from refused import refused

import dpconvex as dp
from dpconvex.expressions import atom as atom_module
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet, HessianTerm
from dpconvex.expressions.atom import AtomDefinition
from dpconvex.expressions.atoms.norms import sum_squares
from dpconvex.expressions.atoms.powers import huber
from dpconvex.expressions.expression import Variable
from dpconvex.expressions.from_cvxpy import READERS
from dpconvex.numerics import Interval

w, v = cp.Variable(2, name="w"), cp.Variable(name="v")
W, S = cp.Variable((3, 2), name="W"), cp.Variable((2, 2), symmetric=True, name="S")

# Of one number: the argument is c + v s with s in [-1, 1]; without constraints on v it ranges over the whole line, and the grid
# is dense near 0 and reaches far out.  A domain is the centre, the points, and whether the parameter is bounded.
SCALES = {"s": np.linspace(-1.0, 1.0, 41)}
FAR = np.geomspace(1e-3, 60, 150)
FREE = (0.6, np.concatenate([-FAR[::-1], [0.0], FAR])[:, None], False)
BOUNDED = (0.5, np.linspace(-1.5, 1.5, 301)[:, None], True)
POSITIVE = (1.25, np.linspace(-0.75, 0.75, 301)[:, None], True)

OF_NUMBERS = {
    "logistic": (cp.logistic, FREE),
    "logistic, bounded": (cp.logistic, BOUNDED),
    "logistic, far from 0": (lambda m: cp.logistic(m + 3), POSITIVE),
    "huber": (lambda m: cp.huber(m, 0.7), FREE),
    "huber, bounded": (lambda m: cp.huber(m, 0.7), BOUNDED),
    "huber, quadratic part": (lambda m: cp.huber(m, 5.0), BOUNDED),
    "huber, linear part": (lambda m: cp.huber(m + 1, 0.5), POSITIVE),
    "huber of pos": (lambda m: cp.huber(cp.pos(m), 0.7), FREE),
    "huber hinge": (lambda m: dp.huber_hinge(1 - m, 0.5), FREE),
    "huber hinge, bounded": (lambda m: dp.huber_hinge(1 - m, 0.5), BOUNDED),
    "pos": (cp.pos, FREE),
    "pos of a positive number": (cp.pos, POSITIVE),
    "maximum with a constant": (lambda m: cp.maximum(m, 0.5), BOUNDED),
    "maximum of multiples": (lambda m: cp.maximum(m, -2 * m, 0.1), BOUNDED),
    "minus a minimum": (lambda m: -cp.minimum(m, 1 - m), BOUNDED),
    "abs": (cp.abs, FREE),
    "abs of a negative number": (lambda m: cp.abs(-m), POSITIVE),
    "exp": (cp.exp, BOUNDED),
    "exp, decreasing": (lambda m: cp.exp(-m), BOUNDED),
    "minus log": (lambda m: -cp.log(m), POSITIVE),
    "minus entr": (lambda m: -cp.entr(m), POSITIVE),
    "square": (cp.square, BOUNDED),
    "square of pos": (lambda m: cp.square(cp.pos(m)), BOUNDED),
    "power 4": (lambda m: cp.power(m, 4), BOUNDED),
    "power 6": (lambda m: cp.power(m, 6), BOUNDED),
    "power 3 of pos": (lambda m: cp.power(cp.pos(m), 3), BOUNDED),
    "power 3": (lambda m: cp.power(m, 3), POSITIVE),
    "power 2.5 of pos": (lambda m: cp.power(cp.pos(m), 2.5), BOUNDED),
    "power 1.5": (lambda m: cp.power(m, 1.5), POSITIVE),
    "minus a square root": (lambda m: -cp.sqrt(m), POSITIVE),
    "reciprocal": (lambda m: cp.inv_pos(m), POSITIVE),
    "power -2": (lambda m: cp.power(m, -2), POSITIVE),
    "exp of logistic": (lambda m: cp.exp(cp.logistic(m)), BOUNDED),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_atoms_of_a_number_are_sound_and_tight(name):
    """Observed constants are at least half of the certified ones: of G, G_adj, the Hessian's eigenvalue, trace, log det."""
    atom, (centre, points, bounded) = OF_NUMBERS[name]
    constraints = [v >= points.min(), v <= points.max()] if bounded else []
    analysis = analyse(lambda s: atom(centre + v * s), constraints, s=dp.Box(-1.0, 1.0))
    ratios = compare(analysis, SCALES, points, 0.49)
    kinked = name.startswith(("pos", "maximum", "minus a minimum", "abs")) and points is not POSITIVE[1]
    assert (analysis.kink is not None) == kinked
    assert kinked or "trace" in ratios


TURN = np.linspace(0, 2 * np.pi, 24, endpoint=False)
CIRCLE = np.column_stack([np.cos(TURN), np.sin(TURN)])
RECORDS = {"x": np.concatenate([CIRCLE, 0.5 * CIRCLE[::4], np.zeros((1, 2))])}
DISC = np.concatenate([r * CIRCLE for r in (0.0, 0.25, 0.5, 0.75, 1.0)])
RNG = np.random.default_rng(3)
ANYWHERE = np.concatenate([scale * RNG.normal(size=(300, 6)) for scale in (0.1, 1.0, 10.0, 200.0)])
# Parameters (w, v) with ||w|| <= 1 and v between 0.5 and 2.
PAIRS = np.array([[*point, level] for point in DISC for level in (0.5, 0.75, 1.0, 2.0)])
BALL = [cp.norm(w, 2) <= 1]
CYLINDER = [*BALL, v >= 0.5, v <= 2]
A, HINGES, centre = np.array([[2.0, 1.0], [1.0, 1.0]]), np.array([1.0, -0.5]), np.eye(3) - 1 / 3

OF_ENTRIES = {
    "log-sum-exp": (lambda x: cp.log_sum_exp(W @ x), [], ANYWHERE),
    "log-sum-exp with a constant": (lambda x: cp.log_sum_exp(cp.hstack([w @ x, 0.0, -w @ x])), BALL, DISC),
    "log-sum-exp, scaled": (lambda x: 0.5 * cp.log_sum_exp(-2 * (W @ x)) + W[0] @ x, [], ANYWHERE),
    "softmax": (lambda x: cp.log_sum_exp(centre @ W @ x) - (centre[0] @ W) @ x, [], ANYWHERE),
    "softmax as margins": (lambda x: cp.log_sum_exp(cp.hstack([(W[c] - W[1]) @ x for c in range(3)])), [], ANYWHERE),
    "max": (lambda x: cp.max(W @ x), [], ANYWHERE),
    "max with a constant": (lambda x: cp.max(cp.hstack([w @ x, 0.5])), BALL, DISC),
    "minus min": (lambda x: -cp.min(W @ x), [], ANYWHERE),
    "sum of the largest": (lambda x: cp.sum_largest(W @ x, 2), [], ANYWHERE),
    "sum of all": (lambda x: cp.sum_largest(W @ x, 3), [], ANYWHERE),
    "norm1": (lambda x: cp.norm(W @ x, 1), [], ANYWHERE),
    "norm2": (lambda x: cp.norm(W @ x, 2), [], ANYWHERE),
    "norm2 away from zero": (lambda x: cp.norm(cp.hstack([w @ x, 1.0]), 2), BALL, DISC),
    "norm_inf": (lambda x: cp.norm(W @ x, "inf"), [], ANYWHERE),
    "norm3": (lambda x: cp.norm(W @ x, 3), [], ANYWHERE),
    "norm1.5": (lambda x: cp.norm(W @ x, 1.5), [], ANYWHERE),
    "sum of squares": (lambda x: cp.sum_squares(cp.hstack([w @ x, w[0]])), BALL, DISC),
    "sum of squares of differences": (lambda x: cp.sum_squares(w - x), BALL, DISC),
    "sum of squares of convex terms": (lambda x: cp.sum_squares(cp.logistic(cp.hstack([w @ x, w[0]]))), BALL, DISC),
    "sum of squared hinges over a parameter": (lambda x: cp.quad_over_lin(cp.pos(1 - w @ x), v), CYLINDER, PAIRS),
    "square over a constant": (lambda x: cp.quad_over_lin(w @ x, 4.0), BALL, DISC),
    "squares over a constant": (lambda x: cp.quad_over_lin(w - x, 4.0), BALL, DISC),
    "square over a parameter": (lambda x: cp.quad_over_lin(w @ x, v), CYLINDER, PAIRS),
    "quad_form": (lambda x: cp.quad_form(w - x, A), BALL, DISC),
    "quad_form of one entry": (lambda x: cp.quad_form(cp.hstack([w @ x]), np.array([[3.0]])), BALL, DISC),
    "kl_div": (lambda x: cp.kl_div(1.5 + w @ x, v), CYLINDER, PAIRS),
    "kl_div of constants": (lambda x: cp.kl_div(1.5 + w @ x, 1.0) + cp.kl_div(2.0, v), CYLINDER, PAIRS),
    "rel_entr": (lambda x: cp.rel_entr(1.5 + w @ x, v), CYLINDER, PAIRS),
    # Bounds that are up to three times what is observed: of each entry by itself, or of two parameters instead of one.
    "loose: squared hinges": (lambda x: cp.sum_squares(cp.pos(HINGES - cp.multiply(2 * w, x))), BALL, DISC),
    "loose: log det": (lambda x: -cp.log_det(np.eye(2) * 4 + cp.diag(w) + 0.25 * cp.diag(x)), BALL, DISC),
    "loose: norm3": (lambda x: cp.norm(cp.hstack([w @ x, 1.0]), 3), BALL, DISC),
}
# The bound on the difference of two gradients forgets that both are taken at the same parameters; squares suffer most.
TIGHTNESS = {"replacement": 0.2}
LEAST = dict.fromkeys(("gradient", "eigenvalue", "trace", "log det"), 0.3) | {"replacement": 0.05}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OF_ENTRIES)
def test_atoms_of_entries_are_sound_and_tight(name):
    loss, constraints, points = OF_ENTRIES[name]
    analysis, loose = analyse(loss, constraints, x=dp.Ball(2)), name.startswith("loose")
    ratios = compare(analysis, RECORDS, points[:, : analysis.form.space.dim], LEAST if loose else TIGHTNESS)
    assert (analysis.kink is None) == ("trace" in ratios)


def test_a_kink_inside_stays_unless_its_outer_function_is_flat_there():
    for kinked, loss in [
        (False, lambda x: cp.huber(cp.pos(w @ x), 1.0)),
        (False, lambda x: cp.huber(cp.maximum(0, w @ x), 1.0)),
        (False, lambda x: 2 * cp.huber(cp.pos(cp.logistic(w @ x) - 1), 1.0) + w[0]),
        (True, lambda x: cp.huber(cp.maximum(w @ x, 0.1), 1.0)),
        (True, lambda x: cp.logistic(cp.pos(w @ x))),
        (True, lambda x: cp.huber(cp.pos(w @ x) + 0.1, 1.0)),
        (True, lambda x: cp.huber(cp.pos(cp.abs(w @ x) - 0.5), 1.0)),
        (True, lambda x: cp.huber(cp.maximum(cp.pos(w @ x), 0.5), 1.0)),
        (True, lambda x: cp.exp(-w[0]) + cp.power(cp.pos(w @ x) + 1, 1.5)),
    ]:
        assert (analyse(loss, BALL, x=dp.Ball(2)).kink is not None) == kinked


def test_a_curved_term_goes_only_through_functions_that_are_monotone_on_its_range():
    """The composition rule rests on signs; a rule that is given a range that breaks them refuses."""
    row = GradientSet(np.ones((1, 1)))
    outer, squares = huber(Variable.of((), "v", 1)), sum_squares(Variable.of((2,), "v", 1))
    curved = AbstractValue(Interval(-1.0, 1.0), (row,), (HessianTerm((row,), 1.0),))
    refused(dp.MissingRule, "not monotone on its range", outer.atom.bounds, outer, [[curved]])
    with pytest.raises(dp.MissingRule, match="curved term that can change its sign"):
        squares.atom.bounds(squares, [[curved, curved], [AbstractValue(Interval(1.0, 1.0))]])
    (found,) = outer.atom.bounds(outer, [[replace(curved, value=Interval(0.0, 1.0))]])
    assert len(found.pieces) == 2


def test_a_rule_may_trust_the_domain_of_its_atom(monkeypatch):
    """m exp(m) is convex where m is not negative: its rule does not look, and m is checked before it is asked."""
    # The atom is no longer known after the test.
    monkeypatch.setattr(atom_module, "ATOMS", dict(atom_module.ATOMS))

    def rule(expression, arguments):
        ends = [np.array([entry.value.low, entry.value.high]) for entry in arguments[0]]
        values = [(m * np.exp(m), (1 + m) * np.exp(m)) for m in ends]
        curved = [float(((2 + m) * np.exp(m)).max()) for m in ends]
        known = zip(arguments[0], values, curved, strict=True)
        return [entry.through(Interval(*value), Interval(*slope), bend) for entry, (value, slope), bend in known]

    xexp = AtomDefinition(
        name="xexp",
        value=lambda expression, a: a * np.exp(a),
        vjp=lambda expression, value, slope, a: [slope * (1 + a) * np.exp(a)],
        from_cvxpy="elementwise.xexp.xexp",
        domain=lambda expression: ("not negative",),
        sign=lambda expression, signs: 1,
        monotonicity=lambda expression, k, signs: 1,
        bounds=rule,
    )
    monkeypatch.setitem(READERS, "elementwise.xexp.xexp", lambda node, args: xexp(*args))
    assert analyse(lambda x: cp.xexp(w @ x + 2), BALL, x=dp.Ball(2)).gradient_bound > 0
    assert analyse(lambda x: cp.xexp(cp.norm(w - x)), BALL, x=dp.Ball(2)).gradient_bound > 0
    for outside in (lambda x: cp.xexp(w @ x - 4), lambda x: v * cp.xexp(x[0])):
        refused(dp.NotPrivate, "xexp needs an argument that is not negative", analyse, outside, BALL, x=dp.Ball(2))


def test_a_bound_near_zero_is_not_trusted_beyond_its_rounding():
    """1000 - v s with v up to 1000 - 1e-12: the least value is a difference of large numbers, and 1/it would be noise."""
    for loss in (lambda s: -cp.log(1000 - v * s), lambda s: cp.inv_pos(1000 - v * s)):
        refused(dp.NotPrivate, "zero", analyse, loss, [v >= 0, v <= 1000 - 1e-12], s=dp.Box(-1.0, 1.0))
        assert analyse(loss, [v >= 0, v <= 999], s=dp.Box(-1.0, 1.0)).gradient_bound == pytest.approx(1.0)
