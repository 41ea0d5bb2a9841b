"""The fit without privacy, for comparison: whatever CVXPY can solve, with a statement of how accurate it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.core.discipline import is_convex
from dpconvex.core.parameter_space import Space
from dpconvex.core.plain_data import is_real
from dpconvex.core.runtime import quietly
from dpconvex.errors import MissingRule, NotConverged, NotPrivate, TemplateError
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.language.batch import Batch
from dpconvex.language.record import in_one_place
from dpconvex.language.template import Template
from dpconvex.release.engine import DataEngine
from dpconvex.release.release import Release, functions_of
from dpconvex.release.solve import resolved
from dpconvex.release.verify import analyse, check_template
from dpconvex.solvers.conic import least
from dpconvex.solvers.problem import Problem

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Baseline(Release):
    """A fit without privacy, and how accurate it is."""

    distance: float = np.inf
    gap: float | None = None

    @property
    def accuracy(self) -> str:
        """How accurate the fit is, in words."""
        near = f"within {self.distance:.2g} of the minimiser"
        if self.gap is None:
            return near
        above = f"its mean objective is at most {self.gap:.2g} above the least (duality gap)"
        return f"{above}, {near}" if np.isfinite(self.distance) else above

    @property
    def status(self) -> str:
        """That nothing is promised, and the accuracy."""
        return f"{super().status}; {self.accuracy}"


@quietly
def minimize(
    template: Template,
    data: Mapping[str, ArrayLike],
    backend: Any = None,
    *,
    clip: bool = False,
    tolerance: float = 1e-6,
) -> Baseline:
    """Fit a template without privacy, for comparison; the result says so, and how accurate it is.

    Smooth, strongly convex objectives are minimised to within the tolerance, which is proved.  Everything else that CVXPY can
    solve goes to a conic solver, and the gap between its primal and dual objectives tells how far the answer can be off.

    Parameters
    ----------
    template, data, clip
        As for `solve`.
    backend : str or object, optional
        For objectives that are smooth and strongly convex.
    tolerance : float
        Largest distance from the exact minimiser, where that is proved.

    Returns
    -------
    Release
        Not private.  Its `distance` bounds the distance from the minimiser, and `gap` how far its mean objective is above the
        least one; `accuracy` says both in words.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("hinge_svm", features=1)  # its loss has a kink
    >>> fit = dp.minimize(learner, {"x": [[1.0], [-0.5]], "y": [1, -1]})
    >>> fit["w"].round(3), fit.gap < 1e-9
    (array([2.]), True)
    """
    if not (is_real(tolerance) and 0 < tolerance < 1e300):
        raise TemplateError(f"minimize: tolerance must be positive and finite, not {tolerance!r}.")
    check_template(template)
    chosen, analysis = resolved(backend), analysed(template)
    batch = template.record.validate(data, clip=clip, copy=False)
    missed: NotConverged | None = None
    # First-order methods can prove a distance where the program can be run, without kinks, and has one minimiser.
    if analysis is not None and analysis.obstacle is None and analysis.kink is None and analysis.modulus > 0:
        try:
            theta = DataEngine(analysis, batch, batch.size, chosen).minimise(batch.size * analysis.modulus, tolerance)
            return baseline(template, analysis.form.space, theta, tolerance)
        except NotConverged as error:
            if backend is not None:
                raise
            missed = error
    in_one_place("the conic solver that this template needs", data)
    try:
        return by_duality(template, analysis, batch)
    except MissingRule:  # a user's own atom, which no conic solver takes
        if missed is None:
            raise
        raise missed from None


def analysed(template: Template) -> Analysis | None:
    """Return the constants of a template; None where it is convex and no rule bounds them, which a baseline does not need."""
    try:
        return analyse(template)
    except NotPrivate:
        if not (all(map(is_convex, (*template.losses, template.regularizer))) and template.losses[0].variables):
            raise
        return None


def by_duality(template: Template, analysis: Analysis | None, batch: Batch) -> Baseline:
    """Fit through a conic solver."""
    if analysis is None:
        space, modulus = Space(template.variables), 0.0
        feasible = FeasibleSet(space, template.constraints)
    else:
        space, feasible, modulus = analysis.form.space, analysis.form.feasible, batch.size * analysis.modulus
    strong_convexity = modulus or np.finfo(float).tiny  # of which a conic solver makes no use
    problem = Problem(template, space, feasible, batch, size=batch.size, strong_convexity=strong_convexity)
    theta, gap = least(problem)
    distance = float(np.sqrt(2 * gap / modulus)) if modulus > 0 else np.inf
    return baseline(template, space, theta, distance, gap / batch.size)


def baseline(template: Template, space: Space, theta: Array, distance: float, gap: float | None = None) -> Baseline:
    found, functions = space.unpack(theta), functions_of(template)
    return Baseline(found, not_private_because="no noise was added", **functions, distance=distance, gap=gap)
