"""Dispatch of power to charging points on a feeder, with limits that households' private use of it leaves."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def program(
    *, points: int, lines: int = 3, contract: float = 40.0, household: float = 5.0, reserve: float = 2.0
) -> tuple[cp.Problem, dp.PrivateBound]:
    """Return the problem, and the private limits that its parameter stands for.

    Charging points sit behind the lines of a feeder, in turn.  Each wants power as declared beforehand, and the operator
    minimises the squared shortfall.  What a line can carry for them is its rating less what the households behind it use,
    which is private: one household uses between 0 and `household`, so one more or less moves one line's limit by that at most.
    A line's rating leaves `reserve` whatever the households use, since their fuses add up to no more.

    Parameters
    ----------
    points : int
        Number of charging points.
    lines : int
        Number of lines.
    contract : float
        Most power of all points together, in kW.
    household : float
        Most power that one household's fuse allows, in kW.
    reserve : float
        What every line carries for the points at least, in kW.

    Examples
    --------
    >>> import dpconvex as dp
    >>> problem, limits = program(points=6)
    >>> privacy = dp.Privacy(epsilon=1, delta=1e-6, adjacency="add-remove")
    >>> round(dp.verify_bounded(problem, [limits], privacy).noises["limits"].tightening, 1)  # 5 log(1 + (e - 1) / 2e-6), in kW
    68.3
    >>> values = [150.0, 200.0, 90.0]
    >>> release = dp.solve_bounded(problem, {limits: values}, privacy)
    >>> bool((load(release["power"], lines=3) <= values).all())
    True
    """
    limits = dp.PrivateBound("limits", shape=lines, sensitivity=household, minimum=reserve)
    power = cp.Variable(points, nonneg=True, name="power")
    wanted = 4.0 + np.arange(points) % 4
    behind = np.equal.outer(np.arange(lines), np.arange(points) % lines).astype(float)
    problem = cp.Problem(
        cp.Minimize(cp.sum_squares(wanted - power)),
        [behind @ power <= limits.parameter, power <= wanted, cp.sum(power) <= contract],
    )
    return problem, limits


def load(power: np.ndarray, *, lines: int) -> np.ndarray:
    """Return the power that each line carries."""
    return np.array([power[line::lines].sum() for line in range(lines)])
