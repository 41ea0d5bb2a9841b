"""One way to write a loss: like terms together, and affine terms where the proofs see them best.

Constants belong to a function, and should not depend on how it is written.  Before anything else reads it, a loss is rewritten
by identities that are exact in real arithmetic:

    c f + d f = (c + d) f                                          like terms are collected, and terms with factor 0 go
    c lse(m) + a = c lse(m + a/c),  c max(m) + a = c max(m + a/c)  for affine a and c > 0, entry by entry
    lse(a, b) = a + logistic(b - a)                                where nothing of theta is left of a
    logistic(m) - m = logistic(-m)
    c logistic(m) + a = c lse(a/c, m + a/c)                        where a is neither 0 nor -c m
    c m_1^2 + c m_2^2 = c ||m||^2                                  squares of public rows of one length
    -min(a, b) = max(-a, -b),  f(|m|) = f(m) and |m|^2 = m^2       for even f; also for Euclidean norms

What is proved is then proved about the loss that is minimised.  A loss that none of these changes stays the very object that its
user wrote, and so does one that is not convex or cannot be read: it is refused later, in the words that it was written in.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import hstack
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP, LOGISTIC, log_sum_exp, logistic
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, MIN, MINIMUM, largest_entry, maximum
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS, POWER
from dpconvex.core.atoms.products import MULTIPLY
from dpconvex.core.atoms.squares import sum_squares
from dpconvex.core.combinations import (
    Combination,
    Curved,
    Entries,
    Entry,
    TermReader,
    Terms,
    Unreadable,
    build,
    is_even,
    square_of,
)
from dpconvex.core.discipline import is_convex
from dpconvex.core.evaluate import substituted
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression, Variable, constant
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Fields
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import NotPrivate, TemplateError

ONE = Fraction(1)
# Values of one function agree to this fraction; others are compared exactly.
SAME = 1e-6


def normal_forms(losses: Sequence[Expression], variables: Sequence[Variable], record: Fields) -> tuple[Expression, ...]:
    try:
        reader = TermReader(Expander(Space(variables), Bases(record)))
    except TemplateError:
        return tuple(losses)
    return tuple(rewritten(loss, reader) for loss in losses)


def normal_form(loss: Expression, expander: Expander) -> Expression:
    """Return the normal form of a scalar expression: the expression itself, if no identity changes it.

    >>> from dpconvex.core.expression import Field
    >>> from dpconvex.core.record_domains import Ball
    >>> from dpconvex.language.record import Record
    >>> W, x = Variable.of((2, 3), "W", 1), Field.of((2,), "x")
    >>> written = log_sum_exp(x @ W) / 2 + log_sum_exp(x @ W) / 2 - x @ W[:, 0]
    >>> print(normal_form(written, Expander(Space([W]), Bases(Record(x=Ball(2))))))
    log_sum_exp(x @ W - x @ W[:, 0])
    """
    return rewritten(loss, TermReader(expander))


def rewritten(loss: Expression, reader: TermReader) -> Expression:
    """Do the work of `normal_form`; a reader remembers what losses share."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not read
            settled, changed = Normaliser(reader).settle(reader.one(loss))
        if not changed or not is_convex(loss):
            return loss
        result = build(settled)
    except (NotPrivate, Unreadable, OverflowError, ValueError):
        return loss
    return result if is_convex(result) else loss


class Normaliser:
    """Applies the identities, from the inside out."""

    def __init__(self, reader: TermReader) -> None:
        self.reader = reader
        self._settled: dict[tuple[Curved, bool], tuple[Combination, bool]] = {}

    def settle(self, written: Combination) -> tuple[Combination, bool]:
        changed = written.turned and any(c > 0 for c, _ in written.curved)
        total = Combination((), written.affine)
        for factor, term in written.curved:
            if factor == 0:
                changed = True
                continue
            found, other = self.term(term, factor < 0)
            total, changed = total + found * factor, changed or other
        total = replace(total, turned=False)
        steps = (self.collected, self.logistics, self.placed, self.collected, self.squares)
        for step in steps:
            found, other = step(total)
            total, changed = (found, True) if other else (total, changed)
        return total, changed

    def term(self, term: Curved, negative: bool) -> tuple[Combination, bool]:
        """Return the normal form of a curved term, and whether it differs; `negative` is the sign of its factor."""
        known = self._settled.get((term, negative))
        if known is None:
            known = self._settled[term, negative] = self._term(term, negative)
        return known

    def _term(self, term: Curved, negative: bool) -> tuple[Combination, bool]:
        if term.atom is None:
            return Combination(((ONE, term),)), False
        inner = () if term.is_of_affine else term.arguments
        pairs = [[self.settle(one) for one in argument.ravel(order="F")] for argument in inner]
        if any(changed for part in pairs for _, changed in part):
            term = replace(term, given=tuple(table([one for one, _ in part]) for part in pairs), changed=True)
        rules = (self.smallest, self.even, self.product) if negative else (self.even, self.product)
        for rule in rules:
            found = rule(term)
            if found is not None:
                return self.settle(found)[0], True
        return Combination(((ONE, term),)), term.changed

    def smallest(self, term: Curved) -> Combination | None:
        """Write a minimum as minus a maximum."""
        if term.atom not in (MINIMUM, MIN):
            return None
        found = self.reader.one(maximum(*(build(-one) for part in term.arguments for one in part.ravel(order="F"))))
        return Combination(((Fraction(-1), found.curved[0][1]),)) if found.only else None

    def even(self, term: Curved) -> Combination | None:
        """Write an even function of an absolute value as one of what is behind it, and a squared length as a sum of squares."""
        if not is_even(term) or len(term.arguments[0].ravel()) != 1:
            return None
        inner = term.arguments[0].ravel()[0].only
        if inner is None or inner.atom not in (ABS, NORM):
            return None
        behind = list(inner.arguments[0].ravel(order="F"))
        if len(behind) == 1:
            return Combination(((ONE, replace(term, given=(table(behind), *term.arguments[1:]), changed=True)),))
        square = term.atom is POWER and term.option("p") == 2
        if not square or inner.atom is not NORM or inner.option("p") != 2:
            return None
        same = hstack(*(build(one) for one in behind)) if inner.changed else inner.entry.source.args[0]
        found = self.reader.one(sum_squares(same))
        return Combination(found.curved, found.affine)

    def product(self, term: Curved) -> Combination | None:
        """Take a number out of the product of a function of the record with a curved term."""
        if term.atom is not MULTIPLY:
            return None
        for place, argument in enumerate(term.arguments):
            (inner,) = argument.ravel()
            if len(inner.curved) == 1 and not inner.affine and inner.curved[0][0] != 1:
                ((factor, curved),) = inner.curved
                arguments = list(term.arguments)
                arguments[place] = table([Combination(((ONE, curved),))])
                return Combination(((factor, replace(term, given=tuple(arguments), changed=True)),))
        return None

    def collected(self, total: Combination) -> tuple[Combination, bool]:
        """Add up the factors of like terms."""
        alike = self.alike([term for _, term in total.curved])
        if not any(alike):
            return total, False
        found: dict[Any, tuple[Fraction, Curved]] = {}
        for k, (factor, term) in enumerate(total.curved):
            key = self.reader.curved_key(term) if alike[k] else k
            found[key] = (found[key][0] + factor, found[key][1]) if key in found else (factor, term)
        if len(found) == len(total.curved):
            return total, False
        curved = tuple((factor, term) for factor, term in found.values() if factor != 0)
        return replace(total, curved=curved), True

    def squares(self, total: Combination) -> tuple[Combination, bool]:
        """Put squares of public linear forms of one length together: ``c m_1^2 + c m_2^2 = c ||m||^2``."""
        groups: dict[tuple[Fraction, Fraction], list[int]] = {}
        squared = [k for k, (_, term) in enumerate(total.curved) if square_of(term) == 1]
        for k in squared if len(squared) > 1 else ():
            factor, term = total.curved[k]
            rows = [self.reader.public_row(entry) for entry in term.arguments[0].ravel()]
            lengths = {None if row is None else sum(c * c for c in row.values()) for row in rows}
            if len(lengths) == 1 and None not in lengths:
                groups.setdefault((factor, *lengths), []).append(k)  # type: ignore[arg-type]
        groups = {key: places for key, places in groups.items() if len(places) > 1}
        if not groups:
            return total, False
        gathered = {k for places in groups.values() for k in places}
        curved = [pair for k, pair in enumerate(total.curved) if k not in gathered]
        for (factor, _), places in groups.items():
            terms = [total.curved[k][1] for k in places]
            ((_, term),) = self.reader.one(sum_squares(entries_together(terms))).curved
            curved.append((factor, term))
        return replace(total, curved=tuple(curved)), True

    def alike(self, terms: Sequence[Curved]) -> list[bool]:
        """Say of each term whether it may be the same function as another one."""
        groups: dict[Any, list[int]] = {}
        for k, term in enumerate(terms):
            groups.setdefault(term.key, []).append(k)
        result = [False] * len(terms)
        for group in groups.values():
            if len(group) > 1:
                probes = sorted((self.reader.curved_probe(terms[k]), k) for k in group)
                for (a, k), (b, j) in itertools.pairwise(probes):
                    if not b - a > SAME * max(abs(a), abs(b)):
                        result[k] = result[j] = True
        return result

    def logistics(self, total: Combination) -> tuple[Combination, bool]:
        margins = {k: points(term) for k, (_, term) in enumerate(total.curved) if term.atom is LOGISTIC}
        places = [(k, found[1]) for k, found in margins.items() if found is not None]
        curved, affine, changed = list(total.curved), total.affine, False
        for (first, one), (second, two) in itertools.combinations(places, 2):
            c, d = curved[first][0], curved[second][0]
            if c > 0 and d > 0 and not self.reader.affine_terms(one + two):
                curved[first], curved[second] = (c + d, curved[first][1]), (Fraction(0), curved[second][1])
                affine, changed = affine + (one * -d).affine, True
        return Combination(tuple(pair for pair in curved if pair[0] != 0), affine), changed

    def placed(self, total: Combination) -> tuple[Combination, bool]:
        """Move affine terms into the log-sum-exp or the maximum that they belong to, and find logistic functions."""
        parts = [(c, e) for c, e in total.affine if e.source.variables]
        public = tuple(pair for pair in total.affine if pair not in parts)
        curved, changed = list(total.curved), False
        if curved and parts and not self.moves(parts):
            public, parts, changed = (*public, *self.at_zero(Combination((), tuple(parts))).affine), [], True
        for k, (factor, term) in enumerate(curved):
            if factor <= 0 or not has_points(term):
                continue
            own = parts if len(curved) == 1 else [pair for pair in parts if self.belongs(pair, factor, term)]
            found = self.shifted(factor, term, Combination((), tuple(own)))
            if found is not None:
                changed = True
                (curved[k],) = found.curved
                public += found.affine
                parts = [pair for pair in parts if pair not in own]
        return Combination(tuple(curved), (*parts, *public)), changed

    def moves(self, parts: Sequence[tuple[Fraction, Entry]]) -> bool:
        """Whether affine terms depend on theta: mostly their values show it, without their coefficients."""
        seen = len(parts) == 1 and parts[0][1].source.is_scalar and self.reader.differs(parts[0][1].source)
        return seen or bool(self.moving(Combination((), tuple(parts))))

    def moving(self, combination: Combination) -> Terms:
        """Return what multiplies coordinates of theta in the affine part of a combination."""
        return {key: c for key, c in self.reader.affine_terms(combination).items() if key[0] >= 0}

    def belongs(self, pair: tuple[Fraction, Entry], factor: Fraction, term: Curved) -> bool:
        """Whether an affine term is minus the factor times one of a curved term's entries."""
        own = Combination((), (pair,))
        return any(not self.moving(own + entry * factor) for entry in points(term) or ())

    def at_zero(self, combination: Combination) -> Combination:
        """Drop from affine terms what multiplies theta, where all of that cancels."""
        if not self.reader.affine_terms(combination):
            return Combination()
        expression = build(combination)
        zeros: dict[Expression, Expression] = {
            variable: constant(np.zeros(variable.shape)) for variable in expression.variables
        }
        return Combination((), ((ONE, Entry(substituted(expression, zeros))),))

    def shifted(self, factor: Fraction, term: Curved, own: Combination) -> Combination | None:
        if term.is_of_affine and not (term.atom is LOG_SUM_EXP and term.entry.source.args[0].size == 2):
            return self.shifted_array(factor, term, own)
        entries = points(term)
        assert entries is not None
        two_points = term.atom is LOGISTIC or (term.atom is LOG_SUM_EXP and len(entries) == 2)
        if two_points and (own.affine or term.atom is not LOGISTIC):
            for base, other in (entries, entries[::-1]):
                rest = own + base * factor
                if not self.moving(rest):
                    inner = Combination((), other.affine + (base * Fraction(-1)).affine)
                    return Combination(((factor, applied(LOGISTIC, [inner])),)) + self.at_zero(rest)
        if not own.affine:
            return None
        moved = [entry + own * (1 / factor) for entry in entries]
        still = [not self.moving(entry) for entry in moved]
        hinge = term.atom is MAXIMUM and len(entries) == 2 and not all(self.moving(entry) for entry in entries)
        if hinge and not any(still):
            return None  # what rounds off kinks knows a hinge
        moved = [self.at_zero(one) if zero else one for one, zero in zip(moved, still, strict=True)]
        atom = LOG_SUM_EXP if two_points else term.atom
        assert atom is not None
        return Combination(((factor, applied(atom, moved)),))

    def shifted_array(self, factor: Fraction, term: Curved, own: Combination) -> Combination | None:
        """Add affine terms to all entries of an array at once; no entry is looked at."""
        if not own.affine:
            return None
        assert term.atom is not None
        source = term.entry.source
        return self.reader.one(term.atom(source.args[0] + build(own * (1 / factor)), **dict(source.options))) * factor


def has_points(term: Curved) -> bool:
    """Whether `points` finds some."""
    return term.atom in (LOG_SUM_EXP, MAX) if term.is_of_affine else points(term) is not None


def points(term: Curved) -> tuple[Combination, ...] | None:
    """Return the entries of a logistic function (0 and m), a log-sum-exp or a maximum, if they are affine; else None."""
    if term.atom not in (LOGISTIC, LOG_SUM_EXP, MAX, MAXIMUM):
        return None
    entries = tuple(one for part in term.arguments for one in part.ravel(order="F"))
    if any(one.curved for one in entries):
        return None
    return (Combination(), *entries) if term.atom is LOGISTIC else entries


def applied(atom: Atom, entries: Sequence[Combination]) -> Curved:
    """Return an atom of affine combinations."""
    built = [build(one) for one in entries]
    if atom in (LOG_SUM_EXP, MAX):
        expression = (log_sum_exp if atom is LOG_SUM_EXP else largest_entry)(hstack(*built))
        return Curved(Entry(expression), atom, (table(entries),))
    expression = maximum(*built) if atom is MAXIMUM else logistic(built[0])
    return Curved(Entry(expression), atom, tuple(table([one]) for one in entries))


def table(found: Sequence[Combination]) -> Entries:
    """Return combinations as an array."""
    result = np.empty(len(found), dtype=object)
    result[:] = found
    return result


def entries_together(terms: Sequence[Curved]) -> Expression:
    """Return what some terms are the squares of as one array: the array that their user squared, if they are all of it."""
    source = terms[0].entry.source
    whole = [Entry(source, k) for k in range(source.size)]
    if source.atom is POWER and [term.entry for term in terms] == whole and not any(term.changed for term in terms):
        return source.args[0]
    return hstack(*(build(one) for term in terms for one in term.arguments[0].ravel(order="F")))
