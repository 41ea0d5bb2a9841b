"""Another way to write a learner, other names for its parts and other coordinates change no constant of its certificate."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.release.verify import analyse

D, C = 2, 3
SIZE = 100
Loss = Callable[..., Any]
Constants = dict[str, float]

LAWS = tuple(itertools.product(("gamma", "matrix", "gaussian"), ("replace-one", "add-remove")))


def constants(template: dp.Template) -> Constants:
    """Return every constant of a template, and the scale of the noise under each law that has a proof for it."""
    analysis = analyse(template)
    found = {
        "noise dimension": float(analysis.form.noise_dimension),
        "G": analysis.gradient_bound,
        "G_adj": analysis.replacement_bound,
        "modulus": analysis.modulus,
    }
    if analysis.kink is not None:
        return found
    found["J"] = analysis.log_det(analysis.strong_convexity(SIZE, 0.0))[0]
    found["Hessian"] = analysis.hessian_bound
    for noise, adjacency in LAWS:
        privacy = dp.Privacy(2.0, 1e-6 if noise == "gaussian" else 0.0, adjacency)
        # Without an added quadratic: what is chosen for it is another matter.
        mechanism = dp.ObjectivePerturbation(noise=noise, added=0.0)
        try:
            found[f"{noise}, {adjacency}"] = mechanism.certify(analysis, privacy, SIZE).noise_scale
        except dp.NotPrivate:
            found[f"{noise}, {adjacency}"] = math.inf
    return found


def check(first: Constants, second: Constants, scale: float = 1.0, accuracy: float = 1e-9) -> None:
    """Compare all constants; gradients, moduli and noise of the second are so many times those of the first."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        factor = 1.0 if name in ("noise dimension", "J") else scale
        # Gaussian noise counts vertices whose lengths are rounded up to a grid.
        rounding = max(accuracy, 1e-6) if name.startswith("gaussian") else accuracy
        assert second[name] == pytest.approx(factor * value, rel=rounding), name


def learner(loss: Loss, variables: Sequence[cp.Variable], *, weight: float = 1.0, **fields: Any) -> dp.Template:
    regularizer = weight * 0.05 * sum(cp.sum_squares(variable) for variable in variables)
    return dp.Template(record=dp.Record(**fields), loss=loss, regularizer=regularizer)


# Ways to write a loss that are recognised; others may cost noise.  The first of each family is the atom itself.

Ways = Mapping[str, Callable[[cp.Variable, Any, Any], Any]]

LOGISTIC: Ways = {
    "atom": lambda w, x, y: cp.logistic(-y * (x @ w)),
    "log-sum-exp of 0": lambda w, x, y: cp.log_sum_exp(cp.hstack([0, -y * (x @ w)])),
    "symmetric": lambda w, x, y: cp.log_sum_exp(cp.hstack([x @ w, -(x @ w)]) / 2) - y * (x @ w) / 2,
    "less its margin": lambda w, x, y: cp.logistic(x @ w) - (1 + y) / 2 * (x @ w),
    "both signs": lambda w, x, y: (1 + y) / 2 * cp.logistic(-x @ w) + (1 - y) / 2 * cp.logistic(x @ w),
    "entries": lambda w, x, y: cp.logistic(sum(-y * x[i] * w[i] for i in range(D))),
    "and the record": lambda w, x, y: cp.logistic(-y * (x @ w)) + cp.sum_squares(x),
}
HINGE: Ways = {
    "atom": lambda w, x, y: dp.huber_hinge(1 - y * (x @ w), 0.5),
    "scaled": lambda w, x, y: 0.5 * cp.huber(cp.pos(1.5 - y * (x @ w)), 1.0),
    "in other units": lambda w, x, y: 0.125 * cp.huber(cp.pos(3 - 2 * y * (x @ w)), 2.0),
}
HUBER: Ways = {
    "atom": lambda w, x, y: cp.huber(x @ w - y, 0.5),
    "halves": lambda w, x, y: 0.5 * cp.huber(x @ w - y, 0.5) + 0.5 * cp.huber(y - w @ x, 0.5),
    "scaled": lambda w, x, y: cp.huber(4 * (x @ w - y), 2) / 16,
}
SOFTMAX: Ways = {
    "atom": lambda W, x, y: cp.log_sum_exp(x @ W - x @ W[:, y]),
    "less its own": lambda W, x, y: cp.log_sum_exp(x @ W) - x @ W[:, y],
    "chosen": lambda W, x, y: cp.log_sum_exp(x @ W) - cp.sum(cp.multiply(np.eye(C)[y], x @ W)),
    "centred": lambda W, x, y: cp.log_sum_exp(x @ (W @ (np.eye(C) - 1 / C))) - x @ W @ (np.eye(C) - 1 / C)[:, y],
}
SOFT_HINGE: Ways = {
    "atom": lambda W, x, y: dp.huber_hinge(1 + cp.log_sum_exp(others(W, x, y) - x @ W[:, y]), 0.5),
    "outside": lambda W, x, y: dp.huber_hinge(1 + cp.log_sum_exp(others(W, x, y)) - x @ W[:, y], 0.5),
}


def others(W: cp.Variable, x: Any, y: int) -> Any:
    return cp.hstack([x @ W[:, j] for j in range(C) if j != y])


def soft(W: cp.Variable, x: Any, y: int) -> Any:
    return cp.log_sum_exp(others(W, x, y))


SIGNS = dp.Choice([-1, 1])
FAMILIES = {
    "logistic": (LOGISTIC, (D,), SIGNS),
    "hinge": (HINGE, (D,), SIGNS),
    "huber": (HUBER, (D,), dp.Box(-1, 1)),
    "softmax": (SOFTMAX, (D, C), dp.Choice(list(range(C)))),
    "soft hinge": (SOFT_HINGE, (D, C), dp.Choice(list(range(C)))),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_another_way_to_write_a_loss_changes_no_constant(family: str) -> None:
    ways, shape, label = FAMILIES[family]
    known: Constants | None = None
    for way, loss in ways.items():
        variable = cp.Variable(shape, name="w")
        found = constants(learner(lambda x, y, f=loss, w=variable: f(w, x, y), [variable], x=dp.Ball(D), y=label))
        known = known or found
        try:
            check(known, found)
        except AssertionError as error:
            raise AssertionError(f"{family}, {way}: {error}") from error


# Names and orders.

POOL: dict[str, Callable[[cp.Variable, Any], Any]] = {
    "logistic": lambda w, x: cp.logistic(-x @ w),
    "hinge": lambda w, x: dp.huber_hinge(1 + x @ w, 0.5),
    "huber": lambda w, x: 0.2 * cp.huber(x @ w - 1, 1),
    "none": lambda w, x: 0 * (x @ w),
    "of no variable": lambda w, x: cp.sum_squares(x),
}


def mixed(*names: str) -> Constants:
    """Return the constants of a template with a loss of its own for each label."""
    w = cp.Variable(D, name="w")
    return constants(learner(lambda x, y: POOL[y](w, x), [w], x=dp.Ball(D), y=dp.Choice(list(names))))


def test_the_order_of_labels_and_labels_without_a_loss_change_no_constant() -> None:
    check(mixed("logistic", "hinge"), mixed("hinge", "logistic"))
    check(mixed("huber", "hinge", "logistic"), mixed("hinge", "logistic", "huber"))
    for name in ("logistic", "hinge"):
        check(mixed(name), mixed(name, "none"))
        check(mixed(name), mixed("of no variable", name))


@given(order=st.permutations(range(3)))
@settings(max_examples=6)
def test_the_order_of_coordinates_changes_no_constant(order: list[int]) -> None:
    lower, upper = np.array([-1.0, 0.0, -0.2]), np.array([1.0, 3.0, 0.5])

    def template(order: list[int]) -> dp.Template:
        w = cp.Variable(3, name="w")
        first = order.index(0)
        return learner(
            lambda x, y: cp.logistic(-y * (x @ w)) + 0.1 * cp.huber(w[first] * x[first] - 1),
            [w],
            x=dp.Box(lower[order], upper[order]),
            y=SIGNS,
        )

    check(constants(template([0, 1, 2])), constants(template(order)))


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)])
def test_the_order_of_classes_changes_no_constant(order: tuple[int, ...]) -> None:
    weights = np.array([1.0, 0.5, 2.0])

    def template(order: tuple[int, ...]) -> dp.Template:
        W = cp.Variable((D, C), name="W")
        scores = lambda x: cp.hstack([(1 + 0.3 * j) * (x @ W[:, order[j]]) for j in range(C)])  # noqa: E731
        return learner(
            lambda x, y: weights[y] * (cp.log_sum_exp(scores(x)) - scores(x)[y]),
            [W],
            x=dp.Ball(D),
            y=dp.Choice([0, 1, 2]),
        )

    check(constants(template((0, 1, 2))), constants(template(order)))


# Geometry.


@given(angle=st.floats(0.01, 3))
@settings(max_examples=5)
def test_rotating_a_ball_changes_no_constant(angle: float) -> None:
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])

    def linear(turn: Any) -> dp.Template:
        W = cp.Variable((D, C), name="W")
        loss = lambda x, y: cp.log_sum_exp((turn @ x) @ W) - (turn @ x) @ W[:, y]  # noqa: E731
        return learner(loss, [W], x=dp.Ball(D), y=dp.Choice(list(range(C))))

    def quadratic(turn: Any) -> dp.Template:
        P, Q = (cp.Variable((D, D), name=name, PSD=True) for name in "PQ")
        z = lambda x: turn @ x  # noqa: E731
        return learner(lambda x: dp.huber_hinge(1 + z(x) @ P @ z(x) - z(x) @ Q @ z(x), 0.5), [P, Q], x=dp.Ball(D))

    for make in (linear, quadratic):
        check(constants(make(np.eye(D))), constants(make(turn)))


FORMS: list[Callable[[cp.Variable, Any], Any]] = [
    lambda P, x: x @ P @ x,
    lambda P, x: cp.trace(P @ cp.outer(x, x)),
    lambda P, x: cp.sum(cp.multiply(P, cp.outer(x, x))),
    lambda P, x: P[0, 0] * x[0] ** 2 + P[1, 1] * x[1] ** 2 + 2 * P[0, 1] * x[0] * x[1],
]


def test_another_way_to_write_a_quadratic_form_changes_no_constant() -> None:
    def found(form: Any) -> Constants:
        P, Q = (cp.Variable((D, D), name=name, PSD=True) for name in "PQ")
        return constants(learner(lambda x: dp.huber_hinge(1 + form(P, x) - form(Q, x), 0.5), [P, Q], x=dp.Ball(D)))

    known = found(FORMS[0])
    for form in FORMS[1:]:
        check(known, found(form))


@given(scale=st.floats(1e-6, 1e6), family=st.sampled_from(["logistic", "hinge", "huber", "softmax"]))
@settings(max_examples=10)
def test_constants_scale_with_loss_and_regularizer(scale: float, family: str) -> None:
    ways, shape, label = FAMILIES[family]
    w = cp.Variable(shape, name="w")
    fields = {"x": dp.Ball(D), "y": label}
    first = learner(lambda x, y: ways["atom"](w, x, y), [w], **fields)
    second = learner(lambda x, y: scale * ways["atom"](w, x, y), [w], weight=scale, **fields)
    check(constants(first), constants(second), scale)
