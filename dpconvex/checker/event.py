"""Checks the event of Gaussian objective perturbation: differences of gradients are as many and as long as the graph says."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from dpconvex.checker.constants import Claim, Loss
from dpconvex.checker.exact import ONE, ZERO
from dpconvex.checker.gaussian import Lengths, PairKind, kinds
from dpconvex.checker.reading import require
from dpconvex.checker.rows import GeneratorRows

NEAR = 1 + Fraction(1, 10**9)  # for the rounding of the event's numbers


def check_event(event: Any, losses: list[Loss], rows: GeneratorRows, claim: Claim) -> None:
    """Check that one part of the event is of this noise, and has for each kind of neighbours differences as many and as long."""
    found = [part for part in parts_of(event) if "kinds" in part]
    sigma = claim["noise_scale"]
    same = len(found) == 1 and sigma <= Fraction(found[0]["sigma"]) * NEAR <= sigma * NEAR**2
    require(same, "the event is not of this noise")
    enough = all(any(covers(hull, kind) for hull in found[0]["kinds"]) for kind in kinds(losses, rows, claim))
    require(enough, "the event has fewer or shorter differences of gradients than the graph")


def parts_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an event and the parts that it is composed of, whatever they are composed of in turn."""
    parts = [event]
    for part in parts:
        parts += part.get("parts", ())
    return parts


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
        holds &= as_many(((Fraction(length), ONE) for length in hull["behind"]), kind.behind)
        holds &= flattest <= flat * NEAR and max(up, down) * NEAR >= steep and min(up, down) * NEAR >= other
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
