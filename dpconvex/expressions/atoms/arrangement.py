"""Atoms that rearrange entries: parts, shapes, transposes, diagonals, repetition, stacks."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.expressions.atom import AtomDefinition, always
from dpconvex.expressions.atoms.rules import Entries, Write, common_sign, no_rule
from dpconvex.expressions.expression import ATOM, OPERATORS, Expression, Shape, constant
from dpconvex.expressions.polynomial import Polynomial, concatenate
from dpconvex.util.runtime import once


def broadcast(argument: Any, shape: Shape) -> Expression:
    argument = constant(argument)
    return argument if argument.shape == shape else BROADCAST(argument, shape=tuple(shape))


def broadcast_all(*arguments: Any) -> list[Expression]:
    found = [constant(argument) for argument in arguments]
    shape = np.broadcast_shapes(*(argument.shape for argument in found))
    return [broadcast(argument, shape) for argument in found]


@once
def source_entries(expression: Expression) -> NDArray[np.int64]:
    """Return, for each entry of a rearrangement, its entry number in the concatenated arguments."""
    starts = np.cumsum([0, *(argument.size for argument in expression.args)])
    numbers = [
        (start + np.arange(argument.size)).reshape((*argument.shape, 1), order="F")
        for start, argument in zip(starts, expression.args, strict=False)
    ]
    return np.asarray(expression.operation.value(expression, *numbers)[..., 0], dtype=np.int64).ravel(order="F")


def rearrange(expander: Any, expression: Expression) -> Polynomial:
    parts, order = [expander.expand(argument) for argument in expression.args], source_entries(expression)
    *starts, size = np.cumsum([0, *(part.size for part in parts)]).tolist()
    entries = [part.entry + start for part, start in zip(parts, starts, strict=True)]
    if size == order.size and (np.diff(order, prepend=-1) == 1).all():
        return concatenate(parts, expression.shape, entries)
    return concatenate(parts, (size,), entries).gathered(order.reshape(expression.shape, order="F"))


def rearranged(expression: Expression, arguments: list[Entries]) -> Entries:
    everything = [entry for entries in arguments for entry in entries]
    return [everything[k] for k in source_entries(expression)]


@once
def adding_back(expression: Expression) -> sp.csr_array:
    """Return the 0-1 matrix that adds each entry of a rearrangement to its place in the concatenated arguments."""
    shape = sum(argument.size for argument in expression.args), expression.size
    return sp.csr_array((np.ones(shape[1]), (source_entries(expression), np.arange(shape[1]))), shape=shape)


def put_back(expression: Expression, value: Any, slope: Any, *arguments: Any) -> list[Any]:
    ends, flat = np.cumsum([argument.size for argument in expression.args]), (expression.size, slope.shape[-1])
    parts = np.split(adding_back(expression) @ slope.reshape(flat, order="F"), ends[:-1])
    return [part.reshape((*a.shape, flat[1]), order="F") for part, a in zip(parts, expression.args, strict=True)]


def slices(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key for NumPy: integers as they are, triples (start, stop, step) as slices."""
    return tuple(k if isinstance(k, int) else slice(k[0], None if k[1] < 0 else k[1], k[2]) for k in key)


def entry_at(expression: Expression, key: Any) -> Expression:
    numbers = np.arange(expression.size).reshape(expression.shape, order="F")
    places = numbers[key]
    if np.array_equal(places, numbers):
        return expression
    parts = [*key] if isinstance(key, tuple) else [key]
    if not all(isinstance(p, slice | int | np.integer) and not isinstance(p, bool) for p in parts):
        return SELECT(expression, places=tuple(places.ravel(order="F").tolist()), shape=places.shape)
    parts += [slice(None)] * (expression.ndim - len(parts))
    ends = zip(parts, expression.shape, strict=True)
    return INDEX(expression, key=tuple(p.indices(n) if isinstance(p, slice) else int(p) % n for p, n in ends))


def index_text(expression: Expression, write: Write) -> tuple[str, int]:
    words = []
    for k, count in zip(expression.option("key"), expression.args[0].shape, strict=True):
        start, stop, step = (k, 0, 0) if isinstance(k, int) else k
        body = f"{start or ''}:{'' if stop < 0 or (stop == count and step > 0) else stop}"
        words.append(str(k) if not step else body if step == 1 else f"{body}:{step}")
    return f"{write(expression.args[0], ATOM)}[{', '.join(words)}]", ATOM


def rearrangement(**slots: Any) -> AtomDefinition:
    shared: dict[str, Any] = {"expand": rearrange, "bounds": rearranged, "vjp": put_back}
    return AtomDefinition(affine="linear", sign=common_sign, monotonicity=always(1), **shared, **slots)


INDEX = rearrangement(
    name="index",
    shape=lambda inner, key: np.empty(inner, dtype=bool)[slices(key)].shape,
    value=lambda e, a: a[slices(e.option("key"))],
    from_cvxpy={"affine.index.index": lambda node, args: entry_at(args[0], node._orig_key)},
    to_cvxpy=lambda cp, e, args: args[0][slices(e.option("key"))],
    to_string=index_text,
)


def select_text(expression: Expression, write: Write) -> tuple[str, int]:
    inner, places = expression.args[0], expression.option("places")
    if inner.ndim == 2 and places == tuple(range(0, inner.size, inner.shape[0] + 1)):
        return f"diag({write(inner, 0)})", ATOM
    return f"{write(inner, ATOM)}[{len(places)} entries]", ATOM


SELECT = rearrangement(
    name="select",
    shape=lambda inner, places, shape: shape,
    value=lambda e, a: np.reshape(
        np.reshape(a, (e.args[0].size, -1), order="F")[np.asarray(e.option("places"), dtype=int)],
        (*e.shape, -1),
        order="F",
    ),
    from_cvxpy={
        "affine.index.special_index": lambda node, args: entry_at(args[0], node.key),
        "affine.diag.diag_mat": lambda node, args: reshape(diagonal(args[0], int(node.k)), node.shape),
        "affine.upper_tri.upper_tri": lambda node, args: reshape(
            entry_at(args[0], np.triu_indices(args[0].shape[0], 1)), node.shape
        ),
    },
    to_cvxpy=lambda cp, e, args: cp.reshape(
        cp.vec(args[0], order="F")[np.asarray(e.option("places"), dtype=int)], e.shape, order="F"
    ),
    to_string=select_text,
)

RESHAPE = rearrangement(
    name="reshape",
    shape=lambda inner, shape: shape if np.prod(inner) == np.prod(shape) else no_rule("the reshaping of", inner, shape),
    value=lambda e, a: np.reshape(a, (*e.shape, a.shape[-1]), order="F"),
    from_cvxpy={
        "affine.reshape.reshape": lambda node, args: (
            reshape(args[0], node.shape)
            if str(node.order) == "F"
            else transpose(reshape(transpose(args[0]), node.shape[::-1]))
        )
    },
    to_cvxpy=lambda cp, e, args: cp.reshape(args[0], e.shape, order="F"),
    to_string=lambda e, write: (
        (write(e.args[0], ATOM), ATOM)  # axes of length 1 are not written
        if [n for n in e.shape if n > 1] == [n for n in e.args[0].shape if n > 1]
        else (f"reshape({write(e.args[0], 0)}, {e.shape})", ATOM)
    ),
)

TRANSPOSE = rearrangement(
    name="transpose",
    shape=lambda inner, axes: tuple(inner[k] for k in axes),
    value=lambda e, a: np.transpose(a, (*e.option("axes"), len(e.option("axes")))),
    from_cvxpy={
        "affine.transpose.transpose": lambda node, args: transpose(
            args[0], None if node.axes is None else tuple(int(k) % args[0].ndim for k in node.axes)
        )
    },
    to_cvxpy=lambda cp, e, args: cp.transpose(args[0], e.option("axes")),
    to_string=lambda e, write: (f"{write(e.args[0], ATOM)}.T", ATOM),
)


def repeated_by_ones(cp: Any, expression: Expression, args: list[Any]) -> Any:
    inner = cp.reshape(args[0], (), order="F") if expression.args[0].is_scalar and args[0].shape else args[0]
    return cp.multiply(inner, np.ones(expression.shape))


BROADCAST = rearrangement(
    name="broadcast",
    shape=lambda inner, shape: (
        shape if np.broadcast_shapes(inner, shape) == shape else no_rule("the repetition of", inner, shape)
    ),
    value=lambda e, a: np.broadcast_to(a.reshape((1,) * (e.ndim + 1 - a.ndim) + a.shape), (*e.shape, a.shape[-1])),
    from_cvxpy={
        "affine.promote.Promote": lambda node, args: broadcast(args[0], node.shape),
        "affine.broadcast_to.broadcast_to": lambda node, args: broadcast(args[0], node.shape),
    },
    to_cvxpy=repeated_by_ones,
    to_string=lambda e, write: (write(e.args[0], ATOM), ATOM),
)


def concatenated(*shapes: Shape, axis: int) -> Shape:
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1 or len(set(map(len, shapes))) != 1:
        return no_rule("the concatenation of", *shapes)
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def joined(expression: Expression, *parts: Any) -> Any:
    """Concatenate arrays; arrays shared by all records are repeated for each record."""
    records = max(part.shape[-1] for part in parts)
    whole = [np.broadcast_to(part, (*part.shape[:-1], records)) for part in parts]
    return np.concatenate(whole, axis=expression.option("axis"))


def stacked(cp: Any, expression: Expression, args: list[Any]) -> Any:
    """Concatenate in CVXPY by hstack or vstack, which its compiled code knows, if there are at most two axes."""
    if expression.ndim > 2:
        return cp.concatenate(args, axis=expression.option("axis"))
    return (cp.hstack if expression.ndim == 1 or expression.option("axis") else cp.vstack)(args)


CONCATENATE: AtomDefinition = rearrangement(
    name="concatenate",
    shape=concatenated,
    value=joined,
    from_cvxpy={
        "affine.hstack.Hstack": lambda node, args: hstack(*args),
        "affine.vstack.Vstack": lambda node, args: vstack(*args),
        "affine.concatenate.Concatenate": lambda node, args: CONCATENATE(*args, axis=int(node.axis) % args[0].ndim),
    },
    to_cvxpy=stacked,
    to_string=lambda e, write: (
        f"{'hstack' if e.ndim == 1 or e.option('axis') else 'vstack'}({', '.join(write(a, 0) for a in e.args)})",
        ATOM,
    ),
)


def reshape(a: Any, shape: Shape) -> Expression:
    a = constant(a)
    return a if a.shape == shape else RESHAPE(a, shape=tuple(shape))


def vec(a: Any) -> Expression:
    a = constant(a)
    return reshape(a, (a.size,))


def transpose(a: Any, axes: tuple[int, ...] | None = None) -> Expression:
    a = constant(a)
    axes = tuple(range(a.ndim))[::-1] if axes is None else axes
    return a if axes == tuple(range(a.ndim)) else TRANSPOSE(a, axes=axes)


def diagonal(a: Any, k: int = 0) -> Expression:
    a = constant(a)
    rows, columns = np.nonzero(np.eye(a.shape[0], a.shape[1], k))
    return entry_at(a, (rows, columns))


def hstack(*parts: Any) -> Expression:
    found = [part if part.ndim else reshape(part, (1,)) for part in map(constant, parts)]
    return CONCATENATE(*found, axis=0 if found[0].ndim == 1 else 1)


def vstack(*parts: Any) -> Expression:
    return CONCATENATE(*(reshape(p, (1, p.size)) if p.ndim < 2 else p for p in map(constant, parts)), axis=0)


OPERATORS["index"] = entry_at
