"""The falsifier finds worst cases, breaks wrong constants, and leaves right ones standing."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, reject, settings, strategies as st

import dpconvex as dp

FAST = {"starts": 16, "steps": 30, "seed": 0}
PROMISE = dp.Privacy(1.0)
GAMMA = dp.ObjectivePerturbation(noise="gamma")
DEFECT = "defect of dpconvex; please report"


@pytest.fixture(scope="module")
def machine():
    """Return the Huber machine and its certificate; every constant of it is attained."""
    template = dp.load("huber_svm", features=2)
    return template, dp.verify(template, PROMISE, 100, GAMMA)


def test_every_constant_of_a_certificate_is_attacked(machine):
    template, certificate = machine
    found = dp.falsify(template, certificate, **FAST)
    names = "gradient_bound sensitivity hessian_bound hessian_trace log_det epsilon noise_dimension strong_convexity"
    assert set(found) == set(names.split())
    for constant, finding in found.items():
        assert 0.999 <= finding.ratio <= 1 + 1e-9, constant
        assert finding.holds
    assert found["sensitivity"].certified == certificate.sensitivity
    assert found["epsilon"].certified == pytest.approx(certificate.noise_epsilon + certificate.jacobian_epsilon)


def test_the_least_curvature_of_coupled_parameters_is_found():
    tasks = dp.load("multi_task_logistic", features=4)
    found = dp.falsify(tasks, dp.verify(tasks, dp.Privacy(10.0), 30, GAMMA), starts=4, steps=4, seed=0)
    assert found["strong_convexity"].ratio > 0.99


def test_the_worst_place_is_where_it_says():
    # With logistic loss the gradient at (x, y, w) is known by hand.
    found = dp.falsify(dp.load("logistic_regression", features=3, radius=2.0), **FAST)["gradient_bound"]
    x, y, w = found.record["x"], found.record["y"], found.parameters["w"]
    assert np.linalg.norm(x) / (1 + np.exp(y * (x @ w))) == pytest.approx(found.observed, rel=1e-12)
    assert np.linalg.norm(x) <= 2.0 * (1 + 1e-12)
    assert y in (-1, 1)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("field", "factor", "name"),
    [
        ("gradient_bound", 0.999, "gradient bound G"),
        ("sensitivity", 0.999, "sensitivity G_adj"),
        ("hessian_bound", 0.999, "largest Hessian eigenvalue"),
        ("noise_scale", 0.99, "cost of one record"),
        ("strong_convexity", 1.001, "strong convexity mu"),
        ("noise_dimension", 0.5, "sensitive subspace"),
    ],
)
def test_a_constant_that_is_a_little_wrong_is_broken(machine, field, factor, name):
    template, certificate = machine
    wrong = replace(certificate, **{field: factor * getattr(certificate, field)})
    with pytest.raises(dp.DPConvexError, match=DEFECT) as caught:
        dp.falsify(template, wrong, **FAST)
    assert name in str(caught.value)
    if field in ("gradient_bound", "sensitivity"):
        assert "record: y = " in str(caught.value)
        assert "parameters: w = " in str(caught.value)


@pytest.mark.slow
def test_parameters_stay_in_a_set_that_is_cut():
    M = cp.Variable((2, 2), PSD=True, name="M")
    within = [cp.norm(M, "fro") <= 3.0, cp.trace(M) <= 2.0]
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.square(x @ M @ x), cp.sum_squares(M), within)
    found = dp.falsify(template, **FAST)
    assert found["gradient_bound"].ratio >= 0.6  # trace(M) <= 2 keeps the slope below 4, where 6 is certified
    for finding in found.values():
        if finding.parameters is not None:
            M = finding.parameters["M"]
            assert np.linalg.eigvalsh(M)[0] >= -1e-9
            assert np.trace(M) <= 2.0 + 1e-9


# Convex functions of a margin; of squares slopes are bounded on bounded sets alone.
ATOMS = {
    "logistic": cp.logistic,
    "softmax": lambda m: cp.log_sum_exp(cp.hstack([m, 0.5 - m / 2, 0.0])),
    **{f"hinge {width}": lambda m, width=width: dp.huber_hinge(m, width) for width in (0.01, 0.1, 0.5, 2.0)},
    "nothing": lambda m: 0 * m,
    "square": cp.square,
}


@st.composite
def promises(draw, tilted=False):
    """Compose a learner and a guarantee; tilted, with Gaussian noise on one direction that several functions of a record see."""
    one_of = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    slopes, shifts = (-2.0, -1.0, -0.7, 0.3, 1.0, 1.5, 4.0), (-3.0, -1.0, 0.0, 0.5, 2.0)
    count = range(one_of(1, 2, 2, 3))
    kinds = [(one_of(*ATOMS), one_of(*slopes), one_of(*shifts), one_of(0.2, 1.0, 20.0)) for _ in count]
    ends = one_of(None, None, (-0.3, 0.3), (-2.0, 2.0), (0.5, 1.5), (-1.0, 3.0))
    ends = (-1.0, 1.0) if ends is None and "square" in {kind[0] for kind in kinds} else ends
    tilt, size = one_of(*((0.5, 2.0) if tilted else (0.0, 0.0, 0.5, 2.0))), one_of(1, 2, 50)
    theta = cp.Variable(1, name="theta")

    def loss(x, y):
        atom, a, shift, scale = kinds[y]
        return scale * ATOMS[atom](a * (theta[0] if tilt else x @ theta) + shift) - tilt * (x @ theta)

    public = one_of(0.1, 0.5, 2.0, 10.0, 300.0) / 2 * cp.sum_squares(theta - one_of(0.0, 0.0, -1.0, 5.0))
    public += one_of(0.0, 0.0, 0.7) * cp.norm1(theta)
    record = dp.Record(x=dp.Box([one_of(-1.0, -0.3, 0.999)], [1.0]), y=dp.Choice(range(len(kinds))))
    inside = [] if ends is None else [theta >= ends[0], theta <= ends[1]]
    noise = "gaussian" if tilted else one_of("gamma", "gaussian", "gaussian", "matrix")
    delta = one_of(1e-6, 1e-3, 1e-2) if noise == "gaussian" else 0.0
    adjacency = "add-remove" if tilted else one_of("replace-one", "add-remove")
    privacy = dp.Privacy(one_of(0.3, 1.0, 3.0, 8.0), delta, adjacency)
    return dp.Template(record, loss, public / size, inside), privacy, dp.ObjectivePerturbation(noise, added=0.0), size


def check(promise, effort=0.02):
    template, privacy, mechanism, size = promise
    try:
        found = dp.audit(template, privacy, mechanism, size=size, effort=effort, seed=0)
    except dp.NotPrivate:
        reject()
    assert all(attack.holds for attack in found.attacks if attack.part != "proof"), f"{found}\n{template.losses}"


@settings(max_examples=6)
@given(promises())
def test_promises_on_the_line(promise):
    check(promise)


@settings(max_examples=4)
@given(promises(tilted=True))
def test_promises_on_one_direction_that_several_functions_see(promise):
    check(promise)


def test_records_far_smaller_than_parameters_are_audited():
    w, record = cp.Variable(1, name="w"), dp.Record(x=dp.Box([-1e-9], [1e-9]))
    tiny = dp.Template(record, lambda x: cp.logistic(x @ w), cp.sum_squares(w), [w >= -0.3, w <= 0.3])
    check((tiny, dp.Privacy(1.0, 1e-6), dp.ObjectivePerturbation("gaussian"), 50))


@pytest.mark.slow
@settings(max_examples=3500)
@given(promises())
def test_many_promises_on_the_line(promise):
    check(promise, 0.2)
