"""Labels that are alike: the loss of one is that of another with the columns of the variables in another order.

Every entry of an expression is written as a word, from the variables up: equal words are equal functions.  If permutations of C
columns take words of losses to words of losses, two labels stand for a thousand (docs/theory.md, proposition 3a).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dpconvex.core.arrays import Indices
from dpconvex.core.atoms import ENTRYWISE, SYMMETRIC
from dpconvex.core.atoms.arithmetic import MATMUL
from dpconvex.core.atoms.arrangement import rearrange
from dpconvex.core.expression import Constant, Expression
from dpconvex.core.parameter_space import Space


@dataclass(frozen=True, eq=False)
class Exchange:
    """The length C of the axis, permutations of the coordinates that generate the others, and the losses that stand for all."""

    count: int
    orders: tuple[Indices, ...]
    representatives: tuple[int, ...]


def exchange_of(losses: Sequence[Expression], space: Space) -> Exchange | None:
    """Find labels that are interchangeable; None if no two of them are seen to be alike."""
    lengths = {n for block in space.blocks.values() for n in block.variable.shape if 2 < n <= len(losses)}
    for count in sorted(lengths, reverse=True):
        orders = orders_of(space, count)
        found = None if orders is None else representatives(losses, space, orders)
        if orders is not None and found is not None and len(found) < len(losses):
            return Exchange(count, orders, found)
    return None


def orders_of(space: Space, count: int) -> tuple[Indices, ...] | None:
    """Return two permutations of the coordinates that generate those of the axes of one length; None if these are no axes."""
    swap, cycle = np.arange(count), np.roll(np.arange(count), 1)
    swap[:2] = 1, 0
    result = []
    for order in (swap, cycle):
        moved = np.arange(space.dim)
        for block in space.blocks.values():
            shape = block.variable.shape
            if count in shape:
                if shape.count(count) > 1:
                    return None
                numbers = moved[block.slice].reshape(shape, order="F").take(order, axis=shape.index(count))
                moved[block.slice] = numbers.ravel(order="F")
        result.append(moved)
    return tuple(result)


def representatives(losses: Sequence[Expression], space: Space, orders: Sequence[Indices]) -> tuple[int, ...] | None:
    """Return losses whose pairs stand for all pairs; None if a permutation takes a loss to none of them."""
    codes: dict[Hashable, int] = {}
    words, count, targets = Words(space, np.arange(space.dim), codes), len(losses), []
    numbers = {words.of(loss).tobytes(): k for k, loss in enumerate(losses)}
    for order in orders:
        words, images = Words(space, order, codes), []
        for loss in losses:
            images.append(numbers.get(words.of(loss).tobytes()))
            if images[-1] is None:
                return None
        image = np.array(images)
        targets.append((image[:, None] * count + image).ravel())
    pairs = np.tile(np.arange(count**2), len(targets))
    edges = sp.csr_array((np.ones(len(pairs)), (pairs, np.concatenate(targets))), shape=(count**2, count**2))
    kinds, kind = sp.csgraph.connected_components(edges, directed=False)
    table = kind.reshape(count, count)
    first = [np.flatnonzero(np.diag(table) == own)[:2] for own in np.unique(np.diag(table))]
    kept = np.sort(np.concatenate(first))
    return tuple(kept.tolist()) if len(np.unique(table[np.ix_(kept, kept)])) == kinds else None


class Words:
    """Words of expressions whose variables have their coordinates in another order, each after the code of what makes it."""

    def __init__(self, space: Space, order: Indices, codes: dict[Hashable, int]) -> None:
        self.codes, self._known = codes, dict[Expression, Indices]()
        for block in space.blocks.values():
            variable = block.variable
            place = np.arange(variable.size) if block.symmetric else order[block.slice]
            self._known[variable] = self._headed(variable, place.reshape((*variable.shape, 1), order="F"))

    def of(self, node: Expression) -> Indices:
        if node not in self._known:
            self._known[node] = self._made(node)
        return self._known[node]

    def _headed(self, what: Hashable, words: Indices) -> Indices:
        code = self.codes.setdefault(what, len(self.codes))
        return np.concatenate([np.full((*words.shape[:-1], 1), code), words], axis=-1)

    def _token(self, what: Hashable, *words: Indices) -> int:
        """Return a number for something made of all of some words."""
        return self.codes.setdefault((what, *((word.shape, word.tobytes()) for word in words)), len(self.codes))

    def _made(self, node: Expression) -> Indices:
        numbers = np.arange(node.size).reshape((*node.shape, 1))
        if isinstance(node, Constant):
            return self._headed("number", np.array(node.dense, dtype=float)[..., None].view(np.int64))
        if node.atom is None:
            return self._headed(node, numbers)
        words, what = [self.of(argument) for argument in node.args], (node.atom, node.options)
        if node.atom.expand is rearrange:
            width = max(word.shape[-1] for word in words)
            wider = ([(0, 0)] * (word.ndim - 1) + [(0, width - word.shape[-1])] for word in words)
            words = [np.pad(word, more, constant_values=-1) for word, more in zip(words, wider, strict=True)]
            return np.asarray(node.atom.value(np, node, *words))
        if node.atom in ENTRYWISE and all(argument.shape == node.shape for argument in node.args):
            return self._headed((what, tuple(word.shape[-1] for word in words)), np.concatenate(words, axis=-1))
        if node.atom in SYMMETRIC and node.size == 1:
            token = self._token(what, in_order(words[0].reshape(-1, words[0].shape[-1])), *words[1:])
            return np.full((*node.shape, 1), token)
        if node.atom is MATMUL and max(argument.ndim for argument in node.args) < 3:
            left = words[0] if node.args[0].ndim == 2 else words[0][None]
            right = words[1] if node.args[1].ndim == 2 else words[1][:, None]
            pairs = ((np.column_stack([a, b]) for b in right.swapaxes(0, 1)) for a in left)
            tokens = [[self._token(what, in_order(pair)) for pair in row] for row in pairs]
            return np.array(tokens).reshape(*node.shape, 1)
        return self._headed(self._token((what, node.shape), *words), numbers)


def in_order(words: Indices) -> Indices:
    return words[np.lexsort(words.T)]
