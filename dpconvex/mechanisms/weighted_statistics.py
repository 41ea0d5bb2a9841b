"""Sufficient statistics of whitened records: the second stage after private whitening, for quadratic losses.

Whitened features ``z = r A x / max(L, ||A x||)`` lie in the same ball, and weights ``u = L / max(L, ||A x||)`` between 0 and 1.
What is released are the moments of z, in which those of a lower degree take u once or twice: the statistics of a weighted loss,
whose minimiser is that of the loss itself where the model holds.  Directions in which records hardly vary are then as long as all
others, beside noise that is round (docs/theory.md, section 18).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.moments import Moments, quadratic_loss
from dpconvex.calculus.weighted_moments import base_of, turned_parameters, weighted
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.sufficient_statistics import RESIDUALS, WEIGHT, SufficientStatistics

Array = NDArray[np.float64]

FIELD = "whitened_field"
# Records that are longer than this part of the usual length, after whitening, are shortened, and weigh less.
PART = 0.7


@dataclass(frozen=True)
class WeightedStatistics(SufficientStatistics):
    """The moments of whitened records; `field` is what was whitened."""

    field: str = ""

    def moments(self, form: LossForm, adjacency: str) -> Moments:
        """Return what is released; how many records there are is no number that weights add up to."""
        loss = quadratic_loss(form)
        return weighted(loss, loss.moments(self.weight, self.residuals, False), self.field)

    def settings(self, form: LossForm) -> dict[str, float]:
        """Return what a certificate says of the options."""
        return super().settings(form) | {FIELD: float(base_of(quadratic_loss(form), self.field))}


def on_whitened(mechanism: SufficientStatistics, form: LossForm, field: str) -> WeightedStatistics:
    """Return the mechanism for whitened records, or refuse losses that are no functions of linear scores of them."""
    d = math.prod(form.template.record.continuous[field].shape)
    probe = np.random.default_rng(0).uniform(-1.0, 1.0, (d, d)) / math.sqrt(d)  # has nothing to do with the coordinates
    turned_parameters(quadratic_loss(form), form.space, field, probe)
    return WeightedStatistics(mechanism.noise, mechanism.weight, mechanism.residuals, field)


def mechanism_of(certificate: Certificate, form: LossForm) -> SufficientStatistics:
    settings = certificate.settings
    options = certificate.noise, settings[WEIGHT], RESIDUALS in settings
    if FIELD not in settings:
        return SufficientStatistics(*options)
    return WeightedStatistics(*options, field=quadratic_loss(form).bases.bases[int(settings[FIELD])].name)


def usual_length(moment: Array, matrix: Array, radius: float, size: int) -> float:
    """Return the length that public numbers lead to expect of a turned record: L is a part of it.

    It must be positive; which it is, is post-processing.
    """
    values, vectors = np.linalg.eigh(moment)
    turned = matrix @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    least = 1e-6 * radius * float(np.linalg.norm(matrix)) / math.sqrt(len(matrix))
    return max(PART * radius * float(np.linalg.norm(turned)) / math.sqrt(size), least)
