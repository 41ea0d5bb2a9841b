"""The noise of a private whitening, as certificates show and save it."""

from collections.abc import Iterator
from dataclasses import dataclass

# Records are rounded towards 0 to so many levels for each radius: sums of their products are exact integers.
LEVELS = 2**16


@dataclass(frozen=True)
class WhiteningNoise:
    """Noise on the second moment of the records, for a fit on whitened ones.

    `epsilon` and `delta` are what it takes of the promise, beyond what the fit alone would keep; `level` is how far
    one record moves the second moment, in deviations of the noise, `share` its part of the squared level of both
    stages together, or of the promise if that is divided, and `composed` the level of both stages, if both are
    Gaussian, else 0.  `sensitivity` and `sigma` are in units of the squared radius, in the coordinates of symmetric
    matrices.
    """

    epsilon: float
    delta: float
    level: float
    share: float
    composed: float
    sensitivity: float
    sigma: float
    field: str
    features: int
    radius: float

    @property
    def scale(self) -> float:
        """The deviation of the integer noise on the diagonal; off it, sums have a deviation smaller by sqrt(2)."""
        return self.sigma * float(LEVELS) ** 2

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (constant, value, where it comes from)."""
        yield "whitening sensitivity", f"{self.sensitivity:.6g}", "of the second moment, in squared radii"
        yield (
            "whitening deviation sigma",
            f"{self.sigma:.6g}",
            f"on {self.features} x {self.features} moments of {self.field!r}",
        )
        if self.composed:
            of = f"{100 * self.share:.3g} % of the square of {self.composed:.6g} for both stages"
            yield "whitening level", f"{self.level:.6g}", of
