"""Thirty-five learners as users write them, for `benchmarks.ablation`: losses, sets and regularizers that no problem file has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp

__all__ = ["TEMPLATES"]

SIGNS = dp.Choice([-1, 1])
UNIT = dp.Ball(5)
W, B, M = (lambda: cp.Variable(5, name="w")), (lambda: cp.Variable(name="b")), (lambda: cp.Variable((5, 3), name="M"))


def on_margin(loss: Callable[..., Any], **record: Any) -> Callable[[], dp.Template]:
    """Return a learner of one linear predictor without an intercept, on the unit ball unless `x` says otherwise."""

    def build() -> dp.Template:
        w = W()
        fields = {"x": UNIT, "y": SIGNS, **record}
        return dp.Template(dp.Record(**fields), lambda x, y, **more: loss(y, x @ w, **more), 1e-3 * cp.sum_squares(w))

    return build


def on_set(
    constraints: Callable[[Any], list[Any]], regularizer: Callable[[Any], Any] | None = None
) -> Callable[[], Any]:
    """Return logistic regression on a set, or with a regularizer."""

    def build() -> dp.Template:
        w = W()
        public = 1e-3 * cp.sum_squares(w) + (0 if regularizer is None else regularizer(w))
        return dp.Template(dp.Record(x=UNIT, y=SIGNS), lambda x, y: cp.logistic(-y * (x @ w)), public, constraints(w))

    return build


def with_intercept(loss: Callable[..., Any], **record: Any) -> Callable[[], dp.Template]:
    """Return a learner of one linear predictor with an intercept."""

    def build() -> dp.Template:
        w, b = W(), B()
        public = 1e-3 * (cp.sum_squares(w) + cp.square(b))
        return dp.Template(dp.Record(**{"x": UNIT, "y": SIGNS, **record}), lambda x, y: loss(y, x @ w + b), public)

    return build


def on_scores(
    loss: Callable[..., Any], radius: float = 1.0, more: Callable[[Any], Any] | None = None
) -> Callable[[], Any]:
    """Return a learner of three scores."""

    def build() -> dp.Template:
        m = M()
        public = 1e-3 * cp.sum_squares(m) + (0 if more is None else more(m))
        record = dp.Record(x=dp.Ball(5, radius), y=dp.Choice([0, 1, 2]))
        return dp.Template(record, lambda x, y: loss(y, x @ m), public)

    return build


def of_points(loss: Callable[..., Any], constraints: Callable[[Any], list[Any]] = lambda w: []) -> Callable[[], Any]:
    """Return a summary of points of the unit ball."""

    def build() -> dp.Template:
        w = W()
        return dp.Template(dp.Record(x=UNIT), lambda x: loss(x, w), 1e-3 * cp.sum_squares(w), constraints(w))

    return build


def one_number(loss: Callable[..., Any]) -> Callable[[], dp.Template]:
    """Return a summary of numbers in an interval."""

    def build() -> dp.Template:
        t = cp.Variable(name="t")
        return dp.Template(dp.Record(x=dp.Box(-1, 1)), lambda x: loss(x, t), 1e-3 * cp.square(t), [cp.abs(t) <= 1])

    return build


def margins(y: int, s: Any) -> Any:
    """Return how far each other score is above that of the label."""
    return cp.hstack([s[k] - s[y] for k in range(3) if k != y])


def turned(y: int, s: Any, width: float = 0.5) -> Any:
    return dp.huber_hinge(1 - y * s, width)


TARGET, BOXED = dp.Box(-1, 1), dp.Box([-1.0] * 5, [1.0] * 5)
UP_DOWN = np.array([[1.0, -1.0, 0, 0, 0], [0, 1.0, -1.0, 0, 0], [0, 0, 1.0, -1.0, 0]])

TEMPLATES: dict[str, Callable[[], dp.Template]] = {
    "logistic with intercept": with_intercept(lambda y, s: cp.logistic(-y * s)),
    "logistic on a box": on_margin(lambda y, s: cp.logistic(-y * s), x=BOXED),
    "logistic, long records": on_margin(lambda y, s: cp.logistic(-y * s), x=dp.Ball(5, 5.0)),
    "weighted logistic": on_margin(lambda y, s, v: v * cp.logistic(-y * s), v=dp.Box(0, 2)),
    "two logistic terms": on_margin(lambda y, s: cp.logistic(1 - y * s) + 0.5 * cp.logistic(-y * s)),
    "logistic and its like": on_margin(lambda y, s: cp.logistic(-s) + (s if y < 0 else 0)),
    "logistic of a sharp margin": on_margin(lambda y, s: cp.logistic(-10 * y * s) / 10),
    "squared logistic": on_margin(lambda y, s: cp.log_sum_exp(cp.hstack([0, -y * s, -2 * y * s]))),
    "Huber hinge with intercept": with_intercept(turned),
    "narrow Huber hinge": on_margin(lambda y, s: turned(y, s, 0.05)),
    "two Huber hinges": on_margin(lambda y, s: turned(y, s) + turned(y, 2 * s)),
    "Huber regression with intercept": with_intercept(lambda y, s: cp.huber(y - s, 0.5), y=TARGET),
    "smooth absolute value": on_margin(lambda y, s: cp.norm(cp.hstack([0.3, y - s])), y=TARGET),
    "asymmetric Huber": on_margin(lambda y, s: dp.huber_hinge(y - s, 0.1) + 3 * dp.huber_hinge(s - y, 0.1), y=TARGET),
    "log cosh": on_margin(lambda y, s: cp.logistic(2 * (s - y)) - (s - y), y=TARGET),
    "logistic on a ball": on_set(lambda w: [cp.norm(w) <= 1]),
    "logistic, bounded": on_set(lambda w: [cp.abs(w) <= 1]),
    "logistic on the simplex": on_set(lambda w: [w >= 0, cp.sum(w) == 1]),
    "logistic on an l1 ball": on_set(lambda w: [cp.norm1(w) <= 1]),
    "logistic, monotone": on_set(lambda w: [w[:-1] <= w[1:]]),
    "logistic, group lasso": on_set(lambda w: [], lambda w: 0.01 * (cp.norm(w[:2]) + cp.norm(w[2:]))),
    "logistic, fused": on_set(lambda w: [], lambda w: 0.01 * cp.norm1(cp.diff(w))),
    "exponential on a ball": lambda: exponential(),
    "squares on a ball": of_points(lambda x, w: cp.sum_squares(x - w) / 2, lambda w: [cp.norm(w) <= 1]),
    "squared errors on a ball": lambda: squares(),
    "softmax, long records": on_scores(lambda y, s: cp.log_sum_exp(s) - s[y], 3.0),
    "softmax of a margin": on_scores(lambda y, s: cp.log_sum_exp(cp.hstack([0, 1 + margins(y, s)]))),
    "soft hinge of scores": on_scores(lambda y, s: dp.huber_hinge(1 + cp.log_sum_exp(margins(y, s)), 0.5)),
    "sum of hinges of scores": on_scores(lambda y, s: cp.sum(dp.huber_hinge(1 + margins(y, s), 0.5))),
    "one against the rest": on_scores(lambda y, s: sum(cp.logistic(-s[k] if k == y else s[k]) for k in range(3))),
    "softmax, low rank": on_scores(lambda y, s: cp.log_sum_exp(s) - s[y], 1.0, lambda m: 0.01 * cp.norm(m, "nuc")),
    "geometric median": of_points(lambda x, w: cp.norm(cp.hstack([0.1, x - w]))),
    "Huber location, by coordinates": of_points(lambda x, w: cp.sum(cp.huber(x - w, 0.2))),
    "pairs in order": of_points(lambda x, w: cp.sum(cp.logistic(UP_DOWN @ cp.multiply(x, w)))),
    "a number, log cosh": one_number(lambda x, t: cp.logistic(4 * (t - x)) / 2 - (t - x)),
}


def exponential() -> dp.Template:
    """Return exponential loss, which only a bounded set makes steep no further."""
    w = W()
    return dp.Template(
        dp.Record(x=UNIT, y=SIGNS), lambda x, y: cp.exp(-y * (x @ w)), 1e-3 * cp.sum_squares(w), [cp.norm(w) <= 1]
    )


def squares() -> dp.Template:
    """Return least squares, bounded by a ball of parameters."""
    w = W()
    return dp.Template(
        dp.Record(x=UNIT, y=TARGET), lambda x, y: cp.square(y - x @ w), 1e-3 * cp.sum_squares(w), [cp.norm(w) <= 1]
    )
