"""Steps of `AdaptiveSteps` for classes, postprocessing: long steps with clipped gradients, then queries for their length."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.optim.adaptive_descent import ScoreModel, descend_adaptively
from dpconvex.optim.constant_models import LabelShares, shared_constants
from dpconvex.optim.implicit_steps import ImplicitSteps, mean_stiffness, regularize, slopes_of
from dpconvex.optim.noisy_metrics import constant_direction, row_metric, truncate_rows
from dpconvex.optim.public_slopes import public_facts
from dpconvex.optim.row_metrics import constant_part
from dpconvex.optim.slope_histograms import Fit, PublicFacts, unit_like
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.public_terms import pulls_away_from_zero
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.sums.private_queries import PrivateQueries
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import Stage

# Shares of the squared level: of the second moment, and of queries for the length; the steps have the rest.
MOMENT_SHARE, LENGTHS_SHARE = 0.12, 0.06
# The ridge, next to the edge of the moment's noise: standard deviations of an entry, within these limits.
RIDGE_ENDS, ENTRY = (0.25, 0.5), 2.2
CLASS_STEPS, AVERAGED = 64, 0.3  # Steps, and the fraction of them, at the end, that is averaged
# The clip next to the largest slope; its growth with a regularizer as stiff as the loss; its limit. If slopes are as long near
# 0 as far away, as for hinges, the clip starts at 1: all slopes that count have about one length.
CLIP_PART, STIFFER, HINGES, MAX_CLIP = 0.35, 4.0, 1 - 1e-6, 3.0
# The limit with regularizers other than squares; the growth of the clip where K bounds scores.
MAX_OTHER_CLIP, BOUND = 0.7, 1.4
# The clip's bias does not decrease with more records: the clip widens from these records times level per direction and column.
WIDENING = 50.0
# It exceeds the largest slope near 0 (rows of rare levels are long, slopes of rare labels steep) from so many records times the
# information of a record at the best constants, next to that near 0; the most; and the step at which shares of labels are known.
INFORMED, WIDEST, SHARES_KNOWN = 20.0, 4.0, 8
# The step: movement of a score by the noise of all steps; more movement for each direction per record and unit of the level;
# fraction of the curvature at 0 that damps noise; longest step, next to Newton's at the largest curvature.
MOVED, NOISY, CURVED, MAX_STEP = 0.6, 15.0, 0.1, 12.0
# NOISY, AVERAGED and WIDENING for shared parameters; curvature that damps noise if effects are weak, next to that at 0.
SHARED, WEAK = (3.0, 0.5, 20.0), 0.25
# Least length that shrinkage leaves of steps; harmless noise of scores, next to slope and curvature; how fast the constants of
# shrunk steps approach those of label shares alone.
LEAST_LENGTH, HARMLESS, TO_LABELS = 0.1, 0.2, 2.0
# From this ratio of slopes near 0 to slopes far away, scores are no logits: they are shortened together with their constants.
HINGE_SLOPES = 0.9
# Share of the squared level for queries at the constants, and the prior deviation of constants, next to the margin.
SHIFTS, PRIOR_DEVIATION = 0.03, 0.7
# Steps are halved if a gradient reverses this fraction of the last step, and so many deviations of its noise.
REVERSAL, REVERSAL_NOISE = 0.5, 3.0
# Queries for the length: their number, the prior deviation of the length, and the doubted fraction of a change.
LENGTH_QUERIES, LENGTH_DEVIATION, CHANGE_DOUBT = 4, 0.5, 0.3
LEAST_CHANGE, MOST_CHANGE = 0.5, 1.5  # In one query
# Least and largest clip of slopes along the parameters, next to the spread of scores, and its noise. If scores predict little,
# slopes are long on both sides and the clip is near 1: a smaller clip hides that scores are too long.
SPREAD_REACH, REACH_AT_1, MAX_REACH, BLURRED = 0.7, 1.2, 3.0, 0.1
USUAL_CURVATURES = 0.1, 8.0  # of losses of logits
CHOICE = 0.03  # Least curvature next to squared slopes at which shared scores are those of choices
NEAR_KINKS = 150.0  # Product of records and level for each parameter from which class steps end nearer to kinks


def take_steps(form: LossForm, settings: dict[str, float], size: float, seen: tuple[Any, ...]) -> tuple[Array, Array]:
    """Return the last point, in coordinates, and a bound on how far noise moved the table's columns; unlike ones step alone."""
    each, found = [public_facts(form)], list[tuple[Array, Array]]()
    if each[0][1].is_uneven and not pulls_away_from_zero(form) and ridge_of(form) is not None:
        each = [public_facts(form, column) for column in range(each[0][0].shape[1])]
    level, rounds = settings["level"] / math.sqrt(len(each)), settings.get("rounds")
    for scores, public in each:
        classes = (tells_classes(form, scores.fields) or public.has_one_side) and not pulls_away_from_zero(form)
        # The slopes of shared scores with many losses are so long that class steps would be far too short. Curvature from the
        # width of nonsmooth points is no guide if there are many records.
        alone = not scores.is_shared or public.smoothness * loss_unit(scores, public) >= CHOICE * public.lipschitz**2
        alone = alone or (scores.width > 0 and size * level > NEAR_KINKS * form.basis.shape[1])
        # One second moment describes rows of products badly, unless all slopes have the same sign.
        alone = alone and (public.has_one_side or not scores.has_mixed_products)
        take = descend_for_classes if public.is_lipschitz and classes and alone else descend_adaptively
        found.append(take(Fit(PrivateQueries(scores, *seen), public, level, size, rounds), form))
    return np.sum([theta for theta, _ in found], axis=0), max((noise for _, noise in found), key=np.linalg.norm)


def loss_unit(scores: LinearScores, public: PublicFacts) -> float:
    """Return the unit of losses, 1 for usual slopes far away; slopes add up if scores share parameters, unlike curvatures."""
    several = scores.is_shared or scores.monomials is not None
    return unit_like(public.smoothness, USUAL_CURVATURES) if several else unit_like(public.lipschitz)


def descend_for_classes(fit: Fit, form: LossForm) -> tuple[Array, Array]:
    """Return the last point, in coordinates, shape (dim,), and how far noise moved the table's columns."""
    table, hessian, moved, _, pull = ClassDescent(fit, form).run()
    theta, ridge = fit.queries.parameters(table), ridge_of(form, free=False)
    if ridge_of(form) is not None:
        return theta, moved
    if pull is None and ridge is not None:
        pull = fit.size * ridge * theta
    return regularize(fit, form, table, hessian, pull), moved


class ClassDescent:
    """Clipped noisy gradient steps, with implicit steps for the regularizer and K; the last points are averaged."""

    def __init__(self, fit: Fit, form: LossForm) -> None:
        self.fit, self.form, self.queries, self.public, scores = fit, form, fit.queries, fit.public, fit.queries.scores
        spent = truncate_rows(fit) if ridge_of(form) is None and scores.monomials is not None else 0.0
        begin = np.zeros(scores.shape)
        if scores.is_shared and self.public.of_labels is not None:
            # With many rows, steps are short, and end near their start.
            begin, more = shared_constants(fit, self.public.of_labels)
            spent += more
        edge = float(np.clip(ENTRY / math.sqrt(2 * fit.queries.rows.count), *RIDGE_ENDS))
        self.metric, *_ = row_metric(fit, MOMENT_SHARE, edge, denoised=True)
        self.matrix = fit.queries.set_metric(self.metric.matrix)
        self.constant, self.columns = constant_direction(fit, self.matrix), fit.columns
        self.many = fit.size * fit.level / (fit.queries.sensitivity * self.metric.effective_dim)
        self.implicit = ImplicitSteps(fit, form, self.matrix, self.many)
        ridge = ridge_of(form, free=False)
        # Twice the weights of the table's squared entries
        self.squares = None if ridge is None else fit.size * scores.squares(ridge) * fit.queries.units**2
        self.rounds = int(CLASS_STEPS if fit.rounds is None else fit.rounds)
        unlikely = self.public.slope >= HINGE_SLOPES * self.public.lipschitz  # Scores are no logits
        told = None if self.constant is None else self.public.of_labels
        self.shifts = SHIFTS if unlikely and told is not None else 0.0
        self.shares = None if told is None or unlikely else LabelShares(told, len(scores.projection))
        self.level = fit.level_of((1 - MOMENT_SHARE - LENGTHS_SHARE - self.shifts - spent) / self.rounds)
        self._set_clip_and_step(float(self.shares is None))
        self.start = self.point = np.asarray(np.linalg.solve(self.matrix.T, begin), dtype=float)
        self.average, self.last, self.step_factor = np.zeros(scores.shape), np.zeros(scores.shape), 1.0
        self.pull_average, self.feasible_average = np.zeros((2, form.space.dim))  # Averaged like the points

    def _set_clip_and_step(self, information: float) -> None:
        """Set the clip, the step size, and the standard deviation of the noise of all gradients.

        `information` is the mean squared slope at the best constants, next to that of the largest slope near 0.
        """
        fit, queries, public, metric = self.fit, self.queries, self.public, self.metric
        noisy, self.averaged_part, enough = SHARED if queries.scores.is_shared else (NOISY, AVERAGED, WIDENING)
        part = self._relative_clip()
        each, bends = self.many / self.columns, public.slope < HINGES * public.lipschitz
        near = max(1 / part, 1.0)  # At this factor, the clip is the largest slope near 0
        most = near * min(max(math.sqrt(each * information / INFORMED), 1.0), WIDEST if bends else 1.0)
        wider = min(max(math.sqrt(each / enough), 1.0), most)
        bound = bends and self.squares is not None and not self.implicit.is_plain
        part *= wider * math.sqrt(queries.privacy.most) * (BOUND if bound else 1.0)
        longest = math.sqrt(queries.rows.squared_norm(queries.scores.radius)) * queries.rows.grid
        longest = (longest if public.metric is None else public.metric.longest) / metric.root.min()
        self.unit = min(math.sqrt(metric.effective_dim / fit.size), longest)
        # No gradient is longer than that of the longest row.
        self.clip = min(part * public.slope, queries.privacy.most * public.lipschitz * longest / self.unit)
        self.noise = self.unit * queries.sensitivity * self.clip / self.level * math.sqrt(self.rounds)
        farther = public.lipschitz**2 / 4 / loss_unit(queries.scores, public)
        step = MAX_STEP / max(min(wider, near) * public.smoothness, farther)
        moved = MOVED * (1 + noisy / self.many)
        for _ in range(32):  # Curvature damps noise, and damps more noise for longer steps
            left = metric.signal / (1 + 2 * CURVED * self.rounds * public.curvature * step * metric.signal)
            step = min(step, moved / max(self.noise * math.sqrt(float(left.sum()) / fit.size), 1e-300))
        self.step = step

    def _relative_clip(self) -> float:
        """Return the clip divided by the largest slope; a stiff regularizer widens it."""
        fit, public, metric, most = self.fit, self.public, self.metric, 1.0
        if self.squares is not None:
            squares = self.squares.max() * float((metric.signal / metric.root**2).sum())
            stiff = squares / (metric.effective_dim * public.curvature)
        else:
            stiff, most = mean_stiffness(fit, self.form, metric, self.matrix) / public.curvature, MAX_OTHER_CLIP
        least, most = (1.0, MAX_CLIP) if public.slope >= HINGES * public.lipschitz else (CLIP_PART, most)
        return float(min(least * (1 + STIFFER * stiff), most))

    def take_step(self, t: int) -> None:
        """Query the noisy gradient and take step `t`; halve the step size if the step reverses the last one."""
        if t == SHARES_KNOWN and self.shares is not None:
            self._set_clip_and_step(self.shares.squared_slope() / self.public.slope**2)
        answer = self.queries.query(self.matrix.T @ self.point, self.clip, self.unit, self.level)
        gradient, noise, constant = answer.gradient @ self.queries.scores.table_projection, self.noise, self.constant
        if self.shares is not None and constant is not None:
            weights, mean = self.metric.signal * constant, constant / (self.queries.constant * self.fit.size)
            place = weights @ self.point / (self.metric.signal @ constant**2)
            heard = float(np.linalg.norm(mean)) * noise / math.sqrt(self.rounds)
            self.shares.learn(place * self.queries.constant, mean @ gradient, heard, self.clip)
        step = self.implicit.direction(self.point, gradient, self.step_factor * self.step)
        back, far = -float((step * self.last).sum()), float(np.linalg.norm(self.last))
        if back > far * max(REVERSAL * far, REVERSAL_NOISE * noise / math.sqrt(self.rounds)):
            self.step_factor /= 2
            step = self.implicit.direction(self.point, gradient, self.step_factor * self.step)
        self.point, self.last = self.point + self.step_factor * self.step * step, step
        averaged = math.ceil(self.averaged_part * self.rounds)
        weight = (t >= self.rounds - averaged) / averaged
        self.average += self.point * weight
        self.pull_average += self.implicit.pull * weight
        self.feasible_average += self.implicit.feasible * weight

    def run(self) -> ScoreModel:
        """Take all steps; return the average of the last points, with its length and constants set by further noisy sums."""
        for t in Stage.steps(self.rounds):
            self.take_step(t)
        fit, scores, public, metric = self.fit, self.queries.scores, self.public, self.metric
        average = self._shortened()
        table, inverse = self.matrix.T @ average, np.linalg.inv(self.matrix)
        spread = math.sqrt(float((metric.signal[:, None] * average**2).sum()) / fit.size)
        # Include the part that no score reads.
        read = scores.coordinates(scores.table(self.feasible_average) @ scores.table_projection)
        theta = scores.coordinates(table * self.queries.units) + self.feasible_average - read
        slopes_at, ends = partial(slopes_of, self.form, theta, fit.size), self.implicit.lengths(theta)
        factor = length_factor(fit, table, spread, slopes_at, ends)
        found = table * factor
        if self.shifts:
            found = balance_constants(fit, found, factor * spread, *self._pulls_on_constants())
        hessian, moved = public.curvature * inverse @ inverse.T, factor * self.step * self.noise * self.matrix.T
        return ScoreModel(found, hessian, moved, table, None if self.implicit.is_plain else self.pull_average)

    def _shortened(self) -> Array:
        """Return the average of the last points, shrunk for its noise."""
        fit, public, signal = self.fit, self.public, self.metric.signal
        curved = WEAK if self.queries.scores.is_shared else CURVED
        holds = 2 * curved * self.rounds * public.curvature * self.step
        lost = (self.step * self.noise) ** 2 * signal / (1 + holds * signal) * self.columns
        best = None if self.shares is None else self.shares.best() / self.queries.constant
        moved = max(math.sqrt(float(lost.sum()) / fit.size), 1e-300)
        least = min(max(HARMLESS * public.slope / (public.curvature * moved), LEAST_LENGTH), 1.0)
        return self.start + james_stein_of_classes(self.average - self.start, signal, lost, self.constant, best, least)

    def _pulls_on_constants(self) -> tuple[Array, Array]:
        """Return the regularizer's gradient by the constants, per record: the factors of its linear part, and its fixed part."""
        scores, size, fixed = self.queries.scores, self.fit.size, np.zeros(self.queries.scores.shape[1])
        ridges = fixed if self.squares is None else self.squares[-1] / self.queries.constant**2
        if not self.implicit.is_plain:
            ridges, fixed = 0 * ridges, (scores.from_table.T @ self.pull_average).reshape(scores.shape[::-1])[:, -1]
        return ridges / size, fixed / size


def james_stein_of_classes(
    point: Array, weights: Array, lost: Array, constant: Array | None, best: Array | None, least: float
) -> Array:
    """Shrink the steps by one James-Stein factor, for the length that noise added; the factor is at least `least`.

    The smaller the factor, the nearer constants move to `best`, the constants of label shares alone.  Without `best` all is
    shrunk alike, and signs stay.
    """
    fixed, noise = np.zeros_like(point), float(lost.sum())
    if constant is not None:
        fixed = constant_part(point, weights, constant)
        noise -= float(lost @ (weights * constant**2)) / float(weights @ constant**2)
    moving = point - fixed
    signal = max(float((weights[:, None] * moving**2).sum()), 1e-300)
    factor = max(least, 1 - max(noise, 0.0) / signal)  # A value below 0 is rounding: only the constant stands out
    if constant is None or best is None:
        return factor * point
    alone = min(1.0, TO_LABELS * (1 - factor))
    fixed = (1 - alone) * fixed + alone * np.outer(constant, best)
    return np.asarray(fixed + factor * moving)


def length_factor(
    fit: Fit, table: Array, spread: float, slopes_at: Callable[[float], tuple[float, float]], ends: tuple[float, float]
) -> float:
    """Return a factor for the parameters, by a Kalman filter of noisy slopes along them; `spread` is the RMS of the scores."""
    queries, level, bend = fit.queries, fit.level_of(LENGTHS_SHARE / LENGTH_QUERIES), fit.size * fit.public.curvature
    unit = loss_unit(queries.scores, fit.public)
    found, variance, columns = 1.0, LENGTH_DEVIATION**2, np.trace(queries.scores.projection)
    if not spread > 0:
        return 1.0
    # The curvature of logistic losses at normal scores; each of many classes has a part of it.
    flatter = math.pi / 4 * spread**2 / (1 + columns)
    sharp = bend * spread / (1 + flatter) ** 1.5 * level / queries.sum_sensitivity(unit, 2.0)
    reach = spread * unit * min(max(SPREAD_REACH, REACH_AT_1 / max(spread, 1.0), BLURRED * sharp), MAX_REACH)
    noise = queries.sum_sensitivity(reach, 2.0) / level
    for _ in range(LENGTH_QUERIES):
        answer = queries.query(table * found, cap=reach * found, along_level=level)
        pulled, held = slopes_at(found)
        slope = (float(answer.along[0]) + pulled) / found
        curved = bend * spread**2 / (1 + flatter * found**2) ** 1.5 + held / found**2
        gain = variance * curved / (variance * curved**2 + noise**2)
        nearer = min(max(found - gain * slope, LEAST_CHANGE * found, ends[0]), MOST_CHANGE * found, ends[1])
        variance = (1 - gain * curved) * variance + (CHANGE_DOUBT * (nearer - found)) ** 2
        found = nearer
    return found


def balance_constants(fit: Fit, table: Array, spread: float, ridge: Array, pull: Array) -> Array:
    """Return the table with constants at which slopes, the ridge and the pull sum to about 0.

    The constants follow a Kalman filter of noisy mean slopes.
    """
    queries, public, size, level = fit.queries, fit.public, fit.size, fit.level_of(SHIFTS / LENGTH_QUERIES)
    assert public.of_labels is not None
    table, most = table.copy(), public.lipschitz * math.sqrt(queries.privacy.most)
    margin = float(public.of_labels(np.zeros(table.shape[1]))[0].mean()) / public.slope
    curved = public.lipschitz / 2 / (margin + spread) + ridge
    variance = (PRIOR_DEVIATION * margin) ** 2 * np.ones_like(ridge)
    noise = queries.sensitivity * most / (level * size)
    queries.set_metric(np.eye(len(table))[-1:] / queries.constant)
    for _ in range(LENGTH_QUERIES):
        slopes = (queries.query(table, most, 1.0, level).gradient @ queries.scores.table_projection)[0] / size
        slopes = slopes + ridge * table[-1] * queries.constant + pull
        gain = variance * curved / (variance * curved**2 + noise**2)
        table[-1] -= np.clip(gain * slopes, -margin, margin) / queries.constant
        variance *= 1 - gain * curved
    return table
