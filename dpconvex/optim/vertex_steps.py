"""Steps of `NoisyFrankWolfe`, postprocessing: the choice of vertices, and adaptive steps on their hull."""

import math
from dataclasses import replace

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.mechanisms.noisy_frank_wolfe import vertex_reach
from dpconvex.optim.adaptive_descent import AdaptiveDescent
from dpconvex.optim.class_descent import ClassDescent
from dpconvex.optim.slope_histograms import SEEN, UNCLIPPED, Fit
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.projections import AxisHull, ConvexSet
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.sums.private_queries import PrivateQueries, VertexQueries
from dpconvex.util.arrays import Array, Indices

# Shares of the squared level: the constant, the lengths of slopes, and the choices; the steps have the rest.
CONSTANT_SHARE, SLOPES_SHARE, CHOICES_SHARE = 0.05, 0.04, 0.55
# Bins of slopes' lengths: their number, the last edge next to the largest length, and the ratio of edges.
SLOPE_BINS, LARGEST_EDGE, SLOPE_RATIO = 64, 2.0, 2**0.25
COUNT_DEVIATIONS = 3.0  # Deviations of the noise by which a count must exceed 0
PROJECTED = 500  # Steps of the quadratic program at the end


def descend_on_vertices(
    fit: Fit, queries: VertexQueries, batch: Batch, people: Indices | None, form: LossForm, vertices: int
) -> Array:
    """Return the parameters after the last step, in coordinates, shape (dim,)."""
    scores, size, widest = queries.scores, fit.size, float(queries.scores.feature_bounds.max())
    public = replace(fit.public, metric=None)  # it is for all features, but few are chosen
    features, left = len(scores.features), 1 - SLOPES_SHARE - CHOICES_SHARE
    reach, plain = vertex_reach(form), simplex_center(form)[scores.indices] * scores.scale

    def part(chosen: Indices, share: float, rounds: float | None = None) -> Fit:
        own = PrivateQueries(scores.part(chosen), batch, queries.privacy, queries.noise, people)
        return Fit(own, public, fit.level_of(share), size, rounds)

    if scores.has_constant:
        alone, left = part(np.arange(0), CONSTANT_SHARE), left - CONSTANT_SHARE
        plain[-1] = AdaptiveDescent(alone).run().table[-1] * alone.queries.constant
    clip = usual_length(queries, plain / queries.units, fit.level_of(SLOPES_SHARE), public.slope * widest, size)
    own = (reach[:, scores.indices] / scores.scale)[:, :features]
    own = np.where(scores.scale[:features] < 0, -own[::-1], own)
    found = queries.choose(plain / queries.units, clip, own, fit.level_of(CHOICES_SHARE), vertices)
    rest = part(np.sort(np.array(found, dtype=np.int64)), left, fit.rounds)
    last = rest.queries
    if public.is_lipschitz and form.template.record.discrete:
        table, hessian, *_ = ClassDescent(rest, form).run()
        table = table / hull_stretch(last.parameters(table), form)
    else:
        begin = simplex_center(form)[last.scores.indices] * last.scores.scale
        table, hessian, *_ = AdaptiveDescent(rest, begin).run()
    inside = last.scores.scale[:, 0] / last.units[:, 0]
    return minimise_on_hull(last.parameters(table), hessian * np.outer(inside, inside), form, last.scores.indices, size)


def simplex_center(form: LossForm) -> Array:
    """Return the mean vertex of each simplex, and 0 for other coordinates, shape (dim,)."""
    start = np.zeros(form.space.dim)
    for piece in form.feasible.pieces:
        if isinstance(piece, AxisHull) and piece.is_facet:
            start[piece.coordinates] = piece.low / len(piece.low)
    return start


def usual_length(queries: VertexQueries, table: Array, level: float, largest: float, size: float) -> float:
    """Return about the median of records' slopes times their largest entries."""
    edges = LARGEST_EDGE * largest * SLOPE_RATIO ** np.arange(1 - SLOPE_BINS, 1, dtype=float)
    counts = queries.query(table, edges=edges, histogram_level=level).histogram.sum(axis=0)
    counts = np.where(counts > COUNT_DEVIATIONS * queries.deviation_of_counts(level), counts, 0.0)
    if not counts.sum() >= SEEN * size:
        return largest
    return float(edges[np.searchsorted(np.cumsum(counts), UNCLIPPED * counts.sum())])


def hull_stretch(theta: Array, form: LossForm) -> float:
    """Return the factor, at least 1, by which parameters exceed K: divided by it, they separate classes as before."""
    times = 1.0
    for piece in form.feasible.pieces:
        if isinstance(piece, AxisHull) and not piece.is_facet:
            own = theta[piece.coordinates]
            reach = np.where(own > 0, piece.high, -piece.low)
            times = max(times, float((np.abs(own) / np.where(reach > 0, reach, np.inf)).sum()))
    return times


def minimise_on_hull(theta: Array, block: Array, form: LossForm, places: Indices, size: float) -> Array:
    """Return the minimiser of a quadratic model plus the regularizer on the hull of the chosen vertices, shape (dim,)."""
    public = as_quadratic(form.template.regularizer, form.space)
    assert public is not None
    pieces = [along_coordinates(piece, places) for piece in form.feasible.pieces]
    ridge = size * public.hessian
    most = float(np.linalg.norm(block, 2)) + float(abs(ridge).sum(axis=1).max())
    here, ahead, momentum = theta, theta, 1.0
    for _ in range(PROJECTED):
        slope = np.zeros(len(theta))
        slope[places] = (block @ (ahead - theta)[places]) + (ridge @ ahead + size * public.slope)[places]
        point = ahead - slope / max(most, 1e-300)
        for piece in pieces:
            point[piece.coordinates] = piece.project(point[piece.coordinates])
        faster = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead, here, momentum = point + (momentum - 1) / faster * (point - here), point, faster
    return here


def along_coordinates(piece: ConvexSet, places: Indices) -> ConvexSet:
    """Return the hull of the vertices of a piece along some coordinates."""
    if not isinstance(piece, AxisHull):
        return piece
    kept = np.isin(piece.coordinates, places)
    return AxisHull(piece.coordinates[kept], piece.anchor[kept], piece.low[kept], piece.high[kept])
