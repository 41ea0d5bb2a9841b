"""Delta of Gaussian noise on vectors, and on objectives for each kind of neighbours (docs/theory.md, section 7).

The event of a release must have at least as many differences of gradients as the graph, and at least as long ones.
"""

import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

from dpconvex.checker.constants import MOST_PAIRS, Claim, Loss, curvature_of_people, difference, joint, moved, person
from dpconvex.checker.exact import ONE, PI, ZERO, chi_tail, down, exp, log, normal_tail, root, up
from dpconvex.checker.reading import cached, require, spend
from dpconvex.checker.rows import GeneratorRows, multiple
from dpconvex.checker.scalar_bounds import Hull, ends_of

SLICES, HALVINGS = 60, 30  # For moving slopes: slices of their range, and bisections
# Cells of the chi distribution: width of the first, growth of later ones, and relative mass of the tail that is cut off.
WIDTH, GROWTH, CUT = Fraction(1, 400), Fraction(26, 25), Fraction(1, 10**8)
SHORT = 36  # Bits of rounded lengths: the calculus rounds up further
NEAR = 1 + Fraction(1, 10**9)  # Relative tolerance for rounding of the event's numbers
Lengths = tuple[tuple[Fraction, int], ...]  # Pairs (length, count), largest first


@cached
def gaussian_delta(epsilon: Fraction, shift: Fraction) -> Fraction:
    """Return the exact delta of a Gaussian mechanism (Balle & Wang 2018, theorem 8), rounded up."""
    spend(20)
    first, second = normal_tail(epsilon / shift - shift / 2), normal_tail(epsilon / shift + shift / 2)
    return max(first[1] - exp(epsilon)[0] * second[0], ZERO)


def chi_delta(epsilon: Fraction, dimension: int, shift: Fraction) -> Fraction:
    """Bound ``E[(1 - exp(epsilon - shift t - shift^2/2))_+]`` for t the norm of `dimension` standard normals (theorem 7, *chi*).

    It is the integral of ``shift exp(-shift (t - start)) P[norm > t]``; tangents of the logarithm bound the second factor.
    """
    start = down(epsilon / shift - shift / 2, 64)
    if start <= 0 or dimension == 0:
        return ONE if dimension else ZERO
    found, half, left, end = ZERO, WIDTH / 2, ONE, start
    while left > CUT * found:
        middle = end + half
        tail, hazard = chi_tail(middle, dimension)
        before, after = shift + hazard[1], shift + hazard[0]
        halves = (exp(before * half)[1] - 1) / before + (1 - exp(-after * half)[0]) / after
        found = up(found + shift * exp(-shift * (middle - start))[1] * tail[1] * halves)
        left, end, half = tail[1], middle + half, up(half * GROWTH, 64)
    return up(found + left)


class PairKind(NamedTuple):
    """One kind of ordered pairs of neighbours: bounds on differences of gradients, in standard deviations of the noise."""

    bounds: tuple[Fraction, ...]  # of dimension and length, and of the first record's curvature
    vertices: Lengths | None  # lengths of vertices, or None if unknown
    behind: Lengths  # lengths of the second record's vertices
    # If the first record's gradients are slopes times one row: the largest slope, the largest of the other sign, the smallest,
    # and for a logistic loss the largest curvature over s (1 - s) at s times the largest slope, otherwise 0.  Empty otherwise.
    slopes: tuple[Fraction, ...]

    def delta(self, epsilon: Fraction, enough: Fraction) -> Fraction:
        """Bound delta of these pairs by vertices, and if that exceeds `enough`, also by moving slopes, and by the chi law."""
        rank, length, curved = self.bounds
        left, found = epsilon - curved, ONE
        if self.vertices is not None and left >= 0:
            found = of_vertices(left, self.vertices)
        if self.vertices is not None and self.slopes and found > enough:
            found = min(found, of_vertices(epsilon, self.vertices) + moving(self, epsilon))
        if found > enough and left > 0:
            found = min(found, chi_delta(left, int(rank), up(length, 64)))
        return found


def perturbation_delta(
    losses: list[Loss], rows: GeneratorRows, claim: Claim, epsilon: Fraction, enough: Fraction
) -> Fraction:
    """Bound delta over all kinds of neighbours; bounds of at most `enough` are not improved."""
    adjacency, (most, weight) = claim["privacy"]["adjacency"], person(claim)
    if weight == most > 1:  # compose rows, each with an equal part of epsilon
        part = epsilon / most
        single = [claim | {"privacy": {"adjacency": a}} for a in {"add-remove", adjacency}]
        grown = sum((exp(k * part)[1] for k in range(most)), ZERO)
        delta = grown * max(perturbation_delta(losses, rows, one, part, enough / grown) for one in single)
        if delta <= enough:
            return delta
    return max(kind.delta(epsilon, enough) for kind in kinds(losses, rows, claim))


def kinds(losses: list[Loss], rows: GeneratorRows, claim: Claim) -> list[PairKind]:
    sigma, mu, (most, weight) = claim["noise_scale"], claim["strong_convexity"], person(claim)
    replaced, found = claim["privacy"]["adjacency"] == "replace-one", list[PairKind]()
    together, farthest = curvature_of_people(losses, rows, mu, most, weight), moved(claim, losses, rows, ZERO) / sigma
    # Some of a person's records may be added or removed while others are replaced.
    backs = [*([None] if most > 1 or not replaced else []), *(losses if replaced else [])]
    terms = 1 if most == 1 else 2 * most - 1 if replaced and weight < most else most
    rank = min(most * (1 + replaced) * max(loss.rank for loss in losses), losses[0].most)  # records may be of any kinds
    for front in losses:
        curved = joint(front, rows, ZERO, mu)
        for back in backs:
            spend(10)
            ends = ((),) if back is None else back.vertices
            vertices: Lengths | None = None
            behind: Lengths = ()
            if front.vertices is not None and ends is not None and len(front.vertices) * len(ends) <= MOST_PAIRS:
                fronts = front.vertices if back else ends_of((*front.vertices, ()))  # 0 stands for the absent record
                apart = shifts_of(rows.all_apart(frozenset((fronts, ends))), sigma / weight, terms)
                vertices = tuple(pair for pair in apart if pair[0])
                behind = shifts_of(Counter(map(rows.square, ends)), sigma)
            if most > 1:
                if losses[0].most == 1:  # an interval, with two ends
                    vertices = ((farthest, 2),)
                found.append(PairKind((Fraction(rank), farthest, together), vertices, (), ()))
                continue
            length = difference(front, back, rows) if back else front.length
            rank = min(front.rank + (back.rank if back else 0), front.most)
            slopes = () if vertices is None else margin(front.vertices or ((),), front, rows, sigma, mu)
            found.append(PairKind((Fraction(rank), length / sigma, curved), vertices, behind, slopes))
    return [*dict.fromkeys(found)]


def margin(vertices: Hull, front: Loss, rows: GeneratorRows, sigma: Fraction, mu: Fraction) -> tuple[Fraction, ...]:
    """Return `PairKind.slopes` of a loss; empty if its gradients are not multiples of one row."""
    lead, pieces = front.scalar.lead, front.scalar.pieces
    steepest = max(vertices, key=rows.square)
    slopes = [u[0][1] / steepest[0][1] if u else ZERO for u in vertices]
    if [multiple(steepest, slope) for slope in slopes] != [*vertices]:
        return ()
    square, bend = rows.square(steepest), ZERO
    if lead and not pieces[0].outer and {*pieces[0].hull} == {(), multiple(steepest, 1 / lead)}:
        bend = pieces[0].spread * square / lead**2 / mu
    unit, least = root(square)[1] / sigma, min(slopes)
    return unit, unit * max(-least, ZERO), unit * max(least, ZERO), bend


def shifts_of(squares: Counter[Fraction], sigma: Fraction, terms: int = 1) -> Lengths:
    """Return lengths in standard deviations with counts, rounded up so that lengths equal up to rounding coincide."""
    found = Counter[Fraction]()
    for square, count in squares.items():
        found[deviations(square, sigma)] += terms * count
    return tuple(sorted(found.items(), reverse=True))


@cached
def deviations(square: Fraction, sigma: Fraction) -> Fraction:
    spend(10)
    return up(root(max(square, ZERO))[1] / sigma, SHORT)


def of_vertices(epsilon: Fraction, shifts: Lengths) -> Fraction:
    return sum((n * gaussian_delta(epsilon, shift) for shift, n in shifts), ZERO)


def moving(kind: PairKind, epsilon: Fraction) -> Fraction:
    """Bound the delta that curvature adds if gradients are slopes times one row (docs/theory.md, section 7, one margin)."""
    (steepest, other, flattest, bend), curved, total = kind.slopes, kind.bounds[2], ZERO
    for least, steep in ((flattest, steepest), (ZERO, other)):
        for k in range(SLICES if steep > least else 0):
            first, last = (least + (steep - least) * m / SLICES for m in (k, k + 1))
            s = min(max(steepest / 2, first), last) / steepest
            most = up(min(curved, log(1 + bend * s * (1 - s))) if bend else curved, 64)
            for end, count in kind.behind if most else ():
                spend(1)
                total += count * (last - first) * falling_slope_delta(epsilon, up(last + end, 64), most)
    return total


def falling_slope_delta(epsilon: Fraction, length: Fraction, curved: Fraction) -> Fraction:
    """Bound the delta that curvature adds per unit by which a slope falls: S in docs/theory.md, section 7."""
    spend(30)
    base = length**2 / 2 + curved - epsilon
    low = max(-base / length, ZERO)
    high = max((curved - base) / length, low)
    slope, start, near, far = map(float, (length, base, low, high))
    for _ in range(HALVINGS):  # guess the maximiser of a log-concave function
        middle = (near + far) / 2
        near, far = (middle, far) if middle * math.expm1(min(slope * middle + start, 700)) < slope else (near, middle)
    for end in (Fraction(2 * near - far), Fraction(2 * far - near)):
        guess = min(max(end, low), high)  # the maximiser may be the end itself, which rounding exceeds
        steep = [guess * (grown - 1) for grown in exp(length * guess + base)]
        low, high = (guess if steep[1] < length else low), (guess if steep[0] >= length else high)
    gained = (1 - 1 / exp(min(length * high + base, curved))[1]) / (1 - 1 / exp(curved)[0])
    return up(gained * exp(-(low**2) / 2)[1] / root(2 * PI[0])[0])


def check_event(event: Any, losses: list[Loss], rows: GeneratorRows, claim: Claim) -> None:
    """Check that exactly one part of the event is of this noise, and that it covers each kind of neighbours."""
    found = [part for part in event_parts(event) if "kinds" in part]
    sigma = claim["noise_scale"]
    same = len(found) == 1 and sigma <= Fraction(found[0]["sigma"]) * NEAR <= sigma * NEAR**2
    require(same, "the event is not of this noise")
    enough = all(any(covers(hull, kind) for hull in found[0]["kinds"]) for kind in kinds(losses, rows, claim))
    require(enough, "the event has fewer or shorter differences of gradients than the graph")


def event_parts(event: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an event and all of its nested parts."""
    parts = [event]
    for part in parts:
        parts += part.get("parts", ())
    return parts


def covers(hull: dict[str, Any], kind: PairKind) -> bool:
    """Return whether an event's numbers are upper bounds for a kind of neighbours, up to rounding."""
    spend(3 + len(hull.get("lengths") or ()))
    bounds = zip(("dimension", "length", "curvature"), kind.bounds, strict=True)
    holds = all(Fraction(hull[name]) * NEAR >= least for name, least in bounds)
    if hull.get("lengths") is not None:
        holds &= as_many(zip(map(Fraction, hull["lengths"]), map(Fraction, hull["counts"]), strict=True), kind.vertices)
    if hull.get("slopes") is not None:
        if not kind.slopes:
            return False
        (*ends, flattest, ratio), (steep, other, flat, bend) = map(Fraction, hull["slopes"]), kind.slopes
        holds &= as_many(((Fraction(length), ONE) for length in hull["behind"]), kind.behind)
        holds &= flattest <= flat * NEAR and max(ends) * NEAR >= steep and min(ends) * NEAR >= other
        holds &= ratio == 0 or ratio * NEAR >= bend > 0  # without a ratio all curvature counts at every slope
    return holds


def as_many(given: Iterable[tuple[Fraction, Fraction]], known: Lengths | None) -> bool:
    """Return whether `given` has at least as many lengths above each length as `known`; False if `known` is None."""
    have, less = sorted(given, reverse=True), ZERO
    for length, count in known or ():
        less -= count
        while have and have[0][0] * NEAR >= length:
            less += have.pop(0)[1]
        if less < 0:
            return False
    return known is not None
