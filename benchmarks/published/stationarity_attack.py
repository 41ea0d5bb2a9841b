"""Attacks the release of a perturbed objective, by asking which of two data sets it comes from.

The minimiser of a perturbed objective satisfies a stationarity condition.  For a data set D and released matrices theta,

    grad F(theta; D) + b + v = 0,    b in the subspace that the noise is drawn in,    v in the normal cone of K at theta,

so whoever knows the objective can ask, for each candidate data set, whether *any* noise explains the release.  If the noise
covers the sensitive subspace, every candidate is explained, and only the likelihood of the noise is left, which epsilon
bounds.  If it does not, the true data set is explained and its neighbour is not (docs/published.md).

The attack reads the released matrices and public facts: the template, the mechanism, and the candidates that it compares.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from benchmarks.published.pathak_raj import PublishedPerturbation
from dpconvex.certificates.certificate import Certificate
from dpconvex.errors import NotConverged, TemplateError
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.release import Release
from dpconvex.fitting.verify import analyse
from dpconvex.model.template import Template
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.projections import IntervalSet, Spectral
from dpconvex.util.arrays import Array

__all__ = ["Explanation", "explain", "tell_apart"]

# An eigenvalue below this share of the largest one belongs to the face of the cone that the release lies on.
FACE = 1e-5
# Two residuals are told apart if they differ by this factor, and not by rounding alone.
CLEAR = 3.0
ROUNDING = 1e-9
# Price of what noise cannot explain, against noise itself, when the least noise is sought.
PRICE = 1e3
ACCURATE = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "max_iter": 200}


@dataclass(frozen=True)
class Explanation:
    """How well some noise explains a release, if it came from a candidate data set.

    `residual` is the length of what is left of the stationarity condition whatever the noise was, per record: 0 for the true
    data set and an exact minimiser.  `noise` is the norm of the noise that explains the rest, in sum form, and `scale` the
    length of the gradient that had to be explained, per record.
    """

    residual: float
    noise: float
    scale: float


def explain(
    release: Release, template: Template, data: Mapping[str, ArrayLike], mechanism: PublishedPerturbation | None = None
) -> Explanation:
    """Ask whether a candidate data set and some noise explain a release.

    Without a mechanism the release is certified, with noise on the sensitive subspace; its certificate tells the public size
    and the quadratic that was added.
    """
    condition = stationarity(release, template, data, mechanism)
    return Explanation(condition.residual, condition.noise, condition.scale)


def tell_apart(
    release: Release,
    template: Template,
    candidates: Sequence[Mapping[str, ArrayLike]],
    mechanism: PublishedPerturbation | None = None,
) -> int:
    """Guess which candidate data set a release comes from; returns its index.

    It is the one that noise explains best; among those that are explained equally well, the one that needs the least noise.
    """
    if not candidates:
        raise TemplateError("tell_apart: there is no candidate to choose from.")
    conditions = [stationarity(release, template, data, mechanism) for data in candidates]
    best = min(condition.residual for condition in conditions)
    close = [k for k, c in enumerate(conditions) if c.residual <= max(CLEAR * best, ROUNDING * max(c.scale, 1.0))]
    return close[0] if len(close) == 1 else min(close, key=lambda k: conditions[k].noise)


def stationarity(
    release: Release, template: Template, data: Mapping[str, ArrayLike], mechanism: PublishedPerturbation | None
) -> "Stationarity":
    """Return the stationarity condition of a candidate data set at a release; errors as for `explain`."""
    analysis = analyse(template)
    form = analysis.form
    space = form.space
    if set(release) != set(space.blocks):
        raise TemplateError(f"explain: the release has {sorted(release)}, the template {sorted(space.blocks)}.")
    batch = template.record.validate(data)
    size, added = batch.size, 0.0
    if mechanism is not None:
        span = mechanism.span(space)
    elif isinstance(release.certificate, Certificate) and release.certificate.perturbed == "objective":
        size, added, span = release.certificate.size, release.certificate.added, form.basis
    else:
        raise TemplateError(
            "explain: the release has no certificate of a perturbed objective; name the mechanism that made it."
        )
    theta = space.pack(release)
    engine = DataEngine(analysis, batch, size, None)
    gradient = engine.loss_gradient(theta) + engine.public_gradient(theta) + added * theta
    return Stationarity(gradient, span, FaceCone(form, release), size)


@dataclass(frozen=True, eq=False)
class Stationarity:
    """``gradient + b + v = 0``, to be solved for noise b in a span and v in the normal cone; the gradient is in sum form."""

    gradient: Array
    span: sp.csc_array
    cone: "FaceCone"
    size: int

    @cached_property
    def residual(self) -> float:
        """What no noise explains, per record."""
        rest = without_noise(self.gradient - self.cone.fit(self.gradient, self.span), self.span)
        return float(np.linalg.norm(rest)) / self.size

    @cached_property
    def noise(self) -> float:
        """Norm of the least noise that explains the rest."""
        closest = self.gradient - self.cone.fit(self.gradient, self.span, sparing=True)
        return float(np.linalg.norm(closest - without_noise(closest, self.span)))

    @property
    def scale(self) -> float:
        """Length of the gradient, per record."""
        return float(np.linalg.norm(self.gradient)) / self.size


def without_noise(vectors: Array, span: sp.csc_array) -> Array:
    """Remove what noise can explain from a vector, or from columns, shape (dim, ...)."""
    return np.asarray(vectors - span @ (span.T @ vectors))


class FaceCone:
    """Negative normal cone of K at a release: sums of ``W_c A_c W_c'`` with A_c semidefinite and W_c null at Phi_c.

    The normal cone of the semidefinite cone at Phi is ``{-S : S semidefinite, S Phi = 0}``.  K must consist of semidefinite
    cones and free variables.
    """

    def __init__(self, form: LossForm, release: Mapping[str, Array]) -> None:
        self.dim = form.space.dim
        self.maps: list[Array] = []
        for piece in form.feasible.pieces:
            inner = piece.inner if isinstance(piece, Spectral) and not piece.shift.any() else None
            cone = isinstance(inner, IntervalSet) and not inner.lower.any() and np.isinf(inner.upper).all()
            block = next((b for b in form.space.blocks.values() if b.start == piece.coordinates[0]), None)
            if not cone or block is None or len(piece.coordinates) != block.dim:
                raise TemplateError(
                    f"explain: the attack knows semidefinite variables and free ones, not {form.feasible.describe()}."
                )
            values, vectors = np.linalg.eigh(release[block.variable.name])
            null = vectors[:, values <= FACE * max(1.0, float(values[-1]))]
            if null.shape[1]:
                lift = np.zeros((self.dim, null.shape[1] ** 2))
                lift[block.slice] = face_map(null)
                self.maps.append(lift)

    def fit(self, gradient: Array, span: sp.csc_array, sparing: bool = False) -> Array:
        """Find S in the cone that leaves as little as possible of ``gradient - S`` to explain, shape (dim,).

        With `sparing`, of the fits that leave the least one that needs the least noise.  Both are norms, so a high price for
        the first is exact, up to the solver's accuracy.
        """
        if not self.maps:
            return np.zeros(self.dim)
        unit = max(float(np.linalg.norm(gradient)), np.finfo(float).tiny)
        parts = [cp.Variable((m.shape[1],), name=f"A_{k}") for k, m in enumerate(self.maps)]
        pairs = list(zip(self.maps, parts, strict=True))
        squares = [cp.reshape(part, (isqrt(m.shape[1]),) * 2, order="C") for m, part in pairs]
        reached = sum(without_noise(m, span) @ part for m, part in pairs)
        outside = cp.norm(without_noise(gradient / unit, span) - reached)
        constraints = [square >> 0 for square in squares] + [square == square.T for square in squares]
        goal = outside
        if sparing:
            noise = sum((span.T @ m) @ part for m, part in pairs)
            goal = PRICE * outside + cp.norm(span.T @ gradient / unit - noise)
        problem = cp.Problem(cp.Minimize(goal), constraints)
        for solver, settings in (("CLARABEL", ACCURATE), ("CLARABEL", {}), ("SCS", {"eps": 1e-9})):
            # What the solver says of its accuracy is not used: the fit is evaluated.
            with warnings.catch_warnings(action="ignore"), suppress(cp.error.SolverError):
                problem.solve(solver=solver, **settings)
            if all(part.value is not None for part in parts):
                break
        else:
            raise NotConverged("explain: the solver found no element of the normal cone.")
        found = np.zeros(self.dim)
        for m, square in zip(self.maps, squares, strict=True):
            found += m @ positive_part(square.value).ravel() * unit
        return found


def face_map(basis: Array) -> Array:
    """Return the matrix of ``A -> svec(W A W')`` on the entries of A, shape (D(D+1)/2, k*k); an isometry on symmetric A."""
    row, column = np.triu_indices(len(basis))
    weight = np.where(row == column, 1.0, np.sqrt(2.0))
    first, second = basis[row], basis[column]
    forward = np.einsum("ti,tj->tij", first, second)
    return np.asarray(weight[:, None] * ((forward + forward.transpose(0, 2, 1)) / 2).reshape(len(row), -1))


def positive_part(matrix: Array) -> Array:
    """Project a symmetric matrix on the semidefinite cone."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
