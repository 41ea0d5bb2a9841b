"""Atoms that CVXPY lacks: users' functions with declared constants (`Atom`), and the exact `log_normcdf`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array

LARGEST = 1e100  # Declared numbers are at most this large, so that their products are finite
# Relative length of the intervals for difference quotients: these mean slopes obey the bounds on slope and curvature.
STRETCH = 2.0**-20
# Accuracy of slopes between nodes, as a fraction of the steepest slope. Difference quotients are ten times as accurate.
ACCURACY = 1e-9
# The quadratic pieces may differ from the function by this fraction of the steepest slope; otherwise a constant is false.
MISSED = 1e-6
# The function must be finite on [-FINITE, FINITE]. Nodes end at 10**END, within the range of single precision.
FINITE, END = 1e9, 30
MOST_NODES = 1 << 17
ROUNDS = 60
REMEDY = (
    "declare constants that hold on the whole real line, of a convex, continuously differentiable function; "
    "write it so that it neither overflows nor leaves its domain (numpy.logaddexp, numpy.where)"
)


@dataclass(frozen=True, eq=False)
class PiecewiseQuadratic:
    """A convex piecewise quadratic function: its derivative is linear between nodes and constant outside."""

    nodes: Array  # shape (k,): increasing
    values: Array  # shape (k,): at the nodes
    slopes: Array
    bends: Array  # shape (k - 1,): curvature between neighbouring nodes

    @cached_property
    def _pieces(self) -> tuple[Array, Array, Array, Array]:
        """Return anchor, value, slope and curvature of each piece, from the left tail to the right tail; shapes (k + 1,)."""
        anchor, value, slope = (np.append(part[:1], part) for part in (self.nodes, self.values, self.slopes))
        return anchor, value, slope, np.concatenate([[0.0], self.bends, [0.0]])

    def evaluate(self, m: Any, order: int = 0) -> Any:
        """Evaluate the function (order 0) or a derivative (1 or 2); imaginary parts of `m` carry the next derivative."""
        place = np.searchsorted(self.nodes, np.real(m), side="right")
        anchor, value, slope, bend = (part[place] for part in self._pieces)
        d = m - anchor
        return (value + d * (slope + bend * d / 2), slope + bend * d, bend)[order]


@dataclass(frozen=True, eq=False)
class Atom:
    """Declare a convex function of one real variable, with its constants.

    Call it on a CVXPY expression inside a loss; it applies to each entry.

    Parameters
    ----------
    name : str
        Name in certificates and errors.
    function : callable
        A function of one scalar, convex and continuously differentiable on the real line, written with arithmetic and NumPy's
        functions.
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
        try:
            lowest, highest, curvature, lower = map(float, (*self.slope, self.curvature, self.lower))
        except (TypeError, ValueError, OverflowError) as error:
            raise TemplateError(
                f"Atom {self.name!r}: slope must be two numbers, curvature and lower one number each."
            ) from error
        for fits, what, value in (
            (-LARGEST <= lowest <= highest <= LARGEST, "slope must be two finite numbers, the lower first", self.slope),
            (0 <= curvature <= LARGEST, "curvature must be finite and not negative", curvature),
            (lower == -np.inf or abs(lower) <= LARGEST, "lower must be finite, or -inf for no lower bound", lower),
        ):
            if not fits:
                raise TemplateError(f"Atom {self.name!r}: {what}, not {value!r}.")
        # The given list may change later: store a tuple.
        self.__dict__.update(slope=(lowest, highest), curvature=curvature, lower=lower)

    def __call__(self, expression: Any) -> "DeclaredAtom":
        return DeclaredAtom(cp.Expression.cast_to_const(expression), self)

    def __reduce__(self) -> tuple[Any, ...]:
        return received, (self.running, self.name, self.slope, self.curvature, self.lower)

    def evaluate(self, value: Any, order: int = 0) -> Any:
        """Evaluate the quadratic pieces that fits use instead of the function, or their first or second derivative, entrywise."""
        return self.running.evaluate(value, order)

    def attack(self) -> dict[str, float]:
        """Compare the declared constants with the function at points of size 1e-6 to 1e30, denser where its slope changes.

        Returns
        -------
        dict of str to float
            Ratio of observed to declared constants, for the slope and the curvature; at most 1.

        Raises
        ------
        NotPrivate
            If the function violates a constant, or is not convex, finite and continuously differentiable.
        """
        found, steepest = self.running, max(map(abs, self.slope))
        slope, bend = float(np.abs(found.slopes).max()), float(found.bends.max(initial=0.0))
        return {
            "slope, observed/declared": slope / steepest if steepest else 1.0,
            "curvature, observed/declared": bend / self.curvature if self.curvature else 1.0,
        }

    @cached_property
    def running(self) -> PiecewiseQuadratic:
        """Return the quadratic pieces that fits use; they obey the declared constants. Raise if the sampled function does not."""
        return quadratic_pieces(self)

    def _sample(self, points: Array) -> Array:
        try:
            with np.errstate(all="ignore"):
                found, few = self.function(points), self.function(points[::7])
            said = f"it returned a {type(found).__name__}"
        except Exception as error:  # whatever the user's function raises
            found, few, said = None, None, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        fits = isinstance(found, np.ndarray) and np.isrealobj(found) and found.shape == points.shape
        # A function of one scalar gives the same values on every seventh point.
        fits = fits and np.array_equal(found[::7], few, equal_nan=True)
        remedy = (
            "must be of one scalar, and apply to each number of an array by itself; write it with NumPy's functions"
        )
        require(fits, f"Atom {self.name!r}: function {remedy} ({said}).")
        return np.asarray(found, dtype=float)

    def _refuse(self, broken: bool | np.bool_, what: str) -> None:
        if broken:
            raise NotPrivate(f"the declared atom {self.name!r} {what}", self.name, REMEDY)


def received(running: PiecewiseQuadratic, name: str, *constants: Any) -> Atom:
    """Rebuild an unpickled atom from its quadratic pieces, without the user's function."""
    found = Atom(name, running.evaluate, *constants)
    vars(found)["running"] = running
    return found


def quadratic_pieces(atom: Atom) -> PiecewiseQuadratic:
    slope, curvature, lower = atom.slope, atom.curvature, atom.lower
    steepest = max(map(abs, slope))
    unit = steepest / curvature if steepest and curvature else 1.0
    room = MISSED * steepest
    nodes, values, slopes = sample_nodes(atom, unit, steepest)
    seen = float(slopes.min()), float(slopes.max())
    outside = seen[0] < slope[0] - ACCURACY * steepest or seen[1] > slope[1] + ACCURACY * steepest
    atom._refuse(outside, f"has slopes in [{seen[0]:.6g}, {seen[1]:.6g}], outside the declared {list(slope)}")
    rising = np.clip(np.maximum.accumulate(slopes), *slope)
    atom._refuse((rising - slopes).max() > room, "is not convex: its derivative decreases somewhere")
    widths = np.diff(nodes)
    steepening = float((np.diff(rising) / widths).max(initial=0.0))
    bounded_below = bool(np.isfinite(lower))
    if bounded_below:  # the outermost slopes must enclose 0
        below = values.min() < lower - ACCURACY * (abs(lower) + steepest * unit) or not slope[0] <= 0 <= slope[1]
        atom._refuse(below, f"takes the value {values.min():.6g}, below the declared lower bound {lower:.6g}")
        rising[0], rising[-1] = min(rising[0], 0.0), max(rising[-1], 0.0)
    bound = rising.copy()
    for k, width in enumerate(widths):
        bound[k + 1] = min(bound[k + 1], bound[k] + curvature * width)
    kinked = (rising - bound).max() > room or (bounded_below and bound[-1] < 0)
    atom._refuse(kinked, f"has curvature {steepening:.6g}, above the declared {curvature:.6g}, or a kink")
    # Values are the integral of the slopes, from the node nearest to 0.
    steps, origin = widths * (bound[:-1] + bound[1:]) / 2, int(np.argmin(np.abs(nodes)))
    sums = np.concatenate([-np.cumsum(steps[:origin][::-1])[::-1], [0.0], np.cumsum(steps[origin:])])
    bends = np.minimum(np.diff(bound) / widths, curvature)
    found = PiecewiseQuadratic(nodes, atom._sample(nodes[[origin]]) + sums, bound, bends)
    size = steepest * (np.abs(nodes) + unit) + np.abs(values)
    jumps = (np.abs(found.evaluate(nodes) - values) > MISSED * size + room * unit).any()
    atom._refuse(jumps, "jumps: its values are not the integral of its slopes")
    if bounded_below:  # rounding may put the minimum below the bound
        falling = (bound[:-1] < 0) & (bound[1:] > 0)
        depth = found.values[:-1][falling] - bound[:-1][falling] ** 2 / (2 * found.bends[falling])
        short = max(0.0, lower - float(np.min(np.append(depth, found.values.min()))))
        found = replace(found, values=found.values + short)
    return found


def sample_nodes(atom: Atom, unit: float, steepest: float) -> tuple[Array, Array, Array]:
    """Return nodes, values and slopes: nodes on all scales and at random, with midpoints added until the slope is linear."""
    outer = np.concatenate([np.logspace(-6, END, 8 * END), 10.0 ** np.random.default_rng(0).uniform(-6, 9, 2048)])
    inner = np.concatenate([unit * np.linspace(0, 64, 1025), np.linspace(0, 1e3, 2001)])
    right = np.unique(np.concatenate([inner, outer]))
    right = right[np.diff(right, prepend=0.0) > ACCURACY * (unit + right)]  # drop close nodes
    nodes = np.concatenate([-right[::-1], [0.0], right])
    values, slopes = sample_slopes(atom, nodes, unit)
    # Functions may overflow far out, where the quadratic pieces are affine.
    kept = np.isfinite(values) & np.isfinite(slopes)
    nodes, values, slopes = nodes[kept], values[kept], slopes[kept]
    for _ in range(ROUNDS):
        middle = nodes[:-1] + np.diff(nodes) / 2
        value, slope = sample_slopes(atom, middle, unit)
        line = (slopes[:-1] + slopes[1:]) / 2
        curved = np.isfinite(value) & (np.abs(slope - line) > ACCURACY * steepest)
        curved &= (nodes[:-1] < middle) & (middle < nodes[1:])
        if not curved.any() or len(nodes) + curved.sum() > MOST_NODES:
            break
        place = np.flatnonzero(curved) + 1
        pairs = (nodes, middle), (values, value), (slopes, slope)
        nodes, values, slopes = (np.insert(whole, place, more[curved]) for whole, more in pairs)
    return nodes, values, slopes


def sample_slopes(atom: Atom, nodes: Array, unit: float) -> tuple[Array, Array]:
    """Return values and mean slopes at the nodes. Raise if one is not finite on [-FINITE, FINITE]."""
    step = STRETCH * (unit + np.abs(nodes))
    values, below, above = np.split(atom._sample(np.concatenate([nodes, nodes - step, nodes + step])), 3)
    with np.errstate(all="ignore"):
        slopes = (above - below) / ((nodes + step) - (nodes - step))
    infinite = ~(np.isfinite(values) & np.isfinite(slopes))[np.abs(nodes) <= FINITE]
    atom._refuse(infinite.any(), "is not finite, with a finite derivative, on the whole real line")
    return values, slopes


class DeclaredAtom(Elementwise):
    """A CVXPY atom that applies an `Atom` entry by entry.  It has no conic form: solve with the first-order backend."""

    def __init__(self, x: Any, declaration: Atom) -> None:
        self.declaration = declaration
        super().__init__(x)

    def numeric(self, values: list[Any]) -> Array:
        return np.asarray(self.declaration.evaluate(np.asarray(values[0], dtype=float)))

    def get_data(self) -> list[Any]:
        return [self.declaration]

    def name(self) -> str:
        return f"{self.declaration.name}({self.args[0].name()})"

    def sign_from_args(self) -> tuple[bool, bool]:
        return (self.declaration.lower >= 0, False)

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        return False

    def is_incr(self, idx: int) -> bool:
        return self.declaration.slope[0] >= 0

    def is_decr(self, idx: int) -> bool:
        return self.declaration.slope[1] <= 0

    def _grad(self, values: list[Any]) -> list[Any]:
        raise NotImplementedError


CURVE: Any = SimpleNamespace(name="-log_normcdf", slope=(-np.inf, 0.0), lower=0.0, evaluate=lambda m: -log_ndtr(m))


class NegLogNormcdf(DeclaredAtom):
    """Minus the logarithm of the standard normal distribution function, entry by entry."""


def log_normcdf(expr: cp.Expression | ArrayLike) -> cp.Expression:
    """Return the exact logarithm of the standard normal distribution function, entry by entry, for probit models.

    `cvxpy.log_normcdf` is an approximation by quadratic pieces; its error is small between -4 and 4, and unbounded outside.
    This function is concave and has no conic form.  Slopes grow without bound to the left: mechanisms that need a gradient bound
    need constraints that bound the argument from below.

    Parameters
    ----------
    expr : cvxpy.Expression or array_like

    Returns
    -------
    cvxpy.Expression
        Of the same shape.

    Examples
    --------
    >>> log_normcdf([0.0, -10.0]).value.round(4)
    array([ -0.6931, -53.2313])
    """
    return -NegLogNormcdf(cp.Expression.cast_to_const(expr), CURVE)
