"""Compares what was read of a template with what its user wrote, in values at public points, by CVXPY's own arithmetic."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.powers import DECLARED
from dpconvex.core.evaluate import evaluations
from dpconvex.core.expression import Constraint, Expression, Variable, postorder
from dpconvex.core.from_cvxpy import Reader
from dpconvex.errors import TemplateError
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
        ours, known = evaluations([own for _, own in pairs], leaves), dict[int, Valued]()
        for original, own in pairs:
            (one, first), (two, second) = cvxpy_value(original, reader, leaves, known), ours[own]
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


def cvxpy_value(node: Any, reader: Reader, leaves: Mapping[Expression, Any], known: dict[int, Valued]) -> Valued:
    """Return the value of a CVXPY tree, NaN where CVXPY has none, with nobody's variables set; each node is computed once."""
    if id(node) not in known:
        parts = [cvxpy_value(argument, reader, leaves, known) for argument in node.args]
        read, values = reader.read_already(node), [part for part, _ in parts]
        value: Any = leaves.get(read, node.value) if not parts else np.full(node.shape, np.nan)
        if parts and not odd(node, read, values):
            with suppress(ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError), np.errstate(all="ignore"):
                value = node.numeric(values)
        value = np.asarray(value.toarray() if sp.issparse(value) else value)
        known[id(node)] = value, max([0.0, float(np.abs(value).max(initial=0.0)), *(size for _, size in parts)])
    return known[id(node)]


def odd(node: Any, read: Expression, values: list[Any]) -> bool:
    """Whether CVXPY has values of no meaning: of matrices that are not symmetric, and of norms of nearly the same order."""
    asked = read.atom.domain(read) if read.atom is not None else ()
    pairs = zip(asked, values, strict=False)
    skew = any(want in ("symmetric", "semidefinite") and not np.array_equal(v, v.T) for want, v in pairs)
    return skew or (hasattr(node, "original_p") and float(node.original_p) != float(node.p))


def public_point(variable: Variable, rng: np.random.Generator, positive: bool) -> Array:
    """Draw a value of a variable that respects its symmetry and its sign."""
    value, has = rng.normal(size=variable.shape), variable.attributes
    negative = any(has.get(name) for name in ("nonpos", "neg", "NSD"))
    if has.get("PSD") or has.get("NSD") or (positive and has.get("symmetric")):
        value = value @ value.T
    elif has.get("symmetric"):
        value = (value + value.T) / 2
    elif positive or negative or has.get("nonneg") or has.get("pos"):
        value = np.abs(value)
    return np.asarray(-value if negative else value)
