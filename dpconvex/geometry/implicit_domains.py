"""Where the atoms of a regularizer are defined, as constraints of the program.

CVXPY keeps such domains implicitly: ``power(w, 3)`` is convex because w is not negative there.  Compiled code would leave them.
So each domain must contain K, or it becomes a part of K.
"""

import numpy as np

from dpconvex.core.constraint import Constraint
from dpconvex.core.discipline import is_concave, sign
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate
from dpconvex.geometry.constraints import Condition, domains, not_negative
from dpconvex.geometry.feasible_set import FeasibleSet

# Entries of a symmetric matrix may differ from their mirror images by this fraction of the largest.
SYMMETRIC = 1e-12


def implicit_constraints(regularizer: Expression, expander: Expander, feasible: FeasibleSet) -> list[Constraint]:
    """Return the domains of a regularizer's atoms that do not contain K, as constraints."""
    found: list[Constraint] = []
    for condition in domains(regularizer):
        argument = condition.argument
        if condition.kind in ("symmetric", "semidefinite"):
            check_symmetric(condition, expander)
            if condition.kind == "semidefinite" and argument.variables:
                found.append(Constraint("semidefinite", (argument,)))
            continue
        least = feasible.least_entry(argument)
        if condition.kind == "positive" and not least > 0:
            raise NotPrivate(
                "the divisor of squares in the regularizer is not known to be positive",
                condition.atom,
                "divide by a positive number, or bound the divisor away from zero by a constraint",
            )
        if least >= 0 or (not argument.is_affine and sign(argument) == 1):
            continue
        if not is_concave(argument) or not argument.variables:
            raise NotPrivate(
                "an atom of the regularizer is defined only where its argument is not negative, which is not known",
                condition.atom,
                "write an argument whose sign follows from its parts, or constrain the variables",
            )
        found.append(not_negative(argument))
    return found


def check_symmetric(condition: Condition, expander: Expander) -> None:
    """Refuse a spectral function of a matrix that is not symmetric for all parameters: CVXPY would add that as a constraint."""
    name = condition.atom.atom.name if condition.atom.atom is not None else "the function"
    if not (condition.argument.is_affine and is_symmetric(expander.expand(condition.argument))):
        raise NotPrivate(
            f"{name} is defined for symmetric matrices, and this one is not known to be symmetric",
            condition.atom,
            "declare the variable symmetric (or PSD), and keep the matrix symmetric",
        )


def is_symmetric(matrix: Polynomial) -> bool:
    """Whether an affine matrix is symmetric for all parameters and records, but for the rounding of its coefficients."""
    difference = matrix + matrix.gathered(matrix.numbers().T).scaled(-1.0)
    return bool((np.abs(difference.coefficient) <= SYMMETRIC * np.abs(matrix.coefficient).max(initial=0.0)).all())
