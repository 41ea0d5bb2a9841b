"""Loss functions of the papers that CVXPY has no name for, written with the atoms that it has."""

import math
from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.core.plain_data import is_real
from dpconvex.errors import TemplateError


def huber_hinge(expr: Any, width: float) -> cp.Expression:
    """Smooth the hinge ``max(m, 0)`` of margin violations m by a parabola on ``|m| <= width``, elementwise.

    With h = `width` it is ``huber(pos(m + h), 2h) / (4h)``: 0 for m < -h, (m + h)²/(4h) for -h <= m <= h, m for m > h; convex, at
    most h/4 above the hinge, with slopes from 0 to 1 and curvature 1/(2h) for -h < m < h.  Of m = 1 - z, for a margin z that
    should be at least 1, it is the Huber loss of Chaudhuri, Monteleoni and Sarwate (2011), equation 35.

    Parameters
    ----------
    expr : cvxpy.Expression or array_like
        Margin violations, finite and real.  For a DCP loss it must be convex.
    width : float
        Half the length of the interval on which the hinge is rounded off; positive and finite.

    Examples
    --------
    >>> huber_hinge([-1.0, 0.0, 0.5, 2.0], width=0.5).value
    array([0.   , 0.125, 0.5  , 2.   ])
    """
    if not (is_real(width) and 0 < width < math.inf) or math.isinf(1 / (2 * float(width))):
        raise TemplateError(f"huber_hinge: width must be a positive, finite number, not {width!r}.")
    try:
        m = cp.Expression.cast_to_const(expr if isinstance(expr, cp.Expression) else np.asarray(expr, dtype=float))
        if not m.is_real() or (isinstance(m, cp.Constant) and not np.isfinite(m.value).all()):
            raise ValueError("they must be real and finite")
    except (TypeError, ValueError) as error:
        raise TemplateError(f"huber_hinge: margin violations are a CVXPY expression or an array ({error}).") from error
    h = float(width)
    return cp.huber(cp.maximum(m + h, 0), 2 * h) / (4 * h)
