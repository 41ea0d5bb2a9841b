"""What records of the declared domain say of a loss, without data: slopes and curvatures, to decide how steps are taken."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DPConvexError
from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.mechanisms.recipe import has_ends, has_nonsmooth_loss
from dpconvex.optim.adaptive_descent import probe_of
from dpconvex.optim.constant_first import are_apart, are_uneven, parts_of
from dpconvex.optim.label_shares import of_labels
from dpconvex.optim.row_metrics import with_constant
from dpconvex.optim.slope_histograms import Public
from dpconvex.sensitivity.loss_form import LossForm, nonsmooth_nodes
from dpconvex.sums.engine import Records, RecordSums, SumPlan
from dpconvex.sums.exact_rows import ExactRows, on_grid
from dpconvex.sums.exact_sums import slopes_change
from dpconvex.sums.functions_of_records import with_functions
from dpconvex.sums.jacobians import within
from dpconvex.sums.linear_scores import LinearScores, linear_scores
from dpconvex.sums.public_rows import DomainMetric
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

FAR, FLAT = 30.0, 2.0  # Scores at which slopes are no longer than so many times those near 0, or are
# Scores at which curvatures are looked for: some are narrow.
PLACES = (0.0, -1.0, 1.0, *np.linspace(-0.9, 0.9, 10).tolist())
# Records drawn from the domain for each combination of labels, at least and at most; their numbers and scores, at most
LEAST, SAMPLES, NUMBERS, SCORES = 4, 512, 2**22, 2**20
# Scores up to FAR at which records are compared with themselves, and what counts as no curvature.
BENDS, FADED = 61, 1e-3
NARROW = 1e4  # Curvature next to slopes, where none was found
# Of a loss with nonsmooth points: the width over which it bends, next to where slopes of records settle, to so much of them.
WIDTH, WIDER, SETTLED, KINKS = 0.01, 0.25, 0.1, range(-12, 32)
SURELY = 16.0  # How much farther away slopes are at their ends
# Slopes next to the largest that are 0 but for rounding, and how near ends of scores come to the farthest where there are none.
ROUNDED, ENDLESS = 1e-12, 1 - 1e-6
# Slopes on one side, of records: fewer are not seen, or are on the other side as a rule.  How near 0 they are looked at, next to
# half the scores that have both; and where ends of these are looked for: at the sinh of so much, in so many halves.  If slopes
# settle outside of the last bounds, scores are in a unit of their own.
RARE, SIDED, NEAR, FARTHEST, HALVES, USUAL = 0.02, 0.1, 1e-3, 21.0, 48, (1 / 16, 16.0)
POWERS = 0.1, 3.0  # Of the distance, between which slopes far away rise that neither settle nor are those of a link
ALIKE = 4.0  # How much wider one column's scores may be than another's
NUMBER = 0.9  # Of records, whose losses are numbers where steps begin and one unit of scores from there
LABELS = 200  # Of which shares are told, at most
LINKED = 50.0  # How much longer slopes on one side are at least, where smooth losses are those of links
LOW = -3.0  # Scores below 0 at which slopes balance, from which scores of links are counted
# Of a score, for curvatures of links, and one where targets say nothing; the least part of slopes there, of links turned round.
STEP, LARGE, TURNED = 0.05, 20.0, 0.5
NEARBY = 16.0  # Of half the scores that have both signs: where their largest slopes are compared

Middles = tuple[Array, Array, NDArray[np.bool_]]
Seen = tuple[RecordSums, Records, SumPlan]


@once
@np.errstate(all="ignore")
def known_of(form: LossForm, column: int | None = None) -> tuple[LinearScores, Public]:
    """Return the scores, or one column, and what records of the domain say of slopes and curvatures; no data are read."""
    scores, one = linear_scores(form), slice(column, None if column is None else column + 1)
    own: Any = {"places": scores.places[:, one], "scale": scores.scale[:, one], "kinds": scores.kinds[one]}
    scores = scores if column is None else replace(scores, **own)
    record = form.template.record
    count = len(record.combinations)
    each = max(min(SAMPLES, NUMBERS // max(len(scores.inside), 1)), 64)
    each = max(min(each, SCORES // count**2), LEAST)
    batch = (form.made.before if form.made else record).sample(each * count, np.random.default_rng(0))
    if form.made:
        batch = with_functions(batch, (form.made.fields, record, form.made.groups))
    batch, is_level = on_grid(batch, ExactRows.of(scores)), False
    if form.made and not tells_classes(form, scores.fields):
        constants = [name for name, own in form.made.fields.items() if own.is_constant]
        scores = with_constant(scores, batch) if constants else scores
        is_level = scores.name in constants and set(np.unique(form.made.fields[scores.name].table)) == {0.0, 1.0}
    engine = RecordSums(scores.form, batch)
    seen = (engine, *engine._rows(np.arange(batch.size))[:2])
    if scores.is_shared:
        scores = within(scores, partial(at, seen, scores=scores), batch.size)
    some, label = np.unique(batch.group, return_index=True, return_inverse=True)[1:]
    by_label = (engine, *engine._rows(some)[:2])
    # Where losses read nothing but scores and labels, one record tells the slopes of all with its label.
    alike = not any(label.lowered.fields or label.offset.any() for label in scores.form.labels)
    told, like = (by_label, label) if alike else (seen, ...)
    slopes_at: Callable[..., Any] = partial(at, told, scores=scores, like=like)
    probe = scores.kinds.T @ probe_of(scores, 0)
    tied = has_nonsmooth_loss(form) and farthest_kink(slopes_at, probe) == 2.0 ** KINKS[0]
    labels = tied or (bool(record.discrete) and (alike or not has_targets(slopes_at, probe, batch.group)))
    measured: Any = {"metric": DomainMetric.of(batch, scores), "is_level": is_level, "has_labels": labels}
    uneven = are_uneven(slopes_at, scores, partial(middles_of, slopes_at, scores))
    measured |= of_links(slopes_at, scores) | {"is_tied": tied, "is_uneven": uneven}
    begin, unit = start_of(form, scores, seen) if has_ends(form) else (None, 1.0)
    if begin is not None:
        slopes_at = partial(at, seen, scores=scores, begin=begin)
        return seen_from(form, scores, slopes_at, measured | {"start": begin}, 0.0, unit)
    measured["begins"] = unit > 0
    plain, public = seen_from(form, scores, slopes_at, measured, 0.0, unit_within(form, scores, seen) if tied else 1.0)
    if tells_classes(form, scores.fields):
        return plain, replace(public, of_labels=partial(of_labels, *by_label, scores) if len(some) <= LABELS else None)
    if public.has_one_side or any(node.atom.kinks == "spectral" for node in nonsmooth_nodes(form.losses) if node.atom):
        return plain, public  # Slopes of entries of a matrix have signs of their own nowhere
    found = middles_of(slopes_at, scores)
    rises = rises_slowly(slopes_at, scores, found)
    is_link = public.is_balanced and not rises and not (plain.width if scores.shape[1] == 1 else public.is_flat)
    is_link = is_link and not (labels and public.is_flat and not is_lopsided(public.longest))
    if is_link:
        single = len(scores.onto_kinds) == 1
        unit = unit_of_link(slopes_at, scores, found) if single else 1.0
        if unit != 1:
            scores = scores.in_units([unit])
            slopes_at = partial(slopes_at, scores=scores)
        moves = single and scores.has_constant and (unit < 0 or unit == 1)
        begins = balances_at(slopes_at, scores, unit < 0) if moves else 0.0
        if unit == 1 and not begins:
            return plain, public
        away = begins * scores.kinds.T.toarray()
        measured |= of_links(lambda forms: slopes_at(away + forms), scores)
        return seen_from(form, scores, slopes_at, measured, np.array([begins]))
    if scores.is_shared and not plain.width * rises:  # They have no middles of their own
        return plain, public
    if scores.is_shared:
        return seen_from(form, scores, slopes_at, measured, 0.0, rises, rises)
    if units := units_of_columns(slopes_at, scores, found):
        scores = scores.in_units(units)
        slopes_at = partial(slopes_at, scores=scores)
        plain, public = seen_from(form, scores, slopes_at, measured)
        found = middles_of(slopes_at, scores)
    middle, half, moved = found
    if moved.any() and half[moved].max() > ALIKE * half[moved].min():  # One unit would not do for all
        moved[:] = False
    middle, unit = np.where(moved, middle, 0.0), float(half[moved].max(initial=0.0))
    if not middle.any() and (labels or not (unit := rises or wide_unit(slopes_at, scores))):
        return plain, public
    secant = -np.median(slopes_at(np.zeros((scores.form.forms, 1))), axis=1) / middle
    scores, public = seen_from(form, scores, slopes_at, measured, middle, unit, rises)
    return scores, replace(public, secant=np.where(np.isfinite(secant), secant, 0.0))


def seen_from(
    form: LossForm,
    scores: LinearScores,
    slopes_of: Callable[[Any], Any],
    measured: dict[str, Any],
    middle: Array | float = 0.0,
    unit: float = 1.0,
    rises: float = 0.0,
) -> tuple[LinearScores, Public]:
    """Return what is seen from scores in the middle, so many by column, in a unit of scores."""
    labels, along = measured["has_labels"], probe_of(scores, 0)
    probe = scores.kinds.T @ along
    levels = not labels and len(scores.form.labels) > 1 and are_apart(scores)  # Of which each record has one column
    even = scores.kinds.T @ (np.sign(along) / math.sqrt(len(along))) if levels else probe
    away = (scores.kinds.T @ np.broadcast_to(middle, along.shape))[:, None]

    def slopes_at(forms: Any) -> Any:
        return slopes_of(away + unit * forms)

    def bent_at(place: float) -> Any:
        return along @ slopes_change(slopes_at, place * probe[:, None], probe[:, None], scores.width)

    measured = measured | {"sides": tuple(bend_far_away(slopes_at, along, side * probe) / unit for side in (-1, 1))}
    far = 1.0 if measured.pop("is_tied") or rises else farthest_kink(slopes_at, even)
    # Bends that most records are far from are kinks, too.
    bent = 0.0 if labels else np.median(np.abs(bent_at(0.0)))
    is_narrow = not labels and bent * far < WIDTH * np.abs(slopes_at(far * probe[:, None])).max()
    if has_nonsmooth_loss(form) or (is_narrow and far > 1):
        # Slopes that never settle are those of squares, whose curvature does.
        kink = farthest_kink(slopes_at, even, 1) if labels and far >= 2.0 ** KINKS[-1] else far
        scores = replace(scores, width=(WIDER if labels else WIDTH) * kink)
    steep: dict[float, Array] = {}
    bends, most_bent, least_bent = list[float](), list[float](), list[float]()
    for place in (0.0, -1.0, 1.0, -FAR, FAR):
        steep[place] = np.linalg.norm(slopes_at(place * probe[:, None]), axis=0)
    for place in PLACES[: 3 if labels else None]:
        bent = bent_at(place) / unit
        most_bent.append(np.abs(bent[np.isfinite(bent)]).max(initial=0.0))
        least_bent.append(np.abs(bent).min(initial=math.inf))
        bends.append(float(bent[np.isfinite(bent)].mean()) if np.isfinite(bent).any() else 0.0)
    near = np.concatenate([steep[place] for place in (0.0, -1.0, 1.0)])
    largest = float(near[near < 1e100].max(initial=0.0)) or 1.0
    usual = bends[0] if 0 < bends[0] < 1e100 else 1.0
    is_flat = all((steep[place] <= FLAT * largest).all() for place in (-FAR, FAR))
    is_bent = not rises and max(bends[:3]) - min(bends[:3]) > 1e-6 * usual
    most = max(map(np.max, steep.values())) if is_flat else math.inf
    most_bend = math.inf if is_bent and not is_flat else max(most_bent) or NARROW * largest
    vanishes = is_flat and not labels and (min(least_bent) <= 1e-9 * max(most_bent) or fades(bent_at))
    if far < 2.0 ** KINKS[-1] and not rises:
        ends = np.stack([slopes_at(side * SURELY * far * probe[:, None]) for side in (-1, 1)])
        several = scores.shape[1] > 1 and (parts := parts_of(scores)).size
        ends = np.linalg.solve(parts, ends) if several else ends
        longest = tuple(side.max(axis=(0, 2) if several else None, keepdims=True).ravel() for side in (-ends, ends))
        measured = measured | {"longest": longest, "reach": unit * far}
        # Counts whose slopes settle at last are seen as those of links, where targets are long next to the other side.
        vanishes = vanishes and (scores.width > 0 or not is_lopsided(longest))
    known = largest, usual, is_bent, is_flat, float(most), float(most_bend), bool(vanishes)
    return replace(scores, width=unit * scores.width), Public(*known, middle=middle, unit=unit, **measured)


def is_lopsided(longest: tuple[Array, ...]) -> bool:
    """Say whether the longest slopes on one side are those of a link next to the other's."""
    return bool(0 < LINKED * np.min(longest) < np.max(longest))


def bend_far_away(slopes_at: Callable[[Any], Any], along: Array, probe: Array) -> float:
    """Return the mean curvature far away on the side of a probe, or 0 where it is not the same everywhere."""
    near, half, far = (float(np.mean(along @ slopes_at(part * FAR * probe[:, None]))) for part in (0.25, 0.5, 1.0))
    bend = 2 * abs(far - half) / FAR
    return bend if abs(abs(far - half) - 2 * abs(half - near)) < SETTLED * abs(far - half) < math.inf else 0.0


def fades(bent_at: Callable[[float], Any]) -> bool:
    """Say whether some records bend in the middle far less than elsewhere: those whose targets are far away."""
    found = np.abs([bent_at(place) for place in np.linspace(-FAR, FAR, BENDS)])
    return bool((found[BENDS // 2] <= FADED * found.max(axis=0)).any())


def middles_of(slopes_at: Callable[[Any], Any], scores: LinearScores) -> Middles:
    """Return the middles of scores at which slopes have both signs, half the widths, and where 0 is none of them, by column."""

    def seen(places: Array, sign: int) -> Array:
        slopes = sign * slopes_at((scores.kinds.T @ places)[:, None])
        return np.asarray((slopes > ROUNDED * np.abs(slopes).max(axis=1, keepdims=True)).mean(axis=1))

    count, ends = scores.kinds.shape[0], list[Array]()
    for sign in (1, -1):
        low, high = np.full(count, -FARTHEST), np.full(count, FARTHEST)
        for _ in range(HALVES):
            tried = (low + high) / 2
            far = seen(sign * np.sinh(tried), sign) > RARE
            low, high = np.where(far, low, tried), np.where(far, tried, high)
        ends.append(np.where(np.abs(high) < ENDLESS * FARTHEST, sign * np.sinh(high), np.nan))
    middle, half = (ends[1] + ends[0]) / 2, np.maximum((ends[1] - ends[0]) / 2, 0.0)
    # Bounds may be targets, where slopes jump.
    near = [seen(-sign * NEAR * np.nan_to_num(half), sign) for sign in (1, -1)]
    return middle, half, (np.minimum(*near) < SIDED) & (half > 0)


def has_targets(slopes_at: Callable[[Any], Any], probe: Array, group: Indices) -> bool:
    """Say whether slopes of records of one label have both signs at a score, as those of targets have, weights have not."""
    for place in np.sinh(np.linspace(-FARTHEST, FARTHEST, 2 * BENDS)):
        slopes = slopes_at(place * probe[:, None])
        least = ROUNDED * np.abs(slopes).max()
        if any(np.intersect1d(group[own > least], group[own < -least]).size for own in slopes):
            return True
    return False


def rises_slowly(slopes_at: Callable[[Any], Any], scores: LinearScores, found: Middles) -> float:
    """Return half the width of scores at which slopes have both signs, if slopes far away are those of a power, or 0."""
    middle, half, _ = found
    if not (half > 0).all():
        return 0.0
    near, far = (
        max(
            float(np.abs(slopes_at((scores.kinds.T @ (middle + side * far * half))[:, None])).max()) for side in (-1, 1)
        )
        for far in (1.0, FAR)
    )
    return float(half.max()) if FAR ** POWERS[0] * near < far <= FAR ** POWERS[1] * near else 0.0


def unit_of_link(slopes_at: Callable[[Any], Any], scores: LinearScores, found: Middles) -> float:
    """Return a power of two, the unit of a score in which the largest slopes on both sides change by about e, next to each other.

    So do those of counts, ``exp(score) - y``.  Costs that rise with dollars, and Tweedie losses, have other units.  Units are
    negative where records slope alike at low scores, not at high ones: ``exp(score - y) - 1`` turned is ``1 - exp(-y - score)``.
    """
    middle, near = float(found[0][0]), float(found[1][0] or 1.0) / NEARBY
    ends = np.array([slopes_at((middle + side * near) * scores.kinds.T.toarray())[0] for side in (-1, 1)])
    rate = np.diff(np.log(ends.max(axis=1) / -ends.min(axis=1)))[0] / (2 * near)
    unit = float(2.0 ** -np.rint(np.log2(rate)))
    unit = unit if 0 < unit < math.inf else 1.0
    low, high = (least_part(slopes_at, scores, side * LARGE * unit) for side in (-1, 1))
    return -unit if low > max(high, TURNED) else unit


def balances_at(slopes_at: Callable[[Any], Any], scores: LinearScores, usual: bool) -> float:
    """Return a score far below 0 at which the largest slopes on both sides are equal, or as many usual ones, or 0."""
    low, high = -FARTHEST, 0.0
    for _ in range(HALVES):
        slopes = slopes_at((tried := (low + high) / 2) * scores.kinds.T.toarray())[0]
        low, high = (tried, high) if (np.median(slopes) if usual else slopes.max() + slopes.min()) < 0 else (low, tried)
    return high if high <= LOW else 0.0


def units_of_columns(slopes_at: Callable[[Any], Any], scores: LinearScores, found: Middles) -> list[float]:
    """Return powers of two in which the curvature by each column is about the same; none where these are alike."""
    middle, half, _ = found
    if len(half) == 1 or not are_apart(scores) or not np.all(half > 0):
        return []
    away, bends = (scores.kinds.T @ middle)[:, None], list[float]()
    for j, far in enumerate(half / 4):
        probe = far * scores.kinds.T[:, [j]].toarray()
        bends.append(float((slopes_at(away + probe)[j] - slopes_at(away - probe)[j]).mean()) / (2 * far))
    bent = np.array(bends)
    if not (bent > 0).all() or bent.max() < ALIKE**2 * bent.min():
        return []
    return [float(unit) for unit in 2.0 ** np.rint(np.log2(bent / bent.max()) / -2)]


def wide_unit(slopes_at: Callable[[Any], Any], scores: LinearScores) -> float:
    """Return a unit of scores about as large as those beyond which slopes settle, if these are far from 1, or 0."""
    far = farthest_kink(slopes_at, scores.kinds.T @ probe_of(scores, 0))
    return far / 2 if 2.0 ** KINKS[0] < far < USUAL[0] or USUAL[1] < far < 2.0 ** KINKS[-1] else 0.0


@np.errstate(all="ignore")
def of_links(slopes_at: Callable[[Any], Any], scores: LinearScores) -> dict[str, Any]:
    """Return what links say: slopes and curvatures on their short side, and the least part of the largest that a record has."""
    found = {one.__name__: partial(one, slopes_at, scores) for one in (both_sides, short_bend)}
    return found | {"least_part": least_part(slopes_at, scores, LARGE) if len(scores.onto_kinds) == 1 else 0.0}


@np.errstate(all="ignore")
def least_part(slopes_at: Callable[[Any], Any], scores: LinearScores, place: float) -> float:
    """Return the least slope at one score far away, towards that side, next to the largest, or 0."""
    slopes = math.copysign(1.0, place) * slopes_at(place * scores.kinds.T.toarray()[:, :1])[0]
    least = float(slopes.min() / slopes.max())
    return least if 0 < least <= 1 else 0.0


@np.errstate(all="ignore")
def both_sides(slopes_at: Callable[[Any], Any], scores: LinearScores, place: float) -> tuple[float, float]:
    """Return the largest slopes at one score, up and down."""
    slopes = slopes_at(place * scores.kinds.T.toarray())[0]
    up, down = (max(side[side < 1e100].max(initial=0.0), 1e-12) for side in (slopes, -slopes))
    return float(up), float(down)


@np.errstate(all="ignore")
def short_bend(slopes_at: Callable[[Any], Any], scores: LinearScores, place: float) -> float:
    """Return the curvature at one score of the record whose slope is the largest there, next to that: from 0 to 1 for links."""
    down, here, up = (slopes_at((place + side * STEP) * scores.kinds.T.toarray())[0] for side in (-1, 0, 1))
    own = int(np.argmax(np.where(here < 1e100, here, -math.inf)))
    found = float((up - down)[own] / (2 * STEP * here[own]))
    return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0


def farthest_kink(slopes_at: Callable[[Any], Any], probe: Array, power: int = 0) -> float:
    """Return the scores beyond which slopes of nearly all records, by a power of the distance, hardly change, or 1."""
    ends = [slopes_at(side * 2.0 ** KINKS[-1] * probe[:, None]) / 2.0 ** (KINKS[-1] * power) for side in (-1, 1)]
    usual = max(float(np.abs(end).mean()) for end in ends)
    for place in 2.0 ** np.array(KINKS):
        near = [slopes_at(side * place * probe[:, None]) / place**power for side in (-1, 1)]
        if all(float(np.abs(one - end).mean()) <= SETTLED * usual for one, end in zip(near, ends, strict=True)):
            return float(place)
    return 1.0


def at(seen: Seen, forms: Any, scores: LinearScores, begin: Array | None = None, like: Any = ...) -> Any:
    """Return slopes by the columns, shape (columns, records), at forms next to a table if that is given; NaN outside.

    `like` says for each record which one of the block has its slopes.
    """
    engine, block, plan = seen
    forms = np.repeat(forms, plan.size // forms.shape[1], axis=1)
    if begin is None:
        return (scores.kinds @ engine._slopes(forms, block, plan)[1])[:, like]
    forms = forms + engine.design.forward(block, scores.coefficients(begin))
    losses, slopes = engine._slopes(forms, block, plan, valued=True)
    return scores.kinds @ np.where(np.isfinite(losses), slopes, np.nan)


def unit_within(form: LossForm, scores: LinearScores, seen: Seen) -> float:
    """Return the root mean square of scores at a far point of K, without parameters that it does not bound; 1 of none."""
    K, (engine, block, _) = form.feasible, seen
    with suppress(DPConvexError):
        far = K.project(FAR * np.random.default_rng(0).normal(size=form.space.dim))
        inside = np.where(np.isfinite(K.lower) & np.isfinite(K.upper), far, 0.0)
        found = engine.design.forward(block, scores.coefficients(scores.table(inside)))
        return float(np.sqrt(np.mean(found**2))) or 1.0
    return 1.0


def start_of(form: LossForm, scores: LinearScores, seen: Seen) -> tuple[Array | None, float]:
    """Return a table inside of K at which losses are numbers, if none near scores of 0, and a unit of scores near it, or 0."""
    probe = (scores.kinds.T @ probe_of(scores, 0))[:, None]

    def numbers(begin: Array, far: float) -> float:
        found = [np.isfinite(at(seen, place * probe, scores, begin)).all(axis=0) for place in (0.0, -far, far)]
        return min(float(number.mean()) for number in found)

    if numbers(np.zeros(scores.shape), 1.0) == 1:
        return None, 1.0
    with suppress(DPConvexError):
        inside = np.zeros(form.space.dim) if form.feasible.is_space else form.feasible.region.inside
        begin = scores.table(inside.astype(float))  # SciPy's functions take no longer numbers
        for unit in 0.5 ** np.arange(20.0):
            if numbers(begin, unit) > NUMBER:
                return begin, float(unit)
    return None, 0.0
