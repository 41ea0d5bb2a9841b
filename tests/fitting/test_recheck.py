"""Answers are found again, by other means than those of the fit: gradients of the graph in the proof, record by record.

The gradient's length over the strong convexity mu bounds the distance of an answer.  Where there are constraints, or nonsmooth
terms of the regularizer, a step of length 1/L shrinks the distance by 1 - mu/L, L a bound on the curvature: the distance is at
most L/mu times the step.
"""

from collections.abc import Callable
from functools import cache, partial
from math import fsum, nan, prod
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import X, Y, logistic, records_of
from scipy.special import expit, huber, log_ndtr, logsumexp, softmax

import dpconvex as dp
from dpconvex.checker.expansion import TemplateGraph, linear
from dpconvex.checker.reading import Unreplayed, number, parsed
from dpconvex.data.columns import dense
from dpconvex.fitting import engine
from dpconvex.optim.distance import Composite, at_point
from dpconvex.optim.problem import Problem
from dpconvex.util.arrays import Array

PURE, LOOSE, PROTECTED = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
LEARNER, DATA = logistic(), {"x": X, "y": Y}
UNKNOWN = {"gaussian_precision": "log_det", "smooth_hinge_svm": "declared"}
OTHERS = {"isotonic_regression", "ordinal_regression", "quantile_fan"}  # No projection in closed form
OTHERS |= {"additive_regression", "least_squares_classifier", "linear_regression", "pathak_raj_2010"}  # No minimiser


def gradient(problem: Problem, proof: Any, theta: Array) -> Array:
    """Return the gradient of what is smooth: of a regularizer with kinks, as fits compute it, for it is public."""
    graph, batch = TemplateGraph(proof), problem.batch
    lengths = np.sqrt([float(weight) for weight in graph.weights])  # An entry of a symmetric matrix may stand twice
    units = np.column_stack([np.eye(len(theta) + 1, len(theta)), [*theta / lengths, 1.0]])
    fitted = problem.loss.regularizer_value_and_gradient(theta, problem.smooth_part)[1]
    regular = fitted if problem.kinks.terms else slopes_of(graph, proof["regularizer"], [], units) / lengths
    parts = [np.asarray(problem.linear), problem.added * theta, problem.size * regular]
    for k, *fields in zip(batch.group, *(dense(batch.fields[name]) for name in proof["record"]), strict=True):
        record = [x for value in fields for x in value.ravel(order="F").tolist()]
        parts.append(slopes_of(graph, proof["losses"][k], record, units) / lengths)
    return np.array([fsum(part) for part in np.transpose(parts)])


def slopes_of(graph: TemplateGraph, root: int, z: list[float], units: Array) -> Array:
    """Return the gradient of a number of the graph; entries are slopes and, last, a value, as `units` are of coordinates."""

    @cache
    def entries(k: int) -> list[Array]:
        node, groups = graph.nodes[k], graph.nodes[k].options.get("groups", [])
        if node.entries is not None:
            terms = [[(c, prod([z[j] for j in m], start=float(a))) for (c, m), a in e.items()] for e in node.entries]
            return [sum((factor * units[c] for c, factor in entry), 0 * units[0]) for entry in terms]
        args, given = [graph.nodes[a] for a in node.args], [entries(a) for a in node.args]
        rule = RULES.get(f"{node.name}{node.options.get('p', '')}")
        if rule is not None:
            threshold = float(number(node.options.get("M", 0)))
            lines = [[given[0][j] for j in line] + [other[0] for other in given[1:]] for line in groups]
            ruled = [(x, *rule(x[:, -1], threshold)) for x in map(np.array, lines or zip(*given, strict=True))]
            return [np.append(slopes @ x[:, :-1], value) for x, value, slopes in ruled]
        add, scale = partial(np.sum, axis=0), lambda a, by: a * float(by)
        found = linear(node, args, given, add, lambda a, b: a * b[-1] if args[0].varies else b * a[-1], scale)
        if found is None:
            raise Unreplayed(f"there is no rule for {node.name}")
        return found

    return entries(root)[0][:-1]


# Values and slopes of functions, at a kink one of those; quad_over_lin divides by its last argument.
RULES: dict[str, Callable[[Array, float], tuple[Any, Array]]] = {
    "exp": lambda x, _: (np.exp(x), np.exp(x)),
    "huber": lambda x, M: (2 * huber(M, x), 2 * np.clip(x, -M, M)),
    "logistic": lambda x, _: (np.logaddexp(0.0, x), expit(x)),
    "log_sum_exp": lambda x, _: (logsumexp(x), softmax(x)),
    "maximum": lambda x, _: (x.max(), np.eye(len(x))[x.argmax()]),
    "neg_log_normcdf": lambda x, _: (-log_ndtr(x), -np.exp(-(x**2) / 2 - log_ndtr(x)) / np.sqrt(2 * np.pi)),
    "norm2": lambda x, _: (np.linalg.norm(x), x / np.linalg.norm(x)),
    "power2": lambda x, _: (x**2, 2 * x),
    "quad_over_lin": lambda x, _: (x[:-1] @ x[:-1] / x[-1], np.append(2 * x[:-1], -x[:-1] @ x[:-1] / x[-1]) / x[-1]),
}


@pytest.fixture
def fitted(monkeypatch):
    """Return a function that fits, and returns what was minimised, the computed answer, its tolerance and the certificate."""
    solve, seen = engine.backends.solve, []

    def noted(problem, backend, tolerance):
        found = solve(problem, backend, tolerance)
        seen.append((problem, found.theta, tolerance))
        return found

    def call(template=LEARNER, data=DATA, privacy=PURE, **options):
        release = dp.solve(template, data, privacy, **options)
        return *seen[-1], release.certificate

    monkeypatch.setattr(engine.backends, "solve", noted)
    return call


def distance(problem, theta, proof):
    """Bound the distance of an answer from the minimiser, from the graph in the proof."""
    composite, mu = Composite(problem), problem.strong_convexity
    bend = mu if composite.is_smooth else composite.curvature_at(theta)
    slopes = gradient(problem, parsed(proof), theta)
    step = float(np.linalg.norm(theta - composite.proximal(theta - slopes / bend, 1 / bend)))
    far = bend * (step + composite.proximal_error(theta, slopes, bend)) + composite.gradient_error(theta, slopes)
    return min(far / mu, at_point(composite, theta, nan, slopes).distance_bound)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", sorted(set(dp.problems()) - OTHERS))
def test_answers_are_as_near_as_certified_and_moved_ones_are_not(name, fitted):
    template = dp.load(name, features=3)
    problem, theta, tolerance, certificate = fitted(template, records_of(template))
    assert tolerance == certificate.tolerance
    if name in UNKNOWN:
        with pytest.raises(Unreplayed, match=UNKNOWN[name]):
            distance(problem, theta, certificate.proof)
        return
    assert distance(problem, theta, certificate.proof) <= tolerance
    assert distance(problem, theta + 3 * tolerance / np.sqrt(len(theta)), certificate.proof) > tolerance


NONE = {"x": np.zeros((0, 3)), "y": []}
BOX = logistic(constraints=lambda w: [w >= 0, w[0] <= 0.01])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("template", "data", "privacy", "options"),
    [
        (LEARNER, DATA, LOOSE, {"mechanism": dp.ObjectivePerturbation("gaussian")}),
        (dp.load("hinge_svm", features=3), DATA, PURE, {"mechanism": dp.OutputPerturbation()}),
        (LEARNER, DATA, PROTECTED, {"mechanism": dp.OutputPerturbation("gaussian"), "size": 500}),
        (dp.load("elastic_net_logistic", features=3), DATA, PURE, {"backend": "conic"}),
        (BOX, {"x": sp.csr_array(X), "y": Y}, PURE, {}),
        (LEARNER, NONE, PROTECTED, {"mechanism": dp.OutputPerturbation(), "size": 10}),
    ],
)
def test_answers_of_other_fits_are_as_near_as_certified(template, data, privacy, options, fitted):
    problem, theta, tolerance, certificate = fitted(template, data, privacy, **options)
    assert distance(problem, theta, certificate.proof) <= tolerance


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_slopes_of_rules(rule):
    x, step = np.array([0.3, -0.7, 2.0]), 1e-6
    ends = [[np.sum(rule(x + sign * step * unit, 0.5)[0]) for unit in np.eye(3)] for sign in (-1, 1)]
    np.testing.assert_allclose(rule(x, 0.5)[1], np.diff(ends, axis=0)[0] / (2 * step), rtol=1e-7)
