"""Rewrites parameters picked by a `Choice`, as ``a[g]`` in ``x @ w + a[g]``, as products ``h @ a`` with a field h."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpconvex.data.domains import Ball, Choice
from dpconvex.data.record import Record
from dpconvex.expressions.atoms.arithmetic import ADD, MATMUL, MULTIPLY, NEGATE
from dpconvex.expressions.atoms.arrangement import hstack, vec
from dpconvex.expressions.evaluate import over_records
from dpconvex.expressions.expression import Expression, Field, Variable, constant, postorder, topmost
from dpconvex.numerics import abs_ends
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.own_fields import is_entrywise, substitute
from dpconvex.util.arrays import Array, Indices, powers_of_two
from dpconvex.util.runtime import once

MOST = 1024  # Largest size of a new field: basis parameters times entries of the function
SAME = 1e-9  # Residuals below this fraction of the largest row are rounding
ONE = constant(np.ones(1))


class Picked(NamedTuple):
    """A new field: a row of `table` for each combination of a record's levels, times the entries of `function`."""

    function: Expression  # shape (d,)
    table: Array  # shape (combinations, m)

    @property
    def is_constant(self) -> bool:
        """Return whether the entries of the field have the same sum for all records."""
        return self.function is ONE and float(np.ptp(self.table.sum(axis=1))) == 0


class MadeFields(NamedTuple):
    """New fields that depend on a record's levels, and the new combination of the remaining levels."""

    fields: Mapping[str, Picked]
    groups: Indices  # New combination for each combination of `before`, shape (combinations,)
    before: Record


class Term(NamedTuple):
    """A part of a score: parameters times a function of a record, `ONE` for parameters alone."""

    function: Expression
    parameters: Expression


@once
def with_picked_fields(form: LossForm) -> tuple[LossForm, Mapping[str, Picked]]:
    """Return the form with picked parameters as products with new fields, without idle discrete fields; and the new fields."""
    template, given = form.template, [multiply_out(loss) for loss in form.losses]
    parts = [dict(terms(loss)) for loss in given]
    common = set.intersection(*(set(part.values()) for part in parts))
    keys = dict.fromkeys(key(term) for part in parts for term in part.values() if term not in common)
    found, domains = dict[str, Picked](), dict[str, Ball]()
    replaced: list[dict[Expression, Expression]] = [{} for _ in parts]
    for own in keys:
        chosen = [[node for node, term in part.items() if key(term) == own and term not in common] for part in parts]
        if max(map(len, chosen)) > 1:
            continue
        basis, table = linear_basis(
            [part[nodes[0]].parameters if nodes else None for part, nodes in zip(parts, chosen, strict=True)]
        )
        size = abs_ends(*form.expander.bounds(own[0]))[1]
        if not basis or len(basis) * size.size > MOST or not size.any():
            continue
        # Rows are rounded to a grid that fits the largest bound.
        units = powers_of_two(size)
        field = Field.of((len(basis) * size.size,), f" picked {len(found)}")
        domains[field.name] = Ball(
            field.size, float(np.linalg.norm(table, axis=1).max() * np.linalg.norm(size / units))
        )
        found[field.name] = Picked(vec(own[0]) / units, table)
        product = MATMUL(field, hstack(*(vec(parameters) * units for parameters in basis)))
        for nodes, leaves in zip(chosen, replaced, strict=True):
            leaves.update(dict.fromkeys(nodes, product))
    if not found:
        return form, {}
    every = [substitute(loss, leaves) for loss, leaves in zip(given, replaced, strict=True)]
    losses, groups, chosen_by = drop_idle_fields(every, template.record.discrete)
    read = {field.name for loss in losses for field in loss.fields} | {*chosen_by}
    fields = {name: domain for name, domain in template.record.fields.items() if name in read}
    moved = template.with_parts(record=Record(**fields, **domains), losses=losses)
    return LossForm(moved, convex=False, made=MadeFields(found, groups, template.record)), found


def multiply_out(loss: Expression) -> Expression:
    """Return a loss with levels multiplied into parameters: ``x @ (t * v)`` for ``t * (x @ v)``."""
    leaves = dict[Expression, Expression]()
    for node in postorder([loss]):
        if node.atom is ADD and node.is_affine and sum(bool(term.variables) for term in node.args) > 1:
            levels = [term for term in node.args if term.atom is MULTIPLY and term.fields and term.args[0].is_constant]
            leaves |= {term: multiply_in(float(term.args[0].number), term.args[1]) for term in levels}
    return substitute(loss, leaves) if leaves else loss


def multiply_in(level: float, node: Expression) -> Expression:
    """Return the product of a number and an affine part, with the number multiplied into the parameters."""
    if node.fields and node.atom is ADD:
        return ADD(*(multiply_in(level, term) for term in node.args))
    if node.fields and node.atom in (MATMUL, MULTIPLY):
        return node.atom(*(multiply_in(level, side) if side.variables else side for side in node.args))
    return MULTIPLY(constant(np.full(node.shape, level)), node)


def drop_idle_fields(
    losses: Sequence[Expression], discrete: Mapping[str, Choice]
) -> tuple[tuple[Expression, ...], Indices, list[str]]:
    """Return the losses by the discrete fields that change them, the new combination for each old one, and these fields."""
    numbers: dict[Expression, int] = {}
    grid = np.array([numbers.setdefault(loss, len(numbers)) for loss in losses])
    grid = grid.reshape([len(choice.values) for choice in discrete.values()])
    varies = [bool(np.ptp(grid, axis=axis).any()) for axis in range(grid.ndim)]
    one = grid[tuple(slice(None) if own else slice(1) for own in varies)]
    groups = np.broadcast_to(np.arange(one.size).reshape(one.shape), grid.shape).ravel()
    every = [*numbers]
    kept = [name for name, own in zip(discrete, varies, strict=True) if own]
    return tuple(every[number] for number in one.ravel()), groups, kept


def key(term: Term) -> tuple[Expression, frozenset[Variable]]:
    return term.function, term.parameters.variables


def terms(loss: Expression) -> Iterator[tuple[Expression, Term]]:
    """Yield the largest affine parts of a loss that are parameters, or parameters times a function of the record.

    If the parameters occur alone too, the factor multiplies a score, as k in ``exp(a[g]) - k * a[g]``: the part is left out.
    """
    found = {node: term for node in topmost(loss, term_of) if (term := term_of(node))}
    alone = {node for node, term in found.items() if term.function is ONE}
    for node, term in found.items():
        weighs = node.atom is MULTIPLY and node not in alone and term.function.is_scalar
        if not (weighs and alone.issuperset(topmost(term.parameters, term_of))):
            yield node, term


def term_of(node: Expression) -> Term | None:
    if node.ndim or not node.is_affine or node.atom in (ADD, NEGATE):  # a[g] and -a[g] are one part
        return None
    if not node.fields:
        return Term(ONE, node)
    if node.atom in (MATMUL, MULTIPLY):
        one, other = sorted(node.args, key=lambda side: len(side.variables))
        plain = not one.variables and not other.fields and one.ndim <= 1 and one.shape == other.shape
        if plain and is_entrywise(one):
            return Term(one, other)
    return None


def linear_basis(every: list[Expression | None]) -> tuple[list[Expression], Array]:
    """Return a basis of linear expressions, and each expression's coordinates, shape (all, basis); [] if one is not linear."""
    nodes = list(dict.fromkeys(node for node in every if node is not None))
    random, count = np.random.default_rng(0), len(nodes) + 2
    leaves: dict[Expression, Array] = {v: random.normal(size=(*v.shape, count)) for v in nodes[0].variables}
    for drawn in leaves.values():
        drawn[..., 0] = 0.0
    values = over_records(nodes, leaves)
    rows = np.stack([np.broadcast_to(values[node], (*node.shape, count)).reshape(-1, count) for node in nodes])
    if rows[..., 0].any() or not rows.any():
        return [], rows[:, 0]
    rows = rows.reshape(len(nodes), -1)
    basis = list[int]()
    left = rows.copy()
    largest = np.linalg.norm(rows, axis=1).max()
    for k in range(len(nodes)):
        length = np.linalg.norm(left[k])
        if length > SAME * largest:
            basis.append(k)
            way = left[k] / length
            left = left - np.outer(left @ way, way)
    made = np.eye(len(nodes)) if len(basis) == len(nodes) else np.linalg.lstsq(rows[basis].T, rows.T, rcond=None)[0].T
    zero = np.zeros(len(basis))
    return [nodes[k] for k in basis], np.stack([zero if node is None else made[nodes.index(node)] for node in every])
