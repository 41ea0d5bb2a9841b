"""Private choice: exact frequencies, and a guarantee that covers the whole."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.learners.tune import parts, planned, tune, tune_repeated
from dpconvex.noise.samplers import seeded_generator
from dpconvex.release.solve import Fit
from dpconvex.release.verify import Method


@pytest.mark.parametrize("tune", [dp.tune, dp.tune_repeated])
def test_candidates_that_predict_from_other_features_than_they_are_fitted_on_are_refused(tune):
    budget = dp.Budget(dp.Privacy(8.0))
    kernel = dp.load("kernel_svm", features=5)
    data = {"x": np.zeros((20, kernel.record.fields["x"].shape[0])), "y": [1, -1] * 10}
    with pytest.raises(dp.TemplateError, match="does not predict for"):
        tune({"kernel": kernel}, data, dp.Privacy(8.0), budget=budget)
    assert not budget.entries


def test_under_add_remove_a_record_does_not_move_the_others():
    first, second = (parts(size, 4, 12, "add-remove", seeded_generator(1)) for size in (50, 51))
    assert np.array_equal(first, second[:50])
    assert np.bincount(parts(51, 4, 12, "replace-one", seeded_generator(1))).tolist() == [12, 12, 12, 15]


def data(size=2000):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(size, 3))
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}


def grid(*regularizations):
    return {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in regularizations}


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_every_record_is_in_one_fit_or_in_the_choice(adjacency, monkeypatch):
    """Why the whole costs what one part costs: nobody's record is used twice, and every part keeps the whole promise."""
    promise = dp.Privacy(2.0, adjacency=adjacency)
    columns, used, chosen_on = data(400), list[np.ndarray](), list[int]()

    def fit(self, way, mine, source):
        assert way.certificate.privacy == promise
        assert adjacency == "add-remove" or way.certificate.size == mine.size
        used.append(mine.fields["x"])
        return dp.Release({"w": np.zeros(3)}, spent=promise, predictor=lambda p, x: np.ones(len(x), dtype=int))

    def choose(counts, epsilon, neighbours, rng, how):
        assert (epsilon, neighbours) == (2.0, adjacency)
        chosen_on.append(counts[0])
        return 0

    monkeypatch.setattr(Fit, "run", fit)
    monkeypatch.setattr("dpconvex.learners.tune.select", choose)
    outcome = tune(grid(0.01, 0.1, 1.0), columns, promise, size=400 if adjacency == "add-remove" else None)
    assert outcome.spent == promise
    together = np.concatenate(used)
    assert len(np.unique(together, axis=0)) == len(together)
    left = {tuple(row) for row in columns["x"]} - {tuple(row) for row in together}
    assert len(left) == 400 - len(together)
    held_out = np.array([tuple(row) in left for row in columns["x"]])
    assert chosen_on == [int((columns["y"][held_out] != 1).sum())]


def test_an_estimator_stands_for_the_template_that_it_fits():
    candidates = {"mine": dp.LogisticRegression(classes=(-1, 1), regularization=0.1)}
    assert dp.tune(candidates, data(400), dp.Privacy(5.0)).choice == "mine"
    with pytest.raises(dp.TemplateError, match="maps features first"):
        dp.tune([dp.KernelSVC(classes=(-1, 1))], data(400), dp.Privacy(5.0))


PLAIN = dp.load("logistic_regression", features=2)
UP = np.ones(2)
RECORDS = {"x": np.zeros((90, 2)), "y": np.ones(90, dtype=int)}


def declaring(x, y):
    w = cp.Variable(2, name="w")
    record = dp.Record(x=x, y=dp.Choice(y))
    return dp.Template(record, lambda x, y: cp.logistic(x @ w), cp.sum_squares(w), predict=lambda p, x: np.ones(len(x)))


@pytest.mark.parametrize("choose", [dp.tune, dp.tune_repeated], ids=["split", "repeated"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seed": "a"}, "seed must be"),
        ({"backend": "zz"}, "unknown backend"),
        ({"clip": "yes"}, "clip must be"),
        ({"features": "q"}, "no field 'q'"),
        ({"label": ["y"]}, "no field"),
        ({"candidates": [declaring(dp.Ball(2), [1, 2]), declaring(dp.Ball(2), [1, 3])]}, "different records"),
        ({"candidates": [declaring(dp.Ball(2), [1]), declaring(dp.Ball(2, norm=1), [1])]}, "different records"),
        ({"candidates": [declaring(dp.Box(-UP, 2 * UP), [1]), declaring(dp.Box(-UP, UP), [1])]}, "different records"),
    ],
    ids=str,
)
def test_a_mistake_in_the_call_costs_nothing(choose, changes, complaint):
    budget = dp.Budget(dp.Privacy(9.0))
    arguments = {"candidates": [PLAIN, PLAIN], "data": RECORDS, "privacy": dp.Privacy(1.0)} | changes
    with pytest.raises(dp.TemplateError, match=complaint):
        choose(**arguments, budget=budget)
    assert budget.spent.epsilon == 0


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_every_share_of_the_budget_adds_up(adjacency):
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
    text = f"{plan.certificate}\n{plan.certificate.explain()}"
    assert "how many runs there were" in str(plan.certificate)
    assert "the best of 6 runs on average of objective perturbation" in text
    assert "Nobody learns how many runs there were" in text
    assert dp.Certificate.from_dict(plan.certificate.to_dict()) == plan.certificate


def test_the_number_of_runs_is_fixed_before_the_data_are_read(monkeypatch):
    order = []

    def watched(kind, name):
        method = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, **options: order.append(name) or method(*given, **options))

    watched(dp.Record, "validate")
    watched(dp.Repetitions, "draw")
    tune_repeated(grid(0.1), data(50), dp.Privacy(1.0), repetitions=dp.Repetitions(1.5))
    assert order[:2] == ["draw", "validate"]
    assert order.count("draw") == 1


def test_a_whitened_run_costs_what_its_plan_says():
    whole, law = dp.Privacy(4.0, 1e-5, "add-remove"), dp.Repetitions(mean=2)
    template = grid(1e-6)["1e-06"]
    plan = planned(template, whole, law, 500, Method(whitening="auto"))
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
