"""A template's objective over a batch as one CVXPY problem without a loop over records, and a template from a CVXPY problem."""

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.columns import dense
from dpconvex.data.domains import Choice, Domain
from dpconvex.data.record import Record
from dpconvex.errors import MissingRule, NotPrivate, TemplateError
from dpconvex.expressions.atoms.norms import QUAD_OVER_LIN
from dpconvex.expressions.evaluate import gradients, over_records
from dpconvex.expressions.expression import Expression, Field, Variable
from dpconvex.expressions.from_cvxpy import Reader, field_of
from dpconvex.expressions.parameter_space import entries_matrix
from dpconvex.expressions.rewriting import split_objective
from dpconvex.expressions.to_cvxpy import Writer
from dpconvex.util.arguments import instance
from dpconvex.util.arrays import Array

Objects = NDArray[np.object_]


class BatchColumn:
    """One entry of an expression for all records of a group, as numbers or as a CVXPY expression, with linear arithmetic."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, BatchColumn) else value

    def __add__(self, other: Any) -> "BatchColumn":
        return BatchColumn(self.value + BatchColumn(other).value)

    def __neg__(self) -> "BatchColumn":
        return BatchColumn(-self.value)

    def __mul__(self, other: Any) -> "BatchColumn":
        a, b = self.value, BatchColumn(other).value
        curved = isinstance(a, cp.Expression) or isinstance(b, cp.Expression)
        return BatchColumn(cp.multiply(a, b) if curved else a * b)

    def __truediv__(self, other: Any) -> "BatchColumn":
        return BatchColumn(self.value / BatchColumn(other).value)

    __radd__, __rmul__ = __add__, __mul__


class Rebuilder:
    """Rebuilds the loss of one group on columns; `entries` are the entries of all variables, each in column order, projected."""

    def __init__(self, problem: Any, rows: NDArray[np.int64], entries: cp.Expression) -> None:
        self.entries, self.count = entries, len(rows)
        self.fields = {name: np.moveaxis(dense(values[rows]), 0, -1) for name, values in problem.batch.fields.items()}
        sizes = [block.variable.size for block in problem.space.blocks.values()]
        self.starts = dict(zip(problem.space.blocks, np.cumsum([0, *sizes]), strict=False))
        self.known: dict[Expression, Objects] = {}

    def vector(self, expression: Expression) -> Any:
        return self._full(self._columns(expression).ravel()[0])

    def _full(self, column: BatchColumn) -> Any:
        return column.value if isinstance(column.value, cp.Expression) else np.broadcast_to(column.value, (self.count,))

    def _columns(self, expression: Expression) -> Objects:
        if expression not in self.known:
            found = self._leaf(expression) if expression.is_affine else self._atom(expression)
            items = np.empty(expression.size, dtype=object)
            items[:] = list(map(BatchColumn, found))
            self.known[expression] = items.reshape(expression.shape)
        return self.known[expression]

    def _leaf(self, expression: Expression) -> list[Any]:
        """Return the columns of an expression that is affine in the variables: derivatives times `entries`, plus offsets."""
        leaves: dict[Expression, Array] = {field: self.fields[field.name] for field in expression.fields}
        variables = sorted(expression.variables, key=lambda variable: variable.key)
        values = over_records(
            [expression], leaves | {variable: np.zeros((*variable.shape, 1)) for variable in variables}
        )
        offset = np.broadcast_to(values[expression], (*expression.shape, self.count)).reshape(expression.size, -1)
        place = [self.starts[variable.name] + np.arange(variable.size) for variable in variables]
        found: list[Any] = list(offset)
        for j, unit in enumerate(np.eye(expression.size) if variables else ()):
            known = gradients(list(values), values, expression, unit.reshape((*expression.shape, 1)))
            parts = [np.broadcast_to(known.get(v, 0.0), (*v.shape, self.count)) for v in variables]
            flat = [np.moveaxis(part, -1, 0).reshape((self.count, -1), order="F") for part in parts]
            rows = sp.coo_array(np.hstack(flat))
            if rows.nnz:
                index, shape = (rows.row, np.concatenate(place)[rows.col]), (self.count, self.entries.size)
                found[j] = sp.csr_array((rows.data, index), shape=shape) @ self.entries + found[j]
        return found

    def _atom(self, expression: Expression) -> list[Any]:
        atom, options = expression.operation, dict[str, Any](expression.options)
        arguments = [self._columns(argument) for argument in expression.args]
        if atom.affine != "curved":
            found = atom.value(expression, *(argument[..., None] for argument in arguments))
            return list(np.broadcast_to(found[..., 0], expression.shape).ravel())
        if atom.to_cvxpy is not None and "axis" in options:
            return self._reduced(expression, arguments, options)
        if atom.to_cvxpy is None or any(argument.shape != expression.shape for argument in arguments):
            raise missing(expression)
        cells = zip(*(argument.ravel() for argument in arguments), strict=True)
        return [atom.to_cvxpy(cp, expression, [self._full(column) for column in cell]) for cell in cells]

    def _reduced(self, expression: Expression, arguments: list[Objects], options: dict[str, Any]) -> list[Any]:
        """Return the columns of a reduction over stacks, shape (k, records), of the k arguments of each entry."""
        atom, argument, axes = expression.operation, arguments[0], options["axis"]
        assert atom.to_cvxpy is not None
        kept = [k for k in range(argument.ndim) if k not in axes]
        table = np.transpose(argument, [*kept, *axes]).reshape(-1, int(np.prod([argument.shape[k] for k in axes])))
        stacks = [cp.vstack([self._full(column) for column in row]) for row in table]
        if atom is QUAD_OVER_LIN:
            divisor = arguments[1].item().value
            if isinstance(divisor, cp.Expression):
                raise missing(expression)
            return [cp.multiply(cp.sum(cp.square(stack), axis=0), 1.0 / divisor) for stack in stacks]
        stack_like = Variable.of((table.shape[1], self.count), "stack", -1)
        try:
            over_rows = atom(stack_like, **{**options, "axis": (0,), "keepdims": False})
            return [atom.to_cvxpy(cp, over_rows, [stack]) for stack in stacks]
        except ValueError as error:  # CVXPY has norms of only some orders along an axis
            raise missing(expression) from error


def missing(expression: Expression) -> MissingRule:
    return MissingRule("the conic solver lacks this atom over a batch", expression, 'use the backend "first-order"')


def perturbed_program(problem: Any, fresh: dict[str, cp.Variable]) -> cp.Problem:
    """Return the whole program in the variables `fresh` (by name, with the attributes of the template's variables)."""
    writer = Writer({block.variable: fresh[name] for name, block in problem.space.blocks.items()})
    entries = cp.hstack([cp.vec(fresh[name], order="F") for name in problem.space.blocks])
    lift, seen = entries_matrix(problem.space), entries
    if problem.projector is not None:
        seen = (lift @ problem.projector(np.eye(lift.shape[1])) @ lift.T) @ entries
    objective = problem.size * writer.expression(problem.template.regularizer)
    for group, loss in enumerate(problem.template.losses):
        rows = problem.batch.rows(group)
        if len(rows):
            objective = objective + cp.sum(Rebuilder(problem, rows, seen).vector(loss))
    if problem.added:
        objective = objective + problem.added / 2 * cp.sum_squares(entries)
    if problem.linear is not None and problem.linear.any():
        objective = objective + (lift @ problem.linear) @ entries
    return cp.Problem(cp.Minimize(objective), [writer.constraint(c) for c in problem.template.constraints])


def problem_parts(problem: Any, records: Mapping[Any, Domain]) -> dict[str, Any]:
    """Return the arguments of `Template` for `Template.from_problem`."""
    instance(cp.Problem).check("from_problem", problem=problem)
    if not isinstance(records, Mapping) or not records:
        raise TemplateError("from_problem: records must map data parameters to domains of a row: {X: dp.Ball(3)}.")
    known = {parameter.name(): parameter for parameter in problem.parameters()}
    symbols, domains = dict[str, Any](), dict[str, Domain]()
    for key, domain in records.items():
        symbol = known.get(key.name() if isinstance(key, cp.Parameter) else key)
        if symbol is None or (isinstance(key, cp.Parameter) and symbol is not key):
            raise TemplateError(f"from_problem: {key!r} is not among the parameters {sorted(known)}.")
        row = () if isinstance(domain, Choice) else domain.shape
        symbols[symbol.name()], domains[symbol.name()] = symbol, domain
        count = next(iter(symbols.values())).shape[:1]
        if symbol.shape != (*count, *row) or not count or count[0] < 2:
            raise TemplateError(f"from_problem: {key!r} has shape {symbol.shape}, not as many rows of shape {row}.")
    reader = Reader(symbols.values())
    objective = problem.objective.args[0] * (1 if isinstance(problem.objective, cp.Minimize) else -1)
    reader.declare([objective, *problem.constraints])
    for constraint in problem.constraints:
        if {parameter.id for parameter in constraint.parameters()} & {symbol.id for symbol in symbols.values()}:
            raise NotPrivate("a constraint mentions the data", constraint, "put the data into the objective")
    whole = reader.expression(objective, "the objective")
    rows: dict[Expression, Field] = {field_of(s): Field.of(s.shape[1:], n, ("row", s.id)) for n, s in symbols.items()}
    one, rest = split_objective(whole, rows, count[0])
    variables: dict[Expression, Any] = {reader.variables[own.id]: own for own in problem.variables()}

    def loss(**fields: Any) -> Any:
        # Labels count as numbers.
        found: dict[Expression, Any] = {row: fields[row.name] for row in rows.values()}
        leaves = {row: f if isinstance(f, cp.Expression) else cp.Constant(float(f)) for row, f in found.items()}
        return Writer({**variables, **leaves}).expression(one)

    regularizer = Writer(dict(variables)).expression(rest)
    return {"record": Record(**domains), "loss": loss, "regularizer": regularizer, "constraints": problem.constraints}
