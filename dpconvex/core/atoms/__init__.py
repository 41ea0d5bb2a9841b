"""The atoms, a family in each file; importing the package registers them all."""

from dpconvex.core.atom import ATOMS
from dpconvex.core.atoms import (
    arrangement,
    declared,
    divergences,
    exponentials,
    extremes,
    matrices,
    norms,
    powers,
    products,
    squares,
    sums,
)

__all__ = [
    "ATOMS",
    "arrangement",
    "declared",
    "divergences",
    "exponentials",
    "extremes",
    "matrices",
    "norms",
    "powers",
    "products",
    "squares",
    "sums",
]
