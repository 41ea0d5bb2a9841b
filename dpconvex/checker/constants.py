"""Constants of one record or person: norms of gradients and of differences, curvature, and joint bounds."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product
from math import prod
from typing import Any

from dpconvex.checker.exact import ONE, ZERO, Range, log, pivots, root, up
from dpconvex.checker.reading import Steps, require, spend
from dpconvex.checker.rows import GeneratorRows, Vector, added, multiple
from dpconvex.checker.scalar_bounds import HessianPart, Hull, ScalarBound, Turn, hull_sum, merge_segments

FEW_VERTICES, MOST_PAIRS, STRETCHES = 1024, 2**15, 1_000
MOST_RECORDS = 10**4  # Largest number of records of one person
Claim = dict[str, Any]


@dataclass(frozen=True)
class Loss:
    """Constants of one loss: a bound on gradient norms, and parts of its Hessian with their traces and ranks."""

    scalar: ScalarBound
    vertices: Hull | None
    length: Fraction
    pieces: list[HessianPart]
    traces: list[tuple[Fraction, int]]
    gram: list[list[Fraction]]  # upper bound (Loewner order) on the Gram matrix of rows; empty if unused
    most: int  # dimension of the span of all records' gradients
    rank: int  # dimension of the span of one record's gradients, over all parameters


def loss_constants(scalar: ScalarBound, rows: GeneratorRows, dimension: int, rank: int) -> Loss:
    hulls = merge_segments(scalar.hulls)
    vertices = hull_sum(hulls) if prod(map(len, hulls)) <= FEW_VERTICES and not scalar.ball else None
    if vertices is None:
        Steps.coarse |= not scalar.ball
        longest = [max(map(rows.square, hull)) for hull in hulls]
        pairs = sum((most(rows, one, two, False) for one, two in combinations(hulls, 2)), ZERO)
        together = root(max(sum(longest, ZERO) + 2 * pairs, ZERO))[1]
        length = min(together, sum((root(square)[1] for square in longest), ZERO)) + scalar.ball
    else:
        length = root(max(map(rows.square, vertices)))[1]
    require(length < 2**300, "a gradient is unbounded")
    pieces = merged(scalar.pieces)
    traces = [(trace(piece, rows), min(piece.rank, rank)) for piece in pieces]
    squares = len(pieces) > 1 and all(len(piece.hull) == 1 for piece in pieces)
    gram = rows.dominant([piece.hull[0] for piece in pieces]) if squares else []
    return Loss(scalar, vertices, length, pieces, traces, gram, dimension, rank)


def merged(pieces: tuple[HessianPart, ...]) -> list[HessianPart]:
    """Merge squares of multiples of a row.  The covariance of two points is at most a quarter of their difference squared."""
    found, squares = [], dict[Vector, Fraction]()
    for piece in pieces:
        row, outer = piece.hull[0], piece.outer
        if len(piece.hull) == 2 and not outer:
            row, outer = added(piece.hull[1], row, -ONE), piece.spread / 4
        elif len(piece.hull) > 1:
            found.append(piece)
            continue
        if row:
            line, lead = multiple(row, 1 / row[0][1]), row[0][1]
            squares[line] = squares.get(line, ZERO) + outer * lead**2
    return found + [HessianPart((line,), outer) for line, outer in squares.items()]


def trace(piece: HessianPart, rows: GeneratorRows) -> Fraction:
    """Bound the trace of ``outer g g' + spread Cov(a)``; for the covariance, by distances of the points a from a centre."""
    longest = max(map(rows.square, piece.hull))
    if piece.spread <= piece.outer:
        return up(piece.outer * longest)
    found = piece.spread * longest
    for centre in rows.centres_of(piece.hull):  # outer |a|^2 + (spread - outer) |a - c|^2 for each point a
        more = ((piece.spread - piece.outer) * rows.square_from(a, centre) for a in piece.hull)
        found = min(found, max(piece.outer * rows.square(a) + b for a, b in zip(piece.hull, more, strict=True)))
    return up(found)


def difference(first: Loss, second: Loss, rows: GeneratorRows) -> Fraction:
    """Bound ``||g - g'||`` for gradients of two records."""
    apart = first.length + second.length
    if first.vertices and second.vertices and len(first.vertices) * len(second.vertices) <= MOST_PAIRS:
        return min(apart, root(max(*rows.all_apart(frozenset((first.vertices, second.vertices))), ZERO))[1])
    one, two = (merge_segments(loss.scalar.hulls) for loss in (first, second))
    pairs = sum((most(rows, *pair, True) for pair in product(one, two)), ZERO)
    here, there = first.scalar.ball, second.scalar.ball  # a ball's gradient may oppose the other record's
    pairs += here * (there + lengths(two, rows)) + there * lengths(one, rows) if here or there else 0
    return min(apart, root(max(first.length**2 + second.length**2 + 2 * pairs, ZERO))[1])


def lengths(hulls: tuple[Hull, ...], rows: GeneratorRows) -> Fraction:
    return sum((root(max(map(rows.square, hull)))[1] for hull in hulls), ZERO)


def most(rows: GeneratorRows, one: Hull, two: Hull, cross: bool) -> Fraction:
    """Bound inner products of vertices of two hulls for one record; with `cross`, their negatives for two records."""
    found = [rows.product(u, v, cross) for u in one for v in two]
    return max(-low if cross else high for low, high in found)


def log_det(loss: Loss, mu: Fraction) -> Fraction:
    """Bound ``log det(I + H/mu)``: by traces and ranks of all parts together, of each part, or by the rows' Gram matrix."""
    whole = sum((t for t, _ in loss.traces), ZERO), min(sum(r for _, r in loss.traces), loss.rank)
    found = [spread_out(*whole, mu), sum((spread_out(t, r, mu) for t, r in loss.traces), ZERO)]
    if loss.gram:
        weights = [mu / piece.outer for piece in loss.pieces]
        eliminated = pivots([[a + weights[i] * (i == j) for j, a in enumerate(row)] for i, row in enumerate(loss.gram)])
        found += [] if eliminated is None else [log(prod(eliminated, start=1 / prod(weights, start=ONE)))]
    return min(found)


def spread_out(trace: Fraction, rank: int, mu: Fraction) -> Fraction:
    return rank * log(1 + up(trace / (rank * mu))) if trace and rank else ZERO


def joint(loss: Loss, rows: GeneratorRows, beta: Fraction, mu: Fraction) -> Fraction:
    """Bound ``beta ||g|| + log det(I + H/mu)`` over one record.

    If gradients are `lead` times the mean a of a covariance's points, all terms are below tangents that are linear in the
    weights: ``||a|| <= m/2 + ||a||^2/(2m)``, and ``log(1 + x) <= log(1 + t) + (x - t)/(1 + t)``.
    """
    scalar, apart = loss.scalar, beta * loss.length + log_det(loss, mu)
    if scalar.turn is not None and beta:
        return min(apart, turning(scalar.turn, beta, mu, loss.rank))
    if scalar.lead is None or scalar.kink:
        return apart
    (piece,) = scalar.pieces
    rank = min(len(piece.hull) - 1, loss.rank)
    for m, t, u in rows.tangents:
        spend(20)
        outer = beta * scalar.lead / (2 * m) + piece.outer / (mu * (1 + u))
        left = beta * scalar.lead * m / 2 + rank * (log(1 + t) - t / (1 + t)) + log(1 + u) - u / (1 + u)
        points = HessianPart(piece.hull, outer, piece.spread / (mu * (1 + t)))
        bent = trace(points, rows) if scalar.slopes is None else sloped(points, scalar.slopes, rows)
        apart = min(apart, left + bent)
    return apart


def sloped(piece: HessianPart, slopes: Range, rows: GeneratorRows) -> Fraction:
    """Bound the `trace` for the points 0 and a, with a weight s of a among the slopes: ``spread s (1 - s) + outer s^2``."""
    bent = piece.spread - piece.outer
    top = min(max(piece.spread / (2 * bent), slopes[0]), slopes[1]) if bent > 0 else slopes[1]
    return up(max(piece.spread * s - bent * s * s for s in (*slopes, top)) * max(map(rows.square, piece.hull)))


def turning(turn: Turn, beta: Fraction, mu: Fraction, most: int) -> Fraction:
    """Bound ``beta ||g|| + log det(I + H/mu)`` for a norm with constant and moving entries (docs/theory.md, section 6).

    Let s and c be sine and cosine of its angle to the constant entries.  Gradients are proportional to s, eigenvalues to c, and
    one eigenvalue to c^3.  The bound for a stretch of angles uses the maximum of each.
    """
    scale, steepest, floor, count = turn
    ratio, across, along = scale * steepest**2 / (floor * mu), *((count - 1, 1) if count <= most else (most, 0))
    found = ZERO
    for k in range(STRETCHES):
        t, later = Fraction(k, STRETCHES), Fraction(k + 1, STRETCHES)
        sine, cosine = 2 * later / (1 + later**2), (1 - t**2) / (1 + t**2)
        curved = across * log(1 + ratio * cosine) + along * log(1 + ratio * cosine**3)
        found = max(found, beta * scale * steepest * sine + curved)
    return found


def sensitivity(losses: list[Loss], rows: GeneratorRows, adjacency: str, enough: Fraction) -> Fraction:
    """Bound the change of the summed gradient by one record; bounds below `enough` are not improved."""
    if adjacency == "add-remove":
        return max(loss.length for loss in losses)
    largest = ZERO
    for one, two in combinations_with_replacement(losses, 2):
        apart = one.length + two.length
        largest = max(largest, apart if apart <= max(enough, largest) else difference(one, two, rows))
    return largest


def person(claim: Claim) -> tuple[int, int]:
    """Return the largest number of records of a person, and their largest total weight."""
    privacy = claim["privacy"]
    most, keep = privacy.get("most", 1), privacy.get("keep")
    require(most <= MOST_RECORDS and (not keep or "unit" in privacy), "too many records, or no privacy unit")
    return most, 1 if keep == "weights" else most


def moved(claim: Claim, losses: list[Loss], rows: GeneratorRows, enough: Fraction) -> Fraction:
    """Bound the change of the summed gradient by a person: all records replaced, or some added or removed."""
    (most, weight), adjacency = person(claim), claim["privacy"]["adjacency"]
    apart = sensitivity(losses, rows, adjacency, enough / weight)
    return apart if most == 1 else weight * max(apart, *(loss.length for loss in losses))


def curvature_of_people(losses: list[Loss], rows: GeneratorRows, mu: Fraction, most: int, weight: int) -> Fraction:
    """Bound ``log det(I + H/mu)`` for the sum H of a person's Hessians: record by record, or by the trace and rank of H."""
    one = max(joint(loss, rows, ZERO, mu) for loss in losses)
    traces = [sum((t for t, _ in loss.traces), ZERO) for loss in losses]
    ranks = [sum(r for _, r in loss.traces) for loss in losses]
    if most == 1:
        return one
    return min(most * one, spread_out(weight * max(traces), min(most * max(ranks), losses[0].most), mu))
