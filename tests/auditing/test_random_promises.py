"""Whole promises of random learners: the exact delta, or the largest privacy loss, never exceeds what is certified."""

import hashlib

import numpy as np
import pytest
from hypothesis import assume, given, settings
from promises import Promise, promises, worst

# What the certificate's own rounding may hide.
ROUNDING = 1e-6


def check(promise: Promise, most: int, places: int) -> None:
    """Compare claimed with found."""
    certificate = promise.certificate()
    assume(certificate is not None)
    assert certificate is not None
    seed = int.from_bytes(hashlib.sha256(repr(promise.privacy).encode()).digest()[:4], "big")
    found, place = worst(promise, certificate, np.random.default_rng(seed), most, places)
    assert found <= 1 + ROUNDING, (found, place, [kind.name for kind in promise.kinds])


@settings(max_examples=25)
@given(promises())
def test_promises_on_the_line(promise: Promise) -> None:
    check(promise, 16, 2)


@pytest.mark.slow
@settings(max_examples=3500)
@given(promises())
def test_many_promises_on_the_line(promise: Promise) -> None:
    check(promise, 40, 3)
