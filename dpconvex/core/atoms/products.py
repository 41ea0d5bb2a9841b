"""Products and quotients, entry by entry and of matrices: affine where at most one factor varies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.abstract_values import Scalar
from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import BROADCAST, reshape, together
from dpconvex.core.atoms.powers import power
from dpconvex.core.atoms.rules import Entries, total
from dpconvex.core.atoms.shared import _refuse, infix, product_sign, varies
from dpconvex.core.atoms.sums import added
from dpconvex.core.contraction import contracted
from dpconvex.core.expression import OPERATORS, Expression, Shape, constant
from dpconvex.core.intervals import Interval
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate

Array = NDArray[np.float64]


def combined(expression: Expression, arguments: list[Entries], pairs: Iterable[Iterable[tuple[int, int]]]) -> Entries:
    """Add up products of entries, for each entry of the result; only one factor may vary, the other is of the record."""
    public_first = not expression.args[0].variables

    def product(i: int, j: int) -> Scalar:
        one, two = arguments[0][i], arguments[1][j]
        return two.scaled(one.value) if public_first else one.scaled(two.value)

    return [total([product(i, j) for i, j in group]) for group in pairs]


MULTIPLY = Atom(
    name="multiply",
    affine="bilinear",
    value=lambda xp, expression, a, b: a * b,
    pull=lambda e, value, slope, a, b: [slope * b if varies(e, 0) else None, slope * a if varies(e, 1) else None],
    reads={"cvxpy.atoms.affine.binary_operators.multiply": lambda node, args: multiply(*args)},
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    text=infix("*"),
    expand=lambda expander, e: expander.expand(e.args[0]).times(expander.expand(e.args[1])),
    rule=lambda e, arguments: combined(e, arguments, [[(k, k)] for k in range(e.size)]),
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


def divided(expression: Expression, arguments: list[Entries]) -> Entries:
    """Divide by numbers, or by functions of the record that keep away from zero."""
    if any(by.value.low <= 0 <= by.value.high for by in arguments[1]):
        raise NotPrivate("the divisor can reach zero", None, "bound the divisor away from zero by its declared domain")
    inverses = [Interval(1.0 / by.value.high, 1.0 / by.value.low) for by in arguments[1]]
    return [
        entry.scaled(inverse if inverse.low == inverse.high else inverse.rounded(count=1))
        for entry, inverse in zip(arguments[0], inverses, strict=True)
    ]


DIVIDE = Atom(
    name="divide",
    affine="quotient",
    value=lambda xp, expression, a, b: a / b,
    pull=lambda e, value, slope, a, b: [slope / b, -slope * value / b if varies(e, 1) else None],
    reads={"cvxpy.atoms.affine.binary_operators.DivExpression": lambda node, args: divide(*args)},
    writes=lambda cp, expression, args: args[0] / args[1],
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1] if k == 0 else 0,
    text=infix("/"),
    expand=quotient,
    rule=divided,
)


def matmul_shape(one: Shape, two: Shape) -> Shape:
    """Shape of a product of vectors and matrices."""
    if max(len(one), len(two)) > 2:
        raise ValueError("there is no rule for products of stacks of matrices: multiply them one by one")
    if not (one and two) or one[-1] != two[0]:
        raise ValueError(f"there is no product of shapes {one} and {two}")
    return (*one[:-1], *two[1:])


def matmul_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Matrix product, records last."""
    one, two = (argument.ndim for argument in expression.args)
    return contracted(xp, "ij"[2 - one :], "jk"[:two], "i" * (one - 1) + "k" * (two - 1), a, b)


def factors(expression: Expression) -> list[list[tuple[int, int]]]:
    """Return the pairs of entries whose products make each entry of a matrix product."""
    one, two = expression.args
    rows, columns = (one.shape if one.ndim == 2 else (1, one.size)), (two.shape if two.ndim == 2 else (two.size, 1))
    left, right = (np.arange(np.prod(shape)).reshape(shape, order="F") for shape in (rows, columns))
    return [list(zip(row, column, strict=True)) for column in right.T.tolist() for row in left.tolist()]


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
    expand=lambda expander, e: expander.expand(e.args[0]).matmul(expander.expand(e.args[1]), e.shape),
    rule=lambda e, arguments: combined(e, arguments, factors(e)),
)


def kron_shape(one: Shape, two: Shape) -> Shape:
    if len(one) != 2 or len(two) != 2:
        return _refuse("the Kronecker product of", one, two)
    return (one[0] * two[0], one[1] * two[1])


def kron_value(xp: Any, expression: Expression, a: Any, b: Any) -> Any:
    """Kronecker product, records last."""
    return xp.einsum("ij...,kl...->ikjl...", a, b).reshape((*expression.shape, -1))


def kron_places(expression: Expression) -> list[list[int]]:
    """Return, for each argument, the entries that are the factors of each entry of a Kronecker product."""
    numbers = [np.arange(float(a.size)).reshape((*a.shape, 1), order="F") for a in expression.args]
    ones = [np.ones_like(part) for part in numbers]
    found = kron_value(np, expression, numbers[0], ones[1]), kron_value(np, expression, ones[0], numbers[1])
    return [part.ravel(order="F").astype(np.int64).tolist() for part in found]


def kron_product(expander: Any, expression: Expression) -> Polynomial:
    pairs = zip(expression.args, kron_places(expression), strict=True)
    left, right = (expander.expand(a).gathered(np.array(k, dtype=np.int64)) for a, k in pairs)
    product: Polynomial = left.times(right).reshaped(expression.shape)
    return product


def kron_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    """Sums of blocks."""
    (i, j), (k, m) = (argument.shape for argument in expression.args)
    blocks = slope.reshape((i, k, j, m, -1))
    return [np.einsum("ikjlz,klz->ijz", blocks, b), np.einsum("ikjlz,ijz->klz", blocks, a)]


KRON = Atom(
    name="kron",
    affine="bilinear",
    shape=kron_shape,
    value=kron_value,
    pull=kron_pull,
    reads={"cvxpy.atoms.affine.kron.kron": lambda node, args: kron(as_matrix(args[0]), as_matrix(args[1]))},
    sign=product_sign,
    slope=lambda expression, k, signs: signs[1 - k],
    expand=kron_product,
    rule=lambda e, arguments: combined(e, arguments, [[pair] for pair in zip(*kron_places(e), strict=True)]),
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


def meetings(expression: Expression) -> list[list[tuple[int, int]]]:
    """Return the pairs of entries whose products make each entry of a convolution."""
    one, two = (argument.size for argument in expression.args)
    return [[(i, k - i) for i in range(max(0, k + 1 - two), min(one, k + 1))] for k in range(expression.size)]


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
    expand=convolution,
    rule=lambda e, arguments: combined(e, arguments, meetings(e)),
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
