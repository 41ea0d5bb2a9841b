"""Products and quotients, entry by entry and of matrices: affine where at most one factor varies."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import BROADCAST, reshape, together
from dpconvex.core.atoms.powers import power
from dpconvex.core.atoms.shared import _refuse, infix, product_sign, same
from dpconvex.core.atoms.sums import added
from dpconvex.core.expression import OPERATORS, Expression, Shape, constant
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate

MULTIPLY = Atom(
    name="multiply",
    affine="bilinear",
    shape=same,
    value=lambda xp, expression, a, b: a * b,
    reads={"cvxpy.atoms.affine.binary_operators.multiply": lambda node, args: multiply(*args)},
    writes=lambda cp, expression, args: cp.multiply(*args),
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    text=infix("*"),
    expand=lambda expander, e: expander.expand(e.args[0]).times(expander.expand(e.args[1])),
)


def quotient(expander: Any, expression: Expression) -> Polynomial:
    """Expand a quotient: by numbers other than 0, or by a function of the record that is positive."""
    dividend, divisor = expression.args
    if divisor.is_constant:
        if (divisor.number == 0).any():
            raise NotPrivate("an expression is divided by zero", expression, "divide by a number that is not 0")
        inverse = Polynomial.constant(1.0 / divisor.number)
    else:
        while divisor.atom is BROADCAST:
            divisor = divisor.args[0]
        inverse = expander.expand(power(divisor, -1.0))
        inverse = inverse.gathered(np.broadcast_to(inverse.numbers(), expression.shape))
    return expander.expand(dividend).times(inverse)


DIVIDE = Atom(
    name="divide",
    affine="quotient",
    shape=same,
    value=lambda xp, expression, a, b: a / b,
    reads={"cvxpy.atoms.affine.binary_operators.DivExpression": lambda node, args: divide(*args)},
    writes=lambda cp, expression, args: args[0] / args[1],
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1] if k == 0 else 0,
    text=infix("/"),
    expand=quotient,
)


def matmul_shape(one: Shape, two: Shape) -> Shape:
    """Shape of a product of vectors and matrices."""
    if not (1 <= len(one) <= 2 and 1 <= len(two) <= 2) or one[-1] != two[0]:
        raise ValueError(f"there is no product of shapes {one} and {two}")
    return (*one[:-1], *two[1:])


def matmul_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Matrix product, records last."""
    one, two = (argument.ndim for argument in expression.args)
    return xp.einsum(f"{'ij'[2 - one :]}...,{'jk'[:two]}...->{'i' * (one - 1)}{'k' * (two - 1)}...", a, b)


MATMUL = Atom(
    name="matmul",
    affine="bilinear",
    shape=matmul_shape,
    value=matmul_value,
    reads={"cvxpy.atoms.affine.binary_operators.MulExpression": lambda node, args: matmul(*args)},
    writes=lambda cp, expression, args: args[0] @ args[1],
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    text=infix("@"),
    expand=lambda expander, e: expander.expand(e.args[0]).matmul(expander.expand(e.args[1]), e.shape),
)


def kron_shape(one: Shape, two: Shape) -> Shape:
    """Shape of a Kronecker product of matrices."""
    if len(one) != 2 or len(two) != 2:
        return _refuse("the Kronecker product of", one, two)
    return (one[0] * two[0], one[1] * two[1])


def kron_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Kronecker product, records last."""
    return xp.einsum("ij...,kl...->ikjl...", a, b).reshape((*expression.shape, -1))


def kron_product(expander: Any, expression: Expression) -> Polynomial:
    """Expand a Kronecker product: repeat the entries of both factors, and multiply them one by one."""
    numbers = [np.arange(float(a.size)).reshape((*a.shape, 1), order="F") for a in expression.args]
    ones = [np.ones_like(part) for part in numbers]
    places = [kron_value(np, expression, numbers[0], ones[1]), kron_value(np, expression, ones[0], numbers[1])]
    left, right = (expander.expand(a).gathered(k[..., 0]) for a, k in zip(expression.args, places, strict=True))
    product: Polynomial = left.times(right)
    return product


KRON = Atom(
    name="kron",
    affine="bilinear",
    shape=kron_shape,
    value=kron_value,
    reads={"cvxpy.atoms.affine.kron.kron": lambda node, args: kron(as_matrix(args[0]), as_matrix(args[1]))},
    writes=lambda cp, expression, args: cp.kron(*args),
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    expand=kron_product,
)


def convolve_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Discrete convolution of two vectors: shifted copies of the second, added up."""
    count, other = (argument.shape[0] for argument in expression.args)
    shifted = [xp.pad(a[k : k + 1] * b, ((k, count - 1 - k), (0, 0))) for k in range(count)]
    return added(xp, expression, *shifted) if other else xp.zeros((count - 1, 1))


def convolution(expander: Any, expression: Expression) -> Polynomial:
    """Expand a convolution: all products of two entries, each where it belongs."""
    left, right = (expander.expand(argument) for argument in expression.args)
    pairs = (
        np.repeat(np.arange(len(left.entry)), len(right.entry)),
        np.tile(np.arange(len(right.entry)), len(left.entry)),
    )
    product: Polynomial = left.product(right, pairs, left.entry[pairs[0]] + right.entry[pairs[1]], expression.shape)
    return product


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
    reads={"cvxpy.atoms.affine.conv.conv": convolved, "cvxpy.atoms.affine.conv.convolve": convolved},
    writes=lambda cp, e, args: (
        cp.convolve(args[0], args[1]) if not e.args[0].variables else cp.convolve(args[1], args[0])
    ),
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    expand=convolution,
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
