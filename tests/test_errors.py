"""Errors: one family, catchable in the ways that callers expect, with readable messages."""

import cvxpy as cp
import pytest
from hypothesis import given, strategies as st

import dpconvex
from dpconvex import errors
from dpconvex.errors import (
    DPConvexError,
    NotPrivate,
    shorten,
)


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n not in ("DPConvexError", "PrivacyWarning")])
def test_every_error_has_the_common_base(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, DPConvexError)
    assert not issubclass(DPConvexError, kind)
    assert getattr(dpconvex, name) is kind


def test_not_private_says_what_where_and_what_to_do() -> None:
    w = cp.Variable(3, name="w")
    error = NotPrivate("not strongly convex", cp.sum(w), "add 0.01 * cp.sum_squares(w)")
    assert error.reason == "not strongly convex"
    assert error.expression is not None
    assert "w" in error.expression
    assert error.remedy == "add 0.01 * cp.sum_squares(w)"
    first, where, remedy = str(error).splitlines()
    assert first == "not strongly convex"
    assert where == f"  where: {error.expression}"
    assert remedy == "  remedy: add 0.01 * cp.sum_squares(w)"


@given(st.text(), st.integers(min_value=5, max_value=200))
def test_shortened_text_keeps_its_ends_and_the_limit(text: str, limit: int) -> None:
    words = " ".join(text.split())
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(words) <= limit:
        assert short == words
    else:
        half = (limit - 3) // 2
        assert short == words[:half] + "..." + words[-half:]
