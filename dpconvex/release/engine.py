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
from dpconvex.geometry.quadratics import Bend
from dpconvex.language.batch import Batch
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.rounding import bend_of, bends, minimiser_norm
from dpconvex.solvers.problem import Problem

if TYPE_CHECKING:
    from dpconvex.evaluation.batch_loss import BatchedLoss

Array = NDArray[np.float64]


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
        if self.analysis.kink is not None or not math.isfinite(self.analysis.hessian_bound):
            return self.clipped_gradient(theta, math.inf)
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
        clipped = self._losses.clipped_gradient
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
