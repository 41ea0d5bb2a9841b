"""Reads a CVXPY problem that is written over all records as the parts of a template: record, loss of one record, public rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.core.evaluate import evaluate, over_records
from dpconvex.core.expression import Expression, Field
from dpconvex.core.from_cvxpy import Reader, field_of
from dpconvex.core.record_domains import Choice, Domain
from dpconvex.core.rows import Split, split
from dpconvex.core.to_cvxpy import Writer
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.reading_check import public_point
from dpconvex.language.record import Record

# The objective and the sum over records may differ in value by this fraction of the size of its terms.
SAME = 1e-9


def problem_parts(problem: Any, records: Mapping[Any, Domain]) -> dict[str, Any]:
    """Return the arguments that make a `Template` of a problem; `records` maps data parameters, or names, to domains of a row."""
    if not isinstance(problem, cp.Problem):
        raise TemplateError(f"from_problem: expected a cvxpy.Problem, not {type(problem).__name__}.")
    symbols, count = data_symbols(problem, records)
    record = Record(**{symbol.name(): domain for symbol, domain in symbols})
    reader = Reader(symbol for symbol, _ in symbols)
    objective = problem.objective.args[0] * (1 if isinstance(problem.objective, cp.Minimize) else -1)
    reader.declare([objective, *problem.constraints])
    for constraint in problem.constraints:
        private = [symbol for symbol, _ in symbols if any(symbol is p for p in constraint.parameters())]
        if private:
            raise NotPrivate(
                f"a constraint mentions the data {private[0].name()!r}",
                constraint,
                "constraints are public: move what depends on records into the objective",
            )
    whole = reader.expression(objective, "the objective")
    rows: dict[Expression, Field] = {field_of(symbol): row_of(symbol, domain) for symbol, domain in symbols}
    found = split(whole, rows, count)
    check_split(whole, found, rows, record, count)
    own = {variable.id: variable for variable in problem.variables()}
    variables: dict[Expression, Any] = {core: own[key] for key, core in reader.variables.items() if key in own}

    def loss(**fields: Any) -> Any:
        leaves: dict[Expression, Any] = {row: symbol_or_label(fields[row.name]) for row in rows.values()}
        return Writer({**variables, **leaves}).expression(found.record)

    return {
        "record": record,
        "loss": loss,
        "regularizer": Writer(dict(variables)).expression(found.rest),
        "constraints": problem.constraints,
    }


def data_symbols(problem: Any, records: Mapping[Any, Domain]) -> tuple[list[tuple[Any, Domain]], int]:
    if not isinstance(records, Mapping) or not records:
        raise TemplateError(
            "from_problem: records must map each parameter that holds data (or its name) to the public domain of one of its "
            "rows, such as {X: dp.Ball(3)}."
        )
    known = {parameter.name(): parameter for parameter in problem.parameters()}
    symbols: list[tuple[Any, Domain]] = []
    for key, domain in records.items():
        name = key.name() if isinstance(key, cp.Parameter) else key
        if name not in known or (isinstance(key, cp.Parameter) and known[name] is not key):
            raise TemplateError(
                f"from_problem: {name!r} is no parameter of the problem; its parameters are {', '.join(sorted(known)) or 'none'}."
            )
        row = () if isinstance(domain, Choice) else domain.shape
        shape = known[name].shape
        if not shape or shape[1:] != row:
            raise TemplateError(
                f"from_problem: the parameter {name!r} has shape {shape}, and its rows do not have the shape {row} of the "
                f"declared domain {domain!r}."
            )
        symbols.append((known[name], domain))
    counts = {symbol.name(): int(symbol.shape[0]) for symbol, _ in symbols}
    if len(set(counts.values())) > 1 or min(counts.values()) < 2:
        raise TemplateError(
            f"from_problem: data parameters must have one row for each of at least two records; they have {counts}."
        )
    return symbols, counts[symbols[0][0].name()]


def row_of(symbol: Any, domain: Domain) -> Field:
    return Field.of(symbol.shape[1:], symbol.name(), ("row", symbol.id))


def label_number(value: Any) -> float:
    """Return a label that the objective computes with, which is a number."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"from_problem: a label that the objective computes with is a number, not {value!r}."
        ) from error


def symbol_or_label(value: Any) -> Any:
    """Return what a loss is given for a field as an expression."""
    return value if isinstance(value, cp.Expression) else cp.Constant(label_number(value))


def check_split(whole: Expression, found: Split, rows: Mapping[Expression, Field], record: Record, count: int) -> None:
    """Raise if the mean over records and the rest have not the value of the objective, at drawn records and parameters."""
    rng = np.random.default_rng(0)
    batch = record.sample(count, rng)
    columns: dict[str, Any] = dict(batch.fields)
    for name in record.discrete:
        columns[name] = np.array([label_number(record.combinations[group][name]) for group in batch.group])
    for positive in (False, True):
        point: dict[Any, Any] = {variable: public_point(variable, rng, positive) for variable in whole.variables}
        leaves = point | {field: columns[row.name] for field, row in rows.items()}
        one = float(evaluate(whole, leaves))
        last: dict[Expression, Any] = {row: np.moveaxis(columns[row.name], 0, -1) for row in rows.values()}
        last |= {variable: np.asarray(value)[..., None] for variable, value in point.items()}
        values = over_records([found.record], last)[found.record] * np.ones(count)
        rest = float(evaluate(found.rest, point)) if found.rest.variables else float(found.rest.number)
        two = float(values.mean()) + rest
        size = float(np.abs(values).mean()) + abs(rest)
        if np.isfinite(one) and np.isfinite(two) and not abs(one - two) <= SAME * max(size, abs(one)):
            raise TemplateError(
                f"from_problem: the objective was taken apart into terms of other values ({two:.12g} instead of {one:.12g}). "
                "Please report it; declare the loss of one record with dp.Template."
            )
