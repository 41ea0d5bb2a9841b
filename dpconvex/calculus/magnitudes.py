"""Numbers that are too large or too small to prove anything with in double precision.

Proofs square lengths, and multiply them with squared bounds of records: beyond these magnitudes squares underflow, so that a
direction vanishes, or overflow, so that a comparison is made with what is no number.  Nobody measures in such units.
"""

from __future__ import annotations

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
        extents = np.append(base.extent, base.norm)
        if outside(extents, LEAST, MOST):
            raise NotPrivate(
                f"the field {base.name} is bounded by a number as large or as small as {odd(extents):.3g}, too far from 1 for "
                "bounds in double precision",
                base.name,
                REMEDY,
            )
    extent = np.maximum(np.abs(form.bases.lower), np.abs(form.bases.upper))
    for leaf in {leaf: None for group in form.leaves for leaf in group}:
        polynomial = form.polynomial(leaf)
        coefficients = np.abs(polynomial.coefficient)
        monomials = np.append(extent, 1.0)[polynomial.monomial].prod(axis=1)
        if outside(monomials, LEAST**2, MOST**2) or outside(coefficients * monomials, LEAST**2, MOST**2):
            raise NotPrivate(
                f"a product of fields is as large or as small as {odd(monomials):.3g}, too far from 1 for double precision",
                leaf,
                REMEDY,
            )
        if outside(coefficients, LEAST, MOST):
            raise NotPrivate(
                f"an expression has a coefficient of size {odd(coefficients):.3g}, too far from 1 for bounds in double precision",
                leaf,
                REMEDY,
            )
    bounds = np.abs(np.concatenate([form.feasible.lower, form.feasible.upper]))
    bounds = bounds[np.isfinite(bounds)]
    if outside(bounds, 0.0, WIDEST):
        raise NotPrivate(
            f"the parameters are bounded by numbers as large as {odd(bounds):.3g}, too far from 1 for double precision",
            form.feasible.describe(),
            "leave the parameters unbounded, or bound them by an ordinary number",
        )


def check_steepness(sizes: Sequence[float], loss: Expression) -> None:
    """Refuse slopes and curvatures whose squares overflow; what is no number is refused too."""
    if not all(size <= STEEPEST for size in sizes):
        raise NotPrivate("the loss is so steep that its constants overflow", loss, "scale the loss or the fields down")


def outside(sizes: np.ndarray, least: float, most: float) -> bool:
    """Whether a size other than 0 is not between two others; NaN is not."""
    others = sizes[sizes != 0]
    return not bool(((others >= least) & (others <= most)).all())


def odd(sizes: np.ndarray) -> float:
    """Return the size that is farthest from 1."""
    others = sizes[sizes != 0]
    with np.errstate(divide="ignore"):
        return float(others[np.argmax(np.abs(np.log(others)))])
