"""Slopes and curvatures of a loss at records of the declared domain, without data: they determine the steps."""

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DPConvexError
from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.mechanisms.plans import has_domain, has_nonsmooth_loss
from dpconvex.optim.constant_first import are_separate, loss_directions
from dpconvex.optim.row_metrics import DomainMetric, records_of_domain
from dpconvex.optim.slope_histograms import LINKED, LOPSIDED, PublicFacts, are_lopsided, unit_like
from dpconvex.sensitivity.loss_form import LossForm, nonsmooth_nodes
from dpconvex.sums.engine import Block, RecordSums
from dpconvex.sums.exact_sums import derivative_along
from dpconvex.sums.jacobians import without_constant_directions
from dpconvex.sums.linear_scores import LinearScores, linear_scores, probe_direction
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

FAR_SCORE, FLAT_RATIO = 30.0, 2.0  # Scores at which slopes count as bounded, if below this multiple of slopes near 0
# Scores at which curvatures are computed: some regions of curvature are narrow.
CURVATURE_SCORES = (0.0, -1.0, 1.0, *np.linspace(-0.9, 0.9, 10).tolist())
# Number of scores up to FAR_SCORE at which records are compared, and the relative curvature that counts as 0.
NUM_SCORES, FADED = 61, 1e-3
JUMP_CURVATURE = 1e4  # Curvature next to slopes, if none is found
# For nonsmooth points: widths of smoothing, next to the score where slopes settle; and how near they come to their ends there.
KINK_WIDTH, LABEL_WIDTH, SETTLED, OCTAVES = 0.01, 0.25, 0.1, range(-12, 32)
BEYOND_KINKS = 16.0  # Factor to the score of slopes' ends
# Relative slopes that count as rounding errors; and relative distance to the farthest score at which an end is missing.
ZERO_SLOPE, ENDLESS = 1e-12, 1 - 1e-6
# Shares of records with slopes on one side: rarer ones do not count; below SIDED the other side is the rule. Scores near 0,
# next to half the interval of both signs; search range of ends (asinh) and bisections. If slopes settle outside of the last
# bounds, scores get their own unit.
RARE, SIDED, NEAR_ZERO, MAX_ASINH, BISECTIONS, USUAL_UNITS = 0.02, 0.1, 1e-3, 21.0, 48, (1 / 16, 16.0)
POWERS = 0.1, 3.0  # Exponents of distance for slopes that follow a power law, rather than settle or grow as links do
UNIT_RATIO = 4.0  # Ratio of the widths of two columns' scores from which they have different units
FINITE_PART = 0.9  # Fraction of records with finite losses at the start and one unit of scores away
MAX_LABELS = 200  # Most labels with shares
# For columns with separate steps: the score below 0 at which slopes are compared; the least difference of curvatures there for
# a far constant; the least ratio of slopes by two columns.
LOWEST, UNEQUAL_CURVATURE, UNEQUAL_SLOPES = 40, 0.2, 4.0
LOW = -3.0  # Score of balance below which links have a new origin
# Difference step for curvatures of links; a score at which targets hardly matter; the least slopes there of inverted links.
SCORE_STEP, LARGE_SCORE, INVERTED_PART = 0.05, 20.0, 0.5
NEAR_CENTER = 16.0  # Fraction (inverse) of half the interval of both signs, at which largest slopes are compared


@dataclass(frozen=True, eq=False)
class DomainSlopes:
    """Slopes by the columns at records of the domain, as a function of the forms, around a centre and in a unit of scores."""

    block: Block
    scores: LinearScores
    begin: Array | None = None  # A table to which forms are added; slopes are then NaN where losses are not finite
    like: Any = ...  # The block's record with each record's slopes
    center: Array | float = 0.0  # By column
    score_unit: float = 1.0

    def __call__(self, forms: Any) -> Any:
        """Return slopes, shape (columns, records), at forms, shape (forms, records) or (forms, 1)."""
        forms = np.repeat(self.center_forms + self.score_unit * forms, self.block.size // forms.shape[1], axis=1)
        if self.begin is None:
            return (self.scores.to_forms @ self.block.slopes(forms)[1])[:, self.like]
        forms = forms + self.block.forms(self.scores.coefficients(self.begin))
        losses, slopes = self.block.slopes(forms, valued=True)
        return self.scores.to_forms @ np.where(np.isfinite(losses), slopes, np.nan)

    @cached_property
    def center_forms(self) -> Array:
        """The forms at the centre, shape (forms, 1)."""
        to_forms = self.scores.to_forms
        return np.asarray(to_forms.T @ np.broadcast_to(self.center, to_forms.shape[0]))[:, None]

    def alone(self, place: float) -> Array:
        """Return slopes by the first column at one score, shape (records,)."""
        return np.asarray(self(place * self.scores.to_forms.T.toarray()[:, :1])[0])

    @property
    def probe(self) -> Array:
        return np.asarray(self.scores.to_forms.T @ probe_direction(self.scores, 0))

    def of_labels(self, place: Array) -> tuple[Array, Array]:
        """Return losses of the block's records at constants, shape (labels,), and slopes, shape (labels, columns)."""
        forms = np.repeat((self.scores.to_forms.T @ place)[:, None], self.block.size, axis=1)
        losses, slopes = self.block.slopes(forms, valued=True)
        return losses, (self.scores.to_forms @ slopes).T

    def curvature_far_away(self, side: int) -> float:
        """Return the mean curvature far away on one side of the probe, or 0 if it is not constant there."""
        along, probe = probe_direction(self.scores, 0), side * self.probe[:, None]
        near, half, far = (float(np.mean(along @ self(part * FAR_SCORE * probe))) for part in (0.25, 0.5, 1.0))
        bend = 2 * abs(far - half) / FAR_SCORE
        return bend if abs(abs(far - half) - 2 * abs(half - near)) < SETTLED * abs(far - half) < math.inf else 0.0

    @cached_property
    def sign_intervals(self) -> tuple[Array, Array, NDArray[np.bool_]]:
        """The intervals of scores with slopes of both signs, by column: middles, half widths, and whether 0 is outside."""

        def seen(places: Array, sign: int) -> Array:
            slopes = sign * self((self.scores.to_forms.T @ places)[:, None])
            return np.asarray((slopes > ZERO_SLOPE * np.abs(slopes).max(axis=1, keepdims=True)).mean(axis=1))

        count, ends = self.scores.to_forms.shape[0], list[Array]()
        for sign in (1, -1):
            low, high = np.full(count, -MAX_ASINH), np.full(count, MAX_ASINH)
            for _ in range(BISECTIONS):
                tried = (low + high) / 2
                far = seen(sign * np.sinh(tried), sign) > RARE
                low, high = np.where(far, low, tried), np.where(far, tried, high)
            ends.append(np.where(np.abs(high) < ENDLESS * MAX_ASINH, sign * np.sinh(high), np.nan))
        center, half = (ends[1] + ends[0]) / 2, np.maximum((ends[1] - ends[0]) / 2, 0.0)
        # Bounds may be targets, where slopes jump.
        near = [seen(-sign * NEAR_ZERO * np.nan_to_num(half), sign) for sign in (1, -1)]
        return center, half, (np.minimum(*near) < SIDED) & (half > 0)

    def has_targets(self, group: Indices) -> bool:
        """Return whether records of one label have slopes of both signs at a score, as with targets (but not with weights)."""
        for place in np.sinh(np.linspace(-MAX_ASINH, MAX_ASINH, 2 * NUM_SCORES)):
            slopes = self(place * self.probe[:, None])
            least = ZERO_SLOPE * np.abs(slopes).max()
            if any(np.intersect1d(group[own > least], group[own < -least]).size for own in slopes):
                return True
        return False

    def power_law_width(self) -> float:
        """Return half the width of scores with slopes of both signs, if far slopes follow a power law; otherwise 0."""
        center, half, _ = self.sign_intervals
        if not (half > 0).all():
            return 0.0
        columns = self.scores.to_forms.T
        near, far = (
            max(float(np.abs(self((columns @ (center + side * far * half))[:, None])).max()) for side in (-1, 1))
            for far in (1.0, FAR_SCORE)
        )
        return float(half.max()) if FAR_SCORE ** POWERS[0] * near < far <= FAR_SCORE ** POWERS[1] * near else 0.0

    def link_unit(self) -> float:
        """Return the unit of scores, a power of two, in which the ratio of largest slopes on both sides changes by about e.

        This holds for counts, ``exp(score) - y``.  Units are negative if slopes are equal at low scores alone.
        """
        center, near = float(self.sign_intervals[0][0]), float(self.sign_intervals[1][0] or 1.0) / NEAR_CENTER
        ends = np.array([self.alone(center + side * near) for side in (-1, 1)])
        rate = np.diff(np.log(ends.max(axis=1) / -ends.min(axis=1)))[0] / (2 * near)
        score_unit = float(2.0 ** -np.rint(np.log2(rate)))
        score_unit = score_unit if 0 < score_unit < math.inf else 1.0
        low, high = (self.least_part(side * LARGE_SCORE * score_unit) for side in (-1, 1))
        return -score_unit if low > max(high, INVERTED_PART) else score_unit

    def balance_score(self, usual: bool) -> float:
        """Return a score far below 0 with equal largest slopes (or equally many usual ones) on both sides; otherwise 0."""
        low, high = -MAX_ASINH, 0.0
        for _ in range(BISECTIONS):
            slopes = self.alone(tried := (low + high) / 2)
            rising = (np.median(slopes) if usual else slopes.max() + slopes.min()) < 0
            low, high = (tried, high) if rising else (low, tried)
        return high if high <= LOW else 0.0

    def units_of_columns(self) -> list[float]:
        """Return powers of two as units that give columns about equal curvature; an empty list if curvatures are similar."""
        (center, half, _), to_forms = self.sign_intervals, self.scores.to_forms
        if len(half) == 1 or not are_separate(self.scores) or not np.all(half > 0):
            return []
        center_forms, bends = (to_forms.T @ center)[:, None], list[float]()
        for j, far in enumerate(half / 4):
            probe = far * to_forms.T[:, [j]].toarray()
            bends.append(float((self(center_forms + probe)[j] - self(center_forms - probe)[j]).mean()) / (2 * far))
        bent = np.array(bends)
        if not (bent > 0).all() or bent.max() < UNIT_RATIO**2 * bent.min():
            return []
        return [float(score_unit) for score_unit in 2.0 ** np.rint(np.log2(bent / bent.max()) / -2)]

    def has_unlike_columns(self) -> bool:
        """Return whether losses are sums of functions of single columns with unlike slopes or widths, or far from 0."""
        scores, to_forms = self.scores, self.scores.to_forms.T.toarray()
        if scores.is_shared or scores.shape[1] == 1 or not are_separate(scores):
            return False
        place = np.random.default_rng(0).normal(size=scores.shape[1])
        slopes = self((to_forms @ place)[:, None])
        alone = (self(far * to_forms[:, [j]])[j] for j, far in enumerate(place))
        if not ((slopes != 0).all(axis=0).any() and all(map(np.allclose, alone, slopes))):
            return False
        below, low, here, high = (self(far * to_forms.sum(axis=1)[:, None]) for far in (-LOWEST, -1, 0, 1))
        up, down, last = (np.maximum(side.max(axis=1), 0.0) for side in (here, -here, -below))
        most, least = np.maximum(up, down), np.where(up > down, np.maximum(down, last), up)
        rises = [np.abs(one - other).sum(axis=1) for one, other in ((here, low), (high, here))]
        # Constants of links are far from 0, constants of targets in the middle.
        far = (most > LINKED * least) & (np.abs(np.subtract(*rises)) > UNEQUAL_CURVATURE * np.add(*rises))
        steep = np.abs([low, here, high]).max(axis=(0, 2))
        return bool(far.any()) or any(one.max() > UNEQUAL_SLOPES * one.min() for one in (steep, self.sign_intervals[1]))

    def settling_score(self, probe: Array, power: int = 0) -> float:
        """Return the score beyond which nearly all slopes, over a power of the distance, hardly change; 1 if there is none."""
        ends = [self(side * 2.0 ** OCTAVES[-1] * probe[:, None]) / 2.0 ** (OCTAVES[-1] * power) for side in (-1, 1)]
        usual = max(float(np.abs(end).mean()) for end in ends)
        for place in 2.0 ** np.array(OCTAVES):
            near = [self(side * place * probe[:, None]) / place**power for side in (-1, 1)]
            if all(float(np.abs(one - end).mean()) <= SETTLED * usual for one, end in zip(near, ends, strict=True)):
                return float(place)
        return 1.0

    @property
    def link_facts(self) -> dict[str, Any]:
        """The facts about links: slopes and curvatures on the short side, and the least slope next to the largest."""
        # Slopes differ by targets at the first end, by censoring at one end, by weights at all; targets lie far within.
        ends = LARGE_SCORE, 4.0 ** OCTAVES[-1], -(4.0 ** OCTAVES[-1])
        part = max(map(self.least_part, ends)) if len(self.scores.projection) == 1 else 0.0
        return {"both_sides": self.both_sides, "short_curvature": self.short_curvature, "least_part": part}

    def least_part(self, place: float) -> float:
        """Return the ratio of the least to the largest slope at a far score, towards its side; otherwise 0."""
        slopes = math.copysign(1.0, place) * self.alone(place)
        least = float(slopes.min() / slopes.max())
        return least if 0 < least <= 1 else 0.0

    def both_sides(self, place: float) -> tuple[float, float]:
        """Return the largest slopes up and down at one score."""
        slopes = self.alone(place)
        up, down = (max(side[side < 1e100].max(initial=0.0), 1e-12) for side in (slopes, -slopes))
        return float(up), float(down)

    def short_curvature(self, place: float) -> float:
        """Return the curvature over the slope of the record with the largest slope at a score: between 0 and 1 for links."""
        down, here, up = (self.alone(place + side * SCORE_STEP) for side in (-1, 0, 1))
        own = int(np.argmax(np.where(here < 1e100, here, -math.inf)))
        found = float((up - down)[own] / (2 * SCORE_STEP * here[own]))
        return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0


@once
@np.errstate(all="ignore")
def public_facts(form: LossForm, column: int | None = None) -> tuple[LinearScores, PublicFacts]:
    """Return the scores (or one column) and public facts about their slopes from records of the domain; no data are read."""
    scores, one = linear_scores(form), slice(column, None if column is None else column + 1)
    own: Any = {"indices": scores.indices[:, one], "scale": scores.scale[:, one], "to_forms": scores.to_forms[one]}
    scores = scores if column is None else replace(scores, **own)
    scores, batch, is_level = records_of_domain(form, scores)
    engine = RecordSums(scores.form, batch)
    every = DomainSlopes(engine.read(np.arange(batch.size)), scores)
    if scores.is_shared:
        every = replace(every, scores=(scores := without_constant_directions(scores, every, batch.size)))
    some, label = np.unique(batch.group, return_index=True, return_inverse=True)[1:]
    by_label = DomainSlopes(engine.read(some), scores, like=label)
    # If losses read only scores and labels, one record has the slopes of all records with its label.
    alike = not any(label.lowered.fields or label.offset.any() for label in scores.form.labels)
    slopes_at = by_label if alike else every
    tied = has_nonsmooth_loss(form) and slopes_at.settling_score(slopes_at.probe) == 2.0 ** OCTAVES[0]
    labels = tied or (bool(form.template.record.discrete) and (alike or not slopes_at.has_targets(batch.group)))
    facts: Any = {"metric": DomainMetric.of(batch, scores), "is_level": is_level, "has_labels": labels}
    facts |= slopes_at.link_facts | {"is_tied": tied, "is_uneven": slopes_at.has_unlike_columns()}
    begin, unit = finite_start(form, every) if has_domain(form) else (None, 1.0)
    if begin is not None:
        return facts_near(form, replace(every, begin=begin, score_unit=unit), facts | {"start_table": begin})
    facts["is_finite"] = unit > 0
    plain, public = facts_near(form, replace(slopes_at, score_unit=unit_within(form, every) if tied else 1.0), facts)
    if tells_classes(form, scores.fields):
        return plain, replace(public, of_labels=by_label.of_labels if len(some) <= MAX_LABELS else None)
    if public.has_one_side or any(node.atom.kinks == "spectral" for node in nonsmooth_nodes(form.losses) if node.atom):
        return plain, public  # Slopes of matrix entries do not have both signs anywhere
    return facts_in_own_units(form, slopes_at, facts, plain, public)


def facts_in_own_units(
    form: LossForm, slopes_at: DomainSlopes, facts: dict[str, Any], plain: LinearScores, public: PublicFacts
) -> tuple[LinearScores, PublicFacts]:
    """Return scores and public facts in another unit and around another centre, if 1 and 0 are unsuitable."""
    scores, labels = slopes_at.scores, facts["has_labels"]
    rises = slopes_at.power_law_width()
    is_link = public.has_log_link and not rises and not (plain.width if scores.shape[1] == 1 else public.is_lipschitz)
    if is_link and not (labels and public.is_lipschitz and not are_lopsided(public.longest, LINKED)):
        single = len(scores.projection) == 1
        unit = slopes_at.link_unit() if single else 1.0
        if unit != 1:
            slopes_at = replace(slopes_at, scores=scores.in_units([unit]))
        moves = single and scores.has_constant and (unit < 0 or unit == 1)
        begins = slopes_at.balance_score(unit < 0) if moves else 0.0
        if unit == 1 and not begins:
            return plain, public
        slopes_at = replace(slopes_at, center=np.array([begins]))
        return facts_near(form, slopes_at, facts | slopes_at.link_facts)
    if scores.is_shared:  # They have no centre of their own
        wide = replace(slopes_at, score_unit=rises)
        return facts_near(form, wide, facts, rises) if plain.width * rises else (plain, public)
    if units := slopes_at.units_of_columns():
        slopes_at = replace(slopes_at, scores=scores.in_units(units))
        plain, public = facts_near(form, slopes_at, facts)
    middle, half, moved = slopes_at.sign_intervals
    if moved.any() and half[moved].max() > UNIT_RATIO * half[moved].min():  # One unit does not suit all columns
        moved = np.zeros_like(moved)
    middle, unit = np.where(moved, middle, 0.0), float(half[moved].max(initial=0.0))
    if not middle.any():
        far = slopes_at.settling_score(slopes_at.probe)
        is_far = 2.0 ** OCTAVES[0] < far < USUAL_UNITS[0] or USUAL_UNITS[1] < far < 2.0 ** OCTAVES[-1]  # from 1
        unit = rises or is_far * far / 2
        if labels or not unit:
            return plain, public
    secant = -np.median(slopes_at(np.zeros((scores.form.forms, 1))), axis=1) / middle
    scores, public = facts_near(form, replace(slopes_at, center=middle, score_unit=unit), facts, rises)
    return scores, replace(public, secant=np.where(np.isfinite(secant), secant, 0.0))


def facts_near(
    form: LossForm, slopes_at: DomainSlopes, facts: dict[str, Any], rises: float = 0.0
) -> tuple[LinearScores, PublicFacts]:
    """Return scores and public facts around the centre of the slopes, in their unit."""
    scores, labels, probe, unit = slopes_at.scores, facts["has_labels"], slopes_at.probe, slopes_at.score_unit
    along = probe_direction(scores, 0)
    levels = not labels and len(scores.form.labels) > 1 and are_separate(scores)  # Each record has one column of these
    even = scores.to_forms.T @ (np.sign(along) / math.sqrt(len(along))) if levels else probe

    def curvature_at(place: float) -> Any:
        return along @ derivative_along(slopes_at, place * probe[:, None], probe[:, None], scores.width)

    facts = facts | {"sides": tuple(slopes_at.curvature_far_away(side) / unit for side in (-1, 1))}
    far = 1.0 if facts.pop("is_tied") or rises else slopes_at.settling_score(even)
    # Curvature far from most records counts as a kink, too.
    bent = 0.0 if labels else np.median(np.abs(curvature_at(0.0)))
    is_narrow = not labels and bent * far < KINK_WIDTH * np.abs(slopes_at(far * probe[:, None])).max()
    if has_nonsmooth_loss(form) or (is_narrow and far > 1):
        # Slopes that never settle are those of squares, with settled curvature, or of other powers.
        kink = slopes_at.settling_score(even, 1) if labels and far >= 2.0 ** OCTAVES[-1] else far
        is_power = labels and kink >= 2.0 ** OCTAVES[-1]
        kink = float(np.nan_to_num(slopes_at.sign_intervals[1]).max()) or 1.0 if is_power else kink
        scores = replace(scores, width=(LABEL_WIDTH if labels else KINK_WIDTH) * kink)
        if is_power:
            facts["sides"] = tuple(float(np.mean(curvature_at(side * kink))) / unit for side in (-1, 1))
    places = (0.0, -1.0, 1.0, -FAR_SCORE, FAR_SCORE)
    steep = {place: np.linalg.norm(slopes_at(place * probe[:, None]), axis=0) for place in places}
    every = [curvature_at(place) / unit for place in CURVATURE_SCORES[: 3 if labels else None]]
    finite = [bent[np.isfinite(bent)] for bent in every]
    bends = [float(bent.mean()) if bent.size else 0.0 for bent in finite]
    most_bent = max(np.abs(bent).max(initial=0.0) for bent in finite)
    least_bent = min(np.abs(bent).min(initial=math.inf) for bent in every)
    near = np.concatenate([steep[place] for place in places[:3]])
    largest = float(near[near < 1e100].max(initial=0.0)) or 1.0
    usual = bends[0] if 0 < bends[0] < 1e100 else unit_like(largest)
    facts["has_no_curvature"] = bends[0] == 0
    is_lipschitz = all((steep[place] <= FLAT_RATIO * largest).all() for place in (-FAR_SCORE, FAR_SCORE))
    curvature_varies = not rises and max(bends[:3]) - min(bends[:3]) > 1e-6 * usual
    most = max(map(np.max, steep.values())) if is_lipschitz else math.inf
    most_bend = math.inf if curvature_varies and not is_lipschitz else most_bent or JUMP_CURVATURE * largest
    vanishes = is_lipschitz and not labels
    if vanishes and least_bent > 1e-9 * most_bent:
        # Or records with far targets have far less curvature in the middle than elsewhere.
        found = np.abs([curvature_at(place) for place in np.linspace(-FAR_SCORE, FAR_SCORE, NUM_SCORES)])
        vanishes = (found[NUM_SCORES // 2] <= FADED * found.max(axis=0)).any()
    if far < 2.0 ** OCTAVES[-1] and not rises:
        ends = np.stack([slopes_at(side * BEYOND_KINKS * far * probe[:, None]) for side in (-1, 1)])
        several = scores.shape[1] > 1 and (parts := loss_directions(scores)).size
        ends = np.linalg.solve(parts, ends) if several else ends
        longest = tuple(side.max(axis=(0, 2) if several else None, keepdims=True).ravel() for side in (-ends, ends))
        facts = facts | {"longest": longest, "saturation": unit * far}
        # Counts with slopes that settle at last count as links, if targets are long next to the other side.
        vanishes = vanishes and (scores.width > 0 or not are_lopsided(longest, LINKED))
        if vanishes and scores.is_shared:  # Other scores have a constant, which is searched
            ends = np.stack([slopes_at(np.full((scores.form.forms, 1), side * BEYOND_KINKS * far)) for side in (1, -1)])
            steepest = tuple(np.linalg.norm(ends, axis=1).max(axis=1).tolist())
            facts["unbalanced_slopes"] = steepest if are_lopsided(steepest, LOPSIDED) else None
    bounds = largest, usual, curvature_varies, is_lipschitz, float(most), float(most_bend), bool(vanishes)
    scores = replace(scores, width=unit * scores.width)
    return scores, PublicFacts(*bounds, center=slopes_at.center, score_unit=unit, **facts)


def unit_within(form: LossForm, slopes_at: DomainSlopes) -> float:
    """Return the root mean square of scores at a far point of K, without parameters that K does not bound; 1 if this is 0."""
    K, scores = form.feasible, slopes_at.scores
    with suppress(DPConvexError):
        far = K.project(FAR_SCORE * np.random.default_rng(0).normal(size=form.space.dim))
        inside = np.where(np.isfinite(K.lower) & np.isfinite(K.upper), far, 0.0)
        found = slopes_at.block.forms(scores.coefficients(scores.table(inside)))
        return float(np.sqrt(np.mean(found**2))) or 1.0
    return 1.0


def finite_start(form: LossForm, slopes_at: DomainSlopes) -> tuple[Array | None, float]:
    """Return a table inside K with finite losses, if these are not finite near 0, and a unit of scores near it, or 0."""
    scores, probe = slopes_at.scores, slopes_at.probe[:, None]

    def numbers(begin: Array, far: float) -> float:
        found = (replace(slopes_at, begin=begin)(place * probe) for place in (0.0, -far, far))
        return min(float(np.isfinite(slopes).all(axis=0).mean()) for slopes in found)

    if numbers(np.zeros(scores.shape), 1.0) == 1:
        return None, 1.0
    with suppress(DPConvexError):
        inside = np.zeros(form.space.dim) if form.feasible.is_space else form.feasible.region.inside
        begin = scores.table(inside.astype(float))  # SciPy's functions take no extended precision
        for unit in 0.5 ** np.arange(20.0):
            if numbers(begin, unit) > FINITE_PART:
                return begin, float(unit)
    return None, 0.0
