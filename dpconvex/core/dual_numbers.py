"""Arrays with a derivative along one direction (dual numbers), which run wherever NumPy's arrays run.

Carried through an atom's value they give its slope; carried through its `pull`, the change of a gradient, which is a Hessian
times a direction.  No atom knows of them: they take part in NumPy's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Dual(NDArrayOperatorsMixin):
    """An array, and its derivative: of the same shape, or one that is repeated to it.

    Attributes
    ----------
    value : ndarray
    tangent : ndarray or float
    """

    def __init__(self, value: Any, tangent: Any) -> None:
        self.value = value
        self.tangent = tangent

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.value))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def whole(self) -> Array:
        """The derivative in the array's shape."""
        shape = self.shape
        return self.tangent if np.shape(self.tangent) == shape else np.broadcast_to(self.tangent, shape)

    def reshape(self, shape: tuple[int, ...]) -> Dual:
        """Reshape in row order."""
        return Dual(self.value.reshape(shape), self.whole.reshape(shape))

    def __getitem__(self, key: Any) -> Dual:
        return Dual(self.value[key], self.whole[key])

    def __len__(self) -> int:
        return len(self.value)

    def composed(self, value: Array, slope: Array) -> Dual:
        return Dual(value, slope * self.tangent)

    def __array_ufunc__(self, ufunc: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        if ufunc in FLAT:  # the same all around a point
            return ufunc(*(plain(argument) for argument in arguments))
        rule = UFUNCS.get(ufunc)
        return NotImplemented if rule is None else rule(*arguments)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function in LINEAR:
            return linear(function, *arguments, **options)
        rule = FUNCTIONS.get(function)
        return NotImplemented if rule is None else rule(*arguments, **options)


def plain(number: Any) -> Any:
    """The value of what may be a dual array, or a list of them."""
    if isinstance(number, list | tuple):
        return type(number)(plain(part) for part in number)
    return number.value if isinstance(number, Dual) else number


def tangent(number: Any) -> Any:
    """The derivative of what may be a dual array, or a list of them."""
    if isinstance(number, list | tuple):
        return type(number)(tangent(part) for part in number)
    return number.whole if isinstance(number, Dual) else np.zeros(np.shape(number))


def rate(number: Any) -> Any:
    """The derivative, not repeated; 0 for a plain array."""
    return number.tangent if isinstance(number, Dual) else 0.0


def linear(function: Callable[..., Any], argument: Any, *rest: Any, **options: Any) -> Dual:
    return Dual(function(plain(argument), *rest, **options), function(tangent(argument), *rest, **options))


def add(a: Any, b: Any) -> Dual:
    """Sum."""
    if not isinstance(b, Dual):
        return Dual(a.value + b, a.tangent)
    return Dual(plain(a) + b.value, a.tangent + b.tangent if isinstance(a, Dual) else b.tangent)


def subtract(a: Any, b: Any) -> Dual:
    """Difference."""
    if not isinstance(b, Dual):
        return Dual(a.value - b, a.tangent)
    return Dual(plain(a) - b.value, a.tangent - b.tangent if isinstance(a, Dual) else -b.tangent)


def multiply(a: Any, b: Any) -> Dual:
    """Product."""
    if not isinstance(b, Dual):
        return Dual(a.value * b, a.tangent * b)
    if not isinstance(a, Dual):
        return Dual(a * b.value, a * b.tangent)
    return Dual(a.value * b.value, a.tangent * b.value + a.value * b.tangent)


def divide(a: Any, b: Any) -> Dual:
    """Quotient."""
    if not isinstance(b, Dual):
        return Dual(a.value / b, a.tangent / b)
    value = plain(a) / b.value
    return Dual(value, (rate(a) - value * b.tangent) / b.value)


def power(a: Any, p: Any) -> Dual:
    """Power with a plain exponent."""
    value = a.value**p
    if p == 0:
        return Dual(value, 0.0)
    below = a.value ** (p - 1)
    return Dual(value, p * below * a.tangent)


def log_add_exp(a: Any, b: Any) -> Dual:
    """log(exp(a) + exp(b)); for b = 0, values and slopes share an exponential."""
    if not isinstance(b, Dual) and np.ndim(b) == 0 and b == 0:
        tail = np.exp(-np.abs(a.value))
        value = np.maximum(a.value, 0.0) + np.log1p(tail)
        return Dual(value, np.where(a.value >= 0, 1.0, tail) / (1.0 + tail) * a.tangent)
    first, second = plain(a), plain(b)
    value = np.logaddexp(first, second)
    return Dual(value, np.exp(first - value) * rate(a) + np.exp(second - value) * rate(b))


def smooth(function: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[[Any], Dual]:
    return lambda a: a.composed(function(a.value), slope(a.value))


def maximum(a: Any, b: Any) -> Dual:
    """Larger number; where they are equal, the mean of their slopes."""
    weight = 0.5 * np.sign(plain(a) - plain(b)) + 0.5
    low = rate(b)
    return Dual(np.maximum(plain(a), plain(b)), low + weight * (rate(a) - low))


def clip(a: Any, low: float, high: float) -> Dual:
    """Nearest number in an interval; at its ends the slope is that inside."""
    inside = (a.value >= low) & (a.value <= high)
    return Dual(np.clip(a.value, low, high), inside * a.tangent)


def where(condition: Any, a: Any, b: Any) -> Dual:
    """Choose."""
    return Dual(np.where(condition, plain(a), plain(b)), np.where(condition, rate(a), rate(b)))


def extreme(function: Callable[..., Any]) -> Callable[..., Dual]:
    """Return the largest or smallest entry's rule: the mean of the slopes of those that attain it."""

    def rule(a: Any, axis: Any = None, keepdims: bool = False) -> Dual:
        value = function(a.value, axis=axis, keepdims=True)
        attained = a.value == value
        slope = np.sum(attained * a.tangent, axis=axis, keepdims=True) / np.sum(attained, axis=axis, keepdims=True)
        return Dual(value, slope) if keepdims else Dual(np.squeeze(value, axis), np.squeeze(slope, axis))

    return rule


def ordered(a: Any, axis: int) -> Dual:
    """Sort."""
    rows = np.argsort(a.value, axis=axis, kind="stable")
    return Dual(np.take_along_axis(a.value, rows, axis), np.take_along_axis(a.whole, rows, axis))


def product(a: Any, b: Any) -> Dual:
    """Products of stacks of matrices."""
    return Dual(np.matmul(plain(a), plain(b)), np.matmul(tangent(a), plain(b)) + np.matmul(plain(a), tangent(b)))


def decomposed(a: Any) -> tuple[Dual, Dual]:
    """Eigenvalues and eigenvectors of symmetric matrices; those of equal eigenvalues are held fixed among each other."""
    values, vectors = np.linalg.eigh(a.value)
    turned = np.swapaxes(vectors, -1, -2) @ a.whole @ vectors
    gap = values[..., None, :] - values[..., :, None]
    weight = np.where(np.abs(gap) > 1e-12 * np.abs(values).max(axis=-1)[..., None, None], 1.0 / gap, 0.0)
    slopes = np.diagonal(turned, axis1=-2, axis2=-1)
    return Dual(values, slopes), Dual(vectors, vectors @ (weight * turned))


def singular_values(a: Any, compute_uv: bool) -> Dual:
    left, values, right = np.linalg.svd(a.value, full_matrices=False)
    return Dual(values, np.einsum("...ik,...ij,...kj->...k", left, a.whole, right))


FLAT = {np.equal, np.not_equal, np.greater, np.greater_equal, np.less, np.less_equal, np.sign, np.isfinite, np.isnan}
UFUNCS: dict[Any, Callable[..., Dual]] = {
    np.add: add,
    np.subtract: subtract,
    np.multiply: multiply,
    np.divide: divide,
    np.power: power,
    np.negative: lambda a: Dual(-a.value, -a.tangent),
    np.positive: lambda a: a,
    np.absolute: smooth(np.abs, np.sign),
    np.fabs: smooth(np.abs, np.sign),
    np.exp: lambda a: a.composed(value := np.exp(a.value), value),
    np.log: lambda a: Dual(np.log(a.value), a.tangent / a.value),
    np.sqrt: lambda a: Dual(value := np.sqrt(a.value), a.tangent / (2 * value)),
    np.square: lambda a: a * a,
    np.reciprocal: lambda a: 1.0 / a,
    np.log1p: smooth(np.log1p, lambda m: 1.0 / (1.0 + m)),
    np.expm1: smooth(np.expm1, np.exp),
    np.sin: smooth(np.sin, np.cos),
    np.cos: smooth(np.cos, lambda m: -np.sin(m)),
    np.sinh: smooth(np.sinh, np.cosh),
    np.cosh: smooth(np.cosh, np.sinh),
    np.tanh: smooth(np.tanh, lambda m: 1.0 - np.tanh(m) ** 2),
    np.arctan: smooth(np.arctan, lambda m: 1.0 / (1.0 + m * m)),
    np.arcsinh: smooth(np.arcsinh, lambda m: 1.0 / np.hypot(1.0, m)),
    np.logaddexp: log_add_exp,
    np.maximum: maximum,
    np.minimum: lambda a, b: -maximum(-a, -b),
    np.matmul: product,
}
LINEAR = {np.sum, np.broadcast_to, np.moveaxis, np.swapaxes, np.concatenate, np.reshape, np.tril}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: where,
    np.clip: clip,
    np.max: extreme(np.max),
    np.min: extreme(np.min),
    np.sort: ordered,
    np.argsort: lambda a, **options: np.argsort(a.value, **options),
    np.linalg.eigh: decomposed,
    np.linalg.eigvalsh: lambda a: decomposed(a)[0],
    np.linalg.svd: singular_values,
}
