"""What every mechanism can do: prove itself private on an analysed template, or say why not."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.certificate import Certificate

Array = NDArray[np.float64]


class Engine(Protocol):
    """What a mechanism may ask of the data: exact minimisers and gradients.  The answers are not private by themselves."""

    def minimise(
        self,
        strong_convexity: float,
        tolerance: float,
        linear: Array | None = None,
        added: float = 0.0,
        smoothing: float = 0.0,
    ) -> Array:
        """Return a point within `tolerance` of the minimiser of the objective in sum form, shape (dim,).

        The objective is the losses plus size times the regularizer plus ``(added/2) ||theta||^2 + <linear, theta>``.  With
        `smoothing`, the losses are those of `dpconvex.calculus.smoothing.smooth_template` with that width.
        """
        ...

    def loss_gradient(self, theta: Array) -> Array:
        """Return the gradient of the sum of losses, shape (dim,).

        The public part is for what is noisy already: to add it before would round by what is public, as much as that is.
        """
        ...

    @property
    def records(self) -> int: ...

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Return the sum of the records' gradients, each scaled to a norm of at most `clip`, shape (dim,).

        `chosen`, shape (records,), leaves out the other records.
        """
        ...

    def public_gradient(self, theta: Array) -> Array:
        """Return the gradient of size times the regularizer, shape (dim,)."""
        ...

    def project(self, theta: Array) -> Array:
        """Project on the feasible set K."""
        ...


@runtime_checkable
class Mechanism(Protocol):
    """A recipe for a release that can be checked before any data are read.

    A mechanism is a small frozen description of a theorem's noise.  `verify` accepts every object of this kind, one of
    your own included.
    """

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Check the theorem's conditions and calibrate the noise for a public (or nominal) number of records, or refuse."""
        ...

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        """Draw the noise and compute the private answer, in coordinates, shape (dim,)."""
        ...
