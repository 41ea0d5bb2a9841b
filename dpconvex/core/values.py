"""Values of CVXPY trees at given values of their leaves, by CVXPY's own arithmetic, with nobody's variables set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints.nonpos import Inequality, NonNeg, NonPos
from cvxpy.constraints.psd import PSD
from cvxpy.constraints.second_order import SOC
from cvxpy.constraints.zero import Equality, Zero

from dpconvex.errors import DPConvexError

__all__ = ["Evaluation", "public_point"]


@dataclass
class Evaluation:
    """Evaluates trees at one point, each node once.

    Attributes
    ----------
    leaves : mapping of int to array_like
        Values of variables and fields, by the id of their objects.
    magnitude : float
        The largest absolute value of any node so far: what differences of values are to be compared with.
    """

    leaves: Mapping[int, Any]
    magnitude: float = 0.0
    _memory: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def value(self, node: Any) -> Any:
        """Return the value of an expression; NaN or infinite outside its domain."""
        known = self._memory.get(id(node))
        if known is None:
            if id(node) in self.leaves:
                result = self.leaves[id(node)]
            elif node.args:
                result = numeric(node, [self.value(argument) for argument in node.args])
            else:
                result = node.value
            result = np.asarray(result.toarray() if sp.issparse(result) else result)
            self.magnitude = max(self.magnitude, float(np.abs(result).max(initial=0.0)))
            known = self._memory[id(node)] = (node, result)
        return known[1]

    def measure(self, node: Any) -> float | None:
        """Return the value of a scalar expression, or the `excess` of a constraint."""
        return self.excess(node) if isinstance(node, cp.Constraint) else float(np.reshape(self.value(node), ()))

    def excess(self, constraint: cp.Constraint) -> float | None:
        """By how much a constraint is missed (below 0 if it holds strictly); None for cones that have no simple measure."""
        values = [self.value(argument) for argument in constraint.args]
        if isinstance(constraint, Inequality):
            return float(np.max(values[0] - values[1]))
        if isinstance(constraint, NonPos | NonNeg):
            return float(np.max(values[0] if isinstance(constraint, NonPos) else -values[0]))
        if isinstance(constraint, Equality | Zero):
            return float(np.abs(values[0] - values[1] if isinstance(constraint, Equality) else values[0]).max())
        if isinstance(constraint, PSD):
            symmetric = (values[0] + values[0].T) / 2
            return float(-np.linalg.eigvalsh(symmetric)[0]) if np.isfinite(symmetric).all() else None
        if isinstance(constraint, SOC) and values[0].size == 1:
            return float(np.linalg.norm(values[1]) - values[0].ravel()[0])
        return None


def numeric(node: Any, values: list[Any]) -> Any:
    """Apply an atom to numbers by CVXPY's code; NaN where that has no value."""
    try:
        with np.errstate(all="ignore"):
            return node.numeric(values)
    except (ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError, DPConvexError):
        return np.full(node.shape, np.nan)


def public_point(variable: cp.Variable, rng: np.random.Generator, positive: bool) -> Any:
    """Draw a value of a variable that respects its symmetry and its sign."""
    value = rng.normal(size=variable.shape)
    has = variable.attributes
    if positive or has["nonneg"] or has["pos"]:
        value = np.abs(value)
    if has["nonpos"] or has["neg"]:
        value = -np.abs(value)
    if variable.ndim == 2 and variable.is_symmetric():
        value = (value + value.T) / 2
        if positive or has["PSD"] or has["NSD"]:
            value = (-1.0 if has["NSD"] else 1.0) * (value @ value.T)
    return value
