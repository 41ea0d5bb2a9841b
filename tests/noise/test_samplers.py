"""The noise has the law that the proofs assume, and comes from where it should.

The statistical tests are seeded, and compare a p-value with 1e-7: with another seed or another NumPy, each would raise
a false alarm once in ten million runs.  Each comes with a wrong law that it must tell from the right one.
"""

from __future__ import annotations

import ast
import copy
import itertools
import os
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st
from randomgen import ChaCha
from scipy import stats

import dpconvex
import dpconvex as dp
from dpconvex.calculus.rank_one_gradients import degrees_of_freedom
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.language.privacy import Privacy
from dpconvex.noise.matrix_variate import matrix_noise
from dpconvex.noise.samplers import (
    ROUNDS,
    NoiseSource,
    gamma_direction,
    gaussian,
    in_subspace,
    seeded_generator,
    system_generator,
)
from dpconvex.release.verify import analyse

ALARM = 1e-7
SIZE = 100_000
SEED = 20261121
Draw = Callable[[int, float, np.random.Generator], np.ndarray]


@cache  # drawing costs far more than any test of what was drawn
def sample(dimension: int, scale: float, seed: int = SEED, draw: Draw = gamma_direction) -> np.ndarray:
    rng = seeded_generator(seed + dimension)
    drawn = np.array([draw(dimension, scale, rng) for _ in range(SIZE)])
    drawn.flags.writeable = False
    return drawn


def norms(b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(b, axis=1)


# The law of gamma_direction.


@pytest.mark.parametrize(("dimension", "scale"), [(1, 1.0), (2, 1.0), (6, 3.0), (55, 1.5)])
def test_the_norm_has_a_gamma_law(dimension: int, scale: float) -> None:
    drawn = norms(sample(dimension, scale))
    fit = stats.kstest(drawn, stats.gamma(dimension, scale=scale).cdf)
    assert fit.pvalue > ALARM, f"seed {SEED + dimension}: {fit}"
    for wrong in (stats.gamma(dimension + 1, scale=scale), stats.gamma(dimension, scale=1.05 * scale)):
        assert stats.kstest(drawn, wrong.cdf).pvalue < ALARM


@pytest.mark.parametrize(
    ("dimension", "scale", "draw"),
    [(2, 1.0, gamma_direction), (3, 1.0, gamma_direction), (10, 1.0, gamma_direction), (6, 2.5, gaussian)],
)
def test_the_direction_is_uniform(dimension: int, scale: float, draw: Draw) -> None:
    """The coordinate t of a uniform direction along any axis has (1 + t)/2 ~ Beta((p-1)/2, (p-1)/2)."""
    b = sample(dimension, scale, draw=draw)
    unit = b / norms(b)[:, None]
    half = (dimension - 1) / 2
    axes = [*np.eye(dimension), np.ones(dimension) / np.sqrt(dimension)]
    for axis in axes:
        fit = stats.kstest((1 + unit @ axis) / 2, stats.beta(half, half).cdf)
        assert fit.pvalue > ALARM / len(axes), f"seed {SEED + dimension}, axis {axis}: {fit}"
    # Laplace noise in each coordinate is symmetric, of the right order, and not rotation invariant.
    laplace = np.random.default_rng(SEED).laplace(size=(SIZE, dimension))
    wrong = laplace / norms(laplace)[:, None]
    assert stats.kstest((1 + wrong @ axes[0]) / 2, stats.beta(half, half).cdf).pvalue < ALARM


def test_norm_and_direction_are_independent() -> None:
    b = sample(3, 1.0)
    radius, height = norms(b), b[:, 0] / norms(b)
    long = radius > np.median(radius)
    assert stats.ks_2samp(height[long], height[~long]).pvalue > ALARM, f"seed {SEED + 3}"
    assert (
        stats.ks_2samp(np.abs(b[long, 0]), np.abs(b[~long, 0])).pvalue < ALARM
    )  # a coordinate does depend on the norm


@pytest.mark.parametrize("dimension", [2, 6])
def test_the_law_is_rotation_invariant(dimension: int) -> None:
    rotation = stats.ortho_group.rvs(dimension, random_state=SEED)
    scale = 3.0 if dimension == 6 else 1.0
    before, after = sample(dimension, scale), sample(dimension, scale, seed=SEED + 1000) @ rotation.T
    for coordinate in range(dimension):
        fit = stats.ks_2samp(before[:, coordinate], after[:, coordinate])
        assert fit.pvalue > ALARM / dimension, f"seeds {SEED + dimension}, {SEED + 1000 + dimension}: {fit}"
    stretched = after * np.linspace(1.0, 1.1, dimension)
    assert stats.ks_2samp(before[:, -1], stretched[:, -1]).pvalue < ALARM


def test_in_one_dimension_the_law_is_laplace() -> None:
    b = sample(1, 1.0)[:, 0]
    fit = stats.kstest(b, stats.laplace.cdf)
    assert fit.pvalue > ALARM, f"seed {SEED + 1}: {fit}"
    assert stats.kstest(b, stats.norm(scale=np.sqrt(2)).cdf).pvalue < ALARM


def test_the_density_ratio_in_one_dimension_is_at_most_its_promise() -> None:
    """Counts in cells: log p(b) - log p(b + 1) is 1/scale away from the centre, the ε of a shift by 1."""
    b = sample(1, 1.0)[:, 0]
    inner = np.histogram(b, bins=np.arange(0.0, 5.0))[0]
    ratio = np.log(inner[:-1] / inner[1:])
    error = np.sqrt(1 / inner[:-1] + 1 / inner[1:])
    assert np.abs((ratio - 1.0) / error).max() < stats.norm.isf(ALARM / 8), f"seed {SEED + 1}: {ratio}"


@pytest.mark.parametrize("dimension", [1, 3])
def test_signs_are_fair_and_independent(dimension: int) -> None:
    negative = sample(dimension, 1.0) < 0
    code = negative @ (1 << np.arange(dimension))
    counts = np.bincount(code, minlength=2**dimension)
    assert stats.chisquare(counts).pvalue > ALARM, f"seed {SEED + dimension}: {counts}"
    assert stats.chisquare(counts + np.eye(2**dimension, dtype=int)[0] * 4000 - 4000 // 2**dimension).pvalue < ALARM


def test_successive_draws_are_independent() -> None:
    b = sample(2, 1.0)
    for first, second in [(b[:-1, 0], b[1:, 0]), (norms(b)[:-1], norms(b)[1:]), (norms(b)[:-1], b[1:, 0])]:
        fit = stats.spearmanr(first, second)
        assert fit.pvalue > ALARM, f"seed {SEED + 2}: {fit}"
    assert stats.spearmanr(b[:-1, 0], b[1:, 0] + 0.05 * b[:-1, 0]).pvalue < ALARM


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.floats(1e-6, 1e6), st.integers(0, 2**32))
def test_the_mean_norm_is_dimension_times_scale(dimension: int, scale: float, seed: int) -> None:
    """The relative deviation of 400 draws is 1/√(400 p); 8 of them are exceeded once in 1e10 by a Gamma law."""
    rng = seeded_generator(seed)
    mean = np.mean([np.linalg.norm(gamma_direction(dimension, scale, rng)) for _ in range(400)])
    assert mean / (dimension * scale) == pytest.approx(1.0, abs=8 / np.sqrt(400 * dimension))


@settings(deadline=None)
@given(st.integers(0, 300), st.floats(1e-300, 1e290), st.integers(0, 2**64))
def test_a_draw_is_a_finite_vector_and_scales_exactly(dimension: int, scale: float, seed: int) -> None:
    b = gamma_direction(dimension, scale, seeded_generator(seed))
    assert b.shape == (dimension,)
    assert b.dtype == np.float64
    assert np.isfinite(b).all()
    unit = gamma_direction(dimension, 1.0, seeded_generator(seed))
    np.testing.assert_allclose(b / scale, unit, rtol=1e-12)


# Gaussian noise, and the subspace.


@pytest.mark.parametrize("dimension", [1, 6])
def test_gaussian_noise_is_normal(dimension: int) -> None:
    b = sample(dimension, 2.5, draw=gaussian)
    assert stats.kstest(b.ravel(), stats.norm(scale=2.5).cdf).pvalue > ALARM, f"seed {SEED + dimension}"
    assert stats.kstest(b.ravel(), stats.norm(scale=2.6).cdf).pvalue < ALARM
    squared = stats.kstest((norms(b) / 2.5) ** 2, stats.chi2(dimension).cdf)
    assert squared.pvalue > ALARM, f"seed {SEED + dimension}: {squared}"


# What mechanisms draw: matrices, and the steps of a descent.


def test_matrices_have_their_law() -> None:
    """Of two rows M: both marginal laws, Wilks' statistic, whose law is exact for two rows, and no preferred direction.

    det(I + MM'/s^2)^-1 is the ratio det(S)/det(S + ZZ') of Wishart matrices with nu and c degrees of freedom, for which
    (1 - w)/w (nu - 1)/c, w its root, has the F law with 2c and 2(nu - 1) (T. W. Anderson, "An introduction to multivariate
    statistical analysis", section 8.4).
    """
    rows, columns, scale = 2, 3, 0.7
    rng = seeded_generator(SEED)
    drawn = np.array([matrix_noise(rows, columns, scale, rng) for _ in range(SIZE)])
    nu = degrees_of_freedom(rows, columns)
    unit = drawn / (scale * (nu + columns) / 2)
    root = np.sqrt(1 / np.linalg.det(np.eye(rows) + unit @ np.swapaxes(unit, 1, 2)))
    law = stats.f(2 * columns, 2 * (nu - 1))
    assert stats.kstest((1 - root) / root * (nu - 1) / columns, law.cdf).pvalue > ALARM, f"seed {SEED}"
    assert stats.kstest((1 - root) / root * (nu - 0.5) / columns, law.cdf).pvalue < ALARM
    freedom = nu - rows + 1
    marginal = stats.f(columns, freedom)
    for row in range(rows):
        square = (unit[:, row] ** 2).sum(axis=1) * freedom / columns
        assert stats.kstest(square, marginal.cdf).pvalue > ALARM, f"seed {SEED}, row {row}"
        assert stats.kstest(1.05 * square, marginal.cdf).pvalue < ALARM
        along = unit[:, row] @ np.ones(columns) / np.linalg.norm(unit[:, row], axis=1) / np.sqrt(columns)
        half = (columns - 1) / 2
        assert stats.kstest((1 + along) / 2, stats.beta(half, half).cdf).pvalue > ALARM, f"seed {SEED}, row {row}"
    turn = np.arctan2(unit[:, 1, 0], unit[:, 0, 0]) / (2 * np.pi) + 0.5  # the direction of a column, in the plane
    assert stats.kstest(turn, stats.uniform.cdf).pvalue > ALARM, f"seed {SEED}"
    assert stats.spearmanr(np.linalg.norm(unit[:-1, 0], axis=1), np.linalg.norm(unit[1:, 0], axis=1)).pvalue > ALARM


def test_steps_of_a_descent_have_normal_noise_in_the_subspace_and_independent() -> None:
    """Without data and constraints, the steps of noisy gradient descent are its noise."""
    W = cp.Variable((2, 2), name="W")
    template = dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice((0, 1))),
        lambda x, y: cp.logistic((W[1 - y] - W[y]) @ x),
        0.0,
        constraints=[cp.norm(W, "fro") <= 1],
    )
    analysis = analyse(template)
    mechanism = dp.NoisyGradientDescent(steps=SIZE, step_size=1.0)
    certificate = mechanism.certify(analysis, dp.Privacy(1.0, 1e-6), 100)
    points: list[np.ndarray] = []

    class Free:
        def loss_gradient(self, theta: np.ndarray) -> np.ndarray:
            return np.zeros_like(theta)

        public_gradient = loss_gradient

        def project(self, theta: np.ndarray) -> np.ndarray:
            points.append(theta)
            return theta

    engine: Any = Free()
    mechanism.run(analysis, certificate, engine, seeded_generator(SEED))
    noise = np.diff(np.array(points), axis=0) @ analysis.form.basis
    rest = np.diff(np.array(points), axis=0) - noise @ analysis.form.basis.T
    sigma = certificate.noise_scale
    assert noise.shape == (SIZE, 2)
    assert np.abs(rest).max() < 1e-9 * np.abs(noise).max()
    for k in range(2):
        assert stats.kstest(noise[:, k], stats.norm(scale=sigma).cdf).pvalue > ALARM, f"seed {SEED}"
        assert stats.kstest(noise[:, k], stats.norm(scale=1.05 * sigma).cdf).pvalue < ALARM
        assert stats.spearmanr(noise[:-1, k], noise[1:, 1 - k]).pvalue > ALARM, f"seed {SEED}"
    assert stats.kstest(norms(noise) / sigma, stats.chi(2).cdf).pvalue > ALARM, f"seed {SEED}"
    turn = np.arctan2(noise[:, 1], noise[:, 0]) / (2 * np.pi) + 0.5
    assert stats.kstest(turn, stats.uniform.cdf).pvalue > ALARM, f"seed {SEED}"


@pytest.mark.parametrize("sparse", [False, True])
def test_noise_fills_the_subspace_and_nothing_else(sparse: bool) -> None:
    dense = np.linalg.qr(np.random.default_rng(1).normal(size=(9, 4)))[0]
    basis = sp.csr_array(dense) if sparse else dense
    rng = seeded_generator(SEED)
    e = np.array([in_subspace(basis, gamma_direction(4, 1.0, rng)) for _ in range(2000)])
    assert e.shape == (2000, 9)
    assert np.linalg.matrix_rank(e) == 4
    np.testing.assert_allclose(e @ (np.eye(9) - dense @ dense.T), 0, atol=1e-12)
    assert stats.kstest(norms(e), stats.gamma(4).cdf).pvalue > ALARM


def test_an_empty_subspace_needs_no_noise() -> None:
    rng = seeded_generator(0)
    assert gamma_direction(0, 1.0, rng).shape == (0,)
    assert gaussian(0, 1.0, rng).shape == (0,)
    np.testing.assert_array_equal(in_subspace(np.zeros((3, 0)), np.zeros(0)), np.zeros(3))


@pytest.mark.parametrize(
    "basis",
    [
        np.eye(3)[:, :2] * 2,
        np.eye(3)[:, :2] * (1 + 1e-6),
        np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.5]]),
        np.array([[1.0, 0.0], [0.0, np.nan], [0.0, 0.0]]),
        np.zeros((3, 2)),
    ],
)
def test_a_basis_that_is_not_orthonormal_is_refused(basis: np.ndarray) -> None:
    for seed in range(20):
        with pytest.raises(TemplateError, match="orthonormal"):
            in_subspace(basis, gamma_direction(2, 1.0, seeded_generator(seed)))


@pytest.mark.parametrize("basis", [np.eye(3), np.ones(2), sp.eye_array(3), "Q", None])
def test_shapes_that_do_not_match_are_refused(basis: object) -> None:
    with pytest.raises(TemplateError, match="shapes"):
        in_subspace(basis, np.ones(2))


@pytest.mark.parametrize("draw", [gamma_direction, gaussian])
@pytest.mark.parametrize("scale", [0, 0.0, -1.0, np.nan, np.inf, True, "1", None, 1e-310])
def test_refuses_a_scale_that_is_not_positive_and_finite(draw: Draw, scale: object) -> None:
    with pytest.raises(TemplateError, match="positive, finite"):
        draw(3, scale, seeded_generator(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [gamma_direction, gaussian])
@pytest.mark.parametrize("dimension", [-1, 1.5, True, "3", None])
def test_refuses_a_dimension_that_is_no_count(draw: Draw, dimension: object) -> None:
    with pytest.raises(TemplateError, match="dimension"):
        draw(dimension, 1.0, seeded_generator(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [gamma_direction, gaussian])
@pytest.mark.parametrize("rng", [np.random, np.random.RandomState(0), 3, None], ids=["global", "old", "seed", "none"])
def test_refuses_what_is_not_a_generator(draw: Draw, rng: object) -> None:
    with pytest.raises(TemplateError, match="global state"):
        draw(3, 1.0, rng)  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [gamma_direction, gaussian])
def test_noise_beyond_the_floats_is_an_error_and_not_infinity(draw: Draw) -> None:
    with pytest.raises(DPConvexError, match="exceeds"):
        draw(5000, 1.7e308, seeded_generator(0))


# Where the noise comes from.


def test_the_words_are_those_of_chacha20() -> None:
    """RFC 8439, section 2.3.2 and appendix A.1, test vector 1 (the key stream of an all-zero key)."""
    zero = ChaCha(key=0, counter=0, rounds=ROUNDS).random_raw(8)
    assert (
        zero.astype("<u8")
        .tobytes()
        .hex()
        .startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    )
    # The counter is in units of 4-byte words; block 1 and the nonce of the standard make up the upper 128 bits.
    nonce = bytes.fromhex("000000090000004a00000000")
    counter = int.from_bytes((1).to_bytes(4, "little") + nonce, "little")
    stream = ChaCha(key=int.from_bytes(bytes(range(32)), "little"), counter=0, rounds=ROUNDS)
    state = stream.state
    state["state"]["ctr"] = np.array([(counter << 4) % 2**64, (counter << 4) >> 64 & (2**64 - 1)], dtype=np.uint64)
    stream.state = state
    block = stream.random_raw(8).astype("<u8").tobytes().hex()
    assert block.startswith("10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e")


def test_the_system_generator_is_chacha_with_a_fresh_full_key() -> None:
    states = [system_generator().bit_generator.state["state"] for _ in range(64)]
    assert {state["rounds"] for state in states} == {20}
    keys = np.array([state["keysetup"] for state in states])
    assert keys.shape == (64, 8)  # 256 bits
    assert len({key.tobytes() for key in keys}) == 64
    # Each of the 256 bits takes both values over 64 keys, except with probability 256 · 2^-63.
    bits = np.unpackbits(keys.view(np.uint8), axis=1)
    assert (bits.min(axis=0) == 0).all()
    assert (bits.max(axis=0) == 1).all()


def test_the_key_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fixed(bits: int) -> int:
        asked.append(bits)
        return 12345

    monkeypatch.setattr("dpconvex.noise.samplers.secrets.randbits", fixed)
    first, second = (gamma_direction(3, 1.0, system_generator()) for _ in range(2))
    assert asked == [256, 256]
    np.testing.assert_array_equal(first, second)


def test_two_draws_from_the_system_differ() -> None:
    drawn = [gamma_direction(4, 1.0, system_generator()) for _ in range(10)]
    assert all((a != b).all() for a, b in itertools.combinations(drawn, 2))


def test_draws_from_the_system_have_the_law_too() -> None:
    drawn = norms(np.array([gamma_direction(3, 1.0, system_generator()) for _ in range(3000)]))
    assert stats.kstest(drawn, stats.gamma(3).cdf).pvalue > 1e-9  # no seed: a rerun draws anew


def test_a_seed_repeats_its_draws_and_another_does_not() -> None:
    first, again, other = (gamma_direction(5, 1.0, seeded_generator(seed)) for seed in (7, np.int64(7), 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


@pytest.mark.parametrize("seed", [None, -1, 1.0, True, "7"])
def test_refuses_a_seed_that_is_not_a_count(seed: object) -> None:
    with pytest.raises(TemplateError, match="seed"):
        seeded_generator(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_a_system_generator_cannot_be_duplicated(duplicate: Callable[[object], object]) -> None:
    rng = system_generator()
    for thing in (rng, rng.bit_generator):
        with pytest.raises(DPConvexError, match="cannot be copied"):
            duplicate(thing)


def test_draws_leave_the_global_state_alone() -> None:
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    for rng in (system_generator(), seeded_generator(1)):
        gamma_direction(5, 1.0, rng)
        gaussian(5, 1.0, rng)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    np.testing.assert_array_equal(before["state"]["key"], after["state"]["key"])
    assert before["state"]["pos"] == after["state"]["pos"]


ALLOWED = {"Generator", "BitGenerator", "SeedSequence", "default_rng"}


def global_randomness(source: str) -> list[str]:
    """Return the uses of generators with global state in a module's text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            found += [] if node.attr in ALLOWED else [ast.unparse(node)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in ("random", "numpy.random")]
        elif isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            found += [alias.name for alias in node.names if node.module == "random" or alias.name not in ALLOWED]
    return found


def test_no_module_uses_global_randomness() -> None:
    package = Path(os.fspath(dpconvex.__file__)).parent
    files = [file for file in package.rglob("*.py") if "problems" not in file.parts]
    files += (package.parent / "benchmarks").rglob("*.py")
    assert package / "noise" / "samplers.py" in files
    assert {str(file): found for file in files if (found := global_randomness(file.read_text("utf-8")))} == {}


@pytest.mark.parametrize(
    "source", ["np.random.seed(1)", "x = np.random.normal()", "import random", "from numpy.random import rand"]
)
def test_the_search_for_global_randomness_finds_it(source: str) -> None:
    assert global_randomness(source)


@pytest.mark.filterwarnings("ignore:.*fork")  # other packages warn of forks where there are threads
def test_a_fork_draws_no_noise_from_what_it_copied() -> None:
    source, seeded = NoiseSource(), NoiseSource(3)
    rng = source.rng
    draws: list[Callable[[], object]] = [
        lambda: source.rng,
        lambda: seeded.rng,
        lambda: source.seeded,
        lambda: source.apart(),
        lambda: source.next(),
        lambda: source.spending(Privacy(1)),
        lambda: gaussian(2, 1.0, rng),
        lambda: gamma_direction(2, 1.0, rng),
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
