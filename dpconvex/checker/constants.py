"""What one record can do: lengths of gradients and of their differences, curvature, and both together."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from dpconvex.checker.exact import ONE, ZERO, Range, down, log, outward, plus, root, times, up
from dpconvex.checker.reading import require, spend
from dpconvex.checker.rows import Rows, Vector, added
from dpconvex.checker.rules import MOST_VERTICES, Hull, Piece, Scalar, sums

MOST_PAIRS = 300_000
Function = Callable[[Fraction], Range]


@dataclass(frozen=True)
class Loss:
    """The constants of one loss: G, and of Hessians trace and rank, whole and in parts."""

    scalar: Scalar
    vertices: Hull | None
    length: Fraction
    parts: tuple[tuple[tuple[Fraction, int], ...], ...]
    squares: list[list[Fraction]]  # Of a sum of squares of fixed rows, a matrix above their weighted inner products


def constants(scalar: Scalar, rows: Rows, dimension: int) -> Loss:
    vertices = sums(scalar.hulls) if prod(map(len, scalar.hulls)) <= MOST_VERTICES else None
    sets = scalar.hulls if vertices is None else (vertices,)
    length = sum((root(max(map(rows.square, hull)))[1] for hull in sets), ZERO)
    require(length < 2**300, "nothing bounds a gradient")
    pieces = [piece for piece in scalar.pieces if piece.outer or piece.spread]
    traces = [trace(piece, rows) for piece in pieces]
    ranks = [min(len(p.hull) - 1 + bool(p.outer) if p.spread else 1, dimension) for p in pieces]
    whole = ((sum(traces, ZERO), min(sum(ranks), dimension)),)
    squares: list[list[Fraction]] = []
    if len(pieces) > 1 and all(len(piece.hull) == 1 and not piece.spread for piece in pieces):
        inner = rows.dominant([piece.hull[0] for piece in pieces])
        squares = [[piece.outer * value for value in line] for piece, line in zip(pieces, inner, strict=True)]
    return Loss(scalar, vertices, length, (whole, tuple(zip(traces, ranks, strict=True))), squares)


def trace(piece: Piece, rows: Rows) -> Fraction:
    """Bound the trace of ``outer g g' + spread Cov(a)``: of a covariance by the points' distances from any one point."""
    longest = max(map(rows.square, piece.hull))
    if piece.spread <= piece.outer:
        return up(piece.outer * longest)
    mean: Vector = ()
    for point in piece.hull:
        mean = added(mean, point, Fraction(1, len(piece.hull)))
    found = [piece.spread * longest]
    for centre in (mean, *rows.centres):  # outer |a|^2 + (spread - outer) |a - c|^2 for each point a
        apart = {a: (piece.spread - piece.outer) * rows.square(added(a, centre, -ONE)) for a in piece.hull}
        found.append(max(piece.outer * rows.square(a) + more for a, more in apart.items()))
    return up(min(found))


def difference(first: Loss, second: Loss, rows: Rows) -> Fraction:
    """Bound ``||g - g'||`` for gradients of two records."""
    apart = first.length + second.length
    if first.vertices is None or second.vertices is None or len(first.vertices) * len(second.vertices) > MOST_PAIRS:
        return apart
    largest = ZERO
    for u, v in product(first.vertices, second.vertices):
        largest = max(largest, rows.square(u) + rows.square(v) - 2 * rows.product(u, v, cross=True)[0])
    return min(apart, root(largest)[1])


def log_det(loss: Loss, mu: Fraction) -> Fraction:
    """Bound ``log det(I + H/mu)`` by traces and ranks."""
    found = []
    for parts in loss.parts:
        found.append(sum((r * log(1 + up(t / (max(r, 1) * mu)))[1] for t, r in parts if t), ZERO))
    if loss.squares:
        side = range(len(loss.squares))
        found.append(log(determinant([[(i == j) + loss.squares[i][j] / mu for j in side] for i in side]))[1])
    return min(found)


def determinant(matrix: list[list[Fraction]]) -> Fraction:
    """Of a positive definite matrix times a diagonal one, by elimination."""
    spend(len(matrix) ** 3 // 3)
    rows, found = [list(map(Fraction, row)) for row in matrix], ONE
    for k, row in enumerate(rows):
        found *= row[k]
        for other in rows[k + 1 :]:
            factor = other[k] / row[k]
            for j in range(k, len(rows)):
                other[j] -= factor * row[j]
    return found


def joint(loss: Loss, rows: Rows, beta: Fraction, mu: Fraction, target: Fraction) -> Fraction:
    """Bound ``beta ||g|| + log det(I + H/mu)``, as far down as the target if possible."""
    scalar, apart = loss.scalar, beta * loss.length + log_det(loss, mu)
    if apart <= target or scalar.kink:
        return apart
    if scalar.logistic is not None:
        scale, row, ends = scalar.logistic
        radius = root(rows.square(row))[1]
        a, q = beta * scale * radius, up(scale * radius**2 / mu)
        return min(apart, logistic(a, q, ends))
    own = scalar.covariance()
    if own is not None:
        scale = 1 / own.spread
        longest = root(max(map(rows.square, own.hull)))[1] * own.spread
        for m in (longest, *rows.lengths):
            points = Piece(own.hull, beta * scale / (2 * m) * own.spread**2, scale / mu * own.spread**2)
            apart = min(apart, beta * scale * m / 2 + trace(points, rows))
        return apart
    if scalar.slope is not None and len(scalar.pieces) == 1:
        return min(apart, hinge(loss, rows, beta, mu))
    return apart


def largest(value: Function, slope: Function, low: Fraction, high: Fraction) -> Fraction:
    """Bound a concave function from above by its tangent where its slope is about 0."""
    left, right = low, high
    for _ in range(80):
        middle = down((left + right) / 2)
        left, right = (middle, right) if slope(middle)[0] > 0 else (left, middle)
    falls, rises = slope(left)
    return up(value(left)[1] + max(rises * (high - left), falls * (low - left), ZERO))


def logistic(a: Fraction, q: Fraction, ends: Range) -> Fraction:
    """Bound ``a s + log(1 + q s (1 - s))`` over the slopes s."""

    def slope(s: Fraction) -> Range:
        found = a + q * (1 - 2 * s) / (1 + q * s * (1 - s))
        return outward(found, found)

    return largest(lambda s: plus((a * s, a * s), log(1 + q * s * (1 - s))), slope, *ends)


def hinge(loss: Loss, rows: Rows, beta: Fraction, mu: Fraction) -> Fraction:
    """Where the points of a covariance of trace v spread, their mean is short: all three terms are concave in v."""
    (piece,), lead = loss.scalar.pieces, beta * (loss.scalar.slope or ZERO)
    square, r = max(map(rows.square, piece.hull)), len(piece.hull) - 1
    a, b = up(piece.spread / mu), up(piece.outer / mu)

    def value(v: Fraction) -> Range:
        length = times((lead, lead), root(square - v))
        spread = times((Fraction(r), Fraction(r)), log(1 + a * v / r))
        return plus(plus(length, spread), log(1 + b * (square - v)))

    def slope(v: Fraction) -> Range:
        bend = outward(*(a / (1 + a * v / r) - b / (1 + b * (square - v)),) * 2)
        steep = [lead / (2 * end) for end in root(square - v)]
        return bend[0] - steep[0], bend[1] - steep[1]

    return largest(value, slope, ZERO, min(trace(Piece(piece.hull, ZERO, ONE), rows), square))
