"""The steps of `AdaptiveSteps` for classes, post-processing: long steps of clipped slopes, then looks for the length."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.optim.adaptive_descent import ScoreModel, centre, constant_direction, descend_adaptively, regularize
from dpconvex.optim.constant_models import LabelShares, shared_constants
from dpconvex.optim.implicit_steps import ImplicitSteps, slopes_of, stiffness
from dpconvex.optim.noisy_metrics import row_metric, truncate_rows
from dpconvex.optim.public_slopes import public_facts
from dpconvex.optim.slope_histograms import Fit
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.public_terms import pulls_away_from_zero
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

# Parts of the squared level, of the second moment and of looks for the length; the steps have the rest.
MOMENT_SHARE, LENGTHS_SHARE = 0.12, 0.06
# The ridge, next to the edge of the moment's noise: so many deviations of an entry, between these ends.
RIDGE_ENDS, ENTRY = (0.25, 0.5), 2.2
CLASS_STEPS, AVERAGED = 64, 0.3  # Steps, and the part of them, the last ones, that are averaged
# The clip, next to the largest slope, and by how much wider it is with a regularizer as stiff as the loss, and at most.  Where
# slopes are no longer far away than near 0, as those of hinges, it begins at 1: those that count are about as long.
CLIP_PART, STIFFER, HINGES, MAX_CLIP = 0.35, 4.0, 1 - 1e-6, 3.0
# At most, with another regularizer than squares; and by how much wider it is where K holds scores.
MAX_OTHER_CLIP, BOUND = 0.7, 1.4
# The clip's bias does not fall with more records: it widens from so many records and units of the level for each direction and
# column.
WIDENING = 50.0
# The step: how far the noise of all steps may move a score, and how much further for each direction next to records and unit of
# the level; which part of the curvature at 0 holds it back; the longest step, next to Newton's where curvature is largest.
MOVED, NOISY, CURVED, MAX_STEP = 0.6, 15.0, 0.1, 12.0
# NOISY, AVERAGED and WIDENING where scores share parameters, and the curvature that holds back noise if effects are weak, next to
# that at 0.
SHARED, WEAK = (3.0, 0.5, 20.0), 0.25
# The least length that noise leaves of steps; noise of scores that may stay, next to slope and curvature; and how fast constants
# become those of labels alone where steps are shortened.
LEAST_LENGTH, HARMLESS, TO_LABELS = 0.1, 0.2, 2.0
# From so long slopes near 0 on, next to those far away, scores say no probabilities: they are shortened with their constants.
HINGE_SLOPES = 0.9
# The part of the squared level for looks at their constants, and the deviation of these before, next to the margin.
SHIFTS, APART = 0.03, 0.7
# Steps are halved where a gradient takes back so much of the last one, and so many deviations of its noise.
REVERSAL, REVERSAL_NOISE = 0.5, 3.0
# Looks for the length: how many, with which deviation they begin, and which part of a change is doubted.
LENGTH_LOOKS, LENGTH_DEVIATION, CHANGE_DOUBT = 4, 0.5, 0.3
LEAST_CHANGE, MOST_CHANGE = 0.5, 1.5  # Of one look
# The least and the largest clip of slopes along the parameters, next to the spread of scores, and the noise that it may have.
# Where scores tell little, slopes are long on both sides, and the clip is near 1: a shorter one hides that scores are too long.
SPREAD_REACH, REACH_AT_1, MAX_REACH, BLURRED = 0.7, 1.2, 3.0, 0.1
CHOICE = 0.03  # Curvature next to squared slopes, at least, where shared scores are those of choices
NEAR_KINKS = 150.0  # Records and unit of the level for each parameter, from which steps of classes end nearer to kinks


def take_steps(form: LossForm, settings: dict[str, float], size: float, seen: tuple[Any, ...]) -> tuple[Array, Array]:
    """Return where steps end, in coordinates, and what noise moved the table's columns by at most; unlike ones step alone."""
    each, found = [public_facts(form)], list[tuple[Array, Array]]()
    if each[0][1].is_uneven and not pulls_away_from_zero(form) and ridge_of(form) is not None:
        each = [public_facts(form, column) for column in range(each[0][0].shape[1])]
    level, rounds = settings["level"] / math.sqrt(len(each)), settings.get("rounds")
    for scores, public in each:
        classes = (tells_classes(form, scores.fields) or public.has_one_side) and not pulls_away_from_zero(form)
        # Of shared scores, sums of many losses have slopes so long that steps of classes would be far too short; but
        # curvature that nonsmooth points have by their width is none to step by, where records are many.
        alone = not scores.is_shared or public.smoothness >= CHOICE * public.lipschitz**2
        alone = alone or (scores.width > 0 and size * level > NEAR_KINKS * form.basis.shape[1])
        # One second moment says little of rows of products, unless slopes have one sign alone.
        alone = alone and (public.has_one_side or not scores.has_mixed_products)
        take = descend_for_classes if public.is_lipschitz and classes and alone else descend_adaptively
        found.append(take(Fit(PrivateLooks(scores, *seen), public, level, size, rounds), form))
    return np.sum([theta for theta, _ in found], axis=0), max((noise for _, noise in found), key=np.linalg.norm)


def descend_for_classes(fit: Fit, form: LossForm) -> tuple[Array, Array]:
    """Return the parameters that the steps end at, in coordinates, shape (dim,), and what noise moved the table's columns by."""
    table, hessian, moved, _, pull = ClassDescent(fit, form).run()
    theta, ridge = fit.looks.parameters(table), ridge_of(form, free=False)
    if ridge_of(form) is not None:
        return theta, moved
    if pull is None and ridge is not None:
        pull = fit.size * ridge * theta
    return regularize(fit, form, table, hessian, pull), moved


class ClassDescent:
    """Clipped noisy gradient steps with implicit steps of the regularizer and K; the last points are averaged."""

    def __init__(self, fit: Fit, form: LossForm) -> None:
        self.fit, self.form, self.looks, self.public, scores = fit, form, fit.looks, fit.public, fit.looks.scores
        spent = truncate_rows(fit) if ridge_of(form) is None and scores.monomials is not None else 0.0
        begin = np.zeros(scores.shape)
        if scores.is_shared and self.public.of_labels is not None:
            # With many rows, steps are short, and end near where they begin.
            begin, more = shared_constants(fit, self.public.of_labels)
            spent += more
        edge = float(np.clip(ENTRY / math.sqrt(2 * fit.looks.rows.count), *RIDGE_ENDS))
        self.metric, *_ = row_metric(fit, MOMENT_SHARE, edge, denoised=True)
        self.matrix = fit.looks.set_metric(self.metric.matrix)
        self.constant, self.columns = constant_direction(fit, self.matrix), float(np.trace(scores.table_projection))
        self.many = fit.size * fit.level / (fit.looks.sensitivity * self.metric.effective_dim)
        self.implicit = ImplicitSteps(fit, form, self.matrix, self.many)
        ridge = ridge_of(form, free=False)
        # Twice the weights of squares of the table
        self.squares = None if ridge is None else fit.size * scores.squares(ridge) * fit.looks.units**2
        self.rounds = int(CLASS_STEPS if fit.rounds is None else fit.rounds)
        unlikely = self.public.slope >= HINGE_SLOPES * self.public.lipschitz  # Scores say no probabilities
        told = None if self.constant is None else self.public.of_labels
        self.shifts = SHIFTS if unlikely and told is not None else 0.0
        self.shares = None if told is None or unlikely else LabelShares(told, len(scores.projection))
        self.level = fit.level_of((1 - MOMENT_SHARE - LENGTHS_SHARE - self.shifts - spent) / self.rounds)
        self._set_clip_and_step()
        self.start = self.point = np.asarray(np.linalg.solve(self.matrix.T, begin), dtype=float)
        self.average, self.last, self.step_factor = np.zeros(scores.shape), np.zeros(scores.shape), 1.0
        self.pull_average, self.feasible_average = np.zeros((2, form.space.dim))  # As averages, too

    def _set_clip_and_step(self) -> None:
        """Set the clip, the step size, and the deviation of the noise of all gradients."""
        fit, looks, public, metric = self.fit, self.looks, self.public, self.metric
        noisy, self.averaged_part, enough = SHARED if looks.scores.is_shared else (NOISY, AVERAGED, WIDENING)
        part = self._relative_clip()
        wider = min(max(math.sqrt(self.many / (enough * self.columns)), 1.0), max(1 / part, 1.0))
        bound = public.slope < HINGES * public.lipschitz and self.squares is not None and not self.implicit.is_plain
        part *= wider * math.sqrt(looks.privacy.most) * (BOUND if bound else 1.0)
        widest = math.sqrt(looks.rows.squared_norm(looks.scores.radius)) * looks.rows.grid
        longest = (widest if public.metric is None else public.metric.longest) / metric.root.min()
        self.clip, self.unit = part * public.slope, min(math.sqrt(metric.effective_dim / fit.size), longest)
        self.noise = self.unit * looks.sensitivity * self.clip / self.level * math.sqrt(self.rounds)
        step = MAX_STEP / max(wider * public.smoothness, public.lipschitz**2 / 4)
        moved = MOVED * (1 + noisy / self.many)
        for _ in range(32):  # Curvature holds back noise, and it holds back more where steps are longer
            left = metric.signal / (1 + 2 * CURVED * self.rounds * public.curvature * step * metric.signal)
            step = min(step, moved / max(self.noise * math.sqrt(float(left.sum()) / fit.size), 1e-300))
        self.step = step

    def _relative_clip(self) -> float:
        """Return the clip divided by the largest slope: it is wider where the regularizer is stiff."""
        fit, public, metric, most = self.fit, self.public, self.metric, 1.0
        if self.squares is not None:
            squares = self.squares.max() * float((metric.signal / metric.root**2).sum())
            stiff = squares / (metric.effective_dim * public.curvature)
        else:
            stiff, most = stiffness(fit, self.form, metric, self.matrix) / public.curvature, MAX_OTHER_CLIP
        least, most = (1.0, MAX_CLIP) if public.slope >= HINGES * public.lipschitz else (CLIP_PART, most)
        return float(min(least * (1 + STIFFER * stiff), most))

    def take_step(self, t: int) -> None:
        """Ask for the noisy gradient, and take step `t`; halve steps where it turns back the last one."""
        answer = self.looks.look(self.matrix.T @ self.point, self.clip, self.unit, self.level)
        gradient, noise, constant = answer.gradient @ self.looks.scores.table_projection, self.noise, self.constant
        if self.shares is not None and constant is not None:
            weights, mean = self.metric.signal * constant, constant / (self.looks.constant * self.fit.size)
            place = weights @ self.point / (self.metric.signal @ constant**2)
            heard = float(np.linalg.norm(mean)) * noise / math.sqrt(self.rounds)
            self.shares.learn(place * self.looks.constant, mean @ gradient, heard, self.clip)
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
        """Take all steps; return the average of the last points, with its length and its constants set by more noisy sums."""
        for t in range(self.rounds):
            self.take_step(t)
        fit, scores, public, metric = self.fit, self.looks.scores, self.public, self.metric
        average = self._shortened()
        table, inverse = self.matrix.T @ average, np.linalg.inv(self.matrix)
        spread = math.sqrt(float((metric.signal[:, None] * average**2).sum()) / fit.size)
        # With what no score reads.
        read = scores.coordinates(scores.table(self.feasible_average) @ scores.table_projection)
        theta = scores.coordinates(table * self.looks.units) + self.feasible_average - read
        slopes_at, ends = partial(slopes_of, self.form, theta, fit.size), self.implicit.lengths(theta)
        factor = length_factor(fit, table, spread, slopes_at, ends)
        found = table * factor
        if self.shifts:
            found = balance_constants(fit, found, factor * spread, *self._pulls_on_constants())
        hessian, moved = public.curvature * inverse @ inverse.T, factor * self.step * self.noise * self.matrix.T
        return ScoreModel(found, hessian, moved, table, None if self.implicit.is_plain else self.pull_average)

    def _shortened(self) -> Array:
        """Return the average of the last points, shrunk for the noise in it."""
        fit, public, signal = self.fit, self.public, self.metric.signal
        curved = WEAK if self.looks.scores.is_shared else CURVED
        holds = 2 * curved * self.rounds * public.curvature * self.step
        lost = (self.step * self.noise) ** 2 * signal / (1 + holds * signal) * self.columns
        best = None if self.shares is None else self.shares.best() / self.looks.constant
        moved = max(math.sqrt(float(lost.sum()) / fit.size), 1e-300)
        least = min(max(HARMLESS * public.slope / (public.curvature * moved), LEAST_LENGTH), 1.0)
        return self.start + james_stein_of_classes(self.average - self.start, signal, lost, self.constant, best, least)

    def _pulls_on_constants(self) -> tuple[Array, Array]:
        """Return the regularizer's pull on the constants, by record: the factors of linear pulls, and fixed pulls."""
        scores, size, fixed = self.looks.scores, self.fit.size, np.zeros(self.looks.scores.shape[1])
        ridges = fixed if self.squares is None else self.squares[-1] / self.looks.constant**2
        if not self.implicit.is_plain:
            ridges, fixed = 0 * ridges, (scores.from_table.T @ self.pull_average).reshape(scores.shape[::-1])[:, -1]
        return ridges / size, fixed / size


def james_stein_of_classes(
    point: Array, weights: Array, lost: Array, constant: Array | None, best: Array | None, least: float
) -> Array:
    """Shorten the steps by what noise made them longer, by one James-Stein factor.

    They keep a part `least`.  The looser the rest is known, the nearer constants come to the best
    ones by shares of labels alone; without these, all is shortened alike, and signs stay.
    """
    fixed, noise = np.zeros_like(point), float(lost.sum())
    if constant is not None:
        fixed = centre(point, weights, constant)
        noise -= float(lost @ (weights * constant**2)) / float(weights @ constant**2)
    moving = point - fixed
    signal = max(float((weights[:, None] * moving**2).sum()), 1e-300)
    factor = max(least, 1 - max(noise, 0.0) / signal)  # Below 0 is rounding, where only the constant stands out
    if constant is None or best is None:
        return factor * point
    alone = min(1.0, TO_LABELS * (1 - factor))
    fixed = (1 - alone) * fixed + alone * np.outer(constant, best)
    return np.asarray(fixed + factor * moving)


def length_factor(
    fit: Fit, table: Array, spread: float, slopes_at: Callable[[float], tuple[float, float]], ends: tuple[float, float]
) -> float:
    """Return what to multiply parameters by: a Kalman filter of noisy slopes along them, for a root mean square of scores."""
    looks, level, bend = fit.looks, fit.level_of(LENGTHS_SHARE / LENGTH_LOOKS), fit.size * fit.public.curvature
    found, variance, columns = 1.0, LENGTH_DEVIATION**2, np.trace(looks.scores.projection)
    if not spread > 0:
        return 1.0
    # The curvature of logistic losses where scores are normal; of many classes, each has a part of them.
    flatter = math.pi / 4 * spread**2 / (1 + columns)
    sharp = bend * spread / (1 + flatter) ** 1.5 * level / looks.sum_sensitivity(1.0, 2.0)
    reach = spread * min(max(SPREAD_REACH, REACH_AT_1 / max(spread, 1.0), BLURRED * sharp), MAX_REACH)
    noise = looks.sum_sensitivity(reach, 2.0) / level
    for _ in range(LENGTH_LOOKS):
        answer = looks.look(table * found, cap=reach * found, along_level=level)
        pulled, held = slopes_at(found)
        slope = (float(answer.along[0]) + pulled) / found
        curved = bend * spread**2 / (1 + flatter * found**2) ** 1.5 + held / found**2
        gain = variance * curved / (variance * curved**2 + noise**2)
        nearer = min(max(found - gain * slope, LEAST_CHANGE * found, ends[0]), MOST_CHANGE * found, ends[1])
        variance = (1 - gain * curved) * variance + (CHANGE_DOUBT * (nearer - found)) ** 2
        found = nearer
    return found


def balance_constants(fit: Fit, table: Array, spread: float, ridge: Array, pull: Array) -> Array:
    """Return scores whose constants make slopes add up to about 0, but for a ridge and what else pulls them.

    A Kalman filter of noisy mean slopes.
    """
    looks, public, size, level = fit.looks, fit.public, fit.size, fit.level_of(SHIFTS / LENGTH_LOOKS)
    assert public.of_labels is not None
    table, most = table.copy(), public.lipschitz * math.sqrt(looks.privacy.most)
    margin = float(public.of_labels(np.zeros(table.shape[1]))[0].mean()) / public.slope
    curved, variance = public.lipschitz / 2 / (margin + spread) + ridge, (APART * margin) ** 2 * np.ones_like(ridge)
    noise = looks.sensitivity * most / (level * size)
    looks.set_metric(np.eye(len(table))[-1:] / looks.constant)
    for _ in range(LENGTH_LOOKS):
        slopes = (looks.look(table, most, 1.0, level).gradient @ looks.scores.table_projection)[0] / size
        slopes = slopes + ridge * table[-1] * looks.constant + pull
        gain = variance * curved / (variance * curved**2 + noise**2)
        table[-1] -= np.clip(gain * slopes, -margin, margin) / looks.constant
        variance *= 1 - gain * curved
    return table
