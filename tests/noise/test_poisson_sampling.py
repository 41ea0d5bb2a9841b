"""Poisson samples: the claimed delta against the exact one, from above and from below, and against sampling in one step."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import ndtr

import dpconvex as dp
from dpconvex.noise.loss_distributions import sampled_delta, sampled_multiplier
from dpconvex.noise.profiles import gaussian_delta, gaussian_sigma

Array = NDArray[np.float64]

# Of Poisson samples: outcomes beyond so many deviations are left out, which only lowers what is found; so is what rounding takes
# off the loss of all steps together, and what transforms err by.
REACH, ROUNDED, LARGEST, NOISE = 9.0, 0.004, 2**24, 1e-14


class SampledProfile:
    """Lower bounds on delta for each epsilon, where one record takes part in each step with a probability.

    Its part of a sum is `shift` deviations of the noise long, and points the same way in all steps.  The losses of all steps are
    added up on a grid, rounded down.
    """

    def __init__(self, shift: float, rate: float, steps: int) -> None:
        self.shift, self.rate, self.steps = shift, rate, steps
        ends = np.array([-REACH, REACH + shift])
        low, high = np.log1p(rate * np.expm1(shift * ends - shift**2 / 2))
        self.width = max(ROUNDED / steps, steps * (high - low) / LARGEST)
        edges = self.width * np.arange(np.floor(low / self.width), np.ceil(high / self.width) + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.log1p(np.expm1(edges) / rate)
        points = np.where(np.isnan(inside), -np.inf, (inside + shift**2 / 2) / shift)
        without, there = ndtr(points), ndtr(points - shift)
        mixed = (1 - rate) * np.diff(without) + rate * np.diff(there)
        # With the record against without it, and the other way round, where losses change their signs.
        self.laws = self._composed(mixed, edges[0]), self._composed(np.diff(without)[::-1], -edges[-1])

    def _composed(self, masses: Array, start: float) -> tuple[Array, Array]:
        """Return the losses of all steps and their masses; each mass lies at the lower edge of its cell."""
        count = self.steps * (len(masses) - 1) + 1
        size = next_fast_len(count, real=True)
        total = irfft(rfft(masses, size) ** self.steps, size)[:count]
        return self.steps * start + self.width * np.arange(count), np.where(total > NOISE, total, 0.0)

    def delta(self, epsilon: float) -> float:
        """Return the larger delta of the two orders."""
        return max(
            float((masses[losses > epsilon] * -np.expm1(epsilon - losses[losses > epsilon])).sum())
            for losses, masses in self.laws
        )


def one_step(epsilon: float, multiplier: float, rate: float) -> float:
    """The exact delta of one step: both orders, by the profile of the Gaussian mechanism (Balle, Barthe & Gaboardi 2018)."""
    more = math.log1p(math.expm1(epsilon) / rate)
    first = rate * float(gaussian_delta(more, 1 / multiplier))
    less = 1 + math.expm1(-epsilon) / rate
    if less <= 0:
        return first
    # E[(1 - e^eps ((1 - q) + q r))_+] for r the likelihood ratio
    scale = 1 - math.exp(epsilon) * (1 - rate)
    second = scale * float(gaussian_delta(math.log(math.exp(epsilon) * rate / scale), 1 / multiplier))
    return max(first, second)


@pytest.mark.parametrize(("multiplier", "rate", "epsilon"), [(1.0, 0.1, 0.05), (0.8, 0.5, 0.4), (2.0, 0.9, 0.3)])
def test_one_step_is_exact(multiplier: float, rate: float, epsilon: float) -> None:
    exact = one_step(epsilon, multiplier, rate)
    assert exact <= sampled_delta(epsilon, multiplier, rate, 1) <= exact * 1.001
    assert exact * 0.95 <= SampledProfile(1 / multiplier, rate, 1).delta(epsilon) <= exact * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "steps", "multiplier", "epsilon"), [(0.1, 60, 3.0, 0.5), (0.3, 20, 2.0, 1.5)])
def test_many_steps_are_bounded_from_both_sides(rate: float, steps: int, multiplier: float, epsilon: float) -> None:
    claimed = sampled_delta(epsilon, multiplier, rate, steps)
    found = SampledProfile(1 / multiplier, rate, steps).delta(epsilon)
    assert 0.95 * claimed <= found <= claimed
    # Noise that is a tenth too small is found out.
    assert SampledProfile(1 / (0.9 * multiplier), rate, steps).delta(epsilon) > claimed


def test_all_records_are_the_gaussian_mechanism() -> None:
    found = SampledProfile(0.2, 1 - 2.0**-53, 20).delta(0.5)
    assert 0.98 * gaussian_delta(0.5, 0.2 * math.sqrt(20)) <= found <= gaussian_delta(0.5, 0.2 * math.sqrt(20))


def test_the_multiplier_keeps_the_promise_and_no_more() -> None:
    multiplier = sampled_multiplier(1.0, 1e-5, 0.1, 30)
    assert sampled_delta(1.0, multiplier, 0.1, 30) <= 1e-5
    assert sampled_delta(1.0, 0.999 * multiplier, 0.1, 30) > 1e-5
    assert multiplier < 0.3 * gaussian_sigma(1.0, 1e-5, 1.0) * math.sqrt(30)
    with pytest.raises(dp.NotPrivate, match="not exact enough"):
        sampled_multiplier(1.0, 1e-21, 0.1, 30)


def by_contour(epsilon: float, multiplier: float, rate: float, steps: int) -> float:
    """The exact delta of a record in the first data set: an integral over a line of complex exponents, with no grid of losses."""
    x = np.linspace(-14 * multiplier, 1 + 14 * multiplier, 4001)
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * multiplier**2)))
    density = (1 - rate) * np.exp(-((x / multiplier) ** 2) / 2) + rate * np.exp(-(((x - 1) / multiplier) ** 2) / 2)
    p = density / density.sum()

    def mean(theta: float) -> float:
        weights = p * np.exp(theta * loss)
        return float((weights * loss).sum() / weights.sum())

    theta = brentq(lambda t: steps * mean(t) - epsilon, 1e-9, 40.0)
    weights = p * np.exp(theta * loss)
    spread = math.sqrt(steps * float((weights * (loss - epsilon / steps) ** 2).sum() / weights.sum()))
    s = theta + 1j * np.linspace(-12, 12, 1201) / spread
    logs = np.array([np.log1p((p * np.expm1(point * loss)).sum()) for point in s])
    return float(
        np.real((np.exp(steps * logs - s * epsilon) / (s * (s + 1))).sum()) * 24 / spread / 1200 / (2 * math.pi)
    )


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps", "epsilon"),
    # The transforms of plain probabilities were wrong by 6 % and more in the first, and more in others.
    [(17.871, 0.3, 300_000, 100.0), (1.5628, 0.01, 1000, 1.0), (2.736, 0.01, 20_000, 4.0)],
)
def test_rounding_is_a_small_part_of_small_deltas(multiplier: float, rate: float, steps: int, epsilon: float) -> None:
    exact = by_contour(epsilon, multiplier, rate, steps)
    assert exact <= sampled_delta(epsilon, multiplier, rate, steps) <= exact * 1.05
