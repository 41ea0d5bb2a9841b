"""Certificates of private bounds: truncated discrete Laplace noise only lowers the bounds (docs/theory.md, section 19)."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, Self, cast

import numpy as np

from dpconvex.certificates.derivation import Derivation
from dpconvex.certificates.text import Printed, Rows, guarantee_text, meaning_text
from dpconvex.errors import NotPrivate
from dpconvex.model.privacy import Privacy
from dpconvex.noise.discrete import LAPLACE, discrete_laplace, measurement
from dpconvex.numerics import TAIL_SLACK, float_down
from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array
from dpconvex.util.plain_data import build

FINENESS = 1024  # Grid steps per sensitivity and entry: rounding adds less than a thousandth of the sensitivity
LONGEST = 2**62  # Largest integer drawn: OpenDP's integers have 64 bits
SOURCE = "Muñoz Medina, Syed, Vassilvitskii & Vitercik 2021; docs/theory.md, section 19"
ASSUMED = (
    "The declared sensitivity and minimum hold for all data; the computation of the values is not checked. Sums in floating "
    "point can move by more than one person's share: add up whole numbers of a small unit.",
    "The solver works on noisy and public values alone; how long it takes depends on nothing else.",
)


@dataclass(frozen=True)
class TruncatedLaplace:
    """Independent noise for the entries of one private bound, with the bound's share of the guarantee."""

    epsilon: float
    delta: float
    step: float  # Grid step, a power of two, in the unit of the values
    size: int
    sensitivity: int  # Largest sum of absolute changes, in steps
    scale: float  # In steps
    reach: int  # Values fall by `reach` steps on average, and by less than 2 * reach + 1

    @property
    def tightening(self) -> float:
        return self.reach * self.step

    @property
    def holds(self) -> bool:
        near = self.sensitivity <= min(self.epsilon * self.scale, self.reach)
        return near and excess(self.sensitivity, self.scale, self.reach) <= self.delta

    def draw(self, rng: np.random.Generator | None = None) -> list[int]:
        """Draw an integer k for each entry from the exact discrete Laplace distribution, conditioned on |k| <= `reach`."""
        exact = measurement(LAPLACE, self.scale)
        kept: list[int] = []
        while len(kept) < self.size:
            drawn = exact([0] * self.size) if rng is None else discrete_laplace(self.scale, self.size, rng).tolist()
            kept += [k for k in drawn if abs(k) <= self.reach]
        return kept[: self.size]

    def tighten(self, values: Array, minimum: Array, rng: np.random.Generator | None = None) -> Array:
        """Return noisy values between `minimum` and the true values, of the same shape and nowhere below `minimum`."""
        step = Fraction(self.step)
        steps = [math.floor(Fraction(v) / step) for v in values.ravel().tolist()]
        noisy = [float_down((s + k - self.reach) * step) for s, k in zip(steps, self.draw(rng), strict=True)]
        return np.maximum(np.reshape(np.array(noisy, dtype=float), values.shape), minimum)


def truncated_laplace(privacy: Privacy, sensitivity: float, size: int) -> TruncatedLaplace:
    """Return calibrated noise for `size` values with this l1 sensitivity, in their unit."""
    if privacy.pure:
        why = "noise that only lowers bounds cannot keep delta = 0: some releases are impossible under a neighbour"
        raise NotPrivate(why, f"delta = {privacy.delta:g}", "ask for a small delta")
    step = 2.0 ** math.floor(math.log2(sensitivity / (FINENESS * size)))
    # |floor(a) - floor(b)| < |a - b| + 1 in each entry, so the changes sum to an integer below ceil(sensitivity / step) + size.
    moved = math.ceil(Fraction(sensitivity) / Fraction(step)) + size - 1
    scale = math.nextafter(moved / privacy.epsilon, math.inf)
    reach = least_reach(moved, scale, privacy.delta)
    if reach > LONGEST:
        raise NotPrivate("the noise would overflow 64-bit integers", privacy, "ask for a larger epsilon")
    return TruncatedLaplace(privacy.epsilon, privacy.delta, step, size, moved, scale, reach)


def excess(moved: int, scale: float, reach: int) -> float:
    """Return the exact delta, P(K < moved - reach), up to rounding: a ratio of powers of r = exp(-1/scale)."""
    mass = math.exp((moved - reach - 1) / scale) * -math.expm1(-moved / scale)
    return mass / (-math.expm1(-(reach + 1) / scale) - math.exp(-1 / scale) * math.expm1(-reach / scale))


def least_reach(moved: int, scale: float, delta: float) -> int:
    """Return the smallest reach, up to rounding, with ``excess <= delta``, by solving `excess` for r^(reach + 1)."""
    growth = math.log(math.expm1(min(moved / scale, 700.0)) + 2 * delta)
    reach = max(math.floor(scale * (growth - math.log(delta) - math.log1p(math.exp(-1 / scale)))) - 1, moved)
    while excess(moved, scale, reach) * (1 + TAIL_SLACK) > delta:
        reach += max(reach >> 50, 1)
    return reach


@dataclass(frozen=True)
class BoundCertificate(Printed):
    """A proof that noisy bounds, and results computed from them, are private, and that noisy bounds never exceed true ones."""

    privacy: Privacy  # The guarantee
    noises: dict[str, TruncatedLaplace]  # For each bound, the noise and its share of the guarantee
    # Largest computed violation of a noisy bound by the answer: 0 if some point satisfies all bounds strictly at their
    # minimum, otherwise the violation by the solver's answer there
    allowed: float
    derivation: Derivation = field(repr=False)
    assumptions: tuple[str, ...] = ASSUMED

    def __post_init__(self) -> None:
        """Raise if the noise does not keep the guarantee, for example in an edited file."""
        parts = [(noise.epsilon, noise.delta) for noise in self.noises.values()]
        epsilon, delta = map(math.fsum, zip(*parts, strict=True))
        kept = all(noise.holds for noise in self.noises.values()) and epsilon <= self.privacy.epsilon
        require(kept and delta <= self.privacy.delta, f"the noise of the bounds does not keep {self.privacy}.")

    def rows(self) -> Rows:
        for name, noise in self.noises.items():
            yield f"sensitivity of {name}", f"{noise.sensitivity * noise.step:.6g}", "on the grid, sum over entries"
            yield f"tightening of {name}", f"{noise.tightening:.6g}", "on average; at most twice that"
        if self.allowed:
            said = "at most: no point satisfies all bounds strictly at their minimum"
            yield "excess over bounds", f"{self.allowed:.3g}", said

    def lines(self) -> Iterator[tuple[str, str]]:
        yield "certificate", "truncated discrete Laplace noise on private bounds, then a solver that sees no data"
        yield "guarantee", guarantee_text(self.privacy)
        yield "privacy unit", f"one person, whose share of each bound is its sensitivity ({self.privacy.adjacency})"
        yield "meaning", meaning_text(self.privacy)
        yield "taken as public", "the whole problem, except the values of the private bounds"
        yield "assumed", "declared sensitivities and minima hold for all data; how values are computed is not checked"
        tightened = ", ".join(f"{name} by {noise.tightening:.3g}" for name, noise in self.noises.items())
        yield "expected error", f"on average tightened: {tightened}; never above the true bounds"
        yield "proof", "explain() prints it"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"privacy": self.privacy.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cast(Self, build(cls, data))


def bound_certificate(privacy: Privacy, bounds: dict[str, tuple[float, int]], texts: list[str]) -> BoundCertificate:
    """Return the certificate of bounds, given as (sensitivity, number of entries); bounds share the guarantee equally."""
    part = 1.0 if len(bounds) == 1 else (1 - 1e-15) / len(bounds)
    share = Privacy(privacy.epsilon * part, privacy.delta * part, privacy.adjacency)
    noises = {name: truncated_laplace(share, *facts) for name, facts in bounds.items()}
    steps = []
    for name, noise in noises.items():
        values = {
            "epsilon": noise.epsilon,
            "delta": excess(noise.sensitivity, noise.scale, noise.reach),
            "sensitivity in steps": float(noise.sensitivity),
            "scale in steps": noise.scale,
            "reach in steps": float(noise.reach),
            "grid step": noise.step,
        }
        steps.append(Derivation("truncated discrete Laplace noise", name, values, "exact delta of integer noise"))
    monotone = "each occurrence of a bound is monotone, by the composition rule"
    safe = Derivation("tightening is safe", "; ".join(texts), {}, monotone)
    root = Derivation("tightened bounds", "", privacy.claims, SOURCE, (*steps, safe))
    return BoundCertificate(privacy, noises, 0.0, root)
