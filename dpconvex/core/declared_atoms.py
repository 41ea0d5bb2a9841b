"""A user's own atom: a function with declared constants, which what runs has by construction.

The calculus derives constants for atoms that it knows.  For a function of one variable that it does not know, the user may
declare them.  No search can prove such a claim, so the user's function is not what runs: its slopes are read off, by
differences, at some thousand points, and what runs is the function with straight lines between them (see `interpolation`).
Its constants are the declared ones, or it is refused; the certificate says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise
from numpy.typing import NDArray

from dpconvex.core.arguments import is_real
from dpconvex.core.double_precision import double_precision
from dpconvex.core.interpolation import Broken, PiecewiseQuadratic, built
from dpconvex.errors import NotPrivate, TemplateError

Array = NDArray[np.float64]

# Declared numbers are at most this large, so that their products are finite.
LARGEST = 1e100


@dataclass(frozen=True, eq=False)
class Atom:
    """A convex function of one real variable, with declared constants.

    Calling it on a CVXPY expression returns an expression, entry by entry, for use in a loss.

    Parameters
    ----------
    name : str
        What certificates and errors call it.
    function : callable
        A function of one scalar, convex and continuously differentiable on the real line, written with arithmetic and NumPy's
        functions, or with those of `jax.numpy`, where JAX is installed.
    slope : tuple of float
        Declared bounds of the derivative, (lowest, highest); kept as a tuple.
    curvature : float
        Declared bound on the second derivative, where it exists.
    lower : float
        Declared lower bound of the function's values; minus infinity if there is none.

    Raises
    ------
    TemplateError
        If a constant is not a number, or the bounds are the wrong way round.

    Examples
    --------
    >>> softplus = Atom("softplus", lambda m: np.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25)
    >>> w = cp.Variable(name="w")
    >>> softplus(2 * w).is_convex()
    True
    """

    name: str
    function: Callable[[Any], Any] = field(repr=False)
    slope: tuple[float, float]
    curvature: float
    lower: float = -np.inf

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TemplateError(f"Atom {self.name!r}: function must be callable.")
        given = self.slope
        slope = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        numbers = (*slope, self.curvature, self.lower)
        if len(slope) != 2 or not all(is_real(number) for number in numbers):
            raise TemplateError(f"Atom {self.name!r}: slope must be two numbers, curvature and lower one each.")
        lowest, highest, curvature, lower = (float(number) for number in numbers)
        for fits, what, value in (
            (-LARGEST <= lowest <= highest <= LARGEST, "slope must be two finite numbers, the lower first", given),
            (0 <= curvature <= LARGEST, "curvature must be finite and not negative", self.curvature),
            (lower == -np.inf or abs(lower) <= LARGEST, "lower must be finite, or -inf for no lower bound", self.lower),
        ):
            if not fits:
                raise TemplateError(f"Atom {self.name!r}: {what}, not {value!r}.")
        for name, value in (("slope", (lowest, highest)), ("curvature", curvature), ("lower", lower)):
            object.__setattr__(self, name, value)  # whatever was given may change later

    def __call__(self, expression: Any) -> DeclaredAtom:
        """Return the function of an expression, entry by entry."""
        return DeclaredAtom(cp.Expression.cast_to_const(expression), self)

    def apply(self, value: Any) -> Any:
        """Apply the function that runs entry by entry to a JAX array (or a tracer), of any shape."""
        import jax.numpy as jnp

        return self.running.evaluate(value, 0, jnp)

    def evaluate(self, value: Array, order: int = 0) -> Array:
        """Evaluate the function that runs, or its first or second derivative, entry by entry in double precision."""
        return np.asarray(self.running.evaluate(np.asarray(value, dtype=float), order))

    def __reduce__(self) -> tuple[Any, ...]:
        return received, (self.name, self.slope, self.curvature, self.lower, self.running)

    def _sample(self, points: Array) -> Array:
        """The user's function: in NumPy if it is written so, else by JAX."""
        with np.errstate(all="ignore"):
            try:
                found, few = self.function(points), self.function(points[::7])
            except Exception:  # JAX may know what to do; if not, its error is the one to show
                found = few = None
        fits = isinstance(found, np.ndarray) and np.isrealobj(found) and found.shape == points.shape
        if fits and np.array_equal(found[::7], few, equal_nan=True):  # what mixes points is no function of one scalar
            return np.asarray(found, dtype=float)
        try:
            import jax

            with double_precision():
                return np.asarray(jax.vmap(self.function)(points), dtype=float).reshape(points.shape)
        except Exception as error:  # whatever the user's function, or JAX on tracing it, raises
            said = next(iter(str(error).splitlines()), "")
            raise TemplateError(
                f"Atom {self.name!r}: function must be a NumPy or JAX function of one scalar that returns one scalar, written "
                f"with numpy, or with jax.numpy where JAX is installed ({type(error).__name__}: {said})."
            ) from error

    @cached_property
    def running(self) -> PiecewiseQuadratic:
        """The function that runs: built once, it has the declared constants whatever the user's function does.

        Raises
        ------
        NotPrivate
            If the user's function visibly does not have them.
        """
        return self._built[0]

    def attack(self) -> dict[str, float]:
        """Compare the declared constants with the function, on points from 1e-6 to 1e300, and finer where its slope changes.

        Returns
        -------
        dict of str to float
            Observed over declared, for the slope and the curvature; at most 1.

        Raises
        ------
        NotPrivate
            If a constant is broken, or the function is not convex, finite and continuously differentiable.
        """
        return dict(self._built[1])

    @cached_property
    def _built(self) -> tuple[PiecewiseQuadratic, dict[str, float]]:
        try:
            return built(self._sample, self.slope, self.curvature, self.lower)
        except Broken as broken:
            what, remedy = broken.args
            raise NotPrivate(f"the declared atom {self.name!r} {what}", self.name, remedy) from broken


def received(
    name: str, slope: tuple[float, float], curvature: float, lower: float, running: PiecewiseQuadratic
) -> Atom:
    """Return an atom in another process: what runs, without the function that it was read off."""
    found = Atom(name, running.evaluate, slope, curvature, lower)
    vars(found)["running"] = running
    return found


class DeclaredAtom(Elementwise):
    """A CVXPY atom that applies an `Atom` entry by entry.  It has no conic form: solve with the first-order backend."""

    def __init__(self, x: Any, declaration: Atom) -> None:
        self.declaration = declaration
        super().__init__(x)

    def numeric(self, values: list[Any]) -> Array:
        """Evaluate the function."""
        return self.declaration.evaluate(np.asarray(values[0], dtype=float))

    def get_data(self) -> list[Any]:
        """Return what, besides its arguments, rebuilds the atom."""
        return [self.declaration]

    def name(self) -> str:
        """Return the text of the expression."""
        return f"{self.declaration.name}({self.args[0].name()})"

    def sign_from_args(self) -> tuple[bool, bool]:
        """Return whether the values are known to be (non-negative, non-positive)."""
        return (self.declaration.lower >= 0, False)

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        return False

    def is_incr(self, idx: int) -> bool:
        """Whether it is non-decreasing."""
        return self.declaration.slope[0] >= 0

    def is_decr(self, idx: int) -> bool:
        """Whether it is non-increasing."""
        return self.declaration.slope[1] <= 0

    def _grad(self, values: list[Any]) -> list[Any]:
        rows = self.args[0].size
        slopes = self.declaration.evaluate(np.asarray(values[0], dtype=float), 1)
        return [self.elemwise_grad_to_diag(slopes, rows, rows)]

    def _domain(self) -> list[Any]:
        return []
