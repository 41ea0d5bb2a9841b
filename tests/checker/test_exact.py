"""Bounds of functions from below and above, and what is read, strictly."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.special import ndtr

from dpconvex.checker import Rejected, check
from dpconvex.checker.exact import PI, exp, log, normal_tail, pivots, root
from dpconvex.checker.reading import Steps, number

CLOSE = 1e-13


def encloses(ends, value, width=1e-30):
    low, high = ends
    assert low <= high <= low + Fraction(width) * max(abs(low), abs(high), Fraction(1, 10**18))
    assert float(low) <= value + CLOSE * abs(value)
    assert float(high) >= value - CLOSE * abs(value)


@given(st.floats(-200, 200), st.floats(1e-200, 1e200), st.floats(-12, 9))
def test_functions_lie_between_their_bounds(x, y, t):
    Steps.left = 10**6
    encloses(exp(Fraction(x)), math.exp(x))
    encloses(root(Fraction(y)), math.sqrt(y))
    assert exp(log(Fraction(y)))[1] >= y > exp(log(Fraction(y)) - Fraction(1, 10**22))[0]
    encloses(normal_tail(Fraction(t)), float(ndtr(-t)), 1e-12)
    encloses(PI, math.pi)


@given(st.floats(5, 37))
def test_far_tails_are_known_to_eighty_bits(t):
    """Those of large guarantees are differences of two: true proofs were rejected from epsilon = 60 on."""
    Steps.left = 10**6
    low, high = normal_tail(Fraction(t))
    assert low <= high <= low * (1 + Fraction(1, 2**80))
    assert float(low) == pytest.approx(ndtr(-t), rel=1e-12)
    # They differ by what lies between, whose density falls: at a finer scale than floating point has.
    further = normal_tail(Fraction(t) + Fraction(1, 2**30))
    density = exp(-(Fraction(t) ** 2) / 2)[1] / root(2 * PI[0])[0]
    assert 0 < low - further[1] <= high - further[0] <= density / 2**30


@given(st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=3), st.integers(0, 2))
def test_squares_are_semidefinite_and_less_than_they_are_is_not(rows, k):
    Steps.left = 1000
    square = [[Fraction(sum(r[i] * r[j] for r in rows)) for j in range(3)] for i in range(3)]
    assert math.prod(pivots(square)) == round(np.linalg.det(np.array(square, dtype=float)))
    square[k][k] = Fraction(-1) if square[k][k] == 0 else -square[k][k]
    assert pivots(square) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_exactly(x):
    assert number(x.hex()) == Fraction(x)


NO_PROOF = [b"", b"[]", b"{}", b"null", b"[" * 10**6, b'{"a": NaN}', b'{"a": 1.5}', b"\xff", b" " * (2**23 + 1)]
NO_PROOF += [b'{"format": "dpconvex proof 1", "format": 1}', b'{"format": "dpconvex proof 2"}']
NO_PROOF += [b'{"format": "dpconvex proof 1", "n": 1' + b"0" * 5000 + b"}"]


@pytest.mark.parametrize("text", NO_PROOF)
def test_what_is_no_proof_is_rejected(text):
    with pytest.raises(Rejected):
        check(text)


def proof(nodes, **more):
    claim = {
        "perturbed": "objective",
        "privacy": {"epsilon": 1, "delta": 0, "adjacency": "replace-one"},
        "settings": {},
        **more,
    }
    found = {
        "format": "dpconvex proof 1",
        "record": {"x": {"dim": 2, "norm": 2, "radius": 1}},
        "nodes": nodes,
        "claim": claim,
    }
    return json.dumps({**found, "cells": [0], "parts": [0, 0], "constraints": [], "losses": [0]}).encode()


@pytest.mark.parametrize(
    "node",
    [
        {"op": "add", "shape": [], "args": [0]},  # of itself
        {"op": "add", "shape": [], "args": [1]},
        {"op": "variable", "shape": [10**9], "name": "w"},
        {"op": "constant", "shape": [], "value": ["0x1p+9999"]},
        {"op": "constant", "shape": [2], "value": [1]},
        {"op": "constant", "shape": [], "value": ["nan"]},
        {"op": "field", "shape": [2], "field": "y"},
        {"op": "index", "shape": [], "args": [], "places": [0]},
        {"shape": []},
        "add",
    ],
)
def test_nodes_that_are_none_are_rejected(node):
    with pytest.raises(Rejected):
        check(proof([node]))
