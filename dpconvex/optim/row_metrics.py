"""Metrics that precondition rows of records: from noisy second moments, noisy counts, or the declared domain."""

import math
from dataclasses import dataclass

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import dense, flattened
from dpconvex.data.domains import Box
from dpconvex.data.record import Record
from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.exact_rows import MATRIX_BITS, ExactRows, Leverage, on_grid
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.sums.monomials import with_functions
from dpconvex.sums.private_queries import PrivateQueries
from dpconvex.util.arrays import Array

# Share of the squared level for counts by level, and the edge of a moment without noise, next to the records of a level.
LEVELS, LEVEL_EDGE = 0.06, 1e-6
ROUNDED_ONE = 1e-3  # Largest error of the products of rounded rows with a vector that make up a constant
# Squared means of features next to their variance, and the ratio of variances, above which rows are first measured in units of
# the domain. Features with a smaller variance than EMPTY stay as they are.
FAR_MEAN, UNEVEN_VARIANCE, EMPTY = 5.0, 30.0, 1e-9
MAX_ROWS = 2**12  # Most rows of a further matrix beside the second moment
# Records drawn for each combination of labels, at least and at most; most scores; numbers of rows computed at a time.
LEAST_SAMPLES, SAMPLES, MAX_SCORES, NUMBERS = 4, 512, 2**20, 2**22


@dataclass(frozen=True)
class Metric:
    """A noisy second moment in its eigenvectors: the signal in each direction, and the matrix that preconditions rows."""

    signal: Array  # shape (rows,): the share of each direction that is not noise
    root: Array  # shape (rows,): roots of the second moment plus the ridge, by direction
    vectors: Array
    denoised: Array  # shape (rows,): `signal`, where eigenvalues within the noise share the rest of the trace
    base: Array | None = None  # A first matrix for rows, if any

    @classmethod
    def of(
        cls, moment: Array, edge: float, part: float, most: float, denoised: bool = False, base: Array | None = None
    ) -> "Metric":
        """Return the metric of a moment, with a ridge as a part of its noise's edge, and at most `most` effective directions."""
        values, vectors = np.linalg.eigh(moment)
        likely, ridge = revealed_values(values, edge), part * edge
        kept = likely if denoised else np.maximum(values, 0.0)
        while (kept / (kept + ridge)).sum() > max(most, 1.0):
            ridge *= 1.25
        return cls(kept / (kept + ridge), np.sqrt(kept + ridge), vectors, likely / (kept + ridge), base)

    @property
    def matrix(self) -> Array:
        round_rows = self.vectors.T / self.root[:, None]
        return np.asarray(round_rows if self.base is None else round_rows @ self.base)

    @property
    def effective_dim(self) -> float:
        """The effective number of directions."""
        return max(float(self.signal.sum()), 1.0)


def revealed_values(values: Array, edge: float) -> Array:
    """Return the eigenvalues of a noisy moment without the noise's part; those within the noise share the rest of the trace."""
    clear = np.sqrt(np.maximum(values - edge, 0.0)) * np.sqrt(np.maximum(values + edge, 0.0))  # For noisy eigenvectors
    seen = max(float(values.sum()), edge / math.sqrt(2))  # A trace is known to its deviation at best
    rest = max(seen - float(clear.sum()), 0.0) / max(int((clear == 0).sum()), 1)
    return np.maximum(clear, rest)


def constant_part(point: Array, weights: Array, constant: Array) -> Array:
    """Return the part of a point along the constant, which is the mean score."""
    along = weights * constant
    along = along if along.any() else constant  # All directions may be noise
    return np.asarray(np.outer(constant, along @ point / (along @ constant)))


def level_metric(queries: PrivateQueries, level: float, size: float, ridge: float, most: float) -> Metric:
    """Return the metric of rows that encode a record's level alone: only the number of records of each level is unknown."""
    moment, deviation = queries.second_moment(level)
    count = len(moment) - bool(queries.constant)
    told, usual = np.diag(moment)[:count], size / count
    apart = max(float(told.var()) - deviation**2, 0.0)
    counts = np.maximum(usual + apart / (apart + deviation**2) * (told - usual), min(deviation, usual))
    rows = np.column_stack([np.eye(count), np.full((count, len(moment) - count), queries.constant)])
    known = (rows.T * counts) @ rows
    if not queries.constant:
        return Metric.of(known, LEVEL_EDGE * usual, ridge, most)
    # The constant and all levels together are one direction that no row distinguishes: it comes last, with weight 0.
    alike = np.append(np.full(count, queries.constant), -1.0)
    largest = 2 * float(np.trace(known))
    found = Metric.of(known + largest * np.outer(alike, alike) / (alike @ alike), LEVEL_EDGE * usual, ridge, most)
    found.signal[-1] = found.denoised[-1] = 0.0
    return found


def with_constant(scores: LinearScores, batch: Batch) -> LinearScores:
    """Return scores with a constant, if rows of levels add up to one."""
    if scores.has_constant or scores.is_shared or scores.shape[1] > 1:
        return scores
    rows = dense(flattened(batch.fields[scores.name][:])).astype(float)[:, scores.features]
    along = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    return scores.with_constant(along) if np.abs(rows @ along - 1).max() < ROUNDED_ONE else scores


def records_of_domain(form: LossForm, scores: LinearScores) -> tuple[LinearScores, Batch, bool]:
    """Return scores, records drawn from the domain (equally many of each label), and whether rows encode a level alone."""
    record = form.template.record
    count = len(record.combinations)
    each = max(min(SAMPLES, NUMBERS // max(len(scores.features), 1)), 64)
    each = max(min(each, MAX_SCORES // (count * max(count, scores.form.forms))), LEAST_SAMPLES)
    batch = (form.made.before if form.made else record).sample(each * count, np.random.default_rng(0))
    if form.made:
        batch = with_functions(batch, (form.made.fields, record, form.made.groups))
    batch, is_level = on_grid(batch, ExactRows.of(scores)), False
    if form.made and not tells_classes(form, scores.fields):
        constants = [name for name, own in form.made.fields.items() if own.is_constant]
        scores = with_constant(scores, batch) if constants else scores
        is_level = scores.name in constants and set(np.unique(form.made.fields[scores.name].table)) == {0.0, 1.0}
    return scores, batch, is_level


@dataclass(frozen=True, eq=False)
class DomainMetric:
    """A metric of rows of (x, 1), and their largest norm in it."""

    matrix: Array  # shape (rows, rows)
    longest: float

    def of_rows(self, constant: float) -> Array:
        """Return the matrix for rows of (x, constant)."""
        found = self.matrix.copy()
        found[:, -1] /= constant or 1.0
        return found

    @classmethod
    def of(cls, batch: Batch, scores: LinearScores) -> "DomainMetric | None":
        """Return the metric from a domain sample made by `on_grid`; None if rows are about round already."""
        rows = ExactRows.of(scores)
        if rows.count > MAX_ROWS:
            return None
        if scores.is_shared:
            return cls.of_shared(batch, rows)
        x = dense(flattened(batch.fields[rows.name][:])).astype(float)[:, rows.features]
        means, spread = x.mean(axis=0), x.var(axis=0)
        moving = spread > EMPTY * (means**2 + spread).max(initial=0.0)
        wide = spread[moving]
        far = (means[moving] ** 2 > FAR_MEAN * wide).any()
        # Products of features are shorter than the features.
        uneven = scores.monomials is None and wide.max(initial=0.0) > UNEVEN_VARIANCE * wide.min(initial=np.inf)
        if not (far or uneven):
            return None
        constant = rows.constant * rows.grid
        units = np.sqrt(np.where(moving, spread, spread.max()))
        matrix = np.diag(np.append(1 / units, [1.0] * bool(constant)))
        if constant:
            matrix[:-1, -1] = -means / units
        return cls(matrix, longest(cls(matrix, 0.0).of_rows(constant), batch, rows))

    @classmethod
    def of_shared(cls, batch: Batch, rows: ExactRows) -> "DomainMetric | None":
        """Return the metric for records with several rows, in the eigenvectors of their second moment."""
        column, step = batch.fields[rows.name][:], max(NUMBERS // (rows.count * rows.each), 1)
        parts = (rows.read(column[start : start + step]) for start in range(0, batch.size, step))
        values, vectors = np.linalg.eigh(sum(part.T @ part for part in parts) / batch.size)
        seen = values > EMPTY * values[-1]  # No row differs along the others, such as along equal changes of all levels
        if values[-1] < UNEVEN_VARIANCE * values[seen].min():
            return None
        matrix = vectors.T / np.sqrt(np.where(seen, values, values[-1]))[:, None]
        return cls(matrix, longest(matrix, batch, rows))


def in_natural_units(record: Record) -> list[str]:
    """Return the names of vectors in boxes with entries in units of their own, or far from 0."""
    found = []
    for name, box in record.continuous.items():
        if isinstance(box, Box) and box.shape:
            lower, upper = (np.ravel(end) for end in (box.lower, box.upper))
            spread, square = (upper - lower) ** 2 / 12, (upper + lower) ** 2 / 4  # of uniform values in the box
            moving = spread > 0
            uneven = spread.max() > UNEVEN_VARIANCE * spread[moving].min(initial=np.inf)
            found += [name] if uneven or (square > FAR_MEAN * spread)[moving].any() else []
    return found


def longest(matrix: Array, batch: Batch, rows: ExactRows) -> float:
    """Return the largest norm of ``matrix @ row``, over all rows of a record together, among these records."""
    factor = 2.0**MATRIX_BITS / float(np.abs(matrix).max())
    lengths = Leverage(rows, np.rint(matrix * factor))(batch.fields[rows.name])
    return float(lengths.max()) * rows.grid / factor
