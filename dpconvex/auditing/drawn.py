"""Attacks on noise as drawn: run the samplers of releases without data, and test the noise against its claimed distribution."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfc
from scipy.stats import beta, gamma, t as student

from dpconvex.auditing.laws import matrix_entries
from dpconvex.auditing.report import Attack
from dpconvex.certificates.certificate import Certificate, DescentCertificate, StatisticsCertificate
from dpconvex.certificates.integer_noise import ClusteringNoise, IntegerNoise, perturb
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.noisy_kmeans import NoisyKMeans
from dpconvex.mechanisms.sufficient_statistics import mechanism_of
from dpconvex.noise.discrete import LAPLACE
from dpconvex.noise.samplers import system_generator
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arrays import Array

# Number of draws of a test, and the probability of a false alarm, for each part.
DRAWS, ALARM = 8000, 1e-9
NUMBERS = 10**6  # Largest number of entries drawn for long vectors
SIDE, MATRICES = 128, 4  # Rows and number of second moments drawn: an entry's distribution does not depend on the rows
EXCEEDED = 0.2  # Approximate probability of exceeding a threshold
FINE = 2.0**20  # Ratio of the noise to intermediate rounding
DISCRETE = 1000.0  # Above this scale, masses of integer noise differ by less than 1e-6 from those of continuous noise


def attack_sampler(part: str, law: str, p: int, scale: float, groups: list[Array], grid: float = 0.0) -> Attack:
    """Test independent entries of noise, continuous or on a grid, against their distribution: a binomial test per group."""
    threshold = scale * float(brentq(lambda x: exceeds(law, p, x) - EXCEEDED, 1e-9, 1e9))
    threshold = grid * (max(round(threshold / grid - 0.5), 0) + 0.5) if grid else threshold
    claimed = exceeds(law, p, threshold / scale)
    if grid and law.startswith("discrete") and scale <= DISCRETE * grid:
        k, of = np.arange(1, 60 * DISCRETE), scale / grid
        masses = np.exp(-k / of if law == LAPLACE else -(k**2) / (2 * of**2))
        claimed = float(2 * masses[k > threshold / grid].sum() / (1 + 2 * masses.sum()))
    counts = np.array([np.sum(np.abs(group) > threshold) for group in groups])
    sizes = np.array([len(group) for group in groups])
    upper = float(np.where(counts < sizes, beta.ppf(1 - ALARM / len(groups), counts + 1, sizes - counts), 1.0).min())
    ends = [float(brentq(lambda x, mass=mass: exceeds(law, p, x) - mass, 0.0, 1e12)) for mass in (claimed, upper)]
    found = ends[1] / ends[0]
    above = "above" if found > 1 else "not above"
    how = f"{sizes.max()} draws: the claimed scale is {above} its upper confidence limit (false alarms: {ALARM:g})"
    return Attack(part, 1 / scale, 0.0, found / scale, 0.0, how, what="1/scale")


def exceeds(law: str, p: int, x: float) -> float:
    """Return the probability that one of p entries of noise of scale 1 exceeds x in absolute value."""
    if law == "matrix":  # p degrees of freedom
        return float(2 * student.sf(x * math.sqrt(p), p))
    if "aussian" in law:
        return float(erfc(x / math.sqrt(2)))
    if p == 1 or law == LAPLACE:
        return math.exp(-x)
    nodes, weights = mixture(p)
    return float(weights @ erfc(x / 2 / nodes))


@cache
def mixture(p: int) -> tuple[Array, Array]:
    """Return nodes and weights of a scale mixture of normals with density proportional to exp(-||b||) in p dimensions.

    Nodes are standard deviations over sqrt(2).  The variance is twice a Gamma variable of shape (p + 1)/2.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return np.sqrt(gamma.ppf((nodes + 1) / 2, (p + 1) / 2)), weights / 2


class Nothing:
    """An engine without data: the minimiser is the linear term, gradients are 0, K is the whole space.  It records all steps."""

    records = 0

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.seen: list[Array] = []

    def minimise(self, *_: Any, linear: Array | None = None, **__: Any) -> Array:
        return np.zeros(self.dim) if linear is None else linear

    def loss_gradient(self, *_: Any) -> Array:
        return np.zeros(self.dim)

    clipped_gradient = public_gradient = loss_gradient

    def project(self, theta: Array) -> Array:
        self.seen.append(theta)
        return np.zeros(self.dim)


def attack_draws(
    analysis: Analysis, certificate: Certificate, mechanism: Mechanism, cover: IntegerNoise
) -> Iterator[Attack]:
    """Test each noise that a release draws against the distribution that its certificate claims."""
    p, law, scale = certificate.noise_dimension, certificate.noise, certificate.noise_scale
    if p:
        vectors = noise_of(analysis, certificate, mechanism)
        if law == "matrix":
            inverse, order, freedom = matrix_entries(analysis, certificate)
            if inverse is not None:
                yield attack_sampler("noise as drawn", law, freedom, scale * order, [*(vectors @ inverse.T).T])
        else:
            pooled = [vectors.ravel()] * (law == "gaussian")
            yield attack_sampler("noise as drawn", law, p, scale, [*vectors.T, *pooled])
    # An entry's distribution depends on no dimension nor sensitivity.
    many = replace(cover, dimension=max(DRAWS, cover.dimension), sensitivity=0.0)
    steps = perturb(np.zeros(many.dimension), many) / cover.step
    yield attack_sampler("residual noise as drawn", cover.noise, 1, cover.scale, [steps], 1.0)


def draws(numbers: int) -> int:
    """Return how many vectors of `numbers` entries to draw."""
    return min(max(NUMBERS // numbers, 1), DRAWS)


def noise_of(analysis: Analysis, certificate: Certificate, mechanism: Mechanism) -> Array:
    """Return draws of the noise, shape (m, p), in the p coordinates of `noise_dimension`."""
    rng, dim, count = system_generator(), analysis.form.space.dim, draws(certificate.noise_dimension)
    if isinstance(certificate, StatisticsCertificate):
        sums, zeros = mechanism_of(certificate), np.zeros(certificate.noise_dimension)
        return np.array([sums.perturbed(zeros, certificate, rng) for _ in range(count)])
    found: list[Array] = []
    one, unit = certificate, 1.0
    if isinstance(certificate, DescentCertificate):
        settings = {**certificate.settings, "steps": float(min(certificate.steps, count)), "momentum": 0.0}
        settings["last_step"] = unit = certificate.step_size
        one = certificate.copied(event=None, settings=settings)
    while len(found) < count:
        engine: Any = Nothing(dim)
        answer = mechanism.run(analysis, one, engine, rng)
        found.extend([answer] if certificate.minimises else engine.seen[1:])  # the first is the start
    vectors = np.asarray(found[:count]) / unit
    inside = certificate.noise != "matrix" and certificate.noise_dimension < dim
    return np.asarray(vectors @ analysis.form.basis) if inside else vectors


def attack_rounds(noise: ClusteringNoise) -> Iterator[Attack]:
    """Test the noise on a clustering's sums, and on its counts; the centres reveal both."""
    d, law, p = noise.features, "gaussian" if noise.noise == "gaussian" else "gamma", noise.features + 1
    rounds = draws(d) // (noise.classes * noise.components) + 2
    many = FINE * max(math.ceil(noise.deviation / noise.weight), 1.0)
    # With many records and a fine grid, centres reveal noise on sums.  On a grid coarser than that noise, noise on counts.
    fine = replace(noise, rounds=rounds, step=noise.scale / many / FINE)
    coarse = replace(noise, rounds=rounds, step=1e3 * noise.deviation, radius=1e3 * noise.deviation * 2.0**50)
    for name, one, total in (("sums", fine, 0.0), ("counts", coarse, many * 2.0**45)):
        seen: list[Array] = []

        def statistics(centers: Array, total: float = total, seen: list[Array] = seen) -> tuple[Array, Array]:
            seen.append(centers)
            return np.full(centers.shape, total), np.full(centers.shape[:2], many)

        seen.append(NoisyKMeans().run(one, statistics, system_generator()))
        centers = np.concatenate([found.reshape(-1, d) for found in seen[2:]])
        if total:
            entries, grid = np.rint(total / centers[:, :1] - many) * noise.weight, noise.weight
        else:
            entries, grid = centers * (many * one.step), 0.0
        pooled = [entries.ravel()] * (law == "gaussian" and d > 1 and not total)
        yield attack_sampler(f"clustering's {name} as drawn", law, p, noise.scale, [*entries.T, *pooled], grid)
