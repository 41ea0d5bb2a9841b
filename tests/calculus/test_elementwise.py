"""Rules for atoms of one variable, each alone: never below what is observed, and rarely far above."""

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.affine.wraps import nonneg_wrap
from derivatives import analyse, compare

import dpconvex as dp
from dpconvex.core.abstract_values import Piece, Scalar, Term
from dpconvex.core.atoms.powers import huber
from dpconvex.core.expression import Variable
from dpconvex.core.intervals import Interval
from dpconvex.core.record_domains import Ball, Box
from dpconvex.errors import MissingRule, NotPrivate

v = cp.Variable(name="v")
w = cp.Variable(2, name="w")
# The argument is c + v s with s in [-1, 1]; without constraints on v it ranges over the whole line, and the grid is dense near
# 0 and reaches far out.
SCALE = Box(-1.0, 1.0)
RECORDS = {"s": np.linspace(-1.0, 1.0, 41)}
FAR = np.geomspace(1e-3, 60, 150)


@dataclass(frozen=True)
class Domain:
    """Centre and points of the argument, and whether its parameter is bounded."""

    centre: float
    points: np.ndarray
    constrained: bool

    @property
    def constraints(self) -> list[cp.Constraint]:
        return [v >= self.points.min(), v <= self.points.max()] if self.constrained else []


FREE = Domain(0.6, np.concatenate([-FAR[::-1], [0.0], FAR])[:, None], False)
BOUNDED = Domain(0.5, np.linspace(-1.5, 1.5, 301)[:, None], True)
POSITIVE = Domain(1.25, np.linspace(-0.75, 0.75, 301)[:, None], True)


ATOMS: dict[str, tuple[Any, Domain]] = {
    "logistic": (lambda m: cp.logistic(m), FREE),
    "logistic, bounded": (lambda m: cp.logistic(m), BOUNDED),
    "logistic, far from 0": (lambda m: cp.logistic(m + 3), POSITIVE),
    "huber": (lambda m: cp.huber(m, 0.7), FREE),
    "huber, bounded": (lambda m: cp.huber(m, 0.7), BOUNDED),
    "huber, quadratic part": (lambda m: cp.huber(m, 5.0), BOUNDED),
    "huber, linear part": (lambda m: cp.huber(m + 1, 0.5), POSITIVE),
    "huber of pos": (lambda m: cp.huber(cp.pos(m), 0.7), FREE),
    "huber hinge": (lambda m: dp.huber_hinge(1 - m, 0.5), FREE),
    "huber hinge, bounded": (lambda m: dp.huber_hinge(1 - m, 0.5), BOUNDED),
    "pos": (lambda m: cp.pos(m), FREE),
    "pos of a positive number": (lambda m: cp.pos(m), POSITIVE),
    "maximum with a constant": (lambda m: cp.maximum(m, 0.5), BOUNDED),
    "maximum of multiples": (lambda m: cp.maximum(m, -2 * m, 0.1), BOUNDED),
    "minus a minimum": (lambda m: -cp.minimum(m, 1 - m), BOUNDED),
    "abs": (lambda m: cp.abs(m), FREE),
    "abs of a negative number": (lambda m: cp.abs(-m), POSITIVE),
    "exp": (lambda m: cp.exp(m), BOUNDED),
    "exp, decreasing": (lambda m: cp.exp(-m), BOUNDED),
    "minus log": (lambda m: -cp.log(m), POSITIVE),
    "minus entr": (lambda m: -cp.entr(m), POSITIVE),
    "square": (lambda m: cp.square(m), BOUNDED),
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
    "xexp": (lambda m: cp.xexp(m), POSITIVE),
    "exp of logistic": (lambda m: cp.exp(cp.logistic(m)), BOUNDED),
}


@pytest.mark.parametrize("name", ATOMS)
def test_sound_and_tight(name):
    """Observed constants are at least half of the certified ones: of G, G_adj, the Hessian's eigenvalue, trace, log det."""
    atom, domain = ATOMS[name]
    analysis = analyse(lambda s: atom(domain.centre + v * s), domain.constraints, s=SCALE)
    ratios = compare(analysis, RECORDS, domain.points)
    kinked = name.startswith(("pos", "maximum", "minus a minimum", "abs")) and domain is not POSITIVE
    assert (analysis.kink is not None) == kinked
    assert kinked or "trace" in ratios


def test_a_kink_inside_stays_unless_its_outer_function_is_flat_there():
    smooth = [
        lambda x: cp.huber(cp.pos(w @ x), 1.0),
        lambda x: cp.huber(cp.maximum(0, w @ x), 1.0),
        lambda x: 2 * cp.huber(cp.pos(cp.logistic(w @ x) - 1), 1.0) + w[0],
    ]
    kinked = [
        lambda x: cp.huber(cp.maximum(w @ x, 0.1), 1.0),
        lambda x: cp.logistic(cp.pos(w @ x)),
        lambda x: cp.huber(cp.pos(w @ x) + 0.1, 1.0),
        lambda x: cp.huber(cp.pos(cp.abs(w @ x) - 0.5), 1.0),
        lambda x: cp.huber(cp.maximum(cp.pos(w @ x), 0.5), 1.0),
        lambda x: cp.exp(-w[0]) + cp.power(cp.pos(w @ x) + 1, 1.5),
    ]
    ball = [cp.norm(w, 2) <= 1]
    for loss in smooth:
        assert analyse(loss, ball, x=Ball(2)).kink is None
    for loss in kinked:
        assert analyse(loss, ball, x=Ball(2)).kink is not None


REFUSALS: dict[str, tuple[Any, list[cp.Constraint], str, str]] = {
    "square": (lambda s: cp.square(v * s), [], "power 2 is Lipschitz only on bounded sets", "square(v * s)"),
    "exp": (lambda s: cp.exp(v * s), [], "exp is Lipschitz only where its argument is bounded above", "exp(v * s)"),
    "log": (lambda s: -cp.log(v + s), [v <= 1], "log is Lipschitz only where its argument keeps away", "log(v + s)"),
    "entr": (lambda s: -cp.entr(v + 1), [v >= 0], "relative entropy is Lipschitz only on bounded sets", "entr(v + 1"),
    "xexp": (lambda s: cp.xexp(v * s), [v >= -1, v <= 1], "xexp is defined for arguments that are not", "xexp(v * s)"),
    "root": (lambda s: -cp.sqrt(v * s), [v >= 0, v <= 1], "power 0.5 needs an argument", "v * s"),
    "power 1.5": (lambda s: cp.power(v * s, 1.5), [v >= 0, v <= 1], "power 1.5 needs an argument", "v * s"),
    "power 3": (lambda s: cp.power(v * s, 3), [v >= -1, v <= 1], "power 3 needs an argument", "v * s"),
    # CVXPY defines odd powers for non-negative arguments only: a hidden constraint that would depend on data.
    "power 5": (lambda s: cp.power(v * s, 5), [v >= -1, v <= 1], "power 5 needs an argument", "v * s"),
    "overflow": (lambda s: cp.exp(1000 * v * s), [v >= -1, v <= 1], "overflows", "exp"),
    "overflow of a power": (lambda s: cp.power(1e60 * v * s, 8), [v >= -1, v <= 1], "overflows", "v"),
    "a sign that is asserted, not known": (
        lambda s: cp.huber(nonneg_wrap(cp.logistic(v * s) - 2), 1),
        [],
        "the loss is not convex",
        "huber(logistic",
    ),
    "huber with a field": (lambda s: cp.huber(v, s), [], "the threshold of huber depends on the record", "huber(v, s)"),
    "cubic difference": (lambda s: cp.power(s * cp.logistic(v), 1.5), [], "power 1.5", "logistic(v)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_what_where_and_what_to_do(name):
    loss, constraints, reason, where = REFUSALS[name]
    with pytest.raises(NotPrivate) as caught:
        analyse(loss, constraints, s=Box(0.5, 1.5))
    assert reason in caught.value.reason
    assert where.split("(", maxsplit=1)[0] in caught.value.expression
    assert caught.value.remedy


def test_a_curved_term_goes_only_through_functions_that_are_monotone_on_its_range():
    """The composition rule rests on signs; a rule that is given a range that breaks them refuses."""
    row = Term(np.ones((1, 1)))
    outer = huber(Variable.of((), "v", 1))
    curved = Scalar(Interval(-1.0, 1.0), (row,), (Piece((row,), 1.0),))
    with pytest.raises(MissingRule, match="not monotone on its range"):
        outer.atom.rule(outer, [[curved]])
    (found,) = outer.atom.rule(outer, [[curved.with_value(Interval(0.0, 1.0))]])
    assert len(found.pieces) == 2


def test_a_bound_near_zero_is_not_trusted_beyond_its_rounding():
    """1000 - v s with v up to 1000 - 1e-12: the least value is a difference of large numbers, and 1/it would be noise."""
    for loss in (lambda s: -cp.log(1000 - v * s), lambda s: cp.inv_pos(1000 - v * s)):
        with pytest.raises(NotPrivate, match="zero"):
            analyse(loss, [v >= 0, v <= 1000 - 1e-12], s=Box(-1.0, 1.0))
        assert analyse(loss, [v >= 0, v <= 999], s=Box(-1.0, 1.0)).gradient_bound == pytest.approx(1.0)
