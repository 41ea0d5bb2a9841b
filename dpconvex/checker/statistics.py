"""Statistics of a quadratic loss: bounds on the norm of one record's, and on the distance between two records'."""

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import prod
from operator import mul
from typing import Any

from dpconvex.checker.exact import ONE, WIDE, ZERO, Range, common, root, up
from dpconvex.checker.expansion import RecordBounds
from dpconvex.checker.reading import indices, require, spend

MOST_POINTS, MOST_VARIABLES, MOST_DEGREE = 20_000, 12, 16


def check_statistics(
    given: list[Any], record: RecordBounds, claim: dict[str, Any], adjacency: str, most: int, weight: int
) -> None:
    """Check the claimed sensitivity of moments: products of fields times patterns of the discrete fields."""
    kinds, count = [], 0
    for item in given:
        bases, patterns = indices(item["bases"], len(record.sizes)), item["patterns"]
        require(len(bases) <= MOST_DEGREE, "the degree of a moment is too high")
        owners = [sorted(record.owner[k] for k in indices(m, len(record.owner))) for m in item["monomials"]]
        require(all(o == sorted(bases) for o in owners), "a moment is not of its kind")
        require(len({tuple(sorted(m)) for m in item["monomials"]}) == len(owners), "a moment occurs twice")
        require(len({len(row) for row in patterns}) == 1, "patterns have rows of different lengths")
        spend(100 * len(bases))
        scale = up(item["scale"] ** 2 * prod((record.squares[b] for b in bases), start=ONE), WIDE)
        unit = common(a for row in patterns for a in row)
        kinds.append((Counter(bases), scale / unit**2, [[int(a * unit) for a in row] for row in patterns]))
        count += len(owners) * len(patterns[0])
    require(count == claim["noise_dimension"], "the number of moments is not the noise dimension")
    labels = range(len(kinds[0][2]) if kinds else 0)
    require(all(len(patterns) == len(labels) for *_, patterns in kinds), "patterns have different numbers of labels")
    claimed, farthest = (claim["sensitivity"] / weight) ** 2, ZERO

    def products(y: int, other: int) -> list[Fraction]:
        spend(10 + sum(len(p[0]) for *_, p in kinds) // 4)
        return [scale * sum(map(mul, p[y], p[other])) for *_, scale, p in kinds]

    own = [products(y, y) for y in labels]
    if adjacency == "add-remove" or most > 1:  # a person's further rows may stand alone
        farthest = max((sum(each, ZERO) for each in own), default=ZERO)
    for y, other in combinations_with_replacement(labels, 2) if adjacency == "replace-one" else ():
        farthest = max(farthest, farthest_apart(kinds, [own[y], own[other], products(y, other)], record, claimed))
    require(farthest <= claimed, f"statistics of neighbours are {float(farthest) ** 0.5:.9g} apart")


def farthest_apart(kinds: list[Any], three: list[list[Fraction]], record: RecordBounds, claimed: Fraction) -> Fraction:
    """Bound K(z, z) + K(z', z') - 2 K(z, z'), a polynomial in inner products of fields and in the values of one scalar field."""
    fields = sorted({b for bases, *_ in kinds for b in bases})
    scalar = next((b for b in fields if record.sizes[b] == 1), None)
    ranges: list[Range] = []
    powers: list[list[list[int]]] = []  # exponents of each variable in terms of the first record, the second, and both
    none, both = [0] * len(kinds), range(len(kinds))
    for b in fields:
        exponents, square = [kinds[k][0][b] for k in both], record.squares[b]
        if b == scalar:  # the two values, divided by their largest absolute value
            k, size = record.owner.index(b), root(square)[0]
            ranges += 2 * [(record.lower[k] / size, record.upper[k] / size)]
            twice = [2 * e for e in exponents]
            powers += [[twice, none, exponents], [none, twice, exponents]]
        else:
            low, high = record.inner[b][False]
            ranges.append((low / square, high / square))
            powers.append([none, none, exponents])
    terms = [
        (value, [column[part][k] for column in powers])
        for part, values in enumerate((*three[:2], [-2 * c for c in three[2]]))
        for k, value in enumerate(values)
        if value
    ]
    return highest(terms, ranges, [max(column[2]) > 1 for column in powers], claimed)


def highest(
    terms: list[tuple[Fraction, list[int]]], ranges: list[Range], curved: list[bool], claimed: Fraction
) -> Fraction:
    """Bound a polynomial in variables from -1 to 1, convex in each one that is not `curved` (docs/theory.md, section 18).

    Near a maximum, with convex variables at their ends, some grid value is lower by at most (step/2)^2/2 times the absolute
    second derivatives.
    """
    degrees = [sum(e for e, bent in zip(exponents, curved, strict=True) if bent) for _, exponents in terms]
    bend = sum((abs(value) * d * (d - 1) for (value, _), d in zip(terms, degrees, strict=True)), ZERO)
    require(len(ranges) <= MOST_VARIABLES, "statistics of too many fields")
    points = set(product(*ranges))
    steps = [high - low if bent else ZERO for (low, high), bent in zip(ranges, curved, strict=True)]
    for _ in range(60):
        room = bend * max(steps, default=ZERO) ** 2 / 8
        spend(len(points) * len(terms) * (1 + len(ranges)))
        values = {
            point: sum((v * prod(x**e for x, e in zip(point, es, strict=True) if e) for v, es in terms), ZERO)
            for point in points
        }
        kept = [point for point, found in values.items() if found + room > claimed]
        if not kept or len(kept) > MOST_POINTS:
            break
        steps = [step / 2 for step in steps]
        spend(len(kept) * prod(3 if step else 1 for step in steps))
        ways = list(product(*[(-step, ZERO, step) if step else (ZERO,) for step in steps]))
        points = {
            tuple(min(max(x + m, low), high) for x, m, (low, high) in zip(point, way, ranges, strict=True))
            for point in kept
            for way in ways
        }
    return claimed if not kept else claimed + room + 1
