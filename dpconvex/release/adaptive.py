"""The release of adaptive steps: records go behind their noise, and what comes out is a function of noisy answers."""

from typing import Any

import numpy as np

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.arrays import Array, Indices
from dpconvex.core.evaluate import STEP
from dpconvex.core.runtime import once
from dpconvex.errors import DomainError
from dpconvex.evaluation.engine import Engine
from dpconvex.evaluation.linear_scores import linear_scores
from dpconvex.evaluation.private_looks import PrivateLooks
from dpconvex.language.batch import Batch
from dpconvex.language.template import Template
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noisy_queries import Queries
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.release import Release, functions_of
from dpconvex.solvers.adaptive_descent import Public, descend, probe_of

SAMPLES = 512  # Records that are drawn from the declared domain, for each combination of labels


def release_steps(
    form: LossForm, certificate: Certificate, batch: Batch, source: NoiseSource, people: Indices | None
) -> Release:
    """Take the steps that were certified and paid for, and release where they end."""
    queries, scores = Queries(certificate.settings["level"], source.seeded), linear_scores(form)
    looks = PrivateLooks(scores, batch, certificate.privacy, queries, people)
    theta = descend(looks, form, certificate.settings, certificate.size, known_of(form))
    if not np.isfinite(theta).all():
        raise DomainError("the steps overflow; nothing is released. Use other units.")
    known: Any = {"certificate": certificate, **source.spending(certificate.privacy)}
    return Release(form.space.unpack(form.feasible.project(theta)), **known, **functions_of(form.template))


@once
def known_of(form: LossForm) -> Public:
    """Return the largest slope, and the mean curvature, of records drawn from the declared domain; no data are read."""
    template, scores = form.template, linear_scores(form)
    batch = drawn(template)
    engine = Engine(scores.form, batch)
    slopes, bends = np.zeros(0), np.zeros(0)
    probe = scores.kinds.T @ probe_of(scores, 0)
    with np.errstate(all="ignore"):
        for number, plan in enumerate(engine.plans):
            part = slice(number * engine._step, number * engine._step + plan.size)
            block = {name: column[part] for name, column in batch.fields.items()}
            forms = np.zeros((scores.form.forms, plan.size))
            found = scores.kinds @ engine._slopes(forms, block, plan)[1]
            bent = engine._slopes(forms + 1j * STEP * probe[:, None], block, plan)[1].imag / STEP
            slopes = np.append(slopes, np.linalg.norm(found, axis=0))
            bends = np.append(bends, probe @ bent)
    good, steep = bends[np.isfinite(bends) & (bends > 0)], slopes[np.isfinite(slopes)]
    largest = float(steep.max(initial=0.0))
    return Public(largest if 0 < largest < 1e100 else 1.0, float(good.mean()) if len(good) else 1.0)


def drawn(template: Template) -> Batch:
    """Draw records from the declared domain, some for each combination of labels."""
    rng, groups = np.random.default_rng(0), len(template.losses)
    count = SAMPLES * groups
    fields: dict[str, Array] = {name: domain.sample(count, rng) for name, domain in template.record.continuous.items()}
    return Batch(fields, np.repeat(np.arange(groups), SAMPLES))
