"""Problems of every shape that backends meet, small enough for tests."""

import cvxpy as cp
import learners_of_tests
import numpy as np

import dpconvex as dp
from dpconvex.expressions.parameter_space import Space
from dpconvex.optim.problem import Problem
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.kinks import split_kinks
from dpconvex.sets.quadratics import CurvatureBounds, as_quadratic


def objective(template, data, found):
    """Return the mean objective at parameters by name."""
    problem = template.problem(data)
    for variable in problem.variables():
        variable.save_value(np.asarray(found[variable.name()]))
    return float(problem.objective.value) / len(next(iter(data.values())))


def build(template, modulus, size=40, seed=0, noise=1.0, **options):
    """Return the problem of a random batch; `modulus` is that of the declared regularizer."""
    rng, space = np.random.default_rng(seed), Space(template.variables)
    feasible = FeasibleSet(space, template.constraints)
    smooth = as_quadratic(split_kinks(feasible, template.regularizer)[0], space)
    if smooth is not None:
        largest = float(abs(smooth.hessian).sum(axis=1).max())
        options.setdefault("public_curvature", CurvatureBounds(largest, 0.0, np.inf))
    batch = options.pop("batch", None) or template.record.sample(size, rng)
    return Problem(
        template,
        space,
        feasible,
        batch,
        size=batch.size,
        strong_convexity=batch.size * modulus + options.get("added", 0.0),
        linear=noise * rng.normal(size=space.dim),
        **options,
    )


def logistic(constraints=learners_of_tests.free, **options):
    template = learners_of_tests.logistic(4, constraints=constraints)
    return build(template, 0.1, gradient_bound=1.0, hessian_bound=0.25, **options)


def large_margin(classes=3, side=3, weight=0.02, psd=True, **options):
    kind = {"PSD": True} if psd else {"symmetric": True}
    Phi = [cp.Variable((side, side), name=f"Phi_{c}", **kind) for c in range(classes)]

    def loss(x, y):
        z = cp.hstack([x, 1]) / np.sqrt(2)
        return sum(dp.huber_hinge(1 + z @ (Phi[y] - Phi[c]) @ z, 0.5) for c in range(classes) if c != y)

    regularizer = sum(1e-3 * cp.trace(P[: side - 1, : side - 1]) + weight * cp.sum_squares(P) for P in Phi)
    template = dp.Template(dp.Record(x=dp.Ball(side - 1), y=dp.Choice(range(classes))), loss, regularizer)
    G = np.sqrt(classes * (classes - 1))
    return build(template, 2 * weight, gradient_bound=G, hessian_bound=float(classes), **options)


def soft_margin(**options):
    template = dp.load("softmax_regression", features=3, classes=4, regularization=0.1)
    return build(template, 0.1, gradient_bound=np.sqrt(2), **options)


def regression(weight=0.05, **options):
    w = cp.Variable(3, name="w")
    record, ball = dp.Record(x=dp.Ball(3), t=dp.Box(-1.0, 1.0)), [cp.norm(w, 2) <= 0.5]
    template = dp.Template(record, lambda x, t: cp.square(x @ w - t), weight * cp.sum_squares(w), ball)
    return build(template, 2 * weight, gradient_bound=3.0, hessian_bound=2.0, **options)


def lasso(**options):
    w = cp.Variable(4, name="w")
    record, kinks = dp.Record(x=dp.Ball(4), t=dp.Box(-1.0, 1.0)), 0.02 * cp.norm1(w[1:]) + 0.1 * cp.abs(w[0])
    template = dp.Template(record, lambda x, t: cp.huber(x @ w - t, 0.5), 0.05 * cp.sum_squares(w) + kinks)
    return build(template, 0.1, gradient_bound=1.0, hessian_bound=2.0, **options)


PROBLEMS = {
    "logistic": logistic,
    "logistic in a ball": lambda **o: logistic(lambda w: [cp.norm(w, 2) <= 0.4], **o),
    "logistic in a box": lambda **o: logistic(lambda w: [cp.abs(w) <= 0.2, w[0] == 0.1], **o),
    "logistic on a hyperplane": lambda **o: logistic(lambda w: [cp.sum(w) == 1], **o),
    "large margin": large_margin,
    "large margin, symmetric": lambda **o: large_margin(psd=False, **o),
    "soft margin": soft_margin,
    "regression": regression,
    "lasso": lasso,
    "added quadratic": lambda **o: logistic(added=3.0, **o),
}
