"""The event of Gaussian objective perturbation: what its noise hides of each kind of neighbours, and their curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpconvex.accounting.events import Event, check, is_amount
from dpconvex.accounting.profiles import Profile, table
from dpconvex.errors import TemplateError
from dpconvex.noise.gaussian_profiles import (
    chi_delta,
    gaussian_delta,
    logistic_delta,
    logistic_swing,
    margin_delta,
    swing,
)


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
        For a record of one margin in front: the steepest slopes upward and downward, the flattest slope, and the curvature that
        is charged where its slope moves.
    behind : tuple of float, or None
        For a record that is replaced: norms of the vertices of the other one's gradients, each as often as it occurs.
    """

    length: float
    curvature: float
    lengths: tuple[float, ...] | None
    counts: tuple[float, ...] | None
    ray: tuple[float, float, float] | None = None
    margin: tuple[float, float, float, float] | None = None
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
        if not (paired and rays <= {3} and margins <= {4}):
            raise TemplateError(
                "an event of objective perturbation: each length has a count, a ray has three numbers, and a margin has four"
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
        total = one_margin_delta(hull.margin, epsilon) if hull.behind is None else replaced_delta(hull, epsilon)
        if total < best:
            best, how = total, "one margin, curved where its slope moves"
    return min(best * (1 + 1e-12), 1.0), how


def ray_delta(hull: Hull, ray: tuple[float, float, float], epsilon: float) -> float:
    """Bound the delta of a logistic record beside 0 and each vertex of the other one; 1 where they are not known."""
    if hull.behind is None and (hull.lengths is None or len(hull.lengths) > 0):
        return 1.0
    ends, times = np.unique((0.0, *(hull.behind or ())), return_counts=True)
    vertices = list(zip(ends.tolist(), times.tolist(), strict=True))
    joint = sum(count * logistic_delta(epsilon, *ray, behind=end) for end, count in vertices)
    lengths = np.concatenate([ends, ends + ray[0] * ray[2]])
    moving = float((gaussian_delta(epsilon, lengths) * np.tile(times, 2)).sum())
    if moving < joint:
        moving += sum(count * logistic_swing(epsilon, *ray, behind=end) for end, count in vertices)
    return min(joint, moving)


def one_margin_delta(margin: tuple[float, float, float, float], epsilon: float) -> float:
    """Bound the delta of a record of one margin that appears, or disappears; 1 where there is no bound."""
    up, down, flattest, curvature = margin
    if min(up, down) == 0:
        return margin_delta(epsilon, max(up, down), max(up, down) - flattest, curvature)
    if max(up, down) ** 2 / 2 + curvature > epsilon:
        return 1.0  # slopes of both signs count together then
    appears = max(margin_delta(epsilon, end, end, curvature) for end in {up, down})
    return max(appears, float(gaussian_delta(epsilon, np.array([up, down])).sum()))


def replaced_delta(hull: Hull, epsilon: float) -> float:
    """Bound the delta of a record of one margin that takes another's place; 1 where there is no bound."""
    if hull.margin is None or hull.behind is None or hull.lengths is None or hull.counts is None:
        return 1.0
    up, down, flattest, curvature = hull.margin
    total = float((np.array(hull.counts) * gaussian_delta(epsilon, np.array(hull.lengths))).sum())
    ends, times = np.unique(hull.behind, return_counts=True)
    for steepest in (up, down):
        room = steepest - flattest if min(up, down) == 0 else steepest
        for end, count in zip(ends.tolist(), times.tolist(), strict=True):
            total += count * swing(epsilon, steepest, room, curvature, end)
    return total
