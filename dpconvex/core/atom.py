"""What the toolkit knows about one atom: one object, in one place.

Every proof and every program asks the object; none has a table of its own.  A slot that is None means that the atom cannot do
that, and whoever asks says so by the atom's name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Expression, Shape, constant, node

ATOMS: dict[str, Atom] = {}


def no_domain(expression: Expression) -> tuple[str | None, ...]:
    """Say that arguments may be anything."""
    return (None,) * len(expression.args)


def same(*shapes: Shape, **options: Any) -> Shape:
    """Entry by entry: every argument has the shape of the result."""
    if len(set(shapes)) != 1:
        raise ValueError(f"shapes differ: {shapes}")
    return shapes[0]


def by_name(cp: Any, expression: Expression, args: list[Any]) -> Any:
    assert expression.atom is not None
    return getattr(cp, expression.atom.name)(*args)


@dataclass(frozen=True)
class Reach:
    """Where the argument of an atom is, over K: ranges of its entries, in column order, and of their Euclidean norm."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    norm: float


@dataclass(frozen=True)
class LeastCurvature:
    """How curved an atom is at least, as a function of its first argument, which is affine.

    Attributes
    ----------
    name, statement : str
        What it is called in derivations, and the Hessian that it claims, or a matrix below it.
    bend : callable
        ``bend(expression, weights, reach)`` returns h, one number for each entry of the argument, such that the sum of `weights`
        times the entries of the atom has a Hessian of at least diag(h); None if nothing is claimed.  All in column order; the
        weights of convex atoms are not negative, of concave ones not positive.
    exact : callable
        Whether the atom is quadratic, so that diag(h) is its Hessian.
    """

    name: str
    statement: str
    bend: Callable[[Expression, NDArray[np.float64], Reach], NDArray[np.float64] | None]
    exact: Callable[[Expression], bool] = lambda expression: False


@dataclass(frozen=True, eq=False, kw_only=True)
class Atom:
    """All that is known about an atom.  Making the object registers it.

    Attributes
    ----------
    name : str
        As users know it: the name of CVXPY's function where there is one.
    statement, source : str
        What the calculus proves about it, in one sentence or formula, and where that comes from.
    affine : {"linear", "bilinear", "quotient", "curved"}
        When it is affine in the variables: if all arguments are; if also at most one mentions variables; if also the divisor
        mentions none; never.
    shape : callable
        ``shape(*shapes, **options)`` of the arguments; raises ValueError if they do not fit.  Entrywise atoms want equal shapes:
        repeating is an atom of its own.  That is the default.
    reads : str or mapping of str to callable
        For each class of CVXPY, by its full name, that means this atom: ``reads[name](node, args)`` returns the expression, with
        arguments that were read already.  A class stands for itself, never for its subclasses.  A name alone means this atom of
        the arguments.
    writes : callable or None
        ``writes(cp, expression, args)`` returns the CVXPY expression, with the module and with arguments that were written
        already: this is its conic form.  By default CVXPY's function of this name.
    value : callable
        ``value(xp, expression, *args)`` for NumPy or JAX as `xp`.  Arrays have the records as one more axis at the end, of
        length 1 where all share a value, so axes are counted from the front.
    pull : callable or None
        ``pull(expression, value, slope, *args)`` returns, for each argument, the slope with respect to it (or None for arguments
        that do not vary), in NumPy, with records last; a subgradient at a kink, never NaN where the atom is finite.
    domain : callable
        What it asks of each argument: None, "not negative", "positive", "semidefinite" or "symmetric".
    sign : callable
        ``sign(expression, signs)`` with the signs of the arguments: 1 (nowhere negative), -1, or 0 (unknown).
    curve : callable
        ``curve(expression)``: 1 if convex on its domain (the default), -1 if concave; affine atoms are not asked.
    slope : callable
        ``slope(expression, k, signs)``: 1 if non-decreasing in argument k, -1 if non-increasing, 0 if unknown.
    text : callable or None
        ``text(expression, write)`` returns its text and how tightly that binds (see `core.text`); ``write(argument, level)``
        writes an argument, in parentheses if it binds less tightly.  None writes ``name(arguments, option=...)``.
    expand : callable or None
        ``expand(expander, expression)`` returns a `Polynomial`, or None where the atom makes none of polynomials.  Affine atoms
        have one, and whole powers.
    rule : callable or None
        Range, gradient and curvature: ``rule(expression, arguments)`` with one list of `Scalar` for each argument returns the
        result's.
    strong : LeastCurvature or None
        Least curvature of a term of a regularizer.
    smooth : callable or None
        ``smooth(expression, args, width)`` returns an expression without the kink.
    """

    name: str
    value: Callable[..., Any]
    shape: Callable[..., Shape] = same
    statement: str = ""
    source: str = "elementary calculus"
    affine: str = "curved"
    reads: str | Mapping[str, Callable[[Any, list[Expression]], Expression]] = field(default_factory=dict)
    writes: Callable[[Any, Expression, list[Any]], Any] | None = by_name
    pull: Callable[..., Sequence[Any]] | None = None
    domain: Callable[[Expression], tuple[str | None, ...]] = no_domain
    sign: Callable[[Expression, Sequence[int]], int] = lambda expression, signs: 0
    curve: Callable[[Expression], int] = lambda expression: 1
    slope: Callable[[Expression, int, Sequence[int]], int] = lambda expression, k, signs: 0
    text: Callable[[Expression, Callable[[Expression, int], str]], tuple[str, int]] | None = None
    expand: Callable[..., Any] | None = None
    rule: Callable[..., Any] | None = None
    strong: LeastCurvature | None = None
    smooth: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.name in ATOMS:
            raise ValueError(f"there is an atom {self.name!r} already")
        ATOMS[self.name] = self

    def __repr__(self) -> str:
        return f"<atom {self.name}>"

    def __call__(self, *args: Any, **options: Hashable) -> Expression:
        """Return the atom of arguments; of constants, the constant that it is."""
        arguments = [constant(argument) for argument in args]
        shape = tuple(int(n) for n in self.shape(*(argument.shape for argument in arguments), **options))
        made = node(self, arguments, tuple(sorted(options.items())), shape)
        # A repeated number stays one: rules look for single factors.
        return made if not made.is_constant or self.name == "broadcast" else constant(made.number)

    def keeps_affine(self, args: Sequence[Expression]) -> bool:
        """Whether the atom of affine arguments is affine."""
        varying = [bool(argument.variables) for argument in args]
        if self.affine == "bilinear":
            return sum(varying) <= 1
        if self.affine == "quotient":
            return not varying[1]
        return self.affine == "linear"
