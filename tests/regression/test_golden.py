"""Certificates of the gallery, fits on canonical data sets, private and not, and passes over the records are what they were."""

import sys
import tracemalloc

import cvxpy as cp
import numpy as np
import pytest
from golden_cases import CASES, GALLERY
from golden_measures import Measured, certificates
from learners_of_tests import calls_of
from refresh import CALIBRATED, CERTIFICATES, compare, load, told

import dpconvex as dp
from dpconvex.optim import certify
from dpconvex.sets import certified_minimum

REMEDY = "\n`make golden` shows all that moved; CONTRIBUTING.md says what to do.  Another NumPy may draw other noise from a seed."


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GALLERY)
def test_no_certificate_has_moved(name):
    change = told(load(CERTIFICATES + name), certificates(name))
    assert not change, change + REMEDY


def test_a_constant_that_moves_by_a_millionth_is_found():
    golden, checked = load(CERTIFICATES + "large_margin_gaussian"), 0
    for group in golden.values():
        given = group.get("given", False) or not group.get("added")
        for constant, value in group.items():
            if isinstance(value, float) and abs(value) > 0.1 and (given or constant not in CALIBRATED):
                found = list(compare({"": group}, {"": group | {constant: value * (1 + 1e-6)}}))
                assert [new for _, _, new in found] == [value * (1 + 1e-6)], f"{constant} = {value}"
                checked += 1
    assert checked > 50


def marked(case):
    marks = [pytest.mark.slow] * case.slow + [pytest.mark.shared] * case.shared
    return pytest.param(case, id=f"{case.golden}-{case.name}".replace(" ", "-"), marks=marks)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_fits_are_where_they_were(case):
    golden = load(case.golden)[case.name]
    try:
        case_now = Measured(case, case.data())
    except dp.DomainError as error:
        pytest.skip(str(error))
    change = told(golden["minimum"], case_now.minimum())
    assert not change, change + REMEDY
    for fit in case.fits:
        change = told(golden[fit.name], case_now.fit(fit))
        assert not change, f"{fit.name}\n{change}{REMEDY}"


# Passes over the records of `dp.solve_without_privacy`, and of `dp.solve` (epsilon 1, delta 1e-6, seed 0): a change may lower
# these numbers, and raises one only with a reason.
PASSES = {
    "logistic": ("logistic_regression", {"features": 20, "regularization": 1e-4}, 13, 14),
    "softmax": ("softmax_regression", {"features": 12, "classes": 5, "regularization": 1e-3}, 16, 14),
    "huber": ("huber_svm", {"features": 20, "regularization": 1e-3}, 16, 16),
    "elastic net": ("elastic_net_logistic", {"features": 20}, 25, 21),
    "fair": (
        "fair_logistic_regression",
        {"features": 6, "covariance": [0.1, 0.2, 0, 0, 0, 0.1], "tolerance": 0.01},
        33,
        28,
    ),
}
# Learners with semidefinite matrices, at their default regularization, take 40 at most: options, and what `clouds` takes.
SEMIDEFINITE = {
    "2 classes": ("large_margin_gaussian", {"features": 10}, 2, 2000),
    "4 classes": ("large_margin_gaussian", {"features": 10, "classes": 4}, 4, 2000),
    "4 classes, 20,000 records": ("large_margin_gaussian", {"features": 10, "classes": 4}, 4, 20000),
    "10 classes": ("large_margin_gaussian", {"features": 16, "classes": 10}, 10, 2000),
    "30 features": ("large_margin_gaussian", {"features": 30, "classes": 4}, 4, 2000),
    "mixture": ("large_margin_gaussian_mixture", {"features": 10, "classes": 4, "components": 2}, 8, 2000),
    "metric": ("metric_learning", {"features": 10}, 4, 2000),
    "uneven features": ("large_margin_gaussian", {"features": 5, "classes": 3}, 3, 30000, 0.01),
    "metric of uneven features": ("metric_learning", {"features": 10}, 4, 40000, 0.1),
}
LARGE = {
    "26 classes": ("large_margin_gaussian", {"features": 16, "classes": 26}, 26, 2000),
    "10 classes, 20,000 records": ("large_margin_gaussian", {"features": 16, "classes": 10}, 10, 20000),
    "30 features, 20,000 records": ("large_margin_gaussian", {"features": 30, "classes": 4}, 4, 20000),
    "26 classes, 20,000 records": ("large_margin_gaussian", {"features": 16, "classes": 26}, 26, 20000),
    "mixture, 20,000 records": (*SEMIDEFINITE["mixture"][:3], 20000),
    "metric, 20,000 records": ("metric_learning", {"features": 10}, 4, 20000),
}


def clouds(name, features, classes, size, least=1.0):
    """Return records of a Gaussian cloud for each class, or for each component of one; of pairs, for a metric.

    The last feature is `least` times as long as the first.
    """
    rng = np.random.default_rng(5)
    centres, own = rng.normal(size=(classes, features)), rng.integers(classes, size=(2, size))
    x = (centres[own] + rng.normal(size=(2, size, features))) * np.geomspace(1, least, features)
    x /= np.linalg.norm(x, axis=2).max() * (1 + 1e-9)
    if name == "metric_learning":
        return {"x": (x[0] - x[1]) / 2, "y": np.where(own[0] == own[1], "alike", "different")}
    if name == "large_margin_gaussian_mixture":
        return {"x": x[0], "y": own[0] // 2, "m": own[0] % 2}
    return {"x": x[0], "y": own[0]}


def records(features, classes, size=2000):
    """Return records of unit length, whose classes a noisy linear rule gives, and whose features differ in size."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, features)) * np.geomspace(1, 0.05, features)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.argmax(x @ rng.normal(size=(features, classes)) + 0.3 * rng.normal(size=(size, classes)), axis=1)
    return {"x": x, "y": 2 * y - 1 if classes == 2 else y}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [*PASSES, *SEMIDEFINITE, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_fits_take_no_more_passes(name, monkeypatch):
    """Over the records, those of models too: without privacy, and by objective perturbation with both laws."""
    problem, options, *most = (PASSES | SEMIDEFINITE | LARGE)[name]
    if name in PASSES:
        data = records(options["features"], options.get("classes", 2))
    else:
        data, most = clouds(problem, options["features"], *most), [40, 40, 40]
    passes, closest, learner = [], certify.closest_point, dp.load(problem, **options)

    def counted(problem, *arguments):
        found = closest(problem, *arguments)
        passes.append(found[0].evaluations)
        return found

    monkeypatch.setattr(certify, "closest_point", counted)
    fit = dp.solve_without_privacy(learner, data)
    assert fit.distance <= 1e-6 * max(1.0, np.linalg.norm([np.linalg.norm(fit[name]) for name in fit]))
    for privacy, law in ((dp.Privacy(1.0, 1e-6), "gaussian"), (dp.Privacy(1.0), "gamma")):
        dp.solve(learner, data, privacy, dp.ObjectivePerturbation(law), seed=0)
    assert len(passes) == 3
    assert all(found <= bound for found, bound in zip(passes, most, strict=False)), passes


# Work in counts of calls, at two sizes: what is written of a template grows with the third entry of each.
GROWTH = {
    "chain": (lambda n: verified("linear_chain_crf", length=n), (5, 6), lambda n: 2**n),
    "softmax": (lambda n: verified("softmax_regression", classes=n), (15, 30), lambda n: n),
    "margins": (lambda n: verified("large_margin_gaussian", classes=n), (8, 16), lambda n: n * (n - 1)),
    "labels": (lambda n: verified("ordinal_regression", classes=n), (20, 40), lambda n: n),
    "fan": (lambda n: verified("quantile_fan", quantiles=tuple(np.linspace(0.1, 0.9, n))), (5, 11), lambda n: n),
    "template": (lambda n: dp.load("large_margin_gaussian", features=3, classes=n), (8, 16), lambda n: n * (n - 1)),
    "ledger": (lambda n: charged(n), (100, 200), lambda n: n),
}


# Array elements that the package's functions hold as they return, at two sizes: they grow with the third entry of each, and
# are at most so many times as many.  Adaptive steps need no inner products of rows, and read a loss once.
ELEMENTS = {
    "arrays of softmax": (lambda n: verified("softmax_regression", classes=n), (20, 40), lambda n: n**2, 9000),
    "softmax in steps": (lambda n: verified("softmax_regression", 1e-5, classes=n), (20, 40), lambda n: n**2, 1800),
    "chain in steps": (lambda n: verified("linear_chain_crf", 1e-5, length=n), (5, 6), lambda n: n * 4**n, 1100),
}


def verified(problem, delta=0.0, **options):
    dp.verify(dp.load(problem, features=3, **options), dp.Privacy(1.0, delta), size=1000)


def charged(number):
    budget = dp.Budget(dp.Privacy(1e6))
    for _ in range(number):
        budget.spend(dp.Privacy(0.1), "fit")


def counted(each, function, *arguments):
    count = 0

    def noted(frame, event, argument):
        nonlocal count
        count += each(frame, event)

    sys.setprofile(noted)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


def is_call(frame, event):
    return event in ("call", "c_call")


def held(frame, event):
    if event != "return" or f"{dp.__name__}/" not in frame.f_code.co_filename:
        return 0
    return sum(value.size for value in frame.f_locals.values() if type(value) is np.ndarray)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*GROWTH, *ELEMENTS])
def test_work_and_arrays_grow_no_faster_than_what_is_written(name):
    work, sizes, written, *most = (GROWTH | ELEMENTS)[name]
    work(3)  # what is imported on first use
    few, many = (counted(held if most else is_call, work, size) for size in sizes)
    assert np.log(many / few) <= 1.2 * np.log(written(sizes[1]) / written(sizes[0])), f"{few} and {many}"
    if most:
        assert many <= most[0] * written(sizes[1]), f"{many / written(sizes[1]):.0f} times what is written"


def test_cones_without_common_coordinates_are_asked_alone(monkeypatch):
    """A cone says nothing about coordinates that it lacks: each conic program that bounds some has theirs only."""
    sizes = calls_of(monkeypatch, certified_minimum, "model", lambda region, blocks, *_: len(blocks))
    w, b = cp.Variable((3, 5), name="w"), cp.Variable(5, name="b")
    loss = lambda x, y: cp.sum(dp.huber_hinge(y - x @ w - b, 0.1))  # noqa: E731
    cones = [cp.norm(w[:, k]) <= b[k] for k in range(5)]
    record = dp.Record(x=dp.Ball(3), y=dp.Box(-1, 1))
    dp.verify(dp.Template(record, loss, 1e-6 * (cp.sum_squares(w) + cp.sum_squares(b)), cones), dp.Privacy(1.0), 1000)
    assert set(sizes) == {1}


def test_a_sparse_encoding_is_never_dense():
    names = [f"level {k}" for k in range(2000)]
    table, schema = {"a": names, "y": ["0", "1"] * 1000}, dp.Schema({"a": dp.Categorical(names)}, "y", ["0", "1"])
    tracemalloc.start()
    X, _ = schema.encode(table, sparse=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert X.nnz == 2000
    assert peak < 4e6, f"{peak / 1e6:.0f} MB"
