"""Estimates from counts of records in cells, with intervals from bootstrap replicates.

Arrays have the estimate first, and then the replicates; cells lie along the last axes, between edges.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit, xlogy

from dpconvex.mechanisms.cell_counts import CLEAR, Cells, on_ruler
from dpconvex.util.arguments import FRACTION, number_in
from dpconvex.util.arrays import Array
from dpconvex.util.markup import digits

STEEPEST = 4.0  # Largest slope of log-odds, for underconfident scores
TRUE = 0.2  # Usual error of the slope of calibrated probabilities
LEVEL = 0.96  # Share of replicates in an interval, above 0.95 because they are few
CELL_POINTS = 16  # Points in a cell
BINS = 10  # Most bins of a calibration curve
FINEST = 10_001  # Grid of probabilities for a search
FINER, SWEEPS = 8, 10  # Parts of a gap between knots, and iterations of the likelihood in them
WITHIN = 2.0  # Standard deviations on either side of an estimate: an interval of 95 %

MEANING = {  # The numbers of an evaluation, in their order: (name in a report, meaning)
    "error": ("error", "share of records whose label is predicted wrongly"),
    "constant": ("error of a constant", "error of always predicting the most frequent label"),
    "auc": (
        "AUC",
        "probability that a record with the second label scores higher than one with the first; 0.5 is guessing",
    ),
    "log_loss": ("log loss", "mean of minus the logarithm of the probability of the true label; 0 is perfect"),
    "brier": ("Brier score", "mean squared distance of probabilities from what happened; 0 is perfect"),
    "calibration_error": (
        "calibration error",
        "mean distance of predicted probabilities from observed frequencies; 0 is perfect",
    ),
    "r2": ("R²", "share of the variance that is explained; 0 is a constant, 1 is perfect"),
    "deviance": ("deviance", "mean Poisson deviance of counts; 0 is perfect"),
    "deviance_gain": ("deviance gain", "share of the deviance that is explained; 0 is a constant, 1 is perfect"),
    "absolute_error": ("mean absolute error", "mean distance of predictions from the truth"),
    "concordance": ("concordance", "share of pairs whose order is predicted correctly; 0.5 is guessing"),
}


class Estimate(float):
    """Hold a number with an `interval` that contains the population's number with a probability of about 0.95.

    It is printed as imprecise if the interval is longer than `most`, such as from a useless model to a perfect one.

    >>> Estimate(0.25, (0.2, 0.3)), estimate(np.full(3, np.nan))
    (0.25 (0.2 to 0.3), undetermined)
    """

    interval: tuple[float, float]
    most: float

    def __new__(
        cls, value: float = np.nan, interval: tuple[float, float] = (np.nan, np.nan), most: float = np.inf
    ) -> Self:
        made = super().__new__(cls, value)
        made.interval, made.most = interval, most
        return made

    @property
    def is_undetermined(self) -> bool:
        """Whether the interval is too long for a useful number."""
        return not self.interval[1] - self.interval[0] <= self.most  # true for NaN, too

    def within(self, most: float) -> "Estimate":
        """Return the estimate with another largest length of its interval."""
        return Estimate(self, self.interval, most)

    @property
    def text(self) -> str:
        """The number; "imprecise" if its interval is too long, and "undetermined" if there is none."""
        return ("imprecise" if self.reach else "undetermined") if self.is_undetermined else digits(self)

    @property
    def reach(self) -> str:
        """The interval; an empty text if there is none."""
        if np.isnan(self):
            return ""
        low, high = self.interval
        return f"at most {digits(high)}" if np.isneginf(low) else f"{digits(low)} to {digits(high)}"

    def __str__(self) -> str:
        return self.text + f" ({self.reach})" * bool(self.reach)

    __repr__ = __str__


class Curve(NamedTuple):
    """Points of a curve, with an interval of 95 % for each `y`; `at` holds the parameter of each point, such as its threshold."""

    x: Array
    y: Array
    lower: Array
    upper: Array
    at: Array

    @property
    def reach(self) -> tuple[float, float]:
        """The ends of an axis within 0 and 1 that shows all points and intervals."""
        drawn = np.concatenate([part[np.isfinite(self.y)] for part in (self.x, self.lower, self.upper)])
        low, high = drawn.min(initial=1.0), drawn.max(initial=0.0)
        return (max(low - 0.1 * (high - low), 0.0), min(high + 0.1 * (high - low), 1.0)) if low < high else (0.0, 1.0)


def estimate(
    values: Array, most: float = 1.0, least: float = 0.0, blur: float = 0.0, unbiased: bool = True
) -> Estimate:
    """Return the first value, less its bias by the replicates unless `unbiased` is False, and its interval.

    The interval allows for the bias and a blur.  It is undetermined if it is longer than half of its possible range.
    """
    drawn = values[1:][np.isfinite(values[1:])]
    if not len(drawn) or not np.isfinite(values[0]):
        return Estimate()
    middle = float(np.median(drawn))  # a few replicates are far out in the noise
    bias, spread = middle - values[0], np.quantile(np.abs(drawn - middle), LEVEL)
    reach = np.hypot(np.hypot(spread, WITHIN * bias), blur)
    low, value, high = np.clip(values[0] - bias * unbiased + np.array([-reach, 0.0, reach]), least, most).tolist()
    return Estimate(value, (low, high), (most - least) / 2)


def gain(part: Array, whole: Array) -> Estimate:
    """Return one minus the ratio of two positive numbers; its interval covers the intervals of the ratio and of its logarithm.

    It has no lower end if it is imprecise and the second number may be 0.  The noise of the bias exceeds the bias.
    """
    parts = ratio(part, whole)
    log = estimate(np.log(np.maximum(parts, 1e-12)), np.inf, -np.inf, unbiased=False)
    plain = estimate(parts, np.inf, unbiased=False)
    low, high = 1 - np.array([plain.interval, np.exp(log.interval)])[:, ::-1].T
    found = Estimate(1 - plain, (low.min(), high.max()), max(1.0, plain))
    endless = found.is_undetermined and estimate(whole, np.inf).interval[0] == 0
    return Estimate(found, (-np.inf, found.interval[1]), found.most) if endless else found


def share(part: Array, table: Array, most: float = 1.0, noise: float = 0.0) -> Estimate:
    """Return the mean of `part` over a table's records, whose number has this variance of the noise, or a ratio of arrays."""
    return unless_hidden(estimate(ratio(part, whole(table)), most), table[0].sum(), noise)


def unless_hidden(found: Estimate, records: float, noise: float) -> Estimate:
    """Return a share of these records; its interval is 0 to 1 if noise of this variance may exceed their number."""
    hidden = records < CLEAR * np.sqrt(noise) and not np.isnan(found)
    return Estimate(found, (0.0, 1.0), found.most) if hidden else found


def curve(x: Array, values: Array, at: Array, most: float = 1.0, blur: ArrayLike = 0.0) -> Curve:
    """Return a curve with pointwise intervals, from values of shape (1 + replicates, points) and their blur."""
    known = np.isfinite(values[0]) & np.isfinite(values[1:]).any(axis=0)
    deviation = np.where(known, np.nanstd(np.where(known, values[1:], 0.0), axis=0), np.nan)
    reach, least = np.hypot(WITHIN * deviation, blur), 0.0 if most == 1 else -most
    return Curve(x, values[0], np.maximum(values[0] - reach, least), np.minimum(values[0] + reach, most), at)


def clear(shares: Array, least: float = 0.0) -> Array:
    """Return which cells' shares of records, shape (1 + replicates, cells), exceed `least` and their noise."""
    return np.asarray(shares[0] > np.maximum(least, CLEAR * np.std(shares[1:], axis=0)))


def whole(table: Array) -> Array:
    """Return the number of records, shape (1 + replicates,)."""
    return np.asarray(table.reshape(len(table), -1).sum(axis=1))


def ratio(part: Array, total: ArrayLike) -> Array:
    """Return a ratio, or NaN for a denominator of 0."""
    with np.errstate(all="ignore"):
        return np.where(np.asarray(total) > 1e-9, part / np.maximum(total, 1e-9), np.nan)


def middles(edges: Array) -> Array:
    return (edges[1:] + edges[:-1]) / 2


def positions(table: Array, edges: Array) -> Array:
    """Return the mean place of records in each cell, with densities interpolated from adjacent cells; the shape of the table."""
    width = np.diff(edges)
    density = np.pad(table / width, ((0, 0), (1, 1)), mode="edge")
    tilt = (density[:, 2:] - density[:, :-2]) / np.maximum(density[:, 1:-1], 1e-9 + 0.01 * density.max())
    return np.asarray(middles(edges) + width * np.clip(tilt / 24, -0.2, 0.2))


def bins(table: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Return shares of records, shares of the second label, and mean probabilities, each of shape (1 + replicates, bins)."""
    both = table.sum(axis=1)
    rank = (np.cumsum(both[0]) - both[0] / 2) / max(both[0].sum(), 1e-9)
    found = np.unique(np.minimum(BINS * rank, BINS - 1).astype(int), return_inverse=True)[1]
    member = np.eye(found.max() + 1)[found]
    records = both @ member
    said = ratio((both * positions(both, edges)) @ member, records)
    return ratio(records, whole(table)[:, None]), ratio(table[:, 1] @ member, records), said


def moments(table: Array, edges: Array) -> Array:
    """Return the sum of squared places of all records, shape (1 + replicates,)."""
    return np.asarray((table * (positions(table, edges) ** 2 + np.diff(edges) ** 2 / 12)).sum(axis=1))


def inside(table: Array, edges: Array, noise: float) -> tuple[Array, Array]:
    """Return points in cells, (cells, points), and shares of a cell's records there by label, (1 + replicates, 2, cells, points).

    Densities of records slope as in `positions`.  The label frequencies follow the curve of `calibrated`, for counts with this
    variance of the noise.
    """
    part = (np.arange(CELL_POINTS) + 0.5) / CELL_POINTS
    chance = edges[:-1, None] + np.diff(edges)[:, None] * part
    both = table.sum(axis=1)
    density = np.exp(12 * ((positions(both, edges) - middles(edges)) / np.diff(edges))[..., None] * (part - 0.5))
    curve = calibrated(table, edges, noise)[2]
    rate = expit(np.clip(curve[:, :1, None] + curve[:, 1:, None] * logit(chance), -15, 15))
    found = np.stack([density * (1 - rate), density * rate], axis=1)
    return chance, np.asarray(found / found.sum(axis=3, keepdims=True))


def surprises(table: Array, edges: Array, noise: float) -> Array:
    """Return the sum of negative logarithms of the labels' probabilities, shape (1 + replicates,)."""
    chance, shares = inside(table, edges, noise)
    log = np.stack([np.log1p(-chance), np.log(chance)])
    return -np.asarray((table[..., None] * shares * log).sum(axis=(1, 2, 3)))


def above(threshold: float, table: Array, edges: Array, noise: float) -> Array:
    """Return the counts of both labels at scores above a threshold, shape (1 + replicates, 2)."""
    number_in(0, 1).check("confusion", threshold=threshold)
    right = int(np.clip(np.searchsorted(edges, threshold), 1, len(edges) - 1))
    along = (threshold - edges[right - 1]) / (edges[right] - edges[right - 1])
    if along == 1:
        return np.asarray(table[..., right:].sum(axis=2))
    beyond = np.clip(np.arange(1, CELL_POINTS + 1) - CELL_POINTS * along, 0.0, 1.0)
    own = table[..., right - 1] * (inside(table, edges, noise)[1][:, :, right - 1] @ beyond)
    return np.asarray(table[..., right:].sum(axis=2) + own)


def lengths(knots: Sequence[float] | Array) -> Array:
    """Return the mean length of records at each knot, if records are spread evenly and knots share their squares."""
    gaps, sums = np.diff(knots), np.abs(np.add(knots[1:], knots[:-1]))
    added = np.where(sums > 0, gaps**2 / (6 * np.where(sums > 0, sums, 1.0)), -gaps / 4)  # between two knots
    return np.abs(knots) + middles(np.pad(added, 1, mode="edge"))


def entropy_bends(knots: Array, whole: bool) -> Array:
    """Return the increase of y log y by sharing between knots; 0 for integers at knots that are at most 1 apart."""
    value, below = xlogy(knots, knots), xlogy(knots**2 / 2, knots) - knots**2 / 4
    added = (value[1:] + value[:-1]) / 2 - np.diff(below) / np.diff(knots)
    return middles(np.pad(np.where(whole & (np.diff(knots) <= 1), 0.0, added), 1, mode="edge"))


def tied(yes: Array, no: Array, place: Array, rate: Array) -> Array:
    """Return the share of ordered pairs within each cell, minus one half, shape (1 + replicates, cells).

    Log-odds of yes rise with the place of a cell.  Their slope is fitted to all cells, and is at least that of calibrated
    scores.
    """
    weight, odds = yes * no / (yes + no + 1e-9), np.log((yes + 0.5) / (no + 0.5))
    off = place - ratio(weight @ place, weight.sum(axis=1))[:, None]
    slope = ratio((weight * off * odds).sum(axis=1), (weight * off**2).sum(axis=1))
    return np.minimum(np.clip(np.nan_to_num(slope), 1.0, STEEPEST)[:, None] * rate / 12, 0.25)


def calibrated(table: Array, edges: Array, noise: float) -> tuple[Array, Array, Array]:
    """Return the counts of both labels, shrunk towards a logistic curve of scores by their noise, and the curve's coefficients.

    `noise` is the variance on each count.  The slope of the curve is shrunk towards 1, that of calibrated probabilities.
    """
    no, yes = np.moveaxis(table, 1, 0)
    total, place = np.maximum(no + yes, 1e-9), logit(middles(edges))
    columns, tight = np.stack([np.ones_like(place), place], axis=1), np.zeros((len(no), 2))
    curve, calm = np.tile([0.0, 1.0], (len(no), 1)), 1e-3 * np.eye(2)
    for step in range(2 * SWEEPS):
        rate = expit(np.clip(curve @ columns.T, -15, 15))
        apart, chance, spread = yes - total * rate, total * rate * (1 - rate), noise * (rate**2 + (1 - rate) ** 2)
        weight = chance / (chance + spread)
        pull = (weight * apart) @ columns - tight * (curve - [0.0, 1.0])
        bent = np.einsum("rk,ki,kj->rij", weight * chance, columns, columns) + calm + tight[:, None] * np.eye(2)
        if step == SWEEPS:
            tight[:, 1] = 1 / np.maximum((curve[:, 1] - 1) ** 2 - np.linalg.inv(bent)[:, 1, 1], TRUE**2)
        curve += np.clip(np.linalg.solve(bent, pull[..., None])[..., 0], -0.7, 0.7)
    both = np.maximum(chance + spread, 1e-9)
    off = ratio(((apart**2 - both) * (chance / both) ** 2).sum(axis=1), (chance**4 / both**2).sum(axis=1))
    moved = apart * noise / (both + np.nan_to_num(np.maximum(off, 0.0))[:, None] * chance**2)
    return np.maximum(no + moved * rate, 0.0), np.maximum(yes - moved * (1 - rate), 0.0), curve


def label_pairs(no: Array, yes: Array, edges: Array, ordered: bool) -> tuple[Array, Array]:
    """Return the number of pairs with different labels in the order of scores (half of a cell's unless `ordered`), and of all."""
    place = middles(edges)
    within = 0.5 + ordered * tied(yes, no, logit(place), np.diff(edges) / (place * (1 - place)))
    return (yes * (np.cumsum(no, axis=1) - no * (1 - within))).sum(axis=1), no.sum(axis=1) * yes.sum(axis=1)


def survival_pairs(died: Array, censored: Array, edges: Array) -> tuple[Array, Array]:
    """Return the number of ordered pairs, and of all, where the first record died in an interval that the second outlived.

    Counts have shape (1 + replicates, intervals, cells); cells are of mean survival probabilities.  Hazards are constant
    within a cell.  Then the place determines the odds of dying in an interval.
    """
    count = np.arange(1.0, died.shape[1] + 1)
    later = np.cumsum((died + censored)[:, ::-1], axis=1)[:, ::-1] - died
    above = np.cumsum(later[..., ::-1], axis=2)[..., ::-1] - later
    chance = np.linspace(0, 1, FINEST)[1:-1, None]  # of surviving an interval
    alive = np.interp(middles(edges), (chance**count).mean(axis=1), chance[:, 0])[:, None]
    rate = np.diff(edges) / (alive * (1 - alive) * count * alive ** (count - 1)).mean(axis=1)
    within = 0.5 + tied(died.sum(axis=1), later.sum(axis=1), -logit(alive[:, 0]), rate)
    agreed = (died * (above + later * within[:, None])).sum(axis=(1, 2))
    return agreed, (died.sum(axis=2) * later.sum(axis=2)).sum(axis=1)


def cumulated(name: str, table: Array, knots: Array) -> tuple[Array, Array]:
    """Return places between knots, and the likeliest number of records below each (Richardson and Lucy)."""
    places = np.interp(np.arange(FINER * (len(knots) - 1) + 1) / FINER, np.arange(len(knots)), knots)
    hats = hats_of(on_ruler(name, knots), on_ruler(name, middles(places)))
    even = hats * np.diff(places)[:, None]
    found = table @ (even / even.sum(axis=0)).T
    for _ in range(SWEEPS):
        found = found * ((table / np.maximum(found @ hats, 1e-9)) @ hats.T)
    return places, np.cumsum(np.pad(found, ((0, 0), (1, 0))), axis=1)


def hats_of(knots: Array, places: Array) -> Array:
    """Return the shares of knots in records at given places, shape (places, knots)."""
    return np.stack([np.interp(places, knots, hat) for hat in np.eye(len(knots))], axis=1)


def coarser(cells: Cells, name: str, table: Array) -> Iterator[tuple[Array, Array]]:
    """Yield counts at every second knot, and these knots, twice; knots that are left out share their records exactly."""
    known, on = np.array(cells.knots[name]), np.array(cells.rulers[name])
    for first in (1, 2):
        kept = np.unique([0, *range(first, len(known), 2), len(known) - 1])
        yield table @ hats_of(on[kept], on), known[kept]


def unblurred(cells: Cells, name: str, table: Array) -> tuple[Array, Array, Array]:
    """Return places between knots, the records below them, and a bound on the blur of their number at each place.

    Counts at knots do not show records between them.  The blur is bounded by what every second knot says instead: by the largest
    change beyond chance within half a gap on both sides, because a change has both signs around the end of a density.
    """
    places, below = cumulated(name, table, np.array(cells.knots[name]))
    apart = np.zeros(len(places))
    for counts, knots in coarser(cells, name, table):
        fewer, rows = cumulated(name, counts, knots)
        moved = np.array([np.interp(places, fewer, row) for row in rows]) - below
        apart = np.maximum(apart, moved[0] ** 2 - moved[1:].var(axis=0))
    near = np.lib.stride_tricks.sliding_window_view(np.pad(apart, FINER // 2), FINER + 1)
    return places, below, np.sqrt(near.max(axis=1))


def quantile(cells: Cells, name: str, table: Array, level: float) -> tuple[Array, float]:
    """Return a quantile, by replicate, and its blur."""
    FRACTION.check("", level=level)
    places, below, doubt = unblurred(cells, name, table)
    below = below + 1e-9 * np.arange(len(places))
    found = np.array([np.interp(level * row[-1], row, places) for row in below])
    off = np.interp(found[0], places, doubt) * np.array([-1.0, 1.0])
    ends = np.interp(level * below[0, -1] + off, below[0], places)
    return found, float(np.abs(ends - found[0]).min())  # on one side there may be no records


def share_between(cells: Cells, name: str, table: Array, lower: float, upper: float) -> tuple[Array, float]:
    """Return the share of records between two numbers, by replicate, and its blur."""
    places, below, doubt = unblurred(cells, name, table)
    found = ratio(np.array([np.diff(np.interp([lower, upper], places, row))[0] for row in below]), below[:, -1])
    return found, float(np.hypot(*np.interp([lower, upper], places, doubt)) / max(below[0, -1], 1e-9))


def mean_length(cells: Cells, name: str, table: Array) -> tuple[Array, float]:
    """Return the mean distance of records from 0, spread evenly between knots, by replicate, and its blur by second knots."""
    found, apart = ratio(table @ lengths(cells.knots[name]), whole(table)), [0.0]
    for counts, knots in coarser(cells, name, table):
        moved = ratio(counts @ lengths(knots), whole(counts)) - found
        apart.append(float(moved[0] ** 2 - moved[1:].var()))
    return found, float(np.sqrt(max(apart)))
