"""A Newton step with a noisy gradient and Hessian, and the covariance of its end (docs/theory.md, section 22)."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import NotConverged
from dpconvex.optim.row_metrics import revealed_values
from dpconvex.optim.slope_histograms import Fit
from dpconvex.sums.linear_scores import probe_direction
from dpconvex.util.arrays import Array

REMEDY = "More records, a larger epsilon or fewer features help."
CHECK = 0.03  # Share of the squared level for the test that curvature stays the same; the step has the rest
# Shares of the step: the Hessian, the second moment of gradients, histograms of lengths, and the gradient of an earlier step;
# the gradient has the rest.
HESSIAN, SQUARES_SHARE, ROOTS_SHARE, NEARER = 0.35, 0.05, 0.07, 0.05
ROUGH = 0.06  # ... of a first query for the Hessian
# For unbounded slopes: the share of the rest that each count of clipped gradients has; the most counts; deviations of a count
# that are doubted. The Hessian then has a smaller share, at least LEAST_HESSIAN of its own, if its noise has a smaller edge.
COUNT, COUNTS, DOUBTED, LEAST_HESSIAN, SMALL_EDGE = 0.4, 5, 0.7, 0.1, 0.2
# For labels: the share of the step for counts of records of rare levels, the deviations that show some, and the share of records
# of a level that noise must not hide: otherwise nothing is asked.
RARE_SHARE, RARE_DEVIATIONS, RARE_LEVEL = 0.03, 2.0, 1 / 150
CLIP_GROWTH = math.sqrt(2), 4.0  # Least and largest growth of a clip that clips too many
VECTOR_BINS, VECTOR_RATIO = 40, math.sqrt(2)  # Bins of lengths: their number, and the ratio of edges
SURE_DEVIATIONS = 4.0  # Deviations by which a count must exceed 0
# Ratio of the longest vectors to the last bin with a clear count; the smaller ratio, if counts of two adjacent bins also count;
# the part of the longest gradients from which the larger ratio applies.
ROOM, NARROW_ROOM, LONG_GRADIENT = 2.0, math.sqrt(2), 8.0
CURVATURE_CHANGE = 0.4  # Largest relative change of the curvature within the error of the answer
CAP = 4.0  # Clip of curvatures there, next to the curvature at 0
LEAST_ROOT = 2.0  # Least squared length of the longest root, next to the mean
# Edge of the Hessian's noise in a metric with eigenvalues near 1: longer roots are clipped. And the edge in the first query.
HESSIAN_EDGE, DEAFENED = 0.4, 1.0
HIDDEN = 0.5  # Largest share of a variance from directions without curvature


class NewtonPoint(NamedTuple):
    """The end of the step, shape (dim,), its covariances by sampling and by noise, (dim, dim), and hidden coordinates."""

    theta: Array
    of_records: Array
    of_noise: Array
    hidden: NDArray[np.bool_]  # Coordinates that depend on directions in which noise hides the Hessian, shape (dim,)


@dataclass
class NewtonStep:
    """A Newton step from a table of parameters, by noisy queries."""

    fit: Fit
    basis: sp.csc_array  # of directions along which the loss changes, orthonormal, shape (dim, p)
    table: Array  # Start of the step, as `AdaptiveDescent` returns it, shape (rows, columns)
    hessian: Array  # Approximate Hessian by one column, shape (rows, rows)
    longer: Array  # The table before it was shrunk for its noise, shape (rows, columns)
    identified: tuple[Array, Array]  # As in the form

    def __post_init__(self) -> None:
        self.queries, self.public, self.number = self.fit.queries, self.fit.public, self.fit.size
        self.scores, self.level_rows = self.queries.scores, np.zeros((len(self.table), 0))
        self.parts = np.zeros(0)

    def estimate(self) -> NewtonPoint:
        """Take the step; raise if the Hessian is all below its noise, or changes within the error of the estimate."""
        every = np.eye(self.basis.shape[1])
        self.step(self.fit.level_of(1 - CHECK))
        # Noise on the Hessian counts by the distance from the start to the estimate: by the step, and by chance.
        near = self.inverse @ (self.spread + self.gradient_noise) @ self.inverse
        near += np.outer(self.move, self.move) + self.unknown
        of_noise = self.gradient_noise + self.hessian_noise**2 / 2 * (np.trace(near) * every + near)
        self.check_curvature(self.inverse @ (self.spread + of_noise) @ self.inverse)
        lift, shift = self.identified
        back, few = lift @ self.back, self.number / max(self.number - len(every), 1.0)
        unknown, root = back @ self.unknown @ back.T, back @ self.inverse
        of_records, of_noise = root @ self.spread @ root.T * few, root @ of_noise @ root.T + unknown
        hidden = np.diag(unknown) > HIDDEN * np.diag(of_records + of_noise)
        if hidden[lift.any(axis=1)].all():  # of the parameters that equations do not fix
            raise NotConverged(f"intervals: noise hides the curvature along every parameter. {REMEDY}")
        theta = lift @ self.queries.parameters(self.table) + shift
        return NewtonPoint(theta, of_records, of_noise, hidden)

    def step(self, level: float) -> None:
        """Query the Hessian, the gradient and its second moment, in the metric of the approximate Hessian, and move."""
        queries, part = self.queries, (lambda share: level * math.sqrt(share))
        self.update_coordinates()
        rare_share = self.find_rare_levels(part(RARE_SHARE)) * RARE_SHARE
        bent = self.find_long_rows(part(ROOTS_SHARE / 5), part(ROUGH))
        count = self.onto.shape[1]
        self.rough_step(bent, part(ROOTS_SHARE / 5), part(NEARER))
        self.before = table = self.table
        both = queries.count_sensitivity(math.sqrt(2))
        least = math.sqrt(HESSIAN_EDGE * part(HESSIAN) / (both * math.sqrt(2 * count)))
        longest = min(self.longest_root(part(ROOTS_SHARE / 5), NARROW_ROOM), least)
        share, edge = HESSIAN, HESSIAN_EDGE * (longest / least) ** 2
        if self.is_steep:
            share *= min(max((edge / SMALL_EDGE) ** 2, LEAST_HESSIAN), 1.0)
        self.hessian_noise = both * longest**2 / part(share)
        found = self.onto.T @ queries.vectors(table, "roots", longest, part(share)) @ self.onto
        rest = part(1 - share - SQUARES_SHARE - ROOTS_SHARE - ROUGH - NEARER - rare_share)
        slope, clip, self.gradient_noise = self.gradient(part(ROOTS_SHARE * 2 / 5), rest, self.is_steep)
        spread = self.onto.T @ queries.vectors(table, "gradients", clip, part(SQUARES_SHARE)) @ self.onto
        spread = shrink_to_squares(spread, both * clip**2 / part(SQUARES_SHARE), self.longer_units)
        self.shorten_rare(math.inf)
        parts, axes = np.linalg.eigh(spread)
        self.spread = (axes * np.maximum(parts, 0.0)) @ axes.T
        # No step is taken along rare levels where noise would change scores so much that curvature changes.
        drowned = self.rare[:, np.sqrt(np.diag(self.rare.T @ self.gradient_noise @ self.rare)) > self.most]
        apart = np.eye(count) - drowned @ drowned.T
        values, axes = np.linalg.eigh(apart @ found @ apart)
        # Drop directions whose eigenvalues noise alone could have; the edge of each counts it and the smaller ones.
        edges = self.hessian_noise * np.sqrt(2.0 * np.arange(1, count + 1))
        first = int(np.flatnonzero(values <= edges + self.hessian_noise).max(initial=-1)) + 1
        if first == count:
            raise NotConverged(f"intervals: the curvature is nowhere larger than its noise. {REMEDY}")
        values, hidden, axes = values[first:], axes[:, :first], axes[:, first:]
        # A kept eigenvalue near the edge had noise upwards: lower it.
        lowered = (values + np.sqrt(values**2 - edges[first:] ** 2)) / 2
        self.inverse = (axes / lowered) @ axes.T
        self.move = self.shortened(-self.inverse @ slope)
        left = 2 * (self.inverse @ slope + self.move)
        self.table = table + self.to_table(self.move)
        # Along hidden axes the error may be as long as the parameters are on average, in the metric. Much noise shortens steps.
        places = [self.queries.parameters(part) for part in (self.table, self.longer)]
        most = (np.linalg.lstsq(self.back, np.stack(places, axis=1))[0] ** 2).sum(axis=0).max()
        self.unknown = most / count * hidden.shape[1] * hidden @ hidden.T + np.outer(left, left)

    def update_coordinates(self) -> None:
        """Set the metric, and coordinates of the subspace in which noise is equal in all directions."""
        values, vectors = np.linalg.eigh(self.hessian)
        self.matrix = self.queries.set_metric((vectors / np.sqrt(np.maximum(values, values[-1] * 1e-12))).T)
        whole = np.kron(np.eye(self.table.shape[1]), self.matrix.T * self.queries.units)
        # Several tables may mean one point, as with effects of groups beside a constant: the shortest has all of its curvature.
        parameters = self.scores.from_table @ whole
        self.onto = np.linalg.qr(np.linalg.lstsq(parameters, self.basis.toarray())[0])[0]
        self.back = parameters @ self.onto
        # The axes of rare levels, by rows, the longest rows along them, and these axes in coordinates, with longest moves.
        self.levels = np.linalg.qr(self.matrix @ self.level_rows)[0]
        parts = np.linalg.norm(self.levels.T @ self.matrix, axis=1) / np.linalg.norm(self.matrix, 2)
        self.reach = self.longest_row * parts
        self.rare = self.onto.T @ np.kron(np.eye(self.table.shape[1]), self.levels)
        score = self.public.short_side(0.0) / self.public.curvature
        self.most = np.tile(score / (self.reach * np.minimum(self.parts, 1.0)), self.table.shape[1])

    @property
    def is_steep(self) -> bool:
        """Whether slopes are unbounded, so that a few wrong scores far away may determine the minimiser."""
        return math.isinf(self.public.lipschitz)

    def find_rare_levels(self, level: float) -> bool:
        """Find rare levels, by counts of long gradients at scores of 0 along axes of the metric; return whether it asks any.

        Scores along them move to where curvature does not vanish yet.
        """
        axes, lengths, rows = np.linalg.svd(self.matrix)
        most, reach = self.queries.privacy.most, self.longest_row * lengths / lengths[0]
        long = self.usual_length * math.sqrt(2 / most)  # for single records
        ratios = reach * self.public.slope * most / long
        asks = RARE_LEVEL * self.number > RARE_DEVIATIONS * self.queries.deviation_of_counts(level)
        far = np.flatnonzero((ratios > 2) & (asks and self.public.has_labels and not self.is_steep))
        found, each = dict[int, float](), level / math.sqrt(max(len(far), 1))
        for axis in far.tolist():
            self.queries.set_metric(np.outer(axes[:, axis], axes[:, axis]) @ self.matrix)
            bins = math.ceil(math.log(ratios[axis], VECTOR_RATIO)) + 1
            edges = np.asarray(long * VECTOR_RATIO ** np.arange(bins), dtype=float)
            counts = self.queries.vectors(0 * self.table, "gradients", float(edges[-1]), each, edges)[:0:-1]
            sure = RARE_DEVIATIONS * self.queries.deviation_of_counts(each) * np.sqrt(np.arange(1, len(edges)))
            if (places := np.flatnonzero(counts.cumsum() > sure)).size:
                found[axis] = edges[len(counts) - places[0]] / (reach[axis] * self.public.short_side(0.0))
        self.level_rows, self.parts = rows[list(found)].T, np.minimum(list(found.values()), most)
        self.update_coordinates()
        place = self.onto.T @ np.linalg.solve(self.matrix.T, self.table).T.ravel()
        self.table = self.table + self.to_table(self.shortened(place) - place)
        return len(far) > 0

    def shortened(self, move: Array) -> Array:
        """Return a move, cut along rare levels where it would change scores so much that curvature changes."""
        along = self.rare.T @ move
        return np.asarray(move + self.rare @ (np.clip(along, -self.most, self.most) - along))

    @property
    def usual_length(self) -> float:
        """The usual length of gradients in the metric, with the largest slope."""
        usual = self.onto.shape[1] * self.queries.privacy.most / self.number
        return self.public.slope * math.sqrt(usual / self.public.curvature)

    def shorten_rare(self, longest: float) -> None:
        """Shorten the metric of queries along rare levels, so that no gradient is longer there; see `longer_units`."""
        self.longer_units = np.eye(len(self.rare))
        if not self.parts.size:
            return
        parts = np.minimum(longest / (self.reach * self.parts * self.public.lipschitz), 1.0)
        self.queries.set_metric(self.matrix + self.levels * (parts - 1) @ self.levels.T @ self.matrix)
        self.longer_units += self.rare * (np.tile(1 / parts, self.table.shape[1]) - 1) @ self.rare.T

    def gradient(self, length_level: float, level: float, counts: bool = False) -> tuple[Array, float, Array]:
        """Return the noisy gradient in coordinates of the subspace, its clip, and the covariance of its error.

        With counts, the error includes the sum of what the clip cuts; otherwise it is that of the noise.
        """
        most = self.queries.privacy.most
        wide, row = self.usual_length, self.usual_length / self.public.slope
        self.shorten_rare(wide / 2)
        clip = self.vector_length("gradients", length_level, wide, ROOM if self.is_steep else NARROW_ROOM)
        most_long = self.longest_row * self.public.lipschitz * most
        clip = min(clip * ROOM / NARROW_ROOM if LONG_GRADIENT * clip < most_long < math.inf else clip, most_long)
        clip, cut, level = self.widened_clip(clip, level) if counts else (clip, 0.0, level)
        self.shorten_rare(0.85 * clip)
        found = self.queries.query(self.table, clip / row, row, level).gradient
        noise = (self.queries.sensitivity * clip / level) ** 2 * self.longer_units @ self.longer_units.T
        return self.longer_units @ self.onto.T @ found.T.ravel(), clip, noise + cut**2 * np.eye(len(noise))

    def widened_clip(self, clip: float, level: float) -> tuple[float, float, float]:
        """Return a clip that counts show to be wide enough, the estimated sum of clipped excesses, and the remaining level.

        If lengths exceed multiples of the clip at most as often as their inverse squares, mean excesses are below the clip.
        """
        longer = 0.0
        for left in reversed(range(COUNTS)):
            each = level * math.sqrt(COUNT)
            level *= math.sqrt(1 - COUNT)
            many = float(self.queries.vectors(self.table, "gradients", 2 * clip, each, np.array([clip]))[0])
            longer, noise = max(many - DOUBTED / each, 0.0), self.queries.sensitivity / level
            if longer <= noise or not left:
                break
            clip *= min(max(math.sqrt(longer / noise), CLIP_GROWTH[0]), CLIP_GROWTH[1])
        return clip, clip * longer, level

    def rough_step(self, bent: Array, length_level: float, level: float) -> None:
        """Take a rough step as far as its gradient exceeds noise: the error of the next step is quadratic in its length."""
        slope, _, noise = self.gradient(length_level, level)
        self.queries.set_metric(self.matrix)
        rare, certain = self.rare @ self.rare.T, np.zeros(len(slope))
        for part in (rare, np.eye(len(slope)) - rare):  # with unlike noise
            along = part @ slope
            certain += max(0.0, 1 - 2 * float(np.trace(part @ noise)) / max(float(along @ along), 1e-300)) * along
        rows = (self.onto @ certain).reshape(self.table.shape[::-1])
        self.table = self.table + self.to_table(self.shortened(-self.onto.T @ np.linalg.solve(bent, rows.T).T.ravel()))

    def find_long_rows(self, length_level: float, level: float) -> Array:
        """Correct the metric by a first noisy Hessian; return the approximate Hessian in the new metric, (rows, rows)."""
        one = self.queries.count_sensitivity(math.sqrt(2)) * math.sqrt(2 * self.onto.shape[1]) / level
        longest = self.longest_root(length_level, ROOM**2)  # clipped roots seem short here, and are clipped again
        edge = min(one * longest**2, DEAFENED)
        longest = math.sqrt(edge / one)
        both = self.table.shape[::-1] * 2
        rough = np.einsum("kikj->ij", self.queries.vectors(self.table, "roots", longest, level).reshape(both))
        values, axes = np.linalg.eigh(rough / self.fit.columns)
        # Rows may overstate the curvature of hidden directions. Noise hides their average less than each; twice it is safe.
        lengths = np.maximum(values - edge / 2, np.minimum(2 * revealed_values(values, edge) + edge / len(values), 1.0))
        inverse = np.linalg.inv(self.matrix)
        self.hessian = inverse @ (axes * lengths) @ axes.T @ inverse.T
        found = inverse @ (axes * np.where(values > edge, values, lengths)) @ axes.T @ inverse.T
        self.update_coordinates()
        return np.asarray(self.matrix @ found @ self.matrix.T)

    @property
    def longest_row(self) -> float:
        """The norm in the metric of the longest row of the domain."""
        rows = self.queries.rows
        return math.sqrt(rows.squared_norm(self.scores.radius)) * rows.grid * float(np.linalg.norm(self.matrix, 2))

    def longest_root(self, level: float, room: float = ROOM) -> float:
        """Return a clip for roots: at most their largest length in the domain, if the largest curvature is known."""
        most = self.queries.privacy.most
        bent = self.longest_row * math.sqrt(self.public.smoothness * len(self.table.T) * most)
        return min(self.vector_length("roots", level, math.sqrt(self.onto.shape[1] * most / self.number), room), bent)

    def vector_length(self, kind: str, level: float, usual: float, room: float = ROOM) -> float:
        """Return a clip for vectors: somewhat longer than the last length that a histogram shows."""
        edges = usual * VECTOR_RATIO ** np.arange(-VECTOR_BINS / 2, VECTOR_BINS / 2)
        counts = self.queries.vectors(self.table, kind, float(edges[-1]), level, edges)
        least = SURE_DEVIATIONS * self.queries.deviation_of_counts(level)
        seen = counts > least
        if room < ROOM:  # Lengths of few records show sooner in two bins than in one
            seen |= counts + np.append(0.0, counts[:-1]) > math.sqrt(2) * least
        return float(room * (edges[np.flatnonzero(seen)[-1]] if seen.any() else usual))

    def check_curvature(self, around: Array) -> None:
        """Raise if noise hides the curvature, or if it differs between points on both sides, within the estimate's error."""
        if not self.public.curvature_varies:
            return
        values, axes = np.linalg.eigh(around)
        signs = np.random.default_rng(0).choice([-1, 1], len(values))
        away = self.to_table(axes @ (np.sqrt(np.maximum(values, 0.0)) * signs))
        cap, own = CAP * self.public.curvature, self.fit.level_of(CHECK / 5)
        probe: Any = {"probe": probe_direction(self.scores, 0), "along_level": own}
        doubt = SURE_DEVIATIONS * self.queries.sum_sensitivity(cap, 1.0) / own
        most = max(float(self.queries.query(self.table, cap=cap, **probe).along[0]), 0.0) + doubt / 2
        if most < 2.5 * doubt:  # Noise hides what targets far from the usual ones would have: clip by the mean found
            cap, doubt = (min(1.0, CAP * most / self.number / cap) * part for part in (cap, doubt))
        points = (self.before, self.table, self.table - away, self.table + away)
        found = [float(self.queries.query(point, cap=cap, **probe).along[0]) for point in points]
        if float(np.mean(found)) < doubt / 2:  # the mean of four has half the deviation
            raise NotConverged(f"intervals: noise hides changes of the curvature near the estimate. {REMEDY}")
        if max(found) - min(found) > CURVATURE_CHANGE * float(np.mean(found)) + doubt:
            why = "the curvature of the loss differs between points within the error of the estimate"
            raise NotConverged(f"intervals: {why}. {REMEDY}")

    def to_table(self, move: Array) -> Array:
        return np.asarray(self.matrix.T @ (self.onto @ move).reshape(self.table.shape[::-1]).T)


def shrink_to_squares(moment: Array, noise: float, longer: Array) -> Array:
    """Return ``longer @ moment @ longer.T``, shrunk towards a multiple of the identity by the share that noise explains.

    The moment's noise has deviation `noise` on the diagonal, and a root of 2 less off it (O. Ledoit and M. Wolf 2004). What
    is not shrunk along long axes gets a deviation of its noise.
    """
    count, squares = len(moment), np.linalg.inv(longer @ longer.T)
    alike = max(float(np.trace(moment)), 0.0) / float(np.trace(squares))
    apart, expected = moment - alike * squares, noise**2 * (count - 1) * (1 + count / 2)
    kept = max(0.0, 1 - expected / max(float((apart**2).sum()), 1e-300))
    doubt = noise * (longer @ longer.T - np.eye(count))
    return np.asarray(alike * np.eye(count) + kept * (longer @ apart @ longer.T + doubt))
