"""The atoms, a family in each file; importing the package registers them all."""

from dpconvex.core.atom import ATOMS
from dpconvex.core.atoms import matrices
from dpconvex.core.atoms.declared import DECLARED
from dpconvex.core.atoms.divergences import KL_DIV, REL_ENTR
from dpconvex.core.atoms.exponentials import ENTR, EXP, LOG, LOG_SUM_EXP, LOGISTIC, XEXP
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, MIN, MINIMUM, SUM_LARGEST
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS, HUBER, POWER
from dpconvex.core.atoms.products import DIVIDE, MULTIPLY
from dpconvex.core.atoms.squares import QUAD_OVER_LIN
from dpconvex.core.atoms.sums import ADD, NEGATE, SUMMED

__all__ = ["ATOMS", "ENTRYWISE", "SYMMETRIC", "matrices"]

# Atoms that are applied entry by entry, and those of all entries of an array in any order.
CURVED = (LOGISTIC, HUBER, ABS, EXP, XEXP, LOG, ENTR, MAXIMUM, MINIMUM, POWER, KL_DIV, REL_ENTR, DECLARED)
ENTRYWISE = (*CURVED, MULTIPLY, DIVIDE, ADD, NEGATE)
SYMMETRIC = (LOG_SUM_EXP, MAX, MIN, NORM, QUAD_OVER_LIN, SUM_LARGEST, SUMMED)
