"""What adaptive steps learn whatever units, bounds and shapes targets have, and how near a constant they stay at worst."""

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import ADD, DATA, SCORES, SIGNS, SIZE, SLOPES, TARGETS, X, fit, linear, logistic, scored, small
from scipy.special import entr, log_softmax

import dpconvex as dp

UNITS = {  # of four features that lie within [-1, 1]: the middle of each, and its size
    "far from 0": (np.array([60.0, 130.0, 2005.0, 10.0]), np.array([40.0, 80.0, 15.0, 5.0])),
    "far apart": (np.array([0.0, 0.0, 0.0, 0.0]), np.array([1e6, 1.0, 100.0, 1e-3])),
    "both": (np.array([5e5, 0.5, 60.0, 2005.0]), np.array([5e5, 0.5, 40.0, 15.0])),
}


@pytest.mark.parametrize(
    ("units", "apart", "wide"),
    [("far from 0", True, 1.0), ("far apart", False, 1.0), ("both", False, 4.0), ("both", True, 1.0)],
)
def test_features_may_have_any_units(units, apart, wide):
    """Rows were as long as the largest feature, and little was seen of how they differ."""
    (middle, size), w, b = UNITS[units], cp.Variable(4, name="w"), cp.Variable(name="b")
    raw = middle + size * X
    fields, data = {"x": dp.Box(middle - wide * size, middle + wide * size)}, {"x": raw}
    loss = lambda x, y: cp.logistic(-y * (x @ w + b))  # noqa: E731
    if apart:
        fields = {f"x{k}": dp.Box(middle[k] - size[k], middle[k] + size[k]) for k in range(4)}
        data = {f"x{k}": raw[:, k] for k in range(4)}
        score = lambda *x: sum(x[k] * w[k] for k in range(4)) + b  # noqa: E731
        loss = lambda x0, x1, x2, x3, y: cp.logistic(-y * score(x0, x1, x2, x3))  # noqa: E731
    found = fit(dp.Template(dp.Record(**fields, y=dp.Choice([-1, 1])), loss), data | {"y": SIGNS})
    exact = dp.solve_without_privacy(logistic(), DATA)
    assert np.linalg.norm(size * found["w"] - exact["w"]) <= 0.3 * np.linalg.norm(exact["w"])
    assert abs(found["b"] + middle @ found["w"] - exact["b"]) <= 0.3


BENT = {
    "squares": lambda s, y: cp.square(y - s),
    "expectiles": lambda s, y: 0.8 * cp.square(cp.pos(y - s)) + 0.2 * cp.square(cp.neg(y - s)),
    "low power": lambda s, y: cp.power(cp.abs(y - s), 1.2),
    "cubes": lambda s, y: cp.power(cp.abs(y - s), 3),
}


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("kind", BENT)
def test_losses_that_bend_follow_the_units_of_targets(kind, unit):
    """Others than squares were taken for links, whose scores are logarithms: answers were up to 1e7 times too far away."""
    found = fit(scored(BENT[kind], y=dp.Box(0, 8 * unit)), {"x": X, "y": unit * (TARGETS + 4)})
    missed = X @ found["w"] / unit + found["b"] / unit - 4.3 - SCORES
    assert missed.std() <= 0.1
    assert abs(missed.mean()) <= 0.15


@pytest.mark.parametrize("kind", ["logistic", "hinge", "unlike costs"])
def test_the_unit_of_a_loss_changes_nothing(kind):
    """Ten times a logistic loss lost two fifths of the gain, and a million times all of it."""
    bent = (lambda m: cp.pos(1 + m)) if kind == "hinge" else cp.logistic

    def learnt(cost):
        costs = {1: cost, -1: 0.2 * cost if kind == "unlike costs" else cost}
        found = fit(scored(lambda score, y: costs[y] * bent(-y * score), y=dp.Choice([-1, 1])), DATA)
        return np.append(found["w"], found["b"])

    usual = learnt(1.0)
    for cost in (1e-4, 7.0, 50.0, 1e6):
        np.testing.assert_allclose(learnt(cost), usual, rtol=1e-3, atol=1e-3)


def test_the_unit_of_a_loss_does_not_move_intervals():
    """Those of a million times a loss were twice as far from 0 as the truth."""
    learners = (scored(lambda score, y, c=c: c * cp.logistic(-y * score), y=dp.Choice([-1, 1])) for c in (1.0, 1e6))
    usual, other = (dp.intervals(learner, None, DATA, ADD, size=SIZE, seed=1) for learner in learners)
    np.testing.assert_allclose([other.lower, other.upper], [usual.lower, usual.upper], rtol=1e-3, atol=1e-3)


def test_a_solver_is_not_believed_that_nothing_satisfies_no_constraints():
    data, asymmetric = {"x": X, "y": 1e5 * (TARGETS + 4)}, BENT["expectiles"]
    found = dp.solve_without_privacy(scored(asymmetric, y=dp.Box(0, 8e5)), data)
    np.testing.assert_allclose(found["w"] / 1e5, SLOPES, atol=0.05)
    with pytest.raises(dp.NotConverged, match="units"):
        dp.solve_without_privacy(scored(asymmetric, y=dp.Box(0, 8e7)), data | {"y": 1e2 * data["y"]})


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_log_links_may_start_far_from_where_they_end(unit):
    costs = np.minimum(unit * np.exp(SCORES) * np.random.default_rng(3).gamma(4, 0.25, SIZE), 50 * unit)
    learner = scored(lambda score, y: y * cp.exp(-score) + score, y=dp.Box(0, 50 * unit))
    for seed in range(2):
        found = fit(learner, {"x": X, "y": costs}, dp.Privacy(1.0, 1e-5, "add-remove"), seed)
        assert np.sqrt(np.mean((X @ found["w"] + found["b"] - np.log(unit) - SCORES) ** 2)) <= 0.2


def test_weights_and_exposures_far_below_their_bounds_leave_the_mean_of_counts():
    """Usual slopes are a hundredth of the largest here, and noise was that of the largest: means were off at random."""
    random = np.random.default_rng(3)
    years, weights, offsets = random.uniform(0.2, 5, SIZE), random.gamma(4, 0.25, SIZE), 0.4 * random.normal(size=SIZE)
    counts = np.minimum(random.poisson(years * np.exp(SCORES - 1 + offsets)), 60)
    bounds = {"y": dp.Box(0, 60), "years": dp.Box(0, 5), "weight": dp.Box(0, 5), "moved": dp.Box(-2, 2)}
    loss = lambda s, y, years, weight, moved: weight * (years * cp.exp(s + moved) - y * (s + moved))  # noqa: E731
    learner = scored(loss, **bounds)
    data = {"x": X, "y": counts, "years": years, "weight": np.minimum(weights, 5), "moved": np.clip(offsets, -2, 2)}
    for seed in range(6, 14):
        found = fit(learner, data, dp.Privacy(2.0, 1e-6), seed)
        assert abs(np.mean(X @ found["w"] + found["b"] - SCORES + 1)) <= 0.25


@pytest.mark.sampled(2)
@pytest.mark.parametrize("few", [0, 1, 20])
@pytest.mark.parametrize("epsilon", [3.0, 1e-3])
def test_noise_alone_makes_no_large_answer(few, epsilon):
    privacy = dp.Privacy(epsilon, 1e-5, "add-remove")
    for seed in range(5):
        assert np.linalg.norm(fit(linear(), {"x": X[:few], "y": TARGETS[:few]}, privacy, seed)["w"]) < 200


PRIVACY = dp.Privacy(1.0, 1e-6)


def test_a_function_that_is_no_number_for_one_record_moves_nothing_else():
    """Steps of 0 * u**8 overflow, which its bounds do not: the record was no number in all sums, and moved w to 3.5e7."""
    w, b = cp.Variable(name="w"), cp.Variable(name="b")
    record = dp.Record(u=dp.Box(0, 1e45), v=dp.Box(100, 101), y=dp.Box(-5, 5))
    far = lambda u: 0 * cp.square(cp.square(cp.square(u)))  # noqa: E731
    learner = dp.Template(record, lambda u, v, y: cp.square((far(u) + v - 100) * w + b - y))
    rng = np.random.default_rng(0)
    records = {"u": rng.uniform(0, 1, 200), "v": rng.uniform(100, 101, 200), "y": rng.uniform(-5, 5, 200)}
    usual = dp.solve(learner, records, PRIVACY, seed=1)
    records["u"][0] = 1e45
    assert abs(dp.solve(learner, records, PRIVACY, seed=1)["w"] - usual["w"]) <= 0.1


def test_stacked_functions_of_columns_are_learnt_in_their_units():
    """As those of a vector are. They lost a fifth of the gain, however many records there were."""
    rng, w, b = np.random.default_rng(1), cp.Variable(3, name="w"), cp.Variable(name="b")
    x = rng.uniform([18.0, 0.0], [90.0, 2e5], size=(4000, 2))
    found = np.stack([x[:, 0] / 100, np.maximum(x[:, 0] - 50, 0), np.log(1 + x[:, 1])], axis=1)
    y = np.clip((found - found.mean(axis=0)) / found.std(axis=0) @ [1, 0.8, 0.5] + 0.5 * rng.normal(size=4000), -5, 5)
    stacked = lambda x: cp.hstack([x[0] / 100, cp.pos(x[0] - 50), cp.log(1 + x[1])])  # noqa: E731
    record = dp.Record(x=dp.Box([18.0, 0.0], [90.0, 2e5]), y=dp.Box(-5, 5))
    fit = dp.solve(
        dp.Template(record, lambda x, y: cp.square(stacked(x) @ w + b - y)),
        {"x": x, "y": y},
        dp.Privacy(1.0, 1e-5),
        seed=0,
    )
    rows = np.column_stack([found, np.ones(4000)])
    least = ((rows @ np.linalg.lstsq(rows, y)[0] - y) ** 2).mean()
    assert ((found @ fit["w"] + fit["b"] - y) ** 2).mean() - least <= 0.02 * (y.var() - least)


SIGNED = {
    "logistic": (cp.logistic, lambda w: [w >= 0]),
    "hinge": (lambda m: cp.pos(1 + m), lambda w: [w[:2] >= 0, w[2] >= -1]),
    "squared hinge": (lambda m: cp.square(cp.pos(1 + m)), lambda w: [w >= 0]),
}


@pytest.mark.parametrize("kind", SIGNED)
def test_classes_under_constraints_are_learnt_in_natural_units(kind):
    loss, limits = SIGNED[kind]
    rng, size = np.random.default_rng(0), 5_000
    low, high = np.array([0.0, 18.0, 0.0, 1950.0]), np.array([1.0, 95.0, 2e5, 2025.0])
    ages, costs, years = rng.normal(45, 15, size), rng.gamma(2, 2e4, size), rng.uniform(1960, 2020, size)
    x = np.clip(np.stack([rng.random(size) < 0.2, ages, costs, years], axis=1), low, high)
    scores = (x - x.mean(axis=0)) / x.std(axis=0) @ [1.5, 1.0, 0.5, 0.0] + 0.5 * rng.logistic(size=size)
    y, fields = np.where(scores > 0, 1, -1), {"x": dp.Box(low, high), "y": dp.Choice([-1, 1])}
    template = scored(lambda s, y: loss(-y * s), regularizer=small, constraints=limits, **fields)
    release = dp.solve(template, {"x": x, "y": y}, dp.Privacy(1.0, 1e-6), seed=0)
    assert (release["w"][:2] >= -1e-9).all()
    reached, none = (loss(-y * (x @ v + c)).value.mean() for v, c in ((release["w"], release["b"]), (np.zeros(4), 0.0)))
    assert reached < 0.55 * none


def test_losses_without_bounds_under_constraints_take_steps():
    rng, size, w = np.random.default_rng(0), 5_000, cp.Variable(6, name="w")
    y = rng.choice([-1, 1], size)
    votes = np.where(rng.random((size, 6)) < np.linspace(0.55, 0.75, 6), y[:, None], -y[:, None]).astype(float)
    record = dp.Record(v=dp.Box(-np.ones(6), np.ones(6)), y=dp.Choice([-1, 1]))
    for limits in ([w >= 0], [w >= 0, w <= 2]):
        boost = dp.Template(record, lambda v, y: cp.exp(-y * (v @ w)), constraints=limits)
        release = dp.solve(boost, {"v": votes, "y": y}, dp.Privacy(1.0, 1e-6), seed=0)
        assert np.exp(-y * (votes @ release["w"])).mean() < 0.75


@pytest.mark.parametrize("wide", [6.0, 20.0])
def test_offsets_of_classes_make_no_link_of_a_logistic_loss(wide):
    """Scores were read in a unit of their own, as those of counts: b = 600 or 2.5e8 in place of .3."""
    rng, size = np.random.default_rng(0), 5_000
    x, o = rng.uniform(-1, 1, (size, 3)), rng.normal(0, 1.5, size).clip(-wide, wide)
    y = np.where(o + x @ [1, -1, 0] + 0.3 + rng.logistic(size=size) > 0, 1, -1)
    fields = {"x": dp.Box(-np.ones(3), np.ones(3)), "o": dp.Box(-wide, wide), "y": dp.Choice([-1, 1])}
    template = scored(lambda s, o, y: cp.logistic(-y * (o + s)), **fields)
    release = dp.solve(template, {"x": x, "o": o, "y": y}, dp.Privacy(1.0, 1e-6), seed=0)
    np.testing.assert_allclose(np.append(release["w"], release["b"]), [1, -1, 0, 0.3], atol=0.35)


def test_scores_of_weak_signals_are_not_twice_as_long_as_the_truth():
    truth, size, found = np.array([1.5, -1.0, 0.0]), 1_000, []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-0.5, 0.5, (size, 3))
        y = np.where(x @ truth + rng.logistic(size=size) > 0, 1, -1)
        fit = dp.solve(dp.load("logistic_regression", features=3), {"x": x, "y": y}, dp.Privacy(3.0, 1e-6), seed=seed)
        found.append(np.linalg.norm(fit["w"]) / np.linalg.norm(truth))
    assert np.mean(found) < 1.32


@pytest.mark.parametrize("kind", ["hinge", "logistic"])
def test_losses_of_pairs_without_labels_are_learnt_as_those_of_classes(kind):
    """Slopes have one sign alone: steps of regressions ended at a quarter of the length, at every epsilon."""
    rng, size, w = np.random.default_rng(0), 5_000, cp.Variable(4, name="w")
    loss = {"hinge": lambda s: cp.pos(1 - s), "logistic": lambda s: cp.logistic(-s)}[kind]
    u, v = rng.uniform(0, 1, (2, size, 4))
    worse = (u - v) @ [3, -2, 1, 0] + 0.1 * rng.logistic(size=size) < 0
    u[worse], v[worse] = v[worse], u[worse]
    unit = dp.Box(np.zeros(4), np.ones(4))
    template = dp.Template(dp.Record(u=unit, v=unit), lambda u, v: loss((u - v) @ w))
    release = dp.solve(template, {"u": u, "v": v}, dp.Privacy(3.0, 1e-6), seed=0)
    assert loss((u - v) @ release["w"]).value.mean() < 0.14


def test_clips_of_many_records_of_several_classes_are_wide():
    """A clip that stayed as short as for few records lost .04 of the gain at any epsilon where classes have costs."""
    rng, size, costs = np.random.default_rng(0), 20_000, np.array([1.0, 3.0, 1.0, 5.0])
    W, b, x = cp.Variable((5, 4), name="W"), cp.Variable(4, name="b"), rng.normal(size=(size, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    truth = x @ np.random.default_rng(3).normal(size=(5, 4)) * 2 + [1, 0, 0, -1]
    y = (truth + rng.gumbel(size=(size, 4))).argmax(axis=1)
    losses = lambda x, y: costs[y] * (cp.log_sum_exp(x @ W + b) - (x @ W + b)[y])  # noqa: E731
    learner = dp.Template(dp.Record(x=dp.Ball(5), y=dp.Choice(range(4))), losses, 1e-6 * cp.sum_squares(W))
    found = dp.solve(learner, {"x": x, "y": y}, dp.Privacy(3.0, 1e-6), seed=0)
    constant = np.log(np.bincount(y, costs[y])) + np.zeros((size, 1))
    # Costs move the scores of the least loss by their logarithms.
    scores = x @ found["W"] + found["b"], truth + np.log(costs), constant
    lost, least, most = (costs[y] @ -log_softmax(own, axis=1)[np.arange(size), y] for own in scores)
    assert lost - least <= 0.02 * (most - least)


@pytest.mark.parametrize(("place", "part"), [(0.0, 0.02), (-4.0, 0.4)])
def test_rare_levels_and_rare_labels_are_learnt_where_records_are_many(place, part):
    """Rows of rare levels are long: clipped to the largest slope near 0, they lost .13 of the gain, and 1.0 with rare labels."""
    rng, size = np.random.default_rng(1), 60_000
    levels, truth = rng.choice(8, size, p=(w := np.arange(1.0, 9) ** -2) / w.sum()), rng.normal(size=8)
    y = np.where(place + truth[levels] - truth @ w / w.sum() + rng.logistic(size=size) > 0, 1, -1)
    learner = scored(lambda s, y: cp.logistic(-y * s), x=dp.Ball(8), y=dp.Choice([-1, 1]))
    found = dp.solve(learner, {"x": np.eye(8)[levels], "y": y}, dp.Privacy(5.0, 1e-6), seed=0)
    own = np.logaddexp(0, -y * (found["w"][levels] + found["b"])).mean()
    ones, all_of = np.bincount(levels, y > 0), np.bincount(levels)
    least, most = (
        entr([ones, all_of - ones]).sum() - entr(all_of).sum(),
        size * entr([(y > 0).mean(), (y < 0).mean()]).sum(),
    )
    assert own - least / size <= part * (most - least) / size


@pytest.mark.parametrize("power", [1.5, 2, 3])
def test_powers_of_hinges_learn_even_labels_and_lose_little_to_constants_where_labels_are_rare(power):
    """At the best constant of rare labels nearly no record has curvature: steps from there went up to 1e6 gains astray."""
    rng, size = np.random.default_rng(0), 30_000
    x = rng.normal(size=(size, 5))
    x *= (rng.random(size) ** 0.2 / np.linalg.norm(x, axis=1))[:, None]
    learner = scored(lambda s, y: cp.power(cp.pos(1 - y * s), power), x=dp.Ball(5), y=dp.Choice([-1, 1]))
    for rare, limit in ((0.0, 0.85), (6.0, 1.25)):
        y = np.where(x @ [3, -2, 1, 0, 2] - rare + rng.logistic(size=size) > 0, 1, -1)
        part, places = (y > 0).mean(), np.linspace(-1, 1, 2001)
        least = (part * (1 - places) ** power + (1 - part) * (1 + places) ** power).min()
        for seed in range(2):
            found = dp.solve(learner, {"x": x, "y": y}, dp.Privacy(5.0, 1e-5), seed=seed)
            assert (np.maximum(1 - y * (x @ found["w"] + found["b"]), 0) ** power).mean() < limit * least


def test_metrics_of_triplets_are_learnt_as_classes_are():
    """Products of two fields kept steps of classes from losses whose slopes have one sign alone: .4 of the gain was lost."""
    rng, M, D = np.random.default_rng(0), cp.Variable((3, 3), name="M", PSD=True), np.diag([4, 1, 0.2])
    a, b, c = rng.uniform(-1, 1, (3, 2_000, 3))
    square = lambda M, u: ((u @ M) * u).sum(axis=1)  # noqa: E731
    further = square(D, a - b) + 0.5 * rng.normal(size=len(a)) > square(D, a - c)
    b[further], c[further] = c[further], b[further]
    box = dp.Box(-np.ones(3), np.ones(3))
    loss = lambda a, b, c: cp.pos(1 + (a - b) @ M @ (a - b) - (a - c) @ M @ (a - c))  # noqa: E731
    template = dp.Template(dp.Record(a=box, b=box, c=box), loss)
    found = dp.solve(template, {"a": a, "b": b, "c": c}, dp.Privacy(3.0, 1e-6), seed=0)
    assert np.maximum(1 + square(found["M"], a - b) - square(found["M"], a - c), 0).mean() < 0.35


def test_hinges_under_constraints_are_clipped_however_many_records_there_are():
    rng, size, fields = np.random.default_rng(0), 5_000, {"x": dp.Box(-np.ones(4), np.ones(4)), "y": dp.Choice([-1, 1])}
    x = rng.uniform(-1, 1, (size, 4))
    y = np.where(x @ [3, 2, 1, 0] + 0.5 * rng.logistic(size=size) > 0, 1, -1)
    options = {"regularizer": small, "constraints": lambda w: [w >= 0], "constant": False}
    template, data = scored(lambda s, y: cp.pos(1 - y * s), **options, **fields), {"x": x, "y": y}
    found = [dp.solve(template, data, dp.Privacy(epsilon, 1e-6), seed=0) for epsilon in (1.0, 8.0)]
    every = (*found, dp.solve_without_privacy(template, data))
    *losses, exact = (np.maximum(1 - y * (x @ one["w"]), 0).mean() for one in every)
    assert max(losses) < exact + 0.02
