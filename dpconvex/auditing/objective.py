"""The attack on objective perturbation, by the exact distribution of the answer: its noise is ``b = -grad F(theta)``.

The remaining data are a linear term and a quadratic with the certified modulus, which suffice to place the answer anywhere.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.laws import Masses, grid_ends, line_masses, matrix_density
from dpconvex.auditing.report import Attack
from dpconvex.auditing.search import Candidates, Goal, Search, leak, moduli_of, opposite_records, scaled_effort, unit
from dpconvex.certificates.certificate import Certificate
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arrays import Array

# Largest noise of the cells, in units of its scale, and the distance at which K counts as unbounded.
FAR, ENDLESS = 12.0, 1e9
# Variations of the linear term along the worst noise, as multiples of that noise.
ALONG = (0.0, -0.1, 0.1, -0.25, 0.25, -0.5, 0.5)
# Lengths of noise to try along a difference, in units of the scale of matrix-shaped noise.
LENGTHS = np.append(0.0, np.outer([1.0, -1.0], np.geomspace(0.01, 100.0, 40)).ravel())
# Relative distance of answers from the faces of K, and relative size of singular values that are rounding.
FROM_FACES, RANK = 1e-6, 1e-9
COARSE, FINE = 1200, 8000  # Cells of the line, to compare linear terms and for the final bound
# Sampled answers, to compare candidates and for the final bound; probability of a false alarm.
PILOT, SAMPLES, ALARM = 500, 20000, 1e-9
SAMPLED = f"exact density ratios of sampled answers (false alarms: {ALARM:g})"
FINALISTS, TRIALS = (6, 4), (24, 6)  # Candidates to integrate, and random linear terms to try: (usual, least) numbers


@dataclass(frozen=True, eq=False)
class Restricted:
    """A candidate in coordinates of the r directions in which the two objectives differ."""

    one: Candidates
    lift: Array  # basis of the directions, shape (dim, r)
    curvature: Array  # Hessian of the objective without the two records, shape (r, r)
    point: Array  # the answer
    noise: Array  # noise with which the first data set gives this answer
    shift: Array  # gradient at 0 of the objective without the two records
    difference: Array  # difference of the records' gradients at the answer
    jump: float  # difference of the log determinants of the two Hessians at the answer


class Objective:
    """The attack on the exact answer of one certified objective perturbation."""

    def __init__(self, analysis: Analysis, certificate: Certificate, effort: float, rng: np.random.Generator) -> None:
        self.analysis, self.certificate, self.effort, self.rng = analysis, certificate, effort, rng
        self.form, moduli = analysis.form, moduli_of(analysis, certificate.size, certificate.added)
        self.search = Search(self.form, moduli, rng)
        self.gaussian, self.scale = certificate.is_gaussian, certificate.noise_scale
        self.epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
        self.delta = certificate.noise_delta if self.gaussian else 0.0
        self.free, dim = self.form.feasible.is_space, self.form.space.dim
        self.everything = self.form.noise_dimension == dim
        self.basis = np.eye(dim) if self.everything else self.form.basis.toarray()
        # The Schur complement: the curvature after minimising over directions outside the sensitive subspace.
        self.public = np.linalg.inv(self.basis.T @ (self.basis / moduli[:, None]))

    def attack(self) -> Attack:
        if self.certificate.noise == "matrix":  # Raise before the search if the noise has no density
            matrix_density(self.analysis, self.certificate, np.zeros((0, self.form.space.dim)))
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
        wide = [case for case in found if len(case.point) > 1 and (self.free or self.everything)]
        if wide:
            case = max(wide, key=lambda case: float(self.delta_samples(case, PILOT).mean()))
            attacks.append(self.report(case, SAMPLED, math.nan, self.sampled(case)))
        if not attacks:
            why = "the distribution of answers in a constrained subspace is not computed; dp.falsify attacks the constants"
            attacks = [self.report(found[0], why, math.nan, math.nan)]
        return max(attacks, key=lambda attack: attack.ratio)

    def delta_samples(self, case: Restricted, count: int) -> Array:
        """Return importance samples of delta, shape (count,), at answers drawn near the worst one; their mean estimates delta."""
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
        """Return a lower bound on delta that fails with probability `ALARM` at most (Maurer & Pontil 2009, theorem 4)."""
        bound, odds = float(self.delta_samples(case, PILOT).max()), math.log(2 / ALARM)
        found = np.minimum(self.delta_samples(case, SAMPLES), bound)
        lost = math.sqrt(2 * float(found.var(ddof=1)) * odds / SAMPLES) + 7 * bound * odds / (3 * (SAMPLES - 1))
        return max(float(found.mean()) - lost, 0.0)

    def restricted(self, one: Candidates) -> Restricted:
        """Return the candidate in the directions in which the objectives differ, with the worst linear term."""
        theta, frame = one.theta[0], np.eye(self.basis.shape[1])
        if not self.free:  # only answers in the interior of K have a density
            around = self.rng.normal(size=(64, len(theta))) * max(float(np.linalg.norm(theta)), 1.0)
            theta = theta + FROM_FACES * (self.search.enter(around).mean(axis=0) - theta)
        elif self.gaussian:
            rows = np.concatenate([side.rows(len(theta))[0][0] for side in one.sides]) @ self.basis
            turned = np.concatenate([unit(rows), unit(rows @ self.public)])  # also the rows times the curvature
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
        """Return the attack by the largest privacy loss at one answer."""
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
        """Return whether points of K are in its interior, shape (B,); always True if the noise has fewer dimensions than K."""
        beyond = points * (1 + 1e-9)
        return (self.search.enter(beyond) == beyond).all(axis=1) | self.free | (not self.everything)

    def integrated(self, case: Restricted, last: bool = False) -> Attack:
        """Return the attack by the largest delta in one dimension, over several linear terms."""
        masses = self.masses(case, COARSE)
        sizes = self.scale * 10.0 ** self.rng.uniform(-1.5, 0.7, scaled_effort(self.effort, *TRIALS))
        moves = [*(step * case.noise for step in ALONG), *(self.rng.normal(size=1) * size for size in sizes)]
        for move in moves:  # first multiples of the worst noise, then random ones
            trial = replace(case, shift=case.shift + move)
            found = self.masses(trial, COARSE)
            if found.delta(self.epsilon) > masses.delta(self.epsilon):
                case, masses = trial, found
        masses = self.masses(case, FINE) if last else masses
        delta = masses.delta(self.epsilon)
        return self.report(case, "exact distribution in one dimension", masses.epsilon_at(self.delta), delta, masses)

    def masses(self, case: Restricted, count: int) -> Masses:
        """Return the masses of the answer under both data sets, on cells of the line."""
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
        note = "the rest is a linear term of the regularizer, which does not change the certificate."
        note = f"Gradients of the other {certificate.size - 1} records add up to at most {others:.4g}; {note}"
        further: Any = {**self.search.places(case.one), "slope": self.form.space.unpack(slope), "masses": masses}
        return Attack("exact answer", self.epsilon, self.delta, epsilon, delta, how, notes=(note,) * beyond, **further)
