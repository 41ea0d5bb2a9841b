"""Private choice: exact frequencies, and a guarantee that covers the whole."""

import re
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from learners_of_tests import choice_law
from refused import refused

import dpconvex as dp
from dpconvex.estimators import classifiers, counts, regressors
from dpconvex.estimators.base import Private
from dpconvex.estimators.options import TAKEN
from dpconvex.fitting.solve import FitJob
from dpconvex.fitting.verify import FitOptions
from dpconvex.mechanisms.private_selection import mistake_rate
from dpconvex.noise.samplers import seeded_generator
from dpconvex.selection.record_counter import RecordCounter
from dpconvex.selection.tune import parts, repetition_plan, tune, tune_repeated


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
def test_the_certificate_of_a_choice_believes_no_event_of_the_fit(adjacency):
    """A record may be in the choice, which loses epsilon in full, where a fit with noise for a small delta loses less."""
    promise = dp.Privacy(1.0, 1e-9, adjacency)
    size = 200 if adjacency == "add-remove" else None
    found = dp.tune(grid(0.01, 1.0, 9.0), data(200), promise, size=size).release.certificate
    assert found.event is None
    assert found.risk(0.4) <= np.exp(-1) * 0.6 + 1e-9
    assert found.for_group(1, delta=0.08).epsilon > 0.8
    ledger = dp.Budget(dp.Privacy(5.0, 1e-6, adjacency), accounting="gaussian")
    with pytest.raises(dp.BudgetExceeded, match=r"alone costs epsilon = 6\.2"):  # it took 31 of the fit's events
        ledger.spend(found.privacy, "tuned", found.event)
    assert found.size == 50
    text = f"{found}\n{found.explain()}"
    assert "n = 200" in text
    assert "the best of 3 fits to parts of the data, one of 4 parts each, by" in text
    assert "every record is in one part of the data" in " ".join(found.check().trusted)
    assert dp.Certificate.from_json(found.to_json()) == found


def visits(adjacency, keep, epsilon=3.0, delta=1e-6, most=3):
    return dp.Privacy(epsilon, delta, adjacency, unit="patient", most=most, keep=keep)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("keep", ["no people", None, "first", "random", "weights"])
def test_a_persons_records_are_in_one_fit_or_in_the_choice_which_pays_for_all(adjacency, keep, monkeypatch):
    """Why the whole costs what one part costs: nobody's record is used twice, and every part keeps the whole promise."""
    alone, columns, used, choice = keep == "no people", data(400), [], []
    promise = dp.Privacy(3.0, 1e-6, adjacency) if alone else visits(adjacency, keep)
    whose = np.random.default_rng(1).permutation(np.repeat(np.arange(160), [3] * 80 + [2] * 80))
    whose = np.arange(400) if alone else whose
    if keep in ("first", "random"):
        whose[whose == 7] = 8  # who has six

    def fit(self, way, mine, source, people=None):
        assert way.certificate.privacy == promise
        rows = {tuple(row) for row in mine.fields["x"]}
        persons = {int(p) for row, p in zip(columns["x"], whose, strict=True) if tuple(row) in rows}
        assert mine.size == len(rows)
        assert alone or len(people.of) == len(people.kept) == mine.size
        assert alone or len(np.unique(people.of)) == len(persons)
        if adjacency == "replace-one":
            assert way.certificate.size == (len(persons) if keep == "weights" else mine.size)
        used.append(persons)
        return dp.Release({"w": np.zeros(3)}, spent=promise, predictor=lambda p, x: np.ones(len(x), dtype=int))

    def choose(counts, epsilon, neighbours, rng):
        choice.append(float(counts[0]))
        assert (epsilon, neighbours) == (3.0, adjacency)
        return 0

    monkeypatch.setattr(FitJob, "run", fit)
    monkeypatch.setattr("dpconvex.selection.tune.select", choose)
    budget = dp.Budget(promise)
    size = 400 if adjacency == "add-remove" else None
    tune(grid(0.01, 0.1, 1.0), columns, promise, size=size, unit=None if alone else whose, budget=budget)
    assert [(entry.privacy, entry.event) for entry in budget.entries] == [(promise, None)]
    assert sum(map(len, used)) == len(set.union(*used))
    held_out = [k for k in range(400) if whose[k] not in set.union(*used)]
    wrong, people = (columns["y"] != 1), dict[int, list[bool]]()
    for k in held_out:
        people.setdefault(int(whose[k]), []).append(bool(wrong[k]))
    if keep == "weights":  # one person moves the count by one at most
        assert choice == [pytest.approx(sum(map(np.mean, people.values())), abs=1e-3)]
    else:  # three records, by one together
        kept = sum(sum(own[:3]) for own in people.values())
        off = 3 if keep == "random" else 0
        assert abs(choice[0] * (1 if alone else 3) - kept) <= off


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("how", ["parts", "all", pytest.param("repeated", marks=pytest.mark.slow)])
def test_people_are_tuned_for(how, adjacency):
    how = partial(dp.tune, split=False, mechanism=dp.OutputPerturbation("gaussian")) if how == "all" else TUNE[how]
    columns, whose = data(600), np.arange(600) // 3
    size = 600 if adjacency == "add-remove" else None
    refused(dp.TemplateError, "identifier", how, grid(0.01, 0.1), columns, visits(adjacency, None), size=size)
    for keep in (None, "weights"):
        budget = dp.Budget(visits(adjacency, keep, 20.0))
        found = how(grid(1e-3, 1e-2), columns, visits(adjacency, keep, 20.0), size=size, unit=whose, budget=budget)
        assert [entry.privacy for entry in budget.entries] == [visits(adjacency, keep, 20.0)]
        assert found.spent == found.release.certificate.privacy == visits(adjacency, keep, 20.0)
        assert np.mean(found.release.predict(columns["x"]) == columns["y"]) > 0.7


def test_the_choice_of_people_is_as_private_as_claimed():
    """Exact laws of permute-and-flip, for counts that three records of one person move as far as they can."""
    for adjacency, ends in (("replace-one", [(0, 3, 1), (3, 0, 4)]), ("add-remove", [(0, 3, 1), (0, 6, 4)])):
        laws = [choice_law(np.array(counts) / 3, mistake_rate(2.0, adjacency)) for counts in ends]
        ratios = np.abs(np.log(laws[0] / laws[1]))
        assert ratios.max() <= 2.0 + 1e-9
        naive = [choice_law(np.array(counts), mistake_rate(2.0, adjacency)) for counts in ends]
        assert np.abs(np.log(naive[0] / naive[1])).max() > 2.5


def is_learner(kind):
    return isinstance(kind, type) and issubclass(kind, Private) and bool(kind.problem)


TUNE = {"parts": dp.tune, "repeated": tune_repeated}
OTHERS = {
    **{"epsilon": 2.0, "delta": 1e-6, "adjacency": "add-remove", "unit": "patient", "most": 3, "keep": "first"},
    **{"regularization": 0.3, "radius": 2.0, "fit_intercept": True, "intercept_scaling": 0.7, "clip": True},
    **{"size": 9, "mechanism": dp.OutputPerturbation(), "backend": "conic", "budget": dp.Budget(dp.Privacy(1.0))},
    **{"seed": 0, "classes": ("n", "y"), "width": 0.2, "competitors": "summed", "learner": None},
    **{"bounds": (-2, 5), "bound": 2.0, "threshold": 0.1, "quantile": 0.2, "confidence": 0.9, "alpha": 0.1},
    **{"exposure": 2.0, "weight": 2.0, "power": 1.2},
    **{"components": 3, "kernel": "laplace", "gamma": 2.0, "feature_seed": 5},
}
KINDS = [k for k in [*vars(classifiers).values(), *vars(regressors).values(), *vars(counts).values()] if is_learner(k)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_option_of_an_estimator_is_part_of_its_template_or_refused(kind):
    """Whoever adds an option adds a value here, and sees that it is not dropped."""
    asked = dict.fromkeys(TAKEN) | {"epsilon": 3.0, "delta": 1e-6, "adjacency": "replace-one", "most": 1, "clip": False}
    usual = {"bounds": (0, 9)} if issubclass(kind, regressors.PrivateRegressor) else {}
    columns = {"x": np.zeros((2, 2, 4) if kind is dp.MetricLearner else (2, 4)), "y": [0, 1]}

    def candidate(**options):
        return kind(**usual | options).candidate(columns, "x", "y", asked, ())

    if kind in (dp.LargeMarginGaussianMixture, dp.MetricLearner):
        refused(dp.TemplateError, "maps features first|learns the field", candidate)
        return
    for item in fields(kind):
        given = not item.default if item.name == "fit_intercept" else OTHERS[item.name]
        if item.name in (*TAKEN, "exposure", "weight"):
            refused(dp.TemplateError, "an option of tune|fields beside|pass exposure", candidate, **{item.name: given})
            continue
        try:
            own = kind(**usual | {item.name: given}, epsilon=3.0, delta=1e-6).template(4)
        except dp.TemplateError as error:
            refused(dp.TemplateError, re.escape(str(error)), candidate, **{item.name: given})
        else:
            model, template, _ = candidate(**{item.name: given})
            assert repr(template.source) == repr(own.source)
            assert getattr(model, item.name) == given


@pytest.mark.parametrize(
    ("choose", "kind", "varied"),
    [
        (dp.tune, dp.Ridge, {"regularization": [1e-6, 10.0]}),
        (dp.tune, dp.PoissonRegressor, {"alpha": [1e-6, 1e3]}),
        (partial(tune_repeated, repetitions=dp.Repetitions(mean=2)), dp.QuantileRegressor, {"quantile": [0.4, 0.5]}),
    ],
)
def test_regressors_are_chosen_in_the_units_of_their_bounds(choose, kind, varied):
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (3000, 2))
    y = 20_000 * np.exp(x[:, 0]) + rng.uniform(0, 2000, 3000)
    budget = dp.Budget(dp.Privacy(20.0, 1e-4))
    given = {"privacy": dp.Privacy(10.0, 1e-6), "grid": varied, "seed": 0}
    found = choose(kind(bounds=(0, 60_000)), {"x": x, "y": y}, **given, budget=budget)
    assert len(budget.entries) == 1
    assert np.median(np.abs(found.model.predict(x) - y)) < 3000
    assert found.model.release_ is found.release
    np.testing.assert_allclose(found.release.predict(x).clip(-1, 1), found.model.predict(x) / 30_000 - 1, atol=1e-9)
    parts = dp.Partitions([{"x": x[:2000], "y": y[:2000]}, {"x": x[2000:], "y": y[2000:]}])
    np.testing.assert_allclose(choose(kind(bounds=(0, 60_000)), parts, **given).model.coef_, found.model.coef_)


def test_learners_with_feature_maps_are_candidates():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (3000, 2))
    columns, promise = {"x": x, "y": (np.linalg.norm(x, axis=1) > 0.5).astype(int)}, dp.Privacy(9.0, 1e-5)
    found = dp.tune(dp.KernelSVC(), columns, promise, grid={"gamma": [1e-3, 5.0], "components": [20, 40]}, seed=0)
    assert found.model.gamma == 5.0
    assert np.mean(found.model.predict(x) == columns["y"]) > 0.9
    kinds = {"linear": dp.LogisticRegression(), "kernel": dp.KernelSVC(gamma=5.0)}
    for names in (["linear", "kernel"], ["kernel", "linear"]):
        assert dp.tune({name: kinds[name] for name in names}, columns, promise, seed=0).choice == "kernel"
    many = dp.Repetitions(mean=9)
    assert tune_repeated(kinds, columns, promise, repetitions=many, seed=0).choice in kinds


RANGES = dp.Schema({"a": (-1, 1), "b": (-1, 1)}, label="y", label_bounds=(0, 60))


@pytest.mark.parametrize("choose", [dp.tune, tune_repeated])
def test_what_regressors_cannot_be_chosen_for_costs_nothing(choose):
    x, y = np.zeros((60, 2)), np.arange(60.0)
    budget, columns, promise = dp.Budget(dp.Privacy(9.0, 1e-3)), {"x": x, "y": y}, dp.Privacy(5.0, 1e-6)
    lambdas = {"regularization": [1e-4, 1.0]}
    learnt = dp.learn_schema({"a": np.arange(3000.0), "y": np.arange(3000.0)}, dp.Privacy(2.0, 1e-6), label="y", seed=0)
    for said, model, varied in (
        ("bounds of the target", dp.Ridge(), lambdas),
        ("lists of values", dp.Ridge(bounds=(0, 60)), {"regularization": 1.0}),
        ("different records", dp.Ridge(), {"bounds": [(0, 60), (0, 61)]}),
        ("are the same fit", dp.LinearRegression(bounds=(0, 60)), {"confidence": [0.9, 0.95]}),
        ("were learnt", dp.Ridge(bounds=learnt), lambdas),
        (r"model\.template\(columns\)", dp.AdditiveRegressor(RANGES, bounds=(0, 60)), lambdas),
    ):
        refused(dp.TemplateError, said, choose, model, columns, promise, grid=varied, budget=budget)
    template = dp.load("ridge_regression", features=2)
    refused(dp.TemplateError, "different", choose, [template, dp.Ridge(bounds=(0, 9))], columns, promise, budget=budget)
    assert not budget.entries
    with pytest.raises(dp.DomainError, match="stays paid for"):
        choose(dp.Ridge(bounds=(0, 9)), columns, promise, grid=lambdas, budget=budget)


@pytest.mark.parametrize("choose", [dp.tune, tune_repeated])
@pytest.mark.parametrize("name", ["epsilon", "unit", "most", "mechanism", "budget", "clip", "seed"])
def test_options_of_an_estimator_that_are_for_the_call_cost_nothing(choose, name):
    budget, given = dp.Budget(dp.Privacy(9.0)), {"unit": "patient"} | {name: OTHERS[name]}
    given = given if name == "most" else {name: OTHERS[name]}
    for value, values in ((given[name], [0.1]), (getattr(dp.LogisticRegression(), name), [0.1, 0.2])):
        model = dp.LogisticRegression(classes=(-1, 1), **({name: value} if value is given[name] else {}))
        varied = {"regularization": values} if value is given[name] else {name: [value]}
        refused(dp.TemplateError, "option of tune", choose, model, data(60), dp.Privacy(5), grid=varied, budget=budget)
    assert not budget.entries


def test_a_regression_is_chosen_by_its_squared_errors():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, (6000, 2))
    records = {"x": x, "y": np.clip(1.2 * x[:, 0], -1, 1)}
    candidates = {f"{r:g}": dp.load("huber_regression", features=2, regularization=r) for r in (0.01, 1e3)}
    assert dp.tune(candidates, records, dp.Privacy(20.0, 1e-6)).choice == "0.01"
    found = dp.tune_repeated([candidates["0.01"]], records, dp.Privacy(20.0, 1e-6))
    exact = float(np.sum((records["y"] - found.release.predict(x)) ** 2)) / 4
    assert found.mistakes == pytest.approx(exact, abs=50)
    with pytest.raises(dp.TemplateError, match="more than one value"):
        dp.tune([dp.load("discrete_hazards", features=2)], {"x": x, "y": -np.ones((6000, 6))}, dp.Privacy(1.0))


def test_one_regression_record_moves_its_squared_error_by_one_at_most():
    """The worst residual counts as one, in whole steps; what cannot be predicted, too."""
    learner = dp.load("huber_regression", features=1)
    for factor, worst in ((1.0, 1.0), (np.nan, 1.0), (0.0, 0.25)):
        said = {"predictor": lambda p, x, factor=factor: factor * x[:, 0]}
        release = dp.Release({"w": [1.0]}, not_private_because="a test", **said)
        counter = RecordCounter(learner.record, release, "x", "y", dp.Privacy(1.0))
        alone = [counter.mistakes(learner.record.validate({"x": [[1.0]], "y": [y]})) for y in (-1.0, 1.0)]
        assert max(alone) == worst * counter.moved
        assert counter.mistakes(learner.record.validate({"x": [[1.0]] * 2, "y": [-1.0, 1.0]})) == sum(alone)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_every_share_of_the_budget_adds_up(adjacency):
    whole, law = dp.Privacy(1.0, 1e-6, adjacency), dp.Repetitions(mean=6)
    template = grid(0.01)["0.01"]
    fit, score, certificate = repetition_plan(template, whole, law, 500, FitOptions(dp.ObjectivePerturbation()))
    run = dp.Privacy(fit.certificate.epsilon + score.epsilon, fit.certificate.delta, adjacency)
    spent = law.total(run)
    assert 0.999 * whole.epsilon <= spent.epsilon <= whole.epsilon
    assert spent.delta <= whole.delta
    assert score.epsilon == pytest.approx(0.1 * run.epsilon)
    assert fit.certificate == dp.verify(template, fit.certificate.privacy, 500, dp.ObjectivePerturbation())
    assert certificate.privacy == whole
    text = f"{certificate}\n{certificate.explain()}"
    assert "how many runs there were" in str(certificate)
    assert "the best of 6 runs on average of objective perturbation" in text
    assert "Nobody learns how many runs there were" in text
    assert dp.Certificate.from_dict(certificate.to_dict()) == certificate


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
