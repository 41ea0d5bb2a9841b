"""Sums over records in integers: exact in any order, each record's part no longer than its bound *as computed*.

All products and sums of a block are integers below 2^53. So their bits do not depend on the order of addition, on blocks,
threads or workers. A record's part depends on that record and on released numbers alone (docs/theory.md, theorem 8.9).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.expressions.evaluate import STEP
from dpconvex.numerics import INSIDE, TAIL_SLACK
from dpconvex.sums.design import product_apart
from dpconvex.sums.exact_rows import LEVERAGE, Exact, ExactRows, Leverage, split_integers
from dpconvex.util.arrays import Array

if TYPE_CHECKING:
    from dpconvex.sums.engine import Block

# Bits of a clipped slope, of the longest slope, and of a curvature at its cap. A block has at most 2^16 records, and 16 + 21 +
# 16 = 53 bits hold the sum of products with rows.
SLOPE_BITS, LONGEST_BITS, CURVATURE_BITS = 15, 21, 20
LARGEST = 2.0**400  # Slopes, in units, are cut to this size
FLAT = 1e-10  # A pivot of a Hessian below this fraction of its diagonal counts as 0
NO_NUMBERS: Array = np.zeros(0)


class SumQuery(NamedTuple):
    """One query to the records at public parameters: the sums that it asks for, and their clipping bounds."""

    rows: ExactRows
    to_forms: sp.csr_array
    coefficients: Array  # Of the forms, on a grid: see `on_coefficient_grid`
    unit: float = 1.0  # Slopes are multiples of this
    bound: float = 0.0  # Clips the norm of a record's slopes, in units, times its leverage; 0 for no gradients
    edges: Array = NO_NUMBERS  # Upper ends of the bins for the norm of gradients in the metric, in the unit of `bound`
    probe: Array | None = None  # A direction of the columns, for curvatures; empty for slopes along the parameters
    cap: float = 1.0  # Clips curvatures, or slopes along the parameters
    width: float = 0.0  # Step of finite differences along the probe, as in the scores; 0 for derivatives
    longest: float = 0.0  # Clips vectors' norms in the metric, for second moments; 0 for none
    vectors: str = ""  # Which vectors: "gradients" of people, or "roots" of their Hessians
    leverage: Leverage | None = None  # Metric of `bound` where records or rows are clipped together

    @property
    def nothing(self) -> "Sums":
        """The sums over no records."""
        columns = self.to_forms.shape[0] if self.rows.jacobian is None else 1
        rows = self.rows.count * columns if self.vectors else 0
        parts = ((2, columns, self.rows.count), int(self.probe is not None), 2 * len(self.edges))
        return Sums(*(np.zeros(shape, dtype=np.int64) for shape in (*parts, (2, rows, rows))))


@dataclass
class Sums:
    """Sums of one query: gradients, (2, columns, rows), curvatures or slopes, counts (positive slopes first), second moments."""

    gradient: Exact
    along: Exact
    histogram: Exact
    moment: Exact

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def on_coefficient_grid(coefficients: Array, rows: ExactRows, radius: float) -> Array:
    """Round the public coefficients of the forms to a grid, so that their products with rows add up exactly."""
    size = np.linalg.norm(coefficients[:, :-1], axis=1) * radius * (1 + TAIL_SLACK) + np.abs(coefficients[:, -1])
    largest = float(size.max(initial=0.0))
    if not largest > 1e-200:
        return np.zeros_like(coefficients)
    unit = 2.0 ** (math.ceil(math.log2(largest)) - 50)
    found = np.rint(coefficients / (unit / rows.field_grid)) * (unit / rows.field_grid)
    found[:, -1] = np.rint(coefficients[:, -1] / unit) * unit
    return found


def derivative_along(slopes_at: Callable[[Any], Any], forms: Any, along: Array, width: float) -> Any:
    """Return the derivative of slopes along a direction; with a `width`, the central difference over it on both sides."""
    if not width:
        return slopes_at(forms + 1j * STEP * along).imag / STEP
    return (slopes_at(forms + width * along) - slopes_at(forms - width * along)) / (2 * width)


@dataclass
class RecordBlock:
    """A block of records in one query, padded to a multiple of `LANES`."""

    query: SumQuery
    block: "Block"

    def __post_init__(self) -> None:
        forms = self.block.forms(self.query.coefficients)
        self.forms = np.broadcast_to(forms, (len(forms), self.block.size))
        self.column, self.leverages = (self.block.records[name] for name in (self.query.rows.name, LEVERAGE))

    @cached_property
    def slopes(self) -> Array:
        return self.slopes_at(self.forms)

    def slopes_at(self, forms: NDArray[Any]) -> NDArray[Any]:
        return self.block.slopes(forms, product_apart)[1]

    def units(self) -> Array:
        """Return slopes in units, shape (columns, records); padding, and records with a slope that is not finite, count as 0."""
        units = np.asarray(self.query.to_forms @ self.slopes)
        units /= self.query.unit
        units[:, self.block.count :] = 0.0
        finite = np.isfinite(units)
        if not finite.all():
            units[:, ~finite.all(axis=0)] = 0.0
        return np.clip(units, -LARGEST, LARGEST, out=units)

    def curvatures(self, probe: Array) -> Array:
        """Return each record's curvature along a direction of the columns, shape (count,)."""
        along = (self.query.to_forms.T @ probe)[:, None]
        bent = np.asarray(self.query.to_forms @ derivative_along(self.slopes_at, self.forms, along, self.query.width))
        return np.asarray(np.einsum("kn,kn->n", bent, np.broadcast_to(probe[:, None], bent.shape))[: self.block.count])

    def roots(self) -> Array:
        """Return triangular roots of records' Hessians by the columns, shape (columns, columns, count).

        Each entry is computed by itself.  Pivots that are not positive, and roots that are not finite, count as 0.
        """
        to_forms, width = self.query.to_forms, self.query.width
        axes = (to_forms.T[:, [k]].toarray() for k in range(to_forms.shape[0]))
        curvatures = [to_forms @ derivative_along(self.slopes_at, self.forms, along, width) for along in axes]
        left = np.array(curvatures)[..., : self.block.count]
        least, found = FLAT * np.einsum("kkn->kn", left), np.zeros_like(left)
        for k, column in enumerate(found):
            curved = left[k, k] > least[k]
            column[k:] = np.where(curved, left[k, k:] / np.sqrt(np.where(curved, left[k, k], 1.0)), 0.0)
            left -= column[:, None] * column
        return np.clip(np.where(np.isfinite(found).all(axis=(0, 1)), found, 0.0), -LARGEST, LARGEST)

    def sums(self, gradient: Exact, lengths: Array, up: NDArray[np.bool_]) -> Sums:
        """Return the gradient, and the curvatures or slopes and the counts by length that the query asks for.

        Each record or person counts in one bin; lengths beyond the last edge count in the last bin.
        """
        query, found = self.query, self.query.nothing
        found.gradient = gradient
        if query.probe is not None:
            bent, count = query.probe.size > 0, self.block.count
            along = self.curvatures(query.probe) if bent else np.einsum("kn,kn->n", self.slopes, self.forms)[:count]
            shares = capped(along, query.cap, 0.0 if bent else -1.0)
            # Multiples of 2^-20, rounded towards 0.
            found.along = np.trunc(shares * 2.0**CURVATURE_BITS).astype(np.int64).sum(keepdims=True)
        if len(edges := query.edges):
            places = np.minimum(np.searchsorted(edges, lengths), len(edges) - 1) + len(edges) * ~up
            found.histogram = np.bincount(places, minlength=2 * len(edges))
        return found


def capped(values: Array, cap: float, least: float = 0.0) -> Array:
    """Return ``values / cap``, clipped to the interval from `least` to 1; NaN counts as 0."""
    return np.asarray(np.nan_to_num(np.clip(values / cap, least, 1.0)))


def block_sums(part: RecordBlock) -> Sums:
    """Sum over records; the norm of each record's slopes times its leverage is clipped to the bound."""
    query, count, gradient = part.query, part.block.count, part.query.nothing.gradient
    units, leverages = part.units(), part.leverages
    lengths = np.abs(units[0]) if len(units) == 1 else np.sqrt(np.einsum("kn,kn->n", units, units))
    if query.bound:
        share = np.minimum(2.0**LONGEST_BITS, query.bound / np.maximum(leverages, 1.0)) * INSIDE
        share /= np.maximum(lengths, 1.0)
        clipped = units * np.minimum(share, 1.0, out=share)
        np.trunc(clipped, out=clipped)
        gradient = split_integers(gradient_sum(query, query.rows.read(part.column), clipped, query.rows.grid))
    return part.sums(gradient, (lengths * leverages)[:count], units[0, :count] > 0)


def gradient_sum(query: SumQuery, rows: Any, units: Array, grid: float = 1.0) -> Array:
    """Return the sum of products of slopes and rows in multiples of the grid, in integers, shape (columns, rows)."""
    columns = units if query.rows.jacobian is None else units.T.reshape(1, -1)
    found = np.asarray(rows.T @ (columns[0] if len(columns) == 1 else columns.T)).T.reshape(len(columns), -1) / grid
    own = [query.rows.constant * units.sum(axis=1, keepdims=True)] if found.shape[1] < query.rows.count else []
    return np.concatenate([found, *own], axis=1)
