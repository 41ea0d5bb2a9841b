"""The noise of a private clustering, which the certificate of a mixture carries."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpconvex.accounting.events import Event, Gaussian, Pure
from dpconvex.noise.samplers import SPHERICAL, Spherical
from dpconvex.numerics import NORM_SLACK


@dataclass(frozen=True)
class ClusteringNoise:
    """Noise on counts and sums of records, for a private clustering that a fit builds on, with its share of the guarantee."""

    noise: str  # "gaussian", independent entries, or "gamma": for every cell density proportional to exp(-||b||/scale)
    epsilon: float
    delta: float
    rounds: int
    classes: int
    components: int  # Centres of every class
    features: int
    radius: float  # Bounds the norm of records
    weight: float  # A count is one more entry of a sum, times this
    sensitivity: float  # Of one round, in the Euclidean norm for Gaussian noise, else in the sum of those over cells
    scale: float  # The deviation of each entry or 1/beta
    step: float  # Of the grid that records and noise are rounded to before they are added up, a power of two

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
