"""ONNX graphs predict what releases and estimators predict, within 1e-6, as onnxruntime runs them."""

import numpy as np
import pytest
from refused import refused

import dpconvex as dp

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("sklearn")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 5))
X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
NEW = RNG.normal(size=(300, 5)) / 3 * np.where(np.arange(300) < 20, 100, 1)[:, None]
BINARY = np.where(X[:, 0] > 0, "yes", "no")
THREE = np.argmax(X[:, :3], axis=1)


def run(path, inputs):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert {item.name for item in session.get_inputs()} == set(inputs)
    return dict(zip((item.name for item in session.get_outputs()), session.run(None, inputs), strict=True))


def near(one, two):
    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


def is_same(found, model, rows, labelled):
    if not labelled:
        near(found["prediction"], model.predict(rows))
        assert set(found) == {"prediction"}
        return
    scores = model.decision_function(rows)
    near(found["score"], scores)
    sure = np.abs(scores if scores.ndim == 1 else np.ptp(np.sort(scores, axis=1)[:, -2:], axis=1)) > 1e-6
    assert (found["label"] == model.predict(rows))[sure].all()
    assert sure.mean() > 0.99
    assert ("probability" in found) == hasattr(model, "predict_proba")
    if "probability" in found:
        near(found["probability"], model.predict_proba(rows))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize(
    ("name", "y", "options"),
    [
        ("LogisticRegression", BINARY, {"classes": ("no", "yes")}),
        ("LogisticRegression", BINARY, {"classes": ("yes", "no"), "fit_intercept": True}),
        ("LinearSVC", BINARY, {"classes": ("no", "yes")}),
        ("SoftmaxRegression", THREE, {"classes": (2, 0, 1)}),
        ("SoftmaxRegression", BINARY, {"classes": ("yes", "no")}),
        ("LeastSquaresClassifier", THREE, {"classes": (0, 1, 2)}),
        ("Ridge", X[:, 0], {"bounds": (-3, 1)}),
        ("LinearRegression", X[:, 0], {"bounds": (-3, 1)}),
    ],
)
def test_linear_models(tmp_path, name, y, options, delta):
    model = getattr(dp, name)(epsilon=3.0, delta=delta, seed=0, **options).fit(X, y)
    model.to_onnx(tmp_path / "estimator.onnx")
    is_same(run(tmp_path / "estimator.onnx", {"x": NEW}), model, NEW, "classes" in options)
    assert len(run(tmp_path / "estimator.onnx", {"x": NEW[:0]})) == len(run(tmp_path / "estimator.onnx", {"x": NEW}))
    release = model.release_
    release.to_onnx(tmp_path / "release.onnx")
    for file in tmp_path.glob("*.onnx"):
        known = runtime.InferenceSession(str(file)).get_modelmeta().custom_metadata_map
        assert known == {"privacy": "NOT PRIVATE: the noise was drawn with the seed 0"}
    found = run(tmp_path / "release.onnx", {"x": NEW})
    if release.decision is None:
        near(found["prediction"], release.predict(NEW))
    else:
        near(found["score"], release.decision_function(NEW))
        assert (found["label"] == release.predict(NEW)).mean() > 0.99


TABLE = {
    "age": RNG.uniform(-5, 105, 500),
    "dose": np.where(RNG.random(500) < 0.2, np.nan, RNG.uniform(0, 2, 500)),
    "ward": RNG.choice(["a", "b", "c"], 500).tolist(),
    "grade": RNG.choice(["low", "mid", "high"], 500).tolist(),
    "smokes": RNG.choice(["no", "yes", ""], 500).tolist(),
}
COLUMNS = {
    "age": dp.Numeric(0, 100),
    "dose": dp.Numeric(0, 2, missing="indicator"),
    "ward": dp.Categorical(["a", "b"], other=True),
    "grade": dp.Ordered(["low", "mid", "high"]),
    "smokes": dp.Boolean("no", "yes", missing="indicator"),
}
SICK = np.where(TABLE["age"] + 20 * RNG.normal(size=500) > 50, "yes", "no").tolist()
INPUTS = {n: np.asarray(c, object if isinstance(c, list) else float)[:, None] for n, c in TABLE.items()}


@pytest.mark.parametrize("options", [{}, {"unit": True}, {"constant": 0.5}, {"unit": True, "constant": 1.0}])
def test_tables_of_a_schema(tmp_path, options):
    schema = dp.Schema(COLUMNS, "sick", ["no", "yes"], clip=True, **options)
    rows, labels = schema.encode(TABLE | {"sick": SICK})
    learner = dp.load("logistic_regression", features=rows.shape[1], labels=("no", "yes"), radius=schema.radius)
    release = dp.solve(learner, {"x": rows, "y": labels}, dp.Privacy(4.0, 1e-5), seed=0)
    release.to_onnx(tmp_path / "model.onnx")
    release.save(tmp_path / "model.npz")
    dp.Release.load(tmp_path / "model.npz", template=dp.load).to_onnx(tmp_path / "loaded.onnx")
    assert (tmp_path / "loaded.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    is_same(run(tmp_path / "model.onnx", INPUTS), release, rows, True)
    model = dp.LogisticRegression(classes=("no", "yes"), epsilon=4.0, radius=schema.radius, seed=0).fit(rows, labels)
    model.to_onnx(tmp_path / "estimator.onnx")
    is_same(run(tmp_path / "estimator.onnx", INPUTS), model, rows, True)


@pytest.mark.parametrize("classes", [("no", "yes"), ("yes", "no")])
def test_additive_classifiers(tmp_path, classes):
    schema = dp.Schema(COLUMNS, "sick", ["no", "yes"], clip=True)
    options = {"pairs": [("age", "dose"), ("ward", "age")]}
    options |= {"monotone": {"grade": "increasing"}, "knots": {"dose": [0.1, 1.3]}}
    model = dp.AdditiveClassifier(schema, epsilon=4.0, delta=1e-5, classes=classes, seed=0, clip=True, **options)
    model.fit(TABLE, SICK).to_onnx(tmp_path / "model.onnx")
    is_same(run(tmp_path / "model.onnx", INPUTS), model, TABLE, True)


def test_learnt_schemas_and_the_units_of_their_target(tmp_path):
    event = dp.verify(dp.load("ridge_regression", features=1), dp.Privacy(1.0, 1e-6), 99, dp.AdaptiveSteps()).event
    learnt = {"privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"}, "event": event.to_dict()}
    learnt |= {"columns": {"age": 0.1, "ward": 0.1, "y": 0.1}, "otherwise": 9.0, "entry": "e"}
    columns = {"age": dp.Numeric(0, 100, missing=50.0), "ward": dp.Categorical(["a", "b"], missing="b", reference="a")}
    schema = dp.Schema(columns, "y", label_bounds=(0, 400), clip=True, learnt=learnt)
    table = {"age": [1.0, np.inf, -np.inf, np.nan, 99.0, 500.0], "ward": ["a", "b", "", "never seen", "b", "a"]}
    rows, _ = schema.encode(table, labelled=False)
    fit = dp.Release(
        {"w": [0.9, -0.8]}, not_private_because="made up", source=("ridge_regression", {"features": 2}), schema=schema
    )
    fit.with_template(dp.load).to_onnx(tmp_path / "model.onnx")
    inputs = {"age": np.array(table["age"])[:, None], "ward": np.array(table["ward"], dtype=object)[:, None]}
    found = run(tmp_path / "model.onnx", inputs)["prediction"]
    near(found, schema.decode_target(np.asarray(rows) @ [0.9, -0.8]))
    assert np.isfinite(found).all()


def test_risks_of_survival_are_written(tmp_path):
    y = np.array(list(zip(RNG.random(len(X)) < 0.5, RNG.exponential(size=len(X)), strict=True)), "bool,float")
    model = dp.SurvivalRegressor(epsilon=1.0, delta=1e-5, bounds=(0, 2), seed=0).fit(X, y)
    model.to_onnx(tmp_path / "model.onnx")
    near(run(tmp_path / "model.onnx", {"x": NEW})["prediction"], model.predict(NEW))


def test_what_is_not_linear_is_refused(tmp_path):
    curved = dp.load("large_margin_gaussian", features=5, classes=3)
    release = dp.solve(curved, {"x": X, "y": THREE.tolist()}, dp.Privacy(1.0), seed=0)
    refused(dp.TemplateError, "must be linear", release.to_onnx, tmp_path / "model.onnx")
    plain = dp.Release({"w": [1.0, 2.0]}, spent=dp.Privacy(1.0))
    refused(dp.TemplateError, "no function to predict with", plain.to_onnx, tmp_path / "model.onnx")
    grades = dp.OrdinalRegressor(epsilon=1.0, delta=1e-5, classes=(0, 1, 2), seed=0).fit(X, THREE)
    refused(dp.TemplateError, "grades", grades.to_onnx, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
