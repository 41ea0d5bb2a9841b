"""A user's own atom: a function with declared constants, attacked before it is believed.

The calculus derives constants for atoms that it knows.  For a function of one variable that it does not know, the user may
declare them; `verify` then tries to break the declaration, refuses if it can, and the certificate says that the constants are
declared and not derived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise
from numpy.typing import NDArray

from dpconvex.errors import NotPrivate, TemplateError

__all__ = ["Atom", "DeclaredAtom"]

Array = NDArray[np.float64]

# The attack evaluates this many points on every scale, and refines around the worst of them this many times.
POINTS = 4001
SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3, 1e6)
REFINEMENTS = 6
# Below this spacing, relative to the point, differences of slopes are rounding.
FINEST = 1e-8
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Atom:
    """A convex function of one real variable, with declared constants.

    Calling it on a CVXPY expression returns an expression, entry by entry, for use in a loss.

    Parameters
    ----------
    name : str
        What certificates and errors call it.
    function : callable
        A JAX function of one scalar, convex and continuously differentiable on the real line.
    slope : tuple of float
        Declared bounds of the derivative, (lowest, highest).
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
    >>> softplus = Atom("softplus", lambda m: __import__("jax").numpy.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25)
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
        try:
            lowest, highest = (float(end) for end in self.slope)
            curvature, lower = float(self.curvature), float(self.lower)
        except (TypeError, ValueError) as error:
            raise TemplateError(
                f"Atom {self.name!r}: slope must be two numbers, curvature and lower one each ({error})."
            ) from error
        if not np.isfinite((lowest, highest)).all() or lowest > highest:
            raise TemplateError(f"Atom {self.name!r}: slope must be two finite numbers, the lower first.")
        if not (np.isfinite(curvature) and curvature >= 0) or np.isnan(lower):
            raise TemplateError(
                f"Atom {self.name!r}: curvature must be finite and not negative, and lower must be a number."
            )

    def __call__(self, expression: Any) -> DeclaredAtom:
        """Return the function of an expression, entry by entry."""
        return DeclaredAtom(cp.Expression.cast_to_const(expression), self)

    def apply(self, value: Any) -> Any:
        """Apply the function entry by entry to a JAX array (or a tracer), of any shape."""
        import jax

        return jax.vmap(self.function)(value.reshape(-1)).reshape(value.shape)

    def evaluate(self, value: Array, order: int = 0) -> Array:
        """Evaluate the function, or its first or second derivative, entry by entry in double precision."""
        flat = np.asarray(value, dtype=float).reshape(-1)
        return self._compiled(flat)[order].reshape(np.shape(value))

    @cached_property
    def _compiled(self) -> Callable[[Array], tuple[Array, Array, Array]]:
        """The function with its first and second derivative, compiled once for each number of points."""
        import jax

        slope = jax.grad(self.function)
        triple = jax.jit(jax.vmap(lambda m: (self.function(m), slope(m), jax.grad(slope)(m))))

        def evaluate(points: Array) -> tuple[Array, Array, Array]:
            try:
                with jax.enable_x64(True):
                    value, first, second = (np.asarray(part, dtype=float) for part in triple(points))
            except (TypeError, ValueError, jax.errors.JAXTypeError) as error:
                raise TemplateError(
                    f"Atom {self.name!r}: function must be a JAX function of one scalar that returns one scalar, written with "
                    f"jax.numpy ({str(error).splitlines()[0]})."
                ) from error
            return value, first, second

        return evaluate

    def attack(self) -> dict[str, float]:
        """Try to break the declared constants.

        Points on several scales are tried, then neighbourhoods of the worst ones, ever finer.

        Returns
        -------
        dict of str to float
            Observed over declared, for the slope and the curvature; at most 1.

        Raises
        ------
        NotPrivate
            If a constant is broken, or the function is not convex, finite and continuously differentiable.
        """
        worst = {"highest slope": -np.inf, "lowest slope": np.inf, "curvature": 0.0, "least curvature": np.inf}
        least = np.inf
        for scale in SCALES:
            grid = scale * np.linspace(-1.0, 1.0, POINTS)
            for _ in range(REFINEMENTS):
                values, slopes, bends = self._compiled(grid)
                if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
                    self._refuse(
                        "is not finite, with a finite derivative, on the whole real line",
                        "write it so that it neither overflows nor leaves its domain (jax.numpy.logaddexp, jax.numpy.where)",
                    )
                if np.isnan(bends).any():
                    self._refuse(
                        "has an undefined second derivative", "write it so that jax.grad of jax.grad is a number"
                    )
                gaps = np.diff(slopes) / np.diff(grid)
                least = min(least, float(values.min()))
                worst["highest slope"] = max(worst["highest slope"], float(slopes.max()))
                worst["lowest slope"] = min(worst["lowest slope"], float(slopes.min()))
                worst["curvature"] = max(worst["curvature"], float(bends.max()), float(gaps.max()))
                worst["least curvature"] = min(worst["least curvature"], float(bends.min()), float(gaps.min()))
                centre, width = grid[int(np.argmax(gaps))], 4 * (grid[1] - grid[0])
                if width / POINTS < FINEST * max(1.0, abs(centre)):
                    break
                grid = centre + width * np.linspace(-1.0, 1.0, POINTS)
        room = TOLERANCE * (1.0 + max(abs(self.slope[0]), abs(self.slope[1])))
        bend_room = 1e-6 * (1.0 + self.curvature)
        if worst["highest slope"] > self.slope[1] + room or worst["lowest slope"] < self.slope[0] - room:
            seen = f"[{worst['lowest slope']:.6g}, {worst['highest slope']:.6g}]"
            self._refuse(
                f"has slopes in {seen}, outside the declared {list(self.slope)}",
                "declare slopes that hold on the whole real line: at least those",
            )
        if worst["curvature"] > self.curvature + bend_room:
            self._refuse(
                f"has curvature {worst['curvature']:.6g}, above the declared {self.curvature:.6g}, or a kink",
                "declare a curvature that holds on the whole real line, or smooth the kink",
            )
        if worst["least curvature"] < -bend_room:
            self._refuse(
                "is not convex: its derivative decreases somewhere",
                "declare a convex function; no other is minimised here",
            )
        if least < self.lower - room:
            self._refuse(
                f"takes the value {least:.6g}, below the declared lower bound {self.lower:.6g}",
                "declare a lower bound that holds on the whole real line, or none",
            )
        steepest = max(abs(worst["highest slope"]), abs(worst["lowest slope"]))
        declared = max(abs(self.slope[0]), abs(self.slope[1]))
        return {
            "slope, observed/declared": steepest / declared if declared else 1.0,
            "curvature, observed/declared": worst["curvature"] / self.curvature if self.curvature else 1.0,
        }

    def _refuse(self, what: str, remedy: str) -> None:
        raise NotPrivate(f"the declared atom {self.name!r} {what}", self.name, remedy)


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
        """Whether the atom is convex; declared, and attacked."""
        return True

    def is_atom_concave(self) -> bool:
        """Whether the atom is concave."""
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
