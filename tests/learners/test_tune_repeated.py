"""Tuning on all of the data by a random number of runs: what each run may cost, what is released, and what is not."""

from __future__ import annotations

import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from dpconvex.learners import tune_repeated as repeated
from dpconvex.learners.errors_of_releases import Errors
from dpconvex.learners.tune_repeated import planned, tune_repeated
from dpconvex.mechanisms.grid import gaussian_count, laplace_count
from dpconvex.noise.gaussian_profiles import concentrated_delta


def data(size: int = 1000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(size, 3))
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}


def grid(*regularizations: float) -> dict[str, dp.Template]:
    return {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in regularizations}


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_every_share_of_the_budget_adds_up(adjacency: str) -> None:
    whole, law = dp.Privacy(1.0, 1e-6, adjacency), dp.Repetitions(mean=6)
    template = grid(0.01)["0.01"]
    plan = planned(template, whole, law, 500, dp.ObjectivePerturbation())
    run = dp.Privacy(plan.run.epsilon + plan.score.epsilon, plan.run.delta, adjacency)
    spent = law.total(run)
    assert 0.999 * whole.epsilon <= spent.epsilon <= whole.epsilon
    assert spent.delta <= whole.delta
    assert plan.score.epsilon == pytest.approx(0.1 * run.epsilon)
    assert plan.run == dp.verify(template, plan.run.privacy, 500, dp.ObjectivePerturbation())
    assert plan.certificate.privacy == whole
    text = str(plan.certificate)
    assert "the best of 6 runs on average of objective perturbation" in text
    assert "Nobody learns how many runs there were" in text
    assert dp.Certificate.from_dict(plan.certificate.to_dict()) == plan.certificate


def test_the_certificate_can_be_attacked_and_bounds_no_risk() -> None:
    """Its constants are those of one run; which run is released depends on the noise, so no bound for one run holds for it."""
    template = grid(0.1)["0.1"]
    certificate = planned(template, dp.Privacy(1.0), dp.Repetitions(4), 500, dp.ObjectivePerturbation()).certificate
    assert len(dp.falsify(template, certificate, starts=2, steps=20, seed=0)) >= 6
    with pytest.raises(dp.TemplateError, match="best of several runs"):
        dp.risk_bound(template, certificate)


def test_under_renyi_accounting_the_parts_are_concentrated() -> None:
    pytest.importorskip("dp_accounting")
    from dpconvex.mechanisms.random_repetition import concentration

    whole, law = dp.Privacy(1.0, 1e-6), dp.Repetitions(mean=6, accounting="renyi", share=0.2)
    mechanism = dp.OutputPerturbation("gaussian")
    template = grid(0.1)["0.1"]
    plan = planned(template, whole, law, 500, mechanism)
    rho = concentration(plan.run) + 1 / (2 * plan.score.scale**2)
    assert law.renyi_epsilon(rho, whole.delta) <= whole.epsilon
    assert law.renyi_epsilon(1.01 * rho, whole.delta) > whole.epsilon
    direct = planned(template, whole, dp.Repetitions(mean=6, share=0.2), 500, mechanism)
    assert plan.run.noise_scale < 0.95 * direct.run.noise_scale
    objective = planned(template, dp.Privacy(1.0, 1e-6, "add-remove"), law, 500, dp.ObjectivePerturbation("gaussian"))
    level = concentration(objective.run) + 1 / (2 * objective.score.scale**2)
    assert level >= (objective.run.sensitivity / objective.run.noise_scale) ** 2 / 2
    assert law.renyi_epsilon(level, whole.delta) <= whole.epsilon
    assert concentration(objective.certificate) > level
    direct = planned(
        template, objective.certificate.privacy, dp.Repetitions(mean=6), 500, dp.ObjectivePerturbation("gaussian")
    )
    with pytest.raises(dp.NotPrivate, match="objective perturbation"):
        concentration(direct.certificate)  # by the direct theorem nothing but the promise is known
    with pytest.raises(dp.NotPrivate, match="delta"):
        planned(template, dp.Privacy(1.0), law, 500, mechanism)


def test_a_fit_of_the_whole_grid_under_renyi_accounting() -> None:
    pytest.importorskip("dp_accounting")
    law = dp.Repetitions(mean=2, accounting="renyi")
    budget = dp.Budget(dp.Privacy(3.0, 1e-6), accounting="renyi")
    outcome = tune_repeated(
        grid(0.1), data(), dp.Privacy(2.0, 1e-6), dp.OutputPerturbation("gaussian"), repetitions=law, budget=budget
    )
    assert outcome.spent == dp.Privacy(2.0, 1e-6)
    (spend,) = budget.entries
    assert spend.event == outcome.release.certificate.event  # type: ignore[union-attr]
    assert {leaf.kind for leaf in spend.known.leaves()} == {"selected", "tail"}
    # What is left is more than by adding promises, of which 1 was left.
    assert budget.remaining.epsilon > 1.1
    assert outcome.release.certificate is not None
    assert "Gaussian" in outcome.release.certificate.mechanism


def test_scores_are_as_private_as_they_should_be() -> None:
    laplace = laplace_count(0.05)
    k = np.arange(-4000, 4001)
    law = np.exp(-np.abs(k) / laplace.scale)
    assert np.abs(np.log(law[1:] / law[:-1])).max() == pytest.approx(0.05, rel=1e-12)
    assert laplace.scale >= 1 / 0.05
    gaussian = gaussian_count(1e-3, 1.0)
    assert 1 / (2 * gaussian.scale**2) <= 1e-3
    assert concentrated_delta(1e-3, 1.0) <= gaussian.delta


def test_the_better_candidate_wins_and_the_release_says_what_the_whole_cost() -> None:
    good, bad = grid(0.01, 0.1).values()
    bad.predict = lambda parameters, x: np.ones(len(x), dtype=int)
    ledger = dp.Budget(dp.Privacy(4.0))
    outcome = tune_repeated(
        {"bad": bad, "good": good}, data(), dp.Privacy(4.0), budget=ledger, repetitions=dp.Repetitions(30, 4)
    )
    # All of at least three runs are of the bad candidate with probability below 1e-3, and of many more with less.
    assert outcome.spent == outcome.release.spent == dp.Privacy(4.0)
    assert outcome.release.certificate is not None
    assert outcome.release.certificate.privacy == dp.Privacy(4.0)
    assert float(ledger.remaining.epsilon) == 0.0
    seeded = tune_repeated(
        {"bad": bad, "good": good}, data(), dp.Privacy(4.0), repetitions=dp.Repetitions(30, 4), seed=1
    )
    assert seeded.choice == "good"
    assert seeded.mistakes is not None
    assert seeded.mistakes < 200
    assert seeded.spent is None
    assert not seeded.release.private
    again = tune_repeated(
        {"bad": bad, "good": good}, data(), dp.Privacy(4.0), repetitions=dp.Repetitions(30, 4), seed=1
    )
    assert (again.choice, again.mistakes) == (seeded.choice, seeded.mistakes)
    np.testing.assert_array_equal(again.release["w"], seeded.release["w"])


def test_the_best_run_is_released_and_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are scripted: the release is that of the least noisy count, with that count and no other trace."""
    law = dp.Repetitions(5)
    monkeypatch.setattr(dp.Repetitions, "draw", lambda self, rng: 4)
    counts = iter([9, 3, 7, 3])
    made: list[dp.Release] = []
    real = repeated.run_certified

    def run(*arguments: Any, **options: Any) -> dp.Release:
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(repeated, "run_certified", run)
    monkeypatch.setattr(repeated, "count_mistakes", lambda *arguments: next(counts))
    monkeypatch.setattr(repeated, "perturb", lambda count, noise, rng: count)
    outcome = tune_repeated(grid(0.1), data(100), dp.Privacy(1.0), repetitions=law)
    assert len(made) == 4
    assert outcome.mistakes == 3
    np.testing.assert_array_equal(outcome.release["w"], made[1]["w"])
    assert vars(outcome).keys() == {"choice", "release", "spent", "mistakes"}


def test_the_count_has_the_noise_that_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    template = grid(0.1)["0.1"]
    plan = planned(template, dp.Privacy(2.0), dp.Repetitions(mean=2), 100, dp.ObjectivePerturbation())
    release = dp.Release({"w": np.zeros(3)}, not_private_because="a test")
    monkeypatch.setattr(dp.Repetitions, "draw", lambda self, rng: 1)
    monkeypatch.setattr(repeated, "planned", lambda *arguments: plan)
    monkeypatch.setattr(repeated, "run_certified", lambda *arguments, **options: release)
    monkeypatch.setattr(repeated, "count_mistakes", lambda *arguments: 40)
    columns, law = data(100), dp.Repetitions(mean=2)
    found = [tune_repeated([template], columns, dp.Privacy(2.0), repetitions=law, seed=k).mistakes for k in range(1500)]
    steps = np.array(found) - 40
    ratio = math.exp(-plan.score.epsilon)  # of neighbouring counts: the privacy of the score
    inside = np.arange(-30, 31)
    expected = (1 - ratio) / (1 + ratio) * ratio ** np.abs(inside)
    counts = np.array([(steps == k).sum() for k in inside])
    observed, law_of_it = np.append(counts, 1500 - counts.sum()), np.append(expected, 1 - expected.sum())
    cells = np.add.reduceat(observed, range(0, 62, 6)), np.add.reduceat(law_of_it, range(0, 62, 6)) * 1500
    assert stats.chisquare(*cells).pvalue > 1e-7


def test_an_interrupt_releases_nothing_and_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = dp.Budget(dp.Privacy(1.0))
    monkeypatch.setattr(dp.Repetitions, "draw", lambda self, rng: 3)
    real, calls = repeated.run_certified, []

    def stopped(*arguments: Any, **options: Any) -> dp.Release:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(repeated, "run_certified", stopped)
    w = cp.Variable(3, name="w")
    loss = lambda x, y: cp.logistic(-y * (x @ w))  # noqa: E731
    like = grid(0.1)["0.1"]
    template = dp.Template(like.record, loss, 0.05 * cp.sum_squares(w), predict=like.predict)
    with pytest.raises(KeyboardInterrupt):
        tune_repeated([template], data(100), dp.Privacy(1.0), budget=ledger)
    assert float(ledger.remaining.epsilon) == 0.0
    assert w.value is None


def test_the_cost_is_recorded_before_the_data_are_read() -> None:
    ledger = dp.Budget(dp.Privacy(1.0))
    wrong = data(50)
    wrong["x"] = wrong["x"] * 10
    with pytest.raises(dp.DomainError):
        tune_repeated(grid(0.1), wrong, dp.Privacy(1.0), budget=ledger)
    assert float(ledger.remaining.epsilon) == 0.0
    with pytest.raises(dp.BudgetExceeded):
        tune_repeated(grid(0.1), data(50), dp.Privacy(1.0), budget=ledger)
    # And nothing is paid for what cannot be proved.
    fresh = dp.Budget(dp.Privacy(1.0))
    with pytest.raises(dp.NotPrivate):
        tune_repeated(grid(0.1), data(50), dp.Privacy(1.0), dp.OutputPerturbation("gaussian"), budget=fresh)
    with pytest.raises(dp.TemplateError, match="seed"):
        tune_repeated(grid(0.1), data(50), dp.Privacy(1.0), budget=fresh, seed=-1)
    assert float(fresh.remaining.epsilon) == 1.0


def test_each_record_counts_once_whatever_a_prediction_looks_like() -> None:
    record = dp.Record(x=dp.Ball(1), y=dp.Choice(["a", "b"]))
    batch = record.validate({"x": np.zeros((3, 1)), "y": ["a", "b", "a"]})

    def mistakes(answer: list[Any]) -> int:
        release = dp.Release({"w": [0.0]}, not_private_because="a test", predictor=lambda p, x: np.array(answer))
        return Errors("tune", record, release, "x", "y", alone=False).total(batch)

    assert mistakes(["a", "a", "b"]) == 2
    assert mistakes([["a"]] * 3) == 3


def test_sparse_columns_and_named_labels() -> None:
    import scipy.sparse as sp

    columns: dict[str, Any] = data(200)
    template = dp.load("logistic_regression", features=3, labels=("no", "yes"), regularization=0.1)
    columns = {"x": sp.csr_array(columns["x"]), "y": np.where(columns["y"] > 0, "yes", "no")}
    assert dp.tune([template], columns, dp.Privacy(5.0)).choice == "0"
    with pytest.raises(dp.TemplateError, match="chunks"):
        dp.tune([template], {**columns, "x": dp.Chunks([columns["x"]])}, dp.Privacy(5.0))
    outcome = tune_repeated([template], columns, dp.Privacy(5.0), repetitions=dp.Repetitions(2), seed=0)
    assert outcome.choice == "0"
    assert outcome.mistakes is not None
    assert outcome.mistakes < 60


def test_add_remove_asks_for_a_public_size() -> None:
    promise = dp.Privacy(2.0, adjacency="add-remove")
    with pytest.raises(dp.NotPrivate, match="size"):
        tune_repeated(grid(0.1), data(100), promise)
    outcome = tune_repeated(grid(0.1), data(100), promise, size=120, repetitions=dp.Repetitions(1.5))
    assert outcome.spent == promise


def test_bad_input_is_refused() -> None:
    with pytest.raises(dp.TemplateError, match="no candidate"):
        tune_repeated([], data(20), dp.Privacy(1.0))
    with pytest.raises(dp.TemplateError, match="Repetitions"):
        tune_repeated(grid(0.1), data(20), dp.Privacy(1.0), repetitions=10)  # type: ignore[arg-type]
    regression = dp.load("ridge_regression", features=3)
    with pytest.raises(dp.TemplateError, match="mistakes cannot be counted"):
        tune_repeated([regression], data(20), dp.Privacy(1.0))
    silent = grid(0.1)["0.1"]
    silent.predict = None
    with pytest.raises(dp.TemplateError, match="predict"):
        tune_repeated([silent], data(20), dp.Privacy(1.0))


def test_the_number_of_runs_is_fixed_before_the_data_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    validate, draw = dp.Record.validate, dp.Repetitions.draw

    def reading(self: dp.Record, *arguments: Any, **options: Any) -> Any:
        order.append("data")
        return validate(self, *arguments, **options)

    def drawing(self: dp.Repetitions, rng: np.random.Generator) -> int:
        order.append("number")
        return draw(self, rng)

    monkeypatch.setattr(dp.Record, "validate", reading)
    monkeypatch.setattr(dp.Repetitions, "draw", drawing)
    tune_repeated(grid(0.1), data(50), dp.Privacy(1.0), repetitions=dp.Repetitions(1.5))
    assert order[:2] == ["number", "data"]
    assert order.count("number") == 1


@pytest.mark.parametrize("accounting", ["direct", "renyi"])
def test_a_whitened_run_costs_what_its_plan_says(accounting: str) -> None:
    whole, law = dp.Privacy(4.0, 1e-5, "add-remove"), dp.Repetitions(mean=2, accounting=accounting)
    template = grid(1e-6)["1e-06"]
    plan = planned(template, whole, law, 500, None, "auto")
    assert plan.stages is not None
    assert plan.stages.privacy == plan.run.privacy
    assert plan.stages.noise == plan.run.whitening == plan.certificate.whitening
    assert plan.run == dp.verify(template, plan.run.privacy, 500, plan.mechanism, whitening=dp.PrivateWhitening())
    budget = dp.Budget(whole)
    found = tune_repeated([template], data(), whole, repetitions=law, size=500, budget=budget, whitening="auto", seed=0)
    assert [entry.privacy for entry in budget.entries] == [whole]
    assert found.release.certificate == plan.certificate
    assert np.mean(found.release.predict(data()["x"]) == data()["y"]) > 0.9
