"""What is public: that regularizer and constraints are convex, how strongly the first is, and what K bounds."""

from collections import defaultdict
from fractions import Fraction
from typing import Any

from dpconvex.checker.exact import ONE, ZERO, Range, power, root, times
from dpconvex.checker.expansion import Entry, Monomial, Record, Template
from dpconvex.checker.reading import number, part, require, whole
from dpconvex.checker.rows import Rows, Vector, is_semidefinite

# Convex in every argument; of affine ones alone, unless they grow with each of them.
CONVEX = ("abs", "norm", "norm_nuc", "huber", "power", "quad_over_lin", "lambda_max")
GROWING = ("logistic", "exp", "maximum", "max", "log_sum_exp", "sum_largest")
CONCAVE = ("log_det", "log", "lambda_min", "geo_mean")
LINEAR = ("index", "select", "reshape", "transpose", "broadcast", "concatenate", "add", "sum")


def curvature(template: Template, k: int) -> int | None:
    """Return 0 for what is affine in the parameters, 1 for convex, -1 for concave, None for what no rule knows."""
    node = template.nodes[k]
    if node.entries is not None or not node.varies:
        return 0
    args = [curvature(template, a) for a in node.args]
    if node.name in LINEAR or node.name in GROWING:
        found = set(args) - {0} | ({1} if node.name in GROWING else set())
        return found.pop() if len(found) == 1 and found <= {1, -1} else None
    if node.name == "negate":
        return None if args[0] is None else -args[0]
    if node.name in ("multiply", "divide"):
        by = [template.nodes[a].entries for a in node.args if not template.nodes[a].varies]
        signs = {value > 0 for entries in by for entry in entries or [{}] for value in entry.values() or [ZERO]}
        constant = all(set(entry) <= {(-1, ())} for entries in by for entry in entries or [])
        one = next((a for a in args if a), None)
        return one * (1 if signs == {True} else -1) if one and constant and len(by) == len(signs) == 1 else None
    if any(args):
        return None
    if node.name == "power" and node.options.get("p") != 2:
        return None
    return 1 if node.name in CONVEX else -1 if node.name in CONCAVE else None


def squares(template: Template, k: int, weight: Fraction) -> list[tuple[Entry, Fraction]]:
    """Return rows a and weights w such that the convex expression less ``sum w <a, theta>^2 / 2`` is convex."""
    node = template.nodes[k]
    if node.entries is not None or weight <= 0:
        return []
    first, args = template.nodes[node.args[0]], node.args
    if node.name in ("add", "sum", "reshape", "broadcast") and (node.name != "broadcast" or node.size == 1):
        return [item for a in args for item in squares(template, a, weight)]
    if node.name in ("multiply", "divide") and node.size == 1:
        varying = args[0] if first.varies else args[1]
        entries = template.nodes[args[1] if first.varies else args[0]].entries or [{}]
        factor = entries[0].get((-1, ()), ZERO)
        by = ZERO if not factor else factor if node.name == "multiply" else 1 / factor
        return squares(template, varying, weight * by)
    if node.name == "quad_over_lin" and first.entries is not None:
        by = (template.nodes[args[1]].entries or [{}])[0].get((-1, ()), ZERO)
        return [(entry, 2 * weight / by) for entry in first.entries] if by > 0 else []
    if node.name == "power" and node.options.get("p") == 2 and first.entries is not None:
        return [(entry, 2 * weight) for entry in first.entries]
    return []


def is_modulus(template: Template, regularizer: int, size: int, added: Fraction, mu: Fraction) -> bool:
    """Whether ``size * regularizer + (added - mu)/2 ||theta||^2`` is convex, by its squares alone."""
    require(curvature(template, regularizer) in (0, 1), "the regularizer is not convex by the checker's rules")
    matrix: dict[int, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for k, weight in enumerate(template.weights):
        matrix[k][k] = (added - mu) * weight
    for entry, weight in squares(template, regularizer, Fraction(size)):
        row = [(c, value) for (c, monomial), value in entry.items() if c >= 0]
        for c, a in row:
            for d, b in row:
                matrix[c][d] += weight * a * b
    left = set(matrix)
    while left:
        group, waiting = set[int](), [left.pop()]
        while waiting:
            c = waiting.pop()
            group.add(c)
            waiting += [d for d, value in matrix[c].items() if value and d not in group]
        left -= group
        if not is_semidefinite([[matrix[c][d] for d in sorted(group)] for c in sorted(group)]):
            return False
    return True


class Feasible:
    """What the constraints bound: single coordinates, and the norms of variables."""

    def __init__(self, template: Template, constraints: Any) -> None:
        self.template = template
        count = len(template.weights)
        self.lower: list[Fraction | None] = [None] * count
        self.upper: list[Fraction | None] = [None] * count
        self.balls: list[tuple[frozenset[int], Fraction]] = []
        self.simplices: list[tuple[frozenset[int], Fraction]] = []
        equations = []
        for item in constraints:
            kind, args = part(item, "kind", str), [whole(a, len(template.nodes) - 1) for a in part(item, "args")]
            curved = [curvature(template, a) for a in args]
            if kind == "equality":
                require(not any(curved) and None not in curved, "an equation is not affine")
                equations.append(args)
            elif kind == "inequality":
                require(curved[0] in (0, 1) and curved[1] in (0, -1), "an inequality is not convex")
                self.bound(*args)
            else:
                require(kind == "semidefinite" and curved == [0], f"the checker knows no constraint of kind {kind}")
        for first, second in equations:
            self.simplex(first, second)

    def bound(self, a: int, b: int) -> None:
        """Read what ``a <= b`` says of single coordinates, their absolute values and norms; nothing otherwise."""
        node, other = self.template.nodes[a], self.template.nodes[b]
        inner = node if node.entries is not None else self.template.nodes[node.args[0]]
        if other.entries is None or inner.entries is None:
            return
        if node.name == "norm" and node.options.get("p") in (1, 2) or node.name == "norm_nuc":
            rows = [tuple(entry.items()) for entry in inner.entries]
            limit = other.entries[0] if node.size == 1 else {(0, ()): ZERO}
            if set(limit) <= {(-1, ())} and all(len(row) == 1 and row[0][1] == 1 and row[0][0][1] == () for row in rows):
                square = max(limit.get((-1, ()), ZERO), ZERO)
                self.balls.append((frozenset(row[0][0][0] for row in rows), square))
            return
        if node.entries is None and node.name != "abs":
            return
        for entry, limit in zip(inner.entries, other.entries):
            both = {key: entry.get(key, ZERO) - (limit.get(key, ZERO) if node.name != "abs" else ZERO) for key in {*entry, *limit}}
            moving = [(key[0], value) for key, value in both.items() if key[0] >= 0 and value]
            if len(moving) == 1 and (node.name != "abs" or set(limit) <= {(-1, ())}):
                (c, factor), rest = moving[0], both.get((-1, ()), ZERO)
                if node.name == "abs":
                    if not rest:
                        most = limit.get((-1, ()), ZERO) / abs(factor)
                        self.lower[c], self.upper[c] = -most, most
                elif factor > 0:
                    self.upper[c] = -rest / factor
                else:
                    self.lower[c] = -rest / factor

    def simplex(self, a: int, b: int) -> None:
        """Read an equation of numbers that are not negative: they add up to no more than this."""
        for entry, limit in zip(self.template.nodes[a].entries or [], self.template.nodes[b].entries or [], strict=True):
            factors = {c: value for (c, _), value in entry.items() if c >= 0}
            least = min(factors.values(), default=ZERO)
            if set(limit) <= {(-1, ())} and least > 0 and all((self.lower[c] or -ONE) >= 0 or self.lower[c] == 0 for c in factors):
                most = (limit.get((-1, ()), ZERO) - entry.get((-1, ()), ZERO)) / least
                self.simplices.append((frozenset(factors), most))

    def reach(self, entry: Entry, row: Vector, rows: Rows) -> Range | None:
        """Bound the linear part of an entry over the record and K, by a ball or by boxes; None if nothing does."""
        linear = {key: value for key, value in entry.items() if key[0] >= 0}
        touched = {c for c, _ in linear}
        for members, radius in self.balls:
            if touched <= members:
                size = root(rows.square(row))[1] * radius
                return -size, size
        for members, most in self.simplices:
            if touched <= members:
                ends = [times((a * most, a * most), monomial_range(m, rows.record)) for (_, m), a in linear.items()]
                if len(ends) == len(touched):  # one term for each
                    return min(ZERO, *(low for low, _ in ends)), max(ZERO, *(high for _, high in ends))
        low = high = ZERO
        for (c, monomial), factor in linear.items():
            below, above = self.lower[c], self.upper[c]
            if below is None or above is None:
                return None
            ends = [factor * x * y for x in monomial_range(monomial, rows.record) for y in (below, above)]
            low, high = low + min(ends), high + max(ends)
        return low, high


def monomial_range(monomial: Monomial, record: Record) -> Range:
    found = (ONE, ONE)
    for scalar in set(monomial):
        found = times(found, power((record.lower[scalar], record.upper[scalar]), monomial.count(scalar)))
    return found
