"""Checks the event of Gaussian objective perturbation: differences of gradients are as many and as long as the graph says."""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from dpconvex.checker.constants import Loss, difference, joint
from dpconvex.checker.exact import ONE, ZERO, root, up
from dpconvex.checker.mechanisms import Claim, curvature_of_people, margin_of, moved, person, shifts_of
from dpconvex.checker.reading import require
from dpconvex.checker.rows import GeneratorRows
from dpconvex.checker.rules import ends_of

NEAR = 1 + Fraction(1, 10**9)  # for the rounding of the event's numbers
Lengths = Counter[Fraction]


class PairKind(NamedTuple):
    """Ordered pairs of neighbours: what bounds the differences of their gradients, in deviations of the noise."""

    bounds: tuple[Fraction, ...]  # of the dimension, the length, and the curvature of the record in front
    vertices: Lengths | None  # how many vertices have each length; None if nobody knows
    behind: Lengths | None  # of the record that is not in front; None if no margin is known
    slopes: tuple[
        Fraction, ...
    ]  # of the margin in front: the steepest, that of the other sign, the flattest, and its bend


def check_event(event: Any, losses: list[Loss], rows: GeneratorRows, claim: Claim) -> None:
    """Check that one part of the event is of this noise, and has for each kind of neighbours differences as many and as long."""
    parts = [event]
    for part in parts:
        parts += part.get("parts", ())
    found = [part for part in parts if "kinds" in part]
    sigma = claim["noise_scale"]
    same = len(found) == 1 and sigma <= Fraction(found[0]["sigma"]) * NEAR <= sigma * NEAR**2
    require(same, "the event is not of this noise")
    enough = all(any(covers(hull, kind) for hull in found[0]["kinds"]) for kind in kinds(losses, rows, claim))
    require(enough, "the event has fewer or shorter differences of gradients than the graph")


def kinds(losses: list[Loss], rows: GeneratorRows, claim: Claim) -> list[PairKind]:
    sigma, mu, (most, weight) = claim["noise_scale"], claim["strong_convexity"], person(claim)
    replaced, found = claim["privacy"]["adjacency"] == "replace-one", list[PairKind]()
    together, farthest = curvature_of_people(losses, rows, mu, most, weight), moved(claim, losses, rows, ZERO) / sigma
    # Of a person some records may stand alone where others are replaced.
    backs = [*([None] if most > 1 or not replaced else []), *(losses if replaced else [])]
    terms = 1 if most == 1 else 2 * most - 1 if replaced and weight < most else most
    for front, back in product(losses, backs):
        ends = ((),) if back is None else back.vertices
        rank = min(most * (front.rank + (back.rank if back else 0)), front.most)
        vertices = behind = None
        if front.vertices is not None and ends is not None:
            fronts = front.vertices if back else ends_of((*front.vertices, ()))
            vertices = shifts_of(fronts, ends, rows, sigma / weight)
            for shift in vertices:
                vertices[shift] *= terms
            behind = Counter(up(root(rows.square(w))[1] / sigma) for w in ends)
        if most > 1:
            if losses[0].most == 1:  # an interval, with two ends
                vertices = Counter({farthest: 2})
            found.append(PairKind((Fraction(rank), farthest, together), vertices, None, ()))
            continue
        length, curved = difference(front, back, rows) if back else front.length, joint(front, rows, ZERO, mu, ZERO)
        slopes = margin(front, rows, sigma, mu)
        found.append(PairKind((Fraction(rank), length / sigma, curved), vertices, behind if slopes else None, slopes))
    return found


def margin(front: Loss, rows: GeneratorRows, sigma: Fraction, mu: Fraction) -> tuple[Fraction, ...]:
    """Return the slopes of a margin and its bend; nothing where gradients have no margin."""
    known = margin_of(front, rows)
    if known is None:
        return ()
    unit, least = root(known.square)[1] / sigma, min(known.slopes)
    return unit, unit * max(-least, ZERO), unit * max(least, ZERO), known.bend / mu


def covers(hull: dict[str, Any], kind: PairKind) -> bool:
    """Whether all that an event says of differences holds for a kind of neighbours."""
    bounds = zip(("dimension", "length", "curvature"), kind.bounds, strict=True)
    holds = all(Fraction(hull[name]) * NEAR >= least for name, least in bounds)
    if hull.get("lengths") is not None:
        holds &= as_many(zip(map(Fraction, hull["lengths"]), map(Fraction, hull["counts"]), strict=True), kind.vertices)
    if hull.get("slopes") is not None:
        if not kind.slopes:
            return False
        (up, down, flattest, ratio), (steep, other, flat, bend) = map(Fraction, hull["slopes"]), kind.slopes
        holds &= (
            as_many(((Fraction(length), ONE) for length in hull["behind"]), kind.behind) and flattest <= flat * NEAR
        )
        holds &= max(up, down) * NEAR >= steep and min(up, down) * NEAR >= other
        holds &= ratio == 0 or ratio * NEAR >= bend > 0  # without a ratio all curvature counts at every slope
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
