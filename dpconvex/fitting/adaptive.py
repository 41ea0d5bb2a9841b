"""Release of adaptive steps, and of estimates with a covariance: both read the records only through noisy queries."""

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
from dpconvex.mechanisms.noisy_queries import QueryNoise
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.adaptive_descent import AdaptiveDescent
from dpconvex.optim.class_descent import take_steps
from dpconvex.optim.newton_step import CHECK, HESSIAN, LEAST_ROOT, NewtonPoint, NewtonStep
from dpconvex.optim.noisy_metrics import row_metric
from dpconvex.optim.public_slopes import public_facts
from dpconvex.optim.slope_histograms import Fit
from dpconvex.optim.vertex_steps import descend_on_vertices
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.own_fields import with_own_fields
from dpconvex.sensitivity.picked_parameters import with_picked_fields
from dpconvex.sums.linear_scores import linear_scores
from dpconvex.sums.monomials import RecordFunctions, with_functions
from dpconvex.sums.private_queries import PrivateQueries, VertexQueries
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

STEPS = 0.25  # Share of the squared level for steps before an estimate with its covariance, if no release is given
MOMENT, EDGE = 0.15, 0.4  # With a release: share of the squared level for a second moment, and the ridge of that moment


@np.errstate(all="ignore")  # warnings of NumPy would reveal data
def estimate_with_covariance(
    form: LossForm,
    certificate: Certificate,
    batch: Batch,
    source: NoiseSource,
    people: Indices | None,
    start: Mapping[str, Array] | None = None,
) -> NewtonPoint:
    """Estimate parameters with the covariance of sampling and of noise; raise `NotConverged` if no normal law is known.

    A Newton step starts at `start`, parameters that were released and paid for, or at the end of adaptive steps. The whole
    level of the certificate, which is one of `AdaptiveSteps`, is spent.
    """
    basis, identified = form.basis, form.identified  # before own fields, which do not say that a record has one level
    form, batch = in_own_fields(form, batch)
    level, (scores, public) = certificate.settings["level"], public_facts(form)
    queries = PrivateQueries(scores, batch, certificate.privacy, QueryNoise(level, source.seeded), people)
    fit = Fit(queries, public, level, certificate.size)
    with overflows():
        if start is None:
            table, hessian, _, longer, *_ = AdaptiveDescent(replace(fit, level=fit.level_of(STEPS))).run()
            left = 1 - STEPS
        else:
            table = longer = scores.table(form.space.pack(start)) / queries.units
            inverse = np.linalg.inv(row_metric(fit, MOMENT, EDGE)[0].matrix)
            hessian = public.curvature * inverse @ inverse.T
            left = 1 - MOMENT
        fit = replace(fit, level=fit.level_of(left), size=max(fit.size, 1.0))
        found = NewtonStep(fit, basis, table, hessian, longer, identified).estimate()
        if not all(np.isfinite(part).all() for part in found):
            raise ArithmeticError
    return found


@contextmanager
def overflows() -> Iterator[None]:
    """Context that raises `DomainError` for noisy answers that overflow; no record can make a sum of records raise."""
    try:
        yield
    except DPConvexError:
        raise
    except (ArithmeticError, ValueError):
        raise DomainError("the steps overflow; nothing is released. Use other units.") from None


@np.errstate(all="ignore")  # warnings of NumPy would reveal data
def release_steps(
    form: LossForm, certificate: Certificate, batch: Batch, source: NoiseSource, people: Indices | None
) -> Release:
    """Take the certified steps, after the charge, and return the release of their last point."""
    template, (form, batch) = form.template, in_own_fields(form, batch)
    settings, size, (scores, public) = certificate.settings, certificate.size, public_facts(form)
    seen = scores, batch, certificate.privacy, QueryNoise(settings["level"], source.seeded)
    with overflows():
        if "vertices" in settings:
            queries = VertexQueries(*seen)
            fit = Fit(queries, public, settings["level"], size, settings.get("rounds"))
            theta, noise = descend_on_vertices(fit, queries, batch, people, form, int(settings["vertices"])), None
        else:
            theta, noise = take_steps(form, settings, size, (*seen[1:], people))
            theta = form.feasible.project(theta)
        if not np.isfinite(theta).all():
            raise ArithmeticError
    known: Any = {"certificate": certificate, **source.spending(certificate.privacy)}
    return Release(form.space.unpack(theta), **known, **functions_of(template), noise=noise)


def in_own_fields(form: LossForm, batch: Batch) -> tuple[LossForm, Batch]:
    """Return form and records with functions of a record as fields, for the centring of features and for levels."""
    own, every = own_form(form)
    for given in every:
        batch = batch.mapped(with_functions, batch.share(given))
    return own, batch


@once
def own_form(form: LossForm) -> tuple[LossForm, tuple[RecordFunctions, ...]]:
    """Return the form with functions of a record as fields, and the functions; of levels if scores would share parameters."""
    every = list[RecordFunctions]()
    for with_fields in (with_own_fields, with_picked_fields):
        picks = with_fields is with_picked_fields
        written = not picks or not form.template.record.discrete or has_own_rows(form)
        if picks and written and not is_coupled(form):
            continue
        own, functions = with_fields(form)
        with suppress(DPConvexError):  # scores of new fields may not be linear; the declared fields remain
            if functions and (not picks or (has_own_rows(own) and (not written or linear_scores(own).shape[1] == 1))):
                form, groups = own, own.made and own.made.groups
                every.append((functions, own.template.record, groups))
    return form, tuple(every)


def is_coupled(form: LossForm) -> bool:
    """Return whether the score of a record reads several columns, as ``x @ w + t * (x @ v)`` does with levels t."""
    scores = linear_scores(form)
    reads = (abs(label.combine @ scores.to_forms.T) for label in scores.form.labels)
    return len(scores.form.labels) > 1 and any(((columns > 0).sum(axis=1) > 1).any() for columns in reads)


def has_own_rows(form: LossForm) -> bool:
    scores = linear_scores(form)
    return not scores.is_shared and scores.shape[0] > 1


def fewest_records(form: LossForm, certificate: Certificate, fits: bool) -> int:
    """Return the smallest number of records for an estimate with covariance; with fewer, noise exceeds the Hessian."""
    count, sides = form.basis.shape[1], 2 if certificate.privacy.adjacency == "replace-one" else 1
    level = certificate.settings["level"] * math.sqrt((1 - (STEPS if fits else MOMENT)) * HESSIAN * (1 - CHECK))
    return math.ceil(LEAST_ROOT * count * math.sqrt(2 * count * sides) / level)
