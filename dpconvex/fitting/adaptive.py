"""The release of adaptive steps: records go behind their noise, and what comes out is a function of noisy answers."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from dpconvex.certificates.certificate import Certificate
from dpconvex.data.batch import Batch
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.fitting.release import Release, functions_of
from dpconvex.mechanisms.noisy_queries import Queries
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.adaptive_descent import model_of
from dpconvex.optim.class_descent import take_steps
from dpconvex.optim.newton_step import HESSIAN, LEAST, STAYS, NewtonPoint, NewtonStep
from dpconvex.optim.noisy_metrics import whole_rows
from dpconvex.optim.public_slopes import known_of
from dpconvex.optim.slope_histograms import Fit
from dpconvex.optim.vertex_steps import descend_on_vertices
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.own_fields import with_own_fields
from dpconvex.sensitivity.picked_parameters import with_picked_fields
from dpconvex.sums.linear_scores import linear_scores
from dpconvex.sums.monomials import Made, with_functions
from dpconvex.sums.private_looks import PrivateLooks, VertexLooks
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

STEPS = 0.25  # Of the squared level, of the steps before an estimate with its covariance, if these are to be taken
MOMENT, EDGE = 0.15, 0.4  # ... and of a second moment where a release says where they end, with its ridge


@np.errstate(all="ignore")  # warnings of numbers tell about the data
def estimate_with_covariance(
    form: LossForm,
    certificate: Certificate,
    batch: Batch,
    source: NoiseSource,
    people: Indices | None,
    start: Mapping[str, Array] | None = None,
) -> NewtonPoint:
    """Estimate parameters with the covariance of sampling and of noise; raise `NotConverged` where no normal law is known.

    A Newton step is taken from `start`, released parameters that were paid for, or after steps.  All of the level of the
    certificate, which is one of `AdaptiveSteps`, is spent.
    """
    basis, identified = form.basis, form.identified  # know that a record has one level: scores of own fields forget it
    form, batch = in_own_fields(form, batch)
    level, (scores, public) = certificate.settings["level"], known_of(form)
    looks = PrivateLooks(scores, batch, certificate.privacy, Queries(level, source.seeded), people)
    fit = Fit(looks, public, level, certificate.size)
    with overflows():
        if start is None:
            table, hessian, _, longer, *_ = model_of(replace(fit, level=fit.level_of(STEPS)))
            left = 1 - STEPS
        else:
            table = longer = scores.table(form.space.pack(start)) / looks.units
            inverse = np.linalg.inv(whole_rows(fit, MOMENT, EDGE)[0].matrix)
            hessian = public.curvature * inverse @ inverse.T
            left = 1 - MOMENT
        fit = replace(fit, level=fit.level_of(left), size=max(fit.size, 1.0))
        found = NewtonStep(fit, basis, table, hessian, longer, identified).estimate()
        if not all(np.isfinite(part).all() for part in found):
            raise ArithmeticError
    return found


@contextmanager
def overflows() -> Iterator[None]:
    """Raise `DomainError` where noisy answers are no numbers to compute with: no record makes a sum of theirs raise."""
    try:
        yield
    except DPConvexError:
        raise
    except (ArithmeticError, ValueError):
        raise DomainError("the steps overflow; nothing is released. Use other units.") from None


@np.errstate(all="ignore")  # warnings of numbers tell about the data
def release_steps(
    form: LossForm, certificate: Certificate, batch: Batch, source: NoiseSource, people: Indices | None
) -> Release:
    """Take the steps that were certified and paid for, and release where they end."""
    template, (form, batch) = form.template, in_own_fields(form, batch)
    settings, size, (scores, public) = certificate.settings, certificate.size, known_of(form)
    seen = scores, batch, certificate.privacy, Queries(settings["level"], source.seeded)
    with overflows():
        if "vertices" in settings:
            looks = VertexLooks(*seen)
            fit = Fit(looks, public, settings["level"], size, settings.get("rounds"))
            theta, noise = descend_on_vertices(fit, looks, batch, people, form, int(settings["vertices"])), None
        else:
            theta, noise = take_steps(form, settings, size, (*seen[1:], people))
            theta = form.feasible.project(theta)
        if not np.isfinite(theta).all():
            raise ArithmeticError
    known: Any = {"certificate": certificate, **source.spending(certificate.privacy)}
    return Release(form.space.unpack(theta), **known, **functions_of(template), noise=noise)


def in_own_fields(form: LossForm, batch: Batch) -> tuple[LossForm, Batch]:
    """Return the form and records in which functions of a record are fields: those that centre it, and those of its levels."""
    own, every = own_form(form)
    for given in every:
        batch = batch.mapped(with_functions, batch.share(given))
    return own, batch


@once
def own_form(form: LossForm) -> tuple[LossForm, tuple[Made, ...]]:
    """Return the form in which functions of a record are fields, and these; of levels, where scores would share parameters."""
    every = list[Made]()
    for with_fields in (with_own_fields, with_picked_fields):
        picks = with_fields is with_picked_fields
        written = not picks or not form.template.record.discrete or has_own_rows(form)
        if picks and written and not is_coupled(form):
            continue
        own, functions = with_fields(form)
        with suppress(DPConvexError):  # Scores of declared fields are written down, whatever others are
            if functions and (not picks or (has_own_rows(own) and (not written or linear_scores(own).shape[1] == 1))):
                form, groups = own, own.made and own.made.groups
                every.append((functions, own.template.record, groups))
    return form, tuple(every)


def is_coupled(form: LossForm) -> bool:
    """Say whether one record's score reads several columns, as ``x @ w + t * (x @ v)`` does with levels t."""
    scores = linear_scores(form)
    reads = (abs(label.combine @ scores.kinds.T) for label in scores.form.labels)
    return len(scores.form.labels) > 1 and any(((columns > 0).sum(axis=1) > 1).any() for columns in reads)


def has_own_rows(form: LossForm) -> bool:
    scores = linear_scores(form)
    return not scores.is_shared and scores.shape[0] > 1


def told_share(form: LossForm) -> float:
    """Return the share of records that tell, next to a median: 2 min(q, 1 - q) of a quantile q, and 1 of other losses."""
    public = known_of(own_form(form)[0])[1]
    if not public.vanishes:  # Of links, the shorter side says how all records slope
        return 1.0
    down, up = (np.ravel(side) for side in public.longest)  # of one score, or of each
    least, both = np.minimum(down, up), down + up
    known = (least > 0) & np.isfinite(both)
    return float(np.mean(np.where(known, 2 * least, 1.0) / np.where(known, both, 1.0)))


def fewest_records(form: LossForm, certificate: Certificate, fits: bool) -> int:
    """Return how many records an estimate with its covariance needs: of fewer, all as long, the Hessian is below its noise."""
    count, sides = form.basis.shape[1], 2 if certificate.privacy.adjacency == "replace-one" else 1
    level = certificate.settings["level"] * math.sqrt((1 - (STEPS if fits else MOMENT)) * HESSIAN * (1 - STAYS))
    return math.ceil(LEAST * count * math.sqrt(2 * count * sides) / level)
