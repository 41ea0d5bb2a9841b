"""A private learner, declared: a record, a loss for one record, a public regularizer and public constraints.

The declaration is public.  It holds no data, and nothing in it may depend on any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import TemplateError
from dpconvex.normal_form import normal_forms
from dpconvex.record import Record

__all__ = ["Template"]

Predict = Callable[[Mapping[str, NDArray[np.float64]], NDArray[np.float64]], NDArray[Any]]


class Template:
    """A learner that minimises the mean loss plus a regularizer, subject to constraints.

    Parameters
    ----------
    record : Record
        What is publicly known about one record.
    loss : callable
        ``loss(**fields)`` returns the loss of one record as a scalar CVXPY expression.  Continuous fields arrive as CVXPY
        parameters, discrete fields as plain Python values; it is called once for every combination of the latter.
    regularizer : cvxpy.Expression or float
        Convex, public; added to the *mean* loss.
    constraints : sequence of cvxpy.Constraint
        Convex, public.  Attributes of variables (``PSD=True``, ``nonneg=True``, ``bounds=...``) count as constraints.
    predict : callable, optional
        ``predict(parameters, x)``: a NumPy function of the released parameters and a batch of features.
    source : tuple of (str, dict), optional
        Name and options of the problem file that built this template, so that a saved release can find it again.

    Attributes
    ----------
    losses : tuple of cvxpy.Expression
        The loss for each entry of ``record.combinations``, in normal form (docs/theory.md, section 2).
    written : tuple of cvxpy.Expression
        The same losses as `loss` returned them.
    variables : tuple of cvxpy.Variable
        The parameters of the learner, in order of first appearance.

    Raises
    ------
    TemplateError
        If the pieces have the wrong type or shape, or variables share a name.

    Examples
    --------
    >>> from dpconvex.record import Ball, Choice
    >>> w = cp.Variable(3, name="w")
    >>> template = Template(
    ...     record=Record(x=Ball(3), y=Choice([-1, 1])),
    ...     loss=lambda x, y: cp.logistic(-y * (x @ w)),
    ...     regularizer=0.01 * cp.sum_squares(w),
    ... )
    >>> len(template.losses)
    2
    """

    def __init__(
        self,
        record: Record,
        loss: Callable[..., Any],
        regularizer: Any = 0.0,
        constraints: Sequence[cp.Constraint] = (),
        predict: Predict | None = None,
        source: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        if not isinstance(record, Record):
            raise TemplateError(f"Template: record must be a Record, not {type(record).__name__}.")
        if not callable(loss):
            raise TemplateError("Template: loss must be a function of the record's fields.")
        self.record = record
        self.losses: tuple[cp.Expression, ...] = tuple(
            scalar(f"loss for {values}" if values else "loss", self._call(loss, values))
            for values in record.combinations
        )
        self.regularizer: cp.Expression = scalar("regularizer", regularizer)
        self.constraints: tuple[cp.Constraint, ...] = tuple(constraints)
        for constraint in self.constraints:
            if not isinstance(constraint, cp.Constraint):
                raise TemplateError(f"Template: {constraint!r} is not a CVXPY constraint.")
        if predict is not None and not callable(predict):
            raise TemplateError("Template: predict must be a function of (parameters, x).")
        self.predict = predict
        self.source = source
        self.variables: tuple[cp.Variable, ...] = self._variables()
        self.written = self.losses
        self.losses = normal_forms(self.written, self.variables, record)

    def __repr__(self) -> str:
        names = ", ".join(f"{v.name()}{list(v.shape)}" for v in self.variables)
        return f"Template({self.record!r}, parameters: {names})"

    def _call(self, loss: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        arguments = {name: self.record.parameters.get(name, values.get(name)) for name in self.record.fields}
        try:
            return loss(**arguments)
        except TypeError as error:
            if "argument" in str(error):
                fields = ", ".join(self.record.fields)
                raise TemplateError(f"Template: loss must accept the record's fields ({fields}): {error}.") from error
            raise

    def _variables(self) -> tuple[cp.Variable, ...]:
        found: dict[int, cp.Variable] = {}
        for expression in (*self.losses, self.regularizer, *self.constraints):
            for variable in sorted(expression.variables(), key=lambda v: v.id):
                found.setdefault(variable.id, variable)
        variables = tuple(found[key] for key in sorted(found))
        names = [variable.name() for variable in variables]
        for name in names:
            if names.count(name) > 1:
                raise TemplateError(f"Template: two variables are called {name!r}; give each its own name.")
        return variables


def scalar(what: str, value: Any) -> cp.Expression:
    """Return `value` as a scalar CVXPY expression, or say what is wrong with it."""
    if value is None:
        raise TemplateError(f"Template: the {what} is None; does the function return its expression?")
    if value is None:
        raise TemplateError(f"Template: the {what} is not a CVXPY expression but None; return one.")
    try:
        expression = cp.Expression.cast_to_const(value)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"Template: the {what} is not a CVXPY expression ({error}).") from error
    if not isinstance(expression, cp.Expression):
        raise TemplateError(f"Template: the {what} is not a CVXPY expression but {type(value).__name__}.")
    if not expression.is_scalar():
        raise TemplateError(f"Template: the {what} must be a scalar, but it has shape {expression.shape}.")
    return expression
