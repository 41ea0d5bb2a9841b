"""Reads a CVXPY problem that is written over all records as the parts of a template: record, loss of one record, public rest."""

from collections.abc import Mapping
from typing import Any

import cvxpy as cp

from dpconvex.core.expression import Expression, Field
from dpconvex.core.from_cvxpy import Reader, field_of
from dpconvex.core.record_domains import Choice, Domain
from dpconvex.core.rows import split
from dpconvex.core.to_cvxpy import Writer
from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.language.record import Record


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
        mentioned = {id(parameter) for parameter in constraint.parameters()}
        for symbol, _ in symbols:
            if id(symbol) in mentioned:
                remedy = "constraints are public: move what depends on records into the objective"
                raise NotPrivate(f"a constraint mentions the data {symbol.name()!r}", constraint, remedy)
    whole = reader.expression(objective, "the objective")
    rows: dict[Expression, Field] = {
        field_of(symbol): Field.of(symbol.shape[1:], symbol.name(), ("row", symbol.id)) for symbol, _ in symbols
    }
    found = split(whole, rows, count)
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
        symbol = known.get(key.name() if isinstance(key, cp.Parameter) else key)
        if symbol is None or (isinstance(key, cp.Parameter) and symbol is not key):
            raise TemplateError(f"from_problem: {key!r} is no parameter of the problem; these are {sorted(known)}.")
        row = () if isinstance(domain, Choice) else domain.shape
        if not symbol.shape or symbol.shape[1:] != row or symbol.shape[0] < 2:
            raise TemplateError(
                f"from_problem: the parameter {symbol.name()!r} has shape {symbol.shape}, and must have a row of the shape {row} "
                f"of the declared domain {domain!r} for each of at least two records."
            )
        symbols.append((symbol, domain))
    counts = {symbol.name(): int(symbol.shape[0]) for symbol, _ in symbols}
    if len(set(counts.values())) > 1:
        raise TemplateError(f"from_problem: data parameters must have as many rows each; they have {counts}.")
    return symbols, counts[symbols[0][0].name()]


def symbol_or_label(value: Any) -> Any:
    try:
        return value if isinstance(value, cp.Expression) else cp.Constant(float(value))
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"from_problem: a label that the objective computes with is a number, not {value!r}."
        ) from error
