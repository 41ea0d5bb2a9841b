"""Bounds the range, gradients and curvature of a loss, from its affine leaves up, by the rule of each atom."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, AffineEntries
from dpconvex.expressions.atoms.rules import Entries, entry_ends
from dpconvex.expressions.expansion import Expander
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import Ends, intervals
from dpconvex.util.arrays import Array


class AbstractInterpreter:
    """Applies the rules of atoms to losses; bounds on subexpressions are cached."""

    def __init__(
        self,
        expander: Expander,
        leaves: Mapping[Expression, Array],
        reach: Callable[[Expression], Ends],
        length: Callable[..., float] | None = None,
    ) -> None:
        self.expander, self.leaves, self.reach, self.length = expander, leaves, reach, length
        self._known: dict[Expression, Entries] = {}

    def walk(self, expression: Expression) -> Entries:
        """Return bounds on each entry, in column order."""
        if expression not in self._known:
            self._known[expression] = self._walk(expression)
        return self._known[expression]

    def _walk(self, expression: Expression) -> Entries:
        if not expression.variables:
            return list(map(AbstractValue, intervals(*self.expander.bounds(expression))))
        if expression in self.leaves:
            return self._leaf(expression)
        entries = self.expander.applied(expression, [self.walk(argument) for argument in expression.args])
        check_finite(*entry_ends(entries), expression)
        return entries

    def _leaf(self, expression: Expression) -> Entries:
        rows = self.leaves[expression]
        low, high = self.reach(expression)
        lost = np.isnan(low) | np.isnan(high)  # there is no bound
        low, high = np.where(lost, -np.inf, low), np.where(lost, np.inf, high)
        check_finite(low, high, expression)
        array = None
        if self.length is not None and len(rows) > 1:
            array = partial(self.length, expression)
        return AffineEntries((low, high), rows, array)

    def derivation(self, expression: Expression, seen: set[Expression]) -> Derivation:
        """Return the derivation of bounds that are known, in words; an expression in `seen` is written without its arguments."""
        entries, text = self._known[expression], str(expression)
        if not expression.variables:
            return Derivation("function of the record alone", text)
        if expression in self.leaves:
            claims = {"entries": float(len(entries))} if len(entries) > 1 else {}
            return Derivation("affine leaf", text, claims, "A_z theta + c_z")
        children: tuple[Derivation, ...] = ()
        if expression not in seen:
            seen.add(expression)
            children = tuple(self.derivation(argument, seen) for argument in expression.args if argument.variables)
        low, high = entry_ends(entries)
        # There may be no entries.
        ends = {"least value": low.min(initial=np.inf), "largest value": high.max(initial=-np.inf)}
        claims = {name: float(end) for name, end in ends.items() if np.isfinite(end)}
        atom = expression.operation
        rule = (
            (atom.name, atom.source) if atom.affine == "curved" else ("non-negative combination", "sums and scalings")
        )
        return Derivation(rule[0], text, claims, rule[1], children)


def check_finite(low: Array, high: Array, expression: Expression) -> None:
    """Raise if a range overflowed."""
    if not (low <= high).all():
        why = "the range of a term overflows, so it has no bound"
        raise NotPrivate(why, expression, "scale the fields or the loss down")
