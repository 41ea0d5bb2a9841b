"""Affine expressions as polynomials, and ranges of functions of the record.

`Expander.expand` turns an expression that is affine in the variables into a `Polynomial`: exactly, whatever way it is written in.
What each atom does to polynomials and to ranges is said by the atom (its slots `expand` and `rule`).  Functions of the record
that are not polynomials become bases of their own.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.abstract_values import Scalar, Together
from dpconvex.core.expression import Constant, Expression, Field, Variable
from dpconvex.core.intervals import Interval
from dpconvex.core.parameter_space import Block, Space
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import MissingRule, NotPrivate

Array = NDArray[np.float64]


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
        self._alike: dict[Hashable, tuple[list[Block], Polynomial]] = {}
        self.functions_of_record: list[Expression] = []

    def expand(self, expression: Expression) -> Polynomial:
        found = self.polynomial(expression)
        if found is not None:
            return found
        if expression.variables:
            raise MissingRule(
                f"there is no rule for the affine atom {expression.atom.name if expression.atom else expression}",
                expression,
                "write it with sums, products, indexing and stacking",
            )
        if expression not in self._functions:
            self._functions[expression] = self._function(expression)
        return self._functions[expression]

    def expand_leaf(self, expression: Expression) -> Polynomial:
        """Expand as `expand` does, once for all expressions that differ in the variables they mention and in nothing else.

        With C classes there are C(C-1) margins, and they are one function of two variables.
        """
        if expression in self._memory or not expression.variables:
            return self.expand(expression)
        key, blocks = self._pattern(expression)
        if key not in self._alike:
            self._alike[key] = (blocks, self.expand(expression))
        originals, polynomial = self._alike[key]
        if originals == blocks:
            return self.expand(expression)
        moved = polynomial.coordinate.copy()
        for old, new in zip(originals, blocks, strict=True):
            inside = (polynomial.coordinate >= old.start) & (polynomial.coordinate < old.start + old.dim)
            moved[inside] += new.start - old.start
        result = self._memory[expression] = replace(polynomial, coordinate=moved)
        return result

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
        """Return the entries of a function of the record as the atoms' rules take them."""
        polynomial, ends = self.polynomial(expression), self.bounds(expression)
        found = [Scalar(Interval(float(low), float(high))) for low, high in zip(*ends, strict=True)]
        if polynomial is None:
            return found
        array = Together(lambda places: self.bases.norm(polynomial.gathered(np.array(places))))
        return [replace(entry, together=(array, k)) for k, entry in enumerate(found)]

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
        norm = float(np.linalg.norm(np.maximum(np.abs(lower), np.abs(upper))))
        self.functions_of_record.append(expression)
        return self.bases.add(str(expression), expression.shape, lower, upper, norm)

    def _pattern(self, expression: Expression) -> tuple[Hashable, list[Block]]:
        """Return a key that two expressions share only if they are one function of their variables, and the variables' blocks."""
        blocks: list[Block] = []
        numbers: dict[Expression, int] = {}
        parts: list[Hashable] = []

        def visit(node: Expression) -> int:
            if node in numbers:
                return numbers[node]
            part: Hashable = node
            if isinstance(node, Variable):
                block = self.space.block_of(node)
                blocks.append(block)
                part = (node.shape, block.symmetric)
            elif node.variables:
                part = (node.atom, node.options, node.shape, *(visit(argument) for argument in node.args))
            parts.append(part)
            return numbers.setdefault(node, len(numbers))

        visit(expression)
        # With the variables in the same order, the terms come out in the same order too: the result is the same to the bit.
        return (*parts, *np.argsort([block.start for block in blocks]).tolist()), blocks
