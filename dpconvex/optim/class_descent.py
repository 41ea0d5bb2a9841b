"""The steps of `AdaptiveSteps` for classes, post-processing: long steps of clipped slopes, then looks for the length."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.optim.adaptive_descent import ScoreModel, centre, constant_in, descend, regularized
from dpconvex.optim.constant_models import LabelShares, shared_constants
from dpconvex.optim.implicit_steps import ImplicitSteps, slopes_of, stiffness
from dpconvex.optim.noisy_metrics import shorten_rows, whole_rows
from dpconvex.optim.public_slopes import known_of
from dpconvex.optim.slope_histograms import Fit
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.public_terms import pulls
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

# Parts of the squared level, of the second moment and of looks for the length; the steps have the rest.
MOMENT, LENGTHS = 0.12, 0.06
# The ridge, next to the edge of the moment's noise: so many deviations of an entry, between these ends.
EDGE, ENTRY = (0.25, 0.5), 2.2
ROUNDS, AVERAGED = 64, 0.3  # Steps, and the part of them, the last ones, that are averaged
# The clip, next to the largest slope, and by how much wider it is with a regularizer as stiff as the loss, and at most.  Where
# slopes are no longer far away than near 0, as those of hinges, it begins at 1: those that count are about as long.
PART, STIFFER, FLAT, WIDEST = 0.35, 4.0, 1 - 1e-6, 3.0
# At most, with another regularizer than squares; and by how much wider it is where K holds scores.
HELD, BOUND = 0.7, 1.4
# The clip's bias does not fall with more records: it widens from so many records and units of the level for each direction and
# column.
MANY = 50.0
# The step: how far the noise of all steps may move a score, and how much further for each direction next to records and unit of
# the level; which part of the curvature at 0 holds it back; the longest step, next to Newton's where curvature is largest.
MOVED, NOISY, CURVED, LONGEST = 0.6, 15.0, 0.1, 12.0
# NOISY, AVERAGED and MANY where scores share parameters, and the curvature that holds back noise if effects are weak, next to
# that at 0.
SHARED, WEAK = (3.0, 0.5, 20.0), 0.25
# The least length that noise leaves of steps; noise of scores that may stay, next to slope and curvature; and how fast constants
# become those of labels alone where steps are shortened.
LEAST, HARMLESS, ALONE = 0.1, 0.2, 2.0
# From so long slopes near 0 on, next to those far away, scores say no probabilities: they are shortened with their constants.
MARGIN = 0.9
# The part of the squared level for looks at their constants, and the deviation of these before, next to the margin.
SHIFTS, APART = 0.03, 0.7
# Steps are halved where a gradient takes back so much of the last one, and so many deviations of its noise.
TURNED, SURE = 0.5, 3.0
# Looks for the length: how many, with which deviation they begin, and which part of a change is doubted.
LOOKS, DEVIATION, MISSED = 4, 0.5, 0.3
SHORTEST, LONGER = 0.5, 1.5  # Of one look
# The least and the largest clip of slopes along the parameters, next to the spread of scores, and the noise that it may have.
# Where scores tell little, slopes are long on both sides, and the clip is near 1: a shorter one hides that scores are too long.
REACH, NEAR, FARTHEST, BLURRED = 0.7, 1.2, 3.0, 0.1
CHOICE = 0.03  # Curvature next to squared slopes, at least, where shared scores are those of choices
PLENTY = 150.0  # Records and unit of the level for each parameter, from which steps of classes end nearer to kinks


def take_steps(form: LossForm, settings: dict[str, float], size: float, seen: tuple[Any, ...]) -> tuple[Array, Array]:
    """Return where steps end, in coordinates, and what noise moved the table's columns by at most; unlike ones step alone."""
    each, found = [known_of(form)], list[tuple[Array, Array]]()
    if each[0][1].is_uneven and not pulls(form) and ridge_of(form) is not None:
        each = [known_of(form, column) for column in range(each[0][0].shape[1])]
    level, rounds = settings["level"] / math.sqrt(len(each)), settings.get("rounds")
    for scores, public in each:
        classes = (tells_classes(form, scores.fields) or public.has_one_side) and not pulls(form)
        # Of shared scores, sums of many losses have slopes so long that steps of classes would be far too short; but
        # curvature that nonsmooth points have by their width is none to step by, where records are many.
        alone = not scores.is_shared or public.most_curvature >= CHOICE * public.most_slope**2
        alone = alone or (scores.width > 0 and size * level > PLENTY * form.basis.shape[1])
        # One second moment says little of rows of products, unless slopes have one sign alone.
        alone = alone and (public.has_one_side or not scores.has_mixed_products)
        take = descend_for_classes if public.is_flat and classes and alone else descend
        found.append(take(Fit(PrivateLooks(scores, *seen), public, level, size, rounds), form))
    return np.sum([theta for theta, _ in found], axis=0), max((noise for _, noise in found), key=np.linalg.norm)


def descend_for_classes(fit: Fit, form: LossForm) -> tuple[Array, Array]:
    """Return the parameters that the steps end at, in coordinates, shape (dim,), and what noise moved the table's columns by."""
    table, hessian, moved, _, pull = class_model_of(fit, form)
    theta, ridge = fit.looks.parameters(table), ridge_of(form, free=False)
    if ridge_of(form) is not None:
        return theta, moved
    if pull is None and ridge is not None:
        pull = fit.size * ridge * theta
    return regularized(fit, form, table, hessian, pull), moved


def class_model_of(fit: Fit, form: LossForm) -> ScoreModel:
    """Take steps; the Hessian is about that of the loss."""
    looks, public, level, size = fit.looks, fit.public, fit.level, fit.size
    scores, sides = looks.scores, looks.sides
    spent = shorten_rows(fit) if ridge_of(form) is None and scores.monomials is not None else 0.0
    begin = np.zeros(scores.shape)
    if scores.is_shared and public.of_labels is not None:
        # With many rows, steps are short, and end near where they begin.
        begin, more = shared_constants(fit, public.of_labels)
        spent += more
    edge = float(np.clip(ENTRY / math.sqrt(2 * looks.rows.count), *EDGE))
    metric, *_ = whole_rows(fit, MOMENT, edge, denoised=True)
    matrix = looks.in_metric(metric.matrix)
    units, ridge = looks.units, ridge_of(form, free=False)
    along, most = constant_in(fit, matrix), 1.0
    squares = np.zeros(scores.shape)
    if ridge is not None:
        squares = size * scores.squares(ridge) * units**2  # twice the weights of squares of the table
        stiff = squares.max() * float((metric.kept / metric.root**2).sum()) / (metric.directions * public.curvature)
    else:
        stiff, most = stiffness(form, scores, metric, matrix, units, size) / public.curvature, HELD
    least, most = (1.0, WIDEST) if public.slope >= FLAT * public.most_slope else (PART, most)
    part = min(least * (1 + STIFFER * stiff), most)
    widest = math.sqrt(looks.rows.squared_norm(scores.radius)) * looks.rows.grid
    longest = (widest if public.metric is None else public.metric.longest) / metric.root.min()
    unit, rounds = min(math.sqrt(metric.directions / size), longest), int(ROUNDS if fit.rounds is None else fit.rounds)
    noisy, last_part, enough = SHARED if scores.is_shared else (NOISY, AVERAGED, MANY)
    many = size * level / (sides * metric.directions)
    wider = min(max(math.sqrt(many / (enough * float(np.trace(scores.onto_columns)))), 1.0), max(1 / part, 1.0))
    implicit = ImplicitSteps(form, scores, matrix, units, size, many)
    bound = least == PART and ridge is not None and not implicit.is_plain
    part *= wider * math.sqrt(looks.privacy.most) * (BOUND if bound else 1.0)
    unlikely = public.slope >= MARGIN * public.most_slope  # Scores say no probabilities
    told = None if along is None else public.of_labels
    shifts = SHIFTS if unlikely and told is not None else 0.0
    clip, step_level = part * public.slope, fit.level_of((1 - MOMENT - LENGTHS - shifts - spent) / rounds)
    noise = unit * sides * clip / step_level * math.sqrt(rounds)
    step = LONGEST / max(wider * public.most_curvature, public.most_slope**2 / 4)
    moved = MOVED * (1 + noisy / many)
    for _ in range(32):  # Curvature holds back noise, and it holds back more where steps are longer
        left = metric.kept / (1 + 2 * CURVED * rounds * public.curvature * step * metric.kept)
        step = min(step, moved / max(noise * math.sqrt(float(left.sum()) / size), 1e-300))
    first = np.asarray(np.linalg.solve(matrix.T, begin), dtype=float)
    point, average, last = first, np.zeros(scores.shape), np.zeros(scores.shape)
    slopes, held = np.zeros((2, form.space.dim))
    shares = None if told is None or unlikely else LabelShares(told, len(scores.onto_kinds))
    averaged, pace = math.ceil(last_part * rounds), 1.0
    for t in range(rounds):
        gradient = looks.look(matrix.T @ point, clip, unit, step_level).gradient @ scores.onto_columns
        if shares is not None and along is not None:
            place, mean = metric.kept * along @ point / (metric.kept @ along**2), along / (looks.constant * size)
            heard = float(np.linalg.norm(mean)) * noise / math.sqrt(rounds)
            shares.learn(place * looks.constant, mean @ gradient, heard, clip)
        way = implicit.direction(point, gradient, pace * step)
        back, far = -float((way * last).sum()), float(np.linalg.norm(last))
        if back > far * max(TURNED * far, SURE * noise / math.sqrt(rounds)):
            pace /= 2
            way = implicit.direction(point, gradient, pace * step)
        point, last = point + pace * step * way, way
        average += point * ((t >= rounds - averaged) / averaged)
        slopes += implicit.pull * ((t >= rounds - averaged) / averaged)
        held += implicit.inside * ((t >= rounds - averaged) / averaged)
    holds = 2 * (WEAK if scores.is_shared else CURVED) * rounds * public.curvature * step
    lost = (step * noise) ** 2 * metric.kept / (1 + holds * metric.kept) * float(np.trace(scores.onto_columns))
    best = None if shares is None else shares.best() / looks.constant
    harmless = HARMLESS * public.slope / (public.curvature * max(math.sqrt(float(lost.sum()) / size), 1e-300))
    average = first + shorter(average - first, metric.kept, lost, along, best, min(max(harmless, LEAST), 1.0))
    table = matrix.T @ average
    spread = math.sqrt(float((metric.kept[:, None] * average**2).sum()) / size)
    # With what no score reads.
    theta = scores.coordinates(table * units) + held - scores.coordinates(scores.table(held) @ scores.onto_columns)
    slopes_at, ends = partial(slopes_of, form, theta, size), implicit.lengths(theta)
    factor = length(fit, table, spread, slopes_at, ends)
    inverse = np.linalg.inv(matrix)
    found = table * factor
    if shifts:
        ridges, fixed = squares[-1] / looks.constant**2, np.zeros(scores.shape[1])
        if not implicit.is_plain:
            ridges, fixed = 0 * ridges, (scores.shortest.T @ slopes).reshape(scores.shape[::-1])[:, -1]
        found = balanced(fit, found, factor * spread, ridges / size, fixed / size)
    pull = None if implicit.is_plain else slopes
    hessian, moved_by = public.curvature * inverse @ inverse.T, factor * step * noise * matrix.T
    return ScoreModel(found, hessian, moved_by, table, pull)


def shorter(
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
    alone = min(1.0, ALONE * (1 - factor))
    fixed = (1 - alone) * fixed + alone * np.outer(constant, best)
    return np.asarray(fixed + factor * moving)


def length(
    fit: Fit, table: Array, spread: float, slopes_at: Callable[[float], tuple[float, float]], ends: tuple[float, float]
) -> float:
    """Return what to multiply parameters by: a Kalman filter of noisy slopes along them, for a root mean square of scores."""
    looks, level, bend = fit.looks, fit.level_of(LENGTHS / LOOKS), fit.size * fit.public.curvature
    found, variance, columns = 1.0, DEVIATION**2, np.trace(looks.scores.onto_kinds)
    if not spread > 0:
        return 1.0
    # The curvature of logistic losses where scores are normal; of many classes, each has a part of them.
    flatter = math.pi / 4 * spread**2 / (1 + columns)
    sharp = bend * spread / (1 + flatter) ** 1.5 * level / looks.counted(1.0, 2.0)
    reach = spread * min(max(REACH, NEAR / max(spread, 1.0), BLURRED * sharp), FARTHEST)
    noise = looks.counted(reach, 2.0) / level
    for _ in range(LOOKS):
        answer = looks.look(table * found, cap=reach * found, along_level=level)
        pulled, held = slopes_at(found)
        slope = (float(answer.along[0]) + pulled) / found
        curved = bend * spread**2 / (1 + flatter * found**2) ** 1.5 + held / found**2
        gain = variance * curved / (variance * curved**2 + noise**2)
        nearer = min(max(found - gain * slope, SHORTEST * found, ends[0]), LONGER * found, ends[1])
        variance = (1 - gain * curved) * variance + (MISSED * (nearer - found)) ** 2
        found = nearer
    return found


def balanced(fit: Fit, table: Array, spread: float, ridge: Array, pull: Array) -> Array:
    """Return scores whose constants make slopes add up to about 0, but for a ridge and what else pulls them.

    A Kalman filter of noisy mean slopes.
    """
    looks, public, size, level = fit.looks, fit.public, fit.size, fit.level_of(SHIFTS / LOOKS)
    assert public.of_labels is not None
    table, most = table.copy(), public.most_slope * math.sqrt(looks.privacy.most)
    margin = float(public.of_labels(np.zeros(table.shape[1]))[0].mean()) / public.slope
    curved, variance = public.most_slope / 2 / (margin + spread) + ridge, (APART * margin) ** 2 * np.ones_like(ridge)
    noise = looks.sides * most / (level * size)
    looks.in_metric(np.eye(len(table))[-1:] / looks.constant)
    for _ in range(LOOKS):
        slopes = (looks.look(table, most, 1.0, level).gradient @ looks.scores.onto_columns)[0] / size
        slopes = slopes + ridge * table[-1] * looks.constant + pull
        gain = variance * curved / (variance * curved**2 + noise**2)
        table[-1] -= np.clip(gain * slopes, -margin, margin) / looks.constant
        variance *= 1 - gain * curved
    return table
