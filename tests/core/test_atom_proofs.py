"""One test over all atoms, continued: ranges, gradients, curvature and smooth stand-ins against samples."""

import cvxpy as cp
import numpy as np
import pytest
from atom_cases import CASES, Case, full

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.discipline import is_concave, is_convex
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expansion import Bases, Expander
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Box
from dpconvex.core.to_cvxpy import Writer
from dpconvex.errors import NotPrivate
from dpconvex.language.record import Record
from dpconvex.language.template import Template

EVERY = pytest.mark.parametrize("name", CASES)
# Atoms of matrices whose domain no box of entries states.
OF_SYMMETRIC = ("lambda_max", "log_det")


def box_of(case: Case, k: int) -> tuple[float, float]:
    """A box in the domain of an argument; divisors keep away from zero."""
    domain = case.atom.domain(case.expression())[k]
    return (0.25, 1.5) if domain in ("positive", "not negative") or case.atom.affine == "quotient" else (-1.5, 1.0)


@EVERY
def test_ranges_hold(name: str) -> None:
    if name in OF_SYMMETRIC:
        pytest.skip("a record's matrix is not known to be symmetric")
    proved = 0
    for case in full(name):
        rng = np.random.default_rng(6)
        ends = [box_of(case, k) for k in range(len(case.shapes))]
        boxes = {
            f"x{k}": Box(np.full(shape, low), np.full(shape, high))
            for k, (shape, (low, high)) in enumerate(zip(case.shapes, ends, strict=True))
        }
        expander = Expander(Space([]), Bases(Record(**boxes)))
        try:
            low, high = expander.bounds(case.expression("field"))
        except NotPrivate:
            continue
        proved += 1
        for trial in range(40):
            values = {key: rng.uniform(box.lower, box.upper) for key, box in boxes.items()}
            if trial % 2:
                values = {k: np.where(rng.random(box.shape) < 0.5, box.lower, box.upper) for k, box in boxes.items()}
            found = evaluate(case.expression("field"), values).ravel(order="F")
            slack = 1e-9 * (1 + np.abs(found))
            assert (low - slack <= found).all(), case
            assert (found <= high + slack).all(), case
    assert proved


def template_of(case: Case) -> tuple[Template, Expression] | None:
    """A template whose loss adds up the atom of affine functions of a bounded variable; None if it is not convex."""
    ends = [box_of(case, k) for k in range(len(case.shapes))]
    record = Record(**{f"x{k}": Box(np.full(s, -1.0), np.full(s, 1.0)) for k, s in enumerate(case.shapes)})
    ws = [cp.Variable(shape, name=f"w{k}", bounds=[-1, 1]) for k, shape in enumerate(case.shapes)]
    public = {"bilinear": 0, "quotient": 1}.get(case.atom.affine)  # the factor that is of the record alone
    factors = [x if k == public else cp.multiply(x, ws[k]) for k, x in enumerate(record.parameters.values())]
    given = [(a + b) / 2 + (b - a) / 2 * factor for (a, b), factor in zip(ends, factors, strict=True)]
    leaves = [
        leaf if k else case.leaves("field" if public == 0 else "variable")[0] for k, leaf in enumerate(case.leaves())
    ]
    expression = case.atom(*leaves, **case.options)
    if case.atom.writes is None:
        written = case.options["declaration"](given[0])
    else:
        written = Writer(dict(zip(leaves, given, strict=True))).expression(expression)
    sign = 1 if public is not None or is_convex(expression) else -1 if is_concave(expression) else 0
    if not sign:
        return None
    loss, penalty = sign * cp.sum(written), sum(cp.sum_squares(w) for w in ws)
    template = Template(record, lambda **fields: loss, penalty)
    return template, template.losses[0]


@EVERY
def test_gradients_and_curvatures_stay_below_what_is_proved(name: str) -> None:
    if name in OF_SYMMETRIC:
        pytest.skip("needs a symmetric variable; see tests/calculus")
    proved = 0
    for case in [case for case in full(name) if max(map(len, case.shapes)) <= 2][::2]:
        rng = np.random.default_rng(7)
        try:
            made = template_of(case)
            if made is None:
                continue
            analysis = Analysis(LossForm(made[0]))
        except NotPrivate:
            continue
        proved += 1
        template, loss = made
        bounds = analysis.losses[0]
        step = 1e-4

        def value(theta: np.ndarray, fields: dict[str, np.ndarray]) -> float:
            parts, start = {}, 0
            for v in template.variables:  # noqa: B023
                parts[v.name] = theta[start : start + v.size].reshape(v.shape, order="F")
                start += v.size
            return float(np.sum(evaluate(loss, {**parts, **fields})))  # noqa: B023

        dimension = sum(v.size for v in template.variables)
        for trial in range(6):
            fields = {k: column[0] for k, column in template.record.sample(1, rng).fields.items()}
            if trial % 2:
                fields = {k: np.where(v > 0, 1.0, -1.0) for k, v in fields.items()}
            theta = rng.uniform(-0.95, 0.95, dimension)
            unit = np.eye(dimension) * step
            gradient = np.array([(value(theta + e, fields) - value(theta - e, fields)) / (2 * step) for e in unit])
            assert np.linalg.norm(gradient) <= bounds.gradient_bound * (1 + 1e-6) + 1e-6, case
            if bounds.scalar.kink is not None:
                continue
            for _ in range(3):
                d = rng.normal(size=dimension)
                d *= step / np.linalg.norm(d)
                bend = (value(theta + d, fields) - 2 * value(theta, fields) + value(theta - d, fields)) / step**2
                assert bend <= bounds.curvature.eigenvalue * (1 + 1e-4) + 1e-4, case
    assert proved


@EVERY
def test_smooth_stand_ins_are_convex_and_close(name: str) -> None:
    for case in full(name):
        rng = np.random.default_rng(8)
        if case.atom.smooth is None:
            continue
        rounded = case.atom.smooth(case.expression(), list(case.leaves()), 0.05)
        if rounded is None:
            continue
        assert rounded.shape == case.expression().shape
        assert is_convex(rounded) == is_convex(case.expression())
        for _ in range(5):
            point = dict(zip(case.leaves(), case.point(rng), strict=True))
            apart = np.abs(evaluate(rounded, point) - evaluate(case.expression(), point))
            count = sum(leaf.size for leaf in case.leaves())  # of nonsmooth points of one number, at most
            assert (apart <= 0.05 * (2 + np.log(1 + count) + count)).all()
