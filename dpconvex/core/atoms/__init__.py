"""The atoms, a family in each file; importing the package registers them all."""

from dpconvex.core.atom import ATOMS
from dpconvex.core.atoms import matrices
from dpconvex.core.atoms.arithmetic import ADD, DIVIDE, MULTIPLY, NEGATE, SUMMED
from dpconvex.core.atoms.exponentials import EXP, LOG, LOG_SUM_EXP, LOGISTIC, REL_ENTR, XEXP
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST
from dpconvex.core.atoms.norms import NORM, QUAD_OVER_LIN
from dpconvex.core.atoms.powers import ABS, DECLARED, HUBER, POWER

__all__ = ["ATOMS", "ENTRYWISE", "SYMMETRIC", "matrices"]

# Atoms that are applied entry by entry, and those of all entries of an array in any order.
ENTRYWISE = (LOGISTIC, HUBER, ABS, EXP, XEXP, LOG, MAXIMUM, POWER, REL_ENTR, DECLARED, MULTIPLY, DIVIDE, ADD, NEGATE)
SYMMETRIC = (LOG_SUM_EXP, MAX, NORM, QUAD_OVER_LIN, SUM_LARGEST, SUMMED)
