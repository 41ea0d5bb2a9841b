"""Products and quotients, entry by entry and of matrices: affine where at most one factor varies."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import reshape, together
from dpconvex.core.atoms.shared import _refuse, infix, product_sign, same, varies
from dpconvex.core.atoms.sums import added
from dpconvex.core.expression import OPERATORS, Expression, Shape, constant

MULTIPLY = Atom(
    name="multiply",
    affine="bilinear",
    shape=same,
    value=lambda xp, expression, a, b: a * b,
    pull=lambda e, value, slope, a, b: [slope * b if varies(e, 0) else None, slope * a if varies(e, 1) else None],
    reads={"cvxpy.atoms.affine.binary_operators.multiply": lambda node, args: multiply(*args)},
    writes=lambda cp, expression, args: cp.multiply(*args),
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    text=infix("*"),
)


DIVIDE = Atom(
    name="divide",
    affine="quotient",
    shape=same,
    value=lambda xp, expression, a, b: a / b,
    pull=lambda e, value, slope, a, b: [slope / b, -slope * value / b if varies(e, 1) else None],
    reads={"cvxpy.atoms.affine.binary_operators.DivExpression": lambda node, args: divide(*args)},
    writes=lambda cp, expression, args: args[0] / args[1],
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1] if k == 0 else 0,
    text=infix("/"),
)


def matmul_shape(one: Shape, two: Shape) -> Shape:
    """Shape of a product of vectors and matrices."""
    if not (1 <= len(one) <= 2 and 1 <= len(two) <= 2) or one[-1] != two[0]:
        raise ValueError(f"there is no product of shapes {one} and {two}")
    return (*one[:-1], *two[1:])


def contracted(xp: Any, one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Sum over common axes, records last; what all records share is multiplied as a matrix."""
    if a.shape[-1] == 1 and b.shape[-1] > 1:
        return xp.einsum(f"{one},{two}z->{result}z", a[..., 0], b, optimize=True)
    if b.shape[-1] == 1 and a.shape[-1] > 1:
        return xp.einsum(f"{one}z,{two}->{result}z", a, b[..., 0], optimize=True)
    return xp.einsum(f"{one}z,{two}z->{result}z", a, b)


def matmul_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Matrix product, records last."""
    one, two = (argument.ndim for argument in expression.args)
    return contracted(xp, "ij"[2 - one :], "jk"[:two], "i" * (one - 1) + "k" * (two - 1), a, b)


def matmul_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    """Slope times the other factor, transposed."""
    one, two = expression.args
    i, k = "i" * (one.ndim - 1), "k" * (two.ndim - 1)
    return [
        contracted(np, f"{i}{k}", f"j{k}", f"{i}j", slope, b) if varies(expression, 0) else None,
        contracted(np, f"{i}j", f"{i}{k}", f"j{k}", a, slope) if varies(expression, 1) else None,
    ]


MATMUL = Atom(
    name="matmul",
    affine="bilinear",
    shape=matmul_shape,
    value=matmul_value,
    pull=matmul_pull,
    reads={"cvxpy.atoms.affine.binary_operators.MulExpression": lambda node, args: matmul(*args)},
    writes=lambda cp, expression, args: args[0] @ args[1],
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    text=infix("@"),
)


def kron_shape(one: Shape, two: Shape) -> Shape:
    """Shape of a Kronecker product of matrices."""
    if len(one) != 2 or len(two) != 2:
        return _refuse("the Kronecker product of", one, two)
    return (one[0] * two[0], one[1] * two[1])


def kron_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    """Sums of blocks."""
    (i, j), (k, m) = (argument.shape for argument in expression.args)
    blocks = slope.reshape((i, k, j, m, -1))
    return [np.einsum("ikjlz,klz->ijz", blocks, b), np.einsum("ikjlz,ijz->klz", blocks, a)]


KRON = Atom(
    name="kron",
    affine="bilinear",
    shape=kron_shape,
    value=lambda xp, e, a, b: xp.einsum("ij...,kl...->ikjl...", a, b).reshape((*e.shape, -1)),
    pull=kron_pull,
    reads={"cvxpy.atoms.affine.kron.kron": lambda node, args: kron(as_matrix(args[0]), as_matrix(args[1]))},
    writes=lambda cp, expression, args: cp.kron(*args),
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
)


def convolve_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Discrete convolution of two vectors: shifted copies of the second, added up."""
    count, other = (argument.shape[0] for argument in expression.args)
    shifted = [xp.pad(a[k : k + 1] * b, ((k, count - 1 - k), (0, 0))) for k in range(count)]
    return added(xp, expression, *shifted) if other else xp.zeros((count - 1, 1))


def convolve_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    """Correlations."""
    count, other = (argument.shape[0] for argument in expression.args)
    shifted = [slope[k : k + other] for k in range(count)]
    return [
        np.stack([np.sum(part * b, axis=0) for part in shifted]),
        added(np, expression, *(part * a[k] for k, part in enumerate(shifted))),
    ]


def convolved(node: Any, args: list[Expression]) -> Expression:
    """Read a convolution; CVXPY has one of columns and one of vectors."""
    result = convolve(*(reshape(argument, (argument.size,)) for argument in args))
    return reshape(result, node.shape)


CONVOLVE = Atom(
    name="convolve",
    affine="bilinear",
    shape=lambda one, two: (
        (one[0] + two[0] - 1,) if len(one) == len(two) == 1 else _refuse("the convolution of", one, two)
    ),
    value=convolve_value,
    pull=convolve_pull,
    reads={"cvxpy.atoms.affine.conv.conv": convolved, "cvxpy.atoms.affine.conv.convolve": convolved},
    writes=lambda cp, e, args: (
        cp.convolve(args[0], args[1]) if not e.args[0].variables else cp.convolve(args[1], args[0])
    ),
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
)


def multiply(a: Any, b: Any) -> Expression:
    """Multiply entry by entry."""
    return MULTIPLY(*together(a, b))


def divide(a: Any, b: Any) -> Expression:
    """Divide entry by entry."""
    return DIVIDE(*together(a, b))


def matmul(a: Any, b: Any) -> Expression:
    """Matrix product; a scalar multiplies every entry."""
    a, b = constant(a), constant(b)
    return MATMUL(a, b) if a.ndim and b.ndim else multiply(a, b)


def kron(a: Any, b: Any) -> Expression:
    """Kronecker product of matrices."""
    return KRON(a, b)


def convolve(a: Any, b: Any) -> Expression:
    """Discrete convolution of vectors."""
    return CONVOLVE(a, b)


def as_matrix(a: Expression) -> Expression:
    """Return an array of two axes, with axes of length 1 after its own."""
    return reshape(a, (*a.shape, 1, 1)[:2])


OPERATORS.update(multiply=multiply, divide=divide, matmul=matmul)
