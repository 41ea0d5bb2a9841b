"""Attacks on released statistics: the neighbours whose statistics are farthest apart."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.laws import profile_delta, profile_epsilon
from dpconvex.auditing.parts import attack_cover, attack_vectors
from dpconvex.auditing.report import Attack
from dpconvex.calculus.moments import Moments
from dpconvex.evaluation.moment_sums import record_moments
from dpconvex.language.batch import Batch
from dpconvex.language.template import Template
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.sufficient_statistics import mechanism_of
from dpconvex.noise.samplers import system_generator
from dpconvex.release.verify import form_of

Array = NDArray[np.float64]

# Pairs that the search starts from, those that are improved, and steps of that.
PAIRS, KEPT, STEPS = 400, 20, 150


def attack_statistics(
    template: Template, certificate: Certificate, draws: int, rng: np.random.Generator
) -> list[Attack]:
    """Attack the exact statistics by the largest difference that is found, then the noise as drawn and the cover."""
    mechanism, cover = mechanism_of(certificate, form_of(template)), certificate.cover
    assert cover is not None
    moments = mechanism.moments(form_of(template), certificate.privacy.adjacency)
    pair, distance = farthest(template, moments, certificate.privacy.adjacency == "replace-one", rng)
    shift, epsilon = distance / certificate.noise_scale, certificate.noise_epsilon
    gaussian = certificate.is_gaussian
    delta = certificate.privacy.delta - cover.delta if gaussian else 0.0
    how = f"statistics of two records, {distance:.6g} apart, under the exact law of the noise"
    exact = Attack("exact statistics", epsilon, delta, shift, math.nan, how, record=pair[0], neighbour=pair[1])
    if gaussian:
        found = profile_epsilon(delta, shift), profile_delta(epsilon, shift)
        exact = replace(exact, found_epsilon=found[0], found_delta=found[1])
    count = max(draws // certificate.noise_dimension, 200)
    zeros, source = np.zeros(certificate.noise_dimension), system_generator()
    vectors = np.array([mechanism.perturbed(zeros, certificate, source) for _ in range(count)])
    return [exact, attack_vectors(None, certificate, vectors), attack_cover(cover)]


def farthest(
    template: Template, moments: Moments, replaced: bool, rng: np.random.Generator
) -> tuple[tuple[dict[str, Any], dict[str, Any] | None], float]:
    """Return two records (or one and none) whose statistics differ much, and by how much: the best of many pairs, improved."""
    record = template.record

    def apart(sides: list[Batch]) -> Array:
        first, second = (record_moments(moments, side) for side in sides)
        return np.asarray(np.linalg.norm(first - second if replaced else first, axis=1))

    sides = [record.sample(PAIRS, rng) for _ in range(2)]
    for name in record.continuous:  # many worst pairs are opposite, or equal but for one field
        sides[1].fields[name][: PAIRS // 4] = record.continuous[name].project(-sides[0].fields[name][: PAIRS // 4])
        alike = rng.random(PAIRS) < 1 / 4
        sides[1].fields[name][alike] = sides[0].fields[name][alike]
    best = np.argsort(-apart(sides))[:KEPT]
    sides = [Batch({name: v[best] for name, v in side.fields.items()}, side.group[best]) for side in sides]
    values = apart(sides)
    for step in range(STEPS):
        size = 0.5 ** (10 * step / STEPS)
        trial = [moved(template, side, size, rng) for side in sides]
        better = (found := apart(trial)) > values
        for name in record.continuous:
            for side, other in zip(sides, trial, strict=True):
                side.fields[name][better] = other.fields[name][better]
        values = np.maximum(values, found)
    k = int(np.argmax(values))
    named = [
        {name: side.fields[name][k] for name in record.continuous} | record.combinations[side.group[k]]
        for side in sides
    ]
    return (named[0], named[1] if replaced else None), float(values[k])


def moved(template: Template, side: Batch, size: float, rng: np.random.Generator) -> Batch:
    """Return records at a random distance from others, in their domain."""
    fields = {}
    for name, domain in template.record.continuous.items():
        values = side.fields[name]
        step = size * domain.norm_bound * rng.standard_normal(values.shape) / math.sqrt(math.prod(domain.shape))
        fields[name] = domain.project(values + step)
    return Batch(fields, side.group)
