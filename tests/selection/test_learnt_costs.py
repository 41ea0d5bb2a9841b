"""What a learnt schema costs: charged once to each budget, stated by every result, and refused before it is paid."""

import json
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from learnt_tables import PRIVACY, table_of
from refused import refused
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import Normalizer, PolynomialFeatures

import dpconvex as dp

LINE = dp.Record(x=dp.Ball(1))


@pytest.mark.parametrize(("rows", "number"), [(100, "replace-one"), (0, "add-remove"), (40, "add-remove")])
def test_too_few_records_are_refused_before_payment_or_by_noise_where_their_number_is_protected(rows, number):
    budget, privacy = dp.Budget(dp.Privacy(3.0, 1e-5, number)), dp.Privacy(0.2, 1e-6, number)
    kind, said = (dp.NotConverged, "stays paid") if rows < 100 else (dp.NotPrivate, "records.*nothing was spent")
    refused(kind, said, dp.learn_schema, table_of(rows), privacy, label="cost", budget=budget)
    assert len(budget.entries) == (rows < 100)


@pytest.mark.parametrize("accounting", ["basic", "gaussian", "renyi"])
def test_a_ledger_has_room_for_a_schema_of_its_own_delta(accounting):
    """Rare levels counted 1 + exp(total epsilon) times, so a schema at a fifth of the ledger's delta was refused."""
    budget = dp.Budget(dp.Privacy(3.0, 1e-5), accounting=accounting)
    dp.learn_schema(table_of(2000), dp.Privacy(1.0, 1e-5), label="cost", budget=budget)
    assert len(budget.entries) == 1


def test_it_is_saved_with_its_cost(tmp_path):
    schema = dp.learn_schema(table_of(4000), PRIVACY, label="ward")
    path = tmp_path / "learnt.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert dp.Schema.load(path) == schema == dp.Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert dp.Schema.load(path).learnt.event["parts"][0]["mu"] > 0.2
    X, y = schema.encode(table_of(4000))
    model = dp.SoftmaxRegression(epsilon=1.0, delta=1e-6, classes=schema.labels).fit(X, y)
    model.save(tmp_path / "model.npz")
    release = dp.Release.load(tmp_path / "model.npz")
    assert release.schema == schema
    assert release.private
    assert "to learn the schema, spent: epsilon = 1" in release.status


def test_a_budget_counts_it_once():
    table = {name: column for name, column in table_of(4000).items() if name in ("age", "ward", "cost")}
    own, later = dp.Budget(dp.Privacy(9.0, 1e-4)), dp.Budget(dp.Privacy(9.0, 1e-4))
    schema = dp.learn_schema(table, PRIVACY, label="cost", budget=own)
    X, y = schema.encode(table)
    template = dp.load("ridge_regression", features=X.shape[1])
    for budget in (own, later):
        dp.solve(template, {"x": X, "y": y}, PRIVACY, budget=budget)
        dp.Ridge(epsilon=1.0, delta=1e-6, budget=budget).fit(X, y)
        last = dp.Ridge(epsilon=1.0, delta=1e-6, budget=budget, bounds=schema)
        make_pipeline(dp.SchemaEncoder(schema), last).fit(table, table["cost"])
        assert [entry.label for entry in budget.entries].count(schema.learnt.entry) == 1
        assert len(budget.entries) == 4
        assert budget.spent.epsilon == 4.0
    refused(dp.BudgetExceeded, None, dp.Ridge(delta=1e-6, budget=dp.Budget(dp.Privacy(1.5, 1e-4))).fit, X, y)


def test_a_second_label_takes_over_what_was_learnt():
    table = {name: column for name, column in table_of(4000).items() if name in ("age", "ward", "cost")}
    table["again"] = ["no", "yes"] * 2000
    first = dp.learn_schema(table, PRIVACY, label="again", ignore=["cost"])
    later = dp.learn_schema(table, PRIVACY, label="cost", known=first)
    public, budget = first.with_label("cost", label_bounds=(0, 9)), dp.Budget(dp.Privacy(9.0, 1e-4))
    for schema, paid in ((later, 3.0), (public, 4.0)):
        assert schema.features == first.features
        assert dp.Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
        X, y = schema.encode({**table, "age": ["x", *table["age"][1:]], "ward": ["never seen", *table["ward"][1:]]})
        release = dp.solve(dp.load("ridge_regression", features=X.shape[1]), {"x": X, "y": y}, PRIVACY, budget=budget)
        assert budget.spent.epsilon == paid
        assert release.certificate.whole[0].epsilon == (3.0 if schema is later else 2.0)
        assert not release.schema.decode_target(y).max() > schema.label_bounds[1]
    with pytest.warns(dp.PrivacyWarning, match=r"outside \[-1, 1\]"):
        later.decode_target([100.0, 200.0])


def test_fields_of_two_schemas_learnt_apart_are_refused_since_one_would_not_be_charged():
    table = {name: column for name, column in table_of(2000).items() if name in ("age", "cost")}
    one, other = (dp.learn_schema(table, PRIVACY, label="cost") for _ in range(2))
    X, y, budget = one.encode(table)[0], other.encode(table)[1], dp.Budget(dp.Privacy(9.0, 1e-4))
    template = dp.load("ridge_regression", features=X.shape[1])
    for fit in (
        lambda: dp.solve(template, {"x": X, "y": y}, PRIVACY, budget=budget),
        lambda: dp.statistics(template, {"x": X, "y": y}, PRIVACY, budget=budget),
        lambda: dp.Ridge(epsilon=1.0, delta=1e-6, bounds=other, budget=budget).fit(X, table["cost"]),
    ):
        refused(dp.TemplateError, "learnt independently", fit)
    assert not budget.entries


@pytest.fixture(scope="module")
def seeded():
    """A table of two columns, with a schema that is not private."""
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(0, 90, 4000), "cost": rng.normal(size=4000)}
    table["cost"] += table["age"] / 30
    return table, dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="cost", seed=0)


def test_every_result_states_and_pays_what_its_schema_cost(seeded, tmp_path):
    table, schema = seeded
    X, y = schema.encode(table)
    learner, data = dp.load("ridge_regression", features=1), {"x": X, "y": y}
    budgets = [dp.Budget(dp.Privacy(99.0, 1e-4)) for _ in range(3)]
    functions = dp.fitting.release.functions_of(learner)
    release = dp.Release({"w": [0.5]}, spent=dp.Privacy(3.0, 1e-6), schema=schema, **functions)
    found = [
        dp.evaluate(learner, release, data, dp.Privacy(1.0), budget=budgets[0]),
        dp.cluster(LINE, {"x": X}, PRIVACY, group=None, budget=budgets[1]),
        dp.intervals(learner, release, data, dp.Privacy(3.0, 1e-6), budget=budgets[2]),
    ]
    for one, budget in zip(found, budgets, strict=True):
        assert not one.private
        assert "to learn the schema, NOT PRIVATE" in one.status
        assert [item.label for item in budget.entries][:1] == [schema.learnt.entry]
        assert len(budget.entries) == 2
    assert "to learn the schema" in repr(found[2])
    assert dp.tune([learner, dp.load("ridge_regression", features=1)], data, dp.Privacy(3.0, 1e-6)).spent is None
    mixture = dp.load("large_margin_gaussian_mixture", features=1, components=2)
    assert dp.solve_mixture(mixture, {"x": X, "y": np.arange(4000) % 2}, dp.Privacy(3.0)).spent is None
    (tmp_path / "intervals.json").write_text(json.dumps(found[2].to_dict()), encoding="utf-8")
    again = [dp.Evaluation.from_dict(json.loads(json.dumps(found[0].to_dict())))]
    again.append(dp.ComponentCenters.from_bytes(found[1].to_bytes()))
    again.append(dp.Coefficients.load(tmp_path / "intervals.json"))
    assert [one.status for one in again] == [one.status for one in found]


def test_groups_and_events_of_a_release_count_the_schema(seeded):
    learner, privacy = dp.load("logistic_regression", features=1), dp.Privacy(3.0, 1e-6)
    alone = dp.verify(learner, privacy, 4000, dp.AdaptiveSteps())
    found = dp.Release({"w": [0.5]}, alone, privacy, schema=seeded[1]).certificate
    assert found.for_group(1) == found.whole[0] == dp.Privacy(6.0, 2e-6)
    again = dp.Certificate.from_json(found.to_json())
    assert again.whole == found.whole
    assert str(again).splitlines()[:-1] == str(found).splitlines()[:-1]
    assert dp.Certificate.from_dict(found.to_dict()).risk(0.1) == found.risk(0.1)
    edited = found.to_dict()
    edited["learnt"]["privacy"]["epsilon"] = 0.1
    refused(dp.TemplateError, "learn the schema again", dp.Certificate.from_dict, edited)
    assert found.for_group(1, 1e-4).epsilon > 1.3 * alone.for_group(1, 1e-4).epsilon
    pytest.importorskip("dp_accounting")
    refused(dp.NotPrivate, "beyond=1", dp.interop.dp_event, found)
    both = dp.interop.dp_event(found, beyond=2e-6).events
    assert both[0] == dp.interop.dp_event(alone)
    assert 1 / both[1].noise_multiplier == pytest.approx(2 * np.log1p(np.expm1(3.0) / 2))


def written(schema, rows):
    """Return features that a public schema made, over which others were written."""
    found = dp.Schema({"age": (0, 90)}, "cost", label_bounds=(0, 1)).encode({"age": [3.0] * 50}, labelled=False)[0]
    found[:5] = rows[:5]
    return found


def sparse(schema):
    return schema.encode({"age": [3.0] * 50}, labelled=False, sparse=True)[0]


MADE = {
    "multiplied": lambda X, _: X * 1.0,
    "cast": lambda X, _: X.astype(np.float32),
    "sent to a worker": lambda X, _: pickle.loads(pickle.dumps(X)) * 1.0,
    "stacked": lambda X, _: np.hstack([X, np.zeros_like(X)]),
    "normalised": lambda X, _: dp.GroupNormalizer(1).fit_transform(np.hstack([X, 1 - X])),
    "Fourier features": lambda X, _: dp.RandomFourierFeatures(1, 3).transform(X),
    "splines": lambda _, schema: dp.SplineEncoder(schema).fit_transform({"age": [3.0, 5.0] * 25}),
    "scaled": lambda X, _: dp.datasets.unit_ball(X, -1, 1),
    "written over": lambda X, schema: written(schema, X),
    "made dense": lambda _, schema: sparse(schema).toarray() * 0.5,
    "made dense by another name": lambda _, schema: sparse(schema).todense(),
    "sparse rows": lambda _, schema: sparse(schema)[::1] * 0.5,
    "projected": lambda _, schema: sparse(schema) @ np.array([[0.5, 0.5]]),
}


@pytest.mark.parametrize("way", MADE)
def test_arrays_that_are_computed_from_features_keep_the_cost_of_their_schema(way, seeded):
    table, schema = seeded
    X, y = schema.encode({name: column[:50] for name, column in table.items()})
    x, budget = MADE[way](X, schema), dp.Budget(dp.Privacy(9.0, 1e-4))
    learner = dp.load("ridge_regression", features=x.shape[1])
    found = dp.statistics(learner, {"x": x, "y": np.asarray(y)}, PRIVACY, budget=budget)
    assert budget.entries[0].label == schema.learnt.entry
    assert found.schema is None
    assert not found.private
    assert dp.Statistics.from_bytes(found.to_bytes()).status == found.fit().status == found.status
    if way == "splines":
        assert not dp.Ridge(epsilon=1.0, delta=1e-6, bounds=(-1, 1)).fit(x, np.asarray(y)).release_.private


def test_a_cheaper_promise_than_its_event_is_not_charged(seeded):
    table, schema = seeded
    said = schema.to_dict()
    said["learnt"]["privacy"] |= {"epsilon": 1e-6, "delta": 1e-30}
    X, y = dp.Schema.from_dict(said).encode(table)
    budget, learner = dp.Budget(dp.Privacy(3.0, 1e-5)), dp.load("ridge_regression", features=1)
    refused(dp.TemplateError, "event costs more", dp.solve, learner, {"x": X, "y": y}, PRIVACY, budget=budget)
    assert not budget.entries
    for forged, why in (({"columns": {"income": 9.0}}, "share of income"), ({"otherwise": "nobody"}, "nobody")):
        refused(dp.DPConvexError, why, dp.Schema.from_dict, said | {"learnt": said["learnt"] | forged})


@pytest.mark.parametrize("tail", [0.0, 4.74e-8])
def test_a_cheaper_event_than_its_promise_is_refused(tail, seeded):
    said = seeded[1].to_dict()
    parts = [{"kind": "gaussian", "mu": 1e-9}, {"kind": "tail", "probability": tail}]
    said["learnt"]["event"] = {"kind": "composition", "parts": parts}
    cheaper, forged = (dp.TemplateError, "its event costs less"), dp.Schema.from_dict(said)
    refused(*cheaper, dp.Release, {"w": [1.0]}, spent=PRIVACY, schema=forged)
    refused(*cheaper, dp.learn_schema, table_of(4000), PRIVACY, label="ward", known=forged)


PARTS = {
    "functions": lambda dask, x: dp.Partitions([lambda: {"x": x[:5]}, lambda: {"x": x[5:]}]),
    "delayed": lambda dask, x: dp.Partitions([dask.delayed({"x": x[:5]}), dask.delayed({"x": x[5:]})]),
    "delayed columns": lambda dask, x: {"x": [dask.delayed(x[:5]), dask.delayed(x[5:])]},
    "an array of Dask": lambda dask, x: {"x": dask.array.from_array(x, chunks=(5, -1), asarray=False) * 0.5},
}


@pytest.mark.parametrize("kind", PARTS)
def test_partitions_are_asked_what_their_features_cost(kind, seeded):
    dask, _ = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    _, schema = seeded
    parts = PARTS[kind](dask, schema.encode({"age": np.arange(20.0)}, labelled=False)[0])
    budget = dp.Budget(dp.Privacy(2.0, 1e-4))  # enough for the clusters
    refused(dp.BudgetExceeded, schema.learnt.entry, dp.cluster, LINE, parts, dp.Privacy(1), group=None, budget=budget)


def test_fits_and_evaluations_of_functions_are_charged_for_the_schema(seeded):
    table, schema = seeded
    X, y = schema.encode({name: column[:50] for name, column in table.items()})
    parts = dp.Partitions([lambda: {"x": X * 1.0, "y": np.asarray(y)}])
    learner, budgets = dp.load("ridge_regression", features=1), [dp.Budget(dp.Privacy(9.0, 1e-4)) for _ in range(2)]
    functions = dp.fitting.release.functions_of(learner)
    release = dp.Release({"w": [0.5]}, spent=dp.Privacy(3.0, 1e-6), **functions)
    found = [
        dp.evaluate(learner, release, parts, dp.Privacy(1.0), budget=budgets[0]),
        dp.Ridge(delta=1e-6, bounds=(-1, 1), budget=budgets[1]).fit(parts).release_,
    ]
    for one, budget in zip(found, budgets, strict=True):
        assert [item.label for item in budget.entries][:1] == [schema.learnt.entry]
        assert not one.private


def test_partitions_of_dask_that_say_too_late_what_they_cost_are_refused(seeded):
    dask, da = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    _, schema = seeded
    x = schema.encode({"age": np.arange(20.0)}, labelled=False)[0]
    known, late = ({"x": da.from_delayed(dask.delayed(x), x.shape, float, meta)} for meta in (x[:0], None))
    assert "learn the schema" in dp.cluster(LINE, known, dp.Privacy(1.0), group=None).status
    refused(dp.DomainError, "Dask does not show", dp.cluster, LINE, late, dp.Privacy(1), group=None)


SOME, SEARCH = ColumnTransformer, partial(GridSearchCV, param_grid={"seed": [1]}, cv=2, error_score="raise")
PIPELINES = {
    "rows of length 1": lambda made, fit: make_pipeline(made, PolynomialFeatures(2), Normalizer(), fit),
    "a pipeline in it": lambda made, fit: make_pipeline(make_pipeline(made, Normalizer()), fit),
    "in a pipeline": lambda made, fit: make_pipeline(made, make_pipeline(Normalizer(), fit)),
    "some columns": lambda made, fit: make_pipeline(SOME([("one", made, ["age", "cost"])]), Normalizer(), fit),
    "a union": lambda made, fit: make_pipeline(FeatureUnion([("one", made)]), Normalizer(), fit),
    "a search": lambda made, fit: make_pipeline(made, Normalizer(), SEARCH(fit)),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_pipelines_pay_for_every_schema_in_them(kind, seeded):
    pandas = pytest.importorskip("pandas")
    table, schema = seeded
    table, entry = pandas.DataFrame(table)[:50], schema.learnt.entry
    budget = dp.Budget(dp.Privacy(2.0, 1e-4))  # enough for the fits
    fit = dp.Ridge(epsilon=0.5, delta=1e-6, bounds=(-9, 9), clip=True, budget=budget)
    refused(dp.BudgetExceeded, entry, PIPELINES[kind](dp.SchemaEncoder(schema), fit).fit, table, table["cost"])
    theirs = replace(schema, learnt=None, privacy_unit="who")
    with pytest.raises(dp.TemplateError, match="identifies people"):
        PIPELINES[kind](dp.SchemaEncoder(theirs), fit).fit(table, table["cost"])
    if kind == "rows of length 1":
        found = PIPELINES[kind](dp.SchemaEncoder(schema), clone(fit).set_params(budget=None)).fit(table, table["cost"])
        assert "to learn the schema, NOT PRIVATE" in found[-1].release_.status
