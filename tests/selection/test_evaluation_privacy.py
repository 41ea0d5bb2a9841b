"""What an evaluation tells of one person: the exact loss of every person of a small world, and who is protected."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
from judged_models import HAZARDS, HUBER, LINE, LOGISTIC, MODEL, SCORED, X, Y, largest_loss, patient

import dpconvex as dp

CURVES = dp.Release({"w": [9.0, 0.0], "b": [0.0, 0.0]}, not_private_because="a test", predictor=HAZARDS.predict)


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
    looks = 2 if kind == "numbers" else 1
    one = keep == "one"
    privacy = dp.Privacy(1.0, adjacency=adjacency) if one else patient(adjacency, 3, keep)
    persons = [
        list(mine) for n in range(1, visits + 1) for mine in itertools.combinations_with_replacement(range(3), n)
    ]
    if one:
        persons = [[k] for k in range(3)]
    for mine in [[], *persons] if adjacency == "add-remove" else persons:
        rows = [records[0], *(records[k] for k in mine)]
        data = {"x": np.array([x for x, _ in rows]), "y": np.array([y for _, y in rows])}
        whose = {} if one else {"unit": ["a"] + ["c"] * len(mine)}
        whose |= {"measures": ("error",)} if kind == "mistakes" else {"measures": (kind,)} if kind == "deviance" else {}
        if kind == "groups":
            data["sex"] = ["f", *("f" if k else "m" for k in mine)]
            whose |= {"group": "sex", "groups": ["f", "m"]}
        dp.evaluate(template, model, data, privacy, **whose)
    assert len(set(scales)) == looks
    found = [np.concatenate(sums[start : start + looks]) for start in range(0, len(sums), looks)]
    added = max(np.abs(found[0] - other).sum() for other in found[1:])
    loss = added if adjacency == "add-remove" else largest_loss(found, 1.0)
    assert loss <= 1.0
    assert loss >= 0.999 or kind == "numbers"
    assert loss >= 0.6


def test_whoever_is_protected_by_the_release_is_protected_by_its_evaluation():
    data, whose = {"x": X, "y": Y}, np.arange(200) // 2
    release = dp.solve(LOGISTIC, data, patient(), unit=whose, seed=0)
    budget = dp.Budget(dp.Privacy(9.0))
    visit = dp.Privacy(1.0, unit="visit", most=2)  # of one patient there may be many
    for other, identified in ((dp.Privacy(1.0), None), (visit, np.arange(200))):
        with pytest.raises(dp.TemplateError, match="ask for unit='patient'"):
            dp.evaluate(LOGISTIC, release, data, other, unit=identified, budget=budget)
    with pytest.raises(dp.TemplateError, match="identifier"):
        dp.evaluate(LOGISTIC, release, data, patient(), budget=budget)
    with pytest.raises(dp.DomainError, match="more records than"):
        dp.evaluate(LOGISTIC, release, data, patient(most=1), unit=whose, budget=budget)
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
        found = dp.evaluate(LOGISTIC, SCORED, {"x": X, "y": Y}, patient(adjacency, 2, keep, 100.0), unit=whose)
        assert found.records == pytest.approx(100 if keep == "weights" else 200, abs=2)
        assert found.error == pytest.approx(np.mean(SCORED.predict(X) != Y), abs=0.02)
        assert found.clusters == (1 if keep == "weights" else 2)


@pytest.mark.parametrize(
    "levels", [[0, 1, "other"], [0, 1, 0.5], [(1, 2), (1, 3), (3,)]], ids=["texts", "parts", "tuples"]
)
def test_a_level_of_one_record_is_read_like_those_of_others(levels):
    """Levels were put into an array of those that occur: one text made texts of all numbers, and all predictions others."""
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
    mistakes = [
        dp.evaluate(template, model, data | {"g": g}, dp.Privacy(50.0), measures="error").sums[0] for g in (own, other)
    ]
    assert mistakes == pytest.approx([0, 0], abs=5)
    assert model.predict(data["x"], g=list(other) if "other" in levels else other).tolist() == data["y"]
