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

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.atoms import ENTRYWISE, SYMMETRIC
from dpconvex.core.atoms.arrangement import BROADCAST, INDEX, TRANSPOSE
from dpconvex.core.atoms.products import MATMUL
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


@dataclass(frozen=True)
class Reading:
    """How permutations act on a subexpression: by permuting an axis, or (None) not at all; both, if it is constant along it.

    Subexpressions that differ in the columns that they mention only have equal trees.
    """

    tree: int
    axes: Axes
    columns: frozenset[int]


class Unlike(Exception):
    """A subexpression on which permutations act in no simple way."""


def exchange_of(losses: Sequence[Expression]) -> Exchange | None:
    """Find labels that are interchangeable; None if there are few labels, or no two of them are seen to be alike."""
    if len(losses) <= FEW:
        return None
    variables = frozenset().union(*(loss.variables for loss in losses))
    for count in sorted({n for variable in variables for n in variable.shape if n > 2}):
        found = representatives(losses, count)
        if found is not None and len(found) < len(losses):
            return Exchange(count, found)
    return None


def representatives(losses: Sequence[Expression], count: int) -> tuple[int, ...] | None:
    """Return the losses that stand for all if axes of one length are permuted; None if permutations act in no simple way."""
    reader = ExchangeReader(count)
    kinds: dict[int, dict[int, int]] = {}
    kept = []
    try:
        for number, loss in enumerate(losses):
            known = reader.read(loss)
            if None not in known.axes or len(known.columns) > 1:
                return None
            if not known.columns:
                kept.append(number)
            for column in known.columns:
                kinds.setdefault(known.tree, {})[column] = number
    except Unlike:
        return None
    for columns in kinds.values():
        pair = list(next(iter(kinds.values())))[:2]
        if len(pair) < 2 or not columns.keys() >= set(pair):
            return None
        kept += [columns[column] for column in pair]
    return tuple(sorted(kept))


class ExchangeReader:
    """Reads how permutations of axes of one length act on expressions, each node once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._known: dict[Expression, Reading] = {}
        self._trees: dict[Hashable, int] = {}

    def read(self, node: Expression) -> Reading:
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._read(node)
        return known

    def _read(self, node: Expression) -> Reading:
        if node.atom is None or (not node.variables and node.atom is not BROADCAST):
            return Reading(self._tree(node), self._leaf(node), frozenset())
        parts = [self.read(argument) for argument in node.args]
        options: Hashable = node.options
        columns = frozenset().union(*(part.columns for part in parts))
        if node.atom is INDEX:
            axes, column = self._part(node, parts[0].axes)
            if column is not None:
                if columns:
                    raise Unlike
                columns, key = frozenset({column}), node.option("key")
                axis = next(k for k in parts[0].axes if k is not None)
                options = (key[:axis], key[axis + 1 :])
        else:
            axes = self._acted(node, [part.axes for part in parts])
        if not axes:
            raise Unlike
        tree = self._tree((node.atom, options, node.shape, *(part.tree for part in parts)))
        return Reading(tree, axes, columns)

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

    def _part(self, node: Expression, axes: Axes) -> tuple[Axes, int | None]:
        """Return how permutations act on a part, and the column that it is, if it is one."""
        key, shape = node.option("key"), node.args[0].shape
        if None in axes:
            return STAYS, None
        if len(axes) != 1:
            return frozenset(), None
        (axis,) = axes
        assert axis is not None
        if isinstance(key[axis], int):
            return STAYS, key[axis]
        whole = tuple(key[axis]) == (0, shape[axis], 1)
        return frozenset({axis - sum(isinstance(k, int) for k in key[:axis])} if whole else ()), None

    def _acted(self, node: Expression, axes: list[Axes]) -> Axes:
        stay = all(None in own for own in axes)
        if node.atom is BROADCAST:
            return self._repeated(node, axes[0])
        if node.atom is TRANSPOSE:
            return frozenset(axis if axis is None else node.option("axes").index(axis) for axis in axes[0])
        if node.atom in ENTRYWISE and all(argument.shape == node.shape for argument in node.args):
            return frozenset.intersection(*axes)
        if stay:
            return STAYS
        others_stay = all(None in own for own in axes[1:])
        over = dict(node.options).get("axis", node.args[0].shape)  # an atom without axes is over all of them
        if node.atom in SYMMETRIC and len(over) == node.args[0].ndim and others_stay:  # type: ignore[arg-type]
            return STAYS
        if node.atom is MATMUL:
            left, right = (argument.ndim for argument in node.args)
            if right == 2 and None in axes[0] and 1 in axes[1]:
                return frozenset({node.ndim - 1})
            if left == 2 and None in axes[1] and 0 in axes[0]:
                return frozenset({0})
        return frozenset()

    def _repeated(self, node: Expression, axes: Axes) -> Axes:
        """A repetition is permuted as what is repeated, and like anything along the axes that it is repeated along."""
        (inner,) = node.args
        ahead = node.ndim - inner.ndim
        own = {axis if axis is None else axis + ahead for axis in axes}
        if None in axes:
            lengths = (1,) * ahead + inner.shape
            own |= {k for k, n in enumerate(node.shape) if n == self.count and lengths[k] == 1}
        return frozenset(own)
