"""The perturbed program in sum form, which a backend solves, and certified distances of points from its minimiser.

    F(theta) = sum_i loss_i(theta) + size * regularizer(theta) + (added/2) ||theta||^2 + <linear, theta>,   theta in K,

with everything that privacy needs already fixed: a backend sees the drawn noise as the vector `linear`.  Methods see F = f +
h: h is the indicator of K and the kinks of the regularizer that have a proximal map together with it.  Distances are
recomputed from the problem, never taken from a solver (docs/theory.md, section 13).
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.errors import TemplateError
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.parameter_space import Space
from dpconvex.model.template import Template
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.kinks import Kinks, split_kinks
from dpconvex.sets.quadratics import CurvatureBounds, Quadratic, SmoothExpression
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.forms import public_part
from dpconvex.util.arrays import Array, frozen
from dpconvex.util.summation import SumLengths, public_norms


@dataclass(frozen=True, eq=False)
class Problem:
    """A perturbed program in sum form.

    With a `projector` on the sensitive subspace, which acts on the last axis of an array of shape (..., dim), the losses see the
    projected parameters; the regularizer, the quadratic and the noise see all of them.
    """

    template: Template
    space: Space
    feasible: FeasibleSet  # the set K
    batch: Batch
    size: float  # the public number of records that scales the regularizer; under add-remove it may differ from the batch's
    strong_convexity: float  # modulus of F (sum form), `added` included; positive
    added: float = 0.0  # the modulus of the quadratic that a mechanism adds
    linear: Any = None  # the drawn noise b, shape (dim,)
    gradient_bound: float = 0.0  # bound on the norm of one record's gradient, which bounds rounding errors
    hessian_bound: float = np.inf  # bound on the largest eigenvalue of the Hessian of one record's loss on K, if proved
    lengths: SumLengths | None = None  # lengths of the sums in the gradient; long ones are assumed by default
    projector: Callable[[Array], Array] | None = field(default=None, repr=False)
    relative: bool = False  # whether tolerances are fractions of the answer's length, if that is above 1
    public_curvature: CurvatureBounds = field(default_factory=CurvatureBounds)  # of the regularizer, if known

    def __post_init__(self) -> None:
        linear = np.zeros(self.space.dim) if self.linear is None else np.array(self.linear, dtype=float)
        if linear.shape != (self.space.dim,) or not np.isfinite(linear).all():
            raise TemplateError(f"Problem: linear must be {self.space.dim} finite numbers, got shape {linear.shape}.")
        object.__setattr__(self, "linear", frozen(linear))

    def copied(self) -> "Problem":
        """Return a copy that shares no writable memory with this problem."""
        fields = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}
        # A conic program of K cannot be copied once it exists: make K anew from its constraints.
        parts = deepcopy({**fields, "feasible": tuple(self.feasible.constraints)})
        return Problem(**{**parts, "feasible": FeasibleSet(parts["space"], parts["feasible"])})

    @cached_property
    def loss(self) -> BatchedLoss:
        return BatchedLoss(self.template, self.space, self.batch)

    @property
    def smooth_part(self) -> Expression:
        return split_kinks(self.feasible, self.template.regularizer)[0]

    @property
    def kinks(self) -> Kinks:
        return split_kinks(self.feasible, self.template.regularizer)[1]

    def public(self, part: Expression | None = None) -> SmoothExpression | Quadratic:
        return public_part(self.template, self.space, part)

    def value(self, theta: Array) -> float:
        """Return F at a point, without checking that the point is in K."""
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta: Array, smooth: bool = False) -> tuple[float, Array]:
        """Return F and its gradient in one pass over the records; with `smooth`, without the kinks of the regularizer."""
        value, gradient = self.loss.value_and_gradient(self.seen(theta))
        regular, slope = self.public(self.smooth_part if smooth else None).value_and_gradient(theta)
        total = value + self.size * regular + 0.5 * self.added * float(theta @ theta) + float(self.linear @ theta)
        return total, self.seen(gradient) + self.size * slope + self.added * theta + self.linear

    def distance_allowed(self, tolerance: float, theta: Array) -> float:
        return tolerance * (max(1.0, float(np.linalg.norm(theta))) if self.relative else 1.0)

    def reached(self, found: "Solution | Iterate", tolerance: float) -> bool:
        return found.distance_bound <= self.distance_allowed(tolerance, found.theta)

    def seen(self, theta: Array) -> Array:
        return theta if self.projector is None else self.projector(theta)

    def hessian(self, theta: Array, records: int | None = None) -> Array:
        """Return the symmetrised Hessian of F without kinks, shape (dim, dim); losses from about `records` records, if given."""
        losses = self.loss.hessian(self.seen(theta), self.batch.size if records is None else records)
        public = self.size * self.public(self.smooth_part).hessian_at(theta).toarray()
        matrix = self.seen(self.seen(losses).T) + public + self.added * np.eye(self.space.dim)
        return np.asarray(matrix + matrix.T) / 2

    @cached_property
    def is_smooth(self) -> bool:
        """Whether h is zero: K is the whole space and the regularizer has no kinks in h."""
        return self.feasible.is_space and not self.kinks.terms

    @cached_property
    def curvature(self) -> float:
        """The proved Lipschitz constant of the gradient of f where `public_curvature` holds; infinite without a proof."""
        if not np.isfinite(self.hessian_bound + self.public_curvature.rest):
            return np.inf
        whole = self.batch.size * self.hessian_bound + self.stiffness + self.added
        return max(whole, self.strong_convexity) * (1 + 1e-9)

    def curvature_at(self, theta: Array) -> float:
        """Return the Lipschitz constant of the gradient of f on the segment from a point of K to the minimiser."""
        return self.curvature if float(np.linalg.norm(theta)) <= self.public_curvature.radius else np.inf

    def balanced(self, theta: Array) -> float:
        """Return the square root of L_f mu, infinite if L_f is not known."""
        return float(np.sqrt(self.curvature_at(theta) * self.strong_convexity))

    def smooth(self, theta: Array) -> tuple[float, Array]:
        """Return value and gradient of f; infinity and NaN where these are too large to compute with."""
        value, gradient = self.value_and_gradient(theta, smooth=True)
        if not (np.isfinite(value) and np.abs(gradient).max(initial=0.0) < 1e150):
            return np.inf, np.full(self.space.dim, np.nan)
        return value, gradient

    def curvature_ahead(self, theta: Array, gradient: Array) -> float:
        """Estimate the Lipschitz constant of the gradient of f from a short step downhill; at least mu."""
        mu, norm = self.strong_convexity, float(np.linalg.norm(gradient))
        if norm == 0.0 or not np.isfinite(norm):
            return mu
        length = 1e-3 * max(1.0, float(np.linalg.norm(theta)))
        change = float(np.linalg.norm(self.smooth(theta - length / norm * gradient)[1] - gradient)) / length
        return max(change, mu) if np.isfinite(change) else mu

    def proximal(self, theta: Array, step: float) -> Array:
        return self.feasible.project(self.kinks.proximal(theta, step * self.size))

    def proximal_error(self, theta: Array, gradient: Array, lipschitz: float) -> float:
        start, step = theta - gradient / lipschitz, self.size / lipschitz
        shrunk = float(np.linalg.norm(self.kinks.proximal(start, step)))
        return self.feasible.error(shrunk) + self.kinks.error(float(np.linalg.norm(start)), step)

    def gradient_error(self, theta: Array, gradient: Array) -> float:
        """Bound how far a computed gradient of f can be from the exact one, from rounding (docs/release.md, section 5)."""
        noise, radius, whole = (float(np.linalg.norm(vector)) for vector in (self.linear, theta, gradient))
        data = self.batch.size * self.gradient_bound
        public = public_norms(data, noise, self.added * radius, whole, self.stiffness * radius)
        bend = self.hessian_bound if np.isfinite(self.hessian_bound) else 0.0
        return self.sum_lengths.gradient_error(self.batch.size, self.gradient_bound, bend, radius, public)

    @cached_property
    def stiffness(self) -> float:
        """The bound on absolute values that the regularizer's gradient sums; its strong convexity if none is known."""
        known = self.size * (self.public_curvature.quadratic + self.public_curvature.rest)
        return known if np.isfinite(known) else self.strong_convexity

    @cached_property
    def sum_lengths(self) -> SumLengths:
        columns = () if self.lengths else self.batch.fields.values()  # partitions show no columns
        scalars = sum(math.prod(column.shape[1:]) for column in columns)
        return self.lengths or SumLengths(scalars * (scalars + 3) // 2, max(self.space.dim, 1), self.space.dim)


@dataclass(frozen=True, eq=False)
class Solution:
    """A point of K with a proved bound on its distance from the exact minimiser."""

    theta: Array
    distance_bound: float
    # Passes over the records, partial ones in proportion: they depend on the data, and must not be released.
    evaluations: float = 0


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point of K (but for rounding), the bound tau on its distance from the minimiser, and value and gradient of f there."""

    theta: Array
    distance_bound: float
    value: float
    gradient: Array
    lipschitz: float  # the L of the proximal-gradient step that led there


def proximal_step(problem: Problem, point: Array, value: float, gradient: Array, lipschitz: float) -> Iterate:
    """Take a certified proximal-gradient step; double L until f is below its quadratic model there (up to rounding)."""
    mu = problem.strong_convexity
    while True:
        theta = problem.proximal(point - gradient / lipschitz, 1.0 / lipschitz)
        move = point - theta
        reached, slope = problem.smooth(theta)
        # Near the minimiser rounding hides the difference of values; gradients are more accurate.
        model = value - float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
        fine = reached <= model or float(np.linalg.norm(slope - gradient)) <= lipschitz * float(np.linalg.norm(move))
        if fine or lipschitz > 1e30 * mu:
            break
        lipschitz *= 2.0
    residual = slope - gradient + lipschitz * move
    bound = (float(np.linalg.norm(residual)) + 2 * problem.gradient_error(theta, slope)) / mu
    if not problem.is_smooth:
        bound += problem.proximal_error(point, gradient, lipschitz) * step_sensitivity(problem, theta, lipschitz)
    plain = at_point(problem, theta, reached, slope, lipschitz)
    return replace(plain, distance_bound=float(np.fmin(plain.distance_bound, bound)))


def step_sensitivity(problem: Problem, theta: Array, lipschitz: float) -> float:
    """Return the rate at which a step's distance changes with its end, by L_f; or by L without a proof (never for a release)."""
    curvature = problem.curvature_at(theta) if np.isfinite(problem.curvature) else lipschitz
    return 1 + (lipschitz + curvature) / problem.strong_convexity


def at_point(problem: Problem, theta: Array, value: float, gradient: Array, lipschitz: float | None = None) -> Iterate:
    """Certify a point from f and its gradient there, without another pass over the records.

    If h is not 0, let x be the step from theta with ``L = sqrt(L_f mu)``.  Then ``||theta - minimiser|| <= ||theta - x|| (1 +
    2 sqrt(L_f/mu))`` (docs/theory.md, section 13).  The bound is infinite if L_f is not known.
    """
    mu = problem.strong_convexity
    bound, root = float(np.linalg.norm(gradient)) / mu, problem.balanced(theta)
    if not problem.is_smooth:
        bound = np.inf
        if np.isfinite(root):
            move = theta - problem.proximal(theta - gradient / root, 1.0 / root)
            error = problem.proximal_error(theta, gradient, root)
            bound = (float(np.linalg.norm(move)) + error) * (1 + 2 * root / mu)
    bound += problem.gradient_error(theta, gradient) / mu
    return Iterate(theta, bound if np.isfinite(bound) else np.inf, value, gradient, lipschitz or mu)


def distance_floor(problem: Problem, iterate: Iterate) -> float:
    """Return the smallest distance bound that rounding allows, near an iterate."""
    mu, theta, gradient = problem.strong_convexity, iterate.theta, iterate.gradient
    errors = problem.gradient_error(theta, gradient) / mu
    if problem.is_smooth:
        return errors
    proximal = problem.proximal_error(theta, gradient, iterate.lipschitz)
    lowest, root = 2 * errors + proximal * step_sensitivity(problem, theta, iterate.lipschitz), problem.balanced(theta)
    if not np.isfinite(root):
        return lowest
    return min(lowest, errors + problem.proximal_error(theta, gradient, root) * (1 + 2 * root / mu))
