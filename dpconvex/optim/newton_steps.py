"""Newton steps of noisy gradients and Hessians, and the covariance of where they end (docs/theory.md, section 22).

Everything here is post-processing: the records are behind `PrivateLooks`, and nothing here has to be right for privacy.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpconvex.errors import NotConverged, TemplateError
from dpconvex.optim.adaptive_descent import probe_of, row_units
from dpconvex.optim.slope_histograms import Public
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.quadratics import quadratic
from dpconvex.sums.private_looks import PrivateLooks
from dpconvex.util.arrays import Array

# Parts of the squared level: of the first of two steps, and of the question whether curvature stays; the last step has the rest.
FIRST, STAYS = 0.15, 0.02
# Of a step: of the Hessian, of the second moment of gradients, and of two histograms of lengths; the gradient has the rest.
HESSIAN, MOMENT, LENGTHS = 0.3, 0.05, 0.06
BINS, FINER = 40, math.sqrt(2)  # Of lengths: how many, and how much longer each is than the last
# By how many deviations a count stands out; how much longer than those in it vectors may be.
STANDS_OUT, ROOM = 3.5, 2.0
# How much of the curvature may change within the error of the answer; the largest, next to that at 0.
TURNED, CAP = 0.4, 4.0


class Estimate(NamedTuple):
    """Where the steps end, shape (dim,), and its covariance by sampling and by noise, shape (dim, dim)."""

    theta: Array
    of_records: Array
    of_noise: Array


@dataclass
class NewtonSteps:
    """Newton steps from a table of parameters, behind noise.

    Parameters
    ----------
    looks : PrivateLooks
    form : LossForm
    level : float
        Of all queries together.
    number : float
        About the number of records.
    public : Public
    table : ndarray, shape (rows, columns)
        Where steps begin, as `model_of` returns it.
    hessian : ndarray, shape (rows, rows)
        About the Hessian by one of the columns.
    regularized : bool
        Whether the estimate is of what minimises the expected loss with the regularizer, or without.
    """

    looks: PrivateLooks
    form: LossForm
    level: float
    number: float
    public: Public
    table: Array
    hessian: Array
    regularized: bool = False

    def __post_init__(self) -> None:
        self.scores, self.pulled = self.looks.scores, quadratic(self.form.template.regularizer, self.form.space)
        self.units = row_units(self.scores, self.looks.constant)
        if self.regularized and self.pulled is None:
            raise TemplateError("intervals: the regularizer is not quadratic.")

    @property
    def theta(self) -> Array:
        return self.scores.coordinates(self.table * self.units)

    def estimate(self) -> Estimate:
        """Take two steps, a rough one and a fine one.

        Raises
        ------
        NotConverged
            If the Hessian does not exceed its noise, or changes within the error of the estimate.
        """
        last = 1 - FIRST - STAYS
        self.step(self.level * math.sqrt(FIRST))
        self.step(self.level * math.sqrt(last))
        if not self.seen:
            why = "the curvature of the loss does not exceed its noise in every direction"
            raise NotConverged(f"intervals: {why}. More records, a larger epsilon or fewer features help.")
        every = np.eye(len(self.move))
        # The last step began where chance and the noise of the first one had led.
        near = self.spread + last / FIRST * self.gradient_noise**2 * every
        near = self.inverse @ near @ self.inverse + np.outer(self.move, self.move)
        of_noise = self.gradient_noise**2 * every + self.hessian_noise**2 / 2 * (np.trace(near) * every + near)
        self.check_curvature(self.inverse @ (self.spread + of_noise) @ self.inverse)
        back = self.back @ self.inverse
        few = self.number / max(self.number - len(every), 1.0)
        return Estimate(self.theta, back @ self.spread @ back.T * few, back @ of_noise @ back.T)

    def step(self, level: float) -> None:
        """Ask for the Hessian, the gradient and its second moment in the metric of about the Hessian, and move."""
        looks, table, part = self.looks, self.table, (lambda share: level * math.sqrt(share))
        values, vectors = np.linalg.eigh(self.hessian)
        self.matrix = looks.in_metric((vectors / np.sqrt(np.maximum(values, values[-1] * 1e-12))).T)
        self.turn_coordinates()
        count = self.onto.shape[1]
        usual = math.sqrt(count / self.number)
        longest = self.length("roots", part(LENGTHS / 2), usual)
        clip = self.length("gradients", part(LENGTHS / 2), usual * self.public.slope / math.sqrt(self.public.curvature))
        both = looks.counted_people(math.sqrt(2))
        self.hessian_noise = both * longest**2 / part(HESSIAN)
        found = self.onto.T @ looks.vectors(table, "roots", longest, part(HESSIAN)) @ self.onto
        rest = part(1 - HESSIAN - MOMENT - LENGTHS)
        self.gradient_noise = (2 if looks.replaced else 1) * clip / rest
        slope = self.onto.T @ looks.look(table, clip / usual, usual, rest).gradient.T.ravel()
        spread = self.onto.T @ looks.vectors(table, "gradients", clip, part(MOMENT)) @ self.onto
        parts, axes = np.linalg.eigh(spread)
        self.spread = (axes * np.maximum(parts, 0.0)) @ axes.T
        if self.regularized and self.pulled is not None:
            slope += self.back.T @ (self.number * (self.pulled.hessian @ self.theta + self.pulled.slope))
            found += self.back.T @ (self.number * (self.pulled.hessian @ self.back))
        values, axes = np.linalg.eigh(found)
        edge = self.hessian_noise * math.sqrt(2 * count)
        self.seen = bool(values[0] > edge)
        # An eigenvalue that is kept is one whose noise came out large, if it is near the edge.
        lowered = (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2
        self.inverse = (axes * np.where(values > edge, 1 / np.maximum(lowered, edge / 2), 0.0)) @ axes.T
        self.move = -self.inverse @ slope
        self.table = table + self.to_table(self.move)
        whole = self.onto @ (axes * np.maximum(lowered, edge / 2)) @ axes.T @ self.onto.T
        block = np.einsum("kikj->ij", whole.reshape(*table.shape[::-1], *table.shape[::-1]))
        inverse = np.linalg.inv(self.matrix)
        self.hessian = inverse @ block @ inverse.T / np.trace(self.scores.onto_columns)

    def turn_coordinates(self) -> None:
        """Find coordinates of the sensitive subspace in which noise is alike in all directions."""
        rows, columns = self.table.shape
        back = np.zeros((len(self.theta), columns, rows))
        for column, places in enumerate(self.scores.places.T):
            back[places, column] = self.matrix.T * self.units / self.scores.scale[:, [column]]
        whole = back.reshape(len(back), -1)
        self.onto = np.linalg.qr(np.linalg.solve(whole, self.form.basis.toarray()))[0]
        self.back = whole @ self.onto

    def length(self, kind: str, level: float, usual: float) -> float:
        """Return how long vectors may be: some more than those that a histogram shows."""
        edges = usual * FINER ** np.arange(-BINS / 2, BINS / 2)
        counts = self.looks.vectors(self.table, kind, float(edges[-1]), level, edges)
        seen = np.flatnonzero(counts > STANDS_OUT * self.looks.deviation_of_counts(level))
        return float(ROOM * (edges[seen[-1]] if len(seen) else usual))

    def check_curvature(self, around: Array) -> None:
        """Refuse where curvature is not the same on both sides of the estimate, as far away as it may err."""
        if not self.public.is_bent:
            return
        values, axes = np.linalg.eigh(around)
        signs = np.random.default_rng(0).choice([-1, 1], len(values))
        away = self.to_table(axes @ (np.sqrt(np.maximum(values, 0.0)) * signs))
        cap, own = CAP * self.public.curvature, self.level * math.sqrt(STAYS / 3)
        found = [
            float(
                self.looks.look(
                    self.table + side * away, probe=probe_of(self.scores, 0), cap=cap, curvature_level=own
                ).curvature[0]
            )
            for side in (-1, 0, 1)
        ]
        doubt = STANDS_OUT * self.looks.counted(cap, 1.0) / own
        if max(found) - min(found) > TURNED * float(np.mean(found)) + doubt:
            why = "noise, or chance, moves the estimate so far that the curvature of the loss changes on the way"
            raise NotConverged(f"intervals: {why}. More records or a larger epsilon help.")

    def to_table(self, move: Array) -> Array:
        return np.asarray(self.matrix.T @ (self.onto @ move).reshape(self.table.shape[::-1]).T)
