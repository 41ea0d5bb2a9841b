"""Privacy profiles: Gaussian noise, curvature where slopes move, and Poisson samples, against quadrature and adversaries."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, stats
from scipy.optimize import brentq
from scipy.special import ndtr

import dpconvex as dp
from dpconvex.accounting.events import Hull
from dpconvex.certificates.bound_certificate import TruncatedLaplace, truncated_laplace
from dpconvex.noise.gaussian import gaussian_delta, gaussian_sigma, smallest_scale
from dpconvex.noise.loss_distributions import sampled_delta, sampled_multiplier
from dpconvex.noise.profiles import chi_delta, moving_delta, swing


@pytest.mark.parametrize("a", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 5.0])
def test_the_profile_of_the_gaussian_mechanism_is_exact(epsilon, a):
    edge = epsilon / a + a / 2  # beyond it the density of N(a, 1) is more than exp(epsilon) times that of N(0, 1)
    difference = lambda t: float(stats.norm.pdf(t - a) - math.exp(epsilon) * stats.norm.pdf(t))  # noqa: E731
    exact = float(integrate.quad(difference, edge, edge + 12, epsabs=0, epsrel=1e-11, limit=200)[0])
    assert exact * (1 - 1e-9) <= float(gaussian_delta(epsilon, a)) <= exact * (1 + 1e-7) + 1e-18


def test_extreme_numbers_do_no_harm():
    assert float(gaussian_delta(1.0, 0.0)) == 0.0
    assert float(gaussian_delta(0.0, 1e-12)) < 1e-12
    assert float(gaussian_delta(1.0, 1e6)) == 1.0
    assert 0 <= float(gaussian_delta(700.0, 1.0)) < 1e-300
    assert float(gaussian_delta(-1.0, 0.0)) == pytest.approx(1 - math.exp(-1))
    assert (np.diff(gaussian_delta(1.0, np.geomspace(1e-3, 1e3, 50))) >= 0).all()


@pytest.mark.parametrize(
    ("dimension", "a", "epsilon"),
    [(1, 0.5, 0.5), (3, 1.0, 0.3), (9, 0.1, 0.5), (2, 3.0, 1.0), (20, 0.4, 5.0), (5, 1.0, -0.1), (2, 2.0, 1.0)],
)
def test_the_chi_bound_is_above_quadrature_and_close(dimension, a, epsilon):
    c = epsilon - a**2 / 2
    term = lambda t: max(-math.expm1(c - a * t), 0.0) * float(stats.chi.pdf(t, dimension))  # noqa: E731
    exact = float(integrate.quad(term, max(c / a, 0.0), np.inf, epsabs=0, epsrel=1e-10, limit=400)[0])
    assert exact * (1 - 1e-8) <= chi_delta(epsilon, dimension, a) <= exact * (1 + 2e-4)


def test_a_delta_that_is_no_number_proves_nothing():
    assert smallest_scale(lambda scale: math.nan if scale < 3 else 1 / scale, 1e-3, 1.0) == pytest.approx(1e3)
    assert smallest_scale(lambda scale: math.nan, 1e-3, 1.0) is None


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_calibration_is_rounded_up_and_tight(epsilon, delta):
    sigma = gaussian_sigma(epsilon, delta, 3.0)
    assert float(gaussian_delta(epsilon, 3.0 / sigma)) <= delta
    assert float(gaussian_delta(epsilon, 3.0 / (sigma * (1 - 1e-6)))) > delta


@pytest.mark.parametrize("epsilon", [700.0, 1000.0, 1e5])
def test_huge_promises_do_not_overflow(epsilon):
    sigma = gaussian_sigma(epsilon, 1e-6, 1.0)
    assert 0.0 < sigma < 0.1
    assert max(float(gaussian_delta(epsilon, 1.0 / sigma)) * 1e6, chi_delta(epsilon, 3, 1.0 / sigma)) <= 1.0
    assert chi_delta(epsilon, 3, 0.0) == 0.0


NORMAL = np.linspace(-7.0, 9.0, 801)
WEIGHT = np.exp(-(NORMAL**2) / 2) / math.sqrt(2 * math.pi) * (NORMAL[1] - NORMAL[0])


@given(st.floats(0.0, math.pi), st.floats(0.05, 2.0), st.floats(0.1, 2.0), st.floats(0.01, 3.0))
@settings(max_examples=25)
def test_noise_that_moves_a_slope_counts_most_along_the_difference(angle, length, epsilon, curvature):
    bound, most = float(moving_delta(epsilon, length, curvature)), -math.expm1(-curvature)

    def gained(reach, noise):
        share = np.clip(-np.expm1(np.minimum(epsilon - curvature - reach - length**2 / 2, 0.0)), 0.0, most)
        return (np.exp(-(noise**2) / 2) * share).max(axis=0) / math.sqrt(2 * math.pi) / most

    along = NORMAL[:, None]
    found = gained(length * (np.cos(angle) * along + np.sin(angle) * NORMAL), along) @ WEIGHT
    assert found <= bound * (1 + 1e-6) + 1e-12
    straight = np.linspace(0.0, 12.0, 40001)
    assert bound <= gained(length * straight, straight) * 1.05 + 1e-12


def delta_of(sigma, curvature, behind):
    """Delta of a hinge that replaces an opposite one, or appears, as a certificate bounds it, at epsilon = 1."""
    step = 1 / sigma
    slopes, lengths, counts = (step, 0.0, 0.0, 0.0), (step, 2 * step)[: 1 + behind], (2.0, 1.0)[1 - behind :]
    return Hull(1 + behind, lengths[-1], curvature, lengths, counts, slopes, (0.0, step)[: 1 + behind]).delta(1.0)[0]


def one_fall(epsilon, sigma, curvature, behind=1.0):
    """The slope stays, falls as fast as it may, and stays, beside a record with an opposite slope."""
    start, length = np.linspace(-2, 8, 401)[:, None], np.linspace(0, 12, 481)[None]
    end, left = start + length, np.maximum(0.0, 1 / sigma + math.expm1(-curvature) * length)
    there = ndtr(-start) - ndtr(-end)
    moved = ndtr(-(start + (1 + behind) / sigma)) - ndtr(-(end + left + behind / sigma))
    return float((there - math.exp(epsilon) * moved).max())


@pytest.mark.parametrize("curvature", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("behind", [False, True])
def test_no_adversary_beats_a_hinge_and_one_comes_close(behind, curvature):
    sigma = smallest_scale(lambda s: delta_of(s, curvature, behind), 1e-6, 5.0)
    assert one_fall(1.0, sigma, curvature, float(behind)) <= 1e-6
    assert one_fall(1.0, 0.9 * sigma, curvature, float(behind)) > 1e-6  # a tenth less would be found out
    steps, counts = (np.array([1, 2]), np.array([2, 1])) if behind else (np.array([1]), np.array([1]))
    everywhere = smallest_scale(lambda s: float((counts * gaussian_delta(1 - curvature, steps / s)).sum()), 1e-6, 5.0)
    assert everywhere >= 1.05 * sigma


def test_limits():
    assert swing(1.0, 0.5, 0.5, 0.3) == swing(1.0, 0.5, 0.0, 0.0) == 0.0
    assert swing(1.0, 0.5, 0.3, 0.3) < swing(1.0, 0.5, 0.0, 0.3) < swing(1.0, 0.5, 0.0, 0.3, behind=1.0)
    everywhere = swing(1.0, 0.3, 0.0, math.log1p(0.5))
    assert swing(1.0, 0.3, 0.0, math.log1p(0.5), 2.0) < everywhere < swing(1.0, 0.3, 0.0, math.log1p(0.5), behind=0.3)
    lengths = np.geomspace(1e-8, 5.0, 40)
    assert (np.diff(moving_delta(1.0, lengths, 0.4)) >= 0).all()
    assert np.isfinite(moving_delta(700.0, lengths[:, None], np.geomspace(1e-6, 50.0, 40))).all()


def one_step(epsilon, multiplier, rate):
    """The exact delta of one step: both orders, by the profile of the Gaussian mechanism (Balle, Barthe & Gaboardi 2018)."""
    first = rate * float(gaussian_delta(math.log1p(math.expm1(epsilon) / rate), 1 / multiplier))
    less = 1 + math.expm1(-epsilon) / rate
    if less <= 0:
        return first
    # E[(1 - e^eps ((1 - q) + q r))_+] for r the likelihood ratio
    scale = 1 - math.exp(epsilon) * (1 - rate)
    return max(first, scale * float(gaussian_delta(math.log(math.exp(epsilon) * rate / scale), 1 / multiplier)))


@pytest.mark.parametrize(("multiplier", "rate", "epsilon"), [(1.0, 0.1, 0.05), (0.8, 0.5, 0.4), (2.0, 0.9, 0.3)])
def test_one_step_is_exact(multiplier, rate, epsilon):
    exact = one_step(epsilon, multiplier, rate)
    assert exact <= sampled_delta(epsilon, multiplier, rate, 1) <= exact * 1.001


def test_the_multiplier_keeps_the_promise_and_no_more():
    multiplier = sampled_multiplier(1.0, 1e-5, 0.1, 30)
    assert sampled_delta(1.0, multiplier, 0.1, 30) <= 1e-5
    assert sampled_delta(1.0, 0.999 * multiplier, 0.1, 30) > 1e-5
    assert multiplier < 0.3 * gaussian_sigma(1.0, 1e-5, 1.0) * math.sqrt(30)
    with pytest.raises(dp.NotPrivate, match="not exact enough"):
        sampled_multiplier(1.0, 1e-21, 0.1, 30)


def by_contour(epsilon, multiplier, rate, steps):
    """The exact delta of a record in the first data set: an integral over a line of complex exponents, with no grid of losses."""
    x = np.linspace(-14 * multiplier, 1 + 14 * multiplier, 4001)
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * multiplier**2)))
    density = (1 - rate) * np.exp(-((x / multiplier) ** 2) / 2) + rate * np.exp(-(((x - 1) / multiplier) ** 2) / 2)
    p = density / density.sum()

    def excess(theta):
        weights = p * np.exp(theta * loss)
        return steps * float((weights * loss).sum() / weights.sum()) - epsilon

    theta = brentq(excess, 1e-9, 40.0)
    weights = p * np.exp(theta * loss)
    spread = math.sqrt(steps * float((weights * (loss - epsilon / steps) ** 2).sum() / weights.sum()))
    s = theta + 1j * np.linspace(-12, 12, 1201) / spread
    logs = np.array([np.log1p((p * np.expm1(point * loss)).sum()) for point in s])
    total = np.real((np.exp(steps * logs - s * epsilon) / (s * (s + 1))).sum())
    return float(total * 24 / spread / 1200 / (2 * math.pi))


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps", "epsilon"),
    # The transforms of plain probabilities were wrong by 6 % and more in the first, and more in others.
    [(17.871, 0.3, 300_000, 100.0), (1.5628, 0.01, 1000, 1.0), (2.736, 0.01, 20_000, 4.0)],
)
def test_rounding_is_a_small_part_of_small_deltas(multiplier, rate, steps, epsilon):
    exact = by_contour(epsilon, multiplier, rate, steps)
    assert exact <= sampled_delta(epsilon, multiplier, rate, steps) <= exact * 1.05


# Truncated discrete Laplace noise: its exact profile, its draws, and that no value ever rises
def law(noise):
    """Probabilities of k, to 50 digits."""
    scale = Decimal(noise.scale)
    weights = {k: (-abs(k) / scale).exp() for k in range(-noise.reach, noise.reach + 1)}
    total = sum(weights.values(), Decimal(0))
    return {k: weight / total for k, weight in weights.items()}


def profile(p, moves, epsilon):
    """Exact hockey-stick divergence of the product law from the same moved by so many steps in each coordinate."""
    bound, total = Decimal(epsilon).exp(), Decimal(0)
    for point in itertools.product(p, repeat=len(moves)):
        here = math.prod((p[k] for k in point), start=Decimal(1))
        there = math.prod((p.get(k - move, Decimal(0)) for k, move in zip(point, moves, strict=True)), start=Decimal(1))
        total += max(here - bound * there, Decimal(0))
    return total


def coarse(noise, steps, size):
    """The same calibration on a grid that is coarse enough to enumerate."""
    from dpconvex.certificates.bound_certificate import least_reach

    scale = math.nextafter(steps / noise.epsilon, math.inf)
    reach = least_reach(steps, scale, noise.delta)
    return TruncatedLaplace(noise.epsilon, noise.delta, 1.0, size, steps, scale, reach)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-3), (8.0, 1e-9), (1e-3, 0.3), (0.5, 0.9)])
def test_the_exact_delta_in_one_dimension(epsilon, delta):
    noise = coarse(truncated_laplace(dp.Privacy(epsilon, delta), 1.0, 1), 20, 1)
    with localcontext() as context:
        context.prec = 50
        p = law(noise)
        found = [profile(p, (move,), epsilon) for move in range(-20, 21)]
        assert max(found) <= Decimal(delta)
        assert max(found) - min(found[0], found[-1]) < Decimal("1e-40")  # the farthest neighbours are told apart best
        if noise.reach > noise.sensitivity:  # one step less would not do, so nothing is wasted
            less = TruncatedLaplace(**{**vars(noise), "reach": noise.reach - 1})
            assert profile(law(less), (20,), epsilon) > Decimal(delta) * (1 - Decimal("1e-8"))
        if delta < 0.5:  # a step more is another law: the attack sees it
            assert profile(p, (21,), epsilon) > Decimal(delta)


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("sensitivity", [1.0, 0.3, 7e-5])
def test_rounding_to_the_grid_is_counted(size, sensitivity):
    noise = truncated_laplace(dp.Privacy(1.0, 1e-6), sensitivity, size)
    rng, step = np.random.default_rng(0), Fraction(noise.step)
    for draw in range(200):
        a = rng.uniform(0, 3 * sensitivity, size)
        change = rng.normal(size=size) * (rng.random(size) < 0.3 + 0.7 * (draw % 2))
        b = a + change / max(np.abs(change).sum(), 1e-9) * sensitivity * (1 - 1e-12)
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        moved = sum(abs(math.floor(Fraction(x) / step) - math.floor(Fraction(y) / step)) for x, y in pairs)
        assert moved <= noise.sensitivity
    assert noise.sensitivity * noise.step <= sensitivity * 1.002
    # Closed form of the continuous law, which the grid approaches.
    assert noise.tightening == pytest.approx(sensitivity * math.log1p(math.expm1(1.0) / 2e-6), rel=2e-3)


@pytest.mark.parametrize("seed", [None, 5])
def test_values_never_rise_and_draws_have_the_law(seed):
    noise = coarse(truncated_laplace(dp.Privacy(1.0, 0.05), 1.0, 1), 2, 4000)
    rng = None if seed is None else np.random.default_rng(seed)
    drawn = np.array(noise.draw(rng))
    assert len(drawn) == 4000
    assert np.abs(drawn).max() <= noise.reach
    expected = {k: float(v) for k, v in law(noise).items()}
    for k, probability in expected.items():  # six deviations: never by chance
        assert abs(np.mean(drawn == k) - probability) < 6 * math.sqrt(probability / 4000)
    values, low = np.random.default_rng(1).uniform(3, 9, 4000), np.full(4000, 2.5)
    noisy = noise.tighten(values, low, rng)
    assert ((low <= noisy) & (noisy <= values)).all()
