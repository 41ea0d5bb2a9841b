"""Log densities of the noise of objective perturbation, in coordinates of the sensitive subspace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, multigammaln

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.rank_one_gradients import degrees_of_freedom
from dpconvex.errors import TemplateError
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noise_laws import shape_of
from dpconvex.noise.matrix_variate import best_structure

Array = NDArray[np.float64]
LogNoise = Callable[[Array], Array]

# Nodes of a quadrature over what a symmetrised matrix has lost, and how far out it goes, in units of the scale.
NODES, FAR = 400, 1e4
RANK = 1e-9


def gamma_density(dimension: int, scale: float) -> LogNoise:
    half = dimension / 2
    constant = gammaln(half) - np.log(2) - half * np.log(np.pi) - gammaln(dimension) - dimension * np.log(scale)
    return lambda b: np.asarray(constant - np.linalg.norm(b, axis=-1) / scale)


def gaussian_density(dimension: int, sigma: float) -> LogNoise:
    """Return the log density of independent normal coordinates, shape (..., dimension) to (...)."""
    constant = -dimension * np.log(sigma * np.sqrt(2 * np.pi))
    return lambda b: np.asarray(constant - (b**2).sum(axis=-1) / (2 * sigma**2))


def matrix_density(analysis: Analysis, certificate: Certificate) -> LogNoise:
    """Return the log density of matrix-shaped noise in coordinates of the sensitive subspace, shape (..., p) to (...).

    The noise is a linear image of a matrix with a matrix-variate t law.  Where the map is one to one, so is the density; where it
    forgets one coordinate (the antisymmetric part of a 2 x 2 matrix), that is integrated out.
    """
    rows, columns = shape_of(certificate)
    freedom = degrees_of_freedom(rows, columns)
    order = (freedom + columns) / 2
    spread = certificate.noise_scale * order
    image = analysis.form.basis.T @ best_structure(analysis).map
    left, values, right = np.linalg.svd(np.asarray(image.todense() if hasattr(image, "todense") else image))
    rank = int((values > RANK * values[0]).sum())
    lost = right[rank:]
    if rank < analysis.form.noise_dimension or len(lost) > 1:
        raise TemplateError(
            f"audit: matrix-shaped noise of {rows} x {columns} entries in {analysis.form.noise_dimension} dimensions has no "
            "density in closed form; audit ObjectivePerturbation('gamma') or a problem with fewer features."
        )
    inverse = right[:rank].T @ (left[:, :rank].T / values[:rank, None])
    constant = multigammaln(order, rows) - multigammaln(freedom / 2, rows) - rows * columns / 2 * np.log(np.pi)
    constant += -rows * columns * np.log(spread) - np.log(values[:rank]).sum()

    def of_matrix(flat: Array) -> Array:
        matrix = flat.reshape(*flat.shape[:-1], rows, columns) / spread
        gram = np.eye(rows) + matrix @ np.swapaxes(matrix, -1, -2)
        return np.asarray(constant - order * np.linalg.slogdet(gram)[1])

    if not len(lost):
        return lambda b: of_matrix(b @ inverse.T)
    wide = np.arcsinh(FAR)
    u = np.linspace(-wide, wide, NODES)
    node, weight = np.sinh(u) * spread, np.log(np.cosh(u) * spread * (u[1] - u[0]))
    return lambda b: np.asarray(
        logsumexp(of_matrix((b @ inverse.T)[..., None, :] + node[:, None] * lost[0]) + weight, axis=-1)
    )
