"""Bounds the range, gradients and curvature of a loss, from its affine leaves up, by the rule of each atom."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, AffineEntries
from dpconvex.expressions.atoms.rules import Entries, entry_ends
from dpconvex.expressions.expansion import Expander
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.numerics import Ends, intervals
from dpconvex.util.arrays import Array


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a proof, not yet written as text: writing a loss takes longer than proving its constants."""

    rule: str
    expression: Expression
    claims: dict[str, float]
    source: str
    children: "tuple[Step, ...]" = ()

    def written(self, seen: set[int] | None = None) -> Derivation:
        """Return the tree of steps with texts; a step in `seen` is written without its children."""
        seen = set() if seen is None else seen
        children: tuple[Derivation, ...] = ()
        if id(self) not in seen:
            seen.add(id(self))
            children = tuple(child.written(seen) for child in self.children)
        return Derivation(self.rule, str(self.expression), self.claims, self.source, children)


class AbstractInterpreter:
    """Applies the rules of atoms to losses; bounds on subexpressions are cached."""

    def __init__(
        self,
        expander: Expander,
        leaves: Mapping[Expression, Array],
        reach: Callable[[Polynomial, Array], Ends],
        length: Callable[..., float] | None = None,
    ) -> None:
        self.expander, self.leaves, self.reach, self.length = expander, leaves, reach, length
        self._known: dict[Expression, tuple[Entries, Step]] = {}

    def walk(self, expression: Expression) -> tuple[Entries, Step]:
        """Return bounds on each entry (in column order), and their derivation."""
        if expression not in self._known:
            self._known[expression] = self._walk(expression)
        return self._known[expression]

    def _walk(self, expression: Expression) -> tuple[Entries, Step]:
        if not expression.variables:
            ranges = intervals(*self.expander.bounds(expression))
            return list(map(AbstractValue, ranges)), Step("function of the record alone", expression, {}, "")
        if expression in self.leaves:
            return self._leaf(expression)
        walked = [self.walk(argument) for argument in expression.args]
        steps = zip(expression.args, walked, strict=True)
        children = tuple(step for argument, (_, step) in steps if argument.variables)
        atom = expression.operation
        entries = self.expander.applied(expression, [entries for entries, _ in walked])
        curved = atom.affine == "curved"
        name, source = (atom.name, atom.source) if curved else ("non-negative combination", "sums and scalings")
        low, high = entry_ends(entries)
        check_finite(low, high, expression)
        # There may be no entries.
        ends = {"least value": low.min(initial=np.inf), "largest value": high.max(initial=-np.inf)}
        claims = {name: float(end) for name, end in ends.items() if np.isfinite(end)}
        return entries, Step(name, expression, claims, source, children)

    def _leaf(self, expression: Expression) -> tuple[Entries, Step]:
        polynomial = self.expander.expand(expression)
        rows = self.leaves[expression]
        low, high = self.reach(polynomial, rows)
        lost = np.isnan(low) | np.isnan(high)  # there is no bound
        low, high = np.where(lost, -np.inf, low), np.where(lost, np.inf, high)
        check_finite(low, high, expression)
        array = None
        if self.length is not None and len(rows) > 1:
            array = partial(self.length, polynomial, rows)
        entries = AffineEntries((low, high), rows, array)
        claims = {"entries": float(len(entries))} if len(entries) > 1 else {}
        return entries, Step("affine leaf", expression, claims, "A_z theta + c_z")


def check_finite(low: Array, high: Array, expression: Expression) -> None:
    """Raise if a range overflowed."""
    if not (low <= high).all():
        why = "the range of a term overflows, so it has no bound"
        raise NotPrivate(why, expression, "scale the fields or the loss down")
