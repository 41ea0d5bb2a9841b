"""Functions of one number for each record, with their derivative, in NumPy: pairs of a value and a slope (dual numbers).

NumPy's exponentials and logarithms are several times as fast as those that JAX compiles for a processor in double precision, and
need no compilation, but NumPy has no derivatives.  For losses of one margin per record forward differentiation is all that it
takes: the rules of `lowering_rules` run on this module as they run on NumPy and on JAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.evaluation.tape import Tape

__all__ = ["runs_on_duals", "value_and_slope"]

Array = NDArray[np.float64]

# Atoms whose rules need no more than this module has, if all that they read are scalars.
AFFINE = (
    "AddExpression",
    "NegExpression",
    "multiply",
    "DivExpression",
    "MulExpression",
    "Sum",
    "Promote",
    "conj",
    "real",
)
SMOOTH = (
    "exp",
    "log",
    "log1p",
    "logistic",
    "huber",
    "Power",
    "PowerApprox",
    "entr",
    "rel_entr",
    "kl_div",
    "quad_over_lin",
)
ATOMS = frozenset((*AFFINE, *SMOOTH, "abs", "maximum", "minimum"))


class Dual:
    """Values, and their derivatives with respect to one number for each record.

    Parameters
    ----------
    value, slope : ndarray or float
    """

    __array_ufunc__ = None  # NumPy's arrays leave arithmetic with these to them

    def __init__(self, value: Any, slope: Any) -> None:
        self.value = value
        self.slope = slope

    def __add__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            return Dual(self.value + other.value, self.slope + other.slope)
        return Dual(self.value + other, self.slope)

    __radd__ = __add__

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __sub__(self, other: Any) -> Dual:
        return self + (-other)

    def __rsub__(self, other: Any) -> Dual:
        return -self + other

    def __mul__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)
        return Dual(self.value * other, self.slope * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        return self * other**-1.0 if isinstance(other, Dual) else Dual(self.value / other, self.slope / other)

    def __rtruediv__(self, other: Any) -> Dual:
        return other * self**-1.0

    def __pow__(self, power: float) -> Dual:
        if power == 0:
            return Dual(np.ones_like(self.value), np.zeros_like(self.value))
        if power < 0:
            value = self.value**power
            return Dual(value, power * value / self.value * self.slope)
        below = powered(self.value, power - 1)
        return Dual(below * self.value, power * below * self.slope)

    def __eq__(self, other: object) -> Any:
        return self.value == plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > plain(other)

    __hash__ = None  # type: ignore[assignment]


def powered(base: Array, power: float) -> Array:
    """Power; whole ones by repeated multiplication, which NumPy leaves to a slow function from the third on."""
    if not float(power).is_integer():
        return np.asarray(base**power)
    result, square, left = np.ones_like(base), base, int(power)
    while left:
        if left & 1:
            result = result * square
        left >>= 1
        if left:
            square = square * square
    return result


def plain(number: Any) -> Any:
    """Value of a dual or plain number."""
    return number.value if isinstance(number, Dual) else number


def slope_of(number: Any) -> Any:
    """Slope of a dual number; 0 for a plain one."""
    return number.slope if isinstance(number, Dual) else 0.0


class Functions:
    """What the rules ask of an array module, for scalars."""

    @staticmethod
    def exp(a: Any) -> Dual:
        """Exponential."""
        value = np.exp(a.value)
        return Dual(value, value * a.slope)

    @staticmethod
    def log(a: Any) -> Dual:
        """Logarithm."""
        return Dual(np.log(a.value), a.slope / a.value)

    @staticmethod
    def log1p(a: Any) -> Dual:
        """Logarithm of 1 + a."""
        return Dual(np.log1p(a.value), a.slope / (1 + a.value))

    @staticmethod
    def sqrt(a: Any) -> Dual:
        """Square root."""
        value = np.sqrt(a.value)
        return Dual(value, a.slope / (2 * value))

    @staticmethod
    def softplus(a: Any) -> Dual:
        """Compute log(1 + exp(a)) without overflow."""
        tail = np.exp(-np.abs(a.value))
        value = np.maximum(a.value, 0.0) + np.log1p(tail)
        return Dual(value, np.where(a.value >= 0, 1.0, tail) / (1.0 + tail) * a.slope)

    @staticmethod
    def maximum(a: Any, b: Any) -> Dual:
        """Larger number; where they are equal, the mean of their slopes."""
        weight = 0.5 * np.sign(plain(a) - plain(b)) + 0.5
        low = slope_of(b)
        return Dual(np.maximum(plain(a), plain(b)), low + weight * (slope_of(a) - low))

    @classmethod
    def minimum(cls, a: Any, b: Any) -> Dual:
        """Smaller number; where they are equal, the mean of their slopes."""
        return -cls.maximum(-a, -b)

    @staticmethod
    def clip(a: Any, low: float, high: float) -> Dual:
        """Nearest number in an interval; at its ends the slope is that inside."""
        inside = (a.value >= low) & (a.value <= high)
        return Dual(np.clip(a.value, low, high), inside * a.slope)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Dual:
        """Choose."""
        return Dual(np.where(condition, plain(a), plain(b)), np.where(condition, slope_of(a), slope_of(b)))

    @staticmethod
    def ndim(a: Any) -> int:
        """Every record's number is a scalar."""
        return 0

    @staticmethod
    def sum(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """Sum of one number."""
        return a

    @staticmethod
    def reshape(a: Any, shape: tuple[int, ...]) -> Any:
        """A scalar stays one."""
        return a

    @staticmethod
    def broadcast_to(a: Any, shape: tuple[int, ...]) -> Any:
        """A scalar stays one."""
        return a


def runs_on_duals(tape: Tape) -> bool:
    """Whether a tape makes nothing but scalars of scalars, by known rules."""
    if any(shape != () or kind == "variable" for kind, _, _, shape in tape.steps):
        return False
    return all(f is None or kind in ATOMS for (kind, _, _, _), f in zip(tape.steps, tape.functions, strict=True))


def value_and_slope(
    tape: Tape, given: Sequence[tuple[Array, Any]], fields: Sequence[Array] = (), constants: Sequence[Array] = ()
) -> tuple[Array, Array]:
    """Evaluate a tape, and its derivative with respect to a number that what is given depends on.

    Parameters
    ----------
    tape : Tape
        For which `runs_on_duals` holds.
    given : sequence of (ndarray, ndarray or float), at least one
        Values of the subexpressions that are given, in order of their slots, shape (records,), and their slopes.
    fields : sequence of ndarray, shape (records,)
        In order of their slots.
    constants : sequence of ndarray, shape ()
        In order of their slots.

    Returns
    -------
    value, slope : ndarray, shape (records,)
    """
    supply: dict[str, Iterator[Any]] = {
        "affine": (Dual(*pair) for pair in given),
        "field": (Dual(values, 0.0) for values in fields),
        "constant": map(float, constants),
    }
    slots = [kind for (kind, _, _, _), f in zip(tape.steps, tape.functions, strict=True) if f is None]
    # What leaves a function's domain becomes infinite or NaN, as in JAX; solvers refuse it.
    with np.errstate(all="ignore"):
        found = tape.run([next(supply[kind]) for kind in slots], Functions)
    shape = np.shape(given[0][0])
    return np.broadcast_to(plain(found), shape), np.broadcast_to(slope_of(found), shape)
