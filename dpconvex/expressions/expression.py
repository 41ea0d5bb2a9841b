"""Core expressions, independent of CVXPY: immutable trees of real arrays, with one object for equal expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np
import scipy.sparse as sp

from dpconvex.util.arrays import Array, frozen

if TYPE_CHECKING:
    from dpconvex.expressions.atom import AtomDefinition

Shape = tuple[int, ...]

# Binding strengths of operators. Texts show up to MANY numbers of a constant, and parts of up to LONG nodes.
SUM, PRODUCT, SIGN, ATOM = 1, 2, 3, 4
MANY, LONG = 6, 500

# Functions for Python's operators; the files of atoms, which import this one, register them.
OPERATORS: dict[str, Callable[..., Any]] = {}
_NODES: WeakValueDictionary[Hashable, Expression] = WeakValueDictionary()


def _operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Expression]:
    return lambda one, other: OPERATORS[name](*((other, one) if swapped else (one, other)))


class Expression:
    """A node of an expression. Atoms, `constant`, `Variable.of` and `Field.of` create nodes; never call the constructor."""

    # Values for leaves; `node` sets others.
    atom: AtomDefinition | None = None
    args: tuple[Expression, ...] = ()
    options: tuple[tuple[str, Hashable], ...] = ()  # parameters of the atom besides its arguments
    shape: Shape
    variables: frozenset[Variable] = frozenset()
    fields: frozenset[Field] = frozenset()
    is_affine: bool = True  # jointly in the variables, as are its arguments

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"expressions are immutable; cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return node, (self.atom, self.args, self.options, self.shape)

    def __deepcopy__(self, memo: object) -> Expression:
        return self

    @property
    def operation(self) -> AtomDefinition:
        """Return the atom of an expression that is not a leaf."""
        assert self.atom is not None
        return self.atom

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_scalar(self) -> bool:
        return self.size == 1

    @property
    def is_constant(self) -> bool:
        return not self.variables and not self.fields

    def option(self, name: str) -> Any:
        return dict(self.options)[name]

    @cached_property
    def number(self) -> Array:
        if isinstance(self, Constant):
            return self.dense
        if self.atom is None:
            raise ValueError(f"{self} has no value of its own")
        with np.errstate(all="ignore"):
            found = self.atom.value(self, *(argument.number[..., None] for argument in self.args))
        return frozen(np.broadcast_to(np.asarray(found, dtype=float)[..., 0], self.shape))

    @cached_property
    def weight(self) -> float:
        """Return the number of nodes in the text; shared nodes count each time."""
        return 1.0 + sum(argument.weight for argument in self.args)

    def __str__(self) -> str:
        return leveled(self)[0]

    def __repr__(self) -> str:
        return f"<{self}, shape {self.shape}>"

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", swapped=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", swapped=True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", swapped=True)
    __getitem__ = _operator("index")

    def __sub__(self, other: Any) -> Expression:
        return self + -constant(other)

    def __rsub__(self, other: Any) -> Expression:
        return constant(other) + -self

    def __neg__(self) -> Expression:
        made: Expression = OPERATORS["negate"](self)
        return made


class Constant(Expression):
    """A finite, real constant: a read-only array, or a sparse matrix in compressed columns."""

    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return constant, (self.value,)

    @cached_property
    def dense(self) -> Array:
        return frozen(np.asarray(self.value.toarray() if sp.issparse(self.value) else self.value))


class Variable(Expression):
    """A parameter of the learner; `key` orders the variables of a template."""

    key: int
    name: str
    # Restrictions: ``nonneg``, ``PSD``, ``symmetric``, ``bounds`` (a pair of arrays) and so on.
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, shape: Shape, name: str, key: int, attributes: Mapping[str, Any] | None = None) -> Variable:
        kept = {k: v for k, v in (attributes or {}).items() if v is not None and v is not False}
        identity = ("variable", key, name, shape, repr(sorted((k, _bounds_key(v)) for k, v in kept.items())))
        made: Variable = _interned(identity, lambda: cls(shape=tuple(shape), key=key, name=name, attributes=kept))
        made.__dict__["variables"] = frozenset({made})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Variable.of, (self.shape, self.name, self.key, self.attributes)


class Field(Expression):
    """A continuous field of the record; `sign` is 1 if its domain is nonnegative, -1 if nonpositive, 0 otherwise."""

    name: str
    sign: int
    key: Hashable

    @classmethod
    def of(cls, shape: Shape, name: str, key: Hashable = None, sign: int = 0) -> Field:
        identity = ("field", name, key, shape, sign)
        made: Field = _interned(identity, lambda: cls(shape=tuple(shape), name=name, sign=sign, key=key))
        made.__dict__["fields"] = frozenset({made})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Field.of, (self.shape, self.name, self.key, self.sign)


def _interned(key: Hashable, build: Callable[[], Expression]) -> Any:
    known = _NODES.get(key)
    if known is None:
        known = _NODES[key] = build()
    return known


def node(
    atom: AtomDefinition, args: Sequence[Expression], options: tuple[tuple[str, Hashable], ...], shape: Shape
) -> Expression:
    def build() -> Expression:
        leaves = zip(*((argument.variables, argument.fields) for argument in args), strict=True)
        variables, fields = (frozenset().union(*found) for found in leaves)
        affine = not variables or (all(argument.is_affine for argument in args) and atom.keeps_affine(args))
        parts = {"atom": atom, "args": tuple(args), "options": options, "shape": shape, "is_affine": affine}
        return Expression(**parts, variables=variables, fields=fields)

    made: Expression = _interned((atom.name, tuple(map(id, args)), options, shape), build)
    return made


def constant(value: Any) -> Expression:
    if isinstance(value, Expression):
        return value
    kept: Any
    if sp.issparse(value):
        matrix = sp.csc_array(value, dtype=float, copy=True)
        matrix.sum_duplicates()
        parts = tuple(frozen(part) for part in (matrix.data, matrix.indices, matrix.indptr))
        kept, numbers = sp.csc_array(parts, shape=matrix.shape), parts[0]
    else:
        if np.iscomplexobj(value):
            raise ValueError("a constant is not real")
        kept = numbers = frozen(np.asarray(value, dtype=float))
    if not np.isfinite(numbers).all():
        raise ValueError("a constant is not finite")
    return _interned(("constant", number_key(kept)), lambda: Constant(shape=kept.shape, value=kept))


def number_key(value: Any) -> Hashable:
    """Return a hashable key that is equal for equal arrays."""
    if sp.issparse(value):
        return ("sparse", value.shape, value.data.tobytes(), value.indices.tobytes(), value.indptr.tobytes())
    return (value.shape, value.tobytes())


def _bounds_key(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_bounds_key(part) for part in value)
    return number_key(np.asarray(value, dtype=float)) if isinstance(value, np.ndarray) else repr(value)


@dataclass(frozen=True)
class Constraint:
    """A constraint; for arguments of suitable curvature, it defines a closed convex set."""

    kind: str  # equality, inequality (of two arguments of one shape), semidefinite or second-order cone
    args: tuple[Expression, ...]
    options: tuple[Any, ...] = ()  # axis of a second-order cone

    @property
    def fields(self) -> frozenset[Field]:
        return frozenset().union(*(argument.fields for argument in self.args))

    def __str__(self) -> str:
        parts = [str(argument) for argument in self.args]
        if self.kind == "equality":
            return f"{parts[0]} == {parts[1]}"
        if self.kind == "inequality":
            return f"{parts[0]} <= {parts[1]}"
        return f"{parts[0]} >> 0" if self.kind == "semidefinite" else f"{self.kind}({', '.join(parts)})"


def postorder(roots: Sequence[Expression], leaves: Collection[Expression] = ()) -> list[Expression]:
    """Return every node of the expressions once, arguments first; arguments of nodes in `leaves` are left out."""
    order: dict[Expression, None] = {}
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:
        node, ready = waiting.pop()
        if node in order:
            continue
        if ready or not node.args or node in leaves:
            order[node] = None
        else:
            waiting.append((node, True))
            waiting.extend((argument, False) for argument in reversed(node.args))
    return list(order)


def topmost(root: Expression, found: Callable[[Expression], object]) -> Iterator[Expression]:
    """Yield once, from the left, each expression with variables for which `found` is true, but nothing inside of these."""
    seen, waiting = set[Expression](), [root]
    while waiting:
        node = waiting.pop()
        if node in seen or not node.variables:
            continue
        seen.add(node)
        if found(node):
            yield node
        else:
            waiting.extend(reversed(node.args))


def leveled(expression: Expression) -> tuple[str, int]:
    """Return the text, with infix operators and CVXPY's names, and the binding strength of its outermost operator."""
    if isinstance(expression, Constant):
        return numbers(expression)
    if isinstance(expression, Variable | Field):
        return expression.name, ATOM
    atom = expression.operation
    if atom.to_string is not None:
        return atom.to_string(expression, write)
    options = [f"{value:.6g}" if isinstance(value, float) else str(value) for _, value in expression.options]
    return f"{atom.name}({', '.join([*(write(a, 0) for a in expression.args), *options])})", ATOM


def write(expression: Expression, level: int) -> str:
    """Return an argument's text, in parentheses if it binds less tightly than `level`; "..." if it is too long."""
    if expression.weight > LONG:
        return "..."
    words, own = leveled(expression)
    return words if own >= level else f"({words})"


def numbers(expression: Constant) -> tuple[str, int]:
    """Return the text of a constant: a single number, up to MANY numbers in full, or the shape."""
    array = expression.dense
    if array.size == 1:
        return f"{array.item():.6g}", SIGN if array.item() < 0 else ATOM
    if 0 < array.size <= MANY:
        words = np.array2string(array, separator=", ", formatter={"float_kind": lambda v: f"{v:.6g}"})
        return words.replace("\n", ""), ATOM
    return f"constant[{' x '.join(str(n) for n in array.shape)}]", ATOM
