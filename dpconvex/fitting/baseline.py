"""Fits without privacy, for comparison."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.data.partitions import normalized
from dpconvex.data.record import require_arrays
from dpconvex.errors import NotPrivate
from dpconvex.expressions.discipline import is_convex
from dpconvex.expressions.parameter_space import Space
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.release import Release, annotated, functions_of
from dpconvex.fitting.verify import analyse, check_template
from dpconvex.model.template import Template
from dpconvex.optim import backend as backends, certify
from dpconvex.optim.conic import solve_with_gap
from dpconvex.optim.problem import Problem
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.util.arguments import number
from dpconvex.util.runtime import quietly

# Largest distance from the minimiser, relative to the length of the parameters, before a conic solver takes over.
FARTHEST = 1e-2


@dataclass(frozen=True, eq=False, repr=False)
class Baseline(Release):
    """A fit without privacy: bounds on its distance from the minimiser and on the excess of its mean objective, if known."""

    distance: float = np.inf
    gap: float | None = None


@quietly
def solve_without_privacy(
    template: Template,
    data: Mapping[str, ArrayLike],
    backend: Any = None,
    *,
    clip: bool = False,
    tolerance: float = 1e-6,
) -> Baseline:
    """Fit a template without privacy, for comparison.  The result is marked as not private, with its accuracy.

    Smooth, strongly convex objectives are minimised to the tolerance, or as closely as rounding allows, with a proved distance.
    Other objectives go to a conic solver through CVXPY. Its duality gap bounds the error of the answer.

    Parameters
    ----------
    template, data, clip
        As for `solve`.
    backend : str or object, optional
        Solver for smooth and strongly convex objectives.
    tolerance : float
        Distance from the exact minimiser, if it can be proved.  If the parameters are longer than 1, a fraction of their length.

    Returns
    -------
    Release
        Not private.  Its `status` states the accuracy.  `distance` bounds the distance from the minimiser, and `gap` the excess
        of the mean objective over its minimum.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("hinge_svm", features=1)  # a nonsmooth loss
    >>> fit = dp.solve_without_privacy(learner, {"x": [[1.0], [-0.5]], "y": [1, -1]})
    >>> fit["w"].round(3), fit.gap < 1e-9
    (array([2.]), True)
    """
    number("positive and finite", lambda value: 0 < value < 1e300).check("solve_without_privacy", tolerance=tolerance)
    check_template(template)
    chosen, analysis, modulus = backends.resolve_backend(backend), analysed(template), 0.0
    batch = template.record.validate(data, clip=clip)
    if analysis is None:
        space = Space(template.variables)
        feasible = FeasibleSet(space, template.constraints)
    else:
        space, feasible, modulus = analysis.form.space, analysis.form.feasible, batch.size * analysis.modulus
    theta, distance, gap, said = None, np.inf, None, ["no noise was added"]
    # First-order methods can prove a distance for smooth objectives with one minimiser, if points can be projected on K.
    if analysis is not None and modulus > 0 and analysis.kink is None and feasible.obstacle is None:
        problem = replace(DataEngine(analysis, batch, batch.size, chosen).problem(modulus), relative=True)
        if backend is None:
            found = certify.closest_point(problem, np.zeros(space.dim), tolerance)[0]
        else:
            found = backends.solve(problem, chosen, tolerance)
        if found.distance_bound <= problem.distance_allowed(FARTHEST, found.theta):
            theta, distance = found.theta, found.distance_bound
    if theta is None:
        require_arrays("the conic solver that this template needs", data)
        anything = modulus or np.finfo(float).tiny  # a conic solver does not use it
        theta, total = solve_with_gap(
            Problem(template, space, feasible, batch, size=batch.size, strong_convexity=anything)
        )
        distance, gap = float(np.sqrt(2 * total / modulus)) if modulus > 0 else np.inf, total / batch.size
        said.append(f"its mean objective is at most {gap:.2g} above its minimum (duality gap)")
    if np.isfinite(distance):
        said.append(f"it is within {distance:.2g} of the minimiser")
    proof: Any = {"not_private_because": "; ".join(said), "distance": distance, "gap": gap}
    return annotated(Baseline(space.unpack(theta), **proof, **functions_of(template)), normalized(data))


def analysed(template: Template) -> Analysis | None:
    """Return the constants of a template; None for a convex template without bounds, which a baseline does not need."""
    try:
        return analyse(template)
    except NotPrivate:
        if not (all(map(is_convex, (*template.losses, template.regularizer))) and template.losses[0].variables):
            raise
        return None
