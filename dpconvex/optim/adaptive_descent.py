"""The steps of `AdaptiveSteps`, postprocessing: the sequence of queries, and steps from the noisy answers."""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dpconvex.errors import NotConverged
from dpconvex.optim.constant_first import refine_constant
from dpconvex.optim.constant_models import shared_constants
from dpconvex.optim.implicit_steps import regularize
from dpconvex.optim.noisy_metrics import CURVATURES, constant_direction, curved_metric, fit_metrics, truncate_rows
from dpconvex.optim.row_metrics import constant_part
from dpconvex.optim.slope_histograms import CLIP_STEPS, FIRST_CLIP, HISTOGRAMS, MAX_RISE, Fit, LengthHistograms
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.public_terms import pulls_away_from_zero, scale_public_terms
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sums.linear_scores import probe_direction
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import Stage

# The most steps; records, for each direction and unit of the level, below which there are fewer steps; records for each step.
# If curvature depends on scores, steps are short: at least VARYING_FEWEST steps, and more of them.
MAX_STEPS, ALL_STEPS, SINGLE, VARYING_FEWEST, VARYING_ALL = 24, 30.0, 10.0, 4, 40.0
# Fraction of a Newton step, also if curvature depends on scores, with few and many records; fraction of the steps, at the end,
# that become shorter.
RATE, VARYING_RATE, MANY_RATE, DECAY = 1.2, 0.6, 0.9, 0.4
# With many records: share of the squared level for the Hessian that gives a new metric, the fraction of the steps before it,
# how much longer gradients may be, since rare rows are long, and noise of scores that shorter clips need not reduce.
REMETRIC, EARLY_STEPS, LONGER_GRADIENTS, HARMLESS_NOISE = 0.1, 0.2, 4.0, 0.03
# If slopes balance, rare large counts may have far more curvature than most: with more steps than UNHURRIED they are shorter,
# down to SLOWEST, unless records for each direction and unit of the level exceed UNSLOWED.
UNHURRIED, SLOWEST, UNSLOWED = 6.0, 0.33, 300.0
# If two successive gradients have a cosine below this, and exceed so many deviations of noise, steps are divided by SLOWDOWN.
OPPOSED_COSINE, ABOVE_NOISE, SLOWDOWN = -0.3, 2.0, 1.5
# Largest root mean square change of scores in a step, if curvature depends on them; and by noise, if slopes balance.
SCORE_CHANGE, SCORE_NOISE = 0.5, 0.1
PERIOD = 4  # Steps between two queries of a curvature that does not depend on scores
# Share of the squared level for the length of scores; their clip, next to the metric's estimate; and their largest growth.
LENGTH, REACH, MAX_GROWTH = 0.04, 1.5, 5.0
# Largest factor by which the curvature falls in one step; doubted deviations of an answer if it is about constant.
CURVATURE_FALL, STEADY = 2**0.25, 2.0
# Least weight of a direction; records for each direction and unit of the level above which shrinkage is weaker.
MIN_SIGNAL, FEWER = 1e-3, 24.0
# Movement of scores by squares of the regularizer, next to their unit, from which steps follow it.
PULLED_FAR = 0.25
# Least clip next to the first curvature, if slopes balance; least curvature next to that far away, where it does not vanish.
LEAST_CLIP, LEAST_OF_SIDES = 0.5, 0.1
# Records for each direction and unit of the level below which constraints hold steps of targets; the least movement by them,
# next to the point's length, at which they reduce noise themselves; and the largest weight of the steps' noise then.
FEW_HELD, BINDING, BINDING_NOISE = 12.0, 0.01, 0.25
# Without a constant (which shows the spread of scores), curvature at kinks is a difference of slopes farther apart, since noise
# hides less of it: factor next to the noise of one, and the largest factor; then the same if the first step goes to the middle.
WIDER_DIFFERENCES = ((40.0, 3.0), (140.0, 25.0))


class ScoreModel(NamedTuple):
    """The last table of the scores, the Hessian by one column, and the movement of the table by the steps' noise.

    Noise moves the table's columns by at most ``noise @ z`` for standard normal z.  `longer` is the table before shrinkage.
    `pull` is the gradient of the regularizer and K at the steps' end, if known.
    """

    table: Array
    hessian: Array
    noise: Array
    longer: Array
    pull: Array | None = None


def descend_adaptively(fit: Fit, form: LossForm) -> tuple[Array, Array]:
    """Return the last point, in coordinates, shape (dim,), and how far noise moved the table's columns."""
    start, ridge = fit.public.start_table, ridge_of(form)
    late = form if ridge is None or ridge.any() else None
    pulled = pulls_away_from_zero(form) or start is not None
    steps = AdaptiveDescent(fit, 0.0 if start is None else start, form if pulled else None, late)
    table, hessian, noise, _, pull = steps.run()
    return fit.queries.parameters(table) if pulled else regularize(fit, form, table, hessian, pull), noise


class AdaptiveDescent:
    """Noisy gradient steps in a metric that makes rows about round; they update their clip, curvature and noise.

    A proximal step of the regularizer and the constraints of `form` follows each step.  With `late` instead, a proximal step
    follows if curvatures differ, labels are classes or records are few; of penalties that are no squares, after half of them.
    """

    def __init__(
        self, fit: Fit, begin: Array | float = 0.0, form: LossForm | None = None, late: LossForm | None = None
    ) -> None:
        self.fit = fit = replace(fit, public=fit.public.of_steps)
        self.queries, self.public, scores = fit.queries, fit.public, fit.queries.scores
        self.columns, spent = fit.columns, truncate_rows(fit)
        begin = np.array(np.broadcast_to(begin, scores.shape), dtype=float)
        begin[-1:] += fit.public.center if fit.queries.constant else 0.0
        begin /= fit.queries.units
        losses_by_label = scores.is_shared and fit.public.start_table is None and fit.public.of_labels
        if losses_by_label:
            begin, spent = shared_constants(fit, losses_by_label)
        found = fit_metrics(fit, begin, spent, form is None)
        self.metric, self.matrix, self.num_records, left, self.truncation, self.start = found
        self.inverse = np.asarray(np.linalg.inv(self.matrix), dtype=float)
        self.form = None if form is None else scale_public_terms(form, self.num_records / fit.size)
        self.leverage = math.sqrt(self.metric.effective_dim / self.num_records)  # The root mean square leverage
        # Records for each direction and unit of the level
        self.many = self.num_records * fit.level / (fit.queries.sensitivity * self.metric.effective_dim * self.columns)
        self.rounds = self._step_count()
        squares = late is None or ridge_of(late) is not None
        self.constrained = late is not None and not squares and ridge_of(late, free=False) is not None
        # With few records for each feature, noise on the second moment hides the length of scores.
        alone = form is None and (squares or self.constrained) and self.columns == 1
        self.fits_length = fit.has_few and alone and not fit.public.curvature_varies
        self._share_level(left)
        self._set_start(begin, bool(losses_by_label))
        # If curvatures differ, a model at the end misses the effect of penalties; for few records, it reduces noise.
        differ = self.public.curvature_varies or self.queries.scores.width > 0
        # Without constraints, steps of classes diverge. Constraints shorten steps of few records, too.
        lasting = self.public.has_labels or self.many < FEW_HELD
        self.late = late if (lasting if self.constrained else self.many >= ALL_STEPS and differ) else None
        # Clipped gradients are too short next to squares, whose effect a model at the end shows as long as it is small.
        self.first_late = self.rounds if squares else 0 if self.constrained else self.rounds // 2
        self.binds = False
        self.pull: Array | None = None

    def _step_count(self) -> int:
        """Return the number of steps: fewer for few records, and at least some if curvature varies."""
        fit, bent = self.fit, self.public.curvature_varies
        single = self.num_records * fit.level / (self.queries.sensitivity * SINGLE)
        usual = MAX_STEPS * min(1.0, self.many / (VARYING_ALL if bent else ALL_STEPS))
        usual = max(usual, VARYING_FEWEST) if bent else max(min(usual, single), 1.0)
        return int(round(usual) if fit.rounds is None else fit.rounds)

    def _share_level(self, left: float) -> None:
        """Divide the remaining squared level among histograms, curvatures and gradients."""
        fit, queries, start = self.fit, self.queries, self.start
        # Then the metric becomes that of the Hessian, and steps of the constant alone are unnecessary.
        self.has_many = fit.has_many and self.form is None
        if self.has_many:
            left -= REMETRIC
            self.start = start = start and start._replace(last_share=0.0)
        histograms = HISTOGRAMS / sum(t < self.rounds for t in CLIP_STEPS)
        if start:
            left += histograms - start.spent - (start.last_share and start.last_share + start.histogram_share)
        self.histogram_level = fit.level_of(histograms)
        edges, signed = fit.histogram_edges(math.inf), len(queries.scores.projection) == 1
        lengths = LengthHistograms(edges, 0.0, fit.people(self.num_records), signed, self.public.unbalanced_slopes)
        deviation = queries.deviation_of_counts(self.histogram_level)
        self.lengths = replace(start.lengths if start else lengths, deviation=deviation)
        if self.has_many:
            self.lengths = replace(self.lengths, edges=self.lengths.edges * LONGER_GRADIENTS)
        # If noise hides all lengths of slopes, clips may be far too long, and steps of squares, too.
        self.is_blind = self.lengths.are_hidden and self.columns == 1 and not self.public.curvature_varies
        self.fits_length &= not self.is_blind  # Otherwise its level goes to the steps
        left -= LENGTH * self.fits_length
        self.period, self.level = 1 if self.public.curvature_varies else PERIOD, fit.level_of(left / self.rounds)
        self.curvature_level = fit.level_of(CURVATURES / -(-self.rounds // self.period))
        self.noise_cost = fit.noise_cost(left) * self.metric.effective_dim * self.columns

    def _set_start(self, begin: Array, by_labels: bool) -> None:
        """Set the first point, clip and curvature, and the rate of full steps."""
        queries, public, start = self.queries, self.public, self.start
        self.clip, balances = FIRST_CLIP * public.slope, bool(start and start.lengths.longest)
        self.curvature = public.smoothness if public.vanishes else public.curvature
        self.full_rate = (MANY_RATE if self.has_many else VARYING_RATE) if public.curvature_varies else RATE
        if balances:
            self.full_rate *= min(max(UNHURRIED / self.rounds, SLOWEST, self.many / UNSLOWED), 1.0)
        least = LEAST_OF_SIDES * max(public.sides) if public.curvature_varies and public.has_labels else 0.0
        self.start = start = start and start._replace(curvature=max(start.curvature, least))
        self.leaps = bool(np.any(public.secant > 0)) and not queries.constant
        # Rows that share scores may have constants
        if public.vanishes and not (queries.constant or queries.scores.is_shared):
            apart, widest = WIDER_DIFFERENCES[self.leaps]
            noise = queries.sum_sensitivity(apart, 1.0) / (self.curvature_level * self.num_records)
            wider = min(max(noise, 1.0), widest)
            queries.scores = replace(queries.scores, width=wider * queries.scores.width)
            self.curvature /= wider
        self.constant = constant_direction(self.fit, self.matrix)
        self.point = np.asarray(np.linalg.solve(self.matrix.T, begin), dtype=float)
        self.min_clip = LEAST_CLIP * start.curvature if start and balances else 0.0
        # The fraction of slopes below the clip, the contraction of distances so far, and the factor of slower steps
        self.unclipped, self.contraction, self.slowdown = 1.0, 1.0, 1.0
        if start and self.constant is not None:
            self.point = self.point + np.outer(self.constant, start.constants / queries.constant)
            self.curvature, self.clip = start.curvature, max(start.clip(self.noise_cost * 4), self.min_clip)
            self.unclipped = min(1.0, self.clip / max(start.hidden_length, 1e-300))
        together = start and len(start.constants) > 1 and not np.ptp(start.constants)
        self.anchor = self.point if by_labels or together or (start and not public.curvature_varies) else None
        self.min_curvature = least if public.curvature_varies else public.curvature / MAX_RISE
        if public.vanishes:
            self.min_curvature = start.min_curvature if start else public.curvature
        # The last gradient and step, the remaining distance by direction, and the variance of noise in both metrics
        self.gradient, self.last_step = np.zeros(queries.scores.shape), np.zeros(queries.scores.shape)
        self.remaining = np.ones(len(self.metric.signal))
        self.variance, self.denoised = np.zeros((2, len(self.remaining)))

    def take_step(self, t: int) -> None:
        """Query the noisy gradient, and take step `t`, followed by a proximal step if one applies."""
        if self.has_many and t == round(EARLY_STEPS * self.rounds):
            self._set_curved_metric()
        if t in CLIP_STEPS[bool(self.start) :]:
            self._set_clip(t)
        leap, here, before = self.leaps and not t, self.point, self.gradient
        clip = max(self.clip, float(np.linalg.norm(self.public.secant * self.public.center))) if leap else self.clip
        gradient = self.gradient = self._noisy_gradient(t, clip)
        deviation = self.queries.sensitivity * clip * self.leverage / self.level
        # With a regularizer, gradients may be only noise.
        above_noise = self.form is None or np.linalg.norm(gradient) > ABOVE_NOISE * deviation * math.sqrt(gradient.size)
        self.slowdown *= SLOWDOWN if above_noise and is_opposed(gradient, before) else 1.0
        deviation /= self.curvature
        rate = self._rate(t, deviation)
        if leap:  # To the middle, which the gradient over the slope at 0 shows
            secant = self.public.secant
            self.point = self.anchor = here - gradient / np.where(secant > 0, self.truncation * secant, self.curvature)
        else:
            self.point = here - rate / self.curvature * gradient
        if self.form is not None:
            self.point, _ = self._proximal_step(self.point, self.form, self.curvature / rate)
            # The regularizer and K cancel most of a gradient
            self.slowdown *= SLOWDOWN if is_opposed(self.point - here, self.last_step) else 1.0
            self.last_step = self.point - here
        elif self.late is not None and (t >= self.first_late or self._is_pulled_far(self.late)):
            self.first_late = t
            free = self.point
            self.point, self.pull = self._proximal_step(free, self.late, self.curvature / rate)
            moved = float(np.linalg.norm(self.point - free))
            self.binds |= self.constrained and moved > BINDING * float(np.linalg.norm(free))
        self.contraction *= abs(1 - rate * self.unclipped)
        self.variance = (1 - rate * self.metric.signal) ** 2 * self.variance + (rate * deviation) ** 2
        # Slower steps show that the curvature exceeds its estimate. If it is known, clips may be shorter than slopes by noise.
        spread = math.sqrt(self.columns * float(self.metric.denoised @ self.denoised) / self.num_records)
        unclipped = 1.0 if self.binds else min(clip / max(self.curvature * spread, 1e-300), 1.0)
        nearer = rate * (self.slowdown if self.public.curvature_varies else unclipped)
        stays = 1 - np.minimum(nearer * self.metric.denoised, 1.0)
        self.denoised, self.remaining = stays**2 * self.denoised + (rate * deviation) ** 2, stays * self.remaining

    def _set_curved_metric(self) -> None:
        """Query the Hessian, and measure rows in its metric: with unlike curvatures, one step size suits few directions."""
        level, table, last = self.fit.level_of(REMETRIC), self.matrix.T @ self.point, self.metric
        self.metric = curved_metric(self.fit, table, last, self.matrix, level, self.curvature)
        matrix, self.matrix = self.matrix, self.queries.set_metric(self.metric.matrix)
        turn = self.matrix @ np.linalg.inv(matrix)  # of rows; points turn by its inverse
        self.leverage = math.sqrt(float((turn**2 @ last.signal).sum()) / self.num_records)
        back = np.linalg.inv(turn).T
        self.inverse, self.point = np.asarray(np.linalg.inv(self.matrix), dtype=float), back @ self.point
        self.gradient, self.anchor = np.zeros_like(self.gradient), None if self.anchor is None else back @ self.anchor
        self.constant, self.slowdown = constant_direction(self.fit, self.matrix), 1.0
        self.variance, self.denoised = back**2 @ self.variance, back**2 @ self.denoised
        self.remaining = np.full(len(turn), self.remaining.max())
        of_clip = self._score_noise(self.queries.sensitivity * self.leverage / self.level / self.curvature)
        self.min_clip = max(self.min_clip, HARMLESS_NOISE / of_clip)

    def _set_clip(self, t: int) -> None:
        """Query a noisy histogram of slopes' lengths, and set the clip by it."""
        options: dict[str, Any] = {"edges": self.lengths.edges * self.leverage, "histogram_level": self.histogram_level}
        counts = self.queries.query(self.matrix.T @ self.point, **options).histogram
        noise_cost = self.noise_cost * (4 if t < self.rounds / 2 else 1)
        # Without bounds on slopes and without a first search of the constant, the usual clip is as wide as bounds of targets.
        usual = self.clip if self.start or self.public.is_lipschitz else self.lengths.together(counts, self.clip)
        found, last = self.lengths.clip(counts, noise_cost, usual, self.clip if t else 0.0), self.clip
        self.clip = max(min(found, MAX_RISE * last) if t else found, self.min_clip)
        self.unclipped = min(1.0, self.clip / max(self.lengths.hidden(counts, last)[1], 1e-300))

    def _noisy_gradient(self, t: int, clip: float) -> Array:
        """Return a noisy gradient by the columns; every `period` steps, update the curvature along the last gradient."""
        probe: dict[str, Any] = {}
        if not t % self.period:
            probe["probe"] = probe_direction(self.queries.scores, t, self.gradient)
            probe |= {"cap": MAX_RISE * self.curvature, "along_level": self.curvature_level}
        answer = self.queries.query(self.matrix.T @ self.point, clip, self.leverage, self.level, **probe)
        if probe:
            self._update_curvature(t, float(answer.along[0]) / self.num_records)
        gradient, along = np.asarray(answer.gradient @ self.queries.scores.table_projection), self.constant
        if along is not None and self.unclipped < 1:  # Clipping of slopes affects the constant most
            gradient = gradient - (1 - self.unclipped) * np.outer(along, along @ gradient) / (along @ along)
        return gradient

    def _update_curvature(self, t: int, seen: float) -> None:
        """Clip the curvature to the confidence interval of the noisy estimate `seen`; limit its decrease."""
        public, doubt = self.public, 1.0 if self.public.curvature_varies else STEADY
        doubt *= self.queries.sum_sensitivity(MAX_RISE * self.curvature, 1.0)
        doubt /= self.curvature_level * self.num_records
        falls = 0.0 if public.vanishes and not t else self.curvature / CURVATURE_FALL**self.period
        least = max(falls, self.min_curvature)
        if not t and self.start is None and MAX_RISE * (max(seen, 0.0) + STEADY * doubt) < self.curvature:
            least = max(STEADY * doubt, self.min_curvature)  # Records of the declared domain have far more curvature
        self.curvature = max(min(max(self.curvature, seen - doubt), seen + doubt), least)

    def _rate(self, t: int, deviation: float) -> float:
        """Return the fraction of a Newton step to take; it limits the change of scores if curvature depends on them."""
        public = self.public
        rate = self.full_rate / self.slowdown * min(1.0, (self.rounds - t) / (DECAY * self.rounds + 1))
        if not public.curvature_varies:
            return rate
        change = rate / self.curvature * self._spread(self.gradient)
        noise = self._score_noise(rate * deviation) * public.has_log_link
        most = min(public.max_step(self.curvature), public.score_unit if self.leaps else math.inf)
        return rate * min(1.0, most / max(change / SCORE_CHANGE, noise / SCORE_NOISE, 1e-300))

    def _score_noise(self, deviation: float) -> float:
        """Return the root mean square change of scores by noise of this standard deviation in each entry of a point."""
        return deviation * math.sqrt(self.metric.effective_dim * self.columns / self.num_records)

    def _spread(self, point: Array) -> float:
        """Return the root mean square of the scores at a point."""
        return math.sqrt(float((self.metric.signal[:, None] * point**2).sum()) / self.num_records)

    def _proximal_step(self, point: Array, form: LossForm, curvature: float) -> tuple[Array, Array | None]:
        """Return the point after a proximal step, and the gradient of regularizer and K; the old point and None on failure."""
        scores, units = self.queries.scores, self.queries.units
        with suppress(NotConverged):
            hessian = curvature * self.inverse @ self.inverse.T
            table = scores.table(regularize(self.fit, form, self.matrix.T @ point, hessian)) / units
            moved = (hessian @ (self.matrix.T @ point - table) / units) @ scores.table_projection.T
            return np.asarray(np.linalg.solve(self.matrix.T, table)), scores.to_table.T @ moved.T.ravel()
        return point, None

    def run(self) -> ScoreModel:
        """Take all steps; return the last point, shrunk for the noise of the steps, as a model of the scores."""
        for t in Stage.steps(self.rounds):
            self.take_step(t)
        metric, matrix, whole = self.metric, self.matrix, self.point
        part = min(1.0, FEWER / self.many) * (1 - 1 / (2 * metric.effective_dim * self.columns))
        weights = np.maximum(metric.denoised, MIN_SIGNAL)
        done, shorter = 1.0 if self.is_blind else float(weights @ (1 - self.remaining) / weights.sum()), 1.0
        if self.form is None:
            noise = part * self.columns * self.denoised * self._kept_noise()
            self.point, shorter = james_stein(whole, noise, weights, self.constant, self.anchor, done)
        if self.fits_length:
            moving = self._moving(whole)
            more = min(max(self._growth(moving, self._spread(moving)), -shorter), MAX_GROWTH)
            self.point, shorter = self.point + more * moving, shorter + more
        hessian = self.curvature * self.truncation * self.inverse @ self.inverse.T
        noise = shorter * matrix.T * np.sqrt(self.variance)
        return ScoreModel(self._with_last_steps(), hessian, noise, matrix.T @ whole, self.pull)

    def _moving(self, point: Array) -> Array:
        """Return a point without its part along the constant, the mean score."""
        return point if self.constant is None else point - constant_part(point, self.metric.signal, self.constant)

    def _kept_noise(self) -> float:
        """Return the weight of the steps' noise: K removes some, and all if it holds the point at its border."""
        if self.late is None or not self.binds:
            return 1.0
        moving = self._moving(self.point)
        twice, _ = self._proximal_step(self.point + moving, self.late, self.curvature)
        longer = self._spread(self._moving(twice)) / max(self._spread(moving), 1e-300)
        return BINDING_NOISE * max(min(longer, 2.0) ** 2 - 1, 0.0) / 3  # The square alone may overflow

    def _is_pulled_far(self, form: LossForm) -> bool:
        """Return whether squares of the regularizer would move scores by more than a model at the end can show."""
        if ridge_of(form) is None:
            return False
        pulled, _ = self._proximal_step(self.point, form, self.curvature * self.truncation)
        return self._spread(self.point - pulled) > PULLED_FAR * self.public.score_unit

    def _growth(self, moving: Array, spread: float) -> float:
        """Return the multiple of `moving` to add to the point, by noisy sums of slopes and of squares along it."""
        if not spread > 0:
            return 0.0
        queries, each, table, clip = self.queries, self.fit.level_of(LENGTH / 2), self.matrix.T @ self.point, self.clip
        queries.set_metric((self.matrix.T @ moving).T / spread)
        moved = queries.sum_sensitivity(1.0, math.sqrt(2)) * REACH**2
        slope = float(queries.query(table, clip, REACH, each).gradient[0, 0])
        curved = self.curvature * max(float(queries.second_moment_in_metric(REACH, each)[0, 0]), STEADY * moved / each)
        doubt = queries.sensitivity * clip * REACH / each
        return -slope / (curved * spread) * max(0.0, 1 - (doubt / slope) ** 2) if slope else 0.0

    def _with_last_steps(self) -> Array:
        """Return the table of the point, after the last steps of the constant if some level is reserved for them."""
        table, start, constant, signal = self.matrix.T @ self.point, self.start, self.constant, self.metric.signal
        if start is None or constant is None or not start.last_share:
            return table
        fixed, scale = constant_part(self.point, signal, constant), self.queries.constant
        place = float((self.matrix.T @ fixed)[-1, 0]) * scale - float(np.ravel(self.public.center)[0])
        along = signal * constant
        away = math.sqrt(float(along**2 @ self.variance)) / max(float(along @ constant), 1e-300) * scale
        away /= max(1 - self.contraction, 1e-9)
        spread = self._spread(self.point - fixed)
        return refine_constant(self.fit, start, table, spread, place, away, self.clip, self.curvature)


def is_opposed(one: Array, other: Array) -> bool:
    return bool((one * other).sum() < OPPOSED_COSINE * np.linalg.norm(one) * np.linalg.norm(other))


def james_stein(
    point: Array, variance: Array, weights: Array, constant: Array | None, anchor: Array | None, done: float
) -> tuple[Array, float]:
    """Shrink the steps by one James-Stein factor, for the length that noise added; return the result and the factor.

    If the steps went only a fraction `done` of the way to the minimiser, they are already shorter by that.
    """
    middle = np.zeros_like(point) if constant is None else constant_part(point, weights, constant)
    fixed = middle if anchor is None else anchor
    moving = point - fixed
    signal, noise = float((weights[:, None] * moving**2).sum()), float((weights * variance).sum())
    factor = min(max(signal - noise, 0.0) / max(done * signal, 1e-300), 1.0)
    return np.asarray(fixed + factor * moving), factor
