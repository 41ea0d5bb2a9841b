"""A template's loss over a whole batch as one CVXPY expression, without a loop over records.

The maximal affine subexpressions of a loss (its leaves) become matrices with a row for each record, from batched
derivatives of the lowered leaves; nothing of another shape is ever substituted into the user's expressions.  The atoms
above the leaves are rebuilt on *columns*: one CVXPY vector with an entry for each record, for each entry of the original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.atoms.log_sum_exp import log_sum_exp
from cvxpy.atoms.max import max as max_entries
from cvxpy.atoms.min import min as min_entries
from cvxpy.atoms.norm1 import norm1
from cvxpy.atoms.norm_inf import norm_inf
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from numpy.typing import NDArray

from dpconvex.errors import MissingRule
from dpconvex.evaluation.atom_functions import find_rule
from dpconvex.evaluation.compiled import Lowered, affine_rows, entries_matrix
from dpconvex.solvers.problem import Problem

__all__ = ["batched_loss"]

Array = NDArray[np.float64]
Objects = NDArray[np.object_]


class Column:
    """One entry of an expression, for all records of a group: a vector of numbers or a CVXPY vector.

    It has the arithmetic that the functions of `lowering_rules` for affine atoms need, so that they work on object arrays.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __add__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.dtype == object:
            return NotImplemented
        return Column(self.value + plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.dtype == object:
            return NotImplemented
        return Column(self.value - plain(other))

    def __neg__(self) -> Column:
        return Column(-self.value)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.dtype == object:
            return NotImplemented
        a, b = self.value, plain(other)
        if isinstance(a, cp.Expression) or isinstance(b, cp.Expression):
            return Column(cp.multiply(a, b))
        return Column(a * b)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.dtype == object:
            return NotImplemented
        return Column(self.value / plain(other))


def plain(value: Any) -> Any:
    """Unwrap a column."""
    return value.value if isinstance(value, Column) else value


def unpacked(array: Objects) -> Any:
    """Return the column of an array without axes, whose arithmetic NumPy would otherwise leave half unpacked."""
    return array.item() if array.ndim == 0 else array


def objects(shape: tuple[int, ...], items: list[Any]) -> Objects:
    """Array of objects of a given shape, filled in row order."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)


class Rebuilder:
    """Rebuilds one group's loss on columns.

    Parameters
    ----------
    problem : Problem
    rows : ndarray of int
        The records of the group.
    entries : cvxpy.Expression
        Entries of all variables, each in column order.
    """

    def __init__(self, problem: Problem, rows: NDArray[np.int64], entries: cp.Expression) -> None:
        self.problem = problem
        self.entries = entries
        self.count = len(rows)
        self.fields = {name: values[rows] for name, values in problem.batch.fields.items()}
        self.symbols = tuple(problem.template.record.parameters.values())
        self.lift = entries_matrix(problem.space)
        self.known: dict[int, Objects] = {}

    def columns(self, expression: Any) -> Objects:
        """Return the columns of an expression, in an array of its shape."""
        if id(expression) not in self.known:
            self.known[id(expression)] = self._leaf(expression) if expression.is_affine() else self._atom(expression)
        return self.known[id(expression)]

    def _leaf(self, expression: Any) -> Objects:
        """Affine in the variables: a matrix of derivatives and a vector of offsets for each entry."""
        lowered = Lowered.build(expression, self.problem.space, self.symbols)
        offset, slope = affine_rows(lowered, self.fields, self.count)
        offset = offset.reshape(self.count, -1)
        slope = slope.reshape(self.count, offset.shape[1], -1)
        columns = []
        for j in range(offset.shape[1]):
            if not slope.shape[2] or not slope[:, j].any():
                columns.append(Column(offset[:, j]))
                continue
            place, matrix = lowered.place, slope[:, j]
            if self.problem.projector is not None:
                rows = self.problem.projector(np.asarray(matrix @ self.lift[lowered.place]))
                place, matrix = np.arange(self.lift.shape[0]), np.asarray((self.lift @ rows.T).T)
            full = sp.coo_array(matrix)
            full = sp.csr_array((full.data, (full.row, place[full.col])), shape=(self.count, self.lift.shape[0]))
            columns.append(Column(full @ self.entries + offset[:, j]))
        return objects(expression.shape, columns)

    def _atom(self, expression: Any) -> Objects:
        arguments = [self.columns(argument) for argument in expression.args]
        if isinstance(expression, AffAtom):
            rule = find_rule(expression)
            if rule is not None:
                result = rule[1](np, *map(unpacked, arguments))
                return result if isinstance(result, np.ndarray) else objects((), [result])
        elif isinstance(expression, Elementwise):
            entries = np.broadcast_arrays(*arguments)
            cells = zip(*(part.ravel() for part in entries), strict=True)
            return objects(
                expression.shape, [Column(expression.copy([self._vector(c) for c in cell])) for cell in cells]
            )
        else:
            build = REDUCTIONS.get(type(expression).__name__.removesuffix("Approx"))
            function = build(expression, arguments[1:]) if build is not None else None
            if function is not None:
                return self._reduce(expression, arguments[0], function)
        raise MissingRule(
            f"the conic backend cannot rebuild the atom {type(expression).__name__} over a batch",
            expression,
            'use the backend "first-order"',
        )

    def _vector(self, column: Column) -> Any:
        """Return a column's value as a CVXPY or NumPy vector of full length."""
        value = column.value
        return value if isinstance(value, cp.Expression) else np.broadcast_to(value, (self.count,))

    def _reduce(self, expression: Any, argument: Objects, function: Callable[[Any], Any]) -> Objects:
        """Apply a function of a (k, records) stack to the k entries that each entry of the result reduces."""
        axis = getattr(expression, "axis", None)
        reduced = tuple(range(argument.ndim)) if axis is None else tuple(np.atleast_1d(axis) % argument.ndim)
        kept = [i for i in range(argument.ndim) if i not in reduced]
        table = np.transpose(argument, [*kept, *reduced]).reshape(
            -1, int(np.prod([argument.shape[i] for i in reduced]))
        )
        results = [Column(function(cp.vstack([self._vector(c) for c in row]))) for row in table]
        return objects(expression.shape, results)


def constant_scalar(argument: Objects) -> Any:
    """Return the numbers of a scalar argument that does not depend on the variables, or None."""
    value = plain(argument.ravel()[0])
    return None if isinstance(value, cp.Expression) or argument.size != 1 else value


def over(expression: Any, rest: list[Objects]) -> Callable[[Any], Any] | None:
    """Sum of squares divided by a number."""
    divisor = constant_scalar(rest[0])
    return None if divisor is None else lambda stack: cp.multiply(cp.sum(cp.square(stack), axis=0), 1.0 / divisor)


def euclidean(expression: Any, rest: list[Objects]) -> Callable[[Any], Any] | None:
    """Euclidean norm; CVXPY has no others over an axis."""
    return None if expression.original_p != 2 else lambda stack: cp.norm(stack, 2, axis=0)


def form(expression: Any, rest: list[Objects]) -> Callable[[Any], Any] | None:
    """Quadratic form with a constant matrix, as a sum of squares."""
    matrix = expression.args[1]
    if matrix.parameters() or matrix.variables():
        return None
    dense = matrix.value.toarray() if sp.issparse(matrix.value) else np.asarray(matrix.value)
    values, vectors = np.linalg.eigh((dense + dense.T) / 2)
    sign = 1.0 if values.max() >= -values.min() else -1.0
    root = (np.sqrt(np.maximum(sign * values, 0.0)) * vectors).T
    return lambda stack: sign * cp.sum(cp.square(root @ stack), axis=0)


REDUCTIONS: dict[str, Callable[[Any, list[Objects]], Callable[[Any], Any] | None]] = {
    log_sum_exp.__name__: lambda e, rest: lambda stack: cp.log_sum_exp(stack, axis=0),
    max_entries.__name__: lambda e, rest: lambda stack: cp.max(stack, axis=0),
    min_entries.__name__: lambda e, rest: lambda stack: cp.min(stack, axis=0),
    norm1.__name__: lambda e, rest: lambda stack: cp.norm1(stack, axis=0),
    norm_inf.__name__: lambda e, rest: lambda stack: cp.norm_inf(stack, axis=0),
    Pnorm.__name__: euclidean,
    QuadForm.__name__: form,
    quad_over_lin.__name__: over,
    "sum_largest": lambda e, rest: lambda stack: cp.sum_largest(stack, e.k, axis=0),
}


def batched_loss(problem: Problem, entries: cp.Expression) -> cp.Expression:
    """Return the sum of the losses as a CVXPY expression.

    Parameters
    ----------
    problem : Problem
    entries : cvxpy.Expression, shape (number of entries of all variables,)
        Entries of all variables of the space in its order, each in column order.

    Raises
    ------
    MissingRule
        If an atom cannot be rebuilt; names it.
    """
    total: Any = cp.Constant(0.0)
    for group, loss in enumerate(problem.template.losses):
        rows = problem.batch.rows(group)
        if len(rows):
            rebuilder = Rebuilder(problem, rows, entries)
            total = total + cp.sum(rebuilder._vector(rebuilder.columns(loss).ravel()[0]))
    return total
