"""The conic backend: the same program, certified answers, and none of the user's variables touched."""

import ctypes
import logging
import os
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import calls_of
from sample_problems import logistic

import dpconvex as dp
from dpconvex.fitting.verify import analyse
from dpconvex.model import batch_program
from dpconvex.optim.backend import solve
from dpconvex.optim.certify import FirstOrder
from dpconvex.optim.noisy_quadratic import least_point
from dpconvex.sets import certified_minimum


def test_losses_of_declared_atoms_are_released():
    """An own atom has no conic form: the first-order backend answers, and nothing is refused after it was paid."""
    template, rng = dp.load("smooth_hinge_svm", features=3), np.random.default_rng(0)
    data = {"x": rng.normal(size=(30, 3)) / 5, "y": rng.choice([-1, 1], 30)}
    promised = dp.Privacy(1.0), dp.ObjectivePerturbation()
    one, other = (dp.solve(template, data, *promised, backend=b, seed=1) for b in ("conic", None))
    np.testing.assert_allclose(one["w"], other["w"], atol=one.certificate.cover.step + 2 * one.certificate.tolerance)


def test_threads_leave_the_process_as_it_was():
    """Neither the standard output nor the filters of warnings change, also while others solve."""
    before, filters, rng = sys.stdout, list(warnings.filters), np.random.default_rng(0)
    data = {"x": rng.normal(size=(30, 2)) / 5, "y": rng.choice([-1, 1], 30)}
    learner, kinked = dp.load("logistic_regression", features=2), dp.load("hinge_svm", features=2)

    def fit(number):
        if number % 2:
            dp.solve_without_privacy(kinked, data)
        else:
            dp.solve(learner, data, dp.Privacy(1.0), dp.ObjectivePerturbation(), backend=dp.ConicSolver(verbose=True))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fit, range(12)))
    assert sys.stdout is before
    assert warnings.filters == filters


@pytest.mark.parametrize(
    "options", [{"nonsense": 1}, {"max_iter": "a"}, {"solver": "OSQP", "max_iter": -1}, {"solver": "SCIPY"}], ids=str
)
def test_options_that_a_solver_does_not_take_cost_nothing(options):
    if options.get("solver", "CLARABEL") not in cp.installed_solvers():
        pytest.skip("needs the solver")
    template, budget = logistic().template, dp.Budget(dp.Privacy(1.0))
    data = {"x": np.zeros((9, 4)), "y": np.ones(9)}
    with pytest.raises(dp.TemplateError, match="even at minimising"):
        dp.solve(template, data, dp.Privacy(1.0), backend=dp.ConicSolver(**options), budget=budget)
    assert budget.spent.epsilon == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("solver", ["SCS", "OSQP", "HIGHS", "CLARABEL"])
def test_whether_it_is_released_depends_on_no_record_and_nothing_is_said(solver, capfd):
    """Without a record other than zero the program has no cones, which SCS cannot do and OSQP and HIGHS can."""
    if solver not in cp.installed_solvers():
        pytest.skip("needs the solver")
    margins, squares = dp.load("logistic_regression", features=2), dp.load("ridge_regression", features=2, bound=1.0)
    for scale in (0.0, 1e-9, 0.5):
        rows = scale * np.eye(20, 2)  # few are not zero
        for learner, x, y in (
            (margins, rows, np.ones(20)),
            (squares, scale * np.ones((20, 2)), np.linspace(-1, 1, 20)),
        ):
            options = {"mechanism": dp.ObjectivePerturbation(), "backend": dp.ConicSolver(solver)}
            assert dp.solve(learner, {"x": x, "y": y}, dp.Privacy(1.0), **options).private
    # HiGHS says its name and version when CVXPY asks it for infinity, before it has seen anything.
    out, err = capfd.readouterr()
    name = ("Running HiGHS", "Includes third-party software")
    assert ([line for line in out.splitlines() if not line.startswith(name)], err) == ([], "")


@pytest.mark.parametrize("tolerance", [0.0, -1.0, np.nan, np.inf])
def test_tolerances_that_are_none_are_refused(tolerance):
    with pytest.raises(dp.TemplateError, match="must be a positive"):
        solve(logistic(), None, tolerance)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("records", [0, 1, 2])
def test_a_limit_of_the_solvers_own_is_no_reason_to_fail(records):
    """Of these two records Clarabel takes its 200 iterations, and of one or none it does not: that alone decided."""
    w = cp.Variable(4, name="w")
    pinball = lambda x, y: cp.maximum(0.9 * (y - x @ w), -0.1 * (y - x @ w))  # noqa: E731
    record = dp.Record(x=dp.Ball(4), y=dp.Box(-0.37518098226691743, 0.37518098226691743))
    template = dp.Template(record, pinball, 0.4435108007211245 * cp.sum_squares(w), [cp.log_sum_exp(w / 1000) <= -1])
    x = np.array(
        [
            [0.7398850960376182, -0.10727983089052837, 0.19588837726401942, -0.6345776754648507],
            [0.3283588206106903, 0.2291807456060111, -0.9109720780759051, -0.09892696162672851],
        ]
    )
    data = {"x": x[:records], "y": np.array([0.19661309027422064, -0.34218500647116107])[:records]}
    privacy = dp.Privacy(10.0, 1e-6, "add-remove")
    for mechanism in (dp.OutputPerturbation("gaussian"), dp.OutputPerturbation()):
        assert dp.solve(template, data, privacy, mechanism, backend="conic", size=3).private


class Chatty:
    """Says what it sees on every channel that a process has."""

    def __init__(self, fails):
        self.fails = fails

    def solve(self, problem, tolerance):
        seen = float(np.abs(problem.batch.fields["x"]).sum())
        sys.stdout.write(f"secret {seen}")
        sys.stderr.write(f"secret {seen}")
        for number in (1, 2):
            os.write(number, f"secret {seen}\n".encode())
        ctypes.CDLL(None).puts(f"secret {seen}".encode())
        warnings.warn(f"secret {seen}", RuntimeWarning, stacklevel=1)
        logging.getLogger("jax").critical(f"secret {seen}")
        np.float64(1.0) / np.float64(0.0)
        if self.fails:
            raise ValueError(f"secret {seen}")
        return FirstOrder().solve(problem, tolerance)


@pytest.mark.skipif(sys.platform == "win32", reason="streams of C are reached by another way")
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_that_a_solver_says_leaves(fails, capfd, caplog):
    learner, data = dp.load("logistic_regression", features=2), {"x": np.ones((9, 2)) / 2, "y": [1] * 9}
    said, disabled = "", logging.root.manager.disable
    try:
        dp.solve(learner, data, dp.Privacy(1.0), dp.ObjectivePerturbation(), backend=Chatty(fails))
    except dp.NotConverged:
        said = traceback.format_exc()
    assert bool(said) == fails
    sys.stdout.write("heard")
    out, err = capfd.readouterr()
    assert out == "heard"
    assert "secret" not in said + err + caplog.text
    assert logging.root.manager.disable == disabled


@pytest.mark.parametrize("power", [0, 40, 80])
@pytest.mark.parametrize("far", [1e-12, 1e-3, 1e6])
def test_models_of_any_size_have_a_least_point_under_constraints(power, far):
    """Solvers took models whose curvature is 1e16 and more, as noise makes them, for unbounded: paid fits failed."""
    w = cp.Variable(3, name="w")
    record = dp.Record(x=dp.Box(np.zeros(3), np.ones(3)), y=dp.Box(0, 1))
    template = dp.Template(record, lambda x, y: cp.abs(x @ w - y), constraints=[w >= 0, cp.sum(w) == 1])
    form, hessian = analyse(template, dp.AdaptiveSteps()).form, sp.csr_array(10.0**power * np.eye(3))
    target = far * np.array([3, 1, -1])
    found = least_point(form, hessian, hessian @ target, 1.0)
    np.testing.assert_allclose(found, form.feasible.project(target), atol=1e-6)


@pytest.mark.parametrize("curvature", [1e3, 1.57e9, 3e12])
def test_models_have_a_least_point_in_sets_far_from_zero(curvature):
    """Neither the model's unit nor 1 was near the size of K: paid fits failed."""
    w, center = cp.Variable(5, name="w"), np.full(5, 45056.8)
    record = dp.Record(x=dp.Ball(5), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: cp.abs(x @ w - y), constraints=[cp.norm(w - center) <= 15018.9])
    form = analyse(template, dp.AdaptiveSteps()).form
    slope = np.array([300.0, -450.0, -300.0, -200.0, 300.0])
    found = least_point(form, sp.csr_array(curvature * np.eye(5)), slope, 1.0)
    np.testing.assert_allclose(found, form.feasible.project(slope / curvature), rtol=1e-6)


@pytest.mark.parametrize("held", ["a norm", "a ball"])
def test_baselines_without_a_proved_minimiser_are_found(held):
    w, b = cp.Variable(6, name="w"), cp.Variable(name="b")
    public, sets = (0.03 * cp.norm(w), []) if held == "a norm" else (1e-3 * cp.sum_squares(w), [cp.norm(w) <= 2])
    record = dp.Record(x=dp.Ball(6), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: dp.huber_hinge(1 - y * (x @ w + b), 0.5), public, sets)
    for seed in (3, 8, 14, 18):
        rng = np.random.default_rng(seed)
        x = dp.Ball(6).project(rng.normal(size=(500, 6)) / 5)
        y = np.where(x @ [8, -8, 4, 0, 0, 0] + 0.5 + 0.6 * rng.logistic(size=500) > 0, 1, -1)
        assert dp.solve_without_privacy(template, {"x": x, "y": y}).gap < 1e-6


def test_baselines_of_counts_are_least_or_refused():
    w, b, record = cp.Variable(6, name="w"), cp.Variable(name="b"), dp.Record(x=dp.Ball(6), y=dp.Box(0, 20))
    template = dp.Template(record, lambda x, y: cp.exp(x @ w + b) - y * (x @ w + b), 0.003 * cp.norm1(w))
    rng = np.random.default_rng(8000)
    x = dp.Ball(6).project(rng.normal(size=(8000, 6)) / np.sqrt(24))
    y = rng.poisson(np.exp(x @ [4, 2.4, 0.8, 0, 0, 0] - 0.25)).clip(0, 20)
    assert dp.solve_without_privacy(template, {"x": x, "y": y}).gap < 1e-6


def test_no_multipliers_are_looked_for_where_points_are_far_away(monkeypatch):
    """Each coordinate of a cone was bounded by a program of its own, in both directions, and none was."""
    asked = calls_of(monkeypatch, certified_minimum, "linear_bound", lambda region, blocks, goal: abs(goal).argmax())
    w, u = cp.Variable(40, name="w"), cp.Variable(name="u")
    squares, record = cp.sum_squares(w) + cp.square(u), dp.Record(x=dp.Ball(40))
    template = dp.Template(record, lambda x: x @ w, squares, [cp.norm(w) <= u])
    assert np.isinf(analyse(template).form.feasible.upper).all()
    assert asked == [40]


def test_derivatives_of_a_batch_take_one_evaluation_for_each_score(monkeypatch):
    """Each of 20 classes' scores was evaluated at each of 600 parameters, for each label."""
    asked = calls_of(monkeypatch, batch_program, "over_records")
    template = dp.load("least_squares_classifier", features=10, classes=3)
    data = {"x": np.random.default_rng(0).normal(size=(60, 10)) / 10, "y": np.arange(60) % 3}
    assert dp.solve_without_privacy(template, data).gap < 1e-6
    assert len(asked) <= 3 * 2 * 3
