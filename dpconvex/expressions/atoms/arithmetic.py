"""Sums, products and quotients of entries and matrices; affine if at most one factor contains variables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue
from dpconvex.expressions.atom import AtomDefinition, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.atoms.arrangement import (
    BROADCAST,
    broadcast_all,
    diagonal,
    entry_at,
    hstack,
    reshape,
    transpose,
    vec,
)
from dpconvex.expressions.atoms.powers import power
from dpconvex.expressions.expression import OPERATORS, PRODUCT, SIGN, SUM, Expression, Shape, constant
from dpconvex.expressions.polynomial import Polynomial, concatenate
from dpconvex.numerics import Interval, quotient_ends


def broadcast_argument(expression: Expression) -> Expression:
    """Return the scalar that an expression broadcasts; other expressions are returned unchanged."""
    while expression.atom is BROADCAST and expression.args[0].is_scalar:
        expression = expression.args[0]
    return expression


def summed_text(expression: Expression, write: rules.Write) -> tuple[str, int]:
    words = write(broadcast_argument(expression.args[0]), SUM)
    for argument in expression.args[1:]:
        term = write(broadcast_argument(argument), PRODUCT)
        words += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
    return words, SUM


def add_terms(expander: Any, expression: Expression) -> Polynomial:
    parts = [expander.expand(argument) for argument in expression.args]
    return concatenate(parts, expression.shape, [part.entry for part in parts]).collected()


ADD = AtomDefinition(
    name="add",
    affine="linear",
    value=lambda expression, *terms: sum(terms[1:], terms[0]),
    vjp=lambda expression, value, slope, *terms: [slope] * len(terms),
    from_cvxpy={"affine.add_expr.AddExpression": lambda node, args: add(*args)},
    to_cvxpy=lambda cp, expression, args: sum(args[1:], args[0]),
    sign=rules.common_sign,
    monotonicity=always(1),
    to_string=summed_text,
    expand=add_terms,
    bounds=lambda e, arguments: [rules.sum_of(terms) for terms in zip(*arguments, strict=True)],
    entrywise=True,
)

NEGATE = AtomDefinition(
    name="negate",
    affine="linear",
    value=lambda expression, a: -a,
    vjp=lambda expression, value, slope, a: [-slope],
    from_cvxpy={"affine.unary_operators.NegExpression": lambda node, args: negate(args[0])},
    to_cvxpy=lambda cp, expression, args: -args[0],
    sign=lambda expression, signs: -signs[0],
    monotonicity=always(-1),
    to_string=lambda expression, write: (f"-{write(expression.args[0], PRODUCT)}", PRODUCT),
    expand=lambda expander, e: expander.expand(e.args[0]).scaled(-1.0),
    bounds=lambda e, arguments: [entry.scaled(rules.MINUS) for entry in arguments[0]],
    entrywise=True,
)

SUMMED = rules.reduction(
    "sum",
    affine="linear",
    value=lambda e, a: np.sum(a, axis=e.option("axis"), keepdims=True),
    vjp=lambda e, value, slope, a: [np.broadcast_to(slope, (*e.args[0].shape, slope.shape[-1]))],
    one=lambda expression, entries: rules.sum_of(entries),
    from_cvxpy={
        "affine.sum.Sum": lambda node, args: total(args[0], *rules.axes_of(node)),
        "affine.trace.Trace": lambda node, args: total(diagonal(args[0])),
    },
    sign=rules.common_sign,
    monotonicity=always(1),
    expand=lambda expander, e: expander.expand(e.args[0]).linear(rules.sum_matrix(e), e.shape),
)


def product_sign(expression: Expression, signs: Sequence[int]) -> int:
    return signs[0] * signs[1]


def infix(symbol: str) -> Callable[[Expression, rules.Write], tuple[str, int]]:
    return lambda e, write: (f"{write(e.args[0], PRODUCT)} {symbol} {write(e.args[1], SIGN)}", PRODUCT)


def sums_of_products(
    expression: Expression, arguments: list[rules.Entries], pairs: Iterable[Iterable[tuple[int, int]]]
) -> rules.Entries:
    """Return, for each entry of the result, the sum of products over its pairs; at most one factor contains variables."""
    one, two = arguments
    if expression.args[0].variables:
        return [rules.sum_of([one[i].scaled(two[j].value) for i, j in group]) for group in pairs]
    return [rules.sum_of([two[j].scaled(one[i].value) for i, j in group]) for group in pairs]


MULTIPLY = AtomDefinition(
    name="multiply",
    affine="bilinear",
    value=lambda expression, a, b: a * b,
    vjp=lambda e, value, slope, a, b: [
        slope * other if argument.variables else None for argument, other in zip(e.args, (b, a), strict=True)
    ],
    from_cvxpy={
        "affine.binary_operators.multiply": lambda node, args: multiply(*args),
        "affine.diag.diag_vec": lambda node, args: diag_matrix(args[0], int(node.k)),
        "affine.kron.kron": lambda node, args: kron(*args),
    },
    sign=product_sign,
    monotonicity=lambda expression, k, signs: signs[1 - k],
    to_string=infix("*"),
    expand=lambda expander, e: expander.expand(e.args[0]).times(expander.expand(e.args[1])),
    bounds=lambda e, arguments: sums_of_products(e, arguments, [[(k, k)] for k in range(e.size)]),
    entrywise=True,
)


def quotient(expander: Any, expression: Expression) -> Polynomial:
    dividend, divisor = expression.args
    if divisor.is_constant:
        if not divisor.number.all():
            raise NotPrivate("an expression is divided by zero", expression, "divide by a number that is not 0")
        dividends, by = expander.expand(dividend), np.broadcast_to(divisor.number, dividend.shape)
        return dividends.divided(by.reshape(-1, order="F")[dividends.entry])
    else:
        while divisor.atom is BROADCAST:
            divisor = divisor.args[0]
        inverse = expander.expand(power(divisor, -1.0))
        inverse = inverse.gathered(np.broadcast_to(inverse.numbers(), expression.shape))
    return expander.expand(dividend).times(inverse)


def divided(expression: Expression, arguments: list[rules.Entries]) -> rules.Entries:
    if any(by.value.low <= 0 <= by.value.high for by in arguments[1]):
        raise NotPrivate("the divisor can reach zero", None, "bound the divisor away from zero by its declared domain")
    return [divided_by(entry, by.value) for entry, by in zip(*arguments, strict=True)]


def divided_by(entry: AbstractValue, by: Interval) -> AbstractValue:
    """Divide by an interval without zero.  The slack of gradients covers the rounding of a single inverse."""
    inverse = Interval(float(quotient_ends(1.0, by.high)[0]), float(quotient_ends(1.0, by.low)[1]))
    factor = Interval(1.0 / by.low, 1.0 / by.low) if by.low == by.high else inverse
    return replace(entry.scaled(factor), value=entry.value * inverse)


DIVIDE = AtomDefinition(
    name="divide",
    affine="quotient",
    value=lambda expression, a, b: a / b,
    vjp=lambda e, value, slope, a, b: [slope / b, -slope * value / b if e.args[1].variables else None],
    from_cvxpy={"affine.binary_operators.DivExpression": lambda node, args: divide(*args)},
    to_cvxpy=lambda cp, expression, args: args[0] / args[1],
    sign=product_sign,
    monotonicity=lambda expression, k, signs: signs[1] if k == 0 else 0,
    to_string=infix("/"),
    expand=quotient,
    bounds=divided,
    entrywise=True,
)


def matmul_shape(one: Shape, two: Shape) -> Shape:
    if not (one and two) or max(len(one), len(two)) > 2 or one[-1] != two[0]:
        raise ValueError(f"there is no rule for products of shapes {one} and {two}")
    return (*one[:-1], *two[1:])


def contracted(one: str, two: str, result: str, a: Any, b: Any) -> Any:
    """Multiply two arrays and sum over their shared axis, for all records at once."""
    return np.einsum(f"{one}z,{two}z->{result}z", a, b)


def matmul_value(expression: Expression, a: Any, b: Any) -> Any:
    one, two = (argument.ndim for argument in expression.args)
    return contracted("ij"[2 - one :], "jk"[:two], "i" * (one - 1) + "k" * (two - 1), a, b)


def factors(expression: Expression) -> list[list[tuple[int, int]]]:
    """Return, for each entry of a matrix product, the pairs of entries to multiply and add."""
    one, two = (np.arange(a.size).reshape(a.shape, order="F") for a in expression.args)
    rows, columns = np.atleast_2d(one).tolist(), np.atleast_2d(two.T).tolist()
    return [list(zip(row, column, strict=True)) for column in columns for row in rows]


def matmul_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    one, two = expression.args
    i, k = "i" * (one.ndim - 1), "k" * (two.ndim - 1)
    return [
        contracted(f"{i}{k}", f"j{k}", f"{i}j", slope, b) if one.variables else None,
        contracted(f"{i}j", f"{i}{k}", f"j{k}", a, slope) if two.variables else None,
    ]


MATMUL = AtomDefinition(
    name="matmul",
    affine="bilinear",
    shape=matmul_shape,
    value=matmul_value,
    vjp=matmul_pull,
    from_cvxpy={
        "affine.binary_operators.MulExpression": lambda node, args: matmul(*args),
        "affine.cumsum.cumsum": lambda node, args: cumsum(args[0], node.axis),
        "affine.conv.conv": lambda node, args: reshape(convolve(*args), node.shape),
        "affine.conv.convolve": lambda node, args: reshape(convolve(*args), node.shape),
    },
    to_cvxpy=lambda cp, expression, args: args[0] @ args[1],
    sign=product_sign,
    monotonicity=lambda expression, k, signs: signs[1 - k],
    to_string=infix("@"),
    expand=lambda expander, e: expander.expand(e.args[0]).matmul(expander.expand(e.args[1]), e.shape),
    bounds=lambda e, arguments: sums_of_products(e, arguments, factors(e)),
)


def add(*terms: Any) -> Expression:
    arguments = broadcast_all(*terms)
    flat = [part for a in arguments for part in (a.args if a.atom is ADD else (a,))]
    return flat[0] if len(flat) == 1 else ADD(*flat)


def negate(a: Any) -> Expression:
    a = constant(a)
    return a.args[0] if a.atom is NEGATE else NEGATE(a)


def total(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    a = constant(a)
    return rules.along(SUMMED, a, axis, keepdims) if a.ndim else a


def multiply(a: Any, b: Any) -> Expression:
    return MULTIPLY(*broadcast_all(a, b))


def divide(a: Any, b: Any) -> Expression:
    return DIVIDE(*broadcast_all(a, b))


def matmul(a: Any, b: Any) -> Expression:
    a, b = constant(a), constant(b)
    return MATMUL(a, b) if a.ndim and b.ndim else multiply(a, b)


def kron(a: Any, b: Any) -> Expression:
    a, b = (reshape(factor, (*factor.shape, 1, 1)[:2]) for factor in (constant(a), constant(b)))
    i, j = np.indices((a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]))
    return multiply(entry_at(a, (i // b.shape[0], j // b.shape[1])), entry_at(b, (i % b.shape[0], j % b.shape[1])))


def convolve(a: Any, b: Any) -> Expression:
    a, b = (vec(b), vec(a)) if constant(a).variables else (vec(a), vec(b))
    shift = np.arange(a.size + b.size - 1)[:, None] - np.arange(b.size)
    return matmul(entry_at(hstack(a, 0.0), np.where((shift >= 0) & (shift < a.size), shift, a.size)), b)


def diag_matrix(a: Any, k: int = 0) -> Expression:
    a, zeros = vec(a), np.zeros(abs(k))
    rows = hstack(*((a, zeros) if k > 0 else (zeros, a))) if k else a
    return multiply(np.eye(rows.size, k=k), reshape(rows, (rows.size, 1)))


def cumsum(a: Any, axis: int | None) -> Expression:
    """Return the cumulative sum, a product with a triangle of ones; without an axis, over all entries row by row."""
    a = constant(a)
    if axis is None:
        a, axis = vec(transpose(a)), 0
    if not a.ndim:
        return a
    if a.ndim > 2:
        rules.no_rule("cumulative sums of", a.shape)
    ones = np.tri(a.shape[axis])
    return matmul(ones, a) if axis % a.ndim == 0 else matmul(a, ones.T)


OPERATORS.update(add=add, negate=negate, multiply=multiply, divide=divide, matmul=matmul)
