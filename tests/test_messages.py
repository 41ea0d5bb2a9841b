"""What newcomers do wrong, and that the message says what to do."""

import re
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex import plots


def room() -> tuple[cp.Problem, dp.PrivateBound]:
    bound, x = dp.PrivateBound("room", sensitivity=1.0), cp.Variable(nonneg=True, name="x")
    return cp.Problem(cp.Maximize(x), [x <= bound.parameter, x <= 100]), bound


X, Y = np.array([[0.5, 0.1], [-0.5, 0.2]] * 10), np.array([0, 1] * 10)
HOLES = np.where(X[3, 1] == X, np.nan, X)
LABEL = {"label": "sick", "labels": ["no", "yes"]}
DELTA = dp.Privacy(1.0, 1e-6)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "labels that were not declared": (
        lambda: dp.LogisticRegression().fit(X, 2 * Y - 1),
        r"LogisticRegression\(classes=\[",
    ),
    "more labels than two": (lambda: dp.LinearSVC().fit(X, np.arange(20) % 3), "SoftmaxRegression"),
    "classes as a number": (lambda: dp.LogisticRegression(classes=2).fit(X, Y), r"classes=\('no', 'yes'\)"),
    "a missing number": (lambda: dp.LogisticRegression().fit(HOLES, Y), "row 1, column 1; .*SchemaEncoder"),
    "a missing number to predict for": (lambda: dp.Ridge(seed=0).fit(X, Y).predict(HOLES), "predict: Input X .*row 1"),
    "a missing target": (lambda: dp.Ridge().fit(X, HOLES[:, 1]), "fit: Input y contains NaN: leave such records out"),
    "texts in a table": (lambda: dp.Ridge().fit([["n"], ["s"]], [0, 1]), "dpconvex.Schema"),
    "a target outside": (
        lambda: dp.Ridge(bounds=(0, 1)).fit(X, 5 * Y),
        r"bounds 0 to 1 \(first: row 1, 5\); .*clip=True",
    ),
    "labels to a regression": (lambda: dp.HuberRegressor().fit(X, ["a", "b"] * 10), "LogisticRegression"),
    "no radius": (lambda: dp.Ridge(radius=None).fit(X, Y), "radius must be a positive, finite number, not None"),
    "no template": (lambda: dp.PrivateEstimator().fit(X, Y), r"PrivateEstimator\(dpconvex.load"),
    "an array to a schema": (lambda: dp.Schema({"a": (0, 1)}, **LABEL).encode(X), "with names for its columns"),
    "levels as bounds": (
        lambda: dp.Schema({"region": ["n", "s"]}, **LABEL),
        r"declared as Categorical\(\['n', 's'\]\)",
    ),
    "a type as bounds": (lambda: dp.Schema({"region": str}, **LABEL), "declared as Categorical"),
    "columns without bounds": (lambda: dp.Schema(["age"], **LABEL), r"such as \{'age': \(0, 110\)\}"),
    "truth values as labels": (lambda: dp.Schema({"a": (0, 1)}, "sick", [False, True]), "'false' and 'true'"),
    "an unknown level": (
        lambda: dp.Schema({"region": dp.Categorical(["n", "s"])}, **LABEL).encode({"region": ["w"], "sick": ["no"]}),
        "may say other=True",
    ),
    "an array for the fields": (lambda: dp.solve(shipped(), X, dp.Privacy(1.0)), "such as {'x': X, 'y': y}"),
    "the name of a bound": (
        lambda: dp.solve_bounded(room()[0], {"room": 5.0}, DELTA),
        "themselves and not their names",
    ),
    "a bound alone": (
        lambda: dp.verify_bounded(room()[0], dp.PrivateBound("b", sensitivity=1), DELTA),
        "does not mention",
    ),
    "NumPy in a loss": (lambda: declared(lambda x: np.exp(x @ cp.Variable(2, name="w"))), "CVXPY's functions"),
    "a branch on symbols": (lambda: declared(lambda x: 1 if x[0] > 0 else 0), "only fields with a Choice"),
    "shapes in a loss": (lambda: declared(lambda x: cp.exp(x @ cp.Variable(3, name="w"))), "variables that fit them"),
    "no curvature": (lambda: dp.verify(declared(flat), dp.Privacy(1.0), 100), "add 1e-6 \\* cp.sum_squares"),
    "a misspelt name": (lambda: dp.LogisticRegresion, "Did you mean 'LogisticRegression'"),
    "epsilons of a curve": (lambda: plots.error_bands([0, 1], [[1], [2]]), "error_bands: epsilons must be"),
}


def shipped() -> dp.Template:
    return dp.load("logistic_regression", features=2)


def flat(x: object) -> object:
    return cp.logistic(x @ cp.Variable(2, name="w"))


def declared(loss: Callable[..., object]) -> dp.Template:
    return dp.Template(dp.Record(x=dp.Ball(2)), loss)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_says_what_to_do(mistake: str) -> None:
    made, pattern = MISTAKES[mistake]
    with pytest.raises((ValueError, RuntimeError, NotImplementedError, AttributeError, dp.NotPrivate)) as raised:
        made()
    told = [str(raised.value), *getattr(raised.value, "__notes__", [])]
    assert re.search(pattern, "\n".join(told))
