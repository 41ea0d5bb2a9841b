"""Files that are no proofs, made to break or to stall the checker, are rejected at once."""

import json
import time
import tracemalloc
from contextlib import suppress

import pytest

import dpconvex as dp
from dpconvex.checker import check
from dpconvex.checker.reading import MOST_STEPS, Rejected, Steps
from dpconvex.checker.table import RUN

PROOF = dp.verify(dp.load("logistic_regression", features=2), dp.Privacy(1.0), 100).proof
FIELD = next(k for k, node in enumerate(json.loads(PROOF)["nodes"]) if node["op"] == "field")


def power_of(degree):
    first = len(json.loads(PROOF)["nodes"])
    entry = {"op": "index", "shape": [], "args": [FIELD], "places": [0]}
    return [entry, *({"op": "multiply", "shape": [], "args": [first + k] * 2} for k in range(degree))]


def doubled(operation, first, times):
    """Return so many nodes, each made of the one before it twice."""
    end = len(json.loads(PROOF)["nodes"])
    return [{"op": operation, "shape": [], "args": [first if k == 0 else end + k - 1] * 2} for k in range(times)]


def of_last(part, operation, times):
    """Return the proof with a regularizer, or losses, that are paths without end."""
    proof = json.loads(PROOF)
    first = proof["regularizer"] if part == "regularizer" else proof["losses"][0]
    nodes, last = proof["nodes"] + doubled(operation, first, times), len(proof["nodes"]) + times - 1
    return changed(nodes=nodes, **{part: last if part == "regularizer" else [last] * len(proof["losses"])})


def sums(**moment):
    proof = json.loads(dp.verify(dp.load("ridge_regression", features=1), dp.Privacy(1.0), 100, SUMS).proof)
    return json.dumps(proof | {"moments": [proof["moments"][0] | moment]}).encode()


def changed(**parts):
    return json.dumps(json.loads(PROOF) | parts).encode()


def claiming(**parts):
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
        f"{part} {operation} {times}": lambda part=part, operation=operation, times=times: of_last(
            part, operation, times
        )
        for part in ("regularizer", "losses")
        for operation in ("add", "multiply", "maximum")
        for times in (60, 4900)
    },
    "a moment of degree 1000": lambda: sums(bases=[0] * 1000, monomials=[[0] * 1000]),
    "a moment of many labels": lambda: sums(bases=[0], monomials=[[0]], patterns=[[1]] * 20_000),
    "many fields": lambda: changed(record=json.loads(PROOF)["record"] | FIELDS),
    "wide fields": lambda: changed(record={f"f{k}": {"dim": 10**4, "radius": 1, "norm": 2} for k in range(100)}),
    "powers of a constant": lambda: with_nodes(CONSTANT, *doubled("multiply", len(json.loads(PROOF)["nodes"]), 40)),
    "many tangents": lambda: changed(tangents=[[1, 1, 0]] * 60_000),
    "many centres": lambda: changed(centres=[[[0, 0, 1]]] * 50_000),
    "many constraints": lambda: changed(constraints=[{"kind": "inequality", "args": [0, 0]}] * 20_000),
    "a place far out": lambda: changed(layout=[[10**5, 10**5]] * 10**5),
    "many numbers": lambda: with_nodes({"op": "constant", "shape": [10**5], "value": ["0x1.8p-3"] * 10**5}),
    "runs": lambda: claiming(settings={"mean_number_of_runs": 2**1000} | dict.fromkeys(RUN, "0x1p-1000")),
    **{
        f"{operation} of {count} rows": lambda operation=operation, count=count: rows(count, 10, operation)
        for operation in ("log_sum_exp", "max")
        for count in (100, 3000)
    },
}
FILES = {
    "deep objects": b'{"a":' * 10**6,
    "deep and closed": b'{"format": "dpconvex proof 1", "claim": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "a long number": b'{"format": "dpconvex proof 1", "tangents": [' + b"9" * 10**6 + b"]}",
    "infinite": PROOF[:-1] + b',"more":-Infinity}',
    "cut off": PROOF[: len(PROOF) // 2],
    "a number of many digits": claiming(noise_scale="0x1." + "f" * 10**6 + "p+0"),
    "no noise": claiming(noise_scale=0),
    "negative noise": claiming(noise_scale=-1),
    "text for a number": claiming(noise_scale="much"),
    "true for a number": claiming(size=True),
    "no records": claiming(size=0),
    "no privacy": claiming(privacy=[]),
    "unknown neighbours": claiming(privacy={"epsilon": 1, "delta": 0, "adjacency": "none"}),
    "other noise": claiming(perturbed="nothing"),
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
    "many nodes": changed(nodes=[{"op": "constant", "shape": [], "value": [1]}] * 20_000),
    "unknown constraints": changed(constraints=[{"kind": "hope", "args": [0]}]),
    "groups beyond": with_nodes({"op": "sum", "shape": [], "args": [0], "groups": [[10**9]]}),
    "no groups": with_nodes({"op": "sum", "shape": [], "args": [0]}),
    "no arguments": with_nodes({"op": "add", "shape": []}),
    "a centre that is none": changed(centres=[[["a", "b", "c"]]]),
    "a tangent at 0": changed(tangents=[[0, 0, 0]]),
    "no settings": claiming(settings=None),
    "no cover": claiming(cover=None),
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


@pytest.mark.parametrize("name", STALLING)
def test_it_ends_soon(name):
    text, began = STALLING[name](), time.process_time()
    with suppress(Rejected):
        check(text)
    assert Steps.left > -MOST_STEPS  # of some 3 microseconds each
    assert time.process_time() - began < 2  # a second where nothing else runs


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
