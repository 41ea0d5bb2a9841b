"""Attacks on output perturbation, noisy descent, statistics, clusterings and residual noise, and on the proof."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dpconvex.auditing.report import Attack
from dpconvex.auditing.search import POOL, Candidates, Goal, Records, Search, moduli_of, record_orders
from dpconvex.certificates.certificate import Certificate, DescentCertificate
from dpconvex.certificates.integer_noise import ClusteringNoise, IntegerNoise
from dpconvex.checker.reading import Rejected
from dpconvex.data.batch import Batch
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.sufficient_statistics import mechanism_of
from dpconvex.noise.discrete import LAPLACE
from dpconvex.noise.gaussian import gaussian_delta, profile_epsilon
from dpconvex.noise.loss_distributions import sampled_delta
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.moments import Moments
from dpconvex.sums.moment_sums import record_moments
from dpconvex.util.arrays import Array

# Newton steps to the second minimiser, and its largest relative distance from K by rounding.
STEPS, CLOSE = 40, 1e-9
CLIMB = 150  # Steps of the search for records with different statistics


def attack_output(analysis: Analysis, certificate: Certificate, effort: float, rng: np.random.Generator) -> Attack:
    """Attack output perturbation by the largest distance found between exact minimisers of neighbours."""
    proof = smooth_analysis(analysis, certificate.smoothing) if certificate.smoothing else analysis
    search = Search(proof.form, moduli_of(proof, certificate.size, certificate.added), rng)
    cases = []
    for found in search.best(Goal({"distance": 1.0}), certificate.privacy.adjacency, effort):
        there, away = other_minimiser(search, found, certificate.noise_dimension)
        k = int(np.argmax(away))
        cases.append((float(away[k]), found.one(k), there[k]))
    distance, one, place = max(cases, key=lambda case: case[0])
    notes = (
        f"The other data set's minimiser is {distance:.6g} away: {search.form.space.unpack(place)}.",
        "The projection of the release on K is ignored: it only hides more.",
    )
    return shifted(search, certificate, one, distance, "distance of exact minimisers", notes)


def other_minimiser(search: Search, found: Candidates, dimension: int) -> tuple[Array, Array]:
    """Return each second data set's minimiser, shape (B, dim), and a lower bound on its distance from the first, shape (B,)."""
    here, moduli, form = found.theta, search.moduli, search.form
    frame = np.broadcast_to(np.eye(len(moduli)), (len(found), len(moduli), len(moduli)))
    base = moduli * here + found.sides[0].slopes(here, frame, curved=False)[0]
    there, best, left = here, here, np.full(len(found), np.inf)
    for _ in range(STEPS):
        g, h = (np.nan_to_num(part) for part in found.sides[1].slopes(there, frame))
        residual = moduli * there + g - base
        size = np.linalg.norm(residual, axis=1)
        best, left = np.where((size < left)[:, None], there, best), np.minimum(size, left)
        there = there - np.linalg.solve(np.diag(moduli) + h, residual[..., None])[..., 0]
    gap = best - here
    if dimension < len(moduli):  # noise and releases lie in the sensitive subspace
        gap = gap @ form.basis
    distance = np.linalg.norm(gap, axis=1) - left / moduli.min()
    away = np.linalg.norm(search.enter(best) - best, axis=1)
    return best, np.where(away <= CLOSE * np.maximum(np.linalg.norm(best, axis=1), 1.0), distance, 0.0)


def attack_gradients(
    analysis: Analysis, certificate: DescentCertificate, effort: float, rng: np.random.Generator
) -> Attack:
    """Attack noisy descent by the largest difference found between two records' gradients, taken in every step."""
    search = Search(analysis.form, np.ones(analysis.form.space.dim), rng)
    steps, clip, rate = certificate.steps, certificate.clip, certificate.sampling
    cases, frame = [], np.eye(len(search.moduli))[None]
    for found in search.best(Goal({"difference": 1.0}), certificate.privacy.adjacency, effort):
        one = found.one(0)
        slopes = [side.slopes(one.theta, frame, curved=False)[0][0] for side in one.sides]
        first, second = (g * min(1.0, clip / max(float(np.linalg.norm(g)), 1e-300)) for g in slopes)
        cases.append((float(np.linalg.norm(first - second)), one))
    difference, one = max(cases, key=lambda case: case[0])
    shift = math.sqrt(steps) * difference
    note = f"The attacker sees all {steps:g} noisy gradients, each where the neighbours differ by {difference:.6g}"
    notes = (f"{note}. The proof covers this; the released answer alone reveals less.",)
    if rate == 1:
        return shifted(search, certificate, one, shift, "composition of Gaussian steps", notes)
    sampled = shifted(search, certificate, one, 0.0, f"privacy losses of samples of probability {rate:g}", notes)
    delta = sampled_delta(sampled.epsilon, certificate.noise_scale / max(difference, 1e-300), rate, steps)
    return replace(sampled, found_epsilon=math.nan, found_delta=delta)


class StatisticsSearch(Search):
    """A search for two records with very different statistics; it does not use parameters and values of leaves."""

    def __init__(self, form: LossForm, moments: Moments, rng: np.random.Generator) -> None:
        super().__init__(form, np.ones(form.space.dim), rng)
        self.moments = moments

    def farthest(self, adjacency: str) -> tuple[Candidates, float]:
        """Return two records (one, under add-remove) with a large difference in statistics, and its norm."""
        one = self.found([Goal({"difference": 1.0})], record_orders(adjacency)[0], POOL[0], CLIMB)[0].one(0)
        return one, float(self.measure(one, False)["difference"][0])

    def measure(self, some: Candidates, curved: bool) -> dict[str, Array]:
        zero = np.zeros((len(some), 1))
        batches = (None if side.losses is None else Batch(side.fields, side.group) for side in some.sides)
        first, second = (zero if batch is None else record_moments(self.moments, batch) for batch in batches)
        return {"difference": np.linalg.norm(first - second, axis=1)}

    def toward(self, sides: tuple[Records, Records], values: Array, theta: Array, *_: Any) -> Candidates:
        return Candidates(sides, theta, values)


def attack_statistics(form: LossForm, certificate: Certificate, rng: np.random.Generator, times: float) -> Attack:
    """Attack the noise on statistics by the largest difference found between two records, times a person's weight."""
    search = StatisticsSearch(form, mechanism_of(certificate).moments(form, certificate.privacy.adjacency), rng)
    one, distance = search.farthest(certificate.privacy.adjacency)
    distance *= times
    how = f"statistics of two records at distance {distance:.6g}, under the exact distribution of the noise"
    return replace(shifted(search, certificate, one, distance, how, ()), part="exact statistics", answer={})


def shifted(search: Search, certificate: Certificate, one: Candidates, shift: float, how: str, notes: Any) -> Attack:
    """Return the attack on spherical noise for two exact answers at distance `shift`."""
    epsilon, ratio, gaussian = certificate.noise_epsilon, shift / certificate.noise_scale, certificate.is_gaussian
    lost = max(-math.expm1((epsilon - ratio) / 2), 0.0)  # delta of Gamma noise in one dimension
    if certificate.noise_dimension > 1 and lost > 0:
        lost = math.nan
    part, further = "exact answer" if certificate.minimises else "noisy gradients", search.places(one)
    if not gaussian:
        return Attack(part, epsilon, 0.0, ratio, lost, how, notes=notes, **further)
    return gaussian_attack(part, epsilon, certificate.noise_delta, ratio, how, notes=notes, **further)


def gaussian_attack(part: str, epsilon: float, delta: float, shift: float, how: str, **further: Any) -> Attack:
    law = profile_epsilon(shift, delta), float(gaussian_delta(epsilon, shift))
    return Attack(part, epsilon, delta, *law, how, **further)


def attack_clustering(noise: ClusteringNoise, adjacency: str) -> Attack:
    """Attack a clustering's counts and sums: in every round, one record moves within its cell, or to another cell."""
    record = np.array([noise.radius, noise.weight])
    cells = [[record]] if adjacency == "add-remove" else [[np.array([2 * noise.radius, 0.0])], [record, -record]]
    if noise.noise == "gaussian":
        worst = max(float(np.linalg.norm(np.concatenate(change))) for change in cells)
        shift = math.sqrt(noise.rounds) * worst / noise.scale
        return gaussian_attack("clustering", noise.epsilon, noise.delta, shift, "Gaussian profile of all rounds")
    found = noise.rounds * max(sum(float(np.linalg.norm(part)) for part in change) for change in cells) / noise.scale
    return Attack("clustering", noise.epsilon, 0.0, found, 0.0, "composition of the rounds' privacy losses")


def attack_cover(cover: IntegerNoise) -> Attack:
    """Attack integer noise by its exact distribution, for two answers on the grid at the largest distance, in one coordinate."""
    part, shift = "residual noise", math.floor(cover.sensitivity) / cover.scale
    if cover.noise == LAPLACE:
        return Attack(part, cover.epsilon, 0.0, shift, 0.0, "ratio of discrete Laplace probabilities")
    how = "Gaussian profile, on a grid much finer than the noise"
    return gaussian_attack(part, cover.epsilon, cover.delta, shift, how)


def attack_proof(certificate: Certificate) -> Attack:
    """Attack by the independent checker's replay of the proof.  It detects too little noise also where no attack is tight."""
    epsilon, delta, found = certificate.privacy.epsilon, certificate.privacy.delta, math.nan
    try:
        how = str(certificate.check())
    except Rejected as error:
        how, found = f"the checker rejects the proof: {error}", math.inf
    return Attack("proof", epsilon, delta, found, found, how)
