"""Where the atoms of a regularizer are defined, as constraints of the program.

CVXPY keeps such domains implicitly: ``power(w, 3)`` is convex because w is not negative there.  Compiled code would leave them.
So each domain must contain K, or it becomes a part of K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.lambda_max import lambda_max
from cvxpy.atoms.quad_over_lin import quad_over_lin

from dpconvex.core.expansion import Expander
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.reader import WHOLE_LINE
from dpconvex.errors import NotPrivate
from dpconvex.geometry.feasible_set import FeasibleSet

__all__ = ["implicit_constraints", "is_symmetric"]

# Powers that ask nothing of their argument.
EVERYWHERE = (0.0, 1.0, *WHOLE_LINE, 128.0, 256.0, 512.0, 1024.0)
# Entries of a symmetric matrix may differ from their mirror images by this fraction of the largest.
SYMMETRIC = 1e-12


@dataclass(frozen=True, eq=False)
class Condition:
    """What the domain of an atom asks of one of its arguments.

    Attributes
    ----------
    atom, argument : cvxpy.Expression
    kind : {"not negative", "positive", "semidefinite", "symmetric"}
    """

    atom: cp.Expression
    argument: cp.Expression
    kind: str


def conditions(expression: Any) -> Iterator[Condition]:
    """Yield the conditions of all atoms in a tree."""
    for argument in expression.args:
        yield from conditions(argument)
    kind = type(expression)
    if kind in (cp.log, cp.entr) or (kind in (Power, PowerApprox) and float(expression.p.value) not in EVERYWHERE):
        yield Condition(expression, expression.args[0], "not negative")
    elif kind in (cp.kl_div, cp.rel_entr):
        for argument in expression.args:
            yield Condition(expression, argument, "not negative")
    elif kind is quad_over_lin:
        yield Condition(expression, expression.args[1], "positive")
    elif kind is cp.log_det:
        yield Condition(expression, expression.args[0], "semidefinite")
    elif kind is lambda_max:
        yield Condition(expression, expression.args[0], "symmetric")


def implicit_constraints(regularizer: cp.Expression, expander: Expander, feasible: FeasibleSet) -> list[cp.Constraint]:
    """Return the domains of a regularizer's atoms that do not contain K, as constraints.

    Raises
    ------
    NotPrivate
        If a domain is not closed, or cannot be stated as a convex constraint, and is not known to contain K.
    """
    found: list[cp.Constraint] = []
    for condition in conditions(regularizer):
        argument = condition.argument
        if condition.kind in ("symmetric", "semidefinite"):
            check_symmetric(condition, expander)
            if condition.kind == "semidefinite" and argument.variables():
                found.append(argument >> 0)
            continue
        least = lower_bound(argument, expander, feasible)
        if condition.kind == "positive" and not least > 0:
            raise NotPrivate(
                "the divisor of squares in the regularizer is not known to be positive",
                condition.atom,
                "divide by a positive number, or bound the divisor away from zero by a constraint",
            )
        if least >= 0 or (not argument.is_affine() and argument.is_nonneg()):
            continue
        if not argument.is_concave() or not argument.variables():
            raise NotPrivate(
                "an atom of the regularizer is defined only where its argument is not negative, which is not known",
                condition.atom,
                "write an argument whose sign follows from its parts, or constrain the variables",
            )
        found.append(argument >= 0)
    return found


def lower_bound(argument: Any, expander: Expander, feasible: FeasibleSet) -> float:
    """Bound the least entry of a public expression over K; minus infinity if it is not affine."""
    if not argument.is_affine():
        return -np.inf
    return float(lower_bounds(expander.expand(argument), feasible).min(initial=np.inf))


def lower_bounds(argument: Polynomial, feasible: FeasibleSet) -> Any:
    """Bound the entries of an affine function of the parameters from below over K, coordinate by coordinate."""
    linear, constant = argument.part(with_theta=True), argument.part(with_theta=False)
    ends = [linear.coefficient * bound[linear.coordinate] for bound in (feasible.lower, feasible.upper)]
    least = np.bincount(linear.entry, weights=np.minimum(*ends), minlength=argument.size)
    return least + np.bincount(constant.entry, weights=constant.coefficient, minlength=argument.size)


def check_symmetric(condition: Condition, expander: Expander) -> None:
    """Refuse a spectral function of a matrix that is not symmetric for all parameters: CVXPY would add that as a constraint."""
    if not (condition.argument.is_affine() and is_symmetric(expander.expand(condition.argument))):
        raise NotPrivate(
            f"{type(condition.atom).__name__} is defined for symmetric matrices, and this one is not known to be symmetric",
            condition.atom,
            "declare the variable symmetric (or PSD), and keep the matrix symmetric",
        )


def is_symmetric(matrix: Polynomial) -> bool:
    """Whether an affine matrix is symmetric for all parameters and records, but for the rounding of its coefficients."""
    difference = matrix + matrix.gathered(matrix.numbers().T).scaled(-1.0)
    return bool((np.abs(difference.coefficient) <= SYMMETRIC * np.abs(matrix.coefficient).max(initial=0.0)).all())
