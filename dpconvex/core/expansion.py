"""Affine expressions as polynomials, and ranges of functions of the record.

`Expander.expand` turns an expression that is affine in the variables into a `Polynomial`: exactly, whatever way it is written in.
What each atom does to polynomials and to ranges is said by the atom (its slots `expand` and `rule`).  Functions of the record
that are not polynomials become bases of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from dpconvex.core.abstract_values import Interval, Scalar
from dpconvex.core.arrays import Array
from dpconvex.core.expression import Constant, Expression, Field, Variable
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import NotPrivate


@contextmanager
def placed(expression: Expression) -> Iterator[None]:
    """Say where a rule refused, if it did not."""
    try:
        yield
    except NotPrivate as error:
        if error.expression is None:
            raise type(error)(error.reason, expression, error.remedy) from error
        raise


class Expander:
    """Expands affine expressions over one space and one record, whose bases grow when other functions of the record are met."""

    def __init__(self, space: Space, bases: Bases) -> None:
        self.space = space
        self.bases = bases
        self._memory: dict[Expression, Polynomial] = {}
        self._functions: dict[Expression, Polynomial] = {}
        self.functions_of_record: list[Expression] = []

    def expand(self, expression: Expression) -> Polynomial:
        found = self.polynomial(expression)
        if found is not None:
            return found
        assert not expression.variables
        if expression not in self._functions:
            self._functions[expression] = self._function(expression)
        return self._functions[expression]

    def polynomial(self, expression: Expression) -> Polynomial | None:
        if expression not in self._memory:
            found = self._expand(expression)
            if found is None:
                return None
            self._memory[expression] = found
        return self._memory[expression]

    def bounds(self, expression: Expression) -> tuple[Array, Array]:
        """Bound the entries, in column order, of an expression of the record alone."""
        polynomial = self.polynomial(expression)
        if polynomial is not None:
            return self.bases.range(polynomial)
        atom = expression.atom
        assert atom is not None
        self.check_symmetric(expression)
        with np.errstate(over="ignore"), placed(expression):  # an infinite bound is refused later, by name
            found = atom.rule(expression, [self._ranges(argument) for argument in expression.args])
        return np.array([entry.value.low for entry in found]), np.array([entry.value.high for entry in found])

    def _ranges(self, expression: Expression) -> list[Scalar]:
        polynomial, ends = self.polynomial(expression), self.bounds(expression)
        found = [Scalar(Interval(float(low), float(high))) for low, high in zip(*ends, strict=True)]
        if polynomial is None:
            return found

        def length(places: list[int]) -> float:
            return self.bases.norm(polynomial.gathered(np.array(places)))

        return [replace(entry, together=(length, k)) for k, entry in enumerate(found)]

    def check_symmetric(self, expression: Expression) -> None:
        """Refuse eigenvalues of a matrix that is not symmetric: the atom's domain would be a constraint on the data."""
        assert expression.atom is not None
        for matrix, kind in zip(expression.args, expression.atom.domain(expression), strict=True):
            if kind in ("symmetric", "semidefinite") and not (matrix.is_affine and self.expand(matrix).is_symmetric):
                raise NotPrivate(
                    f"{expression.atom.name} is defined for symmetric matrices, and this one is not symmetric for every record",
                    expression,
                    "declare the variable symmetric, and add fields of the record as outer products or diagonals",
                )

    def _expand(self, expression: Expression) -> Polynomial | None:
        if expression.is_constant:
            return Polynomial.constant(expression.value if isinstance(expression, Constant) else expression.number)
        if isinstance(expression, Variable):
            block = self.space.block_of(expression)
            return Polynomial.coordinates(expression.shape, block.start, block.lift)
        if isinstance(expression, Field):
            field = self.bases.polynomials.get(expression.name)
            if field is None:
                raise NotPrivate(
                    f"the parameter {expression.name!r} is not a field of the record",
                    expression,
                    "declare it as a field, or make it a constant",
                )
            return field
        atom = expression.atom
        assert atom is not None
        found: Polynomial | None = None if atom.expand is None else atom.expand(self, expression)
        return found

    def _function(self, expression: Expression) -> Polynomial:
        """Make a function of the record that is not a polynomial a base of its own."""
        lower, upper = self.bounds(expression)
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise NotPrivate(
                "a function of the record is unbounded over the record's domain",
                expression,
                "use a function that is bounded on the declared domain",
            )
        norm = float(np.linalg.norm(np.maximum(-lower, upper)))
        self.functions_of_record.append(expression)
        return self.bases.add(str(expression), expression.shape, lower, upper, norm)
