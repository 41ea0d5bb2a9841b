"""The private fit.

Data enter here and nowhere else, after the certificate is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.smoothing import smooth_template
from dpconvex.core.arguments import is_whole
from dpconvex.errors import DomainError, NotConverged, NotPrivate, TemplateError
from dpconvex.geometry.quadratics import Bend
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.partitions import settled
from dpconvex.language.privacy import Privacy, check_privacy
from dpconvex.language.record import Checked, check_clip, counted, in_one_place
from dpconvex.language.template import Template
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.grid import perturb
from dpconvex.mechanisms.noisy_count import bound_on_count, for_count
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.private_whitening import Stages, whitened_matrix
from dpconvex.mechanisms.recipe import Whitened
from dpconvex.mechanisms.regularizer_curvature import bend_of, bends
from dpconvex.mechanisms.residual_noise import Cover, confirm
from dpconvex.mechanisms.rounding import minimiser_norm
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.budget import Budget, pay
from dpconvex.release.release import Release
from dpconvex.release.statistics import release_statistics
from dpconvex.release.verify import analyse, check_solvable, form_of, proved
from dpconvex.release.whitened_records import batch_moment, whitened_batch
from dpconvex.release.whitened_statistics import release_whitened_statistics
from dpconvex.release.whitening import Whitening
from dpconvex.solvers.problem import Problem

if TYPE_CHECKING:
    from dpconvex.evaluation.batch_loss import BatchedLoss

Array = NDArray[np.float64]


def solve(
    template: Template,
    data: Mapping[str, ArrayLike],
    privacy: Privacy,
    mechanism: Mechanism | None = None,
    backend: Any = None,
    *,
    size: int | None = None,
    clip: bool = False,
    budget: Budget | None = None,
    label: str = "solve",
    seed: int | None = None,
    cover: Cover | None = None,
    whitening: Whitened = None,
) -> Release:
    """Fit a template privately.

    Parameters
    ----------
    template : Template
    data : mapping of str to array_like
        One entry per field of the record.
    privacy : Privacy
        The promise to be kept.
    mechanism : Mechanism, optional
        By default the same as `verify`.
    backend : str or object, optional
        How to solve: "conic", "first-order", or a configured backend.
    size : int, optional
        Public number of records.  Under replace-one it is the number of records; under add-remove it must be given,
        because the number of records is itself protected.
    clip : bool
        Project records onto their declared domain instead of raising.
    budget : Budget, optional
        A ledger that the cost is recorded in before the data are read.  A fit that fails is still paid for.
    label : str
        Name of the spend in the ledger.
    seed : int, optional
        For tests.  The release then says that it is not private.
    cover : Cover, optional
        How the distance between the computed and the exact answer is covered; as for `verify`.
    whitening : PrivateWhitening, bool or "auto", optional
        A first stage, from a share of the same promise; as for `verify`.  The parameters are then those for whitened
        records, and the release predicts from original ones.

    Returns
    -------
    Release
        The answer on a fixed grid, with the residual noise, projected on K (docs/release.md).

    Raises
    ------
    NotPrivate
        If there is no proof; no data are read.
    DomainError
        If a record is outside its declared domain.
    NotConverged
        If the answer could not be certified to be close enough to the minimiser; nothing is released.
    BudgetExceeded
        If the ledger has not enough left.
    """
    data = settled(data)
    public = public_size(template, data, privacy, size)
    certificate, chosen, stages = proved(template, privacy, public, mechanism, cover, whitening)
    check_solvable(template, chosen)
    check_clip(clip)
    template.record.check_form(data, empty=privacy.adjacency == "add-remove")
    source = NoiseSource(seed)
    solver = resolved(backend, template)
    check_place(data, solver)
    confirm(certificate)
    pay(budget, privacy, label, certificate.event)
    if stages is not None:
        return run_whitened(template, data, certificate, stages, chosen, solver, source, clip=clip)
    return run_certified(template, data, certificate, chosen, solver, source, clip=clip)


def run_certified(
    template: Template,
    data: Mapping[str, ArrayLike],
    certificate: Certificate,
    mechanism: Mechanism,
    backend: Any,
    source: NoiseSource,
    *,
    clip: bool = False,
) -> Release:
    """Run a mechanism once, as its certificate says; the promise must have been paid for."""
    assert certificate.cover is not None
    # Where the number of records is protected, a fit on none of them is one like others: that of the noise and the regularizer.
    batch = template.record.validate(data, clip=clip, empty=certificate.privacy.adjacency == "add-remove")
    if certificate.privacy.adjacency == "replace-one" and batch.size != certificate.size:
        anew = " Partitions know their sizes from when they were made: make them anew for files that were written anew."
        raise DomainError(
            f"there are {batch.size} records, and there were {certificate.size} when the promise was made; nothing is released. "
            f"Data must not change during a fit.{anew if isinstance(batch, PartitionedBatch) else ''}"
        )
    if certificate.perturbed == "statistics":
        return release_statistics(form_of(template), batch, certificate, source).fit()
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
        source=template.source,
        predictor=template.predict,
        decision=template.decision,
        probabilities=template.probabilities,
    )


def run_whitened(
    template: Template,
    data: Mapping[str, ArrayLike],
    certificate: Certificate,
    stages: Stages,
    mechanism: Mechanism,
    backend: Any,
    source: NoiseSource,
    *,
    clip: bool = False,
) -> Release:
    """Release a noisy second moment, whiten the records by it, and run a mechanism on these; the promise is paid for."""
    noise = stages.noise
    batch = template.record.validate(data, clip=clip, empty=certificate.privacy.adjacency == "add-remove")
    if stages.fit.perturbed == "statistics":
        return release_whitened_statistics(form_of(template), batch, stages, certificate, source).fit()
    moment = stages.released(batch_moment(batch, noise), source.apart())
    matrix, directions = whitened_matrix(moment, noise.sigma)
    whitening = Whitening(noise.field, noise.radius, matrix)
    fit = stages.adapted(analyse(template, mechanism), directions)
    records = Checked.made(template.record, whitened_batch(template.record, batch, whitening), clip)
    release = run_certified(template, records, fit, mechanism, backend, source, clip=clip)
    assert isinstance(release.certificate, Certificate)
    whole = replace(stages.whole(release.certificate), advice=certificate.advice)
    return replace(release, certificate=whole, whitening=whitening, **source.spending(certificate.privacy))


class DataEngine:
    """Exact answers from the data, for a mechanism."""

    def __init__(self, analysis: Analysis, batch: Batch, size: int, backend: Any) -> None:
        self.analysis = analysis
        self.batch = batch
        self.size = size
        self.backend = backend
        self.feasible = analysis.form.feasible

    def _problem(self, strong_convexity: float, linear: Array | None, added: float, smoothing: float = 0.0) -> Problem:
        form = self.analysis.form
        smooth = smooth_analysis(self.analysis, smoothing) if smoothing else self.analysis
        return Problem(
            template=smooth_template(form.template, smoothing) if smoothing else form.template,
            space=form.space,
            feasible=self.feasible,
            batch=self.batch,
            size=self.size,
            strong_convexity=strong_convexity,
            added=added,
            linear=linear,
            gradient_bound=smooth.gradient_bound,
            hessian_bound=None if smooth.kink is not None else smooth.hessian_bound,
            lengths=form.lengths,
            projector=form.projection,
            bend=self._bend(strong_convexity, linear, added),
        )

    def _bend(self, strong_convexity: float, linear: Array | None, added: float) -> Bend:
        """Bound the curvature of the regularizer wherever the minimiser can be."""
        form, noise = self.analysis.form, 0.0 if linear is None else float(np.linalg.norm(linear))
        radius, bound = 0.0, self.analysis.gradient_bound
        if bends(form):
            radius = minimiser_norm(self.analysis, strong_convexity, bound, self.size, added, self.batch.size, noise)
        return bend_of(form, radius * (1 + 1e-6))

    @cached_property
    def _plain(self) -> Problem:
        return self._problem(1.0, None, 0.0)

    def minimise(
        self,
        strong_convexity: float,
        tolerance: float,
        linear: Array | None = None,
        added: float = 0.0,
        smoothing: float = 0.0,
    ) -> Array:
        """Return a point within `tolerance` of the minimiser, shape (dim,); see `Engine`."""
        from dpconvex.solvers import backend as backends

        problem = self._problem(strong_convexity, linear, added, smoothing)
        solution = backends.solve(problem, self.backend, tolerance)
        if not solution.distance_bound <= tolerance:
            raise NotConverged(
                f"the backend certifies its answer only to within {solution.distance_bound:.3g} of the minimiser, and "
                f"{tolerance:.3g} was asked for; nothing is released."
            )
        return solution.theta

    def loss_gradient(self, theta: Array) -> Array:
        """Return the gradient of the sum of losses, shape (dim,).

        Where no bound on the curvature of a loss is known, rounding may decide what a record's gradient is, but no other record
        does.
        """
        from dpconvex.solvers.elsewhere import Elsewhere

        if self.analysis.kink is not None or not math.isfinite(self.analysis.hessian_bound):
            return self.clipped_gradient(theta, math.inf)
        if isinstance(self.backend, Elsewhere):
            return self.backend.loss_gradient(self._plain, theta)
        return self._plain.loss_gradient(theta)

    @cached_property
    def _losses(self) -> BatchedLoss:
        from dpconvex.evaluation.batch_loss import batched_loss

        form = self.analysis.form
        return batched_loss(form.template, form.space, self.batch)

    @property
    def records(self) -> int:
        return self.batch.size

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Return the sum of the records' gradients, each scaled to a norm of at most `clip`, shape (dim,)."""
        from dpconvex.solvers.elsewhere import Elsewhere

        clipped = self._losses.clipped_gradient
        if isinstance(self.backend, Elsewhere):
            clipped = partial(self.backend.clipped_gradient, self._plain)
        project = self.analysis.form.projection
        if project is None:
            return clipped(theta, clip, chosen)
        return project(clipped(project(theta), clip, chosen))

    def public_gradient(self, theta: Array) -> Array:
        """Return the gradient of size times the regularizer, shape (dim,)."""
        return self.size * self._losses.regularizer_value_and_gradient(theta)[1]

    def project(self, theta: Array) -> Array:
        """Project a noisy point on the feasible set K: post-processing, so how exactly that is done has nothing to hide."""
        return self.feasible.project(theta)


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


def public_size(template: Template, data: Mapping[str, ArrayLike], privacy: Privacy, size: int | None) -> int:
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
