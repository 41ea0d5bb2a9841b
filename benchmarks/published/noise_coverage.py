"""Whether noise covers the sensitive subspace, which every mechanism that perturbs an objective must show.

Suppose that noise never moves in a direction v, while the data do: some row of `A_z` has a part along v.  Where the
constraints are slack, the gradient of the perturbed objective vanishes at the answer, and its part along v is free of
noise: the answer satisfies an equation that holds for one data set and fails for its neighbour.  An event has positive
probability under the one and none under the other, so no epsilon is large enough (docs/published.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.sensitive_subspace import coefficient_vectors
from dpconvex.util.arrays import Array

# Columns are orthonormal up to rounding; a sensitive direction that the noise misses sticks out by far more than this.
ROUNDING = 1e-9
# Above this many entries the dimension of what is missed is not counted: one direction is enough to refuse.
LARGEST_COUNT = 4_000_000


@dataclass(frozen=True, eq=False)
class Gap:
    """A part of the sensitive subspace that noise leaves out.

    `direction` is one that the data can reach and the noise never moves in, of norm 1, by variable, and `vector` the same in
    coordinates.  `dimension` counts independent directions, None if that was too much, of `sensitive` ones.
    """

    direction: Mapping[str, Array]
    vector: Array
    dimension: int | None
    sensitive: int

    def __str__(self) -> str:
        how_many = "a part" if self.dimension is None else str(self.dimension)
        moves = [leading(name, value) for name, value in self.direction.items() if np.abs(value).max() > ROUNDING]
        return f"{how_many} of the {self.sensitive} sensitive directions, one of them {', '.join(moves)}"


def leading(name: str, value: Array) -> str:
    """Say where a variable moves most, and by how much.

    >>> leading("Phi_0", np.array([[0.0, 0.0], [0.0, -0.5]]))
    'Phi_0[1, 1] by -0.5'
    """
    place = np.unravel_index(int(np.argmax(np.abs(value))), value.shape)
    index = f"[{', '.join(str(int(i)) for i in place)}]" if value.ndim else ""
    return f"{name}{index} by {float(value[place]):+.3g}"


def find_gap(form: LossForm, span: Any) -> Gap | None:
    """Find a direction of the sensitive subspace that noise leaves out."""
    dim = form.space.dim
    if getattr(span, "ndim", None) != 2 or span.shape[0] != dim:
        raise TemplateError(f"coverage: expected a basis of shape ({dim}, k), not {getattr(span, 'shape', span)!r}.")
    noise, basis = sp.csc_array(span), sp.csc_array(form.basis)
    error = sp.csc_array(noise.T @ noise) - sp.eye_array(noise.shape[1], format="csc")
    if error.nnz and not abs(error).max() <= ROUNDING:
        raise TemplateError("coverage: the columns of the noise's basis are not orthonormal.")
    missed = sp.csc_array(basis - noise @ (noise.T @ basis))
    lengths = np.sqrt(np.asarray(missed.power(2).sum(axis=0)).ravel())
    if not (lengths > ROUNDING).any():
        return None
    worst = int(np.argmax(lengths))
    vector = missed[:, [worst]].toarray().ravel() / lengths[worst]
    count = None
    if missed.shape[0] * missed.shape[1] <= LARGEST_COUNT:
        count = int(np.linalg.matrix_rank(missed.toarray(), tol=ROUNDING))
    return Gap(form.space.unpack(vector), vector, count, int(basis.shape[1]))


def check_coverage(form: LossForm, span: Any, noise: str = "the noise", remedy: str | None = None) -> None:
    """Refuse noise that leaves out a part of the sensitive subspace."""
    gap = find_gap(form, span)
    if gap is not None:
        raise NotPrivate(
            f"{noise} does not cover the sensitive subspace: it misses {gap}; a change of the data in "
            "such a direction is never hidden, and no epsilon accounts for it",
            sensitive_leaf(form, gap),
            remedy or "draw noise on the whole sensitive subspace, as ObjectivePerturbation does",
        )


def sensitive_leaf(form: LossForm, gap: Gap) -> object:
    """Return the affine part of the loss that reaches furthest into a gap."""
    leaves = [leaf for group in form.leaves for leaf in group]
    reach = [
        float(np.abs(coefficient_vectors([form.polynomial(leaf)], form.space.dim).T @ gap.vector).max(initial=0.0))
        for leaf in leaves
    ]
    return leaves[int(np.argmax(reach))]
