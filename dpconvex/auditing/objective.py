"""The attack on objective perturbation, by the exact law of the answer: it comes from the noise ``b = -grad F(theta)``.

All else is a linear term and a quadratic one with the certified modulus: these suffice to put the answer anywhere.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.laws import Masses, grid_ends, line_masses, matrix_density
from dpconvex.auditing.report import Attack
from dpconvex.auditing.search import Candidates, Goal, Search, diagonal, leak, opposite_records, scaled_effort, unit
from dpconvex.certificates.certificate import Certificate
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arrays import Array

# How far from the middle noise is counted, in units of its scale, and beyond which K has no end.
FAR, ENDLESS = 12.0, 1e9
# How far the rest of the data is varied along the worst noise, in units of that.
ALONG = (0.0, -0.1, 0.1, -0.25, 0.25, -0.5, 0.5)
# Noise that is tried along a difference, in units of the scale of matrix-shaped noise.
LENGTHS = np.append(0.0, np.outer([1.0, -1.0], np.geomspace(0.01, 100.0, 40)).ravel())
# Answers are this far from the faces of K, and singular values below this fraction of the largest are rounding.
INSIDE, RANK = 1e-6, 1e-9
COARSE, FINE = 1200, 8000  # Cells of the line, to compare rests of the data and at last
# Answers that are sampled, to compare candidates and at last; the probability of a false alarm; factors of the leaves' values.
PILOT, SAMPLES, ALARM, FARTHER = 500, 20000, 1e-9, (10.0, 1e2, 1e3)
SAMPLED = f"exact density ratios of sampled answers (false alarms: {ALARM:g})"
FINALISTS, TRIALS = (6, 4), (24, 6)  # Candidates that are integrated, and how often, usually and at least


@dataclass(frozen=True, eq=False)
class Restricted:
    """A candidate in coordinates of the r directions in which the two objectives differ, of which `lift` is a basis."""

    one: Candidates
    lift: Array  # shape (dim, r)
    curvature: Array  # shape (r, r): of everything but the two records
    point: Array  # the answer
    noise: Array  # what leads there from the first data set
    shift: Array  # the gradient of the rest of the data at 0
    difference: Array  # of the gradients there
    jump: float  # of the logarithms of the determinants there


class Objective:
    """An attack on one certified learner."""

    def __init__(self, analysis: Analysis, certificate: Certificate, effort: float, rng: np.random.Generator) -> None:
        self.analysis, self.certificate, self.effort, self.rng = analysis, certificate, effort, rng
        self.form, moduli = analysis.form, diagonal(analysis, certificate.size, certificate.added)
        self.search = Search(self.form, moduli, rng)
        self.gaussian, self.scale = certificate.is_gaussian, certificate.noise_scale
        self.epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
        self.delta = certificate.noise_delta if self.gaussian else 0.0
        self.free, dim = self.form.feasible.is_space, self.form.space.dim
        self.everything = self.form.noise_dimension == dim
        self.basis = np.eye(dim) if self.everything else self.form.basis.toarray()
        # What is orthogonal to the sensitive subspace is minimised out: the Schur complement.
        self.public = np.linalg.inv(self.basis.T @ (self.basis / moduli[:, None]))

    def attack(self) -> Attack:
        pure = Goal({"difference": 1 / self.scale, "jump": 1.0})
        goal = Goal(gaussian=(self.scale, self.epsilon)) if self.gaussian else pure
        found: list[Restricted] = []
        for best in self.search.best(goal, self.certificate.privacy.adjacency, self.effort):
            some = [best.one(k) for k in range(scaled_effort(self.effort, *FINALISTS))]
            if self.gaussian and self.certificate.privacy.adjacency == "replace-one":
                # Opposite records move the answer along a line.
                some += [replace(one, sides=opposite_records(one.sides[0], self.search.domains)) for one in some]
            found.extend(self.restricted(one) for one in some)
        if not self.gaussian:
            return max(map(self.pointwise, found), key=lambda attack: attack.found_epsilon)
        line = [case for case in found if len(case.point) == 1]
        attacks = [self.integrated(max(line, key=lambda case: self.integrated(case).ratio), last=True)] if line else []
        wide = [farther for case in found if len(case.point) > 1 for farther in self.farther(case)]
        if wide:
            case = max(wide, key=lambda case: float(self.leaks(case, PILOT).mean()))
            attacks.append(self.report(case, SAMPLED, math.nan, self.sampled(case)))
        if not attacks:
            why = "the law of answers in a constrained subspace is not computed; dp.falsify attacks the constants"
            attacks = [self.report(found[0], why, math.nan, math.nan)]
        return max(attacks, key=lambda attack: attack.ratio)

    def farther(self, case: Restricted) -> list[Restricted]:
        """Return the candidate and others whose leaves have larger values, so that slopes vary less with the noise."""
        if not self.free:
            return [case] * self.everything
        one, stay = case.one, np.zeros(1, dtype=bool)
        scaled = (self.search.placed(one.sides, k * one.values, k * one.theta, 1, stay) for k in FARTHER)
        return [case, *map(self.restricted, scaled)]

    def leaks(self, case: Restricted, count: int) -> Array:
        """Return samples whose mean is delta: of answers about the worst one, weighted by how likely each is."""
        bent = case.curvature + case.one.sides[0].slopes_at(case.point[None], case.lift)[1][0]
        draw = self.rng.normal(size=(count, len(case.point)))
        theta = case.point + self.scale * np.linalg.solve(bent, draw.T).T
        b, sides = theta @ case.curvature + case.shift, (side.slopes_at(theta, case.lift) for side in case.one.sides)
        logs = []
        for slope, curved in sides:
            pull = np.sum((b + slope) ** 2, axis=1) / (2 * self.scale**2)
            logs.append(np.linalg.slogdet(case.curvature + curved)[1] - pull)
        weight = np.exp(logs[0] - np.linalg.slogdet(bent)[1] + np.sum(draw**2, axis=1) / 2)
        found = weight * np.maximum(-np.expm1(np.minimum(self.epsilon + logs[1] - logs[0], 0.0)), 0.0)
        return np.nan_to_num(np.where(self.inside(theta @ case.lift.T), found, 0.0))  # answers there have a density

    def sampled(self, case: Restricted) -> float:
        """Bound delta from below, but for the probability `ALARM`: Maurer & Pontil 2009, theorem 4."""
        bound, odds = float(self.leaks(case, PILOT).max()), math.log(2 / ALARM)
        found = np.minimum(self.leaks(case, SAMPLES), bound)
        lost = math.sqrt(2 * float(found.var(ddof=1)) * odds / SAMPLES) + 7 * bound * odds / (3 * (SAMPLES - 1))
        return max(float(found.mean()) - lost, 0.0)

    def restricted(self, one: Candidates) -> Restricted:
        """Reduce a candidate to the directions that matter, and choose the rest of the data."""
        theta, frame = one.theta[0], np.eye(self.basis.shape[1])
        if not self.free:  # answers in the interior have a density
            around = self.rng.normal(size=(64, len(theta))) * max(float(np.linalg.norm(theta)), 1.0)
            theta = theta + INSIDE * (self.search.enter(around).mean(axis=0) - theta)
        elif self.gaussian:
            rows = np.concatenate([side.rows(len(theta))[0][0] for side in one.sides]) @ self.basis
            turned = np.concatenate([unit(rows), unit(rows @ self.public)])  # what the curvature turns them into
            _, sizes, right = np.linalg.svd(turned, full_matrices=False)
            frame = right[sizes > RANK * sizes[0]].T if sizes[0] > 0 else frame[:, :1]
        lift = self.basis @ frame
        curvature, point = frame.T @ self.public @ frame, lift.T @ theta
        (g, h), (other, bend) = (side.slopes_at(point[None], lift) for side in one.sides)
        difference = (g - other)[0]
        jump = float(np.linalg.slogdet(curvature + h[0])[1] - np.linalg.slogdet(curvature + bend[0])[1])
        noise = np.zeros(len(point))
        if self.gaussian:
            far = leak(np.array(np.linalg.norm(difference) / self.scale), np.array(jump), self.epsilon)[1]
            noise = float(far) * self.scale * unit(difference[None])[0]
        return Restricted(one, lift, curvature, point, noise, -(curvature @ point + g[0] + noise), difference, jump)

    def pointwise(self, case: Restricted) -> Attack:
        """Report the largest privacy loss at one answer."""
        worst = -math.inf
        if self.inside((case.lift @ case.point)[None]).all():
            worst = float(np.linalg.norm(case.difference)) / self.scale + case.jump
            if self.certificate.noise == "matrix":
                along = case.lift @ case.difference
                b = self.scale * LENGTHS[:, None] * unit(along[None])
                first, second = (matrix_density(self.analysis, self.certificate, b + a) for a in (0, along))
                worst = float((first - second).max()) + case.jump
        how = "largest ratio of densities"
        return self.report(case, how, max(worst, 0.0), 0.0 if worst <= self.epsilon else math.nan)

    def inside(self, points: Array) -> NDArray[np.bool_]:
        """Say whether no face of K is active at points of K, as far as the noise can tell."""
        beyond = points * (1 + 1e-9)
        return (self.search.enter(beyond) == beyond).all(axis=1) | self.free | (not self.everything)

    def integrated(self, case: Restricted, last: bool = False) -> Attack:
        """Report the largest delta on the line."""
        masses = self.masses(case, COARSE)
        sizes = self.scale * 10.0 ** self.rng.uniform(-1.5, 0.7, scaled_effort(self.effort, *TRIALS))
        moves = [*(step * case.noise for step in ALONG), *(self.rng.normal(size=1) * size for size in sizes)]
        for move in moves:  # first along the worst noise, then at random
            trial = replace(case, shift=case.shift + move)
            found = self.masses(trial, COARSE)
            if found.delta(self.epsilon) > masses.delta(self.epsilon):
                case, masses = trial, found
        masses = self.masses(case, FINE) if last else masses
        delta = masses.delta(self.epsilon)
        return self.report(case, "exact law on the line", masses.epsilon_at(self.delta), delta, masses)

    def masses(self, case: Restricted, count: int) -> Masses:
        """Return the laws of the answer for both data sets, on cells of the line."""
        curvature, shift = float(case.curvature[0, 0]), float(case.shift[0])
        ends = np.array([[-ENDLESS], [ENDLESS]])
        ends = self.search.enter(ends) if self.everything else ends
        lower, upper = np.where(np.abs(ends) < ENDLESS / 2, ends, math.inf * ends)[:, 0].tolist()
        reach = (FAR * self.scale + self.certificate.gradient_bound) / curvature
        rows = np.concatenate([side.rows(len(case.lift))[0][0] for side in case.one.sides]) @ case.lift
        feature = 0.3 / max(float(np.abs(rows).max(initial=0.0)), 1e-9)
        points = grid_ends(float(np.clip(-shift / curvature, lower, upper)), reach, lower, upper, count, feature)
        sides = (np.nan_to_num(side.slopes_at(points[:, None], case.lift)[0][:, 0]) for side in case.one.sides)
        first, second = (slope + curvature * points + shift for slope in sides)
        return line_masses(first, second, self.scale)

    def report(self, case: Restricted, how: str, epsilon: float, delta: float, masses: Masses | None = None) -> Attack:
        slope, certificate = case.lift @ case.shift, self.certificate
        others = (certificate.size - 1) * certificate.gradient_bound
        beyond = certificate.privacy.adjacency == "replace-one" and float(np.linalg.norm(slope)) > others
        note = "the rest is a linear term of the regularizer, with which the certificate would be the same."
        note = f"The other {certificate.size - 1} records push with at most {others:.4g}; {note}"
        further: Any = {**self.search.places(case.one), "slope": self.form.space.unpack(slope), "masses": masses}
        return Attack("exact answer", self.epsilon, self.delta, epsilon, delta, how, notes=(note,) * beyond, **further)
