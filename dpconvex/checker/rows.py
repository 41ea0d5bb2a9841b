"""Inner products of the rows of A_z, for one record and for two: bilinear forms in monomials, and their ranges."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from math import comb, factorial, prod

from dpconvex.checker.exact import ONE, ZERO, Range, outward, pivots, plus, power, root, times, up
from dpconvex.checker.expansion import Entry, Monomial, RecordBounds, TemplateGraph
from dpconvex.checker.reading import effort, require, spend

Vector = tuple[tuple[int, Fraction], ...]
Kind = tuple[int, ...]
Block = dict[tuple[Monomial, Monomial], Fraction]
MOST_GENERATORS, FEW = 3000, 6


def vector(values: Mapping[int, Fraction]) -> Vector:
    return tuple(sorted((key, value) for key, value in values.items() if value))


def added(first: Vector, second: Vector, factor: Fraction = ONE) -> Vector:
    spend(1 + len(first) // 2 + 2 * effort(value for _, value in second))
    found = dict(first)
    for key, value in second:
        found[key] = found.get(key, ZERO) + factor * value
    return vector(found)


def multiple(v: Vector, factor: Fraction) -> Vector:
    spend(effort(value for _, value in v))
    return tuple((key, value * factor) for key, value in v) if factor else ()


class GeneratorRows:
    """Rows as multiples of generators: of the parts that rows have in each cell of the coordinates, up to a factor."""

    def __init__(self, template: TemplateGraph, cells: list[int], parts: list[int]) -> None:
        require(len(cells) == len(template.weights), "there is not one cell for every coordinate")
        self.record, self.weights, self.cells, self.parts = template.record, template.weights, cells, parts
        self.generators: dict[tuple[tuple[tuple[int, Monomial], Fraction], ...], int] = {}
        self.forms: list[MonomialForm] = []
        self.pairs: dict[int, dict[int, list[tuple[int, Fraction]]]] = defaultdict(lambda: defaultdict(list))
        self.shared: dict[int, Fraction] = {}
        self.squares: dict[Vector, Fraction] = {}
        self.counts = dict[tuple[tuple[Vector, ...], ...], Counter[Fraction]]()
        # Of fields of one number: which generators are it times which others, and a factor.
        self.multiples: dict[int, dict[int, tuple[int, Fraction]]] = defaultdict(dict)
        self.centres, self.tangents = list[Vector](), list[tuple[Fraction, Fraction, Fraction]]()

    def row(self, entry: Entry) -> Vector:
        """Return the linear part of an entry, in generators."""
        parts: dict[tuple[int, int], list[tuple[tuple[int, Monomial], Fraction]]] = defaultdict(list)
        for key in sorted(entry):
            if key[0] >= 0:
                place = self.cells[key[0]], self.parts[key[1][0]] if key[1] and self.parts else -1
                parts[place].append((key, entry[key]))
        found = {}
        for terms in parts.values():
            lead = terms[0][1]
            shape = tuple((place, value / lead) for place, value in terms)
            found[self.generators.setdefault(shape, len(self.generators))] = lead
        return vector(found)

    def close(self) -> None:
        """Write the inner products of all pairs of generators as multiples of a few forms, and bound these."""
        require(len(self.generators) <= MOST_GENERATORS, "the loss has too many different rows")
        by_place: dict[int, list[tuple[int, Monomial, Fraction]]] = defaultdict(list)
        for terms, g in self.generators.items():
            for (coordinate, monomial), value in terms:
                by_place[coordinate].append((g, monomial, value))
        products: dict[tuple[int, int], Block] = defaultdict(lambda: defaultdict(Fraction))
        for coordinate, terms_here in by_place.items():
            spend(2 * len(terms_here) * effort(value for *_, value in terms_here))
            for (g, one, a), (h, two, b) in product(terms_here, terms_here):
                products[g, h][one, two] += a * b / self.weights[coordinate]
        known: dict[tuple[tuple[Kind, Kind], tuple[tuple[tuple[Monomial, Monomial], Fraction], ...]], int] = {}
        for (g, h), whole in products.items():
            for kinds, block in by_kinds(whole, self.record).items():
                kept = sorted(block.items())
                shape = kinds, tuple((key, value / kept[0][1]) for key, value in kept)
                if shape not in known:
                    known[shape] = len(known)
                    self.forms.append(MonomialForm(*kinds, dict(shape[1]), self.record))
                self.pairs[g][h].append((known[shape], kept[0][1]))
        self.share(products)
        for terms, g in self.generators.items():
            common = set.intersection(*(set(monomial) for (_, monomial), _ in terms))
            for k in (k for k in common if self.record.sizes[self.record.owner[k]] == 1):
                spend(len(terms))
                rest = sorted(((c, m[: m.index(k)] + m[m.index(k) + 1 :]), value) for (c, m), value in terms)
                other = self.generators.get(tuple((place, value / rest[0][1]) for place, value in rest))
                if other is not None:
                    self.multiples[k][g] = other, rest[0][1]

    def share(self, products: Mapping[tuple[int, int], Block]) -> None:
        """In each cell the inner products of the generators are below their trace, in units of their lengths."""
        members: dict[int, list[int]] = defaultdict(list)
        for terms, g in self.generators.items():
            members[self.cells[terms[0][0][0]]].append(g)
        for group in members.values():
            squares = {g: self.product(((g, ONE),), ((g, ONE),))[1] for g in group}
            whole: Block = defaultdict(Fraction)
            for g in (g for g in group if squares[g] > 0):
                for key, value in products[g, g].items():
                    whole[key] += value / squares[g]
            forms = [MonomialForm(*kinds, block, self.record) for kinds, block in by_kinds(whole, self.record).items()]
            most = sum((form.same[1] for form in forms), ZERO)
            self.shared |= {g: most * max(square, ZERO) for g, square in squares.items()}

    def forms_of(self, u: Vector, v: Vector) -> dict[int, Fraction]:
        """Return the multiples of the forms that make up the inner product of two rows."""
        sums, second, long = dict[int, Fraction](), dict(v), effort(value for _, value in v) // max(len(v), 1)
        for g, a in u:
            near = self.pairs[g] if len(self.pairs[g]) < len(v) else second
            spend(1 + len(near) * (long + effort([a])))
            for h in near:
                for form, weight in self.pairs[g].get(h, ()) if h in second else ():
                    sums[form] = sums.get(form, ZERO) + a * second[h] * weight
        return sums

    def product(self, u: Vector, v: Vector, cross: bool = False) -> Range:
        """Bound ``<A_z' u, A_z' v>`` over one record, or over two, ``<A_z' u, A_z'' v>``."""
        total, alike, others = (ZERO, ZERO), dict[Kind, Fraction](), list[tuple[MonomialForm, Fraction]]()
        sums = self.forms_of(u, v)
        spend(5 * len(sums))
        for k, value in sums.items():
            form = self.forms[k]
            if form.is_identity:
                alike[form.kind] = alike.get(form.kind, ZERO) + value * form.factor
            else:
                others.append((form, value))
                total = plus(total, times((value, value), form.cross if cross else form.same))
        if 1 < len(others) <= FEW:  # few forms are bounded together, too
            whole: Block = defaultdict(Fraction)
            for form, value in others:
                for key, entry in form.block.items():
                    whole[key] += value * entry
            sides = [MonomialForm(*kinds, block, self.record) for kinds, block in by_kinds(whole, self.record).items()]
            ends = reduce(plus, (side.cross if cross else side.same for side in sides), (ZERO, ZERO))
            total = max(total[0], ends[0]), min(total[1], ends[1])
        return plus(total, polynomial_range(alike, self.record, not cross))

    def square(self, u: Vector) -> Fraction:
        """Bound ``||A_z' u||^2`` from above: with multiples of a number, it is convex in that, and largest at its ends."""
        if u not in self.squares:
            found = self.longest(u)
            for k, multiples in self.multiples.items():
                these = tuple((g, a) for g, a in u if g in multiples)
                rest, moved = added(u, these, -ONE), vector({})
                for g, a in these:
                    moved = added(moved, ((multiples[g][0], a * multiples[g][1]),))
                if these:
                    ends = self.record.lower[k], self.record.upper[k]
                    found = min(found, max(self.longest(added(rest, moved, end)) for end in ends))
            self.squares[u] = max(found, ZERO)
        return self.squares[u]

    def longest(self, u: Vector) -> Fraction:
        shared = up(sum((self.shared[g] * a * a for g, a in u), ZERO))
        return min(self.product(u, u)[1], shared)

    def apart(self, u: Vector, v: Vector) -> Fraction:
        """Bound ``||A_z' u - A_z'' v||^2`` from above, for two records."""
        return self.square(u) + self.square(v) - 2 * self.product(u, v, cross=True)[0]

    def all_apart(self, first: tuple[Vector, ...], second: tuple[Vector, ...]) -> Counter[Fraction]:
        """Bound these squares for all pairs of vertices, and count equal ones."""
        if (first, second) not in self.counts:
            self.counts[first, second] = Counter(self.apart(u, v) for u, v in product(first, second))
        return self.counts[first, second]

    def dominant(self, vectors: Sequence[Vector]) -> list[list[Fraction]]:
        """Return a matrix that is above the inner products of one record's rows, in the Loewner order."""
        side = range(len(vectors))
        found = [[ZERO] * len(vectors) for _ in side]
        parts = {(i, j): self.forms_of(vectors[i], vectors[j]) for i, j in product(side, side)}
        for k in {k for sums in parts.values() for k in sums}:
            spend(2 * len(vectors) ** 2)
            low, high = self.forms[k].same
            whole = [[(parts[i, j].get(k, ZERO) + parts[j, i].get(k, ZERO)) / 2 for j in side] for i in side]
            if pivots(whole) is None:  # else multiples of it are in order
                sums, high = [sum(map(abs, line), ZERO) for line in whole], max(-low, high)
                whole = [[sums[i] if i == j else ZERO for j in side] for i in side]
            found = [[found[i][j] + high * whole[i][j] for j in side] for i in side]
        return found


class MonomialForm:
    """A bilinear form ``sum c m(z) m'(z')`` in monomials of two kinds: its ranges over one record and over two.

    A multiple of the inner product of two tensor powers of the record's fields is an identity.
    """

    def __init__(self, kind: Kind, other: Kind, block: Block, record: RecordBounds) -> None:
        spend(40 + 8 * len(block))
        self.kind, self.block = kind, block
        self.same, self.cross = (block_range(kind, other, block, record, same) for same in (True, False))
        values = {value / multiplicity(one, kind) if one == two else ZERO for (one, two), value in block.items()}
        count = prod(comb(record.sizes[b] + k - 1, k) for b, k in Counter(kind).items())
        self.is_identity = kind == other and len(values) == 1 and len(block) == count and 0 not in values
        self.factor = min(values)


def by_kinds(block: Block, record: RecordBounds) -> dict[tuple[Kind, Kind], Block]:
    found: dict[tuple[Kind, Kind], Block] = defaultdict(dict)
    for (one, two), value in block.items():
        if value:
            found[kind_of(one, record), kind_of(two, record)][one, two] = value
    return found


def kind_of(monomial: Monomial, record: RecordBounds) -> Kind:
    return tuple(sorted(record.owner[k] for k in monomial))


def multiplicity(monomial: Monomial, kind: Kind) -> int:
    """Count the equal entries that stand for a monomial in the tensor product of its bases."""
    return prod(map(factorial, Counter(kind).values())) // prod(map(factorial, Counter(monomial).values()))


def block_range(first: Kind, second: Kind, block: Block, record: RecordBounds, same: bool) -> Range:
    """By Cauchy-Schwarz and Gershgorin for the monomials, divided by the roots of their multiplicities: entries of a tensor.

    Of one record, and of numbers, fields of one scalar are factors apart, which keep their signs: ``y ||x||^2`` has that of y.
    """
    pairs = [tuple(tuple(k for k in m if record.sizes[record.owner[k]] > 1) for m in pair) for pair in block]
    kind, other = (tuple(b for b in side if record.sizes[b] > 1) for side in (first, second))
    if kind == other and (same or not kind) and all(one == two for one, two in pairs):
        values = [value / multiplicity(one, kind) for (one, _), value in zip(pairs, block.values(), strict=True)]
        size = prod((record.squares[b] for b in kind), start=ONE)
        found = times((min(values), max(values)), (ZERO if kind else ONE, size))  # a part of a tensor can vanish
        one, two = next(iter(block))
        for side in (one + two,) if same else (one, two):
            for k in (k for k in set(side) if record.sizes[record.owner[k]] == 1):
                found = times(found, power((record.lower[k], record.upper[k]), side.count(k)))
        return found
    size = root(prod((record.squares[b] for b in first + second), start=ONE))[1]
    sums: dict[tuple[bool, Monomial], Fraction] = defaultdict(Fraction)
    for (one, two), value in block.items():
        weight = root(Fraction(1, multiplicity(one, first) * multiplicity(two, second)))[1]
        sums[False, one] += abs(value) * weight
        sums[True, two] += abs(value) * weight
    sides = [max(value for (side, _), value in sums.items() if side is which) for which in (False, True)]
    bound = root(sides[0] * sides[1])[1]
    return outward(-bound * size, bound * size)


def monomial_range(monomial: Monomial, record: RecordBounds) -> Range:
    found = (ONE, ONE)
    for k in set(monomial):
        found = times(found, power((record.lower[k], record.upper[k]), monomial.count(k)))
    return found


def polynomial_range(terms: dict[Kind, Fraction], record: RecordBounds, same: bool) -> Range:
    """Bound a polynomial in the inner products of fields: quadratic ones of one field at its ends and where its slope is 0."""
    fields = {base for kind in terms for base in kind}
    total = (ZERO, ZERO)
    if len(fields) > 1 or any(len(kind) > 2 for kind in terms):
        for kind, value in terms.items():
            powers = (power(record.inner[base][same], count) for base, count in Counter(kind).items())
            total = plus(total, reduce(times, powers, (value, value)))
    elif fields:
        (base,) = fields
        constant, slope, square = (terms.get((base,) * k, ZERO) for k in range(3))
        low, high = record.inner[base][same]
        top = -slope / (2 * square) if square else low
        values = [constant + t * (slope + t * square) for t in (low, high, min(max(top, low), high))]
        total = outward(min(values), max(values))
    return total if fields else (terms.get((), ZERO),) * 2
