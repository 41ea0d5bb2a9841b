"""A private right-hand side of a constraint: what is public about it, and the parameter that stands for it."""

import math
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.arguments import is_real, is_whole
from dpconvex.errors import TemplateError
from dpconvex.language.record import Sealed

Array = NDArray[np.float64]


class PrivateBound(Sealed):
    """A private bound in the constraints of an otherwise public problem, such as a capacity that people's data decide.

    Write `parameter` into the constraints.  Values are given to `solve_bounded` only, which tightens them by noise first
    (A. Muñoz Medina, U. Syed, S. Vassilvitskii, E. Vitercik, "Private optimization without constraint violations", 2021;
    docs/theory.md, section 19).

    Parameters
    ----------
    name : str
        Of the parameter, and of the noisy values in a release.
    shape : int or tuple of int
        Of the values; () for a single number.
    sensitivity : float
        Public: the most by which one person can change the values, as the sum of absolute changes of all entries, in their unit,
        whatever the data.  Of neighbours in the sense of the promise ("replace-one" or "add-remove").
    minimum : array_like
        Public: what each value is at least, whatever the data; a number or an array of the shape.

    Attributes
    ----------
    parameter : cvxpy.Parameter
        It holds public and noisy values only; it is declared non-negative if the minimum is.

    Examples
    --------
    >>> capacity = PrivateBound("capacity", shape=2, sensitivity=1.0, minimum=[0.0, 5.0])
    >>> capacity
    PrivateBound('capacity', (2,), sensitivity 1)
    >>> print(cp.Variable(2, name="x") <= capacity.parameter)
    x <= capacity
    """

    def __init__(
        self, name: str, shape: int | tuple[int, ...] = (), *, sensitivity: float, minimum: ArrayLike = 0.0
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TemplateError(f"PrivateBound: the name must be a text, not {name!r}.")
        axes = shape if isinstance(shape, tuple) else (shape,)
        if not all(is_whole(n, 1) for n in axes):
            raise TemplateError(f"PrivateBound: the shape must be made of positive integers, not {shape!r}.")
        if not (is_real(sensitivity) and 1e-250 < sensitivity < 1e250):
            raise TemplateError(f"PrivateBound: sensitivity must be a positive, finite number, not {sensitivity!r}.")
        self.name, self.shape, self.sensitivity = name, tuple(int(n) for n in axes), float(sensitivity)
        try:
            least = np.array(np.broadcast_to(np.asarray(minimum, dtype=float), self.shape))
        except (TypeError, ValueError) as error:
            raise TemplateError(f"PrivateBound: the minimum must be numbers of the shape {self.shape}.") from error
        if not np.isfinite(least).all():
            raise TemplateError("PrivateBound: the minimum must be finite: at it, the problem has to have an answer.")
        least.setflags(write=False)
        self.minimum: Array = least
        self.parameter: Any = cp.Parameter(self.shape, name=name, nonneg=bool((least >= 0).all()))
        self._sealed = True

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"PrivateBound({self.name!r}, {self.shape}, sensitivity {self.sensitivity:g})"
