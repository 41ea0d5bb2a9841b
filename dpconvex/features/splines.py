"""Splines of the columns of a table, with public knots and a public prior: features that learn nothing from the data.

A curve is linear between its knots. Its values f at the knots have a prior covariance K = R R' that favours slow changes. With
f = R w, plain penalties and noise on w, the parameters of the features R'h(x), favour smooth curves. The hats h (linear
B-splines) of an entry add up to 1, so its features are longest at a knot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.encoded import with_origin
from dpconvex.data.schema import Schema
from dpconvex.data.schema_columns import INDICATOR, Categorical, Column, Levels
from dpconvex.errors import TemplateError
from dpconvex.features.transformers import TableTransformer
from dpconvex.util.arguments import BELOW_ONE, instance, require
from dpconvex.util.arrays import Array

# Knots lie at whole multiples of this, between 0 and 1, so that shapes can be exact.
GRID = 2.0**-20
# Default knots: EVEN + 1 at equal distances, and others 2^-FIRST to 2^-LAST from both ends, where amounts pile up.
EVEN, FIRST, LAST = 16, 5, 10
# Number of knots of a column in a pair; with at most LEVELS ordered levels, each level is a knot.
COARSE, LEVELS = 5, 32
# The prior: stretching of the ends, correlation length on the stretched column, variance of curves relative to that of a
# straight line, and smallest eigenvalue kept, relative to the largest.
STRETCH, LENGTH, CURVED, KEPT = 2.0**-7, 0.3, 0.2, 0.015
# Bound on the length of rows, below 1 so that rounding does not matter.
ROW_LENGTH = 1 - 1e-12


@dataclass(frozen=True)
class Axis:
    """The nodes of a column: knots in [0, 1] or levels (without knots), and with an indicator a last node for missing values."""

    name: str
    column: Column
    knots: Array
    kept: float = KEPT

    @property
    def nodes(self) -> int:
        knots = len(self.knots)
        return knots + (self.column.missing == INDICATOR) if knots else len(self.column.names(""))

    @property
    def names(self) -> NDArray[Any]:
        """Names of the nodes: levels, or knots in units of the column (days count from the first of year 1), and "missing"."""
        if isinstance(self.column, Categorical):
            return np.array([name.lstrip(" =:") for name in self.column.names("")], dtype=object)
        lower, upper = self.column.ends
        knots: Sequence[Any] = (lower + self.knots * (upper - lower)).tolist()
        if isinstance(self.column, Levels) and len(self.knots) == upper + 1:
            knots = self.column.levels
        return np.array([*knots, "missing"][: self.nodes], dtype=object)

    @property
    def root(self) -> Array:
        """Root R of the prior covariance R R' of the values at the nodes, shape (nodes, features)."""
        if not len(self.knots):
            return np.eye(self.nodes)
        stretched = np.log((self.knots + STRETCH) / (1 - self.knots + STRETCH))
        apart = np.abs(stretched[:, None] - stretched) / np.ptp(stretched)
        line = self.knots - 0.5
        values, vectors = np.linalg.eigh(np.outer(line, line) + CURVED * np.exp(-apart / LENGTH))
        kept = values > self.kept * values[-1]
        root = vectors[:, kept] * np.sqrt(values[kept])
        if self.nodes == len(root):
            return np.asarray(root)
        last = np.linalg.norm(root, axis=1).max()
        return np.asarray(np.block([[root, np.zeros((len(root), 1))], [np.zeros((1, root.shape[1])), last]]))

    def hats(self, encoded: Array) -> sp.csr_array:
        """Return the weights of the nodes for a column encoded by its schema, shape (n, nodes)."""
        if not len(self.knots):
            return sp.csr_array(encoded)
        place = self.places(encoded)
        left, along = knot_positions(self.knots, place)
        absent = self.absent(encoded)
        weights = np.stack([np.where(absent, 0.0, 1 - along), np.where(absent, 1.0, along)], axis=1)
        nodes = np.stack([left, np.where(absent, self.nodes - 1, left + 1)], axis=1)
        rows = np.repeat(np.arange(len(place)), 2)
        return sp.csr_array((weights.ravel(), (rows, nodes.ravel())), shape=(len(place), self.nodes))

    def places(self, encoded: Array) -> Array:
        return np.clip(encoded[:, 0] + 0.5, 0.0, 1.0)

    def absent(self, encoded: Array) -> NDArray[np.bool_]:
        return encoded[:, -1] > 0 if self.nodes > len(self.knots) else np.zeros(len(encoded), dtype=bool)


def knot_positions(knots: Array, place: Array) -> tuple[NDArray[np.int64], Array]:
    """Return the index of the knot before each place, and the part of the way to the next knot, from 0 to 1."""
    left = np.clip(np.searchsorted(knots, place, side="right") - 1, 0, len(knots) - 2)
    return left, (place - knots[left]) / (knots[left + 1] - knots[left])


def default_knots(column: Column, even: int = EVEN, fine: bool = True) -> Array:
    """Return the default knots of a column: none for categories, the levels themselves for few ordered levels."""
    if isinstance(column, Categorical):
        return np.zeros(0)
    if isinstance(column, Levels) and column.ends[1] < LEVELS:
        return np.asarray(np.rint(np.linspace(0.0, 1.0, int(column.ends[1]) + 1) / GRID) * GRID)
    near = 2.0 ** -np.arange(FIRST, LAST + 1) if fine else np.zeros(0)
    return np.unique(np.concatenate([np.linspace(0.0, 1.0, even + 1), near, 1 - near]))


@dataclass(frozen=True)
class SplineBlock:
    """The features of a column, or of a pair of columns on all pairs of their nodes."""

    axes: tuple[Axis, ...]

    @property
    def name(self) -> Any:
        return self.axes[0].name if len(self.axes) == 1 else tuple(axis.name for axis in self.axes)

    @property
    def root(self) -> Array:
        return np.asarray(self.axes[0].root if len(self.axes) == 1 else np.kron(self.axes[0].root, self.axes[1].root))

    def hats(self, encoded: Mapping[str, Array]) -> sp.csr_array:
        """Return the weights of the nodes, shape (n, nodes)."""
        first, *rest = (axis.hats(encoded[axis.name]) for axis in self.axes)
        if not rest:
            return first
        spread = sp.kron(first, np.ones((1, rest[0].shape[1])), format="csr")
        return sp.csr_array(spread.multiply(sp.kron(sp.csr_array(np.ones((1, first.shape[1]))), rest[0])))


@dataclass(eq=False, repr=False)
class SplineEncoder(TableTransformer):
    """Encode a table by its schema as splines of numbers and levels of categories, with rows of length at most 1.

    A linear learner on these features is an additive model.  `AdditiveClassifier` and `AdditiveRegressor` also show the curves.
    Nothing is learnt from the data.

    Parameters
    ----------
    schema : Schema
        Its `unit` and `constant` are ignored: sums of each column's features include a constant.
    knots : mapping of str to sequence of float, optional
        Knots of numeric columns in their own units, between the declared bounds, which are always knots.  By default there are
        17 at equal distances, and 12 more at doubling distances from the ends.
    pairs : sequence of pairs of str
        Pairs of columns with a joint effect: surfaces over both, on five knots of each.
    kept : float
        Drop features with a prior variance of at most this fraction of the largest of their curve; below 1.

    Examples
    --------
    >>> from dpconvex.data.schema import Schema
    >>> encoder = SplineEncoder(Schema({"age": (0, 100), "ward": {"levels": ["a", "b"]}}, "sick", [0, 1]))
    >>> X = encoder.fit_transform({"age": [0, 50, 99], "ward": ["a", "b", "b"]})
    >>> X.shape, bool(np.linalg.norm(X, axis=1).max() <= 1)
    ((3, 9), True)
    """

    schema: Schema | None = None
    knots: Mapping[str, Sequence[float]] | None = None
    pairs: Sequence[tuple[str, str]] = ()
    kept: float = KEPT

    def _read(self, X: Any, reset: bool = False) -> list[SplineBlock]:
        return self.blocks()

    def transform(self, X: Any) -> Array:
        """Return features, shape (n, features), rows of length at most 1."""
        return with_origin(self.rows(self.blocks(), self.encoded(X)), self.schema)

    def rows(self, blocks: Sequence[SplineBlock], encoded: Mapping[str, Array]) -> Array:
        """Return the features of encoded columns, shape (n, features)."""
        return np.hstack([block.hats(encoded) @ root for block, root in zip(blocks, self.roots(blocks), strict=True)])

    def blocks(self) -> list[SplineBlock]:
        """Return the blocks of features, one for each column and then one for each pair; raise for invalid options."""
        schema, given = self._schema(), self.knots or {}
        instance(Mapping, "such as {'age': [18, 65]}").check("", knots=given)
        BELOW_ONE.check("", kept=self.kept)
        kept, columns = float(self.kept), schema.features.items()
        axes = {name: Axis(name, column, self._knots(name, column), kept) for name, column in columns}
        for name in given.keys() - axes.keys():
            raise TemplateError(f"knots are given for {name!r}, which is not one of the columns {list(axes)}.")
        blocks = [SplineBlock((axis,)) for axis in axes.values()]
        for pair in self.pairs if isinstance(self.pairs, Sequence) else [self.pairs]:
            if not (isinstance(pair, tuple | list) and len({*pair}) == len(pair) == 2 and {*pair} <= axes.keys()):
                raise TemplateError(f"pairs must hold pairs of two of the columns {list(axes)}, not {pair!r}.")
            coarse = (replace(axes[n], knots=default_knots(axes[n].column, COARSE - 1, fine=False)) for n in pair)
            blocks.append(SplineBlock(tuple(coarse)))
        return blocks

    def roots(self, blocks: Sequence[SplineBlock]) -> list[Array]:
        """Return the root of the prior covariance of each block, scaled so that rows of features have length at most 1."""
        roots = [block.root for block in blocks]
        scale = ROW_LENGTH / np.sqrt(sum((root**2).sum(axis=1).max() for root in roots))
        return [root * scale for root in roots]

    def encoded(self, X: Any, clip: bool | None = None) -> dict[str, Array]:
        """Return the encoded columns of a table, before their division by lengths of records."""
        schema = replace(self._schema(), unit=False, constant=0.0)
        rows = schema.encode(X, labelled=False, empty=True, clip=clip)[0] * schema.norm_bound
        ends = [0, *accumulate(len(column.names(name)) for name, column in schema.features.items())]
        return {name: rows[:, a:b] for name, (a, b) in zip(schema.features, pairwise(ends), strict=True)}

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        names = ((" and ".join(axis.name for axis in block.axes), block.root.shape[1]) for block in self.blocks())
        return np.array([f"{name}: {k}" for name, count in names for k in range(count)], dtype=object)

    def _schema(self) -> Schema:
        """Return the schema without reference levels: curves are centred anyway."""
        found = super()._schema()
        whole = {n: replace(c, reference=None) if isinstance(c, Categorical) else c for n, c in found.features.items()}
        return replace(found, features=whole)

    def _knots(self, name: str, column: Column) -> Array:
        given = (self.knots or {}).get(name)
        if given is None:
            return default_knots(column)
        (lower, upper), places = column.ends, np.zeros(())
        with suppress(TypeError, ValueError):
            places = (np.asarray(given, dtype=float) - lower) / (upper - lower)
        inside = places.ndim == 1 and bool((np.diff(places) > 0).all() and (places >= 0).all() and (places <= 1).all())
        why = "must be increasing numbers between the bounds of a column that is not categorical"
        require(not isinstance(column, Categorical) and inside, f"the knots of {name!r} {why}, not {given!r}.")
        return np.unique(np.concatenate([[0.0], np.rint(places / GRID) * GRID, [1.0]]))
