"""Affine CVXPY expressions as polynomials: one rule per affine atom.

`Expander.expand` turns an expression that is affine in the variables into a `Polynomial`: exactly, whatever way it is
written in.  Subexpressions of the record alone that are not polynomials become bases of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine import binary_operators as binary, wraps
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.upper_tri import upper_tri
from cvxpy.atoms.affine.vstack import Vstack

from dpconvex.core.mentions import Mentions
from dpconvex.core.parameter_space import Block, Space
from dpconvex.core.polynomial import Polynomial, concatenate
from dpconvex.core.record_ranges import bounds_of, is_polynomial, polynomial_power
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import MissingRule, NotPrivate

__all__ = ["AFFINE_RULES", "Expander"]

Rule = Callable[["Expander", Any], Polynomial]
R = TypeVar("R", bound=Rule)

# The rule of each affine atom.  To add one, decorate a function of (expander, expression) with @rule(atom class).
AFFINE_RULES: dict[type, Rule] = {}

# A linear atom without a rule of its own is applied to each unit vector, up to this many.
LARGEST_UNIT_EXPANSION = 4096


def rule(*atoms: type) -> Callable[[R], R]:
    """Register the decorated function as the rule of the given atom classes."""

    def register(function: R) -> R:
        for atom in atoms:
            AFFINE_RULES[atom] = function
        return function

    return register


class Expander:
    """Expands affine expressions over one space and one record.

    Parameters
    ----------
    space : Space
    bases : Bases
        Grows when a non-polynomial function of the record is met.

    Attributes
    ----------
    functions_of_record : list of cvxpy.Expression
        Those functions, in the order of their bases.
    """

    def __init__(self, space: Space, bases: Bases) -> None:
        self.space = space
        self.bases = bases
        self.mentions = Mentions()
        self._memory: dict[int, tuple[cp.Expression, Polynomial]] = {}
        self._opaque: dict[Hashable, Polynomial] = {}
        self._alike: dict[Hashable, tuple[list[Block], Polynomial]] = {}
        self._functions: dict[int, tuple[cp.Expression, Hashable]] = {}
        self.functions_of_record: list[cp.Expression] = []

    def expand(self, expression: cp.Expression) -> Polynomial:
        """Expand an expression that is affine in the variables.

        Raises
        ------
        MissingRule
            If an atom has no rule.
        NotPrivate
            If a function of the record has no finite bound.
        """
        known = self._memory.get(id(expression))
        if known is None:
            known = (expression, self._expand(expression))
            self._memory[id(expression)] = known
        return known[1]

    def expand_leaf(self, expression: cp.Expression) -> Polynomial:
        """Expand as `expand` does, once for all expressions that differ in the variables they mention and in nothing else.

        With C classes there are C(C-1) margins, and they are one function of two variables.

        Raises
        ------
        MissingRule, NotPrivate
            See `expand`.
        """
        if id(expression) in self._memory or not self.mentions.variables(expression):
            return self.expand(expression)
        blocks: list[Block] = []
        shape = self._shape(expression, blocks)
        # With the variables in the same order, the terms come out in the same order too: the result is the same to the bit.
        key = (shape, tuple(np.argsort([block.start for block in blocks]).tolist()))
        if key not in self._alike:
            self._alike[key] = (blocks, self.expand(expression))
        originals, polynomial = self._alike[key]
        if originals == blocks:
            return self.expand(expression)
        moved = polynomial.coordinate.copy()
        for old, new in zip(originals, blocks, strict=True):
            inside = (polynomial.coordinate >= old.start) & (polynomial.coordinate < old.start + old.dim)
            moved[inside] += new.start - old.start
        result = replace(polynomial, coordinate=moved)
        self._memory[id(expression)] = (expression, result)
        return result

    def _shape(self, expression: cp.Expression, blocks: list[Block]) -> Hashable:
        """Return a key that two expressions share only if they are the same function of their variables, in order of appearance.

        The variables' blocks are added to `blocks`.
        """
        if isinstance(expression, cp.Variable):
            block = self.space.block_of(expression)
            if block not in blocks:
                blocks.append(block)
            return ("variable", blocks.index(block), expression.shape, block.symmetric)
        if not self.mentions.variables(expression):
            return self._function(expression)
        arguments = tuple(self._shape(argument, blocks) for argument in expression.args)
        return (type(expression), expression.shape, option_key(expression.get_data()), arguments)

    def _function(self, expression: cp.Expression) -> Hashable:
        """Return the `structure` of an expression of the record, found once for each."""
        found = self._functions.get(id(expression))
        if found is None:
            found = self._functions[id(expression)] = (expression, structure(expression))
        return found[1]

    def _expand(self, expression: cp.Expression) -> Polynomial:
        if isinstance(expression, cp.Constant):
            return Polynomial.constant(expression.value)
        if isinstance(expression, cp.Variable):
            block = self.space.block_of(expression)
            return Polynomial.coordinates(expression.shape, block.start, block.lift)
        if isinstance(expression, cp.Parameter):
            found = self.bases.polynomials.get(expression.name())
            if found is None:
                raise NotPrivate(
                    f"the parameter {expression.name()!r} is not a field of the record",
                    expression,
                    "declare it as a field, or make it a constant",
                )
            return found
        if not self.mentions.variables(expression) and not self.mentions.parameters(expression):
            return Polynomial.constant(expression.value)
        if not self.mentions.variables(expression) and not is_polynomial(expression):
            return self._base(expression)
        found_rule = AFFINE_RULES.get(type(expression))
        if found_rule is not None:
            return found_rule(self, expression)
        if (
            sum(not a.is_constant() or bool(a.parameters()) for a in expression.args) == 1
            and expression.is_atom_affine()
        ):
            return self._by_unit_vectors(expression)
        raise MissingRule(
            f"there is no rule for the affine atom {type(expression).__name__}",
            expression,
            "write it with sums, products, indexing and stacking, or add a rule to dpconvex/core/expansion.py",
        )

    def _base(self, expression: cp.Expression) -> Polynomial:
        """Make a function of the record that is not a polynomial a base of its own."""
        key = self._function(expression)
        if key not in self._opaque:
            lower, upper = bounds_of(expression, self)
            if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
                raise NotPrivate(
                    "a function of the record is unbounded over the record's domain",
                    expression,
                    "use a function that is bounded on the declared domain",
                )
            norm = float(np.linalg.norm(np.maximum(np.abs(lower), np.abs(upper))))
            self.functions_of_record.append(expression)
            self._opaque[key] = self.bases.add(str(expression), expression.shape, lower, upper, norm)
        return self._opaque[key]

    def _by_unit_vectors(self, expression: cp.Expression) -> Polynomial:
        """Expand a linear atom of one non-constant argument by applying it to every unit vector."""
        place = next(k for k, a in enumerate(expression.args) if not a.is_constant() or a.parameters())
        argument = self.expand(expression.args[place])
        if argument.size > LARGEST_UNIT_EXPANSION:
            raise MissingRule(
                f"there is no rule for {type(expression).__name__} of {argument.size} entries",
                expression,
                "write it with sums, products, indexing and stacking",
            )
        values = [None if k == place else a.value for k, a in enumerate(expression.args)]
        columns = []
        for unit in np.eye(argument.size):
            values[place] = unit.reshape(argument.shape, order="F")
            columns.append(dense(expression.numeric(values)).reshape(-1, order="F"))
        return argument.linear(np.stack(columns, axis=1), expression.shape)


def structure(expression: cp.Expression) -> Hashable:
    """Return a key that two expressions of the record share only if they are the same function.

    Their texts do not serve: CVXPY abbreviates numbers and large arrays in them.
    """
    if isinstance(expression, cp.Parameter):
        return ("field", expression.id)
    if not expression.parameters():
        value = dense(expression.value)
        return ("number", value.shape, np.asarray(value, dtype=float).tobytes())
    arguments = tuple(structure(argument) for argument in expression.args)
    return (type(expression), expression.shape, option_key(expression.get_data()), arguments)


def option_key(option: Any) -> Hashable:
    """Return a hashable stand-in for an atom's options."""
    if isinstance(option, cp.Expression):
        return structure(option)
    if isinstance(option, list | tuple):
        return tuple(option_key(part) for part in option)
    if isinstance(option, np.ndarray) and option.dtype != object:
        return (option.shape, option.dtype.str, option.tobytes())
    if option is None or isinstance(option, bool | int | float | str | slice | np.generic):
        return (type(option).__name__, repr(option))
    return object()  # equal to nothing else: texts may be abbreviated


def dense(value: Any) -> np.ndarray:
    """Return a CVXPY value as a dense array."""
    return np.asarray(value.toarray() if sp.issparse(value) else value)


@rule(index, special_index, reshape, transpose, diag_vec, diag_mat, upper_tri, Promote, broadcast_to)
@rule(Hstack, Vstack, Concatenate, real, conj, wraps.nonneg_wrap, wraps.nonpos_wrap, wraps.psd_wrap, wraps.nsd_wrap)
@rule(wraps.symmetric_wrap)
def rearrange(expander: Expander, expression: Any) -> Polynomial:
    """Rearrange entries: apply the atom to entry numbers instead of values (0 where it fills in zeros)."""
    parts = [expander.expand_leaf(argument) for argument in expression.args]
    offsets = np.cumsum([0] + [part.size for part in parts])
    numbers = [part.numbers() + 1 + offset for part, offset in zip(parts, offsets, strict=False)]
    whole = concatenate(
        parts, (int(offsets[-1]),), [part.entry + offset for part, offset in zip(parts, offsets, strict=False)]
    )
    return whole.gathered(dense(expression.numeric(numbers)).astype(np.int64).reshape(expression.shape, order="F") - 1)


@rule(AddExpression)
def add(expander: Expander, expression: Any) -> Polynomial:
    """Add the arguments, broadcasting scalars."""
    parts = [broadcast(expander.expand_leaf(argument), expression.shape) for argument in expression.args]
    return concatenate(parts, expression.shape, [part.entry for part in parts]).collected()


@rule(NegExpression)
def negate(expander: Expander, expression: Any) -> Polynomial:
    """Change every sign."""
    return expander.expand(expression.args[0]).scaled(-1.0)


@rule(Sum)
def total(expander: Expander, expression: Any) -> Polynomial:
    """Sum over an axis or over everything."""
    part = expander.expand(expression.args[0])
    kept = np.sum(np.zeros(part.shape), axis=expression.axis, keepdims=True)
    target = np.broadcast_to(np.arange(kept.size).reshape(kept.shape, order="F"), part.shape).reshape(-1, order="F")
    matrix = sp.csc_array((np.ones(part.size), (target, np.arange(part.size))), shape=(kept.size, part.size))
    return part.linear(matrix, expression.shape)


@rule(Trace)
def trace(expander: Expander, expression: Any) -> Polynomial:
    """Sum the diagonal."""
    part = expander.expand(expression.args[0])
    diagonal = np.diag(part.numbers())
    matrix = sp.csc_array((np.ones(len(diagonal)), (np.zeros(len(diagonal), int), diagonal)), shape=(1, part.size))
    return part.linear(matrix, ())


@rule(binary.multiply)
def multiply(expander: Expander, expression: Any) -> Polynomial:
    """Multiply entry by entry; at most one side contains variables."""
    if times_zero(expression):
        return Polynomial.constant(np.zeros(expression.shape))
    left, right = (broadcast(expander.expand(argument), expression.shape) for argument in expression.args)
    return left.times(right)


@rule(binary.MulExpression)
def matmul(expander: Expander, expression: Any) -> Polynomial:
    """Matrix product; at most one side contains variables."""
    if times_zero(expression):
        return Polynomial.constant(np.zeros(expression.shape))
    left, right = (expander.expand(argument) for argument in expression.args)
    if not left.shape or not right.shape:
        return broadcast(left, expression.shape).times(broadcast(right, expression.shape))
    refuse_stacks(expression)
    return left.matmul(right, expression.shape)


def times_zero(expression: Any) -> bool:
    """Whether a factor is the constant 0: CVXPY calls such a product affine, although the other factor need not be."""
    numbers = [argument.value for argument in expression.args if isinstance(argument, cp.Constant)]
    return not all(np.any(value.data if sp.issparse(value) else value) for value in numbers)


def refuse_stacks(expression: Any) -> None:
    """Refuse products of stacks of matrices."""
    if max(len(argument.shape) for argument in expression.args) > 2:
        raise MissingRule("there is no rule for products of stacks of matrices", expression, "multiply them one by one")


@rule(binary.DivExpression)
def divide(expander: Expander, expression: Any) -> Polynomial:
    """Divide by a constant, or by a function of the record that keeps away from zero."""
    left = broadcast(expander.expand(expression.args[0]), expression.shape)
    divisor = expression.args[1]
    if not divisor.parameters():
        value = dense(divisor.value)
        if (value == 0).any():
            raise NotPrivate("an expression is divided by zero", expression, "divide by a number that is not 0")
        inverse = Polynomial.constant(1.0 / value)
    else:
        inverse = expander.expand(cp.inv_pos(divisor))
    return left.times(broadcast(inverse, expression.shape))


@rule(*polynomial_power.atoms)
def power(expander: Expander, expression: Any) -> Polynomial:
    """A whole power, or a sum of squares, of a function of the record."""
    part = expander.expand(expression.args[0])
    exponent = polynomial_power.exponent(expression)
    if exponent == 0:  # only the power 0 is affine in the parameters and no whole power
        return Polynomial.constant(np.ones(expression.shape))
    result = part
    for _ in range(exponent - 1):
        result = result.times(part)
    if result.shape != expression.shape:
        result = result.linear(np.ones((1, result.size)), expression.shape)
    return result


def broadcast(part: Polynomial, shape: tuple[int, ...]) -> Polynomial:
    """Repeat entries as NumPy broadcasting would."""
    if part.shape == shape:
        return part
    return part.gathered(np.broadcast_to(part.numbers(), shape))
