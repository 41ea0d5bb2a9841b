"""Another way to write a learner, other names for its parts and other coordinates change no constant of its certificate."""

import itertools
import math

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp

D, C = 2, 3
SIZE = 100
LAWS = tuple(itertools.product(("gamma", "matrix", "gaussian"), ("replace-one", "add-remove")))


def constants(loss, *variables, weight=1.0, **fields):
    """Return every constant of a template, and the scale of the noise under each law that has a proof for it."""
    regularizer = weight * 0.05 * sum(cp.sum_squares(variable) for variable in variables)
    template, found = dp.Template(record=dp.Record(**fields), loss=loss, regularizer=regularizer), {}
    for noise, adjacency in LAWS:
        privacy = dp.Privacy(2.0, 1e-6 if noise == "gaussian" else 0.0, adjacency)
        # Without an added quadratic: what is chosen for it is another matter.
        mechanism = dp.ObjectivePerturbation(noise=noise, added=0.0)
        try:
            proved = dp.verify(template, privacy, SIZE, mechanism, proof=False)
        except dp.NotPrivate:
            found[f"{noise}, {adjacency}"] = math.inf
            continue
        found[f"{noise}, {adjacency}"] = proved.noise_scale
        if noise == "gamma":
            found |= {"noise dimension": float(proved.noise_dimension), "G": proved.gradient_bound}
            found[f"G_adj {adjacency}"] = proved.sensitivity
            found |= {"modulus": proved.strong_convexity, "Hessian": proved.hessian_bound}
    return found


def check(first, second, scale=1.0):
    """Compare all constants; gradients, moduli and noise of the second are so many times those of the first."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        factor = 1.0 if name == "noise dimension" else scale
        # Gaussian noise counts vertices whose lengths are rounded up to a grid.
        rounding = 1e-6 if name.startswith("gaussian") else 1e-9
        assert second[name] == pytest.approx(factor * value, rel=rounding), name


def others(W, x, y):
    return cp.hstack([x @ W[:, j] for j in range(C) if j != y])


def between(P, form):
    return dp.huber_hinge(1 + form(P[0]) - form(P[1]), 0.5)


# Ways to write a loss that are recognised; others may cost noise.  The first of each family is the atom itself.
LOGISTIC = {
    "atom": lambda w, x, y: cp.logistic(-y * (x @ w)),
    "log-sum-exp of 0": lambda w, x, y: cp.log_sum_exp(cp.hstack([0, -y * (x @ w)])),
    "symmetric": lambda w, x, y: cp.log_sum_exp(cp.hstack([x @ w, -(x @ w)]) / 2) - y * (x @ w) / 2,
    "less its margin": lambda w, x, y: cp.logistic(x @ w) - (1 + y) / 2 * (x @ w),
    "both signs": lambda w, x, y: (1 + y) / 2 * cp.logistic(-x @ w) + (1 - y) / 2 * cp.logistic(x @ w),
    "entries": lambda w, x, y: cp.logistic(sum(-y * x[i] * w[i] for i in range(D))),
    "and the record": lambda w, x, y: cp.logistic(-y * (x @ w)) + cp.sum_squares(x),
}
HINGE = {
    "atom": lambda w, x, y: dp.huber_hinge(1 - y * (x @ w), 0.5),
    "scaled": lambda w, x, y: 0.5 * cp.huber(cp.pos(1.5 - y * (x @ w)), 1.0),
}
HUBER = {
    "atom": lambda w, x, y: cp.huber(x @ w - y, 0.5),
    "halves": lambda w, x, y: 0.5 * cp.huber(x @ w - y, 0.5) + 0.5 * cp.huber(y - w @ x, 0.5),
    "scaled": lambda w, x, y: cp.huber(4 * (x @ w - y), 2) / 16,
}
SOFTMAX = {
    "atom": lambda W, x, y: cp.log_sum_exp(x @ W - x @ W[:, y]),
    "less its own": lambda W, x, y: cp.log_sum_exp(x @ W) - x @ W[:, y],
    "chosen": lambda W, x, y: cp.log_sum_exp(x @ W) - cp.sum(cp.multiply(np.eye(C)[y], x @ W)),
    "centred": lambda W, x, y: cp.log_sum_exp(x @ (W @ (np.eye(C) - 1 / C))) - x @ W @ (np.eye(C) - 1 / C)[:, y],
}
SOFT_HINGE = {
    "atom": lambda W, x, y: dp.huber_hinge(1 + cp.log_sum_exp(others(W, x, y) - x @ W[:, y]), 0.5),
    "outside": lambda W, x, y: dp.huber_hinge(1 + cp.log_sum_exp(others(W, x, y)) - x @ W[:, y], 0.5),
}
QUADRATIC = {
    "product": lambda P, x, y: between(P, lambda A: x @ A @ x),
    "trace": lambda P, x, y: between(P, lambda A: cp.trace(A @ cp.outer(x, x))),
    "sum": lambda P, x, y: between(P, lambda A: cp.sum(cp.multiply(A, cp.outer(x, x)))),
    "entries": lambda P, x, y: between(P, lambda A: sum(A[i, j] * x[i] * x[j] for i in range(D) for j in range(D))),
}
SIGNS, CLASSES = dp.Choice([-1, 1]), dp.Choice(list(range(C)))
FAMILIES = {
    "logistic": (LOGISTIC, (D,), SIGNS),
    "hinge": (HINGE, (D,), SIGNS),
    "huber": (HUBER, (D,), dp.Box(-1, 1)),
    "softmax": (SOFTMAX, (D, C), CLASSES),
    "soft hinge": (SOFT_HINGE, (D, C), CLASSES),
    "quadratic": (QUADRATIC, (D, D), SIGNS),
}


def of_family(family, way, scale=1.0, turn=None):
    ways, shape, label = FAMILIES[family]
    matrices = family == "quadratic"
    variables = [cp.Variable(shape, name=name, PSD=matrices) for name in ("PQ" if matrices else "w")]
    given = variables if matrices else variables[0]
    loss = lambda x, y: scale * ways[way](given, x if turn is None else turn @ x, y)  # noqa: E731
    return constants(loss, *variables, weight=scale, x=dp.Ball(D), y=label)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("family", "way"), [(family, way) for family in FAMILIES for way in FAMILIES[family][0]])
def test_another_way_to_write_a_loss_changes_no_constant(family, way):
    check(of_family(family, next(iter(FAMILIES[family][0]))), of_family(family, way))


POOL = {
    "logistic": lambda w, x: cp.logistic(-x @ w),
    "hinge": lambda w, x: dp.huber_hinge(1 + x @ w, 0.5),
    "huber": lambda w, x: 0.2 * cp.huber(x @ w - 1, 1),
    "none": lambda w, x: 0 * (x @ w),
    "of no variable": lambda w, x: cp.sum_squares(x),
}


def mixed(*names):
    w = cp.Variable(D, name="w")
    return constants(lambda x, y: POOL[y](w, x), w, x=dp.Ball(D), y=dp.Choice(list(names)))


def test_the_order_of_labels_and_labels_without_a_loss_change_no_constant():
    check(mixed("huber", "hinge", "logistic"), mixed("hinge", "logistic", "huber"))
    for name in ("logistic", "hinge"):
        check(mixed(name), mixed(name, "none"))
        check(mixed(name), mixed("of no variable", name))
