"""Record domains: what is accepted, what is refused and how, projection, and samples for tests."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.language.record import Record
from dpconvex.language.validation import ROUNDING

NORMS = (1, 2, np.inf)

balls = st.builds(
    Ball,
    dim=st.integers(1, 6),
    radius=st.floats(1e-11, 1e6),
    norm=st.sampled_from(NORMS),
)
shapes = st.sampled_from([(), (1,), (3,), (2, 2)])
numbers = st.floats(-1e6, 1e6)
boxes = shapes.flatmap(
    lambda shape: st.tuples(arrays(float, shape, elements=numbers), arrays(float, shape, elements=numbers))
).map(lambda pair: Box(np.minimum(*pair), np.maximum(*pair)))
domains = st.one_of(balls, boxes)
huge = st.floats(allow_nan=False, allow_infinity=False)


def value_rows(domain: Ball | Box, elements: st.SearchStrategy[float] = huge) -> st.SearchStrategy[Any]:
    return st.integers(1, 5).flatmap(lambda n: arrays(float, (n, *domain.shape), elements=elements))


def learner() -> Record:
    return Record(x=Ball(3), y=Choice(["no", "yes"]))


def data(**changed: Any) -> dict[str, Any]:
    return {"x": [[0.0, 0.6, 0.8], [0.0, 0.0, 0.0]], "y": ["yes", "no"], **changed}


# Symbols and combinations


def test_groups_index_the_combinations() -> None:
    record = Record(y=Choice(["a", "b"]), x=Box(0, 1), k=Choice([5, 6, 7]))
    rows = record.combinations
    batch = record.validate({"y": [c["y"] for c in rows], "k": [c["k"] for c in rows], "x": np.zeros(6)})
    np.testing.assert_array_equal(batch.group, np.arange(6))


# Validation


def test_the_callers_array_cannot_be_changed_through_the_batch() -> None:
    x = np.zeros((2, 3))
    batch = learner().validate(data(x=x))
    with pytest.raises(ValueError, match="read-only"):
        batch.fields["x"][:] = 1.0
    assert x.flags.writeable


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": [[0.0, np.nan, 0.0], [0, 0, 0]]}, "'x': row 0, column 1 is nan"),
        ({"x": [[0.0, 0.0, 0.0], [0, 0, np.inf]]}, "'x': row 1, column 2 is inf"),
        ({"x": np.ma.masked_equal([[9.0, 0, 0], [0, 0, 0]], 9.0)}, "'x': entries are masked"),
        ({"x": np.zeros((3, 3))}, "different numbers of records: {'x': 3, 'y': 2}"),
        ({"y": ["yes", "maybe"]}, r"'y': 1 of 2 records .*row 1, 'maybe'.*declared are \['no', 'yes'\]"),
        ({"y": ["yes", float("nan")]}, "'y': 1 of 2 records .*row 1, nan"),
        ({"x": np.zeros((0, 3)), "y": []}, "the data are empty"),
    ],
)
def test_bad_data_are_refused(changed: dict[Any, Any], message: str, clip: bool) -> None:
    table: Any = {**data(), **changed}
    with pytest.raises(DomainError, match=message):
        learner().validate(table, clip=clip)


@pytest.mark.parametrize("norm", NORMS)
def test_rounding_is_forgiven_and_put_right(norm: float) -> None:
    ball = Ball(2, radius=5.0, norm=norm)
    record = Record(x=ball)
    edge = np.array([[5.0, 0.0]])
    x = record.validate({"x": edge * (1 + ROUNDING / 2)}).fields["x"]
    np.testing.assert_allclose(x, edge, rtol=1e-15)
    assert (x <= 5.0 * (1 + 1e-15)).all()
    with pytest.raises(DomainError, match="outside"):
        record.validate({"x": edge * (1 + 2 * ROUNDING)})


# Domains, by properties


@given(st.data())
def test_projection_lands_inside_and_is_idempotent(draw: st.DataObject) -> None:
    domain = draw.draw(domains)
    values = draw.draw(value_rows(domain))
    projected = domain.project(values)
    assert projected.shape == values.shape
    assert (domain.excess(projected) <= 1e-14).all()
    for row in range(len(values)):  # each record alone
        np.testing.assert_array_equal(domain.project(values[row : row + 1]), projected[row : row + 1])
    np.testing.assert_allclose(domain.project(projected), projected, rtol=1e-14)


@given(domains)
def test_the_norm_bound_is_attained(domain: Ball | Box) -> None:
    values = domain.sample(2000, np.random.default_rng(0))
    largest = np.linalg.norm(values.reshape(len(values), -1), axis=1).max()
    assert largest >= 0.99 * domain.norm_bound


@given(st.data())
def test_clipping_accepts_every_finite_batch(draw: st.DataObject) -> None:
    domain = draw.draw(domains)
    values = draw.draw(value_rows(domain))
    record = Record(x=domain)
    clipped = record.validate({"x": values}, clip=True).fields["x"]
    np.testing.assert_array_equal(clipped, domain.project(values))
    outside = bool((domain.excess(values) > ROUNDING).any())
    try:
        checked = record.validate({"x": values}).fields["x"]
    except DPConvexError:
        assert outside
    else:
        assert not outside
        np.testing.assert_array_equal(checked, clipped)
