"""The scores of a loss: its affine parts, which no other field multiplies."""

import math
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from dpconvex.expressions.atoms.arithmetic import ADD
from dpconvex.expressions.atoms.arrangement import BROADCAST
from dpconvex.expressions.expression import Expression, postorder
from dpconvex.sums.forms import LeafForm
from dpconvex.util.arrays import Array, Indices


def with_scores(loss: Expression) -> tuple[Expression, list[Expression]]:
    """Return a loss, rewritten, and its scores: affine parts that no other field multiplies.

    In ``exp(s) - y * s`` the score is s, which y multiplies; in ``y * exp(-s) + x @ w + b`` the last two terms are one score.
    In ``square(x @ w + t * (x @ v) - y)`` all of ``x @ w + t * (x @ v)`` is: two scores would have curvatures of very different
    lengths along their sum and difference.
    """
    scores: dict[Expression, None] = {}
    known: dict[Expression, Expression] = {}
    inside = {part for node in postorder([loss]) if not node.is_affine for arg in node.args for part in sums_of(arg)}

    def rewritten(node: Expression) -> Expression:
        if node not in known:
            known[node] = made(node)
        return known[node]

    def made(node: Expression) -> Expression:
        if not node.variables:
            return node
        if is_score(node):
            scores[node] = None
            return node
        if node.atom is not ADD:
            return node.operation(*map(rewritten, node.args), **dict(node.options))
        own = [term for term in node.args if term.variables and (is_score(term) or node in inside)]
        others = [rewritten(term) for term in node.args if term not in own]
        if len(own) > 1 and len({term.shape for term in own}) == 1:
            own = [ADD(*own)]
        scores.update(dict.fromkeys(own))
        return ADD(*own, *others)

    return rewritten(loss), list(scores)


def sums_of(node: Expression) -> Iterator[Expression]:
    """Yield the largest affine sums of which a field multiplies some of several terms."""
    if node.is_affine and is_multiplied(node):
        if node.atom is ADD and sum(bool(term.variables) for term in node.args) > 1:
            yield node
        else:
            for argument in node.args:
                yield from sums_of(argument)


def is_score(node: Expression) -> bool:
    """Say whether an expression is affine, and nothing of it is a product of a field with what reads a field already."""
    return node.is_affine and not any(part.atom is BROADCAST for part in moving(node)) and not is_multiplied(node)


def is_multiplied(node: Expression) -> bool:
    """Say whether something of an affine expression is a product of a field with what reads a field already."""
    return any(
        any(a.fields for a in part.args if a.variables) and any(a.fields for a in part.args if not a.variables)
        for part in moving(node)
        if part.atom is not None and part.atom.affine in ("bilinear", "quotient")
    )


def moving(node: Expression) -> Iterator[Expression]:
    """Yield the parts of an expression that depend on parameters."""
    return (part for part in postorder([node]) if part.variables)


def shared_grid(form: LeafForm, moving: int) -> tuple[Indices, Array, Indices, Array]:
    """Return what `LeafForm.grid` does, with one column of all parameters, whose scales make rows of records about as long."""
    table, count = sp.coo_array(form.map), form.design.count
    scale = np.sqrt(np.bincount(table.col, table.data**2, form.map.shape[1]))
    fixed = (np.bincount(table.col, table.row % count < moving, form.map.shape[1]) == 0) & (scale > 0)
    scale[scale == 0] = 1.0  # of parameters that no score reads
    # All constants together count half as much as what multiplies records.
    scale[fixed] *= 2 * math.sqrt(max(fixed.sum(), 1))
    return np.arange(len(scale))[:, None], np.eye(form.forms), np.arange(moving), scale
