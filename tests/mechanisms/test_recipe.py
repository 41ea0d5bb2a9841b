"""The recipe and the automatic choice: what is the default for which template, and what was compared."""

import cvxpy as cp
import numpy as np
import pytest
from sample_problems import objective

import dpconvex as dp
from dpconvex.fitting.verify import FitOptions
from dpconvex.mechanisms.recipe import Automatic
from dpconvex.noise.gaussian import gaussian_level

ADJACENCIES = ("replace-one", "add-remove")
PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
PURE, APPROXIMATE = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)
LABELLED = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
w, b = cp.Variable(2, name="w"), cp.Variable(name="b")


def plan(template, mechanism=None, size=100, privacy=PROMISE):
    return FitOptions(mechanism).plan(template, privacy, size)


def test_classes_of_very_many_features_take_clipped_steps():
    many = {count: dp.load("logistic_regression", features=count) for count in (900, 2000, 5000)}
    adaptive = {n: [plan(many[n], size=size) == dp.AdaptiveSteps() for size in (5000, 10**6)] for n in many}
    assert adaptive == {900: [True, True], 2000: [False, True], 5000: [False, False]}
    advice = dp.verify(many[5000], PROMISE, 5000).advice[-1]
    assert "5,000 features" in advice
    assert "AdaptiveSteps()" in advice


def test_smoothed_hinges_with_many_records_or_whose_intercept_nothing_holds_take_steps():
    """No minimiser is released of the latter, and nothing else: they were refused."""
    held = 1e-6 * cp.square(b)
    for more, size, steps in ((0.0, 100, True), (held, 100, False), (held, 5000, True)):
        loss = lambda x, y: dp.huber_hinge(1 - y * (x @ w + b), width=0.5)  # noqa: E731
        template = dp.Template(LABELLED, loss, 1e-6 * cp.sum_squares(w) + more)
        assert (plan(template, size=size) == dp.AdaptiveSteps()) == steps


def test_classes_of_cells_with_many_records_each_take_minimisers():
    f = cp.Variable(6, name="f")
    cells = dp.Record(k=dp.Choice(range(6)), y=dp.Choice([-1, 1]))
    template = dp.Template(cells, lambda k, y: cp.logistic(-y * f[k]), 1e-5 * cp.sum_squares(f), [cp.diff(f) >= 0])
    assert plan(template, size=100) == dp.AdaptiveSteps()
    assert plan(template, size=5000) == Automatic()


def test_squares_of_few_records_of_classes_release_their_statistics():
    ridge, classes = (dp.load(name, features=4) for name in ("ridge_regression", "least_squares_classifier"))
    enough = 8 / gaussian_level(1.0, 1e-5)
    for privacy in (PROMISE, dp.Privacy(1.0, 1e-5)):
        certificate = dp.verify(classes, privacy, int(0.99 * enough))
        assert certificate.perturbed == "statistics"
        assert certificate.advice[-1].startswith("Chosen because the loss is quadratic")
        assert dp.verify(classes, privacy, int(1.01 * enough) + 1).perturbed == "queries"
    assert dp.verify(ridge, PURE, 1000).perturbed == "objective"  # pure noise pays for every statistic


def test_records_without_classes_take_adaptive_steps():
    x, counts = dp.Ball(4), dp.Box(0, 20)
    v, c = cp.Variable(4, name="v"), cp.Variable(name="c")
    poisson = dp.Template(dp.Record(x=x, y=counts), lambda x, y: cp.exp(x @ v + c) - y * (x @ v + c))
    several = dp.Template(dp.Record(x=x, z=x, y=counts), lambda x, z, y: cp.square((x + z) @ v - y))
    kinked = dp.Template(dp.Record(x=x, y=counts), lambda x, y: cp.abs(x @ v - y), cp.sum_squares(v))
    shipped = (dp.load(f"{kind}_regression", features=4) for kind in ("ridge", "linear", "huber"))
    for template in (poisson, kinked, *shipped):
        certificate = dp.verify(template, PROMISE, 1000)
        assert certificate.perturbed == "queries"
        assert certificate.advice[-1].startswith("Chosen because scores are linear")
    assert dp.verify(several, PROMISE, 1000).perturbed == "queries"  # two fields that share parameters
    table = cp.Variable((9, 9), name="table")
    cells = dp.Record(row=dp.Choice(range(9)), column=dp.Choice(range(9)), y=dp.Box(0, 1))
    entries = dp.Template(cells, lambda row, column, y: cp.square(table[row, column] - y), 1e-3 * cp.normNuc(table))
    assert dp.verify(entries, PROMISE, 100).perturbed == "queries"  # choices are no classes there
    norms = dp.load("robust_location", features=4)  # far from every kink
    assert dp.verify(norms, PROMISE, 1000).perturbed != "queries"


# The automatic choice
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.03, 1e-12), (1e-4, 1e-14), (0.1, 1e-18), (1.0, 1e-60), (300.0, 1e-30)]
)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_default_falls_back_to_what_can_be_proved(epsilon, delta, adjacency):
    template = dp.load("logistic_regression", features=3)
    assert dp.verify(template, dp.Privacy(epsilon, delta, adjacency), 1000).noise_scale > 0


def test_a_kink_takes_another_mechanism_and_if_all_are_refused_the_first_refusal_is_told():
    def hinge(regularization):
        public = regularization * cp.sum_squares(w)
        return dp.Template(LABELLED, lambda x, y: cp.pos(1 - y * (x @ w)), public, [cp.norm(w) <= 3])

    assert dp.verify(hinge(0.1), PURE, 300).perturbed == "output"
    assert dp.verify(hinge(0.1), APPROXIMATE, 100).perturbed in ("output", "gradients")
    assert dp.verify(hinge(0.0), APPROXIMATE, 100).perturbed == "gradients"
    assert dp.verify(hinge(0.1), APPROXIMATE, 300).perturbed == "queries"
    assert dp.verify(hinge(0.0), PURE, 300).perturbed == "output"  # with a quadratic that is added
    flat = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w))
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(flat, APPROXIMATE, 300, Automatic())


S = cp.Variable((2, 2), symmetric=True, name="S")
WITHOUT_REGULARIZER = {
    "covariances": (dp.Record(x=dp.Ball(2)), lambda x: cp.sum_squares(cp.outer(x, x) - S), [cp.norm(S, "fro") <= 1]),
    "huber": (dp.Record(x=dp.Ball(2), y=dp.Box(-1, 1)), lambda x, y: cp.huber(x @ w - y, 0.5), [cp.norm(w, 2) <= 2]),
    "no projection": (LABELLED, lambda x, y: cp.logistic(-y * (x @ w)), [cp.norm(w, 3) <= 1e-3]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", WITHOUT_REGULARIZER)
def test_a_quadratic_is_added_where_a_bounded_problem_has_no_regularizer(name, adjacency):
    record, loss, constraints = WITHOUT_REGULARIZER[name]
    template = dp.Template(record, loss, 0.0, constraints)
    for mechanism in (None, dp.ObjectivePerturbation(), dp.OutputPerturbation()):
        certificate = dp.verify(template, dp.Privacy(1.0, adjacency=adjacency), 500, mechanism)
        assert certificate.strong_convexity == certificate.added > 0
        replayed = str(certificate.check())
        assert replayed.startswith("replayed") or "modulus" not in replayed
    free = dp.Template(record, loss, 0.0)
    with pytest.raises(dp.NotPrivate):  # the minimiser can move without limit
        dp.verify(free, dp.Privacy(1.0, adjacency=adjacency), 500, dp.ObjectivePerturbation())
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(template, dp.Privacy(1.0, adjacency=adjacency), 500, dp.ObjectivePerturbation(added=0.0))


@pytest.mark.parametrize(
    "name", ["logistic_regression", "ordinal_regression", "discrete_hazards", "large_margin_gaussian"]
)
def test_less_is_added_where_noise_is_smaller_next_to_all_gradients(name):
    template, mechanism = dp.load(name, features=3), dp.ObjectivePerturbation()
    few, many = (dp.verify(template, dp.Privacy(1.0), size, mechanism).added for size in (100, 10_000))
    assert 0 < 2 * many < few


def test_what_is_added_for_a_hinge_follows_its_constant_but_not_that_of_a_logistic_loss():
    added = {}
    for name, bend in {"hinge": lambda m: dp.huber_hinge(m, 1e-3), "logistic": cp.logistic}.items():
        for constant in (0.1, 1.0):
            loss = lambda x, y, f=bend, c=constant: f(c - y * (x @ w))  # noqa: E731
            template = dp.Template(LABELLED, loss, 1e-9 * cp.sum_squares(w))
            mechanism = dp.OutputPerturbation()  # whose noise does not depend on curvature
            added[name, constant] = dp.verify(template, dp.Privacy(1.0), 100, mechanism).added
    assert added["hinge", 0.1] / added["hinge", 1.0] > 5
    assert added["logistic", 0.1] == pytest.approx(added["logistic", 1.0], rel=0.01)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_grades_are_learnt_better_than_with_a_fourth_or_four_times_the_quadratic(delta):
    template, rng, size = dp.load("ordinal_regression", features=4), np.random.default_rng(0), 500
    x = rng.normal(size=(size, 4))
    x /= np.linalg.norm(x, axis=1)[:, None]
    y = np.digitize(4 * x[:, 0] + rng.logistic(size=size), [-2.0, 0.0, 2.0])
    data, privacy, law = {"x": x, "y": y}, dp.Privacy(1.0, delta), "gaussian" if delta else "gamma"
    added, risks = dp.verify(template, privacy, size, dp.ObjectivePerturbation(law)).added, []
    for factor in (0.25, 1.0, 4.0):
        mechanism = dp.ObjectivePerturbation(law, factor * added)
        found = [dp.solve(template, data, privacy, mechanism, seed=seed) for seed in range(4)]
        risks.append(sum(objective(template, data, release) for release in found))
    assert min(risks) == risks[1]


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_squares_of_labels_alone_are_noisy_counts(delta):
    q, unit = cp.Variable(5, name="q"), np.eye(5)
    record = dp.Record(cell=dp.Choice(range(5)))
    shares = dp.Template(record, lambda cell: cp.sum_squares(q - unit[cell]) / 2, constraints=[cp.sum(q) == 1, q >= 0])
    assert dp.verify(shares, dp.Privacy(1.0, delta), 1000).perturbed == "statistics"
