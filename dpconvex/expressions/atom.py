"""Definitions of atoms: `AtomDefinition` holds all that proofs and programs need. None marks an operation without a rule."""

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
    import_module("dpconvex.expressions.atoms")  # a process that only unpickles has not registered the atoms
    return ATOMS[name]


def same(*shapes: Shape, **options: Any) -> Shape:
    if len(set(shapes)) != 1:
        raise ValueError(f"shapes differ: {shapes}")
    return shapes[0]


def always(value: Any) -> Callable[..., Any]:
    return lambda *asked: value


class ArgumentRange(NamedTuple):
    """Bounds on the argument of an atom over K: on each entry, in column order, and on the Euclidean norm."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    norm: float


class LeastCurvature(NamedTuple):
    """A lower bound on the Hessian of an atom in its first, affine argument; `statement` says it in words.

    ``bend(expression, weights, reach)`` returns h, one number per entry of the argument in column order, or None for no bound.
    The sum of `weights` (negative for concave atoms) times the entries of the atom has a Hessian of at least diag(h).
    """

    name: str
    statement: str
    bend: Callable[[Expression, NDArray[np.float64], ArgumentRange], NDArray[np.float64] | None]


@dataclass(frozen=True, eq=False, kw_only=True)
class AtomDefinition:
    """Definition of an atom: values, derivatives, domain, bounds and CVXPY form. Creating it registers it in `ATOMS`."""

    name: str  # the name of CVXPY's function, if there is one
    # The facts that `bounds` relies on, in one sentence or formula, and their source.
    statement: str = ""
    source: str = "elementary calculus"
    # When the atom is affine. "linear": if all arguments are affine; "bilinear": if also at most one contains variables;
    # "quotient": if also the divisor contains no variables; "curved": never.
    affine: str = "curved"
    # value(expression, *args); a last axis holds the records, of length 1 for shared values.
    # Arrays may be complex with derivatives as imaginary parts: use no absolute values, and signs of real parts only.
    value: Callable[..., Any]
    # shape(*shapes, **options) returns the shape for arguments of these shapes, or raises ValueError if they do not fit.
    shape: Callable[..., Shape] = same
    # Full name of a class in cvxpy.atoms -> function of a node and its converted arguments. A name alone: apply this atom.
    from_cvxpy: str | Mapping[str, Callable[[Any, list[Expression]], Expression]] = field(default_factory=dict)
    # to_cvxpy(cp, expression, args) returns the CVXPY expression: its conic form.
    to_cvxpy: Callable[[Any, Expression, list[Any]], Any] | None = lambda cp, e, a: getattr(cp, e.operation.name)(*a)
    # vjp(expression, value, slope, *args) returns the gradient in each argument (None for constant ones), records last;
    # a subgradient at nonsmooth points, never NaN where the atom is finite.
    vjp: Callable[..., Sequence[Any]]
    vjp_reads_value: bool = True  # if False, the value is not computed where only gradients are needed
    # Required domain of each argument: None, "not negative", "positive", "semidefinite" or "symmetric".
    domain: Callable[[Expression], tuple[str | None, ...]] = lambda e: (None,) * len(e.args)
    # From the signs of the arguments: 1 if nonnegative, -1 if nonpositive, 0 if unknown.
    sign: Callable[[Expression, Sequence[int]], int] = lambda expression, signs: 0
    # 1 if convex on the domain, -1 if concave; not used for affine atoms.
    curvature: Callable[[Expression], int] = lambda expression: 1
    # 1 if non-decreasing in argument k, -1 if non-increasing, 0 if unknown.
    monotonicity: Callable[[Expression, int, Sequence[int]], int] = lambda expression, k, signs: 0
    # to_string(expression, write) returns the text and its binding strength; write(argument, level) writes an argument.
    to_string: Callable[[Expression, Callable[[Expression, int], str]], tuple[str, int]] | None = None
    # expand(expander, expression) returns a `Polynomial`, or None if the result is not a polynomial.
    expand: Callable[..., Any] | None = None
    # bounds(expression, arguments) returns an `AbstractValue` for each entry; arguments[k] lists them for argument k.
    bounds: Callable[..., Any]
    hessian_lower_bound: LeastCurvature | None = None  # for terms of a regularizer
    # smoothed(expression, args, width) returns an expression without nonsmooth points, or None if there is no rule.
    smoothed: Callable[..., Any] | None = None

    entrywise: bool = False  # applied entry by entry, to arguments of one shape
    # Nonsmooth points that no condition excludes: "polyhedral" (piecewise linear) or "spectral" (functions of eigenvalues).
    kinks: str = ""
    # steep(expression) returns whether slopes grow without bound towards an end of the domain.
    steep: Callable[[Expression], bool] = lambda expression: False
    # For the documentation's table of rules: a text, and a function(cp, w) of a variable w with three entries.
    example: tuple[str, Callable[[Any, Any], Any]] | None = None

    def __post_init__(self) -> None:
        ATOMS[self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return known_atom, (self.name,)

    def __call__(self, *args: Any, **options: Hashable) -> Expression:
        """Apply the atom to arguments; constant arguments give a `Constant`, except for broadcast."""
        arguments = [constant(argument) for argument in args]
        shape = tuple(int(n) for n in self.shape(*(argument.shape for argument in arguments), **options))
        made = node(self, arguments, tuple(sorted(options.items())), shape)
        # A broadcast number stays a broadcast: rules look for scalar factors.
        return made if not made.is_constant or self.name == "broadcast" else constant(made.number)

    def keeps_affine(self, args: Sequence[Expression]) -> bool:
        if self.affine == "bilinear":
            return sum(bool(argument.variables) for argument in args) <= 1
        return self.affine == "linear" or (self.affine == "quotient" and not args[1].variables)
