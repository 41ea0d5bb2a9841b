"""Walks the outer function of a loss, from its affine leaves up, applying one rule per atom.

Affine leaves enter with their rows; convex atoms are looked up in a table of rules; affine combinations of convex terms are
carried through entry by entry.  A node without a rule is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine import binary_operators as binary
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.lambda_max import lambda_max

from dpconvex.calculus.abstract_values import Scalar, Term
from dpconvex.calculus.bilinear_forms import Interval
from dpconvex.core.derivation import Derivation
from dpconvex.core.expansion import AFFINE_RULES, Expander, dense, rearrange, refuse_stacks
from dpconvex.errors import FUNCTIONS, MissingRule, NotPrivate
from dpconvex.geometry.implicit_domains import is_symmetric

__all__ = ["OUTER_RULES", "OuterRule", "Step", "Walker", "outer_rule"]

Entries = list[Scalar]
Apply = Callable[[Any, list[Entries]], Entries]
ZERO = Interval(0.0, 0.0)


@dataclass(frozen=True)
class OuterRule:
    """A rule for a convex (or concave) atom.

    Attributes
    ----------
    name : str
    atoms : tuple of type
        CVXPY classes that it applies to.
    statement : str
        What it proves, in one sentence or formula.
    source : str
    apply : callable
        ``apply(expression, arguments)``: one list of entries (column order) per argument, to the result's entries.
    """

    name: str
    atoms: tuple[type, ...]
    statement: str
    source: str
    apply: Apply


OUTER_RULES: dict[type, OuterRule] = {}


def outer_rule(*atoms: type, name: str, statement: str, source: str) -> Callable[[Apply], Apply]:
    """Register the decorated function as the rule of some atoms; this is all it takes to add one."""

    def register(function: Apply) -> Apply:
        found = OuterRule(name, atoms, statement, source, function)
        for atom in atoms:
            OUTER_RULES[atom] = found
        return function

    return register


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a proof that is not put into words yet: printing a loss takes longer than proving its constants.

    Attributes
    ----------
    rule : str
    expression : cvxpy.Expression
        The subexpression that it was applied to.
    claims : dict of str to float
    source : str
    children : tuple of Step
    """

    rule: str
    expression: cp.Expression
    claims: dict[str, float]
    source: str
    children: tuple[Step, ...] = ()

    def written(self) -> Derivation:
        """Return the tree of steps with the texts of their subexpressions."""
        children = tuple(child.written() for child in self.children)
        return Derivation(self.rule, str(self.expression), self.claims, self.source, children)


class Walker:
    """Applies the rules to losses.

    Parameters
    ----------
    expander : Expander
    leaves : dict of int to (expression, ndarray)
        For each affine leaf, by its id: the rows of `A_z` in generator coordinates, shape (size, generators).
    reach : callable
        ``reach(polynomial, rows)`` bounds the entries of an affine leaf over the record's domain and K.
    """

    def __init__(self, expander: Expander, leaves: dict[int, np.ndarray], reach: Callable[..., list[Interval]]) -> None:
        self.expander = expander
        self.leaves = leaves
        self.reach = reach

    def walk(self, expression: cp.Expression) -> tuple[Entries, Step]:
        """Return what is known about each entry (in column order), and how it was derived.

        Raises
        ------
        MissingRule
            If a subexpression has no rule.
        """
        mentions = self.expander.mentions
        if not mentions.variables(expression):
            return self._constant(expression)
        if id(expression) in self.leaves:
            return self._leaf(expression)
        affine = AFFINE_COMBINATIONS.get(type(expression))
        if affine is None and AFFINE_RULES.get(type(expression)) is rearrange:
            affine = rearranged
        walked = [self.walk(argument) for argument in expression.args]
        arguments = [entries for entries, _ in walked]
        children = tuple(
            step for argument, (_, step) in zip(expression.args, walked, strict=True) if mentions.variables(argument)
        )
        try:
            if affine is not None:
                entries = affine(expression, arguments)
                return entries, summarise(
                    "non-negative combination", expression, entries, "sums and scalings", children
                )
            rule = OUTER_RULES.get(type(expression))
            if rule is None:
                name = type(expression).__name__
                raise MissingRule(
                    f"there is no rule for the atom {FUNCTIONS.get(name, name)}",
                    expression,
                    "write the loss with atoms that have rules (see docs/rules.md), or register a rule for this one",
                )
            if isinstance(expression, lambda_max):
                self._check_symmetric(expression)
            entries = rule.apply(expression, arguments)
        except NotPrivate as error:
            if error.expression is None:
                raise type(error)(error.reason, expression, error.remedy) from error
            raise
        return entries, summarise(rule.name, expression, entries, rule.source, children)

    def _check_symmetric(self, expression: Any) -> None:
        """Refuse the largest eigenvalue of a matrix that is not symmetric: its domain would be a constraint on the data."""
        matrix = expression.args[0]
        if matrix.is_affine() and is_symmetric(self.expander.expand(matrix)):
            return
        raise NotPrivate(
            "the largest eigenvalue is defined for symmetric matrices, and this one is not symmetric for every record",
            expression,
            "declare the variable symmetric, and add fields of the record as outer products or diagonals",
        )

    def _constant(self, expression: cp.Expression) -> tuple[Entries, Step]:
        low, high = self.expander.bases.range(self.expander.expand(expression))
        entries = [Scalar(Interval(float(a), float(b))) for a, b in zip(low, high, strict=True)]
        return entries, Step("function of the record alone", expression, {}, "")

    def _leaf(self, expression: cp.Expression) -> tuple[Entries, Step]:
        polynomial = self.expander.expand(expression)
        rows = self.leaves[id(expression)]
        values = self.reach(polynomial, rows)
        if not all(value.low <= value.high for value in values):
            raise NotPrivate(
                "the range of a term overflows, so nothing bounds it", expression, "scale the fields or the loss down"
            )
        entries = [Scalar(value, (Term(row[None, :]),)) for value, row in zip(values, rows, strict=True)]
        claims = {"entries": float(len(entries))} if len(entries) > 1 else {}
        return entries, Step("affine leaf", expression, claims, "A_z theta + c_z")


def summarise(rule: str, expression: cp.Expression, entries: Entries, source: str, children: tuple[Step, ...]) -> Step:
    """Return the step of one node, with the ranges worth telling."""
    claims = {}
    if not all(e.value.low <= e.value.high for e in entries):
        raise NotPrivate(
            "the range of a term overflows, so nothing bounds it", expression, "scale the fields or the loss down"
        )
    low, high = min(e.value.low for e in entries), max(e.value.high for e in entries)
    if np.isfinite(low):
        claims["least value"] = float(low)
    if np.isfinite(high):
        claims["largest value"] = float(high)
    return Step(rule, expression, claims, source, children)


def added(expression: Any, arguments: list[Entries]) -> Entries:
    """Add entry by entry, broadcasting scalars."""
    size = expression.size
    result = spread(arguments[0], size)
    for entries in arguments[1:]:
        result = [a + b for a, b in zip(result, spread(entries, size), strict=True)]
    return result


def negated(expression: Any, arguments: list[Entries]) -> Entries:
    """Change signs."""
    return [entry.scaled(Interval(-1.0, -1.0)) for entry in arguments[0]]


def summed(expression: Any, arguments: list[Entries]) -> Entries:
    """Sum over an axis, or everything."""
    shape = expression.args[0].shape
    numbers = np.arange(len(arguments[0])).reshape(shape, order="F")
    kept = np.sum(np.zeros(shape), axis=expression.axis, keepdims=True)
    target = np.broadcast_to(np.arange(kept.size).reshape(kept.shape, order="F"), shape)
    result: list[Scalar | None] = [None] * kept.size
    for source, place in zip(numbers.ravel(order="F"), target.ravel(order="F"), strict=True):
        entry = arguments[0][source]
        known = result[place]
        result[place] = entry if known is None else known + entry
    return [entry for entry in result if entry is not None]


def traced(expression: Any, arguments: list[Entries]) -> Entries:
    """Sum the diagonal."""
    side = expression.args[0].shape[0]
    total = arguments[0][0]
    for k in range(1, side):
        total = total + arguments[0][k * (side + 1)]
    return [total]


def multiplied(expression: Any, arguments: list[Entries]) -> Entries:
    """Multiply entry by entry with a constant or a function of the record."""
    factor, curved = (0, 1) if not expression.args[0].variables() else (1, 0)
    factors, entries = spread(arguments[factor], expression.size), spread(arguments[curved], expression.size)
    return [entry.scaled(by.value) for entry, by in zip(entries, factors, strict=True)]


def divided(expression: Any, arguments: list[Entries]) -> Entries:
    """Divide by a constant or by a function of the record that keeps away from zero."""
    result = []
    for entry, by in zip(spread(arguments[0], expression.size), spread(arguments[1], expression.size), strict=True):
        if by.value.low <= 0 <= by.value.high:
            raise NotPrivate(
                "the divisor can reach zero", None, "bound the divisor away from zero by its declared domain"
            )
        result.append(entry.scaled(Interval(1.0 / by.value.high, 1.0 / by.value.low)))
    return result


def matrix_multiplied(expression: Any, arguments: list[Entries]) -> Entries:
    """Multiply a matrix of constants (or functions of the record) with convex entries."""
    shapes = [argument.shape for argument in expression.args]
    if not shapes[0] or not shapes[1]:
        return multiplied(expression, arguments)
    refuse_stacks(expression)
    left = np.array(range(len(arguments[0]))).reshape(shapes[0], order="F")
    right = np.array(range(len(arguments[1]))).reshape(shapes[1], order="F")
    left = left[None, :] if left.ndim == 1 else left
    right = right[:, None] if right.ndim == 1 else right
    constant_first = not expression.args[0].variables()
    result = []
    for column in range(right.shape[1]):
        for row in range(left.shape[0]):
            total = Scalar(ZERO)
            for k in range(left.shape[1]):
                a, b = arguments[0][left[row, k]], arguments[1][right[k, column]]
                total = total + (b.scaled(a.value) if constant_first else a.scaled(b.value))
            result.append(total)
    return result


def rearranged(expression: Any, arguments: list[Entries]) -> Entries:
    """Index, stack, reshape or repeat entries."""
    offsets = np.cumsum([0] + [len(entries) for entries in arguments])
    numbers = [
        np.arange(len(entries)).reshape(argument.shape, order="F") + 1 + offset
        for argument, entries, offset in zip(expression.args, arguments, offsets, strict=False)
    ]
    everything = [entry for entries in arguments for entry in entries]
    index = dense(expression.numeric(numbers)).astype(int).reshape(-1, order="F")
    return [everything[k - 1] if k > 0 else Scalar(ZERO) for k in index]


def spread(entries: Sequence[Scalar], size: int) -> Entries:
    """Repeat a scalar for every entry."""
    return list(entries) * size if len(entries) == 1 and size != 1 else list(entries)


AFFINE_COMBINATIONS: dict[type, Apply] = {
    AddExpression: added,
    NegExpression: negated,
    Sum: summed,
    Trace: traced,
    binary.multiply: multiplied,
    binary.DivExpression: divided,
    binary.MulExpression: matrix_multiplied,
}
