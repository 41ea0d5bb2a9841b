"""Files that are no proofs, made to break or to stall the checker, are rejected at once."""

import json
import time

import pytest

import dpconvex as dp
from dpconvex.checker import check
from dpconvex.checker.reading import Rejected

PROOF = dp.verify(dp.load("logistic_regression", features=2), dp.Privacy(1.0), 100).proof
FIELD = next(k for k, node in enumerate(json.loads(PROOF)["nodes"]) if node["op"] == "field")


def power_of(degree):
    first = len(json.loads(PROOF)["nodes"])
    entry = {"op": "index", "shape": [], "args": [FIELD], "places": [0]}
    return [entry, *({"op": "multiply", "shape": [], "args": [first + k] * 2} for k in range(degree))]


def changed(**parts):
    return json.dumps(json.loads(PROOF) | parts).encode()


def claiming(**parts):
    return changed(claim=json.loads(PROOF)["claim"] | parts)


def with_nodes(*nodes):
    return changed(nodes=[*json.loads(PROOF)["nodes"], *nodes])


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
    assert time.process_time() - began < 1
