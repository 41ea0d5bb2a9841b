"""All queries of adaptive steps to the records: exact sums of integers plus exact integer noise."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.errors import DPConvexError
from dpconvex.mechanisms.noisy_queries import QueryNoise
from dpconvex.model.privacy import Privacy
from dpconvex.numerics import NORM_SLACK, ROUNDED_UP
from dpconvex.sums.batch_loss import form_sum
from dpconvex.sums.exact_rows import (
    MATRIX_BITS,
    Exact,
    ExactRows,
    LargestEntry,
    Leverage,
    clipped_moment,
    length_counts,
    on_grid,
    row_moment,
    to_integers,
    with_leverages,
)
from dpconvex.sums.exact_sums import CURVATURE_BITS, NO_NUMBERS, SLOPE_BITS, SumQuery, Sums, on_coefficient_grid
from dpconvex.sums.linear_scores import ROW_BITS, LinearScores
from dpconvex.util.arrays import Array, Indices

ANSWER_BITS = 30  # Of a clipped gradient in the metric, before noise
COUNT_BITS = 8  # Counts are in units of 2^-8, so that the grid is finer than their noise
ROOT_TWO = math.sqrt(2) * ROUNDED_UP
LIMB = 16  # Bits of each part of an integer in exact products
WIDEST = 1e150  # Its square, in multiples of the grid, does not overflow


class Answer(NamedTuple):
    """Noisy answers of one query: the gradient in the metric, shape (rows, columns), and the other sums that it asks for."""

    gradient: Array
    along: Array  # The sum of curvatures, or of slopes along the parameters, shape (1,)
    histogram: Array  # Counts by length, of records with a positive first slope and of the others, shape (2, bins)


@dataclass
class PrivateQueries:
    """Noisy queries to the records of one fit."""

    scores: LinearScores
    batch: Batch  # Records that passed the check
    privacy: Privacy  # The privacy unit and the adjacency, which determine sensitivities
    noise: QueryNoise
    people: Indices | None = None  # The person of each record, if people have several
    row_limit: int | None = field(default=None, init=False)  # Clips x in second moments of rows, in multiples

    def __post_init__(self) -> None:
        if self.people is None and self.privacy.most > 1:
            raise DPConvexError("adaptive steps: most > 1, but records have no person. Pass unit= to the fit.")
        self.rows = ExactRows.of(self.scores)
        self.batch = self.batch.mapped(on_grid, self.batch.share(self.rows))

    @property
    def replaces_one(self) -> bool:
        return self.privacy.adjacency == "replace-one"

    @property
    def sensitivity(self) -> int:
        """The sensitivity of a sum of clipped vectors, in multiples of the clip."""
        return 2 if self.replaces_one else 1

    def sum_sensitivity(self, one: float, apart: float) -> float:
        """Return the sensitivity of a sum of parts of norm at most `one`, of which two differ by at most `apart` times `one`."""
        return self.privacy.most * one * (apart if self.replaces_one else 1.0)

    def count_sensitivity(self, apart: float) -> float:
        """Return the sensitivity of counts of people, each in one bin; replacing a person moves them by `apart`."""
        return apart if self.replaces_one else 1.0

    def deviation_of_counts(self, level: float) -> float:
        return self.count_sensitivity(ROOT_TWO) / level

    def lengths(self, edges: Array, level: float) -> Array:
        """Return noisy counts of records by the norm of x, shape (bins,); `edges` are the bins' upper ends, ascending."""
        found = self.batch.added_up(length_counts, self.batch.share(self.rows), np.sort(edges / self.rows.grid))
        found = np.zeros(len(edges), dtype=np.int64) if found is None else found
        return self._noisy_counts(found, self.sum_sensitivity(1.0, ROOT_TWO), level)

    def clip_rows(self, longest: float) -> None:
        """Clip x in later second moments, set the constant to about half of the clip, and drop the metric."""
        for name in ("leveraged", "_leverage"):
            vars(self).pop(name, None)
        self.row_limit = max(math.floor(min(self.scores.radius, max(0.0, longest)) / self.rows.grid), 1)
        self.rows = replace(self.rows, constant=math.ceil(self.row_limit / 2) if self.rows.constant else 0)

    def second_moment(self, level: float) -> tuple[Array, float]:
        """Return the noisy sum of ``row row'``, shape (rows, rows), in units of x squared, and the noise's standard deviation."""
        found = self.batch.added_up(row_moment, self.batch.share(self.rows), self.row_limit)
        count = self.rows.count
        sums = np.zeros((count, count), dtype=object) if found is None else to_integers(found)
        # Two positive semidefinite parts differ by at most the root of two times their bound.
        cut = None if self.row_limit is None else float(self.row_limit**2 + self.rows.constant**2)
        sensitivity = self.sum_sensitivity(cut or self.rows.squared_norm(self.scores.radius), ROOT_TWO)
        noisy = self.noise.noisy_symmetric(sums, sensitivity, level)
        return np.asarray(noisy * self.rows.grid**2, dtype=float), sensitivity * self.rows.grid**2 / level

    @property
    def constant(self) -> float:
        """The constant entry of rows, in the units of x; 0 for none."""
        return self.rows.constant * self.rows.grid

    @property
    def units(self) -> Array:
        """The unit of each row of the table, divided by that of x, shape (rows, 1); the last row may be the constant's."""
        units = np.ones((self.scores.shape[0], 1))
        if self.rows.constant:
            units[-1] = self.constant
        return units

    def parameters(self, table: Array) -> Array:
        """Return the coordinates, shape (dim,), of a table of parameters."""
        return self.scores.coordinates(table * self.units)

    def set_metric(self, matrix: Array) -> Array:
        """Measure rows by the norm of ``matrix @ row`` from now on; return the matrix, rounded to its grid."""
        self.factor = 2.0**MATRIX_BITS / float(np.abs(matrix).max())
        levels = np.rint(matrix * self.factor)
        self._leverage = Leverage(self.rows, levels)
        vars(self).pop("leveraged", None)
        if not math.isfinite(self._leverage.shift):  # Checked here, so that empty data raise it too
            raise ArithmeticError
        return np.asarray(levels / self.factor)

    @cached_property
    def leveraged(self) -> Batch:
        """The records with their leverages in the metric."""
        return self.batch.mapped(with_leverages, self.batch.share(self._leverage))

    def second_moment_in_metric(self, most: float, level: float) -> Array:
        """Return the noisy sum of ``t t'``, t = ``matrix @ row`` clipped to the norm `most`, shape (k, k) for k matrix rows."""
        count = len(self._leverage.matrix)
        levels = max(1.0, most * self.factor / self.rows.grid)  # 1 for NaN
        found = self.batch.added_up(clipped_moment, self.batch.share(self._leverage), levels)
        sums = np.zeros((count, count), dtype=object) if found is None else to_integers(found)
        noisy = self.noise.noisy_symmetric(sums, self.sum_sensitivity(2.0 ** (2 * ROW_BITS), ROOT_TWO), level)
        return np.asarray(noisy * (levels * self.rows.grid / self.factor / 2.0**ROW_BITS) ** 2, dtype=float)

    def vectors(self, table: Array, kind: str, longest: float, level: float, edges: Array = NO_NUMBERS) -> Array:
        """Return the noisy sum of ``t t'`` at a table of parameters, or noisy counts of people by the length of t.

        With kind "gradients", t is a person's gradient in the metric, by columns.  With kind "roots", the t are columns of
        roots of records' Hessians.  All t of a person are clipped together to the length `longest`, in steps of 2^-16 of it.
        The sum has the shape (rows * columns, rows * columns).  With edges, upper ends of bins, people are counted instead;
        with one edge, those beyond it are counted.
        """
        scale, beyond = self.factor / self.rows.grid, edges.size == 1
        levels, bins = max(1.0, longest * scale), np.sort(np.append(edges, [math.inf] * beyond) * scale)
        if not levels < WIDEST:  # Its square would overflow
            raise ArithmeticError
        found = self._sums(table, edges=bins, longest=levels, vectors=kind, leverage=self._leverage)
        if edges.size:
            sensitivity = self.count_sensitivity(1.0 if beyond else ROOT_TWO)
            return self._noisy_counts(found.histogram[beyond : edges.size + beyond], sensitivity, level)
        # A person's part is positive semidefinite with a bounded trace.
        sensitivity = 2.0 ** (2 * ROW_BITS) * self.count_sensitivity(ROOT_TWO)
        noisy = self.noise.noisy_symmetric(to_integers(found.moment), sensitivity, level)
        return np.asarray(noisy * (levels / scale / 2.0**ROW_BITS) ** 2, dtype=float)

    def query(
        self,
        table: Array,
        clip: float = 1.0,
        leverage: float = 1.0,
        level: float = 0.0,
        edges: Array = NO_NUMBERS,
        histogram_level: float = 0.0,
        probe: Array = NO_NUMBERS,
        cap: float = 0.0,
        along_level: float = 0.0,
    ) -> Answer:
        """Return noisy sums at a table of parameters, with rows as in `second_moment`; sums of level 0 are not computed.

        The gradient of a record in the metric is clipped to ``clip * leverage``; slopes are in steps of clip / 2^15.  `edges`
        are upper ends of bins, sorted, for counts of records by the norm of their gradient in the metric.  `along_level` is the
        level of curvatures along `probe`, a direction of the columns.  Without a probe, it is the level of slopes along the
        parameters: derivatives of a record's loss by the logarithm of their length.  The cap clips both.
        """
        scale, unit = self.factor / self.rows.grid, clip / 2.0**SLOPE_BITS
        bound = 2.0**SLOPE_BITS * max(math.floor(leverage * scale), 1) if level > 0 else 0.0
        bins = np.sort(edges * (scale / unit)) if histogram_level > 0 else NO_NUMBERS
        apart = self.people is None and self.rows.jacobian is None
        options = {"probe": probe if along_level > 0 else None, "leverage": None if apart else self._leverage}
        found = self._sums(table, unit=unit, bound=bound, edges=bins, cap=cap, **options)
        along = counts = NO_NUMBERS
        if along_level > 0:  # Slopes have both signs
            sensitivity = self.sum_sensitivity(2.0**CURVATURE_BITS, 1.0 if probe.size else 2.0)
            noisy = self.noise.noisy(found.along, sensitivity, along_level)
            along = np.asarray(noisy * (cap / 2.0**CURVATURE_BITS), dtype=float)
        if len(bins):
            sensitivity = self.count_sensitivity(ROOT_TWO)
            counts = self._noisy_counts(found.histogram, sensitivity, histogram_level).reshape(2, -1)
        return Answer(self._gradient(found, bound, unit, level) if level else NO_NUMBERS, along, counts)

    def _noisy_counts(self, found: Exact, sensitivity: float, level: float) -> Array:
        """Return counts with noise for this sensitivity."""
        noisy = self.noise.noisy(found * 2**COUNT_BITS, 2.0**COUNT_BITS * sensitivity, level)
        return np.asarray(noisy, dtype=float) / 2.0**COUNT_BITS

    def _sums(self, table: Array, **options: Any) -> Sums:
        """Return the exact sums of a query at a table of parameters, before noise."""
        coefficients = on_coefficient_grid(self.scores.coefficients(table * self.units), self.rows, self.scores.radius)
        query = SumQuery(self.rows, self.scores.to_forms, coefficients, width=self.scores.width, **options)
        found = form_sum(self.leveraged, self.scores.form, "query", query, rows=self.people)
        return query.nothing if found is None else found

    def _gradient(self, found: Sums, bound: float, unit: float, level: float) -> Array:
        exact = integer_product(self._leverage.matrix, to_integers(found.gradient).T)
        shift = max(math.ceil(math.log2(bound)) - ANSWER_BITS, 0)
        sensitivity = bound * self.sensitivity / 2.0**shift + math.sqrt(exact.size)
        noisy = self.noise.noisy((exact >> shift).ravel(), sensitivity * (1 + NORM_SLACK), level).reshape(exact.shape)
        return np.asarray(noisy * (2.0**shift * unit * self.rows.grid / self.factor))


class VertexQueries(PrivateQueries):
    """Queries that choose features: rows are measured by their largest entry, and each record is clipped by itself."""

    def __post_init__(self) -> None:
        self.people, self.factor, self.rows = None, 1.0, ExactRows.of(self.scores)
        self.batch = self.batch.mapped(on_grid, self.batch.share(self.rows))
        self.leveraged = self.batch.mapped(with_leverages, self.batch.share(LargestEntry(self.rows)))

    def count_sensitivity(self, apart: float) -> float:
        return self.sum_sensitivity(1.0, apart)

    def choose(self, table: Array, clip: float, reach: Array, level: float, count: int) -> list[int]:
        """Choose features one by one, at vertices along which the loss decreases steeply from a table of parameters.

        `clip` bounds the product of a record's slopes and its largest entry.  `reach`, shape (2, features, columns), holds the
        distances of vertices from the origin along each entry of the table, up and down.  `level` covers all choices together.
        """
        top = math.ceil(float(self.scores.feature_bounds.max()) / self.rows.grid)  # of a row's largest entry
        unit, bound = clip / self.rows.grid / (top * 2.0**SLOPE_BITS), 2.0**SLOPE_BITS * top
        found = self._sums(table, unit=unit, bound=bound)
        slopes = to_integers(found.gradient).T[: len(self.rows.features)]
        up, down = np.rint(reach / reach.max() * 2.0**ROW_BITS).astype(np.int64).astype(object)
        scores = np.maximum(-slopes * up, slopes * down)
        owner = np.repeat(np.arange(len(scores)), scores.shape[1])
        sensitivity = self.sum_sensitivity(bound * 2.0**ROW_BITS, 2.0)
        return self.noise.choose(scores.ravel(), owner, sensitivity, level, count)


def integer_product(matrix: Array, integers: NDArray[Any]) -> NDArray[Any]:
    """Return the exact product of a matrix of integers below 2^22 with Python integers of any size, as Python integers."""
    total, power = np.zeros((matrix.shape[0], integers.shape[1]), dtype=object), 0
    while any(number not in (0, -1) for number in integers.flat):
        # Sums stay below 2^53: 22 bits of the matrix, 16 of the part, and 15 for the number of rows.
        part = matrix @ (integers & ((1 << LIMB) - 1)).astype(float)
        total = total + part.astype(np.int64).astype(object) * (1 << power)
        integers, power = integers >> LIMB, power + LIMB
    return np.asarray(total + (matrix @ integers.astype(float)).astype(np.int64).astype(object) * (1 << power))
