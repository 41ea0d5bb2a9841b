"""What the toolkit knows about one atom: one object, which every proof and every program asks; None is what it cannot do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpconvex.expressions.expression import Expression, Shape, constant, node

ATOMS: dict[str, AtomDefinition] = {}


def known_atom(name: str) -> AtomDefinition:
    import_module("dpconvex.expressions.atoms")  # a process that only unpickles has made none
    return ATOMS[name]


def same(*shapes: Shape, **options: Any) -> Shape:
    if len(set(shapes)) != 1:
        raise ValueError(f"shapes differ: {shapes}")
    return shapes[0]


def always(value: Any) -> Callable[..., Any]:
    return lambda *asked: value


class ArgumentRange(NamedTuple):
    """Ranges of the argument of an atom over K: of its entries, in column order, and of their Euclidean norm."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    norm: float


class LeastCurvature(NamedTuple):
    """The least curvature of an atom as a function of its first argument, which is affine: `statement` claims a Hessian.

    ``bend(expression, weights, reach)`` returns h, a number for each entry of the argument in column order, such that the sum of
    `weights` (negative for concave atoms) times the entries of the atom has a Hessian of at least diag(h); None claims nothing.
    """

    name: str
    statement: str
    bend: Callable[[Expression, NDArray[np.float64], ArgumentRange], NDArray[np.float64] | None]


@dataclass(frozen=True, eq=False, kw_only=True)
class AtomDefinition:
    """All that is known about an atom.  Making the object registers it."""

    name: str  # as users know it: that of CVXPY's function where there is one
    # What the calculus proves about it, in one sentence or formula, and where that comes from.
    statement: str = ""
    source: str = "elementary calculus"
    # When it is affine: "linear" if all arguments are; "bilinear" if also at most one mentions variables; "quotient" if also the
    # divisor mentions none; "curved" never.
    affine: str = "curved"
    # value(xp, expression, *args), xp being NumPy or like it; the records are one more axis at the end, of length 1 where shared.
    # NumPy's arrays may be complex, which carries derivatives along: no absolute values, and signs of real parts only.
    value: Callable[..., Any]
    # shape(*shapes, **options) of the arguments raises ValueError if they do not fit.
    shape: Callable[..., Shape] = same
    # For each class in cvxpy.atoms, by its full name, what reads a node and its arguments, read already; a name alone: this atom.
    from_cvxpy: str | Mapping[str, Callable[[Any, list[Expression]], Expression]] = field(default_factory=dict)
    # to_cvxpy(cp, expression, args) returns the CVXPY expression: its conic form.
    to_cvxpy: Callable[[Any, Expression, list[Any]], Any] | None = lambda cp, e, a: getattr(cp, e.operation.name)(*a)
    # vjp(expression, value, slope, *args) returns the slopes by the arguments (None if one does not vary), records last;
    # a subgradient at nonsmooth points, never NaN where the atom is finite.
    vjp: Callable[..., Sequence[Any]]
    vjp_reads_value: bool = True  # Else no value is computed where slopes alone are asked for
    # What it asks of each argument: None, "not negative", "positive", "semidefinite" or "symmetric".
    domain: Callable[[Expression], tuple[str | None, ...]] = lambda e: (None,) * len(e.args)
    # 1 if nowhere negative, -1 if nowhere positive, 0 if unknown, from the signs of the arguments.
    sign: Callable[[Expression, Sequence[int]], int] = lambda expression, signs: 0
    # 1 if convex on its domain, -1 if concave; affine atoms are not asked.
    curvature: Callable[[Expression], int] = lambda expression: 1
    # 1 if non-decreasing in argument k, -1 if non-increasing, 0 if unknown.
    monotonicity: Callable[[Expression, int, Sequence[int]], int] = lambda expression, k, signs: 0
    # to_string(expression, write) returns its text and how tightly that binds; write(argument, level) writes an argument.
    to_string: Callable[[Expression, Callable[[Expression, int], str]], tuple[str, int]] | None = None
    # expand(expander, expression) returns a `Polynomial`, or None where the atom makes none of polynomials.
    expand: Callable[..., Any] | None = None
    # Range, gradient and curvature: bounds(expression, arguments) maps a list of `AbstractValue`, one an argument, to the result.
    bounds: Callable[..., Any]
    hessian_lower_bound: LeastCurvature | None = None  # of a term of a regularizer
    # smoothed(expression, args, width) is an expression without the nonsmooth point.
    smoothed: Callable[..., Any] | None = None

    entrywise: bool = False  # applied entry by entry, to arguments of one shape
    # Nonsmooth points that no condition avoids: "polyhedral" of a piecewise linear atom, "spectral" of one of eigenvalues.
    kinks: str = ""
    # steep(expression) is whether slopes grow without bound towards an end of the domain.
    steep: Callable[[Expression], bool] = lambda expression: False
    # A text and a function of CVXPY and a variable with three entries: what the documentation's table of rules shows.
    example: tuple[str, Callable[[Any, Any], Any]] | None = None

    def __post_init__(self) -> None:
        ATOMS[self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return known_atom, (self.name,)

    def __call__(self, *args: Any, **options: Hashable) -> Expression:
        """Return the atom of arguments; of constants, the constant that it is."""
        arguments = [constant(argument) for argument in args]
        shape = tuple(int(n) for n in self.shape(*(argument.shape for argument in arguments), **options))
        made = node(self, arguments, tuple(sorted(options.items())), shape)
        # A repeated number stays one: rules look for single factors.
        return made if not made.is_constant or self.name == "broadcast" else constant(made.number)

    def keeps_affine(self, args: Sequence[Expression]) -> bool:
        if self.affine == "bilinear":
            return sum(bool(argument.variables) for argument in args) <= 1
        return self.affine == "linear" or (self.affine == "quotient" and not args[1].variables)
