"""What must be refused: every defect with its type, the place at fault, and what to do about it (the words: `wording.py`)."""

import inspect
import math
import re
from contextlib import suppress

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from cvxpy.atoms.affine.wraps import nonneg_wrap
from wording import check, words

import dpconvex as dp
from dpconvex import plots
from dpconvex.datasets import unit_ball

PROMISE = dp.Privacy(epsilon=1.0)
DELTA = dp.Privacy(1.0, 1e-6)
LABELLED = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
UNIT = dp.Record(x=dp.Box(0.0, 1.0))
SIGNED = dp.Record(x=dp.Box(-1.0, 1.0))
FEATURES = dp.Record(x=dp.Ball(3))
THEIR_X = FEATURES.parameters["x"]
OTHER_X = UNIT.parameters["x"]
MATRIX, GAUSSIAN = dp.ObjectivePerturbation("matrix"), dp.ObjectivePerturbation("gaussian")
STEPS, GAUSSIAN_OUTPUT = dp.NoisyGradientDescent(), dp.OutputPerturbation("gaussian")
INDEFINITE = np.diag([1.0, 1.0, -1.0])


def room():
    bound, x = dp.PrivateBound("room", sensitivity=1.0), cp.Variable(nonneg=True, name="x")
    return cp.Problem(cp.Maximize(x), [x <= bound.parameter, x <= 100]), bound


X, Y = np.array([[0.5, 0.1], [-0.5, 0.2]] * 10), np.array([0, 1] * 10)
HOLES = np.where(X[3, 1] == X, np.nan, X)
LABEL = {"label": "sick", "labels": ["no", "yes"]}


def ridge(w):
    return 0.01 * cp.sum_squares(w)


def logistic(w, x, y=1):
    return cp.logistic(-y * (x @ w))


def verified(loss, record=LABELLED, regularizer=ridge, constraints=lambda w: [], mechanism=None, delta=0.0, **given):
    """Return a call of `verify` on a template with one variable w of three entries; `loss` takes w and the fields."""

    def run():
        w = cp.Variable(3, name="w", **given)
        chosen = dp.ObjectivePerturbation() if mechanism is None else mechanism
        # A plain function of the fields, so that the template can call it by their names.
        template = dp.Template(record, lambda **fields: loss(w, **fields), regularizer(w), constraints(w))
        return dp.verify(template, dp.Privacy(1.0, delta), size=100, mechanism=chosen)

    return run


def of_a_matrix(loss, regularizer=cp.sum_squares, **attributes):
    """Return a call of `verify` on a template with one 2 x 2 variable P and records in a ball of two dimensions."""

    def run():
        P = cp.Variable((2, 2), name="P", **attributes)
        template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: loss(P, x), regularizer(P))
        return dp.verify(template, PROMISE, size=100, mechanism=dp.ObjectivePerturbation())

    return run


def within(constraints):
    return verified(logistic, FEATURES, constraints=constraints)


def declared(function):
    atom = dp.Atom("mine", function, slope=(0.0, 0.9), curvature=0.25)
    return verified(lambda w, x, y: atom(x @ w))


def shipped(features=2, **options):
    return dp.load("logistic_regression", features=features, **options)


def untested(loss):
    return dp.Template(dp.Record(x=dp.Ball(2)), loss)


NUMBERS = dp.Schema({"a": (-1.0, 1.0)}, label="y", labels=[-1, 1])
NUMBERED = dp.Partitions([pd.DataFrame({"a": [0.1, -0.2], "y": [1, -1]})], NUMBERS)
REFUSED = {
    # No proof
    "a record in an unbounded ball": lambda: dp.Record(x=dp.Ball(3, radius=np.inf)),
    "the root of a field that can be negative": verified(lambda w, x: cp.logistic(w[0] * cp.sqrt(x)), SIGNED),
    "a curved term over a field that can be zero": verified(lambda w, x: cp.logistic(w[0]) / x, UNIT),
    "division by the number zero": verified(lambda w, x, y: cp.logistic(x @ w / 0)),
    "a field of another record": verified(lambda w, x, y: cp.logistic(x @ w + OTHER_X + cp.Parameter(name="age"))),
    "the hinge": verified(lambda w, x, y: cp.pos(1 - y * (x @ w))),
    "a maximum of two terms": verified(lambda w, x, y: cp.maximum(x @ w, 1 - x @ w)),
    "the largest entry": verified(lambda w, x, y: cp.max(cp.multiply(w, x))),
    "the absolute value": verified(lambda w, x, y: cp.abs(x @ w - y)),
    "the 1-norm": verified(lambda w, x, y: cp.norm1(w - x)),
    "the Euclidean norm": verified(lambda w, x, y: cp.norm(w - x, 2)),
    "another p-norm": verified(lambda w, x, y: cp.pnorm(w - x, 1.5)),
    "the largest eigenvalue": of_a_matrix(lambda P, x: cp.lambda_max(P - cp.outer(x, x)), symmetric=True),
    "the nuclear norm": of_a_matrix(lambda P, x: cp.norm(P @ cp.diag(x), "nuc")),
    "a square of unbounded parameters": verified(lambda w, x, y: cp.square(y - x @ w)),
    "the exponential of unbounded parameters": verified(lambda w, x, y: cp.exp(-y * (x @ w))),
    "an exponential of a wide field": verified(lambda w, u: cp.square(cp.exp(u) * w[0]), dp.Record(u=dp.Box(0, 1000))),
    "an exponential that overflows": verified(lambda w, x, y: cp.exp(x @ w), bounds=[-1000, 1000]),
    "entropy of unbounded parameters": verified(lambda w, x, y: -cp.entr(w[0] + x[0] + 1), bounds=[0, None]),
    "the root of a score that can be negative": verified(lambda w, x, y: -cp.sqrt(w[0] * x[0]), bounds=[0, 1]),
    # CVXPY defines odd powers for non-negative arguments only: a hidden constraint that would depend on data.
    "an odd power of a score": verified(lambda w, x, y: cp.power(w[0] * x[0], 3), bounds=[-1, 1]),
    "a power that overflows": verified(lambda w, x, y: cp.power(1e60 * w[0] * x[0], 8), bounds=[-1, 1]),
    "a power of a curved term": verified(lambda w, x, y: cp.power(cp.norm(x) * cp.logistic(w[0]), 1.5)),
    "relative entropy of a score that can be negative": verified(lambda w, x, y: cp.kl_div(w @ x, 1), bounds=[0.5, 2]),
    "the power 1.5 at zero": verified(lambda w, x, y: cp.power(cp.pos(x @ w), 1.5), bounds=[-1, 1]),
    "a divisor that reaches zero": verified(lambda w, x, y: cp.quad_over_lin(x[0] * w[0], w[1]), bounds=[0, 1]),
    "a logarithm at zero": verified(lambda w, x, y: -cp.log(x @ w + 1), bounds=[-1, 1]),
    "a concave term": verified(lambda w, x, y: logistic(w, x, y) - cp.logistic(x @ w)),
    "a product of variables": verified(lambda w, x, y: w[0] * w[1] * x[0]),
    "a weight that can change sign": verified(lambda w, x: x * cp.logistic(w[0]), SIGNED),
    "an indefinite quadratic form": verified(lambda w, x, y: cp.quad_form(w - x, INDEFINITE), bounds=[-1, 1]),
    "an indefinite quadratic form that is said to be convex": verified(
        lambda w, x, y: cp.quad_form(w, INDEFINITE, assume_PSD=True) + x @ w, bounds=[-1, 1]
    ),
    "a sign that is asserted": verified(lambda w, x, y: cp.huber(nonneg_wrap(cp.logistic(x @ w) - 2))),
    "a sign that is asserted in a regularizer": verified(
        logistic, FEATURES, lambda w: ridge(w) + cp.square(nonneg_wrap(cp.norm(w) - 5))
    ),
    "a threshold that depends on the record": verified(lambda w, x, y: cp.huber(w[0], cp.norm(x))),
    "an exponent that depends on the record": verified(lambda w, x: w[0] * cp.power(x, x), UNIT),
    "a quadratic form of the record's": verified(lambda w, x, y: cp.quad_form(w, cp.psd_wrap(cp.outer(x, x)))),
    "a norm of convex terms": verified(lambda w, x, y: cp.norm(cp.hstack([cp.logistic(x @ w), 1.0]))),
    "log-sum-exp of norms": verified(lambda w, x, y: cp.log_sum_exp(cp.hstack([cp.norm(w - x), cp.norm(w + x)]))),
    "eigenvalues of a matrix that is not symmetric": of_a_matrix(lambda P, x: cp.lambda_max(cp.vstack([P @ x, x]))),
    "products of stacks of matrices": of_a_matrix(lambda P, x: cp.sum(np.ones((4, 2, 2)) @ cp.logistic(P))),
    "a factor that is negative for one label": verified(lambda w, x, y: y * cp.logistic(x @ w)),
    "a composition that CVXPY cannot prove convex": verified(lambda w, x, y: cp.sqrt(cp.pos(x @ w))),
    "an atom without a rule": verified(lambda w, x, y: cp.dotsort(cp.multiply(w, x), [1.0, 0.5])),
    "a declared atom with too small a slope": declared(lambda m: np.logaddexp(m, 0.0)),
    "a loss without variables": verified(lambda w, x, y: cp.sum_squares(x)),
    "a loss whose variables are multiplied by zero": verified(lambda w, x, y: cp.logistic(0 * (x @ w))),
    "a loss whose terms cancel": verified(lambda w, x, y: cp.square(x @ w - w @ x)),
    "a loss that is the same for all records": verified(lambda w, x, y: cp.sum(w)),
    "a number that is not finite": verified(lambda w, x, y: cp.logistic(np.nan * (x @ w))),
    "no regularizer": verified(logistic, FEATURES, lambda w: 0.0),
    "a trace alone": of_a_matrix(lambda P, x: dp.huber_hinge(1 - x @ P @ x, 0.5), cp.trace, PSD=True),
    "one variable without a quadratic": verified(lambda w, x: cp.logistic(x @ w + cp.Variable(name="b")), FEATURES),
    "a regularizer that mentions the record": verified(logistic, FEATURES, lambda w: ridge(w) + THEIR_X @ w),
    "a regularizer that is not convex": verified(logistic, FEATURES, lambda w: -cp.sum_squares(w)),
    "an infinite regularizer": verified(logistic, FEATURES, lambda w: np.inf * cp.sum_squares(w)),
    "a constraint that mentions the record": within(lambda w: [THEIR_X @ w <= 1]),
    "a constraint that is not convex": within(lambda w: [cp.norm(w, 2) >= 1]),
    "a constraint with a negative eigenvalue": within(lambda w: [cp.quad_form(w, cp.psd_wrap(INDEFINITE)) <= 1]),
    "curvature that costs more than epsilon": lambda: dp.verify(
        shipped(3, regularization=1e-4), dp.Privacy(0.1), 10, dp.ObjectivePerturbation(added=0.0)
    ),
    "the private number of records": lambda: dp.solve(shipped(), {"x": X, "y": Y}, dp.Privacy(1.0, 0.0, "add-remove")),
    "a kink that output perturbation cannot round off": verified(
        lambda w, x, y: cp.pnorm(w - x, 1.5), mechanism=dp.OutputPerturbation()
    ),
    "adaptive steps under a pure guarantee": lambda: dp.verify(shipped(), PROMISE, 100, dp.AdaptiveSteps()),
    "adaptive steps on too many products": lambda: dp.verify(
        dp.load("large_margin_gaussian", features=100, classes=2), DELTA, 100, dp.AdaptiveSteps()
    ),
    "a regularizer near the largest number": lambda: dp.verify(shipped(regularization=1e300), PROMISE, 100),
    "a group without number": lambda: dp.verify(shipped(), PROMISE, 100).for_group(10**400),
    "gradient steps on unbounded parameters": verified(logistic, FEATURES, mechanism=STEPS, delta=1e-6),
    "gradient steps under a pure guarantee": verified(logistic, FEATURES, mechanism=STEPS, bounds=[-1, 1]),
    "Gaussian noise on the objective under a pure guarantee": verified(logistic, FEATURES, mechanism=GAUSSIAN),
    "Gaussian noise on the output under a pure guarantee": verified(logistic, FEATURES, mechanism=GAUSSIAN_OUTPUT),
    "matrix-shaped noise for gradients that are no matrices of rank one": verified(
        lambda w, x, y: cp.logistic(x[0] * w[0]) + cp.logistic(x[1] * w[0] + w[1]), mechanism=MATRIX
    ),
    # Declarations that are malformed
    "a complex variable": verified(lambda w, x: cp.logistic(cp.real(x @ w)), FEATURES, complex=True),
    "a loss that returns nothing": verified(lambda w, x: None, FEATURES),
    "a loss with entries": verified(lambda w, x: w, FEATURES),
    "constraints that contradict each other": within(lambda w: [w >= 1, w <= 0]),
    "an atom of numbers": declared(lambda m: math.exp(m)),
    "an integer variable": verified(logistic, FEATURES, integer=True),
    # What newcomers do wrong
    "labels that were not declared": lambda: dp.LogisticRegression().fit(X, 2 * Y - 1),
    "more labels than two": lambda: dp.LinearSVC().fit(X, np.arange(20) % 3),
    "classes as a number": lambda: dp.LogisticRegression(classes=2).fit(X, Y),
    "a missing number": lambda: dp.LogisticRegression().fit(HOLES, Y),
    "a missing number to predict for": lambda: dp.Ridge(bounds=(-1, 1), seed=0).fit(X, Y).predict(HOLES),
    "a missing target": lambda: dp.Ridge(bounds=(-1, 1)).fit(X, HOLES[:, 1]),
    "texts in a table": lambda: dp.Ridge(bounds=(-1, 1)).fit([["n"], ["s"]], [0, 1]),
    "a target outside": lambda: dp.Ridge(bounds=(0, 1)).fit(X, 5 * Y),
    "labels to a regression": lambda: dp.HuberRegressor(bounds=(-1, 1)).fit(X, ["a", "b"] * 10),
    "no radius": lambda: dp.Ridge(bounds=(-1, 1), radius=None).fit(X, Y),
    "no template": lambda: dp.PrivateEstimator().fit(X, Y),
    "an array to a schema": lambda: dp.Schema({"a": (0, 1)}, **LABEL).encode(X),
    "levels as bounds": lambda: dp.Schema({"region": ["n", "s"]}, **LABEL),
    "a type as bounds": lambda: dp.Schema({"region": str}, **LABEL),
    "columns without bounds": lambda: dp.Schema(["age"], **LABEL),
    "fractions as labels": lambda: dp.Schema({"a": (0, 1)}, "sick", [0.5, 1.5]),
    "an unknown level": lambda: dp.Schema({"region": dp.Categorical(["n", "s"])}, **LABEL).encode(
        {"region": ["w"], "sick": ["no"]}
    ),
    "an array for the fields": lambda: dp.solve(shipped(), X, dp.Privacy(1.0)),
    "the name of a bound": lambda: dp.solve_bounded(room()[0], {"room": 5.0}, DELTA),
    "a bound alone": lambda: dp.verify_bounded(room()[0], dp.PrivateBound("b", sensitivity=1), DELTA),
    "NumPy in a loss": lambda: untested(lambda x: np.exp(x @ cp.Variable(2, name="w"))),
    "a branch on symbols": lambda: untested(lambda x: 1 if x[0] > 0 else 0),
    "shapes in a loss": lambda: untested(lambda x: cp.exp(x @ cp.Variable(3, name="w"))),
    "a misspelt name": lambda: dp.LogisticRegresion,
    "epsilons of a curve": lambda: plots.error_bands([0, 1], [[1], [2]]),
    "labels that a schema makes texts of": lambda: dp.LogisticRegression(classes=(-1, 1)).fit(NUMBERED),
    # Bounds of scaling
    "features without axes": lambda: unit_ball([1.0, 2.0], 0, 1),
    "no features": lambda: unit_ball(np.zeros((3, 0)), 0, 1),
    "bounds of other features": lambda: unit_ball([[1.0, 2.0]], [0, 0, 0], 1),
    "a text as a bound": lambda: unit_ball([[1.0, 2.0]], "low", 1),
    "a constant feature": lambda: unit_ball([[1.0, 2.0]], 0, [1, 0]),
    "values outside": lambda: unit_ball([[0.0, 1.0], [0.5, 3.0]], 0, 1),
    # Options of problems
    "three classes for two": lambda: dp.load("huber_svm", features=3, classes=3),
    "too few labels": lambda: dp.load("large_margin_gaussian", features=3, classes=3, labels=("a", "b")),
    "no width": lambda: dp.load("huber_svm", features=3, width=0.0),
    "unknown competitors": lambda: dp.load("large_margin_gaussian_mixture", features=3, competitors=1),
    "no feature": lambda: dp.load("logistic_regression", features=0),
    "labels twice": lambda: dp.load("logistic_regression", features=3, labels=(1, 1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why_where_and_what_to_do(name):
    found = words(REFUSED[name])
    assert re.match(r"[A-Z]\w+: ", found)
    if found.startswith(("NotPrivate", "MissingRule")):
        assert re.fullmatch(r"(?s)\w+: .+\n  where: .+\n  remedy: .+", found)
    check("refusals", name, found)


# A remedy must work: the rounded-off version of each kink is certified.
ROUNDED = {
    "the hinge": lambda w, x, y: dp.huber_hinge(1 - y * (x @ w), width=0.5),
    "a maximum of two terms": lambda w, x, y: cp.log_sum_exp(cp.hstack([x @ w, 1 - x @ w])),
    "the largest entry": lambda w, x, y: cp.log_sum_exp(cp.multiply(w, x)),
    "the absolute value": lambda w, x, y: cp.huber(x @ w - y, 0.5),
    "the 1-norm": lambda w, x, y: cp.sum(cp.huber(w - x, 0.5)),
    "the Euclidean norm": lambda w, x, y: cp.norm(cp.hstack([w - x, 0.1])),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_the_remedy_of_a_kink_is_certified(case):
    assert case in REFUSED
    assert verified(ROUNDED[case])().noise_scale > 0


@pytest.mark.parametrize("scale", [1e-150, 1e-155, 1e-160])
def test_losses_whose_squares_underflow_are_proved_or_refused(scale):
    w = cp.Variable(2, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: scale * cp.logistic(x @ w), 0.1 * cp.sum_squares(w))
    with suppress(dp.DPConvexError):
        assert dp.verify(template, PROMISE, 20, dp.OutputPerturbation()).gradient_bound <= 2 * scale


# Whatever an atom of CVXPY does, the answer is a certificate or a refusal, never an error of another kind.
def losses(name, shapes, **attributes):
    """Return the losses that an atom of one argument makes, with either sign, of variables of these shapes."""
    found = []
    for w in [cp.Variable(shape, name="w", **attributes) for shape in shapes]:
        with suppress(Exception):  # CVXPY has no such expression
            expression = cp.sum(getattr(cp, name)(UNIT.parameters["x"] * w + 0.5))
            found += [(w, expression), (w, -expression)]
    return found


SHAPES = [(), (3,), (2, 2)]
ATOMS = sorted(
    name
    for name, kind in vars(cp).items()
    if inspect.isclass(kind) and issubclass(kind, cp.Expression) and hasattr(kind, "numeric") and losses(name, SHAPES)
)
SLOW = [pytest.param(SHAPES, {**bounded}, marks=pytest.mark.slow) for bounded in ({}, {"bounds": [0.0, 2.0]})]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("shapes", "attributes"), [(SHAPES[:1], {}), (SHAPES[2:], {"bounds": [0.0, 2.0]}), *SLOW])
@pytest.mark.parametrize("name", ATOMS)
def test_every_atom_is_certified_or_refused(name, shapes, attributes):
    for w, loss in losses(name, shapes, **attributes):
        try:
            template = dp.Template(UNIT, lambda x, e=loss: e, cp.sum_squares(w))
            answer = str(dp.verify(template, PROMISE, size=100))
        except dp.DPConvexError as error:
            answer = str(error)
        assert answer
