"""Tuning on all of the data by a random number of runs: what each run may cost, what is released, and what is not."""

from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.learners.tune import planned, tune_repeated
from dpconvex.release.verify import Method


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
    plan = planned(template, whole, law, 500, Method(dp.ObjectivePerturbation()))
    run = dp.Privacy(plan.fit.certificate.epsilon + plan.score.epsilon, plan.fit.certificate.delta, adjacency)
    spent = law.total(run)
    assert 0.999 * whole.epsilon <= spent.epsilon <= whole.epsilon
    assert spent.delta <= whole.delta
    assert plan.score.epsilon == pytest.approx(0.1 * run.epsilon)
    assert plan.fit.certificate == dp.verify(template, plan.fit.certificate.privacy, 500, dp.ObjectivePerturbation())
    assert plan.certificate.privacy == whole
    text = str(plan.certificate)
    assert "the best of 6 runs on average of objective perturbation" in text
    assert "Nobody learns how many runs there were" in text
    assert dp.Certificate.from_dict(plan.certificate.to_dict()) == plan.certificate


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


def test_a_whitened_run_costs_what_its_plan_says() -> None:
    whole, law = dp.Privacy(4.0, 1e-5, "add-remove"), dp.Repetitions(mean=2)
    template = grid(1e-6)["1e-06"]
    plan = planned(template, whole, law, 500, Method(whitening="auto"))
    assert plan.fit.stages is not None
    assert plan.fit.stages.privacy == plan.fit.certificate.privacy
    assert plan.fit.stages.noise == plan.fit.certificate.whitening == plan.certificate.whitening
    assert plan.fit.certificate == dp.verify(
        template, plan.fit.certificate.privacy, 500, plan.fit.mechanism, whitening=dp.PrivateWhitening()
    )
    budget = dp.Budget(whole)
    found = tune_repeated([template], data(), whole, repetitions=law, size=500, budget=budget, whitening="auto", seed=0)
    assert [entry.privacy for entry in budget.entries] == [whole]
    assert found.release.certificate == plan.certificate
    assert np.mean(found.release.predict(data()["x"]) == data()["y"]) > 0.9
