"""Compares what was read of a template with what its user wrote, in values at public points, by CVXPY's own arithmetic."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
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
    pairs = [pair for original, own in zip(originals, read, strict=True) for pair in pairs_of(original, own)]
    # The values of declared atoms have one source.
    pairs = [(one, own) for one, own in pairs if not any(node.atom is DECLARED for node in postorder([own]))]
    for positive in (False, True) if len(pairs) <= FEW else (False,):
        fields = record.sample(1, rng).fields
        leaves: dict[Expression, Any] = {field: fields[field.name][0] for field in reader.fields.values()}
        leaves |= {variable: public_point(variable, rng, positive) for variable in reader.variables.values()}
        theirs, ours = CvxpyValues(reader, leaves), evaluations([own for _, own in pairs], leaves)
        for original, own in pairs:
            (one, first), (two, second) = theirs(original), ours[own]
            with np.errstate(invalid="ignore"):  # both are infinite outside the domain
                apart = np.abs(one - two)
            if (np.isfinite(one) & ~(apart <= READING * max(first, second))).any():
                raise TemplateError(
                    f"Template: {original} was read as an expression of other values, which differ by {np.nanmax(apart):.3g}. "
                    "Please report it; write it in another way."
                )


def pairs_of(original: Any, read: Expression | Constraint) -> list[tuple[Any, Expression]]:
    """Return an expression of CVXPY and what it became; of a constraint, its arguments."""
    if isinstance(read, Expression):
        return [(original, read)]
    args = read.args
    if len(original.args) < len(args):  # one argument was compared with zero
        args = args[-1:] if type(original).__name__ == "NonNeg" else args[:1]
    return list(zip(original.args, args, strict=True))


class CvxpyValues:
    """Values of CVXPY trees at one point, each node once, with nobody's variables set."""

    def __init__(self, reader: Reader, leaves: Mapping[Expression, Any]) -> None:
        self.reader, self.leaves = reader, leaves
        self._memory: dict[int, Valued] = {}
        self._alike: dict[Hashable, Valued] = {}

    def __call__(self, node: Any) -> Valued:
        if id(node) not in self._memory:
            parts = [self(argument) for argument in node.args]
            alike = signature(node, parts)  # with many labels, most have the same scores
            if alike not in self._alike:
                self._alike[alike] = self._found(node, parts)
            self._memory[id(node)] = self._alike[alike]
        return self._memory[id(node)]

    def _found(self, node: Any, parts: list[Valued]) -> Valued:
        read, values = self.reader.read_already(node), [part for part, _ in parts]
        asked = read.atom.domain(read) if read.atom is not None else ()
        # CVXPY has values for matrices that are not symmetric, of no meaning, and of norms of nearly the same order.
        pairs = zip(asked, values, strict=False)
        odd = any(want in ("symmetric", "semidefinite") and not np.array_equal(v, v.T) for want, v in pairs)
        odd = odd or (hasattr(node, "original_p") and float(node.original_p) != float(node.p))
        value: Any = np.full(node.shape, np.nan)
        if not parts:
            value = self.leaves.get(read, node.value)
        elif not odd:
            with suppress(ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError, DPConvexError):
                value = numeric(node, values)
        value = np.asarray(value.toarray() if sp.issparse(value) else value)
        return value, max([0.0, float(np.abs(value).max(initial=0.0)), *(size for _, size in parts)])


def numeric(node: Any, values: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        return node.numeric(values)


def signature(node: Any, parts: list[Valued]) -> Hashable:
    """Return what atoms of one class with the same options and the very same arguments share."""
    key = (type(node), tuple(map(id, parts)), tuple((node.get_data() if parts else None) or ()))
    try:
        hash(key)
    except TypeError:
        return id(node)
    return key if parts else id(node)


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
