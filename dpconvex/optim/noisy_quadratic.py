"""Noisy quadratic losses, as released: projected to be convex, then solved exactly or by a conic solver."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dpconvex.errors import NotConverged
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.moments import Moments, QuadraticLoss
from dpconvex.sets.conic_programs import ConicForm
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.util.arrays import Array, Indices, components
from dpconvex.util.runtime import once

# The default ridge, next to the largest eigenvalue of the noise: regression is best with half, many classes with all of it.
RIDGE = 0.7
SHORT_ANSWER = 1e-4  # Answers of a conic solver this much shorter than 1 are solved again in their own unit


@dataclass(frozen=True, eq=False)
class NoisyQuadratic:
    """``theta' Q theta / 2 - <q, theta> + c`` from the noisy moments of a quadratic loss: `hessian` is Q, `slope` is q."""

    loss: QuadraticLoss
    moments: Moments
    values: Array  # shape (moments + 1,): noisy sums of moments, and the number of records
    deviation: float  # Of the noise on each sum

    @cached_property
    def coefficients(self) -> Array:
        """The coefficients of the loss's targets, shape (targets,)."""
        return np.asarray(self.loss.onto(self.moments) @ self.values)

    @cached_property
    def pairs(self) -> tuple[Indices, Indices, Indices]:
        """The targets with two coordinates: their indices, their first and their second coordinates."""
        squared = np.flatnonzero((self.loss.targets >= 0).all(axis=1))
        return squared, self.loss.targets[squared, 0], self.loss.targets[squared, 1]

    @cached_property
    def hessian(self) -> sp.csr_array:
        squared, a, b = self.pairs
        half = sp.coo_array((self.coefficients[squared], (a, b)), shape=(self.loss.dim, self.loss.dim))
        return sp.csr_array(half + half.T)

    @cached_property
    def slope(self) -> Array:
        return -self._gradients(np.zeros(self.loss.dim)) @ self.coefficients

    @property
    def constant(self) -> float:
        """The constant c, as far as the statistics contain it; otherwise 0."""
        return float(self.coefficients[(self.loss.targets < 0).all(axis=1)].sum())

    def _gradients(self, theta: Array) -> sp.csr_array:
        """Return the gradients of all targets at a point, as columns; a missing coordinate counts as the factor 1."""
        a, b = self.loss.targets.T
        full, number = np.append(theta, 1.0), np.arange(len(a))
        row, column, weight = np.r_[a, b], np.r_[number, number], np.r_[full[b], full[a]]
        kept = row >= 0
        return sp.csr_array(sp.coo_array((weight[kept], (row[kept], column[kept])), shape=(self.loss.dim, len(a))))

    def gradient_map(self, theta: Array) -> sp.csr_array:
        """Return the linear map from moments (and so from their noise) to the gradient at a point."""
        return sp.csr_array((self._gradients(theta) @ self.loss.onto(self.moments))[:, : self.moments.count])

    def value_map(self, theta: Array) -> Array:
        """Return the linear map from moments to the value of the loss at a point, shape (moments,)."""
        factors = np.append(theta, 1.0)[self.loss.targets].prod(axis=1)
        return np.asarray(factors @ self.loss.onto(self.moments))[: self.moments.count]

    def curvature_products(self, columns: Array) -> Array:
        """Return the sum over moments k of (the change of Q by noise on k) times column k, shape (dim,)."""
        squared, a, b = self.pairs
        entries = sp.coo_array(self.loss.onto(self.moments)[squared][:, : self.moments.count])
        pair, moment = entries.coords
        # The coefficient of a square is half the entry of Q, so that it is added for both coordinates.
        result = np.zeros(self.loss.dim)
        np.add.at(result, a[pair], entries.data * columns[b[pair], moment])
        np.add.at(result, b[pair], entries.data * columns[a[pair], moment])
        return result

    @property
    def count(self) -> float | None:
        """The number of records: exact if it is public, noisy if it is a moment; None if it is neither."""
        kind = self.moments.kinds[-1]
        if kind.bases:  # the moments without fields come last
            return None
        everybody = np.linalg.pinv(kind.patterns) @ np.ones(len(kind.patterns))
        if not np.allclose(kind.patterns @ everybody, 1.0):
            return None
        return float(self.values[self.moments.count - kind.count : self.moments.count] @ everybody / kind.factors[0])

    @cached_property
    def parts(self) -> list[tuple[Indices, Array]]:
        """The blocks of Q that no entry connects, each as its coordinates and its entries."""
        _, a, b = self.pairs
        pattern = sp.coo_array((np.ones(len(a)), (a, b)), shape=(self.loss.dim, self.loss.dim))
        return [(mine, self.hessian[mine][:, mine].toarray()) for mine in components(pattern)]

    def edge(self, mine: Indices) -> float:
        """Return about the largest eigenvalue of a block's noise: twice the root of a row's variance (Wigner's semicircle)."""
        squared, a, b = self.pairs
        entries = self.loss.onto(self.moments)[squared][:, : self.moments.count]
        variance = np.asarray(entries.power(2).sum(axis=1)) * self.deviation**2
        rows = np.bincount(a, weights=np.where(a == b, 4.0, 1.0) * variance, minlength=self.loss.dim)
        rows += np.bincount(b, weights=np.where(a == b, 0.0, variance), minlength=self.loss.dim)
        return 2 * float(np.sqrt(rows[mine].max(initial=0.0)))

    def convex(self, ridge: float | None, share: float = RIDGE) -> sp.csr_array:
        """Return Q, projected onto positive semidefinite matrices, plus a ridge; by default a share of the noise's edge."""
        blocks = []
        for mine, block in self.parts:
            values, vectors = np.linalg.eigh(block)
            more = share * self.edge(mine) if ridge is None else ridge
            blocks.append(sp.csr_array((vectors * (np.maximum(values, 0.0) + more)) @ vectors.T))
        back = np.argsort(np.concatenate([mine for mine, _ in self.parts]))
        return sp.block_diag(blocks, format="csr")[back][:, back]


def least_point(form: LossForm, hessian: sp.csr_array, slope: Array, size: float) -> Array:
    """Return the minimiser of ``theta' hessian theta / 2 - <slope, theta>`` plus size times the regularizer on K: (dim,)."""
    public = as_quadratic(form.template.regularizer, form.space)
    if public is None or not form.feasible.is_space:
        return minimise_by_cone(form, hessian, slope, size)
    total, pull = sp.csr_array(hessian + size * public.hessian), slope - size * public.slope
    theta = np.empty(form.space.dim)
    for mine in components(total):
        block = total[mine][:, mine].toarray()
        if not (block.any() or pull[mine].any()):  # Parameters that no loss reads
            theta[mine] = 0.0
            continue
        try:
            theta[mine] = scipy.linalg.cho_solve(scipy.linalg.cho_factor(block), pull[mine])
        except np.linalg.LinAlgError as error:
            why = "the noisy loss with this regularizer has no single minimiser"
            raise NotConverged(f"{why}; regularize more, or leave `ridge` out.") from error
    return theta


def minimise_by_cone(form: LossForm, hessian: Any, slope: Array, size: float) -> Array:
    diagonal = hessian.diagonal()
    units = 1 / np.sqrt(np.where(diagonal > 0, diagonal, np.nan)) if (diagonal > 0).any() else np.ones(len(slope))
    # Units in which answers are about 1, unless K is far from it or near 0: solvers lose short entries beside long ones
    units = units * max(float(np.nanmax(np.abs(units * slope))), 1.0)
    minimise = partial(cones_of(form).minimise, hessian, -slope, cost=size)
    for own in (units, 1.0, 1e3, 1e6):  # K may be far away
        if (theta := minimise(own)) is not None:
            length = float(np.nanmax(np.abs(theta / own)))
            closer = minimise(length * own) if 0 < length < SHORT_ANSWER else None
            return theta if closer is None else closer
    why = "a conic solver finds no minimiser of the noisy loss with this regularizer and these constraints"
    raise NotConverged(f"{why}; regularize more, or check that the constraints are feasible.")


@once
def cones_of(form: LossForm) -> ConicForm:
    return ConicForm.of(form.space, form.constraints, form.template.regularizer)
