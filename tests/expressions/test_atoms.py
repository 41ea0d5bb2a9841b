"""One test over all atoms: what each says of itself, against CVXPY, differences and samples."""

import inspect
import itertools
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet
from dpconvex.expressions.atom import AtomDefinition
from dpconvex.expressions.atoms import ATOMS, arithmetic, powers
from dpconvex.expressions.declared_atoms import Atom as Declaration
from dpconvex.expressions.discipline import is_concave, is_convex
from dpconvex.expressions.evaluate import evaluate
from dpconvex.expressions.expansion import Expander, RecordVariables
from dpconvex.expressions.expression import Field, Shape, Variable
from dpconvex.expressions.from_cvxpy import Reader
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.to_cvxpy import Writer
from dpconvex.numerics import Interval
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.programs import lowered

SHAPES = [(), (3,), (2, 3), (3, 3), (1, 3), (0,), (2, 2, 2)]
MOST = 24
FLAT = Declaration("curve", lambda m: (1.0 + m * m) ** 0.5, slope=(-1.0, 1.0), curvature=1.0, lower=1.0)


@dataclass(frozen=True, eq=False)
class Case:
    """An atom with shapes of its arguments, and options."""

    atom: AtomDefinition
    shapes: tuple[Shape, ...]
    options: dict[str, Any]

    def __str__(self):
        options = ",".join(f"{k}={'curve' if k == 'declaration' else v}" for k, v in sorted(self.options.items()))
        return f"{self.atom.name}-{'-'.join(map(str, self.shapes))}-{options}".replace(" ", "")

    def leaves(self, kind="variable"):
        if kind == "field":
            return [Field.of(shape, f"x{k}", "cases") for k, shape in enumerate(self.shapes)]
        return [Variable.of(shape, f"v{k}", 10**9 + k) for k, shape in enumerate(self.shapes)]

    def expression(self, kind="variable"):
        return self.atom(*self.leaves(kind), **self.options)

    def at(self, point):
        return evaluate(self.expression(), dict(zip(self.leaves(), point, strict=True)))

    def point(self, rng):
        """Draw arguments inside the domain, away from kinks and from zero."""
        domains = self.atom.domain(self.expression())
        return [draw(shape, domain, rng) for shape, domain in zip(self.shapes, domains, strict=True)]


def draw(shape, domain, rng):
    """Draw numbers of which no two are as large, in a domain."""
    size = 0.3 + rng.permutation(int(np.prod(shape))).reshape(shape) / 2 + rng.uniform(0, 0.1, shape)
    value = size * rng.choice([-1.0, 1.0], shape)
    if domain in ("positive", "not negative"):
        return np.asarray(np.abs(value))
    if domain == "symmetric":
        return np.asarray(value + value.T)
    return np.asarray(value @ value.T + np.eye(*shape)) if domain == "semidefinite" else np.asarray(value)


def option_values(name, shapes):
    """Return values worth trying for an option; an option that is not known here fails the tests."""
    count, first = len(shapes[0]), shapes[0]
    axes = [axis for n in range(1, count + 1) for axis in itertools.combinations(range(count), n)] or [()]
    ends = [(0, (0, n, 1), (n - 1, -1, -2)) for n in first]
    values = {
        "M": [0.5, 2.0],
        "p": [-1.0, 0.5, 1.5, 2.0, 3.0, 4.0, 6.0, 1.0, float("inf")],
        "axis": [*axes, *range(count)],
        "keepdims": [False, True],
        "k": [0, 1, 2, -1],
        "shape": [(), (3,), (6,), (3, 2), (2, 3), (2, 2, 3), (3, 3)],
        "axes": list(itertools.permutations(range(count))),
        "key": list(itertools.product(*ends))[:9],
        "places": [(0, 0, 0), tuple(range(int(np.prod(first))))[::-1][:3]],
        "declaration": [FLAT],
    }
    if name not in values:
        raise AssertionError(
            f"say in tests/expressions/test_atoms.py which values of the option {name!r} are worth trying"
        )
    return values[name]


def cases_of(atom):
    parameters = list(inspect.signature(atom.value).parameters.values())[1:]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    arities = [1, 2, 3] if variadic else [len(parameters)]
    own = [p for p in inspect.signature(atom.shape).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    own = [p for p in own if p.kind is not p.VAR_KEYWORD]
    names = [p.name for p in own[0 if variadic else arities[0] :]] if own else []
    for arity in arities:
        for shapes in itertools.product(SHAPES, repeat=arity):
            if arity == 3 and len(set(shapes)) > 1:
                continue
            for values in itertools.product(*(option_values(name, shapes) for name in names)):
                case = Case(atom, shapes, dict(zip(names, values, strict=True)))
                try:
                    expression = case.expression()
                    fits = expression.atom is atom and np.prod(expression.shape) < 40
                except (ValueError, TypeError, IndexError):
                    continue
                if fits and ("places" not in names or len(case.options["places"]) == np.prod(expression.shape)):
                    yield case


def some(cases):
    """Return the first and the last cases, and some between."""
    return cases if len(cases) <= MOST else [cases[k * (len(cases) - 1) // (MOST - 1)] for k in range(MOST)]


CASES = {name: some(list(cases_of(ATOMS[name]))) for name in sorted(ATOMS)}


def full(name):
    """The cases of an atom whose arguments have entries."""
    return [case for case in CASES[name] if all(np.prod(shape) for shape in case.shapes)]


DOCS = Path(__file__).parents[2] / "docs"
EVERY = pytest.mark.parametrize("name", CASES)
# No loss or regularizer with these has a Hessian; and no box of entries states the domain of those, see tests/sensitivity.
SPECTRAL, OF_SYMMETRIC = ("lambda_max", "sigma_max", "norm_nuc"), ("lambda_max", "log_det")
BOXED = pytest.mark.parametrize("name", [name for name in CASES if name not in OF_SYMMETRIC])


def own_function(case):
    """Return the public function of an atom without a conic form, which has its name but for these."""
    if case.atom.name == "neg_log_normcdf":
        return lambda m: -dp.log_normcdf(m)
    return case.options.get("declaration") or getattr(dp, case.atom.name)


def test_every_atom_is_tried():
    assert set(CASES) == set(ATOMS)
    for name, cases in CASES.items():
        assert cases, name
        for case in cases:
            expression = case.expression()
            assert expression is case.expression()  # nodes are shared
            assert "<" not in str(expression), case  # texts are mathematics
            assert "object at" not in str(expression), case
    with pytest.raises(AttributeError, match="immutable"):
        expression.shape = (7,)


@EVERY
def test_the_value_is_that_of_cvxpy_and_survives_writing_and_reading(name):
    for case in full(name):
        point, writer = case.point(np.random.default_rng(1)), Writer()
        value = case.at(point)
        assert value.shape == case.expression().shape
        if case.atom.to_cvxpy is None:
            np.testing.assert_allclose(value, own_function(case)(point[0]).value, rtol=1e-12)
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


@pytest.mark.sampled(2)
@EVERY
def test_records_come_last(name):
    for case in full(name):
        rng = np.random.default_rng(2)
        points = [case.point(rng) for _ in range(4)]
        stacked = [np.stack(parts, axis=-1) for parts in zip(*points, strict=True)]
        # One argument may be the same for all records.
        for first, arguments in [
            (points, stacked),
            ([[points[0][0], *p[1:]] for p in points], [stacked[0][..., :1], *stacked[1:]]),
        ]:
            each = np.stack([case.at(point) for point in first], axis=-1)
            found = np.broadcast_to(case.atom.value(case.expression(), *arguments), each.shape)
            np.testing.assert_allclose(found, each, rtol=1e-12, atol=1e-12)


def sign_of(*parts):
    """Sign of numbers, 0 if they differ."""
    return 1 if all((p >= 0).all() for p in parts) else -1 if all((p <= 0).all() for p in parts) else 0


@EVERY
def test_signs_slopes_and_curvatures_are_as_they_are_said_to_be(name):
    for case in full(name):
        rng, expression, atom = np.random.default_rng(4), case.expression(), case.atom
        one, two = case.point(rng), case.point(rng)
        middle = [(a + b) / 2 for a, b in zip(one, two, strict=True)]
        low, high, between = values = [case.at(point) for point in (one, two, middle)]
        slack = 1e-9 * (1 + np.abs(low).max(initial=0) + np.abs(high).max(initial=0))
        for point, value in zip((one, two, middle), values, strict=True):
            claimed = atom.sign(expression, [sign_of(part) for part in point])
            assert claimed == 0 or (claimed * value >= -slack).all()
        assert not is_convex(expression) or (between <= (low + high) / 2 + slack).all()
        assert not is_concave(expression) or (between >= (low + high) / 2 - slack).all()
        for k, part in enumerate(one):
            matrix = atom.domain(expression)[k] in ("symmetric", "semidefinite")
            larger = [*one[:k], part + (np.eye(len(part)) if matrix else 0.1), *one[k + 1 :]]
            claimed = atom.monotonicity(expression, k, [sign_of(a, b) for a, b in zip(one, larger, strict=True)])
            assert claimed == 0 or (claimed * (case.at(larger) - low) >= -slack).all()


# Slopes and Hessians of what runs, against differences of its values.
def prepared(case, records):
    """A scalar function of an atom, points, and directions that stay in its domain."""
    rng, built, rows, start = np.random.default_rng(0), case.expression(), {}, 0
    for leaf in case.leaves():
        rows[leaf], start = np.arange(start, start + leaf.size), start + leaf.size
    # A sum of squares has a curvature of its own, which shows Hessians of arguments and of slopes.
    own = lowered(arithmetic.total(built * rng.normal(size=built.shape) + powers.square(built) / 2), rows)
    points = [[np.concatenate([np.ravel(p, "F") for p in case.point(rng)]) for _ in range(records)] for _ in range(2)]
    here, there = (np.array(some).T[own.place] for some in points)
    return own, here, there - here


@pytest.mark.sampled(2)
@EVERY
def test_slopes_and_hessians(name):
    step = 1e-6
    for case in full(name):
        own, entries, along = prepared(case, 3)
        slopes = own.gradient(entries, [], 3)[1]
        ahead, behind = (own.gradient(entries + sign * step * along, [], 3) for sign in (1, -1))
        change = (ahead[0] - behind[0]) / (2 * step)
        assert (np.abs(np.sum(slopes * along, axis=0) - change) <= 1e-6 * (1 + np.abs(ahead[0]))).all(), str(case)
        if name not in SPECTRAL:
            bend = (ahead[1] - behind[1]) / (2 * step)
            found = own.hessian_product(entries, along, [], 3)
            assert found == pytest.approx(bend, rel=1e-4, abs=1e-6 * (1 + np.abs(bend).max(initial=0.0))), str(case)


# Ranges, gradients, curvature and smooth stand-ins against samples.
def boxes(case):
    """Boxes in the domains of the arguments; divisors keep away from zero."""
    domains = case.atom.domain(case.expression())
    apart = [domain in ("positive", "not negative") or case.atom.affine == "quotient" for domain in domains]
    return [(0.25, 1.5) if away else (-1.5, 1.0) for away in apart]


@pytest.mark.sampled(6)
@BOXED
def test_ranges_hold(name):
    proved = 0
    for case in full(name):
        rng, ends = np.random.default_rng(6), zip(case.shapes, boxes(case), strict=True)
        domains = {f"x{k}": dp.Box(np.full(s, low), np.full(s, high)) for k, (s, (low, high)) in enumerate(ends)}
        try:
            low, high = Expander(Space([]), RecordVariables(dp.Record(**domains).continuous)).bounds(
                case.expression("field")
            )
        except dp.NotPrivate:
            continue
        proved += 1
        for trial in range(40):
            values = {key: rng.uniform(box.lower, box.upper) for key, box in domains.items()}
            if trial % 2:
                values = {k: np.where(rng.random(box.shape) < 0.5, box.lower, box.upper) for k, box in domains.items()}
            found = evaluate(case.expression("field"), values).ravel(order="F")
            slack = 1e-9 * (1 + np.abs(found))
            assert (low - slack <= found).all(), case
            assert (found <= high + slack).all(), case
    assert proved


def template_of(case):
    """A template whose loss adds up the atom of affine functions of a bounded variable; None if it is not convex."""
    record = dp.Record(**{f"x{k}": dp.Box(np.full(s, -1.0), np.full(s, 1.0)) for k, s in enumerate(case.shapes)})
    ws = [cp.Variable(shape, name=f"w{k}", bounds=[-1, 1]) for k, shape in enumerate(case.shapes)]
    public = {"bilinear": 0, "quotient": 1}.get(case.atom.affine)  # the factor that is of the record alone
    factors = [x if k == public else cp.multiply(x, ws[k]) for k, x in enumerate(record.parameters.values())]
    given = [(a + b) / 2 + (b - a) / 2 * factor for (a, b), factor in zip(boxes(case), factors, strict=True)]
    leaves = case.leaves()
    if public == 0:
        leaves[0] = case.leaves("field")[0]
    expression = case.atom(*leaves, **case.options)
    if case.atom.to_cvxpy is None:
        written = own_function(case)(given[0])
    else:
        written = Writer(dict(zip(leaves, given, strict=True))).expression(expression)
    sign = 1 if public is not None or is_convex(expression) else -1 if is_concave(expression) else 0
    loss = sign * cp.sum(written)
    return dp.Template(record, lambda **fields: loss, sum(cp.sum_squares(w) for w in ws)) if sign else None


@pytest.mark.sampled(12)
@BOXED
def test_gradients_and_curvatures_stay_below_what_is_proved(name):
    proved, step = 0, 1e-4
    for case in [case for case in full(name) if max(map(len, case.shapes)) <= 2][::2]:
        rng = np.random.default_rng(7)
        try:
            template = template_of(case)
            if template is None:
                continue
            bounds = Analysis(LossForm(template)).losses[0]
        except dp.NotPrivate:
            continue
        proved += 1
        starts = np.cumsum([0, *(v.size for v in template.variables)])

        def value(theta):
            parts = zip(template.variables, np.split(theta, starts[1:-1]), strict=True)  # noqa: B023
            values = {v.name: part.reshape(v.shape, order="F") for v, part in parts}
            return float(np.sum(evaluate(template.losses[0], {**values, **fields})))  # noqa: B023

        for trial in range(6):
            fields = {k: column[0] for k, column in template.record.sample(1, rng).fields.items()}
            if trial % 2:
                fields = {k: np.where(v > 0, 1.0, -1.0) for k, v in fields.items()}
            theta = rng.uniform(-0.95, 0.95, starts[-1])
            gradient = [(value(theta + e) - value(theta - e)) / (2 * step) for e in np.eye(starts[-1]) * step]
            assert np.linalg.norm(gradient) <= bounds.gradient_bound * (1 + 1e-6) + 1e-6, case
            for d in rng.normal(size=(3, starts[-1])) if bounds.scalar.kink is None else ():
                d = d * step / np.linalg.norm(d)
                bend = (value(theta + d) - 2 * value(theta) + value(theta - d)) / step**2
                assert bend <= bounds.curvature.eigenvalue * (1 + 1e-4) + 1e-4, case
    assert proved


@EVERY
def test_smooth_stand_ins_are_convex_and_close(name):
    for case in full(name):
        rng, expression, leaves = np.random.default_rng(8), case.expression(), case.leaves()
        rounded = case.atom.smoothed and case.atom.smoothed(expression, leaves, 0.05)
        if rounded is None:
            continue
        assert (rounded.shape, is_convex(rounded)) == (expression.shape, is_convex(expression))
        count = sum(leaf.size for leaf in leaves)  # of nonsmooth points of one number, at most
        for point in (case.point(rng) for _ in range(5)):
            apart = np.abs(evaluate(rounded, dict(zip(leaves, point, strict=True))) - case.at(point))
            assert (apart <= 0.05 * (2 + np.log(1 + count) + count)).all()


def test_atoms_with_rules_have_examples_statements_and_sources():
    ruled = [atom for atom in ATOMS.values() if atom.affine == "curved" and atom.bounds is not None]
    own = runpy.run_path(str(DOCS / "build_rules.py"))["OWN_EXAMPLES"]
    assert all(atom.example or atom.name in own or hasattr(dp, atom.name) for atom in ruled)
    assert all(atom.statement and atom.source for atom in ruled)


def test_the_skeleton_of_an_atom_works_before_it_is_edited(monkeypatch):
    monkeypatch.setattr("dpconvex.expressions.atom.ATOMS", {})  # where the new atom registers itself
    names = {}
    exec(compile(runpy.run_path(str(DOCS / "skeleton.py"))["text_of"]("atom", "xexp"), "xexp.py", "exec"), names)
    (found,) = names["XEXP"].bounds(None, [[AbstractValue(Interval(0.0, 2.0), (GradientSet(np.eye(1)),))]])
    assert found.value.low <= 0
    assert found.value.high >= 2 * np.exp(2)
