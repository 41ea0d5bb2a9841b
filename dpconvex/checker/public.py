"""Public expressions: convexity of regularizer and constraints, strong convexity, and bounds on K."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Any

from dpconvex.checker.exact import ONE, ZERO, Range, blocks, pivots, root, times
from dpconvex.checker.expansion import CONSTANT, REARRANGED, Entry, Node, TemplateGraph, entry_sum, number_of, scaled
from dpconvex.checker.reading import Unreplayed, effort, indices, require, spend
from dpconvex.checker.rows import GeneratorRows, Vector, polynomial_range

# Operations: convex in affine arguments; convex and nondecreasing in each argument; concave in affine arguments; linear.
CONVEX = ("abs", "norm", "norm_nuc", "huber", "power", "quad_over_lin", "lambda_max", "sigma_max")
GROWING = ("logistic", "exp", "maximum", "max", "log_sum_exp", "sum_largest")
CONCAVE, LINEAR = ("log_det", "log"), (*REARRANGED, "add", "sum")
Squares = list[tuple[Entry, Fraction]]


def constant(node: Node) -> Fraction:
    """Return the value of a constant scalar expression; 0 if it is not constant or no scalar."""
    return number_of(node.entries[0]) if node.entries is not None and node.size == 1 else ZERO


def is_whole(node: Node, inner: Node) -> bool:
    """Return whether an expression uses each entry of its argument exactly once."""
    spend(inner.size // 4)
    whole = [*range(inner.size)]
    taken = [node.options.get("places", [])] if node.name in REARRANGED else node.options.get("groups", [whole])
    return sorted(j for group in taken for j in group) == whole


def is_symmetric(matrix: Node) -> bool:
    side, entries = matrix.shape[0] if matrix.shape else 0, matrix.entries or []
    spend(sum(map(len, entries)))
    square = matrix.shape == [side, side] and len(entries) == side**2
    return square and all(entries[i * side + j] == entries[j * side + i] for i in range(side) for j in range(i))


def factor(node: Node, one: Node, two: Node) -> tuple[Fraction, int]:
    """Return the constant that multiplies the varying argument, or 0 if there is none, and the index of that argument."""
    values = {number_of(entry) for entry in (two if one.varies else one).entries or [{}]}
    by = values.pop() if len(values) == 1 else ZERO
    return (by if node.name == "multiply" or not by else 1 / by if one.varies else ZERO), 0 if one.varies else 1


def squares(template: TemplateGraph, feasible: Feasible, parts: dict[tuple[int, bool], Fraction]) -> Squares:
    """Prove that expressions are convex (True) or concave (False); raise `Unreplayed` if there is no rule.

    `parts` gives each expression's weight in a convex sum of all entries, or 0.  Returns rows a and weights w such that the sum
    less ``sum w <a, theta>^2 / 2`` is convex.  Each node is visited once, after all nodes that use it.
    """
    waiting, found = defaultdict(Fraction, parts), Squares()
    order = [-k for k, _ in waiting]
    heapify(order)
    while order:
        k = -heappop(order)
        for convex in (True, False):
            if (k, convex) in waiting:
                for a, side, weight in curvature(template, feasible, k, convex, waiting.pop((k, convex)), found):
                    if (a, side) not in waiting:
                        heappush(order, -a)
                    waiting[a, side] += weight
    return found


def curvature(
    template: TemplateGraph, feasible: Feasible, k: int, convex: bool, weight: Fraction, found: Squares
) -> list[tuple[int, bool, Fraction]]:
    """Return the arguments that must be convex or concave, with weights, so that a node is; append its squares to `found`."""
    node = template.nodes[k]
    spend(10 + len(node.args))
    require(not node.private, "the regularizer reads the record")
    if node.entries is not None or not node.varies:
        return []
    args = [template.nodes[a] for a in node.args]
    first, affine = args[0], all(a.entries is not None for a in args)
    if node.name in LINEAR or node.name == "negate":
        counted = node.name == "add" or (len(args) == 1 and is_whole(node, first))
        feasible.uncounted |= not counted and weight > 0
        return [(a, convex != (node.name == "negate"), weight if counted else ZERO) for a in node.args]
    if node.name in ("multiply", "divide"):
        by, moving = factor(node, *args)
        if by:
            return [(node.args[moving], convex == (by > 0), weight * abs(by))]
    elif node.name in GROWING and convex:
        return [(a, True, ZERO) for a in node.args]
    elif affine and node.name in CONVEX and convex:
        exponent, divisors = node.options.get("p", 2), [constant(a) for a in args[1:]]
        plain = exponent == 2 or (exponent == 1 and node.name == "norm")
        plain |= node.name == "power" and exponent > 0 and exponent % 2 == 0
        if plain and min(divisors, default=ONE) > 0 and (node.name != "lambda_max" or is_symmetric(first)):
            bend = 2 * weight / divisors[0] if node.name == "quad_over_lin" else 2 * weight
            square = node.name in ("quad_over_lin", "power")
            curved = square and exponent == 2 and is_whole(node, first)
            found += [(entry, bend) for entry in first.entries or []] if curved and bend else []
            feasible.uncounted |= square and not curved and weight > 0
            return []
    elif affine and node.name in CONCAVE and not convex and (node.name == "log" or is_symmetric(first)):
        most = feasible.largest_eigenvalue(first) if node.name == "log_det" and weight else None
        found += [(entry, weight / most**2) for entry in first.entries or [] if most]  # its curvature is 1/u^2
        feasible.uncounted |= not most and weight > 0
        return []
    raise Unreplayed(f"node {k}: there is no rule for the curvature of {node.name}")


def is_modulus(
    template: TemplateGraph, feasible: Feasible, regularizer: int, size: int, added: Fraction, mu: Fraction
) -> bool:
    """Return whether ``size * regularizer + (added - mu)/2 ||theta||^2`` is proved convex by its squares alone.

    Raises
    ------
    Unreplayed
        If it is not, and a term has more curvature than its squares.
    """
    if template.nodes[regularizer].size != 1:
        raise Unreplayed("the regularizer is not scalar")
    matrix: dict[int, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for k, weight in enumerate(template.weights):
        matrix[k][k] = (added - mu) * weight
    for entry, weight in squares(template, feasible, {(regularizer, True): Fraction(size)}):
        row = [(c, value) for (c, _), value in entry.items() if c >= 0]
        spend(len(row) * effort(value for _, value in row))
        for c, a in row:
            first, by = matrix[c], weight * a
            for d, b in row:
                first[d] += by * b
    proved = all(pivots(block) is not None for block in blocks(matrix))
    if feasible.uncounted and not proved:
        raise Unreplayed("there is no rule for how strongly some term of the regularizer curves")
    return proved


class Feasible:
    """Bounds on K from the constraints: on coordinates, on norms, and on sums of nonnegative coordinates."""

    def __init__(self, template: TemplateGraph, constraints: Any) -> None:
        self.template = template
        self.bounds = {True: dict[int, Fraction](), False: dict[int, Fraction]()}  # upper, lower
        self.balls: list[tuple[set[int], Fraction]] = []
        # Coordinates that are weights, with absolute sum at most 1, times a number between these ends.
        self.simplices: list[tuple[set[int], Range]] = []
        self.matrices: list[tuple[list[int], list[Entry]]] = []  # semidefinite ones: shapes and entries
        self.unread = False  # whether some constraint is not fully used
        self.uncounted = False  # whether a term of the regularizer has more curvature than its squares
        given = [(item["kind"], indices(item["args"], len(template.nodes))) for item in constraints]
        sides = [(k, side == 0) for kind, args in given for side, k in enumerate(args) if kind != "semidefinite"]
        squares(template, self, dict.fromkeys(sides, ZERO))
        # Inequalities before equations, and bounds on coordinates before those on sums
        long = [max([0, *(len(e) for a in args for e in template.nodes[a].entries or ())]) for _, args in given]
        for _, _, kind, args in sorted((k == "equality", n, k, a) for n, (k, a) in zip(long, given, strict=True)):
            spend(10 + sum(template.nodes[a].size for a in args))
            known, nodes = len(self.balls) + len(self.simplices), [template.nodes[a] for a in args]
            affine = all(node.entries is not None for node in nodes)
            require(not any(node.private for node in nodes), "a constraint reads the record")
            if kind == "semidefinite" and len(nodes) == 1 and is_symmetric(nodes[0]):
                self.matrices.append((nodes[0].shape, nodes[0].entries or []))
            elif len(nodes) == 2 and (kind == "inequality" or (kind == "equality" and affine)):
                sizes = {node.size for node in nodes}
                require(len(sizes) == 1 or min(sizes) == 1, "the sides of a constraint have different shapes")
                self.read(kind, *nodes)
            else:
                raise Unreplayed(f"there is no rule for a constraint of kind {kind}")
            self.unread |= known == len(self.balls) + len(self.simplices)

    def read(self, kind: str, node: Node, other: Node) -> None:
        """Read a constraint's bounds on coordinates, absolute values, norms and sums; ignore other constraints."""
        sizes, inner = node.entries is None, node if node.entries is not None else self.template.nodes[node.args[0]]
        whole = node.size == 1 and is_whole(node, inner)
        absolute = sizes and whole and node.name in ("sum", "max") and inner.name == "abs"
        if absolute and inner.entries is None:
            inner = self.template.nodes[inner.args[0]]
        if other.entries is None or inner.entries is None:
            return
        limits = other.entries
        if node.name == "lambda_max":
            ends = [limits[0] if k % (inner.shape[0] + 1) == 0 else {} for k in range(inner.size)]
            self.matrices.append(
                (inner.shape, [entry_sum((end, scaled(a, -ONE))) for end, a in zip(ends, inner.entries, strict=True)])
            )
        if absolute and node.name == "max":
            limits = limits * inner.size
        elif absolute or (node.name in ("norm", "norm_nuc") and whole):
            places = Counter(c for entry in inner.entries for (c, _), a in entry.items() if c >= 0 and a == 1)
            single = all(len(entry) == 1 for entry in inner.entries) and places.total() == inner.size
            # A coordinate of a symmetric matrix counts for both of its entries.
            if constant(other) > 0 and single and all(self.template.weights[c] <= k for c, k in places.items()):
                self.balls.append((set(places), constant(other)))
                if absolute:
                    self.simplices.append((set(places), (-constant(other), constant(other))))
            limits = limits * inner.size  # no entry is larger than a norm
        elif sizes and node.name != "abs":
            return
        for entry, limit in zip(inner.entries, limits, strict=False) if len(inner.entries) == len(limits) else ():
            for side in (ONE, -ONE)[: 1 + sizes]:
                both = entry_sum((scaled(entry, side), scaled(limit, -ONE)))
                moving, rest = {c: a for (c, _), a in both.items() if c >= 0}, -both.get(CONSTANT, ZERO)
                if min(moving.values(), default=ZERO) > 0 and (kind == "equality" or len(moving) > 1):
                    if all(self.bounds[False].get(c, -ONE) >= 0 for c in moving):
                        self.simplices.append((set(moving), (ZERO, rest / min(moving.values()))))
                elif len(moving) == 1:
                    ((c, a),) = moving.items()
                    end = rest / a
                    self.bounds[a > 0][c] = (min if a > 0 else max)(self.bounds[a > 0].get(c, end), end)

    def largest_eigenvalue(self, matrix: Node) -> Fraction | None:
        """Return u such that ``u I - matrix`` is semidefinite on K, or None if no constraint implies it."""
        entries, side = matrix.entries or [], matrix.shape[0] + 1
        for shape, other in self.matrices:
            spend(10 * matrix.size)
            both = [entry_sum(pair) for pair in zip(entries, other, strict=False)]
            ends = {number_of(entry) for entry in both[::side]}
            flat = all(set(entry) <= ({CONSTANT} if k % side == 0 else set()) for k, entry in enumerate(both))
            if shape == matrix.shape and flat and len(ends) == 1 and min(ends) > 0:
                return ends.pop()
        places = Counter(c for entry in entries for (c, _), a in entry.items() if len(entry) == 1 and a == 1)
        whole = places.total() == matrix.size and all(
            c >= 0 and k <= self.template.weights[c] for c, k in places.items()
        )
        square = self.squared_radius({*places}) if whole else None
        return root(square)[1] if square else None  # no eigenvalue is larger than the norm of all entries

    def squared_radius(self, touched: set[int]) -> Fraction | None:
        """Bound the squared norm of some coordinates, by balls for parts and by intervals for the rest; None if unbounded."""
        both = touched & self.bounds[False].keys() & self.bounds[True].keys()
        weighed = {c: self.template.weights[c] * max(abs(self.bounds[s][c]) for s in (False, True)) ** 2 for c in both}
        left, square = touched, ZERO
        for members, radius in self.balls:
            part = left & members
            if not part <= both or radius**2 < sum((weighed[c] for c in part), ZERO):
                left, square = left - part, square + radius**2
        return square + sum((weighed[c] for c in left), ZERO) if left <= both else None

    def reach(self, entry: Entry, row: Vector, rows: GeneratorRows) -> Range | None:
        """Bound the linear part of an entry over the record and K; None if it is unbounded."""
        if not (self.balls or self.simplices or self.bounds[True]):
            return None
        linear = [
            (c, a, polynomial_range([(monomial, ONE)], rows.record.ranges))
            for (c, monomial), a in entry.items()
            if c >= 0
        ]
        spend(5 * len(linear) * (1 + len(self.simplices)) + len(self.balls))
        low = high = ZERO
        for members, ends in self.simplices:  # the largest term bounds the sum over a simplex
            alike = [(a, span) for c, a, span in linear if c in members]
            if alike and len({c for c, *_ in linear if c in members}) == len(alike):
                values = [a * end * by for a, span in alike for end in span for by in ends]
                low, high = min(ZERO, *values) + low, max(ZERO, *values) + high
                linear = [item for item in linear if item[0] not in members]
        if not linear:
            return low, high
        touched = {c for c, *_ in linear}
        square = self.squared_radius(touched)
        if square is None:
            return None
        size = root(rows.square(row) * square)[1]  # the whole row's norm also bounds the remaining terms
        if not touched <= self.bounds[False].keys() & self.bounds[True].keys():
            return low - size, high + size
        least = most = ZERO
        for c, a, ends in linear:
            found = times((a * ends[0], a * ends[1]), (self.bounds[False][c], self.bounds[True][c]))
            least, most = least + min(found), most + max(found)
        return low + max(least, -size), high + min(most, size)
