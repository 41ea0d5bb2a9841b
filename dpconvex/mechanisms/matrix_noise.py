"""Matrix-shaped noise, for gradients that are matrices of rank one, in G times the unit ball of the nuclear norm.

An r x c matrix M with density proportional to ``det(I + M M'/s^2)^(-a)``, a = (nu + c)/2, s = a/beta (a matrix-variate t law;
Gupta & Nagar 2000, section 4.2) has a log density that is beta-Lipschitz in that norm; linear images keep that
(docs/theory.md).
"""

import math

import numpy as np
from scipy.special import betaincinv, gammaln

from dpconvex.certificates.certificate import Certificate
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.noise_laws import GammaLaw
from dpconvex.model.privacy import Privacy
from dpconvex.numerics import EPSILON, MATRIX_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.rank_one_gradients import RankOne, degrees_of_freedom, rank_one_structures
from dpconvex.util.arrays import Array

# The number of moments that are tried in a bound by Markov's inequality.
ORDERS = 64


class MatrixLaw(GammaLaw):
    """Matrix-shaped noise; its sensitivity is the nuclear norm of the difference: the sum of both gradients' norms."""

    def __init__(self, analysis: Analysis, privacy: Privacy) -> None:
        super().__init__(analysis, privacy)
        found = best_structure(analysis)
        self.sensitivity = privacy.person.weight * analysis.gradient_bound * (1 + (privacy.adjacency == "replace-one"))
        self.unit = found.square, math.sqrt(found.square)
        self.how = f"; gradients of rank one: {found.name}"
        self.settings = {
            "rows": float(found.rows),
            "columns": float(found.columns),
            "degrees_of_freedom": float(degrees_of_freedom(found.rows, found.columns)),
            "nuclear_sensitivity": self.sensitivity,
        }

    def cost(self, beta: float, mu: float) -> tuple[float, str]:
        person = self.privacy.person
        epsilon, how = self.analysis.perturbation_cost(beta, mu, "add-remove", person)
        return epsilon + beta * (self.sensitivity - person.weight * self.analysis.gradient_bound), how

    @classmethod
    def draw(cls, analysis: Analysis, scale: float, rng: np.random.Generator) -> Array:
        structure = best_structure(analysis)
        drawn = matrix_noise(structure.rows, structure.columns, scale, rng)
        return np.asarray(structure.map @ drawn.ravel(), dtype=float)


def shape_of(certificate: Certificate) -> tuple[int, int]:
    return int(certificate.settings["rows"]), int(certificate.settings["columns"])


def best_structure(analysis: Analysis) -> RankOne:
    found = rank_one_structures(analysis)
    if not found:
        why = "matrix-shaped noise needs gradients that are matrices of rank one, weights of the classes times features"
        remedy = "write all scores as one matrix times one vector of features, or use noise='gamma'"
        raise NotPrivate(f"{why} of the record; none were found", analysis.form.template.losses[0], remedy)
    # Among equal structures take the narrowest table.
    return min(found, key=lambda structure: (structure.square, structure.layout.max()))


def matrix_noise(rows: int, columns: int, scale: float, rng: np.random.Generator) -> Array:
    """Draw a matrix with a log density that is Lipschitz in the nuclear norm, with constant ``1/scale``."""
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
    """Bound the Frobenius norm, except with this probability: for a row ``z / chi``, ``1/(1 + |row|^2)`` has a beta law."""
    freedom = degrees_of_freedom(rows, columns)
    least = float(betaincinv((freedom - rows + 1) / 2, columns / 2, probability / rows))
    return scale * (freedom + columns) / 2 * math.sqrt(rows * (1 - least) / least) * (1 + MATRIX_SLACK)


def rounding_bound(rows: int, columns: int, scale: float, probability: float) -> float:
    """Bound the distance of a drawn matrix from an ideal one, except with this probability (docs/release.md, section 5)."""
    freedom = degrees_of_freedom(rows, columns)
    own = freedom - rows + np.arange(1.0, rows + 1)  # degrees of freedom of the k-th row
    following = rows - np.arange(1.0, rows + 1)  # the number of rows below it
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
    return float((1.5 * columns + 35) * EPSILON / 2 * spread * np.exp(best).sum() * (1 + MATRIX_SLACK))


def log_ratio(freedom: Array | float, order: float) -> Array:
    """Return the logarithm of ``Gamma(d/2 - q) / Gamma(d/2)``, the q-th moment of two over a chi-square variable."""
    return np.asarray(gammaln(np.asarray(freedom) / 2 - order) - gammaln(np.asarray(freedom) / 2))
