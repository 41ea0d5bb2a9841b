"""Proofs that are short and would take a checker minutes, or gigabytes: each ends within a second or so (docs/checking.md)."""

import json
import time
import tracemalloc
from contextlib import suppress

import pytest
from test_false_proofs import CLAIM, COVER, START, apply, node_of, number

from dpconvex.checker import Rejected, check
from dpconvex.checker.files import replay_file

LOSS, MANY, SIDE = apply("logistic", 2), 4000, 170  # node 5
WIDE = SIDE * SIDE


def matrix(source):
    return "reshape", [SIDE, SIDE], [source], {"places": [0] * WIDE}


def row(source, size):
    return "reshape", [size], [source], {"places": [0] * size}


def many(*node):
    return [node] * MANY + [apply("add", 4, *range(8, 8 + MANY))]


ZEROS = ("constant", [300, 300], [], {"value": [0] * 90_000})
NULL, FIRST = ("constant", [3000], [], {"value": [0] * 3000}), ("sum", [], [7], {"groups": [[0]]})
BIG = ("norm", [], [7], {"groups": [[0]], "p": 2})
LIMITS = [{"kind": "inequality", "args": [k, 3]} for k in range(8, 3008)]
HOSTILE = {
    "eigenvalues": ([number(1), matrix(0), *many("lambda_max", [], [7], {})], {}),
    "first entries": ([row(0, WIDE), ("abs", [WIDE], [6], {}), *many(*FIRST)], {}),
    "products of zeros": ([ZEROS, ("matmul", [300, 300], [6, 6], {})], {"regularizer": 4}),
    "sums of zeros": ([NULL, ("add", [3000], [6] * 100_000, {})], {"regularizer": 4}),
    "constraints": ([number(1), row(0, WIDE), *[BIG] * 3000], {"regularizer": 4, "constraints": LIMITS}),
}


def proof_of(nodes, parts, **claim):
    graph = [node_of(*node) for node in (*START, LOSS, *nodes)]
    proof = {"format": "dpconvex proof 1", "nodes": graph, "record": {"x": {"dim": 2, "radius": 1, "norm": 2}}}
    numbers = {"gradient_bound": 1, "sensitivity": 2, "noise_scale": 100, "strong_convexity": 200}
    proof |= {"claim": CLAIM | numbers | claim, "cells": [0, 0], "losses": [5], "regularizer": len(graph) - 1}
    proof |= {key: [] for key in ("constraints", "parts", "centres", "tangents", "moments", "layout")}
    return json.dumps(proof | {"modulus": 200} | parts).encode()


def ends_soon(text, event=None):
    start = time.process_time()
    with suppress(Rejected):
        check(text, event)
    assert time.process_time() - start < 3.0


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_proofs_end_soon(name):
    ends_soon(proof_of(*HOSTILE[name]))


def test_hostile_events_end_soon():
    factors = [number((1 - k / 64).hex()) for k in range(1, 12)]
    nodes = [node for k, factor in enumerate(factors) for node in (factor, apply("multiply", 6 + 2 * k, 5))]
    cover = COVER | {"scale": "0x1p24"}
    claim = {"perturbed": "objective", "noise": "gaussian", "noise_scale": 40, "cover": cover}
    claim |= {"privacy": {"epsilon": 1, "delta": "0x1p-10", "adjacency": "replace-one"}}
    few, enough = ({"dimension": n, "length": 100, "curvature": 100} for n in (0, 10))
    event = {"kind": "objective perturbation", "sigma": 40, "kinds": [few] * 12_000 + [enough]}
    losses = [5, *range(7, 7 + 2 * len(factors), 2)]
    ends_soon(proof_of(nodes, {"regularizer": 4, "losses": losses}, **claim), event)


def of_many(*node):
    return proof_of([row(2, 9000), node], {"regularizer": 4, "losses": [7] * 200})


def test_what_is_quadratic_takes_steps_and_no_memory():
    stopped = ("it takes too many steps",)
    assert check(of_many("log_sum_exp", [], [6], {"groups": [[0]]})).unreplayed == stopped  # ranks of many losses
    tracemalloc.start()
    assert check(of_many("norm", [], [6], {"groups": [[*range(9000)]], "p": 2})).unreplayed == stopped
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()


def test_files_with_too_many_parts_are_not_built(tmp_path):
    text = '{"format":"dpconvex certificate 1","certificate":{},"proof":{"a":[' + "[]," * 2_000_000 + "[]]}}"
    (tmp_path / "file.json").write_text(text)
    tracemalloc.start()
    with pytest.raises(Rejected, match="too many parts"):
        replay_file(str(tmp_path / "file.json"))
    assert tracemalloc.get_traced_memory()[1] < 6 * len(text)
    tracemalloc.stop()
