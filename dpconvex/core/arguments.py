"""What kind of number an argument is; a truth value is none."""

import sys

import numpy as np


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy, no larger than floating-point numbers go."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float | np.integer | np.floating)


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of Python or NumPy, and large enough."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)
