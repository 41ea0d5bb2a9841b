"""The inverse of a model of the Hessian, from one sum of second moments of the records: what quasi-Newton steps begin with.

Without it limited-memory BFGS begins with a multiple of the identity, and takes many passes over records whose second moments
are far from round.  What the model says changes the path only: the answer is certified in the coordinates as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dpconvex.evaluation.gram import Gram
from dpconvex.solvers.composite import Composite

Array = NDArray[np.float64]
Inverse = Callable[[Array], Array]

# A matrix of so many coordinates is decomposed whole; with more of them, as a product of one for features and one for classes,
# if it is that, or up to the second number.
SMALL, LARGEST = 500, 2000
# A regularizer that is not quadratic is asked for all columns of its Hessian if it has so many coordinates.
COLUMNS = 200
# The speed of so many passes is looked at before a model is made.
TRIED = 5


class Models:
    """Says when a model of the Hessian pays, and makes it.

    Steps go on without one while the speed so far foretells fewer passes than it costs.  A model that is the Hessian itself where
    it was made is made again by the same rule.
    """

    def __init__(self, composite: Composite) -> None:
        self.composite, self.problem = composite, composite.problem
        self.cost = self.problem.loss.gram_passes
        self.start: Array | None = None
        self.last = 0, np.inf

    def inverse(self, theta: Array, norm: float, bound: float) -> Inverse | None:
        """Return the inverse of a model at a point, if it pays for bringing the norm of the gradient there down to a bound."""
        now = self.composite.evaluations
        if not np.isfinite(self.cost):
            return None
        if self.start is None:
            self.start, self.last = theta, (now, norm)
            return None
        passes, gained = now - self.last[0], np.log(self.last[1] / norm)
        if passes < TRIED or passes * np.log(norm / bound) < self.cost * max(gained, 0.0):
            return None
        gram = self._gram(theta)
        found = None if gram is None else inverse(self.composite, theta, gram)
        if gram is None or found is None or not gram.exact:
            self.cost = np.inf  # it would be much the same again
        self.last = now, norm
        return found

    def _gram(self, theta: Array) -> Gram | None:
        """Return the Gram matrix at a point; one that is no Hessian with the mean of the bends there and where steps began.

        Where steps of no model end, losses may bend much less than they do around the minimiser.
        """
        loss = self.problem.loss
        gram = loss.gram(self._seen(theta))
        if gram is None or gram.exact or self.start is None:
            return gram
        first = loss.gram(self._seen(self.start))
        return gram if first is None else replace(gram, bend=(gram.bend + first.bend) / 2)

    def _seen(self, theta: Array) -> Array:
        return theta if self.problem.projector is None else self.problem.projector(theta)


def inverse(composite: Composite, theta: Array, gram: Gram) -> Inverse | None:
    """Return the inverse of the Hessian of f, with the Gram matrix for that of the losses."""
    if composite.dim > SMALL and gram.forms > 1:
        found = gram.grid()
        if found is not None:
            return of_grid(*found, gram.mean()[1], public_diagonal(composite))
    if composite.dim > LARGEST:
        return None
    matrix = gram.matrix()
    if composite.problem.projector is not None:
        matrix = composite.problem.projector(composite.problem.projector(matrix).T)
    matrix += public_hessian(composite, theta)
    try:
        factor = scipy.linalg.cho_factor(matrix, overwrite_a=True)
    except (np.linalg.LinAlgError, ValueError):
        return None
    return lambda vector: np.asarray(scipy.linalg.cho_solve(factor, vector, check_finite=False))


def of_grid(places: NDArray[np.int64], bend: Array, moments: Array, diagonal: Array) -> Inverse | None:
    used = places[:, 0] >= 0
    places = places[used]
    root = np.sqrt(diagonal[places].mean(axis=1))
    scaled = moments[used][:, used] / root[:, None] / root
    if not (np.isfinite(scaled).all() and np.isfinite(bend).all()):
        return None
    rows, left = np.linalg.eigh(scaled)
    columns, right = np.linalg.eigh(bend)
    values = 1.0 + np.maximum(rows, 0.0)[:, None] * np.maximum(columns, 0.0)

    def apply(vector: Array) -> Array:
        inner = left.T @ (vector[places] / root[:, None]) @ right
        result = np.empty_like(vector)
        result[places] = left @ (inner / values) @ right.T / root[:, None]
        return result

    return apply


def public_hessian(composite: Composite, theta: Array) -> Array:
    """Return the Hessian of all but the losses, which has at least the strong convexity."""
    problem, dim = composite.problem, composite.dim
    quadratic = problem.loss.quadratic(problem.split[0])
    if quadratic is not None:
        matrix = problem.size * quadratic.hessian.toarray() + problem.added * np.eye(dim)
    elif dim <= COLUMNS:
        columns = [problem.loss.regularizer_hessian_product(theta, e, problem.split[0]) for e in np.eye(dim)]
        matrix = problem.size * np.array(columns) + problem.added * np.eye(dim)
    else:
        matrix = problem.strong_convexity * np.eye(dim)
    return (matrix + matrix.T) / 2


def public_diagonal(composite: Composite) -> Array:
    """Return the diagonal of the same; at least the strong convexity."""
    problem = composite.problem
    quadratic = problem.loss.quadratic(problem.split[0])
    if quadratic is None:
        return np.full(composite.dim, problem.strong_convexity)
    return np.maximum(problem.size * quadratic.hessian.diagonal() + problem.added, problem.strong_convexity)
