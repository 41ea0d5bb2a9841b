"""Labels that are alike: the loss of one is that of another with the columns of the variables in another order.

Let C be the number of columns (or rows) that the losses tell apart, and let a permutation s of C things act on the parameters:
every variable with an axis of length C has it permuted, all others stay.  Read from the variables up, each subexpression either
stays as it is under s, or has one of its axes permuted; or it is column y of such an expression, and becomes column s(y).  If all
atoms above keep to that, a loss that mentions column y and no other becomes that of column s(y), for every s: the labels with one
tree, but for the column that they mention, are interchangeable, and so are any two pairs of different ones.

Permutations are isometries of the parameters.  Where the feasible set is all of space, suprema over records and parameters of
anything that is said in norms of gradients and in spectra are then the same for interchangeable labels, and for pairs of them:
two labels stand for a thousand.  The proof is by structure, and exact; what it does not recognise is examined label by label.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.atoms import ENTRYWISE, SYMMETRIC
from dpconvex.core.atoms.arithmetic import MATMUL
from dpconvex.core.atoms.arrangement import BROADCAST, INDEX, TRANSPOSE
from dpconvex.core.expression import Constant, Expression, Variable
from dpconvex.core.parameter_space import Space

# So few labels are examined one by one.
FEW = 12

Axes = frozenset[int | None]
STAYS: Axes = frozenset({None})


@dataclass(frozen=True)
class Exchange:
    """The length C of the axis that is permuted, and the losses that stand for all.

    These are the losses that stay as they are, and two of each kind of the others, at the same two columns.
    """

    count: int
    representatives: tuple[int, ...]

    def generators(self, space: Space) -> list[NDArray[np.int64]]:
        """Return two permutations of the coordinates, shape (dim,) each, that generate all others."""
        swap, cycle = np.arange(self.count), np.roll(np.arange(self.count), 1)
        swap[:2] = swap[1::-1]
        result = []
        for order in (swap, cycle):
            moved = np.arange(space.dim)
            for block in space.blocks.values():
                if self.count in block.variable.shape:
                    places = moved[block.slice].reshape(block.variable.shape, order="F")
                    axis = block.variable.shape.index(self.count)
                    moved[block.slice] = places.take(order, axis=axis).reshape(-1, order="F")
            result.append(moved)
        return result


class Reading(NamedTuple):
    """How permutations act on a subexpression: by permuting an axis, or (None) not at all; both, if it is constant along it.

    Subexpressions that differ in the columns that they mention only have equal trees.
    """

    tree: int
    axes: Axes
    columns: frozenset[int] = frozenset()


class Unlike(Exception):
    """Permutations act on a subexpression in no simple way."""


def exchange_of(losses: Sequence[Expression]) -> Exchange | None:
    """Find labels that are interchangeable; None if there are few labels, or no two of them are seen to be alike."""
    if len(losses) <= FEW:
        return None
    variables = frozenset().union(*(loss.variables for loss in losses))
    for count in sorted({n for variable in variables for n in variable.shape if n > 2}):
        try:
            found = representatives(losses, Reader(count))
        except Unlike:
            continue
        if len(found) < len(losses):
            return Exchange(count, found)
    return None


def representatives(losses: Sequence[Expression], reader: Reader) -> tuple[int, ...]:
    """Return the losses that stand for all if axes of one length are permuted."""
    kinds: dict[int, dict[int, int]] = {}
    kept = []
    for number, loss in enumerate(losses):
        known = reader.read(loss)
        if None not in known.axes or len(known.columns) > 1:
            raise Unlike
        if not known.columns:
            kept.append(number)
        for column in known.columns:
            kinds.setdefault(known.tree, {})[column] = number
    for columns in kinds.values():
        pair = list(next(iter(kinds.values())))[:2]
        if len(pair) < 2 or not columns.keys() >= set(pair):
            raise Unlike
        kept += [columns[column] for column in pair]
    return tuple(sorted(kept))


class Reader:
    """Reads how permutations of axes of one length act on expressions, each node once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._known: dict[Expression, Reading] = {}
        self._trees: dict[Hashable, int] = {}

    def read(self, node: Expression) -> Reading:
        if node not in self._known:
            self._known[node] = self._read(node)
        return self._known[node]

    def _read(self, node: Expression) -> Reading:
        if node.atom is None or (not node.variables and node.atom is not BROADCAST):
            return Reading(self._tree(node), self._leaf(node))
        parts = [self.read(argument) for argument in node.args]
        options: Hashable = node.options
        columns = frozenset().union(*(part.columns for part in parts))
        axes = self._acted(node, [part.axes for part in parts])
        if node.atom is INDEX and None not in parts[0].axes:
            (axis,) = parts[0].axes
            key = node.option("key")
            if axis is not None and isinstance(key[axis], int):  # a column
                if columns:
                    raise Unlike
                columns, options = frozenset({key[axis]}), (key[:axis], key[axis + 1 :])
        return Reading(self._tree((node.atom, options, node.shape, *(part.tree for part in parts))), axes, columns)

    def _tree(self, key: Hashable) -> int:
        return self._trees.setdefault(key, len(self._trees))

    def _leaf(self, node: Expression) -> Axes:
        """Variables are permuted along their only axis of the length in question; what has no variables stays."""
        own = [axis for axis, length in enumerate(node.shape) if length == self.count]
        if isinstance(node, Constant):
            return STAYS | {axis for axis in own if not np.ptp(node.dense, axis=axis).any()}
        if not isinstance(node, Variable) or not own:
            return STAYS
        if len(own) > 1:
            raise Unlike
        return frozenset(own)

    def _acted(self, node: Expression, axes: list[Axes]) -> Axes:
        """Return how permutations act on an atom, given how they act on its arguments."""
        first, *others = axes
        others_stay = all(None in own for own in others)
        if (
            node.atom is BROADCAST
        ):  # permuted as what is repeated, and like anything along the axes that it is repeated along
            ahead = node.ndim - node.args[0].ndim
            lengths = (1,) * ahead + node.args[0].shape
            along = {k for k, n in enumerate(node.shape) if n == self.count and lengths[k] == 1 and None in first}
            return frozenset({axis if axis is None else axis + ahead for axis in first} | along)
        if node.atom is TRANSPOSE:
            return frozenset(axis if axis is None else node.option("axes").index(axis) for axis in first)
        if node.atom in ENTRYWISE and all(argument.shape == node.shape for argument in node.args):
            if found := frozenset.intersection(*axes):
                return found
            raise Unlike
        if None in first and others_stay:
            return STAYS
        if node.atom is INDEX and len(first) == 1:
            key, (axis,) = node.option("key"), first
            assert axis is not None
            if isinstance(key[axis], int):
                return STAYS
            if tuple(key[axis]) == (0, node.args[0].shape[axis], 1):
                return frozenset({axis - sum(isinstance(k, int) for k in key[:axis])})
        over = dict(node.options).get("axis", node.args[0].shape)  # an atom without axes is over all of them
        if node.atom in SYMMETRIC and len(over) == node.args[0].ndim and others_stay:  # type: ignore[arg-type]
            return STAYS
        if node.atom is MATMUL:
            if node.args[1].ndim == 2 and None in first and 1 in others[0]:
                return frozenset({node.ndim - 1})
            if node.args[0].ndim == 2 and None in others[0] and 0 in first:
                return frozenset({0})
        raise Unlike
