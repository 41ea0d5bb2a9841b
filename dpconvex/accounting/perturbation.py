"""The event of Gaussian objective perturbation: what its noise hides of each kind of neighbours, and their curvature."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpconvex.accounting.events import Event, is_amount
from dpconvex.errors import TemplateError
from dpconvex.noise.gaussian_profiles import chi_delta, gaussian_delta, swing
from dpconvex.noise.profiles import Profile, table


@dataclass(frozen=True)
class Hull:
    """The differences of gradients of one kind of ordered pairs of records, in units of the noise's standard deviation.

    `dimension`: of the span of the differences of two given records; `length`: bound on the norm of every difference;
    `curvature`: what is charged for the curvature of the record in front; `lengths` and `counts`: norms of the vertices
    other than 0, and how many have each; None if they are not known; `slopes`: for a record of one margin in front: the
    steepest slopes upward and downward, the flattest slope, and curvature over modulus if it is a logistic one, else 0;
    `behind`: for such a record: norms of the vertices of the other one's gradients, each as often as it occurs; 0 if there
    is none.
    """

    dimension: int
    length: float
    curvature: float
    lengths: tuple[float, ...] | None = None
    counts: tuple[float, ...] | None = None
    slopes: tuple[float, float, float, float] | None = None
    behind: tuple[float, ...] | None = None

    def delta(self, epsilon: float) -> tuple[float, str]:
        """Return the smallest bound on delta that holds, and its name."""
        left = epsilon - self.curvature
        best, how = 1.0, "no bound"
        if left >= 0 and self.dimension > 0:
            best, how = chi_delta(left, self.dimension, self.length), f"chi law in {self.dimension} dimensions"
        if self.lengths is None or self.counts is None:
            return min(best * (1 + 1e-12), 1.0), how
        counts, lengths = np.array(self.counts), np.array(self.lengths)
        if left >= 0 or not len(lengths):
            total = float((counts * gaussian_delta(max(left, 0.0), lengths)).sum())
            if total < best:
                best, how = total, f"{int(counts.sum())} vertices"
        if self.slopes is not None and self.behind is not None:
            up, down, flattest, ratio = self.slopes
            total = float((counts * gaussian_delta(epsilon, lengths)).sum())
            ends, times = np.unique(self.behind, return_counts=True)
            for steepest in (up, down):
                for end, count in zip(ends.tolist(), times.tolist(), strict=True):
                    least = flattest if min(up, down) == 0 else 0.0
                    total += count * swing(epsilon, steepest, least, self.curvature, ratio, end)
            if total < best:
                best, how = total, "one margin, curved where its slope moves"
        return min(best * (1 + 1e-12), 1.0), how


@dataclass(frozen=True)
class Perturbation(Event):
    """Gaussian objective perturbation: the differences of each kind of neighbours, and their curvature."""

    kind: ClassVar[str] = "objective perturbation"
    sigma: float
    kinds: tuple[Hull, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for hull in self.kinds:
            parts = (hull.length, hull.curvature), hull.lengths, hull.counts, hull.slopes, hull.behind
            numbers = [number for part in parts for number in (() if part is None else part)]
            paired = (hull.lengths is None) == (hull.counts is None) and len(hull.lengths or ()) == len(
                hull.counts or ()
            )
            if not (all(map(is_amount, numbers)) and paired and hull.dimension >= 0):
                raise TemplateError(
                    "an event of objective perturbation: numbers are finite and at least 0, and each length has a count"
                )

    def delta(self, epsilon: float) -> float:
        """Bound delta over all kinds of neighbours."""
        return max((hull.delta(epsilon)[0] for hull in self.kinds), default=0.0)

    def profile(self) -> Profile:
        """The bound of theorem 7, at points; what convexity adds to it matters below the curvature."""
        kinks = tuple(sorted({0.0, *(hull.curvature for hull in self.kinds)}))[:20]
        length = max((hull.length for hull in self.kinds), default=0.0)
        return table(self.delta, kinks, length + length * length)

    def __str__(self) -> str:
        longest = max((hull.length for hull in self.kinds), default=0.0)
        return f"objective perturbation, sigma = {self.sigma:.4g}, G_adj/sigma = {longest:.4g}"
