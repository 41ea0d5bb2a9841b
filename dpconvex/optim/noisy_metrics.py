"""The metric of the steps, from noisy second moments of rows, and the search for the constant with it."""

import math

import numpy as np

from dpconvex.optim.constant_first import ConstantStart, estimate_constant
from dpconvex.optim.row_metrics import LEVELS, Metric, level_metric
from dpconvex.optim.slope_histograms import HISTOGRAMS, LONGER_ROWS, LONGEST_ROWS, MAX_RISE, Fit
from dpconvex.util.arrays import Array

# Shares of the squared level: of two second moments; of one moment, if records are few for each feature and unit of the level
# (more with more features); of curvatures. Histograms have their own, and the steps the rest.
FIRST, SECOND, ALONE, FEATURES = 0.12, 0.22, (0.1, 0.2), 400.0
CURVATURES = 0.02
# Ridges, next to the edge of a moment's noise; they grow until each effective direction has so many records per unit of level.
FIRST_EDGE, SECOND_EDGE, EDGE_ALONE, DIRECTIONS = 0.4, 0.3, 0.35, 10.0
MOST_CUT = 4.0  # Largest ratio of squared lengths of rows and of clipped rows
# Counts of rows by length: their noise next to the records; their largest share; the noise from which they are not queried;
# bins and their ratio; the fraction of records that may be clipped; deviations by which more stand out.
COUNTED, COUNTS_COST, COUNTS_NOISE, ROW_BINS, ROW_RATIO, LONG, SURE_COUNT = 0.02, 0.02, 0.1, 16, math.sqrt(2), 0.02, 2.5
CURVED_EDGE = 0.2  # Largest edge of the noise of a Hessian, next to the mean curvature
LEVERAGE_CUT = 0.8  # Clip of rows for the second moment, next to the root mean square of their leverages


def row_metric(
    fit: Fit, part: float, ridge: float, most: float = math.inf, denoised: bool = False
) -> tuple[Metric, float, float]:
    """Return the metric of rows by their noisy second moment, the noisy number of records (0: no constant), and its deviation."""
    queries, public, level = fit.queries, fit.public, fit.level_of(part)
    turn: Array | None = None
    if public.metric is None:
        moment, deviation = queries.second_moment(level)
    else:
        turn = queries.set_metric(public.metric.of_rows(queries.constant))
        moment = queries.second_moment_in_metric(public.metric.longest, level)
        deviation = queries.sum_sensitivity(1.0, math.sqrt(2)) * public.metric.longest**2 / level
    metric = Metric.of(moment, math.sqrt(2 * queries.rows.count) * deviation, ridge, most, denoised, turn)
    if not queries.constant:
        return metric, 0.0, 0.0
    along = (np.eye(len(moment)) if turn is None else np.linalg.inv(turn))[-1] / queries.constant
    return metric, float(along @ moment @ along), float(along @ along) * deviation


def truncate_rows(fit: Fit) -> float:
    """Clip rows to a length that few exceed, unless noise hides it; return the share of the squared level that counts cost."""
    queries, size = fit.queries, fit.size
    share = min((1 / (COUNTED * size * fit.level)) ** 2, COUNTS_COST)
    deviation = queries.sum_sensitivity(1.0, math.sqrt(2)) / fit.level_of(share)
    if queries.scores.is_shared or queries.rows.count == 1 or deviation > COUNTS_NOISE * size:
        return 0.0
    edges = queries.scores.radius * ROW_RATIO ** np.arange(1.0 - ROW_BINS, 1.0)
    longer = np.cumsum(queries.lengths(edges, fit.level_of(share))[::-1])
    many = longer > np.maximum(LONG * size, SURE_COUNT * deviation * np.sqrt(np.arange(1, ROW_BINS + 1)))
    if place := int(np.argmax(many)):
        queries.clip_rows(float(edges[-1 - place]))
    return share


def fit_metrics(
    fit: Fit, begin: Array, spent: float, starts: bool
) -> tuple[Metric, Array, float, float, float, ConstantStart | None]:
    """Return the metric, the matrix for rows, the number of records, the remaining share, the clipped factor, the constant."""
    queries, public, size = fit.queries, fit.public, fit.size
    most = size * fit.level / (DIRECTIONS * fit.columns)
    alone = fit.has_few or (queries.scores.is_shared and public.has_no_curvature)  # Roots at 0 would be noise
    share, ridge = (float(np.clip(queries.rows.count / FEATURES, *ALONE)), EDGE_ALONE) if alone else (FIRST, FIRST_EDGE)
    if queries.rows.count == 1:  # One row needs no preconditioning
        alone, share = True, CURVATURES
    if public.is_level:
        alone, share = True, LEVELS
        rough, counted, deviation = level_metric(queries, fit.level_of(share), size, ridge, most), size, 0.0
    else:
        rough, counted, deviation = row_metric(fit, share, ridge, most)
    number, left = size, 1 - share - HISTOGRAMS - CURVATURES - spent
    if queries.constant:
        # The sum of its squares is a noisy number of records: it replaces a nominal number that cannot be right.
        wide = 4 * deviation
        number = counted if abs(counted - size) > wide and counted > wide else size
    searched = queries.constant and (starts if queries.scores.shape[1] == 1 else public.vanishes)
    start = estimate_constant(fit, number, begin, left - SECOND * (not alone)) if searched else None
    turn = queries.set_metric(rough.matrix)
    if alone:
        return rough, turn, number, left, 1.0, start
    second, longest = fit.level_of(SECOND), LEVERAGE_CUT * math.sqrt(rough.effective_dim / number)
    if fit.has_many and starts:
        longest *= min(math.sqrt(fit.people_each / LONGER_ROWS), LONGEST_ROWS)
    if queries.scores.is_shared:  # Rows of one record are weighted by its Hessian
        bent = MAX_RISE * public.curvature
        fine = queries.vectors(np.zeros(queries.scores.shape), "roots", longest * math.sqrt(bent), second) / bent
        moved = queries.count_sensitivity(math.sqrt(2))
    else:
        fine, moved = queries.second_moment_in_metric(longest, second), queries.sum_sensitivity(1.0, math.sqrt(2))
    edge = math.sqrt(2 * queries.rows.count) * moved * longest**2 / second  # Edge of the noise
    cut = max(float(rough.signal.sum()) / max(float(np.trace(fine)), edge), 1.0)
    scale, cut = (cut, 1.0) if queries.scores.is_shared else (1.0, cut)
    metric = Metric.of(fine * scale, edge * scale, SECOND_EDGE, most)
    return metric, queries.set_metric(metric.matrix @ turn), number, left - SECOND, min(cut, MOST_CUT), start


def curved_metric(fit: Fit, table: Array, rough: Metric, matrix: Array, level: float, curvature: float) -> Metric:
    """Return the metric of rows that already are in a metric, from the noisy Hessian of the loss at a table of parameters.

    Rows are weighted by the curvature of their records next to the mean one, and clipped so long that noise hides none.
    """
    queries, (rows, columns) = fit.queries, fit.queries.scores.shape
    edge = queries.count_sensitivity(math.sqrt(2)) * math.sqrt(2 * rows) / level  # at a clip of 1
    usual = math.sqrt(rough.effective_dim / fit.size * curvature)
    longest = min(max(math.sqrt(CURVED_EDGE * curvature / edge), usual), LONGEST_ROWS * usual)
    hessian = np.einsum("kikj->ij", queries.vectors(table, "roots", longest, level).reshape((columns, rows) * 2))
    return Metric.of(
        hessian / (curvature * fit.columns), edge * longest**2 / curvature, SECOND_EDGE, fit.size, base=matrix
    )


def constant_direction(fit: Fit, matrix: Array) -> Array | None:
    """Return the direction of the constant among rows in the metric, or None if there is no constant."""
    return np.asarray(np.linalg.solve(matrix.T, np.eye(len(matrix))[-1])) if fit.queries.constant else None
