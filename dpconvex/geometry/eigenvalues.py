"""How far K keeps the eigenvalues of a symmetric variable from zero."""

from __future__ import annotations

import math

import numpy as np

from dpconvex.core.expression import Expression
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.semidefinite import Spectrum

# Room for the rounding of a shift's eigenvalues.
SLACK = 1e-12


def least_eigenvalue(matrix: Expression, feasible: FeasibleSet) -> float:
    """Bound the eigenvalues of a symmetric variable from below over K; minus infinity of anything else.

    >>> from dpconvex.core.constraint import Constraint
    >>> from dpconvex.core.expression import Variable
    >>> from dpconvex.core.parameter_space import Space
    >>> from dpconvex.geometry.feasible_set import feasible_set
    >>> P = Variable.of((2, 2), "P", 1, {"symmetric": True})
    >>> K = feasible_set(Space([P]), [Constraint("semidefinite", (P - 0.5 * np.eye(2),))])
    >>> round(least_eigenvalue(P, K), 9)
    0.5
    """
    found = -math.inf
    for block in feasible.space.blocks.values():
        if block.variable is matrix and block.dim == 1:
            found = float(feasible.lower[block.start])
        for piece in feasible.declared if block.variable is matrix and block.symmetric else ():
            if isinstance(piece, Spectrum) and np.array_equal(piece.coordinates, np.arange(block.dim) + block.start):
                shift = np.linalg.eigvalsh(piece.shift)
                found = max(found, float(shift[0]) + piece.lower - SLACK * float(np.abs(shift).max()))
    return found
