"""What is publicly known about one record.

A `Record` names its fields and gives each a public domain: a norm ball, a box or a finite choice.  Every constant of a
certificate is a supremum over these domains, so data are checked against them before anything else happens, and a
record outside its domain is an error (or is projected, on request), never an answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.errors import DomainError, NotPrivate, TemplateError
from dpconvex.language.columns import frozen, records_of
from dpconvex.language.validation import check_column, check_labels, held

__all__ = ["Ball", "Batch", "Box", "Choice", "Record"]

Array = NDArray[np.float64]

REAL = (int, float, np.integer, np.floating)
# Squares of numbers below this lose digits.
SMALL = 1e-100
# Nor do those of numbers beyond this overflow, or vectors of more coordinates fit into memory several at a time.
LARGEST_RADIUS, LARGEST_DIMENSION = 1e150, 10**8


@dataclass(frozen=True)
class Ball:
    """Vectors of a fixed dimension in a norm ball around zero.

    Parameters
    ----------
    dim : int
        Number of coordinates.
    radius : float
        Public bound on the norm; positive and finite.
    norm : {1, 2, inf}
        Which norm is bounded.

    Raises
    ------
    TemplateError
        If the dimension or the norm is not one of these.
    NotPrivate
        If the radius is not finite: an unbounded record can move the answer without limit.
    """

    dim: int
    radius: float = 1.0
    norm: float = 2

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not (isinstance(self.dim, int | np.integer) and self.dim > 0):
            raise TemplateError(f"Ball: dim must be a positive integer, not {self.dim!r}.")
        if not (isinstance(self.norm, REAL) and self.norm in (1, 2, np.inf)):
            raise TemplateError(f"Ball: norm must be 1, 2 or inf, not {self.norm!r}.")
        if not (isinstance(self.radius, REAL) and self.radius > 0):
            raise TemplateError(f"Ball: radius must be a positive number, not {self.radius!r}.")
        if self.radius > LARGEST_RADIUS and self.radius != np.inf:
            raise TemplateError(
                f"Ball: radius must be at most {LARGEST_RADIUS:g}, not {self.radius!r}; use another unit."
            )
        if self.dim > LARGEST_DIMENSION:
            raise TemplateError(f"Ball: dim must be at most {LARGEST_DIMENSION}, not {self.dim!r}.")
        if self.radius == np.inf:
            raise NotPrivate(
                "a record is unbounded, so one person can move the answer without limit",
                self,
                "declare a finite public radius, and clip the records to it",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value of the field."""
        return (int(self.dim),)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Coordinatewise lower and upper bounds, each of shape (dim,)."""
        upper = np.full(self.shape, float(self.radius))
        return -upper, upper

    @property
    def norm_bound(self) -> float:
        """Largest Euclidean norm of a value."""
        return float(self.radius) * (float(np.sqrt(self.dim)) if self.norm == np.inf else 1.0)

    @property
    def slack(self) -> float:
        """Excess that a record on the sphere can seem to have, because its norm is computed in floating point."""
        return 16 * float(np.finfo(float).eps)

    def project(self, values: Array) -> Array:
        """Scale each row of `values`, shape (n, dim), into the ball (in the infinity norm: clip its coordinates)."""
        if self.norm == np.inf:
            return np.clip(values, -self.radius, self.radius)
        # Divided by its largest entry first, a row of huge numbers keeps its direction: its norm does not overflow.
        values = np.ascontiguousarray(values)
        scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), self.radius)
        rows = values / scale
        norms = np.linalg.norm(rows, ord=self.norm, axis=1, keepdims=True)
        outside = norms > self.radius / scale
        return np.where(outside, rows * (self.radius / np.where(outside, norms, 1.0)), values)

    def excess(self, values: Array) -> Array:
        """By how much each row exceeds the ball, relative to the radius; shape (n,).

        What is said of a row depends on that row alone, to the last bit.
        """
        rows = np.ascontiguousarray(values)
        if self.norm != 2 or self.radius <= SMALL:
            return self._scaled_excess(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            excess = np.einsum("ij,ij->i", rows, rows)
        overflown = None if np.isfinite(excess.max(initial=0.0)) else ~np.isfinite(excess)
        np.sqrt(excess, out=excess)
        excess /= self.radius
        excess -= 1.0
        if overflown is not None:
            excess[overflown] = self._scaled_excess(rows[overflown])
        return np.asarray(excess)

    def _scaled_excess(self, rows: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite excess says what is meant
            return np.linalg.norm(rows / self.radius, ord=self.norm, axis=1) - 1.0

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draw records for tests, shape (size, dim): half of them on the sphere, some along axes and corners."""
        values = rng.normal(size=(size, self.dim))
        kind = rng.integers(0, 3, size=size)
        axis = np.eye(self.dim)[rng.integers(0, self.dim, size=size)] * rng.choice([-1.0, 1.0], size=(size, 1))
        values = np.where((kind == 1)[:, None], axis, values)
        values = np.where((kind == 2)[:, None], np.sign(values) + (values == 0), values)
        values = values / np.linalg.norm(values, ord=self.norm, axis=1, keepdims=True)
        length = np.where(rng.random(size) < 0.5, 1.0, rng.random(size))
        return values * (self.radius * length)[:, None]


@dataclass(frozen=True, eq=False)
class Box:
    """Scalars, vectors or matrices between coordinatewise public bounds.

    Parameters
    ----------
    lower, upper : float or array_like
        Bounds of equal shape, finite, ``lower <= upper``.  Scalar bounds declare a scalar field.

    Raises
    ------
    TemplateError
        If the shapes differ or a lower bound exceeds its upper bound.
    NotPrivate
        If a bound is infinite.
    """

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        try:
            lower, upper = np.array(self.lower, dtype=float), np.array(self.upper, dtype=float)
        except (TypeError, ValueError, OverflowError) as error:
            raise TemplateError(f"Box: bounds must be numbers or arrays of numbers ({error}).") from error
        if lower.shape != upper.shape:
            raise TemplateError(f"Box: bounds have shapes {lower.shape} and {upper.shape}; they must agree.")
        if lower.size == 0:
            raise TemplateError(f"Box: bounds of shape {lower.shape} declare a field without coordinates.")
        if np.isnan(lower).any() or np.isnan(upper).any() or (lower > upper).any():
            raise TemplateError("Box: every lower bound must be a number not above its upper bound.")
        if np.isinf(lower).any() or np.isinf(upper).any():
            raise NotPrivate(
                "a record is unbounded, so one person can move the answer without limit",
                f"Box({self.lower}, {self.upper})",
                "declare finite public bounds, and clip the records to them",
            )
        lower.setflags(write=False)
        upper.setflags(write=False)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value of the field."""
        return tuple(self.lower.shape)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Coordinatewise lower and upper bounds, each of the field's shape."""
        return self.lower, self.upper

    @property
    def norm_bound(self) -> float:
        """Largest Euclidean norm of a value."""
        return float(np.linalg.norm(np.maximum(np.abs(self.lower), np.abs(self.upper))))

    @property
    def slack(self) -> float:
        """Excess of a value that was clipped: none."""
        return 0.0

    def project(self, values: Array) -> Array:
        """Clip each value, shape (n, *shape), to the bounds."""
        return np.clip(values, self.lower, self.upper)

    def excess(self, values: Array) -> Array:
        """By how much each value exceeds a bound, relative to the size of the bounds; shape (n,)."""
        size = np.maximum(np.maximum(np.abs(self.lower), np.abs(self.upper)), np.finfo(float).tiny)
        with np.errstate(over="ignore"):  # an infinite excess says what is meant
            over = np.maximum(self.lower - values, values - self.upper) / size
        return over.reshape(len(values), self.lower.size).max(axis=1)

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draw values for tests, shape (size, *shape): half of the coordinates lie on a bound."""
        inner = rng.random((size, *self.shape))
        corner = rng.integers(0, 2, size=(size, *self.shape)).astype(float)
        unit = np.where(rng.random((size, *self.shape)) < 0.5, corner, inner)
        return self.project((1.0 - unit) * self.lower + unit * self.upper)


@dataclass(frozen=True)
class Choice:
    """A field with finitely many public values, such as a label.

    Parameters
    ----------
    values : sequence of hashable
        The declared values, distinct.  A value that no record has is fine; a record with another value is an error.
    """

    values: tuple[Hashable, ...]

    def __init__(self, values: Sequence[Hashable] | range) -> None:
        if (
            isinstance(values, str | bytes)
            or not isinstance(values, Iterable)
            or getattr(values, "ndim", 1) == 0
            or sp.issparse(values)
        ):
            raise TemplateError(f"Choice: declare the values as a list or a range, not {values!r}.")
        declared = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        if not declared:
            raise TemplateError("Choice: declare at least one value.")
        for value in declared:
            if not isinstance(value, Hashable) or value != value:
                raise TemplateError(f"Choice: {value!r} cannot be recognised in data; declare strings or integers.")
        if len(set(declared)) != len(declared):
            raise TemplateError(f"Choice: the declared values {list(declared)!r} are not distinct.")
        object.__setattr__(self, "values", declared)

    def codes(self, name: str, column: ArrayLike) -> NDArray[np.int64]:
        """Return the index of each entry of `column` among the declared values, shape (n,)."""
        return check_labels(name, self.values, column)


Domain = Ball | Box | Choice


@dataclass(frozen=True, eq=False)
class Batch:
    """Records that passed the check: fields and the group (combination of discrete values) of each.

    Attributes
    ----------
    fields : dict
        Continuous field name to column of shape (n, *shape): a float64 array, a `scipy.sparse.csr_array`, or a column of
        `dpconvex.language.columns` that turns what it is asked for into float64.
    group : ndarray of int, shape (n,)
        Index into ``Record.combinations``.
    """

    fields: dict[str, Any]
    group: NDArray[np.int64]

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        """Return a batch of its own of the same records: what nobody can write to is shared."""
        return Batch({name: shared(column) for name, column in self.fields.items()}, frozen(self.group))

    @property
    def size(self) -> int:
        """Number of records."""
        return len(self.group)

    def rows(self, group: int) -> NDArray[np.int64]:
        """Return the indices of the records of one group, shape (m,)."""
        return np.flatnonzero(self.group == group)


def shared(column: Any) -> Any:
    """Return a column of the same records as an object of its own."""
    if isinstance(column, np.ndarray):
        return frozen(column)
    if sp.issparse(column):
        parts = (frozen(column.data), frozen(column.indices), frozen(column.indptr))
        return sp.csr_array(parts, shape=column.shape)
    return copy(column)  # its gate and its source are the same


class Checked(Mapping[str, Any]):
    """Data that a record has checked already, as they were, with the outcome."""

    def __init__(self, record: Record, data: Mapping[str, Any], clip: bool) -> None:
        self.record, self.data, self.clip = record, data, clip
        self.batch = record.validate(data, clip=clip, empty=True)

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data.keys())

    def __len__(self) -> int:
        return len(self.data.keys())


class Record:
    """The fields of one record and their public domains.

    Parameters
    ----------
    **fields : Ball, Box or Choice
        At least one field.

    Attributes
    ----------
    fields : mapping of str to domain
        Read-only, as is the record: what was proved about it must stay true.
    parameters : mapping of str to cvxpy.Parameter
        The symbolic continuous fields that a loss is written in.
    combinations : tuple of dict
        Every assignment of the discrete fields, one empty assignment if there are none.

    Examples
    --------
    >>> record = Record(x=Ball(3, radius=1.0), y=Choice(["no", "yes"]))
    >>> record.combinations
    ({'y': 'no'}, {'y': 'yes'})
    >>> record.validate({"x": [[0, 0, 1.0]], "y": ["yes"]}).group
    array([1])
    """

    def __init__(self, **fields: Domain) -> None:
        if not fields:
            raise TemplateError("Record: declare at least one field, for example x=Ball(3).")
        for name, domain in fields.items():
            if not isinstance(domain, Ball | Box | Choice):
                raise TemplateError(f"Record: field {name!r} must be a Ball, a Box or a Choice, not {domain!r}.")
        self.fields: Mapping[str, Domain] = MappingProxyType(dict(fields))
        self.continuous: Mapping[str, Ball | Box] = MappingProxyType(
            {k: d for k, d in fields.items() if not isinstance(d, Choice)}
        )
        self.discrete: Mapping[str, Choice] = MappingProxyType(
            {k: d for k, d in fields.items() if isinstance(d, Choice)}
        )
        self.parameters: Mapping[str, cp.Parameter] = MappingProxyType(
            {k: symbol(k, d) for k, d in self.continuous.items()}
        )
        values = [d.values for d in self.discrete.values()]
        self.combinations: tuple[dict[str, Hashable], ...] = tuple(
            dict(zip(self.discrete, chosen, strict=True)) for chosen in product(*values)
        )
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_sealed", False):
            raise TemplateError(
                f"a Record cannot be changed after it was made (its {name} was to be set): certificates speak of it as it is. "
                "Make a new one."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={domain!r}' for name, domain in self.fields.items())})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        """Return a record of its own; mappings that cannot be written to are copied as what they show."""
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            shown = deepcopy(dict(value) if isinstance(value, MappingProxyType) else value, memo)
            object.__setattr__(copied, name, MappingProxyType(shown) if isinstance(value, MappingProxyType) else shown)
        return copied

    def validate(self, data: Mapping[str, ArrayLike], clip: bool = False, empty: bool = False) -> Batch:
        """Check a batch of records against the declared domains.

        Parameters
        ----------
        data : mapping of str to array_like
            One entry per field: continuous ones of shape (n, *shape), discrete ones of shape (n,).  Arrays of up to a gibibyte
            and SciPy's sparse matrices are copied; larger arrays, memory-mapped ones and `Chunks` stay where they are, and every
            block of them is copied and checked whenever it is read.
        clip : bool
            Project continuous fields onto their domain instead of raising.  The projection treats each record alone.
        empty : bool
            Accept data without records.  Where the number of records is protected, none of them is a number like others.

        Returns
        -------
        Batch

        Raises
        ------
        DomainError
            Missing or extra fields, differing lengths, NaN or infinity, a value outside its domain; no records, unless they
            are allowed to be missing.
        """
        known = isinstance(data, Checked) and data.record is self and data.clip == clip
        batch = data.batch if known and isinstance(data, Checked) else self._batch(data, clip)
        if batch.size == 0 and not empty:
            raise DomainError("the data are empty: there is no record to learn from.")
        return batch

    def _batch(self, data: Mapping[str, ArrayLike], clip: bool) -> Batch:
        """Do the work of `validate`, whatever the number of records."""
        check_clip(clip)
        names = set(table(data).keys())
        if names != set(self.fields):
            missing, extra = sorted(set(self.fields) - names), sorted(names - set(self.fields), key=str)
            raise DomainError(f"the data must have exactly the declared fields (missing: {missing}, extra: {extra}).")
        arrays = {
            name: check_column(name, domain, with_axes(data[name], domain.shape), clip)
            for name, domain in self.continuous.items()
        }
        codes = {name: choice.codes(name, data[name]) for name, choice in self.discrete.items()}
        lengths = {name: records_of(array) for name, array in {**arrays, **codes}.items()}
        if len(set(lengths.values())) != 1:
            raise DomainError(f"the fields have different numbers of records: {lengths}.")
        size = next(iter(lengths.values()))
        group = np.zeros(size, dtype=np.int64)
        for name, choice in self.discrete.items():
            group = group * len(choice.values) + codes[name]
        return Batch(fields=arrays, group=frozen(group))

    def checked(self, data: Mapping[str, ArrayLike], clip: bool = False) -> Checked:
        """Check a batch now, for many later calls of `validate`; the data must not change in between."""
        return Checked(self, data, clip)

    def held(self, data: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Return the data with continuous columns in memory that many checks can share: each would make a copy of its own."""
        names = list(table(data).keys())
        return {name: held(name, data[name]) if name in self.continuous else data[name] for name in names}

    def sample(self, size: int, rng: np.random.Generator) -> Batch:
        """Draw records from the domain, for tests; extreme records are drawn often."""
        fields = {name: domain.sample(size, rng) for name, domain in self.continuous.items()}
        return Batch(fields=fields, group=rng.integers(0, len(self.combinations), size=size))


def check_clip(clip: object) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(clip, bool | np.bool_):
        raise TemplateError(f"clip must be True or False, not {clip!r}.")


def table(data: Any) -> Any:
    """Return data that map fields to columns, or say that they do not."""
    if not hasattr(data, "keys"):
        raise DomainError(f"the data must map each declared field to its column, not be a {type(data).__name__}.")
    return data


def with_axes(column: Any, shape: tuple[int, ...]) -> Any:
    """Return a column; an empty list or array of one axis, which is what no records look like, gets the axes of a field."""
    plain = isinstance(column, list | tuple | np.ndarray) and records_of(column) == 0
    return np.zeros((0, *shape)) if plain and np.ndim(column) == 1 else column


def symbol(name: str, domain: Ball | Box) -> cp.Parameter:
    """Return the CVXPY Parameter that stands for a field, with the sign that its bounds imply."""
    lower, upper = domain.bounds
    if (lower >= 0).all():
        return cp.Parameter(domain.shape, name=name, nonneg=True)
    if (upper <= 0).all():
        return cp.Parameter(domain.shape, name=name, nonpos=True)
    return cp.Parameter(domain.shape, name=name)
