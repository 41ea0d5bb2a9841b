"""The error of a released model, counted privately: right, calibrated, paid for, and refused where it cannot be counted."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from judged_models import DATA, FUNCTIONS, HAZARDS, HUBER, LINE, LOGISTIC, ONE, SCORED, X, Y, largest_loss
from refused import refused
from scipy.special import expit, ndtri, softmax
from sklearn.metrics import confusion_matrix, log_loss, mean_poisson_deviance, roc_auc_score

import dpconvex as dp
from dpconvex.mechanisms.cell_counts import ALIVE, LIKELY, SCORES, Cells
from dpconvex.selection.measures import survival_pairs


def test_all_measures_follow_from_one_release():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 6000), np.zeros(6000)])
    y = np.where(rng.random(6000) < expit(4 * x[:, 0]), 1, -1)
    model = dp.Release({"w": [4.0, 0.0]}, not_private_because="a test", **FUNCTIONS)
    sex, budget = np.where(rng.random(6000) < 0.3, "f", "m"), dp.Budget(dp.Privacy(40.0))
    groups, data = {"group": "s", "groups": ["f", "m"]}, {"x": x, "y": y, "s": sex}
    found = dp.evaluate(LOGISTIC, model, data, dp.Privacy(40.0), budget=budget, **groups)
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
    for draw in (dp.plots.roc, dp.plots.calibration):
        assert len(draw(found).get_legend().get_texts()) >= 2
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
            dp.evaluate(LOGISTIC, model, {"x": x, "y": y}, ONE, group=name, groups=[-1, 1], budget=budget)
    refused(dp.TemplateError, "by groups=", dp.evaluate, LOGISTIC, model, data, ONE, group="s", budget=budget)
    assert len(budget.entries) == 1
    wide = dp.Budget(ONE)
    refused(dp.DomainError, "stays paid for", dp.evaluate, LOGISTIC, model, {"x": 9 * x, "y": y}, ONE, budget=wide)
    assert len(wide.entries) == 1
    missing = data | {"s": np.where(sex == "f", None, sex)}
    with pytest.raises(dp.DomainError, match=r"groups=.*fill missing ones.*epsilon = 1, replace-one stays paid for"):
        dp.evaluate(LOGISTIC, model, missing, ONE, budget=dp.Budget(ONE), **groups)
    refused(dp.TemplateError, "not 'x'", found.group, "x")
    with pytest.raises(dp.TemplateError, match="residuals"):
        _ = found.absolute_error


def test_rare_labels_ask_for_finer_cells_and_a_threshold():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 6000), np.zeros(6000)])
    y = np.where(rng.random(6000) < 0.03, 1, -1)
    model = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", **FUNCTIONS | {"probabilities": rare})
    data, promise = {"x": x, "y": y}, dp.Privacy(2.0)
    found = dp.evaluate(LOGISTIC, model, data, promise, seed=0)
    assert "100% of records lie in one cell, of probabilities from 0.015 to 0.05" in str(found)
    assert found.auc.interval[0] <= 0.5  # as labels are drawn; scores could order records within the cell
    low, high = found.calibration().reach
    assert 0 <= low < high < 0.2  # Points whose share is noise are left out
    assert dp.plots.calibration(found).get_xlim() == (low, high)
    finer = dp.evaluate(LOGISTIC, model, data, promise, cells=(0.02, 0.025, 0.03, 0.035, 0.04), seed=0)
    assert finer.crowding == ""
    assert replace(finer, threshold=0.03).rates() == finer.rates(0.03) != finer.rates()


def test_rare_labels_are_measured_between_the_cuts():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 8000), np.zeros(8000)])
    for constant, near in ((-3.5, 0.003), (-6.0, 0.002)):

        def likely(parameters, rows, constant=constant):
            second = expit(2 * rows[:, 0] + constant)
            return np.column_stack([1 - second, second])

        model = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", **FUNCTIONS | {"probabilities": likely})
        second = likely(None, x)[:, 1]
        y = np.where(rng.random(8000) < second, 1, -1)
        found = dp.evaluate(LOGISTIC, model, {"x": x, "y": y}, dp.Privacy(40.0), seed=0)
        assert found.log_loss == pytest.approx(log_loss(y == 1, second), abs=near)
        assert not found.auc.is_undetermined
    few = dp.evaluate(LOGISTIC, model, {"x": x[:2000], "y": y[:2000]}, ONE, seed=0)
    assert few.auc.interval == (0.0, 1.0)  # ten records of a label, beside noise of more


def test_log_losses_of_ten_labels_are_those_of_even_probabilities():
    """Weights by which records of two labels lie where they are likely would make it .04 too low."""
    rng, count = np.random.default_rng(0), 50_000
    p = softmax(1.5 * rng.normal(size=(count, 10)), axis=1)
    y = (rng.random(count)[:, None] > p.cumsum(axis=1)).sum(axis=1)
    own, wrong = p[np.arange(count), y], p.argmax(axis=1) != y
    cells = Cells("labels", labels=10, likelihood=True, known=True)
    counts = {
        "error": np.bincount(wrong, minlength=2),
        "labels": np.bincount(2 * y + wrong, minlength=20),
        "likelihood": np.bincount(np.searchsorted(LIKELY, own), minlength=len(LIKELY) + 1),
    }
    found = dp.Evaluation(cells, tuple(cells.sums(counts)), 1e-3, count, None, labels=tuple(range(10)))
    assert found.log_loss == pytest.approx(-np.log(own).mean(), abs=0.01)


def test_costs_far_below_their_bounds_are_covered():
    """Tails that noise hides were taken to fall exponentially: intervals held what is true in 15 of 24 runs."""
    truth, covered = np.exp(1) * (np.exp(1) - 1) * (2 / 50) ** 2, np.zeros(2)
    model = dp.Release({"w": [0.0, 0.0]}, not_private_because="a test", predictor=lambda p, x: 0 * x[:, 0] + MEAN)
    for seed in range(12):
        y = np.minimum(np.random.default_rng(seed).lognormal(size=2000), 50) / 25 - 1
        found = dp.evaluate(HUBER, model, {"x": np.zeros((2000, 2)), "y": y}, dp.Privacy(0.5), seed=seed)
        ends = np.array([found.error.interval, found.constant.interval])
        covered += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    assert covered.min() >= 10, covered


MEAN = np.exp(0.5) / 25 - 1


def rare(parameters, x):
    second = 0.03 + 0.01 * x[:, 0]
    return np.column_stack([1 - second, second])


def test_concordances_know_the_odds_of_dying_in_an_interval():
    """As if log-odds rose as fast as those of mean probabilities to survive, it was .002 too low here."""
    hazard = np.exp(ndtri((np.arange(3000) + 0.5) / 3000) - 1)[::-1]
    alive = np.exp(-hazard[:, None] * np.arange(7))
    died, cells = -np.diff(alive, axis=1).T, np.searchsorted(ALIVE, alive[:, 1:].mean(axis=1))
    before = np.cumsum(alive[:, 1:].T, axis=1) - 0.5 * alive[:, 1:].T  # that lived longer than their predictions ...
    exact = 1 - (died * before).sum() / (died.sum(axis=1) * alive[:, 1:].sum(axis=0)).sum()
    member = np.eye(len(ALIVE) + 1)[cells]
    censored = np.concatenate([np.zeros((5, 3000)), alive[:, 6:].T])
    agreed, pairs = survival_pairs((died @ member)[None], (censored @ member)[None], np.array([0.0, *ALIVE, 1.0]))
    assert agreed / pairs == pytest.approx(exact, abs=5e-4)


def test_labels_far_inside_their_bounds_are_measured_rightly():
    """Knots at tenths of the range had an R2 of 0.9 here, where a third is right, and intervals that missed it."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 4000), np.zeros(4000)])
    y = 0.7 + 0.01 * (x[:, 0] + 0.8 * rng.normal(size=4000))
    model = dp.Release({"w": [0.01, 0.0]}, not_private_because="a test", predictor=lambda p, rows: 0.7 + rows @ p["w"])
    apart, several = y - model.predict(x), []
    for _ in range(5):  # One in a hundred has noise far out, and says that it is undetermined
        found = dp.evaluate(HUBER, model, {"x": x, "y": y}, dp.Privacy(20.0))
        several.append((float(found.error), float(found.constant), float(found.r2), *found.r2.interval))
    error, constant, r2, low, high = np.median(several, axis=0)
    assert error == pytest.approx(np.mean(apart**2), rel=0.1)
    assert constant == pytest.approx(np.var(y), rel=0.1)
    assert r2 == pytest.approx(1 - np.mean(apart**2) / np.var(y), abs=0.1)
    assert low < 0.34 < high
    assert high - low < 0.3
    wrong = dp.evaluate(HUBER, LINE, {"x": x[:500], "y": y[:500]}, dp.Privacy(4.0), seed=0)
    assert not wrong.error.is_undetermined
    assert wrong.r2.interval[0] == -np.inf  # A constant may have no error: a number of five digits was here
    assert wrong.r2.interval[1] < -10
    assert "r2 imprecise (at most -" in str(wrong)


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
    with pytest.raises(dp.TemplateError, match="probabilities"):
        _ = found.auc


def test_scores_without_probabilities_are_cut_where_the_user_says():
    learner = dp.load("huber_svm", features=2)
    says = {"predictor": learner.predict, "decision": learner.decision, "labels": (-1, 1)}
    model = dp.Release({"w": [0.1, 0.0]}, not_private_because="a test", **says)
    cuts = np.linspace(-0.09, 0.09, 10)
    found = dp.evaluate(learner, model, DATA, dp.Privacy(50.0), cells=cuts)
    assert found.auc == pytest.approx(1.0, abs=0.02)
    assert found.error == pytest.approx(0.25, abs=0.02)
    with pytest.raises(dp.TemplateError, match="probabilities"):
        _ = found.brier
    budget = dp.Budget(dp.Privacy(9.0))
    for wrong in ("a", [], [np.nan], np.zeros(500) + np.arange(500), [np.inf]):
        refused(dp.TemplateError, "cells must be", dp.evaluate, learner, model, DATA, ONE, cells=wrong, budget=budget)
    with pytest.raises(dp.TemplateError, match="cells must be"):
        dp.evaluate(LOGISTIC, SCORED, DATA, ONE, cells=[0.5, 1.0], budget=budget)
    assert not budget.entries


def test_a_saved_evaluation_is_the_same_and_a_forged_one_is_refused(tmp_path):
    data = {"x": X, "y": Y, "s": ["f", "m"] * 100}
    found = dp.evaluate(LOGISTIC, SCORED, data, ONE, group="s", groups=["f", "m"])
    found.save(tmp_path / "one.json")
    again = dp.Evaluation.load(tmp_path / "one.json")
    assert (str(again), again.to_dict()) == (str(found), found.to_dict())
    assert copy.deepcopy(found.auc).interval == found.auc.interval
    text = (tmp_path / "one.json").read_text(encoding="utf-8")
    changes = [{"sums": [1.0]}, {"scale": -1.0}, {"scale": found.scale / 2}, {"format": "other"}, {"groups": []}]
    changes += [{"spent": json.loads(text)["spent"] | {"epsilon": 1e-6}}, {"clusters": -1}, {"chosen": 2}]
    changes += [{"labels": ["no", "yes", "?"]}, {"bounds": [1.0, 0.0]}, {"threshold": -0.5}, {"total": -9}]
    cells = [{"kind": "other"}, {"upper": math.inf}, {"upper": -1.0}, {"cuts": [*SCORES[:-1], 0.2]}, {"centre": 7.0}]
    changes += [{"cells": json.loads(text)["cells"] | change} for change in cells]
    for change in (*changes, {"sums": ["NaN"] * len(found.sums)}):
        (tmp_path / "two.json").write_text(json.dumps(json.loads(text) | change), encoding="utf-8")
        refused(dp.DPConvexError, None, dp.Evaluation.load, tmp_path / "two.json")
    for damaged in (text[:-9], text.replace('"total":', '"total": 9, "total":')):  # readers differ on these
        (tmp_path / "two.json").write_text(damaged, encoding="utf-8")
        refused(dp.DPConvexError, r"two\.json", dp.Evaluation.load, tmp_path / "two.json")


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
        found = dp.evaluate(LOGISTIC, model, {"x": x, "y": y}, ONE, seed=seed)
        for name, value in true.items():
            low, high = getattr(found, name).interval
            held[name] += low <= value <= high
    assert all(count >= 25 for count in held.values()), held


def test_what_is_asked_for_alone_has_less_noise():
    scales = {}
    for asked in (None, ("error",), "error"):
        found = dp.evaluate(LOGISTIC, SCORED, DATA, ONE, measures=asked)
        scales[asked] = found.scale
        again = dp.Evaluation.from_dict(json.loads(json.dumps(found.to_dict())))
        assert again.summary() == found.summary()
    assert scales == pytest.approx({None: 2, ("error",): 1, "error": 1})
    alone = dp.evaluate(LOGISTIC, SCORED, DATA, dp.Privacy(50.0), measures=("error",))
    assert set(alone.summary()) == {"error"}
    assert alone.error == pytest.approx(np.mean(SCORED.predict(X) != Y), abs=0.01)
    mean = dp.evaluate(HUBER, LINE, {"x": X, "y": X[:, 0]}, dp.Privacy(50.0), measures=("mistakes",))
    assert mean.error == pytest.approx(np.mean((X[:, 0] - LINE.predict(X)) ** 2), abs=0.01)
    budget = dp.Budget(ONE)
    for model, wrong in ((SCORED, ("r2",)), (SCORED, (3,)), (LINE, ("deviance",)), (SCORED, ("error", "auc"))):
        learner, y = (HUBER, X[:, 0]) if model is LINE else (LOGISTIC, Y)
        refused(
            dp.TemplateError, None, dp.evaluate, learner, model, {"x": X, "y": y}, ONE, measures=wrong, budget=budget
        )
    assert not budget.entries


def test_the_gain_of_deviance_holds_for_targets_far_below_their_bound():
    """The deviance of the mean, too, counts the sharing between knots; without, the gain was .8 in place of .6."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (2000, 2))
    y = rng.gamma(1.5, np.exp(0.3 + 2 * x[:, 0]) / 1.5)
    model = dp.PoissonRegressor(epsilon=50.0, delta=1e-6, bounds=(0, 500)).fit(x, y)
    of_model, of_mean = (mean_poisson_deviance(y, mu) for mu in (model.predict(x), np.full(2000, y.mean())))
    found = dp.evaluate(
        model.template(2), model.release_, model.records(x, y), dp.Privacy(100.0), measures=["deviance"]
    )
    assert found.deviance_gain == pytest.approx(1 - of_model / of_mean, abs=0.12)


def test_counts_have_a_deviance_and_survival_a_concordance():
    """A small version of ``python -m benchmarks evaluation`` with a strong guarantee: numbers are nearly exact."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (4000, 2))
    y = np.minimum(rng.poisson(np.exp(1 + 2 * x[:, 0])), 10.0)
    learner = dp.load("poisson_regression", features=2, constant=1.0)
    model = dp.solve_without_privacy(learner, {"x": x, "y": y})
    found = dp.evaluate(learner, model, {"x": x, "y": y}, dp.Privacy(100.0), measures=["deviance"])
    said = model.predict(x)
    own, none = (mean_poisson_deviance(y, mu) for mu in (said, np.full(4000, y.mean())))
    assert found.deviance == pytest.approx(own, rel=0.03)
    assert found.deviance_gain == pytest.approx(1 - own / none, abs=0.03)
    assert found.deviance_gain.interval[0] < 1 - own / none < found.deviance_gain.interval[1]
    alive = HAZARDS.predict({"w": np.array([3.0, 0.0]), "b": np.zeros(2)}, x)
    lived = rng.random((4000, 2)) < alive / np.hstack([np.ones((4000, 1)), alive[:, :1]])
    seen = rng.random(4000) < 0.8  # others leave during the second interval
    second = np.where(~lived[:, 0], 0.0, np.where(seen, np.where(lived[:, 1], -1.0, 1.0), -0.5))
    y = np.column_stack([np.where(lived[:, 0], -1.0, 1.0), second])
    survival = {"predictor": HAZARDS.predict, "probabilities": HAZARDS.probabilities}
    curves = dp.Release({"w": [3.0, 0.0], "b": [0.0, 0.0]}, not_private_because="a test", **survival)
    found = dp.evaluate(HAZARDS, curves, {"x": x, "y": y}, dp.Privacy(100.0))
    pairs = np.array([(y[:, k] > 0)[:, None] & (y[:, k] <= -1) for k in range(2)]).sum(axis=0)
    order = alive.mean(axis=1)[:, None] < alive.mean(axis=1)
    exact = (pairs * order).sum() / pairs.sum()
    assert found.concordance == pytest.approx(exact, abs=0.01)
    assert found.concordance.interval[0] < exact < found.concordance.interval[1]
    assert "concordance" in str(found)


EXTRA = np.random.default_rng(1).uniform(0.1, 2.0, len(X))
SIGNS = np.where(EXTRA > 1, 1, -1)


@pytest.mark.parametrize(
    ("name", "options", "label", "extra"),
    [
        ("probit_regression", {"offset": 2.0, "bound": 2.0}, SIGNS, {"offset": 3 * (EXTRA - 1).clip(-0.6, 0.6)}),
        ("poisson_regression", {"exposure": 2.0, "target": 2.0}, EXTRA, {"exposure": EXTRA}),
        ("negative_binomial_regression", {"offset": 2.0, "target": 3.0}, EXTRA, {"offset": np.log(EXTRA).clip(-2, 2)}),
        ("multi_task_logistic", {}, SIGNS, {"task": np.where(EXTRA > 1, "first", "second")}),
        ("conditional_logit", {"features": 1, "alternatives": 2, "availability": True}, (EXTRA > 1).astype(int), {}),
    ],
)
def test_predictions_use_fields_that_they_may_leave_out(name, options, label, extra):
    extra = extra or {"available": np.eye(2)[label]}
    learner, data = dp.load(name, **{"features": 2} | options), {"x": X, "y": label, **extra}
    model = dp.solve_without_privacy(learner, data)
    given, without = model.predict(X, **extra), model.predict(X)
    apart = (given != label) if isinstance(learner.record.fields["y"], dp.Choice) else (given - label) ** 2
    found = dp.evaluate(learner, model, data, dp.Privacy(300.0))
    assert float(found.error) == pytest.approx(apart.mean(), abs=0.02)
    assert np.shape(without)[0] == len(X)
    assert not np.array_equal(given, without)


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


def test_a_noise_that_is_too_small_and_a_table_that_is_forgotten_are_noticed():
    """Planted errors: the exact loss of two records that differ in all they can is above the claim."""
    cells, one = Cells("labels", known=True), ONE
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


@pytest.mark.parametrize("wrong", [{"measures": 5}, {"label": ["y"]}, {"features": 1}])
def test_wrong_kinds_of_names_are_refused_by_name(wrong):
    learner, data = dp.load("logistic_regression", features=2), {"x": X, "y": SIGNS}
    with pytest.raises(dp.TemplateError, match=next(iter(wrong))):
        dp.evaluate(learner, dp.solve_without_privacy(learner, data), data, dp.Privacy(1.0), **wrong)
