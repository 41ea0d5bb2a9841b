"""The error of a released model, counted privately: right, calibrated, paid for, and refused where it cannot be counted."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.learners.evaluate import STEPS, Errors

LOGISTIC = dp.load("logistic_regression", features=2)
HUBER = dp.load("huber_regression", features=2)
MODEL = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=LOGISTIC.predict)
LINE = dp.Release({"w": [0.5, 0.0]}, not_private_because="a test", predictor=HUBER.predict)
X = np.column_stack([np.linspace(-1, 1, 200), np.zeros(200)])
Y = np.where(X[:, 0] > 0.5, 1, -1)  # a quarter of the records is misjudged


def test_a_strong_promise_counts_about_right():
    found = dp.evaluate(LOGISTIC, MODEL, {"x": X, "y": Y}, dp.Privacy(50.0), seed=1)
    assert found.error == pytest.approx(0.25, abs=0.02)
    assert found.interval[0] <= 0.25 <= found.interval[1]
    assert (found.records, found.spent) == (200, None)
    assert "NOT PRIVATE" in str(found)
    alike = dp.evaluate(LOGISTIC, MODEL, {"x": X, "y": Y}, dp.Privacy(50.0, adjacency="add-remove"), seed=1)
    assert alike.error == pytest.approx(0.25, abs=0.02)
    assert alike.records == pytest.approx(200, abs=3)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("template", "model"), [(LOGISTIC, MODEL), (HUBER, LINE)], ids=["labels", "numbers"])
def test_all_noise_together_is_for_what_one_record_moves(template, model, adjacency, monkeypatch):
    drawn = []

    def watched(value, noise, rng):
        drawn.append(noise)
        return value

    monkeypatch.setattr("dpconvex.learners.evaluate.perturb", watched)
    data = {"x": X, "y": Y if template is LOGISTIC else X[:, 0]}
    dp.evaluate(template, model, data, dp.Privacy(0.5, adjacency=adjacency))
    moved = [1 if template is LOGISTIC else STEPS, 1][: len(drawn)]
    assert len(drawn) == (2 if adjacency == "add-remove" else 1)
    assert sum(most / noise.scale for most, noise in zip(moved, drawn, strict=True)) == pytest.approx(0.5)


def test_where_a_record_may_be_missing_each_is_predicted_by_itself():
    """Rows on a boundary: their rounding follows the place in a batch, and must not."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=300)
    x = rng.normal(size=300)
    x -= w * (x @ w) / (w @ w)
    x /= 2 * np.linalg.norm(x)
    template = dp.load("logistic_regression", features=300)
    release = dp.Release({"w": w}, not_private_because="a test", predictor=template.predict)
    errors = Errors(template.record, release, "x", "y", alone=True)
    several = [{"x": np.tile(x, (count, 1)), "y": np.ones(count, dtype=int)} for count in range(1, 12)]
    assert [errors.total(template.record.validate(data)) for data in several] in ([0] * 11, list(range(1, 12)))


def judged(function, y, template=HUBER):
    """Return the sum of errors in steps, and those of the same records one by one."""
    x = np.column_stack([np.linspace(-1, 1, len(y)), np.zeros(len(y))])
    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=function)
    errors = Errors(template.record, release, "x", "y", alone=False)
    each = [errors.total(template.record.validate({"x": x[k : k + 1], "y": y[k : k + 1]})) for k in range(len(y))]
    return errors.total(template.record.validate({"x": x, "y": y})), each


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
    assert each[2] == STEPS
    assert all(0 <= error <= each[2] for error in each)
    assert total == sum(each)
    total, each = judged(lambda p, x: STRANGE[kind](p, np.sign(x)), np.array([-1, -1, 1, 1, 1]), LOGISTIC)
    assert (total, each) == (1, [0, 0, 1, 0, 0])


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
