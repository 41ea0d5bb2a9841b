"""Expressions as mathematics that a person can read: infix, with the names that CVXPY's users know.

Repetition is not written (as in NumPy, it is understood), numbers have six digits, and
large arrays of numbers are called by their shape.
"""

import numpy as np

from dpconvex.core.evaluate import postorder
from dpconvex.core.expression import OPERATORS, Constant, Expression, Field, Variable

# How tightly an operator binds its arguments.
SUM, PRODUCT, SIGN, ATOM = 1, 2, 3, 4
MANY = 6
LONG = 500


def text(expression: Expression) -> str:
    """Write an expression.

    >>> from dpconvex.core.atoms.exponentials import logistic
    >>> w, x = Variable.of((2,), "w", 1), Field.of((2,), "x")
    >>> print(logistic(1 - (x @ w) / 2))
    logistic(1 - x @ w / 2)
    """
    return leveled(expression)[0]


def leveled(expression: Expression) -> tuple[str, int]:
    """Return the text and how tightly its outermost operator binds."""
    if isinstance(expression, Constant):
        return numbers(expression)
    if isinstance(expression, Variable | Field):
        return expression.name, ATOM
    atom = expression.atom
    assert atom is not None
    if atom.text is not None:
        return atom.text(expression, write)
    options = [f"{name}={value}" for name, value in expression.options]
    return f"{atom.name}({', '.join([*(write(a, 0) for a in expression.args), *options])})", ATOM


def write(expression: Expression, level: int) -> str:
    """Write an argument, in parentheses if it binds less tightly than `level`; one of very many parts is left out."""
    if weight(expression) > LONG:
        return "..."
    words, own = leveled(expression)
    return words if own >= level else f"({words})"


def weight(expression: Expression) -> float:
    """Number of parts of an expression when it is written, where shared ones are written again."""
    known = expression.__dict__.get("_weight")
    if known is None:
        for part in postorder([expression]):
            if "_weight" not in part.__dict__:
                part.__dict__["_weight"] = 1.0 + sum(argument.__dict__["_weight"] for argument in part.args)
        known = expression.__dict__["_weight"]
    return float(known)


def numbers(expression: Constant) -> tuple[str, int]:
    """Write constants: a number if all are the same, few in full, many by their shape."""
    array = expression.dense
    if not array.size:
        return f"zeros{list(array.shape)}", ATOM
    if array.size == 1:
        value = float(array.ravel()[0])
        return f"{value:.6g}", SIGN if value < 0 else ATOM
    if array.size <= MANY:
        return np.array2string(array, separator=", ", formatter={"float_kind": lambda v: f"{v:.6g}"}).replace(
            "\n", ""
        ), ATOM
    return f"constant[{' x '.join(str(n) for n in array.shape)}]", ATOM


OPERATORS["text"] = text
