"""Evaluations predict from all fields that a template names, and of one of several targets."""

import cvxpy as cp
import numpy as np
import pytest
from judged_models import LOGISTIC, MODEL, X, Y
from refused import refused

import dpconvex as dp


def test_predictions_use_the_fields_that_they_name():
    w, a = cp.Variable(2, name="w"), cp.Variable(3, name="a")
    domains = {"x": dp.Ball(2), "g": dp.Choice(["a", "b", "c"]), "off": dp.Box(-1, 1), "y": dp.Box(-4, 4)}
    effects = np.array([0.0, 2.0, -2.0])

    def predict(p, x, g, *, off, scale=1.0):
        return scale * (
            x @ p["w"] + p["a"]["abc".index(g[0]) if len(g) == 1 else np.searchsorted(["a", "b", "c"], g)] + off
        )

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
            dp.evaluate(learner, model, **{"data": data, "privacy": dp.Privacy(1.0), "budget": budget} | given)
    for fields in ({}, {"g": g}, {"g": g, "off": off, "y": y}):
        refused(dp.TemplateError, r"pass x, g=\.\.\., off=\.\.\., and no other", model.predict, x, **fields)
    refused(dp.DomainError, "'off': 1", model.predict, x, g=g, off=0.5)
    refused(dp.TemplateError, "predict needs 'z'", template, predict=lambda p, x, z: z)
    bare = dp.Release(dict(model), not_private_because="a test")
    with pytest.raises(dp.TemplateError, match="declares no `predict` or `decision`"):
        dp.evaluate(learner, bare, data, dp.Privacy(1.0), budget=budget)
    refused(dp.TemplateError, "predicts from x alone", model.to_onnx, "model.onnx")
    assert budget.entries == ()


def test_one_of_several_targets_is_evaluated():
    W = cp.Variable((2, 2), name="W")
    record = dp.Record(x=dp.Ball(2), y=dp.Box([-1.0, -2.0], [1.0, 50.0]))
    several = dp.Template(record, lambda x, y: cp.sum_squares(x @ W - y), predict=lambda p, x: x @ p["W"])
    model = dp.Release({"W": np.eye(2)}, not_private_because="a test", predictor=several.predict)
    x = dp.Ball(2).project(np.random.default_rng(0).normal(size=(2000, 2)))
    data, budget = {"x": x, "y": np.column_stack([x[:, 0], np.full(2000, 10.0)])}, dp.Budget(dp.Privacy(50.0))
    found = [dp.evaluate(several, model, data, dp.Privacy(50.0), target=k, seed=1) for k in (0, 1)]
    assert [one.label for one in found] == ["y[0]", "y[1]"]
    assert found[0].error < 0.01
    assert found[1].error == pytest.approx(np.mean((x[:, 1] - 10) ** 2), rel=0.05)
    for target in (None, 2, -1, True, 0.0):
        with pytest.raises(dp.TemplateError, match=r"has 2 numbers.* by target=0 to target=1"):
            dp.evaluate(several, model, data, dp.Privacy(1.0), target=target, budget=budget)
    with pytest.raises(dp.TemplateError, match=r"has not several numbers\. Leave target out"):
        dp.evaluate(LOGISTIC, MODEL, {"x": X, "y": Y}, dp.Privacy(1.0), target=0, budget=budget)
    assert budget.entries == ()
