"""Private selection: of a candidate, by permute-and-flip (McKenna & Sheldon 2020), or of the best of a random number of runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpconvex.errors import TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import bisect
from dpconvex.noise.samplers import bernoulli_exp, uniform_integer
from dpconvex.numerics import NORM_SLACK
from dpconvex.util.arguments import BELOW_ONE, between

# Decimal digits of the uniform number from which the number of runs follows; computations use twice as many.
DIGITS = 60
LONGEST = 600.0  # Largest log(1/gamma) in the search


def mistake_rate(epsilon: float, adjacency: str) -> float:
    """Return the factor of the mistakes in the exponent: all of epsilon if one record moves all counts in the same direction."""
    return epsilon if adjacency == "add-remove" else epsilon / 2


def select(
    mistakes: Sequence[Fraction | int], epsilon: float, adjacency: str, rng: np.random.Generator | None = None
) -> int:
    """Choose a candidate with few mistakes, each of sensitivity 1. The choice is private unless `rng` is given."""
    factor, fewest = Fraction(mistake_rate(epsilon, adjacency)), min(mistakes)
    left = list(range(len(mistakes)))
    while True:  # a candidate with the fewest mistakes is always accepted
        place = uniform_integer(len(left), rng)
        candidate = left[place]
        if bernoulli_exp(factor * Fraction(mistakes[candidate] - fewest), rng):
            return candidate
        del left[place]


@dataclass(frozen=True)
class Repetitions:
    """Describe a random number of private runs, of which the best is released: its distribution, and the score's share.

    Parameters
    ----------
    mean : float
        Mean number of runs, which is the expected work in fits; above 1.
    shape : float
        eta of the truncated negative binomial distribution, above -1: 0 is logarithmic, 1 geometric.  A larger eta varies the
        number less, and costs more.
    share : float
        Fraction of a run's cost that pays for its score, in (0, 1).

    Notes
    -----
    A Poisson number of runs is not available.  It can be 0, with nothing to release, and for a mean of 10 or more it costs more
    than the logarithmic distribution.

    Examples
    --------
    >>> geometric = Repetitions(mean=10, shape=1)
    >>> round(geometric.gamma, 6), geometric.quantile(0.99)
    (0.1, 44)
    >>> Repetitions(mean=10).total(Privacy(0.5)).epsilon < 1.0
    True
    """

    mean: float = 10.0
    shape: float = 0.0
    share: float = 0.1

    def __post_init__(self) -> None:
        for name, low, high in (("mean", 1.0, 1e6), ("shape", -1.0, 1e3), ("share", 0.0, 1.0)):
            value = getattr(self, name)
            between(low, high).check("Repetitions", **{name: value})
            object.__setattr__(self, name, float(value))

    @property
    def gamma(self) -> float:
        """Second parameter of the distribution, in (0, 1), which follows from the mean."""
        return math.exp(-log_inverse_gamma(self.mean, self.shape))

    def quantile(self, probability: float) -> int:
        """Return a quantile of the number of runs, as a limit on the work."""
        BELOW_ONE.check("Repetitions", probability=probability)
        return self._invert(Decimal(probability))

    def draw(self, rng: np.random.Generator | None = None) -> int:
        """Draw the number of runs, exactly up to a probability far below 2^-100. Keep it secret."""
        return self._invert(Decimal(uniform_integer(10**DIGITS, rng)).scaleb(-DIGITS))

    def total(self, run: Privacy) -> Privacy:
        """Return the guarantee of the best of all runs, if each run costs `run`."""
        # 2 artanh(tanh(a/2) tanh(b/2)) without cancellation, for a <= b; 1 + eta < 1001, so that the slack covers rounding.
        a, b = sorted((run.epsilon, log_inverse_gamma(self.mean, self.shape)))
        choice = a - math.log1p(-math.exp(a - b) * math.expm1(-2 * a) / (1 + math.exp(-a - b)))
        epsilon = run.epsilon + (1 + self.shape) * choice
        return run.part(epsilon * (1 + NORM_SLACK), min(run.delta * self.mean * (1 + NORM_SLACK), 1 - NORM_SLACK))

    def each(self, whole: Privacy) -> Privacy:
        """Return each run's guarantee, rounded down, so that the best of all runs keeps `whole`."""
        low, _ = bisect(lambda e: self.total(Privacy(e)).epsilon <= whole.epsilon, 0.0, whole.epsilon, 60)
        return whole.part(low, whole.delta / (self.mean * (1 + 2 * NORM_SLACK)))

    def _invert(self, level: Decimal) -> int:
        """Return the least k with more than `level` of the mass on 1, ..., k."""
        with localcontext(prec=2 * DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN):
            (rest, mass), shape = start(self.mean, self.shape), Decimal(self.shape)
            count, total = 1, mass
            while total <= level:
                mass *= rest * (count + shape) / (count + 1)
                count, total = count + 1, total + mass
        return count


@lru_cache(maxsize=64)
def start(mean: float, shape: float) -> tuple[Decimal, Decimal]:
    """Return 1 - gamma and the probability of one run, in the caller's decimal precision."""
    length, eta = Decimal(log_inverse_gamma(mean, shape)), Decimal(shape)
    rest = 1 - (-length).exp()
    return rest, rest / length if abs(eta) < Decimal(10) ** -DIGITS else rest * eta / ((eta * length).exp() - 1)


@lru_cache(maxsize=64)
def log_inverse_gamma(mean: float, shape: float) -> float:
    """Return L = log(1/gamma) with ``mean = (e^L - 1) eta / (1 - e^(-eta L))``, the quotient being 1/L for eta = 0."""

    def excess(length: float) -> float:
        t = shape * length
        return math.log(math.expm1(length) / length) + (0.0 if t == 0 else math.log(t / -math.expm1(-t)))

    low, high = 0.0, 1.0
    while excess(high) < math.log(mean):
        low, high = high, 2 * high
        if high > LONGEST:
            raise TemplateError(f"Repetitions: shape {shape:g} does not allow a mean of {mean:g}; use a larger shape.")
    return bisect(lambda length: excess(length) < math.log(mean), low, high, 100)[1]
