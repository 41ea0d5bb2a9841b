"""Noise distributions of the mechanisms, and their samplers; the mechanisms' proofs bound the rounding of draws."""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
from randomgen import ChaCha
from scipy.special import gammainccinv, poch

from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.model.privacy import Privacy
from dpconvex.noise.gaussian import gaussian_sigma
from dpconvex.numerics import DRAW_TOLERANCE, TAIL_SLACK
from dpconvex.util.arguments import number, whole
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import this_process

ROUNDS = 20


class SystemChaCha(ChaCha):
    """A ChaCha generator with a random secret key.  Copying and pickling raise an error, so the key stays in the process."""

    def __init__(self) -> None:
        super().__init__(key=secrets.randbits(256), rounds=ROUNDS)
        self.process = this_process()

    def __reduce__(self) -> NoReturn:
        why = "a generator of privacy noise cannot be copied, pickled or sent to a worker: its copy would draw the same noise"
        raise DPConvexError(f"{why} again. Draw where the generator was made.")


def system_generator() -> np.random.Generator:
    """Return a fresh generator for one release.  Drawing noise from it in a fork raises an error."""
    return np.random.Generator(SystemChaCha())


def seeded_generator(seed: int) -> np.random.Generator:
    """Return a reproducible generator, for tests and figures: anyone who knows the seed can subtract the noise."""
    whole(0).check("", seed=seed)
    return np.random.Generator(ChaCha(seed=np.random.SeedSequence(int(seed)), rounds=ROUNDS))


class NoiseSource:
    """The source of noise of one release: the operating system, or a seed.  A seeded release is not private."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._rng = system_generator() if seed is None else seeded_generator(seed)
        self._process = this_process()

    @property
    def rng(self) -> np.random.Generator:
        """The generator; raises in a fork of the process that made it."""
        check_process(self._process)
        return self._rng

    @property
    def seeded(self) -> np.random.Generator | None:
        """The generator of integer noise, for tests; None without a seed, when OpenDP draws that noise exactly."""
        rng = self.rng
        return None if self.seed is None else rng

    def apart(self) -> np.random.Generator | None:
        """Return `seeded` as a separate stream, so that draws from it do not change other draws."""
        return None if self.seeded is None or self.seed is None else seeded_generator(self.seed).spawn(1)[0]

    def next(self) -> "NoiseSource":
        """Return a source for one of several fits; its draws do not depend on the order of the fits."""
        return NoiseSource(None if self.seeded is None else int(self.rng.integers(2**63)))

    def spending(self, privacy: Privacy) -> dict[str, Any]:
        seeded = self.seeded is not None
        why = f"the noise was drawn with the seed {self.seed}" if seeded else ""
        return {"spent": None if seeded else privacy, "not_private_because": why}


def uniform_integer(limit: int, rng: np.random.Generator | None) -> int:
    """Draw a uniform integer from 0 to limit - 1, from the operating system or from a seeded generator."""
    if rng is None:
        return secrets.randbelow(limit)
    bits = (limit - 1).bit_length()
    while True:
        drawn = int.from_bytes(rng.bytes((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if drawn < limit:
            return drawn


def bernoulli(probability: Fraction, rng: np.random.Generator | None) -> bool:
    return uniform_integer(probability.denominator, rng) < probability.numerator


def bernoulli_exp(exponent: Fraction, rng: np.random.Generator | None) -> bool:
    """Return True with probability exactly exp(-exponent), in integers (Canonne, Kamath & Steinke 2020, algorithm 1)."""
    while exponent > 1:
        if not bernoulli_exp(Fraction(1), rng):
            return False
        exponent -= 1
    count = 1
    while bernoulli(exponent / count, rng):
        count += 1
    return count % 2 == 1


def gamma_direction(dimension: int, scale: float, rng: np.random.Generator) -> Array:
    """Draw a vector with density proportional to exp(-||b|| / scale).

    Its norm has the Gamma distribution of shape `dimension`; its direction is uniform and independent of the norm
    (Chaudhuri, Monteleoni and Sarwate 2011, algorithms 1 and 2).  In one dimension this is the Laplace distribution.
    """
    check(dimension, scale, rng)
    length = 0.0
    while length == 0:  # the zero vector has no direction
        direction = rng.standard_normal(dimension)
        length = float(np.linalg.norm(direction)) if dimension else 1.0
    return scaled(direction / length, rng.standard_gamma(dimension) * float(scale))


def gaussian(dimension: int, sigma: float, rng: np.random.Generator) -> Array:
    check(dimension, sigma, rng)
    return scaled(rng.standard_normal(dimension), float(sigma))


def check(dimension: int, scale: float, rng: np.random.Generator) -> None:
    whole(0).check("noise", dimension=dimension)
    # Below the smallest normal float, products lose digits, and the noise no longer has its distribution.
    number("a positive, finite number", lambda value: np.finfo(float).tiny <= value < math.inf).check(
        "noise", scale=scale
    )
    if isinstance(rng.bit_generator, SystemChaCha):
        check_process(rng.bit_generator.process)


def check_process(made: tuple[int, int]) -> None:
    """Raise if this process is a fork of the one that made the fit or generator: one payment is for one release."""
    if made != this_process():
        why = "this process is a fork of the one that began the fit, and the fit was charged once"
        raise DPConvexError(f"noise: {why}. Begin a new fit here.")


def scaled(direction: Array, length: float) -> Array:
    """Return ``direction * length``, or raise if it overflows; overflow does not depend on data."""
    with np.errstate(over="ignore", invalid="ignore"):
        noise = np.asarray(direction * length)
    if not np.isfinite(noise).all():
        raise DPConvexError("noise: the draw overflows; the scale is too large for any use.")
    return noise


def in_subspace(basis: Any, b: Array) -> Array:
    result = np.asarray(basis @ b, dtype=float)
    before, after = float(np.linalg.norm(b)), float(np.linalg.norm(result))
    if not abs(after - before) <= DRAW_TOLERANCE * before:
        raise TemplateError("in_subspace: the columns of the basis are not orthonormal, so the noise changed.")
    return result


@dataclass(eq=False)
class Spherical:
    """A spherically symmetric distribution of noise in p dimensions."""

    name: str
    symbol: str  # of the scale
    draw: Callable[[int, float, np.random.Generator], Array]
    calibrate: Callable[[float, float, float], float]  # the scale for epsilon, delta and a sensitivity
    composed: Callable[[float, int], float]  # the sensitivity of several rounds
    mean: Callable[[int, float], float]  # of the norm of p entries with a scale
    square: Callable[[int, float], float]  # the mean of the squared norm
    tail: Callable[[int, float], float]  # the norm, in units of the scale, that noise exceeds with a probability

    def quantile(self, p: int, scale: float, probability: float) -> float:
        return self.tail(p, probability) * scale * (1 + TAIL_SLACK) if p else 0.0


SPHERICAL = {
    # Density proportional to exp(-||b||/scale).  Its logarithm is Lipschitz, so sensitivities of rounds add up.
    "gamma": Spherical(
        "Gamma",
        "1/beta",
        gamma_direction,
        calibrate=lambda epsilon, delta, sensitivity: sensitivity / epsilon,
        composed=lambda sensitivity, rounds: sensitivity * rounds,
        mean=lambda p, scale: p * scale,
        square=lambda p, scale: p * (p + 1) * scale**2,
        tail=lambda p, probability: float(gammainccinv(p, probability)),
    ),
    # Independent normal entries.  Sensitivities of rounds add in quadrature (Dong, Roth & Su 2022, corollary 3.3).
    "gaussian": Spherical(
        "Gaussian",
        "sigma",
        gaussian,
        calibrate=lambda epsilon, delta, sensitivity: gaussian_sigma(epsilon, delta, sensitivity),
        composed=lambda sensitivity, rounds: sensitivity * math.sqrt(rounds),
        mean=lambda p, scale: math.sqrt(2) * float(poch(p / 2, 0.5)) * scale,
        square=lambda p, scale: p * scale**2,
        tail=lambda p, probability: math.sqrt(2 * float(gammainccinv(p / 2, probability))),
    ),
}
