"""Inner products of the rows of A_z, for one record and for two: bilinear forms in monomials, and their ranges."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from math import comb, factorial, prod

from dpconvex.checker.exact import ONE, ZERO, Range, common, outward, pivots, plus, power, root, spectrum, times, up
from dpconvex.checker.expansion import Entry, Monomial, RecordBounds, TemplateGraph
from dpconvex.checker.reading import cached, effort, require, spend

Vector = tuple[tuple[int, Fraction], ...]
Kind = tuple[int, ...]
Block = dict[tuple[Monomial, Monomial], Fraction]
Matrix = dict[Monomial, dict[Monomial, Fraction]]
Form = tuple[Kind, Kind, Block]  # A bilinear form ``sum c m(z) m'(z')`` in monomials of two kinds
MOST_GENERATORS, FEW_CENTRES, LONG = 3000, 4, 12
NEARLY = 1 + Fraction(1, 2**100)  # Factor for the rounding of roots of multiplicities


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
    """Rows as combinations of generators: the parts of rows in each cell of coordinates, up to a factor."""

    def __init__(self, template: TemplateGraph, cells: list[int], parts: list[int]) -> None:
        require(len(cells) == len(template.weights), "the number of cells is not the number of coordinates")
        self.record, self.weights, self.cells, self.parts = template.record, template.weights, cells, parts
        self.generators: dict[tuple[tuple[tuple[int, Monomial], Fraction], ...], int] = {}
        self.forms, self.factors = list[Form](), list[Fraction]()
        self.pairs: dict[int, dict[int, list[tuple[int, Fraction]]]] = defaultdict(lambda: defaultdict(list))
        self.shared: dict[int, Fraction] = {}
        # For each scalar field k: generators that are k times another generator, and the factor.
        self.multiples: dict[int, dict[int, tuple[int, Fraction]]] = defaultdict(dict)
        self.centres, self.tangents = list[Vector](), list[tuple[Fraction, Fraction, Fraction]]()

    def row(self, entry: Entry) -> Vector:
        """Return the linear part of an entry as a combination of generators."""
        parts: dict[tuple[int, int], list[tuple[tuple[int, Monomial], Fraction]]] = defaultdict(list)
        for key in sorted(entry):
            if key[0] >= 0:
                place = self.cells[key[0]], self.parts[key[1][0]] if key[1] and key[1][0] < len(self.parts) else -1
                parts[place].append((key, entry[key]))
        found = {}
        for terms in parts.values():
            lead = terms[0][1]
            shape = tuple((place, value / lead) for place, value in terms)
            found[self.generators.setdefault(shape, len(self.generators))] = lead
        return vector(found)

    def close(self) -> None:
        """Write the inner products of all pairs of generators as multiples of a few forms, and bound the forms."""
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
                spend(len(block))
                kept = sorted(block.items())
                shape = kinds, tuple((key, value / kept[0][1]) for key, value in kept)
                if shape not in known:
                    known[shape] = len(known)
                    self.forms.append((*kinds, dict(shape[1])))
                    self.factors.append(identity_factor(*self.forms[-1], self.record))
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
        """Bound the Gram matrix of each cell's generators, scaled to norm 1, by its trace; store bounds in `shared`."""
        members: dict[int, list[int]] = defaultdict(list)
        for terms, g in self.generators.items():
            members[self.cells[terms[0][0][0]]].append(g)
        for group in members.values():
            squares = {g: self.product(((g, ONE),), ((g, ONE),))[1] for g in group}
            whole: Block = defaultdict(Fraction)
            for g in (g for g in group if squares[g] > 0):
                for key, value in products[g, g].items():
                    whole[key] += value / squares[g]
                    spend(effort([whole[key]]))
            most = self.largest(whole)
            self.shared |= {g: most * max(square, ZERO) for g, square in squares.items()}

    def largest(self, whole: Block) -> Fraction:
        """Bound a form over one record from above."""
        forms = by_kinds(whole, self.record).items()
        return sum((block_range(*kinds, block, self.record, True)[1] for kinds, block in forms), ZERO)

    @cached
    def bounds(self, k: int, same: bool) -> Range:
        return block_range(*self.forms[k], self.record, same)

    @cached
    def near(self, u: Vector) -> dict[int, list[tuple[int, Fraction]]]:
        """Return the inner product of a row with each generator, as multiples of forms."""
        found = defaultdict[int, list[tuple[int, Fraction]]](list)
        for g, a in u:
            spend(sum(map(len, self.pairs[g].values())) * effort([a]))
            for h, forms in self.pairs[g].items():
                found[h] += [(form, a * weight) for form, weight in forms]
        return found

    def forms_of(self, u: Vector, v: Vector) -> dict[int, Fraction]:
        """Return the inner product of two rows, as multiples of forms."""
        sums, near = dict[int, Fraction](), self.near(u)
        for h, b in v:
            spend(1 + len(near.get(h, ())) * effort([b]))
            for form, a in near.get(h, ()):
                sums[form] = sums.get(form, ZERO) + a * b
        return sums

    def product(self, u: Vector, v: Vector, cross: bool = False) -> Range:
        """Bound ``<A_z' u, A_z' v>`` over one record, or over two, ``<A_z' u, A_z'' v>``."""
        return self.range_of(frozenset(self.forms_of(u, v).items()), cross)

    @cached
    def range_of(self, sums: frozenset[tuple[int, Fraction]], cross: bool) -> Range:
        total, alike = (ZERO, ZERO), dict[Kind, Fraction]()
        spend(5 * len(sums))
        for k, value in sums:
            if self.factors[k]:
                kind, *_ = self.forms[k]
                alike[kind] = alike.get(kind, ZERO) + value * self.factors[k]
            else:
                total = plus(total, times((value, value), self.bounds(k, not cross)))
        return plus(total, polynomial_range(alike.items(), [ends[not cross] for ends in self.record.inner]))

    @cached
    def square(self, u: Vector) -> Fraction:
        """Bound ``||A_z' u||^2`` from above.  It is convex in each scalar field, so the field's ends suffice."""
        found = self.longest(u)
        for k, multiples in self.multiples.items():
            these = tuple((g, a) for g, a in u if g in multiples)
            rest, moved = added(u, these, -ONE), vector({})
            for g, a in these:
                moved = added(moved, ((multiples[g][0], a * multiples[g][1]),))
            if these:
                found = min(found, max(self.longest(added(rest, moved, end)) for end in self.record.ranges[k]))
        return max(found, ZERO)

    @cached
    def centres_of(self, hull: tuple[Vector, ...]) -> list[Vector]:
        """Return the mean of some points, and the nearest of the given centres."""
        mean: Vector = ()
        for point in hull:
            mean = added(mean, point, Fraction(1, len(hull)))
        return [mean, *sorted(self.centres, key=lambda c: sum(a * a for _, a in added(c, mean, -ONE)))[:FEW_CENTRES]]

    def square_from(self, u: Vector, centre: Vector) -> Fraction:
        """Bound ``||A_z' (u - c)||^2``; for a centre c with many terms, by inner products."""
        if len(centre) <= LONG:
            return self.square(added(u, centre, -ONE))
        sums: dict[int, Fraction] = defaultdict(Fraction)
        for weight, forms in ((1, self.own(u)), (1, self.own(centre)), (-2, self.forms_of(centre, u))):
            for form, a in forms.items():
                sums[form] += weight * a
        return max(self.range_of(frozenset(sums.items()), False)[1], ZERO)

    @cached
    def own(self, u: Vector) -> dict[int, Fraction]:
        return self.forms_of(u, u)

    def longest(self, u: Vector) -> Fraction:
        return min(self.product(u, u)[1], up(sum((self.shared[g] * a * a for g, a in u), ZERO)))

    @cached
    def all_apart(self, hulls: frozenset[tuple[Vector, ...]]) -> Counter[Fraction]:
        """Return bounds on ``||A_z' u - A_z'' v||^2`` for all pairs of vertices and two records, with counts of equal bounds."""
        first, second = (*hulls, *hulls)[:2]  # a single hull is paired with itself
        squares = [*{self.square(u): None for u in (*first, *second)}]
        places = {square: k for k, square in enumerate(squares)}
        near, scale = [self.near(v) for v in second], common(a for u in first for _, a in u)
        unit = common(a for item in near for parts in item.values() for _, a in parts)
        terms, long = sum(map(len, first)), effort([Fraction(scale * unit)])
        tally = Counter[tuple[int, int, frozenset[tuple[int, int]]]]()
        whole = [(places[self.square(u)], [(g, int(a * scale)) for g, a in u]) for u in first]
        for v, item in zip(second, near, strict=True):
            forms = {g: [(form, int(a * unit)) for form, a in parts] for g, parts in item.items()}
            spend((len(first) + terms * max(map(len, forms.values()), default=0)) * long // 6)
            end, known = places[self.square(v)], len(tally)
            for start, row in whole:
                sums = defaultdict[int, int](int)
                for g, a in row:
                    for form, b in forms.get(g, ()):
                        sums[form] += a * b
                tally[start, end, frozenset(sums.items())] += 1
            spend(8 * (len(tally) - known))
        found = Counter[Fraction]()
        for (start, end, items), count in tally.items():
            low, _ = self.range_of(frozenset((form, Fraction(a, scale * unit)) for form, a in items if a), True)
            found[squares[start] + squares[end] - 2 * low] += count
        return found

    def offset(self, entries: list[Entry]) -> Fraction:
        """Bound the sum of squares of the entries' terms without parameters."""
        whole: Block = defaultdict(Fraction)
        for entry in entries:
            still = [(monomial, a) for (c, monomial), a in entry.items() if c < 0]
            spend(2 * len(still) ** 2)
            for (one, a), (two, b) in product(still, still):
                whole[one, two] += a * b
        return self.largest(whole)

    def dominant(self, vectors: Sequence[Vector]) -> list[list[Fraction]]:
        """Return an upper bound, in the Loewner order, on the Gram matrix of rows for one record."""
        spend(len(vectors) ** 2)
        side = range(len(vectors))
        found = [[ZERO] * len(vectors) for _ in side]
        parts = {(i, j): self.forms_of(vectors[i], vectors[j]) for i, j in product(side, side)}
        for k in {k for sums in parts.values() for k in sums}:
            spend(2 * len(vectors) ** 2)
            low, high = self.bounds(k, True)
            whole = [[(parts[i, j].get(k, ZERO) + parts[j, i].get(k, ZERO)) / 2 for j in side] for i in side]
            if pivots(whole) is None:  # an indefinite form is bounded by absolute row sums
                sums, high = [sum(map(abs, line), ZERO) for line in whole], max(-low, high)
                whole = [[sums[i] if i == j else ZERO for j in side] for i in side]
            found = [[found[i][j] + high * whole[i][j] for j in side] for i in side]
        return found


def identity_factor(kind: Kind, other: Kind, block: Block, record: RecordBounds) -> Fraction:
    """Return the factor of a form that is a multiple of the inner product of two tensor powers of fields; 0 for other forms."""
    spend(20 + 4 * len(block))
    values = {value / multiplicity(one, kind) if one == two else ZERO for (one, two), value in block.items()}
    count = prod(comb(record.sizes[b] + k - 1, k) for b, k in Counter(kind).items())
    return values.pop() if kind == other and len(values) == 1 and len(block) == count else ZERO


def by_kinds(block: Block, record: RecordBounds) -> dict[tuple[Kind, Kind], Block]:
    found: dict[tuple[Kind, Kind], Block] = defaultdict(dict)
    for (one, two), value in block.items():
        if value:
            found[kind_of(one, record), kind_of(two, record)][one, two] = value
    return found


def kind_of(monomial: Monomial, record: RecordBounds) -> Kind:
    return tuple(sorted(record.owner[k] for k in monomial))


def multiplicity(monomial: Monomial, kind: Kind) -> int:
    """Return the number of entries that equal a monomial in the tensor product of its fields."""
    return prod(map(factorial, Counter(kind).values())) // prod(map(factorial, Counter(monomial).values()))


def block_range(first: Kind, second: Kind, block: Block, record: RecordBounds, same: bool) -> Range:
    """Bound a form over one record or two, by the matrix of monomials divided by the roots of their multiplicities.

    For one record, the signs of eigenvalues are used, and scalar fields are separate factors with their own signs:
    ``y ||x||^2`` has the sign of y.
    """
    kind, other = (tuple(b for b in side if record.sizes[b] > 1) for side in (first, second))
    spend(20 + 4 * len(block))
    lines: Matrix = defaultdict(lambda: defaultdict(Fraction))
    turned: Matrix = defaultdict(lambda: defaultdict(Fraction))
    for pair, value in block.items():
        one, two = (tuple(k for k in m if record.sizes[record.owner[k]] > 1) for m in pair)
        weight = multiplicity(one, kind), multiplicity(two, other)
        entry = value / weight[0] if weight[0] == weight[1] else value * root(Fraction(1, prod(weight)))[1]
        lines[one][two] += entry
        turned[two][one] += entry
    size = NEARLY * root(prod((record.squares[b] for b in first + second), start=ONE))[1]
    if kind == other and (same or not kind):
        half = {m: {n: (lines[m][n] + turned[m][n]) / 2 for n in (*lines[m], *turned[m])} for m in {*lines, *turned}}
        size = NEARLY * prod((record.squares[b] for b in kind), start=ONE)
        found = times(spectrum(half), (ZERO if kind else ONE, size))  # a part of a tensor can vanish
        one, two = next(iter(block))
        for side in (one + two,) if same else (one, two):
            for y in (y for y in set(side) if record.sizes[record.owner[y]] == 1):
                found = times(found, power(record.ranges[y], side.count(y)))
        return found
    gram: Matrix = defaultdict(lambda: defaultdict(Fraction))  # the smaller product of the matrix with its transpose
    for line in max(lines, turned, key=len).values():
        spend(2 * len(line) ** 2)
        for (i, a), (j, b) in product(line.items(), repeat=2):
            gram[i][j] += a * b
    size *= root(spectrum(gram)[1])[1]
    return outward(-size, size)


def polynomial_range(terms: Iterable[tuple[Monomial, Fraction]], ranges: Sequence[Range]) -> Range:
    """Bound a polynomial in variables with these ranges, term by term."""
    total = (ZERO, ZERO)
    for monomial, value in terms:
        powers = (power(ranges[k], count) for k, count in Counter(monomial).items())
        total = plus(total, reduce(times, powers, (value, value)))
    return total
