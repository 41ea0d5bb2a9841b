"""Numbers that are too large or too small to prove anything with in double precision.

Proofs square lengths, and multiply them with squared bounds of records: beyond these magnitudes squares underflow, so that a
direction vanishes, or overflow, so that a comparison is made with what is no number.  Nobody measures in such units.
"""

from collections.abc import Sequence

import numpy as np

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.expression import Expression
from dpconvex.errors import NotPrivate

# Coefficients and bounds of records: squares of products of two of them are ordinary numbers.
LEAST, MOST = 1e-75, 1e75
# Bounds of parameters, and gradient bounds and curvatures: their squares, times a few, are ordinary numbers.
WIDEST = STEEPEST = 1e100

REMEDY = "measure it in other units: multiply the field, the parameter or the loss by a constant"


def check_magnitudes(form: LossForm) -> None:
    """Refuse coefficients, bounds of records and bounds of parameters whose squares double precision does not hold."""
    for base in form.bases.bases:
        check(np.append(base.extent, base.norm), LEAST, MOST, f"the field {base.name} has bounds", base.name)
    extent = np.maximum(np.abs(form.bases.lower), np.abs(form.bases.upper))
    for leaf in {leaf: None for group in form.leaves for leaf in group}:
        polynomial = form.polynomial(leaf)
        coefficients = np.abs(polynomial.coefficient)
        monomials = np.append(extent, 1.0)[polynomial.monomial].prod(axis=1)
        for products in (monomials, coefficients * monomials):
            check(products, LEAST**2, MOST**2, "an expression has products of fields", leaf)
        check(coefficients, LEAST, MOST, "an expression has coefficients", leaf)
    bounds = np.abs(np.concatenate([form.feasible.lower, form.feasible.upper]))
    check(bounds[np.isfinite(bounds)], 0.0, WIDEST, "the parameters have bounds", form.feasible.describe())


def check(sizes: np.ndarray, least: float, most: float, what: str, where: Expression | str) -> None:
    """Refuse a size other than 0 that is not between two others, or is no number."""
    sizes = sizes[sizes != 0]
    outside = sizes[~((sizes >= least) & (sizes <= most))]
    if len(outside):
        raise NotPrivate(f"{what} of size {outside[0]:.3g}, too far from 1 for double precision", where, REMEDY)


def check_steepness(sizes: Sequence[float], loss: Expression) -> None:
    """Refuse slopes and curvatures whose squares overflow; what is no number is refused too."""
    if not all(size <= STEEPEST for size in sizes):
        raise NotPrivate("the loss is so steep that its constants overflow", loss, "scale the loss or the fields down")
