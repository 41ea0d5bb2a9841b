"""Whole promises of random learners on the line: no audit finds more than is claimed."""

import cvxpy as cp
import pytest
from hypothesis import given, reject, settings, strategies as st

import dpconvex as dp

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
    kinds = [
        (
            one_of(*ATOMS),
            one_of(-2.0, -1.0, -0.7, 0.3, 1.0, 1.5, 4.0),
            one_of(-3.0, -1.0, 0.0, 0.5, 2.0),
            one_of(0.2, 1.0, 20.0),
        )
        for _ in range(one_of(1, 2, 2, 3))
    ]
    ends = one_of(None, None, (-0.3, 0.3), (-2.0, 2.0), (0.5, 1.5), (-1.0, 3.0))
    ends = (-1.0, 1.0) if ends is None and "square" in {kind[0] for kind in kinds} else ends
    tilt, size = one_of(*((0.5, 2.0) if tilted else (0.0, 0.0, 0.5, 2.0))), one_of(1, 2, 50)
    theta = cp.Variable(1, name="theta")

    def loss(x, y):
        atom, a, shift, scale = kinds[y]
        margin = theta[0] if tilt else x @ theta
        return scale * ATOMS[atom](a * margin + shift) - tilt * (x @ theta)

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


@pytest.mark.slow
@settings(max_examples=3500)
@given(promises())
def test_many_promises_on_the_line(promise):
    check(promise, 0.2)
