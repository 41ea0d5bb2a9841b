"""The noise has the law that the proofs assume, and comes from where it should.

The statistical tests are seeded, and compare a p-value with 1e-7: with another seed or another NumPy, each would raise
a false alarm once in ten million runs.  Each comes with a wrong law that it must tell from the right one.
"""

import copy
import math
import os
import pickle
from contextlib import suppress
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
from randomgen import ChaCha
from refused import refused
from scipy import stats

import dpconvex as dp
from dpconvex.accounting.events import Composition, Gaussian
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.mechanisms import private_selection
from dpconvex.mechanisms.matrix_noise import noise_bound
from dpconvex.mechanisms.noisy_queries import QueryNoise, choice_weights, noise_scale
from dpconvex.model.privacy import Privacy
from dpconvex.noise import samplers
from dpconvex.noise.gaussian import integer_level
from dpconvex.noise.samplers import SPHERICAL, NoiseSource, gamma_direction, gaussian, in_subspace, seeded_generator
from dpconvex.sensitivity.rank_one_gradients import degrees_of_freedom

ALARM = 1e-7
SIZE = 30_000
SEED = 20261121


@cache  # drawing costs far more than any test of what was drawn
def sample(dimension, scale, seed=SEED, draw=gamma_direction):
    rng = seeded_generator(seed + dimension)
    drawn = np.array([draw(dimension, scale, rng) for _ in range(SIZE)])
    drawn.flags.writeable = False
    return drawn


def norms(b):
    return np.linalg.norm(b, axis=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dimension", "scale"), [(1, 1.0), (10, 3.0), (24, 1.5)])
def test_the_norm_has_a_gamma_law(dimension, scale):
    drawn = norms(sample(dimension, scale))
    assert stats.kstest(drawn, stats.gamma(dimension, scale=scale).cdf).pvalue > ALARM
    for wrong in (stats.gamma(dimension + 1, scale=scale), stats.gamma(dimension, scale=1.1 * scale)):
        assert stats.kstest(drawn, wrong.cdf).pvalue < ALARM


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("dimension", "scale", "draw"), [(2, 1.0, gamma_direction), (10, 3.0, gamma_direction), (6, 2.5, gaussian)]
)
def test_the_direction_is_uniform(dimension, scale, draw):
    """The coordinate t of a uniform direction along any axis has (1 + t)/2 ~ Beta((p-1)/2, (p-1)/2)."""
    half, axes = (dimension - 1) / 2, [*np.eye(dimension)[:2], np.ones(dimension) / np.sqrt(dimension)]
    fit = lambda b, axis: stats.kstest((1 + b / norms(b)[:, None] @ axis) / 2, stats.beta(half, half).cdf).pvalue  # noqa: E731
    for axis in axes:
        assert fit(sample(dimension, scale, draw=draw), axis) > ALARM / len(axes), axis
    # Laplace noise in each coordinate is symmetric, of the right order, and not rotation invariant.
    assert fit(np.random.default_rng(SEED).laplace(size=(SIZE, dimension)), axes[0]) < ALARM


@pytest.mark.parametrize("dimension", [1, 6])
def test_gaussian_noise_is_normal(dimension):
    b = sample(dimension, 2.5, draw=gaussian)
    assert stats.kstest(b.ravel(), stats.norm(scale=2.5).cdf).pvalue > ALARM
    assert stats.kstest(b.ravel(), stats.norm(scale=2.75).cdf).pvalue < ALARM
    assert stats.kstest((norms(b) / 2.5) ** 2, stats.chi2(dimension).cdf).pvalue > ALARM


@pytest.mark.parametrize("sparse", [False, True])
def test_noise_fills_the_subspace_and_nothing_else(sparse):
    dense = np.linalg.qr(np.random.default_rng(1).normal(size=(9, 4)))[0]
    basis, rng = sp.csr_array(dense) if sparse else dense, seeded_generator(SEED)
    e = np.array([in_subspace(basis, gamma_direction(4, 1.0, rng)) for _ in range(2000)])
    assert (e.shape, np.linalg.matrix_rank(e)) == ((2000, 9), 4)
    np.testing.assert_allclose(e @ (np.eye(9) - dense @ dense.T), 0, atol=1e-12)
    assert stats.kstest(norms(e), stats.gamma(4).cdf).pvalue > ALARM


BASES = [np.eye(3)[:, :2] * factor for factor in (2, 1 + 1e-6, 0)]
BASES += [np.array([[1.0, 0.0], [0.0, entry], [0.0, 0.5]]) for entry in (1.0, np.nan)]


@pytest.mark.parametrize("basis", BASES, ids=range(len(BASES)))
def test_a_basis_that_is_not_orthonormal_is_refused(basis):
    for seed in range(20):
        refused(TemplateError, "orthonormal", in_subspace, basis, gamma_direction(2, 1.0, seeded_generator(seed)))


@pytest.mark.parametrize("draw", [gamma_direction, gaussian])
@pytest.mark.parametrize("scale", [0, 0.0, -1.0, np.nan, np.inf, True, "1", None, 1e-310])
def test_refuses_a_scale_that_is_not_positive_and_finite(draw, scale):
    refused(TemplateError, "positive, finite", draw, 3, scale, seeded_generator(0))


@pytest.mark.parametrize("draw", [gamma_direction, gaussian])
def test_noise_beyond_the_floats_is_an_error_and_not_infinity(draw):
    refused(DPConvexError, "overflows", draw, 5000, 1.7e308, seeded_generator(0))


def test_the_words_are_those_of_chacha20():
    """RFC 8439, appendix A.1, test vector 1 (the key stream of an all-zero key)."""
    zero = ChaCha(key=0, counter=0, rounds=samplers.ROUNDS).random_raw(8)
    stream = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert zero.astype("<u8").tobytes().hex().startswith(stream)


def test_the_key_comes_from_the_operating_system(monkeypatch):
    monkeypatch.setattr("dpconvex.noise.samplers.secrets.randbits", {256: 12345}.__getitem__)
    first, second = (gamma_direction(3, 1.0, samplers.system_generator()) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_a_system_generator_cannot_be_duplicated(duplicate):
    rng = samplers.system_generator()
    for thing in (rng, rng.bit_generator):
        refused(DPConvexError, "cannot be copied", duplicate, thing)


@pytest.mark.filterwarnings("ignore:.*fork")  # other packages warn of forks where there are threads
def test_a_fork_draws_no_noise_from_what_it_copied():
    source, seeded = NoiseSource(), NoiseSource(3)
    rng = source.rng
    draws = [
        *(lambda: source.rng, lambda: seeded.rng, lambda: source.seeded, source.apart, source.next),
        *(lambda: source.spending(Privacy(1)), lambda: gaussian(2, 1.0, rng), lambda: gamma_direction(2, 1.0, rng)),
    ]
    child = os.fork()
    if not child:
        refused = 0
        for draw in draws:
            try:
                draw()
            except DPConvexError as error:
                refused += "fork" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(draws)
    for draw in draws:
        draw()


DEPTH = 40


def law(program, patch):
    """Return the exact probability of each outcome, by running a program down all paths of coins; deep ones are left out."""
    found, paths = {}, [()]
    while paths:
        path, taken, weight = paths.pop(), 0, Fraction(1)

        def flip(probability, rng=None, path=path):
            nonlocal taken, weight
            if not 0 < probability < 1:
                return probability == 1
            if taken == len(path):
                raise StopIteration
            heads = path[taken]
            taken, weight = taken + 1, weight * (probability if heads else 1 - probability)
            return heads

        patch.setattr(samplers, "bernoulli", flip)
        try:
            outcome = program()
            found[outcome] = found.get(outcome, Fraction(0)) + weight
        except StopIteration:
            if len(path) < DEPTH:
                paths += [(*path, True), (*path, False)]
    return found


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 7), Fraction(0.3), Fraction(1)])
def test_a_coin_of_an_exponential_is_exact(exponent, monkeypatch):
    found = law(lambda: samplers.bernoulli_exp(exponent, None), monkeypatch)
    assert sum(found.values()) > 1 - Fraction(1, 10**30)
    with mpmath.workdps(60):
        exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        assert abs(mpmath.mpf(found[True].numerator) / found[True].denominator - exact) < 1e-30


def test_whole_numbers_are_equally_likely(monkeypatch):
    class Bytes:
        def __init__(self, value):
            self.values = [value, 0]

        def bytes(self, count):
            return self.values.pop(0).to_bytes(count, "little")

    sources = [Bytes(value) for value in range(8)]
    drawn = [(samplers.uniform_integer(5, source), len(source.values)) for source in sources]
    assert sorted(number for number, left in drawn if left) == [*range(5)]  # not drawn again
    assert all(0 <= samplers.uniform_integer(3, None) < 3 for _ in range(50))
    monkeypatch.setattr(samplers, "uniform_integer", lambda limit, rng: limit - 1)
    assert not samplers.bernoulli(Fraction(2**80 - 1, 2**80), None)


@pytest.mark.parametrize("mistakes", [(0, 1492), (1, 1491), (4, 2, 3)])
def test_a_choice_asks_for_the_exact_probabilities(mistakes, monkeypatch):
    """Counts that no uniform double tells apart: 2^-54 and 0 would be an infinite ratio."""
    epsilon, fewest, asked = 2 * 37.5 / 1491, min(mistakes), set()
    monkeypatch.setattr(private_selection, "bernoulli_exp", lambda exponent, rng: asked.add(exponent) or exponent == 0)
    for first in range(len(mistakes)):
        places = iter([first, *[0] * len(mistakes)])
        monkeypatch.setattr(private_selection, "uniform_integer", lambda limit, rng, places=places: next(places))
        assert mistakes[private_selection.select(mistakes, epsilon, "replace-one", None)] == fewest
    assert set(asked) == {Fraction(epsilon / 2) * (count - fewest) for count in mistakes}


# Noisy queries: as much noise as their level asks for, and none beyond the level that was certified
def test_queries_and_choices_beyond_what_was_certified_are_refused():
    noise, zeros, places = QueryNoise(1.0, seeded_generator(0)), np.zeros(3, int), np.arange(4)
    for level in (0.8, 0.5):
        noise.noisy(zeros, 10.0, level)
    noise.choose(places, places, 1.0, 0.29, 2)
    for ask, *asked in ((noise.noisy, zeros, 10.0, 0.2), (noise.choose, places, places, 1.0, 0.2, 1)):
        refused(DPConvexError, "exceed the certified level", ask, *asked)
    for sensitivity in (math.inf, math.nan, -1.0):
        refused(DPConvexError, "exceed the certified level", QueryNoise(1.0, None).noisy, zeros, sensitivity, 0.5)


def test_levels_that_rounding_would_leave_out_of_their_sum_count():
    noise = QueryNoise(1.0, np.random.default_rng(0))
    noise.noisy(np.zeros(1, dtype=np.int64), 1.0, 1.0)
    nothing, taken = np.zeros(1, dtype=np.int64), list[object]()
    with suppress(DPConvexError):
        for _ in range(20_000):
            taken.append(noise.noisy(nothing, 1.0, 1e-8))
    assert len(taken) <= 10_001  # times 1e-16: the room is 1e-12


def test_noise_is_as_large_as_the_level_asks_for():
    assert integer_level(1.0, 3.0) == math.inf  # the grid takes a variance of 9 (docs/theory.md, section 8)
    for sensitivity in (1.0, 3.5, 2.0**31):
        for level in (1e-3, 0.3, 5.0):
            scale = noise_scale(sensitivity, level)
            assert integer_level(sensitivity, scale) <= level
            assert scale <= np.hypot(sensitivity / level, 3.0) * (1 + 1e-9)
    drawn = QueryNoise(1.0, np.random.default_rng(0)).noisy_symmetric(np.zeros((60, 60), dtype=object), 100.0, 1.0)
    upper = drawn[np.triu_indices(60, 1)]
    assert np.std(np.diag(drawn)) == pytest.approx(100, rel=0.3)
    assert np.std(upper) == pytest.approx(100 / np.sqrt(2), rel=0.06)


# Choices
@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.37, 5.0])
def test_weights_are_exponentials_but_for_fourteen_digits(rate):
    levels = np.random.default_rng(0).integers(0, int(60 / rate) + 2, 200)
    weights = choice_weights(levels, rate)
    with localcontext(prec=50):
        for level, weight in zip(levels.tolist(), weights, strict=True):
            exact = (-Decimal(rate) * min(int(levels.max()) - level, int(40 / rate))).exp() * 2**112
            assert abs(Decimal(weight) / exact - 1) < Decimal("1.5e-14")


def test_draws_have_the_law_of_the_weights():
    noise, levels, rate, owner = QueryNoise(1.0, seeded_generator(3)), np.array([0, 5, 9, 10]), 0.3, np.arange(4)
    weights = np.array(choice_weights(levels, rate), dtype=float)
    found = np.bincount([noise.picked(levels, rate) for _ in range(4000)], minlength=4)
    assert stats.chisquare(found, 4000 * weights / weights.sum()).pvalue > 1e-4
    assert sorted(QueryNoise(9.0, None).choose(np.arange(4), owner, 1.0, 1.0, 10)) == [0, 1, 2, 3]


# Bounds that fall below the exact number if a slack of `numerics.py` is 0


def test_levels_that_add_up_are_rounded_up():
    for levels in np.random.default_rng(0).uniform(0.1, 1.0, (50, 3)).tolist():
        found, _ = Composition(tuple(map(Gaussian, levels))).level()
        assert Fraction(found) ** 2 >= sum(Fraction(level) ** 2 for level in levels)
        scale = 10 * levels[0] + 4
        assert Fraction(integer_level(1.0, scale)) ** 2 * (Fraction(scale) ** 2 - 9) >= 1


def test_a_level_is_no_less_than_steps_and_noise_say():
    learner, steps = dp.load("logistic_regression", features=2), dp.NoisyGradientDescent(clip=0.7, steps=7)
    for epsilon in (0.3, 0.5, 0.7, 0.9, 1.1, 1.3):
        found = dp.verify(learner, dp.Privacy(epsilon, 1e-6), 1000, steps)
        level = next(leaf.mu for leaf in found.event.leaves() if isinstance(leaf, Gaussian))
        assert (Fraction(level) * Fraction(found.noise_scale)) ** 2 >= found.steps * Fraction(found.sensitivity) ** 2


@pytest.mark.parametrize("bits", range(5, 100, 5))
def test_noise_exceeds_its_caps_no_more_often_than_is_said(bits):
    with mpmath.workdps(40):
        for size in (1, 7, 300):
            cap = SPHERICAL["gaussian"].quantile(size, 1.0, 2.0**-bits)
            assert mpmath.gammainc(size / 2, mpmath.mpf(cap) ** 2 / 2, regularized=True) <= 2.0**-bits
        for rows, columns in ((1, 4), (2, 2)):  # of a row, 1 / (1 + |row|^2) has a beta law
            freedom = degrees_of_freedom(rows, columns)
            square = (mpmath.mpf(noise_bound(rows, columns, 1.0, 2.0**-bits)) * 2 / (freedom + columns)) ** 2 / rows
            law = (freedom - rows + 1) / 2, columns / 2
            assert rows * mpmath.betainc(*law, 0, 1 / (1 + square), regularized=True) <= 2.0**-bits
