"""Arguments and options for every registered atom: a new atom is tried by being registered."""

import inspect
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconvex.expressions.atom import AtomDefinition
from dpconvex.expressions.atoms import ATOMS
from dpconvex.expressions.declared_atoms import Atom as Declaration
from dpconvex.expressions.evaluate import evaluate
from dpconvex.expressions.expression import Field, Shape, Variable

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
        """Return leaves of the shapes: variables, or fields."""
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
            f"say in tests/expressions/atom_cases.py which values of the option {name!r} are worth trying"
        )
    return values[name]


def cases_of(atom):
    """Yield what fits an atom."""
    parameters = list(inspect.signature(atom.value).parameters.values())[2:]
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
