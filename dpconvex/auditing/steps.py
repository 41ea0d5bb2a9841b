"""Attacks on noise that does not depend on the answer: on the output, on gradients, and on the grid of the cover."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from dpconvex.auditing.learner import Learner
from dpconvex.auditing.masses import Masses
from dpconvex.auditing.neighbour_search import Candidates, Goal, Search, climb, kind_pairs, lifted, solved
from dpconvex.auditing.noises import LogNoise, gaussian_density
from dpconvex.auditing.objective import Effort, left_delta
from dpconvex.auditing.report import Attack
from dpconvex.auditing.sampled import SampledProfile
from dpconvex.calculus.analysis import Analysis
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.grid import LAPLACE, IntegerNoise
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.release.whitening import second_moment

Array = NDArray[np.float64]

# Candidates whose minimisers are computed, and Newton steps for each.
FINALISTS, STEPS = 64, 40
# Integer noise of a larger scale is as good as real numbers.
LARGEST_SCALE = 1e5
BISECTIONS = 60
# Where an objective may be flat, the search uses this modulus; it changes no gradient of a record.
STAND_IN = 1.0


def profile_delta(epsilon: float, shift: float) -> float:
    """Return the exact delta of unit Gaussian noise for answers `shift` apart (Balle & Wang 2018), not rounded up."""
    if shift <= 0:
        return 0.0
    first, second = log_ndtr(shift / 2 - epsilon / shift), epsilon + log_ndtr(-shift / 2 - epsilon / shift)
    return float(np.exp(first) * -np.expm1(second - first)) if second < first else 0.0


def profile_epsilon(delta: float, shift: float) -> float:
    """Return the epsilon of unit Gaussian noise at a delta."""
    low, high = 0.0, 1.0
    if profile_delta(0.0, shift) <= delta:
        return 0.0
    while profile_delta(high, shift) > delta:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if profile_delta(middle, shift) > delta else (low, middle)
    return low


def attack_output(analysis: Analysis, certificate: Certificate, effort: Effort, rng: np.random.Generator) -> Attack:
    """Attack output perturbation by the largest distance of two exact minimisers that is found."""
    width = certificate.settings.get("smoothing", 0.0)
    smooth = smooth_analysis(analysis, width) if width else analysis
    proof = smooth.under(certificate.privacy.adjacency)
    learner = Learner(proof, certificate.size, certificate.added, rng)
    best = worst_candidate(learner, certificate, Goal("distance"), effort, rng)
    one, there, distance = best
    moved = learner.frame @ lifted(one.frame, there)[0]
    note = f"The other data set's minimiser is {distance:.6g} away: {learner.form.space.unpack(moved)}."
    notes = (note, "That the release is projected on K is left out; it only hides more.")
    return shifted(learner, certificate, one, distance, "distance of exact minimisers", notes)


def attack_gradients(analysis: Analysis, certificate: Certificate, effort: Effort, rng: np.random.Generator) -> Attack:
    """Attack noisy gradient descent by the largest difference of two gradients, seen in every step."""
    learner = Learner(analysis, certificate.size, STAND_IN, rng)
    one, _, difference = worst_candidate(learner, certificate, Goal("gradient"), effort, rng)
    steps, clip = certificate.settings["steps"], certificate.settings.get("clip")
    if clip is not None:
        return attack_clipped(learner, certificate, one, clip)
    notes = (
        f"All {steps:g} noisy gradients are seen, and all are taken where the two differ by {difference:.6g}: the proof allows "
        "for both, and who sees the average of the iterates alone learns less.",
    )
    return shifted(learner, certificate, one, difference * math.sqrt(steps), "composition of Gaussian steps", notes)


def attack_clipped(learner: Learner, certificate: Certificate, one: Candidates, clip: float) -> Attack:
    """Attack descent on clipped gradients by what is left of the two records' gradients, seen in every step."""
    lift = learner.frame @ one.frame
    first, second = (records.slopes(one.point[:, None], lift)[0][0, 0] for records in (one.first, one.second))
    difference = float(np.linalg.norm(shortened(first, clip) - shortened(second, clip)))
    steps, rate = certificate.settings["steps"], certificate.settings.get("sampling")
    note = f"All {steps:g} noisy sums are seen, and all are taken where the two clipped gradients differ by {difference:.6g}."
    if rate is None:
        return shifted(
            learner, certificate, one, difference * math.sqrt(steps), "composition of Gaussian steps", (note,)
        )
    found = shifted(learner, certificate, one, 0.0, f"privacy losses of samples of probability {rate:g}", (note,))
    profile = SampledProfile(difference / certificate.noise_scale, rate, int(steps))
    return replace(found, found_epsilon=profile.epsilon(found.delta), found_delta=profile.delta(found.epsilon))


def shortened(gradient: Array, clip: float) -> Array:
    return gradient * min(1.0, clip / max(float(np.linalg.norm(gradient)), 1e-300))


def worst_candidate(
    learner: Learner, certificate: Certificate, goal: Goal, effort: Effort, rng: np.random.Generator
) -> tuple[Candidates, Array, float]:
    """Return the worst neighbours, where the other minimiser is, shape (1, d), and how far away (or how large the difference)."""

    def law(dimension: int) -> LogNoise:
        return gaussian_density(dimension, 1.0)

    best: tuple[Candidates, Array, float] | None = None
    for first, second in kind_pairs(learner, certificate.privacy.adjacency):
        search = Search(learner, first, second, goal, law, learner.matrix is not None and learner.free, rng)
        found = climb(search, effort.batches, effort.rounds)
        there, value = found.point, found.worth
        if goal.noise == "distance":
            found = found.take(slice(0, FINALISTS))
            there, value = other_minimiser(search, found)
        k = int(np.argmax(value))
        if best is None or value[k] > best[2]:
            best = found.take(slice(k, k + 1)), there[k : k + 1], float(value[k])
    assert best is not None
    return best


def other_minimiser(search: Search, found: Candidates) -> tuple[Array, Array]:
    """Return minimisers for the second data sets, if those for the first are the candidates' points, and their least distances.

    The rest of the data makes each point a minimiser; from there Newton's method goes to the other one.  What is left of the
    gradient is taken off the distance.
    """
    learner, frame, here = search.learner, found.frame, found.point
    lift = learner.frame @ frame
    turned = np.swapaxes(frame, 1, 2)

    def public(point: Array) -> tuple[Array, Array]:
        gradient, hessian = learner.public(lifted(frame, point))
        bend = turned @ hessian @ frame + found.curvature[:, None, None] * np.eye(frame.shape[2])
        return np.einsum("bdp,bp->bd", turned, gradient) + found.curvature[:, None] * point, bend

    base = public(here)[0] + found.first.slopes(here[:, None], lift)[0][:, 0]
    there, best, left = here.copy(), here.copy(), np.full(len(found), np.inf)
    for _ in range(STEPS):
        gradient, bend = public(there)
        g, h = (part[:, 0] for part in found.second.slopes(there[:, None], lift))
        residual = gradient + g - base
        size = np.linalg.norm(residual, axis=1)
        best = np.where((size < left)[:, None], there, best)
        left = np.minimum(size, left)
        there = there - solved(bend + h, residual)
    modulus = np.linalg.eigvalsh(public(best)[1])[:, 0]
    distance = np.linalg.norm(best - here, axis=1) - left / modulus
    return best, np.where(learner.inside(lifted(frame, best)), distance, 0.0)


def shifted(
    learner: Learner, certificate: Certificate, one: Candidates, shift: float, how: str, notes: tuple[str, ...]
) -> Attack:
    """Report what noise of a known law leaves of two answers that are `shift` apart."""
    scale, delta = certificate.noise_scale, left_delta(certificate)
    epsilon = certificate.noise_epsilon
    if certificate.noise == "gaussian":
        found, lost = profile_epsilon(delta, shift / scale), profile_delta(epsilon, shift / scale)
    else:
        found, delta = shift / scale, 0.0
        lost = max(-math.expm1((epsilon - found) / 2), 0.0)  # on the line through both answers
    theta = learner.frame @ lifted(one.frame, one.point)[0]
    return Attack(
        part="exact answer" if certificate.perturbed == "output" else "noisy gradients",
        epsilon=epsilon,
        delta=delta,
        found_epsilon=found,
        found_delta=lost
        if certificate.noise == "gaussian" or certificate.noise_dimension == 1 or lost == 0
        else math.nan,
        how=how,
        record=learner.named(one.first, 0),
        neighbour=learner.named(one.second, 0),
        curvature=float(one.curvature[0]),
        answer=learner.form.space.unpack(theta),
        notes=notes,
    )


def attack_whitening(certificate: Certificate) -> list[Attack]:
    """Attack a noisy second moment by the records that move it farthest, and both stages together where both are Gaussian."""
    noise = certificate.whitening
    assert noise is not None
    record = np.zeros((1, noise.features))
    record[0, 0] = noise.radius
    moved = second_moment(record, noise.features, noise.radius).astype(float)
    if certificate.privacy.adjacency == "replace-one":
        other = np.roll(record, 1, axis=1) if noise.features > 1 else np.zeros_like(record)
        moved -= second_moment(other, noise.features, noise.radius)
    shift = float(np.linalg.norm(moved)) / noise.scale
    if not noise.composed:
        found = profile_epsilon(noise.delta, shift), profile_delta(noise.epsilon, shift)
        return [Attack("whitening", noise.epsilon, noise.delta, *found, "Gaussian profile of the second moment")]
    both = math.hypot(shift, math.sqrt(max(noise.composed**2 - noise.level**2, 0.0)))
    epsilon, delta = noise.epsilon + certificate.noise_epsilon, certificate.noise_delta
    found = profile_epsilon(delta, both), profile_delta(epsilon, both)
    how = "Gaussian profile of the second moment and of the noise as certified"
    return [Attack("whitening and noise together", epsilon, delta, *found, how)]


def attack_cover(cover: IntegerNoise, part: str = "cover of the computed answer") -> Attack:
    """Attack integer noise by enumeration: answers on the grid that are as far apart as they may be, along one coordinate."""
    steps = math.floor(cover.sensitivity)
    epsilon, delta = cover.epsilon, cover.delta
    if cover.noise == LAPLACE:
        return Attack(part, epsilon, 0.0, steps / cover.scale, 0.0, "ratio of discrete Laplace probabilities")
    if cover.scale > LARGEST_SCALE:
        shift = steps / cover.scale
        found, lost = profile_epsilon(delta, shift), profile_delta(epsilon, shift)
        return Attack(part, epsilon, delta, found, lost, "Gaussian profile, on a grid that is fine beside the noise")
    reach = math.ceil(40 * cover.scale) + steps
    k = np.arange(-reach, reach + 1.0)
    logs = [-((k - at) ** 2) / (2 * cover.scale**2) for at in (0, steps)]
    masses = Masses(*(np.exp(log) / np.exp(log).sum() for log in logs))
    return Attack(
        part,
        epsilon,
        delta,
        masses.epsilon_at(delta),
        masses.delta(epsilon),
        "enumeration of the discrete Gaussian law",
        masses=masses,
    )
