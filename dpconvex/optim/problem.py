"""The perturbed program in sum form, which a backend solves, and what it gives back.

    F(theta) = sum_i loss_i(theta) + size * regularizer(theta) + (added/2) ||theta||^2 + <linear, theta>,   theta in K,

with everything that privacy needs already fixed: a backend sees the drawn noise as the vector `linear`.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.errors import TemplateError
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.parameter_space import Space
from dpconvex.model.template import Template
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.kinks import Kinks, split_kinks
from dpconvex.sets.quadratics import Bend
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.util.arrays import Array, frozen
from dpconvex.util.summation import SumLengths


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
    linear: Array | None = None  # the drawn noise b, shape (dim,)
    gradient_bound: float = 0.0  # on that of one record's loss: what rounding may do is bounded by it
    hessian_bound: float = np.inf  # on the largest eigenvalue of the Hessian of one record's loss on K, if proved
    lengths: SumLengths | None = None  # how long the sums are that make the gradient; long ones are assumed by default
    projector: Callable[[Array], Array] | None = field(default=None, repr=False)
    relative: bool = False  # whether tolerances are fractions of the answer's length, where it is above 1
    bend: Bend = field(default_factory=Bend)  # the curvature of the regularizer wherever the minimiser can be, if known

    def __post_init__(self) -> None:
        linear = np.zeros(self.space.dim) if self.linear is None else np.array(self.linear, dtype=float)
        if linear.shape != (self.space.dim,) or not np.isfinite(linear).all():
            raise TemplateError(f"Problem: linear must be {self.space.dim} finite numbers, got shape {linear.shape}.")
        object.__setattr__(self, "linear", frozen(linear))

    def copied(self) -> "Problem":
        """Return a problem that has nothing in common with this one but numbers that nobody can write to."""
        fields = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}
        # A conic program of K, once it is made, cannot be copied: K is made anew from its constraints.
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

    def value(self, theta: Array) -> float:
        """F at a point, K not checked."""
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta: Array, smooth: bool = False) -> tuple[float, Array]:
        """Both at once, at the cost of one pass over the records; with `smooth`, without the kinks of the regularizer."""
        value, gradient = self.loss.value_and_gradient(self.seen(theta))
        linear = np.zeros(self.space.dim) if self.linear is None else self.linear
        regular, slope = self.loss.regularizer_value_and_gradient(theta, self.smooth_part if smooth else None)
        total = value + self.size * regular + 0.5 * self.added * float(theta @ theta) + float(linear @ theta)
        return total, self.seen(gradient) + self.size * slope + self.added * theta + linear

    def distance_allowed(self, tolerance: float, theta: Array) -> float:
        return tolerance * (max(1.0, float(np.linalg.norm(theta))) if self.relative else 1.0)

    def seen(self, theta: Array) -> Array:
        return theta if self.projector is None else self.projector(theta)

    def hessian(self, theta: Array, records: int | None = None) -> Array:
        """Hessian of F, without kinks, symmetrised, shape (dim, dim); that of the losses from about so many records, if given."""
        losses = self.loss.hessian(self.seen(theta), self.batch.size if records is None else records)
        public = self.size * self.loss.regularizer_hessian(theta, self.smooth_part).toarray()
        matrix = self.seen(self.seen(losses).T) + public + self.added * np.eye(self.space.dim)
        return np.asarray(matrix + matrix.T) / 2


@dataclass(frozen=True, eq=False)
class Solution:
    """A point of K with a proved bound on its distance from the exact minimiser."""

    theta: Array
    distance_bound: float
    # Passes over the records, of some in proportion: they depend on the data, and are not for release.
    evaluations: float = 0
