"""False guarantees that the toolkit once gave, written as proofs: each is rejected where it is wrong.

What no rule replays is named instead: odd powers and exponentials of losses, noise of Poisson samples. Of Gaussian noise on
the objective, wrong constants are claimed under other noise.
"""

import json
import time
import tracemalloc
from contextlib import suppress
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.checker import check
from dpconvex.checker.constants import log_det, loss_constants
from dpconvex.checker.expansion import TemplateGraph
from dpconvex.checker.public import Feasible
from dpconvex.checker.reading import MOST_STEPS, Rejected, Steps, read_proof
from dpconvex.checker.rows import GeneratorRows
from dpconvex.checker.rules import Rules
from dpconvex.checker.table import ONE_RUN

PURE, DELTA, ADD = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
OUTPUT, GAUSSIAN = dp.OutputPerturbation(), dp.OutputPerturbation("gaussian")
OBJECTIVE, ADDED = dp.ObjectivePerturbation(), dp.ObjectivePerturbation(added=1.0)
UNCLIPPED, CLIPPED = dp.NoisyGradientDescent(steps=10), dp.NoisyGradientDescent(clip=1.0, steps=20)
BALL, BOX, Z, T = {"x": dp.Ball(2)}, {"x": dp.Box(-1, 1)}, {"z": dp.Ball(1)}, {"t": dp.Box(0, 5)}
w, v, u = cp.Variable(2, name="w"), cp.Variable((1, 2), name="v"), cp.Variable(3, name="u")
LABELS, LARGE, BITS = (BALL | {"y": dp.Choice(labels)} for labels in ((1, 3), (1e9, 1e9 + 1), (0, 1)))
CORNER = {"x": dp.Box([-1, -0.01], [1, 0.01]), "b": dp.Box(-2, 2)}
NEAR, BOTH = [cp.norm(w) <= 1], cp.sum_squares(w) + 2 * cp.sum_squares(v)
logistic, ties, sums, hinges = (
    lambda x, more=0: cp.logistic(x @ w + more),
    lambda x: cp.maximum(10 * x * w[0], 10) + x * w[0] / 100,
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
    "labels curved alike": (of(lambda x, y: logistic(x) if y else x @ w, BITS, ADDED, PURE, 1), uncurved, COSTS),
    "slopes had no curved ends": (of(logistic, BALL, OBJECTIVE, PURE, 1, K=[cp.norm(w) <= 0.1]), uncurved, COSTS),
    "variables had one modulus": (of(lambda x: x * w[0] + x * v[0, 0], BOX, public=BOTH), modulus(4000), LESS),
    "shared curvature was public": (of(lambda x: cp.square(w[0] - x) / 2, BOX, K=NEAR), modulus(1999), LESS),
    "log1p had the curvature of log": (problem("gaussian_precision"), of_one_more, LESS),
    "broadcasting lost entries": (of(sums, BOX, public=BOTH), without_broadcasting, "other shapes"),
    "bending down was convex": (
        of(lambda x: logistic(x) + 3 * cp.square(w[0]), BALL, K=NEAR),
        *(lambda proof: edited(proof, "constant", value=[(-1e-9).hex()]), "negative"),
    ),
    "noise was in their span": (problem("softmax_regression", OUTPUT), setting(noise_dimension=3), "too few dimension"),
    "NaN was a modulus": (problem("logistic_regression"), modulus("nan"), "no exact number"),
    "what ties was no branch": (of(ties, BOX, UNCLIPPED, DELTA, K=NEAR), times(1e-3, "gradient_bound"), LONGER),
    "gradients above the clip": (of(lambda x: x * w[0] / 2**40 + 1024 * w[1], BOX, CLIPPED, DELTA), ABOVE, "clipped"),
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


def test_rows_in_another_order_are_no_other_rows_and_all_pairs_count():
    """The determinant of two logistic terms took one order of their inner product: 17.0 where 17.4 is right."""
    first, second, mu = (1, 0, 5, 0), (1, 0, 1, 0), 1e-3  # gradients for the record (1, 0); both slopes bend by 1 there
    true = np.linalg.slogdet(np.eye(4) + (np.outer(first, first) + np.outer(second, second)) / mu)[1]
    proof = of(lambda x: 4 * logistic(x, 5 * v[0, 0]) + 4 * cp.logistic(w[0] + v[0, 0]), BALL, OBJECTIVE, public=BOTH)()
    proof = read_proof(json.dumps(proof).encode())
    template = TemplateGraph(proof)
    rows = GeneratorRows(template, proof["cells"], proof["parts"])
    rules = Rules(template, rows, Feasible(template, []), proof["losses"])
    found = log_det(loss_constants(rules.walk(proof["losses"][0])[0], rows, 4, 4), Fraction(mu))
    assert true <= float(found) <= true + 2
    ends = ((0, Fraction(1)),), ((0, Fraction(-1)),)  # Tails add up over pairs of gradients, also of those as far apart
    assert sum(rows.all_apart(frozenset([ends])).values()) == 4


def test_finite_sets_and_cubes_are_named():
    true = of(lambda x: cp.logistic(x @ w), BALL, public=cp.square(w[0]) + cp.square(w[1]))()
    assert "constraint: kind" in said(true | {"constraints": [{"kind": "finite set", "args": [0]}]})
    assert "curvature" in said(edited(true, "power", p=3))


# Files that are no proofs, made to break or to stall the checker, are rejected at once.
PROOF = dp.verify(dp.load("logistic_regression", features=2), dp.Privacy(1.0), 100).proof
FIELD = next(k for k, node in enumerate(json.loads(PROOF)["nodes"]) if node["op"] == "field")


def power_of(degree):
    first = len(json.loads(PROOF)["nodes"])
    entry = {"op": "index", "shape": [], "args": [FIELD], "places": [0]}
    return [entry, *({"op": "multiply", "shape": [], "args": [first + k] * 2} for k in range(degree))]


def doubled(operation, first, times):
    end = len(json.loads(PROOF)["nodes"])
    return [{"op": operation, "shape": [], "args": [first if k == 0 else end + k - 1] * 2} for k in range(times)]


def of_last(part, operation, times):
    """Return the proof with a regularizer, or losses, that are paths without end."""
    proof = json.loads(PROOF)
    first = proof["regularizer"] if part == "regularizer" else proof["losses"][0]
    nodes, last = proof["nodes"] + doubled(operation, first, times), len(proof["nodes"]) + times - 1
    return changed(nodes=nodes, **{part: last if part == "regularizer" else [last] * len(proof["losses"])})


def moments_of(**moment):
    proof = json.loads(dp.verify(dp.load("ridge_regression", features=1), dp.Privacy(1.0), 100, SUMS).proof)
    return json.dumps(proof | {"moments": [proof["moments"][0] | moment]}).encode()


def changed(**parts):
    return json.dumps(json.loads(PROOF) | parts).encode()


def with_claim(**parts):
    return changed(claim=json.loads(PROOF)["claim"] | parts)


def with_nodes(*nodes):
    return changed(nodes=[*json.loads(PROOF)["nodes"], *nodes])


def rows(count, size, operation):
    """Return the proof of a loss with a dense matrix of public numbers, whose rows a record's entries multiply."""
    end, numbers = len(json.loads(PROOF)["nodes"]), [k * 7919 % 101 + 1 for k in range(count * size)]
    nodes = [{"op": "variable", "shape": [size], "name": "v"}, {"op": "field", "shape": [count], "field": "q"}]
    nodes.append({"op": "constant", "shape": [count, size], "value": numbers})
    nodes.append({"op": "matmul", "shape": [count], "args": [end + 2, end]})
    nodes.append({"op": "multiply", "shape": [count], "args": [end + 3, end + 1]})
    nodes.append({"op": operation, "shape": [], "args": [end + 4], "groups": [[*range(count)]]})
    parts = {"nodes": json.loads(PROOF)["nodes"] + nodes, "losses": [end + 5], "cells": [0] * (2 + size), "parts": []}
    return changed(record=json.loads(PROOF)["record"] | {"q": {"dim": count, "radius": 1, "norm": 2}}, **parts)


SUMS = dp.SufficientStatistics("gamma")
FIELDS = {f"f{k}": {"dim": 1, "radius": 1, "norm": 2} for k in range(25_000)}
CONSTANT = {"op": "constant", "shape": [], "value": [3**1000]}
# Paths through a graph, whose number doubles node by node; and what costs more than it is long.
STALLING = {
    **{
        f"{part} {operation} {times}": lambda *named, case=(part, operation, times): of_last(*case)
        for part in ("regularizer", "losses")
        for operation in ("add", "multiply", "maximum")
        for times in (60, 4900)
    },
    "a moment of degree 1000": lambda: moments_of(bases=[0] * 1000, monomials=[[0] * 1000]),
    "a moment of many labels": lambda: moments_of(bases=[0], monomials=[[0]], patterns=[[1]] * 20_000),
    "many fields": lambda: changed(record=json.loads(PROOF)["record"] | FIELDS),
    "wide fields": lambda: changed(record={f"f{k}": {"dim": 10**4, "radius": 1, "norm": 2} for k in range(100)}),
    "powers of a constant": lambda: with_nodes(CONSTANT, *doubled("multiply", len(json.loads(PROOF)["nodes"]), 40)),
    "many tangents": lambda: changed(tangents=[[1, 1, 0]] * 60_000),
    "many centres": lambda: changed(centres=[[[0, 0, 1]]] * 50_000),
    "many constraints": lambda: changed(constraints=[{"kind": "inequality", "args": [0, 0]}] * 20_000),
    "a place far out": lambda: changed(layout=[[10**5, 10**5]] * 10**5),
    "many numbers": lambda: with_nodes({"op": "constant", "shape": [10**5], "value": ["0x1.8p-3"] * 10**5}),
    "runs": lambda: with_claim(settings={"mean_number_of_runs": 2**1000} | dict.fromkeys(ONE_RUN, "0x1p-1000")),
    **{
        f"{operation} of {count} rows": lambda operation=operation, count=count: rows(count, 10, operation)
        for operation in ("log_sum_exp", "max")
        for count in (100, 3000)
    },
}


def chain(count):
    """Return a proof of a loss of ``(x_1 + x_2) w_1 + (x_2 + x_3) w_2 + ...``, whose matrix no block takes apart."""
    places = list(range(count))
    nodes = [{"op": "variable", "name": "w", "shape": [count]}, {"op": "field", "field": "x", "shape": [count + 1]}]
    nodes += [{"op": "index", "shape": [count], "args": [1], "places": [p + k for p in places]} for k in (0, 1)]
    nodes += [{"op": "add", "shape": [count], "args": [2, 3]}, {"op": "matmul", "shape": [], "args": [4, 0]}]
    nodes += [CONSTANT | {"value": [1]}, {"op": "quad_over_lin", "shape": [], "args": [0, 6], "groups": [places]}]
    parts = {"record": {"x": {"dim": count + 1, "radius": 1, "norm": 2}}, "centres": [], "tangents": []}
    return changed(**parts, nodes=nodes, cells=[0] * count, losses=[5], regularizer=7)


FILES = {
    "a chain": chain(2500),
    "deep objects": b'{"a":' * 10**6,
    "deep and closed": b'{"format": "dpconvex proof 1", "claim": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "a long number": b'{"format": "dpconvex proof 1", "tangents": [' + b"9" * 10**6 + b"]}",
    "infinite": PROOF[:-1] + b',"more":-Infinity}',
    "cut off": PROOF[: len(PROOF) // 2],
    "a number of many digits": with_claim(noise_scale="0x1." + "f" * 10**6 + "p+0"),
    "no noise": with_claim(noise_scale=0),
    "negative noise": with_claim(noise_scale=-1),
    "text for a number": with_claim(noise_scale="much"),
    "true for a number": with_claim(size=True),
    "no records": with_claim(size=0),
    "no privacy": with_claim(privacy=[]),
    "unknown neighbours": with_claim(privacy={"epsilon": 1, "delta": 0, "adjacency": "none"}),
    "other noise": with_claim(perturbed="nothing"),
    "no losses": changed(losses=[]),
    "a loss that is not there": changed(losses=[10**6]),
    "a negative shape": changed(nodes=[{"op": "variable", "name": "w", "shape": [-1]}]),
    "a huge field": changed(record={"x": {"dim": 10**9, "radius": 1, "norm": 2}}),
    "a radius below 0": changed(record={"x": {"dim": 2, "radius": -1, "norm": 2}}),
    "cells of other coordinates": changed(cells=[0]),
    "no cells": changed(cells=None),
    "a modulus below 0": changed(modulus=-1),
    "a variable twice": with_nodes({"op": "variable", "name": "w", "shape": [2]}),
    "nothing": changed(nodes=[]),
    "a node that is none": changed(nodes=["add"]),
    "many nodes": changed(nodes=[{"op": "constant", "shape": [], "value": [1]}] * 20_000),
    "unknown constraints": changed(constraints=[{"kind": "hope", "args": [0]}]),
    "groups beyond": with_nodes({"op": "sum", "shape": [], "args": [0], "groups": [[10**9]]}),
    "no groups": with_nodes({"op": "sum", "shape": [], "args": [0]}),
    "no arguments": with_nodes({"op": "add", "shape": []}),
    "a centre that is none": changed(centres=[[["a", "b", "c"]]]),
    "a tangent at 0": changed(tangents=[[0, 0, 0]]),
    "no settings": with_claim(settings=None),
    "no cover": with_claim(cover=None),
    "other parts": changed(more=[{}] * 10**6),
    "many losses": changed(losses=json.loads(PROOF)["losses"] * 2000),
    "a high degree": with_nodes(*power_of(26)),
    "an empty shape": with_nodes({"op": "constant", "shape": [0], "value": []}),
    "one array many times": with_nodes(
        {"op": "constant", "shape": [20_000], "value": [1] * 20_000},
        {"op": "concatenate", "shape": [1], "args": [len(json.loads(PROOF)["nodes"])] * 1000, "places": [0]},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_it_is_rejected_at_once(name):
    began = time.process_time()
    try:
        found = check(FILES[name])
    except Rejected:
        found = None
    assert found is None or found.unreplayed  # nothing is said of what there is no rule for
    assert time.process_time() - began < 2  # a second where nothing else runs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", STALLING)
def test_it_ends_soon(name):
    text, began = STALLING[name](), time.process_time()
    with suppress(Rejected):
        check(text)
    assert Steps.left > -MOST_STEPS  # of some 3 microseconds each
    assert time.process_time() - began < 2  # a second where nothing else runs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["losses maximum 4900", "a place far out", "many constraints"])
def test_it_needs_little_memory(name):
    text = STALLING[name]()
    tracemalloc.start()
    with suppress(Rejected):
        check(text)
    heaviest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert heaviest < 2e8


def test_how_far_a_check_comes_does_not_depend_on_those_before_it():
    spent = []
    for _ in range(2):
        check(PROOF)
        spent.append(Steps.left)
    assert spent[0] == spent[1]
