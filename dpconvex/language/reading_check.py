"""Compares what was read of a template with what its user wrote, in values at public points, by CVXPY's own arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.powers import DECLARED
from dpconvex.core.constraint import Constraint
from dpconvex.core.evaluate import evaluations, postorder
from dpconvex.core.expression import Expression, Variable
from dpconvex.core.from_cvxpy import Reader
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.language.record import Record

Array = NDArray[np.float64]
Valued = tuple[Array, float]  # a value, and the largest number that occurs in computing it

# What was read may differ in value by this fraction of the largest number that occurs in computing it.
READING = 1e-9
# With more expressions than this, the many labels' own are like each other, and one point for each is enough.
FEW = 32


def check_reading(
    originals: Sequence[Any], read: Sequence[Expression | Constraint], record: Record, reader: Reader
) -> None:
    """Raise TemplateError if what was read has other values than what the user wrote, at public points."""
    rng = np.random.default_rng(0)
    kept = [
        not any(node.atom is DECLARED for node in postorder(parts_of(one))) for one in read
    ]  # whose values have one source
    originals, read = (
        [o for o, k in zip(originals, kept, strict=True) if k],
        [r for r, k in zip(read, kept, strict=True) if k],
    )
    roots = [part for one in read for part in parts_of(one)]
    for positive in (False, True) if len(originals) <= FEW else (False,):
        fields = record.sample(1, rng).fields
        leaves: dict[Expression, Any] = {field: fields[field.name][0] for field in reader.fields.values()}
        leaves |= {variable: public_point(variable, rng, positive) for variable in reader.variables.values()}
        theirs, ours = CvxpyValues(reader, leaves), evaluations(roots, leaves)
        for original, copied in zip(originals, read, strict=True):
            pairs = zip(measured(original, theirs), measured_core(copied, ours), strict=True)
            for (one, first), (two, second) in pairs:
                with np.errstate(invalid="ignore"):  # both are infinite outside the domain
                    apart = np.abs(one - two)
                wrong = np.isfinite(one) & ~(apart <= READING * max(first, second))
                if wrong.any():
                    place = int(np.argmax(wrong))
                    raise TemplateError(
                        f"Template: {original} was read as an expression of other values ({two.ravel()[place]:.12g} instead "
                        f"of {one.ravel()[place]:.12g}). Please report it; write it in another way."
                    )


def parts_of(read: Expression | Constraint) -> tuple[Expression, ...]:
    """Return an expression, or the arguments of a constraint."""
    return read.args if isinstance(read, Constraint) else (read,)


class CvxpyValues:
    """Values of CVXPY trees at one point, each node once, with nobody's variables set."""

    def __init__(self, reader: Reader, leaves: Mapping[Expression, Any]) -> None:
        self.reader, self.leaves = reader, leaves
        self._memory: dict[int, Valued] = {}
        self._alike: dict[Hashable, Valued] = {}

    def __call__(self, node: Any) -> Valued:
        """Return the value of an expression, NaN or infinite outside its domain."""
        known = self._memory.get(id(node))
        if known is None:
            parts = [self(argument) for argument in node.args]
            alike = signature(node, parts)  # with many labels, most have the same scores
            if alike not in self._alike:
                self._alike[alike] = self._found(node, parts)
            known = self._memory[id(node)] = self._alike[alike]
        return known

    def _found(self, node: Any, parts: list[Valued]) -> Valued:
        read = self.reader.read_already(node)
        values = [part for part, _ in parts]
        value = numeric(node, values) if parts else self.leaves.get(read, node.value)
        if not is_symmetric_where_asked(read, values):
            value = np.full(node.shape, np.nan)
        value = np.asarray(value.toarray() if sp.issparse(value) else value)
        own = float(np.abs(value).max(initial=0.0))
        return value, max([0.0, own, *(size for _, size in parts)])


def signature(node: Any, parts: list[Valued]) -> Hashable:
    """Return what atoms of one class with the same options and the very same arguments share."""
    options = node.get_data() if parts else None
    key = (type(node), tuple(map(id, parts)), tuple(options or ()))
    try:
        hash(key)
    except TypeError:
        return id(node)
    return key if parts else id(node)


def numeric(node: Any, values: list[Any]) -> Any:
    """Apply an atom to numbers by CVXPY's code; NaN where that has no value, or is of a norm of nearly the same order."""
    if hasattr(node, "original_p") and float(node.original_p) != float(node.p):
        return np.full(node.shape, np.nan)
    try:
        with np.errstate(all="ignore"):
            return node.numeric(values)
    except (ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError, DPConvexError):
        return np.full(node.shape, np.nan)


def is_symmetric_where_asked(read: Expression, values: list[Any]) -> bool:
    """Whether arguments of functions of symmetric matrices are some; CVXPY has values for others, of no meaning."""
    asked = read.atom.domain(read) if read.atom is not None else ()
    pairs = zip(asked, values, strict=False)
    return all(np.array_equal(value, value.T) for want, value in pairs if want in ("symmetric", "semidefinite"))


def measured(original: Any, values: CvxpyValues) -> list[Valued]:
    """Return the value of an expression of CVXPY; of a constraint, what it compares with zero or asks to be in a cone."""
    kind = type(original).__name__
    if kind in ("Equality", "Inequality"):
        return [difference(*(values(argument) for argument in original.args))]
    if kind in ("Zero", "NonPos", "NonNeg", "PSD", "SOC", "ExpCone", "PowCone3D"):
        sign = -1.0 if kind == "NonNeg" else 1.0
        return [(sign * value, size) for value, size in map(values, original.args)]
    return [values(original)]


def measured_core(read: Expression | Constraint, values: Mapping[Expression, Valued]) -> list[Valued]:
    if isinstance(read, Expression):
        return [values[read]]
    parts = [values[argument] for argument in read.args]
    return [difference(*parts)] if read.kind in ("equality", "inequality") else parts


def difference(one: Valued, two: Valued) -> Valued:
    """Subtract."""
    return np.asarray(one[0] - two[0]), max(one[1], two[1])


def public_point(variable: Variable, rng: np.random.Generator, positive: bool) -> Array:
    """Draw a value of a variable that respects its symmetry and its sign."""
    value = rng.normal(size=variable.shape)
    has = variable.attributes
    if positive or has.get("nonneg") or has.get("pos"):
        value = np.abs(value)
    if has.get("nonpos") or has.get("neg"):
        value = -np.abs(value)
    definite = has.get("PSD") or has.get("NSD")
    if definite or has.get("symmetric"):
        value = np.asarray((value + value.T) / 2)
        if positive or definite:
            value = (-1.0 if has.get("NSD") else 1.0) * (value @ value.T)
    return np.asarray(value)
