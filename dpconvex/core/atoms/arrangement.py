"""Atoms that rearrange entries: parts, shapes, transposes, diagonals, repetition, stacks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.atom import Atom, always
from dpconvex.core.atoms.rules import Entries, Write, common_sign, refused
from dpconvex.core.expression import ATOM, OPERATORS, Expression, Shape, constant
from dpconvex.core.polynomial import Polynomial


def repeated(argument: Any, shape: Shape) -> Expression:
    """Repeat an argument to a shape, as NumPy would, by a node of its own."""
    argument = constant(argument)
    return argument if argument.shape == shape else BROADCAST(argument, shape=tuple(shape))


def together(*arguments: Any) -> list[Expression]:
    found = [constant(argument) for argument in arguments]
    shape = np.broadcast_shapes(*(argument.shape for argument in found))
    return [repeated(argument, shape) for argument in found]


def unrepeated(expression: Expression) -> Expression:
    """Return what is repeated, if all that an expression does is to repeat a scalar."""
    while expression.atom is BROADCAST and expression.args[0].is_scalar:
        expression = expression.args[0]
    return expression


def places(expression: Expression) -> NDArray[np.int64]:
    """Return, for each entry of a rearrangement, the number of the entry that it was, all arguments counted through."""
    numbers, count = [], 0
    for argument in expression.args:
        numbers.append((count + np.arange(argument.size)).reshape((*argument.shape, 1), order="F"))
        count += argument.size
    assert expression.atom is not None
    return np.asarray(expression.atom.value(np, expression, *numbers)[..., 0], dtype=np.int64)


def rearrange(expander: Any, expression: Expression) -> Polynomial:
    stacked, order = Polynomial.stacked([expander.expand(a) for a in expression.args]), places(expression)
    plain = stacked.size == order.size and (np.diff(order.ravel(order="F"), prepend=-1) == 1).all()
    return stacked.reshaped(expression.shape) if plain else stacked.gathered(order)


def rearranged(expression: Expression, arguments: list[Entries]) -> Entries:
    everything = [entry for entries in arguments for entry in entries]
    return [everything[k] for k in places(expression).ravel(order="F")]


def indexed(shape: Shape, key: tuple[Any, ...]) -> Shape:
    return np.empty(shape, dtype=bool)[slices(key)].shape


def slices(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a normal key as NumPy takes it: numbers, and triples as slices."""
    return tuple(k if isinstance(k, int) else slice(k[0], None if k[1] < 0 else k[1], k[2]) for k in key)


def entry_at(expression: Expression, key: Any) -> Expression:
    """Return a part of an array by any of NumPy's keys."""
    numbers = np.arange(expression.size).reshape(expression.shape, order="F")
    places = numbers[key]
    parts = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [part for part in parts if not isinstance(part, np.ndarray)]:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (expression.ndim - len(parts) + 1)
    parts += [slice(None)] * (expression.ndim - len(parts))
    plain = all(isinstance(p, slice | int | np.integer) and not isinstance(p, bool) for p in parts)
    if not plain or len(parts) != expression.ndim:
        return SELECT(expression, places=tuple(places.ravel(order="F").tolist()), shape=places.shape)
    normal = tuple(
        p.indices(n) if isinstance(p, slice) else int(p) % n for p, n in zip(parts, expression.shape, strict=True)
    )
    return (
        INDEX(expression, key=normal) if places.shape != expression.shape or (places != numbers).any() else expression
    )


def index_text(expression: Expression, write: Write) -> tuple[str, int]:
    words = []
    for k, count in zip(expression.option("key"), expression.args[0].shape, strict=True):
        start, stop, step = (k, 0, 0) if isinstance(k, int) else k
        body = f"{start or ''}:{'' if stop < 0 or (stop == count and step > 0) else stop}"
        words.append(str(k) if not step else body if step == 1 else f"{body}:{step}")
    return f"{write(expression.args[0], ATOM)}[{', '.join(words)}]", ATOM


def placed(expression: Expression, slope: Any, key: Any) -> Any:
    result = np.zeros((*expression.args[0].shape, slope.shape[-1]), dtype=slope.dtype)
    result[key] = slope
    return result


def added_at(expression: Expression, slope: Any) -> Any:
    """Add slopes up at the places of entries, which may be chosen several times."""
    inner = expression.args[0]
    result = np.zeros((inner.size, slope.shape[-1]), dtype=slope.dtype)
    places = np.asarray(expression.option("places"), dtype=int)
    np.add.at(result, places, slope.reshape((len(places), -1), order="F"))
    return result.reshape((*inner.shape, -1), order="F")


def summed_back(slope: Any, shape: Shape) -> Any:
    added = slope.ndim - 1 - len(shape)
    slope = np.sum(slope, axis=tuple(range(added)), keepdims=True)[(0,) * added] if added else slope
    repeated = tuple(k for k, n in enumerate(shape) if n == 1 and slope.shape[k] != 1)
    return np.sum(slope, axis=repeated, keepdims=True) if repeated else slope


def rearrangement(**slots: Any) -> Atom:
    """Return a linear atom whose entries are entries of its arguments."""
    return Atom(affine="linear", sign=common_sign, slope=always(1), expand=rearrange, rule=rearranged, **slots)


INDEX = rearrangement(
    name="index",
    shape=indexed,
    value=lambda xp, e, a: a[slices(e.option("key"))],
    pull=lambda e, value, slope, a: [placed(e, slope, slices(e.option("key")))],
    reads={"cvxpy.atoms.affine.index.index": lambda node, args: entry_at(args[0], node._orig_key)},
    writes=lambda cp, e, args: args[0][slices(e.option("key"))],
    text=index_text,
)


def select_text(expression: Expression, write: Write) -> tuple[str, int]:
    inner, places = expression.args[0], expression.option("places")
    if inner.ndim == 2 and places == tuple(range(0, inner.size, inner.shape[0] + 1)):
        return f"diag({write(inner, 0)})", ATOM
    return f"{write(inner, ATOM)}[{len(places)} entries]", ATOM


SELECT = rearrangement(
    name="select",
    shape=lambda inner, places, shape: shape,
    value=lambda xp, e, a: xp.reshape(
        xp.reshape(a, (e.args[0].size, -1), order="F")[np.asarray(e.option("places"), dtype=int)],
        (*e.shape, -1),
        order="F",
    ),
    pull=lambda e, value, slope, a: [added_at(e, slope)],
    reads={
        "cvxpy.atoms.affine.index.special_index": lambda node, args: entry_at(args[0], node.key),
        "cvxpy.atoms.affine.diag.diag_mat": lambda node, args: reshape(diagonal(args[0], int(node.k)), node.shape),
        "cvxpy.atoms.affine.upper_tri.upper_tri": lambda node, args: reshape(
            entry_at(args[0], np.triu_indices(args[0].shape[0], 1)), node.shape
        ),
    },
    writes=lambda cp, e, args: cp.reshape(
        cp.vec(args[0], order="F")[np.asarray(e.option("places"), dtype=int)], e.shape, order="F"
    ),
    text=select_text,
)


RESHAPE = rearrangement(
    name="reshape",
    shape=lambda inner, shape: shape if np.prod(inner) == np.prod(shape) else refused("the reshaping of", inner, shape),
    value=lambda xp, e, a: xp.reshape(a, (*e.shape, a.shape[-1]), order="F"),
    pull=lambda e, value, slope, a: [slope.reshape((*e.args[0].shape, -1), order="F")],
    reads={
        "cvxpy.atoms.affine.reshape.reshape": lambda node, args: (
            reshape(args[0], node.shape)
            if str(node.order) == "F"
            else transpose(reshape(transpose(args[0]), node.shape[::-1]))
        )
    },
    writes=lambda cp, e, args: cp.reshape(args[0], e.shape, order="F"),
    text=lambda e, write: (
        (write(e.args[0], ATOM), ATOM)  # axes of length 1 are understood
        if [n for n in e.shape if n > 1] == [n for n in e.args[0].shape if n > 1]
        else (f"reshape({write(e.args[0], 0)}, {e.shape})", ATOM)
    ),
)


TRANSPOSE = rearrangement(
    name="transpose",
    shape=lambda inner, axes: tuple(inner[k] for k in axes),
    value=lambda xp, e, a: xp.transpose(a, (*e.option("axes"), len(e.option("axes")))),
    pull=lambda e, value, slope, a: [slope.transpose((*np.argsort(e.option("axes")), e.ndim))],
    reads={
        "cvxpy.atoms.affine.transpose.transpose": lambda node, args: transpose(
            args[0], None if node.axes is None else tuple(int(k) % args[0].ndim for k in node.axes)
        )
    },
    writes=lambda cp, e, args: cp.transpose(args[0], e.option("axes")),
    text=lambda e, write: (f"{write(e.args[0], ATOM)}.T", ATOM),
)


def repeated_by_ones(cp: Any, expression: Expression, inner: Any) -> Any:
    """Write a repetition with CVXPY: times ones."""
    inner = cp.reshape(inner, (), order="F") if expression.args[0].is_scalar and inner.shape else inner
    return cp.multiply(inner, np.ones(expression.shape))


BROADCAST = rearrangement(
    name="broadcast",
    shape=lambda inner, shape: (
        shape if np.broadcast_shapes(inner, shape) == shape else refused("the repetition of", inner, shape)
    ),
    value=lambda xp, e, a: xp.broadcast_to(
        a.reshape((1,) * (e.ndim - e.args[0].ndim) + a.shape), (*e.shape, a.shape[-1])
    ),
    pull=lambda e, value, slope, a: [summed_back(slope, e.args[0].shape)],
    reads={
        "cvxpy.atoms.affine.promote.Promote": lambda node, args: repeated(args[0], node.shape),
        "cvxpy.atoms.affine.broadcast_to.broadcast_to": lambda node, args: repeated(args[0], node.shape),
    },
    writes=lambda cp, e, args: repeated_by_ones(cp, e, args[0]),
    text=lambda e, write: (write(e.args[0], ATOM), ATOM),
)


def concatenated(*shapes: Shape, axis: int) -> Shape:
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) != 1 or len({len(shape) for shape in shapes}) != 1:
        return refused("the concatenation of", *shapes)
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def joined(xp: Any, expression: Expression, *parts: Any) -> Any:
    """Join arrays, repeated where they are the same for all records."""
    records = max(part.shape[-1] for part in parts)
    whole = [xp.broadcast_to(part, (*part.shape[:-1], records)) for part in parts]
    return xp.concatenate(whole, axis=expression.option("axis"))


def stacked(cp: Any, expression: Expression, args: list[Any]) -> Any:
    """Join arrays with CVXPY, by the functions that its compiled code knows where there is one."""
    if expression.ndim > 2:
        return cp.concatenate(args, axis=expression.option("axis"))
    return (cp.hstack if expression.ndim == 1 or expression.option("axis") else cp.vstack)(args)


CONCATENATE: Atom = rearrangement(
    name="concatenate",
    shape=concatenated,
    value=joined,
    pull=lambda e, value, slope, *parts: np.split(
        slope, np.cumsum([a.shape[e.option("axis")] for a in e.args])[:-1], axis=e.option("axis")
    ),
    reads={
        "cvxpy.atoms.affine.hstack.Hstack": lambda node, args: hstack(*args),
        "cvxpy.atoms.affine.vstack.Vstack": lambda node, args: vstack(*args),
        "cvxpy.atoms.affine.concatenate.Concatenate": lambda node, args: CONCATENATE(
            *args, axis=int(node.axis) % args[0].ndim
        ),
    },
    writes=stacked,
    text=lambda e, write: (
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
    found = [constant(part) for part in parts]
    found = [reshape(part, (1,)) if not part.ndim else part for part in found]
    return CONCATENATE(*found, axis=0 if found[0].ndim == 1 else 1)


def vstack(*parts: Any) -> Expression:
    found = [constant(part) for part in parts]
    return CONCATENATE(*(reshape(p, (1, p.size)) if p.ndim < 2 else p for p in found), axis=0)


OPERATORS["index"] = entry_at
