"""How many records there can be, where that is protected: a noisy number of them, and what depends on it.

What rounding allows to certify grows with the number of records.  Under add-remove adjacency that number is private, and a
tolerance for a fixed number of them would make fits fail that have more, which everybody sees.  So the number is released first,
to the program alone, with integer noise for a small share of the promise; with a margin that the noise exceeds with probability
2^-100 it bounds the number of records, and the tolerance follows from that (docs/release.md, section 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpconvex.calculus.analysis import Analysis
from dpconvex.errors import DomainError
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.clipped_descent import reclipped
from dpconvex.mechanisms.gradient_descent import gradient_rounding
from dpconvex.mechanisms.grid import IntegerNoise, laplace_count, perturb
from dpconvex.mechanisms.residual_noise import (
    check_smoothness,
    least_tolerance,
    linear_cap,
    noise_cap,
    residual_noise,
    residual_steps,
    tail_cost,
)
from dpconvex.mechanisms.rounding import margin


def bound_on_count(cover: IntegerNoise, count: int, rng: np.random.Generator | None = None) -> float:
    """Release a number that is at least the number of records, but for a probability of 2^-100."""
    noisy = perturb(np.array([float(count)]), laplace_count(cover.counting), rng)
    return float(noisy[0]) + margin(cover.counting)


def for_count(mechanism: Mechanism, analysis: Analysis, certificate: Certificate, records: float) -> Certificate:
    """Return the certificate of a fit on at most so many records; the same one if it is made for as many."""
    cover = certificate.cover
    assert cover is not None
    if records <= cover.records:
        return certificate
    larger = enlarged(mechanism, analysis, certificate, cover, records)
    spent = Privacy(cover.epsilon, cover.delta, certificate.privacy.adjacency)
    cap = noise_cap(mechanism, larger)
    noise = residual_noise(
        mechanism, analysis, larger, spent, cap, tail_cost(certificate.privacy), records, cover.counting
    )
    whole = certificate.derivation
    steps = (whole.children[0], *residual_steps(noise))
    return replace(larger, cover=noise, derivation=replace(whole, children=steps))


def enlarged(
    mechanism: Mechanism, analysis: Analysis, certificate: Certificate, cover: IntegerNoise, records: float
) -> Certificate:
    """Return a certificate with a tolerance that is reached for so many records, paid by the noise where it is to be."""
    before = certificate.tolerance
    if not certificate.minimises:
        if "clip" in certificate.settings:
            return reclipped(analysis, certificate, cover.records, records)
        more = 2 * (gradient_rounding(analysis, records) - gradient_rounding(analysis, cover.records))
        return scaled(certificate, certificate.sensitivity, more, before, "sensitivity")
    cap = noise_cap(mechanism, certificate)
    check_smoothness(analysis, certificate, cap, records)
    least = least_tolerance(analysis, certificate, linear_cap(certificate, cap), records, margin(cover.counting))
    tolerance = max(before, least)
    if not certificate.pays_for_distance or tolerance == before:
        return replace(certificate, tolerance=tolerance)
    reach = certificate.settings.get("distance_of_answers")
    if reach is None:
        raise DomainError(
            "there are far more records than the nominal number, and this mechanism's noise does not say how it grows with the "
            "distance that a solver leaves; nothing is released. Pass a larger nominal number as `size`."
        )
    return scaled(certificate, reach, 2 * (tolerance - before), tolerance, "distance_of_answers")


def scaled(certificate: Certificate, reach: float, more: float, tolerance: float, name: str) -> Certificate:
    """Return a certificate whose noise, proportional to a sensitivity, is for one that is larger by so much."""
    ratio = (reach + more) / reach * (1 + 1e-12)
    mean = None if certificate.mean_noise is None else certificate.mean_noise * ratio
    louder = replace(certificate, noise_scale=certificate.noise_scale * ratio, mean_noise=mean, tolerance=tolerance)
    if name == "sensitivity":
        return replace(louder, sensitivity=reach * ratio)
    return replace(louder, settings={**louder.settings, name: reach * ratio})
