"""The steps of `AdaptiveSteps`, post-processing: which questions are asked, and what is made of noisy answers."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotConverged
from dpconvex.optim.constant_first import refine_constant
from dpconvex.optim.constant_models import shared_constants
from dpconvex.optim.noisy_metrics import CURVATURES, fit_metrics, truncate_rows
from dpconvex.optim.noisy_quadratic import least_point
from dpconvex.optim.slope_histograms import CLIP_STEPS, FIRST_CLIP, HISTOGRAMS, MAX_RISE, Fit, LengthHistograms
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.public_terms import pulls_away_from_zero, scale_public_terms
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.util.arrays import Array, Indices

# Steps; there are fewer where there are fewer records than so many for each direction and unit of the level, and at most one for
# each so many records.  Where curvature depends on scores, steps are short: there are more of them, and so many at least.
MAX_STEPS, ALL_STEPS, SINGLE, VARYING_FEWEST, VARYING_ALL = 24, 30.0, 10.0, 4, 40.0
# Of a Newton step, also where curvature depends on scores; and the part of the steps, the last ones, that become shorter.
RATE, VARYING_RATE, DECAY = 1.2, 0.6, 0.4
# Where slopes balance, rare levels of counts may bend far more than most: more steps than so many are shorter, to this part,
# unless there are so many records for each direction and unit of the level.
UNHURRIED, SLOWEST, UNSLOWED = 6.0, 0.33, 300.0
# Below this cosine of two gradients in a row, longer than so many deviations of noise, steps become so much shorter.
OPPOSED_COSINE, ABOVE_NOISE, SLOWDOWN = -0.3, 2.0, 1.5
# How far scores move in a step, in root mean square, where curvature depends on them; by noise, where slopes balance.
SCORE_CHANGE, SCORE_NOISE = 0.5, 0.1
PERIOD = 4  # Curvature that does not depend on scores is asked for in each so many steps
# The part of the squared level for the length of scores; how long they count at most, next to what the metric says; and how much
# longer they become at most.
LENGTH, REACH, MAX_GROWTH = 0.04, 1.5, 5.0
# By how much the curvature falls in one step at most; the deviations of an answer that are doubted where it is about constant.
CURVATURE_FALL, STEADY = 2**0.25, 2.0
BINDING_NOISE = 0.25  # What noise of steps counts where K holds some of it back, unless K bounds parameters
# What counts of directions at least; the records for each direction and unit of the level beyond which noise shortens less.
MIN_SIGNAL, FEWER = 1e-3, 24.0
# The least clip next to the curvature where the constant begins, where slopes balance.
LEAST_CLIP = 0.5
# Records for each direction and unit of the level, below which constraints hold steps of targets; and how far they move one, next
# to its length, where they shorten noise themselves.
FEW_HELD, BINDING = 12.0, 0.01
# Without a constant, which tells how far scores spread, a curvature at kinks is a difference of slopes so much farther apart that
# noise hides less of it: by this, next to the noise of one, and by so much at most; then the same where steps leap to the middle.
WIDER_DIFFERENCES = ((40.0, 3.0), (140.0, 25.0))


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


def descend_adaptively(fit: Fit, form: LossForm) -> tuple[Array, Array]:
    """Return the parameters that the steps end at, in coordinates, shape (dim,), and what noise moved the table's columns by."""
    start, late = fit.public.start_table, form if ridge_of(form) is None else None
    pulled = pulls_away_from_zero(form) or start is not None
    steps = AdaptiveDescent(fit, 0.0 if start is None else start, form if pulled else None, late)
    table, hessian, noise, _, pull = steps.run()
    return fit.looks.parameters(table) if pulled else regularize(fit, form, table, hessian, pull), noise


class AdaptiveDescent:
    """Noisy gradient steps in a metric in which rows are about round; they update their clip, curvature and noise.

    A proximal step of the regularizer and the constraints of `form` follows each step.  Where `late` is given in its
    place, one follows if curvatures differ, labels are classes or records are few.
    """

    def __init__(
        self, fit: Fit, begin: Array | float = 0.0, form: LossForm | None = None, late: LossForm | None = None
    ) -> None:
        self.fit = fit = replace(fit, public=fit.public.of_steps)
        self.looks, self.public, scores = fit.looks, fit.public, fit.looks.scores
        self.columns, spent = float(np.trace(scores.table_projection)), truncate_rows(fit)
        begin = np.array(np.broadcast_to(begin, scores.shape), dtype=float)
        begin[-1:] += fit.public.center if fit.looks.constant else 0.0
        begin /= fit.looks.units
        losses_by_label = scores.is_shared and fit.public.start_table is None and fit.public.of_labels
        if losses_by_label:
            begin, spent = shared_constants(fit, losses_by_label)
        found = fit_metrics(fit, begin, spent, form is None)
        self.metric, self.matrix, self.num_records, left, self.truncation, self.start = found
        self.inverse = np.asarray(np.linalg.inv(self.matrix), dtype=float)
        self.form = None if form is None else scale_public_terms(form, self.num_records / fit.size)
        self.leverage = math.sqrt(self.metric.effective_dim / self.num_records)  # The root mean square of leverages
        # Records for each direction and unit of the level
        self.many = self.num_records * fit.level / (fit.looks.sensitivity * self.metric.effective_dim * self.columns)
        self.rounds = self._step_count()
        self.constrained = late is not None and ridge_of(late, free=False) is not None  # Constraints beside squares
        # Of few records for each feature, noise on the second moment hides how long scores are.
        alone = form is None and (late is None or self.constrained) and self.columns == 1
        self.fits_length = fit.has_few and alone and not fit.public.curvature_varies
        self._share_level(left - LENGTH * self.fits_length)
        self._set_start(begin, bool(losses_by_label))
        # Where curvatures differ, one model at the end is none of what penalties do; of few records, it shortens noise.
        differ = self.public.curvature_varies or self.looks.scores.width > 0
        # Without constraints, steps of classes go ever farther out.  They shorten steps of few records, too.
        lasting = self.public.has_labels or self.many < FEW_HELD
        self.late = late if (lasting if self.constrained else self.many >= ALL_STEPS and differ) else None
        self.binds = False
        bounded = late is not None and np.isfinite(late.feasible.upper - late.feasible.lower).mean() > 0.5
        self.binding_noise = 0.0 if bounded else BINDING_NOISE
        self.pull: Array | None = None

    def _step_count(self) -> int:
        """Return how many steps are taken: fewer where records are few, and at least some where curvature varies."""
        fit, bent = self.fit, self.public.curvature_varies
        single = self.num_records * fit.level / (self.looks.sensitivity * SINGLE)
        usual = MAX_STEPS * min(1.0, self.many / (VARYING_ALL if bent else ALL_STEPS))
        usual = max(usual, VARYING_FEWEST) if bent else max(min(usual, single), 1.0)
        return int(round(usual) if fit.rounds is None else fit.rounds)

    def _share_level(self, left: float) -> None:
        """Divide the remaining squared level among histograms, curvatures and gradients."""
        fit, looks, start = self.fit, self.looks, self.start
        histograms = HISTOGRAMS / sum(t < self.rounds for t in CLIP_STEPS)
        if start:
            left += histograms - start.spent - (start.last_share and start.last_share + start.histogram_share)
        self.period = 1 if self.public.curvature_varies else PERIOD
        self.level, self.histogram_level = fit.level_of(left / self.rounds), fit.level_of(histograms)
        self.curvature_level = fit.level_of(CURVATURES / -(-self.rounds // self.period))
        self.noise_cost = fit.noise_cost(left) * self.metric.effective_dim * self.columns
        edges, signed = self.public.histogram_edges(math.inf), len(looks.scores.projection) == 1
        lengths = LengthHistograms(edges, 0.0, fit.people(self.num_records), signed, self.public.unbalanced_slopes)
        deviation = looks.deviation_of_counts(self.histogram_level)
        self.lengths = replace(start.lengths if start else lengths, deviation=deviation)

    def _set_start(self, begin: Array, by_labels: bool) -> None:
        """Set the first point, clip and curvature, and the rate of full steps."""
        looks, public, start = self.looks, self.public, self.start
        self.clip, balances = FIRST_CLIP * public.slope, bool(start and start.lengths.longest)
        self.curvature = public.smoothness if public.vanishes else public.curvature
        self.full_rate = VARYING_RATE if public.curvature_varies else RATE
        if balances:
            self.full_rate *= min(max(UNHURRIED / self.rounds, SLOWEST, self.many / UNSLOWED), 1.0)
        self.leaps = bool(np.any(public.secant > 0)) and not looks.constant
        # Rows that share scores may have constants
        if public.vanishes and not (looks.constant or looks.scores.is_shared):
            apart, widest = WIDER_DIFFERENCES[self.leaps]
            wider = min(max(looks.sum_sensitivity(apart, 1.0) / (self.curvature_level * self.num_records), 1.0), widest)
            looks.scores = replace(looks.scores, width=wider * looks.scores.width)
            self.curvature /= wider
        self.constant = constant_direction(self.fit, self.matrix)
        self.point = np.asarray(np.linalg.solve(self.matrix.T, begin), dtype=float)
        self.min_clip = LEAST_CLIP * start.curvature if start and balances else 0.0
        # The part of slopes that the clip leaves, of distances that are left, and by how much steps are slower
        self.unclipped, self.contraction, self.slowdown = 1.0, 1.0, 1.0
        if start and self.constant is not None:
            self.point = self.point + np.outer(self.constant, start.constants / looks.constant)
            self.curvature, self.clip = start.curvature, max(start.clip(self.noise_cost * 4), self.min_clip)
            self.unclipped = min(1.0, self.clip / max(start.hidden_length, 1e-300))
        together = start and len(start.constants) > 1 and not np.ptp(start.constants)
        self.anchor = self.point if by_labels or together or (start and not public.curvature_varies) else None
        self.min_curvature = 0.0 if public.curvature_varies else public.curvature / MAX_RISE
        if public.vanishes:
            self.min_curvature = start.min_curvature if start else public.curvature
        # The last gradient and step, the part of the way that remains by direction, and the variance of noise in both metrics
        self.gradient, self.last_step = np.zeros(looks.scores.shape), np.zeros(looks.scores.shape)
        self.remaining = np.ones(len(self.metric.signal))
        self.variance, self.denoised = np.zeros((2, len(self.remaining)))

    def take_step(self, t: int) -> None:
        """Ask for the noisy gradient, and take step `t`, with a proximal step where one follows."""
        if t in CLIP_STEPS[bool(self.start) :]:
            self._set_clip(t)
        leap, here, before = self.leaps and not t, self.point, self.gradient
        clip = max(self.clip, float(np.linalg.norm(self.public.secant * self.public.center))) if leap else self.clip
        gradient = self.gradient = self._noisy_gradient(t, clip)
        deviation = self.looks.sensitivity * clip * self.leverage / self.level
        # Beside a regularizer gradients may be nothing but noise.
        above_noise = self.form is None or np.linalg.norm(gradient) > ABOVE_NOISE * deviation * math.sqrt(gradient.size)
        self.slowdown *= SLOWDOWN if above_noise and is_opposed(gradient, before) else 1.0
        deviation /= self.curvature
        rate = self._rate(t, deviation)
        if leap:  # To the middle, where the sum of rows tells it: it is the gradient, next to the slope at 0
            secant = self.public.secant
            self.point = self.anchor = here - gradient / np.where(secant > 0, self.truncation * secant, self.curvature)
        else:
            self.point = here - rate / self.curvature * gradient
        if self.form is not None:
            self.point, _ = self._proximal_step(self.form, self.curvature / rate)
            # The regularizer and K hold most of a gradient back
            self.slowdown *= SLOWDOWN if is_opposed(self.point - here, self.last_step) else 1.0
            self.last_step = self.point - here
        elif self.late is not None and (self.constrained or t >= self.rounds // 2):
            free = self.point
            self.point, self.pull = self._proximal_step(self.late, self.curvature / rate)
            moved = float(np.linalg.norm(self.point - free))
            self.binds |= self.constrained and moved > BINDING * float(np.linalg.norm(free))
        self.contraction *= abs(1 - rate * self.unclipped)
        self.variance = (1 - rate * self.metric.signal) ** 2 * self.variance + (rate * deviation) ** 2
        # Steps turned back and became slower since the curvature is more than is believed, unless it is known
        nearer = rate * (self.slowdown if self.public.curvature_varies else 1.0)
        stays = 1 - np.minimum(nearer * self.metric.denoised, 1.0)
        self.denoised, self.remaining = stays**2 * self.denoised + (rate * deviation) ** 2, stays * self.remaining

    def _set_clip(self, t: int) -> None:
        """Ask for a noisy histogram of lengths of slopes, and choose the clip by it."""
        options: dict[str, Any] = {"edges": self.lengths.edges * self.leverage, "histogram_level": self.histogram_level}
        counts = self.looks.look(self.matrix.T @ self.point, **options).histogram
        noise_cost = self.noise_cost * (4 if t < self.rounds / 2 else 1)
        # Without bounds on slopes, or a constant that is found first, a usual clip is as wide as bounds of targets are.
        usual = self.clip if self.start or self.public.is_lipschitz else self.lengths.together(counts, self.clip)
        found, last = self.lengths.clip(counts, noise_cost, usual, self.clip if t else 0.0), self.clip
        self.clip = max(min(found, MAX_RISE * last) if t else found, self.min_clip)
        self.unclipped = min(1.0, self.clip / max(self.lengths.hidden(counts, last)[1], 1e-300))

    def _noisy_gradient(self, t: int, clip: float) -> Array:
        """Return a noisy gradient by the columns; every `period` steps, update the curvature along the last one."""
        probe: dict[str, Any] = {}
        if not t % self.period:
            probe["probe"] = probe_direction(self.looks.scores, t, self.gradient)
            probe |= {"cap": MAX_RISE * self.curvature, "along_level": self.curvature_level}
        answer = self.looks.look(self.matrix.T @ self.point, clip, self.leverage, self.level, **probe)
        if probe:
            self._update_curvature(t, float(answer.along[0]) / self.num_records)
        gradient, along = np.asarray(answer.gradient @ self.looks.scores.table_projection), self.constant
        if along is not None and self.unclipped < 1:  # Cut slopes would move the constant most
            gradient = gradient - (1 - self.unclipped) * np.outer(along, along @ gradient) / (along @ along)
        return gradient

    def _update_curvature(self, t: int, seen: float) -> None:
        """Move the curvature to the interval that the noisy one, `seen`, leaves for it, and by no large factor down."""
        public, doubt = self.public, 1.0 if self.public.curvature_varies else STEADY
        doubt *= self.looks.sum_sensitivity(MAX_RISE * self.curvature, 1.0) / (self.curvature_level * self.num_records)
        falls = 0.0 if public.vanishes and not t else self.curvature / CURVATURE_FALL**self.period
        least = max(falls, self.min_curvature)
        if not t and self.start is None and MAX_RISE * (max(seen, 0.0) + STEADY * doubt) < self.curvature:
            least = max(STEADY * doubt, self.min_curvature)  # Records of the declared domain bend far more
        self.curvature = max(min(max(self.curvature, seen - doubt), seen + doubt), least)

    def _rate(self, t: int, deviation: float) -> float:
        """Return the part of a Newton step to take; it limits how far scores move where curvature depends on them."""
        public = self.public
        rate = self.full_rate / self.slowdown * min(1.0, (self.rounds - t) / (DECAY * self.rounds + 1))
        if not public.curvature_varies:
            return rate
        change = rate / self.curvature * self._spread(self.gradient)
        effective_dim = self.metric.effective_dim * self.columns
        noise = rate * deviation * math.sqrt(effective_dim / self.num_records) * public.has_log_link
        most = min(public.max_step(self.curvature), public.score_unit if self.leaps else math.inf)
        return rate * min(1.0, most / max(change / SCORE_CHANGE, noise / SCORE_NOISE, 1e-300))

    def _spread(self, point: Array) -> float:
        """Return the root mean square of the scores at a point."""
        return math.sqrt(float((self.metric.signal[:, None] * point**2).sum()) / self.num_records)

    def _proximal_step(self, form: LossForm, curvature: float) -> tuple[Array, Array | None]:
        """Return the point after a proximal step, and the pull of the regularizer and K; the same point and None if it fails."""
        scores, units, point = self.looks.scores, self.looks.units, self.point
        with suppress(NotConverged):
            hessian = curvature * self.inverse @ self.inverse.T
            table = scores.table(regularize(self.fit, form, self.matrix.T @ point, hessian)) / units
            moved = (hessian @ (self.matrix.T @ point - table) / units) @ scores.table_projection.T
            return np.asarray(np.linalg.solve(self.matrix.T, table)), scores.to_table.T @ moved.T.ravel()
        return point, None

    def run(self) -> ScoreModel:
        """Take all steps; return the last point, shrunk for the noise of the steps, as a model of the scores."""
        for t in range(self.rounds):
            self.take_step(t)
        metric, matrix, whole = self.metric, self.matrix, self.point
        part = min(1.0, FEWER / self.many) * (1 - 1 / (2 * metric.effective_dim * self.columns))
        weights = np.maximum(metric.denoised, MIN_SIGNAL)
        done, shorter = float(weights @ (1 - self.remaining) / weights.sum()), 1.0
        # Where noise hides all lengths of slopes, clips may be far too long, and steps of squares with them.
        if self.lengths.are_hidden and self.columns == 1 and not self.public.curvature_varies:
            done, self.fits_length = 1.0, False
        if self.form is None:
            noise = part * self.columns * self.denoised * (self.binding_noise if self.binds else 1.0)
            self.point, shorter = james_stein(whole, noise, weights, self.constant, self.anchor, done)
        if self.fits_length:
            moving = whole - (0 if self.constant is None else centre(whole, metric.signal, self.constant))
            more = self._growth(moving, self._spread(moving))
            more = min(max(more, -shorter), MAX_GROWTH)
            self.point, shorter = self.point + more * moving, shorter + more
        hessian = self.curvature * self.truncation * self.inverse @ self.inverse.T
        noise = shorter * matrix.T * np.sqrt(self.variance)
        return ScoreModel(self._with_last_steps(), hessian, noise, matrix.T @ whole, self.pull)

    def _growth(self, moving: Array, spread: float) -> float:
        """Return the multiple of `moving` to add to the point, by noisy sums of slopes and of squares along it."""
        if not spread > 0:
            return 0.0
        looks, each, table, clip = self.looks, self.fit.level_of(LENGTH / 2), self.matrix.T @ self.point, self.clip
        looks.set_metric((self.matrix.T @ moving).T / spread)
        moved = looks.sum_sensitivity(1.0, math.sqrt(2)) * REACH**2
        slope = float(looks.look(table, clip, REACH, each).gradient[0, 0])
        curved = self.curvature * max(float(looks.second_moment_in_metric(REACH, each)[0, 0]), STEADY * moved / each)
        doubt = looks.sensitivity * clip * REACH / each
        return -slope / (curved * spread) * max(0.0, 1 - (doubt / slope) ** 2) if slope else 0.0

    def _with_last_steps(self) -> Array:
        """Return the table of the point; the constant takes its last steps, alone, where some level is kept for them."""
        table, start, constant, signal = self.matrix.T @ self.point, self.start, self.constant, self.metric.signal
        if start is None or constant is None or not start.last_share:
            return table
        fixed, scale = centre(self.point, signal, constant), self.looks.constant
        place = float((self.matrix.T @ fixed)[-1, 0]) * scale - float(np.ravel(self.public.center)[0])
        along = signal * constant
        away = math.sqrt(float(along**2 @ self.variance)) / max(float(along @ constant), 1e-300) * scale
        away /= max(1 - self.contraction, 1e-9)
        spread = self._spread(self.point - fixed)
        return refine_constant(self.fit, start, table, spread, place, away, self.clip, self.curvature)


def is_opposed(one: Array, other: Array) -> bool:
    return bool((one * other).sum() < OPPOSED_COSINE * np.linalg.norm(one) * np.linalg.norm(other))


def probe_direction(scores: LinearScores, number: int, before: Array | None = None) -> Array:
    """Return a direction of length 1 of the columns, in the space that scores depend on; of single rows, the last gradient's."""
    random = np.random.default_rng(number).normal(size=len(scores.projection))
    found = scores.projection @ (before[0] if before is not None and before.any() and len(before) == 1 else random)
    return np.asarray(found / np.linalg.norm(found))


def james_stein(
    point: Array, variance: Array, weights: Array, constant: Array | None, anchor: Array | None, done: float
) -> tuple[Array, float]:
    """Shorten the steps by what noise made them longer, by one James-Stein factor; return the answer with the factor.

    Where they are only a part `done` of what they would be without end, they are so much shorter already.
    """
    fixed = np.zeros_like(point) if anchor is None else anchor
    if constant is not None and anchor is None:
        fixed = centre(point, weights, constant)
    moving = point - fixed
    signal, noise = float((weights[:, None] * moving**2).sum()), float((weights * variance).sum())
    factor = min(max(signal - noise, 0.0) / max(done * signal, 1e-300), 1.0)
    return np.asarray(fixed + factor * moving), factor


def constant_direction(fit: Fit, matrix: Array) -> Array | None:
    """Return the direction of the constant among rows that the matrix turns, if there is one."""
    return np.asarray(np.linalg.solve(matrix.T, np.eye(len(matrix))[-1])) if fit.looks.constant else None


def centre(point: Array, weights: Array, constant: Array) -> Array:
    """Return the part of a point along the constant, which is the mean score."""
    along = weights * constant
    along = along if along.any() else constant  # All directions may be noise
    return np.asarray(np.outer(constant, along @ point / (along @ constant)))


def equal_columns(table: Array) -> Iterator[tuple[Indices, Array]]:
    """Yield the numbers of columns that are equal, and their entries."""
    kinds, owner = np.unique(table, axis=1, return_inverse=True)
    for k, entries in enumerate(kinds.T):
        yield np.flatnonzero(owner.ravel() == k), entries


def regularize(fit: Fit, form: LossForm, table: Array, hessian: Array, pull: Array | None = None) -> Array:
    """Minimise a quadratic model of the loss about the end of steps, which a `pull` has held, with the regularizer."""
    scores, units, ridge, size = fit.looks.scores, fit.looks.units, ridge_of(form), fit.size
    theta = fit.looks.parameters(table)
    if ridge is not None and not ridge.any():
        return theta
    block = hessian / np.outer(units, units)
    if ridge is not None and not scores.is_implied:
        found = table * units
        pulled = block @ found
        for own, more in equal_columns(size * scores.squares(ridge)):
            found[:, own] = np.linalg.solve(block + np.diag(more), pulled[:, own])
        return scores.coordinates(found)
    spread = sp.kron(sp.csr_array(scores.table_projection), block, format="csr")
    whole = sp.csr_array(scores.to_table.T @ spread @ scores.to_table)
    return least_point(form, whole, whole @ theta + (0.0 if pull is None else pull), size)
