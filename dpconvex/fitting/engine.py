"""Exact minimisers and gradients of the data, for mechanisms and baselines. No other file hands records to solvers."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.data.record import require_arrays
from dpconvex.errors import NotConverged
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.rounding import minimiser_norm, quadratic_parts, regularizer_curvature
from dpconvex.optim import backend as backends
from dpconvex.optim.certify import FirstOrder, Warm
from dpconvex.optim.problem import Problem
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.forms import public_part
from dpconvex.util.arrays import Array


@dataclass(eq=False)
class DataEngine:
    """Implement `dpconvex.mechanisms.base.Engine` for a batch of records."""

    analysis: Analysis
    batch: Batch
    size: int
    backend: Any
    people: NDArray[np.int64] | None = None  # the person of each record, if the guarantee has a unit

    def problem(
        self, strong_convexity: float, linear: Array | None = None, added: float = 0.0, smoothing: float = 0.0
    ) -> Problem:
        form, radius = self.analysis.form, 0.0
        smooth = smooth_analysis(self.analysis, smoothing) if smoothing else self.analysis
        if quadratic_parts(form)[2] is not None:  # a ball around 0 that holds the minimiser, by its certificate
            noise, bound = 0.0 if linear is None else float(np.linalg.norm(linear)), smooth.gradient_bound
            radius = minimiser_norm(smooth, strong_convexity, bound, self.size, added, self.batch.size, noise)
        return Problem(
            template=smooth.form.template,
            space=form.space,
            feasible=form.feasible,
            batch=self.batch,
            size=self.size,
            strong_convexity=strong_convexity,
            added=added,
            linear=linear,
            gradient_bound=smooth.gradient_bound,
            hessian_bound=np.inf if smooth.kink is not None else smooth.hessian_bound,
            lengths=form.lengths,
            projector=form.projection,
            public_curvature=regularizer_curvature(form, radius * (1 + 1e-6)),
        )

    def minimise(self, strong_convexity: float, tolerance: float, **parts: Any) -> Array:
        solution = backends.solve(self.problem(strong_convexity, **parts), self.backend, tolerance)
        if not solution.distance_bound <= tolerance:
            raise NotConverged(f"the answer is not within {tolerance:.3g} of the minimiser; nothing is released.")
        return solution.theta

    @cached_property
    def _losses(self) -> BatchedLoss:
        form = self.analysis.form
        return BatchedLoss(form.template, form.space, self.batch)

    def _seen(self, theta: Array) -> Array:
        project = self.analysis.form.projection
        return theta if project is None else project(theta)

    @property
    def records(self) -> int:
        return self.batch.size

    def loss_gradient(self, theta: Array) -> Array:
        # Without a bound on curvature, rounding may change the gradient of a record, but other records must not.
        if self.analysis.kink is not None or not math.isfinite(self.analysis.hessian_bound):
            return self.clipped_gradient(theta, math.inf)
        return self._seen(self._losses.gradient(self._seen(theta)))

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        if self.people is not None and clip < math.inf:
            return self._seen(self._losses.clipped_sums(self._seen(theta), clip, self.people))
        return self._seen(self._losses.clipped_gradient(self._seen(theta), clip, chosen))

    def public_gradient(self, theta: Array) -> Array:
        form = self.analysis.form
        return self.size * public_part(form.template, form.space).value_and_gradient(theta)[1]

    def project(self, theta: Array) -> Array:
        # Post-processing. From far away, rounding could leave the point outside of K; the second projection is from nearby.
        feasible = self.analysis.form.feasible
        return feasible.project(feasible.project(theta)) if feasible.has_projection else feasible.project(theta)


def check_backend(data: Any, solver: Any) -> None:
    """Raise if the backend needs all records at once, but they are in partitions."""
    if type(solver) not in (FirstOrder, Warm):
        require_arrays(f"the backend {type(solver).__name__}", data, "pass arrays, or leave the backend out")
