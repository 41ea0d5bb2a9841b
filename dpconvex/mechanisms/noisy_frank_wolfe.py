"""Vertex steps for many features: noisy choices of vertices of l1 balls or simplices (K. Talwar, A. Thakurta, L. Zhang 2015)."""

import math
from dataclasses import dataclass

import numpy as np

from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.mechanisms.adaptive_steps import DRAWN, AdaptiveSteps
from dpconvex.model.privacy import Privacy
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.projections import AxisHull, IntervalSet
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.util.arguments import COUNT
from dpconvex.util.arrays import Array, Indices

# Limits of the number of vertices, by the noise of a choice over the log of their number, and by records times level for each.
LOUD, ENOUGH = 16.0, 40.0
SOURCE = "docs/theory.md, propositions 8.10 and 8.11"
RANGE = "one record moves log-probabilities within a known range, which gives a block of choices its level"
CHOSEN = "Vertices are drawn exactly, with integer weights, from the operating system's random numbers."
REMEDY = (
    "constrain the weights of features by cp.norm1(w) <= radius, or by w >= 0 and cp.sum(w) == 1; or use AdaptiveSteps"
)


@dataclass(frozen=True)
class NoisyFrankWolfe(AdaptiveSteps):
    """Choose vertices of an l1 ball or a simplex with noise, and take adaptive steps on their convex hull.

    For losses of scores that are linear in one field, such as ``x @ w + b``, with the weights in an l1 ball or a simplex, and
    far more features than records can tell apart.  It needs a delta.  Nothing is claimed about accuracy.

    Formal guarantee: (epsilon, delta)-differential privacy for the adjacency and the unit of `Privacy`, by proposition 8.11 of
    docs/theory.md.

    Parameters
    ----------
    rounds : int or None
        Number of steps on the hull, as for `AdaptiveSteps`.
    vertices : int or None
        Number of chosen features.  None grows with records and the level: 13 for 2,000 records and 5,000 features at epsilon =
        1.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import dpconvex as dp
    >>> w = cp.Variable(5000, name="w")
    >>> record = dp.Record(x=dp.Ball(5000, norm="inf"), y=dp.Choice([-1, 1]))
    >>> template = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), constraints=[cp.norm1(w) <= 10])
    >>> certificate = dp.verify(template, dp.Privacy(1.0, 1e-5, "add-remove"), 2000, dp.NoisyFrankWolfe())
    >>> certificate.settings["vertices"]
    13.0
    """

    vertices: int | None = None

    name = "vertex steps"
    further = (Derivation("choices of vertices", "", {}, f"{RANGE} ({SOURCE})"),)
    drawn = (DRAWN, CHOSEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        COUNT.or_none.check("NoisyFrankWolfe", vertices=self.vertices)

    def chosen(self, form: LossForm, privacy: Privacy, level: float, size: int) -> dict[str, float]:
        """Return the number of chosen vertices; raise `NotPrivate` for other sets and regularizers."""
        count, records = num_vertex_axes(form), signal_to_noise(privacy, level, size)
        if as_quadratic(form.template.regularizer, form.space) is None:
            remedy = "leave 1-norms out of the regularizer: the constraint has them"
            raise NotPrivate("vertex steps: the regularizer is not quadratic", form.template.regularizer, remedy)
        usual = min((records / (LOUD * math.log(count + 2))) ** 2, records / ENOUGH)
        return {"vertices": float(min(max(round(usual), 1) if self.vertices is None else self.vertices, count))}


def signal_to_noise(privacy: Privacy, level: float, size: int) -> float:
    """Return the ratio of the sum of all records' slopes of 1 to the standard deviation of its noise."""
    return size * level / (privacy.most * (2 if privacy.adjacency == "replace-one" else 1))


def num_vertex_axes(form: LossForm) -> int:
    """Return the number of coordinates along which K has vertices; raise `NotPrivate` for other sets."""
    return int(vertex_reach(form).any(axis=0).sum())


def vertex_reach(form: LossForm, needed: Indices | None = None) -> Array:
    """Return the distances of K's vertices from the origin along each coordinate, up and down, (2, dim); raise for other sets."""
    reach = np.zeros((2, form.space.dim))
    for piece in form.feasible.pieces:
        if isinstance(piece, AxisHull) and piece.can_project and not piece.anchor.any():
            reach[:, piece.coordinates] = np.maximum([piece.high, -piece.low], 0.0)
        elif not isinstance(piece, IntervalSet):
            reach[:] = 0.0
            break
    missing = not reach.any() if needed is None else not reach[:, needed].any(axis=0).all()
    if missing or not form.feasible.has_projection:
        said = "weights of features lie in no l1 ball or simplex around the origin"
        raise NotPrivate(f"vertex steps: {said}", form.feasible.describe(), REMEDY)
    return reach
