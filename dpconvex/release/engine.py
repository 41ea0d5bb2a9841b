"""Exact answers from the data, for a mechanism: the only place that hands records to solvers."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.smoothing import smooth_template
from dpconvex.errors import NotConverged
from dpconvex.language.batch import Batch
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.rounding import bend_of, bends, minimiser_norm
from dpconvex.solvers.problem import Problem

if TYPE_CHECKING:
    from dpconvex.evaluation.batch_loss import BatchedLoss

Array = NDArray[np.float64]


class DataEngine:
    """See `dpconvex.mechanisms.base.Engine`."""

    def __init__(self, analysis: Analysis, batch: Batch, size: int, backend: Any) -> None:
        self.analysis = analysis
        self.batch = batch
        self.size = size
        self.backend = backend

    def problem(
        self, strong_convexity: float, linear: Array | None = None, added: float = 0.0, smoothing: float = 0.0
    ) -> Problem:
        """Return the program whose minimiser is asked for."""
        form, radius = self.analysis.form, 0.0
        if bends(form):  # wherever the minimiser can be
            noise, bound = 0.0 if linear is None else float(np.linalg.norm(linear)), self.analysis.gradient_bound
            radius = minimiser_norm(self.analysis, strong_convexity, bound, self.size, added, self.batch.size, noise)
        smooth = smooth_analysis(self.analysis, smoothing) if smoothing else self.analysis
        return Problem(
            template=smooth_template(form.template, smoothing) if smoothing else form.template,
            space=form.space,
            feasible=form.feasible,
            batch=self.batch,
            size=self.size,
            strong_convexity=strong_convexity,
            added=added,
            linear=linear,
            gradient_bound=smooth.gradient_bound,
            hessian_bound=None if smooth.kink is not None else smooth.hessian_bound,
            lengths=form.lengths,
            projector=form.projection,
            bend=bend_of(form, radius * (1 + 1e-6)),
        )

    def minimise(
        self,
        strong_convexity: float,
        tolerance: float,
        linear: Array | None = None,
        added: float = 0.0,
        smoothing: float = 0.0,
    ) -> Array:
        from dpconvex.solvers import backend as backends

        solution = backends.solve(self.problem(strong_convexity, linear, added, smoothing), self.backend, tolerance)
        if not solution.distance_bound <= tolerance:
            raise NotConverged(
                f"the backend certifies its answer only to within {solution.distance_bound:.3g} of the minimiser, and "
                f"{tolerance:.3g} was asked for; nothing is released."
            )
        return solution.theta

    @cached_property
    def _losses(self) -> BatchedLoss:
        from dpconvex.evaluation.batch_loss import batched_loss

        form = self.analysis.form
        return batched_loss(form.template, form.space, self.batch)

    def _seen(self, theta: Array) -> Array:
        """Return what the losses see of parameters."""
        project = self.analysis.form.projection
        return theta if project is None else project(theta)

    @property
    def records(self) -> int:
        return self.batch.size

    def loss_gradient(self, theta: Array) -> Array:
        # Where no bound on the curvature of a loss is known, rounding may decide what a record's gradient is, but no other
        # record does.
        if self.analysis.kink is not None or not math.isfinite(self.analysis.hessian_bound):
            return self.clipped_gradient(theta, math.inf)
        return self._seen(self._losses.gradient(self._seen(theta)))

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        return self._seen(self._losses.clipped_gradient(self._seen(theta), clip, chosen))

    def public_gradient(self, theta: Array) -> Array:
        return self.size * self._losses.regularizer_value_and_gradient(theta)[1]

    def project(self, theta: Array) -> Array:
        # Of a noisy point: post-processing, so how exactly that is done has nothing to hide.
        return self.analysis.form.feasible.project(theta)
