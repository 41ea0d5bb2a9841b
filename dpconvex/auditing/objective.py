"""The attack on objective perturbation, by the exact law of the answer."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.learner import Learner
from dpconvex.auditing.line import grid, line_masses
from dpconvex.auditing.masses import Masses
from dpconvex.auditing.neighbour_search import Candidates, Goal, Search, climb, kind_pairs
from dpconvex.auditing.noises import LogNoise, gamma_density, gaussian_density, matrix_density
from dpconvex.auditing.plane import Disc, Patch, Rectangle, plane_masses
from dpconvex.auditing.report import Attack
from dpconvex.auditing.sampling import sampled_delta
from dpconvex.calculus.analysis import Analysis
from dpconvex.geometry.convex_sets import Interval, NormBall
from dpconvex.mechanisms.certificate import Certificate

Array = NDArray[np.float64]

# How far from the middle noise is counted, in units of its scale.
FAR = {"gaussian": 12.0, "gamma": 60.0}
# Beyond this, K has no end.
ENDLESS = 1e9
# A sum over midpoints in the plane is off by no more than so many times what coarser ones differ by, and this share of itself.
DOUBLED, MIDPOINTS = 2.0, 2e-3
# How far the rest of the data is varied along the worst noise, in units of that.
ALONG = (0.0, -0.1, 0.1, -0.25, 0.25, -0.5, 0.5)
# Halvings of the interval that holds a share of the noise.
BISECTIONS = 10


@dataclass(frozen=True)
class Effort:
    """How hard an attack tries.

    Attributes
    ----------
    batches, rounds : int
        Batches of candidates that are drawn, and rounds in which the best improve.
    finalists, trials : int
        How many of them are integrated, and how often each is varied.
    cells : int
        Of the last quadrature on the line; in the plane, each side has a twentieth of it.
    points : int
        Of importance sampling.
    """

    batches: int = 8
    rounds: int = 32
    finalists: int = 3
    trials: int = 24
    cells: int = 8000
    points: int = 100_000

    @classmethod
    def of(cls, level: float) -> Effort:
        """Return the default effort, multiplied."""
        one = cls()

        def times(value: int, least: int) -> int:
            return max(round(value * level), least)

        return cls(
            times(one.batches, 2),
            times(one.rounds, 4),
            times(one.finalists, 2),
            times(one.trials, 6),
            one.cells,
            times(one.points, 5000),
        )


def attack_objective(analysis: Analysis, certificate: Certificate, effort: Effort, rng: np.random.Generator) -> Attack:
    """Attack the exact answer of objective perturbation."""
    proof = analysis.under(certificate.privacy.adjacency)
    learner = Learner(proof, certificate.size, certificate.added, rng)
    attack = Objective(learner, analysis, certificate, effort, rng)
    found = [attack.on(first, second) for first, second in kind_pairs(learner, certificate.privacy.adjacency)]
    return max(found, key=lambda one: (one.strength, one.found_epsilon))


def left_delta(certificate: Certificate) -> float:
    """Return the delta that is claimed of the mechanism by itself."""
    return certificate.noise_delta


class Objective:
    """An attack on one certified learner."""

    def __init__(
        self, learner: Learner, analysis: Analysis, certificate: Certificate, effort: Effort, rng: np.random.Generator
    ) -> None:
        self.learner, self.analysis, self.certificate, self.effort, self.rng = (
            learner,
            analysis,
            certificate,
            effort,
            rng,
        )
        self.noise, self.scale = certificate.noise, certificate.noise_scale
        self.epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
        self.delta = left_delta(certificate) if self.noise == "gaussian" else 0.0
        self.reduced = learner.matrix is not None and learner.free and self.noise != "matrix"

    def log_noise(self, dimension: int) -> LogNoise:
        """Return the log density of the noise in some of its coordinates; for Gamma noise, where the others are 0."""
        if self.noise == "matrix":
            return matrix_density(self.analysis, self.certificate)
        return (gamma_density if self.noise == "gamma" else gaussian_density)(dimension, self.scale)

    def on(self, first: Any, second: Any) -> Attack:
        """Attack neighbours of one pair of kinds."""
        goal = Goal(self.noise, self.scale, self.epsilon)
        search = Search(self.learner, first, second, goal, self.log_noise, self.reduced, self.rng)
        found = climb(search, self.effort.batches, self.effort.rounds)
        if self.noise == "gaussian":
            return self.integrated(search, found)
        attack = self.pointwise(search, found)
        if not self.learner.free and search.dimension == self.learner.dimension <= 2 and self.noise == "gamma":
            attack = max(attack, self.integrated(search, found), key=lambda one: one.found_epsilon)
        return attack

    def pointwise(self, search: Search, found: Candidates) -> Attack:
        """Report the largest privacy loss at one answer."""
        worst = float(found.worth[0])
        return self.report(
            search, found, "largest ratio of densities", worst, 0.0 if worst <= self.epsilon else math.nan
        )

    def integrated(self, search: Search, found: Candidates) -> Attack:
        """Report the largest delta of the best candidates, by quadrature or, in more than two dimensions, by sampling."""
        if search.dimension > 2:
            return self.by_sampling(search, found)
        best, value = found.take(slice(0, 1)), -1.0
        shifts = self.shifts(found.take(slice(0, self.effort.finalists)))
        shift = shifts[0]
        for k in range(min(self.effort.finalists, len(found))):
            one, here, mass = found.take(slice(k, k + 1)), shifts[k], -1.0
            longer = (here + step * one.noise[0] for step in ALONG)  # first along the worst noise, then at random
            for trying in range(len(ALONG) + self.effort.trials):
                moved, there = (one, next(longer)) if trying < len(ALONG) else self.varied(search, one, here)
                trial = self.value(self.masses(moved, there, 1200 if search.dimension == 1 else 40))
                if trial > mass:
                    one, here, mass = moved, there, trial
            if mass > value:
                best, shift, value = one, here, mass
        return self.last(search, best, shift)

    def value(self, masses: Masses) -> float:
        """Return what is maximised."""
        return masses.delta(self.epsilon) if self.noise == "gaussian" else masses.epsilon

    def last(self, search: Search, best: Candidates, shift: Array) -> Attack:
        """Integrate the worst case on fine cells."""
        if search.dimension == 1:
            masses = self.masses(best, shift, self.effort.cells)
            how = "exact law on the line"
        else:
            count = self.effort.cells // 20
            coarser = [self.masses(best, shift, cells).delta(self.epsilon) for cells in (count // 2, 2 * count // 3)]
            masses = self.masses(best, shift, count)
            found = masses.delta(self.epsilon)
            error = max(abs(found - coarse) for coarse in coarser)
            masses = replace(masses, slack=DOUBLED * error + MIDPOINTS * found)
            how = "exact density in the plane"
        attack = self.report(
            search, best, how, masses.epsilon_at(self.delta), masses.delta(self.epsilon), masses, shift
        )
        return replace(attack, needed=self.needed(best, shift)) if self.noise == "gaussian" else attack

    def needed(self, one: Candidates, shift: Array) -> float:
        """Return the share of the noise with which these neighbours would have just the claimed delta."""
        low, high = 0.2, 2.0
        for _ in range(BISECTIONS):
            share = (low + high) / 2
            less = copy(self)
            less.scale = share * self.scale
            shifts = (shift, shift + (1 - share) * one.noise[0])
            found = max(
                less.masses(one, there, 2000 if len(shift) == 1 else 60).delta(self.epsilon) for there in shifts
            )
            low, high = (share, high) if found > self.delta else (low, share)
        return low

    def shifts(self, found: Candidates) -> Array:
        """Return the gradient of the rest of the data that leads to the candidates' answers and noise, shape (B, d)."""
        lift = self.learner.frame @ found.frame
        gradient = found.first.slopes(found.point[:, None], lift)[0][:, 0]
        public = self.learner.public(np.einsum("bpd,bd->bp", found.frame, found.point))[0]
        public = np.einsum("bpd,bp->bd", found.frame, public)
        return np.asarray(-(public + found.curvature[:, None] * found.point + gradient + found.noise))

    def varied(self, search: Search, one: Candidates, shift: Array) -> tuple[Candidates, Array]:
        """Change a candidate a little: its records, or the rest of the data."""
        rng = self.rng
        if rng.random() < 0.6:
            step = self.scale * 10.0 ** rng.uniform(-1.5, 0.7)
            return one, shift + step * rng.normal(size=shift.shape)
        small = 10.0 ** rng.uniform(-2, 0)
        moved = search.step(one, small)
        ambient = one.frame[0] @ shift
        return moved, moved.frame[0].T @ ambient

    def masses(self, one: Candidates, shift: Array, count: int) -> Masses:
        """Return the laws of the answer for both data sets, on cells."""
        frame, c = one.frame[0], float(one.curvature[0])
        d = frame.shape[1]
        lift = (self.learner.frame @ frame)[None]

        def slopes(side: Any) -> Any:
            def at(points: Array) -> tuple[Array, Array]:
                gradient, hessian = (part[0] for part in side.slopes(points[None], lift))
                public, bend = self.learner.public(points @ frame.T)
                bend = frame.T @ bend @ frame + c * np.eye(d)
                return gradient + public @ frame + c * points + shift, hessian + bend

            return at

        center, reach = self.window(frame, shift, c)
        first, second = slopes(one.first), slopes(one.second)
        if d == 1:
            lower, upper = self.ends()
            points = grid(float(center[0]), float(reach[0]), lower, upper, count, self.feature(one))
            return line_masses(
                points,
                lambda t: first(t[:, None])[0][:, 0],
                lambda t: second(t[:, None])[0][:, 0],
                self.noise,
                self.scale,
            )
        far = FAR[self.noise] * self.scale
        return plane_masses(self.patch(), first, second, self.log_noise(2), center, reach, far, count)

    def feature(self, one: Candidates) -> float:
        """Return the scale of answers at which a loss bends, from the length of its rows."""
        rows = [self.learner.rows(side)[0].ravel() for side in (one.first, one.second)]
        return 0.3 / max(float(np.abs(np.concatenate(rows)).max(initial=0.0)), 1e-9)

    def window(self, frame: Array, shift: Array, c: float) -> tuple[Array, Array]:
        """Return the middle of the answers, shape (d,), and how far from it they are looked for, shape (d,)."""
        d = frame.shape[1]
        limited = not self.learner.free and self.learner.everything
        center, here, least, bend = np.zeros(d), np.zeros(d), math.inf, np.eye(d)
        for _ in range(40):  # Newton's method; the best point counts, and how far it can be from the minimiser
            gradient, hessian = self.learner.public((frame @ here)[None])
            curved = frame.T @ hessian[0] @ frame + c * np.eye(d)
            slope = frame.T @ gradient[0] + c * here + shift
            there = here - np.linalg.solve(curved, slope)
            there = self.learner.region.project(there[None])[0] if limited else there
            moved = float(np.linalg.norm(there - here))
            if moved < least:
                center, least, bend = there, moved, curved
            if moved <= 1e-9 * (1 + float(np.linalg.norm(here))):
                break
            here = there
        if self.learner.matrix is None:
            bend = (self.certificate.strong_convexity + c) * np.eye(d)
        noise = FAR[self.noise] * self.scale + self.certificate.gradient_bound
        return center, least + noise * np.linalg.norm(np.linalg.inv(bend), axis=1)

    def ends(self) -> tuple[float, float]:
        if self.learner.free or not self.learner.everything:
            return -math.inf, math.inf
        low, high = self.learner.region.project(np.array([[-ENDLESS], [ENDLESS]]))[:, 0].tolist()
        return -math.inf if low <= -ENDLESS / 2 else low, math.inf if high >= ENDLESS / 2 else high

    def patch(self) -> Rectangle | Disc | Patch:
        """Return K in the plane."""
        feasible = self.learner.form.feasible
        free = Rectangle(np.full(2, -np.inf), np.full(2, np.inf))
        if feasible.is_space:
            return free
        if self.learner.everything and all(isinstance(piece, Interval) for piece in feasible.pieces):
            return Rectangle(feasible.lower, feasible.upper)
        ball = feasible.pieces[0]
        if (
            self.learner.everything
            and len(feasible.pieces) == 1
            and isinstance(ball, NormBall)
            and len(ball.coordinates) == 2
        ):
            return Disc(ball.center, ball.radius)
        lower, upper = (feasible.lower, feasible.upper) if self.learner.everything else (free.lower, free.upper)
        return Patch(lower, upper, self.learner.inside)

    def by_sampling(self, search: Search, found: Candidates) -> Attack:
        """Estimate the delta of the best candidates in more than two dimensions."""
        best, value, shift = found.take(slice(0, 1)), None, self.shifts(found.take(slice(0, 1)))[0]
        for k in range(min(self.effort.finalists, len(found))):
            one = found.take(slice(k, k + 1))
            here = self.shifts(one)[0]
            trial = self.sample(one, here, self.effort.points // 10)
            if value is None or trial.delta > value.delta:
                best, value, shift = one, trial, here
        last = self.sample(best, shift, self.effort.points)
        attack = self.report(
            search, best, "importance sampling, with 99.9 % confidence", math.nan, last.least, None, shift
        )
        return replace(attack, estimate=last.delta)

    def sample(self, one: Candidates, shift: Array, count: int) -> Any:
        """Estimate the delta of one candidate."""
        frame, c = one.frame[0], float(one.curvature[0])
        lift = (self.learner.frame @ frame)[None]
        log_noise, eye = self.log_noise(frame.shape[1]), np.eye(frame.shape[1])

        def log_laws(points: Array) -> tuple[Array, Array]:
            public, bend = self.learner.public(points @ frame.T)
            logs = []
            for side in (one.first, one.second):
                gradient, hessian = (part[0] for part in side.slopes(points[None], lift))
                noise = -(gradient + public @ frame + c * points + shift)
                density = log_noise(noise) + np.linalg.slogdet(hessian + frame.T @ bend @ frame + c * eye)[1]
                logs.append(density)
            counts = logs[0] > self.epsilon + logs[1]  # only these contribute, and have to be answers
            counts[counts] = self.learner.inside(points[counts] @ frame.T)
            return np.where(counts, logs[0], -np.inf), np.where(counts, logs[1], 0.0)

        public = self.learner.public((frame @ one.point[0])[None])[1][0]
        spread = self.scale * np.linalg.inv(frame.T @ public @ frame + c * eye)
        return sampled_delta(log_laws, self.epsilon, one.point[0], spread, count, self.rng)

    def report(
        self,
        search: Search,
        found: Candidates,
        how: str,
        epsilon: float,
        delta: float,
        masses: Masses | None = None,
        shift: Array | None = None,
    ) -> Attack:
        """Describe the best candidate."""
        one = found.take(slice(0, 1))
        pushed = (self.shifts(one)[0] if shift is None else shift) @ one.frame[0].T
        theta = self.learner.frame @ (one.frame[0] @ one.point[0])
        ambient = self.learner.frame @ pushed
        space = self.learner.form.space
        return Attack(
            part="exact answer",
            epsilon=self.epsilon,
            delta=self.delta,
            found_epsilon=epsilon,
            found_delta=delta,
            how=how,
            record=self.learner.named(one.first, 0),
            neighbour=self.learner.named(one.second, 0),
            slope=space.unpack(ambient),
            curvature=float(one.curvature[0]),
            answer=space.unpack(theta),
            masses=masses,
            notes=self.notes(float(np.linalg.norm(ambient)), found),
        )

    def notes(self, slope: float, found: Candidates) -> tuple[str, ...]:
        """Say where what was attacked is more than this learner."""
        notes = []
        if not self.learner.exact:
            notes.append(
                "The part of the regularizer and of K outside the sensitive subspace is replaced by the certified modulus. The "
                "proof allows that: a learner with these constants, if not this one, behaves so."
            )
        others = (self.certificate.size - 1) * self.certificate.gradient_bound
        if self.certificate.privacy.adjacency == "replace-one" and slope > others:
            notes.append(
                f"The other {self.certificate.size - 1} records push with at most {others:.4g}; the rest is a linear term of the "
                "regularizer, with which the certificate would be the same."
            )
        return tuple(notes)
