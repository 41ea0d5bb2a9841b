"""Statistics of whitened records: a noisy second moment first, then the statistics of what it makes of the records."""

from __future__ import annotations

from dataclasses import replace

from dpconvex.calculus.loss_form import LossForm
from dpconvex.language.batch import Batch
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.private_whitening import Stages, whitened_matrix
from dpconvex.mechanisms.weighted_statistics import usual_length
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.statistics import Statistics, release_statistics
from dpconvex.release.whitened_records import batch_moment, weighted_batch
from dpconvex.release.whitening import Whitening


def release_whitened_statistics(
    form: LossForm, batch: Batch, stages: Stages, certificate: Certificate, source: NoiseSource
) -> Statistics:
    """Run both stages, as their certificate says; the promise must have been paid for."""
    noise = stages.noise
    moment = stages.released(batch_moment(batch, noise), source.apart())
    whitening = Whitening(noise.field, noise.radius, whitened_matrix(moment, noise.sigma)[0])
    whitening = replace(whitening, least=usual_length(moment, whitening.matrix, noise.radius, certificate.size))
    found = release_statistics(form, weighted_batch(form.template.record, batch, whitening), stages.fit, source)
    whole = replace(stages.whole(found.certificate), advice=certificate.advice)
    return replace(found, certificate=whole, whitening=whitening, **source.spending(certificate.privacy))
