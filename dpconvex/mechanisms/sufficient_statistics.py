"""Sufficient statistics of a quadratic loss, released once (docs/theory.md, section 18)."""

from dataclasses import dataclass

import numpy as np

from dpconvex.accounting.events import Gaussian, Pure
from dpconvex.certificates.certificate import Certificate
from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.base import DRAWN, UNSEEN, ForUnits, check_delta, of_unit
from dpconvex.model.privacy import Privacy
from dpconvex.noise.samplers import SPHERICAL, Spherical
from dpconvex.numerics import EPSILON, NORM_SLACK
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.moments import Moments, difference_bound, length_bound, quadratic_loss
from dpconvex.util.arguments import SWITCH, check_fields, number_in, one_of
from dpconvex.util.arrays import Array
from dpconvex.util.summation import MOMENT_BLOCK

SOURCE = "docs/theory.md, section 18"
LARGEST = 10**7  # More numbers are not released: each has its own exact noise
# Keys of a certificate's settings.
WEIGHT, RESIDUALS = "weight_of_linear_statistics", "statistics_of_residuals"


@dataclass(frozen=True)
class SufficientStatistics(ForUnits):
    """Release noisy sums that determine a quadratic loss, once; every fit is post-processing.

    The loss must be quadratic in the parameters, with coefficients that are polynomials of the record's continuous fields.
    Regularizer and constraints may be any convex ones, and need not make the objective strongly convex.

    Parameters
    ----------
    noise : {"gaussian", "gamma"}
        Independent normal noise on every statistic, for (epsilon, delta), or noise with density proportional to
        ``exp(-beta ||b||)``, for pure epsilon.
    weight : float
        Factor on statistics of linear terms (such as x y in least squares), applied before noise is added.  In units in which
        both groups of one record are at most 1 long.
    residuals : bool
        Also release the part of the loss without parameters (such as y^2), which the variance of residuals needs.

    Examples
    --------
    >>> import dpconvex as dp
    >>> template = dp.load("ridge_regression", features=3)
    >>> certificate = dp.verify(template, dp.Privacy(1.0, 1e-6), 1000, dp.SufficientStatistics())
    >>> certificate.noise_dimension, round(certificate.sensitivity, 3)  # x x' and x y; the square root of 8
    (9, 2.828)
    """

    noise: str = "gaussian"
    weight: float = 2**0.5
    residuals: bool = False

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(SPHERICAL), weight=number_in(1e-3, 1e3), residuals=SWITCH)

    @classmethod
    def usual(cls, privacy: Privacy) -> "SufficientStatistics":
        return cls("gamma" if privacy.pure else "gaussian")

    @property
    def name(self) -> str:
        return f"sufficient statistics with {self.law.name} noise"

    @property
    def law(self) -> Spherical:
        return SPHERICAL[self.noise]

    def moments(self, form: LossForm, adjacency: str) -> Moments:
        return quadratic_loss(form).moments(self.weight, self.residuals, adjacency == "replace-one")

    def certify(self, analysis: Analysis, privacy: Privacy, size: int) -> Certificate:
        """Bound the sensitivity of the statistics and calibrate the noise; gradients need no bound."""
        form = analysis.form
        if self.noise == "gaussian":
            check_delta(privacy, "Gaussian noise on statistics", "use noise='gamma'")
        moments, bases = self.moments(form, privacy.adjacency), quadratic_loss(form).bases
        if not 0 < moments.count <= LARGEST:
            why = f"the loss takes {moments.count:,} numbers from the data, and 1 to {LARGEST:,} can be released"
            raise NotPrivate(why, form.template.losses[0], "use fewer features, or another mechanism")
        length = length_bound(moments, bases)
        one = difference_bound(moments, bases) if privacy.adjacency == "replace-one" else length
        apart = privacy.person.moves(one, length)
        scale = self.law.calibrate(privacy.epsilon, privacy.delta, apart)
        how = "largest distance of the statistics of two records" if one is not length else "one record's statistics"
        steps = (
            Derivation("distinct moments", "", {"number": float(moments.count)}, "the loss is linear in their sums"),
            Derivation("length", "", {"of one record's statistics": length}, "products of the norms of the fields"),
            Derivation("sensitivity", "", {"S": apart}, how + of_unit(privacy)),
        )
        return Certificate(
            privacy=privacy,
            mechanism=self.name,
            size=size,
            gradient_bound=length,
            sensitivity=apart,
            noise_epsilon=privacy.epsilon,
            noise_dimension=moments.count,
            noise_scale=scale,
            derivation=Derivation("sufficient statistics", "", privacy.claims, SOURCE, steps),
            assumptions=(DRAWN, UNSEEN),
            perturbed="statistics",
            noise=self.noise,
            mean_noise=self.law.mean(moments.count, scale),
            settings={WEIGHT: self.weight} | ({RESIDUALS: 1.0} if self.residuals else {}),
            event=Gaussian(apart / scale * (1 + NORM_SLACK)) if self.noise == "gaussian" else Pure(privacy.epsilon),
        )

    def hiding(self, analysis: Analysis, certificate: Certificate, records: float) -> Certificate:
        """Return the certificate with a bound on rounding in sums over `records` records."""
        moments = self.moments(analysis.form, certificate.privacy.adjacency)
        tolerance = summation_error(moments, certificate.gradient_bound, records)
        return certificate.copied(event=certificate.event, tolerance=tolerance)

    def perturbed(self, sums: Array, certificate: Certificate, rng: np.random.Generator) -> Array:
        return sums + self.law.draw(certificate.noise_dimension, certificate.noise_scale, rng)


def summation_error(moments: Moments, length: float, records: float) -> float:
    """Bound the error of computed sums: k roundings of a product, n of an absolute sum of n terms (Higham 2002, section 4.2)."""
    combinations = max((len(kind.patterns) for kind in moments.kinds), default=1)
    degree = max((kind.monomials.shape[1] for kind in moments.kinds), default=0)
    roundings = MOMENT_BLOCK + combinations + records / MOMENT_BLOCK + degree + 16
    return 2 * roundings * EPSILON * max(records, 1.0) * length


def mechanism_of(certificate: Certificate) -> SufficientStatistics:
    settings = certificate.settings
    return SufficientStatistics(certificate.noise, settings[WEIGHT], RESIDUALS in settings)
