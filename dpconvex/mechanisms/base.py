"""The protocols of mechanisms and of the data that they read, and steps that several proofs share."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.expressions.atoms.powers import DECLARED
from dpconvex.expressions.expression import postorder
from dpconvex.model.privacy import Privacy
from dpconvex.noise.samplers import SPHERICAL
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once


class Engine(Protocol):
    """Exact minimisers and gradients of the data, for mechanisms.  The answers alone are not private."""

    def minimise(self, strong_convexity: float, tolerance: float, **parts: Any) -> Array:
        """Return a point within `tolerance` of the minimiser in sum form; `parts` are `smoothing`, `added` and `linear`, or 0."""
        ...

    def loss_gradient(self, theta: Array) -> Array:
        """Return the gradient of the sum of losses alone, shape (dim,)."""
        ...

    @property
    def records(self) -> int: ...

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Return the sum of the (`chosen`) records' gradients, each clipped to the norm `clip`, shape (dim,)."""
        ...

    def public_gradient(self, theta: Array) -> Array:
        """Return the gradient of size times the regularizer, shape (dim,)."""
        ...

    def project(self, theta: Array) -> Array: ...


@runtime_checkable
class Mechanism(Protocol):
    """A frozen description of a mechanism and its theorem; `verify` also accepts your own."""

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Check the theorem's conditions and calibrate the noise for a public (or nominal) number of records; otherwise raise."""
        ...

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        """Draw the noise and return the private answer, in coordinates, shape (dim,)."""
        ...


class ForUnits:
    """Base of mechanisms that also protect people with several records; all other mechanisms raise for these."""

    units: ClassVar[bool] = True

    def run(self, analysis: Analysis, certificate: Certificate, engine: Engine, rng: np.random.Generator) -> Array:
        """Raise `TemplateError`: mechanisms without a `run` of their own have no answer, or `dp.solve` takes their steps."""
        raise TemplateError(f"{type(self).__name__}: use dp.solve.")

    def noise_bound(self, certificate: Certificate, probability: float) -> float:
        """Return the norm that rotation-invariant noise exceeds with this probability."""
        return SPHERICAL[certificate.noise].quantile(certificate.noise_dimension, certificate.noise_scale, probability)


DRAWN = "The noise is drawn in floating point from a cryptographic generator seeded by the operating system."
UNSEEN = "Nobody observes how long a fit takes, nor whether a fit failed."


def check_delta(privacy: Privacy, noise: str, otherwise: str) -> None:
    if privacy.pure:
        why, remedy = f"{noise} cannot satisfy a guarantee with delta = 0", f"ask for a small delta, or {otherwise}"
        raise NotPrivate(why, f"delta = {privacy.delta:g}", remedy)


def record_steps(analysis: Analysis, privacy: Privacy) -> tuple[Derivation, Derivation]:
    largest = "largest norm of one record's gradient: a sum of extreme gradients, one of each term"
    why = "one gradient appears or disappears: G"
    if privacy.adjacency == "replace-one":
        why = "largest distance between the gradients of two records, over all pairs of labels; at most 2 G"
    why += of_unit(privacy)
    bound, apart = {"G": analysis.gradient_bound}, {"G_adj": analysis.sensitivity(privacy.adjacency, privacy.person)}
    gradient = Derivation("gradient bound", "", bound, largest, (analysis.steepest.derivation,))
    return gradient, Derivation("sensitivity", "", apart, why)


def of_unit(privacy: Privacy) -> str:
    """Return the part of a proof that explains the sensitivity for a person's rows."""
    if privacy.most == 1:
        return ""
    if privacy.keep == "weights":
        return f", or one row's if that is more; a {privacy.unit}'s rows weigh 1 together"
    return f", or one row's if that is more; {privacy.most} times, for all rows of one {privacy.unit}"


def public_steps(analysis: Analysis) -> tuple[Derivation, Derivation, Derivation]:
    form = analysis.form
    dimensions = {"dimension": float(form.noise_dimension), "of": float(form.space.dim)}
    span = "span of the rows of A_z over all records z, where losses are functions of A_z theta + c_z"
    feasible = Derivation("feasible set", form.feasible.describe().replace("\n", "; "), {}, "closed and convex")
    return analysis.regularizer[1], Derivation("sensitive subspace", "", dimensions, span), feasible


@once
def declared_constants(analysis: Analysis) -> tuple[str, ...]:
    """Return one sentence for each atom of the user with declared constants, which are not derived."""
    nodes = postorder(analysis.form.template.losses)
    names = {node.option("declaration").name for node in nodes if node.atom is DECLARED}
    return tuple(
        f"The atom {name!r} is declared by the user: what runs is the function with the declared slope and curvature whose "
        "slopes are linear between those read off the user's at many points."
        for name in sorted(names)
    )
