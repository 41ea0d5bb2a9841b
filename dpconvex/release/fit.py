"""What every private fit does: settle at the door what the data are, and, once that is paid, run what was proved."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.core.arguments import is_whole
from dpconvex.errors import DomainError, NotPrivate, TemplateError
from dpconvex.evaluation.moment_sums import moment_sums
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.partitions import settled
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Checked, Record, check_clip, counted, in_one_place
from dpconvex.language.template import Template
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.certificate_kinds import StatisticsCertificate
from dpconvex.mechanisms.grid import perturb
from dpconvex.mechanisms.private_whitening import whitened_matrix
from dpconvex.mechanisms.residual_noise import bound_on_count, confirm, for_count
from dpconvex.mechanisms.sufficient_statistics import mechanism_of, usual_length
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.engine import DataEngine
from dpconvex.release.release import Release, functions_of
from dpconvex.release.statistics import Statistics, fields_of
from dpconvex.release.verify import Proved, analyse, check_solvable, check_template, form_of, sums_of
from dpconvex.release.whitening import Whitening, batch_moment, whitened_batch


class Door:
    """Data before anything is paid: what they are, how many, what solves, where noise comes from; no value is looked at."""

    def __init__(
        self,
        privacy: Privacy,
        data: Mapping[str, ArrayLike],
        *templates: Template,
        backend: Any = None,
        size: int | None = None,
        clip: bool = False,
        seed: int | None = None,
        record: Record | None = None,
        workers: Any = None,
    ) -> None:
        check_privacy("solve", privacy)
        for template in templates:
            check_template(template)
        self.data = settled(data)
        self.size = public_size(templates[0], self.data, privacy, size)
        check_clip(clip)
        self.clip = clip
        self.backend = resolved(backend, *templates)
        check_place(self.data, self.backend)
        if workers is not None:
            in_one_place("a fit with workers", data, "leave workers out: partitions are summed where they lie")
        self.source = NoiseSource(seed)
        self.record = templates[0].record if record is None else record
        self.protected = privacy.adjacency == "add-remove"

    def check(self, *fits: Proved) -> None:
        """Refuse, before anything is paid, what would fail whatever the values are."""
        self.record.check_form(self.data, empty=self.protected)
        for fit in fits:
            check_solvable(fit.template, fit.mechanism)
            confirm(fit.certificate)

    def run(self, fit: Proved) -> Release:
        return run(fit, self.data, self.backend, self.source, self.clip)


def run(fit: Proved, data: Any, backend: Any, source: NoiseSource, clip: bool = False) -> Release:
    """Do what was proved, once; the promise must have been paid for."""
    if isinstance(fit.certificate, StatisticsCertificate):
        return released_statistics(fit, data, source, clip).fit()
    if fit.stages is None:
        return run_certified(fit, data, backend, source, clip)
    template, batch = fit.template, valid_records(fit, data, clip)
    whitening, moment = learnt_whitening(fit, batch, source)
    adapted = fit.stages.adapted(analyse(template, fit.mechanism), whitened_matrix(moment, fit.stages.noise.sigma)[1])
    records = Checked(template.record, whitened_batch(template.record, batch, whitening), clip)
    release = run_certified(replace(fit, certificate=adapted, stages=None), records, backend, source, clip)
    assert isinstance(release.certificate, Certificate)
    whole = replace(fit.stages.whole(release.certificate), advice=fit.certificate.advice)
    return replace(release, certificate=whole, whitening=whitening, **source.spending(whole.privacy))


def run_certified(fit: Proved, data: Any, backend: Any, source: NoiseSource, clip: bool) -> Release:
    template, certificate, mechanism = fit.template, fit.certificate, fit.mechanism
    assert certificate.cover is not None
    batch = valid_records(fit, data, clip)
    analysis = analyse(template, mechanism)
    if certificate.cover.counting:
        bound = bound_on_count(certificate.cover, batch.size, source.apart())
        certificate = for_count(mechanism, analysis, certificate, bound)
    assert certificate.cover is not None
    engine = DataEngine(analysis, batch, certificate.size, backend)
    theta = mechanism.run(analysis, certificate, engine, source.rng)
    # A set that no point of these data was projected on: what is released is a function of the noisy answer alone.
    theta = analysis.form.feasible.project(perturb(theta, certificate.cover, source.seeded))
    return Release(
        parameters=analysis.form.space.unpack(theta),
        certificate=certificate,
        **source.spending(certificate.privacy),
        **functions_of(template),
    )


def valid_records(fit: Proved, data: Any, clip: bool) -> Batch:
    # Where the number of records is protected, a fit on none of them is one like others: that of the noise and the regularizer.
    certificate = fit.certificate
    batch = fit.template.record.validate(data, clip=clip, empty=certificate.privacy.adjacency == "add-remove")
    if certificate.privacy.adjacency == "replace-one" and batch.size != certificate.size:
        anew = " Partitions know their sizes from when they were made: make them anew for files that were written anew."
        raise DomainError(
            f"there are {batch.size} records, and there were {certificate.size} when the promise was made; nothing is released. "
            f"Data must not change during a fit.{anew if isinstance(batch, PartitionedBatch) else ''}"
        )
    return batch


def learnt_whitening(fit: Proved, batch: Batch, source: NoiseSource) -> tuple[Whitening, Any]:
    """Release a noisy second moment; return it, and the whitening that follows from it."""
    assert fit.stages is not None
    noise = fit.stages.noise
    moment = fit.stages.released(batch_moment(batch, noise), source.apart())
    return Whitening(noise.field, noise.radius, whitened_matrix(moment, noise.sigma)[0]), moment


def released_statistics(
    fit: Proved, data: Mapping[str, ArrayLike], source: NoiseSource, clip: bool = False
) -> Statistics:
    """Sum up, of whitened records if that was proved, and add the noise; the promise must have been paid for."""
    form, batch = form_of(fit.template), valid_records(fit, data, clip)
    if fit.stages is None:
        return noisy_sums(fit, batch, fit.certificate, source)
    whitening, moment = learnt_whitening(fit, batch, source)
    least = usual_length(moment, whitening.matrix, fit.stages.noise.radius, fit.certificate.size)
    whitening = replace(whitening, least=least)
    found = noisy_sums(fit, whitened_batch(form.template.record, batch, whitening), fit.stages.fit, source)
    whole = replace(fit.stages.whole(found.certificate), advice=fit.certificate.advice)
    return replace(found, certificate=whole, whitening=whitening, **source.spending(whole.privacy))


def noisy_sums(fit: Proved, batch: Batch, certificate: Certificate, source: NoiseSource) -> Statistics:
    form = form_of(fit.template)
    assert certificate.cover is not None
    mechanism = mechanism_of(certificate, form)
    if certificate.cover.counting:
        bound = bound_on_count(certificate.cover, batch.size, source.apart())
        certificate = for_count(mechanism, sums_of(fit.template), certificate, bound)
    assert certificate.cover is not None
    moments = mechanism.moments(form, certificate.privacy.adjacency)
    sums = mechanism.perturbed(moment_sums(moments, batch), certificate, source.rng)
    if not np.isfinite(sums).all():
        raise DomainError("the sums over the records overflow; nothing is released. Use other units.")
    return Statistics(
        values=perturb(sums, certificate.cover, source.seeded),
        moments=moments,
        fields=fields_of(form.template),
        certificate=certificate,
        **source.spending(certificate.privacy),
        template=form.template,
    )


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
