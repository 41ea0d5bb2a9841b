"""The error of a released model, counted privately: right, calibrated, paid for, and refused where it cannot be counted."""

import contextlib
import copy
import dataclasses
import itertools
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import kendalltau, norm
from sklearn.metrics import confusion_matrix, log_loss, mean_poisson_deviance, roc_auc_score

import dpconvex as dp
from dpconvex.mechanisms.cell_counts import RESIDUALS, STEPS, Cells
from dpconvex.selection.measures import cumulated, quantiles
from dpconvex.selection.record_counter import RecordCounter
from dpconvex.util.runtime import silence

LOGISTIC = dp.load("logistic_regression", features=2)
HUBER = dp.load("huber_regression", features=2)
FUNCTIONS = {
    "predictor": LOGISTIC.predict,
    "decision": LOGISTIC.decision,
    "probabilities": LOGISTIC.probabilities,
    "labels": (-1, 1),
}
MODEL = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=LOGISTIC.predict)
LINE = dp.Release({"w": [0.5, 0.0]}, not_private_because="a test", predictor=HUBER.predict)
X = np.column_stack([np.linspace(-1, 1, 200), np.zeros(200)])
Y = np.where(X[:, 0] > 0.5, 1, -1)  # a quarter of the records is misjudged


def test_a_strong_promise_counts_about_right():
    found = dp.evaluate(LOGISTIC, MODEL, {"x": X, "y": Y}, dp.Privacy(50.0), seed=1)
    assert found.error == pytest.approx(0.25, abs=0.02)
    assert found.constant == pytest.approx(0.25, abs=0.02)
    assert found.interval[0] <= 0.25 <= found.interval[1]
    assert (found.records, found.spent) == (200, None)
    assert "NOT PRIVATE" in str(found)
    alike = dp.evaluate(LOGISTIC, MODEL, {"x": X, "y": Y}, dp.Privacy(50.0, adjacency="add-remove"), seed=1)
    assert alike.error == pytest.approx(0.25, abs=0.02)
    assert alike.records == pytest.approx(200, abs=3)


def test_where_a_record_may_be_missing_each_is_predicted_by_itself():
    """Rows on a boundary: their rounding follows the place in a batch, and must not."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=300)
    x = rng.normal(size=300)
    x -= w * (x @ w) / (w @ w)
    x /= 2 * np.linalg.norm(x)
    template = dp.load("logistic_regression", features=300)
    release = dp.Release({"w": w}, not_private_because="a test", predictor=template.predict)
    counter = RecordCounter(template.record, release, "x", "y", dp.Privacy(1.0, adjacency="add-remove"))
    several = [{"x": np.tile(x, (count, 1)), "y": np.ones(count, dtype=int)} for count in range(1, 12)]
    assert [counter.mistakes(template.record.validate(data)) for data in several] in ([0] * 11, list(range(1, 12)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("parts", [None, [400, 600], [999, 1]], ids=str)
def test_one_record_that_fails_changes_its_own_mistake_alone(adjacency, parts):
    """All others lie on the boundary, where a batch and single records are rounded to different sides."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(2, 300))
    for _ in range(60):  # until a batch disagrees with single records
        x = rng.normal(size=300)
        x -= w * (x @ w) / (w @ w)
        x /= 2 * np.linalg.norm(x)
        if ((np.tile(x, (1000, 1)) @ w > 0) != (x[None] @ w > 0)).any():
            break

    def predict(parameters, rows):
        if (rows[:, 0] == 0.25).any():
            raise ZeroDivisionError
        return np.where(rows @ parameters["w"] > 0, 1, -1)

    template = dp.load("logistic_regression", features=300)
    release = dp.Release({"w": w}, not_private_because="a test", predictor=predict)
    counter = RecordCounter(template.record, release, "x", "y", dp.Privacy(1.0, adjacency=adjacency))
    fine = {"x": np.tile(x, (1000, 1)), "y": np.full(1000, 1 if x[None] @ w > 0 else -1)}
    bad = {**fine, "x": fine["x"].copy()}
    bad["x"][500] = 0.25 * np.eye(300)[0]
    less = {name: np.delete(column, 500, axis=0) for name, column in fine.items()}
    for data, expected in ((fine, 0), (bad, 1), (less, 0)):
        if parts is not None:
            data = dp.Partitions([{n: c[k] for n, c in data.items()} for k in (slice(parts[0]), slice(parts[0], None))])
        assert counter.mistakes(template.record.validate(data)) == expected


def patient(adjacency="replace-one", most=2, keep=None, epsilon=1.0):
    return dp.Privacy(epsilon, adjacency=adjacency, unit="patient", most=most, keep=keep)


SCORED = dp.solve_without_privacy(LOGISTIC, {"x": X, "y": Y})
HAZARDS = dp.load("discrete_hazards", features=2, intervals=2)
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


def largest_loss(found, scale):
    """Return the largest log-ratio of the laws of noisy sums, discrete Laplace with a scale, over all pairs of exact sums."""
    return max(np.abs(one - other).sum() for one in found for other in found) / scale


@pytest.mark.sampled(4)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("kind", "keep", "visits"),
    [(kind, keep, most) for kind in JUDGED for keep, most in (("one", 1), ("weights", 3))]
    + [(kind, keep, most) for kind in ("scores", "numbers") for keep, most in ((None, 3), ("first", 5), ("random", 5))],
)
def test_the_exact_loss_of_a_person_is_what_is_claimed(kind, keep, visits, adjacency, monkeypatch):
    """All sums that noise is added to, for every person of a small world beside another one.

    Their exact laws differ by epsilon at most, which is attained but for kinds of records that no pair in this world has.
    """
    template, model, records = JUDGED[kind]
    noises, sums = [], []

    def watched(value, noise, rng):
        noises.append(noise)
        sums.append(value.copy())
        return value

    monkeypatch.setattr("dpconvex.selection.evaluate.perturb", watched)
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
    assert len({noise.scale for noise in noises}) == 1
    if adjacency == "add-remove":
        base, others = sums[0], sums[1:]
        loss = max(np.abs(base - other).sum() for other in others) / noises[0].scale
    else:
        loss = largest_loss(sums, noises[0].scale)
    assert loss <= 1.0
    assert loss >= 0.999 or kind == "numbers"
    assert loss >= 0.6


def test_a_noise_that_is_too_small_and_a_table_that_is_forgotten_are_noticed():
    """Planted errors: the exact loss of two records that differ in all they can is above the claim."""
    cells, one = Cells("labels", known=True), dp.Privacy(1.0)
    places = [{"error": np.eye(2, dtype=int)[k % 2], "labels": np.eye(4, dtype=int)[k]} for k in range(4)]
    sums, scale = [cells.sums(place) for place in places], cells.noise(one).scale
    assert 0.999 <= largest_loss(sums, scale) <= 1.0
    assert largest_loss(sums, 0.99 * scale) > 1.0
    assert largest_loss(sums, cells.noise(dp.Privacy(1.0, adjacency="add-remove")).scale) > 1.0
    for forgotten in ("error", "labels"):
        fewer = Cells("labels", known=True)
        vars(fewer)["weights"] = {name: weight for name, weight in cells.weights.items() if name != forgotten}
        assert largest_loss(sums, fewer.noise(one).scale) > 1.0
    of_groups = Cells("labels", groups=2)  # whose sizes are no public number
    assert of_groups.sensitivity(one) == 10
    assert cells.sensitivity(one) == 6


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


def test_all_measures_follow_from_one_release():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 6000), np.zeros(6000)])
    y = np.where(rng.random(6000) < expit(4 * x[:, 0]), 1, -1)
    model = dp.Release({"w": [4.0, 0.0]}, not_private_because="a test", **FUNCTIONS)
    sex = np.where(rng.random(6000) < 0.3, "f", "m")
    budget = dp.Budget(dp.Privacy(40.0))
    found = dp.evaluate(
        LOGISTIC, model, {"x": x, "y": y, "s": sex}, dp.Privacy(40.0), budget=budget, group="s", groups=["f", "m"]
    )
    assert [entry.event for entry in budget.entries] == [found.event]
    p, yes = expit(4 * x[:, 0]), y == 1
    exact = {
        "error": np.mean((p > 0.5) != yes),
        "auc": roc_auc_score(yes, p),
        "brier": np.mean((p - yes) ** 2),
        "log_loss": log_loss(yes, p),
        "constant": min(np.mean(yes), 1 - np.mean(yes)),
    }
    for name, value in exact.items():
        measured = getattr(found, name)
        assert measured == pytest.approx(value, abs=0.015), name
        assert measured.interval[0] < measured <= measured.interval[1]
    assert found.calibration_error < 0.03
    for threshold in (0.0, 0.3, 0.5, 0.7, 1.0):
        counts = confusion_matrix(yes, p > threshold, labels=[False, True])
        np.testing.assert_allclose(found.confusion(threshold), counts, atol=25)
    rates = found.rates(0.3)
    assert rates["sensitivity"] == pytest.approx(np.mean(p[yes] > 0.3), abs=0.02)
    assert rates["specificity"] == pytest.approx(np.mean(p[~yes] <= 0.3), abs=0.02)
    roc, curve = found.roc(), found.precision_recall()
    assert abs(np.trapezoid(roc.y[::-1], roc.x[::-1]) - found.auc) < 0.01
    assert (np.diff(roc.x) <= 0).all()
    assert (np.diff(roc.y) <= 0).all()
    assert curve.x[0] == 1
    assert (np.abs(found.calibration().y - found.calibration().x) < 0.1).all()
    for name, own in found.by_group().items():
        assert own.records == pytest.approx(np.sum(sex == name), abs=40)
        assert own.auc == pytest.approx(roc_auc_score(yes[sex == name], p[sex == name]), abs=0.02)
    assert "group" not in str(found.group("f"))
    for name in ("y", "x"):
        with pytest.raises(dp.TemplateError, match="rename the column"):
            dp.evaluate(LOGISTIC, model, {"x": x, "y": y}, dp.Privacy(1.0), group=name, groups=[-1, 1], budget=budget)
    with pytest.raises(dp.TemplateError, match="by groups="):
        dp.evaluate(LOGISTIC, model, {"x": x, "y": y, "s": sex}, dp.Privacy(1.0), group="s", budget=budget)
    assert len(budget.entries) == 1
    with pytest.raises(dp.TemplateError, match="not 'x'"):
        found.group("x")
    with pytest.raises(dp.TemplateError, match="residuals"):
        _ = found.absolute_error


def test_residuals_follow_from_one_release():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 8000), np.zeros(8000)])
    y = np.clip(0.6 * x[:, 0] + 0.1 * rng.normal(size=8000), -1, 1)
    found = dp.evaluate(HUBER, LINE, {"x": x, "y": y}, dp.Privacy(40.0))
    apart = y - 0.5 * x[:, 0]
    assert found.error == pytest.approx(np.mean(apart**2), abs=0.005)
    assert found.constant == pytest.approx(np.var(y), abs=0.01)
    assert found.r2 == pytest.approx(1 - np.mean(apart**2) / np.var(y), abs=0.05)
    assert found.absolute_error == pytest.approx(np.mean(np.abs(apart)), abs=0.01)
    assert found.residual_quantile(0.9) == pytest.approx(np.quantile(apart, 0.9), abs=0.02)
    assert found.coverage(-0.1, 0.1) == pytest.approx(np.mean(np.abs(apart) <= 0.1), abs=0.03)
    assert found.concordance == pytest.approx((1 + kendalltau(y, x[:, 0])[0]) / 2, abs=0.05)
    assert found.residuals().y[1] < 0 < found.residuals().y[3]  # 0.6 is the slope, and 0.5 was said
    for strange in ("a", None, np.nan, 2.0):
        with pytest.raises(dp.TemplateError):
            found.residual_quantile(strange)
    with pytest.raises(dp.TemplateError):
        found.coverage(np.nan, 1.0)
    with pytest.raises(dp.TemplateError, match="has no probabilities"):
        found.roc()


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.2])
def test_records_between_knots_are_told_apart(spread):
    """Half of the records at a knot, taken to lie below it, left out a seventh of those inside an interval."""
    residuals = np.clip(spread * np.random.default_rng(0).normal(size=20_000), -1, 1)
    table = np.array([np.interp(residuals, RESIDUALS, hat).sum() for hat in np.eye(len(RESIDUALS))])[None]
    places, found = cumulated(table, RESIDUALS)
    for end in (-1.645, -0.5, 0.5, 1.645):
        assert np.interp(end * spread, places, found[0]) / 20_000 == pytest.approx(norm.cdf(end), abs=0.015)
        assert quantiles(table, RESIDUALS, norm.cdf(end))[0] == pytest.approx(end * spread, abs=0.06 * spread)


def test_tiny_errors_are_not_none():
    cells = Cells("numbers", labels=0)
    table = np.zeros((17, 1)) + 0.0
    table[7:10, 0] = 20.0, 960.0, 20.0
    sums = np.concatenate([2 * table.ravel(), np.zeros(65), np.full(11, 1000 / 11)])
    found = dp.Evaluation(cells, tuple(sums), 1e-3, 1000, dp.Privacy(1.0))
    assert 0.0 < found.error.interval[0] <= found.error <= found.error.interval[1]


def test_counts_on_knots_and_far_from_predictions_are_measured_rightly():
    """Counts lie on knots of labels and are skewed: cells taken as spread evenly had an error off by half of it."""
    rng = np.random.default_rng(0)
    learner = dp.load("poisson_regression", features=2)
    x = rng.uniform(-0.7, 0.7, (4000, 2))
    y = np.minimum(rng.poisson(np.exp(0.5 + 1.5 * x[:, 0])), 10.0)
    model = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=learner.predict)
    found, said = dp.evaluate(learner, model, {"x": x, "y": y}, dp.Privacy(40.0)), model.predict(x)
    assert found.error == pytest.approx(np.mean((y - said) ** 2), rel=0.04)
    assert found.constant == pytest.approx(np.var(y), rel=0.06)
    assert found.absolute_error == pytest.approx(np.mean(np.abs(y - said)), rel=0.02)


def test_many_labels_have_an_error_and_a_log_loss():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (3000, 2))
    y = np.where(x[:, 0] > 0.1, "a", np.where(x[:, 1] > 0, "b", "c"))
    learner = dp.load("softmax_regression", features=2, classes=3, labels=("a", "b", "c"))
    model = dp.solve_without_privacy(learner, {"x": x, "y": y})
    found = dp.evaluate(learner, model, {"x": x, "y": y}, dp.Privacy(40.0))
    assert found.error == pytest.approx(np.mean(model.predict(x) != y), abs=0.02)
    assert found.constant == pytest.approx(1 - np.mean(y == "a"), abs=0.02)
    assert found.log_loss == pytest.approx(log_loss(y, model.predict_proba(x)), abs=0.05)
    assert set(found.summary()) == {"error", "constant", "log_loss"}
    with pytest.raises(dp.TemplateError, match="has no probabilities"):
        _ = found.auc


def test_scores_without_probabilities_are_cut_where_the_user_says():
    learner = dp.load("huber_svm", features=2)
    model = dp.Release(
        {"w": [0.1, 0.0]}, not_private_because="a test", predictor=learner.predict, decision=learner.decision
    )
    model = dataclasses.replace(model, labels=(-1, 1))
    cuts = np.linspace(-0.09, 0.09, 10)
    found = dp.evaluate(learner, model, {"x": X, "y": Y}, dp.Privacy(50.0), cells=cuts)
    assert found.auc == pytest.approx(1.0, abs=0.02)
    assert found.error == pytest.approx(0.25, abs=0.02)
    with pytest.raises(dp.TemplateError, match="probabilities"):
        _ = found.brier
    budget = dp.Budget(dp.Privacy(9.0))
    for wrong in ("a", [], [np.nan], np.zeros(500) + np.arange(500), [np.inf]):
        with pytest.raises(dp.TemplateError, match="cells must be"):
            dp.evaluate(learner, model, {"x": X, "y": Y}, dp.Privacy(1.0), cells=wrong, budget=budget)
    with pytest.raises(dp.TemplateError, match="cells must be"):
        dp.evaluate(LOGISTIC, SCORED, {"x": X, "y": Y}, dp.Privacy(1.0), cells=[0.5, 1.0], budget=budget)
    assert not budget.entries


def test_a_saved_evaluation_is_the_same_and_a_forged_one_is_refused(tmp_path):
    data = {"x": X, "y": Y, "s": ["f", "m"] * 100}
    found = dp.evaluate(LOGISTIC, SCORED, data, dp.Privacy(1.0), group="s", groups=["f", "m"])
    found.save(tmp_path / "one.json")
    again = dp.Evaluation.load(tmp_path / "one.json")
    assert (str(again), again.to_dict()) == (str(found), found.to_dict())
    assert copy.deepcopy(found.auc).interval == found.auc.interval
    text = (tmp_path / "one.json").read_text(encoding="utf-8")
    for change in (
        {"sums": [1.0]},
        {"scale": -1.0},
        {"scale": found.scale / 2},
        {"spent": json.loads(text)["spent"] | {"epsilon": 1e-6}},
        {"format": "other"},
        {"groups": []},
        {"sums": ["NaN"] * len(found.sums)},
    ):
        (tmp_path / "two.json").write_text(json.dumps(json.loads(text) | change), encoding="utf-8")
        with pytest.raises(dp.DPConvexError):
            dp.Evaluation.load(tmp_path / "two.json")
    (tmp_path / "two.json").write_text(text[:-9], encoding="utf-8")
    with pytest.raises(dp.DPConvexError, match=r"two\.json"):
        dp.Evaluation.load(tmp_path / "two.json")


@pytest.mark.parametrize("keep", [None, "first", "random", "weights"])
def test_people_count_as_they_should(keep):
    whose = np.repeat(np.arange(100), 2)
    for adjacency in ("replace-one", "add-remove"):
        found = dp.evaluate(LOGISTIC, SCORED, {"x": X, "y": Y}, patient(adjacency, 2, keep, 100.0), unit=whose)
        assert found.records == pytest.approx(100 if keep == "weights" else 200, abs=2)
        assert found.error == pytest.approx(np.mean(SCORED.predict(X) != Y), abs=0.02)
        assert found.clusters == (1 if keep == "weights" else 2)


def test_intervals_cover():
    """A small version of ``python -m benchmarks evaluation``."""
    rng, held = np.random.default_rng(0), {"error": 0, "auc": 0, "brier": 0}
    model = dp.Release({"w": [4.0, 0.0]}, not_private_because="a test", **FUNCTIONS)
    grid = np.linspace(-1, 1, 20_001)
    p = expit(4 * grid)
    true = {"error": np.mean(np.minimum(p, 1 - p)), "brier": np.mean(p * (1 - p))}
    true["auc"] = roc_auc_score(np.repeat([0, 1], len(p)), np.tile(p, 2), sample_weight=np.concatenate([1 - p, p]))
    for seed in range(30):
        x = np.column_stack([rng.uniform(-1, 1, 500), np.zeros(500)])
        y = np.where(rng.random(500) < expit(4 * x[:, 0]), 1, -1)
        found = dp.evaluate(LOGISTIC, model, {"x": x, "y": y}, dp.Privacy(1.0), seed=seed)
        for name, value in true.items():
            low, high = getattr(found, name).interval
            held[name] += low <= value <= high
    assert all(count >= 25 for count in held.values()), held


def test_bins_that_noise_leaves_empty_have_a_calibration_error():
    cells = Cells("probabilities", groups=2)
    for seed in range(3):
        sums = np.random.default_rng(seed).laplace(scale=32.0, size=cells.noisy)
        found = dp.Evaluation(cells, tuple(sums.tolist()), 32.0, 600, None, ("no", "yes"), ("f", "m"))
        assert 0 <= found.calibration_error.interval[0] <= found.calibration_error.interval[1] <= 1


def test_what_is_asked_for_alone_has_less_noise():
    data, one = {"x": X, "y": Y}, dp.Privacy(1.0)
    scales = {}
    for measures in (None, ("error",), "error"):
        found = dp.evaluate(LOGISTIC, SCORED, data, one, measures=measures)
        scales[measures] = found.scale
        again = dp.Evaluation.from_dict(json.loads(json.dumps(found.to_dict())))
        assert again.summary() == found.summary()
    assert scales == pytest.approx({None: 2, ("error",): 1, "error": 1})
    alone = dp.evaluate(LOGISTIC, SCORED, data, dp.Privacy(50.0), measures=("error",))
    assert set(alone.summary()) == {"error"}
    assert alone.error == pytest.approx(np.mean(SCORED.predict(X) != Y), abs=0.01)
    mean = dp.evaluate(HUBER, LINE, {"x": X, "y": X[:, 0]}, dp.Privacy(50.0), measures=("mistakes",))
    assert mean.error == pytest.approx(np.mean((X[:, 0] - LINE.predict(X)) ** 2), abs=0.01)
    budget = dp.Budget(one)
    for model, wrong in ((SCORED, ("r2",)), (SCORED, (3,)), (LINE, ("deviance",)), (SCORED, ("error", "auc"))):
        learner, y = (HUBER, X[:, 0]) if model is LINE else (LOGISTIC, Y)
        with pytest.raises(dp.TemplateError):
            dp.evaluate(learner, model, {"x": X, "y": y}, one, measures=wrong, budget=budget)
    assert not budget.entries


def test_counts_have_a_deviance_and_survival_a_concordance():
    """A small version of ``python -m benchmarks evaluation`` with a strong guarantee: numbers are nearly exact."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (4000, 2))
    y = np.minimum(rng.poisson(np.exp(1 + 2 * x[:, 0])), 10.0)
    learner = dp.load("poisson_regression", features=2, constant=1.0, bound=None)
    model = dp.solve_without_privacy(learner, {"x": x, "y": y})
    found, said = (
        dp.evaluate(learner, model, {"x": x, "y": y}, dp.Privacy(100.0), measures=["deviance"]),
        model.predict(x),
    )
    own, none = (mean_poisson_deviance(y, mu) for mu in (said, np.full(4000, y.mean())))
    assert found.deviance == pytest.approx(own, rel=0.03)
    assert found.deviance_gain == pytest.approx(1 - own / none, abs=0.03)
    assert found.deviance_gain.interval[0] < 1 - own / none < found.deviance_gain.interval[1]
    alive = HAZARDS.predict({"w": np.array([3.0, 0.0]), "b": np.zeros(2)}, x)
    lived = rng.random((4000, 2)) < alive / np.hstack([np.ones((4000, 1)), alive[:, :1]])
    seen = rng.random(4000) < 0.8  # others leave during the second interval
    second = np.where(~lived[:, 0], 0.0, np.where(seen, np.where(lived[:, 1], -1.0, 1.0), -0.5))
    y = np.column_stack([np.where(lived[:, 0], -1.0, 1.0), second])
    curves = dp.Release({"w": [3.0, 0.0], "b": [0.0, 0.0]}, not_private_because="a test", predictor=HAZARDS.predict)
    found = dp.evaluate(HAZARDS, curves, {"x": x, "y": y}, dp.Privacy(100.0))
    pairs = np.array([(y[:, k] > 0)[:, None] & (y[:, k] <= -1) for k in range(2)]).sum(axis=0)
    order = alive.mean(axis=1)[:, None] < alive.mean(axis=1)
    exact = (pairs * order).sum() / pairs.sum()
    assert found.concordance == pytest.approx(exact, abs=0.01)
    assert found.concordance.interval[0] < exact < found.concordance.interval[1]
    assert "concordance" in str(found)


def test_an_answer_that_depends_on_the_batch_decides_nothing():
    """A predictor that is right about several records and wrong about one: each record is predicted alone, whatever it says."""

    def predict(parameters, rows):
        return np.where(rows[:, 0] > 0.5, 1, -1) * (1 if len(rows) > 2 else -1)

    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)
    for count in (1, 2, 3, 200):
        found = dp.evaluate(
            LOGISTIC, release, {"x": X[:count], "y": Y[:count]}, dp.Privacy(1e6), measures=("error",), seed=0
        )
        assert found.error == pytest.approx(1.0, abs=1e-3)


def test_a_split_keeps_people_together():
    whose = np.repeat([f"p{k}" for k in range(40)], 3)
    fitted, judged_ = dp.split(whose, 0.25, seed=1)
    assert sorted([*fitted, *judged_]) == list(range(120))
    assert not set(whose[fitted]) & set(whose[judged_])
    assert len(judged_) == 30
    np.testing.assert_array_equal(dp.split(whose, seed=1)[1], judged_)
    assert len(dp.split(100)[1]) == 25
    for wrong in ((whose, 0.0), (whose, "a"), (np.zeros((2, 2)), 0.5), (["a"], 0.5)):
        with pytest.raises(dp.TemplateError):
            dp.split(*wrong)


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
        with pytest.raises(dp.errors.DomainError, match="identifier"):
            dp.split(mixed)


@pytest.mark.parametrize("name", ["roc", "calibration", "residuals"])
def test_pictures(name, tmp_path):
    kind = (HUBER, LINE, X[:, 0]) if name == "residuals" else (LOGISTIC, SCORED, Y)
    found = dp.evaluate(*kind[:2], {"x": X, "y": kind[2]}, dp.Privacy(5.0), seed=0)
    axes = getattr(dp.plots, name)(found)
    axes.figure.savefig(tmp_path / "picture.png")
    assert len(axes.get_legend().get_texts()) >= 2


def judged(function, y, template=HUBER):
    """Return the counts of cells, and those of the same records one by one."""
    x = np.column_stack([np.linspace(-1, 1, len(y)), np.zeros(len(y))])
    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=function)
    counter = RecordCounter(template.record, release, "x", "y", dp.Privacy(1.0), ())
    each = [counter.counts(template.record.validate({"x": x[k : k + 1], "y": y[k : k + 1]})) for k in range(len(y))]
    each = [np.concatenate([*found.values()]) for found in each]
    return np.concatenate([*counter.counts(template.record.validate({"x": x, "y": y})).values()]), each


def raises_at_zero(parameters, x, error=ZeroDivisionError):
    if (x[:, 0] == 0).any():
        raise error
    return x[:, 0]


STRANGE = {
    "NaN": lambda p, x: (x @ p["w"]) / np.linalg.norm(x, axis=1),
    "infinite": lambda p, x: np.where(x[:, 0] == 0, np.inf, x[:, 0]),
    "complex": lambda p, x: np.where(x[:, 0] == 0, 1j, x[:, 0]),
    "missing row": lambda p, x: x[x[:, 0] != 0, 0],
    "a further row": lambda p, x: np.append(x[:, 0], x[x[:, 0] == 0, 0]),
    "text": lambda p, x: [v if v else "nothing" for v in x[:, 0]],
    "object": lambda p, x: np.array([v if v else None for v in x[:, 0]], dtype=object),
    "masked, over the right label": lambda p, x: np.ma.masked_where(x[:, 0] == 0, np.where(x[:, 0] == 0, 1.0, x[:, 0])),
    "raises": raises_at_zero,
    "ends the program": lambda p, x: raises_at_zero(p, x, SystemExit),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kind", STRANGE)
def test_a_record_that_cannot_be_predicted_counts_in_full_and_changes_no_other(kind):
    total, each = judged(STRANGE[kind], np.linspace(-1, 1, 5))
    assert each[2][0] + each[2][16] == STEPS  # the first or the last of residuals
    np.testing.assert_array_equal(total, sum(each))
    total, each = judged(lambda p, x: STRANGE[kind](p, np.sign(x)), np.array([-1, -1, 1, 1, 1]), LOGISTIC)
    np.testing.assert_array_equal(total, [4, 1, 2, 0, 2, 1])
    np.testing.assert_array_equal(each[2], [0, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("shape", ["(n, 1)", "a number", "(1, n)"])
def test_predictions_of_another_form_are_refused_before_anything_is_paid(shape):
    forms = {"(n, 1)": lambda p, x: x[:, :1], "a number": lambda p, x: 0.0, "(1, n)": lambda p, x: x[None, :, 0]}
    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=forms[shape])
    budget = dp.Budget(dp.Privacy(1.0))
    with pytest.raises(dp.TemplateError, match="one value for each record"):
        dp.evaluate(HUBER, release, {"x": X, "y": X[:, 0]}, dp.Privacy(0.5), budget=budget)
    with pytest.raises(dp.TemplateError, match="does not predict for"):
        dp.evaluate(dp.load("logistic_regression", features=3), MODEL, {"x": X, "y": Y}, dp.Privacy(0.5), budget=budget)
    with pytest.raises(dp.TemplateError, match="of numbers"):
        dp.evaluate(LOGISTIC, MODEL, {"x": X, "y": Y}, dp.Privacy(0.5), features="y", budget=budget)
    w, record = cp.Variable(2, name="w"), dp.Record(x=dp.Ball(2), y=dp.Box(-1e152, 1e152))
    huge = dp.Template(record, lambda x, y: cp.huber(x @ w), cp.sum_squares(w), predict=HUBER.predict)
    with pytest.raises(dp.TemplateError, match="one bounded number"):  # its square is none
        dp.evaluate(huge, LINE, {"x": X, "y": X[:, 0]}, dp.Privacy(0.5), budget=budget)
    assert not budget.entries


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, BaseException])
def test_what_a_predictor_says_or_raises_for_one_record_does_not_get_out(kind, capfd):
    def predict(parameters, rows):
        if (rows[:, 0] == 1).any():
            sys.stdout.write("a record")
            warnings.warn("a record", stacklevel=1)
            raise kind
        return np.ones(len(rows), dtype=int)

    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)
    data = {"x": np.array([[1.0, 0.0], [0.0, 0.0]] * 50), "y": np.ones(100, dtype=int)}
    found = dp.evaluate(LOGISTIC, release, data, dp.Privacy(100.0))
    assert 0.4 < found.error < 0.6
    assert capfd.readouterr() == ("", "")


def test_nothing_gets_out_by_kept_streams_high_levels_or_processes(capfd, caplog):
    """A stream that somebody kept has a buffer, a level above CRITICAL is not disabled by it, and a fork inherits descriptors."""
    with open(1, "w", closefd=False) as kept, contextlib.redirect_stdout(kept):

        def predict(parameters, rows):
            if (rows[:, 0] == 1).any():
                kept.write("a record")
                logging.getLogger("a predictor").log(60, "a record")
                for start in (os.fork, own_process):
                    process = start()
                    if not process:
                        os.write(1, b"a record")
                        os._exit(0)
                    if process > 0:
                        os.waitpid(process, 0)
            return np.ones(len(rows), dtype=int)

        def own_process():
            process = multiprocessing.get_context("fork").Process(target=os.write, args=(2, b"a record"))
            process.start()
            process.join()
            return -1

        release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)
        data = {"x": np.array([[1.0, 0.0], [0.0, 0.0]]), "y": np.ones(2, dtype=int)}
        dp.evaluate(LOGISTIC, release, data, dp.Privacy(100.0))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_fork_beside_a_silent_thread_may_speak_and_be_silent_again(capfd):
    inside, done = threading.Event(), threading.Event()

    def quiet():
        with silence():
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=quiet)
    thread.start()
    inside.wait(60)
    process = os.fork()
    if not process:
        os.write(1, b"spoken")
        with silence():
            os.write(1, b"silent")
        os._exit(0)
    os.waitpid(process, 0)
    done.set()
    thread.join()
    assert capfd.readouterr() == ("spoken", "")


def test_a_real_interrupt_ends_an_evaluation():
    seen = []

    def predict(parameters, rows):
        seen.append(0)
        if (rows[:, 0] == 1).any():
            signal.raise_signal(signal.SIGINT)
        return np.ones(len(rows), dtype=int)

    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)

    def own(*_):
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.default_int_handler, own):
            signal.signal(signal.SIGINT, handler)
            with pytest.raises(KeyboardInterrupt):
                dp.evaluate(LOGISTIC, release, {"x": [[1.0, 0.0]] * 9, "y": [1] * 9}, dp.Privacy(100.0))
            assert len(seen) <= 4  # at once: no record after this one is predicted
            seen.clear()
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_group_whose_records_noise_outweighs_has_no_rates():
    cells = Cells("probabilities", groups=2)
    counts = np.repeat([20, 0], 2 * (len(cells.cuts) + 1))
    sums = cells.sums(dict.fromkeys(cells.tables, counts))
    sums += np.random.default_rng(0).laplace(scale=8.0, size=cells.noisy)
    total = int(counts.sum())
    found = dp.Evaluation(cells, tuple(sums.tolist()), 8.0, total, None, ("no", "yes"), ("f", "m"))
    assert found.hidden == ["m"]
    assert list(found.by_group()) == ["f"]
    assert "m: noise outweighs its records" in str(found)
    assert abs(found.group("f").records + found.group("m").records - total) <= 2
    with pytest.raises(dp.TemplateError, match="noise outweighs"):
        found.group("m").error  # noqa: B018
