"""Terms of a regularizer that have neither bounded curvature nor a proximal map together with K, as inequalities.

Each entry of such a term gets a height above it, ``term(theta) <= height``, and the heights are minimised in its place.  So kinks
and logarithms join the inequalities of K, in a space with one more coordinate for each, and multipliers certify the answer.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.atoms.exponentials import LOG, REL_ENTR
from dpconvex.core.atoms.extremes import MAX, MAXIMUM, SUM_LARGEST
from dpconvex.core.atoms.matrices import LOG_DET, NORM_NUC
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS, POWER, absolute
from dpconvex.core.discipline import is_concave, is_convex
from dpconvex.core.evaluate import evaluations
from dpconvex.core.expression import Constraint, Expression, Variable, postorder
from dpconvex.core.parameter_space import Space
from dpconvex.errors import DPConvexError
from dpconvex.geometry.constraints import has_kinks
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.linear_maps import groups
from dpconvex.geometry.region import Region

Array = NDArray[np.float64]

# Atoms that are piecewise linear; and those whose curvature has no bound where their arguments are near zero.
POLYHEDRAL = (ABS, MAX, MAXIMUM, SUM_LARGEST)
STEEP = (LOG, REL_ENTR)


@dataclass(frozen=True, eq=False)
class Epigraph:
    """Heights above the entries of some terms."""

    entries: tuple[Expression, ...]  # The terms, all of whose entries are convex
    weights: Array  # shape (J,): what each height costs
    region: Region  # K with the terms below the heights, which are its last J coordinates

    @property
    def dim(self) -> int:
        """The number of coordinates without the heights."""
        return self.region.dim - len(self.weights)

    @cached_property
    def inside(self) -> Array:
        """A point strictly inside K, at which all terms have slopes."""
        return np.asarray(self.region.inside[: self.dim], dtype=float)

    @cached_property
    def room(self) -> float:
        """By how much the heights cost more than the terms at the point inside."""
        return float(self.weights @ self.region.inside[self.dim :].astype(float)) - self.value(self.inside)

    def heights(self, theta: Array) -> Array:
        """Evaluate all entries, shape (J,)."""
        values = self.region.space.unpack(np.concatenate([theta, np.zeros(len(self.weights))]))
        found = evaluations(self.entries, {v: values[v.name] for entry in self.entries for v in entry.variables})
        return np.concatenate([found[entry][0].reshape(-1, order="F") for entry in self.entries])

    def value(self, theta: Array) -> float:
        """Evaluate the terms."""
        return float(self.weights @ self.heights(theta))


def is_rough(part: Expression, feasible: FeasibleSet) -> bool:
    """Whether a term has kinks, or bends without bound at an end of its domain from which K does not keep it away."""
    if part.is_affine:
        return False
    if part.atom is NORM or has_kinks(part):
        return True
    if part.atom is LOG_DET:
        return not feasible.least_eigenvalue(part.args[0]) > 0
    steep = part.atom in STEEP or (part.atom is POWER and part.option("p") < 2)
    return steep and not all(feasible.least_entry(argument) > 0 for argument in part.args)


def is_reached(part: Expression) -> bool:
    """Whether linearisations reach the digits of a term: it is piecewise linear, or has no kinks but those of its own atom."""
    # A p-norm with p below 2 bends without bound on every axis.
    if part.atom is NORM_NUC or (part.atom is NORM and 1 < part.option("p") < 2):
        return False
    inner = [node for node in postorder(part.args) if not node.is_affine]
    kinked = [node.atom is NORM or has_kinks(node) for node in inner]
    return not any(kinked) or all(is_piecewise_linear(node) for node in (*inner, part))


def is_piecewise_linear(node: Expression) -> bool:
    if node.atom is None or node.atom.affine == "linear" or node.atom in POLYHEDRAL:
        return True
    return node.atom is NORM and node.option("p") in (1.0, np.inf)


def epigraph(parts: dict[Expression, sp.csr_array], feasible: FeasibleSet) -> Epigraph | None:
    """Put heights above weighted entries of terms; None if one is not convex, or what results cannot be handled."""
    found: list[tuple[Expression, Array]] = []
    for part, row in parts.items():
        weights = row.toarray()[0]
        if part.atom is NORM and part.option("p") == 1:
            part, weights = absolute(part.args[0]), weights[groups(part)]
        if is_concave(part) and not is_convex(part):
            part, weights = -part, -weights
        if not is_convex(part) or (weights < 0).any() or not is_reached(part):
            return None
        kept = np.flatnonzero(weights)
        found.append((part if len(kept) == part.size else reshape(part, (part.size,))[kept], weights[kept]))
    count = sum(len(weights) for _, weights in found)
    heights = Variable.of((count,), "heights of the regularizer", -1)
    ends = np.cumsum([0, *(len(weights) for _, weights in found)])
    below = [
        Constraint("inequality", (entries, reshape(heights[start:stop], entries.shape)))
        for (entries, _), start, stop in zip(found, ends, ends[1:], strict=False)
    ]
    variables = [block.variable for block in feasible.space.blocks.values()]
    region = Region(Space([*variables, heights]), (*feasible.constraints, *below))
    try:
        region.check()
    except DPConvexError:
        return None
    return Epigraph(tuple(entries for entries, _ in found), np.concatenate([w for _, w in found]), region)
