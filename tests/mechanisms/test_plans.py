"""The default plans and the automatic choice: what is the default for which template, and what was compared."""

import re

import cvxpy as cp
import numpy as np
import pytest
from sample_problems import objective

import dpconvex as dp
from dpconvex.mechanisms.plans import Automatic
from dpconvex.noise.gaussian import gaussian_level

ADJACENCIES = ("replace-one", "add-remove")
PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
PURE, APPROXIMATE = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)
BALL, COUNTS, NINE = dp.Ball(4), dp.Box(0, 20), dp.Choice(range(9))
FIELDS = {"x": dp.Ball(2), "y": dp.Choice([-1, 1])}
LABELLED = dp.Record(**FIELDS)
w, b, v, c = cp.Variable(2, name="w"), cp.Variable(name="b"), cp.Variable(4, name="v"), cp.Variable(name="c")
f, q, table = cp.Variable(6, name="f"), cp.Variable(5, name="q"), cp.Variable((9, 9), name="table")
ENOUGH = 8 / gaussian_level(1.0, 1e-5)  # records of squares of classes, for steps


def of(loss, public=0.0, constraints=(), **fields):
    return dp.Template(dp.Record(**fields), loss, public, list(constraints))


def loaded(name, features=4, **options):
    return dp.load(name, features=features, **options)


def smoothed(held):
    public = 1e-6 * (cp.sum_squares(w) + held * cp.square(b))
    return of(lambda x, y: dp.huber_hinge(1 - y * (x @ w + b), width=0.5), public, **FIELDS)


def hinge(regularization):
    return of(lambda x, y: cp.pos(1 - y * (x @ w)), regularization * cp.sum_squares(w), [cp.norm(w) <= 3], **FIELDS)


def cells(loss, public, *constraints, **fields):
    return of(loss, 1e-5 * public, constraints, **{"k": dp.Choice(range(6)), **fields})


SIX = cells(lambda k, y: cp.logistic(-y * f[k]), cp.sum_squares(f), cp.diff(f) >= 0, y=FIELDS["y"])
STEEP = cells(lambda k, y: cp.pos(1 - y * f[k]), cp.sum_squares(f), cp.diff(f) >= 0, y=FIELDS["y"])
ENTRIES = of(lambda i, j, y: cp.square(table[i, j] - y), 1e-3 * cp.normNuc(table), i=NINE, j=NINE, y=dp.Box(0, 1))
SHARES = cells(lambda k: cp.sum_squares(q - np.eye(6)[k, :5]) / 2, 0 * cp.sum(q), cp.sum(q) == 1, q >= 0)
LINEAR, QUADRATIC = "Chosen because scores are linear", "Chosen because the loss is quadratic"
SQUARES, LOGISTIC = loaded("least_squares_classifier"), {n: loaded("logistic_regression", n) for n in (900, 2000, 5000)}
# What is perturbed by default: of a template, under a promise, at a number of records; and what is said of it.
DEFAULTS = [
    *((LOGISTIC[900], PROMISE, size, "queries", "") for size in (5000, 10**6)),
    *((LOGISTIC[2000], PROMISE, *usual, "") for usual in ((5000, "gradients"), (10**6, "queries"))),
    (LOGISTIC[5000], PROMISE, 10**6, "gradients", r"5,000 features.*AdaptiveSteps\(\)"),
    # Whole gradients of many parameters
    *((loaded("discrete_hazards", n), PROMISE, 1000, usual, "") for n, usual in ((294, "queries"), (300, "gradients"))),
    (
        loaded("conditional_logit", 2, availability=True),
        APPROXIMATE,
        1000,
        "queries",
        "",
    ),  # classes with further fields
    # Nothing holds the intercept: no minimiser is released, and nothing else once was.
    (smoothed(0), PROMISE, 100, "queries", ""),
    *((smoothed(1), PROMISE, *usual, "") for usual in ((100, "gradients"), (5000, "queries"))),
    *((SIX, PROMISE, *usual, "") for usual in ((100, "queries"), (5000, "objective"))),  # many records in each cell
    # Clipped steps go astray where levels weigh no features, the farther the more records there are
    *((STEEP, APPROXIMATE, *usual, "") for usual in ((300, "gradients"), (20_000, "output"))),
    *((SQUARES, privacy, int(0.99 * ENOUGH), "statistics", QUADRATIC) for privacy in (PROMISE, dp.Privacy(1.0, 1e-5))),
    *((SQUARES, privacy, int(1.01 * ENOUGH) + 1, "queries", "") for privacy in (PROMISE, dp.Privacy(1.0, 1e-5))),
    *((SHARES, privacy, 1000, "statistics", "") for privacy in (PURE, APPROXIMATE)),
    (loaded("ridge_regression"), PURE, 1000, "objective", ""),  # pure noise pays for every statistic
    *((loaded(f"{kind}_regression"), PROMISE, 1000, "queries", LINEAR) for kind in ("ridge", "linear", "huber")),
    (of(lambda x, y: cp.exp(x @ v + c) - y * (x @ v + c), x=BALL, y=COUNTS), PROMISE, 1000, "queries", LINEAR),
    (of(lambda x, y: cp.abs(x @ v - y), cp.sum_squares(v), x=BALL, y=COUNTS), PROMISE, 1000, "queries", LINEAR),
    # Two fields share parameters, choices are no classes, and records of norms lie far from every kink.
    (of(lambda x, z, y: cp.square((x + z) @ v - y), x=BALL, z=BALL, y=COUNTS), PROMISE, 1000, "queries", ""),
    (ENTRIES, PROMISE, 100, "queries", ""),
    (loaded("robust_location"), PROMISE, 1000, "objective", ""),
    *((hinge(0.1), *usual, "") for usual in ((PURE, 300, "output"), (APPROXIMATE, 300, "queries"))),
    *((hinge(public), APPROXIMATE, 100, "gradients", "") for public in (0.1, 0.0)),
    (hinge(0.0), PURE, 300, "output", ""),  # with a quadratic that is added
]


@pytest.mark.parametrize(("template", "privacy", "size", "usual", "said"), DEFAULTS)
def test_the_default_is_the_usual_one(template, privacy, size, usual, said):
    certificate = dp.verify(template, privacy, size)
    assert certificate.perturbed == usual
    assert re.search(said, certificate.advice[-1]) if said else True


# The automatic choice
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.03, 1e-12), (1e-4, 1e-14), (0.1, 1e-18), (1.0, 1e-60), (300.0, 1e-30)]
)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_default_falls_back_to_what_can_be_proved(epsilon, delta, adjacency):
    template = dp.load("logistic_regression", features=3)
    assert dp.verify(template, dp.Privacy(epsilon, delta, adjacency), 1000).noise_scale > 0


def test_where_all_mechanisms_are_refused_the_first_refusal_is_told():
    flat = of(lambda x: cp.logistic(x @ w), x=dp.Ball(2))
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
    with pytest.raises(dp.NotPrivate):  # the minimiser's sensitivity is unbounded
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


def test_pure_fits_of_many_features_need_no_table_of_their_products():
    features = 65_536  # whose products are 4 billion
    certificate = dp.verify(dp.load("logistic_regression", features=features), dp.Privacy(3.0), 5000, proof=False)
    assert certificate.noise_dimension == features
