"""Truncated discrete Laplace noise: its exact profile, its draws, and that no value ever rises."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.certificates.bound_certificate import TruncatedLaplace, truncated_laplace


def law(noise):
    """Probabilities of k, to 50 digits."""
    scale = Decimal(noise.scale)
    weights = {k: (-abs(k) / scale).exp() for k in range(-noise.reach, noise.reach + 1)}
    total = sum(weights.values(), Decimal(0))
    return {k: weight / total for k, weight in weights.items()}


def profile(p, moves, epsilon):
    """Exact hockey-stick divergence of the product law from the same moved by so many steps in each coordinate."""
    bound = Decimal(epsilon).exp()
    total = Decimal(0)
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
    values = np.random.default_rng(1).uniform(3, 9, 4000)
    low = np.full(4000, 2.5)
    noisy = noise.tighten(values, low, rng)
    assert (noisy <= values).all()
    assert (noisy >= low).all()
