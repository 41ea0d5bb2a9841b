"""Learners and records for adaptive steps, and how much of the loss a fit gains."""

import cvxpy as cp
import numpy as np

import dpconvex as dp

STEPS = dp.AdaptiveSteps()
ADD, REPLACE = (dp.Privacy(3.0, 1e-5, adjacency) for adjacency in ("add-remove", "replace-one"))
SIZE, FEATURES = 4000, 4
SLOPES = np.array([2.0, -1.0, 0.5, 0.0])
rng = np.random.default_rng(7)
X = dp.Ball(FEATURES).project(rng.normal(size=(SIZE, FEATURES)) / 2)
SCORES = X @ SLOPES


def small(w):
    return 1e-6 * cp.sum_squares(w)


def scored(loss, columns=(), regularizer=lambda w: 0.0, constraints=lambda w: (), constant=True, **fields):
    """Return the template of a loss of ``x @ w + b`` and of the other fields, by their names."""
    record = dp.Record(**{"x": dp.Ball(FEATURES)} | fields)
    w = cp.Variable((*record.fields["x"].shape, *columns), name="w")
    b = cp.Variable(columns, name="b") if constant else 0.0
    return dp.Template(record, lambda x, **others: loss(x @ w + b, **others), regularizer(w), constraints(w))


def linear(**options):
    return scored(lambda score, y: cp.square(score - y), y=dp.Box(-4, 4), **options)


def logistic(**options):
    return scored(lambda score, y: cp.logistic(-y * score), y=dp.Choice([-1, 1]), **options)


TARGETS = np.clip(0.3 + SCORES + 0.2 * rng.normal(size=SIZE), -4, 4)
SIGNS = np.where(SCORES + 0.3 + 0.3 * rng.logistic(size=SIZE) > 0, 1, -1)
COUNTS = np.minimum(rng.poisson(np.exp(SCORES - 0.2)), 29)
CLASSES = {k: np.argmax(5 * np.eye(4, k).T @ X.T + rng.gumbel(size=(k, SIZE)), axis=0) for k in (2, 3, 5)}
LEARNERS = {
    "linear": (linear(), TARGETS),
    "logistic": (logistic(), SIGNS),
    "counts": (scored(lambda score, y: cp.exp(score) - y * score, y=dp.Choice(range(30))), COUNTS),
}
LEARNERS |= {
    f"softmax of {k}": (scored(lambda s, y: cp.log_sum_exp(s) - s[y], (k,), y=dp.Choice(range(k))), y)
    for k, y in CLASSES.items()
}
DATA = {"x": X, "y": SIGNS}


def mean_loss(template, data, found):
    problem = template.problem(data, size=0)  # without the regularizer
    for variable in problem.variables():
        variable.save_value(np.asarray(found[variable.name()]))
    return float(problem.objective.value) / len(data["x"])


def fit(template, data, privacy=ADD, seed=1, **options):
    return dp.solve(template, data, privacy, STEPS, size=SIZE, seed=seed, **options)


def gain(template, data, found):
    """Return the share of the gain over parameters of 0 that is kept of what is gained without privacy."""
    exact = dp.solve_without_privacy(template, data)
    nothing = {name: 0 * np.asarray(value) for name, value in exact.items()}
    least, none, own = (mean_loss(template, data, point) for point in (exact, nothing, found))
    return (none - own) / (none - least)
