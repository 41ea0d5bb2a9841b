"""One test over all atoms: what each says of itself, against CVXPY, differences and samples."""

import numpy as np
import pytest
from atom_cases import CASES, Case, full

from dpconvex.core.atom import ATOMS
from dpconvex.core.discipline import is_concave, is_convex
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expression import Expression
from dpconvex.core.from_cvxpy import Reader
from dpconvex.core.to_cvxpy import Writer

EVERY = pytest.mark.parametrize("name", CASES)


def at(case: Case, point: list[np.ndarray]) -> np.ndarray:
    """Value of an atom."""
    return evaluate(case.expression(), dict(zip(case.leaves(), point, strict=True)))


def test_every_atom_is_tried() -> None:
    assert set(CASES) == set(ATOMS)
    for name, cases in CASES.items():
        assert cases, name


@EVERY
def test_the_value_is_that_of_cvxpy_and_survives_writing_and_reading(name: str) -> None:
    for case in full(name):
        rng = np.random.default_rng(1)
        point, writer = case.point(rng), Writer()
        value = at(case, point)
        assert value.shape == case.expression().shape
        if case.atom.writes is None:
            assert case.atom.name == "declared"
            np.testing.assert_allclose(value, case.options["declaration"].evaluate(point[0]))
            continue
        # CVXPY wants one factor of convolutions and Kronecker products to be constant.
        first = [point[0], *case.leaves()[1:]] if case.atom.affine == "bilinear" else case.leaves()
        written = writer.expression(case.atom(*first, **case.options))
        for leaf, number in zip(case.leaves(), point, strict=True):
            writer.expression(leaf).value = number
        assert written.shape == value.shape
        np.testing.assert_allclose(np.reshape(written.value, value.shape), value, rtol=1e-9, atol=1e-12)
        again = Reader([]).expression(written, "the expression")
        numbers = {variable.name: number for variable, number in zip(case.leaves(), point, strict=True)}
        np.testing.assert_allclose(evaluate(again, numbers), value, rtol=1e-9, atol=1e-12)


@EVERY
def test_records_come_last(name: str) -> None:
    for case in full(name):
        rng = np.random.default_rng(2)
        points = [case.point(rng) for _ in range(4)]
        expression = case.expression()
        stacked = [np.stack(parts, axis=-1) for parts in zip(*points, strict=True)]
        each = np.stack([at(case, point) for point in points], axis=-1)
        np.testing.assert_allclose(case.atom.value(np, expression, *stacked), each, rtol=1e-12, atol=1e-12)
        # One argument may be the same for all records.
        shared = [stacked[0][..., :1], *stacked[1:]]
        again = np.stack([at(case, [points[0][0], *point[1:]]) for point in points], axis=-1)
        found = np.broadcast_to(case.atom.value(np, expression, *shared), again.shape)
        np.testing.assert_allclose(found, again, rtol=1e-12, atol=1e-12)


@EVERY
def test_signs_slopes_and_curvatures_are_as_they_are_said_to_be(name: str) -> None:
    for case in full(name):
        rng = np.random.default_rng(4)
        expression, atom = case.expression(), case.atom
        one, two = case.point(rng), case.point(rng)
        middle = [(a + b) / 2 for a, b in zip(one, two, strict=True)]
        low, high, between = at(case, one), at(case, two), at(case, middle)
        slack = 1e-9 * (1 + np.abs(low).max(initial=0) + np.abs(high).max(initial=0))
        for point, value in ((one, low), (two, high), (middle, between)):
            claimed = atom.sign(expression, [sign_of(part) for part in point])
            assert claimed == 0 or (claimed * value >= -slack).all()
        if is_convex(expression):
            assert (between <= (low + high) / 2 + slack).all()
        if is_concave(expression):
            assert (between >= (low + high) / 2 - slack).all()
        for k, part in enumerate(one):
            larger = [*one]
            larger[k] = part + (
                np.eye(len(part)) if atom.domain(expression)[k] in ("symmetric", "semidefinite") else 0.1
            )
            signs = [sign_of(a) if sign_of(a) == sign_of(b) else 0 for a, b in zip(one, larger, strict=True)]
            claimed = atom.slope(expression, k, signs)
            assert claimed == 0 or (claimed * (at(case, larger) - low) >= -slack).all()


def sign_of(part: np.ndarray) -> int:
    """Sign of numbers, 0 if they differ."""
    return 1 if (part >= 0).all() else -1 if (part <= 0).all() else 0


def test_texts_are_mathematics() -> None:
    for case in (case for cases in CASES.values() for case in cases):
        assert "<" not in str(case.expression()), case
        assert "object at" not in str(case.expression())


def test_nodes_are_shared_and_immutable() -> None:
    for case in (case for cases in CASES.values() for case in cases):
        assert case.expression() is case.expression()
    expression: Expression = CASES["exp"][0].expression()
    with pytest.raises(AttributeError, match="immutable"):
        expression.shape = (7,)
