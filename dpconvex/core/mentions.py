"""Which subexpressions mention variables, and which mention parameters.

CVXPY answers such questions by a walk through the whole subexpression; asked at every node, that is quadratic in its depth.
"""

from __future__ import annotations

import cvxpy as cp
from cvxpy.utilities.canonical import Canonical

__all__ = ["Mentions"]


class Mentions:
    """Answers that are remembered, node by node.

    Examples
    --------
    >>> x, t = cp.Variable(name="x"), cp.Parameter(name="t")
    >>> mentions = Mentions()
    >>> mentions.variables(t * x), mentions.parameters(t * x), mentions.variables(t + 1)
    (True, True, False)
    """

    def __init__(self) -> None:
        # The expressions are kept, so that their ids stay their own.
        self._variables: dict[int, tuple[cp.Expression, bool]] = {}
        self._parameters: dict[int, tuple[cp.Expression, bool]] = {}

    def variables(self, expression: cp.Expression) -> bool:
        """Whether a variable occurs in an expression."""
        found = self._variables.get(id(expression))
        if found is None:
            # Leaves, and atoms with options that are expressions, have methods of their own.
            if type(expression).variables is Canonical.variables:
                answer = any(self.variables(argument) for argument in expression.args)
            else:
                answer = bool(expression.variables())
            found = self._variables[id(expression)] = (expression, answer)
        return found[1]

    def parameters(self, expression: cp.Expression) -> bool:
        """Whether a parameter, such as a field of the record, occurs in an expression."""
        found = self._parameters.get(id(expression))
        if found is None:
            if type(expression).parameters is Canonical.parameters:
                answer = any(self.parameters(argument) for argument in expression.args)
            else:
                answer = bool(expression.parameters())
            found = self._parameters[id(expression)] = (expression, answer)
        return found[1]
