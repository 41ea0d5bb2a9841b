"""The event of Gaussian objective perturbation: what its noise hides of each kind of neighbours, and their curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpconvex.accounting.events import Event, check, is_amount
from dpconvex.accounting.profiles import Profile, table
from dpconvex.errors import TemplateError
from dpconvex.noise.gaussian_profiles import chi_delta, gaussian_delta, logistic_delta, margin_delta


@dataclass(frozen=True)
class Hull:
    """A polytope of differences of gradients of two given records, in units of the noise's standard deviation.

    Attributes
    ----------
    length : float
        Bound on the norm of every vertex.
    curvature : float
        What is charged for the curvature of the record in front, at every vertex.
    lengths, counts : tuple of float, or None
        Norms of the vertices other than 0, and how many have each; None if they are not known.
    ray : tuple of float, or None
        For a logistic record in front: shift, curvature over modulus, and the steepest slope, treated jointly.
    margin : tuple of float, or None
        For a record of one margin that appears, with slopes of one sign: the steepest, by how much they fall at most, and the
        curvature that is charged where they do.
    behind : tuple of float, or None
        For a record that is replaced: norms of the vertices of the other one's gradients, each as often as it occurs.
    """

    length: float
    curvature: float
    lengths: tuple[float, ...] | None
    counts: tuple[float, ...] | None
    ray: tuple[float, float, float] | None = None
    margin: tuple[float, float, float] | None = None
    behind: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Kind:
    """One kind of ordered pair of records: the dimension of the span of their differences, and hulls that hold all of them."""

    dimension: int
    hulls: tuple[Hull, ...]


@dataclass(frozen=True)
class Perturbation(Event):
    """Gaussian objective perturbation: for each kind of neighbours the vertices of their differences, and their curvature."""

    kind: ClassVar[str] = "objective perturbation"
    sigma: float
    kinds: tuple[Kind, ...]

    def __post_init__(self) -> None:
        check(self, sigma=self.sigma)
        numbers = [
            number
            for item in self.kinds
            for hull in item.hulls
            for given in ((hull.length, hull.curvature), hull.lengths, hull.counts, hull.ray, hull.margin, hull.behind)
            for number in given or ()
        ]
        if not (all(map(is_amount, numbers)) and all(item.hulls for item in self.kinds)):
            raise TemplateError("an event of objective perturbation: every number must be finite and at least 0")
        hulls = [hull for item in self.kinds for hull in item.hulls]
        paired = all(len(h.lengths or ()) == len(h.counts or ()) for h in hulls)
        rays = {len(h.ray) for h in hulls if h.ray is not None}
        margins = {len(h.margin) for h in hulls if h.margin is not None}
        if not (paired and rays | margins <= {3}):
            raise TemplateError(
                "an event of objective perturbation: each length has a count, and a ray and a margin have three numbers"
            )

    def delta(self, epsilon: float) -> float:
        """Bound delta over all kinds of neighbours, each by its best hull."""
        return max(
            (min(hull_delta(hull, item.dimension, epsilon)[0] for hull in item.hulls) for item in self.kinds),
            default=0.0,
        )

    def profile(self) -> Profile:
        """The bound of theorem 7, at points; what convexity adds to it matters below the curvature."""
        hulls = [hull for item in self.kinds for hull in item.hulls]
        kinks = tuple(sorted({0.0, *(hull.curvature for hull in hulls)}))[:20]
        length = max((hull.length for hull in hulls), default=0.0)
        return table(self.delta, kinks, length + length * length)

    def __str__(self) -> str:
        longest = max((min(hull.length for hull in item.hulls) for item in self.kinds), default=0.0)
        return f"objective perturbation, sigma = {self.sigma:.4g}, G_adj/sigma = {longest:.4g}"


def hull_delta(hull: Hull, dimension: int, epsilon: float) -> tuple[float, str]:
    """Bound the delta of the differences in one polytope: the smallest bound that holds, and its name."""
    left = epsilon - hull.curvature
    best, how = 1.0, "no bound"
    if left >= 0 and dimension > 0:
        best, how = chi_delta(left, dimension, hull.length), f"chi law in {dimension} dimensions"
    if hull.lengths is not None and hull.counts is not None and (left >= 0 or len(hull.lengths) == 0):
        total = float((np.array(hull.counts) * gaussian_delta(max(left, 0.0), np.array(hull.lengths))).sum())
        number = int(sum(hull.counts))
        if hull.ray is not None:
            total += logistic_delta(epsilon, *hull.ray)
            number += 1
        if total < best:
            best, how = total, f"{number} vertices{' (one joint with curvature)' if hull.ray is not None else ''}"
    if hull.ray is not None:
        total = ray_delta(hull, hull.ray, epsilon)
        if total < best:
            best, how = total, "slope and curvature jointly, beside each vertex of the other record"
    if hull.margin is not None:
        total = margin_delta(epsilon, *hull.margin)
        if total < best:
            best, how = total, "one margin, curved where its slope moves"
    return min(best * (1 + 1e-12), 1.0), how


def ray_delta(hull: Hull, ray: tuple[float, float, float], epsilon: float) -> float:
    """Bound the delta of a logistic record beside 0 and each vertex of the other one; 1 where they are not known."""
    if hull.behind is None and (hull.lengths is None or len(hull.lengths) > 0):
        return 1.0
    ends, times = np.unique((0.0, *(hull.behind or ())), return_counts=True)
    vertices = zip(ends.tolist(), times.tolist(), strict=True)
    return sum(count * logistic_delta(epsilon, *ray, behind=end) for end, count in vertices)
