"""What every private fit does: settle at the door what the data are, and, once that is paid, run what was proved."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.accounting.events import Event
from dpconvex.calculus.analysis import Analysis
from dpconvex.core.plain_data import is_whole
from dpconvex.errors import DomainError, NotPrivate, TemplateError
from dpconvex.evaluation.moment_sums import moment_sums
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.partitions import settled
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Record, check_clip, counted, in_one_place
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.certificate_kinds import StatisticsCertificate
from dpconvex.mechanisms.grid import IntegerNoise, perturb
from dpconvex.mechanisms.private_whitening import Stages, whitened_matrix
from dpconvex.mechanisms.residual_noise import bound_on_count, confirm, for_count
from dpconvex.mechanisms.sufficient_statistics import mechanism_of, usual_length
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget, pay
from dpconvex.release.engine import DataEngine
from dpconvex.release.release import Release, functions_of
from dpconvex.release.statistics import Statistics, fields_of
from dpconvex.release.verify import Method, Proved, analyse, check_solvable, check_template, form_of, sums_of
from dpconvex.release.whitening import Whitening, batch_moment, whitened_batch


class Fit:
    """A call of `solve`, or of what stands on it: options are checked, and data settled, before anything is paid or looked at."""

    def __init__(
        self,
        data: Mapping[str, ArrayLike],
        privacy: Privacy,
        templates: Sequence[Template],
        method: Method,
        backend: Any,
        size: int | None,
        clip: bool,
        budget: Budget | None,
        label: str,
        seed: int | None,
        workers: Any = None,
        record: Record | None = None,
    ) -> None:
        check_privacy("solve", privacy)
        for template in templates:
            check_template(template)
        self.data, self.privacy, self.method = settled(data), privacy, method
        self.size = public_size(templates[0], self.data, privacy, size)
        check_clip(clip)
        self.clip, self.budget, self.label = clip, budget, label
        self.backend = resolved(backend, *templates)
        check_place(self.data, self.backend)
        if workers is not None and not is_whole(workers, 1):
            raise TemplateError(f"workers must be a positive number of fits at a time, not {workers!r}.")
        if workers is not None:
            in_one_place("a fit with workers", data, "leave workers out: partitions are summed where they lie")
        self.workers = workers
        self.source = NoiseSource(seed)
        self.record = templates[0].record if record is None else record
        self.protected = privacy.adjacency == "add-remove"

    def check(self, *fits: Proved) -> None:
        """Refuse, before anything is paid, what would fail whatever the values are."""
        self.record.check_form(self.data, empty=self.protected)
        for fit in fits:
            check_solvable(fit.template, fit.mechanism)
            confirm(fit.certificate)

    def pay(self, event: Event | None = None) -> None:
        pay(self.budget, self.privacy, self.label, event)

    def run(self, fit: Proved, data: Any = None, source: NoiseSource | None = None) -> Release:
        return run(fit, self.data if data is None else data, self.backend, source or self.source, self.clip)


def run(fit: Proved, data: Any, backend: Any, source: NoiseSource, clip: bool = False) -> Release:
    """Do what was proved, once; the promise must have been paid for."""
    stages = fit.stages
    if isinstance(fit.certificate, StatisticsCertificate):
        return released_statistics(fit, data, source, clip).fit()
    batch = valid_records(fit, data, clip)
    if stages is None:
        return perturbed_answer(fit, fit.certificate, batch, backend, source)
    whitening, moment = learnt_whitening(stages, batch, source)
    adapted = stages.adapted(analyse(fit.template, fit.mechanism), whitened_matrix(moment, stages.noise.sigma)[1])
    records = whitened_batch(fit.template.record, batch, whitening)
    release = perturbed_answer(fit, adapted, records, backend, source)
    return replace(release, whitening=whitening, **of_both_stages(fit, release.certificate, source))


def released_statistics(fit: Proved, data: Any, source: NoiseSource, clip: bool) -> Statistics:
    """Sum up, of whitened records if that was proved, and add the noise; the promise must have been paid for."""
    batch, stages = valid_records(fit, data, clip), fit.stages
    if stages is None:
        return noisy_sums(fit, fit.certificate, batch, source)
    whitening, moment = learnt_whitening(stages, batch, source)
    least = usual_length(moment, whitening.matrix, stages.noise.radius, fit.certificate.size)
    whitening = replace(whitening, least=least)
    found = noisy_sums(fit, stages.fit, whitened_batch(fit.template.record, batch, whitening), source)
    return replace(found, whitening=whitening, **of_both_stages(fit, found.certificate, source))


def perturbed_answer(fit: Proved, certificate: Certificate, batch: Batch, backend: Any, source: NoiseSource) -> Release:
    analysis = analyse(fit.template, fit.mechanism)
    certificate, cover = counted_noise(fit.mechanism, analysis, certificate, batch, source)
    engine = DataEngine(analysis, batch, certificate.size, backend)
    theta = fit.mechanism.run(analysis, certificate, engine, source.rng)
    # A set that no point of these data was projected on: what is released is a function of the noisy answer alone.
    theta = analysis.form.feasible.project(perturb(theta, cover, source.seeded))
    return Release(
        parameters=analysis.form.space.unpack(theta),
        certificate=certificate,
        **source.spending(certificate.privacy),
        **functions_of(fit.template),
    )


def noisy_sums(fit: Proved, certificate: Certificate, batch: Batch, source: NoiseSource) -> Statistics:
    form = form_of(fit.template)
    mechanism = mechanism_of(certificate, form)
    certificate, cover = counted_noise(mechanism, sums_of(fit.template), certificate, batch, source)
    moments = mechanism.moments(form, certificate.privacy.adjacency)
    sums = mechanism.perturbed(moment_sums(moments, batch), certificate, source.rng)
    if not np.isfinite(sums).all():
        raise DomainError("the sums over the records overflow; nothing is released. Use other units.")
    return Statistics(
        values=perturb(sums, cover, source.seeded),
        moments=moments,
        fields=fields_of(form.template),
        certificate=certificate,
        **source.spending(certificate.privacy),
        template=form.template,
    )


def counted_noise(
    mechanism: Mechanism, analysis: Analysis, certificate: Certificate, batch: Batch, source: NoiseSource
) -> tuple[Certificate, IntegerNoise]:
    """Return the certificate and the residual noise; where the noise depends on a bound on the records, count them privately."""
    if certificate.cover is not None and certificate.cover.counting:
        bound = bound_on_count(certificate.cover, batch.size, source.apart())
        certificate = for_count(mechanism, analysis, certificate, bound)
    assert certificate.cover is not None
    return certificate, certificate.cover


def valid_records(fit: Proved, data: Any, clip: bool) -> Batch:
    # Where the number of records is protected, a fit on none of them is one like others: that of the noise and the regularizer.
    certificate = fit.certificate
    protected = certificate.privacy.adjacency == "add-remove"
    batch = fit.template.record.validate(data, clip=clip, empty=protected)
    if not protected and batch.size != certificate.size:
        anew = " Partitions know their sizes from when they were made: make them anew for files that were written anew."
        raise DomainError(
            f"there are {batch.size} records, and there were {certificate.size} when the promise was made; nothing is released. "
            f"Data must not change during a fit.{anew if isinstance(batch, PartitionedBatch) else ''}"
        )
    return batch


def learnt_whitening(stages: Stages, batch: Batch, source: NoiseSource) -> tuple[Whitening, Any]:
    """Release a noisy second moment; return it, and the whitening that follows from it."""
    noise = stages.noise
    moment = stages.released(batch_moment(batch, noise), source.apart())
    return Whitening(noise.field, noise.radius, whitened_matrix(moment, noise.sigma)[0]), moment


def of_both_stages(fit: Proved, second: Any, source: NoiseSource) -> dict[str, Any]:
    """Return what a release says of both stages, with the certificate that the second one had."""
    assert fit.stages is not None
    whole = replace(fit.stages.whole(second), advice=fit.certificate.advice)
    return {"certificate": whole, **source.spending(whole.privacy)}


def resolved(backend: Any, *templates: Template) -> Any:
    """Return a backend as an object, so that a mistake in its name, or in `devices`, is found before anything is paid."""
    from dpconvex.evaluation.devices import current
    from dpconvex.solvers import backend as backends

    widths = [
        sum(int(np.prod(domain.shape, dtype=np.int64)) for domain in template.record.continuous.values())
        for template in templates
    ]
    current().check(max(widths, default=0))
    return backends.resolve_backend(backend)


def check_place(data: Any, solver: Any) -> None:
    """Refuse a backend that needs all records at once where they are in partitions."""
    from dpconvex.solvers.first_order import FirstOrder, Warm

    if type(solver) not in (FirstOrder, Warm):
        in_one_place(f"the backend {type(solver).__name__}", data, "pass arrays, or leave the backend out")


def public_size(template: Template, data: Any, privacy: Privacy, size: int | None) -> int:
    """Return the public number of records, or refuse to take it from data that protect it."""
    check_privacy("solve", privacy)
    if size is not None and not is_whole(size, 1):
        raise TemplateError(f"solve: size must be a positive integer, not {size!r}.")
    if privacy.adjacency == "add-remove":
        if size is None:
            raise NotPrivate(
                "under add-remove adjacency the number of records is private, and the regularization scales with it",
                template.regularizer,
                "pass a public nominal number of records as `size`, one that was not counted from these data",
            )
        return size
    records = counted(settled(data))
    if size is not None and size != records:
        raise TemplateError(
            f"solve: size is {size}, but there are {records} records; under replace-one adjacency the number is public "
            "and exact."
        )
    return max(records, 1)
