"""The release of adaptive steps: records go behind their noise, and what comes out is a function of noisy answers."""

from typing import Any

import numpy as np

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.arrays import Indices
from dpconvex.errors import DomainError
from dpconvex.evaluation.linear_scores import linear_scores
from dpconvex.evaluation.private_looks import PrivateLooks
from dpconvex.language.batch import Batch
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noisy_queries import Queries
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.release import Release, functions_of
from dpconvex.solvers.adaptive_descent import descend


def release_steps(
    form: LossForm, certificate: Certificate, batch: Batch, source: NoiseSource, people: Indices | None
) -> Release:
    """Take the steps that were certified and paid for, and release where they end."""
    queries = Queries(certificate.settings["level"], source.seeded)
    looks = PrivateLooks(linear_scores(form), batch, certificate.privacy, queries, people)
    theta = descend(looks, form, certificate.settings, certificate.size)
    if not np.isfinite(theta).all():
        raise DomainError("the steps overflow; nothing is released. Use other units.")
    known: Any = {"certificate": certificate, **source.spending(certificate.privacy)}
    return Release(form.space.unpack(form.feasible.project(theta)), **known, **functions_of(form.template))
