"""Noise of a private clustering, in the certificate of a mixture."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpconvex.accounting.events import Event, Gaussian, Pure
from dpconvex.noise.samplers import SPHERICAL, Spherical
from dpconvex.numerics import NORM_SLACK


@dataclass(frozen=True)
class ClusteringNoise:
    """Noise on counts and sums of records, for a private clustering before a fit, with its share of the guarantee."""

    noise: str  # "gaussian" (independent entries), or "gamma" (density for each cell proportional to exp(-||b||/scale))
    epsilon: float
    delta: float
    rounds: int
    classes: int
    components: int  # Number of centres of each class
    features: int
    radius: float  # Upper bound on the norm of records
    weight: float  # Factor on a count, which is one more entry of its cell's sum
    sensitivity: float  # Of one round: the l2 norm for Gaussian noise, the sum of l2 norms over cells for Gamma
    scale: float  # Standard deviation of each entry, or 1/beta
    step: float  # Grid step of records and noise, a power of two, so that their sums are exact

    @property
    def law(self) -> Spherical:
        return SPHERICAL[self.noise]

    @property
    def composed(self) -> float:
        return self.law.composed(self.sensitivity, self.rounds)

    @property
    def event(self) -> Event:
        shift = self.composed / self.scale * (1 + NORM_SLACK)
        return Gaussian(shift) if self.noise == "gaussian" else Pure(self.epsilon)

    @property
    def deviation(self) -> float:
        p = self.features + 1
        return math.sqrt(self.law.square(p, self.scale) / p)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        many = f"{self.rounds} rounds of {self.classes} x {self.components} counts and sums"
        yield "clustering sensitivity", f"{self.sensitivity:.6g}", f"of one round; {self.composed:.6g} for all: {many}"
        said = f"{self.law.name}; {self.deviation / self.weight:.6g} records on a count"
        yield f"clustering noise {self.law.symbol}", f"{self.scale:.6g}", said
