"""False guarantees that the toolkit once gave, written as proofs: each is rejected where it is wrong.

What no rule replays is named instead: powers above 2 and exponentials of losses, noise of Poisson samples. Of Gaussian noise on
the objective, wrong constants are claimed under other noise.
"""

import json
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.checker import check
from dpconvex.checker.constants import constants, log_det
from dpconvex.checker.expansion import TemplateGraph
from dpconvex.checker.public import Feasible
from dpconvex.checker.reading import Rejected, parsed
from dpconvex.checker.rows import GeneratorRows
from dpconvex.checker.rules import Rules

PURE, DELTA, ADD = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
OUTPUT, GAUSSIAN = dp.OutputPerturbation(), dp.OutputPerturbation("gaussian")
OBJECTIVE, CLIPPED = dp.ObjectivePerturbation(), dp.NoisyGradientDescent(clip=1.0, steps=20)
UNCLIPPED = dp.NoisyGradientDescent(steps=10)
BALL, BOX, Z, T = {"x": dp.Ball(2)}, {"x": dp.Box(-1, 1)}, {"z": dp.Ball(1)}, {"t": dp.Box(0, 5)}
w, v, u = cp.Variable(2, name="w"), cp.Variable((1, 2), name="v"), cp.Variable(3, name="u")
LABELS, LARGE, BITS = (BALL | {"y": dp.Choice(labels)} for labels in ((1, 3), (1e9, 1e9 + 1), (0, 1)))
CORNER = {"x": dp.Box([-1, -0.01], [1, 0.01]), "b": dp.Box(-2, 2)}
NEAR, BOTH = [cp.norm(w) <= 1], cp.sum_squares(w) + 2 * cp.sum_squares(v)
logistic, sums, hinges = (
    lambda x, more=0: cp.logistic(x @ w + more),
    lambda x: cp.sum(cp.logistic(x * cp.reshape(w, (2, 1), order="F") + v)),
    lambda x, b: cp.square(0.9 * cp.pos(x @ w + b + 2.21) + cp.pos(-x @ w + b + 2.21)),
)
ATOM = dp.Atom("mine", lambda m: np.logaddexp(m, 0.0) - 5, (0.0, 1.0), 0.25, -5.0)


def proof_of(template, mechanism=OUTPUT, promise=PURE, size=1000, **options):
    return json.loads(dp.verify(template, promise, size, mechanism, **options).proof)


def problem(name, *options, **more):
    return lambda: proof_of(dp.load(name, features=3), *options, **more)


def of(loss, fields, *options, public=cp.sum_squares(w) / 2, K=()):  # noqa: B008
    return lambda: proof_of(dp.Template(dp.Record(**fields), loss, public, list(K)), *options)


def merged(most, modulus, epsilon, *others):
    """Return the proof of a log-sum-exp of two entries that differ in their last digits, and of others."""

    def loss(x, t):
        two = x * u[0] + t * u[1], x * u[0] + (1 + 4e-13) * t * u[1]
        return cp.log_sum_exp(cp.hstack([*(x * u[k] for k in others), *two]))

    fields, mechanism = {"x": dp.Box(0, most), "t": dp.Box(0, most)}, dp.ObjectivePerturbation(added=0.0)
    build = of(loss, fields, mechanism, dp.Privacy(epsilon), 1, public=modulus * cp.sum_squares(u) / 2)
    return lambda: claiming(build(), tolerance=1e-300)


def number(proof, name):
    found = proof["claim"][name]
    return float.fromhex(found) if isinstance(found, str) else found


def claiming(proof, part=None, **numbers):
    """Return the proof with other numbers in its claim, or in a part of that."""
    claim, numbers = proof["claim"], {k: v if isinstance(v, int) else v.hex() for k, v in numbers.items()}
    return proof | {"claim": claim | ({part: claim[part] | numbers} if part else numbers)}


def times(factor, *names):
    """Scale one record's constants, and the noise in proportion."""
    names = ("noise_scale", "sensitivity", *(names or ["gradient_bound"]))
    return lambda proof: claiming(proof, **{name: factor * number(proof, name) for name in names})


def setting(**numbers):
    return lambda proof: claiming(proof, **numbers)


def apart(factor):
    return times(factor, "sensitivity")


def modulus(value):
    return lambda proof: proof | {"modulus": value, "claim": proof["claim"] | {"strong_convexity": value}}


def uncurved(proof):
    """Noise as if curvature cost nothing."""
    scale = number(proof, "sensitivity") / (number(proof, "noise_epsilon") + number(proof, "jacobian_epsilon"))
    return claiming(proof, jacobian_epsilon=0, hessian_bound=0, noise_scale=scale)


def edited(proof, operation, **parts):
    """Return the proof with other options of the first node of an operation."""
    nodes = [dict(node) for node in proof["nodes"]]
    next(node for node in nodes if node["op"] == operation).update(parts)
    return proof | {"nodes": nodes}


def of_rank_one(proof):
    """Log det was 64.2 then; it is 68 and more."""
    false = claiming(proof, jacobian_epsilon=64.18470053139549, noise_epsilon=34.8, noise_scale=5599841047895.667)
    return claiming(false, "privacy", epsilon=100)


def with_underflow(proof):
    """A row of at most 1024 is one of 2^-550 times records of 2^560."""
    false = edited(times(1 / 1024)(proof), "constant", value=[(2.0**-550).hex()])
    return false | {"record": proof["record"] | {"z": {"dim": 1, "norm": 2, "radius": (2.0**560).hex()}}}


def of_one_more(proof):
    """The logarithm is that of P + I."""
    (squares,) = (k for k, node in enumerate(proof["nodes"]) if node["op"] == "multiply")
    end, nodes = len(proof["nodes"]), [{"shape": [3, 3], "op": "constant", "value": [1, 0, 0, 0, 1, 0, 0, 0, 1]}]
    more = ([3, 3], "add", [0, end]), ([], "log_det", [end + 1]), ([], "negate", [end + 2])
    for shape, operation, args in (*more, ([], "add", [squares, end + 3])):
        nodes.append({"shape": shape, "op": operation, "args": args})
    return modulus((29.9).hex())(proof) | {"nodes": proof["nodes"] + nodes, "regularizer": end + 4}


def without_broadcasting(proof):
    factors = [k for k, node in enumerate(proof["nodes"]) if node["shape"] in ([2, 1], [1, 2]) and "args" in node]
    return edited(times(0.5)(proof), "add", args=factors[-2:])


BOUNDED = setting(sensitivity=2.0047765628888317, noise_scale=0.0020270518580340685)
ABOVE = setting(gradient_bound=1025, sensitivity=2.1 * 2.0**-40, noise_scale=1e-10)
LONGER, APART, COSTS, LESS = "gradient is longer", "gradients differ", "noise costs", "less strongly convex"
# What was wrong: a genuine proof, the false one, and words of the step where it is rejected.
CASES = {
    "entries that nearly agree were merged": (merged(1, 1e-28, 100), uncurved, COSTS),
    "ranks were too small then": (merged(1e14, 1, 200, 2), of_rank_one, COSTS),
    "lower=inf hid a branch": (of(lambda x: cp.maximum(ATOM(x @ w), 10 * (x @ w)), BALL), times(0.1), LONGER),
    "two functions were one": (of(lambda t: cp.logistic(w[0]) - t * w[0], T, GAUSSIAN, ADD), times(1 / 6), LONGER),
    "ranges that K clips were another leaf's": (of(hinges, CORNER, K=[cp.abs(w) <= [0.1, 10]]), BOUNDED, APART),
    "1e9 and 1e9 + 1 were one": (of(lambda x, y: y * w[0], LARGE), apart(1e-3), APART),
    "small slopes were one": (of(lambda x, y: 1e-13 * y * logistic(x), LABELS), apart(1 / 3), APART),
    "small rows vanished": (of(lambda x, z: x * w[0] + 1024 * z * w[1], BOX | Z), with_underflow, LONGER),
    "labels curved alike": (of(lambda x, y: logistic(x) if y else x @ w, BITS, OBJECTIVE, PURE, 1), uncurved, COSTS),
    "narrow slopes did not curve at their ends": (
        of(logistic, BALL, OBJECTIVE, PURE, 1, K=[cp.norm(w) <= 0.1]),
        uncurved,
        COSTS,
    ),
    "variables had one modulus": (of(lambda x: x * w[0] + x * v[0, 0], BOX, public=BOTH), modulus(4000), LESS),
    "shared curvature was public": (of(lambda x: cp.square(w[0] - x) / 2, BOX, K=NEAR), modulus(1999), LESS),
    "log1p had the curvature of log": (problem("gaussian_precision"), of_one_more, LESS),
    "broadcasting lost entries": (of(sums, BOX, public=BOTH), without_broadcasting, "other shapes"),
    "bending down was convex": (
        of(lambda x: logistic(x) + 3 * cp.square(w[0]), BALL, K=NEAR),
        *(lambda proof: edited(proof, "constant", value=[(-1e-9).hex()]), "negative"),
    ),
    "noise was in the gradients' span": (
        problem("softmax_regression", OUTPUT),
        setting(noise_dimension=3),
        "other dimensions",
    ),
    "NaN was a modulus": (problem("logistic_regression"), modulus("nan"), "no exact number"),
    "what ties was no branch": (
        of(lambda x: cp.maximum(10 * x * w[0], 10) + x * w[0] / 100, BOX, UNCLIPPED, DELTA, K=NEAR),
        times(1e-3, "gradient_bound"),
        LONGER,
    ),
    "gradients above the clip": (of(lambda x: x * w[0] / 2**40 + 1024 * w[1], BOX, CLIPPED, DELTA), ABOVE, "two clips"),
}


def said(proof):
    """Return at which step the proof is rejected, or what of it is not replayed."""
    try:
        return "".join(check(json.dumps(proof).encode()).unreplayed)
    except Rejected as step:
        return f"rejected: {step}"


@pytest.mark.parametrize("name", CASES)
def test_what_was_a_false_guarantee_is_rejected(name):
    build, edit, step = CASES[name]
    true = build()
    assert not said(true)
    assert step in (found := said(edit(true)))
    assert found.startswith("rejected") or edit is BOUNDED  # where K is a box, what does not follow is named


def test_rows_in_another_order_are_no_other_rows():
    """The determinant of two logistic terms took one order of their inner product: 17.0 where 17.4 is right."""
    (first, second), mu = (
        [(1, 0, 5, 0), (1, 0, 1, 0)],
        1e-3,
    )  # gradients for the record (1, 0); both slopes bend by 1 there
    true = np.linalg.slogdet(np.eye(4) + (np.outer(first, first) + np.outer(second, second)) / mu)[1]
    proof = of(lambda x: 4 * logistic(x, 5 * v[0, 0]) + 4 * cp.logistic(w[0] + v[0, 0]), BALL, OBJECTIVE, public=BOTH)()
    proof = parsed(json.dumps(proof).encode())
    template = TemplateGraph(proof)
    rows = GeneratorRows(template, proof["cells"], proof["parts"])
    rules = Rules(template, rows, Feasible(template, []), proof["losses"])
    found = log_det(constants(rules.walk(proof["losses"][0])[0], rows, 4), Fraction(mu))
    assert true <= float(found) <= true + 2


def test_finite_sets_and_cubes_are_named():
    """The first had passed as convex, and the second as convex on all of space."""
    true = of(lambda x: cp.logistic(x @ w), BALL, public=cp.square(w[0]) + cp.square(w[1]))()
    assert "constraint: kind" in said(true | {"constraints": [{"kind": "finite set", "args": [0]}]})
    assert "curvature" in said(edited(true, "power", p=3))
