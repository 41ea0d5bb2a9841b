"""Fits, private and not: what they return, what they refuse, and in which order they pay, read and compute."""

from dataclasses import dataclass
from functools import partial

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import ridge
from refused import refused, warnings_of
from scipy import stats

import dpconvex as dp

PROMISE, SIZE = dp.Privacy(epsilon=2.0), 120


def records(size=SIZE):
    rng = np.random.default_rng(11)
    y = rng.choice([-1, 1], size)
    return {"x": dp.Ball(3).project(rng.normal(size=(size, 3)) + np.outer(y, [1.0, 0.6, 0.2])), "y": y}


def learner(problem, **options):
    return dp.load(problem, features=3, labels=(-1, 1), **options)


@pytest.mark.parametrize(
    ("problem", "delta", "mechanism"),
    [
        *((problem, 0.0, None) for problem in ("logistic_regression", "huber_svm", "large_margin_gaussian")),
        ("logistic_regression", 1e-5, dp.AdaptiveSteps()),
    ],
)
def test_two_fits_differ_unless_they_have_one_seed_and_then_are_not_private(problem, delta, mechanism):
    template, data, promise = learner(problem), records(), dp.Privacy(2.0, delta)
    one, other, *seeded = (dp.solve(template, data, promise, mechanism, seed=seed) for seed in (None, None, 5, 5, 6))
    assert one.private
    assert (one.spent, one.certificate) == (promise, dp.verify(template, promise, SIZE, mechanism))
    for name in one:
        assert not np.isclose(one[name], other[name], rtol=1e-12, atol=0).any()
        np.testing.assert_array_equal(seeded[0][name], seeded[1][name])
        assert not np.array_equal(seeded[0][name], seeded[2][name])
    assert not seeded[0].private
    assert seeded[0].spent is None
    assert "NOT PRIVATE: the noise was drawn with the seed 5" in repr(seeded[0])


def test_the_release_follows_the_law_of_its_certificate():
    """The noise that led to a release is the negative gradient there; its law must be what the proof assumes."""
    data, regularization = records(), 0.05
    template = learner("logistic_regression", regularization=regularization)
    certificate, xy, noise = dp.verify(template, PROMISE, SIZE), data["x"] * data["y"][:, None], []
    for seed in range(400):
        theta = dp.solve(template, data, PROMISE, seed=seed)["w"]
        noise.append(-((-1 / (1 + np.exp(xy @ theta))) @ xy + (SIZE * regularization + certificate.added) * theta))
    lengths = np.linalg.norm(noise, axis=1)
    assert stats.kstest(lengths / certificate.noise_scale, stats.gamma(certificate.noise_dimension).cdf).pvalue > 1e-3
    # On the sphere in three dimensions each coordinate of a uniform direction is uniform on [-1, 1].
    for coordinate in (np.array(noise) / lengths[:, None]).T:
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    "backend", [dp.ConicSolver(max_iter=2), dp.ConicSolver("SCS", max_iters=2)], ids=["clarabel", "scs"]
)
def test_a_solver_that_is_stopped_early_releases_nothing(backend):
    budget = dp.Budget(dp.Privacy(9.0))
    with pytest.raises(dp.NotConverged):
        dp.solve(learner("large_margin_gaussian"), records(), PROMISE, backend=backend, budget=budget)
    assert len(budget.entries) == 1  # whether it converges depends on the data, so the attempt is paid for
    with pytest.raises(dp.NotConverged):
        dp.solve_without_privacy(learner("large_margin_gaussian"), records(), backend=backend)


@pytest.mark.parametrize("mechanism", [None, dp.SufficientStatistics(), dp.NoisyGradientDescent(clip=0.1, steps=5)])
def test_errors_of_numbers_that_a_caller_asks_for_do_not_depend_on_the_records(mechanism):
    learner = dp.load("ridge_regression", features=3)
    for size in (0.3, 1e-160):
        x = np.full((60, 3), size)
        with np.errstate(all="raise"):
            assert dp.solve(learner, {"x": x, "y": x[:, 0]}, dp.Privacy(1.0, 1e-6), mechanism).private


def test_parameters_that_no_loss_reads_are_released_as_0():
    a, b = cp.Variable(4, name="a"), cp.Variable(name="b")
    squares = dp.Template(dp.Record(u=dp.Box(0, 1), y=dp.Box(-5, 5)), lambda u, y: cp.square(a[0] * u + b - y))
    rng = np.random.default_rng(0)
    data = {"u": rng.uniform(0, 1, 4000), "y": rng.uniform(-5, 5, 4000)}
    found = dp.solve(squares, data, dp.Privacy(5.0), dp.SufficientStatistics("gamma"))
    assert not found["a"][1:].any()
    assert abs(found["b"]) < 1


def test_under_add_remove_the_number_of_records_is_not_public():
    promise, template = dp.Privacy(2.0, adjacency="add-remove"), learner("logistic_regression")
    certificates = {str(dp.solve(template, records(n), promise, size=100).certificate) for n in (50, 100, 150)}
    assert len(certificates) == 1  # the number of records changes nothing but the answer
    refused(dp.TemplateError, "size must be a positive integer", dp.solve, template, records(), promise, size=0)


class Watched:
    """A column that writes down when it is read; its shape and type can be asked for."""

    def __init__(self, name, values, log):
        self.name, self.values, self.log = name, values, log
        self.shape, self.dtype = values.shape, values.dtype

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        self.log.append(f"read {self.name}")
        return self.values


def test_the_budget_pays_before_the_data_are_read():
    log = []

    class Ledger(dp.Budget):
        def spend(self, privacy, label, event=None):
            super().spend(privacy, label, event)
            log.append(f"spent {privacy.epsilon} on {label}")

    data = {name: Watched(name, values, log) for name, values in records().items()}
    promise = dp.Privacy(2.0, adjacency="add-remove")
    budget = Ledger(dp.Privacy(3.0, adjacency="add-remove"))
    dp.solve(learner("logistic_regression"), data, promise, size=100, budget=budget, entry="first")
    assert (log[0], {"read x", "read y"}) == ("spent 2.0 on first", set(log[1:]))
    log.clear()
    with pytest.raises(dp.BudgetExceeded):
        dp.solve(learner("logistic_regression"), data, promise, size=100, budget=budget)
    # Without a proof nothing is read, and nothing spent.
    w = cp.Variable(3, name="w")
    kinked = dp.Template(learner("huber_svm").record, lambda x, y: cp.logistic(x @ w), cp.norm1(w))
    for template, options in ((kinked, {"size": 100}), (learner("logistic_regression"), {})):
        with pytest.raises(dp.NotPrivate, match=r"strongly convex|number of records is private"):
            dp.solve(template, data, promise, budget=budget, **options)
    assert (log, len(budget.entries)) == ([], 1)


def test_what_cannot_be_run_is_refused_before_it_is_paid():
    """Nothing bounds how far an answer in these sets is from the exact one."""
    w, promise = cp.Variable(3, name="w"), dp.Privacy(1.0, 1e-6)
    budget = dp.Budget(promise)
    for loss in (lambda x: cp.logistic(x @ w), lambda x: cp.square(x @ w)):
        template = dp.Template(dp.Record(x=dp.Ball(3)), loss, cp.sum_squares(w), [w[0] >= 0, cp.exp(w[0]) <= 1])
        with pytest.raises((dp.NotConverged, dp.MissingRule), match=r"projection|projected on"):
            dp.solve(template, {"x": np.zeros((50, 3))}, promise, budget=budget)
    data, learner = {"x": [["a", 0.0], ["", 0.0]], "y": [0.0, 0.0]}, dp.load("ridge_regression", features=2)
    with pytest.raises(dp.DomainError, match=r"entries of type [^.]*\.$"):  # and not that it stays paid for
        dp.statistics(learner, data, promise, budget=budget)
    assert budget.spent.epsilon == 0


# Without privacy
RNG = np.random.default_rng(1)
X = dp.Ball(3).project(RNG.normal(size=(80, 3)))
DATA = {"x": X, "y": np.where(X[:, 0] + 0.3 * RNG.normal(size=80) > 0, 1, -1)}


def logistic(x, y, w):
    return cp.logistic(-y * (x @ w))


# Loss, regularizer, and constraints, if there are any.
CASES = {
    "hinge": (lambda x, y, w: cp.pos(1 - y * (x @ w)), ridge),
    "logistic, lasso": (logistic, lambda w: 0.01 * cp.norm1(w)),
    "nothing added": (lambda x, y, w: cp.square(x @ w - y), lambda w: 0.0),
    "exponential": (lambda x, y, w: cp.exp(-y * (x @ w)), ridge),
    "second-order cone": (logistic, ridge, lambda w: [cp.norm(w[:2]) <= w[2]]),
    "cubic norm": (lambda x, y, w: cp.pnorm(cp.hstack([x @ w - y, w[0]]), 3), ridge),
    "without end": (lambda x, y, w: -y * (x @ w), lambda w: 0.0),
    "without a point": (logistic, ridge, lambda w: [cp.sum(w) >= 1, w <= -1]),
}


def template_of(case, w):
    loss, regularizer, *constraints = CASES[case]
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: loss(x, y, w), regularizer(w), [c for made in constraints for c in made(w)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [case for case in CASES if "without" not in case])
def test_a_baseline_agrees_with_cvxpy_and_its_accuracy_is_true(case):
    loss, regularizer, *constraints = CASES[case]
    fit, v = dp.solve_without_privacy(template_of(case, cp.Variable(3, name="w")), DATA), cp.Variable(3)
    mean = sum(loss(x, y, v) for x, y in zip(X, DATA["y"], strict=True)) / 80 + regularizer(v)
    reference = cp.Problem(cp.Minimize(mean), [c for made in constraints for c in made(v)])
    reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert np.linalg.norm(fit["w"] - v.value) < 1e-4
    assert not fit.private
    v.value = fit["w"]
    assert mean.value <= reference.value + 1e-9
    assert "above its minimum" in fit.status if fit.distance > 1e-6 else "of the minimiser" in fit.status
    assert fit.gap is None or fit.gap < 1e-7
    assert fit.distance < 1e-3 or case in ("logistic, lasso", "nothing added", "exponential")


@pytest.mark.parametrize(("case", "reason"), [("end", "decreases without end"), ("a point", "no point satisfies")])
def test_without_a_least_value_it_says_so(case, reason):
    with pytest.raises((dp.NotConverged, dp.TemplateError), match=reason):
        dp.solve_without_privacy(template_of(f"without {case}", cp.Variable(3, name="w")), DATA)


def test_what_is_proved_once_is_nobody_elses_to_change_and_users_mechanisms_are_asked_again():
    learner, privacy = dp.load("logistic_regression", features=2), dp.Privacy(1.0, 1e-6)
    first = dp.verify(learner, privacy, 200, dp.NoisyGradientDescent(clip=0.3))
    before = dict(first.settings)
    first.check()
    first.settings["clip"] = 1e6
    object.__setattr__(first.cover, "step", 1e-14)
    again = dp.verify(learner, privacy, 200, dp.NoisyGradientDescent(clip=0.3))
    assert again.settings == before
    assert again.cover.step > first.cover.step
    assert not again.replayed

    @dataclass
    class Doubtful:
        asked: int = 0
        __hash__ = object.__hash__

        def certify(self, analysis, privacy, size):
            self.asked += 1
            return dp.ObjectivePerturbation().certify(analysis, privacy, size)

        def run(self, analysis, certificate, engine, rng):
            return dp.ObjectivePerturbation().run(analysis, certificate, engine, rng)

    mine = Doubtful()
    for count in (1, 2):
        dp.verify(learner, dp.Privacy(1.0), 200, mine)
        assert mine.asked == count


def test_data_of_a_refused_fit_were_not_fitted():
    x, y, template = np.full((200, 2), 0.3), [-1, 1] * 100, dp.load("logistic_regression", features=2)

    def warned(call):
        try:
            return sum("these data were used before" in one for one in warnings_of(call))
        except dp.DPConvexError:
            return "refused"

    solved = lambda labels=y, **options: dp.solve(template, {"x": x, "y": labels}, dp.Privacy(1.0), **options)  # noqa: E731
    fitted = lambda **options: dp.LogisticRegression(classes=(-1, 1), **options).fit(x, y)  # noqa: E731
    refused = [lambda: solved(["a"] * 200), lambda: solved(size=3)]
    refused += [lambda: fitted(radius=0.1), lambda: fitted(regularization=-1)]
    refused.append(lambda: dp.LinearRegression(bounds=(-1, 1), radius=0.1).fit(x, y))
    assert [warned(call) for call in refused] == ["refused"] * len(refused)
    assert [warned(call) for call in (fitted, fitted, *refused[:1], solved, fitted)] == [0, 1, "refused", 1, 1]
    x = x.copy()
    found = [warned(call) for call in [*refused, solved, solved, fitted, *refused, solved]]
    assert found == [*["refused"] * 5, 0, 1, 1, *["refused"] * 5, 1]


def test_a_counted_fit_says_nothing_of_those_beside_it():
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (3000, 3))
    fitted = lambda: dp.LogisticRegression(classes=(0, 1)).fit(x, (x[:, 0] > 0).astype(int))  # noqa: E731
    fitted()
    privacy, budget = {"epsilon": 0.3, "delta": 1e-5}, dp.Budget(dp.Privacy(1.0, 1e-5))
    with pytest.warns(dp.PrivacyWarning) as told:
        dp.LinearRegression(**privacy, bounds=(-1, 1), budget=budget).fit(x, x[:, 0])
    assert ["Ridge is fitted instead" in str(one.message) for one in told] == [True]
    with pytest.warns(dp.PrivacyWarning, match="these data were used before"):
        fitted()


@pytest.mark.parametrize("count", [1, 20])
def test_a_fit_of_records_that_all_lie_where_losses_are_straight_does_not_fail(count):
    data = {"x": np.zeros((count, 2)), "y": np.ones(count)}
    release = dp.solve(dp.load("quantile_fan", features=2), data, dp.Privacy(1.0), dp.ObjectivePerturbation(), seed=0)
    assert np.isfinite(release["w"]).all()


@pytest.mark.parametrize("privacy", [dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)])
@pytest.mark.parametrize("atom", [cp.logistic, cp.pos, lambda margin: cp.square(1 + margin)])
def test_labels_of_constant_losses_are_said(privacy, atom):
    """With labels 0 and 1 in -y * score, half of the records had the loss log 2, in silence."""
    w, record = cp.Variable(3, name="w"), dp.Record(x=dp.Ball(3), y=dp.Choice([0, 1]))
    data = {"x": np.resize(np.eye(3) / 2, (4000, 3)), "y": np.resize([0, 1], 4000)}
    for sign, expected in ((lambda y: y, True), (lambda y: 2 * y - 1, False)):
        loss = partial(lambda sign, x, y: atom(-sign(y) * (x @ w)), sign)
        learner = dp.Template(record=record, loss=loss, regularizer=1e-2 * cp.sum_squares(w))
        assert any("2 * y - 1" in said for said in dp.verify(learner, privacy, 4000).advice) == expected
        found = warnings_of(dp.solve, learner, data, privacy, budget=dp.Budget(privacy))
        assert any("2 * y - 1" in one for one in found) == expected


def test_the_stages_of_a_call_are_logged(caplog):
    """Long calls said nothing for minutes.  Records of the domain change no line."""
    learner, said = dp.load("logistic_regression", features=2), []
    for value in (0.0, 0.5):
        caplog.clear()
        with caplog.at_level("INFO", "dpconvex"):
            dp.solve(learner, {"x": np.full((500, 2), value), "y": np.resize([-1, 1], 500)}, dp.Privacy(1.0), seed=0)
        said.append([one.getMessage() for one in caplog.records])
    assert said[0] == said[1] == ["proving", "checking the records", "computing the private answer"]
    for y in ("logistic_regression", "softmax_regression"):
        caplog.clear()
        options = {"features": 2} | ({"classes": 3} if y == "softmax_regression" else {})
        with caplog.at_level("INFO", "dpconvex"):
            data = {"x": np.full((500, 2), 0.5), "y": np.resize([0, 1, 2] if "classes" in options else [-1, 1], 500)}
            dp.solve(dp.load(y, **options), data, dp.Privacy(1.0, 1e-6), seed=0)
        *_, last = (one.getMessage() for one in caplog.records)
        assert last.split()[1] == last.split()[3] > "1"  # "step 8 of 8"
