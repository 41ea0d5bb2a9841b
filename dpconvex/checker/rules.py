"""Rules over the graph of a loss, from its affine leaves up: ranges, gradients as hulls of rows, and curvature."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

from dpconvex.checker.exact import (
    ONE,
    PI,
    ZERO,
    exp,
    hazard,
    largest_eigenvalue,
    log,
    outward,
    plus,
    power,
    root,
    times,
    up,
)
from dpconvex.checker.expansion import Entry, Monomial, Node, TemplateGraph, linear, product
from dpconvex.checker.public import Feasible, constant
from dpconvex.checker.reading import Unreplayed, indices, require, spend
from dpconvex.checker.rows import GeneratorRows, Vector, added, multiple, polynomial_range, vector
from dpconvex.checker.scalar_bounds import FAR, HessianPart, ScalarBound, span_dimension

LARGEST_EXPONENT = 300


class Rules:
    """The rules for one template; `leaves` are the rows of its affine subexpressions."""

    def __init__(self, template: TemplateGraph, rows: GeneratorRows, feasible: Feasible, losses: list[int]) -> None:
        self.template, self.rows, self.feasible = template, rows, feasible
        self.leaves: dict[tuple[int, int], Vector] = {}
        self.known: dict[int, list[ScalarBound]] = {}
        self.coefficients: set[Vector] = set()
        for k in self.below(losses):
            if self.is_leaf(k) and template.nodes[k].varies:
                for j, entry in enumerate(template.nodes[k].entries or []):
                    self.leaves[k, j] = rows.row(entry)
                    self.note(entry)
        rows.close()

    def below(self, roots: list[int]) -> list[int]:
        """Return the nodes below `roots`, down to the leaves, each after its arguments."""
        waiting, found = list(roots), set[int]()
        while waiting:
            k = waiting.pop()
            if k not in found:
                spend(2)
                found.add(k)
                waiting += [] if self.is_leaf(k) else self.template.nodes[k].args
        return sorted(found)

    def rank(self, root: int) -> int:
        """Return a bound on the dimension of the span of one record's gradients."""
        size = {k: self.template.nodes[k].size for k in self.below([root]) if self.is_leaf(k)}
        spend(sum(size.values()) // 2)
        return span_dimension(self.leaves.get((k, j), ()) for k in size for j in range(size[k]))

    def is_leaf(self, k: int) -> bool:
        node = self.template.nodes[k]
        return node.entries is not None and not (node.varies and node.name == "broadcast")

    def note(self, entry: Entry) -> None:
        """Record the coefficient vectors of a row, which span all gradients."""
        columns: dict[Monomial, dict[int, Fraction]] = defaultdict(dict)
        for (c, monomial), factor in entry.items():
            if c >= 0:
                columns[monomial][c] = factor
        for column in columns.values():
            self.coefficients.add(multiple(vector(column), 1 / min(column.items())[1]))

    def is_rank_one(self, layout: list[list[int]], rows: int, columns: int) -> bool:
        """Return whether rows are cells' weights times one vector; if positions are pairs, its entries must be products."""
        weights, places = self.template.weights, [tuple(item) for item in layout]
        require(all(max(place, default=0) < len(weights) for place in places), "a position is out of range")
        require(len(set(zip(self.rows.cells, places, strict=True))) == len(places), "coordinates share a position")
        shapes = [{(places[c], m): a / weights[c] for (c, m), a in terms} for terms in self.rows.generators]
        lengths = {places[c]: weights[c] for c in range(len(places))}
        cells = {self.rows.cells[terms[0][0][0]] for terms in self.rows.generators}
        alike = all(shape == shapes[0] for shape in shapes) and len(cells) == len(shapes)
        if not alike or any(lengths[place] != weight for place, weight in zip(places, weights, strict=True)):
            return False
        rank = span_dimension(self.leaves.values())
        if all(len(place) == 1 for place in places):
            spans: dict[Monomial, dict[int, Fraction]] = defaultdict(dict)
            for ((j,), monomial), value in shapes[0].items():
                spans[monomial][j] = value
            return rank <= rows and span_dimension(map(vector, spans.values())) <= columns
        if any(i > j or weight != (1 if i == j else 2) for (i, j), weight in zip(places, weights, strict=True)):
            return False  # the coordinates do not form symmetric matrices
        entries: dict[tuple[int, int], Entry] = defaultdict(dict)
        for ((i, j), monomial), value in shapes[0].items():
            entries[i, j][-1, monomial] = entries[j, i][-1, monomial] = value
        side = 1 + max(i for i, _ in entries)
        spend(side**2)
        pairs = [(i, j) for i in range(side) for j in range(side)]  # missing pairs count as 0
        square = all(product(entries[i, j], entries[0, 0]) == product(entries[i, 0], entries[0, j]) for i, j in pairs)
        return bool(entries[0, 0]) and square and side <= rows and rank * side <= columns

    def leaf(self, k: int, j: int, entry: Entry) -> ScalarBound:
        still = [(monomial, a) for (c, monomial), a in entry.items() if c < 0]
        spend(10 * len(still))
        value = polynomial_range(still, self.template.record.ranges)
        row = self.leaves.get((k, j), ())
        if row:
            reach = self.feasible.reach(entry, row, self.rows)
            value = (-FAR, FAR) if reach is None else plus(value, reach)
        return ScalarBound(value, ((row,),) if row else ())

    def combination(self, terms: Any) -> Vector:
        found: Vector = ()
        for k, j, factor in terms:
            found = added(found, self.leaves.get((k, j), ()), factor)
        return found

    def walk(self, root: int) -> list[ScalarBound]:
        """Return bounds on the entries of an expression, computed after those of its arguments."""
        for k in self.below([root]):
            node = self.template.nodes[k]
            if k not in self.known:
                entries = enumerate(node.entries or [])
                self.known[k] = [self.leaf(k, *item) for item in entries] if self.is_leaf(k) else self.apply(k, node)
            require(len(self.known[k]) == node.size, f"node {k}: {node.name} does not have its shape")
        return self.known[root]

    def apply(self, k: int, node: Node) -> list[ScalarBound]:
        args, options = [self.known[a] for a in node.args], node.options
        spend(10 * sum(map(len, args)))
        groups = [[args[0][j] for j in indices(line, len(args[0]))] for line in options.get("groups", [])]
        inner = (self.template.nodes[node.args[0]].entries or []) if groups else []
        sums = [[inner[j] for j in line] if inner else [] for line in options.get("groups", [])]
        if node.name == "log_sum_exp":
            return list(map(log_sum_exp, groups))
        if node.name == "norm" and options["p"] == 2:
            return [norm(*pair, self.rows) for pair in zip(groups, sums, strict=True)]
        if node.name == "quad_over_lin":
            divisor = self.template.nodes[node.args[1]]
            by = constant(divisor)
            if divisor.varies or divisor.private:
                raise Unreplayed(f"node {k}: there is no rule for squares over numbers that vary")
            require(by > 0, f"node {k}: a divisor is not positive")
            return [self.squares(*pair).times((1 / by, 1 / by)) for pair in zip(groups, sums, strict=True)]
        if node.name == "maximum":
            return [maximum(list(group)) for group in zip(*args, strict=True)]
        if node.name in CURVES:
            return [CURVES[node.name](scalar, options) for scalar in args[0]]
        nodes = [self.template.nodes[a] for a in node.args]
        first = bool(nodes) and nodes[0].varies
        found = linear(
            node,
            nodes,
            args,
            lambda group: reduce(ScalarBound.plus, group),
            lambda a, b: a.times(b.value) if first else b.times(a.value),
            lambda a, factor: a.times((factor, factor)),
        )
        if found is None:
            raise Unreplayed(f"node {k}: there is no rule for {node.name}")
        return found

    def squares(self, group: list[ScalarBound], entries: list[Entry]) -> ScalarBound:
        """Bound a sum of squares.  If all terms are affine, gradients are at most 2 times their norm times the largest slope."""
        found = reduce(ScalarBound.plus, [even_power(s, {"p": 2}) for s in group])
        if len(group) == 1 or not entries or not all(s.is_affine and len(s.vertices) == 1 for s in group):
            return found
        touched = {c for entry in entries for c, _ in entry if c >= 0}
        steepest = steepest_of([s.vertices[0] for s in group], self.rows)
        square_of = self.feasible.squared_radius(touched)
        sizes = [root(sum((power((ZERO, max(map(abs, s.value))), 2)[1] for s in group), ZERO))[1]]
        if square_of is not None:
            sizes.append(root(max(self.rows.offset(entries), ZERO))[1] + steepest * root(square_of)[1])
        return replace(found, hulls=(), ball=2 * steepest * min(sizes))


def maximum(group: list[ScalarBound]) -> ScalarBound:
    spend(sum(4 + len(s.pieces) for s in group))
    floor, top = max(s.value[0] for s in group), max(s.value[1] for s in group)
    alive = [s for s in group if s.value[1] >= floor]  # includes ties
    if len(alive) == 1:
        return replace(alive[0], value=(floor, top), behind=None)
    curved = [s for s in alive if s.hulls or s.ball]
    if len(curved) == 1:
        hinge = curved[0].through((floor, top), (ZERO, ONE), ZERO, kink=True)
        zero = all(s.value == (ZERO, ZERO) for s in alive if s is not curved[0])
        return replace(hinge, behind=curved[0] if zero else None)
    if all(s.is_constant for s in alive):
        return ScalarBound((floor, top))
    hull = tuple(dict.fromkeys(v for s in alive for v in s.vertices))
    return ScalarBound((floor, top), (hull,), tuple(p for s in alive for p in s.pieces), True)


def log_sum_exp(group: list[ScalarBound]) -> ScalarBound:
    """Bound a log-sum-exp; that of a number c of the record and m is ``c + logistic(m - c)``."""
    for number, m in (group, group[::-1]) if len(group) == 2 else ():
        if number.is_constant:
            return logistic(m.plus(number.times((-ONE, -ONE))), None).plus(number)
    return softmax(group)


def softmax(group: list[ScalarBound]) -> ScalarBound:
    """Bound a log-sum-exp: gradients are means of points under softmax weights, Hessians the covariance of the points."""
    spend(sum(4 + 2 * len(s.pieces) for s in group))
    hull = tuple(dict.fromkeys(v for s in group for v in s.vertices))
    value = max(s.value[0] for s in group), max(s.value[1] for s in group) + log(Fraction(len(group)))
    if max(abs(end) for s in group for end in s.value) <= LARGEST_EXPONENT:
        value = (
            -log(1 / sum((exp(s.value[0])[0] for s in group), ZERO)),
            log(sum((exp(s.value[1])[1] for s in group), ZERO)),
        )
    spread = (HessianPart(hull, ZERO, ONE),) if len(hull) > 1 else ()
    lead = ONE if spread and all(s.is_affine and len(s.vertices) == 1 for s in group) else None
    pieces = spread + tuple(p for s in group for p in s.bent.pieces)
    return ScalarBound(value, (hull,), pieces, any(s.kink for s in group), None, lead)


def logistic(s: ScalarBound, options: object) -> ScalarBound:
    """Bound the log-sum-exp of 0 and m, with slope p = 1/(1 + exp(-m)) and curvature p (1 - p)."""
    found = softmax([ScalarBound((ZERO, ZERO)), s])
    if max(map(abs, s.value)) > 300:
        return found
    slopes = outward(1 / (1 + exp(-s.value[0])[1]), 1 / (1 + exp(-s.value[1])[0]))
    if found.lead:
        return replace(found, hulls=s.stretched(slopes), slopes=slopes)
    nearest = min(max(slopes[0], ONE / 2), slopes[1])
    return s.through(found.value, slopes, nearest * (1 - nearest))


def steepest_of(vectors: list[Vector], rows: GeneratorRows) -> Fraction:
    """Bound the largest singular value of the matrix of some rows."""
    return root(largest_eigenvalue(tuple(map(tuple, rows.dominant(vectors)))))[1] if vectors else ZERO


def norm(group: list[ScalarBound], entries: list[Entry], rows: GeneratorRows) -> ScalarBound:
    """Bound a norm: gradients are rows times weights of norm at most 1; the rows' squares over the norm bound the Hessian."""
    still = [s.value for s in group if s.is_affine and not s.hulls]
    moving = [s for s in group if s.hulls or not s.is_affine]
    if not all(s.is_affine and len(s.vertices) == 1 for s in moving):
        raise Unreplayed("there is no rule for norms of expressions that are not affine")
    vectors = [s.vertices[0] for s in moving]
    steepest = steepest_of(vectors, rows)
    floor = root(sum((power(value, 2)[0] for value in still), ZERO))[0]
    squares = [power(s.value, 2) for s in group]
    least, most = root(sum((low for low, _ in squares), ZERO))[0], sum((high for _, high in squares), ZERO)
    if not moving:
        return ScalarBound((least, root(min(most, max(rows.offset(entries), ZERO)) if entries else most)[1]))
    pieces = tuple(HessianPart((row,), 1 / least) for row in vectors if least)
    turn = (ONE, steepest, floor, len(moving)) if floor else None
    return ScalarBound((least, FAR), (), pieces, not least, None, None, steepest, turn)


def huber(s: ScalarBound, options: dict[str, Any]) -> ScalarBound:
    """Bound huber, with slope 2m, clipped to 2M.  The slope is 0 at 0, so huber of max(m, 0) has no kink."""
    threshold = options["M"]
    require(threshold < FAR, "the threshold of huber is too large")
    low, high = (min(max(end, -threshold), threshold) for end in s.value)
    values = [c * (2 * end - c) for c, end in ((low, s.value[0]), (high, s.value[1]))]
    least = ZERO if s.value[0] <= 0 <= s.value[1] else min(values)
    value = least, FAR if FAR in (-s.value[0], s.value[1]) else max(values)
    curvature = Fraction(2) if s.value[0] < threshold and s.value[1] > -threshold else ZERO
    return (s.behind or s).through(value, (2 * low, 2 * high), curvature)


def even_power(s: ScalarBound, options: dict[str, Any]) -> ScalarBound:
    p = options["p"]
    if p not in range(2, 18, 2):
        raise Unreplayed("there is no rule for powers that are odd or above 16")
    require(max(map(abs, s.value)) ** (p // 2) < FAR / 2, "no bound is known for the argument of a power")
    value, slope, bend = (power(s.value, int(p) - k) for k in range(3))
    return (s.behind or s).through(value, times(slope, (p, p)), p * (p - 1) * bend[1])


def declared(s: ScalarBound, options: dict[str, Any]) -> ScalarBound:
    """Bound a function of one variable by its declared slopes and curvature, which are trusted."""
    low, high, curvature = (options[name] for name in ("low", "high", "curvature"))
    require(low == high or (low < high and curvature > 0), "a declared function has no slopes, or a kink")
    return s.through((-FAR, FAR), (low, high), curvature)


def exponential(s: ScalarBound, options: object) -> ScalarBound:
    """Bound an exponential: its slope and its curvature equal its value."""
    require(s.value[1] <= LARGEST_EXPONENT, "no bound is known for the argument of an exponential")
    value = exp(s.value[0])[0], exp(s.value[1])[1]
    return s.through(value, value, value[1])


def neg_log_normcdf(s: ScalarBound, options: object) -> ScalarBound:
    """Bound -log Phi(m): slope -h, the normal hazard rate at -m; curvature h (h + m), decreasing in m and below 1."""
    low, high = s.value
    require(low > -FAR, "no lower bound is known for the argument of log_normcdf")
    steep, flat = hazard(-low)[1], hazard(-high)[0] if high < FAR else ZERO
    most = up(low * low / 2 + log(root(2 * PI[1])[1] * steep))  # h is the density over the distribution function
    return s.through((ZERO, most), (-steep, -flat), min(ONE, steep * (steep + low)))


CURVES: dict[str, Callable[[ScalarBound, dict[str, Any]], ScalarBound]] = {
    "abs": lambda s, _: s.through((ZERO, max(map(abs, s.value))), (-ONE, ONE), ZERO, kink=True),
    "declared": declared,
    "exp": exponential,
    "huber": huber,
    "logistic": logistic,
    "neg_log_normcdf": neg_log_normcdf,
    "power": even_power,
}
