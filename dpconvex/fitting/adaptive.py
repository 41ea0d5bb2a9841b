"""The release of adaptive steps: records go behind their noise, and what comes out is a function of noisy answers."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpconvex.certificates.certificate import Certificate
from dpconvex.data.batch import Batch
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.fitting.release import Release, functions_of
from dpconvex.mechanisms.adaptive_steps import tells_classes
from dpconvex.mechanisms.noisy_queries import Queries
from dpconvex.mechanisms.recipe import has_nonsmooth_loss
from dpconvex.noise.samplers import NoiseSource
from dpconvex.optim.adaptive_descent import descend, model_of, probe_of, row_units, whole_rows
from dpconvex.optim.class_descent import descend_for_classes
from dpconvex.optim.newton_step import HESSIAN, LEAST, STAYS, NewtonPoint, NewtonStep
from dpconvex.optim.slope_histograms import Public
from dpconvex.optim.vertex_steps import descend_on_vertices
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.own_fields import with_own_fields
from dpconvex.sensitivity.public_terms import pulls
from dpconvex.sums.engine import RecordSums
from dpconvex.sums.exact_rows import ExactRows, on_grid
from dpconvex.sums.exact_sums import slopes_change
from dpconvex.sums.functions_of_records import with_functions
from dpconvex.sums.jacobians import within
from dpconvex.sums.linear_scores import LinearScores, linear_scores
from dpconvex.sums.private_looks import PrivateLooks, VertexLooks
from dpconvex.sums.public_rows import DomainMetric
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

FAR, FLAT = 30.0, 2.0  # Scores at which slopes are no longer than so many times those near 0, or are
# Scores at which curvatures are looked for: some are narrow.
PLACES = (0.0, -1.0, 1.0, *np.linspace(-0.9, 0.9, 10).tolist())
SAMPLES, NUMBERS = 512, 2**22  # Records drawn from the domain for each combination of labels; their numbers at most
NARROW = 1e4  # Curvature next to slopes, where none was found
# Of a loss with nonsmooth points: the width over which it bends, next to where slopes of records settle, to so much of them.
WIDTH, WIDER, SETTLED, KINKS = 0.01, 0.25, 0.1, range(-12, 32)
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
    form, batch = in_own_fields(form, batch)
    level, size, (scores, public) = certificate.settings["level"], certificate.size, known_of(form)
    looks = PrivateLooks(scores, batch, certificate.privacy, Queries(level, source.seeded), people)
    with overflows():
        if start is None:
            table, hessian, _, longer = model_of(looks, {"level": level * math.sqrt(STEPS)}, size, public)
            level *= math.sqrt(1 - STEPS)
        else:
            table = longer = scores.table(form.space.pack(start)) / row_units(scores, looks.constant)
            inverse = np.linalg.inv(whole_rows(looks, level * math.sqrt(MOMENT), EDGE, public)[0].matrix)
            hessian = public.curvature * inverse @ inverse.T
            level *= math.sqrt(1 - MOMENT)
        found = NewtonStep(looks, form, level, max(size, 1.0), public, table, hessian, longer).estimate()
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
    form, batch = in_own_fields(form, batch)
    settings, size, (scores, public) = certificate.settings, certificate.size, known_of(form)
    seen = scores, batch, certificate.privacy, Queries(settings["level"], source.seeded)
    with overflows():
        if "vertices" in settings:
            theta, noise = descend_on_vertices(VertexLooks(*seen), batch, people, form, settings, size, public), None
        else:
            classes = tells_classes(form, scores.fields) and not pulls(form)
            alone = public.is_flat and classes and not scores.is_shared
            take = descend_for_classes if alone else descend
            theta, noise = take(PrivateLooks(*seen, people), form, settings, size, public)
            theta = form.feasible.project(theta)
        if not np.isfinite(theta).all():
            raise ArithmeticError
    known: Any = {"certificate": certificate, **source.spending(certificate.privacy)}
    return Release(form.space.unpack(theta), **known, **functions_of(form.template), noise=noise)


def in_own_fields(form: LossForm, batch: Batch) -> tuple[LossForm, Batch]:
    """Return the form and records in which entrywise functions of a record, such as those that centre it, are fields."""
    own, functions = with_own_fields(form)
    try:
        linear_scores(own)
    except DPConvexError:  # Scores of declared fields were written down before anything was paid
        return form, batch
    domains = {name: own.template.record.continuous[name] for name in functions}
    return own, batch.mapped(with_functions, batch.share((functions, domains))) if functions else batch


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
            scores = within(scores, partial(at, engine, batch, scores=scores), batch.size)
    along = probe_of(scores, 0)
    probe = scores.kinds.T @ along
    slopes_at = partial(at, engine, batch, scores=scores)
    with np.errstate(all="ignore"):
        bent = np.abs(along @ slopes_change(slopes_at, 0 * probe[:, None], probe[:, None], scores.width))
        far = farthest_kink(slopes_at, probe)
        # Bends that most records are far from are kinks, too.
        is_narrow = (
            not record.discrete and np.median(bent) * far < WIDTH * np.abs(slopes_at(far * probe[:, None])).max()
        )
    if has_nonsmooth_loss(form) or (is_narrow and far > 1):
        scores = replace(scores, width=(WIDER if record.discrete else WIDTH) * far)
    steep: dict[float, Array] = {}
    bends, most_bent, least_bent = list[float](), list[float](), list[float]()
    with np.errstate(all="ignore"):
        for place in (0.0, -1.0, 1.0, -FAR, FAR):
            steep[place] = np.linalg.norm(slopes_at(place * probe[:, None]), axis=0)
        for place in PLACES[: 3 if record.discrete else None]:
            bent = along @ slopes_change(slopes_at, place * probe[:, None], probe[:, None], scores.width)
            most_bent.append(np.abs(bent[np.isfinite(bent)]).max(initial=0.0))
            least_bent.append(np.abs(bent).min(initial=math.inf))
            bends.append(float(bent[np.isfinite(bent)].mean()) if np.isfinite(bent).any() else 0.0)
    near = np.concatenate([steep[place] for place in (0.0, -1.0, 1.0)])
    largest = float(near[near < 1e100].max(initial=0.0)) or 1.0
    usual = bends[0] if 0 < bends[0] < 1e100 else 1.0
    is_flat = all((steep[place] <= FLAT * largest).all() for place in (-FAR, FAR))
    is_bent = max(bends[:3]) - min(bends[:3]) > 1e-6 * usual
    most = max(map(np.max, steep.values())) if is_flat else math.inf
    most_bend = math.inf if is_bent and not is_flat else max(most_bent) or NARROW * largest
    vanishes = is_flat and not record.discrete and min(least_bent) <= 1e-9 * max(most_bent)
    short = partial(short_side, engine, batch, scores)
    bounds = float(most), float(most_bend), bool(vanishes)
    return scores, Public(largest, usual, is_bent, is_flat, *bounds, short, DomainMetric.of(batch, scores))


@np.errstate(all="ignore")
def short_side(engine: RecordSums, batch: Batch, scores: LinearScores, place: float) -> float:
    """Return the largest slope at one score on the side where slopes are shorter."""
    slopes = at(engine, batch, place * scores.kinds.T.toarray(), scores)[0]
    return float(min(max(side[side < 1e100].max(initial=0.0), 1e-12) for side in (slopes, -slopes)))


def farthest_kink(slopes_at: Callable[[Any], Any], probe: Array) -> float:
    """Return the scores beyond which slopes of nearly all records of the declared domain hardly change, or 1."""
    ends = [slopes_at(side * 2.0 ** KINKS[-1] * probe[:, None]) for side in (-1, 1)]
    usual = max(float(np.abs(end).mean()) for end in ends)
    for place in 2.0 ** np.array(KINKS):
        near = [slopes_at(side * place * probe[:, None]) for side in (-1, 1)]
        if all(float(np.abs(one - end).mean()) <= SETTLED * usual for one, end in zip(near, ends, strict=True)):
            return float(place)
    return 1.0


def at(engine: RecordSums, batch: Batch, forms: Any, scores: LinearScores) -> Any:
    """Return slopes by the columns at given forms, or the same ones for all records, shape (columns, records)."""
    block, plan, _ = engine._rows(np.arange(batch.size))
    return scores.kinds @ engine._slopes(np.repeat(forms, batch.size // forms.shape[1], axis=1), block, plan)[1]


def fewest_records(form: LossForm, certificate: Certificate, fits: bool) -> int:
    """Return how many records an estimate with its covariance needs: of fewer, all as long, the Hessian is below its noise."""
    count, sides = form.basis.shape[1], 2 if certificate.privacy.adjacency == "replace-one" else 1
    level = certificate.settings["level"] * math.sqrt((1 - (STEPS if fits else MOMENT)) * HESSIAN * (1 - STAYS))
    return math.ceil(LEAST * count * math.sqrt(2 * count * sides) / level)
