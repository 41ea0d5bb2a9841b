"""The error of a released model, counted privately: right, calibrated, paid for, and refused where it cannot be counted."""

import contextlib
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

import dpconvex as dp
from dpconvex.selection.evaluate import STEPS, Errors
from dpconvex.util.runtime import silence

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

    monkeypatch.setattr("dpconvex.selection.evaluate.perturb", watched)
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
    errors = Errors(template.record, release, "x", "y", dp.Privacy(1.0, adjacency="add-remove"))
    several = [{"x": np.tile(x, (count, 1)), "y": np.ones(count, dtype=int)} for count in range(1, 12)]
    assert [errors.total(template.record.validate(data)) for data in several] in ([0] * 11, list(range(1, 12)))


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
    errors = Errors(template.record, release, "x", "y", dp.Privacy(1.0, adjacency=adjacency))
    fine = {"x": np.tile(x, (1000, 1)), "y": np.full(1000, 1 if x[None] @ w > 0 else -1)}
    bad = {**fine, "x": fine["x"].copy()}
    bad["x"][500] = 0.25 * np.eye(300)[0]
    less = {name: np.delete(column, 500, axis=0) for name, column in fine.items()}
    for data, expected in ((fine, 0), (bad, 1), (less, 0)):
        if parts is not None:
            data = dp.Partitions([{n: c[k] for n, c in data.items()} for k in (slice(parts[0]), slice(parts[0], None))])
        assert errors.total(template.record.validate(data)) == expected


def patient(adjacency="replace-one", most=2, keep=None, epsilon=1.0):
    return dp.Privacy(epsilon, adjacency=adjacency, unit="patient", most=most, keep=keep)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("keep", "visits"), [(None, 3), ("first", 5), ("random", 5), ("weights", 3)])
@pytest.mark.parametrize(("template", "model"), [(LOGISTIC, MODEL), (HUBER, LINE)], ids=["labels", "numbers"])
def test_a_person_moves_what_is_released_by_what_the_noise_is_for(
    template, model, keep, visits, adjacency, monkeypatch
):
    """Every count that noise is added to, for all persons of a small world beside two others: the largest change is attained."""
    noises, counts = [], []

    def watched(value, noise, rng):
        noises.append(noise)
        counts.append(float(value[0]))
        return value

    monkeypatch.setattr("dpconvex.selection.evaluate.perturb", watched)
    wrong, right = ([-1.0, 0.0], 1), ([1.0, 0.0], 1)
    if template is HUBER:
        wrong, right = ([1.0, 0.0], -1.0), ([-1.0, 0.0], -0.5)
    privacy, largest = patient(adjacency, 3, keep), 1.0 if template is LOGISTIC else 0.75**2
    found = []
    persons = [[wrong if k < bad else right for k in range(n)] for n in range(1, visits + 1) for bad in range(n + 1)]
    for mine in [[], *persons] if adjacency == "add-remove" else persons:
        records = [wrong, right, *mine]
        data = {"x": np.array([x for x, _ in records]), "y": np.array([y for _, y in records])}
        counts.clear()
        dp.evaluate(template, model, data, privacy, unit=["a", "b"] + ["c"] * len(mine))
        found.append(tuple(counts))
    shares = [0.5, 0.5] if adjacency == "add-remove" else [1.0]
    for noise, share, *values in zip(noises, shares, *found, strict=False):
        base = values[:1] if adjacency == "add-remove" else values
        moved = max(abs(one - other) for one in base for other in values)
        bound = noise.scale * share  # at epsilon = 1
        assert moved <= bound * (1 + 1e-12)
        assert moved >= 0.999 * bound * (largest if noise is noises[0] else 1.0)


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


def judged(function, y, template=HUBER):
    """Return the sum of errors in steps, and those of the same records one by one."""
    x = np.column_stack([np.linspace(-1, 1, len(y)), np.zeros(len(y))])
    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=function)
    errors = Errors(template.record, release, "x", "y", dp.Privacy(1.0))
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
