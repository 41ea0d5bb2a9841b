"""The atoms, a family in each file; importing the package registers them all."""

from dpconvex.expressions.atom import ATOMS
from dpconvex.expressions.atoms import matrices, norms
from dpconvex.expressions.atoms.arithmetic import ADD, DIVIDE, MULTIPLY, NEGATE
from dpconvex.expressions.atoms.exponentials import EXP, LOG, LOGISTIC, REL_ENTR
from dpconvex.expressions.atoms.extremes import MAXIMUM
from dpconvex.expressions.atoms.normal import NEG_LOG_NORMCDF
from dpconvex.expressions.atoms.powers import ABS, DECLARED, HUBER, POWER

__all__ = ["ATOMS", "ENTRYWISE", "matrices", "norms"]

# Atoms that are applied entry by entry.
ENTRYWISE = (
    LOGISTIC,
    HUBER,
    ABS,
    EXP,
    LOG,
    MAXIMUM,
    POWER,
    REL_ENTR,
    DECLARED,
    NEG_LOG_NORMCDF,
    MULTIPLY,
    DIVIDE,
    ADD,
    NEGATE,
)
