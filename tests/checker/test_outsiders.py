"""Proofs of losses as outsiders declare them: they are replayed, and nothing better is."""

import inspect
import json

import cvxpy as cp
import numpy as np
import pytest
from refused import refused
from test_replay import PROMISES, PURE, SIZE, follows, mutated

import dpconvex as dp
from dpconvex.checker import Rejected, check

w = cp.Variable(2, name="w")
FIELDS = {"x": dp.Ball(2), "y": dp.Box(0, 4), "g": dp.Box(0.2, 1), "h": dp.Box(0, 1), "s": dp.Choice([-1, 1])}
DECLARED = {
    "survey weights": lambda x, g, s: g * cp.logistic(-s * (x @ w)),
    "survey weights and an offset": lambda x, y, g, s: g * cp.logistic(-s * (x @ w + y)),
    "survey weights of norms": lambda x, g: g * cp.norm(cp.hstack([0.5, x - w])),
    "treated and others": lambda x, g, h: g * cp.logistic(-(x @ w)) + h * cp.logistic(x @ w),
    "products that cancel": lambda x, y: cp.square((1 + y) * (x @ w) + (1 - y) * (x @ w) - 2 * y) / 8,
    "squares that cancel": lambda x, g, s: cp.logistic(s * ((1 + g) * (1 - g) - (1 - g * g)) * (x @ w) + x @ w),
    "Poisson with exposure": lambda x, y, g: g * cp.exp(x @ w) - y * (x @ w),
    "Gamma": lambda x, y: y * cp.exp(-(x @ w)) + x @ w,
    "Tweedie": lambda x, y: 2 * y * cp.exp(-0.5 * (x @ w)) + 2 * cp.exp(0.5 * (x @ w)),
    "censored times": lambda x, y, s: y * cp.exp(x @ w) - (1 + s) / 2 * (x @ w),
    "entropy balancing": lambda x, g, h: h * cp.exp(x @ w) - g * (x @ w),
    "negative binomial": lambda x, y: (y + 2) * cp.logistic(x @ w) - y * (x @ w),
    "probit with weights and an offset": lambda x, y, g, s: -g * dp.log_normcdf(s * (x @ w + y)),
    "a log likelihood of probits": lambda x, y, g: -(g * dp.log_normcdf(x @ w) + y * (x @ w)),
    "a log likelihood of counts": lambda x, y, g: -(y * (x @ w) / 2 - g * cp.exp(x @ w) - 2 * cp.logistic(x @ w)),
    "smoothed quantiles": lambda x, y: 0.1 * cp.logistic((x @ w - y) / 0.1) - 0.3 * (x @ w - y),
    "three numbers on one line": lambda x, g: g * cp.log_sum_exp(cp.hstack([x @ w, 0, -(x @ w) / 2])),
    "a score against a number": lambda x, y, s: cp.log_sum_exp(cp.hstack([y, s * (x @ w)])),
    "squares of features": lambda x, s: cp.logistic(s * (x @ w - cp.square(x) @ w)),
    "a weight and an offset that are lengths": lambda x, s: cp.norm(x) * cp.logistic(s * (x @ w) + cp.norm(x)),
    "an offset with a kink": lambda x, y, s: cp.logistic(s * (x @ w) + cp.abs(y - 2) + cp.maximum(y, 1)),
    "a logistic of a square": lambda x, y: cp.logistic(cp.square(x @ w - y)),
    "an exponential of a logistic": lambda x: cp.exp(cp.logistic(x @ w)),
    "absolute features with a weight": lambda x, g: g * cp.logistic(cp.abs(x) @ w),
    "powers of a number": lambda x, y: cp.logistic(cp.square(y) * w[0] / 16 - y * w[1]),
    "two slopes far from 1/2": lambda x, g: 2 * cp.logistic(x @ w - 4) + g * cp.logistic(-2 * (x @ w) - 5),
}
OBJECTIVE = {"pure": dp.ObjectivePerturbation(), "delta": dp.ObjectivePerturbation("gaussian")}
OBJECTIVE |= {"add-remove": OBJECTIVE["delta"]}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("promise", OBJECTIVE)
def test_what_users_declare_is_replayed_and_nothing_better(name, promise):
    loss = DECLARED[name]
    record = dp.Record(**{field: FIELDS[field] for field in inspect.signature(loss).parameters})
    template = dp.Template(record, loss, 0.05 * cp.sum_squares(w), [cp.norm(w) <= 2])
    proof = dp.verify(template, PROMISES[promise], SIZE, OBJECTIVE[promise]).proof
    assert check(proof).unreplayed == ()  # `check` says what it rejects
    for path, factor in {"claim noise_scale": 0.97, "claim gradient_bound": 0.97, "claim sensitivity": 0.97}.items():
        assert not follows(mutated(proof, path, factor)), path


@pytest.mark.parametrize("total", [0.5, 2.0])
def test_nonnegative_coordinates_with_a_bounded_sum_bound_scores(total):
    record, corner = dp.Record(x=dp.Box([0, -1], [1, 1])), [cp.sum(w) <= total, w >= 0]
    template = dp.Template(record, lambda x: cp.exp(x @ w), 0.05 * cp.sum_squares(w), corner)
    proof = dp.verify(template, PROMISES["pure"], SIZE, OBJECTIVE["pure"]).proof
    assert check(proof).unreplayed == ()
    assert not follows(mutated(proof, "claim gradient_bound", 0.97))


@pytest.mark.parametrize(
    ("mechanism", "claim"), [(dp.OutputPerturbation(), "sensitivity"), (OBJECTIVE["pure"], "noise_scale")]
)
def test_norms_beside_other_terms_are_replayed(mechanism, claim):
    """Gradients of two records are no two lengths apart, and the norm stays away from its least value."""
    b = cp.Variable(name="b")
    score = lambda x: x @ w + b  # noqa: E731
    loss = lambda x: cp.norm(cp.hstack([0.2, score(x) - 5])) + dp.huber_hinge(1 - 2 * score(x), 0.5)  # noqa: E731
    ridge, ball = 0.005 * (cp.sum_squares(w) + cp.square(b)), [cp.norm(w) <= 2, cp.abs(b) <= 1]
    proof = dp.verify(dp.Template(dp.Record(x=dp.Ball(2)), loss, ridge, ball), PURE, SIZE, mechanism).proof
    assert follows(proof)
    assert not follows(mutated(proof, f"claim {claim}", 0.97))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", [1, 2, "inf"])
@pytest.mark.parametrize("offset", [False, True])
def test_l1_balls_are_read(first, offset):
    """Products of records in a norm with a sum of absolute values are at most the largest record's entry times the sum."""
    v, b = cp.Variable(3, name="v"), cp.Variable(name="b", bounds=[-1, 1])
    x = dp.Ball(3, 1.0, norm=np.inf if first == "inf" else first)
    loss = lambda x, y: cp.square(x @ v + (b if offset else 0) - y)  # noqa: E731
    template = dp.Template(dp.Record(x=x, y=dp.Box(-1, 1)), loss, 0.05 * cp.sum_squares(v), [cp.norm1(v) <= 2])
    proof = dp.verify(template, PURE, SIZE, dp.ObjectivePerturbation()).proof
    assert follows(proof)
    graph = json.loads(proof)
    for node in graph["nodes"]:
        if node["op"] == "constant" and node["value"] == [2]:
            node["value"] = [3]  # the ball is wider, and gradients longer
    assert not follows(json.dumps(graph).encode())
    for claim in ("claim gradient_bound", "claim noise_scale"):
        assert not follows(mutated(proof, claim, 0.97))


@pytest.mark.parametrize("constraints", [[], [{"kind": "inequality", "args": [0, 0]}]])
def test_exponentials_need_bounds(constraints):
    loss, near = (lambda x: cp.exp(x @ w)), [cp.norm(w) <= 2]
    template = dp.Template(dp.Record(x=dp.Ball(2)), loss, 0.05 * cp.sum_squares(w), near)
    proof = json.loads(dp.verify(template, PURE, SIZE, dp.OutputPerturbation()).proof)
    assert follows(json.dumps(proof).encode())
    assert not follows(json.dumps(proof | {"constraints": constraints}).encode())


@pytest.mark.parametrize("ends", ["absolute values", "both sides", "attributes"])
def test_a_ball_of_one_variable_beside_bounds_of_another_is_read(ends):
    w, b = cp.Variable(3, name="w"), cp.Variable(name="b", bounds=[-2, 2] if ends == "attributes" else None)
    sides = {"absolute values": [cp.abs(b) <= 2], "both sides": [b <= 2, b >= -2], "attributes": []}
    record, rest = dp.Record(x=dp.Ball(3), y=dp.Box(0, 5)), 1e-3 * (cp.sum_squares(w) + cp.square(b))
    loss, K = (lambda x, y: cp.exp(x @ w + b) - y * (x @ w + b)), [cp.norm(w) <= 2, *sides[ends]]
    certificate = dp.verify(dp.Template(record, loss, rest, K), dp.Privacy(1.0), size=1000)
    assert not certificate.check().unreplayed
    assert certificate.gradient_bound == pytest.approx(np.sqrt(2) * np.exp(4), rel=1e-9)


# Many differences of gradients, and losses as outsiders write them
GAUSSIAN = dp.ObjectivePerturbation("gaussian")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("discrete_hazards", {}),
        pytest.param("multi_task_logistic", {}, marks=SLOW),
        pytest.param("quantile_fan", {}, marks=SLOW),
        pytest.param("discrete_hazards", {"intervals": 9}, marks=SLOW),
        pytest.param("linear_chain_crf", {}, marks=SLOW),
        pytest.param("softmax_regression", {"classes": 10}, marks=SLOW),
    ],
)
def test_many_differences_of_gradients_are_replayed(name, options):
    certificate = dp.verify(dp.load(name, features=3, **options), dp.Privacy(1.0, 1e-6), 1000, GAUSSIAN)
    assert certificate.check().unreplayed == ()


# Losses as outsiders write them: the checker knew no sums of squares, and bounded matrices by sums of rows
W, V, M = cp.Variable(2, name="w"), cp.Variable((2, 2), name="v"), cp.Variable((2, 2), name="m", symmetric=True)
MAP = np.array([[0.3, -1.1], [0.7, 0.2], [0.5, 0.9]])
BALL, SIGN = dp.Ball(3), dp.Choice([-1, 1])
LOSSES = {
    "a public matrix": ({"x": BALL, "y": SIGN}, lambda x, y: cp.logistic(-y * (x @ MAP @ W)), W, []),
    "differences of entries": (
        {"x": dp.Box([-1] * 3, [1] * 3), "y": SIGN},
        *(lambda x, y: cp.logistic(-y * ((x[0] - x[1]) * W[0] + (x[1] - x[2] / 3) * W[1])), W, []),
    ),
    "a box about another point": (
        {"x": dp.Box([18.0, 0.0], [90.0, 200.0]), "y": dp.Box(0, 300)},
        *(lambda x, y: cp.huber(((x - np.array([50, 90])) / np.array([20, 40])) @ W - (y - 150) / 100, 0.5), W, []),
    ),
    "a mean": ({"x": dp.Ball(2)}, lambda x: cp.sum_squares(x - W) / 2, W, [cp.norm(W) <= 1]),
    "several targets": (
        {"x": BALL, "y": dp.Ball(2), "g": dp.Box(0.1, 1)},
        *(lambda x, y, g: g * cp.sum_squares(x @ MAP @ V - y), V, [cp.norm(V, "fro") <= 1]),
    ),
    "a moment": ({"x": dp.Ball(2)}, lambda x: cp.sum_squares(M - cp.outer(x, x)) / 3, M, [cp.norm(M, "fro") <= 1]),
    "a cube": ({"x": BALL, "y": dp.Box(-1, 1)}, lambda x, y: cp.square(x[:2] @ W - y), W, [cp.norm(W, "inf") <= 1]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_outsiders_are_replayed_and_none_with_longer_records(name):
    fields, loss, variable, constraints = LOSSES[name]
    template = dp.Template(dp.Record(**fields), loss, 0.05 * cp.sum_squares(variable), constraints)
    proof = dp.verify(template, dp.Privacy(1.0), 1000, dp.OutputPerturbation()).proof
    assert check(proof).unreplayed == ()
    wrong = mutated(proof, "record", 1.001)
    assert not follows(wrong)
    if name != "a cube":  # of which the checker does not read all
        refused(Rejected, None, check, wrong)


@pytest.mark.slow
def test_choices_among_many_labels_are_replayed():
    learner = dp.load("softmax_regression", features=3, classes=26)
    assert dp.verify(learner, dp.Privacy(1.0), 1000, dp.ObjectivePerturbation()).check().unreplayed == ()
