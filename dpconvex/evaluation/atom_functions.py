"""One array function for every CVXPY atom that a loss may be made of.

A rule takes an expression to its static data (hashable; what the function depends on besides its arguments) and a function
``f(xp, *arguments)`` for an array module `xp`, NumPy or JAX.  Functions are exact, and their derivatives are right (a
subgradient at a kink, never a NaN) wherever the atom is finite: `huber(pos(.))` has its derivative 0 where the kink of
`pos` meets the flat of `huber`, and the Euclidean norm the derivative 0 at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.axis_atom import AxisAtom

from dpconvex.core.declared_atoms import DeclaredAtom

__all__ = ["find_rule"]

Apply = Callable[..., Any]
Rule = tuple[Hashable, Apply]

RULES: dict[str, Callable[[Any], Rule | None]] = {}


def rule(*names: str) -> Callable[[Callable[[Any], Rule | None]], Callable[[Any], Rule | None]]:
    """Register a rule under the class names of its atoms."""

    def register(function: Callable[[Any], Rule | None]) -> Callable[[Any], Rule | None]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def find_rule(expression: cp.Expression) -> Rule | None:
    """Return static data and function of an atom, or None if there is no rule for it (with these options)."""
    if isinstance(expression, Wrap):
        return None, lambda xp, a: a
    if isinstance(expression, DeclaredAtom):
        return expression.declaration, lambda xp, a: expression.declaration.apply(a)
    # A subclass computes what its parent does (`PowerApprox` what `Power` does); only the name differs.
    for kind in type(expression).__mro__:
        if kind.__module__.startswith("cvxpy.atoms") and kind.__name__ in RULES:
            return RULES[kind.__name__](expression)
    return None


def fixed(*names: str) -> Callable[[Apply], Apply]:
    """Register a function that has no static data."""

    def register(function: Apply) -> Apply:
        RULES.update(dict.fromkeys(names, lambda expression: (None, function)))
        return function

    return register


# Affine atoms


@fixed("AddExpression")
def add(xp: Any, *terms: Any) -> Any:
    """Sum with broadcasting."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@fixed("NegExpression")
def negate(xp: Any, a: Any) -> Any:
    """Minus."""
    return -a


@fixed("conj", "real")
def itself(xp: Any, a: Any) -> Any:
    """Leave real numbers as they are; variables and fields are real."""
    return a


@fixed("multiply")
def times(xp: Any, a: Any, b: Any) -> Any:
    """Multiply entry by entry."""
    return a * b


@fixed("DivExpression")
def divide(xp: Any, a: Any, b: Any) -> Any:
    """Divide entry by entry."""
    return a / b


@fixed("MulExpression")
def product(xp: Any, a: Any, b: Any) -> Any:
    """Matrix product; two vectors are multiplied and summed, which fuses where a batched product would not."""
    if xp.ndim(a) == 0 or xp.ndim(b) == 0:
        return a * b
    if xp.ndim(a) == 1 and xp.ndim(b) == 1:
        return xp.sum(a * b)
    return xp.matmul(a, b)


@rule("Sum")
def total(expression: Any) -> Rule:
    """Sum over axes."""
    axis, keepdims = axes(expression)
    return (axis, keepdims), lambda xp, a: xp.sum(a, axis=axis, keepdims=keepdims)


@rule("cumsum")
def running_total(expression: Any) -> Rule:
    """Cumulative sum over an axis."""
    axis = expression.axis
    return axis, lambda xp, a: xp.cumsum(a, axis=axis)


@fixed("Trace")
def trace(xp: Any, a: Any) -> Any:
    """Sum of the diagonal."""
    return xp.trace(a)


@rule("diag_vec", "diag_mat")
def diagonal(expression: Any) -> Rule:
    """Matrix from a diagonal, or diagonal of a matrix."""
    k = int(expression.k)
    return k, lambda xp, a: xp.diag(a, k=k)


@rule("reshape")
def reshape(expression: Any) -> Rule:
    """Reshape in column ("F") or row ("C") order."""
    shape, order = expression.shape, str(expression.order)
    if order == "C":
        return (shape, order), lambda xp, a: xp.reshape(a, shape)
    return (shape, order), lambda xp, a: xp.transpose(xp.reshape(xp.transpose(a), shape[::-1]))


@rule("transpose")
def transpose(expression: Any) -> Rule:
    """Permute axes."""
    order = None if expression.axes is None else tuple(int(i) for i in expression.axes)
    return order, lambda xp, a: xp.transpose(a, order)


@rule("index")
def index(expression: Any) -> Rule:
    """Slices and single entries."""
    key = expression._orig_key
    return f"{expression.args[0].shape}{key!r}", lambda xp, a: a[key]


@rule("special_index")
def select(expression: Any) -> Rule:
    """Lists and masks of entries."""
    place = np.arange(expression.args[0].size).reshape(expression.args[0].shape)[expression.key]
    return (place.shape, place.tobytes()), lambda xp, a: xp.reshape(a, -1)[place]


@fixed("Hstack")
def hstack(xp: Any, *parts: Any) -> Any:
    """Join along the second axis (the only one of vectors)."""
    return xp.hstack(parts)


@fixed("Vstack")
def vstack(xp: Any, *parts: Any) -> Any:
    """Join along the first axis."""
    return xp.vstack(parts)


@rule("Concatenate")
def concatenate(expression: Any) -> Rule:
    """Join along an axis."""
    axis = expression.axis
    return axis, lambda xp, *parts: xp.concatenate(parts, axis=axis)


@rule("upper_tri")
def upper_triangle(expression: Any) -> Rule:
    """Entries above the diagonal, row by row."""
    shape = expression.shape
    row, column = np.triu_indices(expression.args[0].shape[-1], k=1)
    return shape, lambda xp, a: xp.reshape(a[..., row, column], shape)


@fixed("kron")
def kronecker(xp: Any, a: Any, b: Any) -> Any:
    """Kronecker product."""
    return xp.kron(a, b)


@rule("convolve", "conv")
def convolve(expression: Any) -> Rule:
    """Discrete convolution."""
    shape = expression.shape
    return shape, lambda xp, a, b: xp.reshape(xp.convolve(xp.ravel(a), xp.ravel(b)), shape)


@rule("Promote", "broadcast_to")
def broadcast(expression: Any) -> Rule:
    """Repeat into a larger shape."""
    shape = expression.shape
    return shape, lambda xp, a: xp.broadcast_to(a, shape)


# Entry by entry


fixed("exp")(lambda xp, a: xp.exp(a))
fixed("log")(lambda xp, a: xp.log(a))
fixed("log1p")(lambda xp, a: xp.log1p(a))


@fixed("logistic")
def logistic(xp: Any, a: Any) -> Any:
    """Compute log(1 + exp(a)) without overflow."""
    if xp is np:
        return np.logaddexp(a, 0.0)
    own = getattr(xp, "softplus", None)
    return own(a) if own is not None else softplus()(a)


@cache
def softplus() -> Apply:
    """Return log(1 + exp(a)) for JAX, with derivatives that share its exponential."""
    import jax
    import jax.numpy as xp

    @jax.custom_jvp
    def value(a: Any) -> Any:
        return xp.maximum(a, 0.0) + xp.log1p(xp.exp(-xp.abs(a)))

    @jax.custom_jvp
    def slope(a: Any) -> Any:
        tail = xp.exp(-xp.abs(a))
        return xp.where(a >= 0, 1.0, tail) / (1.0 + tail)

    @value.defjvp
    def value_rule(point: Any, direction: Any) -> Any:
        return value(*point), slope(*point) * direction[0]

    @slope.defjvp
    def slope_rule(point: Any, direction: Any) -> Any:
        s = slope(*point)
        return s, s * (1.0 - s) * direction[0]

    return value


@fixed("abs")
def absolute(xp: Any, a: Any) -> Any:
    """Absolute value."""
    return magnitude(xp, a)


def magnitude(xp: Any, a: Any) -> Any:
    """Absolute value with the derivative 0 at 0."""
    return xp.maximum(a, -a)


@fixed("maximum")
def maximum(xp: Any, *terms: Any) -> Any:
    """Largest argument."""
    best = terms[0]
    for term in terms[1:]:
        best = xp.maximum(best, term)
    return best


@fixed("minimum")
def minimum(xp: Any, *terms: Any) -> Any:
    """Smallest argument."""
    best = terms[0]
    for term in terms[1:]:
        best = xp.minimum(best, term)
    return best


@rule("huber")
def huber(expression: Any) -> Rule:
    """a^2 up to M, 2M|a| - M^2 beyond; as c(2a - c) with c the clipped argument, it needs no case distinction."""
    threshold = float(expression.M.value)

    def apply(xp: Any, a: Any) -> Any:
        clipped = xp.clip(a, -threshold, threshold)
        return clipped * (2 * a - clipped)

    return threshold, apply


@rule("Power")
def power(expression: Any) -> Rule:
    """Power with a constant exponent; infinite or NaN outside its domain, like NumPy's."""
    p = float(expression.p.value)
    if p.is_integer() and 0 <= p <= 64:
        return p, lambda xp, a: a ** int(p)
    if p == 0.5:
        return p, lambda xp, a: xp.sqrt(a)

    def apply(xp: Any, a: Any) -> Any:
        # A safe base keeps the derivative at 0 finite where the power's own is (p > 1).
        base = xp.where(a == 0, 1.0, a)
        return xp.where(a == 0, 0.0 if p > 0 else np.inf, base**p)

    return p, apply


@fixed("entr")
def entropy(xp: Any, a: Any) -> Any:
    """-a log(a)."""
    return -relative_entropy(xp, a, 1.0)


@fixed("rel_entr")
def relative_entropy(xp: Any, a: Any, b: Any) -> Any:
    """A log(a/b), 0 at a = 0."""
    safe = xp.where(a > 0, a, 1.0)
    return xp.where(a > 0, safe * xp.log(safe / b), xp.where(a == 0, 0.0, np.inf))


@fixed("kl_div")
def divergence(xp: Any, a: Any, b: Any) -> Any:
    """A log(a/b) - a + b."""
    return relative_entropy(xp, a, b) - a + b


# Reductions


def axes(expression: AxisAtom) -> tuple[Any, bool]:
    """Axis (None, an integer or a tuple) and keepdims of an atom that reduces."""
    axis = expression.axis
    if axis is not None:
        axis = tuple(int(i) for i in axis) if isinstance(axis, tuple | list) else int(axis)
    return axis, bool(expression.keepdims)


def reduction(name: str, function: Apply) -> None:
    """Register ``function(xp, a, axis, keepdims)``."""

    def build(expression: Any) -> Rule:
        axis, keepdims = axes(expression)
        return (axis, keepdims), lambda xp, a: function(xp, a, axis, keepdims)

    RULES[name] = build


def log_sum_exp(xp: Any, a: Any, axis: Any, keepdims: bool) -> Any:
    """Compute log sum exp without overflow; the shift is held fixed in derivatives, which it does not change."""
    top = xp.max(a, axis=axis, keepdims=True)
    if xp is not np:
        from jax.lax import stop_gradient

        top = stop_gradient(top)
    result = xp.log(xp.sum(xp.exp(a - top), axis=axis, keepdims=True)) + top
    return result if keepdims else xp.squeeze(result, axis=axis)


def euclidean_norm(xp: Any, a: Any, axis: Any, keepdims: bool) -> Any:
    """Euclidean norm with the derivative 0 at 0."""
    square = xp.sum(a * a, axis=axis, keepdims=keepdims)
    positive = square > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, square, 1.0)), 0.0)


reduction("log_sum_exp", log_sum_exp)
reduction("max", lambda xp, a, axis, keepdims: xp.max(a, axis=axis, keepdims=keepdims))
reduction("min", lambda xp, a, axis, keepdims: xp.min(a, axis=axis, keepdims=keepdims))
reduction("norm1", lambda xp, a, axis, keepdims: xp.sum(magnitude(xp, a), axis=axis, keepdims=keepdims))
reduction("norm_inf", lambda xp, a, axis, keepdims: xp.max(magnitude(xp, a), axis=axis, keepdims=keepdims))


@rule("Pnorm")
def pnorm(expression: Any) -> Rule | None:
    """Norms with p >= 1."""
    axis, keepdims = axes(expression)
    p = float(expression.original_p)
    if p < 1:
        return None
    if p == 2:
        return (p, axis, keepdims), lambda xp, a: euclidean_norm(xp, a, axis, keepdims)

    def apply(xp: Any, a: Any) -> Any:
        # Divided by its largest entry, so that no power overflows; at 0 the derivative is 0.
        top = xp.max(xp.abs(a), axis=axis, keepdims=True)
        scale = xp.where(top > 0, top, 1.0)
        nonzero = a != 0
        powers = xp.where(nonzero, xp.where(nonzero, xp.abs(a) / scale, 1.0) ** p, 0.0)
        mass = xp.sum(powers, axis=axis, keepdims=True)
        result = xp.where(top > 0, scale * xp.where(top > 0, mass, 1.0) ** (1 / p), 0.0)
        return result if keepdims else xp.squeeze(result, axis=axis)

    return (p, axis, keepdims), apply


@rule("quad_over_lin")
def sum_of_squares(expression: Any) -> Rule:
    """Sum of squares over axes, divided by a scalar."""
    axis, keepdims = axes(expression)

    def apply(xp: Any, a: Any, b: Any) -> Any:
        return xp.sum(a * a, axis=axis, keepdims=keepdims) / xp.reshape(b, ())

    return (axis, keepdims), apply


@fixed("QuadForm")
def quadratic_form(xp: Any, a: Any, matrix: Any) -> Any:
    """A' P a."""
    a = xp.ravel(a)
    return xp.sum(a * xp.matmul(matrix, a))


@rule("sum_largest")
def sum_largest(expression: Any) -> Rule | None:
    """Sum of the k largest entries, k an integer."""
    count = expression.k
    if expression.axis is not None or int(count) != count or count > expression.args[0].size:
        return None
    first = expression.args[0].size - int(count)
    shape = expression.shape
    return (first, shape), lambda xp, a: xp.reshape(xp.sum(xp.sort(xp.ravel(a))[first:]), shape)
