"""Intervals: they cover, are paid for before data are looked at, and are refused where they would not hold."""

import json
import math
import warnings
from contextlib import suppress
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from adaptive_learners import scored
from learners_of_tests import lost_at_answers
from refused import refused, warnings_of
from scipy.special import expit, softmax

import dpconvex as dp
from dpconvex.checker import Rejected
from dpconvex.checker.files import replay_file

RNG = np.random.default_rng(0)
W = np.array([2.0, -3.0, 1.0])
PRIVACY = dp.Privacy(3.0, 1e-6)


def drawn(kind, size, rng):
    x = dp.Ball(3).project(rng.normal(size=(size, 3)) / 2.5)
    if kind == "logistic_regression":
        return {"x": x, "y": np.where(rng.random(size) < expit(x @ W), 1, -1)}, W
    if kind == "softmax_regression":
        slopes = np.outer(W, [1.0, 0.0, -1.0])
        sums = softmax(x @ slopes, axis=1).cumsum(axis=1)
        return {"x": x, "y": (rng.random(size)[:, None] > sums).sum(axis=1)}, slopes.ravel("F")
    if kind == "poisson_regression":
        return {"x": x, "y": np.minimum(rng.poisson(np.exp(x @ W / 3)), 20)}, W / 3
    return {"x": x, "y": np.clip(x @ W / 6 + 0.1 * rng.normal(size=size), -1, 1)}, W / 6


def loaded(kind, **options):
    more = {"softmax_regression": {"classes": 3}, "poisson_regression": {"target": 20.0}}
    return dp.load(kind, features=3, **more.get(kind, {}), **options)


SELDOM = [pytest.param(f"{kind}_regression", marks=pytest.mark.slow) for kind in ("softmax", "huber", "quantile")]


@pytest.mark.parametrize("kind", ["logistic_regression", "poisson_regression", *SELDOM])
def test_intervals_cover_what_is_true(kind):
    rng, covered, learner = np.random.default_rng(1), [], loaded(kind)
    for seed in range(8):
        data, true = drawn(kind, 8_000, rng)
        found = dp.intervals(learner, None, data, PRIVACY, seed=seed)
        covered.append((found.lower <= true) & (true <= found.upper))
        assert (found.noise_errors < found.standard_errors).all()
    assert 0.7 < np.mean(covered) <= 1


def test_intervals_are_paid_for_before_records_are_looked_at():
    data, _ = drawn("logistic_regression", 6_000, RNG)
    learner, budget = loaded("logistic_regression"), dp.Budget(dp.Privacy(8.0, 1e-5))
    fit = dp.solve(learner, data, PRIVACY, budget=budget)
    found = dp.intervals(learner, fit, data, PRIVACY, budget=budget)
    assert ([entry.label for entry in budget.entries], found.spent) == (["solve", "intervals"], PRIVACY)
    assert "spent" in repr(found)
    broken = {**data, "x": np.where(np.arange(3) == 1, np.nan, data["x"])}
    refused(dp.DomainError, "NaN", dp.intervals, learner, fit, broken, dp.Privacy(0.5, 1e-7), budget=budget)
    assert len(budget.entries) == 3
    with pytest.raises(dp.DPConvexError):
        dp.intervals(learner, fit, {"x": data["x"]}, dp.Privacy(0.1, 1e-7), budget=budget)
    assert len(budget.entries) == 3


def test_what_public_facts_refuse_costs_nothing():
    data, _ = drawn("logistic_regression", 25, RNG)
    learner, budget = loaded("logistic_regression"), dp.Budget(PRIVACY)
    w = cp.Variable(3, name="w")
    record, other = (dp.Record(x=dp.Ball(3), y=y) for y in (dp.Choice([-1, 1]), dp.Box(-1, 1)))
    kinked = dp.Template(record, lambda x, y: cp.pos(1 - y * (x @ w)), cp.sum_squares(w))
    steep = dp.Template(other, lambda x, y: cp.power(cp.abs(x @ w - y), 1.5), cp.sum_squares(w))
    unseen = dp.Template(record, lambda x, y: cp.logistic(-y * (x[:2] @ w[:2])), 1e-5 * cp.sum_squares(w))
    fit = dp.Release({"w": np.zeros(3)}, spent=PRIVACY)
    for template, release, more, said in (
        (learner, None, {}, "need at least [0-9,]+ records"),
        (kinked, None, {}, "second derivative"),
        (steep, None, {}, r"second derivative; smooth it\. power\(abs\(x @ w - y\), 1\.5\) has no bound"),
        (unseen, None, {}, "no record enters"),
        (learner, replace(fit, parameters={"w": np.zeros(2)}), {}, "other parameters"),
        (learner, None, {"privacy": dp.Privacy(1.0)}, "delta"),
        (learner, None, {"confidence": 1.5}, "confidence"),
        (learner, "fit", {}, "Release"),
    ):
        with pytest.raises(dp.DPConvexError, match=said):
            dp.intervals(template, release, data, **({"privacy": PRIVACY, "budget": budget} | more))
    assert not budget.entries
    some, quiet = drawn("logistic_regression", 600, RNG)[0], drawn("logistic_regression", 16_000, RNG)[0]
    with pytest.warns(dp.PrivacyWarning, match="with rare levels, about [0-9,]+ are needed"), suppress(dp.NotConverged):
        dp.intervals(learner, None, some, PRIVACY, seed=1)
    with warnings.catch_warnings(action="error"):
        dp.intervals(learner, None, quiet, PRIVACY, seed=1)


@pytest.mark.filterwarnings("ignore:intervals. if a constraint is active")
def test_active_constraints_are_refused_and_what_does_not_vary_is_not_determined(tmp_path):
    rng, w = np.random.default_rng(0), cp.Variable(3, name="w")
    data, _ = drawn("logistic_regression", 8_000, rng)
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    for radius, active in ((1.0, True), (20.0, False)):
        within = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), constraints=[cp.norm(w) <= radius])
        if active:
            refused(dp.NotConverged, "a constraint is active", dp.intervals, within, None, data, PRIVACY, seed=1)
        else:
            assert np.isfinite(dp.intervals(within, None, data, PRIVACY, seed=1).standard_errors).all()
    # The last weight is 1, on the boundary: estimates lie on both sides of it, and their law knows no constraints
    positive = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), 1e-9 * cp.sum_squares(w), [w[2] <= 1])
    found = dp.intervals(positive, None, data, PRIVACY, seed=1)
    assert ((found.lower < W) & (found.upper > W)).all()
    flat = {**data, "x": data["x"] * [1, 1, 0]}
    found = dp.intervals(loaded("logistic_regression"), None, flat, dp.Privacy(8.0, 1e-6), seed=1)
    assert found.undetermined == ("w[2]",)
    assert ((found.lower < W) & (found.upper > W)).tolist() == [True, True, False]
    assert "hidden by noise, not determined: w[2]" in repr(found)
    (tmp_path / "found.json").write_text(json.dumps(found.to_dict(), allow_nan=False))
    assert dp.Coefficients.load(tmp_path / "found.json").undetermined == ("w[2]",)
    (tmp_path / "found.json").write_text(json.dumps(found.to_dict() | {"not_private_because": ""}))
    refused(Rejected, "coefficients without a proof", replay_file, tmp_path / "found.json")
    said = found.to_dict() | {"lower": [10**400, 0.0, 0.0]}
    (tmp_path / "found.json").write_text(json.dumps(said), encoding="utf-8")
    refused(dp.DPConvexError, r"found\.json", dp.Coefficients.load, tmp_path / "found.json")


def test_a_median_between_two_clusters_is_covered_or_has_no_intervals():
    learner, missed = dp.load("quantile_regression", features=1), 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        data = {"x": np.ones((10_000, 1)), "y": rng.choice([-0.3, 0.3], 10_000) + 0.1 * rng.normal(size=10_000)}
        data["y"] = data["y"].clip(-1, 1)
        with suppress(dp.NotConverged):
            found = dp.intervals(learner, None, data, dp.Privacy(0.5, 1e-6), seed=seed)
            missed += not found.lower[0] < 0 < found.upper[0]
    assert missed <= 1


def test_ratios_are_for_one_unit_of_each_column():
    rng = np.random.default_rng(3)
    table = {"age": rng.uniform(20, 80, 20_000), "ward": rng.choice(["a", "b"], 20_000)}
    odds = 0.05 * (table["age"] - 50) + 0.5 * (table["ward"] == "b")
    table["sick"] = np.where(rng.random(20_000) < expit(odds), "yes", "no")
    schema = dp.Schema({"age": (20, 80), "ward": {"levels": ["a", "b"]}}, "sick", ["no", "yes"])
    x, y = schema.encode(table)
    learner = dp.load("logistic_regression", features=3, labels=("no", "yes"))
    found = dp.intervals(learner, None, {"x": x, "y": y}, dp.Privacy(3.0, 1e-6), seed=1)
    ratios = found.ratios(schema)
    assert (ratios.names, found.ratio) == (("age", "ward = a", "ward = b"), "odds ratio")
    assert ratios.estimates[[0, 2]] == pytest.approx(np.exp([0.05, 0.5]), rel=0.2)
    assert ratios.standard_errors[2] < 0.2
    decades = found.ratios(schema, per={"age": 10})
    assert decades.names[0] == "age (per 10)"
    assert decades.upper[0] == pytest.approx(ratios.upper[0] ** 10)
    refused(dp.TemplateError, "column", found.ratios, schema, per={"wage": 10})
    found = dp.intervals(loaded("logistic_regression"), None, drawn("logistic_regression", 6000, rng)[0], PRIVACY)
    refused(dp.TemplateError, "ratios", found.ratios, dp.Schema({"age": (20, 80)}, "sick", ["no", "yes"]))


def test_effects_on_a_target_are_in_its_units():
    rng = np.random.default_rng(3)
    table = {"age": rng.uniform(20, 80, 20_000), "ward": rng.choice(["a", "b"], 20_000)}
    table["cost"] = 100 + 5 * table["age"] + 60 * (table["ward"] == "b")
    schema = dp.Schema({"age": (20, 80), "ward": {"levels": ["a", "b"]}}, "cost", label_bounds=(0, 1000))
    x, y = schema.encode(table)
    found = dp.intervals(dp.load("ridge_regression", features=3), None, {"x": x, "y": y}, dp.Privacy(3.0, 1e-6), seed=1)
    effects = found.in_units(schema, per={"age": 10})
    assert effects.names == ("age (per 10)", "ward = a", "ward = b")
    assert effects.estimates[0] == pytest.approx(50, abs=4 * effects.standard_errors[0] + 1)
    assert effects.lower[0] < effects.estimates[0] < effects.upper[0]
    assert effects.standard_errors[0] == pytest.approx(500 * schema.steps[0] * 10 * found.standard_errors[0])
    with pytest.raises(dp.NotPrivate, match="needs a delta"):
        dp.intervals(dp.load("ridge_regression", features=3), None, {"x": x, "y": y}, dp.Privacy(3.0))
    refused(dp.TemplateError, "label_bounds", found.in_units, dp.Schema({"age": (20, 80)}, "sick", ["no", "yes"]))


def test_combinations_have_intervals_from_the_covariance(tmp_path):
    rng = np.random.default_rng(2)
    data, true = drawn("logistic_regression", 20_000, rng)
    found = dp.intervals(loaded("logistic_regression"), None, data, dp.Privacy(3.0, 1e-6), seed=1)
    found.save(tmp_path / "found.json")
    found = dp.Coefficients.load(tmp_path / "found.json")
    for forged in ({"confidence": 9.0}, {"lower": found.upper}, {"standard_errors": found.noise_errors}):
        refused(dp.TemplateError, "Coefficients: ", replace, found, **forged)
    assert found.combination({"w[1]": 2.0}).standard_error == pytest.approx(2 * found.standard_errors[1])
    apart = found.combination({"w[0]": 1, "w[1]": -1})
    assert apart.standard_error == pytest.approx(math.sqrt(np.array([1, -1, 0]) @ found.covariance @ [1, -1, 0]))
    assert abs(apart.estimate - (true[0] - true[1])) < 4 * apart.standard_error
    # Of normal draws, the quotient's spread is about that of the delta method.
    quotient = found.combination({"w[1]": 60}, over={"w[0]": 1})
    draws = rng.multivariate_normal(found.estimates, found.covariance, 20_000)
    assert quotient.standard_error == pytest.approx(np.std(60 * draws[:, 1] / draws[:, 0]), rel=0.2)
    assert quotient.lower < quotient.estimate < quotient.upper
    ratios = found.ratios(dp.Schema(dict.fromkeys("abc", (0, 2)), "sick", ["no", "yes"]))
    np.testing.assert_allclose(np.sqrt(np.diag(ratios.covariance)), ratios.standard_errors)
    refused(dp.TemplateError, "w", found.combination, {"age": 1})
    refused(dp.TemplateError, "divisor", found.combination, {"w[0]": 1}, over={"w[1]": 0})


# Whole releases of adaptive steps: what neighbours lose at the answers of real fits
def whole_releases(monkeypatch, privacy, seed, n, kind):
    """Return what two neighbouring data sets on a line lose at the answers of the first, and the part for shifts."""
    rng, most, replaced = np.random.default_rng(seed), privacy.most, privacy.adjacency == "replace-one"
    x = rng.uniform(-1, 1, (n, 1))
    y, own = np.where(x[:, 0] > 0, 1, -1), rng.choice([-1.0, 1.0])
    learner = dp.load("logistic_regression", features=1, regularization=0.1)
    if kind == "numbers":  # Targets at one end of their bounds, so that the constant is sought
        learner = scored(lambda s, y: cp.square(s - y), x=dp.Ball(1), y=dp.Box(-1, 1))
        y = 0.01 * x[:, 0] - 0.97
    other = (
        (np.r_[x, np.full((most, 1), rng.choice([own, 0.0, -own]))], np.r_[y, np.full(most, 1)]) if replaced else (x, y)
    )

    def fit(data):
        rows, labels = data
        whose = {} if privacy.unit is None else {"unit": np.minimum(np.arange(len(rows)), n)}
        mechanism, size = dp.AdaptiveSteps(rounds=4), None if replaced else n
        return dp.solve(learner, {"x": rows, "y": labels}, privacy, mechanism, size=size, seed=seed, **whose)

    return lost_at_answers(monkeypatch, fit, (np.r_[x, np.full((most, 1), own)], np.r_[y, np.full(most, -1)]), other)


MANY = {"unit": "patient", "most": 3}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ["add-remove", pytest.param("replace-one", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n", "kind", "people"),
    [
        pytest.param(12, "classes", {}, id="records of classes"),
        pytest.param(1000, "numbers", MANY, id="numbers of people"),
        pytest.param(12, "classes", MANY, id="classes of people", marks=pytest.mark.slow),
        pytest.param(1000, "numbers", {}, id="records of numbers", marks=pytest.mark.slow),
    ],
)
def test_whole_releases_of_adaptive_steps_lose_no_more_than_is_claimed(n, kind, people, adjacency, monkeypatch):
    """By theorem 8.9's proof the loss is that of squares of shifts, at the answers of real releases; and by the masses' ratio."""
    privacy = dp.Privacy(1.0, 1e-2, adjacency, **people)
    lost, shares = np.array([whole_releases(monkeypatch, privacy, seed, n, kind) for seed in range(20)]).T
    assert shares.max() > 0.3
    assert np.mean(np.maximum(1 - np.exp(privacy.epsilon - lost), 0.0)) <= 0.1


def test_levels_beside_a_constant_have_the_intervals_of_what_is_determined():
    """The steps' own rows forgot that a record has one level, so that all effects and the constant were hidden by noise."""
    w, a, b = cp.Variable(1, name="w"), cp.Variable(2, name="a"), cp.Variable(name="b")
    record = dp.Record(x=dp.Box([-1.0], [1.0]), g=dp.Choice([0, 1]), y=dp.Box(-1, 1))
    rng = np.random.default_rng(0)
    x, g = rng.uniform(-1, 1, (20_000, 1)), rng.integers(0, 2, 20_000)
    y = (0.3 * x[:, 0] + 0.2 * g + rng.normal(0, 0.1, 20_000)).clip(-1, 1)

    def expectile(x, g, y):
        u = x @ w + a[g] - y
        return 0.7 * cp.square(cp.pos(-u)) + 0.3 * cp.square(cp.pos(u))

    squares = dp.Template(record, lambda x, g, y: cp.square(x @ w + a[g] + b - y))
    for template in (squares, dp.Template(record, expectile)):
        found = dp.intervals(template, None, {"x": x, "g": g, "y": y}, PRIVACY, seed=1)
        assert found.undetermined == ()
        estimates = dict(zip(found.names, found.estimates, strict=True))
        assert estimates["a[1]"] - estimates["a[0]"] == pytest.approx(0.2, abs=0.03)
    a = cp.Variable(20, name="a")  # Without a constant, directions that lack curvature stood for effects
    groups = dp.Template(dp.Record(g=dp.Choice(range(20)), y=dp.Box(0, 1)), lambda g, y: cp.square(a[g] - y))
    data = {"g": np.arange(12_000) % 20, "y": np.arange(12_000) % 3 == 0}
    found = dp.intervals(groups, None, data, dp.Privacy(1.0, 1e-6), seed=1)
    assert found.undetermined == ()


def test_equations_may_choose_among_equal_answers():
    """They were refused after payment: the estimate is the shortest of equal ones, and lay far from them."""
    rng, slopes = np.random.default_rng(0), np.outer(W, [1.0, 0.0, -1.0])
    effects, w = np.array([1.0, 0.5, -1.5]), cp.Variable((3, 3), name="w")
    a, b = cp.Variable(3, name="a"), cp.Variable(name="b")
    softmax_data, _ = drawn("softmax_regression", 20_000, rng)
    g = rng.integers(0, 3, 20_000)
    grouped = {"g": g, "y": np.where(rng.random(20_000) < expit(effects[g] + 0.3), 1, -1)}
    three, loss = dp.Choice([0, 1, 2]), lambda x, y: cp.log_sum_exp(x @ w) - x @ w[:, y]
    choice = dp.Template(dp.Record(x=dp.Ball(3), y=three), loss, 1e-9 * cp.sum_squares(w), [w[:, 0] == 0])
    record, both = dp.Record(g=three, y=dp.Choice([-1, 1])), 1e-9 * (cp.sum_squares(a) + cp.square(b))
    levels = dp.Template(record, lambda g, y: cp.logistic(-y * (a[g] + b)), both, [cp.sum(a) == 0])
    beside_first = np.ravel(slopes - slopes[:, :1], order="F")
    for template, data, truth in ((choice, softmax_data, beside_first), (levels, grouped, np.append(effects, 0.3))):
        found = dp.intervals(template, None, data, dp.Privacy(8.0, 1e-6), seed=1)
        assert (abs(found.estimates - truth) <= 4 * found.standard_errors).all()  # 0 of what equations fix
        assert found.undetermined == ()
    assert found.estimates[:3].sum() == pytest.approx(0.0, abs=1e-9)
    assert ((found.upper - found.lower) < 0.4).all()


@pytest.mark.filterwarnings("ignore:intervals. Where a constraint moves")
def test_distances_from_constraints_are_measured_by_the_covariance():
    w, truth, spread = cp.Variable(2, name="w"), np.array([1.5, 1.0]), math.sqrt(1 - 0.97**2)
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    within = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), 1e-9 * cp.sum_squares(w), [w[0] <= 1.5])
    for seed in (0, 5, 7):
        rng = np.random.default_rng(seed)
        x = dp.Ball(2).project(rng.normal(size=(20_000, 2)) / 2.5 @ [[1, 0.97], [0, spread]])
        data = {"x": x, "y": np.where(rng.random(20_000) < expit(x @ truth), 1, -1)}
        found = dp.intervals(within, None, data, dp.Privacy(8.0, 1e-6), seed=seed)
        assert (abs(found.estimates - truth) < 4 * found.standard_errors).all()


def test_doubts_are_said_before_payment():
    data, _ = drawn("logistic_regression", 16_000, np.random.default_rng(0))
    size, w = np.array([50.0, 1.0, 1.0]), cp.Variable(3, name="w")
    record, wide = (dp.Record(x=x, y=dp.Choice([-1, 1])) for x in (dp.Ball(3), dp.Box(-size, size)))
    loss = lambda x, y: cp.logistic(-y * (x @ w))  # noqa: E731
    within = dp.Template(record, loss, constraints=[w <= 1])
    for largest, at_end in ((1.0, True), (0.5, False)):
        fit = dp.Release({"w": [largest, 0.0, 0.0]}, spent=PRIVACY)
        said = warnings_of(dp.intervals, within, fit, data, PRIVACY, seed=1, may_raise=[dp.NotConverged])
        assert any("a constraint is active at the release" in one for one in said) == at_end
    with pytest.warns(dp.PrivacyWarning, match="pass a release that shows"), suppress(dp.NotConverged):
        dp.intervals(within, None, data, PRIVACY, seed=1)
    fewer = {name: column[:600] for name, column in data.items()}
    for some, warned in ((data, False), (fewer, True)):
        template = dp.Template(record, loss)
        said = warnings_of(dp.intervals, template, None, some, PRIVACY, seed=1, may_raise=[dp.NotConverged])
        assert any("may be too few" in one for one in said) == warned
    few, natural = {"x": size * data["x"][:600], "y": data["y"][:600]}, dp.Template(wide, loss)
    with pytest.warns(dp.PrivacyWarning, match="scale 'x' to -1 to 1"), suppress(dp.NotConverged):
        dp.intervals(natural, None, few, PRIVACY, seed=1)


def test_intervals_cover_the_best_line_where_a_skewed_effect_levels_off():
    ridge, covered = lambda w: 1e-9 * cp.sum_squares(w), []
    line = scored(lambda s, y: cp.square(s - y), (), ridge, x=dp.Box([0.0], [50.0]), y=dp.Box(0, 200))

    def drawn_wages(size, rng):
        x = np.exp(0.9 * rng.normal(size=size)).clip(0, 50)
        return x, (50 + 30 * np.minimum(x / 1.5, 2) + 10 * rng.normal(size=size)).clip(0, 200)

    true = np.polyfit(*drawn_wages(1_000_000, np.random.default_rng(9)), 1)
    for seed in range(8):
        x, y = drawn_wages(20_000, np.random.default_rng(seed))
        found = dp.intervals(line, None, {"x": x[:, None], "y": y}, PRIVACY, seed=seed)
        covered.append((found.lower <= true) & (true <= found.upper))
    assert np.mean(covered) > 0.7


def test_coefficients_of_a_fit_name_what_has_intervals():
    learner, data = dp.load("ridge_regression", features=1), {"x": np.zeros((9, 1)), "y": np.zeros(9)}
    refused(dp.TemplateError, r"dp\.intervals", dp.coefficients, dp.solve(learner, data, dp.Privacy(1.0), seed=0))


def test_levels_of_few_records_hide_nothing_else():
    """Noise of a first look at the Hessian shortened directions at random: of most runs no or one coefficient was known."""
    learner, true, found = dp.load("poisson_regression", features=2, constant=1.0), [0.5, 0.3, 0.0], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = np.stack([rng.uniform(-0.7, 0.7, 10_000), 0.7 * (rng.random(10_000) < 0.03)], axis=1)
        data = {"x": x, "y": np.minimum(rng.poisson(np.exp(x @ true[:2])), 10)}
        found.append(dp.intervals(learner, None, data, dp.Privacy(2.0, 1e-6), seed=seed))
        assert np.isfinite(found[-1].estimates).all()
    assert np.mean([(one.lower < true) & (true < one.upper) for one in found]) > 0.7


def test_intervals_of_a_flag_of_few_records_cover():
    """A clip cut the gradients of its rarer label, and the step stayed at 2.5 to 3.9: no interval covered."""
    found, learner, true = [], dp.load("logistic_regression", features=3, constant=1.0), [2, -1, 2.0]
    for seed in range(3):
        rng = np.random.default_rng([seed, 5])
        x = dp.Ball(3).project(np.c_[rng.uniform(-0.3, 0.3, (30_000, 2)), rng.random(30_000) < 0.01])
        y = np.where(rng.random(30_000) < expit(x @ true), 1, -1)
        found.append(dp.intervals(learner, None, {"x": x, "y": y}, PRIVACY, seed=seed))
    assert np.mean([(one.lower < [*true, 0]) & ([*true, 0] < one.upper) for one in found]) > 0.7
    assert sum(one.lower[2] < 2 < one.upper[2] and one.standard_errors[2] < 1 for one in found) > 1


def test_targets_far_below_their_bound_do_not_hide_that_curvature_stays():
    rng = np.random.default_rng(0)
    x = dp.Ball(2).project(rng.normal(size=(10_000, 2)) / 3)
    data = {"x": x, "y": np.minimum(np.exp(x @ [1.5, -1.0]) * rng.gamma(2.0, 0.5, 10_000), 60.0)}
    learner = dp.load("gamma_regression", features=2, target=60.0)
    for seed in range(3):
        found = dp.intervals(learner, None, data, dp.Privacy(1.0, 1e-5), seed=seed)
        assert found.undetermined == ()
