"""Public domain of a record: `Record` declares its fields, and constants of certificates are suprema over their domains."""

from collections.abc import Hashable, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.batch import Batch, in_partition
from dpconvex.data.columns import check_aligned, names_of, records_of
from dpconvex.data.domains import Ball, Box, Choice, Domain
from dpconvex.data.partitions import Partitions, normalized
from dpconvex.data.validation import check_column, check_labels, length_of
from dpconvex.errors import DomainError, TemplateError
from dpconvex.util.arguments import TRUTH, require
from dpconvex.util.arrays import Indices, frozen
from dpconvex.util.runtime import quietly

EMPTY = "the data are empty: there is no record to learn from."


class Sealed:
    """Base class of objects that are immutable after construction."""

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_sealed", False):
            raise TemplateError(f"{name} of a {type(self).__name__} cannot be changed after it was made; make another.")
        super().__setattr__(name, value)


class Record(Sealed):
    """Declare the fields of one record and their public domains.

    Parameters
    ----------
    **fields : Ball, Box or Choice
        At least one field.

    Attributes
    ----------
    parameters : mapping of str to cvxpy.Parameter
        CVXPY parameters for the continuous fields; the loss is an expression of these.
    combinations : tuple of dict
        Every assignment of the discrete fields; one empty assignment without discrete fields.

    Examples
    --------
    >>> record = Record(x=Ball(3, radius=1.0), y=Choice(["no", "yes"]))
    >>> record.combinations
    ({'y': 'no'}, {'y': 'yes'})
    >>> record.validate({"x": [[0, 0, 1.0]], "y": ["yes"]}).group
    array([1])
    """

    def __init__(self, **fields: Domain) -> None:
        require(fields, "Record: declare at least one field, for example x=Ball(3).")
        discrete, continuous, symbols = dict[str, Choice](), dict[str, Ball | Box](), dict[str, cp.Parameter]()
        for name, domain in fields.items():
            if isinstance(domain, Choice):
                discrete[name] = domain
            elif isinstance(domain, Ball | Box):
                lower, upper = domain.bounds
                signs = {"nonneg": True} if (lower >= 0).all() else {"nonpos": bool((upper <= 0).all())}
                continuous[name], symbols[name] = domain, cp.Parameter(domain.shape, name=name, **signs)
            else:
                raise TemplateError(f"Record: field {name!r} must be a Ball, a Box or a Choice, not {domain!r}.")
        self.fields: Mapping[str, Domain] = MappingProxyType(fields)
        self.continuous: Mapping[str, Ball | Box] = MappingProxyType(continuous)
        self.discrete: Mapping[str, Choice] = MappingProxyType(discrete)
        self.parameters: Mapping[str, cp.Parameter] = MappingProxyType(symbols)
        every = product(*(choice.values for choice in discrete.values()))
        self.combinations = tuple(dict[str, Hashable](zip(discrete, values, strict=True)) for values in every)
        self._sealed = True

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={domain!r}' for name, domain in self.fields.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Record, **self.fields), ()

    @quietly
    @np.errstate(all="ignore")  # warnings of numbers tell about the data
    def validate(self, data: Mapping[str, ArrayLike], clip: bool = False, empty: bool = False) -> Batch:
        """Check a batch of records against the declared domains.

        Parameters
        ----------
        data : mapping of str to array_like
            One entry per field: continuous ones of shape (n, *shape), discrete ones of shape (n,).  Arrays of up to a gibibyte
            and SciPy's sparse matrices are copied.  Larger arrays and memory-mapped arrays are not: each block of these is
            copied and checked at every reading.  `Partitions` are accepted too.
        clip : bool
            Project continuous fields onto their domain instead of raising.  The projection treats each record alone.
        empty : bool
            Accept data without records.
        """
        TRUTH.check("", clip=clip)
        given = normalized(data)
        self._check_names(given)
        batch = given.batch(self, clip) if isinstance(given, Partitions) else self._batch(given, clip)
        require(empty or batch.size != 0, EMPTY, DomainError)
        return batch

    def check_form(self, data: Any, empty: bool = False) -> None:
        """Raise if names, types, shapes or lengths of columns are wrong. Values are not read."""
        data = normalized(data)
        self._check_names(data)
        if isinstance(data, Partitions):
            for number, form in data.forms():
                in_partition(number, self._check_columns, form)
        else:
            self._check_columns(data)
        require(empty or num_records(data) != 0, EMPTY, DomainError)

    def _check_names(self, data: Any) -> None:
        """Raise unless the columns are the declared fields, with equal indexes, and the schema's labels are declared."""
        found = data.keys() if isinstance(data, Partitions) else columns_of(data).keys()
        names = set(self.fields if found is None else found)  # names of an unread partition are checked when it is read
        if names != set(self.fields):
            missing, extra = sorted(set(self.fields) - names), sorted(names - set(self.fields), key=str)
            said = f"the data must have exactly the declared fields (missing: {missing}, extra: {extra})"
            learnt = " If the missing field is the component of a mixture, `solve_mixture` learns it."
            raise DomainError(f"{said}.{learnt * (not extra and set(missing) <= self.discrete.keys())}")
        if not isinstance(data, Partitions):
            check_aligned({name: data[name] for name in self.fields})
        schema = data.schema if isinstance(data, Partitions) and not data.turns else None
        labels, declared = getattr(schema, "labels", None), self.discrete.get("y")
        fits = not labels or declared is None or set(labels) <= set(declared.values)
        require(fits, f"the schema's labels are {labels}; declare the field y with these texts.", DomainError)

    def _check_columns(self, data: Mapping[str, Any]) -> None:
        self._check_names(data)
        common_length({name: length_of(name, domain, data[name]) for name, domain in self.fields.items()})

    def _batch(self, data: Mapping[str, ArrayLike], clip: bool) -> Batch:
        arrays = {name: check_column(name, domain, data[name], clip) for name, domain in self.continuous.items()}
        codes = {name: check_labels(name, choice.values, data[name]) for name, choice in self.discrete.items()}
        size = common_length({name: records_of(array) for name, array in {**arrays, **codes}.items()})
        group = np.zeros(size, dtype=np.int64)
        for name, choice in self.discrete.items():
            group = group * len(choice.values) + codes[name]
        return Batch(fields=arrays, group=frozen(group))

    def values(self, batch: Batch, name: str) -> NDArray[Any]:
        """Return the values of a discrete field for the records of a batch, dtype object, shape (n,)."""
        return np.fromiter(self.discrete[name].values, dtype=object)[self.codes(batch, name)]

    def codes(self, batch: Batch, name: str) -> Indices:
        """Return the index of each record's value among the declared values of a discrete field, shape (n,)."""
        values = self.discrete[name].values
        return np.array([values.index(combination[name]) for combination in self.combinations])[batch.group]

    def sample(self, size: int, rng: np.random.Generator) -> Batch:
        """Draw records from the domain, for tests; extreme records are drawn often."""
        fields = {name: domain.sample(size, rng) for name, domain in self.continuous.items()}
        return Batch(fields=fields, group=rng.integers(0, len(self.combinations), size=size))


def common_length(lengths: Mapping[str, int]) -> int:
    require(len(set(lengths.values())) == 1, f"the fields have different numbers of records: {lengths}.", DomainError)
    return next(iter(lengths.values()))


# Properties of data in memory or in partitions


def num_records(data: Any) -> int:
    if isinstance(data, Batch):
        return data.size
    if isinstance(data, Partitions):
        return sum(data.sizes)
    return max((records_of(data[name]) for name in columns_of(data).keys()), default=0)  # noqa: SIM118  (may be no Mapping)


def feature_names(data: Any, field: str | None = None) -> tuple[str, ...] | None:
    """Return the column names of a field, or of the first field with names; None if there are no names."""
    known = data.names if isinstance(data, Partitions) else {n: names_of(data[n]) for n in columns_of(data).keys()}  # noqa: SIM118
    return next((names for name, names in known.items() if names and field in (None, name)), None)


def require_arrays(what: str, data: Any, remedy: str = "pass arrays") -> None:
    said = f"{what} needs all records in memory, but they are in partitions; {remedy}."
    require(not isinstance(normalized(data), Partitions), said)


def columns_of(data: Any) -> Any:
    said = f"data must map each declared field to its column, {{'x': X}}, not {type(data).__name__}."
    require(hasattr(data, "keys"), said, DomainError)
    return data
