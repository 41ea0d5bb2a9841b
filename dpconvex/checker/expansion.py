"""Expands a template: expressions that are affine in the parameters, as exact polynomials in one record's scalars.

An entry of an affine expression maps (coordinate, or -1 for none; sorted tuple of scalars) to a coefficient.  All arrays
are in column order.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any, TypeVar

from dpconvex.checker.exact import ONE, ZERO, Range, power, times
from dpconvex.checker.reading import MOST_NODES, effort, indices, require, spend
from dpconvex.checker.table import OPERATIONS

T = TypeVar("T")
Monomial = tuple[int, ...]
Entry = dict[tuple[int, Monomial], Fraction]
MOST_TERMS, MOST_ENTRIES, MOST_LENGTH, MOST_DEGREE = 300_000, 100_000, 5_000, 64
CONSTANT: tuple[int, Monomial] = (-1, ())  # the key of an entry's constant term
ENDS = {"lower": -1, "upper": 1}
MATRICES = {"norm_nuc", "log_det", "lambda_max", "sigma_max"}
NUMBERS = MATRICES | {"quad_over_lin", "sum_largest"}
REARRANGED = ("index", "select", "reshape", "transpose", "broadcast", "concatenate")
# Operations with arguments of the same shape as the result.
ENTRYWISE = {*OPERATIONS} - NUMBERS - {*REARRANGED, "matmul", "sum", "max", "log_sum_exp", "norm"}


@dataclass
class RecordBounds:
    """Bounds on one record's scalars, field by field; `squares` bound each field's squared Euclidean norm.

    `inner` holds two ranges for each field: of its inner product between two records, and of its squared norm.
    """

    ranges: list[Range] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    squares: list[Fraction] = field(default_factory=list)
    inner: list[tuple[Range, Range]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, domain: Any, most: Fraction | None = None) -> None:
        """Add a field: a ball about 0 (of norm 1, 2 or infinity) or a box; `most` also bounds its squared norm."""
        if "radius" in domain:
            require(domain["dim"] <= MOST_ENTRIES, f"field {name!r}: it is too large")
            domain = domain | {end: [sign * domain["radius"]] * domain["dim"] for end, sign in ENDS.items()}
        ends = list(zip(domain["lower"], domain["upper"], strict=True))
        require(len(ends) > 0 and all(a <= b for a, b in ends), f"field {name!r}: its bounds form no box")
        spend(20 + 10 * len(ends))
        square = sum((power(end, 2)[1] for end in ends), ZERO)
        if domain.get("norm") in (1, 2):
            square = domain["radius"] ** 2
        square = square if most is None else min(square, most)
        apart = max(sum((times(end, end)[0] for end in ends), ZERO), -square)
        self.inner.append(((apart, square), (sum((power(end, 2)[0] for end in ends), ZERO), square)))
        self.starts |= {name: len(self.owner)} if name else {}
        self.ranges += ends
        self.owner += [len(self.sizes)] * len(ends)
        self.sizes.append(len(ends))
        self.squares.append(square)


@dataclass
class Node:
    """An expression: its operation, arguments, shape and options, and its entries, or None if it is not affine."""

    name: str
    args: list[int]
    shape: list[int]
    options: dict[str, Any]
    entries: list[Entry] | None = None
    varies: bool = False  # whether it depends on the parameters
    private: bool = False  # whether it depends on the record

    @property
    def size(self) -> int:
        return prod(self.shape)


class TemplateGraph:
    """The graph of a template.  `declared` is the record as declared; `record` is in the units of the proof, as entries are."""

    def __init__(self, proof: dict[str, Any]) -> None:
        self.declared, self.record, self.weights = RecordBounds(), RecordBounds(), list[Fraction]()
        self.names: set[str] = set()
        self.units, units = dict[int, tuple[Fraction, Fraction]](), proof.get("units", {})
        require({*units} <= {*proof["record"]}, "units of an unknown field")
        for name, domain in proof["record"].items():
            self.declared.add(name, domain)
            self.record.add(name, self.moved(name, domain, **units[name]) if name in units else domain)
        self.nodes: list[Node] = []
        require(len(proof["nodes"]) <= MOST_NODES, "the proof has too many nodes")
        for k, item in enumerate(proof["nodes"]):
            self.nodes.append(self.read(k, item))

    def moved(self, name: str, domain: Any, shift: list[Fraction], scale: list[Fraction]) -> dict[str, list[Fraction]]:
        """Return the box of the next field in its units: entries are shift + scalar/scale."""
        require("lower" in domain and len(shift) == len(scale), f"field {name!r}: units of other scalars, or of a ball")
        pairs = list(zip(shift, scale, strict=True))
        self.units |= dict(enumerate(pairs, len(self.record.owner)))
        spend(4 * effort([*shift, *scale, *domain["lower"], *domain["upper"]]))
        return {end: [(a - s) * t for a, (s, t) in zip(domain[end], pairs, strict=True)] for end in ENDS}

    def read(self, k: int, item: dict[str, Any]) -> Node:
        name, args = item["op"], indices(item.get("args", []), k)  # earlier nodes only
        node, shape = Node(name, args, item["shape"], item), item["shape"]
        require(len(shape) <= 4 and 0 < node.size <= MOST_ENTRIES, f"node {k}: a shape is empty or too large")
        require(node.size == 1 or name not in NUMBERS, f"node {k}: {name} must be scalar")
        spend(10 + node.size)
        arguments, count = [self.nodes[a] for a in args], OPERATIONS.get(name, (0,))[0]
        fit = all(len(item[key]) == node.size for key in ("groups", "places") if key in item)
        fit &= len(args) == count if count else name not in ("add", "maximum") or len(args) > 0
        fit &= name not in MATRICES or len(arguments[0].shape) == 2
        require(fit, f"node {k}: {name} does not have its shape, or has other arguments")
        entrywise = name in ENTRYWISE and not all(a.shape == shape for a in arguments)
        require(not entrywise, f"node {k}: the arguments of {name} have other shapes")
        node.varies = name == "variable" or any(a.varies for a in arguments)
        node.private = name == "field" or any(a.private for a in arguments)
        if all(a.entries is not None for a in arguments):
            node.entries = self.entries(k, node, [a.entries or [] for a in arguments], arguments)
            require(bool(args) or node.entries is not None, f"node {k}: {name} has no arguments")
            if node.entries is not None:
                require(len(node.entries) == node.size, f"node {k}: {name} does not have its shape")
                terms = sum(map(len, node.entries))
                require(terms <= MOST_TERMS, f"node {k}: {name} has too many terms")
                spend(terms)
                numbers = [part for e in node.entries for a in e.values() for part in (a.numerator, a.denominator)]
                require(max(map(int.bit_length, numbers), default=0) < MOST_LENGTH, f"node {k}: numbers are too long")
        return node

    def entries(self, k: int, node: Node, given: list[list[Entry]], args: list[Node]) -> list[Entry] | None:
        """Return the entries of a node with affine arguments, or None if the node is not affine."""
        options = node.options
        if node.name == "constant":
            return [{CONSTANT: value} if value else {} for value in options["value"]]
        if node.name == "field":
            start = self.record.starts.get(options["field"], -1)
            require(start >= 0 and node.size == self.record.sizes[self.record.owner[start]], f"node {k}: no such field")
            units = [(j, *self.units.get(j, (ZERO, ONE))) for j in range(start, start + node.size)]
            return [{(-1, (j,)): 1 / scale} | ({CONSTANT: shift} if shift else {}) for j, shift, scale in units]
        if node.name == "variable":
            return self.variable(k, node)
        monomials = not node.varies and all(len(entry) == 1 for entry in given[0])
        if node.name == "power" and monomials and options["p"] in range(1, 17):
            return [reduce(product, [entry] * int(options["p"])) for entry in given[0]]
        if node.name == "abs":
            return self.absolute(given[0])
        return linear(node, args, given, entry_sum, product, scaled)

    def absolute(self, entries: list[Entry]) -> list[Entry] | None:
        """Return absolute values of different scalars of one field as a new field; None for other entries."""
        alone = [key for entry in entries for key, a in entry.items() if len(entry) == 1 == abs(a)]
        scalars = [monomial[0] for c, monomial in alone if c < 0 and len(monomial) == 1]
        record, bases = self.record, {self.record.owner[j] for j in scalars}
        if len({*scalars}) < len(entries) or len(bases) > 1:
            return None
        ends = [record.ranges[j] for j in scalars]
        box = {"lower": [max(low, -high, ZERO) for low, high in ends], "upper": [max(-low, high) for low, high in ends]}
        record.add("", box, record.squares[bases.pop()])
        return [{(-1, (j,)): ONE} for j in range(len(record.owner) - len(ends), len(record.owner))]

    def variable(self, k: int, node: Node) -> list[Entry]:
        name, start, shape = node.options["name"], len(self.weights), node.shape
        require(name not in self.names, f"node {k}: variable {name!r} is declared twice")
        self.names.add(name)
        coordinates = list(range(start, start + node.size))
        if "symmetric" in node.options:
            require(len(shape) == 2 and shape[0] == shape[1], f"node {k}: {name!r} is not square")
            order = {(i, j): n for n, (i, j) in enumerate((i, j) for i in range(shape[0]) for j in range(i, shape[0]))}
            places = [(i, j) for j in range(shape[0]) for i in range(shape[0])]
            coordinates = [start + order[min(pair), max(pair)] for pair in places]
        times = Counter(coordinates)
        self.weights += [Fraction(times[c]) for c in sorted(times)]
        return [{(c, ()): ONE} for c in coordinates]


def number_of(entry: Entry) -> Fraction:
    """Return the value of a constant entry; 0 if the entry is not constant."""
    return entry.get(CONSTANT, ZERO) if set(entry) <= {CONSTANT} else ZERO


def linear(
    node: Node,
    args: list[Node],
    given: list[list[T]],
    add: Callable[[list[T]], T],
    multiply: Callable[[T, T], T],
    scale: Callable[[T, Fraction], T],
) -> list[T] | None:
    """Apply a node's operation to entries, or to bounds on them, if it is linear in each argument; otherwise return None."""
    name, options = node.name, node.options
    if name in REARRANGED:
        spend(sum(map(len, given)))
        flat = [item for items in given for item in items]
        return [flat[j] for j in indices(options["places"], len(flat))]
    if name == "add":
        return [add(list(group)) for group in zip(*given, strict=True)]
    if name == "negate":
        return [scale(item, -ONE) for item in given[0]]
    if name == "sum":
        return [add([given[0][j] for j in indices(group, len(given[0]))]) for group in options["groups"]]
    if name == "divide":
        by = [number_of(entry) for entry in args[1].entries or []]
        return [scale(item, 1 / d) for item, d in zip(given[0], by, strict=True)] if by and all(by) else None
    if name not in ("multiply", "matmul") or (args[0].varies and args[1].varies):
        return None
    one, two = given
    if name == "multiply":
        return [multiply(a, b) for a, b in zip(one, two, strict=True)]
    left, right = args[0].shape, args[1].shape
    require(1 <= len(left) <= 2 and 1 <= len(right) <= 2 and left[-1] == right[0], "shapes of factors do not match")
    rows, inner, columns = (left[0] if len(left) == 2 else 1), right[0], (right[1] if len(right) == 2 else 1)
    places = [(i, c) for c in range(columns) for i in range(rows)]
    return [add([multiply(one[j * rows + i], two[c * inner + j]) for j in range(inner)]) for i, c in places]


def entry_sum(terms: Iterable[Entry]) -> Entry:
    found: Entry = {}
    for term in terms:
        spend(1 + effort(term.values()))
        for key, value in term.items():
            found[key] = found.get(key, ZERO) + value
    return {key: value for key, value in found.items() if value}


def scaled(entry: Entry, factor: Fraction) -> Entry:
    spend(effort(entry.values()))
    return {key: value * factor for key, value in entry.items()} if factor else {}


def product(one: Entry, two: Entry) -> Entry:
    """Return the product of two entries; at most one may contain parameters."""
    spend(1 + len(one) * effort(two.values()) + len(two) * effort(one.values()))
    found: Entry = {}
    for (c, first), a in one.items():
        for (d, second), b in two.items():
            require(len(first) + len(second) <= MOST_DEGREE, "the degree of a monomial is too high")
            key = max(c, d), tuple(sorted(first + second))
            found[key] = found.get(key, ZERO) + a * b
    return {key: value for key, value in found.items() if value}  # terms may cancel
