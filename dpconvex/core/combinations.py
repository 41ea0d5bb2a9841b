"""Losses read as combinations: numbers times curved terms, plus affine ones, with every sum and every product taken apart.

Numbers are exact fractions, and affine expressions are compared by the terms of their polynomials, so that two ways to write one
function are recognised, and two functions are never taken for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine import binary_operators as binary
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.elementwise.power import Power
from numpy.typing import NDArray

from dpconvex.core.expansion import AFFINE_RULES, Expander, dense, option_key, rearrange
from dpconvex.core.reader import WHOLE_LINE

__all__ = ["Combination", "Curved", "Entry", "TermReader", "Unreadable", "build", "number"]

Entries = NDArray[np.object_]
# Coefficients of monomials in the record, times a coordinate of theta or (at -1) times nothing.
Terms = dict[tuple[int, ...], Fraction]

# What CVXPY makes of powers and of norms depends on its version.
POWER, NORM = type(cp.square(cp.Variable())), type(cp.norm(cp.Variable(2), 2))
# Atoms that their type, their options and their arguments determine; of one scalar or, entry by entry, of one array.
OF_ENTRIES: tuple[type, ...] = (cp.logistic, cp.huber, cp.abs, cp.exp, cp.log, cp.entr, cp.maximum, cp.minimum)
OF_ENTRIES += (POWER, Power, cp.kl_div, cp.rel_entr, binary.multiply)
# Atoms of all entries of an array, in any order.
SYMMETRIC: tuple[type, ...] = (cp.log_sum_exp, cp.max, cp.min, cp.norm1, cp.norm_inf, cp.quad_over_lin)
SYMMETRIC += (NORM, cp.Pnorm)
EXTREMES: tuple[type, ...] = (cp.maximum, cp.minimum)
# Functions that do not change with the sign of an entry; so are the powers of `WHOLE_LINE`, and p-norms with p >= 1.
EVEN: tuple[type, ...] = (cp.abs, cp.huber, cp.norm1, cp.norm_inf, cp.quad_over_lin)


class Unreadable(Exception):
    """A loss that stays as it was written: it contains a number that is not finite, or that rounds to zero."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of an expression, in column order."""

    source: cp.Expression
    index: int = 0

    @cached_property
    def expression(self) -> cp.Expression:
        """The entry as a scalar expression."""
        shape = self.source.shape
        if not shape:
            return self.source
        place = tuple(int(k) for k in np.unravel_index(self.index, shape, order="F"))
        return self.source[place if len(place) > 1 else place[0]]


@dataclass(frozen=True, eq=False)
class Curved:
    """A scalar that is not affine: an atom of combinations.

    Attributes
    ----------
    entry : Entry
        Where it was written.
    arguments : tuple of array of Combination, or None
        What it is applied to; None for atoms that are not taken apart.
    changed : bool
        Whether the arguments are not those that were written.
    """

    entry: Entry
    arguments: tuple[Entries, ...] | None = None
    changed: bool = False

    @property
    def kind(self) -> type | None:
        """Class of the atom; None for atoms that are not taken apart."""
        return None if self.arguments is None else type(self.entry.source)

    @cached_property
    def options(self) -> Hashable:
        """What else determines the atom; only an atom itself has the same if it is not taken apart."""
        if self.arguments is None:
            return (id(self.entry.source), self.entry.index)
        return (type(self.entry.source), option_key(self.entry.source.get_data()))

    @cached_property
    def expression(self) -> cp.Expression:
        """The atom of its arguments."""
        if self.arguments is None or (not self.changed and self.entry.source.is_scalar()):
            return self.entry.expression
        parts: list[Any] = []
        for argument in self.arguments:
            built = [build(one) for one in argument.ravel(order="F")]
            parts.append(built[0] if len(built) == 1 else cp.hstack(built))
        return self.entry.source.copy(parts)


@dataclass(frozen=True, eq=False)
class Combination:
    """A scalar: numbers times curved terms, plus numbers times affine expressions.

    Attributes
    ----------
    curved : tuple of (Fraction, Curved)
    affine : tuple of (Fraction, Entry)
    turned : bool
        Whether a curved term was written behind a change of sign.
    """

    curved: tuple[tuple[Fraction, Curved], ...] = ()
    affine: tuple[tuple[Fraction, Entry], ...] = ()
    turned: bool = False

    def __add__(self, other: Combination) -> Combination:
        return Combination(self.curved + other.curved, self.affine + other.affine, self.turned or other.turned)

    def __mul__(self, factor: Fraction) -> Combination:
        return Combination(
            tuple((factor * c, term) for c, term in self.curved),
            tuple((factor * c, entry) for c, entry in self.affine),
            self.turned or (factor < 0 and bool(self.curved)),
        )

    __rmul__ = __mul__

    @property
    def only(self) -> Curved | None:
        """The one curved term that this is, with factor 1; None if it is something else."""
        return self.curved[0][1] if len(self.curved) == 1 and not self.affine and self.curved[0][0] == 1 else None


def build(combination: Combination) -> cp.Expression:
    """Write a combination as a CVXPY expression."""
    parts = [scaled(c, term.expression) for c, term in combination.curved]
    parts += [scaled(c, entry.expression) for c, entry in combination.affine]
    return sum(parts[1:], parts[0]) if parts else cp.Constant(0.0)


def scaled(factor: Fraction, expression: cp.Expression) -> cp.Expression:
    """Multiply an expression by a number."""
    if factor in (1, -1):
        return expression if factor == 1 else -expression
    return number(factor) * expression


def number(factor: Fraction) -> float:
    """Round a fraction to a floating-point number."""
    try:
        value = float(factor)
    except OverflowError as error:
        raise Unreadable from error
    if value == 0 and factor != 0:
        raise Unreadable
    return value


class TermReader:
    """Reads expressions as arrays of combinations.

    Parameters
    ----------
    expander : Expander
    """

    def __init__(self, expander: Expander) -> None:
        self.expander = expander
        self._memory: dict[int, tuple[cp.Expression, Entries]] = {}
        self._plain: dict[int, tuple[cp.Expression, bool]] = {}
        self._terms: dict[int, tuple[cp.Expression, list[Terms]]] = {}
        self._probes: dict[int, tuple[cp.Expression, list[float]]] = {}

    def read(self, expression: cp.Expression) -> Entries:
        """Return the entries of an expression as combinations, in an array of its shape."""
        known = self._memory.get(id(expression))
        if known is None:
            known = self._memory[id(expression)] = (expression, self._read(expression))
        return known[1]

    def _read(self, expression: Any) -> Entries:
        if self.is_affine(expression):
            return self._array(expression, [Combination((), ((Fraction(1), e),)) for e in entries_of(expression)])
        rule = SUMS.get(type(expression))
        if rule is None and AFFINE_RULES.get(type(expression)) is rearrange and not isinstance(expression, Wrap):
            rule = rearranged
        found = None if rule is None else rule(self, expression)
        if found is not None and found.shape == expression.shape:
            return found
        return self._array(expression, [Combination(((Fraction(1), term),)) for term in self._atoms(expression)])

    @staticmethod
    def _array(expression: Any, found: list[Combination]) -> Entries:
        flat = np.empty(len(found), dtype=object)
        flat[:] = found
        return flat.reshape(expression.shape, order="F")

    def _atoms(self, expression: Any) -> list[Curved]:
        """Return the entries of an atom, with their arguments."""
        kind = type(expression)
        if kind in SYMMETRIC and getattr(expression, "axis", None) is None and expression.is_scalar():
            return [Curved(Entry(expression), tuple(self.read(a) for a in expression.args))]
        if kind in OF_ENTRIES or (kind is binary.MulExpression and any(a.is_scalar() for a in expression.args)):
            spread = [np.broadcast_to(self.read(a), expression.shape) for a in expression.args]
            flat = [argument.ravel(order="F") for argument in spread]
            return [Curved(e, tuple(a[k : k + 1] for a in flat)) for k, e in enumerate(entries_of(expression))]
        return [Curved(entry) for entry in entries_of(expression)]

    def is_affine(self, expression: cp.Expression) -> bool:
        """Whether an expression is affine, and all that it is made of: CVXPY says so of zero times anything."""
        return self._made_of_affine(expression) and expression.is_affine()

    def _made_of_affine(self, expression: cp.Expression) -> bool:
        known = self._plain.get(id(expression))
        if known is None:
            answer = not self.expander.mentions.variables(expression) or (
                isinstance(expression, cp.Variable | AffAtom)
                and all(self._made_of_affine(argument) for argument in expression.args)
            )
            known = self._plain[id(expression)] = (expression, answer)
        return known[1]

    def terms(self, entry: Entry) -> Terms:
        """Return an affine entry as exact coefficients."""
        known = self._terms.get(id(entry.source))
        if known is None:
            polynomial = self.expander.expand_leaf(entry.source)
            found: list[Terms] = [{} for _ in range(entry.source.size)]
            rows = zip(
                polynomial.entry.tolist(),
                polynomial.coordinate.tolist(),
                polynomial.monomial.tolist(),
                polynomial.coefficient.tolist(),
                strict=True,
            )
            for place, coordinate, monomial, coefficient in rows:
                if not np.isfinite(coefficient):
                    raise Unreadable
                key = (coordinate, *(k for k in monomial if k >= 0))
                found[place][key] = found[place].get(key, Fraction(0)) + Fraction(coefficient)
            known = self._terms[id(entry.source)] = (entry.source, found)
        return known[1][entry.index]

    def affine_terms(self, combination: Combination) -> Terms:
        """Return the affine part of a combination as exact coefficients, without zeros."""
        total: Terms = {}
        for factor, entry in combination.affine:
            for key, coefficient in self.terms(entry).items():
                total[key] = total.get(key, Fraction(0)) + factor * coefficient
        return {key: coefficient for key, coefficient in total.items() if coefficient}

    def probe(self, combination: Combination) -> float:
        """Return a number that two combinations share, but for rounding, if they are the same function: quicker than a key."""
        total = sum(float(factor) * self._probed(entry) for factor, entry in combination.affine)
        return total + sum(float(factor) * self.curved_probe(term) for factor, term in combination.curved)

    def curved_probe(self, term: Curved) -> float:
        """Return a number as `probe` does; it knows neither the order nor the signs of arguments."""
        if term.arguments is None:
            return float(id(term.entry.source) + term.entry.index)
        return sum(self.probe(one) ** 2 for argument in term.arguments for one in argument.ravel())

    def _probed(self, entry: Entry) -> float:
        """Evaluate an affine entry at a fixed record and a fixed theta of no pattern."""
        known = self._probes.get(id(entry.source))
        if known is None:
            found = self.expander.expand_leaf(entry.source)
            record, theta = np.arange(self.expander.bases.count), np.arange(self.expander.space.dim)
            values = found.evaluate(np.cos(record**2 + 1.0), np.sin(theta**2 + 1.0))
            known = self._probes[id(entry.source)] = (entry.source, values.ravel(order="F").tolist())
        return known[1][entry.index]

    def key(self, combination: Combination) -> Hashable:
        """Return what two combinations share only if they are the same function."""
        curved: Counter[Hashable] = Counter()
        for factor, term in combination.curved:
            curved[self.curved_key(term)] += factor  # type: ignore[assignment]
        return frozenset(curved.items()), frozenset(self.affine_terms(combination).items())

    def curved_key(self, term: Curved) -> Hashable:
        """Return what two curved terms share only if they are the same function."""
        if term.arguments is None:
            return term.options
        # Only what an even function is applied to may change its sign, and not the divisor of a square.
        even = [k == 0 and is_even(term) for k in range(len(term.arguments))]
        keys = [
            frozenset(Counter(self.signed_key(one, signs) for one in argument.ravel()).items())
            for argument, signs in zip(term.arguments, even, strict=True)
        ]
        # In maxima the order of the arguments does not matter either.
        return term.options, frozenset(Counter(keys).items()) if term.kind in EXTREMES else tuple(keys)

    def signed_key(self, combination: Combination, signs: bool) -> Hashable:
        """Return a key that a combination shares with its negative, if `signs` says so."""
        key = self.key(combination)
        return frozenset((key, self.key(combination * Fraction(-1)))) if signs else key


def is_even(term: Curved) -> bool:
    """Whether an atom does not change with the sign of an entry."""
    source = term.entry.source
    if term.kind is not None and isinstance(source, Power):
        return source.p.value in WHOLE_LINE
    if term.kind is not None and isinstance(source, cp.Pnorm):
        return float(source.original_p) >= 1
    return term.kind in EVEN


def entries_of(expression: cp.Expression) -> list[Entry]:
    """Return the entries of an expression in column order."""
    return [Entry(expression, k) for k in range(expression.size)]


def numbers(reader: TermReader, expression: cp.Expression) -> Entries | None:
    """Return a constant's entries as fractions, or None if it depends on anything."""
    mentions = reader.expander.mentions
    if mentions.variables(expression) or mentions.parameters(expression):
        return None
    value = dense(expression.value)
    if np.iscomplexobj(value) or not np.isfinite(value).all():
        raise Unreadable
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(value)


def added(reader: TermReader, expression: Any) -> Entries:
    """Add the arguments."""
    total = reader.read(expression.args[0])
    for argument in expression.args[1:]:
        total = np.asarray(total + reader.read(argument), dtype=object)
    return total


def negated(reader: TermReader, expression: Any) -> Entries:
    """Change signs."""
    return np.asarray(reader.read(expression.args[0]) * Fraction(-1), dtype=object)


def summed(reader: TermReader, expression: Any) -> Entries:
    """Sum over an axis, or everything."""
    found = reader.read(expression.args[0])
    return np.asarray(found.sum(axis=expression.axis, keepdims=bool(expression.keepdims)), dtype=object)


def traced(reader: TermReader, expression: Any) -> Entries:
    """Sum the diagonal."""
    return np.asarray(np.add.reduce(np.diagonal(reader.read(expression.args[0]))), dtype=object)


def multiplied(reader: TermReader, expression: Any) -> Entries | None:
    """Multiply with numbers, entry by entry or as matrices."""
    left, right = (numbers(reader, argument) for argument in expression.args)
    if (left is None) == (right is None):
        return None
    one = reader.read(expression.args[0]) if left is None else left
    two = reader.read(expression.args[1]) if right is None else right
    if type(expression) is not binary.MulExpression or not one.ndim or not two.ndim:
        return np.asarray(one * two, dtype=object)
    return np.asarray(one @ two, dtype=object) if max(one.ndim, two.ndim) <= 2 else None


def divided(reader: TermReader, expression: Any) -> Entries | None:
    """Divide by numbers."""
    divisor = numbers(reader, expression.args[1])
    if divisor is None or (divisor == 0).any():
        return None
    return np.asarray(reader.read(expression.args[0]) * (Fraction(1) / divisor), dtype=object)


def rearranged(reader: TermReader, expression: Any) -> Entries:
    """Index, stack, reshape or repeat entries."""
    parts = [reader.read(argument) for argument in expression.args]
    offsets = np.cumsum([0] + [part.size for part in parts])
    places = [
        np.arange(part.size).reshape(part.shape, order="F") + 1 + offset
        for part, offset in zip(parts, offsets, strict=False)
    ]
    everything = [Combination(), *(one for part in parts for one in part.ravel(order="F"))]
    index = dense(expression.numeric(places)).astype(int).reshape(-1, order="F")
    found = np.empty(len(index), dtype=object)
    found[:] = [everything[k] for k in index]
    return found.reshape(expression.shape, order="F")


SUMS: dict[type, Any] = {
    AddExpression: added,
    NegExpression: negated,
    Sum: summed,
    Trace: traced,
    binary.multiply: multiplied,
    binary.MulExpression: multiplied,
    binary.DivExpression: divided,
}
