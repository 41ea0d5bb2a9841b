"""Checks the event of Gaussian objective perturbation: differences of gradients are as many and as long as the graph says."""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from dpconvex.checker.constants import Loss, difference, joint
from dpconvex.checker.exact import ONE, ZERO, root, up
from dpconvex.checker.mechanisms import Claim, curvature_of_people, moved, person, shifts_of
from dpconvex.checker.reading import require
from dpconvex.checker.rows import Rows, multiple
from dpconvex.checker.rules import ends_of

NEAR = 1 + Fraction(1, 10**9)  # for the rounding of the event's numbers
Lengths = Counter[Fraction]


class Kind(NamedTuple):
    """Ordered pairs of neighbours: what bounds the differences of their gradients, in deviations of the noise."""

    bounds: tuple[Fraction, ...]  # of the dimension, the length, and the curvature of the record in front
    vertices: Lengths | None  # how many vertices have each length; None if nobody knows
    behind: Lengths | None  # of the record that is not in front; None if no margin is known
    slopes: tuple[Fraction, ...]  # of the margin in front


def check_event(event: Any, losses: list[Loss], rows: Rows, claim: Claim) -> None:
    """Check that a part of the event has, for each kind of neighbours, differences as many and as long."""
    parts = [event]
    for part in parts:
        parts += part.get("parts", ())
    found, wanted = [part["kinds"] for part in parts if "kinds" in part], kinds(losses, rows, claim)
    whole = any(all(any(covers(hull, kind) for hull in hulls) for kind in wanted) for hulls in found)
    require(whole or not found, "the event has fewer or shorter differences of gradients than the graph")


def kinds(losses: list[Loss], rows: Rows, claim: Claim) -> list[Kind]:
    sigma, mu, (most, weight) = claim["noise_scale"], claim["strong_convexity"], person(claim)
    replaced, found = claim["privacy"]["adjacency"] == "replace-one", []
    together = curvature_of_people(losses, rows, mu, most, weight)
    for front, back in product(losses, losses if replaced else [None]):
        ends = ((),) if back is None else back.vertices
        rank = min(most * (front.rank + (back.rank if back else 0)), front.most)
        vertices = behind = None
        if front.vertices is not None and ends is not None:
            fronts = front.vertices if back else ends_of((*front.vertices, ()))
            vertices = shifts_of(fronts, ends, rows, sigma / weight)
            for shift in vertices:
                vertices[shift] *= 1 if most == 1 else 2 * most - 1 if back and weight < most else most
            behind = Counter(up(root(rows.square(w))[1] / sigma) for w in ends) if most == 1 else None
        length = (
            moved(claim, losses, rows, ZERO) if most > 1 else difference(front, back, rows) if back else front.length
        )
        curved = together if most > 1 else joint(front, rows, ZERO, mu, ZERO)
        slopes = margin(front, rows, sigma)
        found.append(Kind((Fraction(rank), length / sigma, curved), vertices, behind if slopes else None, slopes))
    return found


def margin(front: Loss, rows: Rows, sigma: Fraction) -> tuple[Fraction, ...]:
    """Return the steepest slope of a margin, that of the other sign, and the flattest; nothing where gradients have no margin."""
    vertices = front.vertices or ((),)
    steepest = max(vertices, key=rows.square)
    slopes = [u[0][1] / steepest[0][1] if u else ZERO for u in vertices]
    unit, least = root(rows.square(steepest))[1] / sigma, min(slopes)
    straight = [multiple(steepest, slope) for slope in slopes] == [*vertices]
    return (unit, unit * max(-least, ZERO), unit * max(least, ZERO)) if straight else ()


def covers(hull: dict[str, Any], kind: Kind) -> bool:
    """Whether all that an event says of differences holds for a kind of neighbours."""
    bounds = zip(("dimension", "length", "curvature"), kind.bounds, strict=True)
    holds = all(Fraction(hull[name]) * NEAR >= least for name, least in bounds)
    if hull.get("lengths") is not None:
        holds &= as_many(zip(map(Fraction, hull["lengths"]), map(Fraction, hull["counts"]), strict=True), kind.vertices)
    if hull.get("slopes") is not None:
        up, down, flattest, _ = map(Fraction, hull["slopes"])
        holds &= bool(kind.slopes) and as_many(((Fraction(a), ONE) for a in hull["behind"]), kind.behind)
        holds = holds and flattest <= kind.slopes[2] * NEAR
        holds = holds and max(up, down) * NEAR >= kind.slopes[0] and min(up, down) * NEAR >= kind.slopes[1]
    return holds


def as_many(given: Iterable[tuple[Fraction, Fraction]], known: Lengths | None) -> bool:
    """Whether there are as many lengths as are known, from each length on."""
    have, less = sorted(given, reverse=True), ZERO
    for length, count in sorted((known or {}).items(), reverse=True):
        less -= count
        while have and have[0][0] * NEAR >= length:
            less += have.pop(0)[1]
        if less < 0:
            return False
    return known is not None
