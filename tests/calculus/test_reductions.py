"""Rules for atoms that combine entries, each alone: never below what is observed, and rarely far above."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.affine.wraps import nonneg_wrap
from derivatives import analyse, certified, compare

from dpconvex.core.abstract_values import Piece, Scalar, Term
from dpconvex.core.atoms.norms import sum_squares
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expression import Variable
from dpconvex.core.intervals import Interval
from dpconvex.core.record_domains import Ball, Choice
from dpconvex.errors import MissingRule, NotPrivate

w = cp.Variable(2, name="w")
v = cp.Variable(name="v")
W = cp.Variable((3, 2), name="W")
S = cp.Variable((2, 2), symmetric=True, name="S")
TURN = np.linspace(0, 2 * np.pi, 24, endpoint=False)
CIRCLE = np.column_stack([np.cos(TURN), np.sin(TURN)])
RECORDS = {"x": np.concatenate([CIRCLE, 0.5 * CIRCLE[::4], np.zeros((1, 2))])}
DISC = np.concatenate([r * CIRCLE for r in (0.0, 0.25, 0.5, 0.75, 1.0)])
RNG = np.random.default_rng(3)
FREE = np.concatenate([scale * RNG.normal(size=(300, 6)) for scale in (0.1, 1.0, 10.0, 200.0)])
# Parameters (w, v) with ||w|| <= 1 and v between 0.5 and 2.
PAIRS = np.array([[*point, level] for point in DISC for level in (0.5, 0.75, 1.0, 2.0)])
BALL = [cp.norm(w, 2) <= 1]
CYLINDER = [*BALL, v >= 0.5, v <= 2]
A = np.array([[2.0, 1.0], [1.0, 1.0]])
centre = np.eye(3) - 1 / 3

ATOMS: dict[str, tuple[Any, list[cp.Constraint], np.ndarray]] = {
    "log-sum-exp": (lambda x: cp.log_sum_exp(W @ x), [], FREE),
    "log-sum-exp with a constant": (lambda x: cp.log_sum_exp(cp.hstack([w @ x, 0.0, -w @ x])), BALL, DISC),
    "log-sum-exp, scaled": (lambda x: 0.5 * cp.log_sum_exp(-2 * (W @ x)) + W[0] @ x, [], FREE),
    "softmax": (lambda x: cp.log_sum_exp(centre @ W @ x) - (centre[0] @ W) @ x, [], FREE),
    "softmax as margins": (lambda x: cp.log_sum_exp(cp.hstack([(W[c] - W[1]) @ x for c in range(3)])), [], FREE),
    "max": (lambda x: cp.max(W @ x), [], FREE),
    "max with a constant": (lambda x: cp.max(cp.hstack([w @ x, 0.5])), BALL, DISC),
    "minus min": (lambda x: -cp.min(W @ x), [], FREE),
    "sum of the largest": (lambda x: cp.sum_largest(W @ x, 2), [], FREE),
    "sum of all": (lambda x: cp.sum_largest(W @ x, 3), [], FREE),
    "norm1": (lambda x: cp.norm(W @ x, 1), [], FREE),
    "norm2": (lambda x: cp.norm(W @ x, 2), [], FREE),
    "norm2 away from zero": (lambda x: cp.norm(cp.hstack([w @ x, 1.0]), 2), BALL, DISC),
    "norm_inf": (lambda x: cp.norm(W @ x, "inf"), [], FREE),
    "norm3": (lambda x: cp.norm(W @ x, 3), [], FREE),
    "norm1.5": (lambda x: cp.norm(W @ x, 1.5), [], FREE),
    "sum of squares": (lambda x: cp.sum_squares(cp.hstack([w @ x, w[0]])), BALL, DISC),
    "sum of squares of differences": (lambda x: cp.sum_squares(w - x), BALL, DISC),
    "sum of squares of convex terms": (
        lambda x: cp.sum_squares(cp.hstack([cp.logistic(w @ x), cp.logistic(w[0])])),
        BALL,
        DISC,
    ),
    "sum of squared hinges over a parameter": (lambda x: cp.quad_over_lin(cp.pos(1 - w @ x), v), CYLINDER, PAIRS),
    "square over a constant": (lambda x: cp.quad_over_lin(w @ x, 4.0), BALL, DISC),
    "squares over a constant": (lambda x: cp.quad_over_lin(w - x, 4.0), BALL, DISC),
    "square over a parameter": (lambda x: cp.quad_over_lin(w @ x, v), CYLINDER, PAIRS),
    "quad_form": (lambda x: cp.quad_form(w - x, A), BALL, DISC),
    "quad_form of one entry": (
        lambda x: cp.quad_form(cp.reshape(w @ x, (1,), order="F"), np.array([[3.0]])),
        BALL,
        DISC,
    ),
    "kl_div": (lambda x: cp.kl_div(1.5 + w @ x, v), CYLINDER, PAIRS),
    "kl_div of constants": (lambda x: cp.kl_div(1.5 + w @ x, 1.0) + cp.kl_div(2.0, v), CYLINDER, PAIRS),
    "rel_entr": (lambda x: cp.rel_entr(1.5 + w @ x, v), CYLINDER, PAIRS),
}
# The bound on the difference of two gradients forgets that both are taken at the same parameters; squares suffer most.
TIGHTNESS = {"replacement": 0.2}


# Bounds that are up to three times what is observed: of each entry by itself, or of two parameters instead of one.
LOOSE: dict[str, tuple[Any, list[cp.Constraint], np.ndarray]] = {
    "sum of squared hinges": (
        lambda x: cp.sum_squares(cp.pos(np.array([1.0, -0.5]) - cp.multiply(2 * w, x))),
        BALL,
        DISC,
    ),
    "minus log det": (lambda x: -cp.log_det(np.eye(2) * 4 + cp.diag(w) + 0.25 * cp.diag(x)), BALL, DISC),
    "norm3 away from zero": (lambda x: cp.norm(cp.hstack([w @ x, 1.0]), 3), BALL, DISC),
}


@pytest.mark.parametrize("name", LOOSE)
def test_sound(name):
    loss, constraints, points = LOOSE[name]
    analysis = analyse(loss, constraints, x=Ball(2))
    assert analysis.kink is None
    compare(
        analysis,
        RECORDS,
        points,
        dict.fromkeys(("gradient", "eigenvalue", "trace", "log det"), 0.3) | {"replacement": 0.05},
    )


@pytest.mark.parametrize("name", ATOMS)
def test_sound_and_tight(name):
    loss, constraints, points = ATOMS[name]
    analysis = analyse(loss, constraints, x=Ball(2))
    ratios = compare(analysis, RECORDS, points[:, : analysis.form.space.dim], TIGHTNESS)
    assert (analysis.kink is None) == ("trace" in ratios)


def test_log_sum_exp_is_as_long_as_its_longest_leaf_and_softmax_sqrt_2():
    found = certified(analyse(lambda x: cp.log_sum_exp(W @ x), x=Ball(2)))
    assert found["gradient"] == pytest.approx(1.0)
    assert found["eigenvalue"] == pytest.approx(0.5)
    assert found["trace"] == pytest.approx(1 - 1 / 3)
    for loss in (ATOMS["softmax"][0], ATOMS["softmax as margins"][0]):
        found = certified(analyse(loss, x=Ball(2)))
        assert found["gradient"] == pytest.approx(np.sqrt(2))
        assert found["eigenvalue"] == pytest.approx(0.5)
        assert found["trace"] == pytest.approx(1 - 1 / 3)
        assert found["log det"] <= 2 * np.log1p(1 / 3) + 1e-9
    labelled = analyse(lambda x, y: cp.log_sum_exp(centre @ W @ x) - (centre[y] @ W) @ x, x=Ball(2), y=Choice(range(3)))
    assert labelled.replacement_bound == pytest.approx(2 * np.sqrt(2))


def test_a_square_of_what_may_change_sign_is_refused():
    """The composition rule rests on signs; a rule that is given a range that breaks them refuses."""
    row, outer = Term(np.ones((1, 1))), sum_squares(Variable.of((2,), "v", 1))
    curved = Scalar(Interval(-1.0, 1.0), (row,), (Piece((row,), 1.0),))
    with pytest.raises(MissingRule, match="curved term that can change its sign"):
        outer.atom.rule(outer, [[curved, curved], [Scalar(Interval(1.0, 1.0))]])


AXES: dict[str, tuple[Any, Any]] = {
    "log-sum-exp": (lambda m, axis: cp.log_sum_exp(m, axis=axis), cp.log_sum_exp),
    "max": (lambda m, axis: cp.max(m, axis=axis), cp.max),
    "norm1": (lambda m, axis: cp.norm(m, 1, axis=axis), lambda m: cp.norm(m, 1)),
    "norm2": (lambda m, axis: cp.norm(m, 2, axis=axis), cp.norm),
    "norm_inf": (lambda m, axis: cp.norm(m, "inf", axis=axis), lambda m: cp.norm(m, "inf")),
    "sum of squares": (lambda m, axis: cp.sum_squares(m, axis=axis), cp.sum_squares),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", AXES)
def test_along_an_axis_each_line_is_taken_by_itself(name, axis):
    along, alone = AXES[name]
    weights = np.array([1.0, 2.0, 3.0])

    def matrix(x: cp.Parameter) -> cp.Expression:
        return W @ cp.diag(x) + np.array([[1.0, 2.0], [0.0, -1.0], [0.5, 0.5]])

    def lines(m: cp.Expression) -> list[cp.Expression]:
        return [m[:, j] for j in range(2)] if axis == 0 else [m[i] for i in range(3)]

    def by_axis(x: cp.Parameter) -> cp.Expression:
        return weights[: 2 if axis == 0 else 3] @ along(matrix(x), axis)

    def by_hand(x: cp.Parameter) -> cp.Expression:
        return cp.sum([k * alone(line) for k, line in zip(weights, lines(matrix(x)), strict=False)])

    ball = [cp.norm(W, "fro") <= 1]
    first, second = (certified(analyse(loss, ball, x=Ball(2))) for loss in (by_axis, by_hand))
    assert first == pytest.approx(second)


@pytest.mark.parametrize("atom", [cp.lambda_max, lambda m: cp.sigma_max(m), lambda m: cp.normNuc(m)])
def test_spectral_norms(atom):
    """Gradients of spectral functions, by differences along random directions."""
    analysis = analyse(lambda x: atom(S + cp.diag(x)), x=Ball(2))
    assert analysis.kink is not None
    form, rng = analysis.form, np.random.default_rng(0)
    expression = form.template.losses[0]
    steepest = 0.0
    for _ in range(200):
        x = CIRCLE[rng.integers(len(CIRCLE))]
        theta, direction = rng.normal(size=(2, form.space.dim))
        direction /= np.linalg.norm(direction)
        values = [
            float(evaluate(expression, {"x": x, **form.space.unpack(theta + step * direction)}))
            for step in (-1e-6, 1e-6)
        ]
        steepest = max(steepest, abs(values[1] - values[0]) / 2e-6)
    bound = analysis.gradient_bound
    assert 0.5 * bound <= steepest <= bound * (1 + 1e-6)


REFUSALS: dict[str, tuple[Any, list[cp.Constraint], type[NotPrivate], str]] = {
    "unbounded square": (lambda x: cp.sum_squares(w - x), [], NotPrivate, "a square is Lipschitz only on bounded sets"),
    "divisor": (lambda x: cp.quad_over_lin(w @ x, v), [*BALL, v <= 2], NotPrivate, "keeps away from zero"),
    "relative entropy": (lambda x: cp.kl_div(w @ x, v), CYLINDER, NotPrivate, "keeps away from zero"),
    "not a convex quadratic": (
        lambda x: cp.quad_form(w, cp.psd_wrap(np.diag([1.0, -1.0]))) + w @ x,
        BALL,
        NotPrivate,
        "not positive semidefinite",
    ),
    "matrix of the record": (
        lambda x: cp.quad_form(w, cp.psd_wrap(cp.outer(x, x))),
        BALL,
        MissingRule,
        "matrix of a quadratic form depends on the record",
    ),
    "norm of convex terms": (
        lambda x: cp.norm(cp.hstack([cp.logistic(w @ x), 1.0]), 2),
        [],
        MissingRule,
        "not affine in the parameters",
    ),
    "log-sum-exp of norms": (
        lambda x: cp.log_sum_exp(cp.hstack([cp.norm(w - x), cp.norm(w + x)])),
        [],
        MissingRule,
        "not a small polytope",
    ),
    "a square of what may change sign": (
        lambda x: cp.sum_squares(nonneg_wrap(cp.logistic(w @ x) - 2)),
        BALL,
        NotPrivate,
        "not convex",
    ),
    "matrix that is not symmetric": (
        lambda x: cp.lambda_max(cp.vstack([w, x])),
        BALL,
        NotPrivate,
        "not symmetric for every record",
    ),
    "stack of matrices": (
        lambda x: cp.sum(cp.Constant(np.ones((4, 3, 3))) @ cp.logistic(W)),
        [],
        MissingRule,
        "products of stacks of matrices",
    ),
    "unknown atom": (lambda x: cp.sum(cp.cummax(W @ x)), [], MissingRule, "no rule for the atom cummax"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_what_where_and_what_to_do(name):
    loss, constraints, kind, reason = REFUSALS[name]
    with pytest.raises(kind, match=reason) as caught:
        analyse(loss, constraints, x=Ball(2))
    assert caught.value.expression
    assert caught.value.remedy
