"""Laws of the noise b of objective perturbation: what each needs of a template, and how it is calibrated and drawn.

Matrix-shaped noise is for templates whose gradients are matrices of rank one: those of one record lie in the unit ball of the
nuclear norm (times G). An r x c matrix M with density proportional to ``det(I + M M'/s^2)^(-a)``, a = (nu + c)/2 (a
matrix-variate t law; Gupta & Nagar 2000, section 4.2) has a log density whose derivative in a singular value is at most a/s: it
is beta-Lipschitz in the nuclear norm for s = a/beta.  So ``epsilon = beta * G_* + J``, where G_* bounds the nuclear norm of the
change of the gradient: G if a record appears, 2G if it is replaced.  A linear image of the noise keeps the property.

The tail is heavy: a row of M is ``s z / chi``, with z standard normal and chi the root of a chi-square variable with nu - r + 1
degrees of freedom.  How long M can be, and how much rounding can change it, is bounded here (docs/release.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import beta as beta_law

from dpconvex.accounting.events import Event, Hull, Perturbation, Pure
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.neighbour_differences import differences
from dpconvex.calculus.rank_one_gradients import RankOne, degrees_of_freedom, rank_one_structures
from dpconvex.core.arrays import Array
from dpconvex.errors import NotPrivate
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.base import check_delta, sensitivity_of
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.noise.profiles import smallest_scale
from dpconvex.noise.samplers import SPHERICAL, in_subspace

# Relative accuracy of the calibrated beta, one whose cost is at most epsilon; accuracy of what only serves to predict.
ACCURATE, ROUGH = 1e-12, 1e-4
# Relative slack for rounding, as for every constant of an analysis; of bounds on matrices.
SLACK, MATRIX_SLACK = 1 + 1e-11, 1 + 1e-6
# Moments that a bound by Markov's inequality is tried with.
ORDERS = 64


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

    def __init__(self, norm: str) -> None:
        self.norm = SPHERICAL[norm]
        self.name = self.norm.name

    def draw(self, analysis: Analysis, scale: float, rng: np.random.Generator) -> Array:
        return in_subspace(analysis.form.basis, self.norm.draw(analysis.form.noise_dimension, scale, rng))

    def bound(self, certificate: Certificate, probability: float) -> float:
        return self.norm.quantile(certificate.noise_dimension, certificate.noise_scale, probability)

    def rounding(self, certificate: Certificate, probability: float) -> float:
        """Nothing beyond what is proportional to the norm."""
        return 0.0


class GammaLaw(OnSubspace):
    """Density proportional to ``exp(-beta ||b||)``."""

    def calibrate(self, analysis: Analysis, privacy: Privacy, mu: float) -> Calibration:
        """Joint bound of gradient and curvature, where there is one."""

        def cost(beta: float) -> tuple[float, str]:
            return analysis.perturbation_cost(beta, mu, privacy.adjacency)

        p, sensitivity = analysis.form.noise_dimension, sensitivity_of(analysis, privacy)
        return pure_calibration(cost, sensitivity, p * (p + 1), p, analysis, privacy.epsilon)

    def square(self, analysis: Analysis, privacy: Privacy, mu: float, near: float = 0.0) -> float:
        p = analysis.form.noise_dimension
        return p * (p + 1) * quick_scale(analysis, privacy.epsilon, mu, sensitivity_of(analysis, privacy)) ** 2


class MatrixLaw:
    """Matrix-variate t noise, for gradients of rank one."""

    name = "matrix-shaped"

    def calibrate(self, analysis: Analysis, privacy: Privacy, mu: float) -> Calibration:
        """As for Gamma noise, with the nuclear norm of the difference: the sum of both gradients' norms."""
        structure, sensitivity = best_structure(analysis), nuclear_sensitivity(analysis, privacy)

        def cost(beta: float) -> tuple[float, str]:
            epsilon, how = analysis.perturbation_cost(beta, mu, "add-remove")
            return epsilon + beta * (sensitivity - analysis.gradient_bound), how

        mean = math.sqrt(structure.square)
        found = pure_calibration(cost, sensitivity, structure.square, mean, analysis, privacy.epsilon)
        settings = {
            "rows": float(structure.rows),
            "columns": float(structure.columns),
            "degrees_of_freedom": float(degrees_of_freedom(structure.rows, structure.columns)),
            "nuclear_sensitivity": sensitivity,
        }
        return replace(found, how=f"{found.how}; gradients of rank one: {structure.name}", settings=settings)

    def square(self, analysis: Analysis, privacy: Privacy, mu: float, near: float = 0.0) -> float:
        scale = quick_scale(analysis, privacy.epsilon, mu, nuclear_sensitivity(analysis, privacy))
        return best_structure(analysis).square * scale**2

    def draw(self, analysis: Analysis, scale: float, rng: np.random.Generator) -> Array:
        structure = best_structure(analysis)
        drawn = matrix_noise(structure.rows, structure.columns, scale, rng)
        return np.asarray(structure.map @ drawn.ravel(), dtype=float)

    def bound(self, certificate: Certificate, probability: float) -> float:
        """Quantile of the longest row; the tail is heavy.  Half of the probability is left to `rounding`."""
        return noise_bound(*shape_of(certificate), certificate.noise_scale, probability / 2)

    def rounding(self, certificate: Certificate, probability: float) -> float:
        return rounding_bound(*shape_of(certificate), certificate.noise_scale, probability / 2)


class GaussianLaw(OnSubspace):
    """Independent normal coordinates, for (epsilon, delta)."""

    def calibrate(self, analysis: Analysis, privacy: Privacy, mu: float) -> Calibration:
        sigma = self._sigma(analysis, privacy, mu, 1e-10)
        if sigma is None:
            raise too_curved(analysis, privacy.epsilon, analysis.log_det(mu)[0])
        _, jacobian, how = objective_delta(analysis, privacy.adjacency, mu, privacy.epsilon, sigma)
        event = Perturbation(sigma, hulls_of(analysis, privacy.adjacency, mu, sigma))
        p, reach = analysis.form.noise_dimension, sensitivity_of(analysis, privacy)
        return Calibration(sigma, reach, jacobian, how, self.norm.square(p, sigma), self.norm.mean(p, sigma), event)

    def square(self, analysis: Analysis, privacy: Privacy, mu: float, near: float = 0.0) -> float:
        """Calibrate roughly; `near` is the mean square for a mu near this."""
        p = analysis.form.noise_dimension
        sigma = self._sigma(analysis, privacy, mu, ROUGH, math.sqrt(near / max(p, 1)))
        return math.inf if sigma is None else self.norm.square(p, sigma)

    def _sigma(
        self, analysis: Analysis, privacy: Privacy, mu: float, accuracy: float, near: float = 0.0
    ) -> float | None:
        check_delta(privacy, "Gaussian noise on the objective", "use noise='gamma'")

        def delta(sigma: float) -> float:
            return objective_delta(analysis, privacy.adjacency, mu, privacy.epsilon, sigma)[0]

        if 0 < near < math.inf:
            return smallest_scale(delta, privacy.delta, near, accuracy, stride=0.02)
        reach = sensitivity_of(analysis, privacy)
        start = reach * math.sqrt(2 * math.log(2 / privacy.delta)) / min(privacy.epsilon, 4.0)
        return smallest_scale(delta, privacy.delta, start, accuracy)


Law = GammaLaw | GaussianLaw | MatrixLaw
LAWS: dict[str, Law] = {"gamma": GammaLaw("gamma"), "gaussian": GaussianLaw("gaussian"), "matrix": MatrixLaw()}


def too_curved(analysis: Analysis, epsilon: float, curvature: float) -> NotPrivate:
    return NotPrivate(
        f"curvature alone costs {curvature:.4g} of epsilon, more than the {epsilon:.4g} there are",
        analysis.form.template.regularizer,
        "raise the regularization, or leave `added` to be chosen",
    )


def quick_scale(analysis: Analysis, epsilon: float, mu: float, sensitivity: float) -> float:
    """Return 1/beta where gradient and curvature are charged for apart."""
    left = epsilon - analysis.log_det(mu)[0]
    return sensitivity / left if left > 0 else math.inf


def pure_calibration(
    cost: Callable[[float], tuple[float, str]],
    sensitivity: float,
    square: float,
    mean: float,
    analysis: Analysis,
    epsilon: float,
) -> Calibration:
    """Find the largest inverse scale beta whose proved cost is at most epsilon; `square` and `mean` are for a beta of 1."""

    def excess(beta: float) -> float:
        return cost(beta)[0] - epsilon

    found = most = epsilon / sensitivity
    if excess(most) > 0:
        if excess(0.0) >= 0:
            raise too_curved(analysis, epsilon, cost(0.0)[0])
        found = float(brentq(excess, 0.0, most, xtol=ACCURATE * most, rtol=ACCURATE))
        step = ACCURATE * most
        while excess(found) > 0:
            found, step = max(found - step, 0.0), 2 * step
    jacobian = max(epsilon - found * sensitivity, 0.0)
    how = cost(found)[1]
    return Calibration(1 / found, sensitivity, jacobian, how, square / found**2, mean / found, Pure(epsilon))


def objective_delta(
    analysis: Analysis, adjacency: str, mu: float, epsilon: float, sigma: float
) -> tuple[float, float, str]:
    """Bound the delta of objective perturbation with Gaussian noise."""
    worst, paid, how = 0.0, 0.0, ""
    for hull in hulls_of(analysis, adjacency, mu, sigma):
        found = hull.delta(epsilon)
        if found[0] >= worst:
            (worst, how), paid = found, hull.curvature
    return worst, paid, how


def hulls_of(analysis: Analysis, adjacency: str, mu: float, sigma: float) -> tuple[Hull, ...]:
    """Return the differences between neighbours in units of sigma, with the curvature of the record in front."""
    curvatures, hulls = analysis.log_dets(mu), []
    for item in differences(analysis, adjacency):
        curvature = float(curvatures[list(item.firsts)].max())
        hull = Hull(item.dimension, item.length / sigma, curvature)
        if item.vertices is not None:
            lengths, counts = ((part / unit).tolist() for part, unit in zip(item.vertices, (sigma, 1.0), strict=True))
            hull = replace(hull, lengths=tuple(lengths), counts=tuple(counts))
        if item.slopes is not None and item.behind is not None:
            low, high = item.slopes.low / sigma, item.slopes.high / sigma
            slopes = (max(high, 0.0) * SLACK, max(-low, 0.0) * SLACK, max(low, -high, 0.0), item.slopes.logistic / mu)
            hull = replace(hull, slopes=slopes, behind=tuple((item.behind / sigma).tolist()))
        hulls.append(hull)
    return tuple(hulls)


def nuclear_sensitivity(analysis: Analysis, privacy: Privacy) -> float:
    return analysis.gradient_bound * (2 if privacy.adjacency == "replace-one" else 1)


def shape_of(certificate: Certificate) -> tuple[int, int]:
    return int(certificate.settings["rows"]), int(certificate.settings["columns"])


def best_structure(analysis: Analysis) -> RankOne:
    """Return the layout in which the noise is smallest."""
    found = rank_one_structures(analysis)
    if not found:
        raise NotPrivate(
            "matrix-shaped noise needs every gradient to be a matrix of rank one, weights of the classes times features of the "
            "record, and that is not seen here",
            analysis.form.template.losses[0],
            "write all scores as one matrix times one vector of features, or use noise='gamma'",
        )
    return min(found, key=lambda structure: structure.square)


def matrix_noise(rows: int, columns: int, scale: float, rng: np.random.Generator) -> Array:
    """Draw a matrix whose log density is Lipschitz in the nuclear norm, with constant ``1/scale``."""
    freedom = degrees_of_freedom(rows, columns)
    drawn = np.empty((rows, columns))
    for k in reversed(range(rows)):
        length = math.sqrt(2 * rng.standard_gamma((freedom - rows + 1 + k) / 2))
        row = rng.standard_normal(columns) / length
        below = drawn[k + 1 :]
        below += np.outer(below @ row / (1 + math.sqrt(1 + float(row @ row))), row)
        drawn[k] = row
    return drawn * (scale * (freedom + columns) / 2)


def noise_bound(rows: int, columns: int, scale: float, probability: float) -> float:
    """Return a bound on the Frobenius norm of the noise that fails with at most the given probability.

    Every row, over s, has the law of ``z / chi``, so that ``y = 1/(1 + |row|^2)`` has a beta law, and no row is longer than its
    quantile of order ``probability / rows``, but for the given probability.
    """
    freedom = degrees_of_freedom(rows, columns)
    least = float(beta_law.ppf(probability / rows, (freedom - rows + 1) / 2, columns / 2))
    return scale * (freedom + columns) / 2 * math.sqrt(rows * (1 - least) / least) * MATRIX_SLACK


def rounding_bound(rows: int, columns: int, scale: float, probability: float) -> float:
    """Bound the distance of a drawn matrix from an ideal one, but for a given probability.

    Assumed is what docs/release.md says about the samplers of normal and gamma variables.  Each of the steps of `matrix_noise`
    adds an error, and the steps after it enlarge that by factors that are independent of it; all factors have known moments, and
    Markov's inequality bounds their product with the best of these.
    """
    freedom = degrees_of_freedom(rows, columns)
    own = freedom - rows + np.arange(1.0, rows + 1)  # degrees of freedom of the k-th row
    following = rows - np.arange(1.0, rows + 1)  # how many rows lie below it
    best = np.full(rows, np.inf)
    for order in np.linspace(1.0, own[0] / 2, ORDERS, endpoint=False):
        # An error in a row below grows by a product of 1/beta(d/2, 1/2) over the rows above; the product telescopes.
        growth = log_ratio(own[0], order) - log_ratio(own, order)
        # 1 + |row|^2 + c/chi^2, the first two terms and the last
        length = np.exp((log_ratio(own, order) - log_ratio(own + columns, order)) / order)
        length += columns / 2 * np.exp(log_ratio(own, order) / order)
        # 1 + the squared norm of the rows below
        square = log_ratio(own + 1, order) + gammaln(columns / 2 + order) - gammaln(columns / 2)
        below = 1 + following * np.exp(square / order)
        logs = growth + order * np.log(length * below) + math.log(rows / probability)
        best = np.minimum(best, logs / (2 * order))
    spread = scale * (freedom + columns) / 2
    return float((1.5 * columns + 35) * UNIT / 2 * spread * np.exp(best).sum() * MATRIX_SLACK)


def log_ratio(freedom: Array | float, order: float) -> Array:
    """Return the logarithm of ``Gamma(d/2 - q) / Gamma(d/2)``, the q-th moment of two over a chi-square variable."""
    return np.asarray(gammaln(np.asarray(freedom) / 2 - order) - gammaln(np.asarray(freedom) / 2))
