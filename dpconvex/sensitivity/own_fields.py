"""Makes functions of a record in scores, as ``(x - c) / s`` or ``x / u - c``, fields with rows that differ more."""

from collections.abc import Iterator, Mapping

import numpy as np

from dpconvex.data.domains import Box
from dpconvex.data.record import Record
from dpconvex.expressions.atoms.arithmetic import ADD, DIVIDE, MATMUL, MULTIPLY, NEGATE
from dpconvex.expressions.atoms.arrangement import BROADCAST, CONCATENATE, INDEX, RESHAPE, TRANSPOSE
from dpconvex.expressions.atoms.powers import POWER
from dpconvex.expressions.expression import Constant, Expression, Field, postorder
from dpconvex.numerics import abs_ends
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.util.arrays import powers_of_two
from dpconvex.util.runtime import once

# Entrywise atoms: no bit of a record's values depends on other records.
ENTRYWISE = (ADD, NEGATE, MULTIPLY, DIVIDE, BROADCAST, CONCATENATE, INDEX, RESHAPE, TRANSPOSE)
MOST, LEAST, LARGEST = 1024, 1e-100, 1e100  # Limits of a function: number of entries, size of its bounds
UNEVEN = 16.0  # Largest ratio of two bounds of a field: rows are rounded to a grid that fits the largest bound


@once
def with_own_fields(form: LossForm) -> tuple[LossForm, Mapping[str, Expression]]:
    """Return the form with such functions as fields, and the functions by field name; the same form if there are none."""
    template, found, bounds = form.template, dict[Expression, Field](), dict[str, Box]()
    for function in dict.fromkeys(f for loss in form.losses for f in functions(loss)):
        low, high = form.expander.bounds(function)
        width, size = np.linalg.norm(high - low), np.linalg.norm(abs_ends(low, high)[1])
        domains = [template.record.continuous[field.name] for field in function.fields]
        boxes = [domain for domain in domains if isinstance(domain, Box)]
        if len(boxes) < len(domains) or not LEAST < width <= 2 * size < LARGEST:
            continue
        if bends(function) or size / width <= max(
            box.norm_bound / np.linalg.norm(box.upper - box.lower) for box in boxes
        ):
            found[function] = own = Field.of(function.shape, f" own {len(found)}")
            bounds[own.name] = Box(*(end.reshape(own.shape, order="F") for end in (low, high)))
    losses = tuple(substitute(loss, dict(found)) for loss in form.losses)
    uneven = dict[Expression, Expression]()
    for field in sorted({field for loss in losses for field in loss.fields}, key=lambda field: field.name):
        domain = template.record.continuous.get(field.name)
        if isinstance(domain, Box) and len(domain.shape) and field.size <= MOST:
            units = powers_of_two(abs_ends(domain.lower, domain.upper)[1])
            if LEAST < units.min() * UNEVEN < units.max() < LARGEST:
                own = Field.of(field.shape, f" own {len(found)}")
                found[field / units], uneven[field] = own, own * units
                bounds[own.name] = Box(domain.lower / units, domain.upper / units)
    if not found:
        return form, {}
    losses = tuple(substitute(loss, uneven) for loss in losses)
    read = {field.name for loss in losses for field in loss.fields}
    read |= {*template.record.discrete}
    fields = {name: domain for name, domain in template.record.fields.items() if name in read} | bounds
    moved = template.with_parts(record=Record(**fields), losses=losses)
    return LossForm(moved, convex=False), {field.name: function for function, field in found.items()}


def functions(loss: Expression) -> Iterator[Expression]:
    """Yield the factors of parameters that shift, scale or bend fields of the record entry by entry."""
    for node in postorder([loss]):
        if node.atom in (MATMUL, MULTIPLY) and node.variables:
            for side in node.args:
                if side.fields and not side.variables and side.size <= MOST and is_own(side):
                    yield side


def is_own(function: Expression) -> bool:
    inner = [node for node in postorder([function]) if not isinstance(node, Field | Constant)]
    changed = any(
        node.atom is ADD or any(isinstance(side, Constant) and side.size > 1 for side in node.args) for node in inner
    )
    stacked = any(node.atom is CONCATENATE for node in inner)  # arithmetic of stacks alone learns as well without
    return (bends(function) or (changed and not stacked)) and is_entrywise(function)


def is_entrywise(function: Expression) -> bool:
    """Return whether a function of a record is computed entry by entry, independently of other records."""
    return all(node.atom is None or node.atom in ENTRYWISE or node.atom.entrywise for node in postorder([function]))


def bends(function: Expression) -> bool:
    """Return whether a function of a record has atoms besides arithmetic and powers, as pos(t - 24) or log(t)."""
    return any(node.atom is not None and node.atom not in (*ENTRYWISE, POWER) for node in postorder([function]))


def substitute(root: Expression, leaves: Mapping[Expression, Expression]) -> Expression:
    """Return an expression with nodes replaced by others of the same shape; `leaves` maps nodes to replacements."""
    found: dict[Expression, Expression] = {}
    for node in postorder([root]):
        args = [found[argument] for argument in node.args]
        kept = all(new is old for new, old in zip(args, node.args, strict=True))
        found[node] = leaves.get(node, node if kept or node.atom is None else node.atom(*args, **dict(node.options)))
    return found[root]
