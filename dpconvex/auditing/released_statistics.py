"""Attacks on released statistics: the neighbours whose statistics are farthest apart."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.parts import attack_cover, attack_vectors
from dpconvex.auditing.records import Records
from dpconvex.auditing.report import Attack
from dpconvex.auditing.search import POOL, Candidates, Goal, Search
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.moments import Moments
from dpconvex.evaluation.moment_sums import record_moments
from dpconvex.language.batch import Batch
from dpconvex.language.template import Template
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.sufficient_statistics import mechanism_of
from dpconvex.noise.profiles import gaussian_delta, profile_epsilon
from dpconvex.noise.samplers import system_generator
from dpconvex.release.verify import form_of

Array = NDArray[np.float64]

# Steps of the search.
STEPS = 150


def attack_statistics(
    template: Template, certificate: Certificate, draws: int, rng: np.random.Generator
) -> list[Attack]:
    """Attack the exact statistics by the largest difference that is found, then the noise as drawn and the cover."""
    mechanism, cover = mechanism_of(certificate, form_of(template)), certificate.cover
    assert cover is not None
    moments = mechanism.moments(form_of(template), certificate.privacy.adjacency)
    pair, distance = farthest(template, moments, certificate.privacy.adjacency, rng)
    shift, epsilon = distance / certificate.noise_scale, certificate.noise_epsilon
    gaussian = certificate.is_gaussian
    delta = certificate.privacy.delta - cover.delta if gaussian else 0.0
    how = f"statistics of two records, {distance:.6g} apart, under the exact law of the noise"
    exact = Attack("exact statistics", epsilon, delta, shift, math.nan, how, record=pair[0], neighbour=pair[1])
    if gaussian:
        found = profile_epsilon(shift, delta), float(gaussian_delta(epsilon, shift))
        exact = replace(exact, found_epsilon=found[0], found_delta=found[1])
    count = max(draws // certificate.noise_dimension, 200)
    zeros, source = np.zeros(certificate.noise_dimension), system_generator()
    vectors = np.array([mechanism.perturbed(zeros, certificate, source) for _ in range(count)])
    return [exact, attack_vectors(certificate, vectors), attack_cover(cover)]


class Statistics(Search):
    """The search for records whose statistics are far apart: parameters and values of leaves play no part."""

    def __init__(self, form: LossForm, moments: Moments, rng: np.random.Generator) -> None:
        super().__init__(form, np.ones(form.space.dim), rng)
        self.moments = moments

    def measure(self, some: Candidates, curved: bool) -> dict[str, Array]:
        """Return how far the statistics of the two records are apart."""
        labels = np.array(self.form.labels)
        first, second = (
            np.zeros((len(some), 1))
            if side.losses is None
            else record_moments(self.moments, Batch(side.fields, labels[side.group]))
            for side in (some.first, some.second)
        )
        return {"difference": np.linalg.norm(first - second, axis=1)}

    def _parameters(
        self, first: Records, second: Records, values: Array, theta: Array, rounds: int, free: NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        return theta, values


def farthest(
    template: Template, moments: Moments, adjacency: str, rng: np.random.Generator
) -> tuple[tuple[dict[str, Any] | None, dict[str, Any] | None], float]:
    """Return two records (or one and none) whose statistics differ much, and by how much."""
    search, goal = Statistics(form_of(template), moments, rng), Goal({"difference": 1.0})
    one = search.found([goal], search.pairs(adjacency)[0], POOL, STEPS)[0].take(slice(0, 1))
    return (search.named(one.first), search.named(one.second)), float(search.measure(one, False)["difference"][0])
