"""The public domains of a record's fields: norm balls, boxes and finite choices."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.numerics import abs_ends, norm_up, root_up, times
from dpconvex.util.arguments import NOT_AN_ARRAY, check_fields, number, recast, refuse, require, whole
from dpconvex.util.arrays import Array, exact_array, frozen, squared_lengths

UNBOUNDED = "a record is unbounded, so one person can move the answer without limit"
SMALL = 1e-100  # Squares of numbers below this lose digits
# Squares of larger numbers may overflow. Vectors of more coordinates may not fit into memory several times.
LARGEST_RADIUS, LARGEST_DIMENSION = 1e150, 10**8
RADIUS = number(f"a positive number, at most {LARGEST_RADIUS:g}", lambda r: 0 < r <= LARGEST_RADIUS or r == np.inf)
NORM, DIMENSION = number("1, 2 or inf", lambda norm: norm in (1, 2, np.inf)), whole(1, LARGEST_DIMENSION)


@dataclass(frozen=True)
class Ball:
    """Declare a vector of fixed dimension in a norm ball around zero.

    Parameters
    ----------
    dim : int
        Number of coordinates.
    radius : float
        Public bound on the norm; positive, and finite: an unbounded record can move the answer without limit (`NotPrivate`).
    norm : {1, 2, inf, "inf"}
        The norm that is bounded.
    """

    dim: int
    radius: float = 1.0
    norm: float = 2
    slack: ClassVar[float] = 16 * float(np.finfo(float).eps)  # rounding error of `excess` for a record on the sphere

    def __post_init__(self) -> None:
        if str(self.norm) == "inf":  # the norm may be given as a text
            object.__setattr__(self, "norm", np.inf)
        check_fields(self, dim=DIMENSION, norm=NORM, radius=RADIUS)
        if self.radius == np.inf:
            raise NotPrivate(UNBOUNDED, self, "declare a finite public radius, and clip the records to it")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value of the field."""
        return (int(self.dim),)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, each of shape (dim,)."""
        upper = np.full(self.shape, float(self.radius))
        return -upper, upper

    @property
    def norm_bound(self) -> float:
        """Largest Euclidean norm of a value."""
        return times(float(self.radius), root_up(self.dim) if self.norm == np.inf else 1.0)[1]

    def project(self, values: Array) -> Array:
        """Scale each row of `values`, shape (n, dim), into the ball (in the infinity norm: clip its coordinates)."""
        if self.norm == np.inf:
            return np.clip(values, -self.radius, self.radius)
        # Divide each row by its largest entry first, so that norms of huge numbers do not overflow.
        values = np.ascontiguousarray(values)
        scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), self.radius)
        rows = values / scale
        norms = np.linalg.norm(rows, ord=self.norm, axis=1, keepdims=True)
        outside = norms > self.radius / scale
        return np.where(outside, rows * (self.radius / np.where(outside, norms, 1.0)), values)

    def excess(self, values: Array) -> Array:
        """Return the norm of each row over the radius, less 1, shape (n,). No bit of a row's excess depends on other rows."""
        rows = np.ascontiguousarray(values)
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite excess is intended
            if self.norm != 2 or self.radius <= SMALL:
                return np.linalg.norm(rows / self.radius, ord=self.norm, axis=1) - 1.0
            return np.asarray(np.sqrt(squared_lengths(rows)) / self.radius - 1.0)

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draw records, shape (size, dim): half of them on the sphere, some along axes and corners."""
        values = rng.normal(size=(size, self.dim))
        kind = rng.integers(0, 3, size=(size, 1))
        axis, place = np.zeros((size, self.dim)), rng.integers(0, self.dim, size=size)
        axis[np.arange(size), place] = rng.choice([-1.0, 1.0], size=size)
        values = np.select([kind == 1, kind == 2], [axis, np.sign(values) + (values == 0)], values)
        values = values / np.linalg.norm(values, ord=self.norm, axis=1, keepdims=True)
        return values * (self.radius * np.where(rng.random(size) < 0.5, 1.0, rng.random(size)))[:, None]


@dataclass(frozen=True, eq=False)
class Box:
    """Declare a scalar, vector or matrix between entrywise public bounds.

    Parameters
    ----------
    lower, upper : float or array_like
        Bounds of equal shape, finite, ``lower <= upper``.  Scalar bounds declare a scalar field.
    """

    lower: Any
    upper: Any
    slack: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        with recast("Box: bounds must be numbers or arrays of numbers", *NOT_AN_ARRAY, kind=TemplateError):
            lower, upper = np.asarray(self.lower, dtype=float), np.asarray(self.upper, dtype=float)
        fits = lower.shape == upper.shape
        require(fits, f"Box: bounds have shapes {lower.shape} and {upper.shape}; they must agree.")
        require(lower.size != 0, f"Box: bounds of shape {lower.shape} declare a field without coordinates.")
        require((lower <= upper).all(), "Box: every lower bound must be a number not above its upper bound.")
        if np.isinf(lower).any() or np.isinf(upper).any():
            remedy = "declare finite public bounds, and clip the records to them"
            raise NotPrivate(UNBOUNDED, f"Box({self.lower}, {self.upper})", remedy)
        self.__dict__.update(lower=frozen(lower), upper=frozen(upper))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value of the field."""
        return tuple(self.lower.shape)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, each of the field's shape."""
        return self.lower, self.upper

    @property
    def norm_bound(self) -> float:
        """Largest Euclidean norm of a value."""
        return norm_up(abs_ends(self.lower, self.upper)[1])

    def project(self, values: Array) -> Array:
        """Clip each value, shape (n, *shape), to the bounds."""
        return np.clip(values, self.lower, self.upper)

    def excess(self, values: Array) -> Array:
        """Return the excess of each value over its bounds, relative to the size of the bounds, shape (n,)."""
        with np.errstate(over="ignore"):  # an infinite excess is intended
            over = excess_of(np.maximum(self.lower - values, values - self.upper), self.lower, self.upper)
        return over.reshape(len(values), self.lower.size).max(axis=1)

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draw values, shape (size, *shape): half of the coordinates lie on a bound."""
        inner = rng.random((size, *self.shape))
        corner = rng.integers(0, 2, size=(size, *self.shape)).astype(float)
        unit = np.where(rng.random((size, *self.shape)) < 0.5, corner, inner)
        return self.project((1.0 - unit) * self.lower + unit * self.upper)


def excess_of(over: Array, lower: Array, upper: Array) -> Array:
    """Return the excess over bounds relative to the size of the bounds; positive for every positive excess, however small."""
    tiny = np.finfo(float).tiny
    found = over / np.maximum(abs_ends(lower, upper)[1], tiny)
    return np.where(over > 0, np.maximum(found, tiny), found)


@dataclass(frozen=True)
class Choice:
    """Declare a field with finitely many public values, such as a label.

    Parameters
    ----------
    values : sequence of hashable
        The declared values, distinct.  A value may occur in no record.  A record with another value is an error.
    """

    values: tuple[Hashable, ...]

    def __init__(self, values: Sequence[Hashable] | range) -> None:
        several = isinstance(values, Iterable) and not isinstance(values, str | bytes) and not sp.issparse(values)
        several = several and getattr(values, "ndim", 1) != 0
        require(several, f"Choice: declare the values as a list or a range, not {values!r}.")
        declared = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        require(declared, "Choice: declare at least one value.")
        lost = (value for value in declared if not isinstance(value, Hashable) or value != value)
        refuse(f"Choice: {value!r} cannot be recognised in data; declare strings or integers." for value in lost)
        distinct = len(set(declared)) == len(declared)
        require(distinct, f"Choice: the declared values {list(declared)!r} are not distinct.")
        object.__setattr__(self, "values", declared)

    @property
    def array(self) -> NDArray[Any]:
        """The values as an array, shape (values,); of dtype object if NumPy would convert numbers to texts."""
        return exact_array(self.values)


Domain = Ball | Box | Choice
