"""Options, declarations and calls that make no sense: refused before anything is paid (the words: `wording.py`)."""

import math
import re
from functools import partial

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from wording import check, words

import dpconvex as dp

PURE, PROMISE, ABOUT = dp.Privacy(1.0), dp.Privacy(1.0, 1e-3), {"label": "sick", "labels": ["no", "yes"]}
RECORD = dp.Record(x=dp.Ball(2), y=dp.Choice(["no", "yes"]), weight=dp.Box(0.0, 1.0), group=dp.Choice([0, 1, 2]))
UNIT = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
LOGISTIC, SPARSE = (dp.load(name, features=2) for name in ("logistic_regression", "sparse_logistic"))
MIXTURE = dp.load("large_margin_gaussian_mixture", features=2)
SIGNED_MIXTURE = dp.load("large_margin_gaussian_mixture", features=2, components=2, labels=(-1, 1))
W, Z = cp.Variable(2, name="w"), cp.Variable((2, 2), name="z", diag=True)
X, Y, TIMES = np.full((40, 2), 0.1), np.arange(40) % 2, np.arange(1.0, 41)
SEEN = np.array([(True, 1.0)] * 40, dtype="?,f8")
WARD = dp.Categorical(["a", "b"])
TABLE, MOVED = {"ward": ["a", "b"] * 200, "cost": np.arange(400.0)}, pd.Series(TIMES, index=np.arange(40) + 1)


class SquareOfLogarithm(cp.log):
    """A user's subclass: another function under the rules of its parent."""


def loss(x, y, weight, group):
    return weight * cp.logistic((1 if y == "yes" else -1) * (x @ W) + group * cp.Variable(name="b"))


def softplus(m):
    return np.logaddexp(0.0, m)


def learner(loss=lambda x, y: cp.logistic(x @ W), public=0.0, constraints=()):
    return dp.Template(UNIT, loss, cp.sum_squares(W) + public, list(constraints))


def bounded(constraint):
    bound, x = dp.PrivateBound("b", shape=2, sensitivity=1.0, minimum=1.0), cp.Variable(2, nonneg=True, name="x")
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - 20)), [constraint(x, bound.parameter), x <= 30])
    return dp.verify_bounded(problem, [bound], PROMISE)


def survived(kinds, *pair):
    given = np.array([pair] * 40, dtype=kinds) if kinds else np.column_stack([Y, TIMES][: len(pair)])
    return dp.SurvivalRegressor(epsilon=4.0, delta=1e-6, bounds=(0, 10)).fit(X, given)


def spread(options, X=((1.0, 2.0),)):
    return dp.PublicPreconditioner(**{"records": [[1.0, 2.0]]} | options).transform(X)


def beside(call, **usual):
    """Return a call that takes changes of its usual arguments."""
    return lambda changes: call(**usual | changes)


WITHOUT_PROJECTION = learner(constraints=[W >= -3, cp.log_sum_exp(W) <= 2])
ATOM = {"name": "mine", "function": softplus, "slope": (0.0, 1.0), "curvature": 0.25}
DATA = {"x": X, "y": Y}
SIGNED = {"x": X, "y": 2 * Y - 1}
AMONG = dp.Schema({"age": (0, 9), "dose": (0, 9), "ward": WARD}, **ABOUT)
UP = np.ones(2)
PARTED = dp.Partitions([{name: column[half] for name, column in SIGNED.items()} for half in (slice(9), slice(9, None))])
VISITS = {"age": Y, "dose": Y, "ward": TABLE["ward"][:40]}
BUDGET = dp.Budget(dp.Privacy(9.0, 1e-3))  # which none of these calls may charge
PAID = {"privacy": dp.Privacy(1.0, 1e-6), "budget": BUDGET}


def candidate(x, *labels, predict=lambda p, x: np.ones(len(x))):
    record = dp.Record(x=x, y=dp.Choice(labels))
    return dp.Template(record, lambda x, y: cp.logistic(x @ W), cp.sum_squares(W), predict=predict)


def added(options):
    usual = {"schema": AMONG, "classes": ("no", "yes"), "budget": BUDGET, "delta": 1e-6}
    return dp.AdditiveClassifier(**usual | options).fit(VISITS, np.array(["no", "yes"])[Y])


def pairs(data, budget):
    return dp.MetricLearner(budget=budget).fit(data)


def counted(options, **given):
    usual = {"bounds": (0, 60), "delta": 1e-5, "budget": BUDGET}
    return dp.PoissonRegressor(**usual | options).fit(pd.DataFrame(X), TIMES, **given)


def predicting(function):
    return dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=function)


RANGE = dp.Record(x=dp.Ball(2), y=dp.Box(-1e152, 1e152))  # whose squares are no numbers
HUGE = dp.Template(RANGE, lambda x, y: cp.huber(x @ W), cp.sum_squares(W), predict=LOGISTIC.predict)
MISTAKES = (
    {"candidates": {"from other features": candidate(dp.Ball(2), -1, 1, predict=lambda p, x: x @ np.ones(5))}},
    *({"seed": "a"}, {"backend": "zz"}, {"clip": "yes"}, {"features": "q"}, {"label": ["y"]}),
    {"candidates": [candidate(dp.Ball(2), -1, 1), candidate(dp.Ball(2), -1, 2)]},
    {"candidates": [candidate(dp.Ball(2), 1), candidate(dp.Ball(2, norm=1), 1)]},
    {"candidates": [candidate(dp.Box(-UP, 2 * UP), 1), candidate(dp.Box(-UP, UP), 1)]},
)
# What is called, and arguments of each call.
CALLS = {
    "a schema": (
        beside(dp.Schema, features={"age": (0, 1)}, **ABOUT),
        *({"features": {"": (0, 1)}}, {"features": {"age": (1, 0)}}, {"features": {"age": (0, 1), "sick": (0, 1)}}),
        *({"labels": "no,yes"}, {"labels": [0, "0"]}, {"label_bounds": (0, 1)}, {"constant": "yes"}),
        {"features": {"c": {"levels": ["a", "b"], "missing": "z"}}},
        {"features": {"c": {"bounds": [0, 1], "missing": 2}}},
        {"features": {"c": {"ordered": ["a", "b"], "other": True}}},
        {"features": {"c": {"dates": ["2020-01-01", "tomorrow"]}}},
        *({"features": {"c": {"boolean": ["true", "false"]}}}, {"features": {"c": {}}}),
    ),
    "splines": (
        lambda changes: dp.SplineEncoder(**changes).fit({}),
        {},
        *(
            {"schema": dp.Schema({"age": (0, 100), "ward": WARD}, **ABOUT)} | changes
            for changes in (
                *({"knots": {"weight": [1]}}, {"knots": {"age": [50, 20]}}, {"knots": {"age": [50, 200]}}),
                *({"knots": {"age": [[1.0], [2.0]]}}, {"knots": {"age": ["old"]}}, {"knots": {"ward": [0.5]}}),
                *({"kept": 1.0}, {"kept": "all"}, {"pairs": [("age", "age")]}, {"pairs": [("age", "weight")]}),
                *({"pairs": ["age"]}, {"pairs": 5}, {"knots": 5}),
            )
        ),
    ),
    "a preconditioner": (*(spread, {"records": [[1.0, np.nan]]}, {"power": 0.6}, {"ridge": 0.0}),),
    "records to a preconditioner": (lambda rows: spread({}, rows), [[1.0, 2.0, 3.0]], [[1.0, 2.0], [np.inf, 0.0]]),
    "a promise": (
        *(beside(dp.Privacy, epsilon=1.0), {"most": 3}, {"unit": 7}, {"unit": "a b"}, {"unit": "p", "most": 0}),
        *({"keep": "first"}, {"unit": "p", "keep": "x"}),
    ),
    "k-means": (beside(dp.NoisyKMeans), {"rounds": 1}, {"rounds": 2.5}, {"rounds": True}),
    "noise on the output": (beside(dp.OutputPerturbation), {"noise": "matrix"}, {"added": -1.0}, {"added": math.nan}),
    "noise on the objective": (beside(dp.ObjectivePerturbation), {"noise": "laplace"}, {"added": -1}, {"added": True}),
    "residual noise": (beside(dp.ResidualNoise), {"share": 0}, {"share": 1}, {"tolerance": 0}, {"tolerance": math.inf}),
    "repetitions": (
        *(beside(dp.Repetitions), {"mean": 1.0}, {"mean": math.nan}, {"mean": True}, {"shape": -1.0}),
        *({"shape": math.inf}, {"share": 0.0}, {"share": 1.0}, {"share": "0.1"}),
    ),
    "gradient descent": (
        *(beside(dp.NoisyGradientDescent), {"steps": 0}, {"steps": 2.5}, {"steps": True}, {"step_size": -1.0}),
        *({"clip": 0.0}, {"clip": math.inf}, {"momentum": 0.5}, {"clip": 1.0, "momentum": 1.0}),
        {"clip": 1.0, "sampling": 1.0},
    ),
    "a template": (
        beside(dp.Template, record=RECORD, loss=loss),
        *({"record": {"x": dp.Ball(2)}}, {"loss": 3}, {"loss": lambda x, y: cp.sum(W)}, {"regularizer": [W]}),
        *({"loss": lambda **fields: W @ W >= 1}, {"constraints": [True]}, {"predict": 1}),
        {"regularizer": cp.Variable(name="w") ** 2},
    ),
    "a learner": (
        lambda changes: dp.verify(learner(**changes), PURE, 100),
        {"public": -cp.sum(SquareOfLogarithm(W))},
        {"constraints": [cp.constraints.FiniteSet(W[0], [-1.0, 0.5, 2.0])]},
        {"loss": lambda x, y: -cp.log_normcdf(y * (x @ W))},  # CVXPY's approximation
        {"loss": lambda x, y: cp.logistic(x @ Z @ np.ones(2))},
        {"public": cp.sum_squares(cp.Variable((2, 2, 2), name="z"))},
    ),
    "an atom": (
        beside(dp.Atom, **ATOM),
        *({"slope": (1.0, 0.0)}, {"slope": (0.0, np.inf)}, {"slope": 1.0}, {"lower": np.inf}, {"curvature": -1.0}),
        {"function": 3},
    ),
    "a problem": (
        lambda given: dp.load(given[0], features=3, **given[1]),
        *(("tweedie_regression", {"power": 2.1}), ("tweedie_regression", {"power": 0.5})),
        *(("expectile_regression", {"expectile": 1.0}), ("expected_shortfall", {"level": 0.0})),
        *(("expected_shortfall", {"levels": 0}), ("negative_binomial_regression", {"dispersion": 0.0})),
        *(("probit_regression", {"classes": 3}), ("sparse_logistic", {"classes": 3})),
    ),
    "a split": (
        *(
            beside(dp.split, unit=Y),
            {"unit": [[1, 2], [3]]},
            {"unit": 5.0},
            {"unit": "abc"},
            {"unit": {"a": 1, "b": 2}},
        ),
        *({"seed": -1}, {"test": 1.0}),
    ),
    "guarantees of a sweep": (lambda given: dp.sweep(LOGISTIC, SIGNED, given), np.ones(2), PURE.epsilon),
    "targets of a schema": (dp.Schema({"age": (0, 1)}, label="cost", label_bounds=(0, 9)).targets, "abc", [[1], [2]]),
    "no records": (
        lambda call: call(data={"x": X[:0], "y": Y[:0]}),
        *(partial(dp.solve, LOGISTIC, privacy=PURE), partial(dp.tune_repeated, [LOGISTIC], privacy=PURE)),
        *(lambda data: list(dp.sweep(LOGISTIC, data, PURE)), partial(dp.solve_without_privacy, LOGISTIC)),
        lambda data: LOGISTIC.record.validate(data),
    ),
    "a conic solver": (beside(dp.ConicSolver), {"polish_steps": -1}, {"warm": [1]}, {"solver": ""}),
    "a backend": (lambda given: dp.solve(LOGISTIC, SIGNED, PURE, backend=given), "newton", dp.ConicSolver),
    "a private bound": (
        bounded,
        lambda x, b: cp.sum(x) + 5 <= cp.sum(b),
        lambda x, b: x[:1] <= b[:1] + cp.Parameter(1, name="free"),
        lambda x, b: cp.sum_squares(x) >= cp.sum(b),
        lambda x, b: x + cp.Variable(2, integer=True, name="i") <= b,
        lambda x, b: x + cp.Variable(2, name="b") <= b,
    ),
    "a mixture": (
        beside(dp.solve_mixture, template=MIXTURE, data=DATA, privacy=dp.Privacy(2.0, 1e-6)),
        *({"share": True}, {"clustering": 3}, {"clustering": dp.ComponentCenters([[[0.0, 0.0]]])}, {"group": "m"}),
        {"data": DATA | {"m": 0 * Y}},
        {"clustering": dp.ComponentCenters([[[-0.5, 0.0], [0.5, 0.0]]] * 2, classes=(0, 1)), "share": 0.5},
    ),
    "an audit": (
        beside(dp.audit, template=LOGISTIC, privacy=PURE, size=10),
        *({"effort": 0}, {"effort": True}, {"runs": 3}, {"size": 0}, {"seed": -1}, {"template": "logistic_regression"}),
        {"mechanism": dp.ObjectivePerturbation("gaussian")},
        {"template": WITHOUT_PROJECTION, "mechanism": dp.ObjectivePerturbation()},
    ),
    "a certificate to falsify": (lambda given: dp.falsify(LOGISTIC, given), PURE),
    "times with events": (
        lambda given: survived(*given),
        *(("", 1.0), ("", 1, 1.0), ("?,f8", True, -1.0), ("?,f8", True, np.nan), ("i4,f8", 2, 1.0)),
        ("U4,f8", "dead", 1.0),
    ),
    "a schema to learn": (
        lambda changes: dp.learn_schema(TABLE | {"age": TABLE["cost"]}, **PAID | {"label": "cost"} | changes),
        *({"known": {"age": "figure"}}, {"known": {"cost": "date"}}, {"known": {"height": "number"}}),
        *({"known": {"cost": (0, 5)}}, {"ignore": "ward"}, {"ignore": ["cost"]}, {"unit": "ward"}, {"privacy": PURE}),
        {"labels": ["a", "b"], "label_bounds": (0, 1)},
        {"known": {"age": (0, 1)}, "ignore": ["ward"], "label_bounds": (0, 9)},
    ),
    "an additive model": (
        *(added, {"monotone": {"ward": "increasing"}}, {"curvature": {"weight": "convex"}}, {"fit_intercept": True}),
        *({"monotone": {"age": "increasing"}, "pairs": [("age", "ward")]}, {"knots": {"age": [-1]}}, {"schema": None}),
        *({"classes": ("no", "maybe")}, {"monotone": [1, 0]}, {"monotone": "increasing"}, {"monotone": {"age": "up"}}),
    ),
    "counts": (
        *(counted, {"exposure": 0.5}, {"weight": np.inf}, {"alpha": -1.0}, {"bounds": None}),
        *({"bounds": (1, 60), "exposure": 3.0}, {"bounds": (0, np.inf)}),
    ),
    "weights and exposures of counts": (
        lambda given: counted(given[0], **given[1]),
        *(({}, {"sample_weight": TIMES}), ({}, {"exposure": TIMES}), ({"exposure": -1.0}, {"exposure": TIMES})),
        *(({"weight": 40.0}, {"sample_weight": wrong}) for wrong in (TIMES[:-1], np.array(["a"] * 40), X, 1.0, MOVED)),
    ),
    "powers of a Tweedie regression": (
        lambda power: dp.TweedieRegressor(power=power, delta=1e-5, bounds=(0, 60), budget=BUDGET).fit(X, TIMES),
        *(0.5, 2.5, "a", np.nan),
    ),
    "intervals of survival": (
        lambda given: dp.SurvivalRegressor(**{"delta": 1e-6, "bounds": (0, 10), "budget": BUDGET} | given).fit(X, SEEN),
        *({"intervals": intervals} for intervals in (0, True, (2, 1), (1, 11), (1, np.nan), "6")),
        *({"bounds": (1, 10)}, {"bounds": (0, np.inf)}, {"fit_intercept": True}),
    ),
    "a fit to evaluate": (
        lambda given: dp.evaluate(given[0], given[1], SIGNED, dp.Privacy(0.5), budget=BUDGET, **dict(given[2:])),
        *((LOGISTIC, predicting(form)) for form in (lambda p, x: x[:, :1], lambda p, x: 0, lambda p, x: x[None, :, 0])),
        (dp.load("logistic_regression", features=3), predicting(LOGISTIC.predict)),
        (LOGISTIC, predicting(LOGISTIC.predict), ("features", "y")),
        (HUGE, predicting(LOGISTIC.predict)),
    ),
    "noisy Frank-Wolfe": (
        lambda given: dp.verify(learner(**given), PROMISE, 100, dp.NoisyFrankWolfe()),
        *({"constraints": [one]} for one in (cp.norm(W) <= 1, W >= -1, cp.norm1(W - 1) <= 2, cp.norm1(W[:1]) <= 1)),
        *({}, {"constraints": [cp.norm1(W) <= 1], "public": cp.norm1(W)}),
    ),
    "noisy Frank-Wolfe without a delta": (lambda given: dp.verify(given, PURE, 100, dp.NoisyFrankWolfe()), SPARSE),
    "vertices": (lambda given: dp.NoisyFrankWolfe(vertices=given), 0),
    "a delta of groups": (partial(dp.verify(LOGISTIC, PURE, 100).for_group, 2), -1.0, np.nan, "a"),
    "a certificate as data": (dp.Certificate.from_dict, None, [1]),
    "a certificate to compare": (dp.verify(LOGISTIC, PURE, 100).compare, PURE),
    "fits to tune": (beside(dp.tune, candidates=[LOGISTIC] * 2, data=SIGNED, **PAID), *MISTAKES),
    "repeated fits to tune": (beside(dp.tune_repeated, candidates=[LOGISTIC] * 2, data=SIGNED, **PAID), *MISTAKES),
    "partitions for what needs all records": (
        *(lambda call: call(data=PARTED, budget=BUDGET), partial(dp.solve, LOGISTIC, privacy=PURE, backend="conic")),
        *(partial(tune, [LOGISTIC], privacy=PURE, workers=2) for tune in (dp.tune, dp.tune_repeated)),
        *(partial(tune, [LOGISTIC], privacy=PURE, backend="conic") for tune in (dp.tune, dp.tune_repeated)),
        *(partial(dp.solve_mixture, SIGNED_MIXTURE, privacy=PURE, backend="conic"), pairs),
        partial(dp.sweep, LOGISTIC, total=PURE, backend="conic"),
    ),
    "sums for statistics": (
        lambda loss: dp.verify(learner(loss, constraints=[cp.norm(W) <= 1]), PROMISE, 100, dp.SufficientStatistics()),
        *(lambda x, y: cp.logistic(x @ W), lambda x, y: cp.square(x @ W) + cp.norm(W - x)),
        *(lambda x, y: cp.power(x @ W, 4), lambda x, y: cp.huber(x @ W - y)),
        lambda x, y: cp.exp(x[0]) * cp.square(W[0] - x[0]),
    ),
    "a set": (
        lambda constraint: dp.verify(learner(constraints=[constraint]), PURE, 100),
        *(cp.norm(W) >= 1, cp.Parameter(2, name="limit") >= W),
        *(cp.PowCone3D(W[0], W[1], W[0] + W[1], 0.3), cp.ExpCone(W[0], W[1], W[0] + W[1])),
    ),
    "classes": (
        lambda classes: dp.LogisticRegression(classes=classes, budget=BUDGET).fit(X, ["a", "b"] * 20),
        *(("a",), ("a", "a"), (), (1, True)),
    ),
    "estimators": (
        lambda fit: fit(X, Y),
        lambda X, y: dp.LogisticRegression(classes=(0, 1)).fit(X, np.where(y, None, y.astype(object))),
        dp.LinearRegression(bounds=(-1, 1), regularization=1.0).fit,
    ),
}
OPTIONS = {f"{n}, {k}": partial(call, given) for n, (call, *many) in CALLS.items() for k, given in enumerate(many, 1)}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OPTIONS)
def test_what_makes_no_sense_is_refused(name):
    found = words(OPTIONS[name])
    assert re.match(r"(TemplateError|DomainError|NotPrivate|MissingRule|NotConverged|DPConvexError): ", found), found
    check("options", name, found)
    assert not BUDGET.entries
