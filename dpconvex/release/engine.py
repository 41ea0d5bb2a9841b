"""Exact answers from the data: for a mechanism, or without privacy, for comparison.  No other file hands records to solvers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.core.arrays import Array, quietly
from dpconvex.core.discipline import is_convex
from dpconvex.core.parameter_space import Space
from dpconvex.core.plain_data import is_real
from dpconvex.errors import NotConverged, NotPrivate, TemplateError
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.evaluation.devices import current
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.language.batch import Batch
from dpconvex.language.record import in_one_place
from dpconvex.language.template import Template
from dpconvex.mechanisms.output_perturbation import smooth_analysis
from dpconvex.mechanisms.rounding import bend_of, bends, minimiser_norm
from dpconvex.release.release import Release, functions_of
from dpconvex.release.verify import analyse, check_template
from dpconvex.solvers import backend as backends
from dpconvex.solvers.certify import FirstOrder, Warm
from dpconvex.solvers.conic import least
from dpconvex.solvers.problem import Problem


@dataclass(eq=False)
class DataEngine:
    """See `dpconvex.mechanisms.base.Engine`."""

    analysis: Analysis
    batch: Batch
    size: int
    backend: Any

    def problem(
        self, strong_convexity: float, linear: Array | None = None, added: float = 0.0, smoothing: float = 0.0
    ) -> Problem:
        form, radius = self.analysis.form, 0.0
        smooth = smooth_analysis(self.analysis, smoothing) if smoothing else self.analysis
        if bends(form):  # wherever the minimiser can be, which is no farther than its certificate says
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
        solution = backends.solve(self.problem(strong_convexity, linear, added, smoothing), self.backend, tolerance)
        if not solution.distance_bound <= tolerance:
            said = f"to within {solution.distance_bound:.3g} of the minimiser, not {tolerance:.3g}"
            raise NotConverged(f"the backend certifies its answer only {said}; nothing is released.")
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
        # Where no bound on a loss's curvature is known, rounding may decide a record's gradient, but no other record does.
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


def resolved(backend: Any, *templates: Template) -> Any:
    """Return a backend as an object, so that a mistake in its name, or in `devices`, is found before anything is paid."""
    widths = [sum(math.prod(domain.shape) for domain in t.record.continuous.values()) for t in templates]
    current().check(max(widths, default=0))
    return backends.resolve_backend(backend)


def check_place(data: Any, solver: Any) -> None:
    """Refuse a backend that needs all records at once where they are in partitions."""
    if type(solver) not in (FirstOrder, Warm):
        in_one_place(f"the backend {type(solver).__name__}", data, "pass arrays, or leave the backend out")


# Without privacy


@dataclass(frozen=True, eq=False, repr=False)
class Baseline(Release):
    """A fit without privacy: how far from the minimiser it is at most, and its mean objective above the least, if known."""

    distance: float = np.inf
    gap: float | None = None


@quietly
def minimize(
    template: Template,
    data: Mapping[str, ArrayLike],
    backend: Any = None,
    *,
    clip: bool = False,
    tolerance: float = 1e-6,
) -> Baseline:
    """Fit a template without privacy, for comparison; the result says so, and how accurate it is.

    Smooth, strongly convex objectives are minimised to within the tolerance, which is proved.  Everything else that CVXPY can
    solve goes to a conic solver, whose duality gap tells how far the answer can be off.

    Parameters
    ----------
    template, data, clip
        As for `solve`.
    backend : str or object, optional
        For objectives that are smooth and strongly convex.
    tolerance : float
        Largest distance from the exact minimiser, where that is proved.

    Returns
    -------
    Release
        Not private; its `status` says how accurate it is.  `distance` and `gap` bound how far it is from the minimiser, and its
        mean objective above the least one.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("hinge_svm", features=1)  # its loss has a kink
    >>> fit = dp.minimize(learner, {"x": [[1.0], [-0.5]], "y": [1, -1]})
    >>> fit["w"].round(3), fit.gap < 1e-9
    (array([2.]), True)
    """
    if not (is_real(tolerance) and 0 < tolerance < 1e300):
        raise TemplateError(f"minimize: tolerance must be positive and finite, not {tolerance!r}.")
    check_template(template)
    chosen, analysis, modulus = resolved(backend), analysed(template), 0.0
    batch = template.record.validate(data, clip=clip)
    space = Space(template.variables)
    feasible = FeasibleSet(space, template.constraints)
    if analysis is not None:
        space, feasible, modulus = analysis.form.space, analysis.form.feasible, batch.size * analysis.modulus
    theta, distance, gap, said = None, tolerance, None, ["no noise was added"]
    # First-order methods can prove a distance where the program can be run, without kinks, and has one minimiser.
    if analysis is not None and modulus > 0 and analysis.kink is None and feasible.obstacle is None:
        try:
            theta = DataEngine(analysis, batch, batch.size, chosen).minimise(modulus, tolerance)
        except NotConverged:
            if backend is not None:
                raise
    if theta is None:
        in_one_place("the conic solver that this template needs", data)
        anything = modulus or np.finfo(float).tiny  # of which a conic solver makes no use
        theta, total = least(Problem(template, space, feasible, batch, size=batch.size, strong_convexity=anything))
        distance, gap = float(np.sqrt(2 * total / modulus)) if modulus > 0 else np.inf, total / batch.size
        said.append(f"its mean objective is at most {gap:.2g} above the least (duality gap)")
    if np.isfinite(distance):
        said.append(f"it is within {distance:.2g} of the minimiser")
    proof: Any = {"not_private_because": "; ".join(said), "distance": distance, "gap": gap}
    return Baseline(space.unpack(theta), **proof, **functions_of(template))


def analysed(template: Template) -> Analysis | None:
    """Return the constants of a template; None where it is convex and no rule bounds them, which a baseline does not need."""
    try:
        return analyse(template)
    except NotPrivate:
        if not (all(map(is_convex, (*template.losses, template.regularizer))) and template.losses[0].variables):
            raise
        return None
