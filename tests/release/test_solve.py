"""The private fit: what it returns, what it refuses, and in which order it pays, reads and computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize as scipy_minimize

import dpconvex as dp
from dpconvex.core.atoms import ATOMS
from dpconvex.solvers.first_order import FirstOrder

Array = NDArray[np.float64]
PROMISE = dp.Privacy(epsilon=2.0)
PROBLEMS = ["logistic_regression", "huber_svm", "large_margin_gaussian"]
SIZE = 120


def records(size: int = SIZE, features: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    y = rng.choice([-1, 1], size)
    x = rng.normal(size=(size, features)) + np.outer(y, np.linspace(1.0, 0.2, features))
    return {"x": x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), "y": y}


def learner(problem: str, **options: Any) -> dp.Template:
    return dp.load(problem, features=3, labels=(-1, 1), **options)


def changed(name: str, change: Callable[[Any], None]) -> dict[str, Any]:
    data = records()
    change(data[name])
    return data


# What comes out.


@pytest.mark.parametrize("problem", PROBLEMS)
def test_two_fits_of_the_same_data_differ(problem: str) -> None:
    template, data = learner(problem), records()
    one, other = (dp.solve(template, data, PROMISE) for _ in range(2))
    assert one.private
    assert one.spent == PROMISE
    assert one.certificate == dp.verify(template, PROMISE, SIZE)
    for name in one:
        assert not np.isclose(one[name], other[name], rtol=1e-6, atol=0).any()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_two_fits_with_one_seed_agree_and_are_not_private(problem: str) -> None:
    template, data = learner(problem), records()
    one, other = (dp.solve(template, data, PROMISE, seed=5) for _ in range(2))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    assert not one.private
    assert one.spent is None
    assert "seed 5" in one.not_private_because
    assert "NOT PRIVATE" in repr(one)
    third = dp.solve(template, data, PROMISE, seed=6)
    assert all(not np.array_equal(one[name], third[name]) for name in one)


def test_the_seed_of_numpy_does_not_matter() -> None:
    template, data = learner("logistic_regression"), records()
    fits = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        fits.append(dp.solve(template, data, PROMISE)["w"])
    assert not np.allclose(*fits, rtol=1e-3)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_backends_agree(problem: str) -> None:
    template, data = learner(problem), records()
    one, other = (dp.solve(template, data, PROMISE, backend=name, seed=2) for name in ("conic", "first-order"))
    third = dp.solve(template, data, PROMISE, backend=dp.Conic(solver="SCS", eps=1e-9), seed=2)
    assert one.certificate is not None
    assert one.certificate.cover is not None
    apart = 2 * one.certificate.tolerance + 2 * one.certificate.cover.step
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=apart)
        np.testing.assert_allclose(one[name], third[name], rtol=0, atol=apart)


def objective(data: Mapping[str, Any], regularization: float) -> Callable[[Array], float]:
    """Return the logistic objective in sum form, written anew."""
    xy = data["x"] * np.asarray(data["y"])[:, None]

    def value(theta: Array) -> float:
        return float(np.logaddexp(0, -xy @ theta).sum() + len(xy) * regularization / 2 * theta @ theta)

    return value


def test_without_privacy_it_is_the_minimiser() -> None:
    data = records()
    release = dp.minimize(learner("logistic_regression", regularization=0.05), data)
    found = scipy_minimize(objective(data, 0.05), np.zeros(3), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(release["w"], found.x, atol=1e-5)
    assert not release.private
    assert release.not_private_because == "no noise was added"
    assert release.certificate is None


def test_a_weaker_promise_comes_nearer_to_the_minimiser() -> None:
    template, data = learner("logistic_regression"), records()
    target = dp.minimize(template, data)["w"]
    errors = [
        np.mean([np.linalg.norm(dp.solve(template, data, dp.Privacy(e), seed=s)["w"] - target) for s in range(10)])
        for e in (0.1, 1.0, 10.0, 1000.0)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05


def test_the_release_follows_the_law_of_its_certificate() -> None:
    """The noise that led to a release is the negative gradient there; its law must be what the proof assumes."""
    data, regularization = records(), 0.05
    template = learner("logistic_regression", regularization=regularization)
    certificate = dp.verify(template, PROMISE, SIZE)
    xy = data["x"] * data["y"][:, None]
    noise = []
    for seed in range(400):
        theta = dp.solve(template, data, PROMISE, seed=seed)["w"]
        slope = -1 / (1 + np.exp(xy @ theta))
        noise.append(-(slope @ xy + (SIZE * regularization + certificate.added) * theta))
    lengths = np.linalg.norm(noise, axis=1)
    assert stats.kstest(lengths / certificate.noise_scale, stats.gamma(certificate.noise_dimension).cdf).pvalue > 1e-3
    # On the sphere in three dimensions each coordinate of a uniform direction is uniform on [-1, 1].
    for coordinate in (np.array(noise) / lengths[:, None]).T:
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_constraints_hold() -> None:
    release = dp.solve(learner("large_margin_gaussian"), records(), dp.Privacy(0.1))
    for matrix in release.values():
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_a_release_carries_the_way_back_to_its_problem() -> None:
    release = dp.solve(learner("huber_svm", width=0.3), records(), PROMISE)
    assert release.source == ("huber_svm", {"features": 3, "labels": [-1, 1], "width": 0.3})
    assert set(release.predict(records()["x"])) <= {-1, 1}


# What goes in.


@pytest.mark.parametrize("problem", PROBLEMS)
def test_one_class_alone_is_data(problem: str) -> None:
    data = records()
    data["y"] = np.ones(SIZE, dtype=int)
    assert dp.solve(learner(problem), data, PROMISE).private


def test_one_record_is_data() -> None:
    assert dp.solve(learner("logistic_regression"), records(1), PROMISE).certificate == dp.verify(
        learner("logistic_regression"), PROMISE, 1
    )


def test_clipping_brings_records_into_their_ball() -> None:
    template, data = learner("logistic_regression"), records()
    long, short = {**data, "x": data["x"] * 30}, {**data}
    short["x"] = long["x"] / np.maximum(1.0, np.linalg.norm(long["x"], axis=1, keepdims=True))
    with pytest.raises(dp.DomainError, match="clip=True"):
        dp.solve(template, long, PROMISE)
    clipped = dp.solve(template, long, PROMISE, clip=True, seed=1)
    np.testing.assert_allclose(clipped["w"], dp.solve(template, short, PROMISE, seed=1)["w"], atol=1e-5)


def test_columns_may_be_lists() -> None:
    data = records()
    lists = {name: column.tolist() for name, column in data.items()}
    one, other = (dp.solve(learner("huber_svm"), d, PROMISE, seed=1) for d in (data, lists))
    np.testing.assert_array_equal(one["w"], other["w"])


class Frame:
    """A table that has keys and columns, but is no Mapping, and whose `values` is no method: like a data frame."""

    values = None

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def keys(self) -> Any:
        return self.data.keys()

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


def test_data_may_be_a_frame() -> None:
    frame: Any = Frame(records())
    assert dp.solve(learner("huber_svm"), frame, PROMISE).private


BAD: dict[str, tuple[Any, str]] = {
    "NaN": (changed("x", lambda x: x.__setitem__((4, 1), np.nan)), "row 4"),
    "infinity": (changed("x", lambda x: x.__setitem__((7, 0), -np.inf)), "row 7, column 0 is -inf"),
    "outside the ball": (changed("x", lambda x: x.__setitem__(9, [3.0, 0.0, 0.0])), "worst: row 9"),
    "unknown label": (changed("y", lambda y: y.__setitem__(3, 2)), "row 3, 2"),
    "no records": (records(0), "data are empty"),
    "lengths": ({**records(), "y": records()["y"][:-1]}, "different numbers of records"),
    "width": ({**records(), "x": records()["x"][:, :2]}, r"expected shape \(n, 3\)"),
    "ragged": ({**records(), "x": [[0.0, 0.0, 0.0], [0.0]]}, "not an array of numbers"),
    "text": ({**records(), "x": [["a", "b", "c"]] * SIZE}, "real numbers"),
    "missing field": ({"x": records()["x"]}, r"missing: \['y'\]"),
    "extra field": ({**records(), "z": records()["y"]}, r"extra: \['z'\]"),
    "no mapping": ([records()["x"], records()["y"]], "must map each declared field"),
    "nothing": (None, "must map each declared field"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("fit", [dp.minimize, lambda t, d: dp.solve(t, d, PROMISE)], ids=["minimize", "solve"])
def test_bad_data_are_refused(case: str, fit: Callable[[dp.Template, Any], dp.Release]) -> None:
    data, complaint = BAD[case]
    with pytest.raises(dp.DomainError, match=complaint):
        fit(learner("logistic_regression"), data)


def declared(loss: Callable[..., Any], regularizer: Callable[[cp.Variable], Any] | None = None) -> dp.Template:
    w = cp.Variable(3, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1])),
        loss=lambda x, y: loss(x, y, w),
        regularizer=0.01 * cp.sum_squares(w) if regularizer is None else regularizer(w),
    )


UNPROVED: dict[str, tuple[dp.Template, str]] = {
    "not convex": (declared(lambda x, y, w: -cp.logistic(x @ w)), "not convex|concave"),
    "no variable": (declared(lambda x, y, w: cp.sum_squares(x)), "mentions no variable"),
    "no strong convexity": (declared(lambda x, y, w: cp.logistic(x @ w), lambda w: cp.norm1(w)), "strongly convex"),
    "kink": (declared(lambda x, y, w: cp.pos(1 - y * (x @ w)), lambda w: cp.norm1(w)), "strongly convex"),
}


class Untouchable(dict[str, Any]):
    """Data that must not be looked at."""

    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


@pytest.mark.parametrize("case", UNPROVED)
def test_without_a_proof_nothing_is_read_and_nothing_spent(case: str) -> None:
    template, reason = UNPROVED[case]
    budget = dp.Budget(dp.Privacy(9.0, adjacency="add-remove"))
    data = Untouchable(records())
    with pytest.raises(dp.NotPrivate, match=reason):
        dp.solve(template, data, dp.Privacy(2.0, adjacency="add-remove"), size=100, budget=budget)
    with pytest.raises(dp.NotPrivate, match=reason):
        dp.solve(template, records(), PROMISE)
    assert budget.entries == ()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_there_is_no_such_promise(epsilon: float) -> None:
    with pytest.raises(dp.TemplateError, match="epsilon must be positive"):
        dp.solve(learner("logistic_regression"), records(), dp.Privacy(epsilon))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backend": "magic"}, "unknown backend 'magic'; known are 'conic', 'first-order'"),
        ({"backend": 3}, "backend must be a name or a backend object"),
        ({"backend": dp.Conic}, "backend must be a name or a backend object"),
        ({"seed": -1}, "seed must be an integer, 0 or above"),
        ({"seed": 1.5}, "seed must be an integer, 0 or above"),
        ({"size": SIZE + 1}, f"size is {SIZE + 1}, but there are {SIZE} records"),
        ({"mechanism": "gamma"}, "mechanism must be an object"),
        ({"privacy": 1.0}, "privacy must be a Privacy, not float"),
        ({"template": "logistic_regression"}, "Template, not str"),
    ],
)
def test_mistakes_cost_nothing(options: dict[str, Any], complaint: str) -> None:
    budget = dp.Budget(dp.Privacy(9.0))
    arguments = {"template": learner("logistic_regression"), "data": records(), "privacy": PROMISE, **options}
    with pytest.raises(dp.TemplateError, match=complaint):
        dp.solve(**arguments, budget=budget)
    assert budget.entries == ()


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(dp.TemplateError, match="unknown solver 'MAGIC'; installed are"):
        dp.Conic(solver="MAGIC")


@pytest.mark.parametrize(
    "backend",
    [dp.Conic(max_iter=2), dp.Conic("SCS", max_iters=2), FirstOrder(max_steps=2)],
    ids=["clarabel", "scs", "first-order"],
)
def test_a_solver_that_is_stopped_early_releases_nothing(backend: Any) -> None:
    budget = dp.Budget(dp.Privacy(9.0))
    with pytest.raises(dp.NotConverged):
        dp.solve(learner("large_margin_gaussian"), records(), PROMISE, backend=backend, budget=budget)
    assert len(budget.entries) == 1  # whether it converges depends on the data, so the attempt is paid for
    with pytest.raises(dp.NotConverged):
        dp.minimize(learner("large_margin_gaussian"), records(), backend=backend)


def test_under_add_remove_the_number_of_records_is_not_public() -> None:
    promise = dp.Privacy(2.0, adjacency="add-remove")
    template = learner("logistic_regression")
    with pytest.raises(dp.NotPrivate, match="number of records is private") as caught:
        dp.solve(template, Untouchable(records()), promise)
    assert "size" in str(caught.value.remedy)
    certificates = {
        n: dp.solve(template, records(n), promise, size=100).certificate for n in (50, 100, 150)
    }  # the number of records changes nothing but the answer
    assert len({str(c) for c in certificates.values()}) == 1
    with pytest.raises(dp.TemplateError, match="size must be a positive integer"):
        dp.solve(template, records(), promise, size=0)


# The order of things.


class Watched(Mapping[str, Any]):
    """Data that write down when they are read; their shapes and types can be asked for."""

    def __init__(self, log: list[str]) -> None:
        self.data, self.log = records(), log

    def __getitem__(self, name: str) -> Any:
        return WatchedColumn(name, self.data[name], self.log)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


class WatchedColumn:
    def __init__(self, name: str, values: Any, log: list[str]) -> None:
        self.name, self.values, self.log = name, values, log
        self.shape, self.dtype = values.shape, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self.log.append(f"read {self.name}")
        return self.values


def test_the_budget_pays_before_the_data_are_read() -> None:
    log: list[str] = []

    class Ledger(dp.Budget):
        def spend(self, privacy: dp.Privacy, label: str) -> None:
            super().spend(privacy, label)
            log.append(f"spent {privacy.epsilon} on {label}")

    promise = dp.Privacy(2.0, adjacency="add-remove")
    budget = Ledger(dp.Privacy(3.0, adjacency="add-remove"))
    dp.solve(learner("logistic_regression"), Watched(log), promise, size=100, budget=budget, label="first")
    assert log[0] == "spent 2.0 on first"
    assert {"read x", "read y"} == set(log[1:])
    log.clear()
    with pytest.raises(dp.BudgetExceeded):
        dp.solve(learner("logistic_regression"), Watched(log), promise, size=100, budget=budget)
    assert log == []


def test_bad_data_are_paid_for() -> None:
    # Whether a record lies in its domain is an answer about the data, too.
    budget = dp.Budget(dp.Privacy(3.0))
    with pytest.raises(dp.DomainError):
        dp.solve(learner("logistic_regression"), BAD["NaN"][0], PROMISE, budget=budget)
    assert [entry.label for entry in budget.entries] == ["solve"]


def test_data_are_left_as_they_were() -> None:
    data = records()
    before = {name: column.copy() for name, column in data.items()}
    dp.solve(learner("large_margin_gaussian"), data, PROMISE, clip=True)
    for name, column in before.items():
        np.testing.assert_array_equal(data[name], column)


UNSOLVABLE: dict[str, Callable[[cp.Variable], list[Any]]] = {
    "inequalities that cannot hold strictly": lambda w: [w[0] >= 0, cp.exp(w[0]) <= 1],
    "a power cone": lambda w: [cp.PowCone3D(w[0], w[1], w[2], 0.3)],
}


@pytest.mark.parametrize("case", UNSOLVABLE)
def test_what_cannot_be_run_is_refused_before_it_is_paid(case: str) -> None:
    """Nothing bounds how far an answer in these sets is from the exact one."""
    w = cp.Variable(3, name="w")
    loss = lambda x: cp.logistic(x @ w)  # noqa: E731
    template = dp.Template(dp.Record(x=dp.Ball(3)), loss, cp.sum_squares(w), UNSOLVABLE[case](w))
    budget, promise = dp.Budget(dp.Privacy(1.0, 1e-6)), dp.Privacy(1.0, 1e-6)
    with pytest.raises(dp.NotConverged, match="projected on"):
        dp.solve(template, {"x": np.zeros((50, 3))}, promise, budget=budget)
    assert budget.spent.epsilon == 0


def test_what_has_a_rule_can_be_run() -> None:
    """So no loss is refused when it has been verified and is to be minimised."""
    assert all(atom.pull is not None for atom in ATOMS.values() if atom.rule is not None)
    w = cp.Variable(3, name="w")
    loss = lambda x: cp.normNuc(cp.diag(w) + cp.diag(x))  # noqa: E731
    template = dp.Template(dp.Record(x=dp.Ball(3)), loss, cp.sum_squares(w), [cp.norm(w) <= 1])
    release = dp.solve(template, {"x": np.zeros((50, 3))}, dp.Privacy(1.0, 1e-6), dp.NoisyGradientDescent(steps=5))
    assert np.linalg.norm(release["w"]) <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"clip": "yes"}, dp.TemplateError),
        ({"clip": 1}, dp.TemplateError),
        ({"x": np.array(1.0)}, dp.DomainError),
        ({"x": 1.0}, dp.DomainError),
        ({"y": np.array(1)}, dp.DomainError),
    ],
    ids=str,
)
def test_a_mistake_in_the_call_costs_nothing(adjacency: Any, changes: dict[str, Any], error: Any) -> None:
    data = {"x": np.zeros((9, 2)), "y": np.ones(9, dtype=int)} | {k: v for k, v in changes.items() if k != "clip"}
    learner, budget = dp.load("logistic_regression", features=2), dp.Budget(dp.Privacy(9.0, adjacency=adjacency))
    options = {"size": 9 if adjacency == "add-remove" else None, "clip": changes.get("clip", False)}
    with pytest.raises(error):
        dp.solve(learner, data, dp.Privacy(1.0, adjacency=adjacency), budget=budget, **options)
    assert budget.spent.epsilon == 0
    with pytest.raises(error):
        dp.minimize(learner, data, clip=options["clip"])
