"""Losses read as combinations: numbers times curved terms, plus affine ones, with every sum and every product taken apart.

Numbers are exact fractions, and affine expressions are compared by the terms of their polynomials, so that two ways to write one
function are recognised, and two functions are never taken for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import entry_at, hstack
from dpconvex.core.atoms.declared import DECLARED
from dpconvex.core.atoms.divergences import KL_DIV, REL_ENTR
from dpconvex.core.atoms.exponentials import ENTR, EXP, LOG, LOG_SUM_EXP, LOGISTIC, XEXP
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, MIN, MINIMUM, SUM_LARGEST
from dpconvex.core.atoms.groups import lines
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS, HUBER, POWER
from dpconvex.core.atoms.products import MATMUL, MULTIPLY
from dpconvex.core.atoms.squares import QUAD_OVER_LIN
from dpconvex.core.atoms.sums import add
from dpconvex.core.evaluate import over_records
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression, Variable, constant

Entries = NDArray[np.object_]
# Coefficients of monomials in the record, times a coordinate of theta or (at -1) times nothing.
Terms = dict[tuple[int, ...], Fraction]

# Atoms that are applied entry by entry.
OF_ENTRIES = (LOGISTIC, HUBER, ABS, EXP, XEXP, LOG, ENTR, MAXIMUM, MINIMUM, POWER, KL_DIV, REL_ENTR, MULTIPLY, DECLARED)
# Atoms of all entries of an array, in any order.
SYMMETRIC = (LOG_SUM_EXP, MAX, MIN, NORM, QUAD_OVER_LIN, SUM_LARGEST)
# Of these the arguments may change places.
EXTREMES = (MAXIMUM, MINIMUM)
# Values that differ by this fraction of the largest number in computing them are not equal but for rounding.
CLEAR = 1e-6
# Functions that do not change with the sign of an entry; so are the powers that are defined on the whole line.
EVEN = (ABS, HUBER, NORM, QUAD_OVER_LIN)


class Unreadable(Exception):
    """A loss that stays as it was written: it contains a number that is not finite, or that rounds to zero."""


@dataclass(frozen=True)
class Entry:
    """One entry of an expression, in column order."""

    source: Expression
    index: int = 0

    @property
    def expression(self) -> Expression:
        shape = self.source.shape
        return entry_at(self.source, np.unravel_index(self.index, shape, order="F")) if shape else self.source


@dataclass(frozen=True, eq=False)
class Curved:
    """A scalar that is not affine: an atom of combinations.

    Attributes
    ----------
    entry : Entry
        Where it was written.
    atom : Atom or None
        What it is; None for atoms that are not taken apart.
    given : tuple of array of Combination, or a function that returns it
        What it is applied to; see `arguments`.
    changed : bool
        Whether the arguments are not those that were written.
    """

    entry: Entry
    atom: Atom | None = None
    given: tuple[Entries, ...] | Callable[[], tuple[Entries, ...]] = ()
    changed: bool = False

    @cached_property
    def arguments(self) -> tuple[Entries, ...]:
        """What it is applied to: with many labels, entries of which most are never looked at."""
        return self.given() if callable(self.given) else self.given

    @property
    def is_of_affine(self) -> bool:
        """Whether it is a function of all entries of affine expressions, as it was written."""
        return callable(self.given) and all(argument.is_affine for argument in self.entry.source.args)

    @cached_property
    def key(self) -> Hashable:
        """What else determines the atom; only an atom itself has the same if it is not taken apart."""
        if self.atom is None:
            return self.entry
        own = self.entry.source.options if self.entry.source.atom is self.atom else ()
        return self.atom, tuple(option for option in own if option[0] not in ("axis", "keepdims"))

    def option(self, name: str) -> Any:
        return self.entry.source.option(name)

    @cached_property
    def expression(self) -> Expression:
        """The atom of its arguments."""
        if self.atom is None or (not self.changed and self.entry.source.is_scalar):
            return self.entry.expression
        parts: list[Expression] = []
        for argument in self.arguments:
            built = [build(one) for one in argument.ravel(order="F")]
            parts.append(built[0] if len(built) == 1 else hstack(*built))
        options: dict[str, Any] = dict(self.entry.source.options) if self.entry.source.atom is self.atom else {}
        if "axis" in options:
            options.update(axis=tuple(range(parts[0].ndim)), keepdims=False)
        return self.atom(*parts, **options)


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

    def __add__(self, other: Combination | int) -> Combination:
        if not isinstance(other, Combination):
            return self  # the number 0, where an atom fills in zeros
        return Combination(self.curved + other.curved, self.affine + other.affine, self.turned or other.turned)

    def __neg__(self) -> Combination:
        return self * Fraction(-1)

    def __truediv__(self, divisor: Fraction) -> Combination:
        return self * (1 / divisor)

    def __mul__(self, factor: Fraction) -> Combination:
        return Combination(
            tuple((factor * c, term) for c, term in self.curved),
            tuple((factor * c, entry) for c, entry in self.affine),
            self.turned or (factor < 0 and bool(self.curved)),
        )

    __radd__, __rmul__ = __add__, __mul__

    @property
    def only(self) -> Curved | None:
        """The one curved term that this is, with factor 1; None if it is something else."""
        return self.curved[0][1] if len(self.curved) == 1 and not self.affine and self.curved[0][0] == 1 else None


def build(combination: Combination) -> Expression:
    parts = [scaled(c, term.expression) for c, term in combination.curved]
    parts += [scaled(c, entry.expression) for c, entry in combination.affine]
    return add(*parts) if parts else constant(0.0)


def scaled(factor: Fraction, expression: Expression) -> Expression:
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
    """Reads expressions as arrays of combinations."""

    def __init__(self, expander: Expander) -> None:
        self.expander = expander
        self._memory: dict[Expression, Entries] = {}
        self._terms: dict[Expression, list[Terms]] = {}
        self._probes: dict[Expression, list[float]] = {}
        self._points: dict[Expression, NDArray[np.float64]] = {}

    def read(self, expression: Expression) -> Entries:
        """Return the entries of an expression as combinations, in an array of its shape."""
        known = self._memory.get(expression)
        if known is None:
            known = self._memory[expression] = self._read(expression)
        return known

    def one(self, expression: Expression) -> Combination:
        (found,) = self.read(expression).ravel()
        assert isinstance(found, Combination)
        return found

    def _read(self, expression: Expression) -> Entries:
        if expression.is_affine:
            return as_array(expression, [Combination((), ((Fraction(1), e),)) for e in entries_of(expression)])
        found = self._linear(expression)
        if found is not None:
            return found
        return as_array(expression, [Combination(((Fraction(1), term),)) for term in self._atoms(expression)])

    def _linear(self, expression: Expression) -> Entries | None:
        """Apply a linear atom to arrays of combinations and of exact numbers; None for other atoms, and for products."""
        atom = expression.atom
        assert atom is not None
        if atom.affine == "curved":
            return None
        arguments: list[Entries] = []
        for place, argument in enumerate(expression.args):
            constant_factor = atom.affine != "linear" and argument.is_constant
            if atom.affine == "quotient" and place == 1 and (not constant_factor or not argument.number.all()):
                return None
            arguments.append(fractions(argument) if constant_factor else self.read(argument))
        if atom.affine == "bilinear" and not any(argument.is_constant for argument in expression.args):
            return None
        value = atom.value(np, expression, *(argument[..., None] for argument in arguments))
        found = np.broadcast_to(value[..., 0], expression.shape)
        # Where an atom fills in zeros, or adds up nothing, stands the number 0.
        return as_array(
            expression, [c if isinstance(c, Combination) else Combination() for c in found.ravel(order="F")]
        )

    def _atoms(self, expression: Expression) -> list[Curved]:
        """Return the entries of an atom, with their arguments."""
        atom, entries = expression.atom, entries_of(expression)
        if atom in SYMMETRIC and expression.is_scalar and over_everything(expression):
            return [Curved(entries[0], atom, lambda: tuple(self.read(a) for a in expression.args))]
        if atom is QUAD_OVER_LIN:
            inner, divisor = self.read(expression.args[0]).ravel(order="F"), self.read(expression.args[1])
            return [Curved(e, atom, (inner[line], divisor)) for e, line in zip(entries, lines(expression), strict=True)]
        product = atom is MATMUL and any(a.is_scalar for a in expression.args)
        if atom in OF_ENTRIES or product:
            flat = [np.resize(self.read(a).ravel(order="F"), len(entries)) for a in expression.args]
            kind = MULTIPLY if product else atom
            return [Curved(e, kind, tuple(a[k : k + 1] for a in flat)) for k, e in enumerate(entries)]
        return [Curved(entry) for entry in entries]

    def terms(self, entry: Entry) -> Terms:
        """Return an affine entry as exact coefficients."""
        known = self._terms.get(entry.source)
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
            known = self._terms[entry.source] = found
        return known[entry.index]

    def affine_terms(self, combination: Combination) -> Terms:
        """Return the affine part of a combination as exact coefficients, without zeros."""
        total: Terms = {}
        for factor, entry in combination.affine:
            for key, coefficient in self.terms(entry).items():
                total[key] = total.get(key, Fraction(0)) + factor * coefficient
        return {key: coefficient for key, coefficient in total.items() if coefficient}

    def public_row(self, entry: Combination) -> dict[int, Fraction] | None:
        """Return the coefficients of theta in an affine entry; None if it is not affine, or they depend on the record."""
        if entry.curved:
            return None
        terms = {key: value for key, value in self.affine_terms(entry).items() if key[0] >= 0}
        return {key[0]: value for key, value in terms.items()} if all(len(key) == 1 for key in terms) else None

    def probe(self, combination: Combination) -> float:
        """Return a number that two combinations share, but for rounding, if they are the same function: quicker than a key."""
        total = sum(float(factor) * self._probed(entry) for factor, entry in combination.affine)
        return total + sum(float(factor) * self.curved_probe(term) for factor, term in combination.curved)

    def curved_probe(self, term: Curved) -> float:
        """Return a number as `probe` does; it knows neither the order nor the signs of arguments."""
        if term.atom is None:
            return float(hash(term.entry) % 2**32)
        return sum(self.probe(one) ** 2 for argument in term.arguments for one in argument.ravel())

    def differs(self, expression: Expression) -> bool:
        """Whether an affine expression clearly has other values at another theta, for one record of no pattern."""
        for leaf in expression.variables | expression.fields:
            if leaf not in self._points:
                steps = (1, 2) if isinstance(leaf, Variable) else (3, 3)
                both = [np.sin(t + np.arange(leaf.size) ** 2.0).reshape(leaf.shape) for t in steps]
                self._points[leaf] = np.stack(both, axis=-1)
        values = over_records([expression], self._points)
        largest = max(float(np.abs(value).max(initial=0.0)) for value in values.values())
        return bool(np.ptp(values[expression]) > CLEAR * largest)

    def _probed(self, entry: Entry) -> float:
        """Evaluate an affine entry at a fixed record and a fixed theta of no pattern."""
        known = self._probes.get(entry.source)
        if known is None:
            found = self.expander.expand_leaf(entry.source)
            record, theta = np.arange(self.expander.bases.count), np.arange(self.expander.space.dim)
            values = found.evaluate(np.cos(record**2 + 1.0), np.sin(theta**2 + 1.0))
            known = self._probes[entry.source] = values.ravel(order="F").tolist()
        return known[entry.index]

    def key(self, combination: Combination) -> Hashable:
        """Return what two combinations share only if they are the same function."""
        curved: Counter[Hashable] = Counter()
        for factor, term in combination.curved:
            curved[self.curved_key(term)] += factor  # type: ignore[assignment]
        return frozenset(curved.items()), frozenset(self.affine_terms(combination).items())

    def curved_key(self, term: Curved) -> Hashable:
        """Return what two curved terms share only if they are the same function."""
        if term.atom is None:
            return term.key
        # Only what an even function is applied to may change its sign, and not the divisor of a square.
        even = [k == 0 and is_even(term) for k in range(len(term.arguments))]
        keys = [
            frozenset(Counter(self.signed_key(one, signs) for one in argument.ravel()).items())
            for argument, signs in zip(term.arguments, even, strict=True)
        ]
        # In maxima the order of the arguments does not matter either.
        return term.key, frozenset(Counter(keys).items()) if term.atom in EXTREMES else tuple(keys)

    def signed_key(self, combination: Combination, signs: bool) -> Hashable:
        key = self.key(combination)
        return frozenset((key, self.key(-combination))) if signs else key


def is_even(term: Curved) -> bool:
    """Whether an atom does not change with the sign of an entry."""
    return term.atom in EVEN or (term.atom is POWER and POWER.domain(term.entry.source) == (None,))


def square_of(term: Curved) -> Fraction | None:
    """Return the number that a sum of squares is divided by; None if a term is no such sum."""
    if term.atom is POWER and term.option("p") == 2:
        return Fraction(1)
    if term.atom is not QUAD_OVER_LIN:
        return None
    divisor = build(term.arguments[1].ravel()[0])
    return Fraction(float(divisor.number)) if divisor.is_constant else None


def over_everything(expression: Expression) -> bool:
    """Whether a reduction is over all axes of its argument; one without axes is."""
    options: dict[str, Any] = dict(expression.options)
    return len(options.get("axis", expression.args[0].shape)) == expression.args[0].ndim


def entries_of(expression: Expression) -> list[Entry]:
    return [Entry(expression, k) for k in range(expression.size)]


def as_array(expression: Expression, found: list[Combination]) -> Entries:
    """Return combinations, in column order, in an array of an expression's shape."""
    flat = np.empty(len(found), dtype=object)
    flat[:] = found
    return flat.reshape(expression.shape, order="F")


def fractions(expression: Expression) -> Entries:
    """Return a constant's entries as exact numbers."""
    if not np.isfinite(expression.number).all():
        raise Unreadable
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(expression.number)
