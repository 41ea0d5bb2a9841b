"""The steps of `AdaptiveSteps`, post-processing: which questions are asked, and what is made of noisy answers."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotConverged
from dpconvex.optim.constant_first import Start, find_constant, last_steps
from dpconvex.optim.label_shares import shared_constants
from dpconvex.optim.noisy_quadratic import least_point
from dpconvex.optim.row_metrics import LEVELS, Metric, level_metric
from dpconvex.optim.slope_histograms import HISTOGRAMS, LOOKS, LOUD, RISING, USUAL, LengthHistograms, Public, people_of
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.public_terms import pulls, weighed
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array, Indices

# Parts of the squared level: of two second moments, or of one where there are few records for each feature and unit of the level,
# more with more features; and of curvatures.  Histograms have theirs, and the steps the rest.
FIRST, SECOND, ALONE, MANY, FEW = 0.12, 0.22, (0.1, 0.2), 400.0, 5.0
CURVATURES = 0.02
# Ridges, next to the edge of a moment's noise; they rise until each direction and unit of the level has so many records.
FIRST_EDGE, SECOND_EDGE, EDGE_ALONE, DIRECTIONS = 0.4, 0.3, 0.35, 10.0
MOST_CUT = 4.0  # By how much squared lengths of rows exceed those of cut ones, at most
# Counts of rows by length: their noise next to the number of records, what they cost at most, and the noise above which nothing
# is asked; bins; how many records may be cut, and by how many deviations more stand out.
COUNTED, COSTLY, DROWNED, BINS, FINER, LONG, SURE = 0.02, 0.02, 0.1, 16, math.sqrt(2), 0.02, 2.5
LEVERAGE = 0.8  # Where rows are cut for the second moment, next to the root mean square of their leverages
# Steps; there are fewer where there are fewer records than so many for each direction and unit of the level, and at most one for
# each so many records.  Where curvature depends on scores, steps are short: there are more of them, and so many at least.
ROUNDS, ENOUGH, SINGLE, BENT_FEWEST, BENT_ENOUGH = 24, 30.0, 10.0, 4, 40.0
# Of a Newton step, also where curvature depends on scores; and the part of the steps, the last ones, that become shorter.
RATE, BENT_RATE, DECAY = 1.2, 0.6, 0.4
# Where slopes balance, rare levels of counts may bend far more than most: more steps than so many are shorter, to this part,
# unless there are so many records for each direction and unit of the level.
UNHURRIED, SLOWEST, PLENTY = 6.0, 0.33, 300.0
# Below this cosine of two gradients in a row, longer than so many deviations of noise, steps become so much shorter.
OPPOSED, HEARD, SLOWER = -0.3, 2.0, 1.5
# How far scores move in a step, in root mean square, where curvature depends on them; by noise, where slopes balance.
TRUSTED, NOISY = 0.5, 0.1
SELDOM = 4  # Curvature that does not depend on scores is asked for in each so many steps
# The part of the squared level for the length of scores; how long they count at most, next to what the metric says; and how much
# longer they become at most.
LENGTH, REACH, LONGEST = 0.04, 1.5, 5.0
# By how much the curvature falls in one step at most; the deviations of an answer that are doubted where it is about constant.
FALLING, STEADY = 2**0.25, 2.0
# What counts of directions at least; the records for each direction and unit of the level beyond which noise shortens less.
SMALLEST_KEPT, FEWER = 1e-3, 24.0
# The least clip next to the curvature where the constant begins, where slopes balance.
LEAST_CLIP = 0.5
# Without a constant, which tells how far scores spread, a curvature at kinks is a difference of slopes so much farther apart that
# noise hides less of it: by this, next to the noise of one, and by so much at most; then the same where steps leap to the middle.
TOLD_APART = ((40.0, 3.0), (140.0, 25.0))


class ScoreModel(NamedTuple):
    """The end of the steps: the table of the scores, the Hessian by one of its columns, and how far noise of the steps moved it.

    The table's columns are moved by ``noise @ z`` for standard normal z, at most.  `longer` is the table before it is shortened,
    and `pull` what the regularizer and K held steps by, where these know it.
    """

    table: Array
    hessian: Array
    noise: Array
    longer: Array
    pull: Array | None = None


def descend(
    looks: PrivateLooks, form: LossForm, settings: dict[str, float], size: float, public: Public
) -> tuple[Array, Array]:
    """Return the parameters that the steps end at, in coordinates, shape (dim,), and what noise moved the table's columns by."""
    pulled, begin = pulls(form) or public.start is not None, 0.0 if public.start is None else public.start
    held = form if ridge_of(form, free=False) is None else None
    table, hessian, noise, _, pull = model_of(looks, settings, size, public, begin, form if pulled else None, held)
    if pulled:
        return looks.scores.coordinates(table * row_units(looks.scores, looks.constant)), noise
    return regularized(table, hessian, form, looks, size, pull), noise


def model_of(
    looks: PrivateLooks,
    settings: dict[str, float],
    size: float,
    public: Public,
    begin: Array | float = 0.0,
    form: LossForm | None = None,
    held: LossForm | None = None,
) -> ScoreModel:
    """Take steps, from a table where they begin; each is followed by one of the regularizer of a form, if that is given."""
    scores, level, share, public = looks.scores, settings["level"], looks.scores.onto_columns, public.of_steps
    columns, sides = float(np.trace(share)), looks.sides
    spent = shorten_rows(looks, level, size)
    begin = np.array(np.broadcast_to(begin, scores.shape), dtype=float)
    begin[-1:] += public.middle if looks.constant else 0.0
    begin /= row_units(scores, looks.constant)
    told = scores.is_shared and public.start is None and public.of_labels
    if told:
        begin, spent = shared_constants(looks, told, level, size)
    metric, matrix, number, left, cut, start = metric_of(looks, level, size, public, begin, spent, form is None)
    form = None if form is None else weighed(form, number / size)
    unit = math.sqrt(metric.directions / number)  # The root mean square of leverages
    many, single = number * level / (sides * metric.directions * columns), number * level / (sides * SINGLE)
    usual = ROUNDS * min(1.0, many / (BENT_ENOUGH if public.is_bent else ENOUGH))
    usual = max(usual, BENT_FEWEST) if public.is_bent else max(min(usual, single), 1.0)
    rounds = int(settings.get("rounds", round(usual)))
    # Of few records for each feature, noise on the second moment hides how long scores are.
    blind = has_few(looks, level, size) and form is None and held is None and columns == 1 and not public.is_bent
    left -= LENGTH * blind
    histograms = HISTOGRAMS / sum(t < rounds for t in LOOKS)
    left += histograms - start.spent - (start.last and start.last + start.share) if start else 0.0
    each = 1 if public.is_bent else SELDOM
    step_level, curvature_level = level * math.sqrt(left / rounds), level * math.sqrt(CURVATURES / -(-rounds // each))
    histogram_level, signed = level * math.sqrt(histograms), len(scores.onto_kinds) == 1
    edges = start.edges if start else public.edges_near(math.inf)
    deviation, longest = looks.deviation_of_counts(histogram_level), start.longest if start else None
    lengths = LengthHistograms(edges, deviation, people_of(looks, number), signed, longest)
    loud = (LOUD * sides / level) ** 2 / left * metric.directions * columns
    clip, bend = USUAL * public.slope, public.most_curvature if public.vanishes else public.curvature
    full = BENT_RATE if public.is_bent else RATE
    if longest:
        full *= min(max(UNHURRIED / rounds, SLOWEST, many / PLENTY), 1.0)
    leaps, pull = np.any(public.secant > 0) and not looks.constant, None
    if public.vanishes and not (looks.constant or scores.is_shared):  # Rows that share scores may have constants
        apart, widest = TOLD_APART[bool(leaps)]
        wider = min(max(looks.counted(apart, 1.0) / (curvature_level * number), 1.0), widest)
        looks.scores = scores = replace(scores, width=wider * scores.width)
        bend /= wider
    slow, moved, still, way = 1.0, 1.0, 1.0, np.zeros(scores.shape)
    point = np.asarray(np.linalg.solve(matrix.T, begin), dtype=float)
    before, ahead = np.zeros(scores.shape), np.ones(len(metric.kept))
    variance, likely = np.zeros((2, len(ahead)))
    constant = constant_in(matrix, looks)
    least_clip = LEAST_CLIP * start.bend if start and longest else 0.0
    if start and constant is not None:
        point = point + np.outer(constant, start.place / looks.constant)
        bend, clip = start.bend, max(start.clip(loud * 4), least_clip)
        moved = min(1.0, clip / max(start.hidden, 1e-300))
    together = start and len(start.place) > 1 and not np.ptp(start.place)
    first = point if told or together or (start and not public.is_bent) else None
    lowest = 0.0 if public.is_bent else public.curvature / RISING
    lowest = (start.least if start else public.curvature) if public.vanishes else lowest
    inverse = np.asarray(np.linalg.inv(matrix), dtype=float)
    # Where curvatures differ, one model at the end is none of what penalties do; of few records, it shortens noise.
    held = held if many >= ENOUGH and (public.is_bent or scores.width > 0) else None
    for t in range(rounds):
        if t in LOOKS[bool(start) :]:
            counts = looks.look(matrix.T @ point, edges=edges * unit, histogram_level=histogram_level).histogram
            asked = lengths.clip(counts, loud * (4 if t < rounds / 2 else 1), clip, clip if t else 0.0)
            last, clip = clip, max(min(asked, RISING * clip) if t else asked, least_clip)
            moved = min(1.0, clip / max(lengths.hidden(counts, last)[1], 1e-300))
        probe: Any = {"probe": probe_of(scores, t, before), "cap": RISING * bend, "along_level": curvature_level}
        wide = max(clip, float(np.linalg.norm(public.secant * public.middle))) if leaps and not t else clip
        answer = looks.look(matrix.T @ point, wide, unit, step_level, **({} if t % each else probe))
        if not t % each:
            # What is known of the curvature stays as long as the noise of the answer explains the difference.
            seen = float(answer.along[0]) / number
            doubt = (1.0 if public.is_bent else STEADY) * looks.counted(RISING * bend, 1.0) / (curvature_level * number)
            least = lowest if public.vanishes and not t else max(bend / FALLING**each, lowest)
            if not t and start is None and RISING * (max(seen, 0.0) + STEADY * doubt) < bend:
                least = max(STEADY * doubt, lowest)  # Records of the declared domain bend far more
            bend = max(min(max(bend, seen - doubt), seen + doubt), least)
        gradient = answer.gradient @ share
        if constant is not None and moved < 1:  # Cut slopes would move the constant most
            gradient = gradient - (1 - moved) * np.outer(constant, constant @ gradient) / (constant @ constant)
        deviation = sides * wide * unit / step_level
        # Beside a regularizer gradients may be nothing but noise.
        is_heard = form is None or np.linalg.norm(gradient) > HEARD * deviation * math.sqrt(gradient.size)
        slow *= SLOWER if is_heard and opposed(gradient, before) else 1.0
        before, here, deviation = gradient, point, deviation / bend
        rate = full / slow * min(1.0, (rounds - t) / (DECAY * rounds + 1))
        if public.is_bent:
            change = rate / bend * math.sqrt(float((metric.kept[:, None] * gradient**2).sum()) / number)
            noise = rate * deviation * math.sqrt(metric.directions * columns / number) * public.is_balanced
            most = min(public.farthest(bend), public.unit if leaps else math.inf)
            rate *= min(1.0, most / max(change / TRUSTED, noise / NOISY, 1e-300))
        if not t and leaps:  # To the middle, where the sum of rows tells it: it is the gradient, next to the slope at 0
            point = first = point - gradient / np.where(public.secant > 0, cut * public.secant, bend)
        else:
            point = point - rate / bend * gradient
        if form is None and held is not None and t >= rounds // 2:
            point, pull = pulled_by(held, point, bend / rate, matrix, inverse, looks, size)
        if form is not None:
            point, _ = pulled_by(form, point, bend / rate, matrix, inverse, looks, size)
            slow *= SLOWER if opposed(point - here, way) else 1.0  # The regularizer and K hold most of a gradient back
            way = point - here
        still *= abs(1 - rate * moved)
        variance = (1 - rate * metric.kept) ** 2 * variance + (rate * deviation) ** 2
        stays = 1 - np.minimum(rate * metric.likely, 1.0)
        likely, ahead = stays**2 * likely + (rate * deviation) ** 2, stays * ahead
    longer, whole = matrix.T @ point, point
    part = min(1.0, FEWER / many) * (1 - 1 / (2 * metric.directions * columns))
    weights = np.maximum(metric.likely, SMALLEST_KEPT)
    done = float(weights @ (1 - ahead) / weights.sum())
    shorter = 1.0
    if form is None:
        point, shorter = shortened(point, part * columns * likely, weights, constant, first, done)
    if blind:
        moved_by = whole - (centre(whole, metric.kept, constant) if constant is not None else 0)
        spread = math.sqrt(float((metric.kept[:, None] * moved_by**2).sum()) / number)
        more = stretch(looks, matrix.T @ point, matrix.T @ moved_by, spread, clip, bend, level)
        more = min(max(more, -shorter), LONGEST)
        point, shorter = point + more * moved_by, shorter + more
    table = matrix.T @ point
    if start and constant is not None and start.last:
        fixed = centre(point, metric.kept, constant)
        spread = math.sqrt(float((metric.kept[:, None] * (point - fixed) ** 2).sum()) / number)
        place = float((matrix.T @ fixed)[-1, 0]) * looks.constant - float(np.ravel(public.middle)[0])
        along = metric.kept * constant
        away = math.sqrt(float(along**2 @ variance)) / max(float(along @ constant), 1e-300) * looks.constant
        away /= max(1 - still, 1e-9)
        table = last_steps(looks, table, spread, place, away, start, level, clip, number, bend, lengths, public)
    return ScoreModel(table, bend * cut * inverse @ inverse.T, shorter * matrix.T * np.sqrt(variance), longer, pull)


def stretch(
    looks: PrivateLooks, table: Array, along: Array, spread: float, clip: float, bend: float, level: float
) -> float:
    """Return by how much of another table scores should grow, by noisy sums of slopes and of squares along it."""
    if not spread > 0:
        return 0.0
    looks.in_metric(along.T / spread)
    each, moved = level * math.sqrt(LENGTH / 2), looks.counted(1.0, math.sqrt(2)) * REACH**2
    slope = float(looks.look(table, clip, REACH, each).gradient[0, 0])
    curved = bend * max(float(looks.second_moment_in_metric(REACH, each)[0, 0]), STEADY * moved / each)
    doubt = looks.sides * clip * REACH / each
    return -slope / (curved * spread) * max(0.0, 1 - (doubt / slope) ** 2) if slope else 0.0


def opposed(one: Array, other: Array) -> bool:
    return bool((one * other).sum() < OPPOSED * np.linalg.norm(one) * np.linalg.norm(other))


def pulled_by(
    form: LossForm, point: Array, curvature: float, matrix: Array, inverse: Array, looks: PrivateLooks, size: float
) -> tuple[Array, Array | None]:
    """Return the point after a proximal step of the regularizer and the constraints, if one is found, and what they pulled by."""
    scores, units = looks.scores, row_units(looks.scores, looks.constant)
    with suppress(NotConverged):
        hessian = curvature * inverse @ inverse.T
        table = scores.table(regularized(matrix.T @ point, hessian, form, looks, size)) / units
        moved = (hessian @ (matrix.T @ point - table) / units) @ scores.onto_columns.T
        return np.asarray(np.linalg.solve(matrix.T, table)), scores.reading.T @ moved.T.ravel()
    return point, None


def whole_rows(
    looks: PrivateLooks, level: float, ridge: float, public: Public, most: float = math.inf, denoised: bool = False
) -> tuple[Metric, float, float]:
    """Return the metric of the noisy second moment of whole rows, its number of records (0 without a constant) and deviation."""
    turn: Array | None = None
    if public.metric is None:
        moment, deviation = looks.second_moment(level)
    else:
        turn = looks.in_metric(public.metric.of_rows(looks.constant))
        moment = looks.second_moment_in_metric(public.metric.longest, level)
        deviation = looks.counted(1.0, math.sqrt(2)) * public.metric.longest**2 / level
    metric = Metric.of(moment, math.sqrt(2 * looks.rows.count) * deviation, ridge, most, denoised, turn)
    if not looks.constant:
        return metric, 0.0, 0.0
    along = (np.eye(len(moment)) if turn is None else np.linalg.inv(turn))[-1] / looks.constant
    return metric, float(along @ moment @ along), float(along @ along) * deviation


def shorten_rows(looks: PrivateLooks, level: float, size: float) -> float:
    """Cut rows to a length that few exceed, unless noise hides which; return the part of the squared level that counts cost."""
    share = min((1 / (COUNTED * size * level)) ** 2, COSTLY)
    deviation = looks.counted(1.0, math.sqrt(2)) / (level * math.sqrt(share))
    if looks.scores.is_shared or looks.rows.count == 1 or deviation > DROWNED * size:
        return 0.0
    edges = looks.scores.radius * FINER ** np.arange(1.0 - BINS, 1.0)
    longer = np.cumsum(looks.lengths(edges, level * math.sqrt(share))[::-1])
    many = longer > np.maximum(LONG * size, SURE * deviation * np.sqrt(np.arange(1, BINS + 1)))
    if place := int(np.argmax(many)):
        looks.shorten(float(edges[-1 - place]))
    return share


def has_few(looks: PrivateLooks, level: float, size: float) -> bool:
    """Say whether records are few for each feature and unit of the level, so that one second moment is asked for."""
    return size * level / looks.rows.count < FEW


def metric_of(
    looks: PrivateLooks, level: float, size: float, public: Public, begin: Array, spent: float, starts: bool
) -> tuple[Metric, Array, float, float, float, Start | None]:
    """Return the metric, the matrix that turns rows, about their number, what is left, how much is cut, and the constant."""
    columns = float(np.trace(looks.scores.onto_columns))
    alone, most = has_few(looks, level, size), size * level / (DIRECTIONS * columns)
    share, ridge = (float(np.clip(looks.rows.count / MANY, *ALONE)), EDGE_ALONE) if alone else (FIRST, FIRST_EDGE)
    if looks.rows.count == 1:  # There is nothing to be made round
        alone, share = True, CURVATURES
    if public.is_level:
        alone, share = True, LEVELS
        rough, counted, deviation = level_metric(looks, level * math.sqrt(share), size, ridge, most), size, 0.0
    else:
        rough, counted, deviation = whole_rows(looks, level * math.sqrt(share), ridge, public, most)
    number, left = size, 1 - share - HISTOGRAMS - CURVATURES - spent
    if looks.constant:
        # Its square, summed, is a noisy number of records: believed where the nominal one cannot be right.
        wide = 4 * deviation
        number = counted if abs(counted - size) > wide and counted > wide else size
    searched = looks.constant and (starts if looks.scores.shape[1] == 1 else public.vanishes)
    start = find_constant(looks, level, number, public, begin, left - SECOND * (not alone)) if searched else None
    turn = looks.in_metric(rough.matrix)
    if alone:
        return rough, turn, number, left, 1.0, start
    second, longest = level * math.sqrt(SECOND), LEVERAGE * math.sqrt(rough.directions / number)
    if looks.scores.is_shared:  # Rows of one record are weighed by its Hessian
        bent = RISING * public.curvature
        fine = looks.vectors(np.zeros(looks.scores.shape), "roots", longest * math.sqrt(bent), second) / bent
        moved = looks.counted_people(math.sqrt(2))
    else:
        fine, moved = looks.second_moment_in_metric(longest, second), looks.counted(1.0, math.sqrt(2))
    edge = math.sqrt(2 * looks.rows.count) * moved * longest**2 / second  # Of its noise
    cut = max(float(rough.kept.sum()) / max(float(np.trace(fine)), edge), 1.0)
    scale, cut = (cut, 1.0) if looks.scores.is_shared else (1.0, cut)
    metric = Metric.of(fine * scale, edge * scale, SECOND_EDGE, most)
    return metric, looks.in_metric(metric.matrix @ turn), number, left - SECOND, min(cut, MOST_CUT), start


def probe_of(scores: LinearScores, number: int, before: Array | None = None) -> Array:
    """Return a direction of length 1 of the columns, in the space that scores depend on; of single rows, the last gradient's."""
    random = np.random.default_rng(number).normal(size=len(scores.onto_kinds))
    found = scores.onto_kinds @ (before[0] if before is not None and before.any() and len(before) == 1 else random)
    return np.asarray(found / np.linalg.norm(found))


def shortened(
    point: Array, variance: Array, weights: Array, constant: Array | None, first: Array | None, done: float
) -> tuple[Array, float]:
    """Shorten the steps by what noise made them longer, by one James-Stein factor; return the answer with the factor.

    Where they are only a part `done` of what they would be without end, they are so much shorter already.
    """
    fixed = np.zeros_like(point) if first is None else first
    if constant is not None and first is None:
        fixed = centre(point, weights, constant)
    moving = point - fixed
    signal, noise = float((weights[:, None] * moving**2).sum()), float((weights * variance).sum())
    factor = min(max(signal - noise, 0.0) / max(done * signal, 1e-300), 1.0)
    return np.asarray(fixed + factor * moving), factor


def constant_in(matrix: Array, looks: PrivateLooks) -> Array | None:
    """Return the direction of the constant among rows that the matrix turns, if there is one."""
    return np.asarray(np.linalg.solve(matrix.T, np.eye(len(matrix))[-1])) if looks.constant else None


def centre(point: Array, weights: Array, constant: Array) -> Array:
    """Return the part of a point along the constant, which is the mean score."""
    along = weights * constant
    along = along if along.any() else constant  # All directions may be noise
    return np.asarray(np.outer(constant, along @ point / (along @ constant)))


def row_units(scores: LinearScores, constant: float) -> Array:
    """Return the units of the table's rows, next to those of x: the last one is of the constant; shape (rows, 1)."""
    units = np.ones((scores.shape[0], 1))
    if constant:
        units[-1] = constant
    return units


def alike(table: Array) -> Iterator[tuple[Indices, Array]]:
    """Yield the numbers of columns that are equal, and their entries."""
    kinds, owner = np.unique(table, axis=1, return_inverse=True)
    for k, entries in enumerate(kinds.T):
        yield np.flatnonzero(owner.ravel() == k), entries


def regularized(
    table: Array, hessian: Array, form: LossForm, looks: PrivateLooks, size: float, pull: Array | None = None
) -> Array:
    """Minimise a quadratic model of the loss about the end of steps, which a `pull` has held, with the regularizer."""
    scores, units, ridge = looks.scores, row_units(looks.scores, looks.constant), ridge_of(form)
    theta = scores.coordinates(table * units)
    if ridge is not None and not ridge.any():
        return theta
    block = hessian / np.outer(units, units)
    if ridge is not None and not scores.is_implied:
        found = table * units
        pulled = block @ found
        for own, more in alike(size * scores.squares(ridge)):
            found[:, own] = np.linalg.solve(block + np.diag(more), pulled[:, own])
        return scores.coordinates(found)
    whole = sp.csr_array(scores.reading.T @ sp.kron(scores.onto_columns, block, format="csr") @ scores.reading)
    return least_point(form, whole, whole @ theta + (0.0 if pull is None else pull), size)
