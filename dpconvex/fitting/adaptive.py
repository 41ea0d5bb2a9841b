"""The release of adaptive steps: records go behind their noise, and what comes out is a function of noisy answers."""

from functools import partial
from typing import Any

import numpy as np

from dpconvex.certificates.certificate import Certificate
from dpconvex.data.batch import Batch
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.expressions.evaluate import STEP
from dpconvex.fitting.release import Release, functions_of
from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.mechanisms.noisy_queries import Queries
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.adaptive_descent import Public, descend, probe_of
from dpconvex.optim.class_descent import descend_for_classes
from dpconvex.optim.vertex_steps import descend_on_vertices
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.engine import RecordSums
from dpconvex.sums.exact_rows import ExactRows, on_grid
from dpconvex.sums.jacobians import within
from dpconvex.sums.linear_scores import LinearScores, linear_scores
from dpconvex.sums.private_looks import PrivateLooks, VertexLooks
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

FAR, FLAT = 30.0, 2.0  # Scores at which slopes are no longer than so many times those near 0, or are
SAMPLES, NUMBERS = (
    512,
    2**22,
)  # Records that are drawn from the domain for each combination of labels, and their numbers at most


@np.errstate(all="ignore")  # warnings of numbers tell about the data
def release_steps(
    form: LossForm, certificate: Certificate, batch: Batch, source: NoiseSource, people: Indices | None
) -> Release:
    """Take the steps that were certified and paid for, and release where they end."""
    settings, size, (scores, public) = certificate.settings, certificate.size, known_of(form)
    seen = scores, batch, certificate.privacy, Queries(settings["level"], source.seeded)
    overflow = DomainError("the steps overflow; nothing is released. Use other units.")
    try:
        if "vertices" in settings:
            theta = descend_on_vertices(VertexLooks(*seen), batch, people, form, settings, size, public)
        else:
            alone = public.is_flat and tells_classes(form) and not scores.is_shared
            take = descend_for_classes if alone else descend
            theta = form.feasible.project(take(PrivateLooks(*seen, people), form, settings, size, public))
    except DPConvexError:
        raise
    except (ArithmeticError, ValueError):  # of noisy answers alone: no record makes a sum of theirs raise
        raise overflow from None
    if not np.isfinite(theta).all():
        raise overflow
    known: Any = {"certificate": certificate, **source.spending(certificate.privacy)}
    return Release(form.space.unpack(theta), **known, **functions_of(form.template))


@once
def known_of(form: LossForm) -> tuple[LinearScores, Public]:
    """Return the scores, and what records of the declared domain say of slopes and curvatures; no data are read."""
    scores = linear_scores(form)
    record = form.template.record
    each = max(min(SAMPLES, NUMBERS // max(len(scores.inside), 1)), 64)
    batch = on_grid(record.sample(each * len(record.combinations), np.random.default_rng(0)), ExactRows.of(scores))
    engine = RecordSums(scores.form, batch)
    with np.errstate(all="ignore"):
        if scores.is_shared:
            scores = within(scores, partial(at, engine, batch, scores=scores))
    along = probe_of(scores, 0)
    probe = scores.kinds.T @ along
    steep: dict[float, Array] = {}
    bends: list[float] = []
    with np.errstate(all="ignore"):
        for place in (0.0, -1.0, 1.0, -FAR, FAR):
            steep[place] = np.linalg.norm(at(engine, batch, place * probe[:, None], scores), axis=0)
        for place in (0.0, -1.0, 1.0):
            bent = along @ at(engine, batch, (place + 1j * STEP) * probe[:, None], scores).imag / STEP
            bends.append(float(bent[np.isfinite(bent)].mean()) if np.isfinite(bent).any() else 0.0)
    near = np.concatenate([steep[place] for place in (0.0, -1.0, 1.0)])
    largest = float(near[near < 1e100].max(initial=0.0)) or 1.0
    usual = bends[0] if 0 < bends[0] < 1e100 else 1.0
    is_flat = all((steep[place] <= FLAT * largest).all() for place in (-FAR, FAR))
    return scores, Public(largest, usual, max(bends) - min(bends) > 1e-6 * usual, is_flat)


def at(engine: RecordSums, batch: Batch, forms: Any, scores: LinearScores) -> Any:
    """Return slopes by the columns at the same scores for all records, shape (columns, records)."""
    block, plan, _ = engine._rows(np.arange(batch.size))
    return scores.kinds @ engine._slopes(np.repeat(forms, batch.size, axis=1), block, plan)[1]
