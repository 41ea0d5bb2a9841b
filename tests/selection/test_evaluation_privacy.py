"""What an evaluation tells of one person: the exact loss of every person of a small world, and who is protected."""

import itertools
import warnings
from functools import partial

import cvxpy as cp
import numpy as np
import pytest
from judged_models import DATA, HAZARDS, HUBER, LINE, LOGISTIC, MODEL, ONE, SCORED, X, Y, largest_loss, patient
from refused import refused

import dpconvex as dp

SURVIVAL = {"predictor": HAZARDS.predict, "probabilities": HAZARDS.probabilities}
CURVES = dp.Release({"w": [9.0, 0.0], "b": [0.0, 0.0]}, not_private_because="a test", **SURVIVAL)
POISSON = dp.load("poisson_regression", features=2)
RATES = dp.Release({"w": [4.0, 0.0]}, not_private_because="a test", predictor=POISSON.predict)
JUDGED = {
    "labels": (LOGISTIC, MODEL, [([-1.0, 0.0], -1), ([1.0, 0.0], 1), ([-1.0, 0.0], 1)]),
    "mistakes": (LOGISTIC, SCORED, [([-1.0, 0.0], -1), ([1.0, 0.0], 1), ([-1.0, 0.0], 1)]),
    "deviance": (POISSON, RATES, [([1.0, 0.0], 0.0), ([0.0, 0.0], 1.0), ([-1.0, 0.0], 10.0)]),
    "survival": (HAZARDS, CURVES, [([1.0, 0.0], [1.0, 0.0]), ([-1.0, 0.0], [-1.0, -1.0]), ([0.0, 0.0], [-1.0, 0.0])]),
    "scores": (LOGISTIC, SCORED, [([-1.0, 0.0], 1), ([1.0, 0.0], -1), ([0.1, 0.0], 1)]),
    "groups": (LOGISTIC, SCORED, [([-1.0, 0.0], 1), ([1.0, 0.0], -1), ([0.1, 0.0], 1)]),
    "numbers": (HUBER, LINE, [([1.0, 0.0], -1.0), ([-1.0, 0.0], 1.0), ([0.0, 0.0], 0.0)]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("kind", "keep", "visits"),
    [(kind, keep, most) for kind in JUDGED for keep, most in (("one", 1), ("weights", 3))]
    + [(kind, keep, most) for kind in ("scores", "numbers") for keep, most in ((None, 3), ("first", 5), ("random", 5))],
)
def test_the_exact_loss_of_a_person_is_what_is_claimed(kind, keep, visits, adjacency, monkeypatch):
    """All sums that noise is added to, in its scale, for every person of a small world beside another one.

    Their exact laws differ by epsilon at most, which is attained but for kinds of records that no pair in this world has.
    Numbers are counted twice, the second time around a centre that the first noisy counts tell: all outcomes of these are
    as good as one.
    """
    template, model, records = JUDGED[kind]
    scales, sums = [], []

    def watched(value, noise, rng):
        scales.append(noise.scale)
        sums.append(value / noise.scale)
        return value

    monkeypatch.setattr("dpconvex.selection.evaluate.perturb", watched)
    monkeypatch.setattr("dpconvex.mechanisms.cell_counts.Cells.middle", lambda cells, sums: 0.5)
    queries = 2 if kind == "numbers" else 1
    one = keep == "one"
    privacy = dp.Privacy(1.0, adjacency=adjacency) if one else patient(adjacency, 3, keep)
    several = (itertools.combinations_with_replacement(range(3), n) for n in range(1, 1 + (1 if one else visits)))
    persons = [list(mine) for some in several for mine in some]
    for mine in [[], *persons] if adjacency == "add-remove" else persons:
        rows = [records[0], *(records[k] for k in mine)]
        data = {"x": np.array([x for x, _ in rows]), "y": np.array([y for _, y in rows])}
        whose = {} if one else {"unit": ["a"] + ["c"] * len(mine)}
        whose |= {"measures": ("error",)} if kind == "mistakes" else {"measures": (kind,)} if kind == "deviance" else {}
        if kind == "groups":
            data["sex"] = ["f", *("f" if k else "m" for k in mine)]
            whose |= {"group": "sex", "groups": ["f", "m"]}
        dp.evaluate(template, model, data, privacy, **whose)
    assert len(set(scales)) == queries
    found = [np.concatenate(sums[start : start + queries]) for start in range(0, len(sums), queries)]
    added = max(np.abs(found[0] - other).sum() for other in found[1:])
    loss = added if adjacency == "add-remove" else largest_loss(found, 1.0)
    assert loss <= 1.0
    assert loss >= 0.999 or kind == "numbers"
    assert loss >= 0.6


def test_whoever_is_protected_by_the_release_is_protected_by_its_evaluation():
    data, whose = DATA, np.arange(200) // 2
    release = dp.solve(LOGISTIC, data, patient(), unit=whose, seed=0)
    budget = dp.Budget(dp.Privacy(9.0))
    ask = partial(dp.evaluate, LOGISTIC, release, data, budget=budget)
    visit = dp.Privacy(1.0, unit="visit", most=2)  # of one patient there may be many
    for other, identified in ((ONE, None), (visit, np.arange(200))):
        refused(dp.TemplateError, "ask for unit='patient'", ask, other, unit=identified)
    refused(dp.TemplateError, "identifier", ask, patient())
    refused(dp.DomainError, "more than the declared", ask, patient(most=1), unit=whose)
    assert not budget.entries
    budget = dp.Budget(patient(epsilon=3.0))
    one = dp.evaluate(LOGISTIC, release, data, patient(), unit=whose, budget=budget)
    halves = dp.Partitions([{n: c[:99] for n, c in data.items()}, {n: c[99:] for n, c in data.items()}])
    two = dp.evaluate(LOGISTIC, release, halves, patient(keep="first", most=1), unit=whose, budget=dp.Budget(patient()))
    assert (one.records, two.records) == (200, 100)
    assert [entry.privacy for entry in budget.entries] == [patient()]
    assert one.spent == patient()


@pytest.mark.parametrize("keep", [None, "first", "random", "weights"])
def test_people_count_as_they_should(keep):
    whose = np.repeat(np.arange(100), 2)
    for adjacency in ("replace-one", "add-remove"):
        found = dp.evaluate(LOGISTIC, SCORED, DATA, patient(adjacency, 2, keep, 100.0), unit=whose)
        assert found.records == pytest.approx(100 if keep == "weights" else 200, abs=2)
        assert found.error == pytest.approx(np.mean(SCORED.predict(X) != Y), abs=0.02)
        assert found.clusters == (1 if keep == "weights" else 2)


@pytest.mark.parametrize("levels", [[0, 1, "other"], [0, 1, 0.5], [(1, 2), (1, 3), (3,)]], ids=str)
def test_a_level_of_one_record_is_read_like_those_of_others(levels):
    w = cp.Variable(2, name="w")

    def predict(parameters, x, g):
        return np.array([{levels[0]: -1, levels[1]: 1}.get(level, -1) for level in g.tolist()])

    record = dp.Record(x=dp.Ball(2), g=dp.Choice(levels), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, g, y: cp.logistic(-y * (x @ w)), cp.sum_squares(w), predict=predict)
    model = dp.Release({"w": np.zeros(2)}, not_private_because="a test", predictor=predict)
    own = np.fromiter(levels[:2] * 100, dtype=object, count=200)
    other = own.copy()
    other[0] = levels[2]
    data = {"x": np.zeros((200, 2)), "y": [-1, 1] * 100}
    asked = {"privacy": dp.Privacy(50.0), "measures": "error"}
    mistakes = [dp.evaluate(template, model, data | {"g": g}, **asked).sums[0] for g in (own, other)]
    assert mistakes == pytest.approx([0, 0], abs=5)
    assert model.predict(data["x"], g=list(other) if "other" in levels else other).tolist() == data["y"]


def test_predictions_use_the_fields_that_they_name():
    w, a = cp.Variable(2, name="w"), cp.Variable(3, name="a")
    domains = {"x": dp.Ball(2), "g": dp.Choice(["a", "b", "c"]), "off": dp.Box(-1, 1), "y": dp.Box(-4, 4)}
    effects = np.array([0.0, 2.0, -2.0])

    def predict(p, x, g, *, off, scale=1.0):
        place = "abc".index(g[0]) if len(g) == 1 else np.searchsorted(["a", "b", "c"], g)
        return scale * (x @ p["w"] + p["a"][place] + off)

    def template(**functions):
        def loss(x, g, off, y):
            return cp.square(x @ w + a["abc".index(g)] + off - y)

        return dp.Template(dp.Record(**domains), loss, cp.sum_squares(w), **functions)

    rng = np.random.default_rng(0)
    g, off, x = rng.choice(list("abc"), 2000), rng.uniform(-1, 1, 2000), np.zeros((2000, 2))
    y = effects[np.searchsorted(["a", "b", "c"], g)] + off
    model = dp.Release({"w": [0.0, 0.0], "a": effects}, not_private_because="a test", predictor=predict)
    np.testing.assert_allclose(model.predict(x, g=g, off=off), y)
    data, budget = {"x": x, "g": g, "off": off, "y": y}, dp.Budget(dp.Privacy(50.0))
    learner = template(predict=predict)
    assert dp.evaluate(learner, model, data, dp.Privacy(50.0), seed=1).error < 0.01
    unfit = {"'off'; add": {"data": {"x": x, "g": g, "y": y}}, "to be predicted": {"label": "off"}}
    for said, given in unfit.items():
        with pytest.raises(dp.TemplateError, match=said):
            dp.evaluate(learner, model, **{"data": data, "privacy": ONE, "budget": budget} | given)
    for fields in ({}, {"g": g}, {"g": g, "off": off, "y": y}):
        refused(dp.TemplateError, r"pass x, g=\.\.\., off=\.\.\., and no other", model.predict, x, **fields)
    refused(dp.DomainError, "'off': 1", model.predict, x, g=g, off=0.5)
    refused(dp.TemplateError, "predict needs 'z'", template, predict=lambda p, x, z: z)
    bare = dp.Release(dict(model), not_private_because="a test")
    refused(dp.TemplateError, "Pass `predict` or `decision`", dp.evaluate, template(), bare, data, ONE, budget=budget)
    for said, given in {
        "by group=": {"groups": ["a"]},
        "group must be": {"group": ["g", "off"], "groups": ["a"]},
    }.items():
        refused(dp.TemplateError, said, dp.evaluate, learner, model, data, ONE, budget=budget, **given)
    refused(dp.TemplateError, "predicts from x alone", model.to_onnx, "model.onnx")
    assert budget.entries == ()


def test_a_model_from_elsewhere_predicts_as_the_template_says():
    model = dp.Release({"w": [9.0, 0.0]}, not_private_because="a test")
    assert dp.evaluate(LOGISTIC, model, DATA, ONE, seed=1).cells.kind == "probabilities"
    functions = {"decision": LOGISTIC.decision, "labels": np.array([-1, 1])}
    own = dp.Release(dict(model), not_private_because="a test", predictor=LOGISTIC.predict, **functions)
    assert dp.evaluate(LOGISTIC, own, DATA, ONE, seed=1).cells.kind == "scores"
    alone = dp.evaluate(LOGISTIC, own, {"x": X[:1], "y": Y[:1]}, ONE, seed=1)
    assert np.isnan(alone.roc().lower).any()  # No replicate has the other label, and NumPy warned of it
    short = dp.Release({"w": [9.0]}, not_private_because="a test")
    opposite = dp.Release(dict(model), not_private_because="a test", decision=lambda p, x: -LOGISTIC.decision(p, x))
    refused(dp.TemplateError, r"`predictor` to dp\.Release", dp.evaluate, LOGISTIC, opposite, DATA, ONE, seed=1)
    refused(dp.TemplateError, "released were", dp.evaluate, LOGISTIC, short, DATA, ONE)


def of_targets(upper):
    W, record = cp.Variable((2, 2), name="W"), dp.Record(x=dp.Ball(2), y=dp.Box([-1.0, -1.0], [1.0, upper]))
    return dp.Template(record, lambda x, y: cp.sum_squares(x @ W - y), predict=lambda p, x: x @ p["W"])


ONES = {"W": np.eye(2)}
SEVERAL = {
    "targets": (
        *(of_targets(50.0), ONES, lambda x: np.column_stack([x[:, 0], np.full(len(x), 10.0)])),
        *(lambda x: [0.0, np.mean((x[:, 1] - 10) ** 2)], "has 2 numbers.* by target=0 to target=1"),
        (None, 2, -1, True, 0.0),
    ),
    "targets like survival": (of_targets(1.0), ONES, lambda x: x, lambda x: [0, 0], "by target=0 to target=1", [None]),
    "a column of predictions": (  # it said "by target=0 to target=0"
        dp.Template(HUBER.record, lambda x, y: cp.square(y + cp.Variable(name="w")), predict=lambda p, x: x[:, :1]),
        *({"w": 0.0}, lambda x: x[:, 0], lambda x: [0.0], r"by target=0\.$", (None,)),
    ),
    # A fan of quantiles had no way to be evaluated: with a target or without one, it was told to do the other.
    "predictions of a number": (
        dp.load("quantile_fan", features=2),
        *({"w": [[1.0, 1.0, 1.0], [0, 0, 0]], "b": [-0.5, 0, 0.5]}, lambda x: x[:, 0]),
        *(lambda x: [0.25, 0.0], "by target=0 to target=2|index of a column of predictions, from 0, not -1"),
        (None, 3, -1),
    ),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_one_of_several_numbers_is_evaluated(kind):
    learner, parameters, label, errors, said, wrong = SEVERAL[kind]
    model = dp.Release(parameters, not_private_because="a test", predictor=learner.predict)
    x = dp.Ball(2).project(np.random.default_rng(0).normal(size=(2000, 2))) * 0.4
    data, budget, one = {"x": x, "y": label(x)}, dp.Budget(dp.Privacy(50.0)), ONE
    for k, error in enumerate(errors(x)):
        found = dp.evaluate(learner, model, data, dp.Privacy(50.0), target=k, seed=1)
        assert found.label == f"y[{k}]"
        assert found.error == pytest.approx(error, rel=0.05, abs=0.02)
    for target in wrong:
        refused(dp.TemplateError, said, dp.evaluate, learner, model, data, one, target=target, budget=budget)
    for other, given in ((LOGISTIC, Y), (HUBER, X[:, 0])):
        own = {"x": X, "y": given}
        refused(dp.TemplateError, "Leave target out", dp.evaluate, other, MODEL, own, one, target=0, budget=budget)
    assert budget.entries == ()


def test_a_split_keeps_people_together():
    whose = np.repeat([f"p{k}" for k in range(40)], 3)
    fitted, judged_ = dp.split(whose, 0.25, seed=1)
    assert sorted([*fitted, *judged_]) == list(range(120))
    assert not set(whose[fitted]) & set(whose[judged_])
    assert len(judged_) == 30
    np.testing.assert_array_equal(dp.split(whose, seed=1)[1], judged_)
    assert len(dp.split(100)[1]) == 25
    assert len(dp.split(4, 0.99)[0]) == len(dp.split(whose, 0.99)[0]) // 3 == 1  # no part is empty
    for wrong in ((whose, 0.0), (whose, "a"), (np.zeros((2, 2)), 0.5), (["a"], 0.5), (1, 0.5)):
        refused(dp.TemplateError, None, dp.split, *wrong)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("make", ["p{}".format, int])
def test_one_person_moves_nobody_else_to_the_other_part(make, seed):
    """Else the fit's records differ in many people, and its guarantee is for one."""
    whose = [make(k) for k in range(300)]
    for other in (make(10**6), make(10**7)):
        parts = [
            {frozenset(np.array(people)[rows].tolist()) for rows in dp.split(people, 0.25, seed, adjacency)[:1]}.pop()
            for people, adjacency in (
                (whose, "add-remove"),
                ([other, *whose], "add-remove"),
                (whose, "replace-one"),
                ([*whose[:100], other, *whose[101:]], "replace-one"),
                ([other, *whose[1:]], "replace-one"),
            )
        ]
        assert parts[0] ^ parts[1] <= {other}
        for moved in parts[3:]:
            assert len(moved) == len(parts[2])
            assert len(moved - parts[2]) <= 1
    for count in (100, 1000):
        one, more = (set(dp.split(n, 0.3, seed, "add-remove")[0].tolist()) for n in (count, count + 1))
        assert one ^ more <= {count}


def test_a_split_reads_each_identifier_by_itself():
    numbers = [float(k) for k in range(300)]
    one, more = (set(dp.split(who, 0.25, 3, "add-remove")[0].tolist()) for who in (numbers, [*numbers, 2**70]))
    assert one ^ more <= {300}
    both = [entry for k in range(300) for entry in (k, float(k))]
    for adjacency in ("replace-one", "add-remove"):
        for rows in dp.split(both, 0.25, 3, adjacency):
            assert set((rows[::2] + 1).tolist()) == set(rows[1::2].tolist())
    for mixed in ([*numbers, "zed"], ["7", "07", "8"], [b"a", "a", "b"], [1.0, float("nan"), 2.0]):
        refused(dp.errors.DomainError, "identifier", dp.split, mixed)


@pytest.mark.parametrize(("measures", "enough"), [(None, 100), (("error",), 10)])
def test_noise_that_outweighs_all_records_is_announced(measures, enough):
    for records, warned in ((2, 1), (enough, 0)):
        given = {"x": X[:1].repeat(records, 0), "y": Y[:1].repeat(records)}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            dp.evaluate(LOGISTIC, MODEL, given, ONE, measures=measures, budget=dp.Budget(ONE))
        assert sum("outweighs" in str(warning.message) for warning in said) == warned
