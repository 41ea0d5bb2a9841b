"""Conic programs over a public set: its standard form, minima of quadratics, and points far inside."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from dpconvex.expressions.expression import Constraint, Expression
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.to_cvxpy import pose, solve_quietly
from dpconvex.util.arrays import Array
from dpconvex.util.silence import silence


@dataclass(frozen=True, eq=False)
class ConicForm:
    """A public set in the form of conic solvers: ``offset - matrix x`` in Clarabel's cones; and a cost, ``x' P x / 2 + c' x``."""

    matrix: sp.csc_array
    offset: Array
    cones: list[Any]
    columns: slice  # places of the parameters in x; the others are auxiliary variables
    cost: tuple[Any, Array]  # P and c

    @classmethod
    def of(cls, space: Space, constraints: Sequence[Constraint], cost: Expression | None = None) -> Self:
        from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

        theta, writer, limits = pose(space, constraints)
        goal = cp.sum(theta) + (0.0 if cost is None else writer.expression(cost))
        data, _, _ = cp.Problem(cp.Minimize(goal), limits).get_problem_data(cp.CLARABEL)
        start, slope = data["param_prob"].var_id_to_col[theta.id], np.array(data["c"])
        columns, curved = slice(start, start + space.dim), data.get("P", sp.csc_array((len(slope), len(slope))))
        slope[columns] -= 1
        cones = dims_to_solver_cones(data["dims"])
        return cls(sp.csc_array(data["A"]), np.asarray(data["b"]), cones, columns, (sp.csc_array(curved), slope))

    def units(self, unit: Any) -> Array:
        """Return approximate sizes of all entries of x from the sizes of theta; rows give sizes that are unknown (NaN)."""
        units, size = np.full(self.matrix.shape[1], np.nan), abs(sp.coo_array(self.matrix))
        units[self.columns] = unit
        if np.ndim(unit) == 0:
            return np.full(len(units), float(unit))
        size.eliminate_zeros()
        row, column = size.coords
        while np.isnan(units).any():
            known = np.isfinite(units[column])
            rows, found = np.zeros(self.matrix.shape[0]), np.zeros(len(units))
            np.maximum.at(rows, row[known], size.data[known] * units[column[known]])
            np.maximum.at(found, column, rows[row] / size.data)
            new = np.isnan(units) & (found > 0)
            if not new.any():
                new, found = np.isnan(units), np.full(len(units), np.nanmax(units))
            units[new] = found[new]
        return units

    def minimise(self, hessian: Any, slope: Array, unit: Any = 1.0, cost: float | None = None) -> Array | None:
        """Return the minimiser of ``theta' hessian theta / 2 + slope' theta`` plus a multiple of the cost; None on failure.

        Without a cost, the answer may be inaccurate.  The solver's tolerances suit numbers of size 1: `unit` is the approximate
        size of theta, or of its coordinates.
        """
        units, upper = self.units(unit), sp.coo_array(sp.triu(sp.csc_array(hessian)))
        place = [self.columns.start + coordinate for coordinate in upper.coords]
        curved, pull = sp.csc_array((upper.data, place), shape=(len(units), len(units))), (cost or 0.0) * self.cost[1]
        pull[self.columns] += slope
        scale = sp.diags_array(units)
        curved = sp.csc_array(scale @ (curved + (cost or 0.0) * self.cost[0]) @ scale)
        matrix = sp.csc_array(self.matrix @ scale)
        top = float(np.max(unit)) if np.ndim(unit) == 0 else float(abs(matrix).max()) or 1.0
        found = clarabel_answer(
            curved, units * pull, matrix / top, self.offset / top, self.cones, solved=cost is not None
        )
        return None if found is None else (units * found[0])[self.columns]


@silence()  # the text of a panic
def clarabel_answer(
    hessian: sp.csc_array, slope: Array, matrix: sp.csc_array, offset: Array, cones: Sequence[Any], solved: bool = False
) -> tuple[Array, Array] | None:
    """Minimise ``x' hessian x / 2 + slope' x`` with ``offset - matrix x`` in cones; return x and multipliers, or None.

    With `solved`, the solver's status must be solved or almost solved; otherwise any status but infeasible is accepted.
    """
    import clarabel

    kinds = {
        "zero": clarabel.ZeroConeT,
        "nonnegative": clarabel.NonnegativeConeT,
        "second-order": clarabel.SecondOrderConeT,
        "semidefinite": lambda size: clarabel.PSDTriangleConeT(int((np.sqrt(8 * size + 1) - 1) / 2)),
    }
    named = [kinds[cone[0]](cone[1]) if isinstance(cone, tuple) else cone for cone in cones]
    scale = max(float(abs(hessian).max()), float(np.abs(slope).max(initial=0.0)), 1e-300)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    try:
        upper = sp.csc_array(sp.triu(sp.csc_array(hessian / scale)))
        found = clarabel.DefaultSolver(upper, slope / scale, matrix, offset, named, settings).solve()
    except BaseException as error:  # a panic of the solver is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
            raise
        return None
    x, z, status = np.asarray(found.x), scale * np.asarray(found.z), str(found.status)
    known = "Solved" in status if solved else "nfeasible" not in status
    return (x, z) if known and np.isfinite(x).all() and np.isfinite(z).all() else None


def inner_points(space: Space, constraints: Sequence[Constraint]) -> Iterator[tuple[Array | None, float]]:
    """Yield points far from equality in all inequalities, and their depths; None and minus infinity if the set seems empty."""
    for unit in (1.0, 1e3, 1e-3, 1e6, 1e-6):
        depth = cp.Variable()
        theta, _, limits = pose(space, constraints, unit)
        limits = [depth <= 1, *(deeper(limit, depth) for limit in limits)]
        # Prefer points near 0, where answers are; the last weight accepts points anywhere.
        for weight in (1e-3, 1e-6, 0.0):
            program = cp.Problem(cp.Maximize(depth - weight * cp.norm(theta)), limits)
            with suppress(cp.SolverError):
                solve_quietly(program, cp.CLARABEL)
            if program.status in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE):
                yield None, -np.inf
                break
            found = theta.value
            yield (None, 0.0) if found is None else (unit * np.asarray(found), float(depth.value))


def deeper(limit: Any, depth: Any) -> Any:
    if isinstance(limit, cp.constraints.Inequality):
        low, high = limit.args
        return limit if low.is_constant() and high.is_constant() else low + depth <= high
    if isinstance(limit, cp.constraints.PSD):
        return limit.args[0] - depth * np.eye(limit.args[0].shape[0]) >> 0
    if isinstance(limit, cp.SOC):
        return cp.SOC(limit.args[0] - depth, limit.args[1], axis=limit.axis)
    return limit
