"""What is public: that regularizer and constraints are convex, how strongly the first is, and what K bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

from dpconvex.checker.exact import ONE, ZERO, Range, pivots, root, times
from dpconvex.checker.expansion import CONSTANT, REARRANGED, Entry, Node, Template, total
from dpconvex.checker.reading import Unreplayed, part, require, value, wholes
from dpconvex.checker.rows import Rows, Vector, monomial_range

# Convex in affine arguments; growing in every argument besides; concave in affine ones; neither.
CONVEX = ("abs", "norm", "norm_nuc", "huber", "power", "quad_over_lin", "lambda_max")
GROWING = ("logistic", "exp", "maximum", "max", "log_sum_exp")
CONCAVE, LINEAR = ("log_det", "log", "lambda_min"), (*REARRANGED, "add", "sum")


def constant(node: Node) -> Fraction:
    """Return the number that a public expression is, 0 if it is none."""
    entry = (node.entries or [{}])[0]
    return entry.get(CONSTANT, ZERO) if node.size == 1 and set(entry) <= {CONSTANT} else ZERO


def is_whole(node: Node, inner: Node) -> bool:
    """Whether an expression takes every entry of its argument, and once."""
    taken = node.options.get("groups", [node.options.get("places", [*range(inner.size)])])
    return sorted(j for group in taken for j in group) == [*range(inner.size)]


def is_symmetric(matrix: Node) -> bool:
    side, entries = matrix.shape[0], matrix.entries or []
    square = matrix.shape == [side, side]
    return square and all(entries[i * side + j] == entries[j * side + i] for i in range(side) for j in range(i))


def factor(node: Node, one: Node, two: Node) -> tuple[Fraction, bool]:
    """Return what multiplies the varying argument, 0 if it is no number, and whether that argument is the first."""
    first = one.varies
    entries = (two if first else one).entries or [{}]
    values = {entry.get(CONSTANT, ZERO) if set(entry) <= {CONSTANT} else ZERO for entry in entries}
    by = values.pop() if len(values) == 1 else ZERO
    return (by if node.name == "multiply" or not by else 1 / by if first else ZERO), first


def curvature(template: Template, k: int) -> int:
    """Return 0 for what is affine in the parameters, 1 for convex, -1 for concave; what no rule knows is not replayed."""
    node = template.nodes[k]
    require(not node.private, "the regularizer or a constraint reads the record")
    if node.entries is not None or not node.varies:
        return 0
    args, found = [curvature(template, a) for a in node.args], None
    if node.name in LINEAR or node.name in GROWING:
        kinds = set(args) - {0} | ({1} if node.name in GROWING else set())
        found = kinds.pop() if len(kinds) == 1 else None
    elif node.name == "negate":
        found = -args[0]
    elif node.name in ("multiply", "divide"):
        by, _ = factor(node, *(template.nodes[a] for a in node.args))
        found = sum(args) * (1 if by > 0 else -1) if by else None
    elif not any(args):
        first, divisors = template.nodes[node.args[0]], [constant(template.nodes[a]) for a in node.args[1:]]
        plain = node.options.get("p", 2) in ((1, 2) if node.name == "norm" else (2,))
        plain &= all(by > 0 for by in divisors) and value(node.options, "M", 1) > 0
        plain &= node.name not in ("lambda_max", "lambda_min", "log_det") or is_symmetric(first)
        found = (1 if node.name in CONVEX else -1 if node.name in CONCAVE else None) if plain else None
    if found is None:
        raise Unreplayed(f"node {k}: the curvature of {node.name}")
    return found


def squares(template: Template, feasible: Feasible, k: int, weight: Fraction) -> list[tuple[Entry, Fraction]]:
    """Return rows a and weights w such that the convex expression less ``sum w <a, theta>^2 / 2`` is convex."""
    node = template.nodes[k]
    if node.entries is not None or weight <= 0:
        return []
    args = [template.nodes[a] for a in node.args]
    if node.name != "add" and not is_whole(node, args[0]):
        return []
    if node.name in ("add", "sum", "reshape", "broadcast"):
        return [item for a in node.args for item in squares(template, feasible, a, weight)]
    if node.name in ("multiply", "divide") and args[0].size == args[1].size == 1:
        by, first = factor(node, *args)
        return squares(template, feasible, node.args[0 if first else 1], weight * by)
    if node.name == "quad_over_lin" and constant(args[1]) > 0:
        return [(entry, 2 * weight / constant(args[1])) for entry in args[0].entries or []]
    if node.name == "power" and node.options.get("p") == 2:
        return [(entry, 2 * weight) for entry in args[0].entries or []]
    if node.name == "negate" and args[0].name == "log_det":  # curved by 1/u^2 where eigenvalues are at most u
        matrix = template.nodes[args[0].args[0]]
        most = feasible.largest_eigenvalue(matrix)
        return [(entry, weight / most**2) for entry in matrix.entries or []] if most else []
    return []


def is_modulus(
    template: Template, feasible: Feasible, regularizer: int, size: int, added: Fraction, mu: Fraction
) -> bool:
    """Whether ``size * regularizer + (added - mu)/2 ||theta||^2`` is convex, by its squares alone."""
    if curvature(template, regularizer) < 0 or template.nodes[regularizer].size != 1:
        raise Unreplayed("a regularizer that is concave, or no number")
    matrix: dict[int, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for k, weight in enumerate(template.weights):
        matrix[k][k] = (added - mu) * weight
    for entry, weight in squares(template, feasible, regularizer, Fraction(size)):
        row = [(c, value) for (c, _), value in entry.items() if c >= 0]
        for c, a in row:
            for d, b in row:
                matrix[c][d] += weight * a * b
    left, proved = set(matrix), True
    while left:  # one part after the other that no entry connects with others
        group, waiting = set[int](), [left.pop()]
        while waiting:
            c = waiting.pop()
            group.add(c)
            waiting += [d for d, value in matrix[c].items() if value and d not in group]
        left -= group
        proved = proved and pivots([[matrix[c][d] for d in sorted(group)] for c in sorted(group)]) is not None
    return proved


class Feasible:
    """What the constraints say of K: bounds of coordinates, of norms, and of sums of what is not negative."""

    def __init__(self, template: Template, constraints: Any) -> None:
        self.template = template
        self.bounds = {True: dict[int, Fraction](), False: dict[int, Fraction]()}  # upper, lower
        self.balls: list[tuple[set[int], Fraction]] = []
        self.simplices: list[tuple[set[int], Fraction]] = []
        self.matrices: list[Node] = []
        self.unread = False  # whether there is more to know of K
        most = len(template.nodes) - 1
        given = [(part(item, "kind", str), wholes(part(item, "args"), most)) for item in constraints]
        for kind, args in sorted(given, reverse=True):  # inequalities before equations
            curved = [curvature(template, a) for a in args]
            signs = {"equality": ((0,), (0,)), "inequality": ((0, 1), (0, -1)), "semidefinite": ((0,),)}.get(kind, ())
            if len(signs) != len(args) or any(c not in allowed for c, allowed in zip(curved, signs, strict=True)):
                raise Unreplayed(f"a constraint of kind {kind}")
            known = len(self.balls) + len(self.simplices)
            if kind == "semidefinite":
                self.matrices.append(template.nodes[args[0]])
            else:
                self.read(kind, *(template.nodes[a] for a in args))
            self.unread |= known == len(self.balls) + len(self.simplices)

    def read(self, kind: str, node: Node, other: Node) -> None:
        """Read what a constraint says of single coordinates, their absolute values, norms and sums; nothing otherwise."""
        inner = node if node.entries is not None else self.template.nodes[node.args[0]]
        if other.entries is None or inner.entries is None:
            return
        if node.name in ("norm", "norm_nuc") and is_whole(node, inner):
            places = Counter(c for entry in inner.entries for (c, _), a in entry.items() if c >= 0 and a == 1)
            single = all(len(entry) == 1 for entry in inner.entries) and places.total() == inner.size
            # Both entries of a symmetric matrix that a coordinate is.
            if constant(other) > 0 and single and all(self.template.weights[c] <= k for c, k in places.items()):
                self.balls.append((set(places), constant(other)))
        elif node.entries is not None or node.name == "abs":
            for entry, limit in zip(inner.entries, other.entries, strict=True):
                both = {key: entry.get(key, ZERO) - limit.get(key, ZERO) for key in {*entry, *limit}}
                moving, rest = {c: a for (c, _), a in both.items() if c >= 0 and a}, -both.get(CONSTANT, ZERO)
                if kind == "equality" and min(moving.values(), default=ZERO) > 0:
                    if all(self.bounds[False].get(c, -ONE) >= 0 for c in moving):
                        self.simplices.append((set(moving), rest / min(moving.values())))
                elif len(moving) == 1 and (node.name != "abs" or (set(limit) <= {CONSTANT} and CONSTANT not in entry)):
                    ((c, a),) = moving.items()
                    self.bounds[a > 0][c] = rest / a
                    if node.name == "abs":
                        self.bounds[a < 0][c] = -rest / a

    def largest_eigenvalue(self, matrix: Node) -> Fraction | None:
        """Return a u such that ``u I - matrix`` is semidefinite on K, None if no constraint says so."""
        for other in self.matrices:
            both = [total(pair) for pair in zip(matrix.entries or [], other.entries or [], strict=False)]
            side = matrix.shape[0] + 1
            ends = {entry.get(CONSTANT, ZERO) for entry in both[::side]}
            flat = all(set(entry) <= ({CONSTANT} if k % side == 0 else set()) for k, entry in enumerate(both))
            if other.shape == matrix.shape and flat and len(ends) == 1 and min(ends) > 0:
                return ends.pop()
        return None

    def reach(self, entry: Entry, row: Vector, rows: Rows) -> Range | None:
        """Bound the linear part of an entry over the record and K; None if nothing does."""
        if not (self.balls or self.simplices or self.bounds[True]):
            return None
        linear = [(c, a, monomial_range(monomial, rows.record)) for (c, monomial), a in entry.items() if c >= 0]
        touched = {c for c, *_ in linear}
        for members, radius in self.balls:
            if touched <= members:
                size = root(rows.square(row))[1] * radius
                return -size, size
        for members, most in self.simplices:
            if touched <= members and len(touched) == len(linear):
                values = [a * most * end for _, a, ends in linear for end in ends]
                return min(ZERO, *values), max(ZERO, *values)
        low = high = ZERO
        for c, a, ends in linear:
            if c not in self.bounds[False] or c not in self.bounds[True]:
                return None
            found = times((a * ends[0], a * ends[1]), (self.bounds[False][c], self.bounds[True][c]))
            low, high = low + min(found), high + max(found)
        return low, high
