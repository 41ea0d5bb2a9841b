"""Laws of the noise b of objective perturbation: what each needs of a template, and how it is calibrated and drawn.

Of each law: the smallest proved noise (`calibrate`), a prediction of the mean square of its norm (`square`), a draw in
coordinates of the whole space, and a bound on its norm that fails with at most a given probability.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpconvex.accounting.events import Event, Hull, Perturbation, Pure
from dpconvex.calculus.analysis import Analysis, Moduli
from dpconvex.calculus.neighbour_differences import differences
from dpconvex.calculus.rank_one_gradients import degrees_of_freedom
from dpconvex.errors import NotPrivate
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.proof_steps import check_delta, sensitivity_of
from dpconvex.noise.gaussian_profiles import smallest_scale
from dpconvex.noise.matrix_variate import best_structure, matrix_noise, noise_bound, rounding_bound
from dpconvex.noise.samplers import in_subspace
from dpconvex.noise.spherical import SPHERICAL, Spherical

Array = NDArray[np.float64]

# Relative accuracy of the calibrated beta; one whose cost is at most epsilon is used.
ACCURATE = 1e-12
# Accuracy of a calibration that only serves to predict.
ROUGH = 1e-4
# Relative slack for rounding, as for every constant of an analysis.
SLACK = 1 + 1e-11


@dataclass(frozen=True)
class Calibration:
    """How much noise a promise needs.

    `scale` is 1/beta or sigma, `sensitivity` in the norm that the law charges for, `jacobian` the part of epsilon that pays for
    curvature, `how` the bound it rests on, and `square` and `mean` are of the norm of the noise.
    """

    scale: float
    sensitivity: float
    jacobian: float
    how: str
    square: float
    mean: float
    event: Event
    settings: dict[str, float] = field(default_factory=dict)


class OnSubspace:
    """Noise without a preferred direction on the sensitive subspace."""

    def __init__(self, norm: Spherical) -> None:
        self.norm = norm
        self.name = norm.name

    def draw(self, analysis: Analysis, scale: float, rng: np.random.Generator) -> Array:
        """In coordinates of the subspace, carried into the whole space."""
        return in_subspace(analysis.form.basis, self.norm.draw(analysis.form.noise_dimension, scale, rng))

    def bound(self, certificate: Certificate, probability: float) -> float:
        """Quantile of the norm."""
        return self.norm.quantile(certificate.noise_dimension, certificate.noise_scale, probability)

    def rounding(self, certificate: Certificate, probability: float) -> float:
        """Nothing beyond what is proportional to the norm."""
        return 0.0


class GammaLaw(OnSubspace):
    """Density proportional to ``exp(-beta ||b||)``."""

    def calibrate(self, analysis: Analysis, privacy: Privacy, moduli: Moduli) -> Calibration:
        """Joint bound of gradient and curvature, where there is one."""

        def cost(beta: float) -> tuple[float, str]:
            return analysis.perturbation_cost(beta, moduli, privacy.adjacency)

        p, sensitivity = analysis.form.noise_dimension, sensitivity_of(analysis, privacy)
        beta, how = largest_beta(cost, sensitivity, analysis, privacy.epsilon)
        jacobian = max(privacy.epsilon - beta * sensitivity, 0.0)
        square, mean = self.norm.square(p, 1 / beta), self.norm.mean(p, 1 / beta)
        return Calibration(1 / beta, sensitivity, jacobian, how, square, mean, Pure(privacy.epsilon))

    def square(self, analysis: Analysis, privacy: Privacy, moduli: Moduli, near: float = 0.0) -> float:
        """Charge for gradient and curvature apart, which is quick."""
        left = privacy.epsilon - analysis.log_det(moduli)[0]
        p = analysis.form.noise_dimension
        return self.norm.square(p, sensitivity_of(analysis, privacy) / left) if left > 0 else math.inf


class MatrixLaw:
    """Matrix-variate t noise, for gradients of rank one (see `matrix_noise`)."""

    name = "matrix-shaped"

    def calibrate(self, analysis: Analysis, privacy: Privacy, moduli: Moduli) -> Calibration:
        """As for Gamma noise, with the nuclear norm of the difference: the sum of both gradients' norms."""
        structure, sensitivity = best_structure(analysis), self.sensitivity(analysis, privacy)

        def cost(beta: float) -> tuple[float, str]:
            epsilon, how = analysis.perturbation_cost(beta, moduli, "add-remove")
            return epsilon + beta * (sensitivity - analysis.gradient_bound), how

        beta, how = largest_beta(cost, sensitivity, analysis, privacy.epsilon)
        size = math.sqrt(structure.square) / beta
        settings = {
            "rows": float(structure.rows),
            "columns": float(structure.columns),
            "degrees_of_freedom": float(degrees_of_freedom(structure.rows, structure.columns)),
            "nuclear_sensitivity": sensitivity,
        }
        jacobian = max(privacy.epsilon - beta * sensitivity, 0.0)
        how = f"{how}; gradients of rank one: {structure.name}"
        return Calibration(1 / beta, sensitivity, jacobian, how, size**2, size, Pure(privacy.epsilon), settings)

    def sensitivity(self, analysis: Analysis, privacy: Privacy) -> float:
        return analysis.gradient_bound * (2 if privacy.adjacency == "replace-one" else 1)

    def square(self, analysis: Analysis, privacy: Privacy, moduli: Moduli, near: float = 0.0) -> float:
        """Charge for gradient and curvature apart, which is quick."""
        left = privacy.epsilon - analysis.log_det(moduli)[0]
        sensitivity = self.sensitivity(analysis, privacy)
        return best_structure(analysis).square * (sensitivity / left) ** 2 if left > 0 else math.inf

    def draw(self, analysis: Analysis, scale: float, rng: np.random.Generator) -> Array:
        """A matrix, carried into the coordinates."""
        structure = best_structure(analysis)
        drawn = matrix_noise(structure.rows, structure.columns, scale, rng)
        return np.asarray(structure.map @ drawn.ravel(), dtype=float)

    def bound(self, certificate: Certificate, probability: float) -> float:
        """Quantile of the longest row; the tail is heavy.  Half of the probability is left to `rounding`."""
        return noise_bound(*shape_of(certificate), certificate.noise_scale, probability / 2)

    def rounding(self, certificate: Certificate, probability: float) -> float:
        """Bound the distance of a drawn matrix from an ideal one, but for half of the given probability."""
        return rounding_bound(*shape_of(certificate), certificate.noise_scale, probability / 2)


def shape_of(certificate: Certificate) -> tuple[int, int]:
    """Return the rows and the columns of matrix-shaped noise."""
    return int(certificate.settings["rows"]), int(certificate.settings["columns"])


class GaussianLaw(OnSubspace):
    """Independent normal coordinates, for (epsilon, delta)."""

    def calibrate(self, analysis: Analysis, privacy: Privacy, moduli: Moduli) -> Calibration:
        """Invert the smallest proved delta."""
        sigma = self._sigma(analysis, privacy, moduli, 1e-10)
        if sigma is None:
            raise too_curved(analysis, privacy.epsilon, analysis.log_det(moduli)[0])
        _, jacobian, how = objective_delta(analysis, privacy.adjacency, moduli, privacy.epsilon, sigma)
        event = Perturbation(sigma, hulls_of(analysis, privacy.adjacency, moduli, sigma))
        p, sensitivity = analysis.form.noise_dimension, sensitivity_of(analysis, privacy)
        return Calibration(
            sigma, sensitivity, jacobian, how, self.norm.square(p, sigma), self.norm.mean(p, sigma), event
        )

    def square(self, analysis: Analysis, privacy: Privacy, moduli: Moduli, near: float = 0.0) -> float:
        """Calibrate roughly; `near` is the mean square for moduli near these."""
        p = analysis.form.noise_dimension
        sigma = self._sigma(analysis, privacy, moduli, ROUGH, math.sqrt(near / max(p, 1)))
        return math.inf if sigma is None else self.norm.square(p, sigma)

    def _sigma(
        self, analysis: Analysis, privacy: Privacy, moduli: Moduli, accuracy: float, near: float = 0.0
    ) -> float | None:
        check_delta(privacy, "Gaussian noise on the objective", "use noise='gamma'")
        epsilon, adjacency = privacy.epsilon, privacy.adjacency
        start = sensitivity_of(analysis, privacy) * math.sqrt(2 * math.log(2 / privacy.delta)) / min(epsilon, 4.0)

        def delta(sigma: float) -> float:
            return objective_delta(analysis, adjacency, moduli, epsilon, sigma)[0]

        if 0 < near < math.inf:
            return smallest_scale(delta, privacy.delta, near, accuracy, stride=0.02)
        return smallest_scale(delta, privacy.delta, start, accuracy)


Law = GammaLaw | GaussianLaw | MatrixLaw
LAWS: dict[str, Law] = {
    "gamma": GammaLaw(SPHERICAL["gamma"]),
    "gaussian": GaussianLaw(SPHERICAL["gaussian"]),
    "matrix": MatrixLaw(),
}


def too_curved(analysis: Analysis, epsilon: float, curvature: float) -> NotPrivate:
    return NotPrivate(
        f"curvature alone costs {curvature:.4g} of epsilon, more than the {epsilon:.4g} there are",
        analysis.form.template.regularizer,
        "raise the regularization, or leave `added` to be chosen",
    )


def largest_beta(
    cost: Callable[[float], tuple[float, str]], sensitivity: float, analysis: Analysis, epsilon: float
) -> tuple[float, str]:
    """Return the largest proved inverse scale beta whose cost is at most epsilon, and the form of the bound."""

    def excess(beta: float) -> float:
        return cost(beta)[0] - epsilon

    most = epsilon / sensitivity
    if excess(most) <= 0:
        return most, cost(most)[1]
    if excess(0.0) >= 0:
        raise too_curved(analysis, epsilon, cost(0.0)[0])
    found = float(brentq(excess, 0.0, most, xtol=ACCURATE * most, rtol=ACCURATE))
    step = ACCURATE * most
    while excess(found) > 0:
        found, step = max(found - step, 0.0), 2 * step
    return found, cost(found)[1]


def objective_delta(
    analysis: Analysis, adjacency: str, moduli: Moduli, epsilon: float, sigma: float
) -> tuple[float, float, str]:
    """Bound the delta of objective perturbation with Gaussian noise."""
    worst, paid, how = 0.0, 0.0, ""
    for hull in hulls_of(analysis, adjacency, moduli, sigma):
        found = hull.delta(epsilon)
        if found[0] >= worst:
            (worst, how), paid = found, hull.curvature
    return worst, paid, how


def hulls_of(analysis: Analysis, adjacency: str, moduli: Moduli, sigma: float) -> tuple[Hull, ...]:
    """Return the differences between neighbours in units of sigma, with the curvature of the record in front."""
    curvatures, hulls = analysis.log_dets(moduli), []
    for item in differences(analysis, adjacency):
        curvature = float(curvatures[list(item.firsts)].max())
        hull = Hull(item.dimension, item.length / sigma, curvature)
        if item.vertices is not None:
            lengths, counts = ((part / unit).tolist() for part, unit in zip(item.vertices, (sigma, 1.0), strict=True))
            hull = replace(hull, lengths=tuple(lengths), counts=tuple(counts))
        if item.slopes is not None and item.behind is not None:
            low, high = item.slopes.low / sigma, item.slopes.high / sigma
            slopes = (
                max(high, 0.0) * SLACK,
                max(-low, 0.0) * SLACK,
                max(low, -high, 0.0),
                item.slopes.logistic / moduli.least,
            )
            hull = replace(hull, slopes=slopes, behind=tuple((item.behind / sigma).tolist()))
        hulls.append(hull)
    return tuple(hulls)
